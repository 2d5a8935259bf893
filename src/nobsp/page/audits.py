"""What an audit found, as a page shows it; known by what it has, not by where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nobsp.page.models import Fact, counted
from nobsp.page.neighbours import name_of
from nobsp.page.packing import known

# By how much they ask for a look; a row that is of several kinds stands with the first of them.
KINDS = {
    "mislabels": "suspected mislabels",
    "errors": "likely errors",
    "boundary": "boundary cases",
    "outliers": "outliers",
}
MOST_FLAGGED = 2000


def is_audit(subject: Any) -> bool:
    """Whether something has what a page needs of an audit."""
    return all(hasattr(subject, name) for name in ("predicted", "suggested", "reasons", "joint", "confidence", *KINDS))


def audit_for_page(audit: Any, *, rows: int, names: Sequence[str] | None, classes: Sequence[str]) -> dict[str, Any]:
    """The rows that were flagged, with everything that was found about them.

    Args:
        audit: Has `predicted`, `suggested`, `reasons`, `joint`, `confidence` and flags `errors`, `boundary` and
            `outliers` of every row; may have `labels`, `mislabels`, `label_support`, `purity_activations`,
            `joint_kind`.
        rows: How many rows there must be.
        names: Names of the rows; positions when None.
        classes: Names of the classes by number; may be empty.
    """
    if len(audit.predicted) != rows:
        raise ValueError(f"audit is of {len(audit.predicted)} rows but there are {rows}; audit the same ones.")
    flags = {kind: np.asarray(getattr(audit, kind)) for kind in KINDS if getattr(audit, kind) is not None}
    any_kind = np.any(list(flags.values()), axis=0)
    flagged = np.flatnonzero(any_kind)
    support = getattr(audit, "label_support", None)
    # Mislabels are often predicted with confidence, so they are ordered, and kept, by what speaks for the label.
    first = np.argmax(list(flags.values()), axis=0)
    doubt = np.asarray(audit.joint) if support is None else np.where(flags["mislabels"], support, audit.joint)
    flagged = flagged[np.lexsort((doubt[flagged], first[flagged]))][:MOST_FLAGGED]
    purity = getattr(audit, "purity_activations", None)
    told = {"joint confidence": audit.joint, "model's confidence": audit.confidence}
    told |= {} if purity is None else {"purity": purity}
    told |= {} if support is None else {"label's support": support}
    classes_of = {"label": getattr(audit, "labels", None), "predicted": audit.predicted, "suggested": audit.suggested}
    return {
        "total": rows,
        "flagged": int(any_kind.sum()),
        "kinds": [
            {"id": kind, "name": KINDS[kind], "count": int(flag.sum()), "has": flag[flagged].tolist()}
            for kind, flag in flags.items()
        ],
        "names": [str(names[row]) if names is not None else str(row) for row in flagged.tolist()],
        "classes": {
            word: [name_of(value, classes) for value in np.asarray(values)[flagged].tolist()]
            for word, values in classes_of.items()
            if values is not None
        },
        "numbers": {word: known(np.asarray(values)[flagged]) for word, values in told.items()},
        "reasons": [str(audit.reasons[row]) for row in flagged],
        "facts": _facts(audit, rows, flags),
    }


def _facts(audit: Any, rows: int, flags: dict[str, Any]) -> list[Fact]:
    facts = [("Audited", counted(rows, "prediction"))]
    facts += [(KINDS[kind].capitalize(), f"{int(flag.sum()):,}") for kind, flag in flags.items()]
    kind = getattr(audit, "joint_kind", None)
    return [*facts, ("Joint confidence", str(kind))] if kind is not None else facts
