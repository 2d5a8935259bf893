"""What explainers and their results have in common.

Estimators without scikit-learn, and plots as methods.

Needs no other package.
"""

from __future__ import annotations

import inspect
from functools import partial
from importlib import import_module
from typing import Any, NoReturn, Self

from nobsp._typing import ModelLike
from nobsp.elsewhere import PLOTS, NamesFromElsewhere, describe_unknown


class Explainer(NamesFromElsewhere):
    """An estimator around a model.

    Parameters are attributes, and `fit` leaves what it found in `_calibration`.

    scikit-learn's own base class takes longer to import than a small calibration takes to run.
    """

    model: ModelLike
    _calibration: Any

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name.

        With `deep` also those of the model, as `model__name`, where it has any.
        """
        signature = inspect.signature(type(self).__init__)
        names = [name for name in signature.parameters if name != "self"]
        params = {name: getattr(self, name) for name in names}
        if deep and hasattr(self.model, "get_params") and not isinstance(self.model, type):
            for name, value in self.model.get_params().items():
                params[f"model__{name}"] = value
        return params

    def set_params(self, **params: Any) -> Self:
        """Changes parameters by name; what was calibrated stays until the next `fit`."""
        known = self.get_params(deep=False)
        for name, value in params.items():
            if name.startswith("model__") and hasattr(self.model, "set_params"):
                self.model.set_params(**{name.removeprefix("model__"): value})
            elif name in known:
                setattr(self, name, value)
            else:
                raise ValueError(
                    f"{type(self).__name__} has no parameter {name!r}; there are "
                    f"{', '.join(known)}."
                )
        return self

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        arguments = [f"model={_short_repr(self.model)}"]
        for name, value in self._options().items():
            if not _is_default(value, defaults[name].default):
                arguments.append(f"{name}={_on_one_line(repr(value))}")

        text = ", ".join(arguments)
        if len(text) > N_CHAR_MAX:
            half = N_CHAR_MAX // 2
            text = f"{text[:half]}...{text[-half:]}"
        return f"{type(self).__name__}({text})"

    def _options(self) -> dict[str, Any]:
        """The parameters, without the model."""
        return {
            name: value for name, value in self.get_params(deep=False).items() if name != "model"
        }

    @property
    def _fitted(self) -> Any:
        """The calibration, or a NotFittedError where there is none yet."""
        if not hasattr(self, "_calibration"):
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(
                f"This {type(self).__name__} is not calibrated yet; call fit first."
            )
        return self._calibration

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_calibration")

    def __sklearn_tags__(self) -> Any:
        from sklearn.base import BaseEstimator

        return BaseEstimator().__sklearn_tags__()

    def __sklearn_clone__(self) -> Self:
        # scikit-learn would copy a torch model and un-fit a scikit-learn one; the model is not ours
        # to copy.
        # as the subclasses take them
        return type(self)(self.model, **self._options())  # type: ignore[call-arg]


def _on_one_line(text: str) -> str:
    """A text without line breaks and runs of spaces."""
    return " ".join(text.split())


def _short_repr(model: object) -> str:
    """A model as it shows itself, or only its kind where that would be a wall of layers."""
    text = _on_one_line(repr(model))
    return text if len(text) <= _LONGEST_MODEL else f"{type(model).__name__}(...)"


def _is_default(value: object, default: object) -> bool:
    """Whether a parameter was left as it is.

    Compared only where that is sure to give a truth value.
    """
    return value is default or (isinstance(value, str | int | float) and value == default)


# Characters of a model within the text of its explainer.
_LONGEST_MODEL = 60


class Plots:
    """The plots of a result, as methods.

    `result.plot.waterfall(0)` is `nobsp.plots.waterfall(result, 0)`.
    """

    def __init__(self, subject: Any, names: tuple[str, ...]) -> None:
        self._subject = subject
        self._names = names

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._names:
            owner = f"{type(self._subject).__name__}.plot"
            hint = describe_unknown(owner, name, known=list(self._names), elsewhere=PLOTS)
            raise AttributeError(f"{hint} There are {', '.join(sorted(self._names))}.")
        # By name and only when asked for: plots are above the results they draw, and matplotlib may
        # be missing.
        return partial(getattr(import_module("nobsp.plots"), name), self._subject)

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Says which plots there are: none of them is the default."""
        raise TypeError(f"choose a plot: plot.{', plot.'.join(sorted(self._names))}.")

    def __dir__(self) -> list[str]:
        return sorted(self._names)
