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
from nobsp.network.inputs import Subset
from nobsp.network.levels import among
from nobsp.network.readout import Readout
from nobsp.network.summary import Summary
from nobsp.projection import Moments, Ridge
from nobsp.tabular.calibration import JOINT, Plan, Solution, contributions, solve
from nobsp.tabular.columns import Columns, twins_of
from nobsp.tabular.heldout import WEAKEST, chosen_ridge
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
        chooses_ridge: Whether the strength was left to the rows to choose.
        explained: Share of each output's variance carried by the terms.
        importance: Mean absolute contributions (features, outputs), "main" and "total".
        twins: Features that repeat another one, and which.
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
    chooses_ridge: bool = False
    frame: Any = None
    explained: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    importance: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    twins: dict[int, int] = field(default_factory=dict)

    @property
    def blocks(self) -> int:
        """Blocks of rows kept apart."""
        return min((len(blocks) for blocks in self.parts.values()), default=0)

    @property
    def filled(self) -> int:
        """Blocks that hold rows."""
        return sum(part.rows > 0 for part in next(iter(self.parts.values()))) if self.parts else 0

    def measured(self, represent: Represent, rows: Tensor) -> Fitted:
        """The same with explained share and importances, measured on some calibration rows where there are any."""
        if len(rows) == 0:
            return self
        values = contributions(self.plan, self.solution, represent, rows)
        predictions = self.readout.logits(represent(rows)).cpu()
        residual = predictions - self.solution.base - values.sum(1)
        total = predictions.var(0, correction=0)
        # The mean of equal numbers is rounded, so their variance need not be zero.
        size = predictions.abs().amax(0)
        varies = predictions.amax(0) - predictions.amin(0) > 100 * torch.finfo(torch.float64).eps * size
        explained = torch.where(varies, 1 - residual.var(0, correction=0) / total, torch.nan)
        count = len(self.columns.features)
        member = torch.zeros(len(self.plan.terms), count, dtype=torch.float64)
        for position, term in enumerate(self.plan.terms):
            member[position, list(term)] = 1.0
        totals = torch.einsum("rto,tf->rfo", values, member)
        importance = {"main": values[:, :count].abs().mean(0).numpy(), "total": totals.abs().mean(0).numpy()}
        twins = twins_of(self.columns.features, self.summary.sample)
        return replace(self, explained=explained.numpy(), importance=importance, twins=twins)

    def screened(self, screening: Screening) -> Fitted:
        """The same with pairs screened."""
        return replace(self, screening=screening)

    def merged(self, other: Fitted) -> Fitted:
        """Both calibrations' rows together."""
        parts = {
            name: [a.merge(b) for a, b in zip(blocks, other.parts[name], strict=True)]
            for name, blocks in self.parts.items()
        }
        share = self.summary.rows / (self.summary.rows + other.summary.rows)
        ridge, solution = solved(self.plan, parts, None if self.chooses_ridge else self.ridge)
        return replace(
            self,
            parts=parts,
            ridge=ridge,
            solution=solution,
            summary=self.summary.merge(other.summary),
            # Files hold no rows to measure on again: the two measurements then count by their rows.
            explained=share * self.explained + (1 - share) * other.explained,
            importance={
                kind: share * sizes + (1 - share) * other.importance[kind] for kind, sizes in self.importance.items()
            },
        )

    def require_moments(self, what: str) -> None:
        """An error where the moments were left out of the file this was loaded from, or did not fit into memory."""
        if not self.parts:
            raise ValueError(
                f"{what} needs the moments, which were not saved, or not held at once; save with moments=True, or "
                "calibrate with a larger memory_limit."
            )

    def require_same_model(self, readout: Readout) -> None:
        """An error where this is another model's calibration."""
        if self.readout.fingerprint() != readout.fingerprint():
            raise ValueError("the two explainers are of different models; calibrations add up for one model only.")

    def source(self, X: Any, *, batch_size: int) -> Source:
        """Rows to explain, checked against the calibrated columns."""
        source = batches_of(X, batch_size=batch_size, encode=self.adapted.encode, columns=self.columns.names)
        expected = self.summary.mean.numel()
        if source.columns != expected:
            raise ValueError(f"X has {source.columns} columns but the explainer was calibrated on {expected}.")
        return source

    def outside(self, rows: Tensor, *, first_row: int = 0, strict: bool = True) -> Tensor:
        """Which features of each row lie outside the calibrated range, shape (rows, features).

        A category that calibration never saw has no place on a range: with `strict` it is an error, which
        counts rows from `first_row`.
        """
        # In the rows' own precision: a float32 copy of the calibration table lies within its range.
        low, high = self.summary.minimum.to(rows.dtype), self.summary.maximum.to(rows.dtype)
        beyond = (rows < low) | (rows > high)
        result = torch.zeros(rows.shape[0], len(self.columns.features), dtype=torch.bool)
        for feature, group in enumerate(self.columns.features.columns):
            result[:, feature] = beyond[:, list(group)].any(1)
            unseen = self._unseen(feature, rows[:, list(group)])
            if unseen is None:
                continue
            result[:, feature] |= unseen
            if strict and bool(unseen.any()):
                row = int(torch.nonzero(unseen)[0])
                raise ValueError(self._not_seen(feature, f"X, row {first_row + row},", rows[row, list(group)]))
        return result

    def require_seen(self, feature: int, given: Tensor) -> None:
        """An error for levels of a category that calibration did not see."""
        unseen = self._unseen(feature, given)
        if unseen is not None and bool(unseen.any()):
            row = int(torch.nonzero(unseen)[0])
            raise ValueError(self._not_seen(feature, f"value {row}", given[row]))

    def _unseen(self, feature: int, values: Tensor) -> Tensor | None:
        """Which values of a category are none of its levels; None for features that are no category.

        Of a feature of several codes with too many combinations to be counted, each code has to be known.
        """
        if feature not in self.plan.isolation.categories or values.shape[1] == 0:
            return None
        # Levels are doubles; what they were read from may have been rounded to the values' own precision.
        kind = values.dtype if values.is_floating_point() else torch.float64
        joint = self.summary.levels_of(feature, self.columns.features.columns[feature])
        if joint is not None:
            return ~among(values.to(kind), joint[0].to(kind))
        codes = self.summary.codes.get(feature, {})
        if not codes:
            return None
        known = [among(values[:, [place]].to(kind), code[0].to(kind)) for place, code in codes.items()]
        return ~torch.stack(known).all(0)

    def _not_seen(self, feature: int, where: str, value: Tensor) -> str:
        numbers = ", ".join(f"{number:g}" for number in value.tolist()[:8])
        shown = f" ({numbers})" if self.adapted.encode is None else ""
        return (
            f"{where} has a level of {self.columns.features.names[feature]!r} that calibration did not see{shown}; "
            "calibrate on rows that have it, or leave such rows out."
        )

    def term_values(self, represent: Represent, term: Subset, given: Sequence[Tensor]) -> Tensor:
        """Contributions of one term for each of its features' values as columns of the input, (rows, outputs)."""
        rows = self.plan.isolation.baseline.expand(given[0].shape[0], -1).clone()
        for feature, values in zip(term, given, strict=True):
            rows[:, list(self.columns.features.columns[feature])] = values
        rows = rows.to(torch.int64) if self.readout.integer else rows
        return contributions(self.plan, self.solution, represent, rows, terms=[term])[:, 0]

    def table(self, columns: dict[str, Any]) -> Any:
        """A table as a frame of the kind that was calibrated on, or as it is."""
        if self.frame is None:
            return columns
        return nw.from_dict(
            {name: values.tolist() if values.dtype == object else values for name, values in columns.items()},
            backend=self.frame,
        ).to_native()


def solved(plan: Plan, parts: Parts, ridge: Ridge | None) -> tuple[Ridge, Solution]:
    """Coefficients from the moments, with the ridge asked for, or the one that held-out rows choose."""
    if ridge is None:
        ridge = chosen_ridge(parts[JOINT], plan.terms) if plan.pure else WEAKEST
    return ridge, solve(plan, parts, ridge=ridge)


def frame_kind(X: Any) -> Any:
    """Which library's frame `X` is; None if it is none."""
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    return frame.implementation if isinstance(frame, nw.DataFrame) else None
