"""Torch modules as they are, and fitted scikit-learn networks as torch modules that compute the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from nobsp.network.preprocessing import encoder_of, groups_by_running
from nobsp.network.tables import Encode

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "logistic": nn.Sigmoid,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
}
_OPENED = "nobsp.network.exported.opened(model, rows)"


@dataclass(frozen=True, eq=False)
class Adapted:
    """A model ready to be run, with what is known of its inputs and outputs.

    Attributes:
        module: The torch module; for scikit-learn networks it is float64 and returns logits.
        encode: The preprocessing that comes before the network: rows of the caller's kind (frame or array) to
            a float64 matrix. None where the module takes the rows as they are.
        feature_names: Names of the caller's columns, where the model was fitted on a frame.
        output_names: Class names, where the model has any; of two classes the second, whose logit it is.
        link: What the scikit-learn network applies to its logits: "identity", "softmax", "sigmoid" or "exp".
            None for torch modules, whose link `Readout` finds.
    """

    module: nn.Module
    encode: Encode | None = None
    feature_names: tuple[str, ...] | None = None
    output_names: tuple[str, ...] | None = None
    link: str | None = None

    def groups(self, X: Any) -> dict[str, list[int]]:
        """Which encoded columns each of the caller's columns goes into, found by running the preprocessing.

        One column at a time is shuffled in the rows of `X`; the encoded columns that change are its own.

        Args:
            X: Rows to run on, frame or array, in which every level that matters occurs. Unnamed columns are
                called "x0", "x1", ...

        Returns:
            Encoded columns by the caller's column, in the caller's order. Columns that change nothing
            (dropped or constant ones) are left out, and encoded columns that never change belong to nobody.

        Raises:
            ValueError: If the preprocessing mixes several columns into one.
        """
        return groups_by_running(X, self.encode, self.feature_names)


def adapt(model: Any) -> Adapted:
    """Accept a torch module, a fitted scikit-learn MLP, or a Pipeline that ends in one.

    Args:
        model: `nn.Module`, `MLPClassifier`, `MLPRegressor`, or `Pipeline`.

    Raises:
        TypeError: If `model` is something else.
        sklearn.exceptions.NotFittedError: If it has not been fitted.

    Example:
        >>> import numpy as np
        >>> from sklearn.neural_network import MLPRegressor
        >>> from nobsp.network import adapt
        >>> X = np.random.default_rng(0).normal(size=(50, 2))
        >>> network = MLPRegressor(hidden_layer_sizes=(4,), max_iter=2000, tol=0.1).fit(X, X[:, 0])
        >>> adapt(network).module
        Sequential(
          (0): Linear(in_features=2, out_features=4, bias=True)
          (1): ReLU()
          (2): Linear(in_features=4, out_features=1, bias=True)
        )
    """
    if isinstance(model, nn.Module):
        return Adapted(model)
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import Pipeline
    from sklearn.utils.validation import check_is_fitted

    network, steps = model, []
    while isinstance(network, Pipeline):
        steps.append(network[:-1])
        network = network[-1]
    if not isinstance(network, MLPClassifier | MLPRegressor):
        raise TypeError(_refusal(model, network))
    check_is_fitted(network)
    preprocessing = [step for step in steps if len(step)]
    return Adapted(
        module=module_of(network),
        encode=encoder_of(preprocessing) if preprocessing else None,
        feature_names=_names_of(model),
        output_names=_output_names(network),
        link={"logistic": "sigmoid"}.get(network.out_activation_, network.out_activation_),
    )


def module_of(network: Any) -> nn.Sequential:
    """The same network in torch, float64, without its output activation: it returns logits."""
    layers: list[nn.Module] = []
    for weight, bias in zip(network.coefs_, network.intercepts_, strict=True):
        inputs, outputs = weight.shape
        # Without initial values: drawing them would move the caller's random number generator.
        linear = nn.Linear(inputs, outputs, dtype=torch.float64, device="meta").to_empty(device="cpu")
        with torch.no_grad():
            linear.weight.copy_(torch.tensor(np.asarray(weight, dtype=np.float64).T.copy()))
            linear.bias.copy_(torch.tensor(np.asarray(bias, dtype=np.float64)))
        layers += [linear, _ACTIVATIONS[network.activation]()]
    return nn.Sequential(*layers[:-1]).eval()


def _names_of(model: Any) -> tuple[str, ...] | None:
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else tuple(str(name) for name in names)


def _output_names(network: Any) -> tuple[str, ...] | None:
    classes = getattr(network, "classes_", None)
    if classes is None:
        return None
    names = tuple(str(name) for name in classes)
    return names[1:] if network.n_outputs_ == 1 else names


def _refusal(model: Any, last: Any) -> str:
    found = type(model).__name__
    if last is not model:
        found += f" ending in {type(last).__name__}"
    hint = ""
    if hasattr(model, "best_estimator_"):
        hint = " Pass model.best_estimator_."
    elif hasattr(model, "regressor_"):
        hint = " Pass model.regressor_; its output is the transformed target."
    elif isinstance(model, torch.export.ExportedProgram):
        hint = f" Pass {_OPENED}, with some rows as the model takes them."
    elif isinstance(model, str | os.PathLike):
        hint = f" Pass {_OPENED} for a file of torch.export; load any other first."
    elif isinstance(model, Mapping):
        hint = " Weights alone do not tell what is computed: load them into the model, model.load_state_dict(...)."
    return (
        "model must be a torch.nn.Module, a fitted scikit-learn MLPClassifier or MLPRegressor, or a Pipeline "
        f"ending in one of these; found {found}.{hint}"
    )
