"""Reading a table once or twice, and running a model where it should run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice

import torch
from torch import Tensor

from nobsp.network.batches import Source, with_progress
from nobsp.network.readout import Readout
from nobsp.network.summary import SAMPLE_ROWS, Summariser, Summary
from nobsp.tabular.representations import Represent


class Reading:
    """Reads a source once or twice, whatever was peeked at included."""

    def __init__(self, source: Source, progress: bool) -> None:
        self._source, self._progress = source, progress
        self._begun: Iterator[Tensor] = iter(source)
        # Copies: a stream may fill the same memory again with its next rows.
        self._held: list[Tensor] = [batch.clone() for batch in islice(self._begun, 1)]

    @property
    def first(self) -> Tensor:
        """The first batch, of a source that was not read yet."""
        return self._held[0]

    def _batches(self) -> Iterable[Tensor]:
        """The rest of the pass that was begun, or a new one."""
        held, self._held = self._held, []
        return chain(held, self._begun) if held else self._source

    def rows(self, description: str) -> Iterator[Tensor]:
        """Every batch, with progress where that was asked for."""
        return with_progress(self._batches(), total=self._source.rows, enabled=self._progress, description=description)

    def peek(self, groups: Sequence[Sequence[int]]) -> Summary | None:
        """What the first rows look like, where there are any; they are read again with the others."""
        while sum(map(len, self._held)) < SAMPLE_ROWS and (batch := next(self._begun, None)) is not None:
            self._held.append(batch.clone())
        summariser = Summariser(groups)
        for batch in self._held:
            summariser.update(batch)
        return summariser.result() if self._held else None


@contextmanager
def running_on(readout: Readout, device: torch.device | str | None) -> Iterator[Represent]:
    """Hands out the model's `represent`, run on another device where one is asked for, and brings it back."""
    away = readout.device if device is None else torch.device(device)
    if away == readout.device:
        with readout.running() as represent:
            yield represent
        return
    readout.module.to(away)
    try:
        with replace(readout, device=away).running() as represent:
            yield represent
    finally:
        readout.module.to(readout.device)


def as_model_takes(rows: Tensor, readout: Readout) -> Tensor:
    """Whole-number tables as integers for models that take those, as floats for all others.

    A double-precision model gets doubles: the baseline takes the rows' dtype and must not be rounded for it.
    """
    if readout.integer:
        return rows.to(torch.int64)
    return rows if rows.dtype == torch.float32 == readout.dtype else rows.to(torch.float64)
