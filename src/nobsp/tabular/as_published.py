"""Tables explained by Algorithm 1 as published: calibration, functions and health.

This is `reference="complement"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from nobsp._typing import ModelLike
from nobsp.calibration import Run
from nobsp.findings import Finding
from nobsp.network.columns import Subset, Summary
from nobsp.network.guest import in_ordinary_modes
from nobsp.network.readout import Represent, as_model_takes
from nobsp.projection import Ridge
from nobsp.published import (
    Accumulator,
    Isolation,
    Plan,
    Published,
    add_rows,
    add_rows_and_summarise,
    join_solutions,
    make_plan,
    rare_rows,
    room_for_moments,
    solve,
    split_plan,
)
from nobsp.published.sums import MomentsByTerm
from nobsp.tabular.correction import share_explained
from nobsp.tabular.effort import FULL, PAIR_REACH
from nobsp.tabular.examination import feature_findings, share_findings
from nobsp.tabular.features import Points
from nobsp.tabular.fit_together import TablesOnDemand, estimate_once, make_functions
from nobsp.tabular.fitted import Batch, Estimate, Method
from nobsp.tabular.functions import Bands
from nobsp.tabular.grids import Tabulator
from nobsp.tabular.health import Health, TermHealth, sort_findings
from nobsp.tabular.indexing import term_name
from nobsp.tabular.lookup import TermTable
from nobsp.tabular.selection import screen_pairs
from nobsp.tabular.setting import (
    Problem,
    Rows,
    Sample,
    Setting,
    TableRows,
    read_ahead,
    require_passes,
)
from nobsp.tabular.tables import Main, refine_main, tabulate_main, transfer

Strengths = dict[Subset, float]

# Rows on which importances are measured: every one of them runs once for every term.
MEASURED_ROWS = 512
# Pairs are fitted one by one, so only those are taken whose spread is this share of the outputs'.
LEAST_STRENGTH = 0.02
# Most pairs that are taken without being named.
MOST_PAIRS = 16
# Knots along each side of a pair's table that follow the rows, and those that are evenly spaced.
PAIR_QUANTILES = 17
PAIR_EVEN = 9
# The relative ridge where none was asked for.
DEFAULT_RIDGE = Ridge(1e-4, "relative")


class AsPublished(Method):
    """Algorithm 1 of the paper, each feature along the network's view of all other features."""

    takes_weights = False
    reads_tables = False  # tables are along the baseline, so rows are run instead

    def calibrate(
        self,
        run: Run,
        rows: Rows,
        problem: Problem,
        *,
        known: Estimate | None,
        progress: bool,
    ) -> tuple[Summary, Estimate]:
        """Reads the rows, adds up the moments, solves; `known` has a plan to take over."""
        summary, published, strengths = _calibrate(run, rows, problem, known, progress=progress)
        estimate = estimate_once(
            run, lambda: estimate_published(problem.with_rows(summary), published, strengths)
        )
        return summary, estimate

    def require_mergeable(
        self, mine: Estimate, theirs: Estimate, *, summaries: tuple[Summary, Summary]
    ) -> None:
        """Raises a ValueError where the two calibrations cannot be added up."""
        del summaries  # moments are what is added up
        mine.as_published("merge").require_mergeable(theirs.as_published("other"))

    def merge(self, mine: Estimate, theirs: Estimate, setting: Setting) -> Estimate:
        """The calibration on the rows of both."""
        merged = mine.as_published("merge").merge(theirs.as_published("other"))
        return estimate_published(setting, merged, mine.functions.strengths)

    def values(
        self, estimate: Estimate, batch: Batch, represent: Represent, *, batch_size: int
    ) -> Tensor:
        """Contributions of all terms to rows that ran, (rows, terms, outputs)."""
        del batch_size  # the plan has its own
        values = batch.no_values(len(estimate.terms))
        published = estimate.as_published("values")
        values[batch.answered] = published.values(represent, batch.inputs(batch.answered))
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
        """Contributions of one term, (rows, outputs)."""
        del batch_size  # the plan has its own
        published = estimate.as_published("values")
        return published.values(represent, inputs, terms=[term])[:, 0]

    def without_rows(self, estimate: Estimate) -> Estimate:
        """The estimate without what `merge` needs."""
        published = estimate.as_published("save")
        return replace(estimate, background=None, published=replace(published, parts={}))


def _calibrate(
    run: Run, rows: Rows, problem: Problem, known: Estimate | None, *, progress: bool
) -> tuple[Summary, Published, Strengths]:
    """Reads the rows, fixes the plan, adds up the moments, solves."""
    model = run.share(problem.network)
    columns_by_feature = problem.columns.features.columns
    summary = Summary(columns_by_feature)
    planned = known is not None
    reads_ahead = read_ahead(run, rows, problem.columns, problem.options.baseline, planned=planned)
    if reads_ahead:
        summary = run.accumulate(rows, summary, Summary.update, name="reading", progress=progress)

    if known is not None:
        plan = known.as_published("like").plan
        strengths = known.functions.strengths
    else:
        seen = summary
        if isinstance(rows, TableRows) and not reads_ahead:
            seen = run.accumulate(
                rows.peek(), Summary(columns_by_feature), Summary.update, name="first rows"
            )
        plan, strengths = run.decide(lambda: _plan(problem.with_rows(seen)), name="plan")

    summary, published = _add_up(
        run,
        rows,
        problem,
        plan,
        summary if reads_ahead else None,
        model=model,
        progress=progress,
    )
    return summary, published, strengths


def _add_up(
    run: Run,
    rows: Rows,
    problem: Problem,
    plan: Plan,
    summary: Summary | None,
    *,
    model: ModelLike,
    progress: bool,
) -> tuple[Summary, Published]:
    """Adds up the moments and solves, in as many stages as memory asks for.

    `summary` is of the rows where they were read ahead; `model` is what the run shares.
    """
    readout = problem.readout
    stages = split_plan(plan, readout, memory=run.memory)
    if len(stages) > 1:
        require_passes(run, rows, len(stages))

    ridge = problem.options.ridge or DEFAULT_RIDGE
    room = room_for_moments(plan, run.memory)
    solutions = []
    moments_by_term: MomentsByTerm = {}
    for stage in stages:
        moments_by_term = {}  # the sums of one stage at a time
        moments = Accumulator.of(stage, readout, memory=room)
        if summary is not None:
            moments = run.accumulate(
                rows,
                moments,
                partial(add_rows, stage),
                model=model,
                name="calibrating",
                progress=progress,
            )
        else:  # rows that are read only once
            summary, moments = run.accumulate(
                rows,
                (Summary(problem.columns.features.columns), moments),
                partial(add_rows_and_summarise, stage),
                model=model,
                name="calibrating",
                progress=progress,
            )
        moments_by_term = moments.parts
        del moments
        solutions.append(run.decide(partial(solve, stage, moments_by_term, ridge=ridge)))

    assert summary is not None  # a plan has one stage at least
    all_moments = moments_by_term if len(stages) == 1 else {}
    return summary, Published(plan, all_moments, join_solutions(solutions), ridge)


def _plan(setting: Setting) -> tuple[Plan, Strengths]:
    """Baseline, terms and bases of Algorithm 1, and strengths of pairs where they were screened."""
    isolation = Isolation(
        features=setting.columns.features,
        baseline=setting.baseline,
        few_valued=frozenset(setting.summary.levels),
        categories=setting.categories,
        batch_size=setting.options.batch_size,
    )
    with setting.network.running() as running:
        pairs, strengths = _choose_pairs(setting, running.represent)
        mains: list[Subset] = [(feature,) for feature in range(len(setting.names))]
        sample = as_model_takes(setting.summary.sample, setting.readout)
        rare = as_model_takes(rare_rows(setting.summary, isolation), setting.readout)
        plan = make_plan(isolation, running.represent, sample, [*mains, *pairs], rare=rare)
    return plan, strengths


def _choose_pairs(setting: Setting, represent: Represent) -> tuple[list[Subset], Strengths]:
    """The interactions that were named, or the strongest pairs by a screening of all."""
    wanted = setting.interactions()
    if isinstance(wanted, Sequence):
        return list(wanted), {}
    if wanted == 0:
        return [], {}

    tabulator = _tabulator(setting, represent, setting.head_weight)
    strengths = screen_pairs(tabulator, setting.domains, setting.sample(represent), FULL).strengths
    if wanted is not None:
        return list(strengths)[:wanted], strengths
    strong = [pair for pair, strength in strengths.items() if strength >= LEAST_STRENGTH]
    return strong[:MOST_PAIRS], strengths


def _tabulator(setting: Setting, represent: Represent, coefficients: Tensor) -> Tabulator:
    """Tables along the baseline."""
    return Tabulator(
        represent, setting.baseline_rows(), coefficients, batch_size=setting.options.batch_size
    )


def estimate_published(setting: Setting, published: Published, strengths: Strengths) -> Estimate:
    """The functions of Algorithm 1 as tables along the baseline, with the coefficients."""
    # The first calibration's, where the plan was taken over or merged.
    setting = setting.with_baseline(published.plan.isolation.baseline)
    with setting.network.running() as running:
        sample = setting.sample(running.represent)
        measured = sample.some(MEASURED_ROWS)
        values = published.values(running.represent, measured.inputs)
        at_baseline = published.values(running.represent, setting.baseline_rows())[0]

    tables = _TablesAlongBaseline(setting, published, sample)
    functions = make_functions(
        setting,
        tables=TablesOnDemand(tables.terms, tables.tables),
        terms=published.plan.terms,
        values=values,
        at_baseline=at_baseline,
        base_values=published.solution.base,
        strengths=strengths,
        health=_examine(setting, published, values, measured),
        make_bands=tables.bands,
    )
    return Estimate(
        functions=functions,
        terms=published.plan.terms,
        baseline=setting.baseline,
        baseline_contributions=at_baseline.numpy(),
        alphas=(published.ridge.value,) * setting.readout.outputs,
        published=published,
    )


# Rows whose outputs tell whether the model is still the calibrated one.
_COMPARED_ROWS = 16
# How far these may be off, as a share of the outputs' spread, and by roundings of the outputs
# themselves.
_SAME_ANSWERS = 0.001
_ROUNDINGS = 64
_HAS_CHANGED = (
    "the model has changed since the calibration as published, whose tables are made when they are "
    "first needed; calibrate anew, or call curves() before the model changes."
)


class _TablesAlongBaseline:
    """Tables of terms, and their bands, with all other features at the baseline.

    They are made when they are asked for.
    """

    def __init__(self, setting: Setting, published: Published, sample: Sample) -> None:
        self.setting = setting
        self.published = published
        self.sample = sample
        self.fingerprint = setting.readout.fingerprint()
        self.terms = tuple(term for term in published.plan.terms if self._has_table(term))

    def _has_table(self, term: Subset) -> bool:
        """Whether a term has at most two features, and all of them have tables."""
        if self._is_dropped(term):
            return True
        return len(term) <= 2 and all(self.setting.domains[feature].tabulated for feature in term)

    def _is_dropped(self, term: Subset) -> bool:
        """Whether the term is a single feature that the preprocessing drops."""
        return len(term) == 1 and not self.setting.domains[term[0]].columns

    def tables(self) -> tuple[TermTable, ...]:
        """Every term's table."""
        return self._tabulated.tables

    @in_ordinary_modes
    def bands(self) -> Bands:
        """How far curves move for blocks of rows drawn with replacement; no row is read again."""
        resampled = self.published.resampled()
        if not resampled:
            return Bands({})
        spreads = {}
        for feature, compressed in self._tabulated.compressed.items():
            term = (feature,)
            basis = self.published.plan.bases[term]
            curves = [
                compressed @ (basis.T @ solution.matrices[term]) - solution.offsets[term]
                for solution in resampled
            ]
            spreads[feature] = torch.stack(curves).std(0).numpy()
        return Bands(spreads)

    @cached_property
    def _tabulated(self) -> _Tabulated:
        """The network run along every feature, once for tables and bands."""
        # Coefficients are of the network as it was: tables of another one would belong to neither.
        if self.setting.readout.fingerprint() != self.fingerprint:
            raise ValueError(_HAS_CHANGED)
        return self._tabulate()

    @in_ordinary_modes
    def _tabulate(self) -> _Tabulated:
        tabulated = _Tabulated({}, {}, {})
        with self.setting.network.running() as running:
            self._require_same_answers(running.represent)
            for term in self.terms:
                if self._is_dropped(term):
                    nothing = np.zeros((1, self.setting.readout.outputs))
                    tabulated.by_term[term] = TermTable(term, (), nothing)
                elif len(term) == 1:
                    self._add_main(tabulated, term[0], running.represent)
                else:
                    self._add_pair(tabulated, (term[0], term[1]), running.represent)
        return tabulated

    def _require_same_answers(self, represent: Represent) -> None:
        """Raises a ValueError where the model answers otherwise than it did at calibration.

        Its weights need not show that: it may have plain attributes.
        """
        some = self.sample.some(_COMPARED_ROWS)
        answers = self.setting.readout.logits(represent(some.inputs)).cpu()
        differences = (answers - some.outputs).abs().amax(0)
        rounding = _ROUNDINGS * torch.finfo(self.setting.readout.dtype).eps
        allowed = _SAME_ANSWERS * self.sample.spread + rounding * some.outputs.abs().amax(0)
        if bool((differences > allowed).any()):
            raise ValueError(_HAS_CHANGED)

    def _add_main(self, tabulated: _Tabulated, feature: int, represent: Represent) -> None:
        term = (feature,)
        solution = self.published.solution
        tabulator = _tabulator(self.setting, represent, solution.matrices[term])
        domain = self.setting.domains[feature]
        chunk = self.sample.chunk()
        unit = self.sample.spread
        first = Main(*tabulate_main(tabulator, domain, chunk, unit, FULL))
        main = refine_main(tabulator, domain, first, chunk, unit=unit, most=FULL.most_knots)
        points = main.points
        table = main.table
        values = table.mean @ solution.matrices[term] - solution.offsets[term]

        tabulated.by_term[term] = TermTable(term, (points.axis,), values.numpy())
        tabulated.points[feature] = points
        tabulated.compressed[feature] = table.mean @ self.published.plan.bases[term]

    def _add_pair(self, tabulated: _Tabulated, pair: tuple[int, int], represent: Represent) -> None:
        """The pair's projection less the functions of its features (A.14)."""
        solution = self.published.solution
        tabulator = _tabulator(self.setting, represent, solution.matrices[pair])
        first, second = (
            self.setting.domains[feature].points(
                self.sample.chunk(), quantiles=PAIR_QUANTILES, even=PAIR_EVEN, reach=PAIR_REACH
            )
            for feature in pair
        )
        projection = tabulator((first, second)).mean @ solution.matrices[pair]
        own_of_first = tabulated.main_at(pair[0], first)
        own_of_second = tabulated.main_at(pair[1], second)
        values = projection - solution.offsets[pair] - own_of_first[:, None] - own_of_second[None]
        tabulated.by_term[pair] = TermTable(pair, (first.axis, second.axis), values.numpy())


@dataclass(frozen=True, eq=False)
class _Tabulated:
    """Terms that have been tabulated."""

    by_term: dict[Subset, TermTable]
    points: dict[int, Points]  # of every feature with a table
    compressed: dict[int, Tensor]  # its representation there, in its basis

    @property
    def tables(self) -> tuple[TermTable, ...]:
        """All tables, in the order of the terms."""
        return tuple(self.by_term.values())

    def main_at(self, feature: int, points: Points) -> Tensor:
        """A feature's own function at some points."""
        values = torch.from_numpy(self.by_term[feature,].values)
        return transfer(self.points[feature], values, points)


def _examine(setting: Setting, published: Published, values: Tensor, measured: Sample) -> Health:
    """What is worth knowing before the numbers are believed."""
    residuals = measured.outputs - values.sum(1)
    explained = share_explained(residuals - residuals.mean(0), measured.outputs)
    shares = tuple(explained.tolist())

    return Health(
        findings=sort_findings(_findings(setting, published, values, measured, explained)),
        terms=tuple(
            TermHealth(
                tuple(setting.names[feature] for feature in term),
                published.plan.bases[term].shape[1],
                published.solution.unique_share[term],
            )
            for term in published.plan.terms
        ),
        explained=shares,
        inside=shares,
        outside_rows=0.0,
        rows=setting.summary.rows,
        columns=setting.readout.width,
        held_out=False,
    )


def _findings(
    setting: Setting, published: Published, values: Tensor, measured: Sample, explained: Tensor
) -> list[Finding]:
    """Low shares, features that do nothing, too few rows, overlapping terms, missing bands."""
    findings = [
        *share_findings(
            explained,
            setting.output_names,
            what=["R² on the calibration rows"] * len(setting.output_names),
        ),
        *feature_findings(setting, published.plan.terms, values, measured),
    ]
    n_rows = setting.summary.rows
    width = setting.readout.width
    if n_rows <= width:
        message = (
            f"Fewer rows ({n_rows}) than the representation is wide ({width}): calibrate on more."
        )
        findings.append(Finding("warning", "few_rows", "", message))

    subjects = {finding.subject for finding in findings}
    for term, note in published.solution.notes.items():
        name = term_name([setting.names[feature] for feature in term])
        if name not in subjects:
            severity = "note" if published.plan.bases[term].shape[1] == 0 else "warning"
            findings.append(Finding(severity, "overlap", name, note))

    if not published.parts:
        message = "Moments are not held, so curves have no bands and nothing can be merged."
        findings.append(Finding("note", "no_moments", "", message))
    return findings
