"""Tree models as sums of groups of trees: margins, and the thresholds at which their functions step.

What a group of trees answers is one number of the representation and the head adds the groups up, so that corrections
can weigh early and late trees, or some trees of a forest, differently.
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

from nobsp.network.adapted import framed

Array = NDArray[np.float64]
Function = Callable[[Any], Array]

# Groups of trees for every output: more cost time and explain next to nothing more.
GROUPS = 32
# The smallest distance between two numbers of a table: its inverse must be a number.
_LEAST_GAP = 1e-200


@dataclass(frozen=True, eq=False)
class Trees:
    """A tree model."""

    function: (
        Function  # rows, as the library takes them, to what groups of trees answer, (rows, width)
    )
    weight: Array  # which groups belong to which output, (outputs, width)
    base: Array  # what each output has besides the trees
    link: str  # what follows the margin; "" for what follows that of a classifier, where it is one
    steps: Mapping[int, Array]  # by column, numbers on either side of each threshold
    about: bytes  # bytes that are equal for the same model only
    codes: tuple[int, ...] = ()  # columns that hold codes of categories
    names: tuple[str, ...] | None = None  # names of the columns it was fitted on
    frame: bool = False  # whether it takes rows only by these names
    classes: tuple[str, ...] | None = None  # names of classes; of two the second


def read_trees(model: Any) -> Trees | None:
    """A model of XGBoost, LightGBM, CatBoost, scikit-learn or interpret as blocks of trees; None for any other."""
    room = type(model).__module__.partition(".")[0]
    kind = type(model).__name__
    read = {
        "xgboost": _xgboost,
        "lightgbm": _lightgbm,
        "catboost": _catboost,
        "interpret": _interpret,
    }.get(room)
    if room == "sklearn" and kind.startswith(("HistGradientBoosting", "GradientBoosting")):
        read = _boosting if kind.startswith("Gradient") else _hist
    elif room == "sklearn" and kind.startswith(
        ("RandomForest", "ExtraTrees", "DecisionTree", "ExtraTree")
    ):
        read = _forest

    trees = None if read is None else read(model)
    if trees is None:
        return None

    outputs = len(trees.base)
    known = getattr(model, "classes_", ())
    names = tuple(str(name) for name in known) if len(known) else None
    link = "identity" if names is None else "softmax" if outputs > 1 else "sigmoid"
    names = names[1:] if names is not None and outputs == 1 and len(names) == 2 else names
    return replace(trees, link=trees.link or link, classes=names or _quantile_names(model, outputs))


def _quantile_names(model: Any, outputs: int) -> tuple[str, ...] | None:
    """Names of several quantiles, where a model was trained for these."""
    options = model.get_params() if hasattr(model, "get_params") else {}
    levels: Any = options.get("quantile_alpha")
    loss = str(options.get("loss_function") or options.get("objective") or "")
    if loss.startswith("MultiQuantile:alpha="):
        levels = loss.removeprefix("MultiQuantile:alpha=").split(",")
    if levels is None or np.ndim(levels) != 1 or len(levels) != outputs:
        return None
    return tuple(f"quantile {float(level):g}" for level in levels)


def both_sides(thresholds: Iterable[Any], *, single: bool, below: bool) -> Array:
    """Per threshold two neighbouring numbers between which a model goes from one side to the other."""
    found = np.unique(np.array(list(thresholds), dtype=np.float64))
    # libraries write "missing or not" as a threshold that no number passes
    found = found[np.abs(found) < 1e38]
    kind: Any = np.float32 if single else np.float64
    sides = _part(
        lambda x: x.astype(kind) < found if below else x.astype(kind) <= found, found.shape
    )
    return np.unique(sides, axis=0)


def steps_before(
    encode: Callable[[Array], Array], steps: Mapping[int, Array], width: int
) -> dict[int, Array]:
    """Thresholds of columns that were scaled, each by itself and upwards, as numbers of the columns before that."""
    last = np.full((max(map(len, steps.values()), default=0), width), np.inf)
    for k, sides in steps.items():
        last[: len(sides), k] = sides[:, 0]
    if not last.size:
        return {}
    found = _part(lambda x: encode(x) <= last, last.shape)
    own = {k: found[: len(sides), k] for k, sides in steps.items()}
    reached = {
        k: np.unique(sides[np.isfinite(sides).all(axis=1)], axis=0) for k, sides in own.items()
    }
    return {k: sides for k, sides in reached.items() if len(sides)}


def _part(is_below: Callable[[Array], NDArray[np.bool_]], shape: tuple[int, ...]) -> Array:
    """The last number that is below and the first that is not, (*shape, 2), by halving the numbers in their order."""
    low, high = (np.full(shape, end).view(np.int64) for end in (-np.inf, np.inf))
    low = low ^ np.iinfo(np.int64).max  # as whole numbers in the same order, neighbours one apart
    while (high - 1 > low).any():
        middle = (low >> 1) + (high >> 1) + (low & high & 1)  # their sum may be too large
        with np.errstate(over="ignore"):
            below = is_below(_as_floats(middle))
        low = np.where(below, middle, low)
        high = np.where(below, high, middle)
    sides = np.stack([_as_floats(low), _as_floats(high)], axis=-1)
    # around zero numbers lie closer than their inverses reach
    thin = sides[..., 1] - sides[..., 0] < _LEAST_GAP
    sides[thin, 1] = sides[thin, 0] + _LEAST_GAP
    return sides


def _as_floats(order: NDArray[np.int64]) -> Array:
    return (order ^ ((order >> 63) & np.iinfo(np.int64).max)).view(np.float64)


def _steps(columns: Any, cuts: Any, *, single: bool, below: bool) -> dict[int, Array]:
    columns = np.asarray(columns, dtype=np.intp)
    cuts = np.asarray(cuts)
    return {
        int(k): both_sides(cuts[columns == k], single=single, below=below)
        for k in np.unique(columns)
    }


def _ends(rounds: int) -> list[int]:
    """Where groups of rounds end, after 0 where the first begins."""
    return [
        int(end) for end in np.unique(np.linspace(0, rounds, min(rounds, GROUPS) + 1).astype(int))
    ]


def _in_ranges(
    margin: Callable[..., Any],
    rounds: int,
    probe: Any,
    *,
    prepare: Callable[[Any], Any] = lambda X: X,
) -> tuple[Function, Array, Array] | None:
    """Ranges of rounds as groups: their function, the head's weight, and what the library adds to every range.

    `prepare` makes of rows what `margin` takes, once for all ranges: reading a frame takes longer than the trees do.
    """
    ends = list(pairwise(_ends(rounds)))

    def margins(X: Any, ranges: Iterable[tuple[int, int]]) -> list[Array]:
        prepared = prepare(X)
        answers = (margin(prepared, first, last) for first, last in ranges)
        return [np.asarray(answer, dtype=np.float64).reshape(len(X), -1) for answer in answers]

    whole, *parts = margins(probe, [(0, rounds), *ends])
    added = (sum(parts) - whole) / max(len(ends) - 1, 1)
    if np.abs(added - added[0]).max() > 1e-5 * (1 + np.abs(whole).max()):
        return None
    base = added[0]

    def function(X: Any) -> Array:
        return np.column_stack([part - base for part in margins(X, ends)])

    return function, np.tile(np.eye(len(base)), (1, len(ends))), base


def _in_stages(
    staged: Callable[[Any], Iterable[Any]], outputs: int, rounds: int
) -> tuple[Function, Array]:
    """Groups as differences between stages of boosting, the first with the model's base; and the head's weight."""
    ends = _ends(rounds)[1:]

    def function(X: Any) -> Array:
        # Copies: scikit-learn adds every stage to the same memory.
        kept = [
            np.array(stage, np.float64)
            for number, stage in enumerate(staged(X), 1)
            if number in ends
        ]
        kept = [stage.reshape(-1, outputs) for stage in kept]
        return np.column_stack([kept[0], *(after - before for before, after in pairwise(kept))])

    return function, np.tile(np.eye(outputs), (1, len(ends)))


def _xgboost(model: Any) -> Trees | None:
    import xgboost as xgb

    booster = model if isinstance(model, xgb.Booster) else model.get_booster()
    raw = json.loads(booster.save_raw("json"))["learner"]
    boosted = raw["gradient_booster"]
    forest = boosted.get("gbtree", boosted).get("model", {})  # inside DART there are trees as well
    if "trees" not in forest:
        return None
    best = booster.attr("best_iteration")
    rounds = booster.num_boosted_rounds() if best is None else int(best) + 1
    used = int(forest["iteration_indptr"][rounds])
    left, kind, columns, cuts = (
        np.concatenate([tree[part] for tree in forest["trees"][:used]])
        for part in ("left_children", "split_type", "split_indices", "split_conditions")
    )
    codes = {k for k, one in enumerate(booster.feature_types or ()) if one == "c"}
    codes |= set(columns[(left >= 0) & (kind != 0)].tolist())
    numeric = (left >= 0) & (kind == 0)
    columns = columns[numeric]
    cuts = cuts[numeric].astype(np.float32)
    names = booster.feature_names
    types = booster.feature_types

    def prepare(X: Any) -> Any:
        if isinstance(X, np.ndarray) and not codes:
            return X
        described = {}
        if isinstance(X, np.ndarray):
            described = {"feature_names": names, "feature_types": types}
        return xgb.DMatrix(X, enable_categorical=True, **described)

    def margin(data: Any, first: int, last: int) -> Any:
        if isinstance(data, np.ndarray):
            return booster.inplace_predict(
                data,
                iteration_range=(first, last),
                predict_type="margin",
                validate_features=False,
            )
        return booster.predict(data, output_margin=True, iteration_range=(first, last))

    probe = _some_rows(booster.num_features(), columns, cuts)
    found = _in_ranges(margin, rounds, probe, prepare=prepare)
    if found is None:
        return None
    objective = json.loads(booster.save_config())["learner"]["objective"]["name"]
    links = {
        "reg:logistic": "sigmoid",
        "reg:gamma": "exp",
        "reg:tweedie": "exp",
        "binary:hinge": "identity",
    }
    links |= {"binary": "sigmoid", "multi": "softmax", "count": "exp"}
    link = links.get(objective) or links.get(objective.partition(":")[0], "identity")
    steps = _steps(columns, cuts, single=True, below=True)
    known = None if names is None else tuple(names)
    return Trees(*found, link, steps, bytes(booster.save_raw("ubj")), tuple(sorted(codes)), known)


def _some_rows(width: int, columns: Any, cuts: Any) -> Array:
    """Rows that fall on different sides of thresholds."""
    rows = np.zeros((16, width))
    rows[np.arange(len(cuts)) * 7 % 16, np.asarray(columns, dtype=np.intp)] = cuts
    return rows


def _lightgbm(model: Any) -> Trees | None:
    import lightgbm as lgb

    booster = model if isinstance(model, lgb.Booster) else model.booster_
    rounds = booster.best_iteration if booster.best_iteration > 0 else booster.current_iteration()
    dump = booster.dump_model(num_iteration=rounds)
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
        # What is smaller than this may count as missing.
        zero = [1e-35, float(np.nextafter(-1e-35, -1))] if node["missing_type"] == "Zero" else []
        cuts += [node["threshold"], *zero]
        columns += [column] * (1 + len(zero))
    names = tuple(booster.feature_name())
    width = booster.num_feature()
    probe = _some_rows(width, columns, cuts)
    known = booster.pandas_categorical
    if known:
        import pandas as pd

        listed = [
            k for k, name in enumerate(names) if dump["feature_infos"].get(name, {}).get("values")
        ]
        probe = pd.DataFrame(probe, columns=list(names))
        for k, levels in zip(listed, known, strict=False):
            probe[names[k]] = pd.Categorical.from_codes(
                np.arange(len(probe)) % len(levels), categories=levels
            )

    def margin(X: Any, first: int, last: int) -> Any:
        given = {"raw_score": True, "validate_features": False}
        return booster.predict(X, start_iteration=first, num_iteration=last - first, **given)

    found = _in_ranges(margin, rounds, probe, prepare=partial(_codes_of_levels, known=known or ()))
    if found is None:
        return None
    objective = dump.get("objective", "").partition(" ")[0]
    links = {
        "binary": "sigmoid",
        "cross_entropy": "sigmoid",
        "multiclass": "softmax",
        "multiclassova": "sigmoid",
    }
    link = links.get(
        objective, "exp" if objective in ("poisson", "gamma", "tweedie") else "identity"
    )
    steps = _steps(columns, cuts, single=False, below=False)
    about = booster.model_to_string().encode()
    given = None if names == tuple(f"Column_{k}" for k in range(width)) else names
    return Trees(*found, link, steps, about, tuple(sorted(codes)), given, frame=bool(known))


def _codes_of_levels(X: Any, known: Sequence[Sequence[Any]]) -> Any:
    """A frame as the matrix that LightGBM makes of it at every call: codes of the levels it was trained on."""
    if not known or isinstance(X, np.ndarray):
        return X
    import pandas as pd

    categories = [isinstance(kind, pd.CategoricalDtype) for kind in X.dtypes]
    if sum(categories) != len(known) or any(
        kind.kind == "O" and not category
        for kind, category in zip(X.dtypes, categories, strict=True)
    ):
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


def _catboost(model: Any) -> Trees | None:
    codes = tuple(int(k) for k in model.get_cat_feature_indices())
    names = tuple(str(name) for name in model.feature_names_)
    borders = {int(k): cuts for k, cuts in model.get_borders().items() if cuts}
    columns = np.repeat([*borders], [*map(len, borders.values())])
    probe: Any = _some_rows(len(names), columns, np.concatenate([[], *borders.values()]))
    if codes:
        probe = probe.astype(object)
        probe[:, list(codes)] = "0"

    def prepare(X: Any) -> Any:
        from catboost import Pool

        return Pool(X, cat_features=list(codes)) if codes else X

    def margin(data: Any, first: int, last: int) -> Any:
        return model.predict(
            data, prediction_type="RawFormulaVal", ntree_start=first, ntree_end=last
        )

    found = _in_ranges(margin, int(model.tree_count_), probe, prepare=prepare)
    if found is None:
        return None
    link = (
        "exp"
        if str(model.get_all_params().get("loss_function", "")).startswith(("Poisson", "Tweedie"))
        else ""
    )
    steps = {
        k: both_sides(np.asarray(cuts, np.float32), single=True, below=False)
        for k, cuts in borders.items()
    }
    given = names if names != tuple(map(str, range(len(names)))) else None
    return Trees(*found, link, steps, bytes(model._serialize_model()), codes, given)


def _sklearn_trees(trees: Sequence[Any]) -> tuple[dict[int, Array], bytes]:
    """Thresholds of scikit-learn's trees, and their bytes."""
    columns, cuts = (
        np.concatenate([getattr(tree, name) for tree in trees]) for name in ("feature", "threshold")
    )
    about = b"".join(
        part.tobytes() for tree in trees for part in (tree.feature, tree.threshold, tree.value)
    )
    return _steps(columns[columns >= 0], cuts[columns >= 0], single=True, below=False), about


def _forest(model: Any) -> Trees | None:
    """A forest answers with the mean of its trees: numbers, or shares of the classes."""
    trees = [member.tree_ for member in getattr(model, "estimators_", [model])]
    if model.n_outputs_ > 1:
        return None
    count = len(model.classes_) if hasattr(model, "classes_") else 1
    outputs = 1 if count == 2 else count

    groups = [trees[first:last] for first, last in pairwise(_ends(len(trees)))]

    def answer(tree: Any, rows: Any) -> Array:
        values = tree.predict(rows).reshape(len(rows), -1)
        values = values / values.sum(1, keepdims=True) if count > 1 else values
        return np.asarray(values[:, 1:] if count == 2 else values) / len(trees)

    def function(X: Any) -> Array:
        rows = np.ascontiguousarray(X, dtype=np.float32)  # as a forest gives them to its trees
        return np.column_stack([sum(answer(tree, rows) for tree in group) for group in groups])

    weight = np.tile(np.eye(outputs), (1, len(groups)))
    base = np.zeros(outputs)
    return Trees(function, weight, base, "identity", *_sklearn_trees(trees), names=_names(model))


def _boosting(model: Any) -> Trees:
    rounds, outputs = model.estimators_.shape
    staged = model.staged_decision_function if hasattr(model, "classes_") else model.staged_predict
    function, weight = _in_stages(staged, outputs, rounds)
    names = _names(model)
    zeros = np.zeros((1, model.n_features_in_))
    # what it begins with is in no tree
    begun = function(zeros if names is None else framed(zeros, names)).tobytes()
    steps, about = _sklearn_trees([member.tree_ for member in model.estimators_.ravel()])
    return Trees(
        function, weight, np.zeros(outputs), "", steps, about + begun, (), names, names is not None
    )


def _hist(model: Any) -> Trees:
    nodes = [predictor.nodes for stage in model._predictors for predictor in stage]
    order = np.arange(model.n_features_in_)
    categorical = getattr(model, "is_categorical_", None)
    if categorical is not None:  # it puts categories first
        order = np.concatenate([np.flatnonzero(categorical), np.flatnonzero(~categorical)])
    every = np.concatenate(nodes)
    split = every[(every["is_leaf"] == 0) & (every["is_categorical"] == 0)]
    classifier = hasattr(model, "classes_")
    log_scale = not classifier and model.loss in ("poisson", "gamma")

    def staged(X: Any) -> Iterable[Any]:
        stages: Iterable[Any] = (
            model.staged_decision_function(X) if classifier else model.staged_predict(X)
        )
        return (np.log(stage) for stage in stages) if log_scale else stages

    outputs = int(model.n_trees_per_iteration_)
    steps = _steps(order[split["feature_idx"]], split["num_threshold"], single=False, below=False)
    names = _names(model)
    about = every.tobytes() + np.asarray(model._baseline_prediction).tobytes()
    codes = () if categorical is None else tuple(np.flatnonzero(categorical).tolist())
    grouped = _in_stages(staged, outputs, model.n_iter_)
    link = "exp" if log_scale else ""
    return Trees(*grouped, np.zeros(outputs), link, steps, about, codes, names, names is not None)


def _interpret(model: Any) -> Trees | None:
    """An explainable boosting machine: its own terms are the representation."""
    if not hasattr(model, "eval_terms"):
        return None
    base = np.atleast_1d(np.asarray(model.intercept_, dtype=np.float64))
    outputs = len(base)
    steps = {}
    codes = []
    for k, bins in enumerate(model.bins_):
        cuts = [part for part in bins if not isinstance(part, dict)]
        if len(cuts) < len(bins):
            codes.append(k)
        elif cuts:
            steps[k] = both_sides(np.concatenate(cuts), single=False, below=True)

    def terms(X: Any) -> Array:
        found = np.asarray(model.eval_terms(X), dtype=np.float64)
        return found.reshape(len(found), -1)

    link = (
        ""
        if hasattr(model, "classes_")
        else {"log": "exp", "identity": "identity"}.get(model.link_)
    )
    if link is None:
        return None
    weight = np.tile(np.eye(outputs), (1, len(model.term_scores_)))
    about = b"".join(
        np.asarray(score, dtype=np.float64).tobytes() for score in [base, *model.term_scores_]
    )
    return Trees(terms, weight, base, link, steps, about, tuple(codes), _names(model))


def _names(model: Any) -> tuple[str, ...] | None:
    names = getattr(model, "feature_names_in_", None)
    return tuple(names) if isinstance(names, np.ndarray) else None
