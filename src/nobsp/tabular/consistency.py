"""Whether functions that a file held fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nobsp.tabular.lookup import NumberAxis, TermTable

if TYPE_CHECKING:
    from nobsp.tabular.functions import Functions


def require_readable(functions: Functions) -> None:
    """Reads everything once: what does not fit together shows now, and not when it is used."""
    for table in functions.tables:
        _require_whole(functions, table)
    _require_shapes(functions)
    _require_columns(functions)
    if not np.isfinite(functions.base_values).all():
        raise ValueError("its base values are not finite")

    functions.curves(points=2)
    functions.interaction_strengths()
    functions.importance()
    repr(functions)


def _require_shapes(functions: Functions) -> None:
    """An error where arrays are not of these features, tables and outputs."""
    n_outputs = len(functions.output_names)
    n_features = len(functions.features)
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "base_values": (functions.base_values.shape, (n_outputs,)),
        "baseline": (functions.baseline.shape, (n_features,)),
        "baseline_contributions": (
            functions.baseline_contributions.shape,
            (len(functions.tables), n_outputs),
        ),
    }

    for name, importance in functions.importances.items():
        shapes[f"importances[{name!r}]"] = (importance.shape, (n_features, n_outputs))
    for name, (shape, expected) in shapes.items():
        if shape != expected:
            raise ValueError(f"{name} has the shape {shape} where {expected} is needed")
    curves = {table.features[0]: table for table in functions.tables if len(table.features) == 1}
    for feature, spread in functions.spreads.items():
        if feature not in curves or spread.shape != curves[feature].values.shape:
            raise ValueError("spreads are not those of its curves")
        if not np.isfinite(spread).all():
            raise ValueError(f"the spread of {functions.features[feature].name!r} is not finite")


def _require_columns(functions: Functions) -> None:
    """An error where features are made of columns that the caller's table does not have."""
    columns = [column for feature in functions.features for column in feature.columns]
    for table in functions.tables:
        for axis in table.axes:
            columns += (axis.column,) if isinstance(axis, NumberAxis) else axis.columns
    if not all(0 <= column < functions.column_count for column in columns):
        raise ValueError(f"a feature has a column that is none of {functions.column_count}")


def _require_whole(functions: Functions, table: TermTable) -> None:
    """An error where a table does not fit its axes, its features or its numbers."""
    nodes = tuple(len(axis) for axis in table.axes)
    # A feature that the model never sees has no axis, and one node or none.
    shapes = ((), (1,)) if not nodes else (nodes,)
    if table.values.shape[:-1] not in shapes:
        raise ValueError(f"the table of {table.features} does not fit its axes")
    if table.values.shape[-1:] != (len(functions.output_names),):
        raise ValueError(f"the table of {table.features} is not of all outputs")
    if not np.isfinite(table.values).all():
        raise ValueError(f"the table of {table.features} has numbers that are not finite")
    if not all(0 <= feature < len(functions.features) for feature in table.features):
        raise ValueError(f"a table is of a feature {table.features} that is not there")
