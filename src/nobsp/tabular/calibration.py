"""Calibration: terms, bases and moments in; coefficients out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nobsp.network.inputs import Subset
from nobsp.network.readout import Readout
from nobsp.projection import (
    Moments,
    Ridge,
    Spectrum,
    merge_all,
    partial_coefficients,
    pure_sign,
    spectrum,
    terms_coefficients,
)
from nobsp.projection.ridge import EPSILON
from nobsp.tabular.representations import Isolation, Represent, spread_out, subsets_of, through

# Directions whose spread is below this share of the ridge are silenced by it and need no column.
_SILENT = 1e-3
# Most columns of the joint system; past this a Cholesky factorisation takes seconds.
MOST_COLUMNS = 4000
# The same while pairs are on trial, when many systems are solved.
MOST_COLUMNS_ON_TRIAL = 2000
# Blocks of calibration rows whose moments are kept apart, for bands and for choosing interactions.
BLOCKS = 24
# Large batches go to several blocks each, so that a sorted table is spread over all of them.
_MIXED = 4
_WORTH_CUTTING = 256
_BLOCK_BYTES = 400 << 20
# Compressed representations of one batch that are held at a time; more features than fit go one lot after another.
_LOT_BYTES = 128 << 20
_CACHE_BYTES = 400 << 20
# Numbers in a piece of memory for bases: so large that it comes from the system directly, and is touched only as used.
_SHELF_NUMBERS = 8 << 20

OUTPUTS = "outputs"
TARGET = "target"
REFERENCE = "reference"
JOINT = "joint"


@dataclass(frozen=True, eq=False)
class Plan:
    """What must be agreed on before rows are added up, so that shards can be merged.

    Attributes:
        isolation: Features, baseline and how isolated inputs are made.
        terms: The terms to fit, as tuples of feature positions; single features first.
        bases: Per term, orthonormal directions (width, rank) that its representation uses.
        pure: Whether terms are fitted together on their pure representations, or one by one as published.
        truncated: Whether bases were cut short to keep the joint system small.
    """

    isolation: Isolation
    terms: tuple[Subset, ...]
    bases: dict[Subset, Tensor]
    pure: bool
    truncated: bool = False

    def fingerprint(self) -> str:
        """Equal for plans whose moments may be added up."""
        digest = hashlib.sha256(repr((self.terms, self.pure, self.isolation.features)).encode())
        for tensor in (self.isolation.baseline, *(self.bases[term] for term in self.terms)):
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def blocks(self, width: int, outputs: int) -> dict[str, dict[str, int]]:
        """Blocks of columns of each set of moments this plan needs."""
        ranks = {label(term): self.bases[term].shape[1] for term in self.terms}
        if self.pure:
            return {JOINT: {**ranks, OUTPUTS: outputs}}
        return {name: {TARGET: rank, REFERENCE: width, OUTPUTS: outputs} for name, rank in ranks.items()}


@dataclass(frozen=True, eq=False)
class Solution:
    """The decomposition's coefficients.

    Attributes:
        matrices: Per term, coefficients on its representation, shape (width, outputs).
        offsets: Per term, what centring subtracts, shape (outputs,).
        base: Mean output over the calibration rows.
        ridges: Per term, the λ it was solved with.
        unique_share: Per term, how much of its spread is its own.
        notes: Per term, what is wrong with it in words; terms in good order are missing.
        note: What is wrong with the system as a whole; empty when nothing is.
    """

    matrices: dict[Subset, Tensor]
    offsets: dict[Subset, Tensor]
    base: Tensor
    ridges: dict[Subset, float]
    unique_share: dict[Subset, float]
    notes: dict[Subset, str]
    note: str


def label(term: Subset) -> str:
    """Name of a term's block of columns.

    Example:
        >>> label((0, 3))
        '0,3'
    """
    return ",".join(map(str, term))


# ---------------------------------------------------------------------- bases


def make_plan(
    isolation: Isolation,
    represent: Represent,
    sample: Tensor,
    terms: Sequence[Subset],
    *,
    rare: Tensor,
    pure: bool,
    ridge: Ridge,
    most_columns: int = MOST_COLUMNS,
) -> Plan:
    """Fixes every term's basis from a sample of rows, and from rows with values too rare to be in it."""
    found = _term_spectra(isolation, represent, sample, terms, rare=rare, pure=pure)
    if not pure:
        shelf = _Shelf()
        every = {term: shelf.put(known.vectors[:, known.values > 0]) for term, known in found}
        if sum(basis.numel() for basis in every.values()) < _SHELF_NUMBERS:  # few: a copy would take the shelf along
            every = {term: basis.clone() for term, basis in every.items()}
        return Plan(isolation, tuple(terms), {term: every[term] for term in terms}, pure)
    spectra = dict(found)
    ordered = {term: spectra[term] for term in terms}
    threshold, truncated = _threshold(ordered, ridge, most_columns)
    bases = {term: known.vectors[:, known.values > threshold].cpu() for term, known in ordered.items()}
    return Plan(isolation, tuple(terms), bases, pure, truncated)


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


def _threshold(spectra: Mapping[Subset, Spectrum], ridge: Ridge, most_columns: int) -> tuple[float, bool]:
    """The smallest eigenvalue worth a column: what the ridge leaves audible, and what the system can hold.

    The relative ridge is α · trace / columns, so it rises as columns go: a few rounds settle it.
    """
    values = torch.cat([known.values for known in spectra.values()]).sort(descending=True).values
    total, threshold = float(values.sum()), 0.0
    if ridge.scale == "relative":
        for _ in range(8):
            columns = max(int((values > threshold).sum()), 1)
            threshold = _SILENT * ridge.value * total / columns
    kept = int((values > threshold).sum())
    if kept <= most_columns:
        return threshold, False
    return float(values[most_columns]), True


def _term_spectra(
    isolation: Isolation, represent: Represent, sample: Tensor, terms: Sequence[Subset], *, rare: Tensor, pure: bool
) -> Iterator[tuple[Subset, Spectrum]]:
    """Directions and spread of each term's own representation over the sample.

    Pure pairs need their singles' representations too; those are kept, so the sample shrinks where they
    would not fit.
    """
    needed = sorted({s for term in terms for s in (subsets_of(term) if pure else [term])}, key=lambda s: (len(s), s))
    shared = {s for term in terms if pure for s in subsets_of(term) if s != term}
    if shared:
        width = represent(sample[:1]).shape[1]
        size = max(_CACHE_BYTES // (8 * width * len(shared)), 512)
        if size < len(sample):  # evenly spaced: the table may be sorted
            sample = sample[torch.linspace(0, len(sample) - 1, size, dtype=torch.float64).long()]
    sample = torch.cat([sample, rare])
    kept: dict[Subset, Tensor] = {}
    wanted = set(terms)
    for subset, z, place in isolation.distinct(represent, sample, needed):
        if subset in shared:
            kept[subset] = spread_out(z, place)
        if subset not in wanted:
            continue
        if not pure or len(subset) == 1:
            weights = None if place is None else torch.bincount(place, minlength=len(z)).to(z.device)
            deep = not pure and z.dtype == torch.float64  # in single precision such depths are noise
            yield subset, _row_spectrum(z.to(torch.float64), weights, deep=deep)
            continue
        representation = spread_out(z, place).to(torch.float64)
        for inner in subsets_of(subset)[:-1]:
            representation = representation + kept[inner] * pure_sign(subset, inner)
        yield subset, _row_spectrum(representation, None, deep=False)


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


class Accumulator:
    """Adds calibration rows up, in a few blocks of rows kept apart.

    Args:
        plan: Terms and bases.
        readout: The model.
        rows: How many rows will come, where known; decides how batches are cut into blocks.
        memory: Bytes the blocks may take; with fewer, there are fewer of them.
    """

    def __init__(self, plan: Plan, readout: Readout, *, rows: int | None = None, memory: int = _BLOCK_BYTES) -> None:
        self.plan = plan
        self._readout = readout
        self._shapes = plan.blocks(readout.width, readout.outputs)
        self.block_count = _affordable_blocks(self._shapes, min(memory, _BLOCK_BYTES))
        self._lot_bytes = min(_LOT_BYTES, memory // 4)
        self._expected = rows
        self.next_block = 0
        self.parts: dict[str, list[Moments]] = {
            name: [Moments(shape) for _ in range(self.block_count)] for name, shape in self._shapes.items()
        }

    def resume(self, parts: Mapping[str, Sequence[Moments]], *, next_block: int) -> None:
        """Goes on with rows that were added up before."""
        held = {name: len(blocks) for name, blocks in parts.items()}
        if held != {name: len(blocks) for name, blocks in self.parts.items()}:
            raise ValueError("the rows added up before are in other blocks; start anew.")
        self.parts = {name: list(blocks) for name, blocks in parts.items()}
        self.next_block = next_block

    def update(self, represent: Represent, rows: Tensor) -> None:
        """Adds a batch of input rows."""
        plan = self.plan
        outputs = self._readout.logits(represent(rows)).cpu()
        pieces = self._pieces(rows.shape[0])
        if plan.pure:
            compressed = through(plan.isolation, represent, rows, plan.bases, pure=True).cpu()
            self._add(JOINT, torch.cat([compressed, outputs], dim=1), pieces)
        else:
            for lot in self._lots(rows.shape[0]):
                targets = through(plan.isolation, represent, rows, lot, pure=False).cpu()
                cut = torch.split(targets, [basis.shape[1] for basis in lot.values()], dim=1)
                columns = dict(zip(lot, cut, strict=True))
                for term, reference in plan.isolation.reference(represent, rows, list(lot)):
                    parts = {TARGET: columns[term], REFERENCE: reference.cpu(), OUTPUTS: outputs}
                    self._add(label(term), parts, pieces)
        self.next_block += pieces

    def _lots(self, rows: int) -> Iterator[dict[Subset, Tensor]]:
        """The bases in lots whose compressed rows fit into memory side by side."""
        lot: dict[Subset, Tensor] = {}
        for term in self.plan.terms:
            basis = self.plan.bases[term]
            if lot and 8 * rows * (basis.shape[1] + sum(held.shape[1] for held in lot.values())) > self._lot_bytes:
                yield lot
                lot = {}
            lot[term] = basis
        yield lot

    def _add(self, name: str, parts: Tensor | dict[str, Tensor], pieces: int) -> None:
        for number in range(pieces):
            # Every so-manyth row, not a run of rows: of a sorted table, each block should see all.
            rows = slice(number, None, pieces)
            piece = parts[rows] if isinstance(parts, Tensor) else {key: part[rows] for key, part in parts.items()}
            self.parts[name][(self.next_block + number) % self.block_count].update(piece)

    def _pieces(self, count: int) -> int:
        """Into how many pieces a batch is cut; they go to consecutive blocks."""
        # By its share of the rows, rounded up: whatever sizes the batches have, no block stays empty.
        share = self.block_count if not self._expected else -(-self.block_count * count // self._expected)
        enough = max(share, min(_MIXED, count // _WORTH_CUTTING))
        return max(min(enough, count, self.block_count), 1)


def bytes_of_moments(shape: Mapping[str, int]) -> int:
    """What one set of moments takes."""
    return 8 * sum(shape.values()) ** 2


def _affordable_blocks(shapes: Mapping[str, Mapping[str, int]], memory: int) -> int:
    size = sum(map(bytes_of_moments, shapes.values()))
    for count in (BLOCKS, 16, 12, 8):
        if count * size <= memory:
            return count
    return 1


# ---------------------------------------------------------------------- coefficients


def solve(
    plan: Plan,
    parts: Mapping[str, Sequence[Moments]],
    *,
    ridge: Ridge,
    weights: Sequence[float] | None = None,
    diagnose: bool = True,
) -> Solution:
    """Coefficients of all terms from the blocks' moments.

    Args:
        plan: Terms and bases.
        parts: Moments per block of rows.
        ridge: How strongly the solves are regularised.
        weights: How often each block of rows counts; once by default.
        diagnose: Whether to work out how much of each term is its own, too.
    """
    if plan.pure:
        total = merge_all(parts[JOINT], weights=weights)
        return _solve_jointly(plan, total, ridge, diagnose)
    # One after another: all terms' sums a second time would be the most that is ever held.
    totals = ((term, merge_all(parts[label(term)], weights=weights)) for term in plan.terms)
    return _solve_one_by_one(plan, totals, ridge)


def _solve_jointly(plan: Plan, total: Moments, ridge: Ridge, diagnose: bool) -> Solution:
    fit = terms_coefficients(total, ridge=ridge, outputs=OUTPUTS, diagnose=diagnose)
    terms = plan.terms
    matrices, offsets, notes = {}, {}, {}
    for term in terms:
        beta = fit.coefficients[label(term)]
        matrices[term] = plan.bases[term] @ beta
        offsets[term] = total.mean(label(term)) @ beta
        if plan.bases[term].shape[1] == 0:
            notes[term] = CONSTANT
    shares = {term: fit.unique_share.get(label(term), float("nan")) for term in terms}
    ridges = dict.fromkeys(terms, fit.ridge)
    return Solution(matrices, offsets, total.mean(OUTPUTS), ridges, shares, notes, fit.note)


def _solve_one_by_one(plan: Plan, totals: Iterable[tuple[Subset, Moments]], ridge: Ridge) -> Solution:
    matrices, offsets, ridges, shares, notes = {}, {}, {}, {}, {}
    base = torch.zeros(0, dtype=torch.float64)
    for term, total in totals:
        base = total.mean(OUTPUTS)
        width = total.blocks[REFERENCE]
        fit = partial_coefficients(total, ridge=ridge, target_size=width)
        matrices[term] = plan.bases[term] @ fit.coefficients
        offsets[term] = total.mean(TARGET) @ fit.coefficients
        ridges[term], shares[term] = fit.ridges[1], fit.unique_share
        if fit.note:
            notes[term] = fit.note
    return Solution(matrices, offsets, base, ridges, shares, notes, "")


CONSTANT = (
    "Its representation does not vary over the calibration rows (the column is constant, or the network ignores it), "
    "so it contributes nothing."
)


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
    needed = chosen
    if not plan.pure:
        needed = tuple(sorted({s for term in chosen for s in subsets_of(term)}, key=lambda s: (len(s), s)))
    matrices = {term: solution.matrices[term] for term in needed}
    flat = through(plan.isolation, represent, rows, matrices, pure=plan.pure).cpu()
    values = flat.reshape(rows.shape[0], len(needed), -1)
    values -= torch.stack([solution.offsets[term] for term in needed])
    if plan.pure:
        return values
    place = {term: i for i, term in enumerate(needed)}
    for term in needed:
        for inner in subsets_of(term)[:-1]:
            values[:, place[term]] -= values[:, place[inner]]
    return values[:, [place[term] for term in chosen]]
