"""From a setting to functions that are fitted together: grids, interactions, correction, health."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from nobsp.base import Finding
from nobsp.network.inference import use_threads
from nobsp.network.inputs import Subset
from nobsp.network.readout import as_model_takes
from nobsp.tabular.bands import spread_of_curves
from nobsp.tabular.budget import (
    BudgetSpentError,
    Meter,
    announce,
    plan_spending,
    probing_cost,
)
from nobsp.tabular.correction import Fit, share_explained
from nobsp.tabular.effort import MEASURED_DIRECTLY, Effort, choose_effort, count_operations
from nobsp.tabular.estimate import Estimate, make_functions
from nobsp.tabular.examination import LOW_SHARE, Validity, examine
from nobsp.tabular.grids import Represent, Tabulator
from nobsp.tabular.lookup import Array
from nobsp.tabular.purification import read
from nobsp.tabular.sample import Sample
from nobsp.tabular.setting import Setting
from nobsp.tabular.terms import Terms, fit_terms
from nobsp.tabular.validity import (
    TOO_FEW_ROWS,
    choose_by_neighbourhoods,
    cluster_finding,
    coarse_features,
    few_rows_findings,
    hold_out_neighbourhoods,
)

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
    """The steps of the method, in its order."""
    options = setting.options
    interactions = setting.pairs()
    background = setting.background()
    inputs = as_model_takes(setting.summary.sample[:_COUNTED_ROWS], setting.readout)
    operations = count_operations(represent, inputs)

    with use_threads(1 if operations < _FEW_OPERATIONS else None):
        effort = choose_effort(operations, len(setting.domains))
        effort, sample = _read_sample(setting, represent, meter, effort, background, interactions)

        terms = fit_terms(
            sample,
            setting.domains,
            represent,
            setting.weight,
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
        measure=lambda: _measure_spreads(terms),
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
    costs = setting.least_costs(effort, background, interactions)
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


def _measure_spreads(terms: Terms) -> dict[int, Array]:
    """Per feature how far its curve moves from calibration to calibration."""
    spreads = spread_of_curves(terms.fit, terms.traces)
    return {feature: spread.numpy() for feature, spread in spreads.items()}


def _check_validity(setting: Setting, terms: Terms, represent: Represent) -> tuple[Terms, Validity]:
    """Asks whether the headline can be believed, and chooses the strengths again where rows are clustered."""
    units = len(np.unique(terms.fit.sample.units()))
    findings = few_rows_findings(setting.n_rows, units, grouped=setting.groups is not None)

    clusters = _judge_clusters(setting, terms.fit)
    terms = replace(terms, fit=clusters.fit)
    if clusters.finding is not None:
        findings.append(clusters.finding)

    explained = clusters.fit.explained
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
