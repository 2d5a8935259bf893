"""Every state that is added up over rows, how to add to it, and what it comes to; run as a script, one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from torch import Tensor

from nobsp import Local, NObSP, Ranks
from nobsp.calibration.local import Run
from nobsp.network.columns import Summary
from nobsp.network.readout import Network
from nobsp.projection import merge_all
from nobsp.published import Accumulator, add_rows
from nobsp.tabular.files import CHECKPOINTED
from tests.tabular.nets import net, table

ROWS, COLUMNS = 600, 5
GROUPS = [[0], [1, 2], [3], [4]]


@dataclass(frozen=True, eq=False)
class Case:
    """A state without rows, what adds a batch to it, and the model that this takes."""

    empty: Callable[[], Any]
    work: Callable[..., None]
    model: Network | None = None

    def add(self, state: Any, batches: list[Tensor]) -> Any:
        """Adds batches by hand."""
        if self.model is None:
            for batch in batches:
                self.work(state, batch)
            return state
        with self.model.running() as running:
            for batch in batches:
                self.work(state, batch, running)
        return state

    def accumulate(self, run: Run, source: Any, *, name: str | None = None) -> Any:
        """Has an engine add them."""
        model = None if self.model is None else run.share(self.model)
        return run.accumulate(source, self.empty(), self.work, model=model, name=name)


def rows() -> Tensor:
    X = table("silu", ROWS, columns=COLUMNS)
    X[:, 4] = np.round(X[:, 4])
    X[:, 3] = X[:, 3] > 0
    return torch.tensor(X)


def _moments() -> Case:
    # The numbers of a running mean do not depend on the plan being a good one.
    fitted = (
        NObSP(net("silu", outputs=2), reference="complement", interactions=0)
        .fit(rows(), engine=Local())
        ._fitted
    )
    plan, network = fitted.estimate.published.plan, Network(fitted.readout, fitted.readout.device)
    return Case(lambda: Accumulator.of(plan, fitted.readout), partial(add_rows, plan), network)


@cache
def case(name: str) -> Case:
    if name == "summary":
        return Case(lambda: Summary(GROUPS), Summary.update)
    if name == "both":
        moments = case("complement")
        return Case(lambda: (Summary(GROUPS), moments.empty()), _add_both, moments.model)
    return _moments()


def _add_both(states: Any, batch: Tensor, running: Network) -> None:
    states[0].update(batch)
    case("complement").work(states[1], batch, running)


CASES = ("summary", "complement", "both")


def describe(state: Any) -> dict[str, np.ndarray]:
    """What a state comes to, whichever blocks its rows fell into."""
    if isinstance(state, tuple):
        return {
            f"{k} {name}": value
            for k, part in enumerate(state)
            for name, value in describe(part).items()
        }
    if isinstance(state, Summary):
        found: dict[str, Any] = {
            name: getattr(state, name) for name in ("mean", "minimum", "maximum", "sample")
        }
        found |= {
            "two_valued": state.two_valued.double(),
            "rows": torch.tensor([float(state.rows)]),
        }
        for feature, (levels, counts) in state.levels.items():
            found |= {f"levels {feature}": levels, f"counts {feature}": counts.double()}
    else:
        found = {"rows": torch.tensor([float(state.rows)])}
        for name, blocks in state.parts.items():
            whole = merge_all(blocks)
            found |= {f"mean {name}": whole.mean(), f"products {name}": whole.products}
    return {name: value.contiguous().numpy() for name, value in found.items()}


def assert_same(found: Any, expected: Any) -> None:
    """Equal up to rounding: a sum of n numbers is off by at most n · ε of their size, here with some room."""
    a = found if isinstance(found, dict) else describe(found)
    b = expected if isinstance(expected, dict) else describe(expected)
    assert a.keys() == b.keys()
    for name, value in b.items():
        size = float(np.abs(value).max(initial=0.0))
        np.testing.assert_allclose(
            a[name],
            value,
            rtol=0,
            atol=16 * ROWS * np.finfo(np.float64).eps * max(size, 1.0),
            err_msg=name,
        )


def cut(X: Tensor, *ends: int) -> list[Tensor]:
    """Rows in shares that end there; some may be empty."""
    places = [0, *sorted(ends), len(X)]
    return [X[start:stop] for start, stop in pairwise(places)]


class Disk:
    """Batches that can be read again and again, until the disk fails."""

    def __init__(self, batches: list[Tensor], *, fails_at: int | None = None) -> None:
        self.batches, self.fails_at = batches, fails_at

    def __iter__(self) -> Iterator[Tensor]:
        for number, batch in enumerate(self.batches):
            if number == self.fails_at:
                raise OSError("the disk is gone")
            yield batch


def run_rank(task: str, rank: int, size: int, folder: Path) -> None:
    """What one of the processes does."""
    torch.set_num_threads(1)
    dist = torch.distributed
    meeting = f"file://{folder}/meeting"
    dist.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=size, timeout=timedelta(seconds=200)
    )
    # The middle one of three has nothing.
    share = cut(rows(), 250, 250)[rank] if size == 3 else cut(rows(), 433)[rank]
    batches = list(torch.split(share, 60)) if len(share) else []
    if task == "states":
        with Ranks().start(CHECKPOINTED) as run:
            for name in CASES:
                found = describe(case(name).accumulate(run, batches))
                safetensors.numpy.save_file(found, folder / f"{name}-{rank}.safetensors")
            decided = run.decide(lambda: f"by rank {rank}")
            (folder / f"decided-{rank}.txt").write_text(decided)
    if task == "group":
        pair = dist.new_group([0, 2])
        with (Local() if rank == 1 else Ranks(pair)).start() as run:
            count = sum(run.gather(len(share)))
            found = case("summary").accumulate(run, batches)
        (folder / f"group-{rank}.txt").write_text(f"{count} {found.rows}")
    dist.destroy_process_group()
