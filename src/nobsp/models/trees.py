"""Tree models as sums of groups of trees: margins, and thresholds where their functions step.

What a group of trees answers is one number of the representation and the head adds the groups up,
so that corrections can weigh early and late trees, or some trees of a forest, differently.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp._typing import ModelLike, TableLike
from nobsp.models.forests import (
    read_histogram_boosting,
    read_lightgbm,
    read_mean_of_trees,
    read_xgboost,
)
from nobsp.network.adapted import framed
from nobsp.network.forest import Forest

Array = NDArray[np.float64]
Function = Callable[[Any], Array]

# Groups of trees for every output: more cost time and explain next to nothing more.
GROUPS = 32
# The smallest distance between two numbers of a table: its inverse must be a number.
_LEAST_GAP = 1e-200
# Libraries write "missing or not" as a threshold that no number passes.
_NO_NUMBER_PASSES = 1e38
# Rows on which ranges of trees are compared with the whole.
_PROBED_ROWS = 16
# How far these may differ, as a share of the largest margin: libraries add up in single precision.
_SINGLE_PRECISION = 1e-5
# What LightGBM treats as zero, which may count as missing.
_LIGHTGBM_ZERO = 1e-35


@dataclass(frozen=True, eq=False)
class Trees:
    """A tree model."""

    # rows, as the library takes them, to what groups of trees answer, (rows, width)
    function: Function
    weight: Array  # which groups belong to which output, (outputs, width)
    base: Array  # what each output has besides the trees
    link: str  # what follows the margin; "" for what follows that of a classifier, where it is one
    steps: Mapping[int, Array]  # by column, numbers on either side of each threshold
    about: bytes  # bytes that are equal for the same model only
    codes: tuple[int, ...] = ()  # columns that hold codes of categories
    names: tuple[str, ...] | None = None  # names of the columns it was fitted on
    frame: bool = False  # whether it takes rows only by these names
    classes: tuple[str, ...] | None = None  # names of classes; of two the second
    forest: Forest | None = None  # the same trees as arrays, where all of them could be read


def read_trees(model: ModelLike) -> Trees | None:
    """A model as blocks of trees; None where it is of a kind not read.

    Models are read of XGBoost, LightGBM, CatBoost, scikit-learn and interpret.
    """
    read = _reader_of(model)
    trees = None if read is None else read(model)
    if trees is None:
        return None

    n_outputs = len(trees.base)
    classes = [str(name) for name in getattr(model, "classes_", ())]
    if not classes:
        quantiles = _quantile_names(model, n_outputs)
        return replace(trees, link=trees.link or "identity", classes=quantiles)

    link = "softmax" if n_outputs > 1 else "sigmoid"
    if n_outputs == 1 and len(classes) == 2:
        classes = classes[1:]
    return replace(trees, link=trees.link or link, classes=tuple(classes))


def _reader_of(model: ModelLike) -> Callable[[Any], Trees | None] | None:
    """What reads the trees of a model, by its library and class."""
    library = type(model).__module__.partition(".")[0]
    kind = type(model).__name__
    if library != "sklearn":
        readers = {
            "xgboost": _xgboost,
            "lightgbm": _lightgbm,
            "catboost": _catboost,
            "interpret": _interpret,
        }
        return readers.get(library)
    if kind.startswith("HistGradientBoosting"):
        return _hist
    if kind.startswith("GradientBoosting"):
        return _boosting
    if kind.startswith(("RandomForest", "ExtraTrees", "DecisionTree", "ExtraTree")):
        return _forest
    return None


def _quantile_names(model: ModelLike, outputs: int) -> tuple[str, ...] | None:
    """Names of several quantiles, where a model was trained for these."""
    options = model.get_params() if hasattr(model, "get_params") else {}
    levels: Any = options.get("quantile_alpha")
    loss = str(options.get("loss_function") or options.get("objective") or "")
    if loss.startswith("MultiQuantile:alpha="):
        levels = loss.removeprefix("MultiQuantile:alpha=").split(",")
    if levels is None and hasattr(model, "save_config"):  # a booster of XGBoost by itself
        objective = json.loads(model.save_config())["learner"].get("objective", {})
        written = objective.get("quantile_loss_param", {}).get("quantile_alpha")
        levels = None if written is None else json.loads(written)
    if levels is None or np.ndim(levels) != 1 or len(levels) != outputs:
        return None
    return tuple(f"quantile {float(level):g}" for level in levels)


def both_sides(thresholds: Iterable[Any], *, single: bool, below: bool) -> Array:
    """Per threshold, two neighbouring numbers between which a model changes sides."""
    cuts = np.unique(np.array(list(thresholds), dtype=np.float64))
    cuts = cuts[np.abs(cuts) < _NO_NUMBER_PASSES]
    precision: Any = np.float32 if single else np.float64

    def is_below(x: Array) -> NDArray[np.bool_]:
        rounded = x.astype(precision)
        return np.asarray(rounded < cuts if below else rounded <= cuts)

    return np.unique(_part(is_below, cuts.shape), axis=0)


def steps_before(
    encode: Callable[[Array], Array], steps: Mapping[int, Array], width: int
) -> dict[int, Array]:
    """Thresholds of scaled columns, as numbers of the columns before scaling.

    Each column was scaled by itself and upwards.
    """
    most_steps = max(map(len, steps.values()), default=0)
    last_below = np.full((most_steps, width), np.inf)
    for column, sides in steps.items():
        last_below[: len(sides), column] = sides[:, 0]
    if not last_below.size:
        return {}

    before = _part(lambda x: encode(x) <= last_below, last_below.shape)
    reached = {}
    for column, sides in steps.items():
        own = before[: len(sides), column]
        own = np.unique(own[np.isfinite(own).all(axis=1)], axis=0)
        if len(own):
            reached[column] = own
    return reached


def _part(is_below: Callable[[Array], NDArray[np.bool_]], shape: tuple[int, ...]) -> Array:
    """The last number that is below and the first that is not, shape (*shape, 2).

    They are found by halving the numbers in their order.
    """
    # As whole numbers in the same order, neighbours one apart.
    low = np.full(shape, -np.inf).view(np.int64) ^ np.iinfo(np.int64).max
    high = np.full(shape, np.inf).view(np.int64)
    while (high - 1 > low).any():
        middle = (low >> 1) + (high >> 1) + (low & high & 1)  # their sum may be too large
        with np.errstate(over="ignore"):
            below = is_below(_as_floats(middle))
        low = np.where(below, middle, low)
        high = np.where(below, high, middle)

    sides = np.stack([_as_floats(low), _as_floats(high)], axis=-1)
    # Around zero, numbers lie closer than their inverses reach.
    is_thin = sides[..., 1] - sides[..., 0] < _LEAST_GAP
    sides[is_thin, 1] = sides[is_thin, 0] + _LEAST_GAP
    return sides


def _as_floats(order: NDArray[np.int64]) -> Array:
    """Numbers from their places in the order of all numbers."""
    return (order ^ ((order >> 63) & np.iinfo(np.int64).max)).view(np.float64)


def _steps(columns: Any, cuts: Any, *, single: bool, below: bool) -> dict[int, Array]:
    """Numbers on either side of each threshold, by column."""
    columns = np.asarray(columns, dtype=np.intp)
    cuts = np.asarray(cuts)
    return {
        int(column): both_sides(cuts[columns == column], single=single, below=below)
        for column in np.unique(columns)
    }


def _ends(rounds: int) -> list[int]:
    """Where groups of rounds end, after 0 where the first begins."""
    ends = np.linspace(0, rounds, min(rounds, GROUPS) + 1).astype(int)
    return [int(end) for end in np.unique(ends)]


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of trees."""

    function: Function  # what each group answers, (rows, width)
    weight: Array  # which groups belong to which output, (outputs, width)
    base: Array  # what each output has besides the trees


def _in_ranges(
    margin: Callable[..., Any],
    rounds: int,
    probe: Any,
    *,
    prepare: Callable[[Any], Any] = lambda X: X,
) -> Groups | None:
    """Ranges of rounds as groups; None where these cannot be added up.

    This is where what the library adds to every range differs from row to row.

    `prepare` makes of rows what `margin` takes, once for all ranges: reading a frame takes longer
    than the trees do.
    """
    ranges = list(pairwise(_ends(rounds)))

    def margins(X: TableLike, parts: Iterable[tuple[int, int]]) -> list[Array]:
        prepared = prepare(X)
        answers = (margin(prepared, first, last) for first, last in parts)
        return [np.asarray(answer, dtype=np.float64).reshape(len(X), -1) for answer in answers]

    whole, *by_range = margins(probe, [(0, rounds), *ranges])
    added = (sum(by_range) - whole) / max(len(ranges) - 1, 1)
    if np.abs(added - added[0]).max() > _SINGLE_PRECISION * (1 + np.abs(whole).max()):
        return None

    base = added[0]

    def function(X: TableLike) -> Array:
        return np.column_stack([part - base for part in margins(X, ranges)])

    weight = np.tile(np.eye(len(base)), (1, len(ranges)))
    return Groups(function, weight, base)


def _in_stages(staged: Callable[[Any], Iterable[Any]], outputs: int, rounds: int) -> Groups:
    """Groups as differences between stages of boosting, the first with the model's base."""
    ends = _ends(rounds)[1:]

    def function(X: TableLike) -> Array:
        stages = []
        for number, stage in enumerate(staged(X), 1):
            if number in ends:
                # Copies: scikit-learn adds every stage to the same memory.
                stages.append(np.array(stage, np.float64).reshape(-1, outputs))
        gains = [after - before for before, after in pairwise(stages)]
        return np.column_stack([stages[0], *gains])

    weight = np.tile(np.eye(outputs), (1, len(ends)))
    return Groups(function, weight, np.zeros(outputs))


# What follows the margin, by XGBoost's objective or the first part of its name.
_XGBOOST_LINKS = {
    "reg:logistic": "sigmoid",
    "reg:gamma": "exp",
    "reg:tweedie": "exp",
    "binary:hinge": "identity",
    "binary": "sigmoid",
    "multi": "softmax",
    "count": "exp",
}


def _xgboost(model: ModelLike) -> Trees | None:
    """A booster of XGBoost, or an estimator around one."""
    import xgboost as xgb

    booster = model if isinstance(model, xgb.Booster) else model.get_booster()
    best = booster.attr("best_iteration")
    rounds = booster.num_boosted_rounds() if best is None else int(best) + 1
    splits = _xgboost_splits(booster, rounds)
    if splits is None:
        return None

    groups = _xgboost_groups(booster, rounds, splits)
    if groups is None:
        return None

    names = booster.feature_names
    objective = json.loads(booster.save_config())["learner"]["objective"]["name"]
    family = objective.partition(":")[0]
    return Trees(
        function=groups.function,
        weight=groups.weight,
        base=groups.base,
        link=_XGBOOST_LINKS.get(objective) or _XGBOOST_LINKS.get(family, "identity"),
        steps=_steps(splits.columns, splits.cuts, single=True, below=True),
        about=bytes(booster.save_raw("ubj")),
        codes=tuple(sorted(splits.codes)),
        names=None if names is None else tuple(names),
        forest=read_xgboost(_description(booster), _ends(rounds), outputs=len(groups.base)),
    )


def _xgboost_groups(booster: Any, rounds: int, splits: _Splits) -> Groups | None:
    """XGBoost's trees in groups; None where these do not add up to the margin."""
    import xgboost as xgb

    names = booster.feature_names
    types = booster.feature_types

    def prepare(X: TableLike) -> Any:
        if not isinstance(X, np.ndarray):
            return xgb.DMatrix(X, enable_categorical=True)
        if not splits.codes:
            return X
        return xgb.DMatrix(X, enable_categorical=True, feature_names=names, feature_types=types)

    def margin(data: Any, first: int, last: int) -> Any:
        if isinstance(data, np.ndarray):
            return booster.inplace_predict(
                data,
                iteration_range=(first, last),
                predict_type="margin",
                validate_features=False,
            )
        return booster.predict(data, output_margin=True, iteration_range=(first, last))

    probe = _some_rows(booster.num_features(), splits.columns, splits.cuts)
    return _in_ranges(margin, rounds, probe, prepare=prepare)


@dataclass(frozen=True, eq=False)
class _Splits:
    """Where trees split."""

    columns: Any  # of every threshold
    cuts: Any  # the thresholds
    codes: set[int]  # columns that are split by level


def _description(booster: Any) -> Any:
    """XGBoost's own description of its trees."""
    return json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]


def _xgboost_splits(booster: Any, rounds: int) -> _Splits | None:
    """Where the trees of so many rounds split; None for boosters without trees."""
    boosted = _description(booster)
    forest = boosted.get("gbtree", boosted).get("model", {})  # inside DART there are trees as well
    if "trees" not in forest:
        return None

    trees = forest["trees"][: int(forest["iteration_indptr"][rounds])]
    is_split = np.concatenate([tree["left_children"] for tree in trees]) >= 0
    kind = np.concatenate([tree["split_type"] for tree in trees])
    columns = np.concatenate([tree["split_indices"] for tree in trees])
    cuts = np.concatenate([tree["split_conditions"] for tree in trees])

    is_number = is_split & (kind == 0)
    types = booster.feature_types or ()
    codes = {column for column, kind_of_column in enumerate(types) if kind_of_column == "c"}
    codes |= set(columns[is_split & (kind != 0)].tolist())
    return _Splits(columns[is_number], cuts[is_number].astype(np.float32), codes)


def _some_rows(width: int, columns: Any, cuts: Any) -> Array:
    """Rows that fall on different sides of thresholds."""
    rows = np.zeros((_PROBED_ROWS, width))
    which = np.arange(len(cuts)) * 7 % _PROBED_ROWS
    rows[which, np.asarray(columns, dtype=np.intp)] = cuts
    return rows


# What follows the margin, by LightGBM's objective.
_LIGHTGBM_LINKS = {
    "binary": "sigmoid",
    "cross_entropy": "sigmoid",
    "multiclass": "softmax",
    "multiclassova": "sigmoid",
    "poisson": "exp",
    "gamma": "exp",
    "tweedie": "exp",
}


def _lightgbm(model: ModelLike) -> Trees | None:
    """A booster of LightGBM, or an estimator around one."""
    import lightgbm as lgb

    booster = model if isinstance(model, lgb.Booster) else model.booster_
    rounds = booster.best_iteration if booster.best_iteration > 0 else booster.current_iteration()
    dump = booster.dump_model(num_iteration=rounds)
    splits = _lightgbm_splits(dump)
    levels = booster.pandas_categorical or ()

    def margin(X: TableLike, first: int, last: int) -> Any:
        return booster.predict(
            X,
            start_iteration=first,
            num_iteration=last - first,
            raw_score=True,
            validate_features=False,
        )

    groups = _in_ranges(
        margin,
        rounds,
        _lightgbm_probe(booster, dump, splits),
        prepare=partial(_codes_of_levels, known=levels),
    )
    if groups is None:
        return None

    objective = dump.get("objective", "").partition(" ")[0]
    names = tuple(booster.feature_name())
    are_numbered = names == tuple(f"Column_{column}" for column in range(len(names)))
    return Trees(
        function=groups.function,
        weight=groups.weight,
        base=groups.base,
        link=_LIGHTGBM_LINKS.get(objective, "identity"),
        steps=_steps(splits.columns, splits.cuts, single=False, below=False),
        about=booster.model_to_string().encode(),
        codes=tuple(sorted(splits.codes)),
        names=None if are_numbered else names,
        frame=bool(levels),
        forest=None if levels else read_lightgbm(dump, _ends(rounds)),
    )


def _lightgbm_splits(dump: Mapping[str, Any]) -> _Splits:
    """Where the trees of a dumped model split."""
    columns: list[int] = []
    cuts: list[float] = []
    codes: set[int] = set()
    nodes = [tree["tree_structure"] for tree in dump["tree_info"]]
    while nodes:
        node = nodes.pop()
        if "split_feature" not in node:
            continue
        nodes += [node["left_child"], node["right_child"]]
        column = int(node["split_feature"])
        if node["decision_type"] != "<=":
            codes.add(column)
            continue

        thresholds = [node["threshold"]]
        if node["missing_type"] == "Zero":
            thresholds += [_LIGHTGBM_ZERO, float(np.nextafter(-_LIGHTGBM_ZERO, -1))]
        cuts += thresholds
        columns += [column] * len(thresholds)
    return _Splits(columns, cuts, codes)


def _lightgbm_probe(booster: Any, dump: Mapping[str, Any], splits: _Splits) -> Any:
    """Rows on different sides of thresholds; a frame where the model knows pandas categories."""
    rows = _some_rows(booster.num_feature(), splits.columns, splits.cuts)
    if not booster.pandas_categorical:
        return rows

    import pandas as pd

    names = booster.feature_name()
    described = dump["feature_infos"]
    categories = [name for name in names if described.get(name, {}).get("values")]
    frame = pd.DataFrame(rows, columns=list(names))
    for name, levels in zip(categories, booster.pandas_categorical, strict=False):
        codes = np.arange(len(frame)) % len(levels)
        frame[name] = pd.Categorical.from_codes(codes, categories=levels)
    return frame


def _codes_of_levels(X: TableLike, known: Sequence[Sequence[Any]]) -> Any:
    """A frame as the matrix that LightGBM makes of it at every call.

    Categories are codes of the levels that it was trained on.
    """
    if not known or isinstance(X, np.ndarray):
        return X

    import pandas as pd

    categories = [isinstance(kind, pd.CategoricalDtype) for kind in X.dtypes]
    has_objects = any(
        kind.kind == "O" and not is_category
        for kind, is_category in zip(X.dtypes, categories, strict=True)
    )
    if has_objects or sum(categories) != len(known):
        return X  # its own error says what is wrong

    levels = iter(known)
    matrix = np.empty(X.shape)
    for position, is_category in enumerate(categories):
        column = X.iloc[:, position]
        if is_category:
            codes = column.cat.set_categories(next(levels)).cat.codes.to_numpy()
            matrix[:, position] = np.where(codes < 0, np.nan, codes)
        else:
            matrix[:, position] = column.to_numpy(dtype=np.float64)
    return matrix


# Larger numbers are no whole ones of 64 bits.
_CODES_BELOW = 2.0**63


def _catboost(model: ModelLike) -> Trees | None:
    """A model of CatBoost."""
    codes = tuple(int(k) for k in model.get_cat_feature_indices())
    names = tuple(str(name) for name in model.feature_names_)
    borders = {int(k): cuts for k, cuts in model.get_borders().items() if cuts}
    columns = np.repeat([*borders], [*map(len, borders.values())])

    probe: Any = _some_rows(len(names), columns, np.concatenate([[], *borders.values()]))
    if codes:
        probe = probe.astype(object)
        probe[:, list(codes)] = "0"

    def prepare(X: TableLike) -> Any:
        from catboost import Pool

        return Pool(_with_codes(X, codes), cat_features=list(codes)) if codes else X

    def margin(data: Any, first: int, last: int) -> Any:
        return model.predict(
            data, prediction_type="RawFormulaVal", ntree_start=first, ntree_end=last
        )

    groups = _in_ranges(margin, int(model.tree_count_), probe, prepare=prepare)
    if groups is None:
        return None

    loss = str(model.get_all_params().get("loss_function", ""))
    are_numbered = names == tuple(map(str, range(len(names))))
    return Trees(
        function=groups.function,
        weight=groups.weight,
        base=groups.base,
        link="exp" if loss.startswith(("Poisson", "Tweedie")) else "",
        steps={
            column: both_sides(np.asarray(cuts, np.float32), single=True, below=False)
            for column, cuts in borders.items()
        },
        about=bytes(model._serialize_model()),
        codes=codes,
        names=None if are_numbered else names,
    )


def _with_codes(X: TableLike, codes: Sequence[int]) -> TableLike:
    """Rows whose codes are whole numbers, as CatBoost reads them from these only."""
    if not isinstance(X, np.ndarray) or X.dtype.kind != "f":
        return X
    numbers = X[:, list(codes)]
    broken = numbers[~(np.abs(numbers) < _CODES_BELOW) | (numbers != np.rint(numbers))]
    if len(broken):
        # Cut off, they would be other codes, of which the model says something else.
        raise ValueError(
            "X must have whole numbers in the columns that CatBoost takes for categories, found "
            f"{float(broken[0]):g}; leave such rows out, or write these columns as text in a frame."
        )
    with_codes = X.astype(object)
    with_codes[:, list(codes)] = numbers.astype(np.int64)
    return with_codes


def _sklearn_trees(trees: Sequence[Any]) -> tuple[dict[int, Array], bytes]:
    """Thresholds of scikit-learn's trees, and their bytes."""
    columns = np.concatenate([tree.feature for tree in trees])
    cuts = np.concatenate([tree.threshold for tree in trees])
    is_split = columns >= 0
    steps = _steps(columns[is_split], cuts[is_split], single=True, below=False)

    about = b"".join(
        part.tobytes() for tree in trees for part in (tree.feature, tree.threshold, tree.value)
    )
    return steps, about


def _forest(model: ModelLike) -> Trees | None:
    """A forest answers with the mean of its trees: numbers, or shares of the classes."""
    trees = [member.tree_ for member in getattr(model, "estimators_", [model])]
    if model.n_outputs_ > 1:
        return None

    n_classes = len(model.classes_) if hasattr(model, "classes_") else 1
    n_outputs = 1 if n_classes == 2 else n_classes
    groups = [trees[first:last] for first, last in pairwise(_ends(len(trees)))]

    def answer(tree: Any, rows: Any) -> Array:
        values = tree.predict(rows).reshape(len(rows), -1)
        if n_classes > 1:
            values = values / values.sum(1, keepdims=True)
        if n_classes == 2:
            values = values[:, 1:]
        return np.asarray(values) / len(trees)

    def function(X: TableLike) -> Array:
        rows = np.ascontiguousarray(X, dtype=np.float32)  # as a forest gives them to its trees
        return np.column_stack([sum(answer(tree, rows) for tree in group) for group in groups])

    steps, about = _sklearn_trees(trees)
    return Trees(
        function=function,
        weight=np.tile(np.eye(n_outputs), (1, len(groups))),
        base=np.zeros(n_outputs),
        link="identity",
        steps=steps,
        about=about,
        names=_names(model),
        forest=read_mean_of_trees(trees, _ends(len(trees)), classes=n_classes),
    )


def _boosting(model: ModelLike) -> Trees:
    """Gradient boosting of scikit-learn."""
    rounds, n_outputs = model.estimators_.shape
    staged = model.staged_decision_function if hasattr(model, "classes_") else model.staged_predict
    groups = _in_stages(staged, n_outputs, rounds)

    names = _names(model)
    zeros = np.zeros((1, model.n_features_in_))
    # What it begins with is in no tree.
    begun = groups.function(zeros if names is None else framed(zeros, names)).tobytes()
    steps, about = _sklearn_trees([member.tree_ for member in model.estimators_.ravel()])
    return Trees(
        function=groups.function,
        weight=groups.weight,
        base=groups.base,
        link="",
        steps=steps,
        about=about + begun,
        names=names,
        frame=names is not None,
    )


def _hist(model: ModelLike) -> Trees:
    """Histogram gradient boosting of scikit-learn."""
    stages = model._predictors
    nodes = np.concatenate([predictor.nodes for stage in stages for predictor in stage])
    order = np.arange(model.n_features_in_)
    categorical = getattr(model, "is_categorical_", None)
    if categorical is not None:  # it puts categories first
        order = np.concatenate([np.flatnonzero(categorical), np.flatnonzero(~categorical)])

    is_classifier = hasattr(model, "classes_")
    has_log_link = not is_classifier and model.loss in ("poisson", "gamma")

    def staged(X: TableLike) -> Iterable[Any]:
        if is_classifier:
            margins: Iterable[Any] = model.staged_decision_function(X)
            return margins
        predictions: Iterable[Any] = model.staged_predict(X)
        return map(np.log, predictions) if has_log_link else predictions

    groups = _in_stages(staged, int(model.n_trees_per_iteration_), model.n_iter_)
    splits = nodes[(nodes["is_leaf"] == 0) & (nodes["is_categorical"] == 0)]
    columns = order[splits["feature_idx"]]
    names = _names(model)
    return Trees(
        function=groups.function,
        weight=groups.weight,
        base=groups.base,
        link="exp" if has_log_link else "",
        steps=_steps(columns, splits["num_threshold"], single=False, below=False),
        about=nodes.tobytes() + np.asarray(model._baseline_prediction).tobytes(),
        codes=() if categorical is None else tuple(np.flatnonzero(categorical).tolist()),
        names=names,
        frame=names is not None,
        forest=read_histogram_boosting(model, _ends(model.n_iter_)),
    )


# What follows the sum of terms, by the link of an explainable boosting machine.
_INTERPRET_LINKS = {"log": "exp", "identity": "identity"}


def _interpret(model: ModelLike) -> Trees | None:
    """An explainable boosting machine: its own terms are the representation."""
    if not hasattr(model, "eval_terms"):
        return None
    link = "" if hasattr(model, "classes_") else _INTERPRET_LINKS.get(model.link_)
    if link is None:
        return None

    steps = {}
    codes = []
    for k, bins in enumerate(model.bins_):
        cuts = [part for part in bins if not isinstance(part, dict)]
        if len(cuts) < len(bins):
            codes.append(k)
        elif cuts:
            steps[k] = both_sides(np.concatenate(cuts), single=False, below=True)

    def terms(X: TableLike) -> Array:
        contributions = np.asarray(model.eval_terms(X), dtype=np.float64)
        return contributions.reshape(len(contributions), -1)

    base = np.atleast_1d(np.asarray(model.intercept_, dtype=np.float64))
    scores = [np.asarray(score, dtype=np.float64) for score in [base, *model.term_scores_]]
    return Trees(
        function=terms,
        weight=np.tile(np.eye(len(base)), (1, len(model.term_scores_))),
        base=base,
        link=link,
        steps=steps,
        about=b"".join(score.tobytes() for score in scores),
        codes=tuple(codes),
        names=_names(model),
    )


def _names(model: ModelLike) -> tuple[str, ...] | None:
    """Names of the columns that a model was fitted on, where it was a frame."""
    names = getattr(model, "feature_names_in_", None)
    return tuple(names) if isinstance(names, np.ndarray) else None
