"""All terms at once: tables over the background, the head as prior, and a correction judged on rows held out.

    f(x) ≈ base + Σ_S [ Δ̃_S(x_S) Wᵀ + Δ̃_S(x_S held at the calibrated range) δ_S ]

Δ_S is the representation of the term's features averaged over the background rows, and purified: what a pair does on
average over its partner's calibration rows belongs to the feature alone. The first part is partial dependence; δ is
fitted with a ridge, so that few rows lead back to partial dependence and not to nonsense.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from nobsp.base import Finding
from nobsp.calibration import Run
from nobsp.network.batches import progress_bar
from nobsp.network.guest import use_threads
from nobsp.network.inputs import Subset, Summary
from nobsp.network.readout import Represent, as_model_takes
from nobsp.tabular.bands import Traces, copy_functions
from nobsp.tabular.correction import Fit, share_explained
from nobsp.tabular.estimate import Batch, Estimate, Terms, decide_estimate, make_functions
from nobsp.tabular.examination import (
    LOW_SHARE,
    TOO_FEW_ROWS,
    Validity,
    choose_by_neighbourhoods,
    cluster_finding,
    coarse_features,
    examine,
    extreme_rows_findings,
    few_rows_findings,
    hold_out_neighbourhoods,
)
from nobsp.tabular.features import FEW_VALUES, Domain
from nobsp.tabular.functions import Bands
from nobsp.tabular.grids import (
    FULL,
    MEASURED_DIRECTLY,
    MOST_STEPS,
    Backgrounds,
    BudgetSpentError,
    Effort,
    Meter,
    Shortcut,
    Tabulator,
    announce,
    choose_effort,
    count_operations,
    find_shortcut,
    least_costs,
    plan_spending,
    probing_cost,
)
from nobsp.tabular.selection import (
    Selection,
)
from nobsp.tabular.setting import Problem, Rows, Sample, Setting
from nobsp.tabular.tables import (
    Tables,
    Tabulation,
    occupancy,
    read,
)


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


# Rows on which importances are measured.
MEASURED_ROWS = 2048
# Rows that tell how many operations the model takes a row.
_COUNTED_ROWS = 8
# Operations of a forward row below which one thread does all: products are small, and where several processes share the
# processors, threads that wait for each other cost many times what they save.
_FEW_OPERATIONS = 100_000


def calibrate_terms(setting: Setting, *, progress: bool = False) -> Estimate:
    """Average effects on grids, the interactions that pay on held-out rows, all fitted with the head as prior."""
    if setting.summary.rows < 2:
        raise ValueError(f"X has {setting.summary.rows} row; calibration needs at least two.")
    meter = Meter(setting.options.max_forward_rows, spent=probing_cost(setting.n_probed))
    try:
        with setting.network.running() as running:
            represent = meter.count(running.represent)
            return _calibrate(setting, represent, meter, progress=progress)
    except BudgetSpentError as spent:
        raise ValueError(
            f"max_forward_rows={meter.limit} is too few for {len(setting.domains)} features "
            f"({spent}); pass more, fewer features, or interactions=0."
        ) from spent


def _calibrate(setting: Setting, represent: Represent, meter: Meter, *, progress: bool) -> Estimate:
    """The steps of the method, in its order: rows, terms, whether they hold, and the functions made of them."""
    options = setting.options
    interactions = setting.pairs()
    background = setting.background()

    inputs = as_model_takes(setting.summary.sample[:_COUNTED_ROWS], setting.readout)
    operations = count_operations(represent, inputs)

    with use_threads(1 if operations < _FEW_OPERATIONS else None):
        effort = choose_effort(operations, len(setting.domains))
        effort, sample = _read_sample(setting, represent, meter, effort, background, interactions)
        shortcut = find_shortcut(setting.adapted.forest, sample, setting.weight, spend=meter.spend)
        terms = fit_terms(
            sample,
            setting.domains,
            represent,
            setting.weight,
            shortcut=shortcut,
            background=background,
            pairs=interactions,
            ridge=None if options.ridge is None else options.ridge.value,
            batch_size=options.batch_size,
            effort=effort,
            meter=meter,
            progress=progress,
        )

        meter.reserved = sum(direct.cost for direct in terms.direct) * (MEASURED_DIRECTLY + 1)
        terms, validity = _check_validity(setting, terms, represent)
        meter.reserved = 0

        measured = sample.some(MEASURED_DIRECTLY if terms.direct else MEASURED_ROWS)
        values = _contributions(terms, represent, measured, options.batch_size)
        at_baseline = _contributions(
            terms, represent, setting.baseline_sample(), options.batch_size
        )[0]

    functions = make_functions(
        setting,
        terms.tables,
        terms.order,
        values,
        at_baseline,
        base_values=sample.outputs.mean(0),
        strengths=terms.strengths,
        health=examine(setting, terms, validity, values, measured, meter),
        measure=lambda: _measure_bands(terms),
    )
    return Estimate(
        functions=functions,
        terms=terms.order,
        baseline=setting.baseline,
        baseline_contributions=at_baseline.numpy(),
        alphas=tuple(terms.fit.correction.alphas.tolist()),
        direct=terms.direct,
        background=terms.background,
        offsets=terms.offsets,
    )


def _read_sample(
    setting: Setting,
    represent: Represent,
    meter: Meter,
    effort: Effort,
    background: int | Tensor,
    interactions: Sequence[Subset] | int | None,
) -> tuple[Effort, Sample]:
    """The effort that the forward rows allow, and as many calibration rows as they do."""
    costs = least_costs(
        setting.domains,
        setting.chunk(),
        effort,
        background=background if isinstance(background, int) else len(background),
        pairs=interactions,
    )
    plan = plan_spending(costs, meter.left)
    most_rows = None
    if plan is not None:
        effort = effort.within(plan)
        most_rows = plan.sample
        meter.reduced = True

    sample = setting.sample(represent, most_rows).shuffled()
    if meter.limit is not None:
        share = len(sample) / max(costs.sample, 1)
        meter.reserved = int(costs.direct * min(share, 1.0))
    if setting.adapted.forest is None:
        # Refinement and grids of pairs usually take about as much again.
        announce(min(2 * costs.total - costs.sample, meter.left), meter.seconds_per_row)
    return effort, sample


def _contributions(terms: Terms, represent: Represent, rows: Sample, batch_size: int) -> Tensor:
    """Contributions of every term, (rows, terms, outputs)."""
    chunk = rows.chunk()
    values = {table.features: read(table, chunk) for table in terms.tables}
    for direct in terms.direct:
        values[direct.term] = direct(represent, rows.inputs, batch_size=batch_size)
    return torch.stack([values[term] for term in terms.order], 1)


def _measure_bands(terms: Terms) -> Bands:
    """How far functions move from calibration to calibration."""
    copies = copy_functions(terms.fit, terms.traces)
    return Bands(
        spreads={feature: spread.numpy() for feature, spread in copies.spreads.items()},
        copies={term: moved.numpy() for term, moved in copies.deviations.items()},
    )


def _check_validity(setting: Setting, terms: Terms, represent: Represent) -> tuple[Terms, Validity]:
    """Asks whether the headline can be believed, and chooses the strengths again where rows are clustered."""
    units = len(np.unique(terms.fit.sample.units()))
    findings = few_rows_findings(setting.n_rows, units, grouped=setting.groups is not None)

    clusters = _judge_clusters(setting, terms.fit)
    terms = replace(terms, fit=clusters.fit)
    if clusters.finding is not None:
        findings.append(clusters.finding)

    explained = clusters.fit.explained
    if setting.n_rows >= TOO_FEW_ROWS:
        findings += extreme_rows_findings(
            clusters.fit.held_out.chosen(), clusters.fit.sample.outputs, setting.output_names
        )
    # One outlier may carry all of the variance.
    worst = torch.fmin(torch.fmin(explained, clusters.fit.inside), clusters.worst)
    if setting.n_rows < TOO_FEW_ROWS:
        explained = torch.full_like(explained, torch.nan)
        worst = explained

    coarse: list[int] = []
    if bool((worst < LOW_SHARE).any()):
        with suppress(BudgetSpentError):  # then it stays unknown
            coarse = _find_coarse(setting, terms, represent)
    return terms, Validity(
        findings=tuple(findings),
        worst=worst,
        explained=explained,
        neighbourhoods=clusters.explained,
        coarse=tuple(coarse),
    )


@dataclass(frozen=True, eq=False)
class _Clusters:
    """A fit after whole neighbourhoods of rows were held out."""

    fit: Fit  # with strengths that neighbourhoods chose, where rows are clustered
    explained: Tensor  # R² with neighbourhoods held out; empty where not measured
    worst: Tensor  # the same for outputs whose rows are clustered, infinite for others
    finding: Finding | None = None


def _judge_clusters(setting: Setting, fit: Fit) -> _Clusters:
    """Holds whole neighbourhoods out; where that tells of clusters, these choose the strengths."""
    not_clustered = torch.full_like(fit.explained, torch.inf)
    # Where groups are named, they are what is held out.
    neighbourhoods = None
    if setting.groups is None:
        neighbourhoods = hold_out_neighbourhoods(fit, setting.domains)
    if neighbourhoods is None:
        unmeasured = torch.zeros(0, dtype=torch.float64)
        return _Clusters(fit, explained=unmeasured, worst=not_clustered)

    clustered = neighbourhoods.clustered
    if not bool(clustered.any()):
        return _Clusters(fit, explained=neighbourhoods.explained, worst=not_clustered)

    explained = neighbourhoods.explained
    chooses = setting.options.ridge is None
    if chooses:
        fit = choose_by_neighbourhoods(fit, neighbourhoods)
        at_chosen = share_explained(fit.held_out.chosen(), fit.sample.outputs)
        explained = torch.where(clustered, at_chosen, explained)
    return _Clusters(
        fit,
        explained=explained,
        worst=torch.where(clustered, explained, torch.inf),
        finding=cluster_finding(neighbourhoods, explained, setting.output_names, chosen=chooses),
    )


def _find_coarse(setting: Setting, terms: Terms, represent: Represent) -> list[int]:
    """Features whose tables are coarser than their functions."""
    tabulate = Tabulator(
        represent, terms.background, setting.weight, batch_size=setting.options.batch_size
    )
    return coarse_features(terms.tables, setting.domains, tabulate, terms.fit.sample)


def fit_terms(
    sample: Sample,
    domains: Sequence[Domain],
    represent: Represent,
    weight: Tensor,
    *,
    background: int | Tensor,
    pairs: Sequence[Subset] | int | None,
    ridge: float | None,
    batch_size: int,
    effort: Effort = FULL,
    meter: Meter | None = None,
    shortcut: Shortcut | None = None,
    progress: bool = False,
) -> Terms:
    """Fits all terms.

    `pairs` are the interactions to fit, how many of the strongest pairs, or None for those pairs and triples that pay
    on rows held out.
    """
    meter = meter or Meter()
    backgrounds = Backgrounds(
        represent,
        background,
        sample.inputs,
        weight,
        numbers=_shifted_columns(domains, sample),
        batch_size=batch_size,
        shortcut=shortcut,
    )

    with progress_bar(enabled=progress, description="tabulating", unit=" terms") as bar:
        tabulation = Tabulation(sample, weight, effort, backgrounds, meter, bar)
        mains = tabulation.tabulate_mains(domains)

        selection = Selection(tabulation, ridge)
        if pairs is None:
            selected = selection.fit_paying(mains)
        elif isinstance(pairs, int):
            selected = selection.fit_strongest(mains, pairs)
        else:
            selected = selection.fit_named(mains, pairs)

    meter.reserved = 0
    return Terms(
        fit=selected.fit,
        traces=_traces(selected.tables, selected.terms),
        strengths=selected.screen.strengths,
        forward_rows=max(meter.spent, backgrounds.forward_rows),
        economy=effort.most_knots < FULL.most_knots,
        thresholds=_count_thresholds(domains),
        offsets=_prior_offsets(selected.tables),
        background=selected.tables.background,
    )


def _shifted_columns(domains: Sequence[Domain], sample: Sample) -> list[int]:
    """Columns of amounts, which are shifted in the background rows to the mean of all rows."""
    columns = []
    for domain in domains:
        if domain.feature.kind == "numbers":  # a group may hold flags beside amounts
            columns += [
                column
                for column in domain.columns
                if len(np.unique(sample.inputs[:, column].numpy())) > FEW_VALUES
            ]
        elif domain.reaches and domain.span and len(domain.columns) == 1:
            columns.append(domain.columns[0])
    return columns


def _traces(tables: Tables, fitted: Collection[Subset]) -> Traces:
    """What bands are made of, for the terms that were fitted."""
    pair_lines = tables.pair_lines.points
    triple_lines = tables.triple_lines.points
    return Traces(
        mains={k: (main.points, main.table.outputs) for k, main in tables.mains.items()},
        lines={k: (points, tables.pair_places[k]) for k, points in pair_lines.items()},
        grids={grid.term: grid.outputs for grid in tables.pairs if grid.term in fitted},
        triple_lines={k: (points, tables.triple_places[k]) for k, points in triple_lines.items()},
        triples={grid.term: grid.outputs for grid in tables.triples if grid.term in fitted},
    )


def _count_thresholds(domains: Sequence[Domain]) -> dict[int, tuple[int, int]]:
    """Per feature with steps the thresholds that its table has, and all."""
    counts = {k: len(domain.steps) for k, domain in enumerate(domains) if len(domain.steps)}
    return {k: (min(count, MOST_STEPS), count) for k, count in counts.items()}


def _prior_offsets(tables: Tables) -> dict[int, Tensor]:
    """Per feature with a table the mean of its prior part over the rows."""
    offsets = {}
    for k, main in tables.mains.items():
        share = occupancy(main.points, tables.rows)
        offsets[k] = share @ main.table.mean @ tables.weight
    return offsets
