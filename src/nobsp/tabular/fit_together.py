"""All terms at once: tables over the background, the head as prior, and a correction.

The correction is judged on rows held out.

    f(x) ≈ base + Σ_S [ Δ_S(x_S) Wᵀ + Δ_S(x_S held at the calibrated range) δ_S ]

Δ_S is the representation of the term's features averaged over the background rows, and purified:
what a pair does on average over its partner's calibration rows belongs to the feature alone. The
first part is partial dependence; δ is fitted with a ridge, so that few rows lead back to partial
dependence and not to nonsense.

In this order: the method in its steps, and the functions made of what it estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.calibration import Run
from nobsp.findings import Finding
from nobsp.network.batches import progress_bar
from nobsp.network.columns import Subset, Summary
from nobsp.network.guest import keeps_torch_modes, use_threads
from nobsp.network.readout import Represent, as_model_takes
from nobsp.tabular.bands import Traces, resample_functions
from nobsp.tabular.clusters import (
    choose_by_neighbourhoods,
    cluster_finding,
    hold_out_neighbourhoods,
)
from nobsp.tabular.correction import RegressionFit, share_explained
from nobsp.tabular.effort import (
    COUNTED_ROWS,
    FULL,
    MEASURED_DIRECTLY,
    PAIRS_SHARE,
    BudgetSpentError,
    Effort,
    Meter,
    announce,
    announcement,
    choose_effort,
    count_operations,
    least_costs,
    plan_spending,
)
from nobsp.tabular.examination import (
    TOO_FEW_ROWS,
    Validity,
    coarse_features,
    copies_finding,
    examine,
    extreme_rows_findings,
    few_rows_findings,
    groups_finding,
    terms_with,
)
from nobsp.tabular.features import FEW_VALUES, Domain, own_columns
from nobsp.tabular.fitted import Estimate, Method
from nobsp.tabular.functions import Bands, Functions, MakeBands, MakeTables
from nobsp.tabular.grids import Backgrounds, Tabulator, UnansweredError
from nobsp.tabular.health import LOW_SHARE, Health, Reach, measure_reach
from nobsp.tabular.lookup import Level, TermTable
from nobsp.tabular.selection import FittedTerms, Selection
from nobsp.tabular.setting import Problem, Rows, Sample, Setting, probing_cost
from nobsp.tabular.shortcut import Shortcut, find_shortcut
from nobsp.tabular.tables import TableMaker, Tables, occupancy, read


class FitTogether(Method):
    """All terms in one regression, with the head as prior."""

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
        columns_by_feature = problem.columns.features.columns
        summary = run.accumulate(
            rows, Summary(columns_by_feature), Summary.update, name="reading", progress=progress
        )
        estimate = estimate_once(
            run, lambda: calibrate_terms(problem.with_rows(summary), progress=progress)
        )
        return summary, estimate

    def require_mergeable(
        self, mine: Estimate, theirs: Estimate, *, summaries: tuple[Summary, Summary]
    ) -> None:
        """Raises a ValueError where two samples of rows do not belong together, or are missing."""
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


# Rows on which importances are measured.
MEASURED_ROWS = 2048
# Operations of a forward row below which one thread does all: products are small, and where several
# processes share the processors, threads that wait for each other cost many times what they save.
_FEW_OPERATIONS = 100_000


def calibrate_terms(setting: Setting, *, progress: bool = False) -> Estimate:
    """Average effects on grids and interactions, all fitted together with the head as prior.

    Interactions are those that pay on held-out rows.
    """
    if setting.summary.rows < 2:
        raise ValueError(f"X has {setting.summary.rows} row; calibration needs at least two.")
    meter = Meter(setting.options.max_forward_rows, spent=probing_cost(setting.n_probed))
    try:
        with setting.network.running() as running:
            represent = meter.count(running.represent)
            return _calibrate(setting, represent, meter, progress=progress)
    except BudgetSpentError as spent:
        advice = "pass more, fewer features, or interactions=0"
        if setting.interactions() == 0:
            advice = "pass more, or fewer features"
        raise ValueError(
            f"max_forward_rows={meter.limit} is too few for {len(setting.domains)} features "
            f"({spent}); {advice}."
        ) from spent


def _calibrate(setting: Setting, represent: Represent, meter: Meter, *, progress: bool) -> Estimate:
    """The method's steps in order: rows, terms, whether they hold, functions made of them."""
    options = setting.options
    interactions = setting.interactions()
    background = setting.background()

    inputs = as_model_takes(setting.summary.sample[:COUNTED_ROWS], setting.readout)
    operations = count_operations(represent, inputs)

    with use_threads(1 if operations < _FEW_OPERATIONS else None):
        effort = choose_effort(operations, len(setting.domains))
        effort, sample = _plan_and_run_sample(
            setting, represent, meter, effort, background, interactions
        )
        access = Access(represent, effort, meter, _shortcut_of(setting, sample, meter))
        fit_with_background = partial(
            fit_terms,
            setting,
            sample,
            background=background,
            interactions=interactions,
            progress=progress,
        )
        try:
            terms = fit_with_background(access, as_they_are=False)
        except UnansweredError:
            # Background rows that were shifted out of the rows' range may be where the model's
            # domain has ended for values that are fine: log(x0 + x1) at x0 = -0.4. Or it may know
            # the numbers that occur and none between, as a lookup does. An answer that is missing
            # for other reasons stays so.
            effort = _effort_left(setting, sample, access, background, interactions)
            terms = fit_with_background(replace(access, effort=effort), as_they_are=True)

        # Importances of terms without tables are measured row by row, and at the baseline.
        for_importances = sum(direct.cost for direct in terms.direct) * (MEASURED_DIRECTLY + 1)
        with meter.reserving(for_importances):
            together = _HeldTogether.of(setting, terms)  # before neighbourhoods are units
            terms, clusters = _refit_where_clustered(setting, terms)
            validity = _check_validity(setting, terms, clusters, represent, together)

        measured = sample.some(MEASURED_DIRECTLY if terms.direct else MEASURED_ROWS)
        values = _contributions(terms, represent, measured, options.batch_size)
        baseline = setting.baseline_sample()
        at_baseline = _contributions(terms, represent, baseline, options.batch_size)[0]

    return _make_estimate(
        setting,
        terms,
        values=values,
        at_baseline=at_baseline,
        base_values=sample.outputs.mean(0),  # of all rows, where a regression may have fewer
        health=examine(setting, terms, validity, values, measured, meter),
    )


def _shortcut_of(setting: Setting, sample: Sample, meter: Meter) -> Shortcut | None:
    """Tables read off the model's trees, where it has any that were understood."""
    forest = setting.adapted.forest
    if forest is None:
        return None
    return find_shortcut(forest, sample, setting.head_weight, spend=meter.spend)


def _make_estimate(
    setting: Setting,
    terms: FittedTerms,
    *,
    values: Tensor,
    at_baseline: Tensor,
    base_values: Tensor,
    health: Health,
) -> Estimate:
    """The functions of the fitted terms, and what explaining needs beside them.

    `values` are contributions on the measured rows.
    """
    functions = make_functions(
        setting,
        tables=terms.tables,
        terms=terms.order,
        values=values,
        at_baseline=at_baseline,
        base_values=base_values,
        strengths=terms.strengths,
        health=health,
        make_bands=lambda: _resample_bands(terms),
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


def _plan_and_run_sample(
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
        interactions=interactions,
    )
    plan = plan_spending(costs, meter.left)
    most_rows = None
    if plan is not None:
        effort = effort.within(plan)
        most_rows = plan.sample
        meter.reduced = True

    sample = setting.sample(represent, most_rows).in_canonical_order()
    if meter.limit is not None:
        # For terms without tables, whose rows the regression reads after all tables were made.
        meter.reserve(costs.direct_for(len(sample)))
    if setting.adapted.forest is None and meter.is_timed:
        announce(announcement(*costs.rest(meter.left), meter.seconds_per_row))
    return effort, sample


def _effort_left(
    setting: Setting,
    sample: Sample,
    access: Access,
    background: int | Tensor,
    interactions: Sequence[Subset] | int | None,
) -> Effort:
    """The effort that forward rows allow where some were spent on tables that are of no use."""
    costs = least_costs(
        setting.domains,
        sample.chunk(),
        access.effort,
        background=background if isinstance(background, int) else len(background),
        interactions=interactions,
    )
    meter = access.meter
    if meter.limit is not None:
        meter.reserve(costs.direct)
    plan = plan_spending(replace(costs, sample=0, direct_runs=0, ends=0), meter.left)
    if plan is None:
        return access.effort
    meter.reduced = True
    return access.effort.within(plan)


def _contributions(
    terms: FittedTerms, represent: Represent, rows: Sample, batch_size: int
) -> Tensor:
    """Contributions of every term, (rows, terms, outputs)."""
    chunk = rows.chunk()
    values = {table.features: read(table, chunk) for table in terms.tables}
    for direct in terms.direct:
        values[direct.term] = direct(represent, rows.inputs, batch_size=batch_size)
    return torch.stack([values[term] for term in terms.order], 1)


@keeps_torch_modes
def _resample_bands(terms: FittedTerms) -> Bands:
    """How far functions move from calibration to calibration."""
    resamples = resample_functions(terms.fit, terms.traces)
    return Bands(
        spreads={feature: spread.numpy() for feature, spread in resamples.spreads.items()},
        deviations={term: moved.numpy() for term, moved in resamples.deviations.items()},
    )


def _refit_where_clustered(setting: Setting, terms: FittedTerms) -> tuple[FittedTerms, _Clusters]:
    """The terms, with strengths chosen again where rows are clustered, and the clusters found."""
    clusters = _judge_clusters(setting, terms.fit)
    return replace(terms, fit=clusters.fit), clusters


@dataclass(frozen=True, eq=False)
class _HeldTogether:
    """Which rows were held out together."""

    n_different: int  # different rows, or groups
    n_units: int  # how many of equal size tell as much
    grouped: bool  # whether groups were held out whole
    n_groups: int  # how many of them there are
    groups: Finding | None  # what became of groups that the caller named
    copies: Finding | None  # how many rows are copies, where no groups are named

    @classmethod
    def of(cls, setting: Setting, terms: FittedTerms) -> _HeldTogether:
        """As it was when terms were selected."""
        sample = terms.fit.sample
        return cls(
            n_different=len(np.unique(sample.units())),
            n_units=round(sample.effective_units(weighted=setting.is_weighted)),
            grouped=sample.keeps_groups_whole,
            n_groups=0 if sample.groups is None else len(np.unique(sample.groups)),
            groups=groups_finding(setting.groups, sample, setting.n_rows),
            copies=copies_finding(sample),
        )


def _check_validity(
    setting: Setting,
    terms: FittedTerms,
    clusters: _Clusters,
    represent: Represent,
    together: _HeldTogether,
) -> Validity:
    """Whether the headline can be believed."""
    # Of few groups, each may still have many rows.
    n_rows = setting.n_rows
    if not together.grouped:
        n_rows = min(n_rows, together.n_units if setting.is_weighted else together.n_different)
    is_cut = len(terms.fit.sample) < len(setting.summary.sample)
    findings = few_rows_findings(
        n_rows,
        together.n_units,
        # An output that does not vary has no R², and nothing to lose.
        explained=float(clusters.fit.explained.nan_to_num(1.0).min()),
        grouped=together.grouped,
        n_groups=together.n_groups,
        weighted=setting.is_weighted,
        limit=setting.options.max_forward_rows if is_cut else None,
    )
    # What is said of few rows counts the different ones already.
    copies = None if findings else together.copies
    findings += [told for told in (together.groups, copies) if told is not None]
    if clusters.finding is not None:
        findings.append(clusters.finding)

    explained = clusters.fit.explained
    if n_rows >= TOO_FEW_ROWS:
        findings += extreme_rows_findings(
            clusters.fit.held_out.chosen(), clusters.fit.sample.outputs, setting.output_names
        )
    # One outlier may carry all of the variance.
    worst = torch.fmin(torch.fmin(explained, clusters.fit.inside), clusters.worst)
    if n_rows < TOO_FEW_ROWS:
        explained = torch.full_like(explained, torch.nan)
        worst = explained

    coarse: list[int] = []
    if bool((worst < LOW_SHARE).any()):
        with suppress(BudgetSpentError):  # then it stays unknown
            coarse = _find_coarse(setting, terms, represent)
    return Validity(
        findings=tuple(findings),
        worst=worst,
        explained=explained,
        neighbourhoods=clusters.explained,
        coarse=tuple(coarse),
    )


@dataclass(frozen=True, eq=False)
class _Clusters:
    """A fit after whole neighbourhoods of rows were held out."""

    fit: RegressionFit  # with strengths that neighbourhoods chose, where rows are clustered
    explained: Tensor  # R² with neighbourhoods held out; empty where not measured
    worst: Tensor  # the same for outputs of which clusters are told, infinite for others
    finding: Finding | None = None


def _judge_clusters(setting: Setting, fit: RegressionFit) -> _Clusters:
    """Holds whole neighbourhoods out; where that tells of clusters, these choose the strengths.

    Where groups are named and held out together, these choose them: clusters are only told of, as
    those that are named may be too fine, or others.
    """
    not_clustered = torch.full_like(fit.explained, torch.inf)
    neighbourhoods = hold_out_neighbourhoods(fit, setting.domains)
    if neighbourhoods is None:
        unmeasured = torch.zeros(0, dtype=torch.float64)
        return _Clusters(fit, explained=unmeasured, worst=not_clustered)

    clustered = neighbourhoods.clustered
    is_named = fit.sample.keeps_groups_whole
    told = clustered if is_named else neighbourhoods.told
    if not bool(told.any()):
        return _Clusters(fit, explained=neighbourhoods.explained, worst=not_clustered)

    explained = neighbourhoods.explained
    chooses = (
        setting.options.ridge is None
        and not is_named
        and not neighbourhoods.few
        and bool(clustered.any())
    )
    if chooses:
        fit = choose_by_neighbourhoods(fit, neighbourhoods)
        at_chosen = share_explained(fit.held_out.chosen(), fit.sample.outputs)
        explained = torch.where(clustered, at_chosen, explained)
    return _Clusters(
        fit,
        explained=explained,
        # Few clusters may be all that there are, and then the headline holds.
        worst=not_clustered if neighbourhoods.few else torch.where(told, explained, torch.inf),
        finding=cluster_finding(
            neighbourhoods,
            explained,
            setting.output_names,
            told=told,
            chosen=chooses,
            named=is_named,
            could_name=setting.groups is None,
        ),
    )


def _find_coarse(setting: Setting, terms: FittedTerms, represent: Represent) -> list[int]:
    """Features whose tables are coarser than their functions."""
    tabulator = Tabulator(
        represent, terms.background, setting.head_weight, batch_size=setting.options.batch_size
    )
    return coarse_features(terms.tables, setting.domains, tabulator, terms.fit.sample)


@dataclass(frozen=True, eq=False)
class Access:
    """How the network is asked while terms are fitted."""

    represent: Represent  # runs rows, and counts them
    effort: Effort  # how fine tables are
    meter: Meter  # rows that were run, and those that are left
    shortcut: Shortcut | None = None  # reads tables off trees instead
    # features beyond whose range the model was seen to raise, by their columns
    raising: set[Subset] = field(default_factory=set)


def fit_terms(
    setting: Setting,
    sample: Sample,
    access: Access,
    *,
    background: int | Tensor,
    interactions: Sequence[Subset] | int | None,
    as_they_are: bool,
    progress: bool = False,
) -> FittedTerms:
    """Tabulates all terms, selects interactions and fits.

    `interactions` are the terms to fit, how many of the strongest pairs, or None for those pairs
    and triples that pay on rows held out. `as_they_are` is for models that do not answer otherwise:
    background rows are not brought to the mean of all rows, and functions are only asked at numbers
    that occur.
    """
    domains = setting.domains
    effort = access.effort
    meter = access.meter
    if as_they_are:
        domains = [replace(domain, on_values=True) for domain in domains]
    backgrounds = Backgrounds(
        access.represent,
        background,
        sample.inputs,
        setting.head_weight,
        shifted_columns=() if as_they_are else _shifted_columns(domains, sample),
        batch_size=setting.options.batch_size,
        shortcut=access.shortcut,
        raising=access.raising,
    )

    with progress_bar(enabled=progress, description="tabulating", unit=" terms") as bar:
        maker = TableMaker(sample, setting.head_weight, effort, backgrounds, meter, bar)
        ridge = setting.options.ridge
        selection = Selection(maker, None if ridge is None else ridge.value)
        if meter.reduced or (meter.limit is not None and as_they_are):
            raising = maker.look_beyond(domains)
            if not as_they_are:
                maker.look_inside(raising, domains, interactions)
        if interactions is None:
            selection = selection.leave_room(domains)

        mains = selection.maker.tabulate_mains(
            domains, for_others=_rows_of_named(domains, maker, interactions)
        )
        if interactions is None:
            selected = selection.fit_paying(mains)
        elif isinstance(interactions, int):
            selected = selection.fit_strongest(mains, interactions)
        else:
            selected = selection.fit_named(mains, interactions)

    return FittedTerms(
        fit=selected.fit,
        traces=_traces(selected.tables, selected.terms),
        strengths=selected.screen.strengths,
        strength_scatter=selected.screen.scatter,
        economy=effort.most_knots < FULL.most_knots,
        thresholds=_count_thresholds(domains, selection.maker.effort),
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


def _rows_of_named(
    domains: Sequence[Domain], maker: TableMaker, interactions: Sequence[Subset] | int | None
) -> float:
    """Forward rows that interactions the caller asks for take at least, where these are limited."""
    if maker.meter.limit is None or not interactions:
        return 0.0
    costs = least_costs(
        domains,
        maker.sample.chunk(),
        maker.effort,
        background=maker.backgrounds.most,
        interactions=interactions,
    )
    return costs.coarsest_grids / PAIRS_SHARE


def _traces(tables: Tables, fitted: Collection[Subset]) -> Traces:
    """What bands are made of, for the terms that were fitted."""
    pair_lines = tables.pair_lines.points
    triple_lines = tables.triple_lines.points
    return Traces(
        mains={k: (main.points, main.table.outputs) for k, main in tables.mains.items()},
        lines={k: (points, tables.pair_weights[k]) for k, points in pair_lines.items()},
        grids={grid.term: grid.outputs for grid in tables.pairs if grid.term in fitted},
        triple_lines={k: (points, tables.triple_weights[k]) for k, points in triple_lines.items()},
        triples={grid.term: grid.outputs for grid in tables.triples if grid.term in fitted},
    )


def _count_thresholds(domains: Sequence[Domain], effort: Effort) -> dict[int, tuple[int, int]]:
    """Per feature with steps the thresholds that its table has, and all."""
    counts = {k: len(domain.steps) for k, domain in enumerate(domains) if len(domain.steps)}
    return {k: (effort.count_steps(count), count) for k, count in counts.items()}


def _prior_offsets(tables: Tables) -> dict[int, Tensor]:
    """Per feature with a table the mean of its prior part over the rows."""
    offsets = {}
    for k, main in tables.mains.items():
        share = occupancy(main.points, tables.rows)
        offsets[k] = share @ main.table.mean @ tables.head_weight
    return offsets


# ---------------------------------------------------------------------- the functions


def estimate_once(run: Run, estimate: Callable[[], Estimate]) -> Estimate:
    """An estimate that all processes share."""
    if run.size == 1:
        return estimate()
    # What travels between processes has its bands with it.
    return run.decide(lambda: estimate().with_spreads())


@dataclass(frozen=True, eq=False)
class TablesOnDemand:
    """Tables that are made when they are first read."""

    terms: tuple[Subset, ...]  # which terms have one, in their order
    make: MakeTables


def make_functions(
    setting: Setting,
    *,
    tables: tuple[TermTable, ...] | TablesOnDemand,
    terms: tuple[Subset, ...],
    values: Tensor,
    at_baseline: Tensor,
    base_values: Tensor,
    strengths: dict[Subset, float],
    health: Health,
    make_bands: MakeBands,
) -> Functions:
    """The functions with everything that is known of them.

    `values` are contributions of all terms on some calibration rows, (rows, terms, outputs), and
    `at_baseline` those at the baseline. `make_bands` is called when bands are first needed.
    """
    names = setting.names
    position = {term: number for number, term in enumerate(terms)}
    if isinstance(tables, TablesOnDemand):
        tabulated = tables.terms
    else:
        tabulated = tuple(table.features for table in tables)

    functions = Functions(
        features=tuple(domain.feature for domain in setting.domains),
        column_names=setting.columns.names,
        column_count=setting.columns.count,
        output_names=setting.output_names,
        tables=() if isinstance(tables, TablesOnDemand) else tables,
        base_values=base_values.numpy().copy(),
        baseline_contributions=at_baseline[[position[term] for term in tabulated]].numpy(),
        baseline=_baseline_positions(setting.domains, setting.baseline_sample()),
        state=health,
        link=setting.adapted.link or setting.readout.link,
        classes=_classes_of(setting),
        importances=_measure_importances(terms, values, n_features=len(names)),
        strengths=strengths,
        left_out=tuple(
            tuple(names[feature] for feature in term) for term in terms if term not in tabulated
        ),
        reach=_usual_combinations(setting),
    )
    # Set afterwards, because copies and files go without: both hold the calibration rows.
    object.__setattr__(functions, "_make_bands", make_bands)
    if isinstance(tables, TablesOnDemand):
        object.__delattr__(functions, "tables")
        object.__setattr__(functions, "_make_tables", tables.make)
    return functions


def _classes_of(setting: Setting) -> tuple[Level, ...]:
    """Both classes where one output becomes the probability of the second."""
    becomes_probability = setting.adapted.link == "sigmoid" and len(setting.output_names) == 1
    return setting.adapted.two_classes if becomes_probability else ()


def _measure_importances(
    terms: Sequence[Subset], values: Tensor, *, n_features: int
) -> dict[str, NDArray[np.float64]]:
    """Mean absolute contribution of each feature, by its own function and by all its terms."""
    containing = terms_with(terms, n_features)
    totals = torch.stack([values[:, positions].sum(1) for positions in containing], 1)
    return {
        "main": values[:, :n_features].abs().mean(0).numpy(),
        "total": totals.abs().mean(0).numpy(),
    }


def _usual_combinations(setting: Setting) -> Reach | None:
    """Which combinations of features that are single numbers are usual in the rows in memory."""
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
