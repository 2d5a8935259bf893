"""Ranks that calibrate together end with what one process finds on all rows, or fail together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from nobsp import Local, NObSP, Ranks
from tests.meeting import meet
from tests.tabular import ranks


@pytest.fixture(scope="module", params=[2, 3])
def calibrated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, Path]:
    folder = tmp_path_factory.mktemp("cases")
    meet("tests.tabular.ranks", "cases", request.param, folder)
    return request.param, folder


def of_rank(rank: int, name: str, folder: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(folder / f"{name}-{rank}.safetensors")


@pytest.mark.parametrize("name", ranks.CASES)
def test_every_rank_ends_with_the_very_same_numbers(
    name: str, calibrated: tuple[int, Path]
) -> None:
    size, folder = calibrated
    first = of_rank(0, name, folder)
    for rank in range(1, size):
        other = of_rank(rank, name, folder)
        assert other.keys() == first.keys()
        assert all(torch.equal(other[key], first[key]) for key in first)


@pytest.mark.parametrize("name", ranks.CASES)
def test_ranks_find_what_one_process_finds_on_all_rows(
    name: str, calibrated: tuple[int, Path]
) -> None:
    size, folder = calibrated
    model, options, _, X = ranks.CASES[name](size)
    expected, found = ranks.numbers(NObSP(model, **options).fit(X)), of_rank(0, name, folder)
    assert found.keys() == expected.keys()
    matrices = torch.cat(
        [expected[key].flatten() for key in expected if key.startswith(("matrix", "offset"))]
    )
    for key, value in expected.items():
        if key == "explained" and name == "large":  # measured on some rows of the sample
            continue
        scale = (
            max(float(matrices.abs().max()), 1.0) if key.startswith(("matrix", "offset")) else 1.0
        )
        assert float((found[key] - value).abs().max()) <= 1e-10 * scale, key


def test_pairs_found_together_are_pairs_that_exist(calibrated: tuple[int, Path]) -> None:
    """The table on which the automatic choice is compared has something to choose."""
    size, folder = calibrated
    assert [0, 1, -1] in of_rank(size - 1, "auto", folder)["terms"].tolist()


@pytest.fixture(scope="module", params=[2, 3])
def failed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, Path]:
    folder = tmp_path_factory.mktemp("failures")
    meet("tests.tabular.ranks", "failures", request.param, folder)
    return request.param, folder


# What the rank at fault says, and whether the others hear it from that rank or see it themselves.
SAID = {
    "nan": ("ValueError: X is NaN in row", "last"),
    "late nan": ("ValueError: X is NaN in row", "last"),
    "columns": ("4 columns on rank {last} but 5 columns on rank 0", "all"),
    "option": ("ValueError: ", "last"),
    "model": ("the model differs between rank 0 and rank {last}", "all"),
    "plan": ("ValueError: interactions names 'nobody'", "first"),
    "nothing anywhere": ("X has no rows on any of the {size} ranks", "all"),
}


@pytest.mark.parametrize("name", ranks.FAILURES)
def test_an_error_on_one_rank_is_an_error_on_all_that_names_it(
    name: str, failed: tuple[int, Path]
) -> None:
    size, folder = failed
    text, fault = SAID[name]
    text = text.format(last=size - 1, size=size)
    at_fault = {"last": [size - 1], "first": [0], "all": range(size)}[fault]
    for rank in range(size):
        said, calibrated = (folder / f"{name}-{rank}.txt").read_text().rsplit("\n", 1)
        assert calibrated == "False"
        assert text in said
        if rank not in at_fault:
            assert said.startswith(f"RuntimeError: calibration stopped on all {size} ranks")
            assert f"rank {at_fault[0]} failed with ValueError" in said


def test_a_rank_that_is_killed_does_not_leave_the_others_hanging(tmp_path: Path) -> None:
    meet("tests.tabular.ranks", "killed", 3, tmp_path, dying=[2])
    for rank in (0, 1):
        assert "another of the 3 ranks ended" in (tmp_path / f"killed-{rank}.txt").read_text()


def test_ranks_that_were_interrupted_go_on_together(tmp_path: Path) -> None:
    """One rank fails on the way, another loses its file; the same call again gives what was to be had."""
    meet("tests.tabular.ranks", "resumed", 2, tmp_path)
    for rank in range(2):
        said = (tmp_path / f"resumed-{rank}.txt").read_text()
        assert "the disk is gone" in said
        assert "['under way.rank-0-of-2', 'under way.rank-1-of-2']" in said
    assert not list(tmp_path.glob("under way*"))
    model, options, _, X = ranks._plain(2, **ranks.RESUMED)
    expected = ranks.numbers(NObSP(model, **options).fit(X))
    for rank in range(2):
        ranks.assert_same_numbers(of_rank(rank, "resumed", tmp_path), expected)


def test_ranks_without_a_process_group_are_an_error_that_says_what_to_do() -> None:
    assert not torch.distributed.is_initialized()
    model, options, _, X = ranks.CASES["terms"](2)
    with pytest.raises(ValueError, match="init_process_group"):
        NObSP(model, **options).fit(X, engine=Ranks())


@pytest.mark.parametrize("engine", ["local", Local, object()])
def test_what_is_no_engine_is_an_error(engine: Any) -> None:
    model, options, _, X = ranks.CASES["terms"](2)
    with pytest.raises(TypeError, match="engine must be"):
        NObSP(model, **options).fit(X, engine=engine)
