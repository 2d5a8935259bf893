"""Is this calibration healthy? What was found, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.network.inputs import Features, Subset
from nobsp.tabular.bands import FEWEST_BLOCKS
from nobsp.tabular.calibration import Plan, Solution
from nobsp.tabular.explanation import term_name


@dataclass(frozen=True)
class Finding:
    """Something worth knowing.

    Attributes:
        severity: "warning" for what makes numbers doubtful, "note" for what limits what they say.
        subject: The term or output it concerns; empty for the calibration as a whole.
        message: What was found and what to do.
    """

    severity: str
    subject: str
    message: str


@dataclass(frozen=True)
class TermHealth:
    """One term.

    Attributes:
        term: Names of its features.
        rank: Directions its representation uses.
        unique_share: How much of its spread the other terms (or the reference) cannot reproduce.
        ridge: The λ it was solved with.
    """

    term: tuple[str, ...]
    rank: int
    unique_share: float
    ridge: float


@dataclass(frozen=True)
class Health:
    """The state of a calibration.

    Attributes:
        findings: What is worth knowing, warnings first; empty when all is well.
        terms: One entry per term.
        explained: Share of each output's variance that the terms carry over the calibration rows.
        rows: Calibration rows.
        columns: Columns of the joint system, or the width of the reference where terms are fitted one by one.
    """

    findings: tuple[Finding, ...]
    terms: tuple[TermHealth, ...]
    explained: tuple[float, ...]
    rows: int
    columns: int

    @property
    def healthy(self) -> bool:
        """Whether there is no warning."""
        return not any(finding.severity == "warning" for finding in self.findings)

    def __str__(self) -> str:
        shares = [share for share in self.explained if share == share]
        carried = f"{min(shares):.1%}" if shares else "–"
        lines = [f"{self.rows} rows, {len(self.terms)} terms; the terms carry at least {carried} of each output."]
        for finding in self.findings:
            subject = f"{finding.subject}: " if finding.subject else ""
            lines.append(f"{finding.severity}: {subject}{finding.message}")
        if not self.findings:
            lines.append("Nothing to worry about.")
        return "\n".join(lines)


def examine(
    plan: Plan,
    solution: Solution,
    *,
    rows: int,
    width: int,
    blocks: int,
    explained: NDArray[np.float64],
    output_names: Sequence[str],
    sample: Tensor,
    outside: NDArray[np.bool_] | None,
) -> Health:
    """Collects everything that is worth knowing about a calibration.

    Args:
        plan: Terms and bases.
        solution: Coefficients.
        rows: Calibration rows.
        width: Width of the representation.
        blocks: Blocks of rows kept apart.
        explained: Share of variance carried, per output.
        output_names: Names of the outputs.
        sample: Some calibration rows.
        outside: For rows to be explained, which features lie outside the calibrated range.
    """
    features = plan.isolation.features
    names = {term: tuple(features.names[k] for k in term) for term in plan.terms}
    columns = sum(basis.shape[1] for basis in plan.bases.values()) if plan.pure else width
    findings = [Finding("warning", "", solution.note)] if solution.note else []
    if not plan.pure and rows <= width:
        findings.append(
            Finding(
                "warning",
                "",
                f"Fewer rows ({rows}) than the representation is wide ({width}): the reference can reproduce "
                'anything and coefficients collapse. Calibrate on more rows, or use reference="terms".',
            )
        )
    twins = _twins(features, sample)
    for term in plan.terms:
        findings += _term_findings(term, solution, term_name(names[term]), twins, features)
    findings += _output_findings(explained, output_names, any(len(term) > 1 for term in plan.terms))
    if plan.truncated:
        findings.append(
            Finding(
                "note",
                "",
                f"Terms were cut to {columns} directions to keep the system small; fit fewer interactions to keep all.",
            )
        )
    if blocks < FEWEST_BLOCKS:
        findings.append(
            Finding("note", "", "The system is too large to keep blocks of rows apart, so curves have no bands.")
        )
    if outside is not None and outside.size:
        for k in np.nonzero(outside.any(0))[0]:
            share = outside[:, k].mean()
            findings.append(
                Finding(
                    "warning",
                    features.names[k],
                    f"{share:.1%} of the rows lie outside the calibrated range: their contributions extrapolate. "
                    "Calibrate on rows that cover them.",
                )
            )
    findings.sort(key=lambda finding: finding.severity != "warning")
    terms = tuple(
        TermHealth(names[t], plan.bases[t].shape[1], solution.unique_share[t], solution.ridges[t]) for t in plan.terms
    )
    return Health(tuple(findings), terms, tuple(map(float, explained)), rows, columns)


def _term_findings(
    term: Subset, solution: Solution, name: str, twins: dict[int, int], features: Features
) -> list[Finding]:
    if term in solution.notes:
        return [Finding("note", name, solution.notes[term])]
    if len(term) == 1 and term[0] in twins:
        twin = features.names[twins[term[0]]]
        return [
            Finding(
                "warning",
                name,
                f"It repeats {twin!r}: how much each contributes cannot be told apart. Group them as one feature, "
                "or leave one out.",
            )
        ]
    share = solution.unique_share[term]
    if share < 0.01:
        return [
            Finding(
                "warning",
                name,
                f"Only {share:.2%} of its spread is its own: its function rests on few rows. Read its band before its "
                "curve; more rows, or grouping it with the features it goes along with, will help.",
            )
        ]
    return []


def _output_findings(explained: NDArray[np.float64], names: Sequence[str], has_interactions: bool) -> list[Finding]:
    weak = [(name, share) for name, share in zip(names, explained, strict=True) if share == share and share < 0.8]
    if not weak:
        return []
    name, share = min(weak, key=lambda item: item[1])
    advice = "fit more of them" if has_interactions else 'set interactions="auto"'
    return [
        Finding(
            "warning",
            name,
            f"The terms carry only {share:.1%} of this output's variance; the rest is interaction that no term "
            f"holds. To see it, {advice}.",
        )
    ]


def _twins(features: Features, sample: Tensor) -> dict[int, int]:
    """Single-column features that are an exact linear copy of an earlier one."""
    single = [k for k, group in enumerate(features.columns) if len(group) == 1]
    if len(single) < 2 or len(sample) < 3:
        return {}
    values = sample[:, [features.columns[k][0] for k in single]]
    values = values - values.mean(0)
    norms = values.square().sum(0).sqrt()
    alive = norms > 0
    scaled = values / norms.clamp_min(1e-300)
    close = (scaled.T @ scaled).abs() > 1 - 1e-10
    close &= alive[:, None] & alive[None, :]
    found = {}
    for i in range(len(single)):
        earlier = torch.nonzero(close[i, :i]).flatten()
        if len(earlier):
            found[single[i]] = single[int(earlier[0])]
    return found
