"""Streaming centred moments of block-structured rows: what every projection here is computed from."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

# Width of the column panels in the symmetric product: wide enough for the matrix product to run at full
# speed, narrow enough that little of the lower triangle is computed in vain.
_PANEL = 64
# Rows are shifted a chunk at a time, so that a chunk is still in the cache when its product is taken.
_CHUNK = 1024


class Moments:
    """Count, means and centred cross-products of rows such as [target | reference | outputs].

    Rows arrive in batches and are forgotten; moments of separate batches, workers or machines add up (Chan,
    Golub and LeVeque's update), so memory depends on the width of a row, never on how many there are.
    Means are held as an origin (the first row) plus an offset. A spread a million times smaller than the
    mean therefore keeps all its digits, and a constant column has products of exactly zero.

    Attributes:
        rows: How many rows were seen; rows of weight zero do not count.
        weight: Their total weight; equals `rows` where no weights were given.
    """

    def __init__(self, blocks: Mapping[str, int], *, device: torch.device | str | None = None) -> None:
        if not blocks:
            raise ValueError("blocks is empty; name at least one block and its width.")
        for name, width in blocks.items():
            if isinstance(width, bool) or not isinstance(width, int) or width < 0:
                raise ValueError(f"blocks[{name!r}] must be a whole number of columns, found {width!r}.")
        self.blocks: dict[str, int] = dict(blocks)
        self._columns = _column_slices(self.blocks)
        size = sum(self.blocks.values())
        self.rows = 0
        self.weight = 0.0
        self._origin = torch.zeros(size, dtype=torch.float64, device=device)
        self._offset = torch.zeros_like(self._origin)
        # Only the panels on and above the diagonal are kept up to date; `products` mirrors them.
        self._products = torch.zeros(size, size, dtype=torch.float64, device=device)

    # ------------------------------------------------------------------ adding rows

    def update(self, rows: Tensor | Mapping[str, Tensor], *, weights: Tensor | None = None) -> Self:
        """Adds a batch of rows."""
        parts = self._checked(rows)
        count = next(iter(parts.values())).shape[0]
        if weights is not None:
            weights = _checked_weights(weights, count).to(self.device)
            parts, weights = _with_weight(parts, weights)
            count = int(weights.shape[0])
            if count == 0:
                return self
        total = float(count) if weights is None else float(weights.sum())
        if self.weight == 0.0:
            # A row, not a mean: less itself, a constant column is zero exactly, whatever its mean rounds to.
            # In place: small things that stay, made between large ones that go, would cut up the process's memory.
            for name, columns in self._columns.items():
                self._origin[columns].copy_(parts[name][0])
            self._offset.zero_()
        # Products are taken about `pivot`, the mean of the batch's first rows in float64: x - pivot is
        # exact where the mean dwarfs the spread. The running mean would not do: a batch far from it would be
        # corrected by more than its own products hold.
        pivot = self._origin + self._offset
        sums = torch.zeros_like(pivot)
        for start in range(0, count, _CHUNK):
            chunk = self._shifted_chunk(parts, slice(start, start + _CHUNK), pivot)
            share = None if weights is None else weights[start : start + _CHUNK]
            if start == 0:
                running = pivot
                pivot = running + (chunk.mean(0) if share is None else (share / share.sum()) @ chunk)
                chunk -= pivot - running
            if share is None:
                sums += chunk.sum(0)
            else:
                sums += share @ chunk
                chunk *= share.sqrt()[:, None]
            _add_symmetric_product(self._products, chunk)
        mean = sums / total
        delta = mean + ((pivot - self._origin) - self._offset)
        joined = self.weight + total
        self._products.addr_(mean, mean, alpha=-total)
        self._products.addr_(delta, delta, alpha=self.weight * total / joined)
        self._offset += delta * (total / joined)
        self.weight, self.rows = joined, self.rows + count
        return self

    def _checked(self, rows: Tensor | Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The batch as one tensor per block; an error leaves the sums as they were."""
        if isinstance(rows, Tensor):
            _require_matrix("rows", rows, self.size)
            parts = {name: rows[:, columns] for name, columns in self._columns.items()}
        elif not isinstance(rows, Mapping):
            raise TypeError(f"rows must be a tensor, or one tensor per block, found {type(rows).__name__}.")
        else:
            parts = dict(rows)
            if parts.keys() != self.blocks.keys():
                raise ValueError(f"rows has the blocks {sorted(parts)}, expected {sorted(self.blocks)}.")
        for name, part in parts.items():
            _require_matrix(name, part, self.blocks[name])
        counts = {name: part.shape[0] for name, part in parts.items()}
        if len(set(counts.values())) != 1:
            found = ", ".join(f"{name}: {count}" for name, count in counts.items())
            raise ValueError(f"all blocks must have the same number of rows, found {found}.")
        if 0 in counts.values():
            raise ValueError("rows is an empty batch; pass at least one row.")
        for name, part in parts.items():
            _refuse_non_finite(name, part)
        return {name: part.detach() for name, part in parts.items()}

    def _shifted_chunk(self, parts: Mapping[str, Tensor], rows: slice, pivot: Tensor) -> Tensor:
        """Some rows as float64, less `pivot`, in a buffer that is used again for every chunk."""
        length = len(range(*rows.indices(next(iter(parts.values())).shape[0])))
        chunk = _scratch(self.device, length * self.size).view(length, self.size)
        for name, columns in self._columns.items():
            part, place = parts[name][rows], chunk[:, columns]
            if part.dtype == place.dtype and part.device == place.device:
                torch.sub(part, pivot[columns], out=place)  # one pass over the rows instead of two
            else:
                place.copy_(part).sub_(pivot[columns])
        return chunk

    # ------------------------------------------------------------------ putting moments together

    def merge(self, other: Moments) -> Moments:
        """The moments of both sets of rows together; neither operand changes."""
        return merge_all([self, other.to(self.device)])

    def __add__(self, other: Moments) -> Moments:
        return self.merge(other)

    def all_reduce(self, group: Any = None) -> Moments:
        """The moments of every process's rows, the same on each, under `torch.distributed`.

        Traffic is three vectors and one matrix. Processes that saw no rows take part with nothing.
        Without an initialised process group this returns a copy.
        """
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            return self.copy()
        joined = self.copy()
        device = self.device
        sums = torch.tensor([float(self.rows), self.weight], dtype=torch.float64, device=device)
        dist.all_reduce(sums, group=group)
        joined.rows, joined.weight = round(float(sums[0])), float(sums[1])
        if joined.weight == 0.0:
            return joined
        # An origin that all ranks know; the largest, not a mean, so that a constant column keeps its value.
        joined._origin = self._origin.clone() if self.weight else torch.full_like(self._origin, -torch.inf)
        dist.all_reduce(joined._origin, op=dist.ReduceOp.MAX, group=group)
        own = torch.zeros_like(self._offset)
        if self.weight:
            own = (self._origin - joined._origin) + self._offset
        offset = self.weight * own
        dist.all_reduce(offset, group=group)
        joined._offset = offset / joined.weight
        delta = own - joined._offset
        joined._products = self.products.addr(delta, delta, alpha=self.weight)
        dist.all_reduce(joined._products, group=group)
        return joined

    def scaled(self, factor: float) -> Moments:
        """The moments as if every row had `factor` times its weight, for a bootstrap over blocks of rows."""
        if not factor >= 0.0 or factor == float("inf"):
            raise ValueError(f"factor must be finite and not negative, found {factor}.")
        scaled = self.copy()
        scaled.rows = self.rows if factor > 0.0 else 0
        scaled.weight *= factor
        scaled._products *= factor
        return scaled

    # ------------------------------------------------------------------ reading

    @property
    def size(self) -> int:
        """Number of columns in a row."""
        return int(self._origin.shape[0])

    @property
    def device(self) -> torch.device:
        """Where the sums live."""
        return self._origin.device

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
        rows, columns = self._slice(left), self._slice(right)
        if left == right:
            return _mirrored(self._products[rows, columns])
        if rows.start < columns.start:
            return self._products[rows, columns].clone()
        return self._products[columns, rows].T.clone()

    def select(self, names: Sequence[str]) -> Moments:
        """The moments of some blocks only, in the order asked for."""
        if not names or len(set(names)) != len(names):
            raise ValueError(f"names must list each block once, found {list(names)}.")
        index = torch.cat([torch.arange(s.start, s.stop) for s in map(self._slice, names)]).to(self.device)
        chosen = Moments({name: self.blocks[name] for name in names}, device=self.device)
        chosen.rows, chosen.weight = self.rows, self.weight
        chosen._origin, chosen._offset = self._origin[index], self._offset[index]
        chosen._products = self.products[index][:, index]
        return chosen

    def copy(self) -> Moments:
        """An independent copy."""
        twin = Moments(self.blocks, device=self.device)
        twin.rows, twin.weight = self.rows, self.weight
        twin._origin, twin._offset = self._origin.clone(), self._offset.clone()
        twin._products = self._products.clone()
        return twin

    def to(self, device: torch.device | str) -> Moments:
        """The same moments on another device."""
        twin = self.copy()
        twin._origin, twin._offset = twin._origin.to(device), twin._offset.to(device)
        twin._products = twin._products.to(device)
        return twin

    # ------------------------------------------------------------------ leaving and returning

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on later, as tensors; block names and widths are kept by the caller."""
        return {
            "rows": torch.tensor(self.rows, dtype=torch.int64),
            "weight": torch.tensor(self.weight, dtype=torch.float64),
            "origin": self._origin.clone(),
            "offset": self._offset.clone(),
            "products": self.products,
        }

    @classmethod
    def from_state(cls, blocks: Mapping[str, int], state: Mapping[str, Tensor]) -> Moments:
        """The moments that `state` was taken from."""
        moments = cls(blocks)
        shapes = {"rows": (), "weight": (), "origin": (moments.size,), "offset": (moments.size,)}
        shapes["products"] = (moments.size, moments.size)
        for name, shape in shapes.items():
            if name not in state:
                raise ValueError(f"state has no {name!r}; it is not a complete state of moments.")
            if tuple(state[name].shape) != shape:
                raise ValueError(f"state[{name!r}] has shape {tuple(state[name].shape)}, but blocks need {shape}.")
        moments.rows, moments.weight = int(state["rows"]), float(state["weight"])
        moments._origin, moments._offset = state["origin"].clone(), state["offset"].clone()
        moments._products = state["products"].clone()
        return moments

    def __repr__(self) -> str:
        blocks = ", ".join(f"{name}: {width}" for name, width in self.blocks.items())
        return f"Moments({blocks}; rows={self.rows})"

    def _slice(self, block: str) -> slice:
        if block not in self._columns:
            raise ValueError(f"no block {block!r}; there are {', '.join(self.blocks)}.")
        return self._columns[block]

    def _require_same_blocks(self, other: Moments) -> None:
        if list(self.blocks.items()) != list(other.blocks.items()):
            raise ValueError(f"cannot merge moments of blocks {other.blocks} into {self.blocks}.")


def merge_all(parts: Sequence[Moments], *, weights: Sequence[float] | None = None) -> Moments:
    """One set of moments from many, each counted as often as its weight says."""
    if not parts:
        raise ValueError("parts is empty; there is nothing to merge.")
    factors = [1.0] * len(parts) if weights is None else [float(weight) for weight in weights]
    if len(factors) != len(parts) or not all(0.0 <= factor < float("inf") for factor in factors):
        raise ValueError(f"weights must be {len(parts)} finite numbers, none negative.")
    joined = Moments(parts[0].blocks, device=parts[0].device)
    for part in parts:
        joined._require_same_blocks(part)
    joined.rows = sum(part.rows for part, factor in zip(parts, factors, strict=True) if factor)
    mass = [factor * part.weight for part, factor in zip(parts, factors, strict=True)]
    joined.weight = sum(mass)
    if joined.weight == 0.0:
        return joined
    heaviest = max(range(len(parts)), key=mass.__getitem__)
    joined._origin = parts[heaviest]._origin.clone()
    shifts = torch.stack([(part._origin - joined._origin) + part._offset for part in parts])
    share = torch.tensor(mass, dtype=torch.float64, device=joined.device)
    joined._offset = (share @ shifts) / joined.weight
    shifts -= joined._offset
    for part, factor in zip(parts, factors, strict=True):
        if factor:
            joined._products.add_(part._products, alpha=factor)
    joined._products.addmm_(shifts.T * share, shifts)
    return joined


# One buffer a thread, not one per set of moments: a thousand sets, one a feature, would hold gigabytes between them.
_buffers = threading.local()


def _scratch(device: torch.device, size: int) -> Tensor:
    """Room for some numbers, overwritten by whoever asks next on this thread."""
    held: dict[torch.device, Tensor] = _buffers.__dict__.setdefault("held", {})
    if device not in held or held[device].numel() < size:
        held[device] = torch.empty(size, dtype=torch.float64, device=device)
    return held[device][:size]


def _column_slices(blocks: Mapping[str, int]) -> dict[str, slice]:
    slices, start = {}, 0
    for name, width in blocks.items():
        slices[name] = slice(start, start + width)
        start += width
    return slices


def _checked_weights(weights: Tensor, count: int) -> Tensor:
    if not isinstance(weights, Tensor):
        raise TypeError(f"weights must be a tensor, found {type(weights).__name__}.")
    if weights.shape != (count,):
        raise ValueError(f"weights must have shape ({count},), found {tuple(weights.shape)}.")
    weights = weights.detach().to(torch.float64)
    if not bool(torch.isfinite(weights.sum())) or bool((weights < 0).any()):
        raise ValueError("weights must be finite and not negative.")
    return weights


def _with_weight(parts: dict[str, Tensor], weights: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The rows that carry weight: the others must not count towards the rank the rows can span."""
    carrying = weights > 0
    if bool(carrying.all()):
        return parts, weights
    return {name: part[carrying.to(part.device)] for name, part in parts.items()}, weights[carrying]


def _require_matrix(name: str, part: object, width: int) -> None:
    if not isinstance(part, Tensor) or not part.is_floating_point():
        kind = part.dtype if isinstance(part, Tensor) else type(part).__name__
        raise TypeError(f"{name} must be a floating-point tensor, found {kind}; convert it first.")
    if part.ndim != 2 or part.shape[1] != width:
        raise ValueError(f"{name} must have shape (rows, {width}), found {tuple(part.shape)}.")


def _refuse_non_finite(name: str, part: Tensor) -> None:
    # One sum is the cheapest pass that sees every value; it may also overflow, hence the second look.
    if bool(torch.isfinite(part.sum())) or bool(torch.isfinite(part).all()):
        return
    row, column = torch.nonzero(~torch.isfinite(part))[0].tolist()
    raise ValueError(
        f"{name} has a value that is not finite (row {row}, column {column} of the batch); "
        "remove or repair such rows first."
    )


def _mirrored(upper: Tensor) -> Tensor:
    """The symmetric matrix whose upper triangle this is, copied a panel at a time to stay in the cache."""
    full = upper.clone(memory_format=torch.contiguous_format)
    for start in range(0, full.shape[0], _PANEL):
        stop = start + _PANEL
        corner = full[start:stop, start:stop]
        corner.copy_(corner.triu() + corner.triu(1).T)
        full[stop:, start:stop] = full[start:stop, stop:].T
    return full


def _add_symmetric_product(out: Tensor, rows: Tensor) -> None:
    """Adds rowsᵀ rows to `out`, on and above the diagonal panels only: half the work of the full product."""
    for start in range(0, rows.shape[1], _PANEL):
        stop = start + _PANEL
        out[start:stop, start:].addmm_(rows[:, start:stop].T, rows[:, start:])
