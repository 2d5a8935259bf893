"""What a page tells of a table: the ledger, the functions, the rows and how far the account is from the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp.page.classes import Labels, chosen_link, labels_of
from nobsp.page.functions import (
    bands_of,
    compiled_within,
    features_for_page,
    level_axes,
    terms_for_page,
    truth_for_page,
)
from nobsp.page.models import facts_of, findings_of
from nobsp.page.neighbours import hits_for_page
from nobsp.page.packing import known, packed, packed_codes, packed_column
from nobsp.page.sampling import evenly
from nobsp.tabular.compiled import CompiledExplainer
from nobsp.tabular.explanation import Explanation

Array = NDArray[np.float64]

# Numbers a page can hold beside plotly and stay under 8 MB: four bytes a number of the rows, eight of the functions,
# and a third more in base64.
_ROOM = 2_900_000
_MOST_ROW_NUMBERS = 300_000


def table_data(
    explanation: Explanation,
    *,
    explainer: Any,
    labels: Any,
    class_names: Sequence[str] | None,
    link: str | None,
    truth: Mapping[str, Callable[[Any], Any]] | None,
    hits: Any,
    names: Sequence[str] | None,
    rows: int,
) -> dict[str, Any]:
    """Everything the page shows of an explanation.

    Raises:
        ValueError: If the explanation is not the whole account of its explainer, or has no rows.
    """
    explainer = explanation.explainer if explainer is None else explainer
    _require_whole(explanation, explainer)
    classes_shown = _class_names(class_names, explainer, explanation.output_names)
    given = labels_of(
        labels, rows=len(explanation), names=classes_shown, classes=True if class_names is not None else None
    )
    classes = (given is not None and given.codes is not None) or getattr(hits, "classes", None) is not None
    own = getattr(explainer, "link_", "identity")
    link = chosen_link(link, own, outputs=len(explanation.output_names), classes=classes)
    if given is not None and given.codes is not None:
        classes_shown = given.names
    elif link not in ("softmax", "sigmoid"):
        classes_shown = ()
    numbers_a_row = len(explanation.feature_names) + 2 * len(explanation.output_names)
    most = min(rows, len(explanation), max(1, _MOST_ROW_NUMBERS // numbers_a_row))
    compiled = compiled_within(explainer, (_ROOM - 16 * most * numbers_a_row // 3) * 3 // 32)
    complete = complete_rows(compiled, explanation.data)
    if len(complete) == 0:
        raise ValueError("every row of subject has missing values; a page needs some that have none.")
    kept = complete[evenly(len(complete), most)]
    health = explainer.health() if hasattr(explainer, "health") else None
    findings = findings_of(explanation, health, compiled, missing=len(explanation) - len(complete))
    return {
        "outputs": explanation.output_names,
        "link": link,
        "classes": classes_shown,
        "facts": facts_of(explanation, explainer, health, link),
        "findings": findings or (None if health is None else []),  # what was not examined is not healthy
        "ledger": ledger(explanation),
        "residuals": residuals(explanation),
        "hits": None if hits is None else hits_for_page(hits, kept, rows=len(explanation), names=classes_shown),
        **_functions(explanation, explainer, compiled, truth, complete),
        **_rows(explanation[kept], compiled, given, kept, len(explanation), names),
    }


def _functions(
    explanation: Explanation,
    explainer: Any,
    compiled: CompiledExplainer,
    truth: Mapping[str, Callable[[Any], Any]] | None,
    complete: NDArray[np.intp],
) -> dict[str, Any]:
    """The learned functions, how strong they are, and what is drawn around them."""
    bands, level_names = bands_of(explainer)
    drawn = truth_for_page(truth, compiled, explanation[complete].data) if truth else {}
    terms = [explanation.terms.index(term) for term in compiled.terms]
    return {
        "base": known(compiled.base_values),
        "features": features_for_page(compiled, level_names),
        "terms": terms_for_page(compiled),
        "interactions": sum(len(term.features) > 1 for term in compiled.compiled),
        "strengths": known(np.abs(explanation.values[:, terms]).mean(0)),
        "totals": known(np.abs(explanation.total()).mean(0)),
        "bands": [bands.get(name) for name in compiled.feature_names],
        "truth": [drawn.get(name) for name in compiled.feature_names],
    }


def _require_whole(explanation: Explanation, explainer: Any) -> None:
    if len(explanation) == 0:
        raise ValueError("subject has no rows; explain some first.")
    if explainer is None:
        raise ValueError(
            "subject does not know its explainer (it was unpickled, or made by hand); pass it as explainer=."
        )
    compiled = isinstance(explainer, CompiledExplainer)
    terms = explainer.terms if compiled else explainer.terms_
    names = explainer.output_names if compiled else explainer.output_names_
    base = explainer.base_values if compiled else explainer.base_values_
    if explanation.terms != terms or explanation.output_names != names:
        raise ValueError(
            "subject holds only some of its explainer's terms or outputs, or a contrast of them; pass the whole "
            "explanation, as explainer(X) gives it. Rows may be chosen: explainer(X)[:100]."
        )
    if not np.array_equal(explanation.base_values, base):
        raise ValueError(
            "subject is not the account its explainer gives now (it is measured from the baseline, or the explainer "
            "was calibrated anew); pass explainer(X)."
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


def ledger(explanation: Explanation) -> dict[str, list[float | None]]:
    """Shares of each output's variance that single features carry, that interactions add, and that is left over.

    They add up to one, and the last is what `explained` leaves. None where an output does not vary, or is not known.
    """
    total = explanation.predictions.var(0)
    single = np.array([len(term) == 1 for term in explanation.terms])
    alone = explanation.predictions - explanation.values[:, single].sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.where(total > 0, explanation.residual.var(0) / total, np.nan)
        first = np.where(total > 0, 1 - alone.var(0) / total, np.nan)
    return {"singles": known(first), "interactions": known(1 - left - first), "left": known(left)}


def residuals(explanation: Explanation) -> dict[str, Any]:
    """How far the account is from the model over all rows, per output, beside how far predictions are spread."""
    sizes = np.abs(explanation.residual)
    return {
        "rows": len(explanation),
        "median": known(np.median(sizes, 0)),
        "most": known(np.quantile(sizes, 0.95, axis=0)),
        "largest": known(sizes.max(0)),
        "spread": known(explanation.predictions.std(0)),
    }


def complete_rows(compiled: CompiledExplainer, data: Any) -> NDArray[np.intp]:
    """Positions of rows without missing values; preprocessing may fill them in, but the functions do not take them."""
    columns, count = compiled._columns(data)
    complete = np.ones(count, dtype=bool)
    for column in columns.values():
        if column.dtype.kind == "f":
            complete &= np.isfinite(column)
        elif column.dtype.kind == "O":
            complete &= np.array([value is not None and value == value for value in column.tolist()], dtype=bool)
    return np.flatnonzero(complete)


def _rows(
    told: Explanation,
    compiled: CompiledExplainer,
    labels: Labels | None,
    kept: NDArray[np.intp],
    total: int,
    names: Sequence[str] | None,
) -> dict[str, Any]:
    """Rows to browse in, and how far the page's own functions are from the explainer's on them."""
    again = compiled(told.data, predictions=told.predictions, threads=1)
    columns, _ = compiled._columns(told.data)
    levels = level_axes(compiled)
    ran = bool(np.isfinite(told.predictions).all())
    terms = [told.terms.index(term) for term in again.terms]
    rows = {
        "count": len(kept),
        "total": total,
        "names": _row_names(told.data, kept) if names is None else [names[row] for row in kept],
        "columns": {
            str(column): packed_column(columns[column])
            for k, feature in enumerate(compiled.features)
            if k not in levels
            for column in feature.columns
            if column in columns
        },
        "levels": {
            str(k): packed_codes(axis.places([columns[column] for column in axis.columns]))
            for k, axis in levels.items()
        },
        "predictions": packed(told.predictions) if ran else None,
        "residuals": packed(again.residual, "f4") if ran else None,
        "labels": None if labels is None else labels.described(kept),
    }
    return {"rows": rows, "difference": known(np.abs(told.values[:, terms].sum(1) - again.values.sum(1)).max(0))}


def _row_names(data: Any, kept: NDArray[np.intp]) -> list[str] | list[int]:
    """The index of a pandas frame, else positions among all rows."""
    import narwhals as nw

    frame = nw.from_native(data, eager_only=True, pass_through=True)
    index = nw.maybe_get_index(frame) if isinstance(frame, nw.DataFrame) else None
    if index is None or [*index] == list(range(len(index))):
        return [int(position) for position in kept]
    return [str(name) for name in index]
