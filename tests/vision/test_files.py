"""Files and shards: what was saved comes back, and calibrations add up."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nobsp import Local, serialization
from nobsp.vision import NObSPCam
from nobsp.vision.cam import KIND, VERSION
from nobsp.vision.means import ChannelMoments
from tests.changed_files import swapped_tensors
from tests.tolerances import CONTRIBUTIONS, assert_same_to_rounding
from tests.vision.networks import (
    ClassMaps,
    Functional,
    Tokens,
    averaged,
    images,
    made,
    through_layers,
)

MAPS = (
    "positive",
    "negative",
    "signed",
    "account",
    "contrast",
    "contributions",
    "class_token",
    "logits",
    "residual",
)

MODELS: dict[str, Any] = {
    "average": averaged,
    "rectified": lambda: made(Functional("mean")),
    "flattened": lambda: made(Functional("flatten")),
    "class maps": lambda: made(ClassMaps()),
    "layers between": through_layers,
    "all of the map": lambda: through_layers(pooled=False),
    "class token": lambda: made(Tokens("class")),
}
TAILS = ("layers between", "all of the map", "class token")
CALIBRATED = [(name, "calibrated") for name in MODELS if name not in TAILS]
BOTH = [(name, "head") for name in MODELS] + CALIBRATED
# Some have more units than images, or a ridge that is strong for them; all add up.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Fewer samples", "ignore:The coefficients carry only"
)


@pytest.mark.parametrize(("name", "coefficients"), BOTH)
def test_a_loaded_explainer_gives_the_same_maps(
    name: str, coefficients: Any, tmp_path: Path
) -> None:
    model, x = MODELS[name](), images(60)
    names = list("abcd")[: 3 if name in TAILS else 4]
    cam = NObSPCam(model, coefficients=coefficients, output_names=names).fit(x)
    cam.save(tmp_path / "cam.safetensors")
    loaded = NObSPCam.load(tmp_path / "cam.safetensors", model)
    before, after = cam(x[:5]), loaded(x[:5])
    for field in MAPS:
        expected = getattr(before, field)
        scale = np.abs(before.account if field == "residual" else expected).max()
        np.testing.assert_allclose(getattr(after, field), expected, rtol=0, atol=1e-6 * scale)
    assert loaded.output_names_ == cam.output_names_
    assert loaded.health().rows == 60
    assert str(loaded.health()) == str(cam.health())


def test_layer_and_head_given_as_modules_are_found_again(tmp_path: Path) -> None:
    model, x = averaged(), images(60)
    cam = NObSPCam(model, layer=model.body[1], head=model.head, link="sigmoid").fit(x)
    cam.save(tmp_path / "cam")
    loaded = NObSPCam.load(tmp_path / "cam", model)
    np.testing.assert_allclose(loaded(x[:2]).account, cam(x[:2]).account, rtol=1e-5, atol=1e-6)


def test_the_file_is_small(tmp_path: Path) -> None:
    model = averaged(channels=1280, classes=200, dtype=torch.float32)
    with pytest.warns(UserWarning, match="Fewer samples"):
        cam = NObSPCam(model, coefficients="calibrated", ridge=1.0).fit(
            images(40, dtype=torch.float32)
        )
    cam.save(tmp_path / "cam")
    assert (tmp_path / "cam").stat().st_size < 2_000_000


def test_another_model_is_refused(tmp_path: Path) -> None:
    NObSPCam(averaged()).fit(images(30)).save(tmp_path / "cam")
    other = averaged()
    with torch.no_grad():
        other.body[0].bias += 1e-3
    with pytest.raises(ValueError, match="model is not the one this explainer was calibrated on"):
        NObSPCam.load(tmp_path / "cam", other)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cam").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="damaged"):
        NObSPCam.load(tmp_path / "cam", averaged())


@pytest.mark.parametrize(("name", "coefficients"), BOTH)
def test_merging_shards_equals_one_pass(name: str, coefficients: Any) -> None:
    model, x = MODELS[name](), images(90)
    whole = NObSPCam(model, coefficients=coefficients, ridge=1e-2).fit(x)(x[:4])
    parts = [
        NObSPCam(model, coefficients=coefficients, ridge=1e-2).fit(x[start : start + 30])
        for start in (0, 30, 60)
    ]
    found = parts[0].merge(parts[1]).merge(parts[2])(x[:4])
    for field in MAPS:
        expected = getattr(whole, field)
        np.testing.assert_allclose(
            getattr(found, field), expected, rtol=0, atol=1e-8 * np.abs(expected).max() + 1e-12
        )
    assert parts[0].health().rows == 90


@pytest.mark.parametrize("name", ["average", "layers between"])
def test_saved_moments_can_be_merged(name: str, tmp_path: Path) -> None:
    model, x = MODELS[name](), images(60)
    whole = NObSPCam(model).fit(x)(x[:4])
    NObSPCam(model).fit(x[:30]).save(tmp_path / "cam", mergeable=True)
    found = NObSPCam.load(tmp_path / "cam", model).merge(NObSPCam(model).fit(x[30:]))(x[:4])
    np.testing.assert_allclose(
        found.account, whole.account, rtol=0, atol=1e-8 * np.abs(whole.account).max()
    )


def test_without_moments_nothing_can_be_merged(tmp_path: Path) -> None:
    model = averaged()
    NObSPCam(model).fit(images(30)).save(tmp_path / "cam")
    with pytest.raises(ValueError, match="save with mergeable=True"):
        NObSPCam.load(tmp_path / "cam", model).merge(NObSPCam(model).fit(images(30)))


def test_calibrations_of_different_models_do_not_add_up() -> None:
    with pytest.raises(ValueError, match="different models, layers or kinds"):
        NObSPCam(averaged()).fit(images(30)).merge(NObSPCam(averaged(classes=3)).fit(images(30)))


def test_calibration_holds_moments_of_channels_alone() -> None:
    cam = NObSPCam.as_published(averaged()).fit(images(30))
    calibration = cam._fitted.calibration
    assert isinstance(calibration, ChannelMoments)
    assert calibration.moments.blocks == {"channels": 6}


@pytest.mark.parametrize(
    ("name", "coefficients"),
    [("average", "calibrated"), ("average", "head"), ("layers between", "head")],
)
def test_an_interrupted_calibration_is_resumed(
    name: str, coefficients: Any, tmp_path: Path
) -> None:
    model, x = MODELS[name](), images(60)

    class Disk:
        fails = True

        def __iter__(self) -> Iterator[torch.Tensor]:
            for number, batch in enumerate(x.split(15)):
                if self.fails and number == 2:
                    raise OSError("the disk is gone")
                yield batch

    disk, engine = Disk(), Local(tmp_path / "under way", 0)
    with pytest.raises(OSError, match="the disk is gone"):
        NObSPCam(model, coefficients=coefficients).fit(disk, engine=engine)
    with pytest.raises(ValueError, match="cannot be resumed"):
        NObSPCam(model, coefficients=coefficients, ridge=2.0).fit(disk, engine=engine)
    disk.fails = False
    found = NObSPCam(model, coefficients=coefficients).fit(disk, engine=engine)(x[:4])
    expected = NObSPCam(model, coefficients=coefficients).fit(x)(x[:4])
    assert_same_to_rounding(found.account, expected.account, within=CONTRIBUTIONS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["average", "layers between"])
def test_an_explainer_comes_back_from_a_worker(name: str) -> None:
    # As Ray or a process pool would send it.
    x = images(60)
    cam = NObSPCam(MODELS[name]()).fit(x[:30])
    returned = pickle.loads(pickle.dumps(NObSPCam(cam.model).fit(x[30:])))  # noqa: S301 - our own bytes
    whole = NObSPCam(cam.model).fit(x)(x[:3])
    np.testing.assert_allclose(
        cam.merge(returned)(x[:3]).account, whole.account, rtol=1e-7, atol=1e-9
    )


def test_nn_module_identity_head_survives_a_round_trip(tmp_path: Path) -> None:
    model: nn.Module = made(ClassMaps())
    cam = NObSPCam(model).fit(images(60))
    cam.save(tmp_path / "cam")
    assert NObSPCam.load(tmp_path / "cam", model).layer_ == "relu(classes)"


def rewritten(path: Path, change: Any) -> Path:
    """A copy of a file without its checksum, with its description changed."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"].pop("checksum", None)
    header["__metadata__"]["about"] = change(header["__metadata__"]["about"])
    encoded = json.dumps(header).encode()
    other = path.with_name("other")
    other.write_bytes(len(encoded).to_bytes(8, "little") + encoded + content[8 + size :])
    return other


def test_a_file_cannot_ask_for_images_of_any_size(tmp_path: Path) -> None:
    model = averaged()
    NObSPCam(model).fit(images(8)).save(tmp_path / "cam")
    shape = json.dumps({"@tuple": list(images(1).shape[1:])})
    inflated = json.dumps({"@tuple": [1 << 20, 1 << 20, 1 << 20]})

    def inflate(about: str) -> str:
        assert shape in about
        return about.replace(shape, inflated)

    path = rewritten(tmp_path / "cam", inflate)
    with pytest.raises(ValueError, match="damaged"):
        NObSPCam.load(path, model)


def test_tensors_that_changed_places_are_refused_when_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cam"
    model = averaged()
    NObSPCam(model).fit(images(20)).save(path)

    swaps = 0
    for _ in swapped_tensors(path, kind=KIND, version=VERSION):
        with pytest.raises(ValueError, match="damaged"):
            NObSPCam.load(path, model)
        swaps += 1

    assert swaps > 3


@pytest.mark.parametrize(
    ("option", "value"), [("batch_size", "many"), ("layer", 3), ("ridge", None), ("kind", "red")]
)
def test_options_that_no_explainer_has_are_refused_when_a_file_is_read(
    option: str, value: Any, tmp_path: Path
) -> None:
    path = tmp_path / "cam"
    model = averaged()
    cam = NObSPCam(model).fit(images(20))
    cam.save(path)
    tensors, about = serialization.read(path, kind=KIND, version=VERSION)
    [init] = [entry[1] for entry in about["fields"]["options"]["@dict"] if entry[0] == "init"]
    [entry] = [entry for entry in init["@dict"] if entry[0] == option]
    entry[1] = value
    serialization.write(path, kind=KIND, version=VERSION, tensors=tensors, about=about)

    with pytest.raises(ValueError, match=r"path .* is damaged"):
        NObSPCam.load(path, model)
