"""Attributions beside what happens to the output when features are removed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nobsp._typing import ArrayLike, FloatArray
from nobsp.metrics.arrays import (
    Groups,
    Model,
    as_array,
    require_same_shape,
    running,
    spearman,
    targets_of,
    undefined,
)
from nobsp.network.columns import resolve_features


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """Attributed importance beside the effect of removal.

    Attributes:
        correlation: Spearman correlation between the two; nan if either is the same for all
            features.
        importance: Mean absolute attribution of each feature.
        effect: Mean absolute change of the output when the feature is set to the baseline.
    """

    correlation: float
    importance: FloatArray = field(repr=False)
    effect: FloatArray = field(repr=False)


def ablation_effects(
    model: Model,
    X: ArrayLike,
    *,
    baseline: ArrayLike,
    groups: Groups = None,
    target: ArrayLike | None = None,
    batch_size: int = 4096,
) -> FloatArray:
    """How each output changes when one feature, or group of columns, is set to the baseline.

    Effects belong to the model, not to an explanation: compute them once and judge every method by
    them.

    Args:
        model: A torch module, or a function from rows to outputs.
        X: Rows, shape (rows, columns).
        baseline: One number for all columns, or one per column.
        groups: Columns by feature, where a feature has several; every column by itself if None.
        target: The output to watch, or one per row; what the model predicts (the largest output) if
            None.
        batch_size: Rows per forward pass.

    Returns:
        Output minus output without the feature, shape (rows, features).

    Example:
        >>> import numpy as np
        >>> from nobsp.metrics import ablation_effects
        >>> ablation_effects(lambda X: X @ np.array([2.0, -1.0]), np.ones((1, 2)), baseline=0.0)
        array([[ 2., -1.]])
    """
    rows = as_array(X, "X", ndim=(2,))
    columns = rows.shape[1]
    reference = _baseline_row(baseline, columns)
    features = resolve_features(groups, argument="groups", columns=columns, names=None).columns

    effects = np.empty((len(rows), len(features)))
    with running(model, batch_size=batch_size) as run:
        before = run(rows)
        watched = (np.arange(len(rows)), targets_of(target, before))

        for position, members in enumerate(features):
            feature_columns = list(members)
            without = rows.copy()
            without[:, feature_columns] = reference[feature_columns]
            effects[:, position] = before[watched] - run(without)[watched]
    return effects


def _baseline_row(baseline: ArrayLike, columns: int) -> FloatArray:
    """One baseline value per column."""
    reference = as_array(baseline, "baseline", ndim=(0, 1))
    if reference.ndim and len(reference) != columns:
        raise ValueError(
            f"baseline has {len(reference)} values but X has {columns} columns; "
            "pass one value per column."
        )
    return np.broadcast_to(reference, (columns,))


def attribution_faithfulness(
    attributions: ArrayLike, effects: ArrayLike, *, groups: Groups = None
) -> Faithfulness:
    """Spearman correlation between mean absolute attributions and mean absolute effects of removal.

    Args:
        attributions: Shape (rows, features); (rows, columns) if `groups` says which columns to add
            up.
        effects: What `ablation_effects` gives, shape (rows, features).
        groups: Columns by feature, where attributions come column by column and effects do not.

    Example:
        >>> from nobsp.metrics import attribution_faithfulness
        >>> attribution_faithfulness([[3.0, -2.0, 0.1]], [[2.5, -2.2, 0.3]]).correlation > 0.99
        True
    """
    assigned = as_array(attributions, "attributions", ndim=(2,))
    changes = as_array(effects, "effects", ndim=(2,))
    name = "attributions"
    if groups is not None:
        assigned = _add_groups(assigned, groups)
        name = "attributions added up by groups"
    require_same_shape(assigned, name, changes, "effects")
    if assigned.shape[1] < 2:
        raise ValueError("there is one feature, but ranking features needs at least two.")

    importance = np.abs(assigned).mean(axis=0)
    effect = np.abs(changes).mean(axis=0)
    correlation = float(spearman(importance, effect))
    if np.isnan(correlation):
        undefined(
            "all features have the same importance or the same effect, so their correlation is nan."
        )
    return Faithfulness(correlation, importance, effect)


def _add_groups(attributions: FloatArray, groups: Groups) -> FloatArray:
    """Attributions of columns added up to those of features."""
    features = resolve_features(
        groups, argument="groups", columns=attributions.shape[1], names=None
    )
    sums = [attributions[:, list(members)].sum(axis=1) for members in features.columns]
    return np.column_stack(sums)
