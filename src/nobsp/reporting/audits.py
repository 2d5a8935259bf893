"""What an index and an audit found, as a page shows it; recognised by their attributes, so torch is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp._messages import count
from nobsp.arguments import require_parts
from nobsp.reporting.packing import Names, known, packed, packed_codes

# By how much they ask for a look; a row that is of several kinds stands with the first of them.
KINDS = {
    "mislabels": "suspected mislabels",
    "errors": "likely errors",
    "boundary": "boundary cases",
    "outliers": "outliers",
}
MOST_FLAGGED = 2000
# Rows that are shown to speak for a prediction, and against it.
SPEAKERS = 4


def audit_for_page(
    audit: Any, *, rows: int, names: Names, classes: Sequence[str]
) -> dict[str, Any]:
    """The rows that were flagged, with everything that was found about them."""
    parts = ("predicted", "suggested", "reasons", "joint", "confidence", *KINDS)
    require_parts("audit", audit, parts, wanted="what nobsp.audit(index) gives")
    if len(audit.predicted) != rows:
        raise ValueError(
            f"audit is of {len(audit.predicted)} rows but there are {rows}; audit the same ones."
        )
    flags = {
        kind: np.asarray(getattr(audit, kind)) for kind in KINDS if getattr(audit, kind) is not None
    }
    any_kind = np.any(list(flags.values()), axis=0)
    flagged = np.flatnonzero(any_kind)
    score = getattr(audit, "label_score", None)
    # Mislabels are often predicted with confidence, so they are ordered, and kept, by the probability of the label.
    first = np.argmax(list(flags.values()), axis=0)
    doubt = (
        np.asarray(audit.joint)
        if score is None
        else np.where(flags["mislabels"], score, audit.joint)
    )
    flagged = flagged[np.lexsort((doubt[flagged], first[flagged]))][:MOST_FLAGGED]
    numbers = {
        "label right": score,
        "joint confidence": audit.joint,
        "model's confidence": audit.confidence,
        "expected error": getattr(audit, "expected_error", None),
        "typicality": getattr(audit, "typicality", None),
        "purity": _optional(getattr(audit, "by_activations", None), "purity", np.arange(rows)),
    }
    numbers = {
        word: found
        for word, found in numbers.items()
        if found is not None and not np.isnan(found).all()
    }
    if "expected error" in numbers:  # of a regression: its values are no numbers of classes
        classes, flags = (), {kind: flag for kind, flag in flags.items() if kind != "boundary"}
    outputs = getattr(audit, "outputs", None)
    classes = (
        classes if outputs is None else ()
    )  # labels say whether a row is of the class that its line is about
    # Labels that are numbers are not the numbers of classes where the audit knows other labels.
    own = getattr(getattr(audit, "by_contributions", None), "classes", None)
    place = (
        {}
        if own is None or len(own) != len(classes)
        else {value: at for at, value in enumerate(own.tolist())}
    )
    facts = [("Audited", count(rows, "prediction"))]
    facts += [(KINDS[kind].capitalize(), f"{int(flag.sum()):,}") for kind, flag in flags.items()]
    facts += [("Joint confidence", audit.joint_kind)] if getattr(audit, "joint_kind", None) else []
    classes_of = {
        "label": getattr(audit, "labels", None),
        "predicted": audit.predicted,
        "suggested": audit.suggested,
    }
    return {
        "headline": _headline(flags, rows, any_kind),
        "total": rows,
        "flagged": int(any_kind.sum()),
        "kinds": [
            {
                "id": kind,
                "name": KINDS[kind],
                "count": int(flag.sum()),
                "has": flag[flagged].tolist(),
            }
            for kind, flag in flags.items()
        ],
        "names": [str(names[row]) if names is not None else str(row) for row in flagged.tolist()],
        "classes": {
            word: [
                label_text(place.get(value, value), classes)
                for value in np.asarray(values)[flagged].tolist()
            ]
            for word, values in classes_of.items()
            if values is not None
        },
        "numbers": {word: known(np.asarray(values)[flagged]) for word, values in numbers.items()},
        # Where the rows stand on this page, and what they are called outside of it.
        "places": flagged.tolist(),
        "rows": np.asarray(getattr(audit, "rows", np.arange(rows)))[flagged].tolist(),
        "reasons": [str(audit.reasons[row]) for row in flagged],
        # Of rows that may have several classes, the one that a line is about.
        "outputs": None if outputs is None else [str(outputs[row]) for row in flagged],
        "facts": facts,
    }


def _headline(
    flags: dict[str, NDArray[np.bool_]], total: int, flagged: NDArray[np.bool_]
) -> tuple[str, str]:
    """What an audit's page leads with, a number and what it counts: the suspected labels, where there are labels."""
    if "mislabels" not in flags:
        return f"{int(flagged.sum()):,}", f"of {count(total, 'prediction')} should be looked at."
    suspected = int(flags["mislabels"].sum())
    return (
        f"{suspected:,}",
        f"of {count(total, 'label')} {'is' if suspected == 1 else 'are'} suspect.",
    )


def hits_for_page(
    hits: Any, kept: NDArray[np.intp], *, rows: int, names: Sequence[str]
) -> dict[str, Any]:
    """Neighbours of some rows; of `hits` only `indices` and `distances` are needed, the rest is shown where it is."""
    require_parts("hits", hits, ("indices", "distances"), wanted="what index.query(X) gives")
    indices = np.asarray(hits.indices)
    if indices.ndim != 2 or len(indices) != rows:
        raise ValueError(
            f"hits are of {len(indices)} rows but there are {rows}; query the index with the same ones."
        )
    labels, predicted = getattr(hits, "labels", None), getattr(hits, "predicted", None)
    space = getattr(hits, "space", "")
    found: dict[str, Any] = {
        "count": int(indices.shape[1]),
        "indices": packed_codes(indices[kept]),
        "distances": packed(np.asarray(hits.distances, dtype=np.float64)[kept], "f4"),
        "purity": _optional(hits, "purity", kept),
        "confidence": _optional(hits, "confidence", kept),
        "names": list(names),
        "space": space if space in ("contributions", "activations") else "",
        "labels": None,
        "predicted": None,
        "values": None,
    }
    if labels is None:
        return found
    array = np.asarray(labels)
    measured = array.dtype.kind == "f" and not bool((array == np.rint(array)).all())
    if measured or getattr(hits, "residuals", None) is not None:
        return found | {"values": packed(array[kept], "f4")}
    given = {"labels": labels} | ({} if predicted is None else {"predicted": predicted})
    texts = {
        key: [label_text(value, names) for value in np.asarray(part)[kept].ravel().tolist()]
        for key, part in given.items()
    }
    shown = list(
        dict.fromkeys([*names, *sorted({text for part in texts.values() for text in part})])
    )
    place = {name: code for code, name in enumerate(shown)}
    return (
        found
        | {"names": shown}
        | {key: packed_codes([place[t] for t in part]) for key, part in texts.items()}
    )


def influence_for_page(
    influence: Any, kept: NDArray[np.intp], *, rows: int, names: Sequence[str]
) -> dict[str, Any] | None:
    """The rows of an index that speak most for some predictions, most first, and against them, most last."""
    if influence is None:
        return None
    parts = ("indices", "shares", "target", "base", "logits", "exact")
    require_parts("influence", influence, parts, wanted="what index.influence(X) gives")
    if len(influence.values) != rows:
        raise ValueError(
            f"influence is of {len(influence.values)} rows but there are {rows}; ask about the same ones."
        )
    values = np.asarray(influence.values)[kept]
    order = np.argsort(-values, axis=1, kind="stable")
    order = np.concatenate([order[:, :SPEAKERS], order[:, SPEAKERS:][:, -SPEAKERS:]], axis=1)
    labels, indices, shares = (
        np.take_along_axis(np.asarray(part)[kept], order, 1)
        for part in (influence.labels, influence.indices, influence.shares)
    )
    measured = np.asarray(influence.target).dtype.kind == "f"  # values of a regression
    texts = [
        f"{label:.4g}" if measured else label_text(label, names)
        for label in labels.ravel().tolist()
    ]
    shown, codes = np.unique(texts, return_inverse=True)
    target = np.asarray(influence.target)[kept].tolist()
    return {
        "count": order.shape[1],
        "indices": packed_codes(indices),
        "values": packed(np.take_along_axis(values, order, 1), "f4"),
        "shares": packed(shares, "f4"),
        "labels": packed_codes(codes),
        "names": shown.tolist(),
        "targets": None if measured else [label_text(one, names) for one in target],
        # Only where values add up to the logit.
        "base": known(np.asarray(influence.base)[kept]) if hasattr(influence, "base") else None,
        "logits": known(np.asarray(influence.logits)[kept]),
        "exact": float(influence.exact) if hasattr(influence, "exact") else None,
    }


def _optional(hits: Any, name: str, kept: NDArray[np.intp]) -> list[Any] | None:
    try:
        values = getattr(hits, name, None)
    except ValueError:  # purity of a regression, or of an index without labels
        return None
    some = None if values is None else np.asarray(values, dtype=np.float64)[kept]
    return None if some is None or np.isnan(some).all() else known(some)


def label_text(value: Any, names: Sequence[str]) -> str:
    """How a label is written: whole numbers by the names of classes, where there are any."""
    if isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer():
        return names[int(value)] if 0 <= value < len(names) else str(int(value))
    return str(value)
