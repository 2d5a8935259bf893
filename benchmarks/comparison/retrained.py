"""Pairs of models of which half differ in one function: is it named, and is nothing else?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import nobsp
from benchmarks.comparison import gaps
from benchmarks.comparison.gaps import NAMES, Array, Design, draw_rows

# The spread of the change, as a share of the output's.
CHANGE = 0.05
RATE = 0.1
# The least change of a function that is claimed, where nobody says otherwise.
USUAL = 0.005
CORRELATION = 0.3
# Trainings of each model.
TRAININGS = 3


def changed_design(feature: int, spread: float) -> Design:
    """The functions with one of them changed by a wave of such a spread."""
    term = (NAMES[feature],)
    before = gaps.MAINS[term]

    def after(X: Array) -> Array:
        return before(X) + np.sqrt(2) * spread * np.sin(3 * X[:, feature])

    return Design({**gaps.DESIGNS["interactions"].terms, term: after})


def recalibrated(pair: int) -> dict[str, Any]:
    """One model and, in every other pair, the same with one function changed, each calibrated on rows of its own."""
    generator = np.random.default_rng([pair, 3])
    draw = partial(draw_rows, correlation=CORRELATION, generator=generator)
    first = gaps.DESIGNS["interactions"]
    spread = float(first(draw(20_000)).std())
    feature = pair // 2 % len(NAMES)
    second = changed_design(feature, CHANGE * spread) if pair % 2 else first
    rows = (draw(1000), draw(1000))
    compared = draw(1000)
    names = list(NAMES)
    before = nobsp.NObSP(first, features=names).fit(rows[0])
    pairs = [term for term in before.terms_ if len(term) > 1]
    # The same interactions in both, as the documents advise.
    after = nobsp.NObSP(second, features=names, interactions=pairs or 0).fit(rows[1])
    truth = NAMES[feature] if pair % 2 else None
    return judge(before(compared), after(compared), pair, truth) | {
        "shap": move_of_shap([first], [second], compared, spread)
    }


def retrained(pair: int) -> dict[str, Any]:
    """Networks trained on rows of their own, three of each kind; in every other pair one function has changed.

    One of each is compared as it is; once more, with what one more training without any change moved as `least_change`;
    and three with three.
    """
    generator = np.random.default_rng([pair, 4])
    draw = partial(draw_rows, correlation=CORRELATION, generator=generator)
    before = gaps.DESIGNS["interactions"]
    spread = float(before(draw(20_000)).std())
    feature = pair // 2 % len(NAMES)
    after = changed_design(feature, CHANGE * spread) if pair % 2 else before
    rows, compared = draw(1000), draw(1000)

    designs = [before] * TRAININGS + [after] * TRAININGS
    first_seed = 2 * TRAININGS * pair
    networks = gaps.train_networks(
        designs,
        np.stack([draw(4000) for _ in designs]),
        seeds=range(first_seed, first_seed + len(designs)),
    )
    models = [partial(gaps.predict_with, network) for network in networks]
    accounts: list[nobsp.Explanation] = []
    interactions: Any = "auto"
    for model in models:
        explainer = nobsp.NObSP(model, features=list(NAMES), interactions=interactions)
        explainer.fit(rows)
        if interactions == "auto":
            interactions = [term for term in explainer.terms_ if len(term) > 1] or 0
        accounts.append(explainer(compared))

    of_before = slice(0, TRAININGS)
    of_after = slice(TRAININGS, None)
    truth = NAMES[feature] if pair % 2 else None
    again = judge(accounts[0], accounts[1], pair, None)
    moved = max(again["changes"][entry] for entry in again["changes"] if entry not in NOT_TERMS)
    return {
        "one": judge(accounts[0], accounts[TRAININGS], pair, truth),
        "floor": judge(accounts[0], accounts[TRAININGS], pair, truth, least_change=moved),
        "several": judge(accounts[of_before], accounts[of_after], pair, truth),
        "moved": moved,
        "shap": move_of_shap(models[of_before], models[of_after], compared, spread),
    }


NOT_TERMS = ("base", "residual")


def judge(
    before: Any, after: Any, pair: int, truth: str | None, *, least_change: float = USUAL
) -> dict[str, Any]:
    """Which terms are named as changed, and by how much each has, as a share of the predictions' spread."""
    comparison = nobsp.compare(
        before, after, draws=200, least_change=least_change, random_state=pair
    )
    assert comparison.change is not None
    assert comparison.explained is not None
    spread = float(comparison.sides[0].explanation.predictions.std())
    changes = comparison.change.value[:, 0] / spread
    return {
        "named": list(comparison.changed(RATE)),
        "truth": truth,
        "changes": dict(zip(comparison.entries, changes.tolist(), strict=True)),
        "explained": float(comparison.explained[0]),
    }


def move_of_shap(
    before: list[Callable[[Array], Array]],
    after: list[Callable[[Array], Array]],
    rows: Array,
    spread: float,
) -> list[float]:
    """How far the mean |SHAP| of every feature moved, averaged over trainings, as a share of the spread."""
    sizes = [
        np.mean(
            [
                np.abs(gaps.shap_values(model, rows[:200], rows[200:250])).mean(0)
                for model in models
            ],
            axis=0,
        )
        for models in (before, after)
    ]
    return [float(size) for size in np.abs(sizes[0] - sizes[1]) / spread]


def score(pairs: list[dict[str, Any]]) -> dict[str, float]:
    """Share of the names that are false, and of the changes that are named.

    A pair of the changed feature with another counts as neither: where features depend on each other, it takes up part
    of the change.
    """
    rates = []
    hits = []
    for pair in pairs:
        false = [
            name
            for name in pair["named"]
            if pair["truth"] is None or pair["truth"] not in name.split(" × ")
        ]
        rates.append(len(false) / max(len(pair["named"]), 1))
        if pair["truth"] is not None:
            hits.append(pair["truth"] in pair["named"])
    return {"false": float(np.mean(rates)), "power": float(np.mean(hits)) if hits else np.nan}


def score_shap(pairs: list[dict[str, Any]]) -> dict[str, float]:
    """The rival, with the threshold on the change of mean |SHAP| that serves it best in hindsight.

    Of all thresholds with no more than 10% false names the one that names most; nobody has it beforehand.
    """
    best = {"false": 1.0, "power": 0.0}
    thresholds = sorted({value for pair in pairs for value in pair["shap"]})
    for threshold in thresholds:
        named = [
            {
                **pair,
                "named": [
                    name
                    for name, value in zip(NAMES, pair["shap"], strict=True)
                    if value >= threshold
                ],
            }
            for pair in pairs
        ]
        scored = score(named)
        if scored["false"] <= RATE and scored["power"] >= best["power"]:
            best = scored
    return best
