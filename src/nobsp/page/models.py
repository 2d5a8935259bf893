"""What a page says of a model in a few words, and what makes its numbers doubtful."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def facts_of(
    explanation: Explanation, explainer: Any, functions: CompiledExplainer, link: str, *, dropped: int
) -> list[Fact]:
    """Model, data and what is explained, in words."""
    terms = [*functions.terms, *functions.left_out]
    pairs = sum(len(term) > 1 for term in terms) + dropped
    mains = sum(len(term) == 1 for term in terms)
    facts = [("Model", described(explainer.model))] if hasattr(explainer, "model") else []
    facts.append(("Data", f"{counted(len(explanation), 'row')}, {counted(len(explanation.feature_names), 'feature')}"))
    facts.append(("Calibrated on", counted(functions.state.rows, "row")))
    shown = ", ".join(explanation.output_names[:4]) + (", …" if len(explanation.output_names) > 4 else "")
    facts.append(("Explained", f"{shown} ({_LINKS[link]})"))
    facts.append(("Found", counted(mains, "main effect") + (f" and {counted(pairs, 'interaction')}" if pairs else "")))
    return facts


def described(model: Any) -> str:
    """A model in a few words.

    Example:
        >>> import torch
        >>> described(torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)))
        'Sequential with 41 parameters'
    """
    if hasattr(model, "parameters"):
        inner = getattr(model, "module", model)
        return f"{type(inner).__name__} with {counted(sum(p.numel() for p in model.parameters()), 'parameter')}"
    steps = [step for _, step in model.steps] if hasattr(model, "steps") else [model]
    sizes = sum(w.size for w in [*getattr(steps[-1], "coefs_", []), *getattr(steps[-1], "intercepts_", [])])
    chain = " → ".join(type(step).__name__ for step in steps)
    return f"{chain} with {counted(int(sizes), 'parameter')}" if sizes else chain


def findings_of(
    explanation: Explanation, functions: CompiledExplainer, values: NDArray[np.float64], *, dropped: int
) -> list[dict[str, str]]:
    """What is worth knowing before the page is believed, errors first; the same said of several subjects once."""
    rows = len(explanation)
    found = list(functions.state.findings)

    def add(severity: str, code: str, message: str, subject: str = "") -> None:
        found.append(Finding(severity, code, subject, message))

    outside = explanation.outside.sum(0)
    if outside.any():
        order = [k for k in np.argsort(-outside, kind="stable").tolist() if outside[k]]
        some = _listed([f"{explanation.feature_names[k]} ({outside[k]:,})" for k in order])
        count = counted(int(explanation.outside.any(1).sum()), "row")
        message = (
            f"{count} of {rows:,} lie outside what was calibrated: a number out of range (its function is "
            "extrapolated), a missing value, or a level not seen (it contributes nothing in this page). Calibrate on "
            "rows that cover them."
        )
        add("warning", "outside", message, some)
    unknown = int((~np.isfinite(values)).any((1, 2)).sum())
    if unknown:
        message = f"{counted(unknown, 'row')} of {rows:,} have missing values for which no contribution is known."
        add("warning", "missing", message)
    if dropped:
        message = (
            f"The weakest {counted(dropped, 'interaction')} would make this page too large. Their grids are left out, "
            "and what they contribute is part of the residual shown."
        )
        add("note", "pairs_left_out", message)
    if functions.left_out and len(explanation.terms) == len(functions.terms) + dropped:
        message = "They have no table and the model was not run here: what they contribute is part of the residual."
        add("note", "not_run", message, _listed([" × ".join(term) for term in functions.left_out]))
    run = int(np.isfinite(explanation.predictions).all(1).sum())
    if run == 0:
        add("note", "no_predictions", "The model was not run here, so the residuals are not known.")
    elif run < rows:
        message = (
            f"The model could not be run on {counted(rows - run, 'row')}: predictions and residuals are not known."
        )
        add("note", "no_predictions", message)
    subjects: dict[tuple[str, str, str], list[str]] = {}
    for finding in sort_findings(found):
        subjects.setdefault((finding.severity, finding.code, finding.message), []).append(finding.subject)
    return [
        {"severity": severity, "code": code, "subject": _listed(named), "message": message}
        for (severity, code, message), named in subjects.items()
    ]


def _listed(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def counted(count: int, what: str) -> str:
    """A number with its noun.

    Example:
        >>> counted(1, "row"), counted(1200, "row")
        ('1 row', '1,200 rows')
    """
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
