"""Trees on grids: walking each tree once gives what the model gives for every node."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from nobsp.models.trees import read_trees
from nobsp.network.forest import Forest, Tree
from tests.tolerances import COEFFICIENTS, assert_same_to_rounding

Array = NDArray[np.float64]

# Libraries that add up leaves in single precision differ from us by rounding of that.
SINGLE = 1e-5


def rows_and_target(*, missing: bool) -> tuple[Array, Array]:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(300, 4))
    target = rows[:, 0] * rows[:, 1] + np.sin(rows[:, 2]) + rows[:, 3]
    if missing:
        rows[generator.random(rows.shape) < 0.1] = np.nan
    return rows, target


def fitted(name: str, rows: Array, target: Array) -> Any:
    import lightgbm
    import xgboost
    from sklearn import ensemble

    three_classes = np.digitize(target, [-0.5, 0.5])
    two_classes = (target > 0).astype(int)
    small = {"n_estimators": 5, "random_state": 0, "n_jobs": 1}
    match name:
        case "xgboost":
            return xgboost.XGBRegressor(**small).fit(rows, target)
        case "xgboost, three classes":
            return xgboost.XGBClassifier(**small).fit(rows, three_classes)
        case "xgboost, three trees a round":
            return xgboost.XGBRegressor(**small, num_parallel_tree=3, subsample=0.5).fit(
                rows, target
            )
        case "lightgbm":
            return lightgbm.LGBMRegressor(**small, verbose=-1).fit(rows, target)
        case "lightgbm, three classes":
            return lightgbm.LGBMClassifier(**small, verbose=-1).fit(rows, three_classes)
        case "histograms":
            return ensemble.HistGradientBoostingRegressor(max_iter=5).fit(rows, target)
        case "histograms of counts":
            model = ensemble.HistGradientBoostingRegressor(max_iter=5, loss="poisson")
            return model.fit(rows, np.exp(target / 2))
        case "forest":
            return ensemble.RandomForestRegressor(**small).fit(rows, target)
        case "forest, two classes":
            return ensemble.RandomForestClassifier(**small).fit(rows, two_classes)
    raise AssertionError(name)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "xgboost",
        "xgboost, three classes",
        "xgboost, three trees a round",
        "lightgbm",
        "lightgbm, three classes",
        "histograms",
        "histograms of counts",
        "forest",
        "forest, two classes",
    ],
)
def test_a_grid_is_what_the_library_answers_for_every_node(name: str, missing: bool) -> None:
    rows, target = rows_and_target(missing=missing)
    trees = read_trees(fitted(name, rows, target))
    assert trees is not None
    assert trees.forest is not None

    # Lines lie on either side of thresholds, where one rounding decides.
    lines = [np.unique(trees.steps[k][:4]) for k in (0, 3)]
    if missing:
        lines = [np.append(line, np.nan) for line in lines]
    background = rows[:6]
    weight = trees.weight.T
    mean, outputs = trees.forest.answer_on_grid(background, [0, 3], lines, weight)

    expected = np.empty((len(lines[0]), len(lines[1]), len(background), len(weight)))
    for (i, first), (j, second) in product(enumerate(lines[0]), enumerate(lines[1])):
        node = background.copy()
        node[:, 0] = first
        node[:, 3] = second
        expected[i, j] = trees.function(node)
    assert_same_to_rounding(mean, expected.mean(2), within=SINGLE)
    assert_same_to_rounding(outputs, np.moveaxis(expected @ weight, 2, 0), within=SINGLE)
    assert_same_to_rounding(trees.forest.answer(rows), trees.function(rows), within=SINGLE)


def test_a_tree_by_hand() -> None:
    # x0 < 1 ? 10 : (x1 < 2 ? 20 : 30), missing x0 to the left and missing x1 to the right.
    tree = Tree(
        column=np.array([0, -1, 1, -1, -1]),
        cut=np.array([1.0, 0, 2.0, 0, 0]),
        left=np.array([1, -1, 3, -1, -1]),
        right=np.array([2, -1, 4, -1, -1]),
        missing_left=np.array([True, False, False, False, False]),
        value=np.array([0, 10.0, 0, 20.0, 30.0]),
    )
    forest = Forest.of([tree], group=[0], start=np.array([0.5]), strict=True, single=False)
    lines = [np.array([0.0, 1.0, np.nan]), np.array([1.0, 2.0, np.nan])]
    mean, outputs = forest.answer_on_grid(np.zeros((1, 2)), [0, 1], lines, np.array([[2.0]]))
    expected = np.array([[10.0, 10, 10], [20, 30, 30], [10, 10, 10]]) + 0.5
    assert_same_to_rounding(mean[..., 0], expected, within=COEFFICIENTS)
    assert_same_to_rounding(outputs[0, ..., 0], 2 * expected, within=COEFFICIENTS)


def test_trees_that_are_not_read_are_left_to_the_library() -> None:
    import lightgbm
    import xgboost

    rows, target = rows_and_target(missing=False)
    dropped = xgboost.XGBRegressor(n_estimators=5, booster="dart", rate_drop=0.5)
    zeros = lightgbm.LGBMRegressor(n_estimators=5, zero_as_missing=True, verbose=-1)
    for model in (dropped, zeros):
        trees = read_trees(model.fit(np.where(rows < -0.5, 0.0, rows), target))
        assert trees is not None
        assert trees.forest is None
