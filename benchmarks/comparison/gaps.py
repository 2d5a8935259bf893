"""Gaps between two sets of rows where every function is known: error of the parts, and coverage of intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import comb
from typing import Any

import numpy as np
import torch
from torch import nn

import nobsp
from benchmarks.networks import train_together

Array = np.ndarray[Any, np.dtype[np.float64]]
Term = tuple[str, ...]

NAMES = ("x0", "x1", "x2", "x3", "x4")
CORRELATIONS = (0.0, 0.5, 0.9)
# Rows calibrated on, of either group, and of the population that stands for the truth.
CALIBRATED = 1000
GROUP = 500
POPULATION = 400_000
# How far the means of the first group lie from those of the second.
SHIFT = np.array([0.5, -0.4, 0.3, 0.5, 0.0])
# As many as shap takes of a background by default.
BACKGROUND = 100
# Rows that a network's own parts are read from, and half of the width of a 90% interval in standard errors.
MANY = 20_000
NORMAL_90 = 1.645
# Repetitions in which SHAP's error bars are made, which take longer than all else.
WITH_SHAP = 16


@dataclass(frozen=True)
class Design:
    """Functions by term; the model is their sum."""

    terms: dict[Term, Callable[[Array], Array]]

    def __call__(self, X: Array) -> Array:
        return np.asarray(sum(function(X) for function in self.terms.values()))


MAINS: dict[Term, Callable[[Array], Array]] = {
    ("x0",): lambda X: np.sin(2 * X[:, 0]),
    ("x1",): lambda X: X[:, 1] ** 2 / 2,
    ("x2",): lambda X: np.tanh(2 * X[:, 2]),
    ("x3",): lambda X: 0.5 * X[:, 3],
    ("x4",): lambda X: 0.0 * X[:, 4],
}
PAIRS: dict[Term, Callable[[Array], Array]] = {
    ("x0", "x3"): lambda X: 0.6 * X[:, 0] * X[:, 3],
    ("x1", "x2"): lambda X: 0.5 * X[:, 1] * X[:, 2],
}
DESIGNS = {"additive": Design(MAINS), "interactions": Design({**MAINS, **PAIRS})}


def draw_rows(n_rows: int, correlation: float, generator: np.random.Generator) -> Array:
    """Normal columns, all correlated alike."""
    common = generator.standard_normal((n_rows, 1))
    own = generator.standard_normal((n_rows, len(NAMES)))
    return np.asarray(np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own)


def true_gaps(design: Design, correlation: float) -> dict[Term, float]:
    """Every term's part of the gap between the populations."""
    rows = draw_rows(POPULATION, correlation, np.random.default_rng(12345))
    return {
        term: float((function(rows + SHIFT) - function(rows)).mean())
        for term, function in design.terms.items()
    }


def measure_coverage(name: str, correlation: float, *, repetitions: int) -> dict[str, Any]:
    """The functions themselves as the model: coverage of 90% intervals, by term, and of SHAP's error bars."""
    design = DESIGNS[name]
    truth = true_gaps(design, correlation)
    # What does nothing has no gap, and is covered whatever the intervals are.
    acting = [term for term in truth if term != ("x4",)]
    covered: dict[str, list[bool]] = {" × ".join(term): [] for term in acting}
    by_shap: list[list[bool]] = []
    by_oracle: list[list[bool]] = []
    for repetition in range(repetitions):
        generator = np.random.default_rng([repetition, int(10 * correlation)])
        draw = partial(draw_rows, correlation=correlation, generator=generator)
        pairs = [term for term in truth if len(term) > 1]
        explainer = nobsp.NObSP(design, features=list(NAMES), interactions=pairs or 0)
        explainer.fit(draw(CALIBRATED))
        first, second = draw(GROUP) + SHIFT, draw(GROUP)
        comparison = nobsp.compare(explainer(first), explainer(second), random_state=repetition)
        for label, hits in covered.items():
            interval = comparison.gap.take(comparison.entries.index(label))
            gap = truth[tuple(label.split(" × "))]
            hits.append(bool(interval.lower[0] <= gap <= interval.upper[0]))

        by_oracle.append(
            [_oracle_covers(design, term, truth[term], first, second) for term in acting]
        )
        if repetition >= WITH_SHAP:
            continue
        values = shap_values(design, np.concatenate([first, second]), draw(BACKGROUND))
        difference, bars = shap_difference(values, generator)
        expected = by_feature(truth)
        is_inside = (difference + bars[0] <= expected) & (expected <= difference + bars[1])
        by_shap.append(list(is_inside[:-1]))
    return {
        "terms": {label: float(np.mean(hits)) for label, hits in covered.items()},
        "coverage": float(np.mean([hit for hits in covered.values() for hit in hits])),
        "shap": float(np.mean(by_shap)),
        "oracle": float(np.mean(by_oracle)),
    }


def _oracle_covers(design: Design, term: Term, gap: float, first: Array, second: Array) -> bool:
    """Whether the textbook interval for two means, made with the known function, holds the gap."""
    values = [design.terms[term](rows) for rows in (first, second)]
    error = np.sqrt(sum(value.var(ddof=1) / len(value) for value in values))
    return bool(abs(values[0].mean() - values[1].mean() - gap) <= NORMAL_90 * error)


def measure_selection(correlation: float, *, repetitions: int) -> dict[str, Any]:
    """Interactions chosen by default: how often a true one is left out, and how often a finding then tells."""
    design = DESIGNS["interactions"]
    left_out = 0
    told = 0
    for repetition in range(repetitions):
        generator = np.random.default_rng([repetition, int(10 * correlation)])
        draw = partial(draw_rows, correlation=correlation, generator=generator)
        explainer = nobsp.NObSP(design, features=list(NAMES)).fit(draw(CALIBRATED))
        comparison = nobsp.compare(
            explainer(draw(GROUP) + SHIFT), explainer(draw(GROUP)), draws=200
        )
        if not set(PAIRS) <= set(explainer.terms_):
            left_out += 1
            told += any(finding.code == "residual" for finding in comparison.findings)
    return {"repetitions": repetitions, "left_out": left_out, "told": told}


def sampled_gaps(design: Design, first: Array, second: Array) -> Array:
    """The known functions' parts on these very rows, by feature: which rows were drawn is nobody's error."""
    return by_feature(
        {
            term: float(function(first).mean() - function(second).mean())
            for term, function in design.terms.items()
        }
    )


def by_feature(parts: dict[Term, float]) -> Array:
    """Parts by feature, a pair shared equally between its two, as Shapley values share it."""
    shares = np.zeros(len(NAMES))
    for term, part in parts.items():
        for feature in term:
            shares[NAMES.index(feature)] += part / len(term)
    return shares


def shap_values(model: Callable[[Array], Array], rows: Array, background: Array) -> Array:
    """Exact interventional Shapley values over a background, as shap's ExactExplainer gives them.

    All 32 coalitions of the five features are run; nothing is compiled, which takes shap longer than the values do.
    """
    n_features = rows.shape[1]
    repeated = np.repeat(rows, len(background), axis=0)
    tiled = np.tile(background, (len(rows), 1))
    worth = {}
    for coalition in range(1 << n_features):
        inside = np.array([bool(coalition >> k & 1) for k in range(n_features)])
        outputs = model(np.where(inside, repeated, tiled)).reshape(len(rows), -1)
        worth[coalition] = outputs.mean(1)

    values = np.zeros(rows.shape)
    for coalition, before in worth.items():
        size = coalition.bit_count()
        weight = 1 / (n_features * comb(n_features - 1, size)) if size < n_features else 0.0
        for feature in range(n_features):
            if not coalition >> feature & 1:
                values[:, feature] += weight * (worth[coalition | 1 << feature] - before)
    return values


def shap_difference(values: Array, generator: np.random.Generator) -> tuple[Array, Array]:
    """Difference of mean Shapley values of two groups of equal size, and the bars that `group_difference` draws."""
    half = len(values) // 2
    drawn = []
    for _ in range(200):
        is_first = generator.random(len(values)) > 0.5
        drawn.append(values[is_first].mean(0) - values[~is_first].mean(0))
    ends = np.percentile(np.array(drawn), [5, 95], axis=0)
    return values[:half].mean(0) - values[half:].mean(0), ends


def gather_errors(networks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Root mean squares over networks and features, by method; what networks miss, and how many lack a pair."""
    methods = networks[0]["errors"]
    gathered: dict[str, Any] = {
        method: float(
            np.sqrt(np.mean([np.square(network["errors"][method]) for network in networks]))
        )
        for method in methods
    }
    gathered["unlearnt"] = float(np.mean([network["unlearnt"] for network in networks]))
    gathered["left_out"] = sum(network["left_out"] for network in networks)
    return gathered


def measure_network(name: str, correlation: float, repetition: int) -> dict[str, Any]:
    """Errors of the parts by feature of a network that was trained on the functions: ours, SHAP's, and their sources.

    Beside both stand the error of the network itself, which is that of its answers to many rows of both groups,
    regressed on functions of the true form (whoever asks the network alone has no less to go by); the error of either
    method where the known functions themselves are the model; and ours where interactions are named.
    """
    design = DESIGNS[name]
    pairs = [term for term in design.terms if len(term) > 1]
    generator = np.random.default_rng([repetition, int(10 * correlation), 7])
    draw = partial(draw_rows, correlation=correlation, generator=generator)
    network = train_network(design, draw(4000), seed=repetition)
    calibration = draw(CALIBRATED)
    groups = draw(GROUP) + SHIFT, draw(GROUP)
    background = draw(BACKGROUND)
    many = np.concatenate([draw(MANY // 2) + SHIFT, draw(MANY // 2)])

    predict = partial(predict_with, network)
    explainer = nobsp.NObSP(network, features=list(NAMES)).fit(calibration)
    named = nobsp.NObSP(network, features=list(NAMES), interactions=pairs or 0)
    known = nobsp.NObSP(design, features=list(NAMES), interactions=pairs or 0)
    parts = {
        "nobsp": explained_gaps(explainer, *groups),
        "named": explained_gaps(named.fit(calibration), *groups),
        "known": explained_gaps(known.fit(calibration), *groups),
        "shap": shap_gaps(predict, *groups, background),
        "shap_known": shap_gaps(design, *groups, background),
        "network": by_feature(network_parts(predict, design, many, *groups)),
    }
    expected = sampled_gaps(design, *groups)
    return {
        "errors": {method: (gaps - expected).tolist() for method, gaps in parts.items()},
        "unlearnt": float(np.var(predict(many) - design(many)) / np.var(design(many))),
        "left_out": bool(set(pairs) - set(explainer.terms_)),
    }


def explained_gaps(explainer: nobsp.NObSP, first: Array, second: Array) -> Array:
    """Our parts of a gap, by feature."""
    comparison = nobsp.compare(explainer(first), explainer(second), draws=100)
    parts = zip(comparison.terms, comparison.gap.value[:-1, 0], strict=True)
    return by_feature({term: float(part) for term, part in parts})


def shap_gaps(
    model: Callable[[Array], Array], first: Array, second: Array, background: Array
) -> Array:
    """Differences of mean Shapley values."""
    values = shap_values(model, np.concatenate([first, second]), background)
    return np.asarray(values[: len(first)].mean(0) - values[len(first) :].mean(0))


def network_parts(
    predict: Callable[[Array], Array], design: Design, many: Array, first: Array, second: Array
) -> dict[Term, float]:
    """The parts of a network's gap: splines of every feature and the true pairs, fitted to its answers to many rows."""
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import SplineTransformer

    splines = SplineTransformer(n_knots=12, extrapolation="linear").fit(many)
    pairs = [term for term in design.terms if len(term) > 1]

    def columns(rows: Array) -> Array:
        of_pairs = [design.terms[pair](rows)[:, None] for pair in pairs]
        return np.hstack([splines.transform(rows), *of_pairs])

    fitted = Ridge(alpha=1e-3).fit(columns(many), predict(many))
    added = (columns(first).mean(0) - columns(second).mean(0)) * fitted.coef_
    by_spline = added[: splines.n_features_out_].reshape(len(NAMES), -1).sum(1)
    return {
        **{(name,): float(part) for name, part in zip(NAMES, by_spline, strict=True)},
        **{
            pair: float(part)
            for pair, part in zip(pairs, added[splines.n_features_out_ :], strict=True)
        },
    }


def predict_with(network: nn.Module, rows: Array) -> Array:
    """A network as a function of arrays."""
    with torch.no_grad():
        return np.asarray(network(torch.as_tensor(rows)).numpy()[:, 0])


def train_network(design: Design, X: Array, *, seed: int) -> nn.Module:
    """A network that has learnt the functions' sum, but for about a thousandth of its variance."""
    return train_networks([design], X[None], seeds=[seed])[0]


def train_networks(
    designs: Sequence[Design], tables: Array, *, seeds: Sequence[int]
) -> list[nn.Sequential]:
    """The same of several functions, each on rows of its own, (networks, rows, columns)."""
    networks = []
    for seed in seeds:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            networks.append(
                nn.Sequential(
                    nn.Linear(len(NAMES), 64),
                    nn.SiLU(),
                    nn.Linear(64, 64),
                    nn.SiLU(),
                    nn.Linear(64, 1),
                )
            )
    answers = [design(X) for design, X in zip(designs, tables, strict=True)]
    train_together(
        networks,
        torch.as_tensor(tables),
        torch.as_tensor(np.stack(answers))[:, :, None],
        seeds=seeds,
        epochs=60,
        batch_size=128,
        learning_rate=1e-2,
        weight_decay=0.0,
    )
    return networks
