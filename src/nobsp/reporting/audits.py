"""What an index and an audit found, as a page shows it.

Recognised by attributes, so torch is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nobsp._typing import AnyArray, ArrayLike, BoolArray
from nobsp.arguments import count, require_parts, with_minus
from nobsp.reporting.packing import Names, PageData, known, packed, packed_codes

# Results of an audit, of `index.query` and of `index.influence`: told by their attributes, whoever
# made them.
AuditLike: TypeAlias = Any
HitsLike: TypeAlias = Any
InfluenceLike: TypeAlias = Any
Positions: TypeAlias = NDArray[np.intp]

# By how much they ask for a look; a row that is of several kinds stands with the first of them.
KINDS = {
    "mislabels": "suspected mislabels",
    "errors": "likely errors",
    "boundary": "boundary cases",
    "outliers": "outliers",
}
# More rows would make the page slow, and nobody reads so many.
MOST_FLAGGED = 2000
# Rows that are shown to speak for a prediction, and against it.
SPEAKERS = 4
_AUDIT_PARTS = ("predicted", "suggested", "reasons", "joint", "confidence", *KINDS)
_INFLUENCE_PARTS = ("values", "indices", "labels", "shares", "target", "logits")


def audit_for_page(
    audit: AuditLike, *, rows: int, names: Names, classes: Sequence[str]
) -> PageData:
    """The rows that were flagged, with everything that was found about them."""
    require_parts("audit", audit, _AUDIT_PARTS, wanted="what nobsp.audit(index) gives")
    if len(audit.predicted) != rows:
        raise ValueError(
            f"audit is of {len(audit.predicted)} rows but there are {rows}; audit the same ones."
        )
    flags = _flags_of(audit)
    shown = _most_doubtful(audit, flags)
    whole = _whole_of(audit)
    flags_of_whole = _flags_of(whole)
    numbers = _numbers_of(audit, rows)
    outputs = getattr(audit, "outputs", None)

    is_regression = "expected error" in numbers
    if is_regression:
        flags.pop("boundary", None)
    if is_regression or outputs is not None:
        # Values of a regression are no numbers of classes; and labels of rows with several classes
        # say whether a row is of the class that its line is about.
        classes = ()

    own_rows = np.asarray(getattr(audit, "rows", np.arange(rows)))
    return {
        "headline": _headline(flags_of_whole, len(whole.predicted)),
        "total": len(whole.predicted),
        "flagged": int(np.any(list(flags_of_whole.values()), axis=0).sum()),
        "kinds": [
            _kind_for_page(kind, flag[shown], count=int(flags_of_whole[kind].sum()))
            for kind, flag in flags.items()
        ],
        "names": [str(row if names is None else names[row]) for row in shown.tolist()],
        "classes": _classes_of(audit, shown, classes),
        "numbers": {word: known(np.asarray(values)[shown]) for word, values in numbers.items()},
        # Where the rows stand on this page, and what they are called outside of it.
        "places": shown.tolist(),
        "rows": own_rows[shown].tolist(),
        "reasons": [str(audit.reasons[row]) for row in shown],
        # Of rows that may have several classes, the one that a line is about.
        "outputs": None if outputs is None else [str(outputs[row]) for row in shown],
        "facts": _facts_of(
            audit, {kind: flags_of_whole[kind] for kind in flags}, len(whole.predicted)
        ),
    }


def _whole_of(audit: AuditLike) -> AuditLike:
    """The audit that this one has some rows of: what a page leads with is of all rows."""
    whole = getattr(audit, "whole", None)
    return audit if whole is None else whole


def _kind_for_page(kind: str, has: BoolArray, *, count: int) -> PageData:
    """A kind of finding: which of the rows shown have it, and how many of all rows do."""
    return {"id": kind, "name": KINDS[kind], "count": count, "has": has.tolist()}


def _most_doubtful(audit: AuditLike, flags: Mapping[str, BoolArray]) -> Positions:
    """Flagged rows, kind by kind, the most doubtful first, as many as a page shows."""
    flagged = np.flatnonzero(np.any(list(flags.values()), axis=0))
    first_kind = np.argmax(list(flags.values()), axis=0)

    # Mislabels are often predicted with confidence, so they are ordered by the probability of the
    # label.
    doubt = np.asarray(audit.joint)
    score = getattr(audit, "label_score", None)
    if score is not None:
        doubt = np.where(flags["mislabels"], score, doubt)
    order = np.lexsort((doubt[flagged], first_kind[flagged]))
    return flagged[order][:MOST_FLAGGED]


def _numbers_of(audit: AuditLike, rows: int) -> dict[str, ArrayLike]:
    """What was measured of every row, by what it is called on the page."""
    neighbours = getattr(audit, "by_activations", None)
    numbers = {
        "label right": getattr(audit, "label_score", None),
        "joint confidence": audit.joint,
        "model's confidence": audit.confidence,
        "expected error": getattr(audit, "expected_error", None),
        "typicality": getattr(audit, "typicality", None),
        "purity": _optional(neighbours, "purity", np.arange(rows)),
    }
    return {
        word: values
        for word, values in numbers.items()
        if values is not None and not np.isnan(values).all()
    }


def _classes_of(audit: AuditLike, shown: Positions, classes: Sequence[str]) -> dict[str, list[str]]:
    """Label, prediction and suggestion of the rows shown, in words."""
    # Labels that are numbers are not the numbers of classes where the audit knows other labels.
    own_labels = getattr(getattr(audit, "by_contributions", None), "classes", None)
    number_of_label: dict[Any, int] = {}
    if own_labels is not None and len(own_labels) == len(classes):
        number_of_label = {label: number for number, label in enumerate(own_labels.tolist())}

    columns = {
        "label": getattr(audit, "labels", None),
        "predicted": audit.predicted,
        "suggested": audit.suggested,
    }
    texts = {}
    for word, values in columns.items():
        if values is not None:
            labels = np.asarray(values)[shown].tolist()
            texts[word] = [
                label_text(number_of_label.get(label, label), classes) for label in labels
            ]
    return texts


def _facts_of(audit: AuditLike, flags: Mapping[str, BoolArray], rows: int) -> list[tuple[str, str]]:
    """How many rows there are of each kind."""
    facts = [("Audited", count(rows, "prediction"))]
    for kind, flag in flags.items():
        facts.append((KINDS[kind].capitalize(), f"{int(flag.sum()):,}"))
    if getattr(audit, "joint_kind", None):
        facts.append(("Joint confidence", audit.joint_kind))
    return facts


def _flags_of(audit: AuditLike) -> dict[str, BoolArray]:
    """Which rows are of each kind that the audit knows."""
    return {
        kind: np.asarray(getattr(audit, kind)) for kind in KINDS if getattr(audit, kind) is not None
    }


def _headline(flags: Mapping[str, BoolArray], total: int) -> tuple[str, str]:
    """What an audit's page leads with, a number and what it counts.

    These are the suspected labels, where there are labels.
    """
    if "mislabels" not in flags:
        flagged = int(np.any(list(flags.values()), axis=0).sum())
        return f"{flagged:,}", f"of {count(total, 'prediction')} should be looked at."

    suspected = int(flags["mislabels"].sum())
    verb = "is" if suspected == 1 else "are"
    return f"{suspected:,}", f"of {count(total, 'label')} {verb} suspect."


def hits_for_page(hits: HitsLike, shown: Positions, *, rows: int, names: Sequence[str]) -> PageData:
    """Neighbours of some rows.

    Of `hits` only `indices` and `distances` are needed, the rest is shown where it is.
    """
    require_parts("hits", hits, ("indices", "distances"), wanted="what index.query(X) gives")
    indices = np.asarray(hits.indices)
    if indices.ndim != 2 or len(indices) != rows:
        raise ValueError(
            f"hits are of {len(indices)} rows but there are {rows}; "
            "query the index with the same ones."
        )

    space = getattr(hits, "space", "")
    data: PageData = {
        "count": int(indices.shape[1]),
        "indices": packed_codes(indices[shown]),
        "distances": packed(np.asarray(hits.distances, dtype=np.float64)[shown], "f4"),
        "purity": _optional(hits, "purity", shown),
        "confidence": _optional(hits, "confidence", shown),
        "names": list(names),
        "space": space if space in ("contributions", "activations") else "",
        "labels": None,
        "predicted": None,
        "values": None,
    }
    labels = getattr(hits, "labels", None)
    if labels is None:
        return data
    if getattr(hits, "residuals", None) is not None or _are_measured(np.asarray(labels)):
        return data | {"values": packed(np.asarray(labels)[shown], "f4")}
    return data | _coded_labels(hits, shown, names)


def _are_measured(labels: AnyArray) -> bool:
    """Whether labels are numbers of a regression, not of classes."""
    return labels.dtype.kind == "f" and not bool((labels == np.rint(labels)).all())


def _coded_labels(hits: HitsLike, shown: Positions, names: Sequence[str]) -> PageData:
    """Labels of neighbours, and predictions where there are any, as positions among names."""
    columns = {"labels": hits.labels}
    predicted = getattr(hits, "predicted", None)
    if predicted is not None:
        columns["predicted"] = predicted

    texts = {}
    for key, values in columns.items():
        labels = np.asarray(values)[shown].ravel().tolist()
        texts[key] = [label_text(label, names) for label in labels]
    every_text = {text for part in texts.values() for text in part}
    every_name = list(dict.fromkeys([*names, *sorted(every_text)]))
    position = {name: code for code, name in enumerate(every_name)}

    coded = {key: packed_codes([position[text] for text in part]) for key, part in texts.items()}
    return {"names": every_name, **coded}


def _in_four_digits(numbers: Sequence[float]) -> list[str]:
    """Numbers as texts."""
    return [with_minus(number, ".4g") for number in numbers]


def influence_for_page(
    influence: InfluenceLike, shown: Positions, *, rows: int, names: Sequence[str]
) -> PageData | None:
    """The rows of an index that speak most for some predictions, and against them.

    Those that speak most for a prediction come first, those that speak most against it last.
    """
    if influence is None:
        return None
    require_parts("influence", influence, _INFLUENCE_PARTS, wanted="what index.influence(X) gives")
    if len(influence.values) != rows:
        raise ValueError(
            f"influence is of {len(influence.values)} rows but there are {rows}; "
            "ask about the same ones."
        )

    order = np.argsort(-np.asarray(influence.values)[shown], axis=1, kind="stable")
    speaking_for = order[:, :SPEAKERS]
    speaking_against = order[:, SPEAKERS:][:, -SPEAKERS:]
    speakers = np.concatenate([speaking_for, speaking_against], axis=1)

    def of_speakers(values: ArrayLike) -> AnyArray:
        return np.take_along_axis(np.asarray(values)[shown], speakers, 1)

    labels = of_speakers(influence.labels).ravel().tolist()
    asked_for = np.asarray(influence.target)[shown]
    if asked_for.dtype.kind == "f":  # values of a regression
        texts = _in_four_digits(labels)
        targets = None
    else:
        texts = [label_text(label, names) for label in labels]
        targets = [label_text(label, names) for label in asked_for.tolist()]
    every_text, codes = np.unique(texts, return_inverse=True)

    # Only where values add up to the logit.
    base = known(np.asarray(influence.base)[shown]) if hasattr(influence, "base") else None
    exact = float(influence.exact) if hasattr(influence, "exact") else None
    return {
        "count": speakers.shape[1],
        "indices": packed_codes(of_speakers(influence.indices)),
        "values": packed(of_speakers(influence.values), "f4"),
        "shares": packed(of_speakers(influence.shares), "f4"),
        "labels": packed_codes(codes),
        "names": every_text.tolist(),
        "targets": targets,
        "base": base,
        "logits": known(np.asarray(influence.logits)[shown]),
        "exact": exact,
    }


def _optional(hits: HitsLike, name: str, shown: Positions) -> list[Any] | None:
    """Numbers of some rows, where there are any."""
    try:
        values = getattr(hits, name, None)
    # Purity of a regression, or of an index without labels.
    except ValueError:
        return None
    if values is None:
        return None

    numbers = np.asarray(values, dtype=np.float64)[shown]
    return None if np.isnan(numbers).all() else known(numbers)


def label_text(value: object, names: Sequence[str]) -> str:
    """How a label is written: whole numbers by the names of classes, where there are any."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not float(value).is_integer():  # type: ignore[arg-type]
        return str(value)

    number = int(value)  # type: ignore[call-overload]
    return names[number] if 0 <= number < len(names) else str(number)
