"""How far to trust a prediction or a label: neighbours, class centroids, cross-fitted heads, and how labels go wrong.

Rows are compared after columns were decorrelated (`Centroids.transform`): activations that many channels share make
everything look alike. The numbers of the vote were chosen on TinyImageNet, those of heads and labels on CIFAR-10,
TinyImageNet and HAM10000; benchmarks/results/audit.md says how far from what it reports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.arguments import require_parts
from nobsp.neighbors.evidence import Rows
from nobsp.neighbors.search import Fitted, Space, pieces, spaced, unit_length
from nobsp.neighbors.typicality import reference_positions
from nobsp.vision.removal import log_odds

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Positions = NDArray[np.int64]

# Neighbours by activations that have a vote; they count exp(this · cosine), centroids likewise; and the share of a
# class without a single vote, which is not impossible.
VOTERS, _SHARPNESS, _CENTROID_SHARPNESS, _FLOOR = 50, 20.0, 10.0, 0.01
# Rows from which centroids are computed, evenly spaced ones of more; columns past which decorrelating takes minutes.
MOST_ROWS, _MOST_COLUMNS = 200_000, 4096
# Queries whose neighbours are decorrelated together, and numbers gathered at once.
_QUERIES, _AT_ONCE = 2048, 1 << 22
# Folds of the cross-validated joint confidence, and of heads.
_FOLDS = 5
# Cross-fitted heads: weight decay, steps, the share of labels they take to be wrong, rows to fit on, and how much they
# count beside vote and centroids.
_DECAY, _STEPS, _NOISE, _HEAD_ROWS, _HEAD_WEIGHT = 0.03, 30, 0.05, 50_000, 8.0
# Rows that temperature and noise are chosen on, temperatures to choose from, and steps of expectation-maximisation.
_CALIBRATED, _TEMPERATURES, _ROUNDS = 20_000, np.exp(np.linspace(-1.5, 2.0, 29)), 12
# Of heads for values: weight decay, and from how many spreads of the labels on a residual counts by its size alone.
_VALUE_DECAY, _GENTLE = 0.003, 0.1
# Tails of residuals to choose from, and by how much their local scale counts.
_TAILS, _LOCAL = (3.0, 4.0), (0.0, 0.5, 1.0)
# Fewest labels of a regression that tell by themselves how far labels usually are from what is expected.
_FEWEST = 50
_TINY = 1e-100  # labels that are all alike have no spread
# Which classes are taken for which is found out where so many labels agree; wrong labels at random count as so many.
_AGREEMENT, _PRIOR = 0.8, 20.0
# How much the vote may count beside the softmax, and errors below which neither that nor an AUROC says anything.
_SAYS, FEWEST_ERRORS = (0.0, 0.25, 0.5, 0.75, 1.0), 20


@dataclass(frozen=True, eq=False)
class Centroids:
    """What the labelled rows of a database say of their classes, in the space of z-scored activations."""

    space: Space
    take: Callable[[Tensor], Rows]  # rows of the database at positions
    positions: Tensor  # rows of the database that were counted, in order
    members: Tensor  # how many of them are of each class, (classes,), float64
    # T = ((R + I) / 2)^(−1/2), R the correlations of the columns, so that directions that many columns share count
    # less; None where there are too many columns. And sums over each class of the unit vectors along T x.
    transform: Tensor | None
    directions: Tensor

    def decorrelate(self, rows: Rows) -> Tensor:
        """Vectors of unit length along T x; rows of zeros stay."""
        vectors = self.space.vectors(rows)
        return unit_length(vectors if self.transform is None else vectors @ self.transform)

    def cosines(self, own: Tensor, leave: Tensor | None) -> tuple[Tensor, Tensor]:
        """Of rows, to centroids without the rows to leave out; and what members are left, both (rows, classes)."""
        cosines, members = own @ unit_length(self.directions).T, self.members.repeat(len(own), 1)
        if leave is not None:
            repeated = (leave[:, :, None] == leave[:, None, :]).tril(-1).any(2)
            held = torch.isin(leave, self.positions) & ~repeated
            left = self.take(leave.clamp_min(0).flatten())
            labels = left.truth.reshape(leave.shape)
            vectors = self.decorrelate(left).reshape(*leave.shape, -1)
            members.scatter_add_(1, labels, -held.to(torch.float64))
            same = ((labels[:, :, None] == labels[:, None, :]) & held[:, None, :]).to(torch.float64)
            queries, places = torch.nonzero(held, as_tuple=True)
            # What is left of a class that lost its only row is rounding.
            without = unit_length(self.directions[labels] - same @ vectors, 1e-9)[queries, places]
            cosines[queries, labels[queries, places]] = (own[queries] * without).sum(1)
        return cosines, members


def fit_centroids(fitted: Fitted) -> Centroids:
    """Centroids of the classes, by the labels of a database; none where rows may have several classes."""
    space, take = fitted.space("activations", "euclidean"), fitted.backend.take
    classes = 0 if fitted.outcomes.several else fitted.outcomes.count
    positions, width = spaced(len(fitted.backend), MOST_ROWS), space.width
    transform = None
    if width <= _MOST_COLUMNS:
        products = torch.zeros(width, width, dtype=torch.float64)
        for piece in pieces(len(positions), width):
            scores = space.scaled(take(positions[piece]))
            products += scores.T @ scores
        # Halfway to uncorrelated columns; all the way, rare directions would be noise.
        values, axes = torch.linalg.eigh(
            (products / len(positions) + torch.eye(width, dtype=torch.float64)) / 2
        )
        transform = (axes * values.rsqrt()) @ axes.T
    members, directions = (
        torch.zeros(classes, dtype=torch.float64),
        torch.zeros(classes, width, dtype=torch.float64),
    )
    known = Centroids(space, take, positions, members, transform, directions)
    for piece in pieces(len(positions), width) if classes else ():
        rows = take(positions[piece])
        directions.index_add_(0, rows.truth, known.decorrelate(rows))
        members += torch.bincount(rows.truth, minlength=classes)
    return known


@dataclass(frozen=True, eq=False)
class Heads:
    """Linear heads on z-scored activations, each fitted without one fold of the database's rows."""

    space: Space
    weights: Tensor  # (folds, width + 1, outputs), the last of the rows being the bias
    fold: Tensor  # of each row of the database, −1 for those that none was fitted on

    def outputs(self, rows: Rows, leave: Tensor | None) -> Tensor:
        """By the head that did not see the first row to leave out, or by all where there is none, (rows, outputs)."""
        return self.each(rows)[self.unseen(leave, len(rows)), torch.arange(len(rows))]

    def each(self, rows: Rows) -> Tensor:
        """Outputs of every head, and of all together, (folds + 1, rows, outputs)."""
        scores = self.space.scaled(rows)
        every = torch.stack([scores @ weight[:-1] + weight[-1] for weight in self.weights])
        return torch.cat([every, every.mean(0, keepdim=True)])

    def unseen(self, leave: Tensor | None, count: int) -> Tensor:
        """The head that did not see the first row to leave out, −1, which is all together, where all are as good."""
        if leave is None or leave.shape[1] == 0:
            return torch.full((count,), -1)
        return torch.where(leave[:, 0] >= 0, self.fold[leave[:, 0].clamp_min(0)], -1)


def fit_heads(fitted: Fitted) -> Heads | None:
    """Heads in which no single label pulls hard; None where rows are fewer than columns.

    Class numbers, and 0 and 1 in one column per class, are expected to be wrong at times: softmax and sigmoid minimise
    −mean log((1 − ν) p_y + ν (1 − p_y) / (C − 1)) + decay/2 · ‖W‖². Values minimise a mean absolute error, rounded at
    zero, in units of the labels' spread.
    """
    space, count = fitted.space("activations", "euclidean"), len(fitted.backend)
    positions = spaced(count, _HEAD_ROWS)
    if len(positions) < max(space.width, 2 * _FOLDS):
        return None
    rows = fitted.backend.take(positions)
    labels, scores = rows.truth, space.scaled(rows)
    # Rows of a class take turns, so that folds hold all classes alike; by their numbers, whatever order they come in.
    turn, alike = (
        torch.empty(len(labels), dtype=torch.long),
        labels.reshape(len(labels), -1).double().sum(1),
    )
    turn[torch.from_numpy(np.lexsort([scores.sum(1).numpy(), alike.numpy()]))] = (
        torch.arange(len(labels)) % _FOLDS
    )
    fold = torch.full((count,), -1)
    fold[positions] = turn
    kept = [turn != held for held in range(_FOLDS)]
    weights = [
        _fit_head(scores[some].to(torch.float32), labels[some], fitted.outcomes.count)
        for some in kept
    ]
    return Heads(space, torch.stack(weights), fold)


def _fit_head(scores: Tensor, labels: Tensor, outputs: int) -> Tensor:
    middle, spread, decay = 0.0, 1.0, _DECAY
    if labels.is_floating_point():
        middle, spread, decay = (
            float(labels.median()),
            max(float(labels.std()), 1e-12),
            _VALUE_DECAY,
        )
        labels = ((labels - middle) / spread).to(torch.float32)
    with torch.enable_grad():
        weight = torch.zeros(scores.shape[1] + 1, outputs, requires_grad=True)
        solver = torch.optim.LBFGS(
            [weight], max_iter=_STEPS, history_size=10, line_search_fn="strong_wolfe"
        )

        def objective() -> Tensor:
            solver.zero_grad()
            logits = scores @ weight[:-1] + weight[-1]
            if labels.is_floating_point():
                loss = ((logits[:, 0] - labels).square() + _GENTLE**2).sqrt().mean()
            else:
                several = labels.ndim == 2
                chances = logits.sigmoid() if several else logits.softmax(1)
                right = (
                    torch.where(labels > 0, chances, 1 - chances)
                    if several
                    else chances.gather(1, labels[:, None])
                )
                likely = (1 - _NOISE) * right + _NOISE / (1 if several else max(1, outputs - 1)) * (
                    1 - right
                )
                loss = -likely.log().mean() * (outputs if several else 1)
            loss = loss + decay / 2 * weight[:-1].square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        solver.step(objective)  # type: ignore[no-untyped-call]
    result = spread * weight.detach().to(torch.float64)
    result[-1] += middle
    return result


def judge_classes(
    fitted: Fitted,
    rows: Rows,
    labels: Tensor | None,
    voters: Positions,
    leave: Tensor | None,
    nearby: Positions,
) -> tuple[dict[str, Any], Array, Flags | None]:
    """What is thought of predicted classes and labels, by softmax, neighbours, centroids and heads, as an audit has it.

    `voters` are each row's neighbours by activations, `nearby` those of the `reference_positions`. Where rows may have
    several classes, each of them is a question of its own, answered by no or yes, and there is a line for each row and
    class. The second is the joint confidence where no labels tell a better one: the probability of the predicted class
    by softmax and vote together, q_c ∝ p_c (V_c + 0.01)^say. The third says which predictions are right.
    """
    outcomes, several = fitted.outcomes, fitted.outcomes.several
    centroids = fitted.cached("centroids", lambda: fit_centroids(fitted))
    heads = fitted.cached("heads", lambda: fit_heads(fitted))
    logits, say = fitted.logits(rows), 1.0
    if several:
        chances = torch.nn.functional.logsigmoid(torch.stack([-logits, logits], dim=2))
    else:
        chances = outcomes.log_probabilities(logits)
        say = fitted.cached("say", lambda: _weigh_vote(fitted, centroids, heads, nearby))
    parts = []
    for start in range(0, len(rows), _QUERIES):
        lot = slice(start, start + _QUERIES)
        some, left = rows.take(lot), None if leave is None else leave[lot]
        own = centroids.decorrelate(some)
        share = _vote(centroids, own, torch.from_numpy(voters[lot]))
        learnt = None if heads is None else heads.outputs(some, left)
        if several:
            votes, here = (_yes_and_no(share) + _FLOOR).log(), chances[lot].flatten(0, 1)
            given, predicted, members = votes, here.argmax(1), torch.ones_like(votes)
            learnt = None if learnt is None else _yes_and_no(learnt.sigmoid()).log()
        else:
            votes, here, predicted = (share + _FLOOR).log(), chances[lot], some.predicted
            cosines, members = centroids.cosines(own, left)
            given = _CENTROID_SHARPNESS * cosines + votes
            learnt = None if learnt is None else learnt.log_softmax(1)
        given = given if learnt is None else given / _HEAD_WEIGHT + learnt.clamp_min(-700)
        odds = log_odds(here, predicted), votes.gather(1, predicted[:, None])[:, 0]
        parts.append(
            (*odds, log_odds(here + say * votes, predicted), given.to(torch.float32), members > 0)
        )
    confidence, vote, agreed, given, members = (
        torch.cat(part) for part in zip(*parts, strict=True)
    )
    signals = {
        "log-odds of the confidence": confidence.numpy(),
        "logarithm of the vote": vote.numpy(),
        "log-odds of confidence and vote": agreed.numpy(),
    }
    found: dict[str, Any] = {"labels": None, "label_score": None, "signals": signals}
    found["confidence"] = chances.amax(-1).exp().flatten().numpy()
    if several:
        found |= {
            "predicted": (logits > 0).flatten().numpy(),
            "suggested": (given.argmax(1) > 0).numpy(),
        }
        found["outputs"] = np.tile(np.asarray(outcomes.classes), len(rows))
    else:
        found |= {
            "predicted": outcomes.decode(rows.predicted),
            "suggested": outcomes.decode(given.argmax(1)),
        }
    if labels is None:
        return found, agreed.sigmoid().numpy(), None
    if several:
        each = given.reshape(*labels.shape, 2).unbind(1)
        pairs = zip(each, labels.unbind(1), strict=True)
        wrong = torch.stack([doubt_labels(*pair) for pair in pairs], dim=1).flatten()
    else:  # where no other row has the label, nothing is known of it
        wrong = torch.where(
            members.gather(1, labels[:, None])[:, 0], doubt_labels(given, labels), 0.0
        )
    found["labels"] = labels.flatten().numpy() > 0 if several else outcomes.decode(labels)
    found["label_score"] = (1 - wrong).numpy()
    return found, agreed.sigmoid().numpy(), found["predicted"] == found["labels"]


def _yes_and_no(chances: Tensor) -> Tensor:
    """Of every row and class, the chances of no and of yes, (rows · classes, 2)."""
    return torch.stack([1 - chances, chances], dim=2).flatten(0, 1)


def _weigh_vote(
    fitted: Fitted, centroids: Centroids, heads: Heads | None, voters: Positions
) -> float:
    """How much the vote should count beside a softmax: as much as helps to tell errors of heads that did not see a row.

    By rows of the database, whose labels are known. Where such heads make few errors, nothing is known of what the
    vote is worth, and the softmax stands alone; where there are too few rows for heads, both count alike.
    """
    if heads is None:
        return 1.0
    from sklearn.metrics import roc_auc_score

    positions = reference_positions(fitted)
    rows = fitted.backend.take(positions)
    chances = heads.outputs(rows, positions[:, None]).log_softmax(1)
    right = chances.argmax(1) == rows.truth
    if int((~right).sum()) < FEWEST_ERRORS or not right.any():
        return 0.0
    votes = (_vote(centroids, centroids.decorrelate(rows), torch.from_numpy(voters)) + _FLOOR).log()
    return max(
        _SAYS,
        key=lambda say: float(
            roc_auc_score(right, log_odds(chances + say * votes, chances.argmax(1)))
        ),
    )


def doubt_labels(given: Tensor, labels: Tensor) -> Tensor:
    """Probability that each label is wrong.

    With p = softmax(t · given), a label y comes about with Σ_c p_c N_cy, where N_cy is the probability that a row of
    class c is labelled y. Temperature and N maximise the likelihood of the labels: N is alike for all pairs of classes
    unless another one explains the labels better by more than two standard errors. A row's own label is not counted
    in the N that judges it.
    """
    step = -(-len(labels) // _CALIBRATED)
    some, own = given[::step], labels[::step]

    def likelihood(t: float) -> float:
        # Where rows are few, less certain classes explain a few wrong labels nearly as well; so that has a price.
        return (
            float(_explain_labels(some, own, t, pairs=False)[0].sum())
            - 2 * min(0.0, float(np.log(t / 3))) ** 2
        )

    temperature = max(_TEMPERATURES, key=likelihood)
    alike = _explain_labels(some, own, temperature, pairs=False)[0]
    pairs = float((some.argmax(1) == own).double().mean()) >= _AGREEMENT and len(own) > 1
    if pairs:
        gain = _explain_labels(some, own, temperature, pairs=True)[0] - alike
        pairs = bool(gain.mean() > 2 * gain.std() / len(gain) ** 0.5)
    return _explain_labels(given, labels, temperature, pairs=pairs)[1]


def _explain_labels(
    given: Tensor, labels: Tensor, temperature: float, *, pairs: bool
) -> tuple[Tensor, Tensor]:
    """Log-likelihood of each label, and the probability that it is wrong, by expectation-maximisation for N."""
    chances = (temperature * given).softmax(1).to(torch.float64)
    count, classes = chances.shape
    share = _NOISE
    counts = torch.zeros(classes, classes, dtype=torch.float64)

    def at_random() -> Tensor:
        table = torch.full((classes, classes), share / max(1, classes - 1), dtype=torch.float64)
        return table.fill_diagonal_(1 - share)

    table = at_random()
    both = chances * table[:, labels].T
    for _ in range(_ROUNDS):
        shares = both / both.sum(1, keepdim=True)
        counts = torch.zeros_like(table).index_add_(0, labels, shares).T
        # As if one of fifty more labels were wrong: none of a few rows says little about all.
        share = float((counts.sum() - counts.diagonal().sum() + 1) / (count + 50))
        table = at_random()
        if pairs:
            table = (counts + _PRIOR * table) / (counts.sum(1, keepdim=True) + _PRIOR)
        both = chances * table[:, labels].T
    if pairs:
        shares, random = both / both.sum(1, keepdim=True), at_random()
        own = (counts[:, labels].T - shares).clamp_min(0) + _PRIOR * random[:, labels].T
        both = chances * own / (counts.sum(1) - shares + _PRIOR)
    total = both.sum(1).clamp_min(1e-300)
    wrong = 1 - both.gather(1, labels[:, None])[:, 0] / total
    return total.log(), wrong


def _vote(centroids: Centroids, own: Tensor, voters: Tensor) -> Tensor:
    """Share of each class among the neighbours, the more alike ones counting more, shape (rows, classes)."""
    distinct, place = torch.unique(voters, return_inverse=True)
    near, found = [], []
    for piece in pieces(len(distinct), centroids.space.width, numbers=_AT_ONCE):
        rows = centroids.take(distinct[piece])
        near.append(centroids.decorrelate(rows).to(torch.float32))
        found.append(rows.truth)
    vectors, labels = torch.cat(near), torch.cat(found)
    several = labels.shape[1] if labels.ndim == 2 else 0
    shares = torch.zeros(len(own), several or len(centroids.members), dtype=torch.float64)
    for piece in pieces(len(own), voters.shape[1] * own.shape[1], numbers=_AT_ONCE):
        similar = torch.einsum(
            "qd,qkd->qk", own[piece].to(torch.float32), vectors[place[piece]]
        ).double()
        weights = torch.softmax(_SHARPNESS * similar, dim=1)
        if several:
            shares[piece] = torch.einsum("qk,qkc->qc", weights, labels[place[piece]].double())
        else:
            shares[piece].scatter_add_(1, labels[place[piece]], weights)
    return shares


def judge_values(
    fitted: Fitted, rows: Rows, labels: Tensor | None, voters: Positions, leave: Tensor | None
) -> tuple[dict[str, Any], Array, Flags | None]:
    """The same for predicted values: by cross-fitted heads, corrected by what they miss among the neighbours.

    What a head misses at a neighbour is its label less the output of the very head that judges the row, so that the
    row's own label has no part in it. A label about the value expected has Laplace's distribution; with d between it
    and the model's prediction, and b the mean size of its residuals, the model is off by |d| + b exp(−|d| / b) on
    average. A prediction is right where it is off by no more than twice what is usual.
    """
    from scipy.stats import laplace

    heads = fitted.cached("heads", lambda: fit_heads(fitted))
    distinct, place = torch.unique(torch.from_numpy(voters), return_inverse=True)
    others = fitted.backend.take(distinct)
    missed, middle = others.truth[place].numpy(), np.zeros(len(rows))
    if heads is not None:
        missed = (
            missed - heads.each(others)[heads.unseen(leave, len(rows))[:, None], place, 0].numpy()
        )
        middle = heads.outputs(rows, leave)[:, 0].numpy()
    shift = np.median(missed, axis=1)
    middle, spread = middle + shift, np.median(np.abs(missed - shift[:, None]), axis=1)
    spread = np.maximum(spread, 1e-3 * np.median(spread) + _TINY)
    size, predicted = spread / np.log(2), rows.response.numpy().copy()
    away = np.abs(predicted - middle)
    tolerance = 2 * fitted.cached("usual error", lambda: _usual_error(fitted, heads))
    chance = laplace.cdf(tolerance - away, scale=size) - laplace.cdf(-tolerance - away, scale=size)
    found = {
        "predicted": predicted,
        "labels": None,
        "suggested": middle,
        "label_score": None,
        "signals": {},
    }
    found |= {
        "confidence": np.full(len(rows), np.nan),
        "expected_error": away + size * np.exp(-away / size),
    }
    if labels is None:
        return found, chance, None
    given, sizes, known = (
        labels.numpy().copy(),
        np.abs(labels.numpy() - middle)[:, None],
        labels.numpy(),
    )
    if len(given) < _FEWEST:  # too few to tell what is usual: their neighbours do
        sizes, known = np.abs(missed - shift[:, None]), others.truth.numpy()
    wrong = doubt_values(given - middle, spread, given, sizes, known)
    return (
        found | {"labels": given, "label_score": 1 - wrong},
        chance,
        np.abs(predicted - given) <= tolerance,
    )


def _usual_error(fitted: Fitted, heads: Heads | None) -> float:
    """Median size of what cross-fitted heads miss at rows of the database."""
    positions = reference_positions(fitted)
    rows = fitted.backend.take(positions)
    expected = (
        rows.truth.median() if heads is None else heads.outputs(rows, positions[:, None])[:, 0]
    )
    return float((rows.truth - expected).abs().median()) + _TINY


def doubt_values(
    residuals: Array, spread: Array, labels: Array, sizes: Array, known: Array
) -> Array:
    """Probability that each label is wrong, given sizes of usual residuals beside each spread, and labels as they are.

    A right label is about where it is expected: its residual, in units of a scale between the local spread and that of
    all, has Student's distribution. A wrong one is another row's label, or off by a spread of the labels or two
    (Maxwell's distribution); either way one in ten is anywhere (Cauchy's). What kind, tails, scale and the share of
    wrong labels maximise the likelihood.
    """
    from scipy import stats

    middle, deviation = float(np.median(known)), float(known.std()) + _TINY
    # Where most labels are one and the same value, their median deviation is zero.
    anywhere = stats.cauchy.pdf(
        labels, middle, max(float(np.median(np.abs(known - middle))), deviation / 2)
    )
    another = stats.norm.pdf(labels, known.mean(), deviation)
    off = stats.maxwell.pdf(np.abs(residuals), 0, deviation) / 2
    best: tuple[float, Array] = -np.inf, np.zeros(len(labels))
    for local, tail in product(_LOCAL, _TAILS):
        scale = np.exp(local * np.log(spread) + (1 - local) * np.log(np.median(spread)))
        unit = scale * (np.median(sizes / scale[:, None]) + _TINY) / stats.t.ppf(0.75, tail)
        about = stats.t.pdf(residuals / unit, tail) / unit
        for kind in (another, off):
            elsewhere, share = 0.9 * kind + 0.1 * anywhere, _NOISE
            for _ in range(4 * _ROUNDS):
                wrong = share * elsewhere / ((1 - share) * about + share * elsewhere)
                share = float((wrong.sum() + 1) / (len(wrong) + 50))  # as for classes
            total = float(np.log((1 - share) * about + share * elsewhere).sum())
            best = max(best, (total, wrong), key=lambda found: found[0])
    return best[1]


def joint_confidence(
    signals: dict[str, Array], agreed: Array, right: Flags | None, joint: Any
) -> tuple[Array, Literal["cross-validated", "given", "fixed"], Any]:
    """Joint confidence by a regression fitted before, by one fitted here, or by the fixed rule."""
    if joint is not None:
        wanted = "audit.joint_model or another classifier with predict_proba"
        require_parts("joint", joint, ("predict_proba",), wanted=wanted)
    if joint is not None and signals:
        return joint.predict_proba(np.column_stack(list(signals.values())))[:, 1], "given", joint
    # Fewer right or wrong predictions than two in each fold tell nothing.
    if right is None or not signals or min(right.sum(), (~right).sum()) < 2 * _FOLDS:
        return agreed, "fixed", None
    first, *others = signals
    alone = {first: signals[first]} | {name: np.zeros(len(right)) for name in others}
    chance, softmax = _cross_validate(signals, right), _cross_validate(alone, right)
    # The softmax alone, unless neighbours explain the errors better by more than two standard errors.
    gain = np.log(np.where(right, chance, 1 - chance) / np.where(right, softmax, 1 - softmax))
    if gain.mean() <= 2 * gain.std() / len(gain) ** 0.5:
        signals, chance = alone, softmax
    return (
        chance,
        "cross-validated",
        _regression().fit(np.column_stack(list(signals.values())), right),
    )


def _cross_validate(signals: dict[str, Array], right: Flags) -> Array:
    """Joint confidence of each row by a regression that was fitted without it.

    Folds are drawn with a seed of their own, of rows sorted by their signals: the same rows get the same numbers in
    whatever order they come.
    """
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=0)
    order = np.lexsort([right, *reversed(signals.values())])
    table = np.column_stack(list(signals.values()))[order]
    result = np.empty(len(right))
    result[order] = cross_val_predict(
        _regression(), table, right[order], cv=folds, method="predict_proba"
    )[:, 1]
    return result


def _regression() -> Any:
    """A logistic regression on z-scored signals to the probability that a prediction is right."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
