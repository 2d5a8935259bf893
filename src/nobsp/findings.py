"""What was found that is worth knowing about a result, and how it is listed.

Needs no other package.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Something worth knowing about a result: what it is, what it concerns, and what to do.

    Attributes:
        severity: "error" for what must not be believed, "warning" for what makes numbers doubtful,
            "note" for what limits what they say.
        code: A name for the kind of finding that does not change with its wording; the page on
            troubleshooting explains each.
        subject: The term or output it concerns; empty for the calibration as a whole.
        message: What was found and what to do.

    Example:
        >>> import nobsp
        >>> import torch
        >>> health = nobsp.NObSP(torch.nn.Linear(2, 1)).fit(torch.randn(8, 2)).health()
        >>> [finding.code for finding in health.findings if finding.severity == "warning"]
        ['few_rows']
    """

    severity: str
    code: str
    subject: str
    message: str


def is_healthy(findings: Iterable[Finding]) -> bool:
    """Whether there is neither an error nor a warning."""
    return all(finding.severity == "note" for finding in findings)


# Most subjects that a message is about and that are named.
_MOST_SUBJECTS = 5


def merge_findings(findings: Iterable[Finding]) -> list[Finding]:
    """The findings in their order, equal messages about several subjects once."""
    subjects: dict[tuple[str, str, str], list[str]] = {}
    for finding in findings:
        key = (finding.severity, finding.code, finding.message)
        subjects.setdefault(key, []).append(finding.subject)

    merged = []
    for (severity, code, message), named in subjects.items():
        listed = ", ".join(named[:_MOST_SUBJECTS])
        more = len(named) - _MOST_SUBJECTS
        subject = f"{listed} and {more} more" if more > 0 else listed
        merged.append(Finding(severity, code, subject, message))
    return merged


def describe_findings(findings: Iterable[Finding]) -> list[str]:
    """One line per message, as a health prints them."""
    lines = []
    for finding in merge_findings(findings):
        subject = f"{finding.subject}: " if finding.subject else ""
        lines.append(f"{finding.severity}: {subject}{finding.message}")
    return lines or ["Nothing to worry about."]
