"""How well known functions are recovered by an explanation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nobsp._typing import ArrayLike, FloatArray
from nobsp.metrics.arrays import (
    as_array,
    mean_of_known,
    require_rows,
    require_same_shape,
    undefined,
)
from nobsp.tabular.health import r_squared


@dataclass(frozen=True, eq=False, repr=False)
class FunctionReproduction:
    """How well the functions that made the data were recovered.

    Attributes:
        r2: Per feature, R² of the contribution against the true function, both centred; nan where
            it plays no part.
        nrmse: Per feature, root mean squared error as a share of the true function's standard
            deviation; nan likewise.
        null_attribution: Per feature that plays no part, the mean absolute centred contribution;
            nan for the others.
        reconstruction_r2: R² of the summed contributions against the model's outputs, both centred;
            nan without any.
    """

    r2: FloatArray
    nrmse: FloatArray
    null_attribution: FloatArray
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
            f"mean_null_attribution={self.mean_null_attribution:.3g}, "
            f"reconstruction_r2={self.reconstruction_r2:.3f})"
        )


def function_reproduction(
    contributions: ArrayLike, truth: ArrayLike, *, outputs: ArrayLike | None = None
) -> FunctionReproduction:
    """Compares contributions with the functions they should be, feature by feature.

    Additive functions are known up to a constant each, so both sides are centred first. A feature
    whose true function is constant plays no part: its contribution counts as a false positive and
    has no R².

    Args:
        contributions: What an explanation assigns to each feature, shape (rows, features).
        truth: The true functions at the same rows, same shape.
        outputs: What the explained model says, shape (rows,), to score the sum of the contributions
            as well.

    Example:
        >>> import numpy as np
        >>> from nobsp.metrics import function_reproduction
        >>> x = np.linspace(-1, 1, 50)
        >>> truth = np.column_stack([x**2, np.sin(3 * x), 0 * x])
        >>> function_reproduction(truth + 5.0, truth, outputs=truth.sum(axis=1)).mean_r2
        1.0
    """
    assigned = as_array(contributions, "contributions", ndim=(2,))
    true = as_array(truth, "truth", ndim=(2,))
    require_same_shape(assigned, "contributions", true, "truth")
    require_rows(assigned, "contributions", least=2)

    centred = assigned - assigned.mean(axis=0)
    errors = centred - (true - true.mean(axis=0))
    r2 = r_squared(errors, true)
    plays_no_part = np.isnan(r2)
    if plays_no_part.all():
        undefined(
            "every true function is constant: there is nothing to reproduce, so its scores are nan."
        )

    spread = np.where(plays_no_part, np.nan, true.std(axis=0))
    sizes = np.abs(centred).mean(axis=0)
    return FunctionReproduction(
        r2=r2,
        nrmse=np.sqrt((errors**2).mean(axis=0)) / spread,
        null_attribution=np.where(plays_no_part, sizes, np.nan),
        reconstruction_r2=_score_sum(centred.sum(axis=1), outputs),
    )


def _score_sum(total: FloatArray, outputs: ArrayLike | None) -> float:
    """R² of summed contributions, centred, against the model's outputs; nan without any."""
    if outputs is None:
        return float("nan")

    values = as_array(outputs, "outputs")
    if values.size != len(total):
        raise ValueError(
            f"outputs has the shape {values.shape}; "
            f"pass one number for each of the {len(total)} rows."
        )

    column = values.reshape(-1, 1)
    errors = total[:, None] - (column - column.mean())
    [explained] = r_squared(errors, column)
    if np.isnan(explained):
        undefined("outputs are constant, so the R² of their reconstruction is nan.", depth=2)
    return float(explained)
