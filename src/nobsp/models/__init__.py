"""Any model as one torch module of a matrix: adapters for other libraries, imported only when they are needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import narwhals as nw
import numpy as np
import torch
from torch import nn

from nobsp.network.adapted import Adapted, MixedColumnsError, grouping_rows
from nobsp.network.batches import matched

__all__ = ["adapt"]

_OPENED = "nobsp.as_module(model, rows)"


def adapt(model: Any, X: Any = None, *, layout: Mapping[str, Any] | None = None) -> Adapted:
    """Accepts a torch module, a fitted model of another library, or any function of rows.

    Args:
        model: A torch module; a fitted scikit-learn estimator, pipeline or search; a model of XGBoost, LightGBM,
            CatBoost, interpret or skorch; an onnxruntime session; or a function from a float64 array to an array.
        X: The rows it is to be run on, where there are any yet: they tell of names of levels, missing numbers and
            several inputs.
        layout: The layout of an earlier `adapt`, instead of the rows.

    Example:
        >>> import numpy as np
        >>> from sklearn.neural_network import MLPRegressor
        >>> from nobsp.models import adapt
        >>> X = np.random.default_rng(0).normal(size=(50, 2))
        >>> network = MLPRegressor(hidden_layer_sizes=(4,), max_iter=2000, tol=0.1).fit(X, X[:, 0])
        >>> adapt(network).module[2]
        Linear(in_features=4, out_features=1, bias=True)
    """
    room = type(model).__module__.partition(".")[0]
    if room == "skorch":
        if not getattr(model, "initialized_", False):
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(f"model is a {type(model).__name__} that has not been fitted; call its fit first.")
        found = adapt(model.module_, X, layout=layout)
        names = getattr(model, "classes_", None)
        return replace(found, output_names=None if names is None else tuple(map(str, names)))
    if isinstance(model, nn.Module):
        from nobsp.models.inputs import adapt_module

        return adapt_module(model, X, layout)
    if isinstance(model, torch.export.ExportedProgram | str | os.PathLike | Mapping | type):
        raise TypeError(_refusal(model))
    from nobsp.models.coded import Coded, Runs

    coded, whole = None, False
    if layout is not None:
        whole = bool(layout.get("whole"))
        coded = Coded.from_layout(layout) if "levels" in layout else None
    elif X is not None:
        coded = Coded.of(X, missing=True)
    if room == "onnxruntime":
        from nobsp.models.estimators import adapt_session

        return adapt_session(model)
    if room in ("xgboost", "lightgbm", "catboost", "interpret") or hasattr(model, "get_params"):
        from nobsp.models.estimators import adapt_estimator, whole_pipeline

        estimator = adapt_estimator(model, coded)
        if estimator is not None:
            own = estimator.encode is not None and estimator.encode is not coded
            mixed = whole or (own and _mixes(estimator, X))
            return whole_pipeline(model, coded) if mixed else estimator
    if not callable(model):
        raise TypeError(_refusal(model))
    if coded is None:
        return Adapted(Runs(model))
    return Adapted(Runs(lambda x: model(coded.back(x))), encode=coded, layout=coded.layout)


def _mixes(adapted: Adapted, X: Any) -> bool:
    """Whether the preprocessing makes one column of several, so that only the whole can be explained."""
    try:
        frame = nw.from_native(X, eager_only=True, pass_through=True)
        if isinstance(frame, nw.DataFrame):
            X = matched(frame, argument="X", columns=adapted.feature_names).to_native()
        elif not isinstance(X, np.ndarray) or X.ndim != 2:
            return False
        adapted.groups(grouping_rows(X))
    except MixedColumnsError:
        return True
    except (ValueError, TypeError):
        return False  # whatever is wrong with the rows is said where they are read
    return False


def _refusal(model: Any) -> str:
    hint = ""
    if isinstance(model, torch.export.ExportedProgram | str | os.PathLike):
        hint = f" Pass {_OPENED} for a model or file of torch.export, with some rows; load any other first."
    elif isinstance(model, type):
        hint = " That is a class: pass a fitted model of it."
    elif isinstance(model, Mapping):
        hint = " Weights alone do not tell what is computed: load them into the model, model.load_state_dict(...)."
    return (
        "model must be a torch.nn.Module, a fitted model of scikit-learn, XGBoost, LightGBM, CatBoost, interpret or "
        f"skorch, an onnxruntime session, or a function from an array to an array; found {type(model).__name__}.{hint}"
    )
