"""Algorithm 1 of the paper, row by row: bases and moments in, coefficients out (`reference="complement"`)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from typing import Any

import torch
from torch import Tensor

from nobsp.network.inputs import Features, Subset, Summary, among, isolated, reference
from nobsp.network.readout import Network, Readout
from nobsp.projection import Moments, Ridge, merge_all, partial_coefficients, spectrum
from nobsp.projection.partial import EPSILON
from nobsp.tabular.tabulate import Represent

Parts = dict[str, list[Moments]]

# Blocks of calibration rows whose moments are kept apart, for bands, and the fewest that make one.
BLOCKS, _FEWEST_BLOCKS = 12, 8
# Large batches go to several blocks each, so that a sorted table is spread over all of them.
_MIXED = 4
_WORTH_CUTTING = 256
_BLOCK_BYTES = 400 << 20
# Rows of the sample that a value too rare to be in it is put into, and most rows for that where such values are many.
_HOSTS, _RARE_ROWS = 8, 4096

OUTPUTS = "outputs"
TARGET = "target"
REFERENCE = "reference"

# ---------------------------------------------------------------------- isolated and reference inputs


@dataclass(frozen=True, eq=False)
class Isolation:
    """How isolated inputs are made: the features, the baseline, and which features have few values."""

    features: Features  # the features and their columns
    baseline: Tensor  # one value per column, float64
    few_valued: frozenset[int]  # features with few distinct values; only distinct rows of these go through the network
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
                elif all(feature in self.few_valued for feature in subset):
                    values, place = _unique_rows(rows[:, columns])
                    filled = baseline.expand(len(values), -1).clone()
                    filled[:, columns] = values
                    yield subset, filled, place
                else:
                    yield subset, isolated(rows, baseline, columns), None

        return self._run(represent, inputs())

    def reference(
        self, represent: Represent, rows: Tensor, subsets: Iterable[Subset]
    ) -> Iterator[tuple[Subset, Tensor]]:
        """z_(S) for every subset S of features, in the model's dtype: the rows with S at the baseline."""
        baseline = self._baseline_like(rows)
        inputs = ((subset, reference(rows, baseline, self.features.columns_of(subset)), None) for subset in subsets)
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
            if waiting and (one is None or sum(len(x) for _, x, _ in waiting) + len(one[1]) > self.batch_size):
                x = torch.cat([x for _, x, _ in waiting]) if len(waiting) > 1 else waiting[0][1]
                z = [represent(part) for part in torch.split(x, self.batch_size)]
                cut = torch.split(torch.cat(z) if len(z) > 1 else z[0], [len(x) for _, x, _ in waiting])
                yield from ((subset, part, place) for (subset, _, place), part in zip(waiting, cut, strict=True))
                waiting = []
            if one is not None:
                waiting.append(one)


def _unique_rows(values: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct rows, and the position of each row among them."""
    if values.shape[1] == 1:  # sorting numbers is many times faster than sorting rows
        distinct, place = torch.unique(values[:, 0], return_inverse=True)
        return distinct[:, None], place
    distinct, place = torch.unique(values, dim=0, return_inverse=True)
    return distinct, place


def subsets_of(term: Subset) -> list[Subset]:
    """All subsets of a term but the empty one, small ones first."""
    return [subset for size in range(1, len(term) + 1) for subset in combinations(term, size)]


# ---------------------------------------------------------------------- plan and bases


@dataclass(frozen=True, eq=False)
class Plan:
    """What must be agreed on before rows are added up, so that shards can be merged."""

    isolation: Isolation  # features, baseline and how isolated inputs are made
    terms: tuple[Subset, ...]  # the terms to fit, as tuples of feature positions; single features first
    bases: dict[Subset, Tensor]  # per term, orthonormal directions (width, rank) that its representation uses

    def fingerprint(self) -> str:
        """Equal for plans whose moments may be added up."""
        digest = hashlib.sha256(repr((self.terms, self.isolation.features)).encode())
        for tensor in (self.isolation.baseline, *(self.bases[term] for term in self.terms)):
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def blocks(self, width: int, outputs: int) -> dict[str, dict[str, int]]:
        """Blocks of columns of each set of moments this plan needs."""
        ranks = {label(term): self.bases[term].shape[1] for term in self.terms}
        return {name: {TARGET: rank, REFERENCE: width, OUTPUTS: outputs} for name, rank in ranks.items()}


@dataclass(frozen=True, eq=False)
class Solution:
    """The decomposition's coefficients."""

    matrices: dict[Subset, Tensor]  # per term, coefficients on its representation, shape (width, outputs)
    offsets: dict[Subset, Tensor]  # per term, what centring subtracts, shape (outputs,)
    base: Tensor  # mean output over the calibration rows
    ridges: dict[Subset, float]  # per term, the λ it was solved with
    unique_share: dict[Subset, float]  # per term, how much of its spread is its own
    notes: dict[Subset, str]  # per term, what is wrong with it in words; terms in good order are missing


def label(term: Subset) -> str:
    """Name of a term's block of columns."""
    return ",".join(map(str, term))


def make_plan(
    isolation: Isolation, represent: Represent, sample: Tensor, terms: Sequence[Subset], *, rare: Tensor
) -> Plan:
    """Fixes every term's basis from a sample of rows, and from rows with values too rare to be in it."""
    bases: dict[Subset, Tensor] = {}
    for term, z, place in isolation.distinct(represent, torch.cat([sample, rare]), terms):
        counts = torch.ones(len(z), device=z.device) if place is None else torch.bincount(place, minlength=len(z))
        bases[term] = _basis(z.to(torch.float64), counts.to(z.device), deep=z.dtype == torch.float64).cpu().clone()
    return Plan(isolation, tuple(terms), bases)


def _basis(rows: Tensor, counts: Tensor, *, deep: bool) -> Tensor:
    """Orthonormal directions (width, rank) in which centred rows vary, each counted as often as it occurs.

    Products of rows hold directions down to the square root of rounding only, which is as deep as single precision
    goes; the rows themselves reach down to rounding.
    """
    count, width = rows.shape
    share = counts.to(torch.float64)
    centred = (rows - (share @ rows) / share.sum()) * share.sqrt()[:, None]
    if count > width and not deep:
        return spectrum(centred.T @ centred, rows=count).vectors
    _, values, vectors = torch.linalg.svd(torch.linalg.qr(centred, mode="r").R, full_matrices=False)
    kept = values > values[:1] * max(count, width) * EPSILON
    kept[count - 1 :] = False  # centring takes one direction
    basis: Tensor = vectors[kept].T
    return basis


# ---------------------------------------------------------------------- moments


@dataclass(eq=False)
class Accumulator:
    """Moments of calibration rows, in a few blocks of rows kept apart: a `State`."""

    shapes: dict[str, dict[str, int]]  # blocks of columns of each set of moments, by name
    block_count: int  # how many blocks of rows there are
    expected: int | None = None  # how many rows will come, where known; decides how batches are cut into blocks
    # whether all batches go to the same few blocks; of many small shares, each then has little to send
    in_few: bool = False
    next_block: int = 0  # where the next batch begins; blocks go round
    held: dict[str, dict[int, Moments]] = field(default_factory=dict)  # by name and number, the blocks that have rows

    @classmethod
    def of(
        cls, plan: Plan, readout: Readout, *, rows: int | None = None, memory: int = _BLOCK_BYTES, in_few: bool = False
    ) -> Accumulator:
        """One without rows, with as many blocks as the memory in bytes allows."""
        shapes = plan.blocks(readout.width, readout.outputs)
        size, limit = sum(map(bytes_of_moments, shapes.values())), min(memory, _BLOCK_BYTES)
        blocks = next((count for count in (BLOCKS, _FEWEST_BLOCKS) if count * size <= limit), 1)
        return cls(shapes, blocks, rows, in_few)

    @property
    def rows(self) -> int:
        """How many rows were added."""
        return sum(moments.rows for moments in next(iter(self.held.values()), {}).values())

    @property
    def parts(self) -> Parts:
        """All blocks, by name."""
        held = {name: self.held.get(name, {}) for name in self.shapes}
        return {
            name: [held[name].get(number) or Moments(shape) for number in range(self.block_count)]
            for name, shape in self.shapes.items()
        }

    def update(self, batch: tuple[int, Iterable[tuple[str, Mapping[str, Tensor]]]]) -> None:
        """Adds a batch: how many rows it has, and the columns of each set of moments by name."""
        count, sets = batch
        pieces, start = self._pieces(count), 0 if self.in_few else self.next_block
        for name, columns in sets:
            held = self.held.setdefault(name, {})
            for number in range(pieces):
                # Rows at even distances, not a run of rows: of a sorted table, each block should see all.
                place = (start + number) % self.block_count
                if place not in held:
                    held[place] = Moments(self.shapes[name])
                held[place].update({block: part[number::pieces] for block, part in columns.items()})
        self.next_block = max(self.next_block, pieces) if self.in_few else self.next_block + pieces

    def merge(self, other: Accumulator) -> Accumulator:
        """These rows and then the other's, whose blocks begin where these end."""
        if (self.shapes, self.block_count) != (other.shapes, other.block_count):
            raise ValueError("the two sums have other terms or blocks, and cannot be added up")
        held = {name: dict(blocks) for name, blocks in self.held.items()}
        for name, blocks in other.held.items():
            mine = held.setdefault(name, {})
            for number, moments in blocks.items():
                place = (self.next_block + number) % self.block_count
                mine[place] = mine[place].merge(moments) if place in mine else moments.copy()
        return replace(self, next_block=self.next_block + other.next_block, held=held)

    def all_reduce(self, reduce: Callable[[Moments], Moments]) -> None:
        """Replaces every block by that of all ranks."""
        for name, shape in self.shapes.items():
            held = self.held.setdefault(name, {})
            for number in range(self.block_count):  # every rank has to take part in every one
                held[number] = reduce(held.get(number) or Moments(shape))

    def _pieces(self, count: int) -> int:
        """Into how many pieces a batch is cut; they go to consecutive blocks."""
        # By its share of the rows, rounded up: whatever sizes the batches have, no block stays empty.
        share = self.block_count if not self.expected else -(-self.block_count * count // self.expected)
        enough = max(share, min(_MIXED, count // _WORTH_CUTTING))
        return max(min(enough, count, self.block_count), 1)


def add_rows(plan: Plan, state: Accumulator, batch: Tensor, network: Network) -> None:
    """Adds a batch of input rows to the moments of a plan's terms."""
    rows, represent, outputs = network.run(batch)

    def sets() -> Iterator[tuple[str, Mapping[str, Tensor]]]:
        targets = plan.isolation.multiplied(represent, rows, plan.bases)
        references = plan.isolation.reference(represent, rows, plan.bases)
        for (term, target), (_, others) in zip(targets, references, strict=True):
            yield label(term), {TARGET: target, REFERENCE: others.cpu(), OUTPUTS: outputs}

    state.update((len(rows), sets()))


def add_rows_and_summarise(plan: Plan, states: tuple[Summary, Accumulator], batch: Tensor, network: Network) -> None:
    """The same for rows that are read only once, and have to be summarised as well."""
    states[0].update(batch)
    add_rows(plan, states[1], batch, network)


def bytes_of_moments(shape: Mapping[str, int]) -> int:
    """What one set of moments takes."""
    return 8 * sum(shape.values()) ** 2


# ---------------------------------------------------------------------- memory


def room_for_moments(plan: Plan, memory: int) -> int:
    """Bytes for sums: half of all, and less where bases are large; a quarter is left for batches under way."""
    return min(memory // 2, 3 * memory // 4 - _bytes_of_bases(plan))


def split_plan(plan: Plan, readout: Readout, *, memory: int) -> list[Plan]:
    """The plan in as many parts as its moments need, each with some of the terms."""
    room = room_for_moments(plan, memory)
    sizes = {name: bytes_of_moments(shape) for name, shape in plan.blocks(readout.width, readout.outputs).items()}
    if max(sizes.values()) > room:
        largest = max(sizes.values())
        needed = max(2 * largest, -(-4 * (largest + _bytes_of_bases(plan)) // 3))
        raise ValueError(f"memory is {memory:,} bytes but this calibration needs at least {needed:,}.")
    groups: list[list[Subset]] = [[]]
    held = 0
    for term in plan.terms:
        if groups[-1] and held + sizes[label(term)] > room:
            groups.append([])
            held = 0
        groups[-1].append(term)
        held += sizes[label(term)]
    if len(groups) == 1:
        return [plan]
    return [replace(plan, terms=tuple(group), bases={term: plan.bases[term] for term in group}) for group in groups]


def _bytes_of_bases(plan: Plan) -> int:
    return sum(basis.numel() * basis.element_size() for basis in plan.bases.values())


# ---------------------------------------------------------------------- coefficients


def join_solutions(solutions: Sequence[Solution]) -> Solution:
    """The coefficients of all parts of a plan."""
    if len(solutions) == 1:
        return solutions[0]
    of_terms: dict[str, Any] = {
        name: {term: value for part in solutions for term, value in getattr(part, name).items()}
        for name in ("matrices", "offsets", "ridges", "unique_share", "notes")
    }
    return replace(solutions[0], **of_terms)


def solve(
    plan: Plan, parts: Mapping[str, Sequence[Moments]], *, ridge: Ridge, weights: Sequence[float] | None = None
) -> Solution:
    """Coefficients of all terms from the blocks' moments."""
    matrices, offsets, ridges, shares, notes = {}, {}, {}, {}, {}
    base = torch.zeros(0, dtype=torch.float64)
    for term in plan.terms:
        # One after another: all terms' sums a second time would be the most that is ever held.
        total = merge_all(parts[label(term)], weights=weights)
        if total.rows < 2:
            raise ValueError(f"X has {total.rows} row; calibration needs at least two.")
        base = total.mean(OUTPUTS)
        width = total.blocks[REFERENCE]
        fit = partial_coefficients(total, ridge=ridge, target_size=width)
        matrices[term] = plan.bases[term] @ fit.coefficients
        offsets[term] = total.mean(TARGET) @ fit.coefficients
        ridges[term], shares[term] = fit.ridges[1], fit.unique_share
        if fit.note:
            notes[term] = fit.note
    return Solution(matrices, offsets, base, ridges, shares, notes)


@dataclass(frozen=True, eq=False)
class Published:
    """A calibration as published, term by term along the complement."""

    plan: Plan  # baseline, terms and bases
    parts: Parts  # moments per block of rows; empty where they were not saved, or not held at once
    solution: Solution  # coefficients
    ridge: Ridge  # strength of the regularisation

    def values(self, represent: Represent, rows: Tensor, *, terms: Sequence[Subset] | None = None) -> Tensor:
        """g_S(x) of every term, shape (rows, terms, outputs), float64 on the CPU.

        As published, a pair's projection holds its single features' contributions too, which are subtracted
        (A.14), and a triple's its pairs' (A.15).
        """
        chosen = self.plan.terms if terms is None else terms
        needed = sorted({s for term in chosen for s in subsets_of(term)}, key=lambda s: (len(s), s))
        matrices = {term: self.solution.matrices[term] for term in needed}
        found = dict(self.plan.isolation.multiplied(represent, rows, matrices))
        for term in needed:
            found[term] = found[term] - self.solution.offsets[term]
            for inner in subsets_of(term)[:-1]:
                found[term] -= found[inner]
        return torch.stack([found[term] for term in chosen], 1)

    def merge(self, other: Published) -> Published:
        """The calibration on both's rows."""
        if not self.parts or not other.parts:
            raise ValueError(
                "merge needs the moments, which were not saved, or not held at once; save with mergeable=True, or "
                "calibrate with an engine that has more memory, such as nobsp.Local(memory=...)."
            )
        if self.plan.fingerprint() != other.plan.fingerprint():
            raise ValueError(
                "the two calibrations have different baselines, terms or bases and cannot be added up; calibrate the "
                "second with fit(X, like=first)."
            )
        parts = {
            name: [a.merge(b) for a, b in zip(blocks, other.parts[name], strict=True)]
            for name, blocks in self.parts.items()
        }
        return replace(self, parts=parts, solution=solve(self.plan, parts, ridge=self.ridge))


# ---------------------------------------------------------------------- levels too rare to be in the sample


def rare_rows(summary: Summary, isolation: Isolation) -> Tensor:
    """Rows of the sample with the levels and extremes put in that it lacks, though the table has them.

    A basis that never saw a level would leave it without a contribution.
    """
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
                known = [([group[place]], code[0]) for place, code in summary.codes.get(feature, {}).items()]
            for filled, levels in known:
                found.append(_put_in(hosts, filled, levels[~among(levels, sample[:, filled])]))
        elif len(group) == 1:
            found.append(_put_in(hosts, columns, torch.stack([summary.minimum[columns], summary.maximum[columns]])))
    return torch.cat(found)


def _put_in(hosts: Tensor, columns: Sequence[int], values: Tensor) -> Tensor:
    """Rows that hold the values in some columns, each in several hosts where there are few of them."""
    copies = max(min(len(hosts), _RARE_ROWS // max(len(values), 1)), 1)
    which = torch.arange(copies * len(values)) % len(hosts)
    rows = hosts[which]
    rows[:, list(columns)] = values.repeat_interleave(copies, dim=0)
    return rows


# ---------------------------------------------------------------------- bands


def replicates(
    plan: Plan, parts: Mapping[str, Sequence[Moments]], *, ridge: Ridge, count: int = 64, seed: int = 0
) -> Iterator[Solution]:
    """Coefficients for blocks of calibration rows drawn with replacement; no row is read again.

    Nothing where fewer than eight blocks hold rows: that would say more about the blocks than about the rows.
    """
    sizes = torch.tensor([float(part.rows) for part in next(iter(parts.values()))]) if parts else torch.zeros(0)
    filled = torch.nonzero(sizes > 0).flatten()
    if len(filled) < _FEWEST_BLOCKS:
        return
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        drawn = filled[torch.randint(len(filled), (len(filled),), generator=generator)]
        weights = torch.bincount(drawn, minlength=len(sizes)).to(torch.float64)
        yield solve(plan, parts, ridge=ridge, weights=weights.tolist())
