"""Models whose features act three at a time, or in groups of columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.everyday.registry import Outcome, judge, situation
from nobsp import NObSP

Array = NDArray[np.float64]

CALIBRATION_ROWS = 2000
FRESH_ROWS = 4000


def _product_of_three(rows: Array) -> Array:
    return rows[:, 0] * rows[:, 1] * rows[:, 2] + rows[:, 3]


def _group_with_a_partner(rows: Array) -> Array:
    return rows[:, 0] * rows[:, 2] ** 2 + rows[:, 1] * rows[:, 2] + rows[:, 3]


def _draw() -> tuple[Array, Array]:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(CALIBRATION_ROWS, 4))
    fresh = generator.normal(size=(FRESH_ROWS, 4))
    return rows, fresh


@situation("a product of three features, found by itself")
def product_of_three() -> Outcome:
    rows, fresh = _draw()
    return judge(NObSP(_product_of_three), rows, fresh)


@situation("a product of three features, named")
def named_product_of_three() -> Outcome:
    rows, fresh = _draw()
    explainer = NObSP(_product_of_three, features=list("abcd"), interactions=[("a", "b", "c")])
    return judge(explainer, rows, fresh)


@situation("a group of two columns in a named pair")
def group_in_a_pair() -> Outcome:
    rows, fresh = _draw()
    features = {"G": [0, 1], "c": 2, "d": 3}
    explainer = NObSP(_group_with_a_partner, features=features, interactions=[("G", "c")])
    return judge(explainer, rows, fresh)


@situation("a group of two columns, its pair not asked for", findings=("low_share",))
def group_without_its_pair() -> Outcome:
    rows, fresh = _draw()
    features = {"G": [0, 1], "c": 2, "d": 3}
    return judge(NObSP(_group_with_a_partner, features=features), rows, fresh)


def _two_products(rows: Array) -> Array:
    return rows[:, 0] * rows[:, 1] + rows[:, 2] * rows[:, 3] + 2 * rows[:, 0]


@situation("a strong pair beside the one that is named", findings=("pair_left_out",), wanted=True)
def pair_beside_a_named_one() -> Outcome:
    rows, fresh = _draw()
    explainer = NObSP(_two_products, features=list("abcd"), interactions=[("a", "b")])
    return judge(explainer, rows, fresh)
