"""Images come as tensors, arrays, loaders and iterables, and mistakes are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from nobsp.vision import NObSPCam
from nobsp.vision.images import images_of
from tests.vision.networks import averaged, images

X = images(23)
LABELS = torch.zeros(23)
KINDS: dict[str, Any] = {
    "tensor": lambda: X,
    "array": lambda: X.numpy(),
    "loader": lambda: DataLoader(TensorDataset(X), batch_size=5),
    "loader with labels": lambda: DataLoader(TensorDataset(X, LABELS), batch_size=5),
    "loader of tensors": lambda: DataLoader(list(X), batch_size=5),
    "list of batches": lambda: [X[:10], X[10:]],
    "pairs": lambda: [(X[:10], LABELS[:10]), (X[10:], LABELS[10:])],
    "dictionaries": lambda: [
        {"pixel_values": X[:10], "labels": LABELS[:10]},
        {"pixel_values": X[10:]},
    ],
    "generator": lambda: (X[start : start + 6] for start in range(0, 23, 6)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_give_the_same_images_in_small_batches(kind: str) -> None:
    batches = list(images_of(KINDS[kind](), batch_size=4))
    assert max(map(len, batches)) <= 4
    assert torch.equal(torch.cat(batches), X)


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_calibrate_alike(kind: str) -> None:
    expected = NObSPCam(averaged(), ridge=1e-2).fit(X).coefficients_
    np.testing.assert_allclose(
        NObSPCam(averaged(), ridge=1e-2).fit(KINDS[kind]()).coefficients_, expected, rtol=1e-9
    )


def test_an_iterator_is_read_once() -> None:
    source = images_of(KINDS["generator"](), batch_size=4)
    assert sum(map(len, source)) == 23
    with pytest.raises(ValueError, match="read only once"):
        list(source)


def test_a_list_can_be_read_again() -> None:
    source = images_of(KINDS["list of batches"](), batch_size=4)
    assert sum(map(len, source)) == sum(map(len, source)) == 23


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (X[:, 0, 0], ValueError, r"expected \(n, channels, height, width\)"),
        (X[None, None], ValueError, r"expected \(n, channels, height, width\)"),
        (X[:0], ValueError, "images is empty"),
        ([], ValueError, "images has no batches"),
        ([X[:0]], ValueError, "batch 0 of images is empty"),
        ([()], TypeError, "batch 0 of images is a tuple"),
        ((X * 255).byte(), TypeError, r"of uint8; convert to floating point and normalise"),
        ([X[:2].long()], TypeError, "batch 0 of images is of int64"),
        (TensorDataset(X), TypeError, "is a Dataset; pass torch.utils.data.DataLoader"),
        ("folder", FileNotFoundError, "no file or folder"),
        ([{"label": X}], TypeError, r"has \['label'\], none of which"),
        ([object()], TypeError, "batch 0 of images is a object"),
        (7, TypeError, "images is a int"),
    ],
)
def test_mistakes_are_named(given: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        list(images_of(given, batch_size=4))


def test_an_image_that_is_not_finite_is_named_by_its_number() -> None:
    bad = X.clone()
    bad[17, 1, 2, 3] = torch.inf
    for given in (bad, [bad[:10], bad[10:]]):
        with pytest.raises(ValueError, match="image 17 of"):
            list(images_of(given, batch_size=4))
    with pytest.raises(ValueError, match="image 0 of images has a value that is not finite"):
        NObSPCam(averaged()).fit(bad[17:])


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_batches_have_a_sensible_size(size: Any) -> None:
    with pytest.raises(ValueError, match="batch_size must be a whole number of at least 1"):
        images_of(X, batch_size=size)
