"""Inputs in which only some features are active, and what the network makes of them.

For a set S of features and a baseline x°, the paper needs two representations of every row x:

    z_S(x)   = z(x° with x_S put in)          isolated: only S is active (B.2)
    z_(S)(x) = z(x with x_S set to x°_S)      reference: everything but S is active (B.4)

Where the paper has zeros, inputs being standardised there, x° stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from nobsp.network.columns import Features, Subset, isolated, reference

Represent = Callable[[Tensor], Tensor]


def subsets_of(term: Subset) -> list[Subset]:
    """All subsets of a term but the empty one, small ones first."""
    return [subset for size in range(1, len(term) + 1) for subset in combinations(term, size)]


@dataclass(frozen=True, eq=False)
class IsolatedInput:
    """The input of one set of features, waiting for a forward pass."""

    subset: Subset
    rows: Tensor  # rows to run; each distinct one once where the features have few values
    row_of_sample: Tensor | None  # per sample the position of its row; None where they are the same


@dataclass(frozen=True, eq=False)
class IsolatedRepresentation:
    """What the network makes of the input of one set of features."""

    subset: Subset
    rows: Tensor  # the representation of every row that was run
    row_of_sample: Tensor | None  # per sample the position of its row; None where they are the same

    def of_samples(self, values: Tensor) -> Tensor:
        """Values of the rows that were run, one per sample."""
        if self.row_of_sample is None:
            return values
        return values[self.row_of_sample.to(values.device)]

    def counts(self) -> Tensor:
        """How many samples each row stands for."""
        if self.row_of_sample is None:
            return torch.ones(len(self.rows), device=self.rows.device)
        counts = torch.bincount(self.row_of_sample, minlength=len(self.rows))
        return counts.to(self.rows.device)


@dataclass(frozen=True, eq=False)
class Isolation:
    """How isolated inputs are made: features, baseline, and which features have few values."""

    features: Features  # the features and their columns
    baseline: Tensor  # one value per column, float64
    few_valued: frozenset[int]  # features of few distinct values: only distinct rows are run
    categories: frozenset[int]  # features whose values are names, not amounts
    batch_size: int  # most rows in one forward call

    def representations(
        self, represent: Represent, samples: Tensor, subsets: Iterable[Subset]
    ) -> Iterator[IsolatedRepresentation]:
        """z_S for every subset S of features; rows that are equal in S are run once."""
        inputs = (self._isolated_input(samples, subset) for subset in subsets)
        return self._run(represent, inputs)

    def references(
        self, represent: Represent, samples: Tensor, subsets: Iterable[Subset]
    ) -> Iterator[Tensor]:
        """z_(S) for every subset S of features, in the model's dtype."""
        baseline = self._baseline_like(samples)
        inputs = (
            IsolatedInput(
                subset,
                rows=reference(samples, baseline, self.features.columns_of(subset)),
                row_of_sample=None,
            )
            for subset in subsets
        )
        return (representation.rows for representation in self._run(represent, inputs))

    def products(
        self, represent: Represent, samples: Tensor, matrices: Mapping[Subset, Tensor]
    ) -> Iterator[tuple[Subset, Tensor]]:
        """z_S of every sample times a matrix of its own: a basis, or coefficients."""
        for representation in self.representations(represent, samples, matrices):
            z = representation.rows
            matrix = matrices[representation.subset].to(z.device)
            product = z.to(torch.float64) @ matrix
            yield representation.subset, representation.of_samples(product).cpu()

    def _isolated_input(self, samples: Tensor, subset: Subset) -> IsolatedInput:
        """The baseline with the values of some features put in."""
        baseline = self._baseline_like(samples)
        columns = self.features.columns_of(subset)
        if not columns:  # a column that the preprocessing drops: every sample is the baseline
            everywhere = torch.zeros(len(samples), dtype=torch.long)
            return IsolatedInput(subset, rows=baseline[None], row_of_sample=everywhere)

        values = samples[:, columns]
        row_of_sample = None
        if all(feature in self.few_valued for feature in subset):
            values, row_of_sample = _distinct_rows(values)

        rows = isolated(values, baseline, columns)
        return IsolatedInput(subset, rows=rows, row_of_sample=row_of_sample)

    def _baseline_like(self, samples: Tensor) -> Tensor:
        """The baseline in the samples' dtype; its fractions make a table of integers fractional."""
        dtype = samples.dtype if samples.is_floating_point() else torch.int64
        return self.baseline.to(dtype)

    def _run(
        self, represent: Represent, inputs: Iterable[IsolatedInput]
    ) -> Iterator[IsolatedRepresentation]:
        """Forward passes, with small inputs of several subsets in one call."""
        waiting: list[IsolatedInput] = []
        rows_waiting = 0
        for isolated_input in inputs:
            if waiting and rows_waiting + len(isolated_input.rows) > self.batch_size:
                yield from self._run_together(represent, waiting)
                waiting = []
                rows_waiting = 0
            waiting.append(isolated_input)
            rows_waiting += len(isolated_input.rows)
        if waiting:
            yield from self._run_together(represent, waiting)

    def _run_together(
        self, represent: Represent, inputs: list[IsolatedInput]
    ) -> Iterator[IsolatedRepresentation]:
        """One forward call for several inputs, or several calls for a large one."""
        rows = _concatenated([isolated_input.rows for isolated_input in inputs])
        batches = [represent(batch) for batch in torch.split(rows, self.batch_size)]
        sizes = [len(isolated_input.rows) for isolated_input in inputs]
        for isolated_input, z in zip(
            inputs, torch.split(_concatenated(batches), sizes), strict=True
        ):
            yield IsolatedRepresentation(
                isolated_input.subset, rows=z, row_of_sample=isolated_input.row_of_sample
            )


def _distinct_rows(values: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows of a table, and which of them each row is."""
    if values.shape[1] == 1:  # numbers sort faster than rows do
        numbers, row_of_sample = torch.unique(values[:, 0], return_inverse=True)
        return numbers[:, None], row_of_sample
    rows, row_of_sample = torch.unique(values, dim=0, return_inverse=True)
    return rows, row_of_sample


def _concatenated(tensors: list[Tensor]) -> Tensor:
    """Tensors one below the other; a single one is not copied."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
