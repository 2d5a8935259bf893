"""How well functions describe their model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nobsp.base import Finding, describe_findings, is_healthy

# Differences between the two held-out R² that would not show with three decimals are not written.
_SMALLEST_DIFFERENCE = 0.0005


@dataclass(frozen=True)
class TermHealth:
    """One term.

    Attributes:
        term: Names of its features.
        rank: Directions its representation uses.
        unique_share: Share of the spread of its contributions that those of the other terms cannot reproduce.
        forward_rows: Rows sent through the network for every row that is explained; zero for tables.
        from_average: Per output how far a feature's curve is from partial dependence, root mean square over the rows as
            a share of the output's spread; empty where that is not known.
    """

    term: tuple[str, ...]
    rank: int
    unique_share: float
    forward_rows: int = 0
    from_average: tuple[float, ...] = ()


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
        scatter: Standard error of `explained` over the rows; empty where it is not known.
        neighbourhoods: Held-out R² per output with whole neighbourhoods of rows held out, at the strengths that are
            used; empty where it was not measured. Clearly below `explained` where rows come in clusters.
        forward_rows: Rows that were sent through the model to calibrate; zero where they were not counted.
        variance: Variance of every output over the calibration rows; empty where it is not known.

    Example:
        >>> import torch, nobsp
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        >>> health = nobsp.NObSP(model).fit(torch.randn(300, 2)).health()
        >>> isinstance(health, nobsp.Health), health.rows
        (True, 300)
    """

    findings: tuple[Finding, ...]
    terms: tuple[TermHealth, ...]
    explained: tuple[float, ...]
    inside: tuple[float, ...]
    outside_rows: float
    rows: int
    columns: int
    held_out: bool = True
    scatter: tuple[float, ...] = ()
    neighbourhoods: tuple[float, ...] = ()
    forward_rows: int = 0
    variance: tuple[float, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether there is neither an error nor a warning."""
        return is_healthy(self.findings)

    @property
    def headline(self) -> str:
        """The share explained, in one phrase; of the worst output where there are several."""
        worst = _smallest(self.explained)
        if worst is None:
            too_few_rows = any(finding.code == "few_rows" for finding in self.findings)
            return "too few rows for a held-out R²" if too_few_rows else "no output varies"

        measure = "held-out R²" if self.held_out else "R² on the calibration rows"
        which = " for the worst output" if len(self.explained) > 1 else ""
        return f"{measure} {worst:.3f}{which}"

    def __repr__(self) -> str:
        summary = f"{self.rows:,} rows, {len(self.terms)} terms, {self.headline}"
        lines = [f"{summary}{self._inside_the_range()}."]
        lines += describe_findings(self.findings)
        return "\n".join(lines)

    def _inside_the_range(self) -> str:
        """A bracket about rows inside the range of those fitted on; empty where they are alike."""
        inside = _smallest(self.inside)
        everywhere = _smallest(self.explained)
        if not self.held_out or inside is None or everywhere is None:
            return ""
        if abs(inside - everywhere) < _SMALLEST_DIFFERENCE:
            return ""

        return (
            f" ({inside:.3f} without the {self.outside_rows:.1%} of the rows held out that lie "
            "outside the range of those fitted on)"
        )


def _smallest(shares: tuple[float, ...]) -> float | None:
    """The smallest share that is a number; None where there is none."""
    numbers = [share for share in shares if not math.isnan(share)]
    return min(numbers) if numbers else None
