"""The trees of libraries as plain arrays, so that grids need no forward pass.

None stands for trees of a kind that is not read here.

Read are numbers that part at a cut. Categories, trees with linear leaves or several numbers at a
leaf, dropped trees (DART) and zeros that count as missing are left to the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp._typing import ModelLike
from nobsp.network.forest import Array, Forest, Tree


def groups_of_trees(ends: Sequence[int], *, outputs: int) -> NDArray[np.intp]:
    """Per round and output, which number of the representation its trees add to.

    The shape is (rounds, outputs).
    """
    sizes = [last - first for first, last in pairwise(ends)]
    part = np.repeat(np.arange(len(sizes)), sizes)
    return np.asarray(part[:, None] * outputs + np.arange(outputs), dtype=np.intp)


def read_xgboost(boosted: Any, ends: Sequence[int], *, outputs: int) -> Forest | None:
    """Trees of XGBoost's own description of a model, by ranges of rounds."""
    forest = boosted.get("model")
    if forest is None or "trees" not in forest:  # dropped trees have weights of their own
        return None
    first_trees = forest["iteration_indptr"][: ends[-1] + 1]
    described = forest["trees"][: first_trees[-1]]
    if any(int(tree["tree_param"]["size_leaf_vector"]) > 1 for tree in described):
        return None
    if any(any(tree["split_type"]) for tree in described):
        return None

    groups = groups_of_trees(ends, outputs=outputs)
    round_of_tree = np.repeat(np.arange(ends[-1]), np.diff(first_trees))
    output_of_tree = np.asarray(forest["tree_info"][: first_trees[-1]], dtype=np.intp)
    return Forest.of(
        [_xgboost_tree(tree) for tree in described],
        group=groups[round_of_tree, output_of_tree],
        start=np.zeros(groups.max() + 1),
        strict=True,
        single=True,
    )


def _xgboost_tree(described: Any) -> Tree:
    left = np.asarray(described["left_children"])
    numbers = np.asarray(described["split_conditions"], dtype=np.float32)
    is_leaf = left < 0
    return Tree(
        column=np.where(is_leaf, -1, described["split_indices"]),
        cut=numbers.astype(np.float64),
        left=left,
        right=np.asarray(described["right_children"]),
        missing_left=np.asarray(described["default_left"], dtype=bool),
        value=np.where(is_leaf, numbers, 0.0),
    )


def read_lightgbm(dump: Any, ends: Sequence[int]) -> Forest | None:
    """Trees of LightGBM's own description of a model, by ranges of rounds."""
    if dump.get("average_output"):
        return None
    trees = []
    for described in dump["tree_info"]:
        tree = _lightgbm_tree(described["tree_structure"])
        if tree is None:
            return None
        trees.append(tree)

    outputs = int(dump["num_tree_per_iteration"])
    groups = groups_of_trees(ends, outputs=outputs)
    return Forest.of(
        trees,
        group=groups.ravel()[: len(trees)],
        start=np.zeros(groups.max() + 1),
        strict=False,
        single=False,
    )


def _lightgbm_tree(root: Any) -> Tree | None:
    """A tree of nested nodes, numbered as they are met."""
    nodes = [root]
    rows: list[tuple[float, ...]] = []
    for node in nodes:
        if "leaf_coeff" in node:
            return None
        if "split_feature" not in node:
            rows.append((-1, 0.0, -1, -1, False, node["leaf_value"]))
            continue
        if node["decision_type"] != "<=" or node["missing_type"] == "Zero":
            return None
        # Where nothing was missing in training, a missing number counts as zero.
        treated_as_zero = node["missing_type"] == "None"
        missing_left = node["threshold"] >= 0 if treated_as_zero else node["default_left"]
        left = len(nodes)
        nodes += [node["left_child"], node["right_child"]]
        rows.append((node["split_feature"], node["threshold"], left, left + 1, missing_left, 0.0))
    return Tree(*(np.asarray(column) for column in zip(*rows, strict=True)))


def read_histogram_boosting(model: ModelLike, ends: Sequence[int]) -> Forest | None:
    """Trees of scikit-learn's histogram boosting, by ranges of rounds.

    The first range has the model's base.
    """
    stages = [[predictor.nodes for predictor in stage] for stage in model._predictors]
    trees = [_histogram_tree(nodes) for stage in stages for nodes in stage]
    if getattr(model, "is_categorical_", None) is not None:
        return None
    groups = groups_of_trees(ends, outputs=len(stages[0]))
    start = np.zeros(groups.max() + 1)
    start[: len(stages[0])] = np.asarray(model._baseline_prediction).ravel()
    return Forest.of(
        trees,
        group=groups.ravel(),
        start=start,
        strict=False,
        single=False,
    )


def _histogram_tree(nodes: Any) -> Tree:
    is_leaf = nodes["is_leaf"] != 0
    return Tree(
        column=np.where(is_leaf, -1, nodes["feature_idx"].astype(np.intp)),
        cut=nodes["num_threshold"],
        left=nodes["left"].astype(np.intp),
        right=nodes["right"].astype(np.intp),
        missing_left=nodes["missing_go_to_left"] != 0,
        value=np.where(is_leaf, nodes["value"], 0.0),
    )


def read_mean_of_trees(trees: Sequence[Any], ends: Sequence[int], *, classes: int) -> Forest | None:
    """Trees of a forest of scikit-learn, which answers with their mean.

    The mean is a number, or the share of the second of two classes.
    """
    if classes > 2:
        return None
    groups = groups_of_trees(ends, outputs=1)
    return Forest.of(
        [_sklearn_tree(tree, len(trees), classes=classes) for tree in trees],
        group=groups.ravel(),
        start=np.zeros(groups.max() + 1),
        strict=False,
        single=True,
    )


def _sklearn_tree(tree: Any, count: int, *, classes: int) -> Tree:
    values: Array = tree.value[:, 0, :]
    if classes == 2:
        values = values[:, 1:] / values.sum(1, keepdims=True)
    is_leaf = tree.children_left < 0
    return Tree(
        column=np.where(is_leaf, -1, tree.feature),
        cut=tree.threshold,
        left=tree.children_left,
        right=tree.children_right,
        missing_left=tree.missing_go_to_left != 0,
        value=values[:, 0] / count,
    )
