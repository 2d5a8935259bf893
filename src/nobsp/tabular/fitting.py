"""From a summary of the rows to an estimate: the functions, their health, and what explaining needs besides."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.network.adapted import Adapted
from nobsp.network.batches import batches_of
from nobsp.network.inputs import SAMPLE_ROWS, Features, Subset, Summary, resolve_baseline
from nobsp.network.readout import Network, Readout, as_model_takes
from nobsp.results import Finding, sort_findings
from nobsp.tabular.algorithm1 import Plan, contributions, make_plan, rare_rows, replicates
from nobsp.tabular.columns import Columns, categories_of, input_baseline
from nobsp.tabular.compiled import CompiledExplainer
from nobsp.tabular.domains import Domain, describe
from nobsp.tabular.explanation import term_name
from nobsp.tabular.fitted import Estimate, Published
from nobsp.tabular.health import Health, TermHealth
from nobsp.tabular.lookup import Chunk, LevelAxis, TermTable
from nobsp.tabular.options import Options
from nobsp.tabular.pieces import Sample, read
from nobsp.tabular.representations import Isolation, Represent, subsets_of
from nobsp.tabular.tabulate import Points, Tabulator
from nobsp.tabular.terms import FULL, PAIR_REACH, Terms, fit_terms, screen_pairs, tabulate_main
from nobsp.tabular.uncertainty import spread_of_curves

Array = NDArray[np.float64]
Measure = Callable[[], dict[int, Array]]

# Rows on which importances are measured; as published every one of them runs once for every term.
MEASURED_ROWS, PUBLISHED_ROWS = 2048, 512
# As published, pairs are taken one by one: those whose spread is at least this share of the outputs', up to so many.
_PUBLISHED_LEAST, _PUBLISHED_PAIRS = 0.02, 16
# Share of an output's variance below which held-out R² is a warning.
_LOW_SHARE = 0.8
# Two numbers whose ranks go along like this cannot be told apart by the rows.
_SAME_RANKS = 0.995


class Facts:
    """What is known before anything is estimated: the model, the columns and the rows in memory."""

    def __init__(
        self, adapted: Adapted, columns: Columns, summary: Summary, network: Network, options: Options
    ) -> None:
        self.adapted, self.columns, self.summary = adapted, columns, summary
        self.readout: Readout = network.readout
        self.network, self.options = network, options
        self.categories = categories_of(columns, summary, self.readout.embedded_columns, integer=self.readout.integer)
        self.baseline = resolve_baseline(
            input_baseline(columns, adapted, options.baseline),
            features=columns.features,
            columns=summary.mean.numel(),
            summary=summary,
            categories=self.categories,
        )
        if self.readout.integer and not torch.equal(self.baseline, self.baseline.round()):
            raise ValueError('baseline has fractions but the model takes integers; pass whole numbers or "mode".')
        self.domains, self._own = describe(columns, adapted, summary, self.categories)
        self.weight = self.readout.head.weight.T.to("cpu", torch.float64)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features."""
        return self.columns.features.names

    def sample(self, represent: Represent) -> Sample:
        """The rows in memory, with what the network makes of them."""
        inputs = as_model_takes(self.summary.sample, self.readout)
        outputs = [
            self.readout.logits(represent(part)).cpu().double() for part in torch.split(inputs, self.options.batch_size)
        ]
        return Sample(self._own, inputs, torch.cat(outputs))

    def pairs(self) -> Sequence[Subset] | int | None:
        """Interactions as `fit_terms` takes them."""
        wanted = self.options.interactions
        if isinstance(wanted, str):
            return None
        if isinstance(wanted, int | np.integer):
            return int(wanted)
        return named_terms(wanted, self.columns.features)

    def background(self) -> int | Tensor:
        """How many background rows, or the rows themselves; one is the baseline."""
        wanted = self.options.background
        if isinstance(wanted, int):
            return wanted if wanted > 1 else as_model_takes(self.baseline[None], self.readout)
        source = batches_of(
            wanted if self.adapted.pack is None else self.adapted.pack(wanted),
            batch_size=self.options.batch_size,
            encode=self.adapted.encode,
            columns=self.columns.names,
            argument="background",
        )
        if source.columns != self.summary.mean.numel():
            raise ValueError(f"background has {source.columns} columns but X has {self.summary.mean.numel()}.")
        return as_model_takes(torch.cat([rows.double() for rows in source]), self.readout)


def named_terms(given: Sequence[Sequence[str]], features: Features) -> list[Subset]:
    """Pairs and triples by name; a triple brings its pairs along."""
    found: set[Subset] = set()
    for term in given:
        if isinstance(term, str) or not isinstance(term, Sized) or not 2 <= len(term) <= 3:
            raise ValueError(f"interactions must list pairs or triples of feature names, found {term!r}.")
        positions = tuple(sorted(features.index(name, argument="interactions") for name in term))
        if len(set(positions)) != len(positions):
            raise ValueError(f"interactions has {tuple(term)!r}, which names a feature twice.")
        found.update(subset for subset in subsets_of(positions) if len(subset) > 1)
    return sorted(found, key=lambda term: (len(term), term))


# ---------------------------------------------------------------------- all terms at once


def estimate_terms(facts: Facts, output_names: tuple[str, ...], *, progress: bool) -> tuple[Estimate, Measure]:
    """Functions over the background, and what measures their bands."""
    if facts.summary.rows < 2:
        raise ValueError(f"X has {facts.summary.rows} row; calibration needs at least two.")
    options = facts.options
    with facts.network.running() as running:
        sample = facts.sample(running.represent).shuffled()
        terms = fit_terms(
            sample,
            facts.domains,
            running.represent,
            facts.weight,
            background=facts.background(),
            pairs=facts.pairs(),
            ridge=None if options.ridge is None else options.ridge.value,
            batch_size=options.batch_size,
            progress=progress,
        )
        order = tuple(piece.term for piece in terms.fit.pieces)
        rows = sample.take(_evenly(len(sample), MEASURED_ROWS if not terms.direct else 256))
        values = _all_values(facts, terms, order, rows, running.represent)
        origin = _baseline_sample(facts)
        at_baseline = _all_values(facts, terms, order, origin, running.represent)[0]
    estimate = Estimate(
        functions=_assemble(
            facts,
            terms.tables,
            order,
            values,
            at_baseline,
            base=terms.base,
            strengths=terms.strengths,
            output_names=output_names,
            state=_examine(facts, terms, order, values, rows, output_names),
        ),
        terms=order,
        direct=terms.direct,
        baseline=facts.baseline,
        baseline_contributions=at_baseline.numpy(),
        alphas=tuple(terms.alphas.tolist()),
        background=terms.background,
        offsets=terms.offsets,
    )
    return estimate, lambda: {k: spread.numpy() for k, spread in spread_of_curves(terms.fit).items()}


def _all_values(facts: Facts, terms: Terms, order: Sequence[Subset], rows: Sample, represent: Represent) -> Tensor:
    """Contributions of every term, (rows, terms, outputs)."""
    chunk = rows.chunk()
    found = {table.features: read(table, chunk) for table in terms.tables}
    for direct in terms.direct:
        found[direct.term] = direct(represent, rows.inputs, batch_size=facts.options.batch_size)
    return torch.stack([found[term] for term in order], 1)


def _baseline_sample(facts: Facts) -> Sample:
    """The baseline as a row of one."""
    row = facts.baseline[None]
    own: dict[int, NDArray[np.generic]] = {}
    for domain in facts.domains:
        own |= domain.own_columns(row)
    return Sample(own, as_model_takes(row, facts.readout), torch.zeros(1, facts.readout.outputs))


def _assemble(
    facts: Facts,
    tables: tuple[TermTable, ...],
    order: Sequence[Subset],
    values: Tensor,
    at_baseline: Tensor,
    *,
    base: Tensor,
    strengths: dict[Subset, float],
    output_names: tuple[str, ...],
    state: Health,
) -> CompiledExplainer:
    """The functions with everything that is known of them."""
    names, columns = facts.names, facts.columns
    member = torch.tensor([[k in term for k in range(len(names))] for term in order], dtype=torch.float64)
    singles = [order.index((k,)) for k in range(len(names))]
    total = torch.einsum("rto,tf->rfo", values, member)
    kept = {table.features for table in tables}
    origin = _baseline_sample(facts)
    return CompiledExplainer(
        features=tuple(domain.feature for domain in facts.domains),
        column_names=columns.names,
        column_count=columns.count,
        output_names=output_names,
        tables=tables,
        base_values=base.numpy().copy(),
        baseline_contributions=at_baseline[[order.index(table.features) for table in tables]].numpy(),
        baseline=np.array([_place(domain, origin) for domain in facts.domains]),
        state=state,
        link=facts.adapted.link or facts.readout.link,
        importances={"main": values[:, singles].abs().mean(0).numpy(), "total": total.abs().mean(0).numpy()},
        strengths=strengths,
        left_out=tuple(tuple(names[k] for k in term) for term in order if term not in kept),
    )


def _place(domain: Domain, origin: Sample) -> float:
    """Where on its axis a feature's baseline is; NaN where it has no axis."""
    if domain.levels is not None:
        place = int(origin.chunk().places(domain.levels)[0])
        return float(place) if place < len(domain.levels) else float("nan")
    return float(origin.own[domain.feature.columns[0]][0]) if domain.span is not None else float("nan")


# ---------------------------------------------------------------------- health


def _examine(
    facts: Facts, terms: Terms, order: Sequence[Subset], values: Tensor, rows: Sample, output_names: Sequence[str]
) -> Health:
    explained = tuple(terms.explained.tolist())
    worst = tuple(torch.fmin(terms.explained, terms.inside).tolist())  # one outlier may carry all of the variance
    findings = [*_share_findings(worst, output_names), *_feature_findings(facts, order, values, rows)]
    if terms.economy:
        findings.append(
            Finding(
                "note",
                "economy",
                "",
                f"The model takes many operations a row, so tables are coarse: {terms.forward_rows:,} forward rows in "
                "all.",
            )
        )
    if facts.readout.no_head:
        message = (
            "No linear layer that ends the model was found, so its outputs themselves are taken apart: curves are its "
            "average effects, and rows can only strengthen or weaken them."
        )
        findings.append(Finding("note", "no_head", "", message))
    thinned = {k: counts for k, counts in terms.thresholds.items() if counts[0] < counts[1]}
    if thinned:
        listed = ", ".join(f"{facts.names[k]} {kept:,} of {count:,}" for k, (kept, count) in list(thinned.items())[:8])
        message = (
            f"The model has more thresholds than tables hold: the strongest are exact steps ({listed}), and curves are "
            "straight lines across the others."
        )
        findings.append(Finding("note", "thresholds", "", message))
    if facts.summary.rows > SAMPLE_ROWS:
        findings.append(
            Finding(
                "note",
                "sampled",
                "",
                f"Functions were fitted on a random sample of {SAMPLE_ROWS:,} of the {facts.summary.rows:,} rows; "
                "ranges and levels are those of all rows.",
            )
        )
    if terms.direct:
        named = [term_name([facts.names[k] for k in direct.term]) for direct in terms.direct]
        listed = ", ".join(named[:5]) + (f" and {len(named) - 5} more" if len(named) > 5 else "")
        message = (
            f"These have no table: every row that is explained takes {sum(direct.cost for direct in terms.direct):,} "
            "more forward rows, and the compiled explainer leaves them out."
        )
        findings.append(Finding("note", "no_table", listed, message))
    costs = {direct.term: direct.cost for direct in terms.direct}
    ranks = {piece.term: piece.rank for piece in terms.fit.pieces}
    shares = _unique_shares(values)
    return Health(
        findings=sort_findings(findings),
        terms=tuple(
            TermHealth(tuple(facts.names[k] for k in term), ranks[term], share, costs.get(term, 0))
            for term, share in zip(order, shares, strict=True)
        ),
        explained=explained,
        inside=tuple(terms.inside.tolist()),
        outside_rows=terms.outside_rows,
        rows=facts.summary.rows,
        columns=terms.columns,
    )


def _share_findings(explained: Sequence[float], names: Sequence[str], *, what: str = "Held-out R²") -> list[Finding]:
    """What a low share explained means, for the worst output."""
    known = [(share, name) for share, name in zip(explained, names, strict=True) if share == share]
    if not known or min(known)[0] >= _LOW_SHARE:
        return []
    share, name = min(known)
    if share < 0:
        message = (
            f"{what} is {share:.3f}: on rows that were not used for the coefficients the functions are worse than "
            "the mean. Do not use them; calibrate on more rows, or on rows like those to be explained."
        )
        return [Finding("error", "worse_than_mean", name, message)]
    message = (
        f"{what} is only {share:.3f}: the rest is interaction that no term holds, or too few rows. Calibrate on "
        'more rows, fit more interactions, or set interactions="auto".'
    )
    return [Finding("warning", "low_share", name, message)]


def _feature_findings(facts: Facts, order: Sequence[Subset], values: Tensor, rows: Sample) -> list[Finding]:
    findings = []
    spread = values.std(0, correction=0)
    scale = float(rows.outputs.std(0, correction=0).max()) if len(rows) > 1 else 0.0
    for k, name in enumerate(facts.names):
        mine = [place for place, term in enumerate(order) if k in term]
        if not facts.domains[k].columns:
            message = "The preprocessing makes nothing of it (dropped or constant), so it contributes nothing."
            findings.append(Finding("note", "unused", name, message))
        elif float(spread[mine].max()) <= 1e-9 * max(scale, 1e-300):
            message = "No term that contains it varies: its column is constant, or the network does not use it."
            findings.append(Finding("note", "constant", name, message))
    for k, partner, how in _partners(facts, rows):
        message = (
            f"It goes along with {facts.names[partner]!r} ({how}): the rows cannot tell which of the two does what, so "
            "the background decides. Group them as one feature, or leave one out."
        )
        findings.append(Finding("warning", "dependent", facts.names[k], message))
    return findings


def _partners(facts: Facts, rows: Sample) -> list[tuple[int, int, str]]:
    """Features that another one determines, with that one and how it was noticed."""
    codes: dict[int, Array] = {}
    chunk = rows.chunk()
    for k, domain in enumerate(facts.domains):
        if domain.levels is not None:
            codes[k] = chunk.places(domain.levels).astype(np.float64)
        elif domain.span is not None:
            codes[k] = chunk.numbers(domain.feature.columns[0])
    ranks = {k: _ranks(x) for k, x in codes.items() if len(np.unique(x)) > 1}
    if len(ranks) < 2 or len(rows) < 10:
        return []
    keys = list(ranks)
    numbers = [k for k in keys if facts.domains[k].span is not None]
    found: dict[int, tuple[int, str]] = {}
    if len(numbers) > 1:
        alike = np.abs(np.corrcoef([ranks[k] for k in numbers]))
        for a, b in combinations(range(len(numbers)), 2):
            if alike[a, b] > _SAME_RANKS:
                found.setdefault(numbers[b], (numbers[a], f"rank correlation {alike[a, b]:.3f}"))
    places = {k: np.unique(codes[k], return_inverse=True)[1] for k in keys}
    counts = {k: int(places[k].max()) + 1 for k in keys}
    few = [k for k in keys if 2 < counts[k] <= 64]
    for a, b in combinations(few, 2):
        if counts[a] == counts[b] == len(np.unique(places[a] * 64 + places[b])):
            found.setdefault(b, (a, "their values are one-to-one"))
    return [(k, partner, how) for k, (partner, how) in sorted(found.items())]


def _ranks(x: Array) -> Array:
    """Positions in order, equal values sharing theirs."""
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    ranks: Array = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return ranks


def _unique_shares(values: Tensor) -> list[float]:
    """Per term the share of its variance that the other terms' contributions cannot reproduce: one over its VIF.

    Of several outputs the one in which the terms vary most.
    """
    if values.shape[0] <= values.shape[1]:
        return [float("nan")] * values.shape[1]
    output = int(values.var(0, correction=0).sum(0).argmax())
    centred = values[..., output] - values[..., output].mean(0)
    norms = centred.norm(dim=0)
    scaled = centred / norms.clamp_min(1e-300)
    gram = scaled.T @ scaled + 1e-12 * torch.eye(scaled.shape[1], dtype=torch.float64)
    shares = 1 / torch.linalg.pinv(gram, hermitian=True).diagonal()
    return torch.where(norms > 0, shares.clamp(0, 1), torch.nan).tolist()


def _evenly(count: int, most: int) -> NDArray[np.intp]:
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.intp))


# ---------------------------------------------------------------------- as published


def plan_published(facts: Facts) -> tuple[Plan, dict[Subset, float]]:
    """Baseline, terms and bases of Algorithm 1, and the strengths of pairs where these were screened."""
    isolation = Isolation(
        facts.columns.features,
        facts.baseline,
        frozenset(facts.summary.levels),
        facts.categories,
        facts.options.batch_size,
    )
    wanted, strengths = facts.pairs(), {}
    with facts.network.running() as running:
        if wanted is None or (isinstance(wanted, int) and wanted > 0):
            strengths = _screen_published(facts, running.represent)
            most = _PUBLISHED_PAIRS if wanted is None else int(wanted)
            least = _PUBLISHED_LEAST if wanted is None else 0.0
            pairs = [pair for pair, strength in list(strengths.items())[:most] if strength >= least]
        else:
            pairs = list(wanted) if isinstance(wanted, Sequence) else []
        singles: list[Subset] = [(k,) for k in range(len(facts.names))]
        plan = make_plan(
            isolation,
            running.represent,
            as_model_takes(facts.summary.sample, facts.readout),
            [*singles, *pairs],
            rare=as_model_takes(rare_rows(facts.summary, isolation), facts.readout),
        )
    return plan, strengths


def _screen_published(facts: Facts, represent: Represent) -> dict[Subset, float]:
    at_baseline = as_model_takes(facts.baseline[None], facts.readout)
    tabulate = Tabulator(represent, at_baseline, facts.weight, batch_size=facts.options.batch_size)
    return screen_pairs(tabulate, facts.domains, facts.sample(represent), FULL)


def estimate_published(
    facts: Facts, published: Published, strengths: dict[Subset, float], output_names: tuple[str, ...]
) -> tuple[Estimate, Measure]:
    """The functions of Algorithm 1 as tables along the baseline, beside the coefficients themselves."""
    plan, solution, order = published.plan, published.solution, published.plan.terms
    options = facts.options
    facts.baseline = plan.isolation.baseline  # the first calibration's, where the plan was taken over or merged
    with facts.network.running() as running:
        represent = running.represent
        sample = facts.sample(represent)
        rows = sample.take(_evenly(len(sample), PUBLISHED_ROWS))
        values = _published_values(published, represent, rows.inputs)
        at_baseline = _published_values(published, represent, as_model_takes(facts.baseline[None], facts.readout))[0]
        origin = as_model_takes(facts.baseline[None], facts.readout)
        tables: dict[Subset, TermTable] = {}
        points: dict[int, Points] = {}
        compressed: dict[int, Tensor] = {}
        for term in order:
            if not all(facts.domains[k].tabulated for k in term) or len(term) > 2:
                if len(term) == 1 and not facts.domains[term[0]].columns:
                    tables[term] = TermTable(term, (), np.zeros((1, facts.readout.outputs)))
                continue
            tabulate = Tabulator(represent, origin, solution.matrices[term], batch_size=options.batch_size)
            if len(term) == 1:
                k = term[0]
                points[k], table = tabulate_main(tabulate, facts.domains[k], sample, _spread(sample), FULL)
                compressed[k] = table.mean @ plan.bases[term]
                found = table.mean @ solution.matrices[term] - solution.offsets[term]
                tables[term] = TermTable(term, (points[k].axis,), found.numpy())
                continue
            lines = [
                facts.domains[k].with_missing(
                    facts.domains[k].points(sample.chunk(), quantiles=17, even=9, reach=PAIR_REACH)
                )
                for k in term
            ]
            found = tabulate(lines).mean @ solution.matrices[term] - solution.offsets[term]
            for place, k in enumerate(term):
                line = _at_points(tables[k,], lines[place])
                found = found - (line[:, None] if place == 0 else line[None])
            tables[term] = TermTable(term, tuple(line.axis for line in lines), found.numpy())
        residual = rows.outputs - solution.base - values.sum(1)
        state = _examine_published(facts, published, values, rows, residual, output_names)
    functions = _assemble(
        facts,
        tuple(tables[term] for term in order if term in tables),
        order,
        values,
        at_baseline,
        base=solution.base,
        strengths=strengths,
        output_names=output_names,
        state=state,
    )

    def measure() -> dict[int, Array]:
        copies = list(replicates(plan, published.parts, ridge=published.ridge))
        spreads = {}
        for k, rows in compressed.items() if copies else ():
            basis = plan.bases[k,]
            curves = torch.stack([rows @ (basis.T @ copy.matrices[k,]) - copy.offsets[k,] for copy in copies])
            spreads[k] = curves.std(0).numpy()
        return spreads

    estimate = Estimate(
        functions=functions,
        terms=order,
        direct=(),
        baseline=facts.baseline,
        baseline_contributions=at_baseline.numpy(),
        alphas=(published.ridge.value,) * facts.readout.outputs,
        published=published,
    )
    return estimate, measure


def _published_values(published: Published, represent: Represent, inputs: Tensor) -> Tensor:
    return contributions(published.plan, published.solution, represent, inputs)


def _spread(sample: Sample) -> Tensor:
    spread = sample.outputs.std(0, correction=0)
    return torch.where(spread > 0, spread, torch.ones_like(spread))


def _at_points(table: TermTable, points: Points) -> Tensor:
    """A single feature's table at the points of a grid."""
    axis = points.axis
    if isinstance(axis, LevelAxis):
        return torch.from_numpy(table.values)
    knots = np.append(axis.knots, np.nan) if axis.missing else axis.knots
    return read(table, Chunk({axis.column: knots}, slice(0, len(knots))))


def _examine_published(
    facts: Facts, published: Published, values: Tensor, rows: Sample, residual: Tensor, output_names: Sequence[str]
) -> Health:
    plan, solution, width = published.plan, published.solution, facts.readout.width
    total = rows.outputs.var(0, correction=0)
    varies = total > (rows.outputs.abs().amax(0) * 1e-12).square()  # a mean of equal numbers is rounded
    explained = torch.where(varies, 1 - residual.var(0, correction=0) / total, torch.nan)
    findings = [
        *_share_findings(explained.tolist(), output_names, what="R² on the calibration rows"),
        *_feature_findings(facts, plan.terms, values, rows),
    ]
    if facts.summary.rows <= width:
        message = (
            f"Fewer rows ({facts.summary.rows}) than the representation is wide ({width}): the reference can reproduce "
            'anything and coefficients collapse. Calibrate on more rows, or use reference="terms".'
        )
        findings.append(Finding("warning", "few_rows", "", message))
    named = {term: term_name([facts.names[k] for k in term]) for term in plan.terms}
    spoken = {finding.subject for finding in findings}
    for term, note in solution.notes.items():
        if named[term] not in spoken:
            findings.append(
                Finding("note" if plan.bases[term].shape[1] == 0 else "warning", "overlap", named[term], note)
            )
    if not published.parts:
        message = "Moments are not held, so curves have no bands and nothing can be merged."
        findings.append(Finding("note", "no_moments", "", message))
    return Health(
        findings=sort_findings(findings),
        terms=tuple(
            TermHealth(tuple(facts.names[k] for k in term), plan.bases[term].shape[1], solution.unique_share[term])
            for term in plan.terms
        ),
        explained=tuple(explained.tolist()),
        inside=tuple(explained.tolist()),
        outside_rows=0.0,
        rows=facts.summary.rows,
        columns=width,
        held_out=False,
    )
