"""Faithfulness: do attributions rank features by what removing them does to the model?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nobsp.metrics.arrays import (
    Array,
    Model,
    as_array,
    name_features,
    require_shape,
    running,
    spearman,
    targets_of,
    undefined,
)
from nobsp.network.inputs import resolve_features


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

    Returns:
        The correlation and what it was computed from.

    Warns:
        UndefinedScoreWarning: If all features have the same importance or the same effect.

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
