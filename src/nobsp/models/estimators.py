"""Fitted scikit-learn models: networks as torch modules, others as the function they compute."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from nobsp._typing import ModelLike
from nobsp.models.coded import Array, Coded, Runs, linear, log_odds, numbers_of
from nobsp.models.scores import ClassScores
from nobsp.models.trees import Trees, read_trees, steps_before
from nobsp.network.adapted import Adapted, Recipe, encoder_of, framed

# They scale every column by itself.
_SCALERS = {"StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler"}
# Stands for a method that generalised linear models do not have: the sum before their link.
LINEAR_PREDICTOR = "linear predictor"
_ACTIVATIONS = {"identity": nn.Identity, "logistic": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU}


def adapt_estimator(model: ModelLike, coded: Coded | None) -> Adapted | None:
    """A fitted estimator of scikit-learn, or of a library that works alike; None for others."""
    from sklearn import config_context
    from sklearn.utils.validation import check_is_fitted

    if hasattr(model, "best_estimator_"):  # a search: the model it found
        return adapt_estimator(model.best_estimator_, coded)
    if hasattr(model, "regressor_") and hasattr(model, "transformer_"):
        return _transformed_target(model, coded)

    preprocessing, last = _split_pipeline(model)
    if type(last).__module__.startswith("sklearn."):
        check_is_fitted(last)
    adapted = _adapt_last_step(last, None if preprocessing else coded)
    if adapted is None:
        return None
    adapted = replace(adapted, two_classes=_two_classes(last))
    if not preprocessing:
        return replace(adapted, feature_names=_names_of(model) or adapted.feature_names)

    if type(last).__module__.startswith("xgboost") and _gives_sparse(preprocessing[-1][-1]):
        # What a sparse matrix does not hold is missing to XGBoost: rows written out would be other
        # rows.
        return whole_pipeline(model, coded)

    encode = encoder_of(preprocessing)
    # Codes of the last step are of columns that the caller does not see, and so are thresholds
    # unless scaled only.
    steps: dict[int, Array] = {}
    kinds = {type(step).__name__ for part in preprocessing for step in part}
    if kinds <= _SCALERS:
        with config_context(assume_finite=True):  # the largest numbers may be scaled to infinity
            steps = steps_before(encode, adapted.steps, preprocessing[0].n_features_in_)
    return replace(
        adapted,
        encode=encode,
        steps=steps,
        codes=(),
        layout=None,
        feature_names=_names_of(model),
    )


def _two_classes(model: ModelLike) -> tuple[Any, ...]:
    """Both classes of a classifier that knows two; none of any other model."""
    classes = getattr(model, "classes_", None)
    if not isinstance(classes, np.ndarray) or classes.shape != (2,):
        return ()
    return tuple(classes.tolist())


def _gives_sparse(step: Any) -> bool:
    """Whether a fitted preprocessing step gives sparse matrices."""
    # A column transformer decides while it is fitted, encoders are told.
    return bool(getattr(step, "sparse_output_", getattr(step, "sparse_output", False)))


def _split_pipeline(model: ModelLike) -> tuple[list[Any], Any]:
    """Preprocessing steps, pipelines inside pipelines opened, and the estimator that ends them."""
    from sklearn.pipeline import Pipeline

    last = model
    steps = []
    while isinstance(last, Pipeline):
        steps.append(last[:-1])
        last = last[-1]
    if hasattr(last, "best_estimator_"):
        last = last.best_estimator_
    return [step for step in steps if len(step)], last


def _adapt_last_step(model: ModelLike, coded: Coded | None) -> Adapted | None:
    """An estimator without preprocessing, as a network, trees, or a function.

    None for what does not predict.
    """
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    if isinstance(model, MLPClassifier | MLPRegressor):
        link = {"logistic": "sigmoid"}.get(model.out_activation_, model.out_activation_)
        names = _output_names(model, single=model.n_outputs_ == 1)
        network = Adapted(_module_of(model), output_names=names, link=link)
        # Marks of missing numbers would be columns that it was not trained on, and it takes none.
        return _with_coding(network, coded if coded is not None and coded.levels else None)

    trees = read_trees(model)
    if trees is not None:
        return _adapt_trees(model, trees, coded)
    return _adapt_function(model, coded) if hasattr(model, "predict") else None


def whole_pipeline(model: ModelLike, coded: Coded | None) -> Adapted:
    """A pipeline as one function of the caller's columns.

    It is for pipelines whose preprocessing mixes columns.
    """
    # Its preprocessing may know nothing between the whole numbers that it was fitted on.
    adapted = _adapt_function(model, coded, takes_numbers=False)
    layout = {"whole": True, **(adapted.layout or {})}
    return replace(adapted, feature_names=_names_of(model), layout=layout)


def _with_coding(adapted: Adapted, coded: Coded | None) -> Adapted:
    """The same for rows that become a matrix first."""
    if coded is None:
        return adapted
    return replace(adapted, encode=coded, layout=coded.layout)


def _rows_for(coded: Coded | None, names: Sequence[str] | None) -> Callable[[Array], Any]:
    """What turns a matrix into rows as the model was fitted on: a frame where these had names."""
    if coded is not None:
        return coded.back
    if names is None:
        return lambda matrix: matrix
    return lambda matrix: framed(matrix, names)


def _adapt_trees(model: ModelLike, trees: Trees, coded: Coded | None) -> Adapted:
    """A tree model as groups of trees before a head that adds them up."""
    function = Recipe(_tree_function, model, coded)
    module = Runs(
        function, weight=trees.weight, bias=trees.base, about=trees.about, takes_numbers=True
    )
    adapted = Adapted(
        module,
        feature_names=trees.names,
        output_names=trees.classes,
        link=trees.link,
        steps=trees.steps,
        codes=trees.codes if coded is None else (),
        forest=trees.forest if coded is None else None,  # else numbers become levels first
    )
    return _with_coding(adapted, coded)


def _tree_function(model: ModelLike, coded: Coded | None) -> Callable[[Array], Any]:
    """What the trees of a model give for a matrix."""
    trees = read_trees(model)
    assert trees is not None
    rows = _rows_for(coded, trees.names if trees.frame else None)
    function = trees.function
    return lambda x: function(rows(x))


def _ask(model: ModelLike, method: str, coded: Coded | None) -> Callable[[Array], Any]:
    """What a method of a model gives for a matrix; of probabilities their log-odds."""
    rows = _rows_for(coded, _names_of(model))
    if method == LINEAR_PREDICTOR:
        return lambda x: _linear_predictor(model, rows(x))
    if method == "predict_proba":
        return ClassScores(model, rows)
    answer = getattr(model, method)
    return lambda x: answer(rows(x))


def _adapt_function(
    model: ModelLike, coded: Coded | None, *, takes_numbers: bool = True
) -> Adapted:
    """Margins where they are log-odds, log-odds of probabilities, or predictions."""
    names = _output_names(model, single=len(getattr(model, "classes_", ())) == 2)
    link = "identity"
    method = "predict"
    if names is not None and hasattr(model, "predict_proba"):
        link = "sigmoid" if len(names) == 1 else "softmax"
        method = "predict_proba"
    elif names is not None and hasattr(model, "decision_function"):
        method = "decision_function"
    elif names is not None:
        raise TypeError(
            f"model is a {type(model).__name__}, which only names classes; pass one with "
            "predict_proba or decision_function, or a function that returns numbers."
        )
    elif _has_log_link(_last_step(model)):
        link = "exp"
        method = LINEAR_PREDICTOR
    elif hasattr(model, "score_samples"):
        method = "score_samples"

    function = Recipe(_ask, model, method, coded)
    module = Runs(function, about=_bytes_of(model), takes_numbers=takes_numbers)
    return _with_coding(Adapted(module, output_names=names, link=link), coded)


def _last_step(model: ModelLike) -> Any:
    """The estimator that ends a pipeline, or the model itself."""
    while hasattr(model, "steps"):
        model = model.steps[-1][1]
    return model


def _has_log_link(model: ModelLike) -> bool:
    """Whether a model is a generalised linear one of scikit-learn with a log link.

    The mean is then the exponential of a sum.
    """
    if not type(model).__module__.startswith("sklearn.linear_model"):
        return False
    kind = type(model).__name__
    if kind == "TweedieRegressor":
        return bool(model.link == "log" or (model.link == "auto" and model.power > 0))
    return kind in ("PoissonRegressor", "GammaRegressor")


def _linear_predictor(model: ModelLike, rows: Any) -> Array:
    """What a generalised linear model has before its link, also at the end of a pipeline."""
    while hasattr(model, "steps"):
        rows = model[:-1].transform(rows)
        model = model[-1]
    dense = rows.toarray() if hasattr(rows, "toarray") else rows
    predictor: Array = np.asarray(dense, dtype=np.float64) @ model.coef_ + model.intercept_
    return predictor


def _transformed_target(model: ModelLike, coded: Coded | None) -> Adapted | None:
    """A regressor of a transformed target.

    It is in the target's own units where these are a linear change away.
    """
    inner = adapt_estimator(model.regressor_, coded)
    if inner is None:
        return None

    grid = np.linspace(-1.0, 1.0, 9)
    inverse = np.asarray(model.transformer_.inverse_transform(grid[:, None]), dtype=np.float64)
    back = inverse.reshape(len(grid), -1)[:, 0]
    slope = (back[-1] - back[0]) / 2
    level = (back[-1] + back[0]) / 2
    if np.abs(level + slope * grid - back).max() <= 1e-9 * (1 + np.abs(back).max()):
        rescale = linear(np.array([[slope]]), np.array([level]))
        return replace(inner, module=nn.Sequential(inner.module, rescale))

    is_exponential = np.allclose(back, np.exp(grid), rtol=1e-9, atol=1e-12)
    if is_exponential or np.allclose(back, np.expm1(grid)):
        return replace(inner, link="exp")
    return whole_pipeline(model, coded)


def _module_of(network: Any) -> nn.Sequential:
    """The same network in torch, float64, without its output activation: it returns logits."""
    layers: list[nn.Module] = []
    for weight, bias in zip(network.coefs_, network.intercepts_, strict=True):
        layers.append(linear(np.asarray(weight, np.float64).T, np.asarray(bias)))
        layers.append(_ACTIVATIONS[network.activation]())
    return nn.Sequential(*layers[:-1]).eval()


def _bytes_of(model: ModelLike) -> bytes:
    """What differs for another model, where it can be written down; nothing otherwise."""
    import joblib

    try:
        return str(joblib.hash(model)).encode()
    except (pickle.PicklingError, TypeError, AttributeError):
        return b""


def _names_of(model: ModelLike) -> tuple[str, ...] | None:
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else tuple(str(name) for name in names)


def _output_names(model: ModelLike, *, single: bool) -> tuple[str, ...] | None:
    """Names of the classes; only the second where there are two with a single output."""
    classes = getattr(model, "classes_", None)
    if classes is None or isinstance(classes, list):
        return None
    return tuple(str(name) for name in classes)[1 if single else 0 :]


_KINDS = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}


def adapt_session(session: Any) -> Adapted:
    """An onnxruntime session with one matrix as input.

    It gives the session's output, or log-odds where that has probabilities.
    """
    inputs = session.get_inputs()
    dtype = _KINDS.get(inputs[0].type)
    outputs = session.get_outputs()
    floats = [output for output in outputs if output.type in ("tensor(float)", "tensor(double)")]
    if len(inputs) != 1 or dtype is None or not floats:
        described = [(part.name, part.type) for part in inputs]
        raise TypeError(
            f"model is an onnxruntime session with the inputs {described} and {len(floats)} "
            "outputs of floats; pass a "
            "function of one matrix that runs it, such as lambda X: session.run(None, {...})[0]."
        )

    probabilities = [output for output in floats if "prob" in output.name.lower()]
    chosen = probabilities[0] if probabilities else floats[0]
    n_classes = 1
    if probabilities and isinstance(chosen.shape[-1], int):
        n_classes = chosen.shape[-1]

    def run(x: Array) -> Array:
        answers = session.run([chosen.name], {inputs[0].name: x.astype(dtype)})
        numbers = numbers_of(answers[0], len(x))
        return log_odds(numbers) if n_classes > 1 else numbers

    signature = [(part.name, part.type, part.shape) for part in [*inputs, *outputs]]
    links = {1: None, 2: "sigmoid"}
    link = links.get(n_classes, "softmax")
    takes_numbers = dtype is not np.int64
    module = Runs(run, about=repr(signature).encode(), takes_numbers=takes_numbers)
    return Adapted(module, link=link)
