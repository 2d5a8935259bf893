"""An option that a command does not have is named, with the one that is meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nobsp.cli.misspelt import unknown_option

Run = Callable[..., Any]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("cam --model m.pt2 --image pics --out o", ("--image;", "--images")),
        ("cam --model m.pt2 --data pics --out o", ("--data;", "--images")),
        ("cam --model m.pt2 --images pics --target 3 --out o", ("--target;", "--class")),
        ("cam --model m.pt2 --images=pics --target-layer=x --out o", ("--target-layer", "--layer")),
        ("cam --model m.pt2 --images pics --image-size 9 --out o", ("--image-size;", "use --size")),
        ("explain --model m.pt2 --images pics --out o", ("--images;", "nobsp cam")),
        ("explain --model m.pt2 --dat a.csv --out o", ("--dat;", "did you mean --data")),
        ("explain --model m.pt2 --csv a.csv -o o", ("--csv;", "--data")),
        ("compare --model m --data b --out o --versus c", ("--versus;", "--against")),
        ("audit --model m --image pics --out o", ("--image;", "--images")),
        ("export --model m --to sql", ("--model;", "--functions")),
        ("demo --zork", ("--zork ", "nobsp demo --help")),
    ],
)
def test_an_option_of_another_name_is_told_before_what_is_missing(
    nobsp: Run, words: str, told: tuple[str, ...]
) -> None:
    done = nobsp(*words.split())
    assert done.code == 2
    for part in told:
        assert part in done.err


def test_negative_numbers_and_values_are_no_options() -> None:
    assert unknown_option(["--mean", "-0.5", "-.5", "a", "-", "--"], ["--mean"]) is None
    assert unknown_option(["--mean=3", "-x"], ["--mean"]) == "-x"
    assert unknown_option(["--mean", "--", "-x"], ["--mean"]) is None


def test_what_is_missing_is_still_told(nobsp: Run) -> None:
    assert "--images is needed" in nobsp("cam", "--model", "m.pt2", "--out", "o").err
    assert "--images lacks its value" in nobsp("cam", "--images").err


@pytest.mark.parametrize("option", ["--class", "--rows"])
def test_options_that_have_no_like_are_sent_to_none(nobsp: Run, option: str) -> None:
    # The column of true classes is not the class to explain, nor is a table a number of rows.
    done = nobsp("explain", "--model", "m.pt2", "--data", "a.csv", "--out", "o", option, "3")
    assert f"there is no option {option} (see" in done.err


def test_options_with_underscores_are_known(nobsp: Run) -> None:
    assert "--model is needed" in nobsp("explain", "--batch_size", "3").err
    assert "did you mean --batch-size" in nobsp("explain", "--batch_sise", "3").err


def test_a_single_image_is_told_to_be_a_file(nobsp: Run, gallery: Path, tmp_path: Path) -> None:
    image = gallery / "images" / "across" / "0.png"
    done = nobsp("cam", "--model", gallery / "net.pt2", "--images", image, "--out", tmp_path / "o")
    assert done.code == 2
    assert "is a file; name the folder" in done.err


def test_the_name_of_an_architecture_is_sent_to_a_function(nobsp: Run, gallery: Path) -> None:
    done = nobsp("cam", "--model", "resnet18", "--images", gallery / "images", "--out", "o")
    assert done.code == 2
    assert "file.py:function" in done.err
