"""Influence by leaving out: what retraining without a row finds, and refusals where it means nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

from nobsp.neighbors import ContributionIndex

Array = NDArray[np.float64]
Train = Callable[[Array, NDArray[Any], Array], nn.Linear]
N_ROWS = 80
N_QUERIES = 6


def as_head(coefficients: Any, intercept: Any) -> nn.Linear:
    """A linear layer with the weights of a fitted model."""
    weight = torch.as_tensor(np.atleast_2d(coefficients))
    head = nn.Linear(weight.shape[1], weight.shape[0]).double()
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.copy_(torch.as_tensor(np.atleast_1d(intercept)))
    return head


def train_logistic(X: Array, y: NDArray[Any], sample_weight: Array) -> nn.Linear:
    model = LogisticRegression(C=0.5, tol=1e-10, max_iter=5000)
    model.fit(X, y, sample_weight=sample_weight)
    return as_head(model.coef_, model.intercept_)


def train_squares(X: Array, y: NDArray[Any], sample_weight: Array) -> nn.Linear:
    model = Ridge(alpha=3.0).fit(X, y, sample_weight=sample_weight)
    return as_head(model.coef_, model.intercept_)


def make_rows(n_classes: int | None) -> tuple[Array, NDArray[Any], Array]:
    """Rows in the precision of an index, their classes or values, and queries."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(N_ROWS + N_QUERIES, 5)).astype(np.float32).astype(np.float64)
    weights = rng.normal(size=(5, n_classes or 1))
    scores = X @ weights + rng.normal(size=(len(X), n_classes or 1))
    y = scores[:, 0]
    if n_classes == 2:
        y = (scores[:, 0] > 0).astype(np.int64)
    elif n_classes is not None:
        y = scores.argmax(1)
    return X[:N_ROWS], y[:N_ROWS], X[N_ROWS:]


CASES: dict[str, tuple[Train, int | None]] = {
    "logistic": (train_logistic, 2),
    "softmax": (train_logistic, 4),
    "least squares": (train_squares, None),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("is_weighted", [False, True])
def test_influence_is_what_retraining_without_each_row_finds(name: str, is_weighted: bool) -> None:
    train, n_classes = CASES[name]
    X, y, queries = make_rows(n_classes)
    weights = np.ones(N_ROWS)
    if is_weighted:
        weights = np.random.default_rng(0).uniform(0.2, 2.0, N_ROWS)
    head = train(X, y, weights)
    task = "regression" if n_classes is None else "classification"
    target = None if n_classes is None else 1

    index = ContributionIndex(head, task=task).fit(X, y)
    influence = index.influence(queries, target=target, sample_weight=weights)

    scale = 0.5 if n_classes == 2 else 1.0  # half a single logit for either class
    output = 0 if n_classes in (None, 2) else 1
    asked = torch.from_numpy(queries)
    with torch.no_grad():
        whole = head(asked)[:, output].numpy()
        retrained = np.empty((N_QUERIES, N_ROWS))
        for row in range(N_ROWS):
            kept = np.arange(N_ROWS) != row
            without = train(X[kept], y[kept], weights[kept])
            retrained[:, row] = scale * (whole - without(asked)[:, output].numpy())

    rank_correlations = [
        spearmanr(influence.values[query], retrained[query]).statistic for query in range(N_QUERIES)
    ]
    assert min(rank_correlations) >= 0.95
    assert influence.gradient < 1e-3
    if n_classes is None:  # leaving a row out of least squares is exact
        np.testing.assert_allclose(influence.values, retrained, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "loss", "weight_decay"),
    [("logistic", "sigmoid", 2.0), ("softmax", "softmax", 2.0), ("least squares", "squares", 3.0)],
)
def test_loss_and_weight_decay_are_found_from_the_weights(
    name: str, loss: str, weight_decay: float
) -> None:
    train, n_classes = CASES[name]
    X, y, queries = make_rows(n_classes)
    task = "regression" if n_classes is None else "classification"

    head = train(X, y, np.ones(N_ROWS))
    influence = ContributionIndex(head, task=task).fit(X, y).influence(queries)

    assert influence.loss == loss
    assert influence.weight_decay == pytest.approx(weight_decay, rel=1e-3)


def test_a_few_rows_are_the_first_and_last_of_all() -> None:
    X, y, queries = make_rows(4)
    index = ContributionIndex(train_logistic(X, y, np.ones(N_ROWS))).fit(X, y)

    every = index.influence(queries)
    few = index.influence(queries, k=3)

    ranked = -np.sort(-every.values, axis=1)
    np.testing.assert_allclose(few.values[:, :3], ranked[:, :3], rtol=1e-9)
    np.testing.assert_allclose(few.values[:, 3:], ranked[:, -3:], rtol=1e-9)
    np.testing.assert_allclose(few.values, np.take_along_axis(every.values, few.indices, 1))
    np.testing.assert_allclose(np.abs(every.shares).sum(1), 1.0)
    assert np.array_equal(few.labels, y[few.indices])


def test_a_head_trained_on_other_rows_or_labels_is_refused() -> None:
    X, y, queries = make_rows(4)
    other_X = np.random.default_rng(9).normal(size=X.shape)
    other_y = np.random.default_rng(9).permutation(y)
    everyone = np.ones(N_ROWS)

    for head in (train_logistic(other_X, y, everyone), train_logistic(X, other_y, everyone)):
        with pytest.raises(ValueError, match="was not trained on the rows"):
            ContributionIndex(head).fit(X, y).influence(queries)


def test_a_head_trained_on_half_of_the_rows_is_refused() -> None:
    X, y, queries = make_rows(4)
    half = train_logistic(X[::2], y[::2], np.ones(N_ROWS // 2))

    with pytest.raises(ValueError, match="was not trained on the rows"):
        ContributionIndex(half).fit(X, y).influence(queries)


def test_a_head_of_too_many_weights_is_refused_with_what_to_use_instead() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 1000))
    y = rng.integers(10, size=40)

    index = ContributionIndex(train_logistic(X, y, np.ones(40))).fit(X, y)

    with pytest.raises(ValueError, match="representer_shares"):
        index.influence(X[:2])


@pytest.mark.parametrize("weights", [np.ones(3), np.full(N_ROWS, np.nan), -np.ones(N_ROWS)])
def test_weights_that_make_no_sense_are_refused(weights: Array) -> None:
    X, y, queries = make_rows(4)
    index = ContributionIndex(train_logistic(X, y, np.ones(N_ROWS))).fit(X, y)

    with pytest.raises(ValueError, match="sample_weight"):
        index.influence(queries, sample_weight=weights)
