"""Scores of attributions: known functions recovered, faithfulness to what removal does, and concentration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nobsp.metrics.arrays import (
    Array,
    Model,
    as_array,
    is_constant,
    mean_of_known,
    name_features,
    require_shape,
    running,
    spearman,
    targets_of,
    undefined,
)
from nobsp.network.inputs import resolve_features


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

    Example:
        >>> import numpy as np
        >>> from nobsp.metrics import function_reproduction
        >>> x = np.linspace(-1, 1, 50)
        >>> truth = np.column_stack([x**2, np.sin(3 * x), 0 * x])
        >>> function_reproduction(truth + 5.0, truth, outputs=truth.sum(axis=1)).mean_r2
        1.0
    """
    found, true = as_array(contributions, "contributions", ndim=(2,)), as_array(truth, "truth", ndim=(2,))
    require_shape(found, "contributions", rows=2, like=true, called="truth")
    found, null = found - found.mean(axis=0), is_constant(true.T)
    true = true - true.mean(axis=0)
    if null.all():
        undefined("every true function is constant: there is nothing to reproduce, so its scores are nan.")
    with np.errstate(invalid="ignore", divide="ignore"):
        unexplained = np.where(null, np.nan, ((found - true) ** 2).mean(axis=0) / true.var(axis=0))
    reconstruction = float("nan")
    if outputs is not None:
        said = as_array(outputs, "outputs")
        if said.size != len(found):
            raise ValueError(f"outputs has the shape {said.shape}; pass one number for each of the {len(found)} rows.")
        if is_constant(said.ravel()):
            undefined("outputs are constant, so the R² of their reconstruction is nan.")
        else:
            error = found.sum(axis=1) - (said.ravel() - said.mean())
            reconstruction = float(1.0 - (error**2).mean() / said.var())
    return FunctionReproduction(
        feature_names=name_features(feature_names, found.shape[1]),
        r2=1.0 - unexplained,
        nrmse=np.sqrt(unexplained),
        null_attribution=np.where(null, np.abs(found).mean(axis=0), np.nan),
        reconstruction_r2=reconstruction,
    )


def sparseness(attributions: Any) -> Array:
    """The paper's formula, 1 - |a|₁ / (√n |a|₂): 0 if all n absolute values are equal, 1 - 1/√n if one is not zero.

    This is not what Quantus calls sparseness; see `gini_sparseness`. Neither says whether an explanation is right.

    Args:
        attributions: One explanation a row; further dimensions are flattened.

    Returns:
        One number a row; nan for rows of zeros.

    Example:
        >>> from nobsp.metrics import sparseness
        >>> sparseness([[1.0, 1.0, -1.0, 1.0], [0.0, 3.0, 0.0, 0.0]])
        array([0. , 0.5])
    """
    values = _magnitudes(attributions)
    with np.errstate(invalid="ignore"):
        return np.asarray(1.0 - values.sum(axis=1) / np.sqrt(values.shape[1] * (values**2).sum(axis=1)))


def gini_sparseness(attributions: Any) -> Array:
    """The Gini index of the absolute values, which Quantus calls sparseness.

    It is 0 if all n absolute values are equal and 1 - 1/n if one is not zero.

    Arguments, results and errors are those of `sparseness`.

    Example:
        >>> from nobsp.metrics import gini_sparseness
        >>> gini_sparseness([[1.0, 1.0, -1.0, 1.0], [0.0, 3.0, 0.0, 0.0]])
        array([0.  , 0.75])
    """
    values = _magnitudes(attributions)
    count = values.shape[1]
    weights = 2 * np.arange(1, count + 1) - count - 1
    with np.errstate(invalid="ignore"):
        return np.asarray((np.sort(values, axis=1) * weights).sum(axis=1) / (count * values.sum(axis=1)))


def _magnitudes(attributions: Any) -> Array:
    """Absolute values of each row as shares of its largest; nan for rows of zeros."""
    values = as_array(attributions, "attributions")
    if values.ndim < 2:
        raise ValueError(f"attributions has the shape {values.shape}; pass one explanation a row.")
    values = np.abs(values.reshape(len(values), -1))
    if values.shape[1] < 2:
        raise ValueError("attributions have one value a row; concentration needs at least two.")
    largest = values.max(axis=1, keepdims=True)
    zeros = int((largest == 0).sum())
    if zeros:
        undefined(f"{zeros} of {len(values)} rows are zero throughout, so their sparseness is nan.", depth=2)
    # Both measures ignore scale; dividing by the largest value keeps squares of tiny ones from vanishing.
    with np.errstate(invalid="ignore"):
        return np.asarray(values / largest)


@dataclass(frozen=True, eq=False, repr=False)
class Faithfulness:
    """Attributed importance beside the effect of removal.

    Attributes:
        correlation: Spearman correlation between the two; nan if either is the same for all features.
        importance: Mean absolute attribution of each feature.
        effect: Mean absolute change of the output when the feature is set to the baseline.
        feature_names: One a feature.
    """

    correlation: float
    importance: Array
    effect: Array
    feature_names: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Faithfulness(correlation={self.correlation:.3f}, {len(self.feature_names)} features)"


def removal_effects(
    model: Model,
    X: Any,
    *,
    baseline: Any,
    groups: Mapping[str, Any] | None = None,
    target: Any = None,
    batch_size: int = 4096,
) -> Array:
    """How the output of each row changes when one feature, or group of columns, is set to the baseline.

    The effects belong to the model, not to an explanation: compute them once and judge every method by them.

    Args:
        model: A torch module, or a function from rows to outputs.
        X: Rows, shape (rows, columns).
        baseline: One number for all columns, or one a column.
        groups: Columns by feature, where a feature has several; every column by itself if None.
        target: The output to watch, or one a row; what the model predicts (the largest output) if None.
        batch_size: Rows a forward pass.

    Returns:
        Output minus output without the feature, shape (rows, features).

    Example:
        >>> import numpy as np
        >>> from nobsp.metrics import removal_effects
        >>> removal_effects(lambda X: X @ np.array([2.0, -1.0]), np.ones((1, 2)), baseline=0.0)
        array([[ 2., -1.]])
    """
    rows = as_array(X, "X", ndim=(2,))
    columns = rows.shape[1]
    reference = as_array(baseline, "baseline", ndim=(0, 1))
    if reference.ndim and len(reference) != columns:
        raise ValueError(f"baseline has {len(reference)} values but X has {columns} columns; pass one value a column.")
    reference = np.broadcast_to(reference, (columns,))
    features = resolve_features(groups, columns=columns, names=None)
    with running(model, batch_size=batch_size) as run:
        before = run(rows)
        chosen = targets_of(target, before)
        each = np.arange(len(rows))
        effects = np.empty((len(rows), len(features.columns)))
        for position, members in enumerate(features.columns):
            without = rows.copy()
            without[:, list(members)] = reference[list(members)]
            effects[:, position] = before[each, chosen] - run(without)[each, chosen]
    return effects


def attribution_faithfulness(
    attributions: Any,
    effects: Any,
    *,
    groups: Mapping[str, Any] | None = None,
    feature_names: Iterable[str] | None = None,
) -> Faithfulness:
    """Spearman correlation between mean absolute attributions and mean absolute effects of removal.

    Args:
        attributions: Shape (rows, features); (rows, columns) if `groups` says which columns to add up.
        effects: What `removal_effects` gives, shape (rows, features).
        groups: Columns by feature, where attributions come column by column and effects do not.
        feature_names: One a feature, for the result; taken from `groups` where it is given.

    Example:
        >>> from nobsp.metrics import attribution_faithfulness
        >>> attribution_faithfulness([[3.0, -2.0, 0.1]], [[2.5, -2.2, 0.3]])
        Faithfulness(correlation=1.000, 3 features)
    """
    given, change = as_array(attributions, "attributions", ndim=(2,)), as_array(effects, "effects", ndim=(2,))
    if groups is not None:
        features = resolve_features(groups, columns=given.shape[1], names=None)
        given = np.column_stack([given[:, list(members)].sum(axis=1) for members in features.columns])
        feature_names = features.names if feature_names is None else feature_names
    require_shape(given, f"attributions{' added up by groups' if groups else ''}", like=change, called="effects")
    if given.shape[1] < 2:
        raise ValueError("there is one feature, but ranking features needs at least two.")
    importance, effect = np.abs(given).mean(axis=0), np.abs(change).mean(axis=0)
    correlation = float(spearman(importance, effect))
    if np.isnan(correlation):
        undefined("all features have the same importance or the same effect, so their correlation is nan.")
    return Faithfulness(correlation, importance, effect, name_features(feature_names, given.shape[1]))
