"""The functions a page carries: every compiled term, with its band, and known truth where there is any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp.page.packing import known, packed
from nobsp.tabular.compiled import CompiledExplainer, CompiledFeature
from nobsp.tabular.lookup import CompiledTerm, LevelAxis, NumberAxis

Array = NDArray[np.float64]

_BAND_POINTS = 101
_TRUTH_POINTS = 201
_TOLERANCES = (1e-6, 1e-5, 1e-4)
_SMALLEST_GRID = 400


def compiled_within(explainer: Any, numbers: int) -> CompiledExplainer:
    """The explainer's functions as tables of at most about so many numbers, as exact as that allows.

    Args:
        explainer: A calibrated NObSP, or a compiled explainer, which is taken as it is.
        numbers: How many the page has room for.
    """
    if isinstance(explainer, CompiledExplainer):
        return explainer
    interactions = sum(len(term) > 1 for term in explainer.terms_)
    triples = any(len(term) > 2 for term in explainer.terms_)
    share = numbers // (2 * max(1, interactions) * len(explainer.output_names_))
    grid = int(np.clip(share, _SMALLEST_GRID, 1 << 14))
    for tolerance in _TOLERANCES:
        compiled: CompiledExplainer = explainer.compile(
            tolerance, pairs="network" if triples else "grid", grid_size=grid
        )
        if size_of(compiled) <= numbers:
            break
    return compiled


def size_of(compiled: CompiledExplainer) -> int:
    """How many numbers the tables hold."""
    knots = sum(len(axis.knots) for t in compiled.compiled for axis in t.axes if isinstance(axis, NumberAxis))
    return knots + sum(term.values.size for term in compiled.compiled)


def level_axes(compiled: CompiledExplainer) -> dict[int, LevelAxis]:
    """Per feature that is a category, its levels."""
    found: dict[int, LevelAxis] = {}
    for term in compiled.compiled:
        for axis in term.axes:
            if isinstance(axis, LevelAxis):
                feature = next(k for k in term.features if compiled.features[k].columns == axis.columns)
                found[feature] = axis
    return found


def features_for_page(compiled: CompiledExplainer, labels: Mapping[str, list[str]]) -> list[dict[str, Any]]:
    """What the page must know of each feature to offer a slider or a list of levels for it.

    Args:
        compiled: The functions.
        labels: Names of the levels of some features, where they are known.
    """
    levels = level_axes(compiled)
    used = {axis.column for term in compiled.compiled for axis in term.axes if isinstance(axis, NumberAxis)}
    described = []
    for k, feature in enumerate(compiled.features):
        about: dict[str, Any] = {"name": feature.name}
        if k in levels:
            about |= {"levels": _level_names(compiled, feature, levels[k], labels.get(feature.name))}
        else:
            about["columns"] = [
                {"column": column, "name": _column_name(compiled, feature, column), "range": span, "limits": limits}
                for column, span, limits in zip(feature.columns, feature.ranges, feature.limits, strict=False)
                if column in used
            ]
        described.append(about)
    return described


def terms_for_page(compiled: CompiledExplainer) -> list[dict[str, Any]]:
    """Every term's table, in the order of its axes; levels are named by their feature."""
    return [
        {
            "features": term.features,
            "axes": [_axis(compiled, term, axis) for axis in term.axes],
            "values": packed(term.values),
            "exact": bool(term.exact),
            "error": known(term.error),
        }
        for term in compiled.compiled
    ]


def _axis(compiled: CompiledExplainer, term: CompiledTerm, axis: NumberAxis | LevelAxis) -> dict[str, Any]:
    if isinstance(axis, NumberAxis):
        return {"column": axis.column, "knots": packed(axis.knots)}
    feature = next(k for k in term.features if compiled.features[k].columns == axis.columns)
    return {"feature": feature, "size": len(axis)}


def _column_name(compiled: CompiledExplainer, feature: CompiledFeature, column: int) -> str:
    if len(feature.columns) == 1:
        return feature.name
    return compiled.column_names[column] if compiled.column_names else f"column {column}"


def _level_names(
    compiled: CompiledExplainer, feature: CompiledFeature, axis: LevelAxis, given: list[str] | None
) -> list[str]:
    if isinstance(axis.levels, tuple):
        return [str(level) for level in axis.levels]
    if len(feature.columns) == 1:
        return [f"{value:g}" for value in axis.levels[:, 0]]
    if given is not None and len(given) == len(axis.levels):
        return given
    names = [_column_name(compiled, feature, column) for column in feature.columns]
    return [", ".join(f"{n}={v:g}" for n, v in zip(names, row, strict=True)) for row in axis.levels]


def bands_of(explainer: Any) -> tuple[dict[str, dict[str, Any]], dict[str, list[str]]]:
    """Per feature its band along its curve, and the names of its levels, from an explainer that has its network.

    Returns:
        Bands, empty where the calibration has none, and names of levels.
    """
    if not hasattr(explainer, "curves"):
        return {}, {}
    table = _columns_of(explainer.curves(_BAND_POINTS))
    outputs = len(explainer.output_names_)
    feature = np.asarray(table["feature"], dtype=object)
    bands, labels = {}, {}
    for name in dict.fromkeys(feature.tolist()):
        mine = feature == name
        x, lower, upper = (
            np.asarray(table[key], dtype=np.float64)[mine].reshape(outputs, -1) for key in ("x", "lower", "upper")
        )
        labels[name] = [str(level) for level in np.asarray(table["level"], dtype=object)[mine][: x.shape[1]]]
        if np.isfinite(lower).all():
            bands[name] = {
                "x": None if np.isnan(x).any() else packed(x[0]),
                "lower": packed(lower.T, "f4"),
                "upper": packed(upper.T, "f4"),
            }
    return bands, {name: names for name, names in labels.items() if all(names)}


def _columns_of(table: Any) -> dict[str, Any]:
    if isinstance(table, dict):
        return table
    import narwhals as nw

    return {str(name): series.to_numpy() for name, series in nw.from_native(table, eager_only=True).to_dict().items()}


def truth_for_page(
    truth: Mapping[str, Callable[[Any], Any]], compiled: CompiledExplainer, data: Any
) -> dict[str, dict[str, Any]]:
    """Known functions along the calibrated range, with the mean over the rows that the learned ones have there.

    A term of a sum is known but for a constant; learned ones have mean zero over the calibration rows, not over these.

    Args:
        truth: Functions of one number, by feature.
        compiled: The learned functions.
        data: The rows, without missing values.
    """
    columns, _ = compiled._columns(data)
    drawn = {}
    for name, function in truth.items():
        if name not in compiled.feature_names:
            raise ValueError(
                f"truth names {name!r}, which is no feature; there are {', '.join(compiled.feature_names[:12])}."
            )
        feature = compiled.features[compiled.feature_names.index(name)]
        if len(feature.ranges) != 1:
            raise ValueError(f"truth of {name!r} cannot be drawn: it is no function of one number.")
        x = np.linspace(*feature.ranges[0], _TRUTH_POINTS)
        rows = np.asarray(columns[feature.columns[0]], dtype=np.float64)
        at_rows = np.asarray(function(rows), dtype=np.float64)
        learned = [compiled.function(name, output=k)(rows).mean() for k in range(len(compiled.output_names))]
        values = (np.asarray(function(x), dtype=np.float64) - at_rows.mean(0)).reshape(len(x), -1) + np.array(learned)
        drawn[name] = {"x": packed(x, "f8"), "value": known(values)}
    return drawn
