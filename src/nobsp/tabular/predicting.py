"""Functions as a model: numbers, classes and probabilities, scores, and how scikit-learn sees them.

At the end what the model itself says, whichever way it is handed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nobsp._typing import AnyArray, ArrayLike, FloatArray, ModelLike, TableLike
from nobsp.arguments import array_of, count, join_names, numbers_of, quote, warn_caller, weights_of
from nobsp.tabular.explanation import apply_link
from nobsp.tabular.health import r_squared
from nobsp.tabular.indexing import term_name
from nobsp.tabular.lookup import Level, read_columns, read_tables

if TYPE_CHECKING:
    from nobsp.tabular.functions import Functions

# Links whose outputs become probabilities of classes.
_SOFTMAX = ("softmax", "log_softmax")
# Terms that a message names before the others are counted.
_MOST_NAMED = 5


class MissingTermsWarning(UserWarning):
    """A prediction is without terms that have no table."""


def classes_of(functions: Functions) -> tuple[Level, ...]:
    """The classes that are told apart; empty where numbers are predicted."""
    if functions.classes:
        return functions.classes
    n_outputs = len(functions.output_names)
    if functions.link == "sigmoid" and n_outputs == 1:
        return (0, 1)
    if functions.link in _SOFTMAX and n_outputs > 1:
        return tuple(range(n_outputs))
    return ()


def check_classes(classes: Sequence[object], n_outputs: int) -> tuple[Level, ...]:
    """Classes as files can hold them, or an error where they do not fit the outputs."""
    is_array = hasattr(classes, "__array__")
    is_listed = isinstance(classes, Sequence) and not isinstance(classes, str | bytes)
    if not (is_array or is_listed):
        raise TypeError(f"classes must be a list of classes, found {quote(classes)}.")
    values = np.atleast_1d(np.asarray(classes)).tolist() if is_array else list(classes)
    expected = 2 if n_outputs == 1 else n_outputs
    if len(values) != expected:
        raise ValueError(
            f"classes must be {expected} for {n_outputs} outputs, found {len(values)}."
        )
    for value in values:
        if not isinstance(value, str | bool | int | float):
            raise TypeError(
                f"classes must be texts or numbers, found {type(value).__name__}; write them as "
                "text."
            )
    if len(set(values)) != len(values):
        raise ValueError(f"classes must differ from each other, found {values}.")
    return tuple(values)


def classes_of_model(model: ModelLike, n_outputs: int) -> tuple[Level, ...] | None:
    """Classes that a model names itself; None where it names none that fit its outputs."""
    classes = getattr(model, "classes_", None)
    if classes is None or isinstance(classes, list) or len(np.shape(classes)) != 1:
        return None
    try:
        return check_classes(classes, n_outputs)
    except (TypeError, ValueError):
        return None


def sum_terms(functions: Functions, X: TableLike) -> FloatArray:
    """Base plus all contributions, (rows, outputs)."""
    _warn_of_missing_terms(functions)
    columns, n_rows = read_columns(functions, X)
    values, _ = read_tables(functions, columns, n_rows)
    return np.asarray(functions.base_values + values.sum(1))


def _warn_of_missing_terms(functions: Functions) -> None:
    """Says which terms have no table and are not in the sum."""
    if not functions.left_out:
        return
    names = [term_name(term) for term in functions.left_out]
    warn_caller(
        f"predictions are without {join_names(names, _MOST_NAMED)}: these terms have no table and "
        "need the model. Give every feature one column to have tables of all.",
        MissingTermsWarning,
    )


def predict(functions: Functions, X: TableLike) -> AnyArray:
    """Classes, or numbers after the link: (rows,) for one output, else (rows, outputs)."""
    sums = sum_terms(functions, X)
    classes = classes_of(functions)
    if classes:
        return np.array(classes)[class_positions(functions, sums)]

    numbers = after_link(sums, functions.link)
    return numbers[:, 0] if numbers.shape[1] == 1 else numbers


def decision_limit(functions: Functions) -> float:
    """The second of two classes is decided for above this output."""
    return 0.5 if functions.are_probabilities else 0.0


def class_positions(functions: Functions, sums: FloatArray) -> AnyArray:
    """Position of each row's class, that of the largest output.

    Where there is only one output, it is whether that is above its limit.
    """
    if sums.shape[1] == 1:
        is_second = sums[:, 0] > decision_limit(functions)
        return np.asarray(is_second.astype(np.intp))
    return np.asarray(sums.argmax(1))


def after_link(sums: FloatArray, link: str) -> FloatArray:
    """What the model would say where its outputs were these."""
    if link == "softplus":
        return np.asarray(np.logaddexp(0.0, sums))
    if link in ("sigmoid", "exp"):
        return apply_link(sums, link)
    return sums


def has_probabilities(functions: Functions) -> bool:
    """Whether outputs become probabilities of classes."""
    n_outputs = len(functions.output_names)
    one_of_two = functions.link == "sigmoid" and n_outputs == 1
    one_of_several = functions.link in _SOFTMAX and n_outputs > 1
    return one_of_two or one_of_several or functions.are_probabilities


def predict_proba(functions: Functions, X: TableLike) -> FloatArray:
    """Probability of every class, (rows, classes)."""
    sums = sum_terms(functions, X)
    if functions.are_probabilities:
        return _bounded_probabilities(sums)
    if sums.shape[1] == 1:
        second = apply_link(sums, "sigmoid")
        # Not one less the other: what is close to one would lose its digits.
        first = apply_link(-sums, "sigmoid")
        return np.hstack([first, second])
    return apply_link(sums, "softmax")


def _bounded_probabilities(sums: FloatArray) -> FloatArray:
    """Sums that stand for probabilities: held between zero and one, adding up to one."""
    bounded = np.clip(sums, 0.0, 1.0)
    if bounded.shape[1] == 1:
        return np.hstack([1.0 - bounded, bounded])
    # Where all are zero, none is preferred.
    total = bounded.sum(1, keepdims=True)
    evenly = np.full_like(bounded, 1.0 / bounded.shape[1])
    return np.where(total > 0, bounded / np.where(total > 0, total, 1.0), evenly)


def decide(functions: Functions, X: TableLike) -> FloatArray:
    """Log-odds or scores of the classes, above zero for what is decided for.

    Shape (rows,) for two classes, else (rows, classes).
    """
    sums = sum_terms(functions, X) - decision_limit(functions)
    return sums[:, 0] if sums.shape[1] == 1 else sums


def score(
    functions: Functions, X: TableLike, y: ArrayLike, sample_weight: ArrayLike | None
) -> float:
    """Accuracy of classes, or R² of numbers, against labels."""
    predictions = predict(functions, X)
    labels = array_of(y, name="y")
    if labels.ndim == 0:
        raise ValueError(f"y must be one label per row of X, found {quote(y)}.")
    if len(labels) != len(predictions):
        raise ValueError(f"y has {len(labels)} labels for {len(predictions)} rows of X.")
    if not len(labels):
        raise ValueError("X has no rows, so there is nothing to score.")
    if labels.size != predictions.size:
        raise ValueError(
            f"y must have shape {predictions.shape}, as predictions have, found {labels.shape}."
        )
    labels = labels.reshape(predictions.shape)
    n_rows = len(labels)
    weights = None if sample_weight is None else weights_of(sample_weight, n_rows=n_rows)

    if classes_of(functions):
        return float(np.average(predictions == labels, weights=weights))
    return _weighted_share(predictions, numbers_of(labels, name="y"), weights)


def _weighted_share(
    predictions: FloatArray, labels: FloatArray, weights: FloatArray | None
) -> float:
    """R², the mean over outputs that vary."""
    residuals = (labels - predictions).reshape(len(labels), -1)
    labels = labels.reshape(len(labels), -1)
    is_known = np.isfinite(labels).all(1)
    if not is_known.all():
        row = int(np.flatnonzero(~is_known)[0])
        raise ValueError(f"y has NaN or infinity in row {row}; leave such rows out.")

    shares = r_squared(residuals, labels, weights)
    require_shares(shares, len(labels), argument="y", what="its values")
    return float(np.nanmean(shares))


def require_shares(shares: FloatArray, n_rows: int, *, argument: str, what: str) -> None:
    """An error where no output varies over the rows, so that there is no R² of any."""
    if n_rows < 2:
        raise ValueError(f"{argument} has {count(n_rows, 'row')}; R² needs at least two.")
    if np.isnan(shares).all():
        raise ValueError(
            f"R² needs rows that differ, but {what} ({argument}) are constant: the same in all "
            f"{n_rows:,} rows."
        )


def tags_of(functions: Functions) -> Any:
    """What scikit-learn asks of an estimator before it uses it."""
    from sklearn.base import BaseEstimator
    from sklearn.utils import ClassifierTags, RegressorTags

    tags = BaseEstimator().__sklearn_tags__()
    tags.target_tags.required = False
    tags.target_tags.multi_output = len(functions.output_names) > 1
    tags.target_tags.single_output = not tags.target_tags.multi_output
    tags.input_tags.allow_nan = True
    tags.input_tags.categorical = True
    tags.input_tags.string = True
    if classes_of(functions):
        tags.estimator_type = "classifier"
        tags.classifier_tags = ClassifierTags(multi_class=len(classes_of(functions)) > 2)
        tags.target_tags.multi_output = False
        tags.target_tags.single_output = True
    else:
        tags.estimator_type = "regressor"
        tags.regressor_tags = RegressorTags()
    return tags


# ---------------------------------------------------------------------- the model's own outputs


_BATCH_ROWS = 4096


def outputs_of(functions: Functions, X: TableLike, model: ModelLike) -> FloatArray:
    """What a model says about rows, before its link, (rows, outputs).

    `model` is an explainer, a model of any kind that `NObSP` takes, or the outputs themselves.
    """
    if hasattr(model, "__array__") or isinstance(model, list | tuple):
        outputs = numbers_of(model, name="model")
    elif hasattr(model, "functions_") and hasattr(model, "explain"):
        outputs = np.asarray(model.explain(X).predictions)
    else:
        outputs = _run_model(model, X)

    n_outputs = len(functions.output_names)
    if outputs.ndim == 1:
        outputs = outputs[:, None]
    if outputs.ndim != 2 or outputs.shape[1] != n_outputs:
        raise ValueError(
            f"model has outputs of shape {outputs.shape}, but the functions have {n_outputs} "
            "outputs; pass the model that they were taken from."
        )
    return outputs


def _run_model(model: ModelLike, X: TableLike) -> FloatArray:
    """Outputs of a model that has not been calibrated."""
    from nobsp.network.guest import run_in_ordinary_modes

    return run_in_ordinary_modes(lambda: _run_in_batches(model, X))


def _run_in_batches(model: ModelLike, X: TableLike) -> FloatArray:
    """Outputs of a model that has not been calibrated, batch by batch.

    Whatever modes torch is in stay as they are.
    """
    import torch

    from nobsp.models import adapt
    from nobsp.network.batches import batches_of
    from nobsp.network.readout import PROBE_ROWS, as_model_takes, running_on
    from nobsp.tabular.setting import find_readout

    adapted = adapt(model, X)
    source = batches_of(
        X if adapted.pack is None else adapted.pack(X),
        batch_size=_BATCH_ROWS,
        encode=adapted.encode,
        columns=adapted.feature_names,
        argument="X",
        strict=True,
    )
    batches = [batch.clone() for batch in source]
    readout = find_readout(adapted, batches[0][:PROBE_ROWS], head=None)

    outputs = []
    with running_on(readout, None) as represent:
        for batch in batches:
            representation = represent(as_model_takes(batch, readout))
            outputs.append(readout.logits(representation).cpu().double())
    return np.asarray(torch.cat(outputs).numpy())
