"""Columns of arrays, tensors and frames, where no explainer says how to read them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp.tabular.explanation import Explanation


def single_column(ex: Explanation, feature: str) -> NDArray[Any] | None:
    """A feature's values in the rows of an explanation; None where it is no single column of them."""
    frame = frame_of(ex.data)
    if frame is not None:
        named = {str(name): position for position, name in enumerate(frame.columns)}
        if not set(named) & set(ex.feature_names) and len(named) == len(ex.feature_names):
            named = {name: position for position, name in enumerate(ex.feature_names)}
        return np.asarray(frame[:, named[feature]].to_numpy()) if feature in named else None
    matrix = matrix_of(ex.data)
    if matrix is None or matrix.shape[1] != len(ex.feature_names):
        return None
    return np.asarray(matrix[:, ex.feature_names.index(feature)])


def as_numbers(values: NDArray[Any] | None) -> NDArray[np.float64] | None:
    """A column as numbers, NaN where one is missing; None where it holds something else."""
    if values is None:
        return None
    if values.dtype == object:  # missing values have a type of their own in some frames
        known = (int, float, str, np.generic)
        values = np.array([value if isinstance(value, known) else np.nan for value in values.tolist()])
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        return None


def frame_of(data: Any) -> Any:
    """A frame of any library as narwhals sees it; None for anything else."""
    import narwhals as nw

    frame = nw.from_native(data, eager_only=True, pass_through=True)
    return frame if isinstance(frame, nw.DataFrame) else None


def matrix_of(data: Any) -> NDArray[Any] | None:
    """An array or tensor of two dimensions; None for anything else."""
    if hasattr(data, "detach"):
        data = data.detach().cpu()
        data = data.float() if "bfloat16" in str(data.dtype) else data
    if not hasattr(data, "shape"):
        return None
    array = np.asarray(data)
    return array if array.ndim == 2 else None
