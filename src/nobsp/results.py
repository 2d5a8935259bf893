"""What results have in common: findings about a calibration, and plots as methods. Needs no other package."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """Something worth knowing."""

    # "error" for what must not be believed, "warning" for what makes numbers doubtful, "note" for what limits what they
    # say
    severity: str
    code: str  # A name for the kind of finding that does not change with its wording
    subject: str  # the term or output it concerns; empty for the calibration as a whole
    message: str  # what was found and what to do


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The worst first, otherwise as they came."""
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def is_healthy(findings: Iterable[Finding]) -> bool:
    """Whether there is neither an error nor a warning."""
    return all(finding.severity == "note" for finding in findings)


def describe_findings(findings: Iterable[Finding]) -> list[str]:
    """One line per finding, as a health prints them."""
    lines = [f"{f.severity}: {f.subject}: {f.message}" if f.subject else f"{f.severity}: {f.message}" for f in findings]
    return lines or ["Nothing to worry about."]


class Plots:
    """The plots of a result, as methods: `result.plot.waterfall(0)` is `nobsp.plots.waterfall(result, 0)`."""

    def __init__(self, subject: Any, names: tuple[str, ...]) -> None:
        self._subject, self._names = subject, names

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._names:
            raise AttributeError(f"no plot {name!r} of a {type(self._subject).__name__}; there are {dir(self)}.")
        # By name and only when asked for: plots are above the results they draw, and matplotlib may be missing.
        return partial(getattr(import_module("nobsp.plots"), name), self._subject)

    def __dir__(self) -> list[str]:
        return sorted(self._names)
