"""Sanity and stability: explanations should follow the model's parameters and not the noise in its input."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from nobsp.metrics.arrays import (
    Array,
    as_array,
    expect_rows,
    expect_same_shape,
    mean_of_known,
    pearson,
    spearman,
    undefined,
)
from nobsp.network.guest import unwrapped


@dataclass(frozen=True, eq=False, repr=False)
class Randomisation:
    """How much of an explanation is left as the model's parameters are randomised.

    Attributes:
        layers: The layers in the order they were randomised, from the output towards the input.
        similarity: Correlation of each row's explanation with its original one, shape (layers, rows).
    """

    layers: tuple[str, ...]
    similarity: Array

    @property
    def mean(self) -> Array:
        """Mean correlation after each layer; near 0 is good, near 1 means the explanation ignores the parameters."""
        return np.array([mean_of_known(one) for one in self.similarity])

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}: {value:.3f}" for name, value in zip(self.layers, self.mean, strict=True))
        return f"Randomisation({parts})"


def model_randomisation(
    model: nn.Module,
    explain: Callable[[Any], Any],
    *,
    layers: Sequence[str] | None = None,
    cascade: bool = True,
    absolute: bool = True,
    measure: Literal["spearman", "pearson"] = "spearman",
    seed: int = 0,
) -> Randomisation:
    """Randomises layer after layer and compares explanations before and after (Adebayo et al., 2018).

    Layers are drawn anew by their own `reset_parameters`; one that has none gets its entries shuffled. The model given
    is never touched: every step works on a copy.

    Args:
        model: A torch module.
        explain: From a model to explanations, one a row. It is called with the model and with each randomised copy, and
            should fit or calibrate anew whatever depends on the model.
        layers: Names of submodules to randomise, in this order; every submodule with parameters of its own, from the
            last to the first, if None.
        cascade: Whether layers stay random once they are; otherwise each is randomised alone.
        absolute: Whether to compare absolute values, as in the paper that proposed the check.
        measure: Which correlation.
        seed: Decides the new parameters.

    Returns:
        Correlations, layer by layer and row by row.

    Raises:
        ValueError: If a name is no layer with parameters, or explanations change their shape.

    Warns:
        UndefinedScoreWarning: If some explanation is constant, so that its correlation is nan.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from nobsp.metrics import model_randomisation
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
        >>> rows = torch.randn(4, 5)
        >>> ignores_the_model = model_randomisation(model, lambda model: rows)
        >>> ignores_the_model
        Randomisation(2: 1.000, 0: 1.000)
    """
    if measure not in ("spearman", "pearson"):
        raise ValueError(f"measure should be 'spearman' or 'pearson', found {measure!r}.")
    base = unwrapped(model)
    before = _explanations(explain(base), absolute)
    correlate = spearman if measure == "spearman" else pearson
    names, similarity = [], []
    for name, randomised in _randomised(base, _layers_of(base, layers), cascade=cascade, seed=seed):
        after = _explanations(explain(randomised), absolute)
        expect_same_shape(before, "the explanation of the model", after, f"that with {name!r} randomised")
        names.append(name)
        similarity.append(correlate(before, after))
    found = np.stack(similarity)
    if np.isnan(found).any():
        undefined(f"{np.isnan(found).sum()} explanations are constant, so their correlations are nan.")
    return Randomisation(tuple(names), found)


def _explanations(values: Any, absolute: bool) -> Array:
    found = as_array(values, "what explain returned")
    if found.ndim < 2:
        raise ValueError(f"what explain returned has the shape {found.shape}; pass one explanation a row.")
    found = found.reshape(len(found), -1)
    return np.abs(found) if absolute else found


def _layers_of(model: nn.Module, layers: Sequence[str] | None) -> list[str]:
    own = [name for name, part in model.named_modules() if next(part.parameters(recurse=False), None) is not None]
    if layers is None:
        if not own:
            raise ValueError("the model has no parameters, so nothing can be randomised.")
        return own[::-1]
    unknown = [name for name in layers if name not in own]
    if unknown or not layers:
        raise ValueError(f"layers has {unknown or 'no names'}; layers with parameters are {own}.")
    return list(layers)


def _randomised(model: nn.Module, names: Sequence[str], *, cascade: bool, seed: int) -> Iterator[tuple[str, nn.Module]]:
    # Drawing parameters moves torch's global generator, which belongs to the caller.
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        state = torch.get_rng_state()
    current = copy.deepcopy(model)
    for name in names:
        if not cascade:
            current = copy.deepcopy(model)
        with torch.random.fork_rng(), torch.no_grad():
            torch.set_rng_state(state)
            _randomise(current.get_submodule(name))
            state = torch.get_rng_state()
        yield name, copy.deepcopy(current)


def _randomise(part: nn.Module) -> None:
    reset = getattr(part, "reset_parameters", None)
    if callable(reset):
        reset()
        return
    for parameter in part.parameters(recurse=False):
        order = torch.randperm(parameter.numel()).to(parameter.device)
        parameter.copy_(parameter.flatten()[order].view_as(parameter))


@dataclass(frozen=True, eq=False, repr=False)
class Stability:
    """How explanations move when the input does.

    Attributes:
        change: |explanation of the noisy row - explanation| / |explanation|, shape (repeats, rows).
        lipschitz: Per row the largest |change of the explanation| / |change of the input|.
    """

    change: Array
    lipschitz: Array

    @property
    def mean(self) -> float:
        """Mean relative change; 0 is perfectly stable."""
        return mean_of_known(self.change)

    @property
    def worst(self) -> Array:
        """Largest relative change of each row."""
        return np.asarray(self.change.max(axis=0))

    def __repr__(self) -> str:
        worst = mean_of_known(self.worst)
        return f"Stability(mean={self.mean:.3g}, mean of the worst={worst:.3g}, {self.change.shape[1]} rows)"


def stability(
    explain: Callable[[Any], Any],
    X: Any,
    *,
    noise: float = 0.05,
    scale: Any = None,
    repeats: int = 10,
    seed: int = 0,
) -> Stability:
    """Adds a little Gaussian noise to the input and measures how far explanations move.

    Args:
        explain: From rows (a float64 array of the shape of `X`) to explanations, one a row.
        X: Rows or images, rows first.
        noise: Standard deviation of the noise as a share of `scale`.
        scale: A number or an array that fits a row; the standard deviation of each column of `X` if None, so that
            columns that do not vary stay as they are.
        repeats: How many times.
        seed: Decides the noise.

    Returns:
        Changes, repeat by repeat and row by row; nan for rows whose explanation is zero.

    Raises:
        ValueError: If shapes do not match, or one row is given without `scale`.

    Warns:
        UndefinedScoreWarning: If some explanation is zero, so that its relative change is nan.

    Example:
        >>> import numpy as np
        >>> from nobsp.metrics import stability
        >>> X = np.random.default_rng(0).normal(size=(100, 3))
        >>> smooth, jumpy = stability(lambda X: 2 * X, X), stability(lambda X: np.sign(np.sin(40 * X)), X)
        >>> smooth.mean < jumpy.mean
        True
    """
    rows = as_array(X, "X")
    expect_rows(rows.ndim, "the shape of X", least=2, why="rows with columns")
    if not (math.isfinite(noise) and noise > 0):
        raise ValueError(f"noise is {noise}; pass a number above 0.")
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; pass at least 1.")
    if scale is None:
        expect_rows(len(rows), "X", least=2, why="measuring how columns vary (pass scale otherwise)")
        spread = rows.std(axis=0)
    else:
        spread = as_array(scale, "scale")
    if spread.shape != () and spread.shape != rows.shape[1:]:
        raise ValueError(f"scale has the shape {spread.shape} but a row has {rows.shape[1:]}.")
    if not (spread > 0).any():
        raise ValueError("no column of X varies, so there is no noise to add; pass scale.")
    before = _explanations(explain(rows.copy()), absolute=False)
    if len(before) != len(rows):
        raise ValueError(f"explain returned {len(before)} explanations for {len(rows)} rows.")
    size = np.linalg.norm(before, axis=1)
    rng = np.random.default_rng(seed)
    change, slope = np.empty((repeats, len(rows))), np.zeros(len(rows))
    for repeat in range(repeats):
        step = rng.normal(size=rows.shape) * (noise * spread)
        after = _explanations(explain(rows + step), absolute=False)
        expect_same_shape(before, "the explanation of X", after, "that of X with noise")
        moved = np.linalg.norm(after - before, axis=1)
        slope = np.maximum(slope, moved / np.linalg.norm(step.reshape(len(rows), -1), axis=1))
        with np.errstate(invalid="ignore", divide="ignore"):
            change[repeat] = np.where(size > 0, moved / size, np.nan)
    if (size == 0).any():
        undefined(f"{(size == 0).sum()} explanations are zero, so their relative change is nan.")
    return Stability(change, slope)
