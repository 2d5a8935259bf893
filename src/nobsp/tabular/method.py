"""The two ways from rows to functions behind one face: all terms fitted together, or Algorithm 1 as published."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from torch import Tensor

from nobsp.calibration import Run
from nobsp.network.inputs import Subset, Summary
from nobsp.tabular.calibration import calibrate_terms
from nobsp.tabular.complement import AsPublished
from nobsp.tabular.estimate import Batch, Estimate, decide_estimate
from nobsp.tabular.grids import Represent
from nobsp.tabular.rows import Rows
from nobsp.tabular.setting import Problem, Setting


class Method(Protocol):
    """How functions are estimated, and how rows are given contributions with them."""

    takes_weights: bool  # whether rows may have weights and groups
    reads_tables: bool  # whether the function of a term that has a table is its table

    def calibrate(
        self,
        run: Run,
        rows: Rows,
        problem: Problem,
        *,
        known: Estimate | None,
        progress: bool,
    ) -> tuple[Summary, Estimate]:
        """What the rows look like, and what is estimated from them."""

    def require_mergeable(
        self, mine: Estimate, theirs: Estimate, *, summaries: tuple[Summary, Summary]
    ) -> None:
        """Raises a ValueError where two calibrations cannot be merged."""

    def merge(self, mine: Estimate, theirs: Estimate, setting: Setting) -> Estimate:
        """The estimate from the rows of both; `setting` has what all of them look like."""

    def values(
        self, estimate: Estimate, batch: Batch, represent: Represent, *, batch_size: int
    ) -> Tensor:
        """Contributions of all terms in their order, (rows, terms, outputs)."""

    def term_values(
        self,
        estimate: Estimate,
        term: Subset,
        inputs: Tensor,
        represent: Represent,
        *,
        batch_size: int,
    ) -> Tensor:
        """Contributions of one term that needs the network, (rows, outputs)."""

    def without_rows(self, estimate: Estimate) -> Estimate:
        """The same without calibration rows, and without what only `merge` needs."""


class FittedTogether:
    """All terms in one regression, with the head as prior."""

    takes_weights = True
    reads_tables = True

    def calibrate(
        self,
        run: Run,
        rows: Rows,
        problem: Problem,
        *,
        known: Estimate | None,
        progress: bool,
    ) -> tuple[Summary, Estimate]:
        """Reads the rows, then fits on the sample of them that is in memory."""
        del known  # nothing can be taken over
        groups = problem.columns.features.columns
        summary = run.accumulate(
            rows, Summary(groups), Summary.update, name="reading", progress=progress
        )
        estimate = decide_estimate(
            run, lambda: calibrate_terms(problem.with_rows(summary), progress=progress)
        )
        return summary, estimate

    def require_mergeable(
        self, mine: Estimate, theirs: Estimate, *, summaries: tuple[Summary, Summary]
    ) -> None:
        """Raises a ValueError where the two samples of rows do not belong together, or are missing."""
        first, second = summaries
        if first.groups != second.groups or mine.reference != theirs.reference:
            raise ValueError(
                "the two calibrations have different features or references; calibrate both alike."
            )
        if len(first.sample) == 0 or len(second.sample) == 0:
            raise ValueError(
                "merge needs the calibration rows, which were not saved; save with mergeable=True."
            )

    def merge(self, mine: Estimate, theirs: Estimate, setting: Setting) -> Estimate:
        """Fits anew on both samples of rows."""
        del mine, theirs
        return calibrate_terms(setting)

    def values(
        self, estimate: Estimate, batch: Batch, represent: Represent, *, batch_size: int
    ) -> Tensor:
        """Contributions from tables, and from the network for the terms that have none."""
        if not estimate.direct:
            return batch.from_tables
        values = batch.no_values(len(estimate.terms))
        for number, table in enumerate(estimate.functions.tables):
            values[:, estimate.terms.index(table.features)] = batch.from_tables[:, number]

        # Rows that the model refuses as a whole have such terms too, held where it answers.
        inputs = batch.inputs(batch.complete)
        for direct in estimate.direct:
            position = estimate.terms.index(direct.term)
            values[:, position] = 0.0  # of a missing number; the residual has the rest
            values[batch.complete, position] = direct(represent, inputs, batch_size=batch_size)
        return values

    def term_values(
        self,
        estimate: Estimate,
        term: Subset,
        inputs: Tensor,
        represent: Represent,
        *,
        batch_size: int,
    ) -> Tensor:
        """Contributions of a term without a table."""
        direct = next(direct for direct in estimate.direct if direct.term == term)
        return direct(represent, inputs, batch_size=batch_size)

    def without_rows(self, estimate: Estimate) -> Estimate:
        """The same without background rows, which are rows of the calibration table."""
        return replace(estimate, background=None)


_METHODS: dict[str, Method] = {"terms": FittedTogether(), "complement": AsPublished()}


def method_of(reference: str) -> Method:
    """The method that the option `reference` names."""
    return _METHODS[reference]
