"""Does influence rank training rows as retraining without them does?

Linear heads trained until they converge: logistic on the breast cancer table, softmax on a network's activations of
CIFAR-10, least squares on the diabetes table. Rows are left out one by one and the head is trained anew; the changes of
the logits of held-out rows are compared with `index.influence` and with `index.representer_shares`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler
from torch import nn

from benchmarks.report import Column, Report, Spread, Table, options, progress, publish
from benchmarks.retrieval.features import Recipe, features, kept_below
from nobsp.neighbors import ContributionIndex

Array = NDArray[np.float64]
Train = Callable[[Array, NDArray[Any]], nn.Linear]

CIFAR = Recipe("cifar10", "resnet20", 32)
SEED = 0
# Rows to train on, rows that are left out one by one, and held-out rows whose logits are watched.
N_ROWS = 300
N_LEFT_OUT = 100
N_QUERIES = 20


@dataclass(frozen=True)
class Problem:
    """A head to be trained.

    Attributes:
        name: For the table.
        rows: Activations to train on.
        labels: Their classes or values.
        queries: Held-out activations.
        train: Trains a head until it converges.
        task: "classification" or "regression".
    """

    name: str
    rows: Array
    labels: NDArray[Any]
    queries: Array
    train: Train
    task: str


def as_head(coefficients: Array, intercept: Any) -> nn.Linear:
    weight = np.atleast_2d(coefficients)
    head = nn.Linear(weight.shape[1], weight.shape[0]).double()
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(weight))
        head.bias.copy_(torch.from_numpy(np.atleast_1d(intercept)))
    return head


def logistic(strength: float) -> Train:
    def train(rows: Array, labels: NDArray[Any]) -> nn.Linear:
        model = LogisticRegression(
            C=1 / strength, tol=1e-10, max_iter=1000, solver="newton-cholesky"
        )
        model.fit(rows, labels)
        return as_head(model.coef_, model.intercept_)

    return train


def ridge(strength: float) -> Train:
    def train(rows: Array, labels: NDArray[Any]) -> nn.Linear:
        model = Ridge(alpha=strength).fit(rows, labels)
        return as_head(model.coef_, model.intercept_)

    return train


def make_problem(
    name: str, rows: Array, labels: NDArray[Any], train: Train, task: str = "classification"
) -> Problem:
    """Standardised rows, some to train on and some held out."""
    order = np.random.default_rng(SEED).permutation(len(rows))
    scaled = StandardScaler().fit_transform(rows).astype(np.float32).astype(np.float64)
    training = order[:N_ROWS]
    queries = order[N_ROWS : N_ROWS + N_QUERIES]
    return Problem(name, scaled[training], labels[training], scaled[queries], train, task)


def problems(cache: Path | None) -> list[Problem]:
    cancer = load_breast_cancer(return_X_y=True)
    diabetes = load_diabetes(return_X_y=True)
    cifar = features(CIFAR, "val", 500, cache=cache)
    activations = cifar.activations.double().numpy()
    return [
        make_problem("logistic, breast cancer", *cancer, logistic(1.0)),
        make_problem("logistic, breast cancer, little decay", *cancer, logistic(0.01)),
        make_problem(
            "softmax, ResNet-20 on CIFAR-10 test", activations, cifar.labels, logistic(10.0)
        ),
        make_problem("least squares, diabetes", *diabetes, ridge(1.0), task="regression"),
    ]


def compare(problem: Problem) -> tuple[object, ...]:
    """A line of the table."""
    progress(problem.name)
    head = problem.train(problem.rows, problem.labels)
    index = ContributionIndex(head, task=problem.task)  # type: ignore[arg-type]
    index.fit(problem.rows, problem.labels)
    influence = index.influence(problem.queries)
    shares = index.representer_shares(problem.queries)

    queries = torch.from_numpy(problem.queries)
    chosen = np.random.default_rng(SEED).choice(len(problem.rows), N_LEFT_OUT, replace=False)
    with torch.no_grad():
        logits = head(queries)
        outputs = logits.argmax(1) if logits.shape[1] > 1 else torch.zeros(len(queries)).long()
        # Values are for the predicted class: against a single logit where that is negative.
        is_single = problem.task == "classification" and logits.shape[1] == 1
        sign = np.sign(logits[:, 0].numpy()) if is_single else np.ones(len(queries))
        changes = np.empty((len(queries), N_LEFT_OUT))
        for column, row in enumerate(chosen):
            others = np.arange(len(problem.rows)) != row
            without = problem.train(problem.rows[others], problem.labels[others])
            change = (logits - without(queries)).gather(1, outputs[:, None])[:, 0]
            changes[:, column] = sign * change.numpy()

    return (
        problem.name,
        influence.loss,
        influence.weight_decay,
        _rank_correlation(influence.values[:, chosen], changes),
        _rank_correlation(shares.values[:, chosen], changes),
    )


def _rank_correlation(values: Array, changes: Array) -> Spread:
    return Spread(
        tuple(
            float(spearmanr(one_query, change).statistic)
            for one_query, change in zip(values, changes, strict=True)
        )
    )


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--cache", type=Path, help=f"folder of activations; {kept_below(None)} by default"
    )
    chosen = parser.parse_args()
    lines = tuple(compare(problem) for problem in problems(chosen.cache))
    publish(
        Report(
            name="influence",
            title="Influence of training rows, beside retraining without them",
            tables=(
                Table(
                    "Spearman's correlation with retraining",
                    (
                        Column("head"),
                        Column("loss found"),
                        Column("weight decay found", ".3g"),
                        Column("influence", ".3f"),
                        Column("representer shares", ".3f"),
                    ),
                    lines,
                    f"{N_ROWS} training rows, {N_LEFT_OUT} of them left out one by one; mean ± standard deviation over "
                    f"{N_QUERIES} held-out rows.",
                ),
            ),
            findings=(
                "Influence ranks training rows as retraining does, also where classes are separable and next to no "
                "weight decay holds the weights; a share of the logit does not.",
            ),
            seeds=(SEED,),
            settings={},
            packages=("scikit-learn",),
        ),
        chosen,
    )


if __name__ == "__main__":
    main()
