"""Recovery of known functions: the paper's Function Reproduction Score."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nobsp.metrics.arrays import (
    Array,
    as_array,
    expect_rows,
    expect_same_shape,
    is_constant,
    mean_of_known,
    named,
    undefined,
)


@dataclass(frozen=True, eq=False, repr=False)
class FunctionReproduction:
    """How well the functions that made the data were recovered.

    Attributes:
        feature_names: One a feature.
        r2: Per feature, R² of the contribution against the true function, both centred; nan for features that play
            no part.
        nrmse: Per feature, root mean squared error as a share of the true function's standard deviation; nan likewise.
        null_attribution: Per feature that plays no part, the mean absolute centred contribution; nan for the others.
        reconstruction_r2: R² of the summed contributions against the model's outputs, both centred; nan if no outputs
            were given.
    """

    feature_names: tuple[str, ...]
    r2: Array
    nrmse: Array
    null_attribution: Array
    reconstruction_r2: float

    @property
    def mean_r2(self) -> float:
        """The Function Reproduction Score: mean R² over the features that play a part."""
        return mean_of_known(self.r2)

    @property
    def mean_nrmse(self) -> float:
        """Mean normalised error over the features that play a part."""
        return mean_of_known(self.nrmse)

    @property
    def mean_null_attribution(self) -> float:
        """Mean absolute contribution of the features that play no part; nan if all do."""
        return mean_of_known(self.null_attribution)

    def __repr__(self) -> str:
        return (
            f"FunctionReproduction(mean_r2={self.mean_r2:.3f}, mean_nrmse={self.mean_nrmse:.3f}, "
            f"mean_null_attribution={self.mean_null_attribution:.3g}, reconstruction_r2={self.reconstruction_r2:.3f})"
        )


def function_reproduction(
    contributions: Any, truth: Any, *, outputs: Any = None, feature_names: Iterable[str] | None = None
) -> FunctionReproduction:
    """Compares contributions with the functions they should be, feature by feature.

    Additive functions are known up to a constant each, so both sides are centred first. A feature whose true function
    is constant plays no part: its contribution counts as a false positive and has no R².

    Args:
        contributions: What an explanation assigns to each feature, shape (rows, features).
        truth: The true functions at the same rows, same shape.
        outputs: What the explained model says, shape (rows,), to score the sum of the contributions as well.
        feature_names: One a feature.

    Returns:
        Scores per feature and their means.

    Raises:
        ValueError: If shapes do not match or there are fewer than two rows.

    Warns:
        UndefinedScoreWarning: If every true function is constant, or the outputs are.

    Example:
        >>> import numpy as np
        >>> from nobsp.metrics import function_reproduction
        >>> x = np.linspace(-1, 1, 50)
        >>> truth = np.column_stack([x**2, np.sin(3 * x), 0 * x])
        >>> function_reproduction(truth + 5.0, truth, outputs=truth.sum(axis=1)).mean_r2
        1.0
    """
    found, true = as_array(contributions, "contributions", ndim=2), as_array(truth, "truth", ndim=2)
    expect_same_shape(found, "contributions", true, "truth")
    expect_rows(len(found), "contributions", least=2, why="comparing functions")
    names = named(feature_names, found.shape[1], "feature_names")
    found, null = found - found.mean(axis=0), is_constant(true.T)
    true = true - true.mean(axis=0)
    if null.all():
        undefined("every true function is constant: there is nothing to reproduce, so its scores are nan.")
    with np.errstate(invalid="ignore", divide="ignore"):
        unexplained = np.where(null, np.nan, ((found - true) ** 2).mean(axis=0) / true.var(axis=0))
    reconstruction = float("nan") if outputs is None else _reconstruction(found, outputs)
    if outputs is not None and np.isnan(reconstruction):
        undefined("outputs are constant, so the R² of their reconstruction is nan.")
    return FunctionReproduction(
        feature_names=names,
        r2=1.0 - unexplained,
        nrmse=np.sqrt(unexplained),
        null_attribution=np.where(null, np.abs(found).mean(axis=0), np.nan),
        reconstruction_r2=reconstruction,
    )


def _reconstruction(found: Array, outputs: Any) -> float:
    given = as_array(outputs, "outputs")
    if given.size != len(found):
        raise ValueError(f"outputs has the shape {given.shape}; pass one number for each of the {len(found)} rows.")
    given = given.ravel()
    if is_constant(given):
        return float("nan")
    centred = given - given.mean()
    return float(1.0 - ((found.sum(axis=1) - centred) ** 2).mean() / centred.var())
