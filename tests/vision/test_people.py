"""Inputs as people have them, and numbers made from any output."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from nobsp import NObSP
from nobsp.cli import main
from nobsp.cli.cam import find_images
from nobsp.cli.inputs import find_pictures
from nobsp.cli.options import ImageOptions, UsageError
from nobsp.vision import NObSPCam, explain_images
from nobsp.vision.images import images_of
from nobsp.vision.pictures import read_pictures
from tests.vision.networks import averaged, body, images, made


def pictures(count: int) -> list[Image.Image]:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 12, 12, 3), dtype=np.uint8)
    return [Image.fromarray(each) for each in pixels]


def as_tensor(each: list[Image.Image]) -> Tensor:
    arrays = [np.asarray(picture, dtype=np.float32) / 255 for picture in each]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)


def test_channels_behind_height_and_width_are_named() -> None:
    behind = images(6).permute(0, 2, 3, 1)
    with pytest.raises(ValueError, match=r"permute\(0, 3, 1, 2\)"):
        NObSPCam(averaged()).fit(behind)
    cam = NObSPCam(averaged()).fit(images(20))
    with pytest.raises(ValueError, match=r"permute\(0, 3, 1, 2\)"):
        cam(behind)
    with pytest.raises(ValueError, match=r"transpose\(2, 0, 1\)"):
        cam(behind[0].numpy())


def test_grey_images_into_a_model_of_colours_are_named() -> None:
    with pytest.raises(ValueError, match="they are grey"):
        NObSPCam(averaged()).fit(images(6)[:, :1])


def test_a_single_image_is_a_batch_of_one() -> None:
    cam = NObSPCam(averaged()).fit(images(20))
    asked = images(3, seed=1)
    assert cam(asked[1]).account == pytest.approx(cam(asked).account[1:2], abs=1e-12)


def test_pictures_paths_and_folders_are_read(tmp_path: Path) -> None:
    every = pictures(8)
    files = [tmp_path / f"{number}.png" for number in range(8)]
    for picture, file in zip(every, files, strict=True):
        picture.save(file)
    model = averaged(dtype=torch.float32)
    cam = NObSPCam(model).fit(as_tensor(every))
    expected = cam(as_tensor(every)).account
    for asked in (every, files, [str(file) for file in files], tmp_path):
        assert cam(asked).account == pytest.approx(expected, abs=1e-9)
    assert cam(every[2]).account == pytest.approx(expected[2:3], abs=1e-6)
    assert NObSPCam(model).fit(every)(every).account == pytest.approx(expected, abs=1e-9)


def grey_pictures() -> dict[str, tuple[Image.Image, float]]:
    """The same ramp of grey in many modes, each with the step between its values."""
    ramp = np.linspace(0, 1, 144).reshape(12, 12)
    eight = Image.fromarray(np.rint(255 * ramp).astype(np.uint8))
    sixteen = np.rint(65535 * ramp)
    palette = eight.copy()
    palette.putpalette([level for level in range(256) for _ in range(3)])
    deep = {
        "I;16": Image.fromarray(sixteen.astype(np.uint16)),
        "I": Image.fromarray(sixteen.astype(np.int32)),
        "F": Image.fromarray(ramp.astype(np.float32)),
    }
    shallow = {mode: eight.convert(mode) for mode in ("L", "LA", "RGB", "RGBA", "CMYK")}
    return {
        **{mode: (picture, 1 / 65535) for mode, picture in deep.items()},
        **{mode: (picture, 1 / 255) for mode, picture in {**shallow, "P": palette}.items()},
    }


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", sorted(grey_pictures()))
def test_a_picture_is_scaled_by_the_range_of_its_mode(
    mode: str, channels: int, tmp_path: Path
) -> None:
    picture, step = grey_pictures()[mode]
    assert picture.mode == mode
    ramp = torch.linspace(0, 1, 144).reshape(1, 1, 12, 12).expand(1, channels, 12, 12)
    file = tmp_path / "picture.tif"
    picture.save(file)
    for asked in (picture, file):
        pixels = read_pictures([asked], "images", channels=channels)
        assert pixels.shape == ramp.shape
        assert (pixels - ramp).abs().max() <= step


def test_a_picture_of_one_bit_is_black_and_white() -> None:
    pixels = np.random.default_rng(0).random((12, 12)) > 0.5
    seen = read_pictures([Image.fromarray(pixels)], "images", channels=None)
    assert torch.equal(seen, torch.from_numpy(pixels).float()[None, None])


def test_a_picture_of_sixteen_bits_has_the_map_of_its_tensor() -> None:
    picture, _ = grey_pictures()["I;16"]
    cam = NObSPCam(averaged()).fit(images(20).sigmoid())
    same = torch.from_numpy(np.asarray(picture) / 65535).expand(1, 3, 12, 12)
    assert cam(picture).account == pytest.approx(cam(same).account, abs=1e-6)


@pytest.mark.parametrize(
    "pixels",
    [
        np.full((4, 4), 1.5, np.float32),
        np.full((4, 4), -0.1, np.float32),
        np.full((4, 4), np.nan, np.float32),
        np.full((4, 4), 70000, np.int32),
        np.full((4, 4), -1, np.int32),
        np.full((4, 4), 200, np.int32),
    ],
)
def test_a_picture_of_unknown_range_is_refused(pixels: Any) -> None:
    with pytest.raises(ValueError, match=r"images has a picture of mode '[IF]'"):
        read_pictures([Image.fromarray(pixels)], "images", channels=3)


def test_a_folder_of_deep_pictures_is_refused_on_the_command_line(tmp_path: Path) -> None:
    picture, _ = grey_pictures()["I;16"]
    picture.save(tmp_path / "deep.png")
    options = ImageOptions(images=tmp_path, channels=1)
    with pytest.raises(UsageError, match=r"deep\.png"):
        find_images(options, None, SimpleNamespace(batch_size=4))

    grey_pictures()["L"][0].save(tmp_path / "deep.png")
    readable, _ = find_images(options, None, SimpleNamespace(batch_size=4))
    assert len(readable) == 1


def test_deep_pictures_are_refused_before_a_network_is_pruned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, _ = grey_pictures()["I;16"]
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(4):
        picture.save(folder / f"{number}.png")
    code = (
        "from torch import nn\n"
        "def net():\n"
        "    pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten()\n"
        "    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), *pooled, nn.Linear(8, 2))\n"
    )
    (tmp_path / "nets.py").write_text(code, encoding="utf-8")
    asked = ["--model", f"{tmp_path / 'nets.py'}:net", "--images", str(folder), "--channels", "1"]
    pruned = main(["prune", *asked, "--keep", "0.5", "--out", str(tmp_path / "small.pt2")])
    assert pruned != 0
    assert "more than 8 bits" in capsys.readouterr().err
    assert not (tmp_path / "small.pt2").exists()


def test_decisions_about_deep_pictures_are_applied(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    grey_pictures()["I;16"][0].save(tmp_path / "cats" / "deep.png")
    options = ImageOptions(images=tmp_path, channels=1)
    named = find_pictures(tmp_path, options, option="--images", batch_size=1, names_only=True)
    assert named.names == ["cats/deep.png"]


def test_grey_and_coloured_pictures_of_one_folder_are_taken_together(tmp_path: Path) -> None:
    every = pictures(5)
    every[3] = every[3].convert("L")
    for number, picture in enumerate(every):
        picture.save(tmp_path / f"{number}.png")
    model = averaged(dtype=torch.float32)
    coloured = as_tensor([picture.convert("RGB") for picture in every])
    expected = NObSPCam(model).fit(coloured)(coloured).account
    for asked in (tmp_path, every):
        account = NObSPCam(model, batch_size=2).fit(asked)(asked).account
        assert account == pytest.approx(expected, abs=1e-6)


def test_pictures_are_read_batch_by_batch(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.png" for number in range(5)]
    for picture, file in zip(pictures(5), files, strict=True):
        picture.save(file)
    source = images_of(tmp_path, batch_size=2)
    assert source.rows == 5
    assert [len(batch) for batch in source] == [2, 2, 1]
    assert [len(batch) for batch in source] == [2, 2, 1]

    pictures(1)[0].resize((10, 12)).save(files[4])
    with pytest.raises(ValueError, match="bring them to one size"):
        list(images_of(tmp_path, batch_size=2))


def test_an_overlay_takes_what_the_call_took(tmp_path: Path) -> None:
    every = pictures(3)
    for number, picture in enumerate(every):
        picture.save(tmp_path / f"{number}.png")
    cam = NObSPCam(averaged()).fit(images(20).sigmoid())
    maps = cam(every)
    expected = maps.overlay(as_tensor(every))
    for asked in (every, tmp_path, sorted(tmp_path.iterdir())):
        assert maps.overlay(asked) == pytest.approx(expected, abs=1e-6)

    for single in (every[0], tmp_path / "0.png", str(tmp_path / "0.png"), as_tensor(every)[0]):
        assert cam(single).overlay(single) == pytest.approx(expected[:1], abs=1e-5)
    assert cam(every[0]).plot.cam_grid(every[0]).shape == (1, 3)


def test_a_single_image_to_calibrate_on_is_refused_by_name() -> None:
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1))
    model = made(nn.Sequential(layers, nn.Flatten(), nn.Linear(4, 3)))
    with pytest.raises(ValueError, match="cannot take images of shape"):
        explain_images(model, images(1)[0])
    with pytest.raises(ValueError, match="at least two"):
        explain_images(model, images(1))


def test_a_list_of_arrays_is_a_batch() -> None:
    cam = NObSPCam(averaged()).fit(list(images(20)))
    asked = images(3, seed=1)
    expected = cam(asked).account
    assert cam([image.numpy() for image in asked]).account == pytest.approx(expected, abs=1e-12)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    cam = NObSPCam(averaged()).fit(images(20).sigmoid())
    with pytest.raises(ValueError, match=r"broken\.jpg"):
        cam(tmp_path)


class ImagesAndTexts(nn.Module):
    """Compares images with texts, as CLIP does."""

    def __init__(self) -> None:
        super().__init__()
        self.body = body()
        self.texts = nn.Embedding(9, 6)

    def forward(self, input_ids: Tensor, pixel_values: Tensor, attention_mask: Tensor) -> Any:
        seen = nn.functional.normalize(self.body(pixel_values).mean((2, 3)))
        read = (self.texts(input_ids) * attention_mask[..., None]).sum(1)
        scores = seen @ nn.functional.normalize(read).T
        return SimpleNamespace(logits_per_image=10 * scores, logits_per_text=10 * scores.T)


def test_texts_beside_images_are_taken_as_they_are(tmp_path: Path) -> None:
    model = made(ImagesAndTexts())
    texts = {
        "input_ids": torch.tensor([[1, 2], [3, 4], [5, 6]]),
        "attention_mask": torch.ones(3, 2, dtype=torch.int64),
    }
    cam = NObSPCam(model).fit({"pixel_values": images(20), **texts})
    asked = images(4, seed=1)
    maps = cam({"pixel_values": asked, **texts})
    said = model(pixel_values=asked, **texts).logits_per_image.detach().numpy()
    assert maps.logits == pytest.approx(said, abs=1e-9)
    assert maps.unexplained < 0.01
    assert cam.layer_ == "body"
    assert cam(asked).account == pytest.approx(maps.account, abs=1e-12)
    cam.save(tmp_path / "cam.safetensors")
    loaded = NObSPCam.load(tmp_path / "cam.safetensors", model)
    assert loaded(asked).account == pytest.approx(maps.account, abs=1e-5)
    with pytest.raises(ValueError, match="input_ids"):
        cam({"pixel_values": asked, **texts, "input_ids": texts["input_ids"] + 1})


class Segmentation(nn.Module):
    """A map per class, in a dictionary as torchvision has it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = body()
        self.classes = nn.Conv2d(6, 4, 3, padding=1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"out": self.classes(self.body(x).tanh())}


def in_a_box(result: dict[str, Tensor]) -> Tensor:
    return result["out"][:, 2, 2:5, 3:7].mean((1, 2))


def test_the_score_of_a_class_in_a_box_adds_up(tmp_path: Path) -> None:
    model = made(Segmentation())
    asked = images(4, seed=1)
    cam = NObSPCam(model, output=in_a_box).fit(images(20))
    maps = cam(asked)
    said = in_a_box(model(asked)).detach().numpy()
    carried = maps.account.mean((1, 2)) + maps.residual
    assert maps.logits[:, 0] == pytest.approx(said, abs=1e-9)
    assert carried == pytest.approx(said - maps.base_values[0], abs=1e-9)
    assert maps.unexplained < 0.02
    # Nothing outside the box, and what the convolutions see of it, counts.
    assert np.abs(maps.account[:, 7:]).max() < 1e-9

    cam.save(tmp_path / "cam.safetensors")
    loaded = NObSPCam.load(tmp_path / "cam.safetensors", model, output=in_a_box)
    assert loaded(asked).account == pytest.approx(maps.account, abs=1e-5)
    with pytest.raises(ValueError, match="output="):
        NObSPCam.load(tmp_path / "cam.safetensors", model)


def test_a_function_as_target_of_images_alone() -> None:
    maps = explain_images(made(Segmentation()), images(20), target=in_a_box)
    assert maps.account.shape[0] == 20
    with pytest.raises(TypeError, match="output=function"):
        NObSPCam(averaged()).fit(images(20))(images(2), target=in_a_box)


def test_a_function_that_makes_no_number_per_image_is_refused() -> None:
    with pytest.raises(ValueError, match="output must make"):
        NObSPCam(made(Segmentation()), output=lambda result: result["out"]).fit(images(20))


def test_pictures_after_a_calibration_on_normalised_images_are_warned_of() -> None:
    prepared = as_tensor(pictures(8))
    cam = NObSPCam(averaged()).fit(2 * prepared - 1)
    with pytest.warns(UserWarning, match="not normalised"):
        cam(pictures(2))
    plain = NObSPCam(averaged()).fit(prepared)
    assert len(plain(pictures(2))) == 2


def test_a_misspelt_class_gets_the_closest_one() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    images = torch.rand(6, 3, 8, 8)
    cam = NObSPCam(model, output_names=["cross", "circle"]).fit(images)

    with pytest.raises(ValueError, match="did you mean 'cross'"):
        cam(images, target="cros")


def test_tables_and_images_are_sent_to_each_others_explainer() -> None:
    with pytest.raises(ValueError, match=r"NObSP\(model\)"):
        NObSPCam(nn.Linear(3, 2)).fit(torch.rand(20, 3))
    with pytest.raises(ValueError, match=r"NObSPCam\(model\)"):
        NObSP(nn.Conv2d(3, 4, 3)).fit(torch.rand(20, 3, 8, 8))
