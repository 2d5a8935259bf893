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
    [judged] = judge_pair((first, second), rows, draw(1000), pair, feature, floors=(USUAL,))
    return judged


def retrained(pair: int, *, floors: tuple[float, ...]) -> list[dict[str, Any]]:
    """Two networks trained on rows of their own; in every other pair one function of the truth has changed."""
    generator = np.random.default_rng([pair, 4])
    draw = partial(draw_rows, correlation=CORRELATION, generator=generator)
    before = gaps.DESIGNS["interactions"]
    spread = float(before(draw(20_000)).std())
    feature = pair // 2 % len(NAMES)
    after = changed_design(feature, CHANGE * spread) if pair % 2 else before
    networks = [
        gaps.train_network(design, draw(4000), seed=2 * pair + number)
        for number, design in enumerate((before, after))
    ]
    rows = draw(1000)
    first, second = (partial(gaps.predict_with, network) for network in networks)
    return judge_pair((first, second), (rows, rows), draw(1000), pair, feature, floors=floors)


def judge_pair(
    models: tuple[Callable[[Array], Array], Callable[[Array], Array]],
    rows: tuple[Array, Array],
    compared: Array,
    pair: int,
    feature: int,
    *,
    floors: tuple[float, ...],
) -> list[dict[str, Any]]:
    """Which terms are named as changed, for every floor, and how the mean |SHAP| of every feature moved."""
    names = list(NAMES)
    before = nobsp.NObSP(models[0], features=names).fit(rows[0])
    pairs = [term for term in before.terms_ if len(term) > 1]
    # The same interactions in both, as the documents advise.
    after = nobsp.NObSP(models[1], features=names, interactions=pairs or 0).fit(rows[1])
    accounts = (before(compared), after(compared))
    spread = float(accounts[0].predictions.std())
    sizes = [
        np.abs(gaps.shap_values(model, compared[:200], compared[200:250])).mean(0)
        for model in models
    ]
    judged = []
    for floor in floors:
        comparison = nobsp.compare(*accounts, draws=200, least_change=floor, random_state=pair)
        assert comparison.change is not None
        assert comparison.explained is not None
        changes = comparison.change.value[:, 0] / spread
        judged.append(
            {
                "named": list(comparison.changed(RATE)),
                "truth": NAMES[feature] if pair % 2 else None,
                "changes": dict(zip(comparison.entries, changes.tolist(), strict=True)),
                "shap": (np.abs(sizes[0] - sizes[1]) / spread).tolist(),
                "explained": float(comparison.explained[0]),
            }
        )
    return judged


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
