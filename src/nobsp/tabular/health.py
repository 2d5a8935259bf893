"""How well functions describe their model: on held-out rows, and on any rows.

Also how far rows are from those that were seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nobsp import notebook
from nobsp._typing import AnyArray, FloatArray
from nobsp.arguments import require_choice, with_minus
from nobsp.findings import Finding, describe_findings, is_healthy
from nobsp.tabular.lookup import Chunk

# Differences between the two held-out R² that would not show with three decimals are not written.
_SMALLEST_DIFFERENCE = 0.0005


@dataclass(frozen=True)
class TermHealth:
    """One term.

    Attributes:
        term: Names of its features.
        rank: Directions its representation uses.
        unique_share: Share of the spread of its contributions that those of the other terms cannot
            reproduce.
        forward_rows: Rows sent through the network for every row that is explained; zero for
            tables.
        from_average: Per output how far a feature's curve is from partial dependence, root mean
            square over the rows as a share of the output's spread; empty where that is not known.
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
        explained: Held-out R² per output: the share of its variance that the terms explain on rows
            that were not used for the coefficients. As published, on the calibration rows
            themselves.
        inside: The same on rows inside the range of the rows fitted on.
        outside_rows: Share of the rows held out that lie outside that range.
        rows: Calibration rows.
        columns: Columns of the regression, or the width of the reference where terms are fitted one
            by one.
        held_out: Whether `explained` was measured on rows held out.
        scatter: Standard error of `explained` over the rows, those of one group counted together;
            empty where it is not known.
        neighbourhoods: Held-out R² per output with whole neighbourhoods of rows held out, at the
            strengths that are used; empty where it was not measured. Clearly below `explained`
            where rows come in clusters.
        forward_rows: Rows that were sent through the model to calibrate, with the most that finding
            its head may have taken (128, and six for each of up to 256 rows); zero where they were
            not counted.
        variance: Variance of every output over the calibration rows; empty where it is not known.
        edited: Empty for functions as they were calibrated. For edited ones, what `explained`
            compares them with: the "model", or the "functions" before the last edit where no model
            was at hand.

    Example:
        >>> import torch, nobsp
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        ... )
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
    edited: str = ""

    @property
    def healthy(self) -> bool:
        """Whether there is neither an error nor a warning."""
        return is_healthy(self.findings)

    @property
    def headline(self) -> str:
        """The share explained ± its standard error, in one phrase.

        Where there are several outputs, that of the worst one.
        """
        worst = _smallest(self.explained)
        if worst is None:
            too_few_rows = any(finding.code == "few_rows" for finding in self.findings)
            return "too few rows for a held-out R²" if too_few_rows else "no output varies"

        measure = "held-out R²" if self.held_out else "R² on the calibration rows"
        if self.edited:
            measure = "edited, R² with the model"
            if self.edited == "functions":
                measure = "edited, R² with the functions before the last edit"
        which = " for the worst output" if len(self.explained) > 1 else ""
        return f"{measure} {with_minus(worst, '.3f')}{self._standard_error(worst)}{which}"

    @property
    def headline_and_warnings(self) -> str:
        """The headline with the codes of errors and warnings, where nothing else is shown."""
        codes = [finding.code for finding in self.findings if finding.severity != "note"]
        if not codes:
            return self.headline
        return f"{self.headline}, but health() warns: {', '.join(dict.fromkeys(codes))}"

    def __repr__(self) -> str:
        summary = f"{self.rows:,} rows, {len(self.terms)} terms, {self.headline}"
        lines = [f"{summary}{self._inside_the_range()}."]
        lines += describe_findings(self.findings)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        summary = f"{self.rows:,} rows, {len(self.terms)} terms{self._inside_the_range()}"
        return notebook.card(
            "Health",
            self._headline_bar(),
            notebook.line(summary),
            notebook.findings(self.findings, most=len(self.findings)),
            "" if self.findings else notebook.line("Nothing to worry about."),
        )

    def _headline_bar(self) -> str:
        """The headline as a bar."""
        worst = _smallest(self.explained)
        return notebook.share_bar(math.nan if worst is None else worst, self.headline)

    def _standard_error(self, share: float) -> str:
        """How far the share may be off by chance, where that is known and would show."""
        if not self.held_out or self.edited or len(self.scatter) != len(self.explained):
            return ""
        error = self.scatter[self.explained.index(share)]
        return f" ± {error:.3f}" if error >= _SMALLEST_DIFFERENCE else ""

    def _inside_the_range(self) -> str:
        """A bracket about rows inside the range of those fitted on; empty where they are alike."""
        inside = _smallest(self.inside)
        everywhere = _smallest(self.explained)
        if not self.held_out or inside is None or everywhere is None:
            return ""
        if abs(inside - everywhere) < _SMALLEST_DIFFERENCE:
            return ""

        return (
            f" ({with_minus(inside, '.3f')} without the {self.outside_rows:.1%} of the rows held "
            "out that lie outside the range of those fitted on)"
        )


# The worst first.
SEVERITIES = ("error", "warning", "note")


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The worst first, otherwise as they came."""
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def _smallest(shares: tuple[float, ...]) -> float | None:
    """The smallest share that is a number; None where there is none."""
    numbers = [share for share in shares if not math.isnan(share)]
    return min(numbers) if numbers else None


MultiOutput = Literal["uniform_average", "raw"]

# ---------------------------------------------------------------------- R² on any rows


# Fewest rows whose R² is compared with the headline.
COMPARED_ROWS = 50
# Share of an output's variance below which held-out R² is a warning.
LOW_SHARE = 0.8
# Difference of R² that is worth telling, and how many standard errors it must exceed. Independent
# and correlated tables lose up to 0.03 at the rim of the rows.
WORTH_TELLING = 0.05
STANDARD_ERRORS = 2.0
# Share of the rows that lie outside or far from what was calibrated, above which it is a warning;
# below, a note.
MANY_ROWS = 0.05
# An output whose spread is below this share of its size is constant up to the rounding of a forward
# pass.
_CONSTANT = 1e-12
# The same beside its size and its spread over the calibration rows: copies of one row differ by so
# much where a network of single precision runs them in batches of different sizes.
_NEXT_TO_NOTHING = 1e-6
# Features with values outside what was calibrated that are named; the others are counted.
MOST_NAMED = 5


class ExplainedWorseWarning(UserWarning):
    """Rows are explained clearly worse than the headline says."""


def r_squared(
    residuals: FloatArray, outputs: FloatArray, weights: FloatArray | None = None
) -> FloatArray:
    """R² per column, with rows weighted if weights are given; NaN for a column that is constant.

    A column that varies by rounding only counts as constant.

    Example:
        >>> r_squared(np.array([[0.0], [0.0]]), np.array([[1.0], [2.0]])).tolist()
        [1.0]
    """
    if len(outputs) == 0 or (weights is not None and not weights.any()):
        return np.full(outputs.shape[1], np.nan)

    centred = outputs - np.average(outputs, axis=0, weights=weights)
    total = np.average(centred**2, axis=0, weights=weights)
    varies = total > (_CONSTANT * np.abs(outputs).max(axis=0)) ** 2
    unexplained = np.average(residuals**2, axis=0, weights=weights)

    explained = 1.0 - unexplained / np.where(varies, total, 1.0)
    return np.where(varies, explained, np.nan)


def share_on_rows(
    predictions: FloatArray,
    residual: FloatArray,
    weights: FloatArray | None = None,
    *,
    variance: Sequence[float] = (),
) -> FloatArray:
    """1 − Σ residual² / Σ (prediction − mean)² per output, with rows weighted if weights are given.

    NaN where an output does not vary beyond rounding, or by next to nothing beside both its size
    and its variance over the calibration rows, where that is known.
    """
    shares = r_squared(residual, predictions, weights)
    if len(predictions) == 0 or not variance:
        return shares
    # Either alone may be due to something else: an offset, or one row far out in the calibration.
    usual = np.minimum(np.sqrt(np.array(variance)), np.abs(predictions).max(0))
    least = _NEXT_TO_NOTHING * usual
    return np.where(predictions.std(0) > least, shares, np.nan)


def average_share(shares: FloatArray, multioutput: MultiOutput) -> float | FloatArray:
    """One number, or one for every output, as scikit-learn's `r2_score` has it."""
    require_choice("multioutput", multioutput, ("uniform_average", "raw"))
    if multioutput == "raw":
        return shares
    known = shares[np.isfinite(shares)]
    return float(known.mean()) if len(known) else float("nan")


def scatter_on_rows(predictions: FloatArray, residual: FloatArray) -> FloatArray:
    """Standard error of R² over rows, by the delta method."""
    centred = np.square(predictions - predictions.mean(0))
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.square(residual).mean(0) / centred.mean(0)
        influence = (np.square(residual) - left * centred) / centred.mean(0)
    return np.asarray(influence.std(0) / max(len(predictions), 1) ** 0.5)


def compare_with_headline(
    predictions: FloatArray, residual: FloatArray, state: Health, names: Sequence[str]
) -> Finding | None:
    """A finding where R² differs clearly from the headline.

    It must differ by more than two combined standard errors, and by at least 0.05. A lower one that
    differs by less than these errors is told of where a few rows make it lower.
    """
    if len(predictions) < COMPARED_ROWS or len(state.scatter) != len(names) or not state.held_out:
        return None
    headline = np.array(state.explained)
    shares = share_on_rows(predictions, residual, variance=state.variance)
    scatter = np.hypot(scatter_on_rows(predictions, residual), np.array(state.scatter))
    lower = headline - shares
    least = np.maximum(WORTH_TELLING, STANDARD_ERRORS * scatter)
    is_lower = lower > least  # False for NaN
    is_higher = -lower > least
    if not (is_lower | is_higher).any():
        return _few_rows_lower(predictions, residual, shares, headline, names)

    # Of outputs that differ, one that is lower comes first: there the headline promises too much.
    differing = is_lower if is_lower.any() else is_higher
    output = int(np.where(differing, np.abs(lower), -np.inf).argmax())
    subject = names[output] if len(names) > 1 else ""
    message = (
        f"R² on these {len(predictions):,} rows is {with_minus(shares[output], '.3f')}, where the "
        f"held-out R² of the calibration is {with_minus(headline[output], '.3f')}."
    )
    if not is_lower.any():
        message += (
            " These rows are easier to explain than the calibration rows. Training rows are often "
            "harder to explain, because the model has memorised their noise."
        )
        return Finding("note", "fresh_rows", subject, message)

    errors = float(np.square(residual[:, output]).mean())
    usual_errors = (1 - headline[output]) * state.variance[output] if state.variance else 0.0
    if errors <= 1.5 * usual_errors:
        message += (
            " The errors are no larger than usual; R² is lower because the predictions vary less "
            "here. They do so on rows of a narrower kind, and on all new rows if the model was "
            "trained on the calibration rows: then calibrate on other rows."
        )
    else:
        message += (
            " The model was trained on the calibration rows, or these rows are of another kind, or "
            "the calibration rows were too few. Calibrate on more rows like these that the model "
            "was not trained on."
        )
    return Finding("warning", "fresh_rows", subject, message)


def _few_rows_lower(
    predictions: FloatArray,
    residual: FloatArray,
    shares: FloatArray,
    headline: FloatArray,
    names: Sequence[str],
) -> Finding | None:
    """A note where R² is below the headline because of at most one row in a hundred."""
    lower = np.nan_to_num(headline - shares, nan=0.0)
    output = int(lower.argmax())
    if not lower[output] > WORTH_TELLING:
        return None
    order = np.abs(residual[:, output]).argsort()[::-1]
    n_rows = 1
    while n_rows <= max(len(order) // 100, 1):
        rest = order[n_rows:]
        without = float(r_squared(residual[rest], predictions[rest])[output])
        if headline[output] - without <= WORTH_TELLING:
            which = "one row with a very large residual"
            if n_rows > 1:
                which = f"{n_rows} rows with very large residuals"
            message = (
                f"R² on these {len(order):,} rows is {with_minus(shares[output], '.3f')}, where "
                f"the held-out R² of the calibration is {with_minus(headline[output], '.3f')}. "
                f"This is due to {which}: without, it is {with_minus(without, '.3f')}. Unless such "
                "rows are errors, expect some among new rows, and there the lower figure."
            )
            return Finding("note", "fresh_rows", names[output] if len(names) > 1 else "", message)
        n_rows *= 2
    return None


def far_finding(far: NDArray[np.bool_]) -> Finding | None:
    """How many rows are combinations far from all calibration rows.

    None for as many as are flagged of rows like these: a thousandth, give or take.
    """
    number = int(far.sum())
    usual = (1 - _USUAL) * len(far)
    if number <= usual + STANDARD_ERRORS * math.sqrt(usual):
        return None
    message = (
        f"{number:,} of {len(far):,} rows are combinations of values far from all calibration "
        "rows, though every single value is in range. They are flagged in `far`; the functions "
        "were not tested there."
    )
    return Finding(_severity(number, len(far)), "far", "", message)


def outside_finding(outside: NDArray[np.bool_], feature_names: Sequence[str]) -> Finding | None:
    """How many rows have values outside what was calibrated, and in which features, most first."""
    number = int(outside.any(1).sum())
    if not number:
        return None
    per_feature = outside.sum(0)
    order = np.argsort(-per_feature, kind="stable").tolist()
    is_single = len(outside) == 1
    named = [
        feature_names[feature]
        if is_single
        else f"{feature_names[feature]} ({per_feature[feature]:,})"
        for feature in order
        if per_feature[feature]
    ]
    subject = ", ".join(named[:MOST_NAMED])
    if len(named) > MOST_NAMED:
        subject += f" and {len(named) - MOST_NAMED} more"

    have = "has" if number == 1 else "have"
    rows = "The row" if is_single else f"{number:,} of {len(outside):,} rows"
    message = (
        f"{rows} {have} values that the calibration rows do not have: a number out of range (its "
        "function is continued), a missing value, or a new category. They are flagged in "
        "`outside`. Calibrate on rows that cover them."
    )
    return Finding(_severity(number, len(outside)), "outside", subject, message)


def unpredicted_finding(predictions: FloatArray) -> Finding | None:
    """How many rows have no prediction; None where all have one, or none as no model was run."""
    number = int((~np.isfinite(predictions).all(1)).sum())
    if number in (0, len(predictions)):
        return None
    have = "has" if number == 1 else "have"
    message = (
        f"{number:,} of {len(predictions):,} rows {have} no prediction, as the model does not take "
        "one of their values, such as a missing one. Their residuals are not known, and R² leaves "
        "them out."
    )
    return Finding("note", "no_predictions", "", message)


def _severity(number: int, rows: int) -> str:
    """A warning where it concerns many rows, a note where few."""
    is_many = number >= MANY_ROWS * rows and number > 1
    return "warning" if is_many else "note"


# ------------------------------------------------------- combinations far from the calibration rows


# Quantiles that a number's scores are read from.
_QUANTILES = 41
# Share of the calibration rows that are nearer than the limit.
_USUAL = 0.999
# Safety factor on the limit, which is estimated from few rows.
_MARGIN = 1.1
# Fewest rows for every number, and fewest numbers: below, a covariance says nothing.
_ROWS_EACH = 10
_FEWEST_NUMBERS = 2
# Added to the covariance, so that numbers that are exactly correlated do no harm.
_RIDGE = 1e-3


@dataclass(frozen=True, eq=False)
class Reach:
    """Which combinations of numbers are usual."""

    columns: tuple[int, ...]  # of the caller's table
    values: tuple[FloatArray, ...]  # per column, increasing quantiles
    scores: tuple[FloatArray, ...]  # the normal scores there
    precision: FloatArray  # inverse of the scores' covariance
    limit: float  # largest usual d²

    def __post_init__(self) -> None:
        size = len(self.columns)
        shapes = [
            (values.shape, scores.shape)
            for values, scores in zip(self.values, self.scores, strict=True)
        ]
        fits = len(shapes) == size and self.precision.shape == (size, size)
        if not fits or any(len(values) != 1 or values != scores for values, scores in shapes):
            raise ValueError(f"quantiles and scores are not those of {size} columns")

    def beyond(self, columns: Mapping[int, AnyArray]) -> NDArray[np.bool_]:
        """Rows that are further than usual; a missing number counts as an average one."""
        rows = Chunk(columns, slice(0, len(columns[self.columns[0]])))
        numbers = [rows.numbers(column) for column in self.columns]
        scores = _scores(numbers, self.values, self.scores)
        return np.asarray(_squared(scores, self.precision) > self.limit)


def measure_reach(columns: Mapping[int, AnyArray]) -> Reach | None:
    """What is usual among some rows; None for too few rows, or fewer than two varying numbers."""
    numbers = {
        position: np.asarray(column, dtype=np.float64) for position, column in columns.items()
    }
    numbers = {k: x for k, x in numbers.items() if len(np.unique(x[np.isfinite(x)])) > 2}
    rows = len(next(iter(numbers.values()))) if numbers else 0
    if len(numbers) < _FEWEST_NUMBERS or rows < _ROWS_EACH * len(numbers):
        return None

    values = []
    levels = []
    for x in numbers.values():
        known, normal = _normal_scores(x[np.isfinite(x)])
        values.append(known)
        levels.append(normal)
    scores = _scores(list(numbers.values()), tuple(values), tuple(levels))

    # Every half is judged by the other, as rows that are explained are.
    distances = np.empty(rows)
    halves = np.arange(rows) % 2
    for half in (0, 1):
        distances[halves == half] = _squared(
            scores[halves == half], _precision(scores[halves != half])
        )
    limit = _MARGIN * float(np.quantile(distances, _USUAL))
    return Reach(tuple(numbers), tuple(values), tuple(levels), _precision(scores), limit)


def _normal_scores(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Quantiles of a number and the normal scores there; ties share their mean score."""
    shares = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    shares[0] = 0.5 / len(x)
    shares[-1] = 1 - shares[0]
    quantiles = np.quantile(x, np.linspace(0, 1, _QUANTILES))
    normal = np.array([NormalDist().inv_cdf(share) for share in shares])
    known, position = np.unique(quantiles, return_inverse=True)
    return known, np.bincount(position, normal) / np.bincount(position)


def _scores(
    numbers: list[FloatArray], values: tuple[FloatArray, ...], scores: tuple[FloatArray, ...]
) -> FloatArray:
    columns = []
    for x, known, normal in zip(numbers, values, scores, strict=True):
        columns.append(np.where(np.isfinite(x), np.interp(x, known, normal), 0.0))
    return np.stack(columns, 1)


def _precision(scores: FloatArray) -> FloatArray:
    covariance = scores.T @ scores / len(scores)
    return np.asarray(np.linalg.inv(covariance + _RIDGE * np.eye(len(covariance))))


def _squared(scores: FloatArray, precision: FloatArray) -> FloatArray:
    return np.asarray(((scores @ precision) * scores).sum(1))
