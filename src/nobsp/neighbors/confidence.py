"""How far to trust a prediction or a label: neighbours, class centroids, cross-fitted heads, and how labels go wrong.

Rows are compared after columns were decorrelated (`Centroids.transform`): activations that many channels share make
everything look alike. The numbers of the vote were chosen on TinyImageNet, those of heads and labels on CIFAR-10,
TinyImageNet and HAM10000; benchmarks/results/audit.md says how far from what it reports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.neighbors.evidence import Rows
from nobsp.neighbors.search import Space, pieces

Array = NDArray[np.float64]
Take = Callable[[Tensor], Rows]

# Neighbours by activations that have a vote.
VOTERS = 50
# A neighbour counts exp(this · cosine); a centroid likewise.
_SHARPNESS, _CENTROID_SHARPNESS = 20.0, 10.0
# A class without a single vote is not impossible.
_FLOOR = 0.01
# Rows from which centroids are computed; of a larger database, so many evenly spaced ones.
MOST_ROWS = 200_000
# Past so many columns, decorrelating them takes minutes, and they are left as they are.
_MOST_COLUMNS = 4096
# Queries whose neighbours are decorrelated together, and numbers gathered at once.
_QUERIES, _AT_ONCE = 2048, 1 << 22
# Folds of the cross-validated joint confidence; fewer right or wrong predictions than two in each do not allow it.
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
# Rows of the database that typicality is measured against, and neighbours it is measured by in the two spaces.
_REFERENCE, NEAR, _NEAR_RAW = 1000, 8, 10


# ---------------------------------------------------------------------- class centroids


@dataclass(frozen=True, eq=False)
class Centroids:
    """What the labelled rows of a database say of their classes, in the space of z-scored activations."""

    space: Space
    take: Take  # rows of the database at positions
    positions: Tensor  # rows of the database that were counted, in order
    members: Tensor  # how many of them are of each class, (classes,), float64
    # T = ((R + I) / 2)^(−1/2), R the correlations of the columns, so that directions that many columns share count
    # less; None where there are too many columns. And sums over each class of the unit vectors along T x.
    transform: Tensor | None
    directions: Tensor

    def left_out(self, leave: Tensor) -> tuple[Tensor, Tensor]:
        """Labels and vectors of rows that queries leave out, label −1 for those that no centroid holds."""
        repeated = (leave[:, :, None] == leave[:, None, :]).tril(-1).any(2)
        held = torch.isin(leave, self.positions) & ~repeated
        rows = self.take(leave.clamp_min(0).flatten())
        assert rows.labels is not None
        labels = torch.where(held, rows.labels.reshape(leave.shape), -1)
        return labels, self.space.vectors(rows, rows.predicted).reshape(*leave.shape, -1)

    def decorrelate(self, vectors: Tensor) -> Tensor:
        """Vectors of unit length along T x; rows of zeros stay."""
        return _unit(vectors if self.transform is None else vectors @ self.transform)


def fit_centroids(space: Space, take: Take, count: int, classes: int) -> Centroids:
    """Centroids of the classes, by the labels of a database of `count` rows; none where labels are no class numbers."""
    positions = torch.arange(count)
    if count > MOST_ROWS:
        positions = torch.linspace(0, count - 1, MOST_ROWS, dtype=torch.float64).long()
    width = space.width
    products = torch.zeros(width, width, dtype=torch.float64) if width <= _MOST_COLUMNS else None
    found = []
    for piece in pieces(len(positions), width):
        rows = take(positions[piece])
        assert rows.labels is not None
        found.append(rows.labels)
        if products is not None:
            scores = _z_scores(space, rows)
            products += scores.T @ scores
    labels = torch.cat(found)
    members = torch.bincount(labels, minlength=classes).to(torch.float64) if classes else torch.zeros(0)
    transform = None
    if products is not None:
        # Halfway to uncorrelated columns; all the way, rare directions would be noise.
        values, axes = torch.linalg.eigh((products / len(positions) + torch.eye(width, dtype=torch.float64)) / 2)
        transform = (axes * values.rsqrt()) @ axes.T
    directions = torch.zeros(classes, width, dtype=torch.float64)
    known = Centroids(space, take, positions, members, transform, directions)
    for piece in pieces(len(positions), width) if classes else ():
        rows = take(positions[piece])
        directions.index_add_(0, labels[piece], known.decorrelate(space.vectors(rows, rows.predicted)))
    return known


def _z_scores(space: Space, rows: Rows) -> Tensor:
    vectors, lengths = space.directions(rows, rows.predicted)
    return vectors * lengths[:, None]


# ---------------------------------------------------------------------- cross-fitted heads


@dataclass(frozen=True, eq=False)
class Heads:
    """Linear heads on z-scored activations, each fitted without one fold of the database's rows."""

    space: Space
    weights: Tensor  # (folds, width + 1, outputs), the last of the rows being the bias
    fold: Tensor  # of each row of the database, −1 for those that none was fitted on

    def outputs(self, rows: Rows, leave: Tensor | None) -> Tensor:
        """By the head that did not see the first row to leave out, or by all where there is none, (rows, outputs)."""
        every = self.each(rows)
        if leave is None or leave.shape[1] == 0:
            return every.mean(0)
        fold = self.unseen(leave)
        own = every[fold.clamp_min(0), torch.arange(len(rows))]
        return torch.where((fold >= 0)[:, None], own, every.mean(0))

    def each(self, rows: Rows) -> Tensor:
        """Outputs of every head, (folds, rows, outputs)."""
        scores = _z_scores(self.space, rows)
        return torch.stack([scores @ weight[:-1] + weight[-1] for weight in self.weights])

    def unseen(self, leave: Tensor) -> Tensor:
        """The head that did not see the first row to leave out, −1 where all are as good."""
        return torch.where(leave[:, 0] >= 0, self.fold[leave[:, 0].clamp_min(0)], -1)


def fit_heads(space: Space, take: Take, count: int, outputs: int) -> Heads | None:
    """Heads in which no single label pulls hard; None where rows are fewer than columns.

    Class numbers, and 0 and 1 in one column per class, are expected to be wrong at times: softmax and sigmoid minimise
    −mean log((1 − ν) p_y + ν (1 − p_y) / (C − 1)) + decay/2 · ‖W‖². Values minimise a mean absolute error, rounded at
    zero, in units of the labels' spread.
    """
    positions = torch.linspace(0, count - 1, min(count, _HEAD_ROWS), dtype=torch.float64).long()
    if len(positions) < max(space.width, 2 * _FOLDS):
        return None
    rows = take(positions)
    assert rows.labels is not None
    labels = rows.labels
    scores = _z_scores(space, rows)
    # Rows of a class take turns, so that folds hold all classes alike; by their numbers, whatever order they come in.
    turn, alike = torch.empty(len(labels), dtype=torch.long), labels.reshape(len(labels), -1).double().sum(1)
    turn[torch.from_numpy(np.lexsort([scores.sum(1).numpy(), alike.numpy()]))] = torch.arange(len(labels)) % _FOLDS
    fold = torch.full((count,), -1)
    fold[positions] = turn
    weights = torch.stack(
        [_fit_head(scores[turn != held].to(torch.float32), labels[turn != held], outputs) for held in range(_FOLDS)]
    )
    return Heads(space, weights, fold)


def _fit_head(scores: Tensor, labels: Tensor, outputs: int) -> Tensor:
    middle, spread, decay = 0.0, 1.0, _DECAY
    if labels.is_floating_point():
        middle, spread, decay = float(labels.median()), max(float(labels.std()), 1e-12), _VALUE_DECAY
        labels = ((labels - middle) / spread).to(torch.float32)
    with torch.enable_grad():
        weight = torch.zeros(scores.shape[1] + 1, outputs, requires_grad=True)
        solver = torch.optim.LBFGS([weight], max_iter=_STEPS, history_size=10, line_search_fn="strong_wolfe")

        def objective() -> Tensor:
            solver.zero_grad()
            logits = scores @ weight[:-1] + weight[-1]
            if labels.is_floating_point():
                loss = ((logits[:, 0] - labels).square() + _GENTLE**2).sqrt().mean()
            else:
                several = labels.ndim == 2
                chances = logits.sigmoid() if several else logits.softmax(1)
                right = torch.where(labels > 0, chances, 1 - chances) if several else chances.gather(1, labels[:, None])
                likely = (1 - _NOISE) * right + _NOISE / (1 if several else max(1, outputs - 1)) * (1 - right)
                loss = -likely.log().mean() * (outputs if several else 1)
            loss = loss + decay / 2 * weight[:-1].square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        solver.step(objective)  # type: ignore[no-untyped-call]
    result = spread * weight.detach().to(torch.float64)
    result[-1] += middle
    return result


# ---------------------------------------------------------------------- neighbours and centroids about each row


@dataclass(frozen=True, eq=False)
class Support:
    """What neighbours and centroids give to the classes of each row."""

    confidence: Array  # log-odds of the softmax probability of the predicted class
    vote: Array  # logarithm of the vote for the predicted class
    agreed: Array  # log-odds of the predicted class by softmax and vote together, q_c ∝ p_c (V_c + 0.01)^say
    suggested: NDArray[np.int64]  # the class that the row is of, most probably
    wrong: Array | None  # probability that the label is wrong; None without labels

    def fixed_rule(self) -> Array:
        """The joint confidence without labels to fit it on: the probability on which softmax and vote agree."""
        chance: Array = np.exp(-np.logaddexp(0.0, -self.agreed))  # a logistic curve without overflow
        return chance


def weigh_support(
    centroids: Centroids,
    rows: Rows,
    log_probabilities: Tensor,
    voters: NDArray[np.int64],
    *,
    heads: Heads | None,
    labels: Tensor | None,
    leave: Tensor | None,
    say: float = 1.0,
) -> Support:
    """Vote of `voters`, the positions of each row's neighbours, centroids and heads without the rows to leave out.

    Where rows may have several classes, each of them is a question of its own: `log_probabilities` are (rows, classes,
    2), of no and of yes, and the support has a line for each row and class.
    """
    parts, several = [], log_probabilities.ndim == 3
    for start in range(0, len(rows), _QUERIES):
        lot = slice(start, start + _QUERIES)
        some, left = rows.take(lot), None if leave is None else leave[lot]
        own = centroids.decorrelate(centroids.space.vectors(some, some.predicted))
        share = _vote(centroids, own, torch.from_numpy(voters[lot]))
        logits = None if heads is None else heads.outputs(some, left)
        if several:
            votes, chances = (_yes_and_no(share) + _FLOOR).log(), log_probabilities[lot].flatten(0, 1)
            given, predicted, members = votes, chances.argmax(1), torch.ones_like(votes)
            learnt = None if logits is None else _yes_and_no(logits.sigmoid()).log()
        else:
            votes, chances, predicted = (share + _FLOOR).log(), log_probabilities[lot], some.predicted
            cosines, members = _towards_centroids(centroids, own, left)
            given = _CENTROID_SHARPNESS * cosines + votes
            learnt = None if logits is None else logits.log_softmax(1)
        odds = log_odds(chances, predicted), log_odds(chances + say * votes, predicted)
        own_vote = votes.gather(1, predicted[:, None])[:, 0]
        given = given if learnt is None else given / _HEAD_WEIGHT + learnt.clamp_min(-700)
        parts.append((*odds, own_vote, given.to(torch.float32), members))
    confidence, agreed, vote, given, members = (torch.cat(part) for part in zip(*parts, strict=True))
    wrong = None
    if labels is not None and several:
        each = given.reshape(*labels.shape, 2)
        wrong = torch.stack([doubt_labels(each[:, c], labels[:, c]) for c in range(labels.shape[1])], dim=1).flatten()
    elif labels is not None:
        wrong = doubt_labels(given, labels)
        # Where no other row has the label, nothing is known of it.
        wrong[members.gather(1, labels[:, None])[:, 0] == 0] = 0.0
    numbers = confidence.numpy(), vote.numpy(), agreed.numpy(), given.argmax(1).numpy()
    return Support(*numbers, None if wrong is None else wrong.numpy())


def _yes_and_no(chances: Tensor) -> Tensor:
    """Of every row and class, the chances of no and of yes, (rows · classes, 2)."""
    return torch.stack([1 - chances, chances], dim=2).flatten(0, 1)


def weigh_vote(centroids: Centroids, voters: NDArray[np.int64], count: int, heads: Heads | None) -> float:
    """How much the vote should count beside a softmax: as much as helps to tell errors of heads that did not see a row.

    By rows of the database, whose labels are known. Where such heads make few errors, nothing is known of what the
    vote is worth, and the softmax stands alone; where there are too few rows for heads, both count alike.
    """
    if heads is None:
        return 1.0
    from sklearn.metrics import roc_auc_score

    positions = reference_positions(count)
    rows = centroids.take(positions)
    assert rows.labels is not None
    chances = heads.outputs(rows, positions[:, None]).log_softmax(1)
    right = chances.argmax(1) == rows.labels
    if int((~right).sum()) < FEWEST_ERRORS or not right.any():
        return 0.0
    own = centroids.decorrelate(centroids.space.vectors(rows, rows.predicted))
    votes = (_vote(centroids, own, torch.from_numpy(voters)) + _FLOOR).log()
    return max(_SAYS, key=lambda say: float(roc_auc_score(right, log_odds(chances + say * votes, chances.argmax(1)))))


# ---------------------------------------------------------------------- values of a regression


@dataclass(frozen=True, eq=False)
class Expected:
    """What heads and neighbours that have not seen a row's label expect it to be, and how surely."""

    middle: Array  # the value expected
    spread: Array  # median deviation of the neighbours' labels from what was expected of them
    wrong: Array | None  # probability that the label is wrong; None without labels


def expect_values(
    take: Take,
    rows: Rows,
    voters: NDArray[np.int64],
    *,
    heads: Heads | None,
    labels: Tensor | None,
    leave: Tensor | None,
) -> Expected:
    """Cross-fitted heads, corrected by what they miss among the neighbours.

    What a head misses at a neighbour is its label less the output of the very head that judges the row, so that the
    row's own label has no part in it.
    """
    near = torch.from_numpy(voters)
    distinct, place = torch.unique(near, return_inverse=True)
    others = take(distinct)
    assert others.labels is not None
    if heads is None:
        missed = others.labels[place].numpy()
        middle = np.zeros(len(rows))
    else:
        fold = heads.unseen(leave) if leave is not None and leave.shape[1] else torch.full((len(rows),), -1)
        each = heads.each(others)[:, :, 0]
        each = torch.cat([each, each.mean(0, keepdim=True)])
        missed = (others.labels[place] - each[fold[:, None], place]).numpy()  # fold −1 is the mean of all
        middle = heads.outputs(rows, leave)[:, 0].numpy()
    shift = np.median(missed, axis=1)
    middle, spread = middle + shift, np.median(np.abs(missed - shift[:, None]), axis=1)
    spread = np.maximum(spread, 1e-3 * np.median(spread) + _TINY)
    if labels is None:
        return Expected(middle, spread, None)
    given, sizes, known = labels.numpy(), np.abs(labels.numpy() - middle)[:, None], labels.numpy()
    if len(given) < _FEWEST:  # too few to tell what is usual: their neighbours do
        sizes, known = np.abs(missed - shift[:, None]), others.labels.numpy()
    return Expected(middle, spread, doubt_values(given - middle, spread, given, sizes, known))


def usual_error(take: Take, positions: Tensor, heads: Heads | None) -> float:
    """Median size of what cross-fitted heads miss at rows of the database."""
    rows = take(positions)
    assert rows.labels is not None
    expected = rows.labels.median() if heads is None else heads.outputs(rows, positions[:, None])[:, 0]
    return float((rows.labels - expected).abs().median()) + _TINY


def doubt_values(residuals: Array, spread: Array, labels: Array, sizes: Array, known: Array) -> Array:
    """Probability that each label is wrong, given sizes of usual residuals beside each spread, and labels as they are.

    A right label is about where it is expected: its residual, in units of a scale between the local spread and that of
    all, has Student's distribution. A wrong one is another row's label, or off by a spread of the labels or two
    (Maxwell's distribution); either way one in ten is anywhere (Cauchy's). What kind, tails, scale and the share of
    wrong labels maximise the likelihood.
    """
    from scipy import stats

    middle, deviation = float(np.median(known)), float(known.std()) + _TINY
    # Where most labels are one and the same value, their median deviation is zero.
    anywhere = stats.cauchy.pdf(labels, middle, max(float(np.median(np.abs(known - middle))), deviation / 2))
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
        return float(_explain_labels(some, own, t, pairs=False)[0].sum()) - 2 * min(0.0, float(np.log(t / 3))) ** 2

    temperature = max(_TEMPERATURES, key=likelihood)
    alike = _explain_labels(some, own, temperature, pairs=False)[0]
    pairs = float((some.argmax(1) == own).double().mean()) >= _AGREEMENT and len(own) > 1
    if pairs:
        gain = _explain_labels(some, own, temperature, pairs=True)[0] - alike
        pairs = bool(gain.mean() > 2 * gain.std() / len(gain) ** 0.5)
    return _explain_labels(given, labels, temperature, pairs=pairs)[1]


def _explain_labels(given: Tensor, labels: Tensor, temperature: float, *, pairs: bool) -> tuple[Tensor, Tensor]:
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


def log_odds(log_weights: Tensor, chosen: Tensor) -> Tensor:
    """Log-odds of one class among weights that need not sum to one: log w_c − log Σ of the others.

    >>> log_odds(torch.tensor([[1.0, 2.0, 6.0]]).log(), torch.tensor([2])).exp().round(decimals=5)
    tensor([2.])
    """
    own = log_weights.gather(1, chosen[:, None])
    others = log_weights.scatter(1, chosen[:, None], -torch.inf)
    return own[:, 0] - others.logsumexp(1)


def _vote(centroids: Centroids, own: Tensor, voters: Tensor) -> Tensor:
    """Share of each class among the neighbours, the more alike ones counting more, shape (rows, classes)."""
    distinct, place = torch.unique(voters, return_inverse=True)
    near, found = [], []
    for some in torch.split(distinct, max(1, _AT_ONCE // centroids.space.width)):
        rows = centroids.take(some)
        assert rows.labels is not None
        near.append(centroids.decorrelate(centroids.space.vectors(rows, rows.predicted)).to(torch.float32))
        found.append(rows.labels)
    vectors, labels = torch.cat(near), torch.cat(found)
    several = labels.shape[1] if labels.ndim == 2 else 0
    shares = torch.zeros(len(own), several or len(centroids.members), dtype=torch.float64)
    step = max(1, _AT_ONCE // max(1, voters.shape[1] * own.shape[1]))
    for start in range(0, len(own), step):
        some = place[start : start + step]
        similar = torch.einsum("qd,qkd->qk", own[start : start + step].to(torch.float32), vectors[some]).double()
        weights = torch.softmax(_SHARPNESS * similar, dim=1)
        if several:
            shares[start : start + step] = torch.einsum("qk,qkc->qc", weights, labels[some].double())
        else:
            shares[start : start + step].scatter_add_(1, labels[some], weights)
    return shares


def _towards_centroids(centroids: Centroids, own: Tensor, leave: Tensor | None) -> tuple[Tensor, Tensor]:
    """Cosines to the centroids without the rows to leave out, and what members are left, both (rows, classes)."""
    cosines = own @ _unit(centroids.directions).T
    members = centroids.members.repeat(len(own), 1)
    if leave is not None:
        labels, vectors = centroids.left_out(leave)
        held = labels >= 0
        members.scatter_add_(1, labels.clamp_min(0), -held.to(torch.float64))
        same = ((labels[:, :, None] == labels[:, None, :]) & held[:, :, None]).to(torch.float64)
        without = centroids.directions[labels.clamp_min(0)] - same @ centroids.decorrelate(vectors)
        queries, places = torch.nonzero(held, as_tuple=True)
        # What is left of a class that lost its only row is rounding.
        cosines[queries, labels[queries, places]] = (own[queries] * _unit(without, 1e-9)[queries, places]).sum(1)
    return cosines, members


def _unit(vectors: Tensor, least: float = 0.0) -> Tensor:
    """Vectors of unit length; zero where they are no longer than `least`."""
    lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / torch.where(lengths > least, lengths, torch.inf)


# ---------------------------------------------------------------------- typicality


@dataclass(frozen=True, eq=False)
class Reference:
    """How far rows of the database are from their neighbours, for others to be compared with."""

    middle: Array  # median distance in the two spaces
    spread: Array  # from it to the 84th percentile
    known: Array  # Σ over spaces of (distance − middle) / spread, of the database's rows, ascending

    def typicality(self, distances: Array) -> Array:
        """Share of the database's rows that are further from their neighbours; beyond all of them, exponentially less.

        `distances` has one column per space.
        """
        far = ((distances - self.middle) / self.spread).sum(1)
        beyond = (len(self.known) - np.searchsorted(self.known, far, side="left") + 1.0) / (len(self.known) + 1.0)
        tail = max(float(self.known[-1] - np.median(self.known)), 1e-12)
        found: Array = np.minimum(beyond, 1.0) * np.exp(-np.maximum(far - self.known[-1], 0.0) / tail)
        return found


def reference_positions(count: int) -> Tensor:
    """Rows of a database that others are compared with: all of a small one, else evenly spaced ones."""
    return torch.linspace(0, count - 1, min(count, _REFERENCE), dtype=torch.float64).long()


def fit_reference(distances: Array) -> Reference:
    """From the distances of the database's rows, one column per space."""
    middle = np.median(distances, axis=0)
    spread = np.percentile(distances, 84, axis=0) - middle
    spread = np.where(spread > 0, spread, 1.0)
    return Reference(middle, spread, np.sort(((distances - middle) / spread).sum(1)))


def neighbour_distances(take: Take, rows: Rows, by_evidence: Array, voters: NDArray[np.int64]) -> Array:
    """Mean distance to the 8 nearest by evidence, and to the 10 nearest of the voters by activations as they are.

    The latter are brought to unit length without centring: a network answers strange inputs with little of everything.
    """
    raw = np.empty(len(rows))
    step = max(1, _AT_ONCE // max(1, voters.shape[1] * rows.activations.shape[1]))
    for start in range(0, len(rows), step):
        own = _unit(rows.activations[start : start + step].to(torch.float64))
        near = torch.from_numpy(voters[start : start + step])
        others = _unit(take(near.flatten()).activations.to(torch.float64)).reshape(*near.shape, -1)
        away = (others - own[:, None]).square().sum(2).sqrt().sort(dim=1).values
        raw[start : start + step] = away[:, :_NEAR_RAW].mean(1).numpy()
    return np.column_stack([by_evidence[:, :NEAR].mean(1), raw])


# ---------------------------------------------------------------------- joint confidence


def fit_confidence(signals: dict[str, Array], right: NDArray[np.bool_]) -> Any:
    """A logistic regression on z-scored signals to the probability that a prediction is right."""
    return _regression().fit(np.column_stack(list(signals.values())), right)


def cross_validate(signals: dict[str, Array], right: NDArray[np.bool_], *, seed: int = 0) -> Array | None:
    """Joint confidence of each row by a regression that was fitted without it; None where too few are right or wrong.

    Folds are drawn with a seed of their own, of rows sorted by their signals: the same rows get the same numbers in
    whatever order they come.
    """
    if min(right.sum(), (~right).sum()) < 2 * _FOLDS:
        return None
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    order = np.lexsort([right, *reversed(signals.values())])
    table = np.column_stack(list(signals.values()))[order]
    result = np.empty(len(right))
    result[order] = cross_val_predict(_regression(), table, right[order], cv=folds, method="predict_proba")[:, 1]
    return result


def _regression() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
