"""Class activation maps are calibrated on a Ray dataset as if its images had been passed here."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from nobsp.vision import NObSPCam
from tests.cluster import CLUSTER_WARNINGS, Mortal, cluster
from tests.tolerances import CONTRIBUTIONS
from tests.vision.networks import averaged, images, through_layers

pytestmark = [pytest.mark.filterwarnings(said) for said in CLUSTER_WARNINGS]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with cluster() as started:
        yield started


def in_blocks(ray: Any, x: Tensor, *ends: int) -> Any:
    """Images in blocks of some sizes."""
    parts = [
        ray.data.from_numpy(part.numpy()).rename_columns({"data": "image"})
        for part in x.tensor_split(ends)
    ]
    return parts[0].union(*parts[1:])


def assert_same_maps(found: NObSPCam, expected: NObSPCam, x: Tensor) -> None:
    here, there = expected(x[:4]), found(x[:4])
    for name in (
        "positive",
        "negative",
        "signed",
        "account",
        "contributions",
        "residual",
        "base_values",
    ):
        np.testing.assert_allclose(
            getattr(there, name), getattr(here, name), rtol=0, atol=CONTRIBUTIONS
        )


def test_pooled_channels_are_the_same_though_a_worker_is_killed(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nobsp.vision.images.AT_ONCE", 14)
    x = images(60)
    model = Mortal(averaged(), tmp_path / "killed", call=4)
    dataset = in_blocks(ray, x, 25, 31, 52)
    found = NObSPCam(model, batch_size=7, coefficients="calibrated").fit(dataset)
    assert (tmp_path / "killed").exists()
    assert_same_maps(found, NObSPCam(model, batch_size=7, coefficients="calibrated").fit(x), x)


def test_layers_between_map_and_head_are_the_same_from_parquet(ray: Any, tmp_path: Path) -> None:
    x = images(60)
    in_blocks(ray, x, 20, 33).write_parquet(str(tmp_path))
    model = through_layers()
    found = NObSPCam(model).fit(ray.data.read_parquet(str(tmp_path)))
    # Files come in the order of their names, which Ray draws; sums do not mind.
    assert_same_maps(found, NObSPCam(model).fit(x), x)
    assert found.health() is not None


def test_bad_images_are_refused_in_our_own_words(ray: Any) -> None:
    cam = NObSPCam(averaged())
    whole = images(6).numpy()
    ragged = ray.data.from_items([{"image": whole[0]}, {"image": whole[1, :, :8]}])
    with pytest.raises(ValueError, match=r"^images has images of the shapes"):
        cam.fit(ragged)
    two = ray.data.from_items([{"left": image, "right": image} for image in whole])
    with pytest.raises(TypeError, match=r"^images has \['left', 'right'\], none"):
        cam.fit(two)
    with pytest.raises(TypeError, match="is of uint8; convert to floating point"):
        cam.fit(ray.data.from_numpy((whole * 10).astype("uint8")))
    whole[5, 0, 0, 0] = np.nan
    with pytest.raises(ValueError, match=r"^image \d of images .*not finite"):
        cam.fit(ray.data.from_numpy(whole))
    model = averaged()
    model.lock = threading.Lock()
    with pytest.raises(TypeError, match=r"^the model cannot be sent to Ray's workers"):
        NObSPCam(model).fit(ray.data.from_numpy(images(6).numpy()))
