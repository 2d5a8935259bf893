"""The other methods, each the way its own package offers it."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from benchmarks.recovery.designs import FEATURES, Array
from benchmarks.recovery.problems import Problem
from benchmarks.recovery.scores import Recovered

SHAP_BACKGROUND = 50
GRADIENT_STEPS = 25
ALE_BINS = 40
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
    """Mean output with one feature moved, over all training rows: exact, no grid of points between."""
    rows, held_out = problem.sample.inputs, problem.sample.held_out
    found = np.empty((len(held_out), FEATURES))
    for feature in range(FEATURES):
        moved = rows.copy()
        for place, value in enumerate(held_out[:, feature]):
            moved[:, feature] = value
            found[place, feature] = problem.predict(moved).mean()
    return {"PDP": Recovered(found)}


def accumulated_local_effects(problem: Problem) -> dict[str, Recovered]:
    """ALE by effector, 40 bins: on the paper's functions no worse than its default of 20."""
    import effector
    from effector.axis_partitioning import Fixed

    ale = effector.ALE(problem.sample.inputs, problem.predict, nof_instances="all")
    ale.fit(binning_method=Fixed(nof_bins=ALE_BINS, min_points_per_bin=0))
    held_out = problem.sample.held_out
    return {"ALE": Recovered(np.stack([ale.eval(k, held_out[:, k]) for k in range(FEATURES)], axis=1))}


def kernel_shap(problem: Problem) -> dict[str, Recovered]:
    """KernelSHAP by shap: 50 training rows as background, all 30 coalitions of five features."""
    import shap

    background = shap.sample(problem.sample.inputs, SHAP_BACKGROUND, random_state=problem.case.seed)
    explainer = shap.KernelExplainer(problem.predict, background)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = explainer.shap_values(problem.sample.held_out, silent=True, l1_reg=False)
    return {"KernelSHAP": Recovered(np.asarray(values, dtype=np.float64))}


def integrated_gradients(problem: Problem) -> dict[str, Recovered]:
    """Integrated gradients by captum: 25 steps from the mean row."""
    from captum.attr import IntegratedGradients

    rows = torch.as_tensor(problem.sample.held_out)
    start = torch.as_tensor(problem.sample.baseline)[None]
    values: Tensor = IntegratedGradients(problem.trained).attribute(
        rows, baselines=start, target=0, n_steps=GRADIENT_STEPS
    )
    return {"Integrated Gradients": Recovered(values.detach().numpy())}


def probed(problem: Problem) -> dict[str, Recovered]:
    """No method at all: the output with one or two features moved and the others at their mean."""
    held_out, baseline = problem.sample.held_out, problem.sample.baseline
    alone = np.stack(
        [problem.predict(_moved(held_out, baseline, (k,))) for k in range(FEATURES)], axis=1
    ) - problem.predict(baseline[None])
    pairs = {
        (i, j): problem.predict(_moved(held_out, baseline, (i, j)))
        - alone[:, i]
        - alone[:, j]
        - problem.predict(baseline[None])
        for i in range(FEATURES)
        for j in range(i + 1, FEATURES)
    }
    return {"probed at the mean": Recovered(alone, pairs)}


def boosting_machine(problem: Problem) -> dict[str, Recovered]:
    """EBM by interpret-core, all pairs offered to it; it learns from the rows, not from the network.

    It is scored twice: with its own terms, whose pairs hold nothing of one feature alone on average over the
    training rows, and anchored, with what a pair says when the other feature is at its mean moved to the first
    feature, as the true pairs and ours are defined.
    """
    from interpret.glassbox import ExplainableBoostingRegressor

    sample = problem.sample
    model = ExplainableBoostingRegressor(interactions="5x", n_jobs=1, random_state=problem.case.seed, **BOOSTING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(sample.inputs, sample.targets)
    terms = [tuple(int(k) for k in term) for term in model.term_features_]
    full = model.eval_terms(sample.held_out)
    origin = model.eval_terms(sample.baseline[None])
    alone = [model.eval_terms(_moved(sample.held_out, sample.baseline, (k,))) for k in range(FEATURES)]
    singles, anchored = np.zeros((2, len(sample.held_out), FEATURES))
    pairs, anchored_pairs = {}, {}
    for place, term in enumerate(terms):
        if len(term) == 1:
            singles[:, term[0]] += full[:, place]
            anchored[:, term[0]] += full[:, place]
        else:
            i, j = sorted(term)
            pairs[i, j] = full[:, place]
            anchored[:, i] += alone[i][:, place]
            anchored[:, j] += alone[j][:, place]
            anchored_pairs[i, j] = full[:, place] - alone[i][:, place] - alone[j][:, place] + origin[:, place]
    return {"EBM": Recovered(singles, pairs), "EBM, anchored": Recovered(anchored, anchored_pairs)}


def _moved(rows: Array, baseline: Array, features: tuple[int, ...]) -> Array:
    """The baseline with some features taken from the rows."""
    moved = np.tile(baseline, (len(rows), 1))
    moved[:, features] = rows[:, features]
    return moved
