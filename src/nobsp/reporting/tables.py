"""What a page tells of a table: how well the functions describe the model, the functions, and the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp.base import Finding, sort_findings
from nobsp.frames import frame_of
from nobsp.messages import count, suggest
from nobsp.numerics import evenly_spaced
from nobsp.reporting import packing
from nobsp.reporting.audits import hits_for_page, influence_for_page
from nobsp.reporting.packing import Fact, Labels, Names, known, packed, packed_codes
from nobsp.tabular.compiled import CompiledExplainer
from nobsp.tabular.explanation import Explanation
from nobsp.tabular.lookup import Chunk, NumberAxis, TermTable

Array = NDArray[np.float64]
Truth = Mapping[str, Callable[[Any], Any]] | None

# Bytes a page can hold beside plotly and stay under 8 MB: base64 makes a third more of them.
ROOM = 2_250_000
MOST_ROWS = 5000
_TRUTH_POINTS = 201
# Standard deviations in half of a 90% band.
_BAND = 1.645
_LINKS = {
    "softmax": "logits, before the softmax",
    "sigmoid": "log-odds, before the sigmoid",
    "exp": "logarithms, before the exponential",
    "identity": "the model's output",
}


@dataclass(frozen=True, eq=False)
class Shown:
    """An explanation as the page shows it."""

    functions: CompiledExplainer
    columns: dict[int, NDArray[Any]]
    account: Explanation  # of the terms with tables, as the page reads these, then of those only the model could tell
    dropped: int  # interactions whose grids do not fit
    size: int  # bytes of those that do

    @property
    def most_rows(self) -> int:
        """How many rows fit beside the tables."""
        direct = len(self.account.terms) - len(self.functions.tables)
        numbers = len(self.columns) + (2 + direct) * len(self.account.output_names)
        bytes_of_row = 8 * numbers + int(4 * self.account.outside.sum() / len(self.account)) + 8
        return min(MOST_ROWS, max(1, (ROOM - self.size) // bytes_of_row))


def table_data(
    explanation: Explanation,
    *,
    explainer: Any,
    labels: Any,
    class_names: Names,
    truth: Truth,
    hits: Any,
    names: Names,
    influence: Any = None,
) -> dict[str, Any]:
    """Everything the page shows of an explanation."""
    functions = (
        explanation.explainer if explainer is None else getattr(explainer, "functions_", explainer)
    )
    _require_whole(explanation, functions)
    classes_shown = _class_names(class_names, explainer, explanation.output_names)
    given = packing.read_labels(
        labels, rows=len(explanation), names=classes_shown, classes=class_names is not None
    )
    classes = bool(given[1]) or getattr(hits, "classes", None) is not None
    link = {"log_softmax": "softmax"}.get(functions.link, functions.link)
    if link == "identity" and classes:  # the usual one
        link = "softmax" if len(explanation.output_names) > 1 else "sigmoid"
    if given[1]:
        classes_shown = given[1]
    elif link not in ("softmax", "sigmoid"):
        classes_shown = ()
    shown = _shown(explanation, functions)
    functions, health = shown.functions, functions.state
    kept = evenly_spaced(len(explanation), shown.most_rows)
    # How far the sum of the tables is from the explanation's, over rows within what was calibrated.
    terms = [explanation.terms.index(term) for term in functions.terms]
    apart = explanation.values[:, terms].sum(1) - shown.account.values[:, : len(terms)].sum(1)
    sizes = _mean_size(shown.account.values)
    unknown = np.full(
        (len(functions.terms) + len(functions.left_out) - len(sizes), sizes.shape[1]), np.nan
    )
    return {
        "outputs": explanation.output_names,
        "link": link,
        "classes": classes_shown,
        "facts": list_facts(explanation, explainer, shown, link),
        "findings": list_findings(explanation, shown),
        "health": {
            "explained": known(health.explained),
            "inside": known(health.inside),
            "outside_rows": health.outside_rows,
            "held_out": health.held_out,
        },
        **account_for_variance(shown.account),
        "hits": None
        if hits is None
        else hits_for_page(hits, kept, rows=len(explanation), names=classes_shown),
        "influence": influence_for_page(
            influence, kept, rows=len(explanation), names=classes_shown
        ),
        "base": known(functions.base_values),
        "features": features_for_page(functions),
        "from_average": from_average_for_page(functions, shown),
        **tables_for_page(functions),
        "interactions": sum(len(term) > 1 for term in (*functions.terms, *functions.left_out)),
        "strengths": known(np.concatenate([sizes, unknown])),
        "mains": known(functions.importances["main"]),
        "totals": known(functions.importances["total"]),
        "truth": truth_for_page(truth, functions, shown.columns),
        "difference": known(np.abs(apart[~explanation.outside.any(1)]).max(0, initial=0.0)),
        "rows": _rows(shown, given, kept, names),
    }


def _shown(explanation: Explanation, functions: CompiledExplainer) -> Shown:
    """Rows read from the tables, as the page itself reads them, beside what only the network could tell."""
    functions = functions.with_spreads()
    columns, count = functions.read_columns(explanation.data)
    values, _ = functions.read_tables(columns, count)
    kept, size = drop_weakest(functions, _mean_size(values).sum(1), ROOM // 2)
    values, terms = values[:, [functions.terms.index(term) for term in kept.terms]], kept.terms
    if len(explanation.terms) > len(functions.terms):
        direct = explanation.values[
            :, [explanation.terms.index(term) for term in functions.left_out]
        ]
        values, terms = np.concatenate([values, direct], axis=1), (*terms, *functions.left_out)
    residual = explanation.predictions - functions.base_values - values.sum(1)
    nothing = np.zeros(values.shape[1:])
    account = replace(
        explanation, values=values, terms=terms, residual=residual, baseline_contributions=nothing
    )
    return Shown(kept, columns, account, len(functions.tables) - len(kept.tables), size)


def _mean_size(values: Array) -> Array:
    """Mean absolute contribution over the rows where it is known, (terms, outputs)."""
    there = np.isfinite(values)
    return np.asarray(np.where(there, np.abs(values), 0.0).sum(0) / np.maximum(there.sum(0), 1))


def _require_whole(explanation: Explanation, functions: Any) -> None:
    if len(explanation) == 0:
        raise ValueError("subject has no rows; explain some first.")
    if not isinstance(functions, CompiledExplainer):
        raise ValueError(
            "subject does not know its functions (it was made by hand); pass its explainer as explainer=."
        )
    terms = {frozenset(term) for term in functions.terms}
    whole = {frozenset(term) for term in explanation.terms} in (
        terms,
        terms | set(map(frozenset, functions.left_out)),
    )
    same = explanation.output_names == functions.output_names
    if not whole or not same or not np.array_equal(explanation.base_values, functions.base_values):
        raise ValueError(
            "subject is not all that its explainer gives now (it has some terms or outputs, is a contrast, measured "
            "from the baseline, or of an earlier calibration); pass explainer(X), or rows of it, explainer(X)[:100]."
        )


def _class_names(given: Names, explainer: Any, outputs: Sequence[str]) -> tuple[str, ...]:
    if given is not None:
        return tuple(str(name) for name in given)
    if len(outputs) > 1:
        return tuple(outputs)
    classes = getattr(getattr(explainer, "model", None), "classes_", None)
    if classes is not None and len(classes) == 2:
        return tuple(str(name) for name in classes)
    return (f"not {outputs[0]}", outputs[0])


def account_for_variance(account: Explanation) -> dict[str, Any]:
    """Per output, shares of variance that add up to one, and residuals beside the spread; None where not known."""
    whole = account[np.isfinite(account.residual).all(1)]
    first, left = whole.order(1).explained(), 1 - whole.explained()
    unknown = np.full((1, len(account.output_names)), np.nan)
    sizes, predictions = (
        (np.abs(whole.residual), whole.predictions) if len(whole) else (unknown, unknown)
    )
    return {
        "ledger": {
            "singles": known(first),
            "interactions": known(1 - left - first),
            "left": known(left),
        },
        "residuals": {
            "rows": len(whole),
            "median": known(np.median(sizes, 0)),
            "most": known(np.quantile(sizes, 0.95, axis=0)),
            "largest": known(sizes.max(0)),
            "spread": known(predictions.std(0)),
        },
    }


def _rows(shown: Shown, labels: Labels, kept: NDArray[np.intp], names: Names) -> dict[str, Any]:
    """Rows to browse in."""
    levels, columns, account = shown.functions.level_axes, shown.columns, shown.account[kept]
    direct = account.values[:, len(shown.functions.tables) :]
    ran = bool(np.isfinite(shown.account.predictions).any())
    numbers = {
        f.columns[0]
        for k, f in enumerate(shown.functions.features)
        if f.kind == "number" and k not in levels
    }
    return {
        "count": len(kept),
        "total": len(shown.account),
        "names": _row_names(account.data, kept) if names is None else [names[row] for row in kept],
        "columns": {
            str(c): packing.packed_column(columns[c][kept]) for c in sorted(numbers) if c in columns
        },
        "levels": {
            str(k): packed_codes(axis.places([columns[column][kept] for column in axis.columns]))
            for k, axis in levels.items()
        },
        "outside": {
            str(k): packed_codes(np.flatnonzero(rows))
            for k, rows in enumerate(account.outside.T)
            if rows.any()
        },
        "direct": packed(direct) if direct.shape[1] else None,
        "predictions": packed(account.predictions) if ran else None,
        "residuals": packed(account.residual) if ran else None,
        "labels": packing.packed_labels(labels, kept),
    }


def _row_names(data: Any, kept: NDArray[np.intp]) -> list[str] | list[int]:
    """The index of a pandas frame, else positions among all rows."""
    import narwhals as nw

    frame = frame_of(data)
    index: Any = None if frame is None else nw.maybe_get_index(frame)
    if index is None or [*index] == list(range(len(index))):
        return [int(position) for position in kept]
    return [str(name) for name in index]


def drop_weakest(
    functions: CompiledExplainer, strengths: Array, room: int
) -> tuple[CompiledExplainer, int]:
    """The functions whose grids fit into so many bytes, the strongest first, and the bytes that their tables take."""
    tables = functions.tables
    pairs = sorted(
        (i for i, table in enumerate(tables) if len(table.features) > 1),
        key=lambda i: -strengths[i],
    )
    fit = int((np.cumsum([tables[i].values.nbytes for i in pairs]) <= room).sum())
    kept = [i for i in range(len(tables)) if i not in pairs[fit:]]
    left, at_baseline = tuple(tables[i] for i in kept), functions.baseline_contributions[kept]
    knots = {
        id(axis): axis.knots.nbytes
        for table in left
        for axis in table.axes
        if isinstance(axis, NumberAxis)
    }
    bands = sum(spread.size * 4 for spread in functions.spreads.values())
    size = sum(table.values.nbytes for table in left) + sum(knots.values()) + bands
    return replace(functions, tables=left, baseline_contributions=at_baseline), size


def features_for_page(functions: CompiledExplainer) -> list[dict[str, Any]]:
    """What the page must know of each feature to offer a slider or a list of levels for it."""
    found: list[dict[str, Any]] = []
    for one in functions.features:
        about: dict[str, Any] = {"levels": one.labels} if one.kind == "levels" else {"columns": []}
        if one.kind == "number":
            about["columns"] = [
                {"column": one.columns[0], "name": one.name, "range": one.ranges[0]}
            ]
        found.append({"name": one.name, **about, "kind": one.kind, "width": len(one.columns)})
    return found


def from_average_for_page(
    functions: CompiledExplainer, shown: Shown
) -> list[list[float | None] | None]:
    """Per feature and output how far its curve is from partial dependence, where that is more than its band."""
    distances = {
        term.term[0]: term.from_average for term in functions.state.terms if len(term.term) == 1
    }
    rows = Chunk(shown.columns, slice(0, len(shown.account)))
    spread = np.nanstd(shown.account.values.sum(1), axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    listed: list[list[float | None] | None] = [None] * len(functions.features)
    for table in functions.tables:
        k = table.features[0]
        values = distances.get(functions.features[k].name, ())
        if len(table.features) > 1 or k not in functions.spreads or not values:
            continue
        deviations = TermTable(table.features, table.axes, functions.spreads[k])(rows)
        band = _BAND * np.sqrt(np.nanmean(np.square(deviations), axis=0)) / spread
        listed[k] = [
            value if value > width else None for value, width in zip(values, band, strict=True)
        ]
    return listed


def tables_for_page(functions: CompiledExplainer) -> dict[str, Any]:
    """Every axis once, and every term: those with a table, then those that need the network."""
    axes: list[dict[str, Any]] = []
    places: dict[int, int] = {}

    def place(table: TermTable, position: int) -> int:
        axis = table.axes[position]
        if id(axis) not in places:
            places[id(axis)] = len(axes)
            if isinstance(axis, NumberAxis):
                axes.append(
                    {"column": axis.column, "knots": packed(axis.knots), "missing": axis.missing}
                )
            else:
                axes.append({"feature": table.features[position], "size": len(axis)})
        return places[id(axis)]

    nothing: dict[str, Any] = {"axes": [], "values": None, "spread": None}
    terms: list[dict[str, Any]] = []
    for table in functions.tables:
        spread = (
            functions.spreads.get(table.features[0])
            if len(table.features) == 1 and table.axes
            else None
        )
        grid = {
            "axes": [place(table, position) for position in range(len(table.axes))],
            "values": packed(table.values),
        }
        band = None if spread is None else packed(spread, "f4")
        terms.append({"features": table.features, **grid, "spread": band})
    terms += [
        nothing | {"features": [functions.position(name) for name in term]}
        for term in functions.left_out
    ]
    return {"axes": axes, "terms": terms}


def truth_for_page(
    truth: Truth, functions: CompiledExplainer, columns: Mapping[int, Any]
) -> list[Any]:
    """Per feature its known function along the calibrated range, with the mean over the rows of the learned one.

    A term of a sum is known but for a constant; learned ones have mean zero over the calibration rows, not over these.
    """
    drawn: list[dict[str, Any] | None] = [None] * len(functions.features)
    for name, function in (truth or {}).items():
        if name not in functions.feature_names:
            raise ValueError(
                f"truth names {name!r}, which is no feature; {suggest(name, functions.feature_names)}"
            )
        k = functions.position(name)
        span = functions.features[k].span
        if span is None:
            raise ValueError(f"truth of {name!r} cannot be drawn: it is no function of one number.")
        x = np.linspace(*span, _TRUTH_POINTS)
        rows = np.asarray(columns[functions.features[k].columns[0]], dtype=np.float64)
        rows = rows[np.isfinite(rows)]
        at_rows = np.asarray(function(rows), dtype=np.float64)
        learned = [
            functions.function(name, output=o)(rows).mean()
            for o in range(len(functions.output_names))
        ]
        values = (np.asarray(function(x), dtype=np.float64) - at_rows.mean(0)).reshape(
            len(x), -1
        ) + np.array(learned)
        drawn[k] = {"x": packed(x), "value": known(values)}
    return drawn


def list_facts(explanation: Explanation, explainer: Any, shown: Shown, link: str) -> list[Fact]:
    """Model, data and what is explained, in words."""
    sizes = [len(term) for term in (*shown.functions.terms, *shown.functions.left_out)]
    mains, pairs = sizes.count(1), len(sizes) - sizes.count(1) + shown.dropped
    facts = (
        [("Model", packing.describe_model(explainer.model))] if hasattr(explainer, "model") else []
    )
    facts.append(
        (
            "Data",
            f"{count(len(explanation), 'row')}, {count(len(explanation.feature_names), 'feature')}",
        )
    )
    facts.append(("Calibrated on", count(shown.functions.state.rows, "row")))
    outputs = ", ".join(explanation.output_names[:4]) + (
        ", …" if len(explanation.output_names) > 4 else ""
    )
    facts.append(("Explained", f"{outputs} ({_LINKS[link]})"))
    facts.append(
        (
            "Found",
            count(mains, "main effect") + (f" and {count(pairs, 'interaction')}" if pairs else ""),
        )
    )
    return facts


def list_findings(explanation: Explanation, shown: Shown) -> list[dict[str, str]]:
    """What is worth knowing before the page is believed, errors first; equal messages about several subjects once."""
    rows, dropped, functions = len(explanation), shown.dropped, shown.functions
    found = list(functions.state.findings)

    def add(severity: str, code: str, message: str, subject: str = "") -> None:
        found.append(Finding(severity, code, subject, message))

    outside = explanation.outside.sum(0)
    if outside.any():
        order = [k for k in np.argsort(-outside, kind="stable").tolist() if outside[k]]
        those = count(int(explanation.outside.any(1).sum()), "row")
        message = (
            f"{those} of {rows:,} lie outside what was calibrated: a number out of range (its function goes on), a "
            "missing value, or a level not seen (it contributes nothing here). Calibrate on rows that cover them."
        )
        add(
            "warning",
            "outside",
            message,
            _join([f"{explanation.feature_names[k]} ({outside[k]:,})" for k in order]),
        )
    if unknown := int((~np.isfinite(shown.account.values)).any((1, 2)).sum()):
        missing = f"{count(unknown, 'row')} of {rows:,} have missing values for which no contribution is known."
        add("warning", "missing", missing)
    if dropped:
        message = f"The weakest {count(dropped, 'interaction')} would make this page too large"
        add(
            "note",
            "pairs_left_out",
            f"{message}: what they contribute is part of the residual shown.",
        )
    if functions.left_out and len(explanation.terms) == len(functions.terms) + dropped:
        message = "They have no table and the model was not run here: what they contribute is part of the residual."
        add("note", "not_run", message, _join([" × ".join(term) for term in functions.left_out]))
    if not_run := rows - int(np.isfinite(explanation.predictions).all(1).sum()):
        where = "" if not_run == rows else f" on {count(not_run, 'row')}"
        add(
            "note",
            "no_predictions",
            f"The model was not run{where}: predictions and residuals are not known there.",
        )
    subjects: dict[tuple[str, str, str], list[str]] = {}
    for finding in sort_findings(found):
        subjects.setdefault((finding.severity, finding.code, finding.message), []).append(
            finding.subject
        )
    return [
        {"severity": severity, "code": code, "subject": _join(named), "message": message}
        for (severity, code, message), named in subjects.items()
    ]


def _join(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
