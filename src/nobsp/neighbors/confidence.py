"""How far to trust predictions and labels: by softmax, neighbours, centroids and heads.

Centroids are those of classes, and heads are cross-fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._typing import AnyArray, ModelLike
from nobsp.arguments import require_parts
from nobsp.neighbors.crossfit import Heads, fit_heads
from nobsp.neighbors.doubt import doubt_labels, doubt_values
from nobsp.neighbors.evidence import Outcomes, Rows
from nobsp.neighbors.search import Fitted
from nobsp.neighbors.tuning import TUNING
from nobsp.neighbors.typicality import reference_positions
from nobsp.neighbors.voting import Centroids, count_votes, fit_centroids
from nobsp.network.readout import log_odds

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Positions = NDArray[np.int64]
JointKind = Literal["cross-validated", "given", "fixed"]

# Logarithms of probabilities are not less than this: exp of less is zero.
_LEAST_LOG = -700


@dataclass(frozen=True, eq=False)
class Judgement:
    """What is thought of predictions and labels, one line per row.

    Where rows may have several classes, there is one line per row and class.

    Attributes:
        predicted: The predicted classes or values.
        suggested: The classes that neighbours, centroids and heads make most probable, or the
            values they expect.
        confidence: Softmax probability of the predicted class; NaN for a regression.
        agreed: Probability that the prediction is right where no labels tell a better one.
        signals: What a joint confidence may be fitted to, by name; empty for a regression.
        labels: The labels given; None without.
        label_score: Probability that each is right; None without labels.
        right: Which predictions are right; None without labels.
        outputs: The class that each line is about, where rows may have several; None otherwise.
        expected_error: How far predicted values are off, on average; None for classes.
    """

    predicted: AnyArray
    suggested: AnyArray
    confidence: Array
    agreed: Array
    signals: dict[str, Array]
    labels: AnyArray | None = None
    label_score: Array | None = None
    right: Flags | None = None
    outputs: AnyArray | None = None
    expected_error: Array | None = None


@dataclass(frozen=True, eq=False)
class _Opinions:
    """What is thought of the classes of some rows, or of the answers no and yes to each class.

    Attributes:
        confidence: Log-odds of the predicted class by the softmax.
        vote: Logarithm of its share of the vote.
        agreed: Its log-odds by both together.
        evidence: Logarithms of how probable each class is without the row's own label, shape
            (lines, classes).
        is_known: Whether any other row is of a class, shape (lines, classes).
    """

    confidence: Tensor
    vote: Tensor
    agreed: Tensor
    evidence: Tensor
    is_known: Tensor


def judge_classes(
    fitted: Fitted,
    rows: Rows,
    labels: Tensor | None,
    voters: Positions,
    leave: Tensor | None,
    reference_voters: Positions,
) -> Judgement:
    """What is thought of predicted classes and labels, by softmax, neighbours, centroids and heads.

    `voters` are each row's neighbours by activations, `reference_voters` those of the
    `reference_positions`. Where rows may have several classes, each of them is a question of its
    own, answered by no or yes. `agreed` is the probability of the predicted class by softmax and
    vote together, q_c ∝ p_c (V_c + 0.01)^weight.
    """
    outcomes = fitted.outcomes
    centroids = fitted.cached("centroids", lambda: fit_centroids(fitted))
    heads = fitted.cached("heads", lambda: fit_heads(fitted))
    logits = fitted.logits(rows)
    if outcomes.several:
        vote_weight = 1.0
        log_chances = torch.nn.functional.logsigmoid(torch.stack([-logits, logits], dim=2))
    else:
        vote_weight = fitted.cached(
            "say", lambda: _weigh_vote(fitted, centroids, heads, reference_voters)
        )
        log_chances = outcomes.log_probabilities(logits)

    witnesses = _Witnesses(centroids, heads, vote_weight, has_several=outcomes.several)
    questioned = _Questioned(rows, log_chances, torch.from_numpy(voters), leave)
    opinions = _hear_opinions(witnesses, questioned)
    suggested = opinions.evidence.argmax(1)
    judged = Judgement(
        predicted=(
            (logits > 0).flatten().numpy() if outcomes.several else outcomes.decode(rows.predicted)
        ),
        suggested=(suggested > 0).numpy() if outcomes.several else outcomes.decode(suggested),
        confidence=log_chances.amax(-1).exp().flatten().numpy(),
        agreed=opinions.agreed.sigmoid().numpy(),
        signals={
            "log-odds of the confidence": opinions.confidence.numpy(),
            "logarithm of the vote": opinions.vote.numpy(),
            "log-odds of confidence and vote": opinions.agreed.numpy(),
        },
        outputs=np.tile(np.asarray(outcomes.classes), len(rows)) if outcomes.several else None,
    )
    return judged if labels is None else _judge_labels(judged, opinions, outcomes, labels)


def _judge_labels(
    judged: Judgement, opinions: _Opinions, outcomes: Outcomes, labels: Tensor
) -> Judgement:
    """The same with what is thought of the labels."""
    label_array = labels.flatten().numpy() > 0 if outcomes.several else outcomes.decode(labels)
    return replace(
        judged,
        labels=label_array,
        label_score=(1 - _doubt(opinions, labels)).numpy(),
        right=np.asarray(judged.predicted == label_array),
    )


@dataclass(frozen=True, eq=False)
class _Witnesses:
    """What is asked about rows, beside their neighbours."""

    centroids: Centroids
    heads: Heads | None
    vote_weight: float  # of the neighbours' vote beside the softmax
    has_several: bool  # whether rows may have several classes


@dataclass(frozen=True, eq=False)
class _Questioned:
    """Rows that are asked about."""

    rows: Rows
    log_chances: Tensor  # logarithms of the classes' probabilities by the softmax
    voters: Tensor  # positions of every row's neighbours
    leave: Tensor | None  # rows of the database that each row leaves out; None for none

    def take(self, lot: slice) -> _Questioned:
        """Some of the rows."""
        return _Questioned(
            rows=self.rows.take(lot),
            log_chances=self.log_chances[lot],
            voters=self.voters[lot],
            leave=None if self.leave is None else self.leave[lot],
        )


def _hear_opinions(witnesses: _Witnesses, questioned: _Questioned) -> _Opinions:
    """Opinions of the vote, centroids and heads about all rows.

    Rows are asked about some at a time, as many as fit into memory.
    """
    parts = []
    for start in range(0, len(questioned.rows), TUNING.n_queries_at_once):
        lot = slice(start, start + TUNING.n_queries_at_once)
        parts.append(_hear_some_opinions(witnesses, questioned.take(lot)))
    return _join_opinions(parts)


def _hear_some_opinions(witnesses: _Witnesses, questioned: _Questioned) -> _Opinions:
    """Opinions of the vote, centroids and heads about some rows."""
    rows = questioned.rows
    leave = questioned.leave
    log_chances = questioned.log_chances
    centroids = witnesses.centroids
    heads = witnesses.heads

    vectors = centroids.decorrelate(rows)
    shares = count_votes(centroids, vectors, questioned.voters)
    head_outputs = None if heads is None else heads.outputs(rows, leave)
    if witnesses.has_several:
        votes = (_no_and_yes(shares) + TUNING.vote_floor).log()
        log_chances = log_chances.flatten(0, 1)
        predicted = log_chances.argmax(1)
        evidence = votes
        is_known = torch.ones_like(votes, dtype=torch.bool)
        head_log_chances = (
            None if head_outputs is None else _no_and_yes(head_outputs.sigmoid()).log()
        )
    else:
        votes = (shares + TUNING.vote_floor).log()
        predicted = rows.predicted
        cosines, members = centroids.cosines(vectors, leave)
        evidence = TUNING.centroid_sharpness * cosines + votes
        is_known = members > 0
        head_log_chances = None if head_outputs is None else head_outputs.log_softmax(1)

    if head_log_chances is not None:
        evidence = evidence / TUNING.head_weight + head_log_chances.clamp_min(_LEAST_LOG)
    return _Opinions(
        confidence=log_odds(log_chances, predicted),
        vote=votes.gather(1, predicted[:, None])[:, 0],
        agreed=log_odds(log_chances + witnesses.vote_weight * votes, predicted),
        evidence=evidence.to(torch.float32),
        is_known=is_known,
    )


def _join_opinions(parts: Sequence[_Opinions]) -> _Opinions:
    return _Opinions(
        confidence=torch.cat([part.confidence for part in parts]),
        vote=torch.cat([part.vote for part in parts]),
        agreed=torch.cat([part.agreed for part in parts]),
        evidence=torch.cat([part.evidence for part in parts]),
        is_known=torch.cat([part.is_known for part in parts]),
    )


def _doubt(opinions: _Opinions, labels: Tensor) -> Tensor:
    """Probability that each label is wrong; of 0 and 1 for each class, class by class."""
    if labels.ndim == 1:
        wrong = doubt_labels(opinions.evidence, labels)
        # Where no other row has the label, nothing is known of it.
        is_known = opinions.is_known.gather(1, labels[:, None])[:, 0]
        return torch.where(is_known, wrong, 0.0)

    evidence = opinions.evidence.reshape(*labels.shape, 2)
    columns = [
        doubt_labels(evidence[:, column], labels[:, column]) for column in range(labels.shape[1])
    ]
    return torch.stack(columns, dim=1).flatten()


def _no_and_yes(chances: Tensor) -> Tensor:
    """Of every row and class, the chances of no and of yes, (rows · classes, 2)."""
    return torch.stack([1 - chances, chances], dim=2).flatten(0, 1)


def _weigh_vote(
    fitted: Fitted, centroids: Centroids, heads: Heads | None, voters: Positions
) -> float:
    """How much the vote should count beside a softmax.

    It counts as much as helps to tell the errors of heads that did not see a row.

    By rows of the database, whose labels are known. Where such heads make few errors, nothing is
    known of what the vote is worth, and the softmax stands alone; where there are too few rows for
    heads, both count alike.
    """
    if heads is None:
        return 1.0
    from sklearn.metrics import roc_auc_score

    positions = reference_positions(fitted)
    rows = fitted.backend.take(positions)
    log_chances = heads.outputs(rows, positions[:, None]).log_softmax(1)
    predicted = log_chances.argmax(1)
    right = predicted == rows.truth
    if int((~right).sum()) < TUNING.fewest_errors or not right.any():
        return 0.0

    shares = count_votes(centroids, centroids.decorrelate(rows), torch.from_numpy(voters))
    votes = (shares + TUNING.vote_floor).log()

    def tell_errors(weight: float) -> float:
        return float(roc_auc_score(right, log_odds(log_chances + weight * votes, predicted)))

    return max(TUNING.vote_weights, key=tell_errors)


def judge_values(
    fitted: Fitted, rows: Rows, labels: Tensor | None, voters: Positions, leave: Tensor | None
) -> Judgement:
    """What is thought of predicted values, by cross-fitted heads.

    These are corrected by what they miss among the neighbours.

    What a head misses at a neighbour is its label less the output of the very head that judges the
    row, so that the row's own label has no part in it. A label near the value expected has
    Laplace's distribution; with d between it and the model's prediction, and b the mean size of its
    residuals, the model is off by |d| + b exp(−|d| / b) on average. A prediction is right where it
    is off by no more than twice what is usual.
    """
    from scipy.stats import laplace

    heads = fitted.cached("heads", lambda: fit_heads(fitted))
    expectation = _expect_values(fitted, heads, rows, voters, leave)
    expected = expectation.values
    mean_residual = expectation.spread / np.log(2)

    predicted = rows.response.numpy().copy()
    away = np.abs(predicted - expected)
    tolerance = 2 * fitted.cached("usual error", lambda: _usual_error(fitted, heads))
    below = laplace.cdf(tolerance - away, scale=mean_residual)
    agreed = below - laplace.cdf(-tolerance - away, scale=mean_residual)
    judged = Judgement(
        predicted=predicted,
        suggested=expected,
        confidence=np.full(len(rows), np.nan),
        agreed=agreed,
        signals={},
        expected_error=away + mean_residual * np.exp(-away / mean_residual),
    )
    if labels is None:
        return judged

    label_array = labels.numpy().copy()
    return replace(
        judged,
        labels=label_array,
        label_score=1 - expectation.doubt(label_array),
        right=np.abs(predicted - label_array) <= tolerance,
    )


@dataclass(frozen=True, eq=False)
class _Expectation:
    """The values that neighbours make most probable for some rows."""

    values: Array
    spread: Array  # of the neighbours' own values about what is expected of them
    deviations: Array  # each neighbour's, (rows, neighbours)
    neighbour_labels: Array  # of all neighbours, each once

    def doubt(self, labels: Array) -> Array:
        """Probability that each label is wrong."""
        usual_sizes = np.abs(labels - self.values)[:, None]
        usual_labels = labels
        if len(labels) < TUNING.fewest_values:  # too few to tell what is usual: neighbours do
            usual_sizes = self.deviations
            usual_labels = self.neighbour_labels
        return doubt_values(labels - self.values, self.spread, labels, usual_sizes, usual_labels)


def _expect_values(
    fitted: Fitted, heads: Heads | None, rows: Rows, voters: Positions, leave: Tensor | None
) -> _Expectation:
    """What heads say, corrected by what they miss among the neighbours."""
    distinct, columns = torch.unique(torch.from_numpy(voters), return_inverse=True)
    neighbours = fitted.backend.take(distinct)
    missed = neighbours.truth[columns].numpy()
    expected = np.zeros(len(rows))
    if heads is not None:
        judging_head = heads.unseen(leave, len(rows))[:, None]
        missed = missed - heads.each(neighbours)[judging_head, columns, 0].numpy()
        expected = heads.outputs(rows, leave)[:, 0].numpy()

    shift = np.median(missed, axis=1)
    deviations = np.abs(missed - shift[:, None])
    spread = np.median(deviations, axis=1)
    spread = np.maximum(spread, 1e-3 * np.median(spread) + TUNING.tiny)
    return _Expectation(
        values=expected + shift,
        spread=spread,
        deviations=deviations,
        neighbour_labels=neighbours.truth.numpy(),
    )


def _usual_error(fitted: Fitted, heads: Heads | None) -> float:
    """Median size of what cross-fitted heads miss at rows of the database."""
    positions = reference_positions(fitted)
    rows = fitted.backend.take(positions)
    expected = rows.truth.median()
    if heads is not None:
        expected = heads.outputs(rows, positions[:, None])[:, 0]
    return float((rows.truth - expected).abs().median()) + TUNING.tiny


@dataclass(frozen=True, eq=False)
class JointConfidence:
    """Probabilities that predictions are right, their kind, and the regression for other rows.

    The kind says how they came about.
    """

    chance: Array
    kind: JointKind
    model: ModelLike  # None for the fixed rule


def joint_confidence(
    signals: dict[str, Array], agreed: Array, right: Flags | None, joint: Any
) -> JointConfidence:
    """Joint confidence by a regression fitted before, by one fitted here, or by the fixed rule."""
    if joint is not None:
        wanted = "audit.joint_model or another classifier with predict_proba"
        require_parts("joint", joint, ("predict_proba",), wanted=wanted)
    if joint is not None and signals:
        chance = joint.predict_proba(np.column_stack(list(signals.values())))[:, 1]
        return JointConfidence(chance, "given", joint)
    # Fewer right or wrong predictions than two in each fold tell nothing.
    if right is None or not signals or min(right.sum(), (~right).sum()) < 2 * TUNING.n_folds:
        return JointConfidence(agreed, "fixed", None)

    first = next(iter(signals))
    softmax_alone = {name: np.zeros(len(right)) for name in signals}
    softmax_alone[first] = signals[first]
    by_all = _cross_validate(signals, right)
    by_softmax = _cross_validate(softmax_alone, right)

    # The softmax alone, unless neighbours explain the errors better by more than two standard
    # errors.
    likelihood = np.where(right, by_all, 1 - by_all)
    softmax_likelihood = np.where(right, by_softmax, 1 - by_softmax)
    gain = np.log(likelihood / softmax_likelihood)
    chance = by_all
    used = signals
    if gain.mean() <= 2 * gain.std() / len(gain) ** 0.5:
        chance = by_softmax
        used = softmax_alone
    model = _regression().fit(np.column_stack(list(used.values())), right)
    return JointConfidence(chance, "cross-validated", model)


def _cross_validate(signals: dict[str, Array], right: Flags) -> Array:
    """Joint confidence of each row by a regression that was fitted without it.

    Folds are drawn with a seed of their own, of rows sorted by their signals: the same rows get the
    same numbers in whatever order they come.
    """
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = StratifiedKFold(TUNING.n_folds, shuffle=True, random_state=0)
    order = np.lexsort([right, *reversed(signals.values())])
    table = np.column_stack(list(signals.values()))[order]
    chances = cross_val_predict(
        _regression(), table, right[order], cv=folds, method="predict_proba"
    )
    result = np.empty(len(right))
    result[order] = chances[:, 1]
    return result


def _regression() -> Any:
    """A logistic regression on z-scored signals to the probability that a prediction is right."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
