"""Whatever is added up comes to the same in one go, in batches, on ranks, on Ray, and after an interruption."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nobsp import Local, RayCluster
from nobsp.calibration.checkpoint import merge_states
from nobsp.calibration.local import State
from nobsp.calibration.ray import RayRows
from nobsp.tabular.files import CHECKPOINTED
from tests.calibration import states
from tests.calibration.states import CASES, Disk, assert_same, case, cut, describe, rows
from tests.cluster import CLUSTER_WARNINGS, cluster
from tests.meeting import meet

pytestmark = [pytest.mark.filterwarnings(said) for said in CLUSTER_WARNINGS]


def whole(name: str) -> Any:
    return case(name).add(case(name).empty(), [rows()])


@pytest.mark.parametrize("name", ["summary", "complement"])
def test_they_keep_the_contract(name: str) -> None:
    assert isinstance(case(name).empty(), State)
    assert (case(name).empty().rows, whole(name).rows) == (0, states.ROWS)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=10)
@given(ends=st.lists(st.integers(0, states.ROWS), min_size=1, max_size=6))
def test_batches_come_to_what_all_rows_come_to(name: str, ends: list[int]) -> None:
    batches = [batch for batch in cut(rows(), *ends) if len(batch)]
    assert_same(case(name).add(case(name).empty(), batches), whole(name))


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=10)
@given(ends=st.tuples(st.integers(0, states.ROWS), st.integers(0, states.ROWS)))
def test_shares_merge_in_any_grouping_and_are_unharmed(name: str, ends: tuple[int, int]) -> None:
    a, b, c = (
        case(name).add(case(name).empty(), [part] if len(part) else [])
        for part in cut(rows(), *ends)
    )
    before = [describe(part) for part in (a, b, c)] if name == "summary" else None
    left, right = merge_states(merge_states(a, b), c), merge_states(a, merge_states(b, c))
    assert_same(left, whole(name))
    assert_same(right, whole(name))
    if before is not None:
        for part, said in zip((a, b, c), before, strict=True):
            assert_same(part, said)


@pytest.mark.parametrize("name", CASES)
def test_adding_goes_on_after_a_merge(name: str) -> None:
    first, second, third = cut(rows(), 200, 350)
    merged = merge_states(*(case(name).add(case(name).empty(), [part]) for part in (first, second)))
    assert_same(case(name).add(merged, [third]), whole(name))


# ---------------------------------------------------------------------- here


@pytest.mark.parametrize("name", CASES)
def test_an_engine_here_adds_all(name: str) -> None:
    with Local().start() as run:
        assert_same(case(name).accumulate(run, Disk(list(torch.split(rows(), 70)))), whole(name))


@pytest.mark.parametrize("fails_at", [1, 5])
@pytest.mark.parametrize("name", CASES)
def test_an_interrupted_pass_is_resumed_and_rows_are_not_added_twice(
    name: str, fails_at: int, tmp_path: Path
) -> None:
    engine, batches = Local(tmp_path / "under way", 0), list(torch.split(rows(), 70))
    with pytest.raises(OSError, match="the disk is gone"), engine.start(CHECKPOINTED) as run:
        case(name).accumulate(run, Disk(batches, fails_at=fails_at), name="pass")
    added = []

    def count(state: Any, batch: torch.Tensor, *running: Any) -> None:
        added.append(len(batch))
        case(name).work(state, batch, *running)

    with engine.start(CHECKPOINTED) as run:
        found = run.accumulate(
            Disk(batches), case(name).empty(), count, model=case(name).model, name="pass"
        )
    assert_same(found, whole(name))
    assert added == [len(batch) for batch in batches[fails_at:]]
    assert not list(tmp_path.iterdir())


def test_a_finished_pass_and_a_decision_are_kept_while_a_later_pass_is_interrupted(
    tmp_path: Path,
) -> None:
    engine, batches, made = Local(tmp_path / "under way", 1e9), list(torch.split(rows(), 70)), []

    def decide() -> tuple[float, None]:
        made.append(1)
        return (float("nan"), None)

    def both(fails_at: int | None) -> Any:
        with engine.start(CHECKPOINTED) as run:
            first = case("summary").accumulate(run, batches, name="first")
            value, nothing = run.decide(decide, name="value")
            assert np.isnan(value)
            assert nothing is None
            return first, case("complement").accumulate(
                run, Disk(batches, fails_at=fails_at), name="second"
            )

    with pytest.raises(OSError, match="the disk is gone"):
        both(3)
    summary, moments = both(None)
    assert_same(summary, whole("summary"))
    assert_same(moments, whole("complement"))
    assert len(made) == 1


@pytest.mark.parametrize("change", ["fewer", "more", "other", "order", "batches", "pass"])
def test_other_rows_are_refused(change: str, tmp_path: Path) -> None:
    engine, batches = Local(tmp_path / "under way", 0), list(torch.split(rows(), 70))
    for fails_at in (5, None):  # once while the pass is under way, and once when it is complete
        with suppress(OSError), engine.start(CHECKPOINTED) as run:
            case("summary").accumulate(run, Disk(batches, fails_at=fails_at), name="pass")
            run.decide(lambda: 1, name="value")
            raise OSError("everything is gone")
        found = {
            "fewer": batches[:4],
            "more": [*batches, batches[0]],
            "other": [batches[0], batches[1] + 1e-9, *batches[2:]],
            "order": batches[::-1],
            "batches": list(torch.split(rows(), 60)),
            "pass": batches,
        }[change]
        if change == "more" and fails_at is not None:
            continue  # more rows may come to a pass that is not complete
        with (
            pytest.raises(ValueError, match="cannot be resumed"),
            engine.start(CHECKPOINTED) as run,
        ):
            case("complement" if change == "pass" else "summary").accumulate(
                run, found, name="pass"
            )


def test_another_calibration_is_refused(tmp_path: Path) -> None:
    engine = Local(tmp_path / "under way", 0)
    with suppress(OSError), engine.start(CHECKPOINTED) as run:
        run.require_same({"the model": "a"}, {"option ridge": "1"})
        run.decide(lambda: 1, name="value")
        raise OSError("gone")
    for shared, own in (
        ({"the model": "b"}, {"option ridge": "1"}),
        ({"the model": "a"}, {"option ridge": "2"}),
    ):
        with (
            pytest.raises(ValueError, match="another calibration"),
            engine.start(CHECKPOINTED) as run,
        ):
            run.require_same(shared, own)


# ---------------------------------------------------------------------- on ranks


@pytest.fixture(scope="module", params=[2, 3])
def met(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, Path]:
    folder = tmp_path_factory.mktemp("states")
    meet("tests.calibration.states", "states", request.param, folder)
    return request.param, folder


@pytest.mark.parametrize("name", CASES)
def test_ranks_come_to_what_one_process_comes_to_all_the_same(
    name: str, met: tuple[int, Path]
) -> None:
    size, folder = met
    found = [
        safetensors.numpy.load_file(folder / f"{name}-{rank}.safetensors") for rank in range(size)
    ]
    assert_same(found[0], whole(name))
    assert all(np.array_equal(found[0][key], other[key]) for other in found for key in other)


def test_what_the_first_rank_decides_all_have(met: tuple[int, Path]) -> None:
    size, folder = met
    assert {(folder / f"decided-{rank}.txt").read_text() for rank in range(size)} == {"by rank 0"}


def test_a_group_of_some_ranks_leaves_the_others_alone(tmp_path: Path) -> None:
    meet("tests.calibration.states", "group", 3, tmp_path)
    found = [(tmp_path / f"group-{rank}.txt").read_text() for rank in range(3)]
    assert found == ["600 600", "0 0", "600 600"]


# ---------------------------------------------------------------------- on Ray


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with cluster() as started:
        yield started


def read(block: Any) -> list[torch.Tensor]:
    return [torch.tensor(block.to_numpy(dtype=np.float64))]


@pytest.mark.parametrize("name", CASES)
def test_ray_comes_to_what_one_process_comes_to(name: str, ray: Any) -> None:
    pandas = pytest.importorskip("pandas")
    blocks = [
        pandas.DataFrame(part.numpy(), columns=list("abcde")) for part in cut(rows(), 111, 111, 130)
    ]
    source = RayRows(ray.data.from_pandas(blocks), read, batch_size=40, row_bytes=40)
    with RayCluster().start() as run:
        assert_same(case(name).accumulate(run, source), whole(name))
    assert source.rows == states.ROWS
