"""From options and a summary of the rows to an estimate: the functions, their health, and what explaining needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nobsp._messages import join_names, number_outputs
from nobsp.arguments import names_of, require_choice
from nobsp.base import Finding, sort_findings
from nobsp.messages import require_whole_number
from nobsp.network.adapted import Adapted
from nobsp.network.inference import use_threads
from nobsp.network.inputs import SAMPLE_ROWS, Subset, Summary, resolve_baseline
from nobsp.network.readout import Network, Readout, as_model_takes
from nobsp.projection import Ridge
from nobsp.tabular.bands import spread_of_curves
from nobsp.tabular.budget import (
    BudgetSpentError,
    Costs,
    Meter,
    announce,
    plan_spending,
    probing_cost,
)
from nobsp.tabular.columns import Columns, categories_of, input_baseline, ranks
from nobsp.tabular.correction import share_explained
from nobsp.tabular.dependence import find_determined
from nobsp.tabular.distance import Reach, measure_reach
from nobsp.tabular.effort import (
    MEASURED_DIRECTLY,
    Effort,
    choose_effort,
    count_operations,
    least_costs,
)
from nobsp.tabular.explanation import term_name
from nobsp.tabular.features import Domain, describe, own_columns
from nobsp.tabular.fitted import Estimate, rows_like
from nobsp.tabular.folds import Codes
from nobsp.tabular.functions import Functions, Measure, measure_bands_later
from nobsp.tabular.grids import Represent, Tabulator
from nobsp.tabular.health import Health, TermHealth
from nobsp.tabular.lookup import Array, Chunk, TermTable
from nobsp.tabular.omissions import distances_from_average, name_far_curves, name_pairs_left_out
from nobsp.tabular.purification import read
from nobsp.tabular.sample import Sample
from nobsp.tabular.terms import Terms, fit_terms
from nobsp.tabular.validity import (
    TOO_FEW_ROWS,
    choose_by_neighbourhoods,
    cluster_finding,
    coarse_features,
    few_rows_findings,
    hold_out_neighbourhoods,
    scatter_of_share,
)

# Rows on which importances are measured.
MEASURED_ROWS = 2048
# Operations of a forward row below which one thread does all: products are small, and where several processes share the
# processors, threads that wait for each other cost many times what they save.
_FEW = 100_000
# Share of an output's variance below which held-out R² is a warning.
LOW_SHARE = 0.8
# Two numbers whose ranks go along like this cannot be told apart by the rows.
_SAME_RANKS = 0.995


@dataclass(frozen=True, eq=False)
class Options:
    """The options of an explainer, under the names they have there."""

    features: Sequence[str] | Mapping[str, Any] | None
    background: Any
    baseline: Any
    reference: str
    interactions: Any
    ridge: Ridge | None  # a strength with its scale; None where it is to be chosen from the rows
    head: str | nn.Module | None
    output_names: Sequence[str] | None
    device: torch.device | str | None
    batch_size: int
    max_forward_rows: int | None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """An explainer's parameters, or an error that names the one that cannot be meant."""
        kept = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in given.items()
        }
        del kept["model"]
        reference, wanted, rows = kept["reference"], kept["interactions"], kept["background"]
        ridge, scale = kept.pop("ridge"), kept.pop("ridge_scale")
        require_choice("reference", reference, ("terms", "complement"))
        if isinstance(wanted, str) and wanted != "auto":
            raise ValueError(
                f'interactions must be a number, "auto" or a list of pairs, found {wanted!r}.'
            )
        if isinstance(wanted, bool) or (isinstance(wanted, int) and wanted < 0):
            raise ValueError(f"interactions must not be negative or a boolean, found {wanted!r}.")
        if not isinstance(wanted, int | Iterable):
            raise TypeError(
                f'interactions must be a whole number, "auto" or a list of pairs, found {wanted!r}.'
            )
        if kept["baseline"] is None:
            raise TypeError(
                'baseline must be "mean", "zero", "median", "mode" or values, found None.'
            )
        if (
            isinstance(rows, bool | str | float)
            or rows is None
            or (isinstance(rows, int) and rows < 1)
        ):
            raise ValueError(
                f"background must be a positive number of rows, or the rows themselves, found {rows!r}."
            )
        limit = kept["max_forward_rows"]
        if limit is not None:
            require_whole_number("max_forward_rows", limit)
            if reference != "terms":
                raise ValueError('max_forward_rows needs reference="terms"; leave it out here.')
        if isinstance(ridge, str) and ridge != "auto":
            raise ValueError(f'ridge must be a number or "auto", found {ridge!r}.')
        require_choice("ridge_scale", scale, ("relative", "absolute"))
        if scale == "absolute" and (reference == "terms" or ridge == "auto"):
            raise ValueError(
                'ridge_scale="absolute" needs reference="complement" and a number for ridge like 1e-4.'
            )
        return cls(**kept, ridge=None if ridge == "auto" else Ridge(ridge, scale))

    def require_alike(self, other: Options) -> None:
        """An error where an explainer that takes over another's plan was itself asked for something else."""
        for name in ("features", "background", "baseline", "reference", "interactions", "ridge"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if plain(mine) != plain(theirs):
                raise ValueError(
                    f"like has {name}={theirs!r}, but this explainer {mine!r}; make it with clone(like)."
                )

    def spelled(self, head: str) -> dict[str, str]:
        """The options in words, the same for the same options in another process; `head` is the name of the head."""
        asked = {name: plain(value) for name, value in vars(self).items() if name != "device"}
        return {f"option {name}": repr(value) for name, value in (asked | {"head": head}).items()}


def plain(value: Any) -> Any:
    """An option as a file can hold it, the same whichever library's array, frame or list it came in."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, Tensor):
        return value.detach().cpu().tolist()
    if hasattr(value, "__array__"):
        return np.asarray(value).tolist()
    if isinstance(value, str) or not isinstance(
        value, Collection
    ):  # what can be read only once is left alone
        return value
    return [plain(inner) for inner in value]


def find_readout(adapted: Adapted, probe: Tensor, *, head: str | nn.Module | None) -> Readout:
    """The model's linear head, or its outputs, or an error about the columns where the model cannot take them."""
    try:
        readout = Readout.find_any(adapted.module, probe, head=head)
        return replace(
            readout, embedded_columns=tuple(sorted({*readout.embedded_columns, *adapted.codes}))
        )
    except (RuntimeError, IndexError) as failure:
        hint = "pass exactly the columns it was trained on, in their order, without labels"
        raise ValueError(
            f"the model cannot take the {probe.shape[1]} columns of X ({failure}); {hint}."
        ) from failure


def names_of_outputs(
    given: Sequence[str] | None, *, outputs: int, known: Sequence[str] | None
) -> tuple[str, ...]:
    """Names for the outputs: those given, those the model knows, or numbers."""
    if given is None:
        return (
            tuple(known) if known is not None and len(known) == outputs else number_outputs(outputs)
        )
    named = names_of("output_names", given)
    if len(named) != outputs:
        raise ValueError(
            f"output_names has {len(named)} names but the model has {outputs} outputs."
        )
    if len(set(named)) != len(named):
        twice = next(name for name in named if named.count(name) > 1)
        raise ValueError(f"output_names has the name {twice!r} twice; names must differ.")
    return named


@dataclass(eq=False)
class Facts:
    """What is known before anything is estimated: the model, the columns and the rows in memory."""

    adapted: Adapted
    columns: Columns
    summary: Summary
    network: Network
    options: Options
    output_names: tuple[str, ...]
    weighted: int | None = (
        None  # how many rows there were before they were repeated by weight, if they were
    )
    groups: Codes | None = None  # of every row of the sample, where the caller named groups
    probed: int = 0  # rows that the head was found with

    def __post_init__(self) -> None:
        columns, summary = self.columns, self.summary
        self.readout: Readout = self.network.readout
        self.categories = categories_of(
            columns, summary, self.readout.embedded_columns, integer=self.readout.integer
        )
        self.baseline = resolve_baseline(
            input_baseline(columns, self.adapted, self.options.baseline),
            features=columns.features,
            columns=summary.mean.numel(),
            summary=summary,
            categories=self.categories,
        )
        if self.readout.integer and not torch.equal(self.baseline, self.baseline.round()):
            raise ValueError(
                'baseline has fractions but the model takes integers; pass whole numbers or "mode".'
            )
        features = range(len(columns.features))
        self.domains = [
            describe(columns, self.adapted, summary, self.categories, feature)
            for feature in features
        ]
        self.weight = self.readout.head.weight.T.to("cpu", torch.float64)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features."""
        return self.columns.features.names

    def sample(self, represent: Represent, most: int | None = None) -> Sample:
        """The rows in memory, or so many of them at even distances, with what the network makes of them."""
        rows = self.summary.sample
        groups = self.groups
        if most is not None and most < len(rows):
            chosen = np.linspace(0, len(rows) - 1, most).astype(np.intp)
            rows = rows[torch.from_numpy(chosen)]
            groups = None if groups is None else groups[chosen]
        inputs = as_model_takes(rows, self.readout)
        outputs = [
            self.readout.logits(represent(part)).cpu().double()
            for part in torch.split(inputs, self.options.batch_size)
        ]
        own = own_columns(self.domains, rows)
        self._require_finite(rows, torch.cat(outputs))
        return Sample(own, inputs, torch.cat(outputs), groups=groups)

    def _require_finite(self, rows: Tensor, outputs: Tensor) -> None:
        """An error that shows a calibration row for which the model has no finite answer."""
        unanswered = (~outputs.isfinite().all(1)).nonzero().flatten()
        if not len(unanswered):
            return
        row = rows[int(unanswered[0])]
        values = [
            f"{name} = {', '.join(f'{value:.6g}' for value in row[list(columns)].tolist())}"
            for name, columns in zip(self.names, self.columns.features.columns, strict=True)
            if columns
        ]
        listed = "; ".join(values[:8]) + ("; …" if len(values) > 8 else "")
        raise ValueError(
            f"X has {len(unanswered):,} rows for which the model's output is not finite, such as the one with "
            f"{listed}. Leave such rows out: only finite outputs can be explained."
        )

    def least_costs(
        self, effort: Effort, background: int | Tensor, pairs: Sequence[Subset] | int | None
    ) -> Costs:
        """Forward rows that full tables of single features take at least, and screening."""
        rows = self.summary.sample
        chunk = Chunk(own_columns(self.domains, rows), slice(0, len(rows)))
        most = background if isinstance(background, int) else len(background)
        return least_costs(self.domains, chunk, effort, background=most, pairs=pairs)

    def baseline_rows(self) -> Tensor:
        """The baseline as a row that the model takes."""
        return as_model_takes(self.baseline[None], self.readout)

    def pairs(self) -> Sequence[Subset] | int | None:
        """Interactions as `fit_terms` takes them."""
        wanted = self.options.interactions
        if isinstance(wanted, str | int):
            return None if isinstance(wanted, str) else wanted
        found: set[Subset] = set()
        for term in wanted:
            if isinstance(term, str) or not isinstance(term, Collection) or not 2 <= len(term) <= 3:
                raise ValueError(
                    f"interactions must list pairs or triples of feature names, found {term!r}."
                )
            positions = tuple(
                sorted(self.columns.features.index(name, argument="interactions") for name in term)
            )
            if len(set(positions)) != len(positions):
                raise ValueError(f"interactions has {tuple(term)!r}, which names a feature twice.")
            found |= {positions, *combinations(positions, 2)}  # a triple brings its pairs along
        return sorted(found, key=lambda term: (len(term), term))

    def background(self) -> int | Tensor:
        """How many background rows, or the rows themselves; one is the baseline."""
        wanted = self.options.background
        if isinstance(wanted, int):
            return wanted if wanted > 1 else self.baseline_rows()
        width, size = self.summary.mean.numel(), self.options.batch_size
        rows = rows_like(wanted, self.adapted, self.columns, width, size, argument="background")
        return as_model_takes(torch.cat([part.double() for part in rows]), self.readout)


def estimate_terms(facts: Facts, *, progress: bool = False) -> Estimate:
    """Functions over the background, within the forward rows that they may take."""
    if facts.summary.rows < 2:
        raise ValueError(f"X has {facts.summary.rows} row; calibration needs at least two.")
    try:
        return _estimate_terms(facts, progress=progress)
    except BudgetSpentError as spent:
        raise ValueError(
            f"max_forward_rows={facts.options.max_forward_rows} is too few for {len(facts.domains)} features "
            f"({spent}); pass more, fewer features, or interactions=0."
        ) from spent


def _estimate_terms(facts: Facts, *, progress: bool) -> Estimate:
    options = facts.options
    with facts.network.running() as running, ExitStack() as threads:
        meter = Meter(options.max_forward_rows, spent=probing_cost(facts.probed))
        represent = meter.count(running.represent)
        pairs = facts.pairs()
        background = facts.background()
        inputs = as_model_takes(facts.summary.sample[:8], facts.readout)
        operations = count_operations(represent, inputs)
        threads.enter_context(use_threads(1 if operations < _FEW else None))
        effort = choose_effort(operations, len(facts.domains))
        costs = facts.least_costs(effort, background, pairs)
        plan = plan_spending(costs, meter.left)
        if plan is not None:
            effort = effort.within(plan)
            meter.reduced = True
        sample = facts.sample(represent, None if plan is None else plan.sample).shuffled()
        if meter.limit is not None:
            share = len(sample) / max(costs.sample, 1)
            meter.reserved = int(costs.direct * min(share, 1.0))
        # Refinement and grids of pairs usually take about as much again.
        announce(min(2 * costs.total - costs.sample, meter.left), meter.seconds_per_row)
        terms = fit_terms(
            sample,
            facts.domains,
            represent,
            facts.weight,
            background=background,
            pairs=pairs,
            ridge=None if options.ridge is None else options.ridge.value,
            batch_size=options.batch_size,
            effort=effort,
            meter=meter,
            progress=progress,
        )
        meter.reserved = sum(direct.cost for direct in terms.direct) * (MEASURED_DIRECTLY + 1)
        terms, validity = _check_validity(facts, terms, represent)
        meter.reserved = 0

        def values_of(rows: Sample) -> Tensor:
            """Contributions of every term, (rows, terms, outputs)."""
            chunk = rows.chunk()
            found = {table.features: read(table, chunk) for table in terms.tables}
            for direct in terms.direct:
                found[direct.term] = direct(represent, rows.inputs, batch_size=options.batch_size)
            return torch.stack([found[term] for term in terms.order], 1)

        rows = sample.some(MEASURED_DIRECTLY if terms.direct else MEASURED_ROWS)
        values, at_baseline = values_of(rows), values_of(_baseline_sample(facts))[0]
    return assemble(
        facts,
        terms.tables,
        terms.order,
        values,
        at_baseline,
        base=sample.outputs.mean(0),
        strengths=terms.strengths,
        state=_examine(facts, terms, validity, values, rows, meter),
        measure=lambda: {
            k: spread.numpy() for k, spread in spread_of_curves(terms.fit, terms.traces).items()
        },
        direct=terms.direct,
        alphas=tuple(terms.fit.correction.alphas.tolist()),
        background=terms.background,
        offsets=terms.offsets,
    )


def _baseline_sample(facts: Facts) -> Sample:
    """The baseline as a sample of one row."""
    own = own_columns(facts.domains, facts.baseline[None])
    return Sample(own, facts.baseline_rows(), torch.zeros(1, facts.readout.outputs))


def assemble(
    facts: Facts,
    tables: tuple[TermTable, ...],
    order: tuple[Subset, ...],
    values: Tensor,
    at_baseline: Tensor,
    *,
    base: Tensor,
    strengths: dict[Subset, float],
    state: Health,
    measure: Measure,
    **given: Any,
) -> Estimate:
    """The functions with everything that is known of them; `given` are fields of the estimate."""
    names, columns = facts.names, facts.columns
    place = {term: position for position, term in enumerate(order)}
    total = torch.stack([values[:, mine].sum(1) for mine in terms_with(order, len(names))], 1)
    origin = _baseline_sample(facts)
    functions = Functions(
        features=tuple(domain.feature for domain in facts.domains),
        column_names=columns.names,
        column_count=columns.count,
        output_names=facts.output_names,
        tables=tables,
        base_values=base.numpy().copy(),
        baseline_contributions=at_baseline[[place[table.features] for table in tables]].numpy(),
        baseline=np.array([_place(domain, origin) for domain in facts.domains]),
        state=state,
        link=facts.adapted.link or facts.readout.link,
        importances={
            "main": values[:, : len(names)].abs().mean(0).numpy(),
            "total": total.abs().mean(0).numpy(),
        },
        strengths=strengths,
        left_out=tuple(
            tuple(names[k] for k in term)
            for term in order
            if term not in {one.features for one in tables}
        ),
        reach=_reach_of(facts),
    )
    measure_bands_later(functions, measure)
    return Estimate(functions, order, facts.baseline, at_baseline.numpy(), **given)


def _reach_of(facts: Facts) -> Reach | None:
    """Which combinations of the features that are single numbers are usual among the rows in memory."""
    if not len(facts.summary.sample):
        return None
    own = own_columns(facts.domains, facts.summary.sample)
    columns = {
        domain.feature.columns[0]: own[domain.feature.columns[0]]
        for domain in facts.domains
        if domain.span is not None
    }
    return measure_reach(columns)


def terms_with(order: Sequence[Subset], features: int) -> list[list[int]]:
    """Per feature the positions of the terms that contain it."""
    found: list[list[int]] = [[] for _ in range(features)]
    for position, term in enumerate(order):
        for k in term:
            found[k].append(position)
    return found


def _place(domain: Domain, origin: Sample) -> float:
    """Where on its axis a feature's baseline is; NaN where it has no axis."""
    if domain.levels is not None:
        place = int(origin.chunk().places(domain.levels)[0][0])
        return float(place) if place < len(domain.levels) else float("nan")
    return (
        float(origin.own[domain.feature.columns[0]][0]) if domain.span is not None else float("nan")
    )


@dataclass(frozen=True, eq=False)
class Validity:
    """What is known of the headline beyond the headline."""

    findings: tuple[Finding, ...]
    worst: Tensor  # per output, the lowest of the held-out R²
    explained: Tensor  # the headline; NaN where rows are too few to tell
    neighbourhoods: (
        Tensor  # R² with whole neighbourhoods held out; empty where that was not measured
    )
    coarse: tuple[int, ...]  # features whose tables are coarser than their functions


def _check_validity(facts: Facts, terms: Terms, represent: Represent) -> tuple[Terms, Validity]:
    """Asks whether the headline can be believed, and chooses the strengths again where rows are clustered."""
    fit = terms.fit
    rows = facts.summary.rows if facts.weighted is None else facts.weighted
    units = len(np.unique(fit.sample.units()))
    findings = few_rows_findings(rows, units, grouped=facts.groups is not None)

    held_out_wholly = torch.zeros(0, dtype=torch.float64)
    # Where groups are named, they are what is held out.
    neighbourhoods = hold_out_neighbourhoods(fit, facts.domains) if facts.groups is None else None
    if neighbourhoods is not None:
        held_out_wholly = neighbourhoods.explained
        if bool(neighbourhoods.clustered.any()):
            choose = facts.options.ridge is None
            if choose:
                fit = choose_by_neighbourhoods(fit, neighbourhoods)
                terms = replace(terms, fit=fit)
                held_out_wholly = torch.where(
                    neighbourhoods.clustered,
                    share_explained(fit.held_out.chosen(), fit.sample.outputs),
                    held_out_wholly,
                )
            findings.append(
                cluster_finding(neighbourhoods, held_out_wholly, facts.output_names, chosen=choose)
            )

    worst = torch.fmin(fit.explained, fit.inside)  # one outlier may carry all of the variance
    if neighbourhoods is not None:
        clustered = torch.where(neighbourhoods.clustered, held_out_wholly, torch.inf)
        worst = torch.fmin(worst, clustered)
    explained = fit.explained
    if rows < TOO_FEW_ROWS:
        explained = torch.full_like(explained, torch.nan)
        worst = explained
    coarse: list[int] = []
    if bool((worst < LOW_SHARE).any()):
        size = facts.options.batch_size
        tabulate = Tabulator(represent, terms.background, facts.weight, batch_size=size)
        with suppress(BudgetSpentError):  # then it stays unknown
            coarse = coarse_features(terms.tables, facts.domains, tabulate, fit.sample)
    return terms, Validity(tuple(findings), worst, explained, held_out_wholly, tuple(coarse))


def _examine(
    facts: Facts,
    terms: Terms,
    validity: Validity,
    values: Tensor,
    measured: Sample,
    meter: Meter,
) -> Health:
    fit = terms.fit
    distances = distances_from_average(fit)
    coarse = [facts.names[k] for k in validity.coarse]
    findings = [
        *share_findings(validity.worst, facts.output_names, coarse=coarse),
        *validity.findings,
        *feature_findings(facts, terms.order, values, measured),
        *name_pairs_left_out(terms.strengths, terms.order, facts.names),
        *name_far_curves(distances, facts.names),
    ]

    def note(code: str, message: str, subject: str = "") -> None:
        findings.append(Finding("note", code, subject, message))

    if terms.economy:
        rows = f"{terms.forward_rows:,} forward rows in all"
        note("economy", f"The model is large, or features are many, so tables are coarse: {rows}.")
    if meter.reduced:
        note(
            "budget",
            f"max_forward_rows={meter.limit:,} was too few for full tables, so they are coarser (fewer background "
            f"rows, knots or interactions): {meter.spent:,} forward rows were used.",
        )
    if facts.readout.no_head:
        note(
            "no_head",
            "No linear layer that ends the model was found, so its outputs themselves are taken apart: curves are its "
            "average effects, and rows can only strengthen or weaken them.",
        )
    thinned = {k: counts for k, counts in terms.thresholds.items() if counts[0] < counts[1]}
    if thinned:
        listed = ", ".join(
            f"{facts.names[k]} {kept:,} of {count:,}"
            for k, (kept, count) in list(thinned.items())[:8]
        )
        note(
            "thresholds",
            f"Of the thresholds only the strongest are exact steps ({listed}); lines cross the others.",
        )
    if facts.summary.rows > SAMPLE_ROWS:
        of = f"{SAMPLE_ROWS:,} of the {facts.summary.rows:,} rows"
        note(
            "sampled",
            f"Functions were fitted on a random sample of {of}; ranges and levels are those of all.",
        )
    costs = {direct.term: direct.cost for direct in terms.direct}
    if costs:
        named = [term_name([facts.names[k] for k in term]) for term in costs]
        subject = ", ".join(named[:5]) + (f" and {len(named) - 5} more" if len(named) > 5 else "")
        rows_each = f"{sum(costs.values()):,} more forward rows"
        note(
            "no_table",
            f"No table: each row explained takes {rows_each}, and compiling leaves it out.",
            subject,
        )
    return Health(
        findings=sort_findings(findings),
        terms=tuple(
            TermHealth(
                tuple(facts.names[k] for k in piece.term),
                piece.rank,
                share,
                costs.get(piece.term, 0),
                distances.get(piece.term, ()),
            )
            for piece, share in zip(fit.pieces, _unique_shares(values), strict=True)
        ),
        explained=tuple(validity.explained.tolist()),
        inside=tuple(fit.inside.tolist()),
        scatter=tuple(scatter_of_share(fit.held_out.chosen(), fit.sample.outputs).tolist()),
        neighbourhoods=tuple(validity.neighbourhoods.tolist()),
        variance=tuple(fit.sample.outputs.var(0, correction=0).tolist()),
        outside_rows=len(fit.regression.outside) / len(fit.regression.outputs),
        rows=facts.summary.rows if facts.weighted is None else facts.weighted,
        columns=fit.regression.terms.shape[1],
        forward_rows=meter.spent,
    )


def share_findings(
    explained: Tensor,
    names: Sequence[str],
    *,
    what: str = "Held-out R²",
    coarse: Sequence[str] = (),
) -> list[Finding]:
    """What a low share explained means, for the worst output."""
    known = [
        (share, name)
        for share, name in zip(explained.tolist(), names, strict=True)
        if share == share
    ]
    if not known or min(known)[0] >= LOW_SHARE:
        return []
    share, name = min(known)
    if share < 0:
        message = f"{what} is {share:.3f}: worse than the mean. Do not use the functions; calibrate on more rows."
        return [Finding("error", "worse_than_mean", name, message)]
    if coarse:
        message = (
            f"{what} is only {share:.3f}: the function of {join_names(coarse, 3)} bends more often than its table has "
            "knots. More rows do not help; the model may be finer than its data."
        )
        return [Finding("warning", "coarse_table", name, message)]
    message = (
        f"{what} is only {share:.3f}: too few rows for so many features, or interactions that are not fitted. "
        "Calibrate on more rows, or name interactions."
    )
    return [Finding("warning", "low_share", name, message)]


def feature_findings(
    facts: Facts, order: Sequence[Subset], values: Tensor, rows: Sample
) -> list[Finding]:
    """Features that do nothing, and those that the rows cannot tell from another one."""
    findings = []
    spread = values.std(0, correction=0)
    scale = float(rows.outputs.std(0, correction=0).max()) if len(rows) > 1 else 0.0
    for k, (name, mine) in enumerate(
        zip(facts.names, terms_with(order, len(facts.names)), strict=True)
    ):
        if not facts.domains[k].columns:
            message = "The preprocessing makes nothing of it (dropped or constant), so it contributes nothing."
            findings.append(Finding("note", "unused", name, message))
        elif float(spread[mine].max()) <= 1e-9 * max(scale, 1e-300):
            message = "No term that contains it varies: its column is constant, or the network does not use it."
            findings.append(Finding("note", "constant", name, message))
    for k, partner, how in _partners(facts, rows):
        message = (
            f"It goes along with {facts.names[partner]!r} ({how}): the rows cannot tell which of the two does what. "
            "Group them as one feature (NObSP.suggest_features), or leave one out."
        )
        findings.append(Finding("warning", "dependent", facts.names[k], message))
    partners = {frozenset((k, partner)) for k, partner, _ in _partners(facts, rows)}
    for determined in find_determined(facts.domains, rows):
        if frozenset((determined.feature, *determined.by)) in partners:
            continue
        others = join_names([facts.names[k] for k in determined.by])
        subject = facts.names[determined.feature]
        if determined.level:
            message = (
                f"Whether it is {determined.level!r} follows from {others} (R² {determined.share:.3f}): rows cannot "
                "tell which of them does what there."
            )
            findings.append(Finding("note", "determined", subject, message))
        else:
            message = (
                f"It follows from {others} (R² {determined.share:.3f}): the rows cannot tell which of them does what. "
                "Group them as one feature, or leave one out."
            )
            findings.append(Finding("warning", "determined", subject, message))
    return findings


def _partners(facts: Facts, rows: Sample) -> list[tuple[int, int, str]]:
    """Features that another one determines, with that one and how it was noticed."""
    codes: dict[int, Array] = {}
    chunk = rows.chunk()
    for k, domain in enumerate(facts.domains):
        if domain.levels is not None:
            codes[k] = chunk.places(domain.levels)[0].astype(np.float64)
        elif domain.span is not None:
            codes[k] = chunk.numbers(domain.feature.columns[0])
    codes = {k: x for k, x in codes.items() if len(np.unique(x)) > 1}
    numbers = [k for k in codes if facts.domains[k].span is not None]
    if len(codes) < 2 or len(rows) < 10:
        return []
    found: dict[int, tuple[int, str]] = {}
    if len(numbers) > 1:
        alike = np.abs(np.corrcoef([ranks(codes[k]) for k in numbers]))
        for a, b in np.argwhere(np.triu(alike > _SAME_RANKS, 1)):
            found.setdefault(numbers[b], (numbers[a], f"rank correlation {alike[a, b]:.3f}"))
    known: dict[bytes, int] = {}
    for k, x in codes.items():
        values, first, place = np.unique(x, return_index=True, return_inverse=True)
        if 2 < len(values) <= min(64, len(rows) // 2):  # of different values all are one-to-one
            # Values numbered as they come are the same numbers for features that are one-to-one.
            partner = known.setdefault(np.argsort(np.argsort(first))[place].tobytes(), k)
            if partner != k:
                found.setdefault(k, (partner, "their values are one-to-one"))
    return [(k, partner, how) for k, (partner, how) in sorted(found.items())]


def _unique_shares(values: Tensor) -> list[float]:
    """Per term the share of its variance that the others cannot reproduce, 1/VIF; of the output that varies most."""
    if values.shape[0] <= values.shape[1]:
        return [float("nan")] * values.shape[1]
    output = int(values.var(0, correction=0).sum(0).argmax())
    centred = values[..., output] - values[..., output].mean(0)
    norms = centred.norm(dim=0)
    scaled = centred / norms.clamp_min(1e-300)
    gram = scaled.T @ scaled + 1e-12 * torch.eye(scaled.shape[1], dtype=torch.float64)
    shares = 1 / torch.linalg.pinv(gram, hermitian=True).diagonal()
    return torch.where(norms > 0, shares.clamp(0, 1), torch.nan).tolist()
