"""In words, why an audit flagged a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nobsp.arguments import with_minus
from nobsp.neighbors.result import Neighbors

if TYPE_CHECKING:
    from nobsp.neighbors.auditing import Audit


def give_reasons(audit: Audit) -> tuple[str, ...]:
    """Why each row was flagged; empty for others."""
    is_flagged = audit.errors | audit.boundary | audit.outliers
    if audit.mislabels is not None:
        is_flagged = is_flagged | audit.mislabels

    reasons = [""] * len(audit)
    for row in np.flatnonzero(is_flagged).tolist():
        parts = [
            *_label_reason(audit, row),
            *_error_reason(audit, row),
            *_boundary_reason(audit, row),
            *_outlier_reason(audit, row),
        ]
        which_class = "" if audit.outputs is None else f"{audit.outputs[row]}: "
        reasons[row] = which_class + "; ".join(parts)
    return tuple(reasons)


def _label_reason(audit: Audit, row: int) -> list[str]:
    if audit.mislabels is None or audit.labels is None or audit.label_score is None:
        return []
    if not audit.mislabels[row]:
        return []
    suggested = _show(audit.suggested[row])
    why = f"{suggested} is expected by its neighbours"
    if audit.expected_error is None:
        why = f"{_count_neighbours(audit, row, audit.suggested[row])} are {suggested}"
    label = f"labelled {_show(audit.labels[row])}"
    return [f"{label}, right with probability {audit.label_score[row]:.2f}: {why}"]


def _error_reason(audit: Audit, row: int) -> list[str]:
    if not audit.errors[row]:
        return []
    predicted = f"predicted {_show(audit.predicted[row])}"
    trusted = f"with joint confidence {audit.joint[row]:.2f}"
    if audit.expected_error is not None:
        why = f"off by {audit.expected_error[row]:.4g}, by what its neighbours are like"
    else:
        why = f"{_count_neighbours(audit, row, audit.predicted[row])} agree"
    return [f"{predicted} {trusted}: {why}"]


def _boundary_reason(audit: Audit, row: int) -> list[str]:
    if not audit.boundary[row]:
        return []
    hits = audit.by_activations
    count = _n_labelled(hits, row, audit.predicted[row])
    return [f"near a boundary: {count} of {hits.k} neighbours by activations are of its class"]


def _outlier_reason(audit: Audit, row: int) -> list[str]:
    if not audit.outliers[row]:
        return []
    share = f"typicality {audit.typicality[row]:.2g}, the share of its rows that are further"
    return [f"unlike the database: {share} from their neighbours"]


def _count_neighbours(audit: Audit, row: int, label: object) -> str:
    """How many neighbours have a label, in both spaces."""
    by_evidence = _n_labelled(audit.by_contributions, row, label)
    by_activations = _n_labelled(audit.by_activations, row, label)
    k = audit.by_contributions.k
    return f"{by_evidence} of {k} neighbours by evidence and {by_activations} by activations"


def _n_labelled(hits: Neighbors, row: int, label: object) -> int:
    """Neighbours of one row that have a label."""
    share = hits[row].purity_towards(np.asarray([label]))[0]
    return int(np.rint(share * hits.k))


def _show(label: object) -> str:
    value = label.item() if hasattr(label, "item") else label
    return with_minus(value, ".4g") if isinstance(value, float) else repr(value)
