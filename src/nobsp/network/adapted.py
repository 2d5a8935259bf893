"""A model ready to be run, with what is known of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from nobsp.network.preprocessing import groups_by_running
from nobsp.network.tables import Encode


@dataclass(frozen=True, eq=False)
class Adapted:
    """A model as a torch module of one matrix, beside what the caller passes.

    Attributes:
        module: The torch module; for models of other libraries it works in float64 and returns margins.
        encode: The preprocessing that comes before the module: rows of the caller's kind (frame or array) to
            a float64 matrix. None where the module takes the rows as they are.
        feature_names: Names of the caller's columns, where the model was fitted on a frame.
        output_names: Class names, where the model has any; of two classes the second, whose margin it is.
        link: What the model applies to what is explained: "identity", "softmax", "sigmoid" or "exp". None for torch
            modules, whose link `Readout` finds.
        steps: By the caller's column, the neighbouring numbers on either side of each of the model's thresholds,
            (thresholds, 2); the model is constant in between. Only of models whose functions are steps.
        codes: The caller's columns that hold codes of categories.
        pack: Makes one matrix of what the caller passes, where the model takes several inputs.
        resolve: Names and slices of inputs, as the caller writes `features`, as columns of that matrix.
        layout: What makes the same of the model again without the rows; plain enough for a file.
    """

    module: nn.Module
    encode: Encode | None = None
    feature_names: tuple[str, ...] | None = None
    output_names: tuple[str, ...] | None = None
    link: str | None = None
    steps: Mapping[int, NDArray[np.float64]] = field(default_factory=dict)
    codes: tuple[int, ...] = ()
    pack: Callable[[Any], Any] | None = None
    resolve: Callable[[Any], Any] | None = None
    layout: dict[str, Any] | None = None

    def groups(self, X: Any) -> dict[str, list[int]]:
        """Which encoded columns each of the caller's columns goes into, found by running the preprocessing.

        One column at a time is shuffled in the rows of `X`; the encoded columns that change are its own.

        Args:
            X: Rows to run on, frame or array, in which every level that matters occurs. Unnamed columns are
                called "x0", "x1", ...

        Returns:
            Encoded columns by the caller's column, in the caller's order. Columns that change nothing
            (dropped or constant ones) are left out, and encoded columns that never change belong to nobody.

        Raises:
            ValueError: If the preprocessing mixes several columns into one.
        """
        return groups_by_running(X, self.encode, self.feature_names)
