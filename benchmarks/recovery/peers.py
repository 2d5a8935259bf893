"""The other methods, each the way its own package offers it."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.recovery.designs import (
    FAMILIES,
    FEATURES,
    Array,
    Pair,
    local_effects,
    shapley_values,
)
from benchmarks.recovery.problems import Problem
from benchmarks.recovery.scores import Recovered

SHAP_BACKGROUND = 50
GRADIENT_STEPS = 25
ALE_BINS = 40
PARTNERS = 64  # values that stand for a partner's distribution
MOST_BINS, PAIR_BINS = (8, 16, 32, 64), (4, 8, 16)
# The package's defaults (14 bags, rate 0.04, 50,000 rounds) take minutes a fit on these nearly noise-free rows.
# What is lost: R² 0.9992 instead of 0.9997 on the paper's set, 0.9933 and not 0.9919 on smooth, n = 200, 0.9.
BOOSTING = {
    "outer_bags": 4,
    "learning_rate": 0.2,
    "max_bins": 256,
    "max_rounds": 10_000,
    "early_stopping_tolerance": 1e-4,
}


def partial_dependence(problem: Problem) -> dict[str, Recovered]:
    """Mean output with one feature moved, over all rows given: exact, no grid of points between."""
    single = copy.deepcopy(
        problem.trained
    ).float()  # rounding at the seventh digit, in half of the time
    rows, held_out = torch.as_tensor(problem.sample.inputs).float(), problem.sample.held_out
    at_once = max(1, 16_384 // len(rows))
    found = np.empty((len(held_out), FEATURES))
    with torch.no_grad():
        for feature in range(FEATURES):
            values = torch.as_tensor(held_out[:, feature]).float()
            means = []
            for some in values.split(at_once):
                moved = rows.repeat(len(some), 1)
                moved[:, feature] = some.repeat_interleave(len(rows))
                means.append(single(moved)[:, 0].reshape(len(some), -1).double().mean(1))
            found[:, feature] = torch.cat(means).numpy()
    return {"PDP": Recovered(found)}


def accumulated_local_effects(problem: Problem) -> dict[str, Recovered]:
    """ALE by effector, 40 bins: on the paper's functions no worse than its default of 20."""
    import effector
    from effector.axis_partitioning import Fixed

    ale = effector.ALE(problem.sample.inputs, problem.predict, nof_instances="all")
    ale.fit(binning_method=Fixed(nof_bins=ALE_BINS, min_points_per_bin=0))
    held_out = problem.sample.held_out
    found = np.stack([ale.eval(k, held_out[:, k]) for k in range(FEATURES)], axis=1)
    return {"ALE": Recovered(found, meant=local_effects)}


def robust_local_effects(problem: Problem) -> dict[str, Recovered]:
    """RHALE by effector, with the network's gradients and bins of its own choice."""
    import effector

    def gradients(rows: Array) -> Array:
        inputs = torch.as_tensor(rows).requires_grad_()
        (slopes,) = torch.autograd.grad(problem.trained(inputs).sum(), inputs)
        return np.asarray(slopes.numpy())

    rhale = effector.RHALE(problem.sample.inputs, problem.predict, gradients, nof_instances="all")
    rhale.fit()
    held_out = problem.sample.held_out
    found = np.stack([rhale.eval(k, held_out[:, k]) for k in range(FEATURES)], axis=1)
    return {"RHALE": Recovered(found, meant=local_effects)}


def kernel_shap(problem: Problem) -> dict[str, Recovered]:
    """KernelSHAP by shap: 50 training rows as background, all 30 coalitions of five features."""
    import shap

    background = shap.sample(problem.sample.inputs, SHAP_BACKGROUND, random_state=problem.case.seed)
    explainer = shap.KernelExplainer(problem.predict, background)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = explainer.shap_values(problem.sample.held_out, silent=True, l1_reg=False)
    return {"KernelSHAP": Recovered(np.asarray(values, dtype=np.float64), meant=shapley_values)}


def judged_alike(problem: Problem) -> dict[str, Recovered]:
    """Those that mean something else than average effects, judged by average effects all the same."""
    found = {
        **accumulated_local_effects(problem),
        **robust_local_effects(problem),
        **kernel_shap(problem),
    }
    return {
        f"{name}, as average effects": replace(what, meant=None) for name, what in found.items()
    }


def integrated_gradients(problem: Problem) -> dict[str, Recovered]:
    """Integrated gradients by captum: 25 steps from the mean row."""
    from captum.attr import IntegratedGradients

    rows = torch.as_tensor(problem.sample.held_out)
    start = torch.as_tensor(problem.sample.baseline)[None]
    values: Tensor = IntegratedGradients(problem.trained).attribute(
        rows, baselines=start, target=0, n_steps=GRADIENT_STEPS
    )
    return {"Integrated Gradients": Recovered(values.detach().numpy())}


def boosting_machine(problem: Problem) -> dict[str, Recovered]:
    """EBM by interpret-core, all pairs offered to it; it learns from the targets, not from the network."""
    found = _boosted(problem, problem.sample.targets, "5x")
    return {"EBM": found["as it comes"]}


def distilled_machine(problem: Problem) -> dict[str, Recovered]:
    """EBM of the network's outputs, with the two pairs it finds strongest.

    It is scored twice: with its own terms, and with each pair's mean over its partner's values in the rows given moved
    to the other feature, as average effects are defined.
    """
    found = _boosted(problem, problem.predict(problem.sample.inputs), 2)
    return {"distilled EBM": found["as it comes"], "distilled EBM, purified": found["purified"]}


def _boosted(problem: Problem, targets: Array, interactions: int | str) -> dict[str, Recovered]:
    from interpret.glassbox import ExplainableBoostingRegressor

    rows, held_out = problem.sample.inputs, problem.sample.held_out
    model = ExplainableBoostingRegressor(
        interactions=interactions, n_jobs=1, random_state=problem.case.seed, **BOOSTING
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(rows, targets)
    terms = [tuple(int(k) for k in term) for term in model.term_features_]
    full = model.eval_terms(held_out)
    singles = np.zeros((len(held_out), FEATURES))
    pairs = {}
    for place, term in enumerate(terms):
        if len(term) == 1:
            singles[:, term[0]] += full[:, place]
        else:
            i, j = sorted(term)
            pairs[i, j] = full[:, place]

    def alone(pair: Pair, feature: int) -> Array:
        """A pair's mean over the partner's values, at the held-out values of a feature."""
        place = next(k for k, term in enumerate(terms) if set(term) == set(pair))
        partner = pair[1] if feature == pair[0] else pair[0]
        values = np.quantile(rows[:, partner], (np.arange(PARTNERS) + 0.5) / PARTNERS)
        moved = np.repeat(held_out, PARTNERS, axis=0)
        moved[:, partner] = np.tile(values, len(held_out))
        return np.asarray(model.eval_terms(moved)[:, place].reshape(len(held_out), -1).mean(1))

    return {"as it comes": Recovered(singles, pairs), "purified": _purified(singles, pairs, alone)}


def _purified(
    singles: Array, pairs: dict[Pair, Array], alone: Callable[[Pair, int], Array]
) -> Recovered:
    """Means of pairs over a partner moved to the other feature; constants do not matter, as scores centre."""
    singles, pure = singles.copy(), {}
    for (i, j), values in pairs.items():
        first, second = alone((i, j), i), alone((i, j), j)
        singles[:, i] += first
        singles[:, j] += second
        pure[i, j] = values - first - second
    return Recovered(singles, pure)


def least_squares_on_bins(problem: Problem) -> dict[str, Recovered]:
    """Maximum interpretation decomposition as one would type it in: bins of one and of two features, least squares.

    It is told the true pairs. Bins are quantiles of the rows given, as many as do best on a fifth held out; a ridge of
    1e-6 settles what the rows leave open. Pairs are purified by the bins' frequencies.
    """
    rows, outputs = problem.sample.inputs, problem.predict(problem.sample.inputs)
    pairs = FAMILIES[problem.case.family].true_pairs
    fold = np.random.default_rng(0).permutation(len(rows)) % 5
    best = min(
        itertools.product(MOST_BINS, PAIR_BINS if pairs else (2,)),
        key=lambda bins: _held_out_error(rows, outputs, pairs, fold == 0, *bins),
    )
    bins = Bins(rows, pairs, *best)
    weights = bins.solve(rows, outputs)
    singles, found = bins.parts(problem.sample.held_out, weights)

    def alone(pair: Pair, feature: int) -> Array:
        return bins.mean_over_partner(problem.sample.held_out, weights, pair, feature)

    return {"bins": _purified(singles, found, alone)}


class Bins:
    """One-hot bins of every feature and of some pairs."""

    def __init__(self, rows: Array, pairs: tuple[Pair, ...], single: int, double: int) -> None:
        self.pairs, self.single, self.double = pairs, single, double
        self.edges = [
            np.quantile(rows[:, k], np.arange(1, single) / single) for k in range(FEATURES)
        ]
        self.coarse = [
            np.quantile(rows[:, k], np.arange(1, double) / double) for k in range(FEATURES)
        ]

    def places(self, rows: Array) -> list[NDArray[np.int64]]:
        """Per block, the bin of every row."""
        found = [np.searchsorted(self.edges[k], rows[:, k]) for k in range(FEATURES)]
        coarse = [np.searchsorted(self.coarse[k], rows[:, k]) for k in range(FEATURES)]
        return found + [coarse[i] * self.double + coarse[j] for i, j in self.pairs]

    @property
    def sizes(self) -> list[int]:
        return [self.single] * FEATURES + [self.double**2] * len(self.pairs)

    def solve(self, rows: Array, outputs: Array) -> list[Array]:
        starts = np.concatenate([[0], np.cumsum(self.sizes)])
        design = np.zeros((len(rows), starts[-1]))
        for start, place in zip(starts[:-1], self.places(rows), strict=True):
            design[np.arange(len(rows)), start + place] = 1
        gram = design.T @ design + 1e-6 * len(rows) * np.eye(starts[-1])
        weights = np.linalg.solve(gram, design.T @ (outputs - outputs.mean()))
        return np.split(weights, starts[1:-1])

    def parts(self, rows: Array, weights: list[Array]) -> tuple[Array, dict[Pair, Array]]:
        values = [w[place] for w, place in zip(weights, self.places(rows), strict=True)]
        return np.stack(values[:FEATURES], axis=1), dict(
            zip(self.pairs, values[FEATURES:], strict=True)
        )

    def mean_over_partner(
        self, rows: Array, weights: list[Array], pair: Pair, feature: int
    ) -> Array:
        """Quantile bins are equally frequent, so that the mean is a plain one."""
        table = weights[FEATURES + self.pairs.index(pair)].reshape(self.double, self.double)
        means = table.mean(1) if feature == pair[0] else table.mean(0)
        return np.asarray(means[np.searchsorted(self.coarse[feature], rows[:, feature])])


def _held_out_error(
    rows: Array,
    outputs: Array,
    pairs: tuple[Pair, ...],
    out: NDArray[np.bool_],
    single: int,
    double: int,
) -> float:
    if FEATURES * single > len(rows):
        return float("inf")
    bins = Bins(rows[~out], pairs, single, double)
    singles, found = bins.parts(rows[out], bins.solve(rows[~out], outputs[~out]))
    said = outputs[~out].mean() + singles.sum(1) + sum(found.values(), np.zeros(int(out.sum())))
    return float(np.square(outputs[out] - said).mean())
