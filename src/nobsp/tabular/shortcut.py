"""Tables of a model of trees, read off its thresholds instead of running it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nobsp.network.forest import Forest
from nobsp.tabular.features import Points
from nobsp.tabular.grids import Averages, Tabulator
from nobsp.tabular.lookup import Array
from nobsp.tabular.setting import Sample

# Rows on which trees that were read are compared with the model.
_COMPARED_ROWS = 512
# Libraries add up trees in single precision, a few hundred of them.
_ROUNDING_OF_TREES = 1e-5


@dataclass(frozen=True, eq=False)
class Shortcut:
    """Tables of a model of trees, made without forward passes.

    The rows that they stand for are counted all the same.
    """

    forest: Forest
    spend: Callable[[int], None]

    def table(self, tabulator: Tabulator, features: Sequence[Points]) -> Averages | None:
        """The table of some features; None where one is no single column of ascending numbers."""
        lines = [_ascending_line(points) for points in features]
        if any(line is None for line in lines):
            return None

        sizes = [len(points) for points in features]
        self.spend(int(np.prod(sizes)) * len(tabulator.background))
        mean, outputs = self.forest.answer_on_grid(
            tabulator.background.double().numpy(),
            [points.columns[0] for points in features],
            [line for line in lines if line is not None],
            tabulator.head_weight.numpy(),
        )
        return Averages(torch.from_numpy(mean), tabulator.shorten(torch.from_numpy(outputs)))


def _ascending_line(points: Points) -> Array | None:
    """The numbers of a side, ascending and the missing one last; None where they are not."""
    if len(points.columns) != 1:
        return None
    numbers: Array = points.inputs[:, 0].double().numpy()
    known = numbers[:-1] if np.isnan(numbers[-1]) else numbers
    return numbers if bool((np.diff(known) >= 0).all()) else None


def find_shortcut(
    forest: Forest, sample: Sample, head_weight: Tensor, *, spend: Callable[[int], None]
) -> Shortcut | None:
    """A shortcut where the trees as they were read answer as the model does; None elsewhere.

    They are compared on calibration rows, for which the model's answers are known.
    """
    if not len(sample):
        return None
    some = sample.some(_COMPARED_ROWS)
    walked = torch.from_numpy(forest.answer(some.inputs.double().numpy())) @ head_weight
    # What is left is what the head adds, the same for every row.
    added = some.outputs - walked
    off = (added - added.mean(0)).abs().max()
    scale = walked.abs().max() + some.outputs.abs().max()
    return Shortcut(forest, spend) if float(off) <= _ROUNDING_OF_TREES * float(scale) else None
