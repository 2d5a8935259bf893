"""The caller's columns beside the network's: names, groups, levels, and values of one feature as input rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import narwhals as nw
import numpy as np
import torch
from torch import Tensor

from nobsp.network.adapted import Adapted
from nobsp.network.inputs import Features, resolve_features
from nobsp.network.summary import MOST_LEVELS, Summary


@dataclass(frozen=True, eq=False)
class Columns:
    """How the caller's table becomes the network's input, feature by feature.

    Attributes:
        features: The features, with columns of the *encoded* input.
        names: Names of the caller's columns, where they have any.
        count: How many columns the caller's table has.
        members: Per feature, the caller's columns it stands for.
        text_levels: Per feature whose own column is not numeric, the values it took.
        template: One value per caller's column, to encode the others of a feature with; empty without encoder.
        ranges: Smallest and largest value of each of the caller's numeric columns; empty without encoder.
    """

    features: Features
    names: tuple[str, ...] | None
    count: int
    members: tuple[tuple[int, ...], ...]
    text_levels: dict[int, list[Any]] = field(default_factory=dict)
    template: tuple[Any, ...] = ()
    ranges: tuple[tuple[float, ...], ...] = ()


def columns_of(
    X: Any,
    adapted: Adapted,
    given: Sequence[str] | Mapping[str, Any] | None,
    *,
    width: int,
    names: Sequence[str] | None,
) -> Columns:
    """Settles the features for a table and a model.

    Args:
        X: The calibration table.
        adapted: The model.
        given: What the caller passed as `features`.
        width: Columns of the encoded input.
        names: Names of the caller's columns, where known.
    """
    if adapted.encode is None:
        known = names if names is not None else adapted.feature_names
        features = resolve_features(given, columns=width, names=known)
        return Columns(features, None if known is None else tuple(known), width, features.columns)
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if not isinstance(frame, nw.DataFrame) and not isinstance(X, np.ndarray):
        raise TypeError(
            f"X must be a frame or an array where the model is a scikit-learn pipeline, found {type(X).__name__}."
        )
    groups = adapted.groups(X)
    known = adapted.feature_names or names
    user_names = tuple(known or (f"x{i}" for i in range(X.shape[1])))
    user = resolve_features(given, columns=len(user_names), names=user_names)
    encoded = tuple(
        tuple(column for member in members for column in groups.get(user_names[member], ())) for members in user.columns
    )
    values = [_column_values(X, frame, position, name) for position, name in enumerate(user_names)]
    text_levels = {}
    for feature, members in enumerate(user.columns):
        if len(members) == 1 and not _is_numeric(values[members[0]]):
            levels = sorted({v for v in values[members[0]].tolist() if v is not None and v == v}, key=str)
            text_levels[feature] = levels[:MOST_LEVELS]
    template = tuple(_typical(column) for column in values)
    return Columns(
        Features(user.names, encoded),
        tuple(known) if known else None,
        len(user_names),
        user.columns,
        text_levels,
        template,
        tuple(_range(column) for column in values),
    )


def input_values(columns: Columns, adapted: Adapted, feature: int, values: Any) -> Tensor:
    """Values of one feature, as the caller writes them, as columns of the network's input.

    Args:
        columns: The columns.
        adapted: The model.
        feature: Position of the feature.
        values: One value per row, or one row of values for a feature of several columns.
    """
    members = columns.members[feature]
    given = np.asarray(values) if not isinstance(values, Tensor) else values.detach().cpu().numpy()
    if given.ndim == 0:
        given = given[None]
    if given.ndim == 1:
        given = given[:, None] if len(members) == 1 else given[None, :]
    if given.ndim != 2 or given.shape[1] != len(members):
        raise ValueError(
            f"values of {columns.features.names[feature]!r} must have {len(members)} columns, found shape "
            f"{given.shape}."
        )
    if adapted.encode is None:
        try:
            return torch.tensor(np.asarray(given, dtype=np.float64))
        except (TypeError, ValueError) as error:
            raise TypeError(f"values of {columns.features.names[feature]!r} must be numbers.") from error
    rows = np.tile(np.array(columns.template, dtype=object), (given.shape[0], 1))
    rows[:, list(members)] = given
    if not any(isinstance(value, str) for value in columns.template):
        rows = rows.astype(np.float64)
    encoded = adapted.encode(rows)
    return torch.tensor(encoded[:, list(columns.features.columns[feature])], dtype=torch.float64)


def categories_of(columns: Columns, summary: Summary, embedded: Sequence[int], *, integer: bool) -> frozenset[int]:
    """Features whose mean is no possible value.

    These are embedded codes, text columns, and groups of two-valued columns (one-hot, scaled or not).
    """
    found = set(columns.text_levels)
    for feature, group in enumerate(columns.features.columns):
        if integer or any(column in embedded for column in group):
            found.add(feature)
        elif len(group) > 1 and feature in summary.levels:
            levels = summary.levels[feature][0]
            if all(len(torch.unique(levels[:, column])) <= 2 for column in range(len(group))):
                found.add(feature)
    return frozenset(found)


def level_labels(columns: Columns, feature: int, levels: Tensor) -> list[str]:
    """What to call each level of a feature: its number, or the one-hot columns that are on."""
    members = columns.members[feature]
    if len(members) == 1:
        return [f"{value:g}" for value in levels[:, 0].tolist()]
    names = [columns.names[m] if columns.names else f"x{m}" for m in members]
    high = levels.amax(0)
    labels = []
    for row in levels:
        on = [name for name, value, top in zip(names, row, high, strict=True) if value == top and top > row.min()]
        labels.append(" + ".join(on) if on else "(none)")
    return labels


def _column_values(X: Any, frame: Any, position: int, name: str) -> np.ndarray[Any, Any]:
    if isinstance(frame, nw.DataFrame):
        return np.asarray(frame[name].to_list(), dtype=object)
    return np.asarray(X[:, position], dtype=object)


def _is_numeric(column: np.ndarray[Any, Any]) -> bool:
    return all(isinstance(value, int | float | np.number | bool) for value in column[:1000] if value is not None)


def _range(column: np.ndarray[Any, Any]) -> tuple[float, ...]:
    if not _is_numeric(column):
        return ()
    known = np.array([value for value in column.tolist() if value is not None and value == value], dtype=float)
    return (float(known.min()), float(known.max())) if known.size else ()


def _typical(column: np.ndarray[Any, Any]) -> Any:
    """A value that may stand in the other columns while one feature is encoded."""
    known = [value for value in column.tolist() if value is not None and value == value]
    if not known:
        return float("nan")
    if _is_numeric(column):
        return float(np.median(np.array(known, dtype=float)))
    levels, counts = np.unique(np.array(list(map(str, known))), return_counts=True)
    return str(levels[counts.argmax()])
