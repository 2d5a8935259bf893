"""What is drawn: the functions behind whatever was given, some rows to draw them over, and where these lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp.plots.tables import single_column
from nobsp.tabular.compiled import CompiledExplainer
from nobsp.tabular.explanation import Explanation
from nobsp.tabular.lookup import Chunk

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Drawn:
    """Functions with what plots need to know besides.

    Attributes:
        functions: The functions.
        rows: Some rows: those of an explanation, or calibrated ones; None where there are none.
        of_outputs: Outputs that are drawn unless others are asked for.
    """

    functions: CompiledExplainer
    rows: Any
    of_outputs: tuple[int, ...]

    def places(self, data: Any) -> dict[int, Array] | None:
        """Where the caller's rows lie, or those that are known where none are given; None without any."""
        given = self.rows if data is None else data
        given = given.data if isinstance(given, Explanation) else given
        return None if given is None or len(given) == 0 else places_of(self.functions, given)


def drawn(given: Any, plot: str) -> Drawn:
    """What plots need to know of an explainer, or of the functions behind an explanation."""
    if not isinstance(given, Explanation):
        functions = functions_of(given, plot)
        return Drawn(functions, getattr(given, "sample_", None), tuple(range(len(functions.output_names))))
    if given.explainer is None:
        raise TypeError(f"{plot} draws functions, and this explanation has none with it; pass the explainer itself.")
    names = given.explainer.output_names
    unknown = [name for name in given.output_names if name not in names]
    if unknown:
        raise ValueError(
            f"{plot} draws functions of the model's outputs, and {unknown[0]!r} is none; pass the explainer itself."
        )
    return Drawn(given.explainer, given.data, tuple(names.index(name) for name in given.output_names))


def functions_of(given: Any, plot: str) -> CompiledExplainer:
    """The functions of an explainer, calibrated or compiled; told by what it has, so that torch is not needed."""
    if isinstance(given, CompiledExplainer):
        return given
    if hasattr(type(given), "functions_"):
        functions: CompiledExplainer = given.functions_
        return functions
    raise TypeError(f"{plot} draws an NObSP, a CompiledExplainer or an Explanation, found {type(given).__name__}.")


def places_of(functions: CompiledExplainer, rows: Any) -> dict[int, Array]:
    """Per feature that has a line or levels, where each row is: a number, or the position of its level; else NaN."""
    columns, count = functions.read_columns(rows)
    chunk, axes = Chunk(columns, slice(0, count)), functions.level_axes
    found: dict[int, Array] = {}
    for k, feature in enumerate(functions.features):
        if k in axes:
            places = chunk.places(axes[k])
            found[k] = np.where(places == len(axes[k]), np.nan, places)
        elif feature.span is not None and feature.columns[0] in columns:
            found[k] = chunk.numbers(feature.columns[0])
    return found


def values_of(ex: Explanation) -> dict[str, NDArray[Any] | None]:
    """Every feature's values in the rows of an explanation, levels by their names; None for what is no one value."""
    if ex.explainer is None:
        return {name: single_column(ex, name) for name in ex.feature_names}
    found: dict[str, NDArray[Any] | None] = dict.fromkeys(ex.feature_names)
    for k, places in places_of(ex.explainer, ex.data).items():
        feature = ex.explainer.features[k]
        if feature.kind == "levels":
            labels = np.array([*feature.labels, "?"], dtype=object)
            found[feature.name] = labels[np.where(np.isnan(places), len(feature.labels), places).astype(int)]
        else:
            found[feature.name] = places
    return found
