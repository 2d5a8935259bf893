"""What metrics share.

Arrays of the right shape, correlations, and running a model batch by batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from scipy import stats
from torch import nn

from nobsp._typing import AnyArray, ArrayLike, BoolArray, FloatArray, IntArray
from nobsp.arguments import array_of, numbers_of, require_whole_number
from nobsp.network.guest import device_and_dtype, evaluation_mode, unwrap

Array = NDArray[np.float64]
Model = nn.Module | Callable[[AnyArray], ArrayLike]
# Columns by feature, where a feature has several.
Groups = Mapping[str, Any] | None


class UndefinedScoreWarning(UserWarning):
    """A score is nan because it is not defined for this input."""


def undefined(message: str, *, depth: int = 1) -> None:
    """Warns that a score is nan, at the line that called the metric, `depth` calls up."""
    warnings.warn(message, UndefinedScoreWarning, stacklevel=2 + depth)


def as_array(
    values: ArrayLike,
    name: str,
    *,
    ndim: tuple[int, ...] = (),
    dtype: DTypeLike | None = np.float64,
) -> AnyArray:
    """An array of finite numbers from anything numpy understands, or a tensor on any device."""
    array = numbers_of(values, name=name, dtype=dtype)
    if ndim and array.ndim not in ndim:
        wanted = " or ".join(map(str, ndim))
        raise ValueError(f"{name} should have {wanted} dimensions, found the shape {array.shape}.")
    if array.size == 0:
        raise ValueError(f"{name} is empty: its shape is {array.shape}.")

    not_finite = int((~np.isfinite(array)).sum())
    if not_finite:
        raise ValueError(f"{name} has {not_finite} values that are nan or infinite; remove them.")
    return array


def as_images(values: ArrayLike) -> AnyArray:
    """Images, floating numbers in the precision they came in."""
    array = as_array(values, "images (images, channels, height, width)", ndim=(4,), dtype=None)
    return array if array.dtype == np.float32 else array.astype(np.float64)


def require_rows(values: FloatArray, name: str, *, least: int) -> None:
    """Raises a ValueError where there are too few rows to compare."""
    if len(values) < least:
        raise ValueError(
            f"{name} has {len(values)} rows, and comparing rows needs at least {least}."
        )


def require_same_shape(values: FloatArray, name: str, other: FloatArray, other_name: str) -> None:
    """Raises a ValueError where two arrays differ in shape."""
    if values.shape != other.shape:
        raise ValueError(
            f"{name} has the shape {values.shape} but {other_name} has {other.shape}; "
            "they must be the same."
        )


def at_target(values: ArrayLike, target: ArrayLike) -> FloatArray:
    """The values that belong to one output, or to another output in every row.

    Args:
        values: Shape (rows, outputs) or (rows, features, outputs).
        target: One output for all rows, or one per row.

    Returns:
        The same without the last dimension.

    Example:
        >>> from nobsp.metrics import at_target
        >>> at_target([[0.1, 0.9], [0.8, 0.2]], [1, 0])
        array([0.9, 0.8])
    """
    array = as_array(values, "values", ndim=(2, 3))
    rows = np.arange(len(array))
    return np.asarray(array[rows, ..., targets_of(target, array)])


def targets_of(target: ArrayLike | None, outputs: FloatArray) -> IntArray:
    """One valid output per row; the largest of (rows, outputs) where there is no target."""
    rows = len(outputs)
    n_outputs = outputs.shape[-1]
    targets = outputs.argmax(axis=1) if target is None else array_of(target, name="target")

    if targets.ndim > 1 or (targets.ndim == 1 and len(targets) != rows):
        raise ValueError(
            f"target should be one output or one for each of the {rows} rows, "
            f"found the shape {targets.shape}."
        )
    if not np.issubdtype(targets.dtype, np.integer):
        raise ValueError(
            f"target should be positions of outputs, whole numbers, found {targets.dtype}."
        )
    if targets.min() < 0 or targets.max() >= n_outputs:
        raise ValueError(
            f"target goes from {targets.min()} to {targets.max()} "
            f"but there are {n_outputs} outputs."
        )
    return np.broadcast_to(targets, (rows,)).astype(np.int64)


def is_constant(values: FloatArray) -> BoolArray:
    """Whether values along the last axis differ by no more than rounding."""
    rounding = 8 * np.finfo(np.float64).eps * np.abs(values).max(axis=-1)
    return np.asarray(np.ptp(values, axis=-1) <= rounding)


def pearson(first: FloatArray, second: FloatArray) -> FloatArray:
    """Correlations along the last axis; nan, without a warning, where either side is constant."""
    with warnings.catch_warnings():
        # Near-constant rows are ours to judge: scipy's bound is looser than rounding.
        warnings.simplefilter("ignore", stats.ConstantInputWarning)
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        correlation = stats.pearsonr(first, second, axis=-1).statistic

    either_constant = is_constant(first) | is_constant(second)
    return np.where(either_constant, np.nan, correlation)


def spearman(first: FloatArray, second: FloatArray) -> FloatArray:
    """Rank correlations along the last axis; nan where either side is constant."""
    return pearson(stats.rankdata(first, axis=-1), stats.rankdata(second, axis=-1))


def mean_of_known(values: FloatArray) -> float:
    """The mean without nan; nan, without a warning, if nothing else is there."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


@contextmanager
def running(model: Model, *, batch_size: int) -> Iterator[Callable[[AnyArray], FloatArray]]:
    """A function from rows to outputs (rows, outputs), run in batches.

    Modules are left as they were.
    """
    require_whole_number("batch_size", batch_size)
    if not callable(model) or isinstance(model, type):
        raise TypeError(
            f"model should be a torch module or a function, found {type(model).__name__}."
        )
    if not isinstance(model, nn.Module):
        yield lambda rows: _run_in_batches(model, rows, batch_size)
        return

    module = unwrap(model)
    device, dtype = device_and_dtype(module)
    with evaluation_mode(module) as evaluate:

        def evaluate_batch(batch: AnyArray) -> torch.Tensor:
            outputs: torch.Tensor = evaluate(torch.as_tensor(batch, dtype=dtype, device=device))
            return outputs

        yield lambda rows: _run_in_batches(evaluate_batch, rows, batch_size)


def _run_in_batches(
    evaluate: Callable[[AnyArray], ArrayLike], rows: AnyArray, batch_size: int
) -> FloatArray:
    """What a function returns for all rows, one batch after the other."""
    outputs = []
    for start in range(0, len(rows), batch_size):
        batch = rows[start : start + batch_size]
        try:
            answer = evaluate(batch)
        except (TypeError, RuntimeError, NotImplementedError) as failure:
            raise ValueError(f"the model cannot take {batch.shape} inputs: {failure}") from failure
        returned = as_array(answer, "what the model returned", ndim=(1, 2))
        if len(returned) != len(batch):
            raise ValueError(f"the model returned {len(returned)} outputs for {len(batch)} rows.")
        outputs.append(returned.reshape(len(batch), -1))
    return np.concatenate(outputs)
