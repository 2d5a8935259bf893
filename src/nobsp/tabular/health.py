"""Is this calibration healthy? What was found, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nobsp.network.inputs import Subset
from nobsp.projection import Moments, merge_all, overlap
from nobsp.tabular.bands import FEWEST_BLOCKS
from nobsp.tabular.calibration import JOINT, REFERENCE, TARGET, Plan, Solution, label
from nobsp.tabular.explanation import term_name

# Principal angles take an eigendecomposition of all other terms' columns for every term.
_MOST_COLUMNS_MEASURED = 600


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
        angle: Smallest principal angle between its subspace and theirs, in degrees. Zero means that some direction
            of it, however weak, can be reproduced exactly.
        condition: Largest over smallest singular value of its representation.
        ridge: The λ it was solved with.

    Angle and condition are NaN where moments were not saved, and in systems of more than 600 columns.
    """

    term: tuple[str, ...]
    rank: int
    unique_share: float
    angle: float
    condition: float
    ridge: float


@dataclass(frozen=True, repr=False)
class Health:
    """The state of a calibration.

    Attributes:
        findings: What is worth knowing, warnings first; empty when all is well.
        terms: One entry per term.
        explained: Share of each output's variance that the terms carry, over up to 1,024 calibration rows.
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
    parts: Mapping[str, Sequence[Moments]],
    *,
    rows: int,
    width: int,
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
        parts: Moments per block of rows; empty where they were not saved.
        rows: Calibration rows.
        width: Width of the representation.
        filled: How many blocks hold rows.
        explained: Share of variance carried, per output.
        output_names: Names of the outputs.
        twins: Features that repeat another one.
        outside: For rows to be explained, which features lie outside the calibrated range.
    """
    features = plan.isolation.features
    blocks = min((len(part) for part in parts.values()), default=0)
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
        findings += _term_findings(plan, term, solution, term_name(names[term]), twins)
    findings += _weak_terms(plan, solution, {term: term_name(names[term]) for term in plan.terms}, findings)
    findings += _output_findings(
        explained, output_names, any(len(term) > 1 for term in plan.terms), few=rows <= columns
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
    stand = _overlaps(plan, parts, columns)
    terms = tuple(
        TermHealth(names[t], plan.bases[t].shape[1], solution.unique_share[t], *stand[t], solution.ridges[t])
        for t in plan.terms
    )
    return Health(tuple(findings), terms, tuple(map(float, explained)), rows, columns)


def _overlaps(plan: Plan, parts: Mapping[str, Sequence[Moments]], columns: int) -> dict[Subset, tuple[float, float]]:
    """Smallest principal angle and condition of every term."""
    if not parts or columns > _MOST_COLUMNS_MEASURED:
        return dict.fromkeys(plan.terms, (math.nan, math.nan))
    joint = merge_all(parts[JOINT]) if plan.pure else None
    found = {}
    for term in plan.terms:
        if joint is None:
            measured = overlap(merge_all(parts[label(term)]), target=TARGET, reference=REFERENCE)
        else:
            others = [label(other) for other in plan.terms if other != term]
            measured = overlap(joint, target=label(term), reference=others)
        angle = float(measured.angles.min()) if measured.angles.numel() else 90.0
        found[term] = (angle, measured.condition)
    return found


def _term_findings(plan: Plan, term: Subset, solution: Solution, name: str, twins: Mapping[int, int]) -> list[Finding]:
    features = plan.isolation.features
    if not features.columns_of(term):
        dropped = "The preprocessing makes nothing of it (dropped or constant), so it contributes nothing."
        return [Finding("note", name, dropped)]
    if term in solution.notes:
        constant = plan.bases[term].shape[1] == 0
        return [Finding("note" if constant else "warning", name, solution.notes[term])]
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
    return []


def _weak_terms(plan: Plan, solution: Solution, named: Mapping[Subset, str], said: Sequence[Finding]) -> list[Finding]:
    """One finding for all terms of which little is their own and nothing worse was said."""
    spoken = {finding.subject for finding in said}
    weak = [term for term in plan.terms if solution.unique_share[term] < 0.01 and named[term] not in spoken]
    if not weak:
        return []
    weak.sort(key=lambda term: solution.unique_share[term])
    subject = ", ".join(named[term] for term in weak[:5])
    if len(weak) > 5:
        subject += f" and {len(weak) - 5} more"
    return [
        Finding(
            "warning",
            subject,
            f"Of {_counted(len(weak))} less than 1% of the spread is their own (least: "
            f"{solution.unique_share[weak[0]]:.2%}); the functions rest on few rows. Read their bands before their "
            "curves; more rows, a stronger ridge, or grouping features that go along with each other will help.",
        )
    ]


def _counted(terms: int) -> str:
    return "this term" if terms == 1 else f"these {terms} terms"


def _output_findings(
    explained: NDArray[np.float64], names: Sequence[str], has_interactions: bool, *, few: bool
) -> list[Finding]:
    weak = [(name, share) for name, share in zip(names, explained, strict=True) if share == share and share < 0.8]
    if not weak:
        return []
    name, share = min(weak, key=lambda item: item[1])
    if few:
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
