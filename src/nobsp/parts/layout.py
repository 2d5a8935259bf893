"""Where the rows of a batch lie in a tensor of the forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """The axis of the rows, which others may share: windows of an image, tokens of a text."""

    axis: int
    rows_first: bool  # whether what shares the axis runs faster than the rows do

    def by_rows(self, tensor: Tensor, rows: int) -> Tensor:
        """The tensor as (rows, what shares their axis, all other axes)."""
        sizes = (rows, -1) if self.rows_first else (-1, rows)
        split = torch.unflatten(tensor, self.axis, sizes)
        first = self.axis if self.rows_first else self.axis + 1
        second = self.axis + 1 if self.rows_first else self.axis
        return split.movedim((first, second), (0, 1))

    def restore(self, by_rows: Tensor) -> Tensor:
        """The tensor as it was."""
        first = self.axis if self.rows_first else self.axis + 1
        second = self.axis + 1 if self.rows_first else self.axis
        return by_rows.movedim((0, 1), (first, second)).flatten(self.axis, self.axis + 1)


def find_layout(two: Tensor, three: Tensor, flipped: Tensor) -> Layout | None:
    """The layout of a tensor, from batches of two rows, of three, and of the two swapped.

    None where rows cannot be told apart.
    """
    if two.ndim != three.ndim:
        return None
    sizes = zip(two.shape, three.shape, strict=True)
    grown = [axis for axis, (less, more) in enumerate(sizes) if less != more]
    if len(grown) != 1:
        return None
    axis = grown[0]
    if 3 * two.shape[axis] != 2 * three.shape[axis]:
        return None

    size = float(two.abs().max()) if two.numel() else 0.0
    for rows_first in (True, False):
        layout = Layout(axis, rows_first)
        turned = layout.by_rows(two, 2).flip(0)
        expected = layout.by_rows(flipped, 2)
        if torch.allclose(turned, expected, rtol=1e-3, atol=1e-4 * size):
            return layout
    return None
