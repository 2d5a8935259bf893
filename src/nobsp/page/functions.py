"""The functions a page carries: every term's table with its band, and known truth where there is any."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp.page.packing import known, packed
from nobsp.tabular.compiled import CompiledExplainer
from nobsp.tabular.lookup import NumberAxis, TermTable

Array = NDArray[np.float64]

_TRUTH_POINTS = 201


def drop_weakest(functions: CompiledExplainer, strengths: Array, room: int) -> tuple[CompiledExplainer, int]:
    """The functions whose grids fit into so many bytes, the strongest first, and the bytes that their tables take."""
    tables = functions.tables
    order = sorted(range(len(tables)), key=lambda i: (len(tables[i].features) > 1, -strengths[i]))
    sizes = np.array([tables[i].values.nbytes for i in order])
    pairs = np.array([len(tables[i].features) > 1 for i in order], dtype=bool)
    fits = np.cumsum(np.where(pairs, sizes, 0)) <= room
    kept = sorted(i for i, stays in zip(order, fits, strict=True) if stays)
    knots = {id(axis): axis.knots.nbytes for i in kept for axis in tables[i].axes if isinstance(axis, NumberAxis)}
    bands = sum(spread.size * 4 for spread in functions.spreads.values())
    if len(kept) < len(tables):
        functions = replace(
            functions,
            tables=tuple(tables[i] for i in kept),
            baseline_contributions=functions.baseline_contributions[kept],
        )
    return functions, int(sizes[fits].sum()) + sum(knots.values()) + bands


def features_for_page(functions: CompiledExplainer) -> list[dict[str, Any]]:
    """What the page must know of each feature to offer a slider or a list of levels for it."""
    described = []
    for feature in functions.features:
        about: dict[str, Any] = {"name": feature.name, "columns": []}
        if feature.kind == "levels":
            about = {"name": feature.name, "levels": feature.labels}
        elif feature.kind == "number":
            about["columns"] = [{"column": feature.columns[0], "name": feature.name, "range": feature.ranges[0]}]
        described.append(about | {"kind": feature.kind, "width": len(feature.columns)})
    return described


def tables_for_page(functions: CompiledExplainer) -> dict[str, Any]:
    """Every axis once, and every term: those with a table, then those that need the network."""
    axes: list[dict[str, Any]] = []
    places: dict[int, int] = {}

    def place(table: TermTable, position: int) -> int:
        axis = table.axes[position]
        if id(axis) not in places:
            places[id(axis)] = len(axes)
            if isinstance(axis, NumberAxis):
                axes.append({"column": axis.column, "knots": packed(axis.knots), "missing": axis.missing})
            else:
                axes.append({"feature": table.features[position], "size": len(axis)})
        return places[id(axis)]

    terms: list[dict[str, Any]] = []
    for table in functions.tables:
        spread = functions.spreads.get(table.features[0]) if len(table.features) == 1 and table.axes else None
        terms.append(
            {
                "features": table.features,
                "axes": [place(table, position) for position in range(len(table.axes))],
                "values": packed(table.values),
                "spread": None if spread is None else packed(spread, "f4"),
            }
        )
    for term in functions.left_out:
        features = [functions.position(name) for name in term]
        terms.append({"features": features, "axes": [], "values": None, "spread": None})
    return {"axes": axes, "terms": terms}


def truth_for_page(
    truth: Mapping[str, Callable[[Any], Any]] | None, functions: CompiledExplainer, columns: Mapping[int, Any]
) -> list[dict[str, Any] | None]:
    """Per feature its known function along the calibrated range, with the mean over the rows of the learned one.

    A term of a sum is known but for a constant; learned ones have mean zero over the calibration rows, not over these.
    """
    drawn: list[dict[str, Any] | None] = [None] * len(functions.features)
    for name, function in (truth or {}).items():
        if name not in functions.feature_names:
            some: Sequence[str] = functions.feature_names[:12]
            raise ValueError(f"truth names {name!r}, which is no feature; there are {', '.join(some)}.")
        k = functions.position(name)
        span = functions.features[k].span
        if span is None:
            raise ValueError(f"truth of {name!r} cannot be drawn: it is no function of one number.")
        x = np.linspace(*span, _TRUTH_POINTS)
        rows = np.asarray(columns[functions.features[k].columns[0]], dtype=np.float64)
        rows = rows[np.isfinite(rows)]
        at_rows = np.asarray(function(rows), dtype=np.float64)
        learned = [functions.function(name, output=o)(rows).mean() for o in range(len(functions.output_names))]
        values = (np.asarray(function(x), dtype=np.float64) - at_rows.mean(0)).reshape(len(x), -1) + np.array(learned)
        drawn[k] = {"x": packed(x), "value": known(values)}
    return drawn
