"""What is estimated: functions that have tables, and what the other terms need of the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.calibration import Run
from nobsp.network.inputs import Subset, Summary
from nobsp.network.readout import Readout, Represent, as_model_takes
from nobsp.published import Published
from nobsp.tabular.bands import Traces
from nobsp.tabular.correction import Fit
from nobsp.tabular.features import Domain, own_columns
from nobsp.tabular.functions import Functions, Measure, measure_bands, measure_bands_later
from nobsp.tabular.health import Health, Reach, measure_reach
from nobsp.tabular.lookup import Level, TermTable
from nobsp.tabular.setting import Problem, Rows, Sample, Setting
from nobsp.tabular.tables import (
    DirectTerm,
)


@dataclass(frozen=True, eq=False)
class Terms:
    """Fitted terms."""

    fit: Fit
    traces: Traces
    # per pair the spread that its features make only together, as a share of the output's
    strengths: dict[Subset, float]
    forward_rows: int
    economy: bool  # whether the model takes too many operations a row for full tables
    thresholds: dict[int, tuple[int, int]]  # of a feature's steps: those in its table, and all
    # what a feature's prior part is measured from; for levels that were not seen
    offsets: dict[int, Tensor]
    background: Tensor

    @property
    def order(self) -> tuple[Subset, ...]:
        """All terms, single features first."""
        return tuple(piece.term for piece in self.fit.pieces)

    @property
    def tables(self) -> tuple[TermTable, ...]:
        """The terms that have tables."""
        return tuple(term for term in self.fit.functions if isinstance(term, TermTable))

    @property
    def direct(self) -> tuple[DirectTerm, ...]:
        """The terms that run through the network row by row."""
        return tuple(term for term in self.fit.functions if isinstance(term, DirectTerm))


@dataclass(frozen=True, eq=False)
class Estimate:
    """What is estimated, without the network."""

    functions: Functions  # every term that has a table
    terms: tuple[Subset, ...]  # all terms, as positions of features; single features first
    baseline: Tensor  # the baseline as the network takes it
    baseline_contributions: NDArray[np.float64]  # of every term there, (terms, outputs)
    alphas: tuple[float, ...]  # per output the relative strength of the ridge
    direct: tuple[DirectTerm, ...] = ()  # terms that run through the network row by row
    background: Tensor | None = None  # the background rows; None where they were not kept
    # Per category, what its prior part is measured from.
    offsets: dict[int, Tensor] = field(default_factory=dict)
    published: Published | None = None  # the calibration as published, where that was asked for

    @property
    def reference(self) -> str:
        """Which method estimated it, under the name that the explainer's option has."""
        return "terms" if self.published is None else "complement"

    def with_spreads(self) -> Estimate:
        """The same with bands measured, and nothing that cannot be sent to another process."""
        # A copy of the functions is without what measures the bands.
        return replace(self, functions=replace(measure_bands(self.functions)))


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows to be given contributions, after the network has run."""

    rows: Tensor  # as they were read
    complete: Tensor  # which of them lack no number
    answered: Tensor  # which of them the network answers for
    from_tables: Tensor  # contributions of the terms that have tables, (rows, tables, outputs)
    readout: Readout

    def inputs(self, which: Tensor) -> Tensor:
        """Some of the rows as the model takes them."""
        return as_model_takes(self.rows[which], self.readout)

    def no_values(self, n_terms: int) -> Tensor:
        """Contributions of all rows, none of them known yet."""
        n_rows, _, n_outputs = self.from_tables.shape
        return torch.full((n_rows, n_terms, n_outputs), torch.nan, dtype=torch.float64)


def decide_estimate(run: Run, estimate: Callable[[], Estimate]) -> Estimate:
    """An estimate that all processes share."""
    if run.size == 1:
        return estimate()
    # What travels between processes has its bands with it.
    return run.decide(lambda: estimate().with_spreads())


def make_functions(
    setting: Setting,
    tables: tuple[TermTable, ...],
    terms: tuple[Subset, ...],
    values: Tensor,
    at_baseline: Tensor,
    *,
    base_values: Tensor,
    strengths: dict[Subset, float],
    health: Health,
    measure: Measure,
) -> Functions:
    """The functions with everything that is known of them.

    `values` are contributions of all terms on some calibration rows, (rows, terms, outputs), and `at_baseline` those at
    the baseline. `measure` tells how far curves move, once somebody asks.
    """
    names = setting.names
    position = {term: number for number, term in enumerate(terms)}
    without_table = set(terms) - {table.features for table in tables}
    functions = Functions(
        features=tuple(domain.feature for domain in setting.domains),
        column_names=setting.columns.names,
        column_count=setting.columns.count,
        output_names=setting.output_names,
        tables=tables,
        base_values=base_values.numpy().copy(),
        baseline_contributions=at_baseline[[position[table.features] for table in tables]].numpy(),
        baseline=_baseline_positions(setting.domains, setting.baseline_sample()),
        state=health,
        link=setting.adapted.link or setting.readout.link,
        classes=_classes_of(setting),
        importances=_measure_importances(terms, values, n_features=len(names)),
        strengths=strengths,
        left_out=tuple(
            tuple(names[feature] for feature in term) for term in terms if term in without_table
        ),
        reach=_usual_combinations(setting),
    )
    measure_bands_later(functions, measure)

    return functions


def _classes_of(setting: Setting) -> tuple[Level, ...]:
    """Both classes where one output becomes the probability of the second."""
    becomes_probability = setting.adapted.link == "sigmoid" and len(setting.output_names) == 1
    return setting.adapted.two_classes if becomes_probability else ()


def _measure_importances(
    terms: Sequence[Subset], values: Tensor, *, n_features: int
) -> dict[str, NDArray[np.float64]]:
    """Mean absolute contribution of every feature, by its own function and by all terms that contain it."""
    containing = terms_with(terms, n_features)
    totals = torch.stack([values[:, positions].sum(1) for positions in containing], 1)
    return {
        "main": values[:, :n_features].abs().mean(0).numpy(),
        "total": totals.abs().mean(0).numpy(),
    }


def terms_with(terms: Sequence[Subset], n_features: int) -> list[list[int]]:
    """Per feature the positions of the terms that contain it."""
    containing: list[list[int]] = [[] for _ in range(n_features)]
    for position, term in enumerate(terms):
        for feature in term:
            containing[feature].append(position)
    return containing


def _usual_combinations(setting: Setting) -> Reach | None:
    """Which combinations of the features that are single numbers are usual among the rows in memory."""
    sample = setting.summary.sample
    if not len(sample):
        return None
    own = own_columns(setting.domains, sample)
    numbers = {
        domain.feature.columns[0]: own[domain.feature.columns[0]]
        for domain in setting.domains
        if domain.span is not None
    }
    return measure_reach(numbers)


def _baseline_positions(domains: Sequence[Domain], baseline: Sample) -> NDArray[np.float64]:
    """Where on its axis every feature's baseline is; NaN where it has no axis."""
    return np.array([_baseline_position(domain, baseline) for domain in domains])


def _baseline_position(domain: Domain, baseline: Sample) -> float:
    if domain.levels is not None:
        positions, *_ = baseline.chunk().places(domain.levels)
        level = int(positions[0])
        return float(level) if level < len(domain.levels) else float("nan")
    if domain.span is None:
        return float("nan")
    return float(baseline.own[domain.feature.columns[0]][0])


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
