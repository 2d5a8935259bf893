"""What a page says of a model in words: facts and findings, the true labels of rows, the link of its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp._messages import count
from nobsp.reporting.packing import packed, packed_codes
from nobsp.results import Finding, sort_findings
from nobsp.tabular.compiled import CompiledExplainer
from nobsp.tabular.explanation import Explanation

Fact = tuple[str, str]
_LINKS = {
    "softmax": "logits, before the softmax",
    "sigmoid": "log-odds, before the sigmoid",
    "exp": "logarithms, before the exponential",
    "identity": "the model's output",
}


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


def describe_model(model: Any) -> str:
    """A model in a few words.

    >>> import torch
    >>> describe_model(torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)))
    'Sequential with 41 parameters'
    """
    if hasattr(model, "parameters"):
        inner = getattr(model, "module", model)
        return f"{type(inner).__name__} with {count(sum(p.numel() for p in model.parameters()), 'parameter')}"
    steps = [step for _, step in model.steps] if hasattr(model, "steps") else [model]
    sizes = sum(w.size for w in [*getattr(steps[-1], "coefs_", []), *getattr(steps[-1], "intercepts_", [])])
    chain = " → ".join(type(step).__name__ for step in steps)
    return f"{chain} with {count(int(sizes), 'parameter')}" if sizes else chain


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


# ---------------------------------------------------------------------- labels and links


@dataclass(frozen=True, eq=False)
class Labels:
    """One true value per row: positions among names of classes, or numbers where there are no names."""

    values: NDArray[Any]
    names: tuple[str, ...] = ()

    def pack(self, kept: NDArray[np.intp]) -> dict[str, Any]:
        """For the page, some rows of it."""
        if self.names:
            return {"names": self.names, "codes": packed_codes(self.values[kept])}
        return {"values": packed(self.values[kept])}


def read_labels(labels: Any, *, rows: int, names: Sequence[str], classes: bool) -> Labels | None:
    """Labels as positions among names, or as numbers where they are no such positions; `classes` forbids that."""
    if labels is None:
        return None
    given = labels.detach().cpu().numpy() if hasattr(labels, "detach") else labels
    given = np.asarray(given.to_numpy() if hasattr(given, "to_numpy") else given)
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    if given.shape != (rows,):
        raise ValueError(f"labels must be one per row, shape ({rows},), found {given.shape}.")
    if given.dtype.kind in "biuf":
        numbers = given.astype(np.float64)
        if given.size and np.isin(numbers, np.arange(max(len(names), 2))).all():
            return Labels(numbers.astype(np.int64), tuple(names) or ("0", "1"))
        if classes:
            some = ", ".join(map(str, np.unique(given)[:5].tolist()))
            raise ValueError(f"labels must be class numbers from 0 to {len(names) - 1}, or names; found {some}.")
        return Labels(numbers)
    texts = [str(value) for value in given.tolist()]
    # Names the model does not know are put behind its own, so that every label can be shown.
    shown = tuple(dict.fromkeys([*names, *sorted(set(texts))]))
    place = {name: code for code, name in enumerate(shown)}
    return Labels(np.array([place[text] for text in texts], dtype=np.int64), shown)


def choose_link(own: str, *, outputs: int, classes: bool) -> str:
    """The model's own link, else the usual one where labels are classes."""
    if own != "identity" or not classes:
        return {"log_softmax": "softmax"}.get(own, own)
    return "softmax" if outputs > 1 else "sigmoid"
