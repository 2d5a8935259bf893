"""Functions as a JavaScript module without dependencies; its code reads tables as pages do."""

from __future__ import annotations

import json
import math
from importlib import resources
from typing import Any

from nobsp.frames import is_missing
from nobsp.tabular.exports.layout import Layout, LevelPlace, NumberPlace
from nobsp.tabular.lookup import Level


def write_javascript(layout: Layout) -> str:
    """An ES module that exports predict, probabilities, sums and contributions.

    Each is for a row {column: value}.
    """
    folder = resources.files("nobsp.tabular.exports")
    reading = (folder / "reading.js").read_text(encoding="utf-8")
    module = (folder / "module.js").read_text(encoding="utf-8")
    return f"const data = {_embedded(_data_of(layout))};\n\n{reading}{module}"


def _embedded(data: dict[str, Any]) -> str:
    """JSON that is a JavaScript expression anywhere, also inside a page's script element."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data_of(layout: Layout) -> dict[str, Any]:
    """The tables as JSON holds them; numbers are read back exactly."""
    places = []
    for position, place in enumerate(layout.places):
        if isinstance(place, NumberPlace):
            places.append(
                {
                    "column": layout.columns[place.column],
                    "knots": place.knots.tolist(),
                    "missing": place.missing,
                }
            )
        else:
            places.append(_level_data(layout, place, position))

    terms = [
        {"name": term.name, "places": term.places, "values": term.values.ravel().tolist()}
        for term in layout.terms
    ]
    return {
        "outputs": layout.outputs,
        "classes": layout.classes,
        "link": "softmax" if layout.link == "log_softmax" else layout.link,
        "hasProbabilities": layout.has_probabilities,
        "areProbabilities": layout.are_probabilities,
        "base": layout.base.tolist(),
        "places": places,
        "terms": terms,
    }


def _level_data(layout: Layout, place: LevelPlace, position: int) -> dict[str, Any]:
    """A category: its columns and levels."""
    data: dict[str, Any] = {
        # How reading.js finds the level of a point.
        "feature": position,
        "columns": [layout.columns[column] for column in place.columns],
        "size": place.size,
        "missing": place.missing,
    }
    if place.names is not None:
        data["names"] = [_level_name(level) for level in place.names]
    else:
        assert place.numbers is not None
        data["numbers"] = place.numbers.tolist()
    return data


def _level_name(level: Level) -> Level:
    """A name as JSON holds it; what stands for missing is null."""
    if is_missing(level):
        return None
    if isinstance(level, float) and not math.isfinite(level):
        return str(level)
    return level
