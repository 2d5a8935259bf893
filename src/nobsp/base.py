"""What explainers have in common."""

from __future__ import annotations

from typing import Any, Self

from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError


class Explainer(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A scikit-learn estimator around a model: `fit` leaves what it found in `_fit`."""

    model: Any
    _fit: Any

    @property
    def _fitted(self) -> Any:
        if not hasattr(self, "_fit"):
            name = type(self).__name__
            raise NotFittedError(f"This {name} is not calibrated yet; call fit first.")
        return self._fit

    def _options(self) -> dict[str, Any]:
        """The parameters, without the model."""
        return {name: value for name, value in self.get_params(deep=False).items() if name != "model"}

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fit")

    def __sklearn_clone__(self) -> Self:
        # scikit-learn would copy a torch model and un-fit a scikit-learn one; the model is not ours to copy.
        return type(self)(self.model, **self._options())
