"""Algorithm 1 of the paper, row by row (`reference="complement"`): bases, moments, coefficients, functions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nobsp.base import Finding, sort_findings
from nobsp.calibration import Run
from nobsp.network.inputs import Features, Subset, Summary, among, isolated, reference
from nobsp.network.readout import Network, Readout, as_model_takes
from nobsp.projection import Moments, Ridge, merge_all, partial_coefficients, spectrum
from nobsp.projection.partial import EPSILON
from nobsp.tabular.columns import Columns, Rows, TableRows, read_ahead, require_passes
from nobsp.tabular.compiled import Health, TermHealth
from nobsp.tabular.explanation import term_name
from nobsp.tabular.fitted import Estimate, Fitted
from nobsp.tabular.fitting import Facts, Options, assemble, feature_findings, share_findings
from nobsp.tabular.lookup import TermTable
from nobsp.tabular.regression import Sample, share_explained, transfer
from nobsp.tabular.tabulate import Array, Points, Represent, Tabulator
from nobsp.tabular.terms import FULL, PAIR_REACH, screen_pairs, tabulate_main

Parts = dict[Subset, list[Moments]]
Strengths = dict[Subset, float]

# Blocks of calibration rows whose moments are kept apart, for bands, and the fewest that make one.
BLOCKS, _FEWEST_BLOCKS = 12, 8
_BLOCK_BYTES = 400 << 20
# Copies of the calibration that bands are made of.
_COPIES = 64
# Rows of the sample that a value too rare to be in it is put into, and most rows for that where such values are many.
_HOSTS, _RARE_ROWS = 8, 4096
# Rows on which importances are measured; every one of them runs once for every term.
PUBLISHED_ROWS = 512
# Pairs are taken one by one: those whose spread is at least this share of the outputs', up to so many.
_PUBLISHED_LEAST, _PUBLISHED_PAIRS = 0.02, 16

OUTPUTS, TARGET, REFERENCE = "outputs", "target", "reference"


@dataclass(frozen=True, eq=False)
class Isolation:
    """How isolated inputs are made: the features, the baseline, and which features have few values."""

    features: Features  # the features and their columns
    baseline: Tensor  # one value per column, float64
    few_valued: frozenset[
        int
    ]  # features with few distinct values; only distinct rows of these go through the network
    categories: frozenset[int]  # features whose values are names, not amounts
    batch_size: int  # most rows in one forward call

    def distinct(
        self, represent: Represent, rows: Tensor, subsets: Iterable[Subset]
    ) -> Iterator[tuple[Subset, Tensor, Tensor | None]]:
        """z_S for every subset S of features, rows that are equal in S run only once, and where each row's is."""
        baseline = self._baseline_like(rows)

        def inputs() -> Iterator[tuple[Subset, Tensor, Tensor | None]]:
            for subset in subsets:
                columns = self.features.columns_of(subset)
                if not columns:  # a column that the preprocessing drops
                    yield subset, baseline[None], torch.zeros(len(rows), dtype=torch.long)
                else:
                    place: Tensor | None = None
                    values = rows[:, columns]
                    if all(feature in self.few_valued for feature in subset):
                        few = (
                            values[:, 0] if len(columns) == 1 else values
                        )  # numbers sort faster than rows do
                        values, place = torch.unique(
                            few, dim=None if few.ndim == 1 else 0, return_inverse=True
                        )
                    yield subset, isolated(values.view(-1, len(columns)), baseline, columns), place

        return self._run(represent, inputs())

    def reference(
        self, represent: Represent, rows: Tensor, subsets: Iterable[Subset]
    ) -> Iterator[tuple[Subset, Tensor]]:
        """z_(S) for every subset S of features, in the model's dtype: the rows with S at the baseline."""
        baseline = self._baseline_like(rows)
        inputs = (
            (subset, reference(rows, baseline, self.features.columns_of(subset)), None)
            for subset in subsets
        )
        return ((subset, z) for subset, z, _ in self._run(represent, inputs))

    def multiplied(
        self, represent: Represent, rows: Tensor, matrices: Mapping[Subset, Tensor]
    ) -> Iterator[tuple[Subset, Tensor]]:
        """z_S of every row times a matrix of its own: a basis to compress it, or coefficients to explain."""
        for subset, z, place in self.distinct(represent, rows, matrices):
            found = z.to(torch.float64) @ matrices[subset].to(z.device)
            yield subset, (found if place is None else found[place.to(z.device)]).cpu()

    def _baseline_like(self, rows: Tensor) -> Tensor:
        """The baseline in the rows' own dtype; fractions in an integer table make the table fractional."""
        return self.baseline.to(rows.dtype if rows.is_floating_point() else torch.int64)

    def _run(
        self, represent: Represent, inputs: Iterable[tuple[Subset, Tensor, Tensor | None]]
    ) -> Iterator[tuple[Subset, Tensor, Tensor | None]]:
        """Forward passes, small inputs of several subsets in one call."""
        waiting: list[tuple[Subset, Tensor, Tensor | None]] = []
        for one in chain(inputs, [None]):
            if waiting and (
                one is None or sum(len(x) for _, x, _ in waiting) + len(one[1]) > self.batch_size
            ):
                x = torch.cat([x for _, x, _ in waiting]) if len(waiting) > 1 else waiting[0][1]
                z = [represent(part) for part in torch.split(x, self.batch_size)]
                cut = torch.split(
                    torch.cat(z) if len(z) > 1 else z[0], [len(x) for _, x, _ in waiting]
                )
                yield from (
                    (subset, part, place)
                    for (subset, _, place), part in zip(waiting, cut, strict=True)
                )
                waiting = []
            if one is not None:
                waiting.append(one)


def subsets_of(term: Subset) -> list[Subset]:
    """All subsets of a term but the empty one, small ones first."""
    return [subset for size in range(1, len(term) + 1) for subset in combinations(term, size)]


@dataclass(frozen=True, eq=False)
class Plan:
    """What must be agreed on before rows are added up, so that shards can be merged."""

    isolation: Isolation  # features, baseline and how isolated inputs are made
    terms: tuple[
        Subset, ...
    ]  # the terms to fit, as tuples of feature positions; single features first
    bases: dict[
        Subset, Tensor
    ]  # per term, orthonormal directions (width, rank) that its representation uses

    def fingerprint(self) -> str:
        """Equal for plans whose moments may be added up."""
        digest = hashlib.sha256(repr((self.terms, self.isolation.features)).encode())
        for tensor in (self.isolation.baseline, *(self.bases[term] for term in self.terms)):
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def blocks(self, width: int, outputs: int) -> dict[Subset, dict[str, int]]:
        """Blocks of columns of each set of moments this plan needs."""
        ranks = {term: self.bases[term].shape[1] for term in self.terms}
        return {
            term: {TARGET: rank, REFERENCE: width, OUTPUTS: outputs} for term, rank in ranks.items()
        }


@dataclass(frozen=True, eq=False)
class Solution:
    """The decomposition's coefficients."""

    matrices: dict[
        Subset, Tensor
    ]  # per term, coefficients on its representation, shape (width, outputs)
    offsets: dict[Subset, Tensor]  # per term, what centring subtracts, shape (outputs,)
    base: Tensor  # mean output over the calibration rows
    unique_share: dict[Subset, float]  # per term, how much of its spread is its own
    notes: dict[
        Subset, str
    ]  # per term, what is wrong with it in words; terms in good order are missing


def make_plan(
    isolation: Isolation,
    represent: Represent,
    sample: Tensor,
    terms: Sequence[Subset],
    *,
    rare: Tensor,
) -> Plan:
    """Fixes every term's basis from a sample of rows, and from rows with values too rare to be in it."""
    bases: dict[Subset, Tensor] = {}
    for term, z, place in isolation.distinct(represent, torch.cat([sample, rare]), terms):
        counts = (
            torch.ones(len(z), device=z.device)
            if place is None
            else torch.bincount(place, minlength=len(z))
        )
        bases[term] = (
            _basis(z.to(torch.float64), counts.to(z.device), deep=z.dtype == torch.float64)
            .cpu()
            .clone()
        )
    return Plan(isolation, tuple(terms), bases)


def _basis(rows: Tensor, counts: Tensor, *, deep: bool) -> Tensor:
    """Orthonormal directions (width, rank) in which centred rows vary, each counted as often as it occurs."""
    count, width = rows.shape
    share = counts.to(torch.float64)
    centred = (rows - (share @ rows) / share.sum()) * share.sqrt()[:, None]
    # Products hold directions down to the square root of rounding only, as deep as single precision goes.
    if count > width and not deep:
        return spectrum(centred.T @ centred, rows=count).vectors
    _, values, vectors = torch.linalg.svd(torch.linalg.qr(centred, mode="r").R, full_matrices=False)
    kept = values > values[:1] * max(count, width) * EPSILON
    kept[count - 1 :] = False  # centring takes one direction
    basis: Tensor = vectors[kept].T
    return basis


@dataclass(eq=False)
class Accumulator:
    """Moments of calibration rows, by term in a few blocks of rows kept apart: a `State`."""

    parts: Parts  # row i goes to block i modulo their number: of a sorted table each sees all, whatever the batches are

    @classmethod
    def of(cls, plan: Plan, readout: Readout, *, memory: int = _BLOCK_BYTES) -> Accumulator:
        """One without rows, with as many blocks as the memory in bytes allows."""
        shapes = plan.blocks(readout.width, readout.outputs)
        size, limit = sum(map(bytes_of_moments, shapes.values())), min(memory, _BLOCK_BYTES)
        blocks = next((count for count in (BLOCKS, _FEWEST_BLOCKS) if count * size <= limit), 1)
        return cls(
            {name: [Moments(shape) for _ in range(blocks)] for name, shape in shapes.items()}
        )

    @property
    def rows(self) -> int:
        """How many rows were added."""
        return sum(moments.rows for moments in next(iter(self.parts.values())))

    def update(self, batch: Iterable[tuple[Subset, Mapping[str, Tensor]]]) -> None:
        """Adds a batch: the columns of each term's moments."""
        start = self.rows
        for term, columns in batch:
            blocks = self.parts[term]
            for number in range(min(len(columns[OUTPUTS]), len(blocks))):
                piece = {block: part[number :: len(blocks)] for block, part in columns.items()}
                blocks[(start + number) % len(blocks)].update(piece)

    def merge(self, other: Accumulator) -> Accumulator:
        """These rows and then the other's, which move on to where these end."""
        sizes, theirs = (
            {name: len(blocks) for name, blocks in one.parts.items()} for one in (self, other)
        )
        if sizes != theirs:
            raise ValueError("the two sums have other terms or blocks, and cannot be added up")
        rows, joined = self.rows, {}
        for name, blocks in self.parts.items():
            moved = [
                other.parts[name][(place - rows) % len(blocks)] for place in range(len(blocks))
            ]
            joined[name] = [mine.merge(given) for mine, given in zip(blocks, moved, strict=True)]
        return Accumulator(joined)

    def all_reduce(self, reduce: Callable[[Moments], Moments]) -> None:
        """Replaces every block by that of all ranks."""
        for blocks in self.parts.values():
            for place, moments in enumerate(
                blocks
            ):  # one after another: all of them twice would be the most ever held
                blocks[place] = reduce(moments)


def add_rows(plan: Plan, state: Accumulator, batch: Tensor, network: Network) -> None:
    """Adds a batch of input rows to the moments of a plan's terms."""
    rows, represent, outputs = network.run(batch)
    targets = plan.isolation.multiplied(represent, rows, plan.bases)
    references = plan.isolation.reference(represent, rows, plan.bases)
    state.update(
        (term, {TARGET: target, REFERENCE: others.cpu(), OUTPUTS: outputs})
        for (term, target), (_, others) in zip(targets, references, strict=True)
    )


def add_rows_and_summarise(
    plan: Plan, states: tuple[Summary, Accumulator], batch: Tensor, network: Network
) -> None:
    """The same for rows that are read only once, and have to be summarised as well."""
    states[0].update(batch)
    add_rows(plan, states[1], batch, network)


def bytes_of_moments(shape: Mapping[str, int]) -> int:
    """What one set of moments takes."""
    return 8 * sum(shape.values()) ** 2


def room_for_moments(plan: Plan, memory: int) -> int:
    """Bytes for sums: half of all, and less where bases are large; a quarter is left for batches under way."""
    return min(memory // 2, 3 * memory // 4 - _bytes_of_bases(plan))


def split_plan(plan: Plan, readout: Readout, *, memory: int) -> list[Plan]:
    """The plan in as many parts as its moments need, each with some of the terms."""
    room = room_for_moments(plan, memory)
    sizes = {
        name: bytes_of_moments(shape)
        for name, shape in plan.blocks(readout.width, readout.outputs).items()
    }
    largest = max(sizes.values())
    if largest > room:
        needed = max(2 * largest, -(-4 * (largest + _bytes_of_bases(plan)) // 3))
        raise ValueError(
            f"memory is {memory:,} bytes but this calibration needs at least {needed:,}."
        )
    groups: list[list[Subset]] = []
    held = room
    for term in plan.terms:
        held += sizes[term]
        if held > room:
            groups.append([])
            held = sizes[term]
        groups[-1].append(term)
    return [
        replace(plan, terms=tuple(group), bases={term: plan.bases[term] for term in group})
        for group in groups
    ]


def _bytes_of_bases(plan: Plan) -> int:
    return sum(basis.numel() * basis.element_size() for basis in plan.bases.values())


def join_solutions(solutions: Sequence[Solution]) -> Solution:
    """The coefficients of all parts of a plan."""
    of_terms: dict[str, Any] = {
        name: {term: value for part in solutions for term, value in getattr(part, name).items()}
        for name in ("matrices", "offsets", "unique_share", "notes")
    }
    return replace(solutions[0], **of_terms)


def solve(
    plan: Plan,
    parts: Mapping[Subset, Sequence[Moments]],
    *,
    ridge: Ridge,
    weights: Sequence[float] | None = None,
) -> Solution:
    """Coefficients of all terms from the blocks' moments."""
    found = Solution({}, {}, torch.zeros(0, dtype=torch.float64), {}, {})
    for term in plan.terms:
        # One after another: all terms' sums a second time would be the most that is ever held.
        total = merge_all(parts[term], weights=weights)
        if total.rows < 2:
            raise ValueError(f"X has {total.rows} row; calibration needs at least two.")
        fit = partial_coefficients(total, ridge=ridge, target_size=total.blocks[REFERENCE])
        found = replace(found, base=total.mean(OUTPUTS))
        found.matrices[term] = plan.bases[term] @ fit.coefficients
        found.offsets[term] = total.mean(TARGET) @ fit.coefficients
        found.unique_share[term] = fit.unique_share
        if fit.note:
            found.notes[term] = fit.note
    return found


@dataclass(frozen=True, eq=False)
class Published:
    """A calibration as published, term by term along the complement."""

    plan: Plan  # baseline, terms and bases
    parts: Parts  # moments per block of rows; empty where they were not saved, or not held at once
    solution: Solution  # coefficients
    ridge: Ridge  # strength of the regularisation

    def values(
        self, represent: Represent, rows: Tensor, *, terms: Sequence[Subset] | None = None
    ) -> Tensor:
        """g_S(x) of every term, shape (rows, terms, outputs), float64 on the CPU."""
        chosen = self.plan.terms if terms is None else terms
        needed = sorted({s for term in chosen for s in subsets_of(term)}, key=lambda s: (len(s), s))
        matrices = {term: self.solution.matrices[term] for term in needed}
        # In one place: small tensors that stay, made between large ones that go, would cut up the process's memory.
        whole = torch.empty(len(needed), len(rows), len(self.solution.base), dtype=torch.float64)
        found = dict(zip(needed, whole, strict=True))
        for term, part in self.plan.isolation.multiplied(represent, rows, matrices):
            found[term].copy_(part)
        for term in needed:
            found[term] -= self.solution.offsets[term]
            # A pair's projection holds its single features' contributions too (A.14), and a triple's its pairs' (A.15).
            for inner in subsets_of(term)[:-1]:
                found[term] -= found[inner]
        return torch.stack([found[term] for term in chosen], 1)

    def merge(self, other: Published) -> Published:
        """The calibration on both's rows."""
        if not self.parts or not other.parts:
            raise ValueError(
                "merge needs all moments: calibrate with more memory, and save with mergeable=True."
            )
        if self.plan.fingerprint() != other.plan.fingerprint():
            raise ValueError(
                "baselines, terms or bases differ; calibrate the second with fit(X, like=first)."
            )
        parts = Accumulator(self.parts).merge(Accumulator(other.parts)).parts
        return replace(self, parts=parts, solution=solve(self.plan, parts, ridge=self.ridge))


def rare_rows(summary: Summary, isolation: Isolation) -> Tensor:
    """Rows with the levels and extremes of the table that the sample lacks: a basis without them would drop them."""
    sample = summary.sample
    if summary.rows <= len(sample):
        return sample[:0]
    found, hosts = [sample[:0]], summary.some_rows(_HOSTS)
    for feature, group in enumerate(isolation.features.columns):
        columns = list(group)
        if feature in summary.levels or feature in isolation.categories:
            joint = summary.levels_of(feature, group)
            if joint is not None:
                known = [(columns, joint[0])]
            else:  # too many: those of each of its columns
                known = [
                    ([group[place]], code[0])
                    for place, code in summary.codes.get(feature, {}).items()
                ]
            for filled, levels in known:
                found.append(_put_in(hosts, filled, levels[~among(levels, sample[:, filled])]))
        elif len(group) == 1:
            found.append(
                _put_in(
                    hosts,
                    columns,
                    torch.stack([summary.minimum[columns], summary.maximum[columns]]),
                )
            )
    return torch.cat(found)


def _put_in(hosts: Tensor, columns: Sequence[int], values: Tensor) -> Tensor:
    """Rows that hold the values in some columns, each in several hosts where there are few of them."""
    copies = max(min(len(hosts), _RARE_ROWS // max(len(values), 1)), 1)
    which = torch.arange(copies * len(values)) % len(hosts)
    rows = hosts[which]
    rows[:, list(columns)] = values.repeat_interleave(copies, dim=0)
    return rows


def published_of(fitted: Fitted, argument: str) -> Published:
    """What Algorithm 1 found, or an error where another method was used."""
    if fitted.estimate.published is None:
        raise ValueError(
            f'{argument} must be calibrated with reference="complement", as this explainer is.'
        )
    return fitted.estimate.published


def calibrate_published(
    run: Run,
    rows: Rows,
    network: Network,
    options: Options,
    columns: Columns,
    known: Fitted | None,
    facts_of: Callable[[Summary], Facts],
    *,
    progress: bool,
) -> tuple[Summary, Published, Strengths]:
    """Summary, plan, moments, coefficients; `known` has a plan to take over."""
    readout, groups = network.readout, columns.features.columns
    model = run.share(network)
    ahead = read_ahead(run, rows, columns, options.baseline, planned=known is not None)
    summary = Summary(groups)
    if ahead:
        summary = run.accumulate(rows, summary, Summary.update, name="reading", progress=progress)
    if known is None:
        seen = summary
        if isinstance(rows, TableRows) and not ahead:
            seen = run.accumulate(rows.peek(), Summary(groups), Summary.update, name="first rows")
        plan, strengths = run.decide(lambda: _plan(facts_of(seen)), name="plan")
    else:
        plan, strengths = published_of(known, "like").plan, known.functions.strengths
    stages = split_plan(plan, readout, memory=run.memory)
    if len(stages) > 1:
        require_passes(run, rows, len(stages))
    room, ridge = room_for_moments(plan, run.memory), options.ridge or Ridge(1e-4, "relative")
    solutions = []
    parts: Parts = {}
    for stage in stages:
        parts = {}  # the sums of one stage at a time
        moments = Accumulator.of(stage, readout, memory=room)
        given: dict[str, Any] = {"model": model, "name": "calibrating", "progress": progress}
        if not summary.rows:  # rows that are read only once
            states, add = (Summary(groups), moments), partial(add_rows_and_summarise, stage)
            summary, moments = run.accumulate(rows, states, add, **given)
        else:
            moments = run.accumulate(rows, moments, partial(add_rows, stage), **given)
        parts = moments.parts
        del moments
        solutions.append(run.decide(partial(solve, stage, parts, ridge=ridge)))
    return (
        summary,
        Published(plan, parts if len(stages) == 1 else {}, join_solutions(solutions), ridge),
        strengths,
    )


def _plan(facts: Facts) -> tuple[Plan, Strengths]:
    """Baseline, terms and bases of Algorithm 1, and the strengths of pairs where these were screened."""
    few = frozenset(facts.summary.levels)
    isolation = Isolation(
        facts.columns.features, facts.baseline, few, facts.categories, facts.options.batch_size
    )
    wanted = facts.pairs()
    strengths: Strengths = {}
    with facts.network.running() as running:
        if isinstance(wanted, Sequence):
            pairs = list(wanted)
        else:
            if wanted != 0:
                tabulate = _tabulator(facts, running.represent, facts.weight)
                strengths = screen_pairs(
                    tabulate, facts.domains, facts.sample(running.represent), FULL
                )
            most, least = (_PUBLISHED_PAIRS, _PUBLISHED_LEAST) if wanted is None else (wanted, 0.0)
            pairs = [pair for pair, strength in list(strengths.items())[:most] if strength >= least]
        terms: list[Subset] = [*((k,) for k in range(len(facts.names))), *pairs]
        sample = as_model_takes(facts.summary.sample, facts.readout)
        rare = as_model_takes(rare_rows(facts.summary, isolation), facts.readout)
        return make_plan(isolation, running.represent, sample, terms, rare=rare), strengths


def _tabulator(facts: Facts, represent: Represent, weight: Tensor) -> Tabulator:
    """Tables along the baseline."""
    return Tabulator(represent, facts.baseline_rows(), weight, batch_size=facts.options.batch_size)


def estimate_published(facts: Facts, published: Published, strengths: Strengths) -> Estimate:
    """The functions of Algorithm 1 as tables along the baseline, beside the coefficients themselves."""
    plan, solution, order = published.plan, published.solution, published.plan.terms
    facts.baseline = (
        plan.isolation.baseline
    )  # the first calibration's, where the plan was taken over or merged
    with facts.network.running() as running:
        represent = running.represent
        sample = facts.sample(represent)
        chunk, rows = sample.chunk(), sample.some(PUBLISHED_ROWS)
        values = published.values(represent, rows.inputs)
        at_baseline = published.values(represent, facts.baseline_rows())[0]
        tables: dict[Subset, TermTable] = {}
        points: dict[int, Points] = {}
        compressed: dict[int, Tensor] = {}
        for term in order:
            if len(term) == 1 and not facts.domains[term[0]].columns:
                tables[term] = TermTable(term, (), np.zeros((1, facts.readout.outputs)))
            if len(term) > 2 or not all(facts.domains[k].tabulated for k in term):
                continue
            tabulate = _tabulator(facts, represent, solution.matrices[term])
            if len(term) == 1:
                k = term[0]
                points[k], table = tabulate_main(
                    tabulate, facts.domains[k], chunk, sample.spread, FULL
                )
                compressed[k] = table.mean @ plan.bases[term]
                found = table.mean @ solution.matrices[term] - solution.offsets[term]
                tables[term] = TermTable(term, (points[k].axis,), found.numpy())
                continue
            a, b = (
                facts.domains[k].points(chunk, quantiles=17, even=9, reach=PAIR_REACH) for k in term
            )
            found = tabulate((a, b)).mean @ solution.matrices[term] - solution.offsets[term]
            first, second = (
                transfer(points[k], torch.from_numpy(tables[k,].values), line)
                for k, line in zip(term, (a, b), strict=True)
            )
            tables[term] = TermTable(
                term, (a.axis, b.axis), (found - first[:, None] - second[None]).numpy()
            )

    def measure() -> dict[int, Array]:
        """Spreads of curves for blocks of calibration rows drawn with replacement; no row is read again."""
        parts = published.parts
        filled = [place for place, block in enumerate(next(iter(parts.values()), [])) if block.rows]
        if len(filled) < _FEWEST_BLOCKS:  # that would say more about the blocks than about the rows
            return {}
        draws = np.random.default_rng(0).multinomial(
            len(filled), np.full(len(filled), 1 / len(filled)), size=_COPIES
        )
        drawn = {name: [blocks[place] for place in filled] for name, blocks in parts.items()}
        copies = [
            solve(plan, drawn, ridge=published.ridge, weights=draw.tolist()) for draw in draws
        ]
        spreads = {}
        for k, rows in compressed.items():
            basis = plan.bases[k,]
            curves = torch.stack(
                [rows @ (basis.T @ copy.matrices[k,]) - copy.offsets[k,] for copy in copies]
            )
            spreads[k] = curves.std(0).numpy()
        return spreads

    return assemble(
        facts,
        tuple(tables[term] for term in order if term in tables),
        order,
        values,
        at_baseline,
        base=solution.base,
        strengths=strengths,
        state=_examine_published(facts, published, values, rows),
        measure=measure,
        alphas=(published.ridge.value,) * facts.readout.outputs,
        published=published,
    )


def _examine_published(facts: Facts, published: Published, values: Tensor, rows: Sample) -> Health:
    plan, solution, width = published.plan, published.solution, facts.readout.width
    residual = rows.outputs - values.sum(1)
    explained = share_explained(residual - residual.mean(0), rows.outputs)
    findings = [
        *share_findings(explained, facts.output_names, what="R² on the calibration rows"),
        *feature_findings(facts, plan.terms, values, rows),
    ]
    if facts.summary.rows <= width:
        message = f"Fewer rows ({facts.summary.rows}) than the representation is wide ({width}): calibrate on more."
        findings.append(Finding("warning", "few_rows", "", message))
    spoken = {finding.subject for finding in findings}
    for term, note in solution.notes.items():
        name = term_name([facts.names[k] for k in term])
        if name not in spoken:
            severity = "note" if plan.bases[term].shape[1] == 0 else "warning"
            findings.append(Finding(severity, "overlap", name, note))
    if not published.parts:
        message = "Moments are not held, so curves have no bands and nothing can be merged."
        findings.append(Finding("note", "no_moments", "", message))
    return Health(
        findings=sort_findings(findings),
        terms=tuple(
            TermHealth(
                tuple(facts.names[k] for k in term),
                plan.bases[term].shape[1],
                solution.unique_share[term],
            )
            for term in plan.terms
        ),
        explained=tuple(explained.tolist()),
        inside=tuple(explained.tolist()),
        outside_rows=0.0,
        rows=facts.summary.rows,
        columns=width,
        held_out=False,
    )
