"""What a calibration leaves behind: everything needed to explain, judge, merge and save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import narwhals as nw
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.network.adapted import Adapted
from nobsp.network.batches import Source, batches_of
from nobsp.network.readout import Readout
from nobsp.network.summary import Summary
from nobsp.projection import Moments, Ridge
from nobsp.tabular.calibration import Plan, Solution, contributions, solve
from nobsp.tabular.columns import Columns
from nobsp.tabular.interactions import Screening
from nobsp.tabular.representations import Represent

Parts = dict[str, list[Moments]]


@dataclass(frozen=True, eq=False)
class Fitted:
    """A calibrated model.

    Attributes:
        adapted: The model as it was given.
        readout: Its linear head.
        columns: The caller's columns and features.
        plan: Terms and bases.
        parts: Moments per block of rows; empty where they were not saved.
        solution: Coefficients.
        summary: What the calibration rows looked like.
        screening: How strongly pairs act together, where that was measured.
        output_names: Names of the outputs.
        ridge: Strength of the regularisation.
        explained: Share of each output's variance carried by the terms.
        importance: Mean absolute contributions (features, outputs), "main" and "total".
    """

    adapted: Adapted
    readout: Readout
    columns: Columns
    plan: Plan
    parts: Parts
    solution: Solution
    summary: Summary
    screening: Screening | None
    output_names: tuple[str, ...]
    ridge: Ridge
    frame: Any = None
    explained: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    importance: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def blocks(self) -> int:
        """Blocks of rows kept apart."""
        return min((len(blocks) for blocks in self.parts.values()), default=0)

    def measured(self, represent: Represent, rows: Tensor) -> Fitted:
        """The same with explained share and importances, measured on some calibration rows."""
        values = contributions(self.plan, self.solution, represent, rows)
        predictions = self.readout.logits(represent(rows)).cpu()
        residual = predictions - self.solution.base - values.sum(1)
        total = predictions.var(0, correction=0)
        explained = torch.where(total > 0, 1 - residual.var(0, correction=0) / total, torch.nan)
        count = len(self.columns.features)
        member = torch.zeros(len(self.plan.terms), count, dtype=torch.float64)
        for position, term in enumerate(self.plan.terms):
            member[position, list(term)] = 1.0
        totals = torch.einsum("rto,tf->rfo", values, member)
        importance = {"main": values[:, :count].abs().mean(0).numpy(), "total": totals.abs().mean(0).numpy()}
        return replace(self, explained=explained.numpy(), importance=importance)

    def screened(self, screening: Screening) -> Fitted:
        """The same with pairs screened."""
        return replace(self, screening=screening)

    def merged(self, other: Fitted) -> Fitted:
        """Both calibrations' rows together."""
        parts = {
            name: [a.merge(b) for a, b in zip(blocks, other.parts[name], strict=True)]
            for name, blocks in self.parts.items()
        }
        return replace(
            self,
            parts=parts,
            solution=solve(self.plan, parts, ridge=self.ridge),
            summary=self.summary.merge(other.summary),
        )

    def require_moments(self, what: str) -> None:
        """An error where the moments were left out of the file this was loaded from."""
        if not self.parts:
            raise ValueError(f"{what} needs the moments, which were not saved; save with moments=True.")

    def source(self, X: Any, *, batch_size: int) -> Source:
        """Rows to explain, checked against the calibrated columns."""
        source = batches_of(X, batch_size=batch_size, encode=self.adapted.encode, columns=self.columns.names)
        expected = self.summary.mean.numel()
        if source.columns != expected:
            raise ValueError(f"X has {source.columns} columns but the explainer was calibrated on {expected}.")
        return source

    def outside(self, rows: Tensor, *, strict: bool = True) -> Tensor:
        """Which features of each row lie outside the calibrated range, shape (rows, features).

        A category that calibration never saw has no place on a range: with `strict` it is an error.
        """
        beyond = (rows < self.summary.minimum) | (rows > self.summary.maximum)
        result = torch.zeros(rows.shape[0], len(self.columns.features), dtype=torch.bool)
        for feature, group in enumerate(self.columns.features.columns):
            result[:, feature] = beyond[:, list(group)].any(1)
            if feature in self.plan.isolation.categories and feature in self.summary.levels:
                unseen = ~_among(rows[:, list(group)].to(torch.float64), self.summary.levels[feature][0])
                result[:, feature] |= unseen
                if strict and bool(unseen.any()):
                    row = int(torch.nonzero(unseen)[0])
                    raise ValueError(
                        f"X has a level of {self.columns.features.names[feature]!r} that calibration did not see "
                        f"(row {row} of a batch); calibrate on rows that have it, or leave such rows out."
                    )
        return result

    def feature_values(self, represent: Represent, feature: int, given: Tensor) -> Tensor:
        """Contributions of one feature for values given as columns of the input, shape (rows, outputs)."""
        rows = self.plan.isolation.baseline.expand(given.shape[0], -1).clone()
        rows[:, list(self.columns.features.columns[feature])] = given
        rows = rows.to(torch.int64) if self.readout.integer else rows
        return contributions(self.plan, self.solution, represent, rows, terms=[(feature,)])[:, 0]

    def table(self, columns: dict[str, Any]) -> Any:
        """A table as a frame of the kind that was calibrated on, or as it is."""
        if self.frame is None:
            return columns
        return nw.from_dict(
            {name: values.tolist() if values.dtype == object else values for name, values in columns.items()},
            backend=self.frame,
        ).to_native()


def frame_kind(X: Any) -> Any:
    """Which library's frame `X` is; None if it is none."""
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    return frame.implementation if isinstance(frame, nw.DataFrame) else None


def _among(rows: Tensor, levels: Tensor) -> Tensor:
    """Whether each row is one of the levels."""
    distinct, place = torch.unique(rows, dim=0, return_inverse=True)
    known: Sequence[bool] = [bool((levels == row).all(1).any()) for row in distinct]
    return torch.tensor(known)[place]
