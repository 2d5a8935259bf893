"""Ranks that calibrate class activation maps together end with what one process finds, or fail together."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from nobsp.vision import NObSPCam
from tests.meeting import meet, torchrun
from tests.tolerances import COEFFICIENTS, CONTRIBUTIONS, assert_all_same_to_rounding
from tests.vision import ranks

Met = tuple[int, Path]


@pytest.fixture(scope="module", params=[2, 3])
def met(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Met:
    """What the ranks left behind: two under torchrun, three started by hand."""
    folder = tmp_path_factory.mktemp("ranks")
    if request.param == 2:
        torchrun("tests.vision.ranks", "all", 2, folder)
    else:
        meet("tests.vision.ranks", "all", 3, folder)
    return request.param, folder


def of_rank(rank: int, name: str, folder: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(folder / f"{name}-{rank}.safetensors")


@pytest.mark.parametrize("name", ranks.CASES)
def test_every_rank_ends_with_the_same_numbers(name: str, met: Met) -> None:
    size, folder = met
    first = of_rank(0, name, folder)
    for rank in range(1, size):
        other = of_rank(rank, name, folder)
        assert_all_same_to_rounding(other, first, within=COEFFICIENTS)


@pytest.mark.parametrize("name", ranks.CASES)
def test_ranks_find_what_one_process_finds_on_all_images(name: str, met: Met) -> None:
    size, folder = met
    model, options, _, x = ranks.CASES[name](size)
    expected, found = ranks.numbers(NObSPCam(model, **options).fit(x)), of_rank(0, name, folder)
    assert found.keys() == expected.keys()
    for key in expected:
        scale = max(float(expected[key].abs().max()), 1.0)
        torch.testing.assert_close(
            found[key], expected[key], rtol=0, atol=CONTRIBUTIONS * scale, equal_nan=True, msg=key
        )


# What the rank at fault says, and whether the others hear it from that rank or see it themselves.
SAID = {
    "nan": ("ValueError: image 3 of images has a value that is not finite", "last"),
    "late nan": ("of images has a value that is not finite", "last"),
    "option": ('ValueError: coefficients must be "head" or "calibrated"', "last"),
    "coefficients": (
        "coefficients, ridge or output_names asked for differs between rank 0 and rank {last}",
        "all",
    ),
    "model": ("the model differs between rank 0 and rank {last}", "all"),
    "solving": ("ValueError: no solution", "first"),
    "nothing anywhere": ("images is empty on all {size} ranks", "all"),
    "one image": ("images has 1 image; calibration needs at least two", "all"),
}


@pytest.mark.parametrize("name", ranks.FAILURES)
def test_an_error_on_one_rank_is_an_error_on_all_that_names_it(name: str, met: Met) -> None:
    size, folder = met
    text, fault = SAID[name]
    text = text.format(last=size - 1, size=size)
    at_fault = {"last": [size - 1], "first": [0], "all": range(size)}[fault]
    for rank in range(size):
        said, state = (folder / f"{name}-{rank}.txt").read_text().rsplit("\n", 1)
        assert text in said
        assert state == "False True", "not calibrated, and the model as it was"
        if rank not in at_fault:
            assert said.startswith(
                f"RuntimeError: calibration stopped on all {size} ranks: rank {at_fault[0]} failed"
            )


def test_a_rank_may_calibrate_alone(met: Met) -> None:
    size, folder = met
    assert (folder / "alone.txt").read_text() == str(ranks.SIZES[size][0])


def test_without_a_process_group_no_images_are_an_error() -> None:
    assert not torch.distributed.is_initialized()
    with pytest.raises(ValueError, match=r"^images is empty"):
        NObSPCam(ranks.averaged()).fit(torch.empty(0, 3, 12, 12))
