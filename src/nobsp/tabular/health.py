"""Is this calibration healthy? What was found, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
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
    filled: int,
    explained: NDArray[np.float64],
    output_names: Sequence[str],
    twins: Mapping[int, int],
    outside: NDArray[np.bool_] | None,
) -> Health:
    """Collects everything that is worth knowing about a calibration.

    Args:
        plan: Terms and bases.
        solution: Coefficients.
        rows: Calibration rows.
        width: Width of the representation.
        blocks: Blocks of rows kept apart; none where moments were not saved.
        filled: How many of them hold rows.
        explained: Share of variance carried, per output.
        output_names: Names of the outputs.
        twins: Features that repeat another one.
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
    for term in plan.terms:
        findings += _term_findings(term, solution, term_name(names[term]), twins, features)
    findings += _output_findings(
        explained, output_names, any(len(term) > 1 for term in plan.terms), few=bool(findings) and rows <= columns
    )
    if plan.truncated:
        findings.append(
            Finding(
                "note",
                "",
                f"Terms were cut to {columns} directions to keep the system small; fit fewer interactions to keep all.",
            )
        )
    if blocks == 0:
        findings.append(
            Finding("note", "", "Moments were not saved, so curves have no bands and nothing can be merged.")
        )
    elif blocks < FEWEST_BLOCKS:
        findings.append(
            Finding("note", "", "The system is too large to keep blocks of rows apart, so curves have no bands.")
        )
    elif filled < FEWEST_BLOCKS:
        findings.append(
            Finding(
                "note",
                "",
                f"Only {filled} blocks of rows were read, so curves have no bands; calibrate on more rows or more "
                f"batches, at least {FEWEST_BLOCKS}.",
            )
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
    term: Subset, solution: Solution, name: str, twins: Mapping[int, int], features: Features
) -> list[Finding]:
    if not features.columns_of(term):
        dropped = "The preprocessing makes nothing of it (dropped or constant), so it contributes nothing."
        return [Finding("note", name, dropped)]
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


def _output_findings(
    explained: NDArray[np.float64], names: Sequence[str], has_interactions: bool, *, few: bool
) -> list[Finding]:
    weak = [(name, share) for name, share in zip(names, explained, strict=True) if share == share and share < 0.8]
    if not weak:
        return []
    name, share = min(weak, key=lambda item: item[1])
    if few or share < 0:
        message = f"The terms carry only {share:.1%} of this output's variance: too few rows. Calibrate on more."
        return [Finding("warning", name, message)]
    advice = "fit more of them" if has_interactions else 'set interactions="auto"'
    return [
        Finding(
            "warning",
            name,
            f"The terms carry only {share:.1%} of this output's variance; the rest is interaction that no term "
            f"holds. To see it, {advice}.",
        )
    ]
