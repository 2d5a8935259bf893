"""Options that a command does not have: which one is meant, or where it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

# What people call options elsewhere, and what these are called here; the first that a command has.
_CALLED = {
    **dict.fromkeys(
        ("--image", "--imgs", "--pictures", "--folder", "--dir", "-i"), ("--images", "--data")
    ),
    **dict.fromkeys(("--csv", "--table", "--file", "--input", "-d"), ("--data", "--images")),
    "--data": ("--images", "--functions"),
    "--images": ("--data",),
    **dict.fromkeys(("--output", "--output-dir", "--outdir", "-o"), ("--out",)),
    **dict.fromkeys(("--checkpoint", "--network", "-m"), ("--model", "--functions")),
    "--model": ("--functions",),
    "--state-dict": ("--weights",),
    "--explainer": ("--functions", "--model"),
    "--label": ("--labels", "--target"),
    "--labels": ("--target",),
    "--target": ("--class",),
    "--target-layer": ("--layer",),
    **dict.fromkeys(("--image-size", "--resize"), ("--size",)),
    **dict.fromkeys(("--versus", "--other", "--reference-data", "--with"), ("--against",)),
    **dict.fromkeys(("--background-data", "--train", "--calibration"), ("--calibrate",)),
    "--class-names": ("--output-names",),
    "--feature-names": ("--features",),
    "--features": ("--feature",),
    "--feature": ("--features",),
    "--format": ("--to",),
    "--overwrite": ("--force",),
    "--verbose": ("--debug",),
}
# Commands that take what another one does not.
_TAKEN_BY = {"--image": "cam", "--images": "cam", "--folder": "cam"}
# As alike as a typing error leaves an option.
_ALIKE = 0.75


def unknown_option(words: Sequence[str], known: Iterable[str]) -> str | None:
    """The first of the words that looks like an option and is none of those that are known.

    Options are known by underscores as well, as in `--batch_size`; behind `--` there are none.
    """
    options = set(known)
    for word in words:
        if word == "--":
            break
        name = word.partition("=")[0]
        is_number = name[1:2].isdigit() or name[1:2] == "."
        is_known = name.replace("_", "-") in options
        if name.startswith("-") and name.strip("-") and not is_number and not is_known:
            return name
    return None


def describe_option(command: str, name: str, known: Iterable[str]) -> str:
    """An error about an option that a command does not have.

    Example:
        >>> describe_option("cam", "--image", ["--model", "--images"])
        'there is no option --image; use --images (see nobsp cam --help)'
    """
    options = [option for option in known if not option.startswith(("--no-", "--empty-"))]
    complaint = f"there is no option {name}"
    help_of = f"(see nobsp {command} --help)"
    meant = next((option for option in _CALLED.get(name, ()) if option in options), None)
    if name in _TAKEN_BY and "--images" not in options:
        return f"{complaint}; folders of images go to nobsp {_TAKEN_BY[name]} {help_of}"
    if meant is not None:
        return f"{complaint}; use {meant} {help_of}"

    close = get_close_matches(name, options, n=1, cutoff=_ALIKE)
    return f"{complaint}; did you mean {close[0]}? {help_of}" if close else f"{complaint} {help_of}"
