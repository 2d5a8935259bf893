"""Finds the columns of a table that a model feeds, cast to integers, to its embedding layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import local
from typing import Any

import torch
from torch import Tensor, nn

from nobsp.network.calls import input_of


def embedded_columns(
    module: nn.Module, run: Callable[[Tensor], Any], probe: Tensor, prepare: Callable[[Tensor], Tensor]
) -> tuple[int, ...]:
    """Columns of `probe` whose integer part, up to a constant shift, is looked up in an embedding.

    Columns that equal a lookup in every row of the probe but could do so by chance (constant columns, two
    columns with the same codes) are decided by changing that column and looking again.
    """
    layers = [part for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)]
    if not layers or probe.ndim != 2:
        return ()

    def lookups_of(rows: Tensor) -> list[tuple[Tensor, int]]:
        with _lookups(layers, rows=len(rows)) as lookups:
            run(prepare(rows))
        return lookups

    codes = probe.detach().to("cpu", torch.float64).trunc()
    before = lookups_of(probe)
    found: set[int] = set()
    for number, (looked_up, levels) in enumerate(before):
        shift = looked_up[:, None].to(torch.float64) - codes
        constant_shift = (shift == shift[:1]).all(dim=0)
        columns = [int(column) for column in constant_shift.nonzero().flatten()]
        varies = bool((looked_up != looked_up[0]).any())
        if varies and len(columns) == 1:
            found.add(columns[0])
            continue
        for column in set(columns) - found:
            changed = _another_level(probe, column, looked_up, levels)
            after = lookups_of(changed)
            if len(after) != len(before) or not torch.equal(after[number][0], looked_up):
                found.add(column)
    return tuple(sorted(found))


def _another_level(probe: Tensor, column: int, looked_up: Tensor, levels: int) -> Tensor:
    """The probe with one column moved to the next valid code, so that no lookup leaves the embedding."""
    step = (looked_up + 1) % levels - looked_up
    changed = probe.detach().clone()
    changed[:, column] += step.to(changed.device, changed.dtype)
    return changed


@contextmanager
def _lookups(layers: Sequence[nn.Module], *, rows: int) -> Iterator[list[tuple[Tensor, int]]]:
    """Index vectors looked up during a forward pass, one value per row, each with its number of levels."""
    lookups: list[tuple[Tensor, int]] = []
    here = local()
    here.watching = True

    def hook(layer: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        if not getattr(here, "watching", False):
            return
        indices = input_of(args, rest)
        if indices.ndim == 0 or indices.shape[0] != rows:
            return
        levels = int(torch.as_tensor(layer.weight).shape[0])
        for position in indices.to("cpu", torch.int64).reshape(rows, -1).T:
            lookups.append((position.clone(), levels))

    handles = [layer.register_forward_hook(hook, with_kwargs=True) for layer in layers]
    try:
        yield lookups
    finally:
        for handle in handles:
            handle.remove()
