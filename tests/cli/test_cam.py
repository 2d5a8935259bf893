"""`nobsp cam`: maps, predictions and a report of a folder of images."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nobsp import NObSPCam
from nobsp.cli.cam import _as_grey
from nobsp.cli.inputs import Pictures, find_pictures
from nobsp.cli.options import ImageOptions
from nobsp.network.exported import as_module, load_exported
from nobsp.vision.maps import AGAINST, FOR, LIGHT, OPACITY

Run = Callable[..., object]


def pictures_of(folder: Path, **options: object) -> Pictures:
    return find_pictures(
        folder, ImageOptions(images=folder, **options), option="--images", batch_size=4
    )


def test_maps_predictions_and_a_report_come_out(nobsp: Run, gallery: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = nobsp(
        "cam", "--model", gallery / "net.pt2", "--images", gallery / "images", "--calibrate", gallery / "more",
        "--channels", 1, "--out", out, "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert json.loads(done.out)["classes"] == ["across", "down"]
    with (out / "predictions.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == ["across"] * 3 + ["down"] * 3
    assert {path.name for path in (out / "maps").iterdir()} == {
        row["map"].removeprefix("maps/") for row in rows
    }
    assert "classes are named after the folders" in done.err
    assert '"names":["across/0.png",' in (out / "report.html").read_text(encoding="utf-8")
    loaded = as_module(load_exported(gallery / "net.pt2"), torch.zeros(4, 1, 12, 12))
    cam = NObSPCam.load(out / "explainer.nobsp", loaded)
    batch = pictures_of(gallery / "images", channels=1).batch(range(6))
    maps = cam(batch)
    np.testing.assert_allclose(
        [float(row["probability"]) for row in rows], maps.confidence, rtol=1e-5
    )
    assert [row["predicted"] for row in rows] == [
        maps.output_names[k] for k in maps.logits.argmax(1)
    ]


def test_a_page_of_some_images_says_of_how_many(
    nobsp: Run, gallery: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nobsp.cli.cam._IN_REPORT", 4)
    out = tmp_path / "out"
    done = nobsp(
        "cam", "--model", gallery / "net.pt2", "--images", gallery / "images", "--channels", 1, "--out", out,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "Shown are 4 of them" in (out / "report.html").read_text(encoding="utf-8")
    assert len(list((out / "maps").iterdir())) == 6


@pytest.mark.parametrize(("kind", "colour"), [("positive", FOR), ("negative", AGAINST)])
def test_maps_look_as_in_the_report_grey_images_with_its_colours(
    nobsp: Run, gallery: Path, tmp_path: Path, kind: str, colour: str
) -> None:
    given = (
        "--model",
        gallery / "net.pt2",
        "--images",
        gallery / "images",
        "--channels",
        1,
        "--no-report",
    )
    assert (
        nobsp("cam", *given, "--map", kind, "--class", "down", "--out", tmp_path / "out").code == 0
    )
    pictures = pictures_of(gallery / "images", channels=1)
    batch = pictures.batch(range(6))
    loaded = as_module(load_exported(gallery / "net.pt2"), batch)
    values = getattr(
        NObSPCam.load(tmp_path / "out" / "explainer.nobsp", loaded)(batch, "down").resize((12, 12)),
        kind,
    )
    cover = (OPACITY * np.maximum(values, 0) / values.max((1, 2), keepdims=True))[..., None]
    tint = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])
    expected = 255 * pictures.shown(batch).numpy()[:, 0, :, :, None] * (1 - cover) + tint * cover
    paths = sorted((tmp_path / "out" / "maps").iterdir())
    drawn = np.stack(
        [np.asarray(Image.open(path).resize((12, 12), Image.Resampling.NEAREST)) for path in paths]
    )
    np.testing.assert_allclose(drawn, expected, atol=1.0)


def test_of_coloured_images_only_the_brightness_is_left() -> None:
    red = torch.tensor([1.0, 0.0, 0.0])[None, :, None, None].expand(2, 3, 4, 4)
    assert _as_grey(red).shape == (2, 1, 4, 4)
    np.testing.assert_allclose(_as_grey(red), LIGHT[0])
    np.testing.assert_allclose(_as_grey(torch.ones(1, 3, 2, 2)), 1.0)


def test_a_class_may_be_asked_for_by_name_or_number(
    nobsp: Run, gallery: Path, tmp_path: Path
) -> None:
    images = (
        "--model",
        gallery / "net.pt2",
        "--images",
        gallery / "images",
        "--channels",
        1,
        "--no-report",
    )
    for name, asked in (("a", "down"), ("b", "1")):
        done = nobsp(
            "cam",
            *images,
            "--class",
            asked,
            "--map",
            "signed",
            "--limit",
            2,
            "--out",
            tmp_path / name,
        )
        assert done.code == 0, done.err
    first, second = (
        (tmp_path / name / "predictions.csv").read_text(encoding="utf-8") for name in "ab"
    )
    assert first == second
    assert first.count("\n") == 3


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--images", "imagse"), 2, "there is no such folder; did you mean 'images'?"),
        (("--images", "empty"), 2, "holds no images"),
        (("--images", "broken"), 1, "cannot be read as an image"),
        (("--images", "uneven"), 2, "have different sizes, such as 5×4 and 12×12"),
        (("--class", "dwon"), 2, "did you mean 'down'?"),
        (("--against", "mein"), 2, "did you mean 'mean'?"),
        (
            ("--against", "xyz"),
            2,
            "there is no such class; there are 'across', 'down', 'runner-up', 'others', 'mean'.",
        ),
        (
            ("--class", "2"),
            2,
            "--class 2: there is no such class; classes are numbered from 0 to 1.",
        ),
        (
            ("--output-names", "a", "b", "c"),
            1,
            "--output-names has 3 names but the model has 2 classes",
        ),
        (("--size", "0"), 2, "--size takes a side"),
        (("--limit", "0"), 2, "--limit. Must be >= 1"),
        (("--normalise", "imagent"), 2, '--normalise. Choose from: "imagenet"'),
        (
            ("--normalise", "imagenet"),
            2,
            "one for each of the 1 channels; found 3 (imagenet has three channels)",
        ),
        (("--std", "0"), 2, "--std must be above zero"),
        (("--channels", "3"), 1, "cannot be run on input of shape"),
        (
            ("--channels", "3"),
            1,
            "Images of 3 channels, 12×12, were given; --channels 1 and --size give others.",
        ),
        (("--layer", "relu_9"), 1, "layer='relu_9' is not in the model"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    nobsp: Run,
    gallery: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(gallery)
    options = (
        "--model",
        "net.pt2",
        "--images",
        "images",
        "--channels",
        1,
        "--no-report",
        "--out",
        tmp_path / "out",
    )
    done = nobsp("cam", *options, "--quiet", *words)
    assert said in done.err
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
    assert not (tmp_path / "out").exists()


def test_an_unknown_class_is_refused_before_calibrating(
    nobsp: Run, gallery: Path, tmp_path: Path
) -> None:
    options = ("--model", gallery / "net.pt2", "--images", gallery / "images", "--channels", 1)
    done = nobsp("cam", *options, "--against", "onee", "--out", tmp_path / "out")
    assert (done.code, "calibrating" in done.err) == (2, False)


def test_a_torn_image_is_named_and_nothing_is_written(
    nobsp: Run, gallery: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(gallery / "images", tmp_path / "torn")
    whole = (tmp_path / "torn" / "down" / "0.png").read_bytes()
    (tmp_path / "torn" / "down" / "0.png").write_bytes(whole[: len(whole) // 2])
    monkeypatch.chdir(tmp_path)
    options = ("--model", gallery / "net.pt2", "--calibrate", gallery / "more")
    done = nobsp("cam", *options, "--channels", 1, "--out", "out", "--images", "torn")
    assert done.code == 1
    assert "down/0.png cannot be read" in done.err
    assert not Path("out").exists()


def test_broken_images_are_left_out_and_named_when_asked(
    nobsp: Run, gallery: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "images"
    shutil.copytree(gallery / "images", folder)
    (folder / "down" / "torn.png").write_bytes((folder / "down" / "0.png").read_bytes()[:40])
    done = nobsp(
        "cam", "--model", gallery / "net.pt2", "--images", folder, "--channels", 1, "--skip-broken",
        "--out", tmp_path / "out", "--json", "--no-report",
    )  # fmt: skip
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert [Path(path).name for path in result["skipped"]] == ["torn.png"]
    assert result["images"] == 6


@pytest.mark.parametrize("option", ["--thorough", "--removal", "--points=4"])
def test_other_maps_can_be_laid_over_the_images(
    nobsp: Run, gallery: Path, tmp_path: Path, option: str
) -> None:
    done = nobsp(
        "cam", "--model", gallery / "net.pt2", "--images", gallery / "images", "--channels", 1, option,
        "--out", tmp_path / "out", "--json", "--no-report",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert len(list((tmp_path / "out" / "maps").iterdir())) == 6


LARGEST = """
from pathlib import Path

import torch
from torch import nn

class Watched(nn.Sequential):
    def forward(self, x):
        with Path({log!r}).open("a") as log:
            print(len(x), file=log)
        return super().forward(x)

def net():
    torch.manual_seed(0)
    return Watched(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(6, 2))
"""


def test_places_that_cannot_be_removed_are_told_before_the_work_on_all_images(
    nobsp: Run, gallery: Path, tmp_path: Path
) -> None:
    log = tmp_path / "rows.txt"
    (tmp_path / "pooled.py").write_text(LARGEST.format(log=str(log)), encoding="utf-8")
    done = nobsp(
        "cam", "--model", f"{tmp_path / 'pooled.py'}:net", "--images", gallery / "more", "--channels", 1,
        "--removal", "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.code == 2
    assert max(map(int, log.read_text().split())) <= 8
    assert not (tmp_path / "out").exists()


def test_two_maps_at_once_are_refused(nobsp: Run, gallery: Path, tmp_path: Path) -> None:
    done = nobsp(
        "cam", "--model", gallery / "net.pt2", "--images", gallery / "images", "--channels", 1,
        "--thorough", "--removal", "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.code == 2


@pytest.mark.parametrize("command", ["cam", "audit"])
def test_folders_in_another_order_than_the_classes_are_noticed(
    nobsp: Run, gallery: Path, tmp_path: Path, command: str
) -> None:
    for old, new in (("across", "b line across"), ("down", "a-down")):
        shutil.copytree(gallery / "more" / old, tmp_path / "images" / new)
    options = (
        command,
        "--model",
        gallery / "trained.pt2",
        "--images",
        tmp_path / "images",
        "--channels",
        1,
    )
    done = nobsp(*options, "--json", "--out", tmp_path / "out")
    warning = json.loads(done.out)["warning"]
    assert warning.endswith("pass --output-names 'b line across' a-down")
    assert f"warning: {warning}\n" in done.err
    assert "would if the classes were named in another order" in (
        tmp_path / "out" / "report.html"
    ).read_text("utf-8")
    better = nobsp(
        *options,
        "--output-names",
        "b line across",
        "a-down",
        "--json",
        "--no-report",
        "--out",
        tmp_path / "o",
    )
    assert json.loads(better.out)["warning"] is None
    assert "warning" not in better.err


# ---------------------------------------------------------------------- how images are read


def test_confusions_are_counted_and_shown_with_neighbours_of_both_classes(
    nobsp: Run, gallery: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    given = (
        "--model",
        gallery / "net.pt2",
        "--images",
        gallery / "more",
        "--channels",
        1,
        "--out",
        out,
        "--json",
    )
    done = nobsp("confusions", *given, "--examples", 3)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    cam = as_module(load_exported(gallery / "net.pt2"), torch.zeros(4, 1, 12, 12))
    pictures = pictures_of(gallery / "more", channels=1)
    with torch.no_grad():
        said = cam(pictures.batch(range(40))).argmax(1)
    true = torch.tensor([("across", "down").index(str(label)) for label in pictures.labels])
    assert found["images"] == 40
    assert found["right"] == int((said == true).sum()) < 40
    counted = {(one["truth"], one["predicted"]): one["count"] for one in found["pairs"]}
    wrong = {(k, 1 - k): int(((true == k) & (said == 1 - k)).sum()) for k in (0, 1)}
    names = ("across", "down")
    assert counted == {(names[a], names[b]): times for (a, b), times in wrong.items() if times}
    with (out / "confusions.csv").open(encoding="utf-8") as file:
        assert [int(row["count"]) for row in csv.DictReader(file)] == sorted(
            counted.values(), reverse=True
        )
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "account of the logit against the true class" in page
    assert f"{found['pairs'][0]['count']} × {found['pairs'][0]['truth']} taken for" in page
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(pictures.paths[0], alone)
    refused = nobsp(
        "confusions",
        "--model",
        gallery / "net.pt2",
        "--images",
        alone,
        "--channels",
        1,
        "--out",
        tmp_path / "new",
    )
    assert refused.code == 2
    assert "confusions need one folder per class" in refused.err


def test_images_are_brought_to_size_by_cutting_or_squashing(tmp_path: Path) -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 255
    Image.fromarray(wide).save(tmp_path / "wide.png")
    cut = pictures_of(tmp_path, size=[10], normalise="none").batch([0])
    squashed = pictures_of(tmp_path, size=[10], normalise="none", fit="squash").batch([0])
    assert cut.shape == squashed.shape == (1, 3, 10, 10)
    assert float(cut.min()) == 1.0
    assert float(squashed[..., 0].max()) == 0.0


def test_normalised_images_look_as_they_did(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (8, 8, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "noise.png")
    pictures = pictures_of(tmp_path)
    batch = pictures.batch([0])
    expected = (pixels[0, 0] / 255 - np.array([0.485, 0.456, 0.406])) / np.array(
        [0.229, 0.224, 0.225]
    )
    np.testing.assert_allclose(batch[0, :, 0, 0], expected, rtol=1e-5)
    np.testing.assert_allclose(pictures.shown(batch)[0].permute(1, 2, 0) * 255, pixels, atol=1e-3)


def test_a_picture_that_was_turned_is_turned_back(tmp_path: Path) -> None:
    pixels = np.zeros((4, 8, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # taken with the camera on its side
    Image.fromarray(pixels).save(tmp_path / "side.jpg", exif=exif)
    assert pictures_of(tmp_path).batch([0]).shape == (1, 3, 8, 4)
