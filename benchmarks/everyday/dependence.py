"""Features that other features determine: the rows cannot tell which of them does what."""

from __future__ import annotations

import numpy as np

from benchmarks.everyday.registry import Outcome, judge, situation
from nobsp import NObSP


@situation("a sum beside its parts, S = a + b", findings=("determined",), wanted=True)
def a_sum() -> Outcome:
    generator = np.random.default_rng(0)

    def draw(count: int) -> np.ndarray:
        parts = generator.normal(size=(count, 3))
        return np.column_stack([parts, parts[:, 0] + parts[:, 1]])

    return judge(NObSP(lambda X: np.tanh(X[:, 3]) + X[:, 0] + X[:, 2] ** 2), draw(1500), draw(4000))


@situation("a square beside its root", findings=("determined",), wanted=True)
def square() -> Outcome:
    generator = np.random.default_rng(0)

    def draw(count: int) -> np.ndarray:
        a, b = generator.normal(size=(2, count))
        return np.stack([a, b, a**2], 1)

    return judge(NObSP(lambda x: x.sum(1)), draw(1500), draw(4000))


@situation("a level that another column repeats", findings=("determined",), wanted=True)
def a_level() -> Outcome:
    generator = np.random.default_rng(0)

    def draw(count: int) -> np.ndarray:
        days = np.where(generator.random(count) < 0.7, -1.0, generator.integers(1, 300, count))
        outcome = np.where(days == -1, 0.0, generator.integers(1, 4, count))
        return np.column_stack([days, outcome, generator.normal(size=count)])

    return judge(
        NObSP(lambda X: X[:, 1] + np.sqrt(X[:, 0] + 2) / 5 + X[:, 2]), draw(1500), draw(4000)
    )


@situation("Bank: poutcome is unknown where pdays is -1", findings=("determined",), wanted=True)
def bank() -> Outcome:
    from sklearn.compose import make_column_transformer
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    from benchmarks.data.tables import read_bank_marketing

    table = read_bank_marketing()
    order = np.random.default_rng(0).permutation(len(table.features))
    frame = table.features[["pdays", "poutcome", "age", "balance", "campaign"]].iloc[order]
    labels = np.asarray(table.target)[order]
    numbers = ["pdays", "age", "balance", "campaign"]
    columns = make_column_transformer((StandardScaler(), numbers), (OneHotEncoder(), ["poutcome"]))
    network = MLPClassifier(hidden_layer_sizes=(32,), max_iter=30, random_state=0)
    model = make_pipeline(columns, network).fit(frame[:5000], labels[:5000])
    return judge(NObSP(model), frame[5000:7000], frame[7000:11000])
