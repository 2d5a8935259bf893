"""Algorithm 1 of the paper, row by row: bases and moments in, coefficients out (`reference="complement"`)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from nobsp.network.inputs import Subset, Summary, among
from nobsp.network.readout import Network, Readout
from nobsp.projection import Moments, Ridge, Spectrum, merge_all, partial_coefficients, spectrum
from nobsp.projection.ridge import EPSILON
from nobsp.tabular.representations import Isolation, Represent, subsets_of, through

# Blocks of calibration rows whose moments are kept apart, for bands, and the fewest that make one.
BLOCKS, _FEWEST_BLOCKS = 12, 8
# Large batches go to several blocks each, so that a sorted table is spread over all of them.
_MIXED = 4
_WORTH_CUTTING = 256
_BLOCK_BYTES = 400 << 20
# Compressed representations of one batch that are held at a time; more features than fit go one lot after another.
_LOT_BYTES = 128 << 20
# Numbers in a piece of memory for bases: so large that it comes from the system directly, and is touched only as used.
_SHELF_NUMBERS = 8 << 20
# Rows of the sample that a value too rare to be in it is put into, and most rows for that where such values are many.
_HOSTS, _RARE_ROWS = 8, 4096

OUTPUTS = "outputs"
TARGET = "target"
REFERENCE = "reference"


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


# ---------------------------------------------------------------------- bases


def make_plan(
    isolation: Isolation, represent: Represent, sample: Tensor, terms: Sequence[Subset], *, rare: Tensor
) -> Plan:
    """Fixes every term's basis from a sample of rows, and from rows with values too rare to be in it."""
    shelf = _Shelf()
    rows = torch.cat([sample, rare])
    every: dict[Subset, Tensor] = {}
    for term, z, place in isolation.distinct(represent, rows, terms):
        weights = None if place is None else torch.bincount(place, minlength=len(z)).to(z.device)
        # In single precision such depths are noise.
        known = _row_spectrum(z.to(torch.float64), weights, deep=z.dtype == torch.float64)
        every[term] = shelf.put(known.vectors[:, known.values > 0])
    if sum(basis.numel() for basis in every.values()) < _SHELF_NUMBERS:  # few: a copy would take the shelf along
        every = {term: basis.clone() for term, basis in every.items()}
    return Plan(isolation, tuple(terms), {term: every[term] for term in terms})


class _Shelf:
    """Keeps many matrices in a few large pieces of memory.

    One by one they would lie scattered among what comes and goes while they are made. That memory then stays with the
    process though most of it is free: for a thousand features, several times the size of the bases.
    """

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.float64)

    def put(self, matrix: Tensor) -> Tensor:
        """A copy of a matrix, on the shelf and on the CPU."""
        if matrix.numel() > self._left.numel():
            self._left = torch.empty(max(_SHELF_NUMBERS, matrix.numel()), dtype=torch.float64)
        place, self._left = self._left[: matrix.numel()], self._left[matrix.numel() :]
        return place.view(matrix.shape).copy_(matrix)


def _row_spectrum(rows: Tensor, weights: Tensor | None, *, deep: bool) -> Spectrum:
    """Spectrum of the centred products of some rows, each counted as often as its weight says.

    Products hold directions down to the square root of rounding only. With `deep`, what these leave of the
    rows is looked at once more, which reaches down to rounding itself.
    """
    count, width = rows.shape
    share = torch.ones(count, dtype=rows.dtype, device=rows.device) if weights is None else weights.to(rows.dtype)
    centred = (rows - (share @ rows) / share.sum()) * share.sqrt()[:, None]
    if count <= width:
        # Few rows: their own singular values are cheaper, and as deep as it gets.
        _, values, vectors = torch.linalg.svd(centred, full_matrices=False)
        kept = values > values[:1] * max(count, width) * EPSILON
        kept[count - 1 :] = False  # centring takes one direction
        return _spectrum_of(values[kept].square(), vectors[kept].T)
    known = spectrum(centred.T @ centred, rows=count)
    if not deep or known.rank in (0, width):
        return known
    left = centred - (centred @ known.vectors) @ known.vectors.T
    more = spectrum(left.T @ left, rows=count)
    # Below this, what is left is rounding of the rows themselves.
    above = more.values > known.values[0] * count * EPSILON**2
    above[width - known.rank :] = False  # there are no more directions than columns
    fresh = more.vectors[:, above]
    fresh = fresh - known.vectors @ (known.vectors.T @ fresh)
    vectors, _ = torch.linalg.qr(torch.cat([known.vectors, fresh], dim=1))
    return _spectrum_of(torch.cat([known.values, more.values[above]]), vectors)


def _spectrum_of(values: Tensor, vectors: Tensor) -> Spectrum:
    return Spectrum(values, vectors, 1 - vectors.square().sum(1), 0.0, True)


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
        return cls(shapes, _affordable_blocks(shapes, min(memory, _BLOCK_BYTES)), rows, in_few)

    @property
    def rows(self) -> int:
        """How many rows were added."""
        return sum(moments.rows for moments in next(iter(self.held.values()), {}).values())

    @property
    def parts(self) -> dict[str, list[Moments]]:
        """All blocks, by name."""
        return {
            name: [held[number] if number in held else Moments(shape) for number in range(self.block_count)]
            for name, shape in self.shapes.items()
            for held in (self.held.get(name, {}),)
        }

    def update(self, batch: tuple[int, Iterable[tuple[str, Tensor | Mapping[str, Tensor]]]]) -> None:
        """Adds a batch: how many rows it has, and the columns of each set of moments by name."""
        count, sets = batch
        pieces, start = self._pieces(count), 0 if self.in_few else self.next_block
        for name, columns in sets:
            held = self.held.setdefault(name, {})
            for number in range(pieces):
                # Rows at even distances, not a run of rows: of a sorted table, each block should see all.
                rows = slice(number, None, pieces)
                piece = columns[rows] if isinstance(columns, Tensor) else {k: part[rows] for k, part in columns.items()}
                place = (start + number) % self.block_count
                if place not in held:
                    held[place] = Moments(self.shapes[name])
                held[place].update(piece)
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
                held[number] = reduce(held[number] if number in held else Moments(shape))

    def _pieces(self, count: int) -> int:
        """Into how many pieces a batch is cut; they go to consecutive blocks."""
        # By its share of the rows, rounded up: whatever sizes the batches have, no block stays empty.
        share = self.block_count if not self.expected else -(-self.block_count * count // self.expected)
        enough = max(share, min(_MIXED, count // _WORTH_CUTTING))
        return max(min(enough, count, self.block_count), 1)


def add_rows(plan: Plan, state: Accumulator, batch: Tensor, network: Network, *, memory: int = _BLOCK_BYTES) -> None:
    """Adds a batch of input rows to the moments of a plan's terms."""
    rows, represent, outputs = network.run(batch)

    def sets() -> Iterator[tuple[str, Tensor | Mapping[str, Tensor]]]:
        for lot in _lots(plan, len(rows), min(_LOT_BYTES, memory // 4)):
            targets = through(plan.isolation, represent, rows, lot).cpu()
            cut = torch.split(targets, [basis.shape[1] for basis in lot.values()], dim=1)
            columns = dict(zip(lot, cut, strict=True))
            for term, reference in plan.isolation.reference(represent, rows, list(lot)):
                yield label(term), {TARGET: columns[term], REFERENCE: reference.cpu(), OUTPUTS: outputs}

    state.update((len(rows), sets()))


def add_rows_and_summarise(
    plan: Plan, states: tuple[Summary, Accumulator], batch: Tensor, network: Network, *, memory: int = _BLOCK_BYTES
) -> None:
    """The same for rows that are read only once, and have to be summarised as well."""
    states[0].update(batch)
    add_rows(plan, states[1], batch, network, memory=memory)


def _lots(plan: Plan, rows: int, most: int) -> Iterator[dict[Subset, Tensor]]:
    """The bases in lots whose compressed rows fit into memory side by side."""
    lot: dict[Subset, Tensor] = {}
    for term in plan.terms:
        basis = plan.bases[term]
        if lot and 8 * rows * (basis.shape[1] + sum(held.shape[1] for held in lot.values())) > most:
            yield lot
            lot = {}
        lot[term] = basis
    yield lot


def bytes_of_moments(shape: Mapping[str, int]) -> int:
    """What one set of moments takes."""
    return 8 * sum(shape.values()) ** 2


def _affordable_blocks(shapes: Mapping[str, Mapping[str, int]], memory: int) -> int:
    size = sum(map(bytes_of_moments, shapes.values()))
    for count in (BLOCKS, _FEWEST_BLOCKS):
        if count * size <= memory:
            return count
    return 1


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


def contributions(
    plan: Plan,
    solution: Solution,
    represent: Represent,
    rows: Tensor,
    *,
    terms: Sequence[Subset] | None = None,
) -> Tensor:
    """g_S(x) of every term, shape (rows, terms, outputs), float64 on the CPU.

    As published, a pair's projection holds its single features' contributions too, which are subtracted
    (A.14), and a triple's its pairs' (A.15).
    """
    chosen = tuple(plan.terms if terms is None else terms)
    needed = tuple(sorted({s for term in chosen for s in subsets_of(term)}, key=lambda s: (len(s), s)))
    matrices = {term: solution.matrices[term] for term in needed}
    flat = through(plan.isolation, represent, rows, matrices).cpu()
    values = flat.reshape(rows.shape[0], len(needed), -1)
    values -= torch.stack([solution.offsets[term] for term in needed])
    place = {term: i for i, term in enumerate(needed)}
    for term in needed:
        for inner in subsets_of(term)[:-1]:
            values[:, place[term]] -= values[:, place[inner]]
    return values[:, [place[term] for term in chosen]]


# ---------------------------------------------------------------------- levels too rare to be in the sample


def rare_rows(summary: Summary, isolation: Isolation) -> Tensor:
    """Rows of the sample with the levels and extremes put in that it lacks, though the table has them.

    A basis that never saw a level would leave it without a contribution.
    """
    sample = summary.sample
    if summary.rows <= len(sample):
        return sample[:0]
    found = []
    for feature, group in enumerate(isolation.features.columns):
        counted = feature in summary.levels or feature in isolation.categories
        for columns, levels in _levels(summary, feature, group) if counted else []:
            found.append(_put_in(summary.some_rows(_HOSTS), columns, levels[~among(levels, sample[:, columns])]))
        if not counted and len(group) == 1:
            ends = torch.stack([summary.minimum[list(group)], summary.maximum[list(group)]])
            found.append(_put_in(summary.some_rows(_HOSTS), list(group), ends))
    return torch.cat([sample[:0], *found])


def _levels(summary: Summary, feature: int, group: Sequence[int]) -> list[tuple[list[int], Tensor]]:
    """Every level of a feature, or, where these are too many, of each of its columns; with the columns they fill."""
    joint = summary.levels_of(feature, group)
    if joint is not None:
        return [(list(group), joint[0])]
    return [([group[place]], code[0]) for place, code in summary.codes.get(feature, {}).items()]


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
