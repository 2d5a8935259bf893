"""What explainers have in common: they behave as scikit-learn's estimators do, without loading scikit-learn for it."""

from __future__ import annotations

import inspect
from typing import Any, Self


class Explainer:
    """An estimator around a model: parameters are attributes, and `fit` leaves what it found in `_fit`.

    scikit-learn's own base class takes longer to import than a small calibration takes to run.
    """

    model: Any
    _fit: Any

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name; with `deep` also those of the model, as `model__name`, where it has any."""
        names = [name for name in inspect.signature(type(self).__init__).parameters if name != "self"]
        found = {name: getattr(self, name) for name in names}
        if deep and hasattr(self.model, "get_params") and not isinstance(self.model, type):
            found |= {f"model__{name}": value for name, value in self.model.get_params().items()}
        return found

    def set_params(self, **params: Any) -> Self:
        """Changes parameters by name; what was calibrated stays until the next `fit`."""
        known = self.get_params(deep=False)
        for name, value in params.items():
            if name.startswith("model__") and hasattr(self.model, "set_params"):
                self.model.set_params(**{name.removeprefix("model__"): value})
            elif name in known:
                setattr(self, name, value)
            else:
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}; there are {', '.join(known)}.")
        return self

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        usual = inspect.signature(type(self).__init__).parameters
        given = {name: value for name, value in self._options().items() if value is not usual[name].default}
        said = " ".join(f"model={self.model!r}".split())
        for name, value in given.items():
            if not (isinstance(value, str | int | float) and value == usual[name].default):
                said += f", {name}={' '.join(repr(value).split())}"
        said = said if len(said) <= N_CHAR_MAX else f"{said[: N_CHAR_MAX // 2]}...{said[-(N_CHAR_MAX // 2) :]}"
        return f"{type(self).__name__}({said})"

    def _options(self) -> dict[str, Any]:
        """The parameters, without the model."""
        return {name: value for name, value in self.get_params(deep=False).items() if name != "model"}

    @property
    def _fitted(self) -> Any:
        if not hasattr(self, "_fit"):
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(f"This {type(self).__name__} is not calibrated yet; call fit first.")
        return self._fit

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fit")

    def __sklearn_tags__(self) -> Any:
        from sklearn.base import BaseEstimator

        return BaseEstimator().__sklearn_tags__()

    def __sklearn_clone__(self) -> Self:
        # scikit-learn would copy a torch model and un-fit a scikit-learn one; the model is not ours to copy.
        return type(self)(self.model, **self._options())  # type: ignore[call-arg]  # as the subclasses take them
