"""Which columns of a model's input are looked up in embeddings, as codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nobsp.network.guest import Visit, hooked


def embedded_columns(
    layers: Mapping[str, nn.Module],
    run: Visit,
    probe: Tensor,
    prepare: Callable[[Tensor], Tensor],
) -> tuple[int, ...]:
    """Columns of `probe` whose integer part is looked up in one of these embeddings.

    The part may be shifted by a constant.
    """
    if probe.ndim != 2:
        return ()

    codes = probe.detach().to("cpu", torch.float64).trunc()
    lookups = _lookups_of(probe, layers, run, prepare)
    embedded: set[int] = set()
    for number, lookup in enumerate(lookups):
        candidates = lookup.like_columns(codes)
        if len(candidates) == 1 and lookup.varies:
            embedded |= candidates
        # Constant columns, or two with the same codes, may agree by chance: one is changed, and
        # looked up again.
        for column in candidates - embedded:
            changed = lookup.with_next_codes(probe, column)
            after = _lookups_of(changed, layers, run, prepare)
            is_the_same = len(after) == len(lookups) and torch.equal(
                after[number].indices, lookup.indices
            )
            if not is_the_same:
                embedded.add(column)
    return tuple(sorted(embedded))


@dataclass(frozen=True, eq=False)
class _Lookup:
    """What was looked up in an embedding at one position of every row."""

    indices: Tensor  # (rows,)
    levels: int  # of the embedding

    @property
    def varies(self) -> bool:
        """Whether rows differ in it."""
        return bool((self.indices != self.indices[0]).any())

    def like_columns(self, codes: Tensor) -> set[int]:
        """Columns that are the indices but for a constant."""
        shift = self.indices[:, None].to(torch.float64) - codes
        is_constant = (shift == shift[:1]).all(dim=0)
        return set(is_constant.nonzero().flatten().tolist())

    def with_next_codes(self, rows: Tensor, column: int) -> Tensor:
        """Rows with a column moved to the next valid code.

        In this way no lookup leaves the embedding.
        """
        changed = rows.detach().clone()
        step = (self.indices + 1) % self.levels - self.indices
        changed[:, column] += step.to(changed.device, changed.dtype)
        return changed


def _lookups_of(
    rows: Tensor,
    layers: Mapping[str, nn.Module],
    run: Visit,
    prepare: Callable[[Tensor], Tensor],
) -> list[_Lookup]:
    """What is looked up during a forward pass, in the order in which it is."""
    lookups: list[_Lookup] = []

    def see(_: str, layer: nn.Module, indices: Tensor) -> None:
        if not indices.ndim or indices.shape[0] != len(rows):
            return
        levels = len(torch.as_tensor(layer.weight))
        by_position = indices.detach().to("cpu", torch.int64).reshape(len(rows), -1).T
        lookups.extend(_Lookup(position.clone(), levels) for position in by_position)

    with hooked(run, layers, "input", see) as here:
        here.on = True
        run(prepare(rows))
    return lookups
