"""Calibrates on a Ray dataset: its workers add up the rows, and the sums are solved here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import narwhals as nw
import numpy as np
import torch
from torch import Tensor

from nobsp.network.adapted import Adapted, adapt
from nobsp.network.batches import batches_of
from nobsp.network.on_ray import first_batch, gathered, portable, require_alone, rows_at_once, sent
from nobsp.network.preprocessing import grouping_rows, stacked
from nobsp.network.ranks import Ranks
from nobsp.network.readout import PROBE_ROWS, Readout
from nobsp.network.summary import Summariser, Summary
from nobsp.projection import Moments
from nobsp.tabular.calibration import Accumulator, Plan
from nobsp.tabular.columns import Columns, columns_of, whole_table
from nobsp.tabular.fitted import Fitted, Parts
from nobsp.tabular.fitting import concluded, require_known_levels, settled, solved_together
from nobsp.tabular.memory import bytes_of, in_passes, joined, room_for_moments
from nobsp.tabular.options import Options, find_readout
from nobsp.tabular.reading import as_model_takes, running_on
from nobsp.tabular.shards import joined_columns

Made = TypeVar("Made")

# Rows whose sums are sent at a time: sending them takes about as long as adding up a few thousand rows.
MOST_ROWS = 1 << 16


def calibrate_on_ray(
    dataset: Any,
    model: Any,
    options: Options,
    *,
    like: Fitted | None = None,
    progress: bool = False,
    memory_limit: int | str = "4GiB",
) -> Fitted:
    """A calibration on a Ray dataset; see `NObSP.fit`.

    Its rows are read twice: to see what the columns look like, which baseline and bases follow from, and to be added
    up. A preprocessing makes that three times, as it has to be known first which columns it makes of which.
    """
    memory = bytes_of(memory_limit)
    adapted = adapt(model)
    first = first_batch(dataset, PROBE_ROWS, argument="X", batch_format="pandas")
    expected = adapted.feature_names if like is None else like.columns.names
    reader = Reader(adapted, expected, arrays=_holds_arrays(first), batch_size=options.batch_size)
    probe = next(reader.rows(first))
    readout = find_readout(adapted.module, probe, head=options.head)
    if like is not None:
        like.require_same_model(readout)
    model_there = sent(portable(readout, readout.module), "the model")
    table = _Table(dataset, reader.expecting(first), probe.shape[1], progress)
    columns, summary = table.looked_at(options, None if like is None else like.columns)
    with running_on(readout, options.device) as represent:
        if like is None:
            plan, screening = settled(adapted, columns, summary, readout, represent, options, Ranks())
        else:
            plan, screening = like.plan, like.screening
            require_known_levels(like, summary, represent)
    solutions = []
    stages = in_passes(plan, readout, memory=memory)
    for stage in stages:
        room = room_for_moments(plan, memory)
        parts = table.added_up(stage, readout, model_there, options.device, rows=summary.rows, memory=room)
        ridge, solution = solved_together(stage, parts, options, Ranks())
        solutions.append(solution)
    with running_on(readout, options.device) as represent:
        return concluded(
            represent,
            options,
            adapted=adapted,
            readout=readout,
            columns=columns,
            plan=plan,
            parts=parts if len(stages) == 1 else {},
            solution=joined(solutions),
            summary=summary,
            screening=screening,
            ridge=ridge,
            frame=None if reader.arrays else nw.Implementation.PANDAS,
        )


def require_ray_alone(ranks: Ranks, checkpoint: Any) -> None:
    """An error where ranks would each add up all of a Ray dataset, or where something cannot be kept on the way."""
    require_alone(ranks, "X")
    if checkpoint is not None:
        raise ValueError(
            "checkpoint keeps what one process adds up, but X is a Ray dataset, whose workers add up on their own and "
            "are replaced when they die; leave checkpoint out."
        )


# ---------------------------------------------------------------------- in the workers


@dataclass(frozen=True, eq=False)
class Reader:
    """Makes of a dataset's batches what would be made of the whole table.

    Attributes:
        adapted: The model; only its preprocessing is used.
        names: The columns to expect, where they are known.
        arrays: Whether the only column holds arrays, which are then the rows.
        batch_size: Most rows in a tensor.
    """

    adapted: Adapted
    names: tuple[str, ...] | None
    arrays: bool
    batch_size: int

    def expecting(self, first: Any) -> Reader:
        """The same where all batches have the columns of the first; the network is left behind."""
        names = None if self.arrays else self.names or tuple(str(name) for name in first.columns)
        return replace(self, names=names, adapted=replace(self.adapted, module=torch.nn.Identity()))

    def table(self, batch: Any) -> Any:
        """A batch as a table that `NObSP.fit` takes."""
        return np.stack([np.asarray(row) for row in batch.iloc[:, 0]]) if self.arrays else batch

    def rows(self, batch: Any) -> Iterator[Tensor]:
        """The rows of a batch."""
        encode, said = self.adapted.encode, "X (in one of its batches)"
        table = self.table(batch)
        return iter(batches_of(table, batch_size=self.batch_size, encode=encode, columns=self.names, argument=said))

    def summary(self, groups: Sequence[Sequence[int]], batch: Any) -> Summary:
        """What the rows of a batch look like."""
        summariser = Summariser(groups)
        for rows in self.rows(batch):
            summariser.update(rows)
        return summariser.result()

    def grouping(self, batch: Any) -> Any:
        """Rows of a batch that tell which columns its preprocessing makes of which."""
        return grouping_rows(whole_table(self.table(batch), self.adapted)[0])

    def columns(self, made: Callable[[Any], Columns], batch: Any) -> tuple[Columns, Summary]:
        """The columns of a batch, and what its rows look like."""
        columns = made(self.table(batch))
        return columns, self.summary(columns.features.columns, batch)


@dataclass(frozen=True, eq=False)
class Sums:
    """Moments of batches in a row, in blocks that go round: the batch that follows begins where these end.

    Attributes:
        parts: By name and number, the blocks that hold rows.
        end: How many blocks were gone over.
        blocks: How many there are.
    """

    parts: dict[str, dict[int, Moments]]
    end: int
    blocks: int

    def then(self, following: Sums) -> Sums:
        """These and the batches that follow."""
        parts = {name: dict(held) for name, held in self.parts.items()}
        for name, held in parts.items():
            for number, moments in following.parts[name].items():
                place = (self.end + number) % self.blocks
                held[place] = held[place].merge(moments) if place in held else moments
        return Sums(parts, self.end + following.end, self.blocks)


@dataclass(frozen=True, eq=False)
class Adder:
    """Adds up batches.

    Attributes:
        reader: Reads them.
        plan: Terms and bases.
        model: Reference to the model.
        device: Where to run it.
        rows: Rows of the whole dataset.
        memory: Bytes that the sums of a batch may take.
    """

    reader: Reader
    plan: Plan
    model: Any
    device: torch.device
    rows: int
    memory: int

    def __call__(self) -> Callable[[Any], Sums]:
        """What adds up a batch, with the model where it is to run."""
        import ray

        readout = ray.get(self.model)
        readout.module.to(self.device)
        return partial(self.added_up, replace(readout, device=self.device))

    def added_up(self, readout: Readout, batch: Any) -> Sums:
        """The sums of a batch."""
        accumulator, end = Accumulator(self.plan, readout, rows=self.rows, memory=self.memory), 0
        with readout.running() as represent:
            for rows in self.reader.rows(batch):
                accumulator.next_block = 0  # all of a batch into the same few blocks, as each is sent
                accumulator.update(represent, as_model_takes(rows, readout))
                end = max(end, accumulator.next_block)
        filled = {
            name: {number: moments for number, moments in enumerate(blocks) if moments.rows}
            for name, blocks in accumulator.parts.items()
        }
        return Sums(filled, end, accumulator.block_count)


# ---------------------------------------------------------------------- in the caller's process


@dataclass(frozen=True, eq=False)
class _Table:
    """A dataset, and how its batches are read."""

    dataset: Any
    reader: Reader
    width: int
    progress: bool

    def looked_at(self, options: Options, known: Columns | None) -> tuple[Columns, Summary]:
        """The columns, and what all rows look like."""
        reader, adapted = self.reader, self.reader.adapted
        settle = partial(columns_of, adapted=adapted, given=options.features, width=self.width, names=reader.names)
        if known is not None or adapted.encode is None:
            columns = known or settle(None)
            return columns, self._made(partial(reader.summary, columns.features.columns), Summary.merge)
        groups = adapted.groups(self._made(reader.grouping, _joined_grouping))
        return self._made(partial(reader.columns, partial(settle, groups=groups)), _joined_looks)

    def added_up(
        self, plan: Plan, readout: Readout, model: Any, device: torch.device | str | None, *, rows: int, memory: int
    ) -> Parts:
        """The moments of all rows, for a plan."""
        device = readout.device if device is None else torch.device(device)
        adder = Adder(self.reader, plan, model, device, rows, memory)
        sums = self._gathered(adder, Sums.then, rows=rows, model=True, device=device)
        return {
            name: [sums.parts[name].get(number) or Moments(shape) for number in range(sums.blocks)]
            for name, shape in plan.blocks(readout.width, readout.outputs).items()
        }

    def _made(self, work: Callable[[Any], Made], join: Callable[[Made, Made], Made]) -> Made:
        return self._gathered(lambda: work, join, rows=None, model=False)

    def _gathered(
        self,
        make: Callable[[], Callable[[Any], Made]],
        join: Callable[[Made, Made], Made],
        *,
        rows: int | None,
        model: bool,
        device: torch.device | None = None,
    ) -> Made:
        at_once = rows_at_once(self.reader.batch_size, most=MOST_ROWS, row_bytes=8 * self.width, total=rows)
        found = gathered(
            self.dataset,
            make,
            join,
            rows=at_once,
            batch_format="pandas",
            model=model,
            device=device,
            progress=self.progress,
        )
        if found is None:
            raise ValueError(
                "X gave no rows when it was read again; pass a dataset that gives the same rows every time."
            )
        return found


def _joined_grouping(first: Any, second: Any) -> Any:
    return grouping_rows(stacked([first, second]))


def _joined_looks(first: tuple[Columns, Summary], second: tuple[Columns, Summary]) -> tuple[Columns, Summary]:
    return joined_columns(first[0], second[0]), first[1].merge(second[1])


def _holds_arrays(first: Any) -> bool:
    """Whether the only column holds arrays, as `ray.data.from_numpy` makes them."""
    return first.shape[1] == 1 and np.ndim(first.iloc[0, 0]) == 1
