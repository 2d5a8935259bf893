"""Streaming centred moments of block-structured rows.

What every projection here is computed from.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

# Width of the column panels in the symmetric product: wide enough for the matrix product to run at
# full speed, narrow enough that little of the lower triangle is computed in vain.
_PANEL = 64
# Rows are shifted a chunk at a time, so that a chunk is still in the cache when its product is
# taken.
_CHUNK = 1024
# Rows that several sets share at once: enough for large products, few enough to stay in the cache.
_SHARED_CHUNK = 4096


class Moments:
    """Count, means and centred cross-products of rows such as [target | reference | outputs].

    Rows arrive in batches and are forgotten; moments of separate batches, workers or machines add
    up (Chan, Golub and LeVeque's update), so memory depends on the width of a row, never on how
    many there are. Means are held as an origin (the first row) plus an offset. A spread a million
    times smaller than the mean therefore keeps all its digits, and a constant column has products
    of exactly zero.
    """

    def __init__(self, blocks: Mapping[str, int]) -> None:
        self.blocks: dict[str, int] = dict(blocks)
        edges = pairwise(accumulate(self.blocks.values(), initial=0))
        self._columns = {
            name: slice(start, stop) for name, (start, stop) in zip(self.blocks, edges, strict=True)
        }
        size = sum(self.blocks.values())

        self.rows = 0
        # The number of rows, unless `merge_all` weighted them.
        self.weight = 0.0
        self._origin = torch.zeros(size, dtype=torch.float64)
        self._offset = torch.zeros_like(self._origin)
        # Only the panels on and above the diagonal are kept up to date; `products` mirrors them.
        # One zero, which takes no memory, until rows come.
        self._products = torch.zeros((), dtype=torch.float64).expand(size, size)

    def update(self, rows: Tensor | Mapping[str, Tensor]) -> Self:
        """Adds a batch of rows: all columns side by side, or one tensor per block."""
        parts = self._checked(rows)
        count = _row_count(parts)
        if self.weight == 0.0:
            self._start(parts)

        pivot, sums = self._add_products(parts, count)
        self._centre(count, pivot=pivot, mean=sums / count)
        return self

    def _start(self, parts: Mapping[str, Tensor]) -> None:
        """Takes the first row as the origin and makes room for the products."""
        # A row, not a mean: less itself, a constant column is zero exactly, whatever its mean
        # rounds to. In place: small things that stay, made between large ones that go, would cut up
        # the process's memory.
        for name, columns in self._columns.items():
            self._origin[columns].copy_(parts[name][0])

        self._offset.zero_()
        self._products = torch.zeros(self.size, self.size, dtype=torch.float64)

    def _add_products(self, parts: Mapping[str, Tensor], count: int) -> tuple[Tensor, Tensor]:
        """Adds the products of a batch about a pivot.

        Returns the pivot and the sums of the rows about it.
        """
        # Products are taken about `pivot`, the mean of the batch's first rows in float64: x - pivot
        # is exact where the mean dwarfs the spread. The running mean would not do: a batch far from
        # it would be corrected by more than its own products hold.
        pivot = self._origin + self._offset
        sums = torch.zeros_like(pivot)
        for start in range(0, count, _CHUNK):
            stop = min(start + _CHUNK, count)
            chunk = self._shifted(parts, start=start, stop=stop, pivot=pivot)
            if start == 0:
                first_mean = chunk.mean(0)
                moved = pivot + first_mean
                chunk -= moved - pivot
                pivot = moved

            sums += chunk.sum(0)
            self._add_upper_product(chunk)
        return pivot, sums

    def _shifted(
        self, parts: Mapping[str, Tensor], *, start: int, stop: int, pivot: Tensor
    ) -> Tensor:
        """Some rows of all blocks side by side, less the pivot, in a buffer that is used again."""
        rows = stop - start
        chunk = _scratch(rows * self.size).view(rows, self.size)
        for name, columns in self._columns.items():
            part = parts[name][start:stop]
            shifted = chunk[:, columns]
            if part.dtype == shifted.dtype and part.device == shifted.device:
                # One pass over the rows instead of two.
                torch.sub(part, pivot[columns], out=shifted)
            else:
                shifted.copy_(part).sub_(pivot[columns])
        return chunk

    def _add_upper_product(self, chunk: Tensor) -> None:
        """Adds chunkᵀ chunk on and above the diagonal panels only.

        Half the work of the full product.
        """
        for start in range(0, self.size, _PANEL):
            stop = start + _PANEL
            panel = chunk[:, start:stop]
            self._products[start:stop, start:].addmm_(panel.T, chunk[:, start:])

    def _centre(self, count: int, *, pivot: Tensor, mean: Tensor) -> None:
        """Turns products about the pivot into centred ones and moves the mean.

        `mean` is that of the batch.
        """
        joined = self.weight + count
        delta = mean + ((pivot - self._origin) - self._offset)

        shifts = torch.stack([mean * -count, delta * (self.weight * count / joined)])
        self._products.addmm_(shifts.T, torch.stack([mean, delta]))
        self._offset += delta * (count / joined)

        self.weight = joined
        self.rows += count

    def _checked(self, rows: Tensor | Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The batch as one tensor per block; an error leaves the sums as they were."""
        if not isinstance(rows, Mapping):
            _require_matrix("rows", rows, self.size)
            rows = {name: rows[:, columns] for name, columns in self._columns.items()}
        if rows.keys() != self.blocks.keys():
            raise ValueError(f"rows has the blocks {sorted(rows)}, expected {sorted(self.blocks)}.")

        parts = dict(rows)
        for name, part in parts.items():
            _require_matrix(name, part, self.blocks[name])
        _require_same_rows(parts)
        for name, part in parts.items():
            _require_finite(name, part)
        return {name: part.detach() for name, part in parts.items()}

    def merge(self, other: Moments) -> Moments:
        """The moments of both sets of rows together; neither operand changes."""
        return merge_all([self, other])

    def all_reduce(self, group: dist.ProcessGroup | None = None) -> Moments:
        """The moments of every process's rows, the same on each, under `torch.distributed`.

        Traffic is three vectors and one matrix. Processes that saw no rows take part with nothing.
        """
        joined = Moments(self.blocks)
        totals = torch.tensor([float(self.rows), self.weight], dtype=torch.float64)
        dist.all_reduce(totals, group=group)
        joined.rows = round(float(totals[0]))
        joined.weight = float(totals[1])
        if joined.weight == 0.0:
            return joined

        joined._origin = self._common_origin(group)
        if self.weight:
            own_mean = (self._origin - joined._origin) + self._offset
        else:
            own_mean = torch.zeros_like(self._offset)

        offset = self.weight * own_mean
        dist.all_reduce(offset, group=group)
        joined._offset = offset / joined.weight

        delta = own_mean - joined._offset
        joined._products = self.products.addr(delta, delta, alpha=self.weight)
        dist.all_reduce(joined._products, group=group)
        return joined

    def _common_origin(self, group: dist.ProcessGroup | None) -> Tensor:
        """An origin that all ranks know.

        The largest, not a mean, so that a constant column keeps its value.
        """
        if self.weight:
            origin = self._origin.clone()
        else:
            origin = torch.full_like(self._origin, -torch.inf)
        dist.all_reduce(origin, op=dist.ReduceOp.MAX, group=group)
        return origin

    @property
    def size(self) -> int:
        """Number of columns in a row."""
        return int(self._origin.shape[0])

    @property
    def products(self) -> Tensor:
        """All centred cross-products, shape (size, size), symmetric."""
        return _mirrored(self._products)

    def mean(self, block: str | None = None) -> Tensor:
        """Means of a block's columns, or of all columns."""
        mean = self._origin + self._offset
        return mean if block is None else mean[self._slice(block)]

    def product(self, left: str, right: str) -> Tensor:
        """Centred cross-products of two blocks, shape (width of left, width of right)."""
        rows = self._slice(left)
        columns = self._slice(right)
        if left == right:
            return _mirrored(self._products[rows, columns])
        if rows.start < columns.start:
            return self._products[rows, columns].clone()
        return self._products[columns, rows].T.clone()

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on later, as tensors.

        Of the products the upper triangle, and no blocks.
        """
        return {
            "rows": torch.tensor(self.rows, dtype=torch.int64),
            "weight": torch.tensor(self.weight, dtype=torch.float64),
            "origin": self._origin.clone(),
            "offset": self._offset.clone(),
            "products": self._products[*torch.triu_indices(self.size, self.size)],
        }

    @classmethod
    def from_state(cls, blocks: Mapping[str, int], state: Mapping[str, Tensor]) -> Moments:
        """The moments that `state` was taken from."""
        moments = cls(blocks)
        size = moments.size
        _require_state(state, size)

        moments.rows = int(state["rows"])
        moments.weight = float(state["weight"])
        moments._origin = state["origin"].clone()
        moments._offset = state["offset"].clone()
        moments._products = torch.zeros(size, size, dtype=torch.float64)
        moments._products[*torch.triu_indices(size, size)] = state["products"]
        return moments

    def _slice(self, block: str) -> slice:
        """The columns of a block."""
        if block not in self._columns:
            raise ValueError(f"no block {block!r}; there are {', '.join(self.blocks)}.")
        return self._columns[block]


def update_in_turn(sets: Sequence[Moments], rows: Mapping[str, Tensor], *, first: int = 0) -> None:
    """Adds rows to sets of the same blocks in turn: row i to set first + i, modulo their number.

    The same to rounding as an update of each set with its share of the rows, but with a few large
    products where that takes many small ones: threads wait for each other less often.
    """
    n_sets = len(sets)
    in_turn = [sets[(first + position) % n_sets] for position in range(n_sets)]
    parts = in_turn[0]._checked(rows)
    span = max(_SHARED_CHUNK // n_sets, 1) * n_sets
    for start in range(0, _row_count(parts), span):
        _add_in_turn(in_turn, {name: part[start : start + span] for name, part in parts.items()})


def _add_in_turn(sets: Sequence[Moments], parts: Mapping[str, Tensor]) -> None:
    """Adds a chunk of rows; `Moments.update` has the same steps for one set, and their reasons."""
    n_rows = _row_count(parts)
    sets = sets[:n_rows]
    counts = _rows_of_each(n_rows, len(sets))

    columns = sets[0]._columns
    for position, moments in enumerate(sets):
        if moments.weight == 0.0:
            moments._origin.copy_(_row(parts, columns, position))
            moments._offset.zero_()
    origins = torch.stack([moments._origin for moments in sets])
    offsets = torch.stack([moments._offset for moments in sets])

    chunk, pivots = _about_their_means(parts, columns, origins + offsets)
    products = _products_by_set(chunk)

    weights = torch.tensor([[moments.weight] for moments in sets], dtype=torch.float64)
    joined = weights + counts
    means = chunk.sum(1) / counts
    deltas = means + ((pivots - origins) - offsets)
    shifts = torch.stack([means * -counts, deltas * (weights * counts / joined)], 1)
    products.baddbmm_(shifts.transpose(1, 2), torch.stack([means, deltas], 1))
    offsets += deltas * (counts / joined)

    for position, moments in enumerate(sets):
        if moments.weight == 0.0:
            moments._products = products[position]
        else:
            moments._products += products[position]
        moments._offset.copy_(offsets[position])
        moments.weight = float(joined[position])
        moments.rows += int(counts[position])


def _rows_of_each(n_rows: int, n_sets: int) -> Tensor:
    """How many rows each set gets when they are dealt in turn, (sets, 1)."""
    whole, longer = divmod(n_rows, n_sets)
    counts = torch.full((n_sets, 1), whole, dtype=torch.float64)
    counts[:longer] += 1
    return counts


def _about_their_means(
    parts: Mapping[str, Tensor], columns: Mapping[str, slice], pivots: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows dealt to sets in turn, less the mean of each set's whole lines, and these means.

    Sets with a row less than others have none in the last line: about its pivot it is zero.
    """
    n_whole, n_longer = divmod(_row_count(parts), len(pivots))
    chunk = _shifted_by_set(parts, columns, pivots)
    means = pivots + chunk[:, :n_whole].mean(1)
    chunk -= (means - pivots)[:, None]
    if n_longer:
        chunk[n_longer:, n_whole] = 0.0
    return chunk, means


def _products_by_set(chunk: Tensor) -> Tensor:
    """The upper part of each set's products, panel by panel, (sets, columns, columns)."""
    n_sets, _, n_columns = chunk.shape
    products = torch.zeros(n_sets, n_columns, n_columns, dtype=torch.float64)
    for start in range(0, n_columns, _PANEL):
        stop = start + _PANEL
        panel = chunk[:, :, start:stop]
        products[:, start:stop, start:].baddbmm_(panel.transpose(1, 2), chunk[:, :, start:])
    return products


def _row(parts: Mapping[str, Tensor], columns: Mapping[str, slice], position: int) -> Tensor:
    """One row of all blocks side by side."""
    return torch.cat([parts[name][position].to("cpu", torch.float64) for name in columns])


def _shifted_by_set(
    parts: Mapping[str, Tensor], columns: Mapping[str, slice], pivots: Tensor
) -> Tensor:
    """Rows of all blocks, dealt to sets in turn, less the pivots.

    Shape (sets, rows of the longest, columns).

    What is left over in the last line of sets that have a row less is not set.
    """
    n_sets, size = pivots.shape
    n_whole, n_longer = divmod(_row_count(parts), n_sets)
    n_most = n_whole + bool(n_longer)
    chunk = _scratch(n_sets * n_most * size).view(n_sets, n_most, size)
    for name, place in columns.items():
        part = parts[name].to("cpu")
        in_lines = part[: n_whole * n_sets].reshape(n_whole, n_sets, -1).transpose(0, 1)
        torch.sub(in_lines, pivots[:, None, place], out=chunk[:, :n_whole, place])
        if n_longer:
            left_over = part[n_whole * n_sets :]
            torch.sub(left_over, pivots[:n_longer, place], out=chunk[:n_longer, n_whole, place])
    return chunk


def merge_all(parts: Sequence[Moments], *, weights: Sequence[float] | None = None) -> Moments:
    """One set of moments from many, each counted as often as its weight says."""
    if not parts:
        raise ValueError("parts is empty; there is nothing to merge.")
    factors = _checked_factors(len(parts), weights)
    joined = Moments(parts[0].blocks)
    for part in parts:
        if list(part.blocks.items()) != list(joined.blocks.items()):
            raise ValueError(f"cannot merge moments of blocks {part.blocks} into {joined.blocks}.")

    weighted = list(zip(parts, factors, strict=True))
    masses = [factor * part.weight for part, factor in weighted]
    joined.rows = sum(part.rows for part, factor in weighted if factor)
    joined.weight = sum(masses)
    if joined.weight == 0.0:
        return joined

    heaviest = max(range(len(parts)), key=masses.__getitem__)
    joined._origin = parts[heaviest]._origin.clone()
    shifts = torch.stack([(part._origin - joined._origin) + part._offset for part in parts])
    mass = torch.tensor(masses, dtype=torch.float64)
    joined._offset = (mass @ shifts) / joined.weight
    shifts -= joined._offset

    joined._products = torch.zeros(joined.size, joined.size, dtype=torch.float64)
    for part, factor in weighted:
        if factor and part.rows:
            joined._products.add_(part._products, alpha=factor)
    joined._products.addmm_(shifts.T * mass, shifts)
    return joined


def _checked_factors(parts: int, weights: Sequence[float] | None) -> list[float]:
    """How often each part counts: once, or as its weight says."""
    if weights is None:
        return [1.0] * parts

    factors = [float(weight) for weight in weights]
    valid = all(0.0 <= factor < float("inf") for factor in factors)
    if len(factors) != parts or not valid:
        raise ValueError(f"weights must be {parts} finite numbers, none negative.")
    return factors


# One buffer per thread, not one per set of moments: a thousand sets, one per feature, would hold
# gigabytes.
_buffers = threading.local()


def _scratch(size: int) -> Tensor:
    """Memory for `size` numbers; the next call on this thread hands out the same memory."""
    buffer: Tensor | None = getattr(_buffers, "buffer", None)
    if buffer is None or buffer.numel() < size:
        buffer = torch.empty(size, dtype=torch.float64)
        _buffers.buffer = buffer
    return buffer[:size]


def _row_count(parts: Mapping[str, Tensor]) -> int:
    """Rows of a batch, the same in every block."""
    return next(iter(parts.values())).shape[0]


def _require_matrix(name: str, part: object, width: int) -> None:
    """Raises an error unless this is a floating-point tensor of `width` columns."""
    if not isinstance(part, Tensor) or not part.is_floating_point():
        kind = part.dtype if isinstance(part, Tensor) else type(part).__name__
        raise TypeError(f"{name} must be a floating-point tensor, found {kind}; convert it first.")
    if part.ndim != 2 or part.shape[1] != width:
        raise ValueError(f"{name} must have shape (rows, {width}), found {tuple(part.shape)}.")


def _require_same_rows(parts: Mapping[str, Tensor]) -> None:
    """Raises a ValueError unless all blocks have the same number of rows, and any."""
    counts = {name: part.shape[0] for name, part in parts.items()}
    if len(set(counts.values())) != 1:
        listed = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise ValueError(f"all blocks must have the same number of rows, found {listed}.")
    if 0 in counts.values():
        raise ValueError("rows is an empty batch; pass at least one row.")


def _require_finite(name: str, part: Tensor) -> None:
    """Raises a ValueError that names the first value that is not finite."""
    # One sum is the cheapest pass that sees every value; it may also overflow, hence the second
    # look.
    if bool(torch.isfinite(part.sum())) or bool(torch.isfinite(part).all()):
        return

    row, column = torch.nonzero(~torch.isfinite(part))[0].tolist()
    raise ValueError(
        f"{name} has a value that is not finite (row {row}, column {column} of the batch)."
    )


def _require_state(state: Mapping[str, Tensor], size: int) -> None:
    """Raises a ValueError unless `state` is the state of moments of `size` columns."""
    shapes: dict[str, tuple[int, ...]] = {
        "rows": (),
        "weight": (),
        "origin": (size,),
        "offset": (size,),
        "products": (size * (size + 1) // 2,),
    }
    for name, shape in shapes.items():
        if name not in state:
            raise ValueError(f"state has no {name!r}; it is not a complete state of moments.")
        if tuple(state[name].shape) != shape:
            raise ValueError(
                f"state[{name!r}] has shape {tuple(state[name].shape)}, but blocks need {shape}."
            )


def _mirrored(upper: Tensor) -> Tensor:
    """The symmetric matrix of an upper triangle, copied by panels to stay in the cache."""
    full = upper.clone(memory_format=torch.contiguous_format)
    for start in range(0, full.shape[0], _PANEL):
        stop = start + _PANEL
        corner = full[start:stop, start:stop]
        corner.copy_(corner.triu() + corner.triu(1).T)
        full[stop:, start:stop] = full[start:stop, stop:].T
    return full
