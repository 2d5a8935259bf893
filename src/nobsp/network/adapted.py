"""A model ready to be run, with what is known of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from nobsp.network.batches import Encode
from nobsp.network.preprocessing import groups_by_running


@dataclass(frozen=True, eq=False)
class Adapted:
    """A model as a torch module of one matrix, beside what the caller passes."""

    module: nn.Module  # the torch module; for models of other libraries it works in float64 and returns margins
    # the preprocessing that comes before the module: rows of the caller's kind (frame or array) to a float64 matrix.
    # None where the module takes the rows as they are
    encode: Encode | None = None
    feature_names: tuple[str, ...] | None = None  # names of the caller's columns, where the model was fitted on a frame
    # class names, where the model has any; of two classes the second, whose margin it is
    output_names: tuple[str, ...] | None = None
    # what the model applies to what is explained: "identity", "softmax", "sigmoid" or "exp". None for torch modules,
    # whose link `Readout` finds
    link: str | None = None
    # by the caller's column, the neighbouring numbers on either side of each of the model's thresholds, (thresholds,
    # 2); the model is constant in between. Only of models whose functions are steps
    steps: Mapping[int, NDArray[np.float64]] = field(default_factory=dict)
    codes: tuple[int, ...] = ()  # the caller's columns that hold codes of categories
    # makes one matrix of what the caller passes, where the model takes several inputs
    pack: Callable[[Any], Any] | None = None
    # names and slices of inputs, as the caller writes `features`, as columns of that matrix
    resolve: Callable[[Any], Any] | None = None
    # what makes the same of the model again without the rows; plain enough for a file
    layout: dict[str, Any] | None = None

    def groups(self, X: Any) -> dict[str, list[int]]:
        """Which encoded columns each of the caller's columns goes into, found by running the preprocessing.

        One column at a time is shuffled in the rows of `X`; the encoded columns that change are its own.
        """
        return groups_by_running(X, self.encode, self.feature_names)
