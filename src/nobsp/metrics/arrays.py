"""What metrics share: arrays of the right shape, correlations, and running a model batch by batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import nn

from nobsp._messages import as_numpy, require_whole_number
from nobsp.network.inference import device_and_dtype, evaluation_mode, unwrap

Array = NDArray[np.float64]
Model = nn.Module | Callable[[Any], Any]


class UndefinedScoreWarning(UserWarning):
    """A score is nan because it is not defined for this input."""


def undefined(message: str, *, depth: int = 1) -> None:
    """Warns that a score is nan, at the line that called the metric, `depth` calls up."""
    warnings.warn(message, UndefinedScoreWarning, stacklevel=2 + depth)


def as_array(
    values: Any, name: str, *, ndim: tuple[int, ...] = (), dtype: Any = np.float64
) -> NDArray[Any]:
    """An array of finite numbers from anything numpy understands, or a torch tensor on any device."""
    array = np.asarray(as_numpy(values), dtype=dtype)
    if ndim and array.ndim not in ndim:
        wanted = " or ".join(map(str, ndim))
        raise ValueError(f"{name} should have {wanted} dimensions, found the shape {array.shape}.")
    if array.size == 0:
        raise ValueError(f"{name} is empty: its shape is {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(
            f"{name} has {int((~np.isfinite(array)).sum())} values that are nan or infinite; remove them."
        )
    return array


def as_images(values: Any) -> NDArray[Any]:
    """Images, floating numbers in the precision they came in."""
    array = as_array(values, "images (images, channels, height, width)", ndim=(4,), dtype=None)
    return array if array.dtype == np.float32 else array.astype(np.float64)


def require_shape(
    values: Array, name: str, *, rows: int = 1, like: Array | None = None, called: str = ""
) -> None:
    """Raises a ValueError where there are too few rows to compare, or the shape is not that of another array."""
    if like is not None and values.shape != like.shape:
        raise ValueError(
            f"{name} has the shape {values.shape} but {called} has {like.shape}; they must be the same."
        )
    if len(values) < rows:
        raise ValueError(
            f"{name} has {len(values)} rows, and comparing rows needs at least {rows}."
        )


def at_target(values: Any, target: Any) -> Array:
    """The values that belong to one output, or to another output in every row.

    Args:
        values: Shape (rows, outputs) or (rows, features, outputs).
        target: One output for all rows, or one a row.

    Returns:
        The same without the last dimension.

    Example:
        >>> from nobsp.metrics import at_target
        >>> at_target([[0.1, 0.9], [0.8, 0.2]], [1, 0])
        array([0.9, 0.8])
    """
    array = as_array(values, "values", ndim=(2, 3))
    return np.asarray(array[np.arange(len(array)), ..., targets_of(target, array)])


def targets_of(target: Any, outputs: Array) -> NDArray[np.int64]:
    """One valid output a row; the largest of (rows, outputs) where none is given."""
    given = outputs.argmax(axis=1) if target is None else as_numpy(target)
    rows, count = len(outputs), outputs.shape[-1]
    if given.ndim > 1 or (given.ndim == 1 and len(given) != rows):
        raise ValueError(
            f"target should be one output or one for each of the {rows} rows, found {given.shape}."
        )
    if not np.issubdtype(given.dtype, np.integer):
        raise ValueError(
            f"target should be positions of outputs, whole numbers, found {given.dtype}."
        )
    if given.min() < 0 or given.max() >= count:
        raise ValueError(
            f"target goes from {given.min()} to {given.max()} but there are {count} outputs."
        )
    return np.broadcast_to(given, (rows,)).astype(np.int64)


def is_constant(values: Array) -> NDArray[np.bool_]:
    """Whether values along the last axis differ by no more than rounding."""
    return np.asarray(
        np.ptp(values, axis=-1) <= 8 * np.finfo(np.float64).eps * np.abs(values).max(axis=-1)
    )


def pearson(first: Array, second: Array) -> Array:
    """Correlations along the last axis; nan, without a warning, where either side is constant."""
    with warnings.catch_warnings():
        # Near-constant rows are ours to judge: scipy's bound is looser than rounding.
        warnings.simplefilter("ignore", stats.ConstantInputWarning)
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        r = stats.pearsonr(first, second, axis=-1).statistic
    return np.where(is_constant(first) | is_constant(second), np.nan, r)


def spearman(first: Array, second: Array) -> Array:
    """Rank correlations along the last axis; nan where either side is constant."""
    return pearson(stats.rankdata(first, axis=-1), stats.rankdata(second, axis=-1))


def mean_of_known(values: Array) -> float:
    """The mean without nan; nan, without a warning, if nothing else is there."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


@contextmanager
def running(model: Model, *, batch_size: int) -> Iterator[Callable[[NDArray[Any]], Array]]:
    """A function from rows to outputs (rows, outputs), run in batches; modules are left as they were."""
    require_whole_number("batch_size", batch_size)
    if not callable(model):
        raise TypeError(
            f"model should be a torch module or a function, found {type(model).__name__}."
        )
    module = unwrap(model) if isinstance(model, nn.Module) else None
    device, dtype = (None, None) if module is None else device_and_dtype(module)
    with nullcontext(model) if module is None else evaluation_mode(module) as call:

        def run(rows: NDArray[Any]) -> Array:
            found = []
            for start in range(0, len(rows), batch_size):
                batch = rows[start : start + batch_size]
                given: Any = (
                    batch if module is None else torch.as_tensor(batch, dtype=dtype, device=device)
                )
                outputs = as_array(call(given), "what the model returned", ndim=(1, 2))
                if len(outputs) != len(batch):
                    raise ValueError(
                        f"the model returned {len(outputs)} outputs for {len(batch)} rows."
                    )
                found.append(outputs.reshape(len(batch), -1))
            return np.concatenate(found)

        yield run
