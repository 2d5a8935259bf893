"""What a page tells of a table: how well the functions describe the model, the functions, and the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp._messages import count, suggest
from nobsp.base import Finding, sort_findings
from nobsp.reporting.audits import hits_for_page
from nobsp.reporting.packing import (
    Fact,
    Labels,
    describe_model,
    evenly,
    known,
    packed,
    packed_codes,
    packed_column,
    read_labels,
)
from nobsp.tabular.compiled import CompiledExplainer
from nobsp.tabular.explanation import Explanation
from nobsp.tabular.lookup import NumberAxis, TermTable

Array = NDArray[np.float64]

# Bytes a page can hold beside plotly and stay under 8 MB: base64 makes a third more of them.
ROOM = 2_250_000
MOST_ROWS = 5000
_TRUTH_POINTS = 201
_LINKS = {
    "softmax": "logits, before the softmax",
    "sigmoid": "log-odds, before the sigmoid",
    "exp": "logarithms, before the exponential",
    "identity": "the model's output",
}


@dataclass(frozen=True, eq=False)
class Shown:
    """An explanation as the page shows it: what its tables contribute, what terms without one (`direct`) do, the rest.

    `dropped` interactions have grids that do not fit; `size` is the bytes of those that do.
    """

    functions: CompiledExplainer
    columns: dict[int, NDArray[Any]]
    values: Array
    direct: Array | None
    predictions: Array
    residual: Array
    outside: NDArray[np.bool_]
    dropped: int
    size: int

    @property
    def most_rows(self) -> int:
        """How many rows fit beside the tables."""
        direct = 0 if self.direct is None else self.direct.shape[1]
        numbers = len(self.columns) + (2 + direct) * int(self.predictions.shape[1])
        bytes_of_row = 8 * numbers + int(4 * self.outside.sum() / len(self.values)) + 8
        return min(MOST_ROWS, max(1, (ROOM - self.size) // bytes_of_row))


def table_data(
    explanation: Explanation,
    *,
    explainer: Any,
    labels: Any,
    class_names: Sequence[str] | None,
    truth: Mapping[str, Callable[[Any], Any]] | None,
    hits: Any,
    names: Sequence[str] | None,
) -> dict[str, Any]:
    """Everything the page shows of an explanation."""
    functions = explanation.explainer if explainer is None else getattr(explainer, "functions_", explainer)
    _require_whole(explanation, functions)
    classes_shown = _class_names(class_names, explainer, explanation.output_names)
    given = read_labels(labels, rows=len(explanation), names=classes_shown, classes=class_names is not None)
    classes = (given is not None and bool(given.names)) or getattr(hits, "classes", None) is not None
    link = choose_link(functions.link, outputs=len(explanation.output_names), classes=classes)
    if given is not None and given.names:
        classes_shown = given.names
    elif link not in ("softmax", "sigmoid"):
        classes_shown = ()
    shown = _shown(explanation, functions)
    functions, health = shown.functions, functions.state
    kept = evenly(len(explanation), shown.most_rows)
    sizes = [_mean_size(part) for part in (shown.values, shown.direct) if part is not None]
    unknown = np.full((len(functions.left_out) if shown.direct is None else 0, len(functions.output_names)), np.nan)
    return {
        "outputs": explanation.output_names,
        "link": link,
        "classes": classes_shown,
        "facts": list_facts(explanation, explainer, functions, link, dropped=shown.dropped),
        "findings": list_findings(explanation, functions, shown.values, dropped=shown.dropped),
        "health": {
            "explained": known(health.explained),
            "inside": known(health.inside),
            "outside_rows": health.outside_rows,
            "held_out": health.held_out,
        },
        **account_for_variance(shown),
        "hits": None if hits is None else hits_for_page(hits, kept, rows=len(explanation), names=classes_shown),
        "base": known(functions.base_values),
        "features": features_for_page(functions),
        **tables_for_page(functions),
        "interactions": sum(len(term) > 1 for term in (*functions.terms, *functions.left_out)),
        "strengths": known(np.concatenate([*sizes, unknown])),
        "mains": known(functions.importances["main"]),
        "totals": known(functions.importances["total"]),
        "truth": truth_for_page(truth, functions, shown.columns),
        "difference": _difference(explanation, shown),
        "rows": _rows(explanation[kept].data, shown, given, kept, names),
    }


def _shown(explanation: Explanation, functions: CompiledExplainer) -> Shown:
    """Rows read from the tables, as the page itself reads them, beside what only the network could tell."""
    functions = functions.with_spreads()
    columns, count = functions.read_columns(explanation.data)
    values, _ = functions.read_tables(columns, count)
    kept, size = drop_weakest(functions, _mean_size(values).sum(1), ROOM // 2)
    values = values[:, [functions.terms.index(term) for term in kept.terms]]
    direct = None
    if functions.left_out and len(explanation.terms) > len(functions.terms):
        direct = explanation.values[:, [explanation.terms.index(term) for term in functions.left_out]]
    total = functions.base_values + values.sum(1) + (0.0 if direct is None else direct.sum(1))
    predictions, dropped = explanation.predictions, len(functions.tables) - len(kept.tables)
    residual, outside = predictions - total, explanation.outside
    return Shown(kept, columns, values, direct, predictions, residual, outside, dropped, size)


def _mean_size(values: Array) -> Array:
    """Mean absolute contribution over the rows where it is known, (terms, outputs)."""
    there = np.isfinite(values)
    return np.asarray(np.where(there, np.abs(values), 0.0).sum(0) / np.maximum(there.sum(0), 1))


def _require_whole(explanation: Explanation, functions: Any) -> None:
    if len(explanation) == 0:
        raise ValueError("subject has no rows; explain some first.")
    if not isinstance(functions, CompiledExplainer):
        raise ValueError("subject does not know its functions (it was made by hand); pass its explainer as explainer=.")
    everything = {frozenset(term) for term in (*functions.terms, *functions.left_out)}
    terms = {frozenset(term) for term in explanation.terms}
    whole = terms in (everything, {frozenset(term) for term in functions.terms})
    if not whole or explanation.output_names != functions.output_names:
        raise ValueError(
            "subject holds only some of its explainer's terms or outputs, or a contrast of them; pass the whole "
            "explanation, as explainer(X) gives it. Rows may be chosen: explainer(X)[:100]."
        )
    if not np.array_equal(explanation.base_values, functions.base_values):
        raise ValueError(
            "subject is not what its explainer gives now (it is measured from the baseline, or the explainer was "
            "calibrated anew); pass explainer(X)."
        )


def _class_names(given: Sequence[str] | None, explainer: Any, outputs: Sequence[str]) -> tuple[str, ...]:
    if given is not None:
        return tuple(str(name) for name in given)
    if len(outputs) > 1:
        return tuple(outputs)
    classes = getattr(getattr(explainer, "model", None), "classes_", None)
    if classes is not None and len(classes) == 2:
        return tuple(str(name) for name in classes)
    return (f"not {outputs[0]}", outputs[0])


def account_for_variance(shown: Shown) -> dict[str, Any]:
    """What is accounted for over these rows, per output; None where it does not vary, or is not known.

    The ledger has shares of the variance that add up to one: main effects, what interactions add, what is left over.
    Residuals are how far the sum of the terms is from the model, beside how far predictions are spread.
    """
    alone = shown.values[:, [len(term) == 1 for term in shown.functions.terms]].sum(1)
    if shown.direct is not None:
        alone = alone + shown.direct[:, [len(term) == 1 for term in shown.functions.left_out]].sum(1)
    rows = np.isfinite(shown.residual).all(1)
    residual, predictions, alone = shown.residual[rows], shown.predictions[rows], alone[rows]
    if not rows.any():
        residual = predictions = alone = np.full((1, shown.predictions.shape[1]), np.nan)
    sizes, total = np.abs(residual), predictions.var(0)
    varies = np.ptp(predictions, axis=0) > 100 * np.finfo(float).eps * np.abs(predictions).max(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.where(varies, residual.var(0) / total, np.nan)
        first = np.where(varies, 1 - (predictions - alone).var(0) / total, np.nan)
    return {
        "ledger": {"singles": known(first), "interactions": known(1 - left - first), "left": known(left)},
        "residuals": {
            "rows": int(rows.sum()),
            "median": known(np.median(sizes, 0)),
            "most": known(np.quantile(sizes, 0.95, axis=0)),
            "largest": known(sizes.max(0)),
            "spread": known(predictions.std(0)),
        },
    }


def _difference(explanation: Explanation, shown: Shown) -> list[float | None]:
    """Largest difference of the tables' sum to the explanation's, over rows within what was calibrated."""
    terms = [explanation.terms.index(term) for term in shown.functions.terms]
    inside = ~shown.outside.any(1)
    apart = np.abs(explanation.values[:, terms].sum(1) - shown.values.sum(1))[inside]
    return known(apart.max(0, initial=0.0))


def _rows(
    data: Any, shown: Shown, labels: Labels | None, kept: NDArray[np.intp], names: Sequence[str] | None
) -> dict[str, Any]:
    """Rows to browse in."""
    levels, columns = shown.functions.level_axes, shown.columns
    ran = bool(np.isfinite(shown.predictions).any())
    numbers = {f.columns[0] for k, f in enumerate(shown.functions.features) if f.kind == "number" and k not in levels}
    outside = shown.outside[kept]
    return {
        "count": len(kept),
        "total": len(shown.values),
        "names": _row_names(data, kept) if names is None else [names[row] for row in kept],
        "columns": {str(c): packed_column(columns[c][kept]) for c in sorted(numbers) if c in columns},
        "levels": {
            str(k): packed_codes(axis.places([columns[column][kept] for column in axis.columns]))
            for k, axis in levels.items()
        },
        "outside": {str(k): packed_codes(np.flatnonzero(outside[:, k])) for k in np.flatnonzero(outside.any(0))},
        "direct": None if shown.direct is None else packed(shown.direct[kept]),
        "predictions": packed(shown.predictions[kept]) if ran else None,
        "residuals": packed(shown.residual[kept]) if ran else None,
        "labels": None if labels is None else labels.pack(kept),
    }


def _row_names(data: Any, kept: NDArray[np.intp]) -> list[str] | list[int]:
    """The index of a pandas frame, else positions among all rows."""
    import narwhals as nw

    frame = nw.from_native(data, eager_only=True, pass_through=True)
    index = nw.maybe_get_index(frame) if isinstance(frame, nw.DataFrame) else None
    if index is None or [*index] == list(range(len(index))):
        return [int(position) for position in kept]
    return [str(name) for name in index]


# ---------------------------------------------------------------------- functions


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
    found: list[dict[str, Any]] = []
    for feature in functions.features:
        about: dict[str, Any] = {"columns": []}
        if feature.kind == "levels":
            about = {"levels": feature.labels}
        elif feature.kind == "number":
            about["columns"] = [{"column": feature.columns[0], "name": feature.name, "range": feature.ranges[0]}]
        found.append({"name": feature.name, **about, "kind": feature.kind, "width": len(feature.columns)})
    return found


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

    nothing: dict[str, Any] = {"axes": [], "values": None, "spread": None}
    terms: list[dict[str, Any]] = []
    for table in functions.tables:
        spread = functions.spreads.get(table.features[0]) if len(table.features) == 1 and table.axes else None
        grid = {"axes": [place(table, position) for position in range(len(table.axes))], "values": packed(table.values)}
        band = None if spread is None else packed(spread, "f4")
        terms.append({"features": table.features, **grid, "spread": band})
    terms += [nothing | {"features": [functions.position(name) for name in term]} for term in functions.left_out]
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
            raise ValueError(f"truth names {name!r}, which is no feature; {suggest(name, functions.feature_names)}")
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


# ---------------------------------------------------------------------- in words


def list_facts(
    explanation: Explanation, explainer: Any, functions: CompiledExplainer, link: str, *, dropped: int
) -> list[Fact]:
    """Model, data and what is explained, in words."""
    sizes = [len(term) for term in (*functions.terms, *functions.left_out)]
    mains, pairs = sizes.count(1), len(sizes) - sizes.count(1) + dropped
    facts = [("Model", describe_model(explainer.model))] if hasattr(explainer, "model") else []
    facts.append(("Data", f"{count(len(explanation), 'row')}, {count(len(explanation.feature_names), 'feature')}"))
    facts.append(("Calibrated on", count(functions.state.rows, "row")))
    shown = ", ".join(explanation.output_names[:4]) + (", …" if len(explanation.output_names) > 4 else "")
    facts.append(("Explained", f"{shown} ({_LINKS[link]})"))
    facts.append(("Found", count(mains, "main effect") + (f" and {count(pairs, 'interaction')}" if pairs else "")))
    return facts


def list_findings(
    explanation: Explanation, functions: CompiledExplainer, values: NDArray[np.float64], *, dropped: int
) -> list[dict[str, str]]:
    """What is worth knowing before the page is believed, errors first; equal messages about several subjects once."""
    rows, found = len(explanation), list(functions.state.findings)

    def add(severity: str, code: str, message: str, subject: str = "") -> None:
        found.append(Finding(severity, code, subject, message))

    outside = explanation.outside.sum(0)
    if outside.any():
        order = [k for k in np.argsort(-outside, kind="stable").tolist() if outside[k]]
        those = count(int(explanation.outside.any(1).sum()), "row")
        message = (
            f"{those} of {rows:,} lie outside what was calibrated: a number out of range (its function is "
            "extrapolated), a missing value, or a level not seen (it contributes nothing in this page). Calibrate on "
            "rows that cover them."
        )
        add("warning", "outside", message, _join([f"{explanation.feature_names[k]} ({outside[k]:,})" for k in order]))
    if unknown := int((~np.isfinite(values)).any((1, 2)).sum()):
        missing = f"{count(unknown, 'row')} of {rows:,} have missing values for which no contribution is known."
        add("warning", "missing", missing)
    if dropped:
        message = (
            f"The weakest {count(dropped, 'interaction')} would make this page too large. Their grids are left out, "
            "and what they contribute is part of the residual shown."
        )
        add("note", "pairs_left_out", message)
    if functions.left_out and len(explanation.terms) == len(functions.terms) + dropped:
        message = "They have no table and the model was not run here: what they contribute is part of the residual."
        add("note", "not_run", message, _join([" × ".join(term) for term in functions.left_out]))
    if not_run := rows - int(np.isfinite(explanation.predictions).all(1).sum()):
        where = "" if not_run == rows else f" on {count(not_run, 'row')}"
        add("note", "no_predictions", f"The model was not run{where}: predictions and residuals are not known there.")
    subjects: dict[tuple[str, str, str], list[str]] = {}
    for finding in sort_findings(found):
        subjects.setdefault((finding.severity, finding.code, finding.message), []).append(finding.subject)
    return [
        {"severity": severity, "code": code, "subject": _join(named), "message": message}
        for (severity, code, message), named in subjects.items()
    ]


def _join(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def choose_link(own: str, *, outputs: int, classes: bool) -> str:
    """The model's own link, else the usual one where labels are classes."""
    if own != "identity" or not classes:
        return {"log_softmax": "softmax"}.get(own, own)
    return "softmax" if outputs > 1 else "sigmoid"
