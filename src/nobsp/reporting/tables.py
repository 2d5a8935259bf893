"""What a page tells of a table.

How well the functions describe the model, the functions, and the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from nobsp._typing import AnyArray, ArrayLike, FloatArray, TableLike
from nobsp.arguments import array_of, count, suggest
from nobsp.findings import Finding, merge_findings
from nobsp.frames import frame_of
from nobsp.numerics import evenly_spaced
from nobsp.reporting import packing
from nobsp.reporting.audits import (
    HitsLike,
    InfluenceLike,
    Positions,
    hits_for_page,
    influence_for_page,
)
from nobsp.reporting.packing import Fact, Labels, Names, PageData, known, packed, packed_codes
from nobsp.tabular.explanation import Explanation
from nobsp.tabular.functions import Functions, with_bands
from nobsp.tabular.health import sort_findings
from nobsp.tabular.lookup import (
    Chunk,
    Feature,
    LevelAxis,
    NumberAxis,
    TermTable,
    feature_position,
    level_axes,
    read_columns,
    read_tables,
)
from nobsp.tabular.weak_spots import weak_spot_findings

Truth = Mapping[str, Callable[[Any], Any]] | None
# An NObSP, compiled functions or None; told by attributes, so that torch is not needed.
ExplainerLike: TypeAlias = Any

# Bytes a page can hold beside plotly and stay under 8 MB: base64 makes a third more of them.
ROOM = 2_250_000
# More rows to browse in would make the page slow.
MOST_ROWS = 5000
# Points of a known function: as fine as the curves beside it.
_TRUTH_POINTS = 201
# Standard deviations in half of a 90% band.
_BAND = 1.645
# Outputs named among the facts.
_MOST_OUTPUTS = 4
# Subjects of a finding that are named; the others are counted.
_MOST_SUBJECTS = 5
_LINKS = {
    "softmax": "logits, before the softmax",
    "sigmoid": "log-odds, before the sigmoid",
    "exp": "logarithms, before the exponential",
    "identity": "the model's output",
}


@dataclass(frozen=True, eq=False)
class Shown:
    """An explanation as the page shows it."""

    functions: Functions
    columns: dict[int, AnyArray]
    # Of the terms with tables, as the page reads these, then of those only the model could tell.
    account: Explanation
    # Interactions whose grids do not fit.
    dropped: int
    # Bytes of those that do.
    size: int

    @property
    def most_rows(self) -> int:
        """How many rows fit beside the tables."""
        direct = len(self.account.terms) - len(self.functions.tables)
        numbers = len(self.columns) + (2 + direct) * len(self.account.output_names)
        outside = self.account.outside.sum() / len(self.account)
        told = (4 + 8 * len(self.account.output_names)) * self._told / len(self.account)
        bytes_of_row = 8 * numbers + int(4 * outside + told) + 8
        return min(MOST_ROWS, max(1, (ROOM - self.size) // bytes_of_row))

    @property
    def _told(self) -> int:
        """How many contributions of rows are in the page beside the tables."""
        tables = self.functions.tables
        rows = [_rows_with_unseen_levels(self.account, self.functions, table) for table in tables]
        return sum(map(len, rows))


@dataclass(frozen=True, eq=False)
class Classes:
    """What outputs and labels mean on the page."""

    # How outputs become predictions: a key of `_LINKS`.
    link: str
    # Names of the classes; none for a regression.
    names: tuple[str, ...]
    labels: Labels


def table_data(
    explanation: Explanation,
    *,
    explainer: ExplainerLike,
    labels: ArrayLike | None,
    class_names: Names,
    truth: Truth,
    hits: HitsLike,
    names: Names,
    influence: InfluenceLike = None,
) -> PageData:
    """Everything the page shows of an explanation."""
    whole = explanation.explainer
    if explainer is not None:
        whole = getattr(explainer, "functions_", explainer)
    functions = _require_whole(explanation, whole)
    classes = _read_classes(
        explanation,
        functions,
        explainer=explainer,
        labels=labels,
        class_names=class_names,
        has_classes=getattr(hits, "classes", None) is not None,
    )
    shown = _fit_on_page(explanation, functions)
    rows = evenly_spaced(len(explanation), shown.most_rows)

    neighbours = None
    if hits is not None:
        neighbours = hits_for_page(hits, rows, rows=len(explanation), names=classes.names)
    speakers = influence_for_page(influence, rows, rows=len(explanation), names=classes.names)
    return {
        "outputs": explanation.output_names,
        "link": classes.link,
        "classes": classes.names,
        "facts": list_facts(explanation, explainer, shown, classes.link),
        "findings": list_findings(explanation, shown),
        "fitted": _describe_terms(shown),
        "health": _health(functions),
        **account_for_variance(shown.account),
        "hits": neighbours,
        "influence": speakers,
        **_functions_for_page(shown, history=functions.history),
        "truth": truth_for_page(truth, shown.functions, shown.columns),
        "difference": known(_largest_difference(explanation, shown)),
        "rows": _rows_for_page(shown, classes.labels, rows, names),
    }


def _functions_for_page(shown: Shown, *, history: Sequence[object]) -> PageData:
    """The functions themselves, how strong they are, and how they were edited."""
    functions = shown.functions
    every_term = (*functions.terms, *functions.left_out)
    return {
        "base": known(functions.base_values),
        "features": [_feature_for_page(feature) for feature in functions.features],
        "from_average": from_average_for_page(shown),
        **tables_for_page(functions),
        "edits": [str(entry) for entry in history],
        "original": original_for_page(functions),
        "interactions": sum(len(term) > 1 for term in every_term),
        "strengths": known(_strengths(shown)),
        "mains": known(functions.importances["main"]),
        "totals": known(functions.importances["total"]),
    }


def _require_whole(explanation: Explanation, functions: object) -> Functions:
    """The functions behind an explanation, which must be all that they give."""
    if len(explanation) == 0:
        raise ValueError("subject has no rows; explain some first.")
    if explanation.scale != "output":
        raise ValueError(
            "subject is of probabilities; pass explainer(X), whose page can be read as "
            "probabilities too."
        )
    if not isinstance(functions, Functions):
        raise ValueError(
            "subject does not know its functions (it was made by hand); "
            "pass its explainer as explainer=."
        )

    with_tables = {frozenset(term) for term in functions.terms}
    every_term = with_tables | set(map(frozenset, functions.left_out))
    has_all_terms = {frozenset(term) for term in explanation.terms} in (with_tables, every_term)
    same_outputs = explanation.output_names == functions.output_names
    same_base = np.array_equal(explanation.base_values, functions.base_values)
    if not (has_all_terms and same_outputs and same_base):
        raise ValueError(
            "subject is not all that its explainer gives now (it has some terms or outputs, is a "
            "contrast, measured from the baseline, or of an earlier calibration); "
            "pass explainer(X), or rows of it, explainer(X)[:100]."
        )
    return functions


def _read_classes(
    explanation: Explanation,
    functions: Functions,
    *,
    explainer: ExplainerLike,
    labels: ArrayLike | None,
    class_names: Names,
    has_classes: bool,
) -> Classes:
    """What outputs and labels mean; `has_classes` says that neighbours have classes."""
    names = _class_names(
        class_names,
        explainer,
        explanation.output_names,
        labels,
        known=[str(name) for name in functions.classes],
    )
    true = packing.read_labels(
        labels, rows=len(explanation), names=names, classes=class_names is not None
    )

    link = "softmax" if functions.link == "log_softmax" else functions.link
    if link == "identity" and (true.names or has_classes):
        # The usual one.
        link = "softmax" if len(explanation.output_names) > 1 else "sigmoid"
    if true.names:
        names = true.names
    elif link not in ("softmax", "sigmoid"):
        names = ()
    return Classes(link, names, true)


def _class_names(
    class_names: Names,
    explainer: ExplainerLike,
    outputs: Sequence[str],
    labels: ArrayLike | None,
    *,
    known: Sequence[str],
) -> tuple[str, ...]:
    """Names of the classes: the caller's, the outputs', those of two classes, or the labels'.

    The first that is at hand is taken, in this order.

    `known` are the classes that the functions know, also where the model is not at hand.
    """
    if class_names is not None:
        return tuple(str(name) for name in class_names)
    if len(outputs) > 1:
        return tuple(outputs)

    classes = getattr(getattr(explainer, "model", None), "classes_", None)
    if classes is not None and len(classes) == 2:
        return tuple(str(name) for name in classes)
    if len(known) == 2:
        return tuple(known)
    other = _other_class(labels, outputs[0])
    return (f"not {outputs[0]}" if other is None else other, outputs[0])


def _other_class(labels: ArrayLike | None, positive: str) -> str | None:
    """What labels call the class that is not the positive one; None where they do not tell."""
    if labels is None:
        return None
    values = array_of(labels, name="labels").ravel()
    if values.dtype.kind in "biuf":
        return None
    others = {str(value) for value in values.tolist()} - {positive}
    return others.pop() if len(others) == 1 else None


def _fit_on_page(explanation: Explanation, functions: Functions) -> Shown:
    """Rows read from the tables as the page reads them, beside what only the network could tell."""
    functions = with_bands(functions)
    columns, n_rows = read_columns(functions, explanation.data)
    every_value, _ = read_tables(functions, columns, n_rows)
    for position, table in enumerate(functions.tables):
        rows = _rows_with_unseen_levels(explanation, functions, table)
        term = explanation.terms.index(functions.terms[position])
        every_value[rows, position] = explanation.values[rows, term]
    strengths = _mean_size(every_value).sum(1)
    fitting, size = drop_weakest(functions, strengths, ROOM // 2)

    terms = fitting.terms
    values = every_value[:, [functions.terms.index(term) for term in terms]]
    if len(explanation.terms) > len(functions.terms):
        positions = [explanation.terms.index(term) for term in functions.left_out]
        values = np.concatenate([values, explanation.values[:, positions]], axis=1)
        terms = (*terms, *functions.left_out)

    account = replace(
        explanation,
        values=values,
        terms=terms,
        residual=explanation.predictions - functions.base_values - values.sum(1),
        baseline_contributions=np.zeros(values.shape[1:]),
    )
    dropped = len(functions.tables) - len(fitting.tables)
    return Shown(fitting, columns, account, dropped=dropped, size=size)


def _rows_with_unseen_levels(
    explanation: Explanation, functions: Functions, table: TermTable
) -> Positions:
    """Rows with a level that a term's table does not have: the model told of them, if it ran."""
    levels = [feature for feature in table.features if feature in level_axes(functions)]
    return np.flatnonzero(explanation.outside[:, levels].any(1))


def _mean_size(values: FloatArray) -> FloatArray:
    """Mean absolute contribution over the rows where it is known, (terms, outputs)."""
    is_known = np.isfinite(values)
    total = np.where(is_known, np.abs(values), 0.0).sum(0)
    return np.asarray(total / np.maximum(is_known.sum(0), 1))


def _strengths(shown: Shown) -> FloatArray:
    """Mean size of every term, NaN for those that are not known here."""
    sizes = _mean_size(shown.account.values)
    every_term = len(shown.functions.terms) + len(shown.functions.left_out)
    unknown = np.full((every_term - len(sizes), sizes.shape[1]), np.nan)
    return np.concatenate([sizes, unknown])


def _largest_difference(explanation: Explanation, shown: Shown) -> FloatArray:
    """How far the sum of the tables is from the explanation's, over rows inside the range."""
    terms = [explanation.terms.index(term) for term in shown.functions.terms]
    explained = explanation.values[:, terms].sum(1)
    read = shown.account.values[:, : len(terms)].sum(1)
    inside = ~explanation.outside.any(1)
    return np.asarray(np.abs(explained - read)[inside].max(0, initial=0.0))


def _health(functions: Functions) -> PageData:
    """How much is explained of each output."""
    health = functions.state
    is_clustered = any(finding.code == "clusters" for finding in health.findings)
    return {
        "explained": known(health.explained),
        "standard_error": known(health.scatter) if health.held_out and health.scatter else None,
        "inside": known(health.inside),
        "neighbourhoods": known(health.neighbourhoods) if is_clustered else None,
        "outside_rows": health.outside_rows,
        "held_out": health.held_out,
    }


def account_for_variance(account: Explanation) -> PageData:
    """Per output, shares of variance that add up to one, and residuals beside the spread.

    None stands for what is not known.
    """
    whole = account[np.isfinite(account.residual).all(1)]
    mains = whole.order(1).explained()
    left = 1 - whole.explained()
    sizes = np.full((1, len(account.output_names)), np.nan)
    predictions = sizes
    if len(whole):
        sizes = np.abs(whole.residual)
        predictions = whole.predictions

    return {
        "ledger": {
            "singles": known(mains),
            "interactions": known(1 - left - mains),
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


def _rows_for_page(shown: Shown, labels: Labels, rows: Positions, names: Names) -> PageData:
    """Rows to browse in."""
    account = shown.account[rows]
    direct = account.values[:, len(shown.functions.tables) :]
    model_ran = bool(np.isfinite(shown.account.predictions).any())
    row_names: Sequence[str | int] = _row_names(account.data, rows)
    if names is not None:
        row_names = [names[row] for row in rows]

    outside = {}
    for number, is_outside in enumerate(account.outside.T):
        if is_outside.any():
            outside[str(number)] = packed_codes(np.flatnonzero(is_outside))
    return {
        "count": len(rows),
        "total": len(shown.account),
        "names": row_names,
        "columns": _number_columns(shown, rows),
        "levels": _level_columns(shown, rows),
        "outside": outside,
        "far": packed_codes(np.flatnonzero(account.far)),
        "direct": packed(direct) if direct.shape[1] else None,
        "told": _told_for_page(shown.functions, account),
        "predictions": packed(account.predictions) if model_ran else None,
        "residuals": packed(account.residual) if model_ran else None,
        "labels": packing.packed_labels(labels, rows),
    }


def _told_for_page(functions: Functions, account: Explanation) -> PageData:
    """Per term the rows whose levels its table does not have, and what the model told of them."""
    told = {}
    for position, table in enumerate(functions.tables):
        rows = _rows_with_unseen_levels(account, functions, table)
        if len(rows):
            values = account.values[rows, position]
            told[str(position)] = {"rows": packed_codes(rows), "values": packed(values)}
    return told


def _number_columns(shown: Shown, rows: Positions) -> PageData:
    """The columns of features that are numbers."""
    categories = level_axes(shown.functions)
    numbers = {
        feature.columns[0]
        for number, feature in enumerate(shown.functions.features)
        if feature.kind == "number" and number not in categories
    }
    present = sorted(column for column in numbers if column in shown.columns)
    chunk = Chunk(shown.columns, slice(0, len(shown.account)))
    return {str(column): packing.packed_column(chunk.numbers(column)[rows]) for column in present}


def _level_columns(shown: Shown, rows: Positions) -> PageData:
    """The levels of features that are categories."""
    levels = {}
    for number, axis in level_axes(shown.functions).items():
        columns = [shown.columns[column][rows] for column in axis.columns]
        levels[str(number)] = packed_codes(axis.places(columns))
    return levels


def _row_names(data: TableLike, rows: Positions) -> list[str] | list[int]:
    """The index of a pandas frame, else positions among all rows."""
    import narwhals as nw

    frame = frame_of(data)
    index: Any = None if frame is None else nw.maybe_get_index(frame)
    if index is None or [*index] == list(range(len(index))):
        return [int(position) for position in rows]
    return [str(name) for name in index]


def drop_weakest(functions: Functions, strengths: FloatArray, room: int) -> tuple[Functions, int]:
    """The functions whose grids fit into so many bytes, and the bytes that their tables take.

    The strongest interactions come first.
    """
    tables = functions.tables
    interactions = [i for i, table in enumerate(tables) if len(table.features) > 1]
    strongest = sorted(interactions, key=lambda i: -strengths[i])
    sizes = np.cumsum([tables[i].values.nbytes for i in strongest])
    fitting = int((sizes <= room).sum())
    too_large = set(strongest[fitting:])

    remaining = [i for i in range(len(tables)) if i not in too_large]
    smaller = replace(
        functions,
        tables=tuple(tables[i] for i in remaining),
        baseline_contributions=functions.baseline_contributions[remaining],
    )
    return smaller, _bytes_of(smaller)


def _bytes_of(functions: Functions) -> int:
    """What tables, knots (each axis once) and bands take."""
    knots = {}
    for table in functions.tables:
        for axis in table.axes:
            if isinstance(axis, NumberAxis):
                knots[id(axis)] = axis.knots.nbytes
    values = sum(table.values.nbytes for table in functions.tables)
    bands = sum(spread.size * 4 for spread in functions.spreads.values())
    return values + sum(knots.values()) + bands


def _feature_for_page(feature: Feature) -> PageData:
    """What the page must know of a feature to offer a slider or a list of levels for it."""
    data: PageData = {"name": feature.name}
    if feature.kind == "levels":
        data["levels"] = feature.labels
    elif feature.kind == "number":
        column = feature.columns[0]
        slider = {"column": column, "name": feature.name, "range": feature.ranges[0]}
        data["columns"] = [slider]
    else:
        data["columns"] = []

    data["kind"] = feature.kind
    data["width"] = len(feature.columns)
    return data


def from_average_for_page(shown: Shown) -> list[list[float | None] | None]:
    """Per feature and output how far its curve is from partial dependence.

    None stands for curves that are no further from it than their band is wide.
    """
    functions = shown.functions
    distances = {
        term.term[0]: term.from_average for term in functions.state.terms if len(term.term) == 1
    }
    rows = Chunk(shown.columns, slice(0, len(shown.account)))
    spread = np.nanstd(shown.account.values.sum(1), axis=0)
    spread = np.where(spread > 0, spread, 1.0)

    listed: list[list[float | None] | None] = [None] * len(functions.features)
    for table in functions.tables:
        number = table.features[0]
        values = distances.get(functions.features[number].name, ())
        if len(table.features) > 1 or number not in functions.spreads or not values:
            continue
        deviations = TermTable(table.features, table.axes, functions.spreads[number])(rows)
        mean_square = np.nanmean(np.square(deviations), axis=0)
        band = _BAND * np.sqrt(mean_square) / spread
        listed[number] = [
            value if value > width else None for value, width in zip(values, band, strict=True)
        ]
    return listed


def tables_for_page(functions: Functions) -> PageData:
    """Every axis once, and every term: those with a table, then those that need the network."""
    axes: list[PageData] = []
    position_of_axis: dict[int, int] = {}
    terms: list[PageData] = []
    for table in functions.tables:
        for axis, feature in zip(table.axes, table.features, strict=False):
            if id(axis) not in position_of_axis:
                position_of_axis[id(axis)] = len(axes)
                axes.append(_axis_for_page(axis, feature))
        terms.append(
            {
                "features": table.features,
                "axes": [position_of_axis[id(axis)] for axis in table.axes],
                "values": packed(table.values),
                "spread": _band_for_page(functions, table),
            }
        )

    for term in functions.left_out:
        features = [feature_position(functions, name) for name in term]
        terms.append({"features": features, "axes": [], "values": None, "spread": None})
    return {"axes": axes, "terms": terms}


def original_for_page(functions: Functions) -> PageData | None:
    """Functions before anybody changed them; None where nobody did, or a feature is gone."""
    before = functions.original
    dropped = [
        feature.name
        for feature, former in zip(functions.features, before.features, strict=True)
        if feature.kind != former.kind
    ]
    if before is functions or dropped or before.output_names != functions.output_names:
        return None
    return {"base": known(before.base_values), **tables_for_page(before)}


def _axis_for_page(axis: NumberAxis | LevelAxis, feature: int) -> PageData:
    """Where a function has values: at knots along a column, or at the levels of a feature."""
    if isinstance(axis, NumberAxis):
        return {"column": axis.column, "knots": packed(axis.knots), "missing": axis.missing}
    return {"feature": feature, "size": len(axis)}


def _band_for_page(functions: Functions, table: TermTable) -> packing.Packed | None:
    """How far the function of a single feature may move; None where that is not known."""
    if len(table.features) != 1 or not table.axes:
        return None
    spread = functions.spreads.get(table.features[0])
    return None if spread is None else packed(spread, "f4")


def truth_for_page(
    truth: Truth, functions: Functions, columns: Mapping[int, AnyArray]
) -> list[PageData | None]:
    """Per feature its known function along the calibrated range, with the mean of the learned one.

    A term of a sum is known but for a constant; learned ones have mean zero over the calibration
    rows, not over these.
    """
    drawn: list[PageData | None] = [None] * len(functions.features)
    for name, function in (truth or {}).items():
        if name not in functions.feature_names:
            raise ValueError(
                f"truth names {name!r}, which is not a feature; "
                f"{suggest(name, functions.feature_names)}"
            )
        number = feature_position(functions, name)
        feature = functions.features[number]
        if feature.span is None:
            raise ValueError(
                f"truth of {name!r} cannot be drawn: it is not a function of one number."
            )

        x = np.linspace(*feature.span, _TRUTH_POINTS)
        every_row = np.asarray(columns[feature.columns[0]], dtype=np.float64)
        rows = every_row[np.isfinite(every_row)]
        mean = np.asarray(function(rows), dtype=np.float64).mean(0)
        centred = np.asarray(function(x), dtype=np.float64) - mean
        learned = [
            functions.function(name, output=output)(rows).mean()
            for output in range(len(functions.output_names))
        ]
        values = centred.reshape(len(x), -1) + np.array(learned)
        drawn[number] = {"x": packed(x), "value": known(values)}
    return drawn


def list_facts(
    explanation: Explanation, explainer: ExplainerLike, shown: Shown, link: str
) -> list[Fact]:
    """Model, data and what is explained, in words."""
    facts = []
    if hasattr(explainer, "model"):
        facts.append(("Model", packing.describe_model(explainer.model)))

    rows = count(len(explanation), "row")
    features = count(len(explanation.feature_names), "feature")
    outputs = ", ".join(explanation.output_names[:_MOST_OUTPUTS])
    if len(explanation.output_names) > _MOST_OUTPUTS:
        outputs += ", …"

    terms = _describe_terms(shown)
    return [
        *facts,
        ("Data", f"{rows}, {features}"),
        ("Calibrated on", count(shown.functions.state.rows, "row")),
        ("Explained", f"{outputs} ({_LINKS[link]})"),
        ("Found", terms),
    ]


def _describe_terms(shown: Shown) -> str:
    """How many terms were fitted, also those that are not on the page."""
    sizes = [len(term) for term in (*shown.functions.terms, *shown.functions.left_out)]
    mains = sizes.count(1)
    interactions = len(sizes) - mains + shown.dropped
    terms = count(mains, "main effect")
    return f"{terms} and {count(interactions, 'interaction')}" if interactions else terms


def list_findings(explanation: Explanation, shown: Shown) -> list[dict[str, str]]:
    """What is worth knowing before the page is believed, errors first.

    Equal messages about several subjects are written once.
    """
    findings = [*shown.functions.state.findings, *_findings_here(explanation, shown)]
    return [asdict(finding) for finding in merge_findings(sort_findings(findings))]


def _findings_here(explanation: Explanation, shown: Shown) -> list[Finding]:
    """What is worth knowing about these rows and this page."""
    findings = [*explanation.findings, *weak_spot_findings(explanation)]
    rows = len(explanation)
    unknown = int((~np.isfinite(shown.account.values)).any((1, 2)).sum())
    if unknown:
        message = (
            f"{count(unknown, 'row')} of {rows:,} have missing values "
            "for which no contribution is known."
        )
        findings.append(Finding("warning", "missing", "", message))
    if shown.dropped:
        message = (
            f"The weakest {count(shown.dropped, 'interaction')} would make this page too large: "
            "what they contribute is part of the residual shown."
        )
        findings.append(Finding("note", "pairs_left_out", "", message))

    functions = shown.functions
    left_out = functions.left_out
    if left_out and len(explanation.terms) == len(functions.terms) + shown.dropped:
        message = (
            "They have no table and the model was not run here: "
            "what they contribute is part of the residual."
        )
        subject = _join([" × ".join(term) for term in left_out])
        findings.append(Finding("note", "not_run", subject, message))

    if not np.isfinite(explanation.predictions).any():
        message = "The model was not run: predictions and residuals are not known there."
        findings.append(Finding("note", "no_predictions", "", message))
    return findings


def _join(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    listed = ", ".join(names[:_MOST_SUBJECTS])
    more = len(names) - _MOST_SUBJECTS
    return f"{listed} and {more} more" if more > 0 else listed
