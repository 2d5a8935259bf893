"""Representations of isolated and reference inputs, many features to one forward call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import torch
from torch import Tensor

from nobsp.network.inputs import Features, Subset, isolated, reference

Represent = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Isolation:
    """How isolated inputs are made: the features, the baseline, and which features have few values."""

    features: Features  # the features and their columns
    baseline: Tensor  # one value per column, float64
    few_valued: frozenset[int]  # features with few distinct values; only distinct rows of these go through the network
    categories: frozenset[int]  # features whose values are names, not amounts
    batch_size: int  # most rows in one forward call

    def distinct(
        self, represent: Represent, rows: Tensor, subsets: Sequence[Subset]
    ) -> Iterator[tuple[Subset, Tensor, Tensor | None]]:
        """z_S for every subset S of features, one after another, rows that are equal in S run only once.

        Inputs of several subsets share a forward call of up to `batch_size` rows.
        """
        baseline = self._as_model_takes(rows)

        def inputs() -> Iterator[tuple[Subset, Tensor, Tensor | None]]:
            for subset in subsets:
                columns = self.features.columns_of(subset)
                if not columns:  # a column that the preprocessing drops
                    yield subset, baseline[None], torch.zeros(rows.shape[0], dtype=torch.long)
                elif all(feature in self.few_valued for feature in subset):
                    values, place = unique_rows(rows[:, columns])
                    inputs = baseline.expand(values.shape[0], -1).clone()
                    inputs[:, columns] = values
                    yield subset, inputs, place
                else:
                    yield subset, isolated(rows, baseline, columns), None

        return self._run(represent, inputs())

    def isolated(
        self, represent: Represent, rows: Tensor, subsets: Sequence[Subset]
    ) -> Iterator[tuple[Subset, Tensor]]:
        """z_S for every subset S of features and every row."""
        for subset, z, place in self.distinct(represent, rows, subsets):
            yield subset, spread_out(z, place)

    def reference(
        self, represent: Represent, rows: Tensor, subsets: Sequence[Subset]
    ) -> Iterator[tuple[Subset, Tensor]]:
        """z_(S) for every subset S of features, in the model's dtype: the rows with S at the baseline."""
        baseline = self._as_model_takes(rows)
        inputs = ((subset, reference(rows, baseline, self.features.columns_of(subset)), None) for subset in subsets)
        for subset, z, _ in self._run(represent, inputs):
            yield subset, z

    def _as_model_takes(self, rows: Tensor) -> Tensor:
        """The baseline in the rows' own dtype; fractions in an integer table make the table fractional."""
        return self.baseline.to(rows.dtype if rows.is_floating_point() else torch.int64)

    def _run(
        self, represent: Represent, inputs: Iterable[tuple[Subset, Tensor, Tensor | None]]
    ) -> Iterator[tuple[Subset, Tensor, Tensor | None]]:
        """Forward passes over full batches of stacked inputs, handed back subset by subset."""
        waiting: deque[_Waiting] = deque()
        batch: list[tuple[_Waiting, Tensor]] = []
        held = 0
        for subset, x, place in inputs:
            waiting.append(_Waiting(subset, place, x.shape[0]))
            for part in _cut(x, first=self.batch_size - held, size=self.batch_size):
                batch.append((waiting[-1], part))
                held += part.shape[0]
                if held == self.batch_size:
                    _represent_batch(represent, batch)
                    batch, held = [], 0
            while waiting and waiting[0].missing == 0:
                yield waiting.popleft().done()
        if batch:
            _represent_batch(represent, batch)
        while waiting:
            yield waiting.popleft().done()


@dataclass(eq=False)
class _Waiting:
    """A subset whose inputs wait for their forward pass, or for the rest of it."""

    subset: Subset
    place: Tensor | None
    missing: int
    parts: list[Tensor] = field(default_factory=list)

    def done(self) -> tuple[Subset, Tensor, Tensor | None]:
        return self.subset, self.parts[0] if len(self.parts) == 1 else torch.cat(self.parts), self.place


def _cut(x: Tensor, *, first: int, size: int) -> Iterator[Tensor]:
    """Rows in pieces of `size`, the first of them smaller where a batch has little room left."""
    stop = min(first, x.shape[0])
    yield x[:stop]
    for start in range(stop, x.shape[0], size):
        yield x[start : start + size]


def _represent_batch(represent: Represent, batch: Sequence[tuple[_Waiting, Tensor]]) -> None:
    z = represent(batch[0][1] if len(batch) == 1 else torch.cat([part for _, part in batch]))
    start = 0
    for owner, part in batch:
        owner.parts.append(z[start : start + part.shape[0]])
        owner.missing -= part.shape[0]
        start += part.shape[0]


def unique_rows(values: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct rows, and the position of each row among them."""
    if values.shape[1] == 1:  # sorting numbers is many times faster than sorting rows
        distinct, place = torch.unique(values[:, 0], return_inverse=True)
        return distinct[:, None], place
    distinct, place = torch.unique(values, dim=0, return_inverse=True)
    return distinct, place


def spread_out(z: Tensor, place: Tensor | None) -> Tensor:
    """One row for each input, from the distinct ones."""
    return z if place is None else z[place.to(z.device)]


def subsets_of(term: Subset) -> list[Subset]:
    """All subsets of a term but the empty one, small ones first."""
    return [subset for size in range(1, len(term) + 1) for subset in combinations(term, size)]


def through(
    isolation: Isolation,
    represent: Represent,
    rows: Tensor,
    matrices: Mapping[Subset, Tensor],
) -> Tensor:
    """Every term's isolated representation z_S of `rows`, each times a matrix of its own, side by side.

    The same call serves to compress (matrix = basis) and to explain (matrix = coefficients).
    """
    found = {
        subset: spread_out(z.to(torch.float64) @ matrices[subset].to(z.device), place)
        for subset, z, place in isolation.distinct(represent, rows, list(matrices))
    }
    return torch.cat([found[term] for term in matrices], 1) if found else torch.zeros(len(rows), 0, dtype=torch.float64)
