"""Columns that are enough for a model, as a step of a pipeline."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from nobsp._typing import AnyArray, ArrayLike, ModelLike, TableLike
from nobsp.network.guest import keeps_torch_modes
from nobsp.tabular import NObSP


class Selector(SelectorMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Keeps the fewest columns that still explain a model; see `NObSP.fewest_features`.

    The columns kept take over what the others explained.

    Args:
        model: A fitted model of any kind that `NObSP` takes, or an unfitted estimator of
            scikit-learn, which is fitted on the rows.
        share: Share of what all features explain on held-out rows that must be left.
        max_forward_rows: As for `NObSP`.

    Attributes:
        fewest_: What was found, a `FewestFeatures`: the order in which features went, and what each
            number explains.
        support_: Which columns are kept.

    Example:
        >>> import numpy as np, nobsp
        >>> from sklearn.linear_model import LinearRegression
        >>> X = np.random.default_rng(0).normal(size=(300, 3))
        >>> nobsp.Selector(LinearRegression()).fit_transform(X, X[:, 1]).shape
        (300, 1)
    """

    def __init__(
        self, model: ModelLike, *, share: float = 0.98, max_forward_rows: int | None = None
    ) -> None:
        self.model = model
        self.share = share
        self.max_forward_rows = max_forward_rows

    @keeps_torch_modes
    def fit(self, X: TableLike, y: ArrayLike | None = None) -> Self:
        """Finds the columns.

        Args:
            X: Rows.
            y: Labels that an unfitted model is fitted on; not looked at for a fitted one.
        """
        validate_data(self, X, skip_check_array=True)
        model = self.model
        if hasattr(model, "fit"):
            try:
                check_is_fitted(model)
            except (NotFittedError, TypeError):
                model = clone(model).fit(X, y)
        self.model_ = model
        explainer = NObSP(model, max_forward_rows=self.max_forward_rows).fit(X)
        self.fewest_ = explainer.fewest_features(self.share, X=X)

        chosen = set(self.fewest_.features)
        support = np.zeros(self.n_features_in_, dtype=bool)
        for feature in explainer.functions_.features:
            if feature.name in chosen:
                support[list(feature.columns)] = True
        self.support_ = support
        return self

    def __sklearn_tags__(self) -> Any:
        """As scikit-learn's, with missing numbers allowed.

        Whether they can be read is for the model to say.
        """
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _get_support_mask(self) -> AnyArray:
        check_is_fitted(self)
        return self.support_
