"""R² of functions on any rows, and what it says beside the headline; numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nobsp.base import Finding
from nobsp.numerics import r_squared

Array = NDArray[np.float64]
MultiOutput = Literal["uniform_average", "raw"]

# Fewest rows whose R² is compared with the headline.
COMPARED_ROWS = 50
# Difference to the headline that is worth telling, and how many standard errors it must exceed.
WORTH_TELLING = 0.05
STANDARD_ERRORS = 2.0
# Share of the rows that lie outside or far from what was calibrated, above which it is a warning; below, a note.
MANY_ROWS = 0.05
# Features with values outside what was calibrated that are named; the others are counted.
MOST_NAMED = 5


class ExplainedWorseWarning(UserWarning):
    """Rows are explained clearly worse than the headline says."""


def share_on_rows(predictions: Array, residual: Array) -> Array:
    """1 − Σ residual² / Σ (prediction − mean)² per output; NaN where an output does not vary beyond rounding."""
    return r_squared(residual, predictions)


def average_share(shares: Array, multioutput: MultiOutput) -> float | Array:
    """One number, or one for every output, as scikit-learn's `r2_score` has it."""
    if multioutput not in ("uniform_average", "raw"):
        raise ValueError(f'multioutput must be "uniform_average" or "raw", found {multioutput!r}.')
    if multioutput == "raw":
        return shares
    known = shares[np.isfinite(shares)]
    return float(known.mean()) if len(known) else float("nan")


def scatter_on_rows(predictions: Array, residual: Array) -> Array:
    """Standard error of R² over rows, by the delta method."""
    centred = np.square(predictions - predictions.mean(0))
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.square(residual).mean(0) / centred.mean(0)
        influence = (np.square(residual) - left * centred) / centred.mean(0)
    return np.asarray(influence.std(0) / max(len(predictions), 1) ** 0.5)


def compare_with_headline(
    predictions: Array, residual: Array, state: Any, names: Sequence[str]
) -> Finding | None:
    """A finding where these rows' R² is below the headline by more than both scatter, and by 0.05."""
    if len(predictions) < COMPARED_ROWS or len(state.scatter) != len(names) or not state.held_out:
        return None
    headline = np.array(state.explained)
    shares = share_on_rows(predictions, residual)
    scatter = np.hypot(scatter_on_rows(predictions, residual), np.array(state.scatter))
    lower = headline - shares
    clearly = lower > np.maximum(WORTH_TELLING, STANDARD_ERRORS * scatter)  # False for NaN
    if not clearly.any():
        return None

    output = int(np.where(clearly, lower, -np.inf).argmax())
    subject = names[output] if len(names) > 1 else ""
    message = (
        f"R² on these {len(predictions):,} rows is {shares[output]:.3f}, where the held-out R² of the calibration is "
        f"{headline[output]:.3f}."
    )
    errors = float(np.square(residual[:, output]).mean())
    usual_errors = (1 - headline[output]) * state.variance[output] if state.variance else 0.0
    if errors <= 1.5 * usual_errors:
        message += " Errors are as usual: it is the predictions that vary less here."
        return Finding("note", "fresh_rows", subject, message)
    message += (
        " Either the model was trained on the calibration rows, or these rows are of another kind. Calibrate on rows "
        "that the model was not trained on, of the kind that is explained."
    )
    return Finding("warning", "fresh_rows", subject, message)


def far_finding(far: NDArray[np.bool_]) -> Finding | None:
    """How many rows are combinations far from all calibration rows."""
    number = int(far.sum())
    if not number:
        return None
    message = (
        f"{number:,} of {len(far):,} rows are combinations of values far from all calibration rows, though every "
        "single value is in range; they are flagged in `far`. Functions were not tested there."
    )
    return Finding(_severity(number, len(far)), "far", "", message)


def outside_finding(outside: NDArray[np.bool_], feature_names: Sequence[str]) -> Finding | None:
    """How many rows have values outside what was calibrated, and which features have them, most first."""
    number = int(outside.any(1).sum())
    if not number:
        return None
    per_feature = outside.sum(0)
    order = np.argsort(-per_feature, kind="stable").tolist()
    named = [
        f"{feature_names[feature]} ({per_feature[feature]:,})"
        for feature in order
        if per_feature[feature]
    ]
    subject = ", ".join(named[:MOST_NAMED])
    if len(named) > MOST_NAMED:
        subject += f" and {len(named) - MOST_NAMED} more"

    message = (
        f"{number:,} of {len(outside):,} rows lie outside what was calibrated: a number out of range (its "
        "function goes on), a missing value, or a level not seen. They are flagged in `outside`. Calibrate on rows "
        "that cover them."
    )
    return Finding(_severity(number, len(outside)), "outside", subject, message)


def _severity(number: int, rows: int) -> str:
    """A warning where it concerns many rows, a note where few."""
    is_many = number >= MANY_ROWS * rows and number > 1
    return "warning" if is_many else "note"
