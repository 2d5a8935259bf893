"""Groups of rows that the caller names, by values or by a column of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nobsp._typing import AnyArray, ArrayLike, ModelLike, TableLike
from nobsp.arguments import as_numpy, suggest
from nobsp.frames import distinct_frame_of, frame_of, is_missing
from nobsp.tabular.features import FeatureOption
from nobsp.tabular.lookup import Places


def resolve_groups(
    X: TableLike, groups: ArrayLike, *, model: ModelLike, features: FeatureOption, rows: int | None
) -> tuple[TableLike, Places]:
    """The rows without a column that only names groups, and the group of every row as a number.

    A column that the model takes stays a feature. A model that names no columns is taken not to
    know it, unless `features` names it.
    """
    # A column of a frame has its name.
    name = groups if isinstance(groups, str) else getattr(groups, "name", None)
    argument = "groups" if name is None else f"groups ({str(name)!r})"
    if isinstance(groups, str):
        X, values = _take_column(X, groups, model=model, features=features)
    else:
        values = _group_values(groups)

    expected = len(values) if rows is None else rows
    if values.shape != (expected,):
        raise ValueError(
            f"groups has the shape {values.shape}; pass one group for each of the {expected:,} "
            "rows."
        )

    missing = [position for position, value in enumerate(values.tolist()) if is_missing(value)]
    if missing:
        raise ValueError(
            f"{argument} has a missing value in row {missing[0]}; give every row a group. A row on "
            "its own needs its own group."
        )

    _, codes = np.unique(
        values.astype(str) if values.dtype == object else values, return_inverse=True
    )
    if codes.max(initial=0) == 0:
        raise ValueError(
            f"{argument} has one group only, so that no rows could be held out; name at least two, "
            "or leave it out."
        )

    return X, codes.astype(np.intp)


def _group_values(groups: ArrayLike) -> AnyArray:
    """Groups from anything that holds one value per row."""
    frame = frame_of(groups)
    if frame is not None and len(frame.columns) == 1:
        return np.asarray(frame[:, 0].to_numpy())
    if hasattr(groups, "to_numpy"):
        return np.asarray(groups.to_numpy())
    return as_numpy(groups)


def _take_column(
    X: TableLike, name: str, *, model: ModelLike, features: FeatureOption
) -> tuple[TableLike, AnyArray]:
    """A column of a frame, and the frame, without it where the model does not take it."""
    frame = distinct_frame_of(X, argument="X")
    if frame is None:
        raise TypeError(
            f"groups is the name {name!r}, but X is a {type(X).__name__} without names; pass the "
            "groups themselves."
        )
    columns = [str(column) for column in frame.columns]
    if name not in columns:
        raise ValueError(
            f"groups names {name!r}, but X has no such column; {suggest(name, columns)}"
        )
    position = columns.index(name)
    values = np.asarray(frame[:, position].to_numpy())
    if name in _columns_of_model(model, features):
        return X, values
    others = [column for column in range(len(columns)) if column != position]
    return frame[:, others].to_native(), values


def _columns_of_model(model: ModelLike, features: FeatureOption) -> set[str]:
    """Names of columns that a model says it takes, or that the caller made features of."""
    names: set[str] = set()
    for attribute in ("feature_names_in_", "feature_names_", "feature_name_"):
        stated = getattr(model, attribute, None)
        if stated is not None and not callable(stated):
            names |= {str(name) for name in stated}
    if isinstance(features, Mapping):
        for members in features.values():
            listed = [members] if isinstance(members, str) else members
            names |= {str(member) for member in listed} if isinstance(listed, Sequence) else set()
    elif features is not None:
        names |= {str(name) for name in features}
    return names
