"""What a page says of a model in a few words, and what makes its numbers doubtful."""

from __future__ import annotations

from typing import Any

import numpy as np

from nobsp.tabular.compiled import CompiledExplainer
from nobsp.tabular.explanation import Explanation

Fact = tuple[str, str]
_LINKS = {
    "softmax": "logits, before the softmax",
    "sigmoid": "log-odds, before the sigmoid",
    "exp": "logarithms, before the exponential",
    "identity": "the model's output",
}


def facts_of(explanation: Explanation, explainer: Any, health: Any, link: str) -> list[Fact]:
    """Model, data and what is explained, in words."""
    pairs = sum(len(term) > 1 for term in explanation.terms)
    functions = counted(len(explanation.terms) - pairs, "function")
    facts = [("Model", described(explainer.model))] if hasattr(explainer, "model") else []
    facts.append(("Data", f"{counted(len(explanation), 'row')}, {counted(len(explanation.feature_names), 'feature')}"))
    if health is not None:
        facts.append(("Calibrated on", counted(health.rows, "row")))
    shown = ", ".join(explanation.output_names[:4]) + (", …" if len(explanation.output_names) > 4 else "")
    facts.append(("Explained", f"{shown} ({_LINKS[link]})"))
    facts.append(("Found", functions + (f" and {counted(pairs, 'interaction')}" if pairs else "")))
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
    explanation: Explanation, health: Any, compiled: CompiledExplainer, *, missing: int
) -> list[dict[str, str]]:
    """What is worth knowing before the page is believed, warnings first."""
    findings = []
    if health is not None:
        findings = [_finding(finding.severity, finding.message, finding.subject) for finding in health.findings]
    outside = explanation.outside.sum(0)
    if outside.any():
        order = np.argsort(-outside, kind="stable")[: min(5, int((outside > 0).sum()))]
        some = ", ".join(f"{explanation.feature_names[k]} ({outside[k]:,})" for k in order)
        more = int((outside > 0).sum()) - len(order)
        rows = int(explanation.outside.any(1).sum())
        message = (
            f"{counted(rows, 'row')} of {len(explanation):,} lie outside what was calibrated: their accounts "
            "extrapolate. Calibrate on rows that cover them."
        )
        findings.append(_finding("warning", message, some + (f" and {more} more" if more else "")))
    if missing:
        message = f"{counted(missing, 'row')} with missing values cannot be browsed here; shares and sizes count them."
        findings.append(_finding("note", message))
    if compiled.left_out:
        message = f"{counted(len(compiled.left_out), 'interaction')} could not travel with this page and are left over."
        findings.append(_finding("note", message))
    if not np.isfinite(explanation.predictions).all():
        message = "The model was not run here, so how far the account is from its predictions is not known."
        findings.append(_finding("note", message))
    return sorted(findings, key=lambda finding: finding["severity"] != "warning")


def _finding(severity: str, message: str, subject: str = "") -> dict[str, str]:
    return {"severity": severity, "subject": subject, "message": message}


def counted(count: int, what: str) -> str:
    """A number with its noun.

    Example:
        >>> counted(1, "row"), counted(1200, "row")
        ('1 row', '1,200 rows')
    """
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
