"""`nobsp.compare`: from two accounts to their differences, term by term and with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nobsp._typing import ArrayLike, BoolArray, FloatArray
from nobsp.arguments import count, join_names, require_number, require_whole_number, with_minus
from nobsp.comparison.changes import (
    RESOLUTION,
    Changes,
    false_discovery_rates,
    measure_changes,
    p_values_of_gaps,
)
from nobsp.comparison.pairing import (
    Kind,
    Pair,
    Side,
    every_term,
    find_kind,
    pair_of,
    require_alike,
    require_names,
    same_rows,
    side_of,
)
from nobsp.comparison.result import Comparison, Estimates
from nobsp.comparison.sampling import Drawn, Sampled, draw, gap_draws, gap_of, threefold
from nobsp.comparison.stacks import Stacks, common_terms
from nobsp.comparison.trainings import Accounts, accounts_of, average, require_trainings
from nobsp.deprecation import USUAL_CONFIDENCE, argument_of
from nobsp.findings import Finding
from nobsp.tabular.explanation import Explanation
from nobsp.tabular.health import outside_finding, r_squared, sort_findings
from nobsp.tabular.indexing import term_name

# Below this share of the difference of two models' predictions, that terms explain little is the
# headline.
LITTLE = 0.5
# Two models whose predictions differ by a smaller share of their spread, from row to row, predict
# the same.
ROUNDING = 1e-6
# A residual's part of a gap is worth telling above this share of the gap, where its interval is off
# zero.
LARGE_RESIDUAL = 0.1
# Share of a gap in the base from which on terms say little about it.
LARGE_BASE = 0.5


def compare(
    a: Explanation | Sequence[Explanation],
    b: Explanation | Sequence[Explanation],
    names: tuple[str, str] = ("a", "b"),
    *,
    sample_weight: tuple[ArrayLike | None, ArrayLike | None] | None = None,
    groups: tuple[ArrayLike | None, ArrayLike | None] | None = None,
    crossed: tuple[Explanation, Explanation] | None = None,
    confidence: float = USUAL_CONFIDENCE,
    draws: int = 1000,
    least_change: float = RESOLUTION,
    random_state: int = 0,
    level: float | None = None,
) -> Comparison:
    """What differs between two accounts, by terms that add up to the whole difference.

    - *The same explainer, other rows* (groups, periods, sites): the gap of the mean predictions,
      mean over `a` less mean over `b`, as one part per term and the residual's.
    - *Two explainers, the same rows* (a retrained model, another one): per term how far the two
      functions lie apart, mean and spread of their difference over the rows, and whether that is
      more than calibrating again would make.
    - *Both*: every term's part as change of rows, of functions, and of both (a threefold
      decomposition).

    Intervals draw the rows anew, in groups where these are named, and the functions as other
    calibrations of the same kind would give them. They do not know how models were trained: two
    models trained on other rows of the same kind differ too, and that difference is theirs. To ask
    what changed beyond what training again does, train each model several times and pass a list of
    accounts, `compare([a1, a2, a3], [b1, b2, b3])`: means are compared, and intervals and tests go
    by how far the trainings of one model lie apart.

    Args:
        a: An account, `explainer(X)`; for probabilities, `explainer(X).to_probability()`. A list of
            accounts of the same rows, one per training of the model, counts what training again
            does; three or more tell it well.
        b: The account, or accounts, that are subtracted.
        names: What the two are called.
        sample_weight: How much each row of `a` and of `b` counts, a pair of arrays or None. Rows of
            weight 0 are left out.
        groups: Which rows of `a` and of `b` belong together, such as those of one customer: a pair
            of arrays or None.
        crossed: For two explainers and two tables, `(explainer_a(X_b), explainer_b(X_a))`, so that
            the residual is divided too. Needed where terms have no table, and for probabilities.
        confidence: Share of intervals that hold what they are about.
        draws: How often rows are drawn.
        least_change: For two explainers on one table, the change of a function, as a share of the
            predictions' spread, that is not claimed yet. Functions also move when a model is only
            trained again; where there is one training of each, what training once more makes is a
            good choice.
        random_state: Makes the draws repeatable.
        level: Former name of `confidence`; goes away with nobsp 1.0.

    Returns:
        A `Comparison`: `to_frame()` has the parts, `along(feature)` where on its range a feature's
        part arises, `plot` draws both, and `nobsp.report(comparison, path)` makes a page of it.

    Raises:
        ValueError: If features, outputs or scales differ, there are fewer than two rows, or several
            trainings are of different rows.

    Example:
        >>> import numpy as np, nobsp
        >>> X = np.random.default_rng(0).normal(size=(400, 2))
        >>> explainer = nobsp.NObSP(lambda X: X[:, 0] + X[:, 1] ** 2).fit(X)
        >>> comparison = nobsp.compare(
        ...     explainer(X[:200] + [1, 0]), explainer(X[200:]), names=("new", "old")
        ... )
        >>> frame = comparison.to_frame()
        >>> bool(abs(frame["gap"].sum() - comparison.total.value[0]) < 1e-9)
        True
    """
    trainings = (accounts_of(a, name="a"), accounts_of(b, name="b"))
    confidence = argument_of("level", level, present="confidence", current=confidence)
    kind = _kind_of(trainings)
    names = require_names(names)
    confidence = require_number("confidence", confidence, above=0, below=1)
    _require_draws(draws, random_state, confidence=confidence)
    require_number("least_change", least_change, least=0)
    sides = _sides(
        trainings,
        kind,
        pair_of(sample_weight, argument="sample_weight"),
        pair_of(groups, argument="groups"),
    )
    terms = every_term(*(side.explanation for side in sides))

    stacks = Stacks.of(sides, kind, terms, crossed)
    sampled = draw(stacks, draws=draws, generator=np.random.default_rng(random_state))
    estimates = _estimate(stacks, sampled, confidence)
    tests = _test(stacks, sampled, estimates, confidence=confidence, least_change=least_change)

    comparison = _comparison(stacks, names, estimates, tests, confidence=confidence)
    return replace(comparison, findings=sort_findings(_findings(comparison, stacks)))


def _kind_of(trainings: tuple[Accounts, Accounts]) -> Kind:
    """What differs between the two; of several trainings, these are of the same rows."""
    first, second = (accounts[0] for accounts in trainings)
    require_alike(first, second)
    if max(map(len, trainings)) > 1:
        require_trainings(*trainings)
        return "functions"
    return find_kind(first, second)


@dataclass(frozen=True, eq=False)
class _Tests:
    """Which entries differ by more than chance.

    Of two models also how much of their difference the terms explain.
    """

    p_values: FloatArray  # by entries and outputs, NaN where there is no test
    change: Estimates | None = None  # spread of each function's change, of two models
    explained: FloatArray | None = None  # share of the difference of the predictions, of two models


def _test(
    stacks: Stacks,
    sampled: Sampled,
    estimates: dict[str, Estimates],
    *,
    confidence: float,
    least_change: float,
) -> _Tests:
    """Tests of changed functions for two models on the same rows, and of gaps else."""
    if stacks.kind == "functions":
        changes = measure_changes(stacks, sampled, confidence=confidence, least_change=least_change)
        explained = _explained(stacks.sides)
        p_values = _p_values_of_changes(changes, explained)
        tests = _Tests(p_values, change=changes.spread, explained=explained)
    else:
        tests = _Tests(_p_values_of_gaps(stacks, sampled, estimates["gap"].value))

    # What has no test is neither a term nor a discovery.
    is_term = np.array([entry in stacks.term_labels for entry in stacks.entries])
    return replace(tests, p_values=np.where(is_term[:, None], tests.p_values, np.nan))


def _comparison(
    stacks: Stacks,
    names: tuple[str, str],
    estimates: dict[str, Estimates],
    tests: _Tests,
    *,
    confidence: float,
) -> Comparison:
    """The result, without what is worth knowing about it."""
    sides = stacks.sides
    first = sides[0].explanation
    parts = ("rows", "functions", "both")

    return Comparison(
        kind=stacks.kind,
        names=names,
        terms=stacks.terms,
        entries=stacks.entries,
        feature_names=first.feature_names,
        output_names=first.output_names,
        scale=first.scale,
        confidence=confidence,
        n_rows=(len(sides[0]), len(sides[1])),
        mean_predictions=np.stack([side.mean(side.explanation.predictions) for side in sides]),
        total=estimates["total"],
        gap=estimates["gap"],
        parts={part: estimates[part] for part in parts if part in estimates},
        change=tests.change,
        p_value=tests.p_values,
        q_value=false_discovery_rates(tests.p_values),
        explained=tests.explained,
        findings=(),
        sides=sides,
    )


def _p_values_of_changes(changes: Changes, explained: FloatArray) -> FloatArray:
    """P-values of changed functions; 1 where the two models predict the same.

    Such models are one, and what differs between their functions is calibration.
    """
    are_one = np.isnan(explained) & np.isfinite(changes.p_values)
    return np.where(are_one, 1.0, changes.p_values)


def _require_draws(draws: int, random_state: int, *, confidence: float) -> None:
    """Raises where draws are not numbers, or too few for an interval.

    Where no draw is expected beyond an interval's end, that end is not known.
    """
    require_whole_number("draws", draws, least=100)
    require_whole_number("random_state", random_state, least=0)
    fewest = math.ceil(round(2 / (1 - confidence), 6))
    if draws < fewest:
        raise ValueError(
            f"confidence={confidence:g} needs draws={fewest} or more, found {draws}: an interval's "
            "end is known from the draws beyond it."
        )


def _sides(
    trainings: tuple[Accounts, Accounts], kind: Kind, sample_weight: Pair, groups: Pair
) -> tuple[Side, Side]:
    """The rows of both accounts; for two models on the same rows, those that both answer."""
    a, b = (average(accounts) for accounts in trainings)
    if kind == "functions":
        is_known = np.asarray(np.isfinite(a.residual + b.residual).all(1))
        a = _only_known(a, is_known)
        b = _only_known(b, is_known)
        for argument, pair in (("sample_weight", sample_weight), ("groups", groups)):
            is_alike = pair[0] is pair[1] or pair[1] is None or np.array_equal(*pair)
            if not is_alike:
                raise ValueError(
                    f"{argument} of a and b must be the same: they have the same rows."
                )
        sample_weight = (sample_weight[0], sample_weight[0])
        groups = (groups[0], groups[0])
    first = side_of(
        a, name="a", sample_weight=sample_weight[0], groups=groups[0], trainings=trainings[0]
    )
    second = side_of(
        b, name="b", sample_weight=sample_weight[1], groups=groups[1], trainings=trainings[1]
    )

    return first, second


def _only_known(account: Explanation, is_known: BoolArray) -> Explanation:
    """The account with unknown residuals where the other account's are unknown."""
    if is_known.all():
        return account
    return replace(account, residual=np.where(is_known[:, None], account.residual, np.nan))


def _estimate(stacks: Stacks, sampled: Sampled, confidence: float) -> dict[str, Estimates]:
    """The gap by entries, the whole gap, and where rows and functions differ its three parts."""
    means = [side.mean(values) for side, values in zip(stacks.sides, stacks.values, strict=True)]
    gap = gap_of(stacks.kind, means)
    freedom = _freedom_of_rows(stacks)

    def interval(value: FloatArray, drawn: Drawn) -> Estimates:
        return Estimates.of(value, drawn.total, confidence, freedom=drawn.freedom(freedom))

    intervals = interval(gap, gap_draws(stacks.kind, sampled))
    estimates = {"gap": intervals.take(slice(0, -1)), "total": intervals.take(-1)}
    if stacks.kind == "both":
        for part, value, drawn in threefold(means, sampled):
            estimates[part] = interval(value, drawn).take(slice(0, -1))
    return estimates


def _freedom_of_rows(stacks: Stacks) -> tuple[float, float]:
    """Degrees of freedom of the rows of a and of b."""
    first, second = stacks.sides
    return first.freedom, second.freedom


def _p_values_of_gaps(stacks: Stacks, sampled: Sampled, gaps: FloatArray) -> FloatArray:
    """Probability of gaps as large as these without any, by entries."""
    drawn = gap_draws(stacks.kind, sampled)
    freedom = drawn.freedom(_freedom_of_rows(stacks))
    return p_values_of_gaps(gaps, drawn.total[:, :-1], freedom[:-1])


def _explained(sides: tuple[Side, Side]) -> FloatArray:
    """Per output, the R² of the terms' differences for that of the two models' predictions.

    It is NaN where these do not differ.
    """
    a, b = (side.explanation for side in sides)
    weights = sides[0].weights
    differences = a.predictions - b.predictions
    shares = r_squared(a.residual - b.residual, differences, weights)
    spreads = np.maximum(a.predictions.std(0), b.predictions.std(0))
    return np.where(differences.std(0) > ROUNDING * spreads, shares, np.nan)


def _findings(comparison: Comparison, stacks: Stacks) -> list[Finding]:
    """What is worth knowing before the numbers are believed."""
    findings = [
        *_explained_findings(comparison),
        *_training_findings(comparison),
        *_residual_findings(comparison),
        *_base_findings(comparison),
        *_term_findings(comparison),
    ]
    if not stacks.counts_functions:
        findings.append(
            Finding(
                "note",
                "functions_not_counted",
                "",
                "Some or all intervals count the uncertainty of the rows only, not that of the "
                "functions: this is not known for an explainer from a file, for Algorithm 1 as "
                "published, for features of several columns and for very many outputs. Compare "
                "with the explainer that was fitted.",
            )
        )
    return [*findings, *_row_findings(comparison)]


def _row_findings(comparison: Comparison) -> list[Finding]:
    """Findings on rows out of range, rows that are left out, and accounts of the very same rows.

    Out of range is outside of what was calibrated.
    """
    findings = []
    first, second = (side.explanation for side in comparison.sides)
    if comparison.kind == "rows" and same_rows(first, second):
        message = (
            "Both are accounts of the same rows by the same explainer: only weights can make a "
            "gap, and intervals are those of two tables that were drawn independently."
        )
        findings.append(Finding("warning", "same_accounts", "", message))

    is_told_once = comparison.kind == "functions" and np.array_equal(first.outside, second.outside)
    for name, side in zip(comparison.names, comparison.sides, strict=True):
        outside = outside_finding(side.explanation.outside, side.explanation.feature_names)
        if outside is not None and not is_told_once:
            findings.append(replace(outside, subject=f"{name}: {outside.subject}"))
        elif outside is not None and name == comparison.names[0]:
            findings.append(outside)
        if side.n_left_out:
            message = f"{count(side.n_left_out, 'row')} without a prediction are left out."
            findings.append(Finding("note", "left_out", name, message))
    return findings


def _training_findings(comparison: Comparison) -> list[Finding]:
    """A finding where models of one training each have functions that differ.

    All that is known is that they differ by more than calibrating again makes them differ.
    """
    if comparison.kind == "rows" or comparison.n_trainings != (1, 1):
        return []
    n_outputs = len(comparison.output_names)
    names = [comparison.changed(output=output) for output in range(n_outputs)]
    if comparison.kind == "functions" and not any(names):
        return []
    message = (
        "This tells how the two models differ as they are, which is all there is to ask where one "
        "was made from the other, as by pruning. Where each was trained: training again, on rows "
        "of the same kind, moves functions too, and one training of each cannot tell how far. What "
        "differs here may be no more than that."
    )
    if comparison.kind == "functions":
        message += (
            " Then train each three times or more and pass lists of accounts, compare([a1, a2, "
            "a3], [b1, b2, b3]), or pass as least_change what one more training moves."
        )
    severity = "warning" if comparison.kind == "functions" else "note"
    return [Finding(severity, "one_training", "", message)]


def _explained_findings(comparison: Comparison) -> list[Finding]:
    """Outputs of which two models differ in ways that their terms do not tell."""
    if comparison.explained is None:
        return []
    findings = []
    for name, share in zip(comparison.output_names, comparison.explained, strict=True):
        if not share < LITTLE:  # NaN where predictions do not differ
            continue
        message = (
            f"The terms explain {max(share, 0.0):.2f} of how the predictions of the two models "
            "differ from row to row; no function shown here explains the rest."
        )
        subject = name if len(comparison.output_names) > 1 else ""
        findings.append(Finding("warning", "little_explained", subject, message))
    return findings


def _residual_findings(comparison: Comparison) -> list[Finding]:
    """Outputs whose gap is to a good part in the residual."""
    if comparison.kind == "functions":
        return []
    findings = []
    residual = comparison.gap.take(-1)
    for position, name in enumerate(comparison.output_names):
        value = float(residual.value[position])
        total = float(comparison.total.value[position])
        is_off_zero = residual.lower[position] > 0 or residual.upper[position] < 0
        if not is_off_zero or abs(value) <= LARGE_RESIDUAL * abs(total):
            continue
        message = (
            f"{with_minus(value, '.3g')} of the gap of {with_minus(total, '.3g')} is in the "
            "residual: the functions do not explain where it comes from."
        )
        subject = name if len(comparison.output_names) > 1 else ""
        findings.append(Finding("warning", "residual", subject, message))
    return findings


def _base_findings(comparison: Comparison) -> list[Finding]:
    """Outputs whose gap lies to a good part in the base.

    This happens where explainers were calibrated on different rows.
    """
    if comparison.kind != "both" or not _are_calibrated_apart(comparison):
        return []
    findings = []
    for position, name in enumerate(comparison.output_names):
        base = float(comparison.gap.value[0, position])
        total = float(comparison.total.value[position])
        if abs(base) <= LARGE_BASE * abs(total):
            continue
        message = (
            f"{with_minus(base, '.3g')} of the gap of {with_minus(total, '.3g')} is in the base: "
            "each explainer measures its functions from the mean of its own calibration rows. "
            "Calibrate both explainers on the same rows, for example on both tables together, or "
            "read how rows and functions differ in the columns of to_frame()."
        )
        subject = name if len(comparison.output_names) > 1 else ""
        findings.append(Finding("note", "base_differs", subject, message))
    return findings


def _are_calibrated_apart(comparison: Comparison) -> bool:
    """Whether the sides were calibrated on different rows, judged by their features' ranges."""
    first, second = (side.explanation.origin for side in comparison.sides)
    if first is None or second is None:
        return False
    return [feature.ranges for feature in first.features] != [
        feature.ranges for feature in second.features
    ]


def _term_findings(comparison: Comparison) -> list[Finding]:
    """Terms that only one of two explainers has."""
    if comparison.kind == "rows":
        return []
    in_all = common_terms(comparison.sides)
    lacking = [term_name(term) for term in comparison.terms if frozenset(term) not in in_all]
    if not lacking:
        return []
    who = "Only one of the two explainers has"
    if comparison.n_trainings != (1, 1):
        who = "Not every explainer has"
    message = (
        f"{who} these terms, so their whole contribution counts as changed, without a "
        "test. Fit all with the same interactions=[...] to compare them."
    )
    return [Finding("note", "terms_differ", join_names(lacking), message)]
