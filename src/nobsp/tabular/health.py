"""How well a calibration describes its model: what was found, and what to do about it. Needs numpy only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nobsp.results import Finding, describe_findings, is_healthy


@dataclass(frozen=True)
class TermHealth:
    """One term.

    Attributes:
        term: Names of its features.
        rank: Directions its representation uses.
        unique_share: Share of the spread of its contributions that those of the other terms cannot reproduce.
        forward_rows: Rows sent through the network for every row that is explained; zero for tables.
    """

    term: tuple[str, ...]
    rank: int
    unique_share: float
    forward_rows: int = 0


@dataclass(frozen=True, repr=False)
class Health:
    """The state of a calibration.

    Attributes:
        findings: What is worth knowing, the worst first; empty when all is well.
        terms: One entry per term.
        explained: Held-out R² per output: the share of its variance that the terms explain on rows that were not used
            for the coefficients. As published, on the calibration rows themselves.
        inside: The same on rows inside the range of the rows fitted on.
        outside_rows: Share of the rows held out that lie outside that range.
        rows: Calibration rows.
        columns: Columns of the regression, or the width of the reference where terms are fitted one by one.
        held_out: Whether `explained` was measured on rows held out.
    """

    findings: tuple[Finding, ...]
    terms: tuple[TermHealth, ...]
    explained: tuple[float, ...]
    inside: tuple[float, ...]
    outside_rows: float
    rows: int
    columns: int
    held_out: bool = True

    @property
    def healthy(self) -> bool:
        """Whether there is neither an error nor a warning."""
        return is_healthy(self.findings)

    @property
    def headline(self) -> str:
        """The share explained, in one phrase; of the worst output where there are several."""
        shares = [share for share in self.explained if not math.isnan(share)]
        if not shares:
            return "no output varies"
        what = "held-out R²" if self.held_out else "R² on the calibration rows"
        return f"{what} {min(shares):.3f}" + (" for the worst output" if len(self.explained) > 1 else "")

    def __repr__(self) -> str:
        counts = f"{self.rows:,} rows, {len(self.terms)} terms, {self.headline}"
        shares = [share for share in self.inside if not math.isnan(share)]
        if self.held_out and shares and abs(min(shares) - min(s for s in self.explained if s == s)) >= 0.0005:
            counts += (
                f" ({min(shares):.3f} without the {self.outside_rows:.1%} of the rows held out that lie outside the "
                "range of those fitted on)"
            )
        return "\n".join([f"{counts}.", *describe_findings(self.findings)])
