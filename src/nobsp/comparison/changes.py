"""How far the functions of two models lie apart, and whether calibrating again explains that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nobsp._typing import FloatArray
from nobsp.comparison.result import Estimates
from nobsp.comparison.sampling import Sampled
from nobsp.comparison.stacks import Stacks
from nobsp.comparison.trainings import Scatter
from nobsp.tabular.indexing import Term

# Share of the predictions' spread that tables of one function may differ by because their knots do.
RESOLUTION = 0.005


@dataclass(frozen=True, eq=False)
class Changes:
    """How far two functions lie apart, by entries and outputs."""

    spread: Estimates  # standard deviation of their difference over the rows
    # how probable so large a change is if only calibrating differs; NaN where untested
    p_values: FloatArray


def measure_changes(
    stacks: Stacks, sampled: Sampled, *, confidence: float, least_change: float
) -> Changes:
    """Spread of the difference of every term over the rows, with an interval and a test.

    Let d be the difference of two calibrated functions and e the same of a copy of the
    calibrations. Calibrating makes var(d) larger by var(e) on average, and var(d + e) by twice
    that, so that 2 var(d) − var(d + e) is about what the models themselves differ by: a basic
    bootstrap. Without any change, var(d) is distributed as var(e) is: a sum of squares, about a χ²
    of as many degrees of freedom as the deviations have directions (Satterthwaite). A change of
    `least_change`, a share of the predictions' spread, is not yet one.

    Of several trainings, e is what they scatter by, and var(d) is compared with an estimate of it:
    an F distribution, of ν times as many degrees of freedom below, ν the trainings beyond the first
    of a side (the functional F test of Shen and Faraway).
    """
    assert sampled.squares is not None  # two models on the same rows
    side = stacks.sides[0]
    values = stacks.values[0]
    differences = values[:, 0, :-1] - values[:, 1, :-1]
    centred = differences - side.mean(differences)
    variances = side.mean(np.square(centred))
    drawn = sampled.squares[:, :-1].copy()

    p_values = np.full(variances.shape, np.nan)
    least = np.square(least_change) * _variance_of_predictions(stacks)
    terms = dict(enumerate(stacks.terms, start=stacks.first_term))
    for entry, variance in enumerate(variances):
        term = terms.get(entry)
        noise = _noise_of(stacks, sampled, entry, term, differences[:, entry])
        if noise is None:
            # Without knowing what calibrating again does there is nothing to test against.
            continue

        drawn[:, entry] += noise.added
        is_tested = term is not None and frozenset(term) in stacks.common_terms
        if is_tested:
            p_values[entry] = _tail(variance - least, noise)

    spread = _root_interval(variances, drawn, confidence)
    return Changes(spread=spread, p_values=p_values)


def _variance_of_predictions(stacks: Stacks) -> FloatArray:
    """Variance of both models' predictions over the rows, per output, around the mean of both."""
    side = stacks.sides[0]
    predictions = stacks.values[0][:, :, -1]
    centre = side.mean(predictions).mean(0)
    squares = np.square(predictions - centre)
    by_model = side.mean(squares)
    return np.asarray(by_model.mean(0))


@dataclass(frozen=True, eq=False)
class _Noise:
    """What calibrating or training anew does to the variance of a difference."""

    mean: FloatArray  # the variance of the deviations themselves, per output
    added: FloatArray  # what they add to the variance of the difference, (draws, outputs)
    freedom: FloatArray  # in how many directions they deviate, per output
    # From how many trainings, beyond a side's first, the mean is known; None for "well known".
    trainings: int | None = None


def _noise_of(
    stacks: Stacks, sampled: Sampled, entry: int, term: Term | None, difference: FloatArray
) -> _Noise | None:
    """What training or calibrating anew does to an entry; None where it is not known."""
    if stacks.scatter is not None:
        assert sampled.combinations is not None
        return _training_noise(stacks.scatter, sampled.combinations, entry, difference)
    if term is None:
        return None
    return _calibration_noise(stacks, sampled, term, difference)


def _training_noise(
    scatter: Scatter, combinations: FloatArray, entry: int, difference: FloatArray
) -> _Noise:
    """What training again does, as several trainings show it."""
    products = scatter.products_of(entry)
    with_difference = scatter.products_with(entry, difference)
    of_squares = np.einsum("dt,otu,du->do", combinations, products, combinations)

    total = np.trace(products, axis1=1, axis2=2)
    squares = np.square(products).sum((1, 2))
    # Estimated from few trainings, directions are too few rather than too many, and tails too
    # heavy.
    at_least_one = np.ones_like(total)
    directions = np.divide(total**2, squares, out=at_least_one, where=squares > 0)
    mean = scatter.share * total / scatter.freedom
    added = 2 * combinations @ with_difference + of_squares
    return _Noise(
        mean=np.asarray(mean),
        added=np.asarray(added),
        freedom=np.maximum(directions, 1.0),
        trainings=scatter.freedom,
    )


def _calibration_noise(
    stacks: Stacks, sampled: Sampled, term: Term, difference: FloatArray
) -> _Noise | None:
    """What calibrating again does, from copies of both calibrations."""
    first = stacks.deviations[0, 0]
    second = stacks.deviations[1, 0]
    parts = [first.of_term(term), second.of_term(term)]
    if all(part is None for part in parts):
        return None
    if parts[0] is not None and parts[1] is not None:
        n_copies = min(parts[0].shape[1], parts[1].shape[1])
        moved = parts[0][:, :n_copies] - parts[1][:, :n_copies]
    else:
        # one of them is known
        moved = parts[0] if parts[0] is not None else -parts[1]  # type: ignore[operator]

    weights = first.weights
    some = difference[first.positions][:, None]
    with_copies = _variance(some + moved, weights)
    added = with_copies - _variance(some, weights)
    by_copy = _variance(moved, weights)
    return _Noise(
        mean=by_copy.mean(0),
        added=added[sampled.copy % len(added)],
        freedom=_count_directions(moved, weights),
    )


def _count_directions(moved: FloatArray, weights: FloatArray) -> FloatArray:
    """In how many directions functions deviate, per output: (Σ λ)² / Σ λ².

    λ are the eigenvalues of the deviations' covariance over the rows; deviations are (rows, copies,
    outputs).

    The sum of squared eigenvalues of a covariance that was estimated from n copies is too large by
    (Σ λ)² / n.
    """
    mean = np.tensordot(weights, moved, axes=(0, 0))
    centred = (moved - mean) * np.sqrt(weights)[:, None, None]
    products = np.einsum("rco,rdo->ocd", centred, centred)

    n_copies = products.shape[1]
    first = np.trace(products, axis1=1, axis2=2) / n_copies
    too_large = np.square(first) / n_copies
    second = np.square(products).sum((1, 2)) / n_copies**2 - too_large
    with np.errstate(divide="ignore", invalid="ignore"):
        directions = np.square(first) / second
    usable = np.isfinite(directions) & (second > 0)
    at_least_one = np.maximum(directions, 1.0)
    return np.asarray(np.where(usable, at_least_one, n_copies))


def _variance(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Weighted variance over the rows."""
    mean = np.tensordot(weights, values, axes=(0, 0))
    squares = np.square(values - mean)
    return np.asarray(np.tensordot(weights, squares, axes=(0, 0)))


def _tail(variance: FloatArray, noise: _Noise) -> FloatArray:
    """Per output, the probability of so large a variance if functions had not changed.

    Calibrating, or training again, is then all that differs.
    """
    from scipy.stats import chi2, f

    tails = np.where(variance > 0, 0.0, 1.0)
    for output in np.flatnonzero((variance > 0) & (noise.mean > 0)):
        freedom = noise.freedom[output]
        ratio = variance[output] / noise.mean[output]
        if noise.trainings is None:
            tails[output] = chi2.sf(ratio * freedom, freedom)
        else:
            tails[output] = f.sf(ratio, freedom, freedom * noise.trainings)
    return tails


def _root_interval(variances: FloatArray, drawn: FloatArray, confidence: float) -> Estimates:
    """Spreads with a basic bootstrap interval that holds the spread itself."""
    tails = [0.5 - confidence / 2, 0.5 + confidence / 2]
    low, high = np.quantile(drawn, tails, axis=0)
    spread = np.sqrt(variances)
    # Mirrored, as a basic bootstrap is.
    least = np.maximum(2 * variances - high, 0.0)
    most = np.maximum(2 * variances - low, 0.0)
    lower = np.sqrt(least)
    upper = np.sqrt(most)
    return Estimates(
        value=spread,
        lower=np.minimum(lower, spread),
        upper=np.maximum(upper, spread),
    )


def p_values_of_gaps(gaps: FloatArray, drawn: FloatArray, freedom: FloatArray) -> FloatArray:
    """Two-sided probability of so large a gap where there is none, by Welch's test.

    It is taken from Student's distribution.
    """
    from scipy.stats import t

    scatter = drawn.std(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        deviations = np.abs(gaps) / scatter
    # Without scatter a gap is there or not.
    without_scatter = np.where(gaps == 0, 0.0, np.inf)
    deviations = np.where(scatter > 0, deviations, without_scatter)
    return np.asarray(2 * t.sf(deviations, freedom))


def false_discovery_rates(p_values: FloatArray) -> FloatArray:
    """Benjamini and Hochberg's adjusted p-values, per output; NaN where there was no test."""
    adjusted = np.full_like(p_values, np.nan)
    for output in range(p_values.shape[1]):
        column = p_values[:, output]
        tested = np.flatnonzero(np.isfinite(column))
        from_smallest = np.argsort(column[tested], kind="stable")
        order = tested[from_smallest]
        n_tests = len(order)
        ranks = np.arange(1, n_tests + 1)
        scaled = column[order] * n_tests / ranks
        from_largest = np.minimum.accumulate(scaled[::-1])
        adjusted[order, output] = from_largest[::-1].clip(max=1.0)
    return adjusted
