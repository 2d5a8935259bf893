"""Which classes are confused, and what decides between them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nobsp
from nobsp import plots
from nobsp.vision import NObSPCam
from tests.vision.networks import averaged, images

NAMES = ["cat", "dog", "cow", "hen"]


@pytest.fixture(scope="module")
def cam() -> NObSPCam:
    return NObSPCam(averaged(), output_names=NAMES, batch_size=8).fit(images(30, seed=1))


def test_pairs_are_counted_and_their_maps_add_up_to_the_difference(cam: NObSPCam) -> None:
    given = images(40)
    labels = torch.arange(40) % 4
    found = nobsp.confusions(cam, given, labels, examples=3)
    logits = cam(given).logits
    said = logits.argmax(1)
    for true in range(4):
        assert found.matrix[true].tolist() == [
            int(((labels.numpy() == true) & (said == k)).sum()) for k in range(4)
        ]
    assert [pair.count for pair in found.pairs] == sorted(
        (pair.count for pair in found.pairs), reverse=True
    )
    for pair in found.pairs:
        true, wrong = NAMES.index(pair.truth), NAMES.index(pair.predicted)
        assert pair.count == found.matrix[true, wrong] == len(pair.positions)
        few = pair.positions[: len(pair.maps)]
        assert len(few) == min(3, pair.count)
        assert torch.equal(pair.images, given[few])
        gap = (
            logits[few, wrong]
            - logits[few, true]
            - (cam.base_values_[wrong] - cam.base_values_[true])
        )
        assert pair.maps.account.mean((1, 2)) == pytest.approx(gap, abs=1e-10)
        assert pair.contributions.sum() == pytest.approx(gap.mean(), abs=1e-10)
        assert (np.diff(pair.contributions) <= 0).all()


def test_a_loader_with_labels_names_and_arrays_give_the_same(cam: NObSPCam) -> None:
    given, labels = images(40), torch.arange(40) % 4
    one = nobsp.confusions(cam, given, labels)
    loader = DataLoader(TensorDataset(given, labels), batch_size=7)
    other = nobsp.confusions(cam, loader)
    named = nobsp.confusions(cam, loader, [NAMES[label] for label in labels])
    assert one.matrix.tolist() == other.matrix.tolist() == named.matrix.tolist()
    frame = one.to_frame()
    with pytest.warns(DeprecationWarning, match="to_frame"):
        assert one.frame().equals(frame)
    assert list(frame.columns) == ["truth", "predicted", "count", "share", "channels"]
    assert frame["count"].tolist() == [pair.count for pair in one.pairs]
    assert f"taken for {one.pairs[0].predicted}" in repr(one)
    assert plots.confusions(one, max_display=2).shape == (2, 2)


def test_labels_must_be_as_many_as_images(cam: NObSPCam) -> None:
    with pytest.raises(ValueError, match="labels has 9 entries for 8 images"):
        nobsp.confusions(cam, images(8), torch.zeros(9, dtype=torch.int64))
    with pytest.raises(ValueError, match="batches of images and labels"):
        nobsp.confusions(cam, images(8))


def test_labels_that_are_no_classes_and_counts_that_are_none_are_refused() -> None:
    given = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    cam = NObSPCam(nn.Sequential(body, nn.Linear(8, 3))).fit(given)
    labels = torch.arange(12) % 3
    with pytest.raises(
        ValueError, match=r"labels must hold one class per image, found the shape \(12, 3\)"
    ):
        nobsp.confusions(cam, given, torch.nn.functional.one_hot(labels))
    for wrong in ({"pairs": 0}, {"examples": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            nobsp.confusions(cam, given, labels, **wrong)
    assert (
        nobsp.confusions(cam, given, pd.Series(labels.numpy(), index=range(5, 17))).matrix.sum()
        == 12
    )
    right = cam(given).logits.argmax(1)
    with pytest.raises(ValueError, match="no image was taken for another class"):
        nobsp.report(nobsp.confusions(cam, given, right), "never.html")
    one = NObSPCam(nn.Sequential(body, nn.Linear(8, 1))).fit(given)
    with pytest.raises(ValueError, match="one output"):
        nobsp.confusions(one, given, 0 * labels)
