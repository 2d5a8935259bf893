"""A teacher's functions as a model: fitted, scored and used as any of scikit-learn's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    RegressorMixin,
    clone,
    is_classifier,
    is_regressor,
)
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import train_test_split
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from nobsp._typing import AnyArray, ArrayLike, FloatArray, ModelLike, TableLike
from nobsp.arguments import require_flag, require_whole_number
from nobsp.estimators.correcting import correct
from nobsp.frames import frame_of, take_rows
from nobsp.network.guest import keeps_torch_modes
from nobsp.tabular import Functions, NObSP

# Share of the rows that a teacher of our own does not see, so that labels there can correct its
# functions.
_UNSEEN_BY_TEACHER = 0.25
# Fewer rows than this are all for the teacher.
_FEWEST_ROWS = 100
# Most rows sent through the teacher to calibrate.
_FORWARD_ROWS = 200_000


class _Distiller(ABC, BaseEstimator):  # type: ignore[misc]
    """What both have in common."""

    def __init__(
        self,
        teacher: ModelLike = None,
        *,
        correct: bool = False,
        interactions: int | Literal["auto"] | Sequence[Sequence[str]] = "auto",
        max_forward_rows: int | None = _FORWARD_ROWS,
        random_state: int | None = 0,
    ) -> None:
        self.teacher = teacher
        self.correct = correct
        self.interactions = interactions
        self.max_forward_rows = max_forward_rows
        self.random_state = random_state

    def _fit(self, X: TableLike, y: AnyArray, teacher: ModelLike) -> Self:
        """Fits a teacher where there is none, takes its functions, and corrects them if asked."""
        require_flag("correct", self.correct)
        if self.random_state is not None:
            require_whole_number("random_state", self.random_state, least=0)
        rows = X
        labels = y
        if teacher is None:
            teacher, rows, labels = self._teach(X, y)
        self.teacher_ = teacher
        self.explainer_ = NObSP(
            teacher, interactions=self.interactions, max_forward_rows=self.max_forward_rows
        ).fit(X)
        functions = self._as_model(self.explainer_.compile(), y)
        self.correction_ = None
        if self.correct:
            seed = 0 if self.random_state is None else int(self.random_state)
            functions, self.correction_ = correct(functions, rows, labels, seed=seed)
        self.functions_: Functions = functions
        return self

    def _teach(self, X: TableLike, y: AnyArray) -> tuple[ModelLike, TableLike, AnyArray]:
        """A teacher fitted here, and rows for corrections.

        These are rows that the teacher did not see, where there are enough; otherwise all of them.
        """
        teacher = self._default_teacher() if self.teacher is None else clone(self.teacher)
        if not self.correct or len(y) < _FEWEST_ROWS:
            return teacher.fit(X, y), X, y

        seen, unseen = train_test_split(
            np.arange(len(y)), test_size=_UNSEEN_BY_TEACHER, random_state=self.random_state
        )
        teacher.fit(take_rows(X, seen), y[seen])
        return teacher, take_rows(X, unseen), y[unseen]

    def _given_teacher(self, teacher: ModelLike) -> ModelLike:
        """A fitted teacher, passed to `fit` or the constructor; None where one is to be fitted."""
        self._refuse_other_kind(self.teacher if teacher is None else teacher)
        if teacher is not None or self.teacher is None:
            return teacher
        if not hasattr(self.teacher, "fit"):  # a network or a function
            return self.teacher
        try:
            check_is_fitted(self.teacher)
        except (NotFittedError, TypeError):
            return None
        return self.teacher

    def _refuse_other_kind(self, teacher: ModelLike) -> None:
        """An error for a regressor as teacher of classes, or a classifier as that of numbers."""
        if not hasattr(teacher, "__sklearn_tags__"):  # a network or a function may be either
            return
        if is_classifier(self) and is_regressor(teacher):
            raise ValueError(
                f"teacher is a regressor, {type(teacher).__name__}: its numbers are no log-odds of "
                "classes; pass a classifier, or use NObSPRegressor."
            )
        if is_regressor(self) and is_classifier(teacher):
            raise ValueError(
                f"teacher is a classifier, {type(teacher).__name__}: it predicts classes and no "
                "numbers; pass a regressor, or use NObSPClassifier."
            )

    def _table(self, X: TableLike, *, reset: bool) -> TableLike:
        """Rows as they are passed on: checked numbers, or a frame with names in it as it is."""
        frame = frame_of(X)
        holds_names = frame is not None and not all(
            dtype.is_numeric() or str(dtype) == "Boolean" for dtype in frame.schema.values()
        )
        if holds_names:
            validate_data(self, X, reset=reset, skip_check_array=True)
            if len(X) < (2 if reset else 1):
                raise ValueError(f"Found a table with {len(X)} sample(s); two are needed to fit.")
            return X
        array = validate_data(self, X, reset=reset, ensure_min_samples=2 if reset else 1)
        if frame is not None and hasattr(self, "feature_names_in_"):
            return X
        return array

    @abstractmethod
    def _default_teacher(self) -> ModelLike:
        """The model that is fitted to the labels where no teacher is passed."""

    @abstractmethod
    def _as_model(self, functions: Functions, y: AnyArray) -> Functions:
        """The teacher's functions with what this kind of labels needs to predict."""

    def explain(self, X: TableLike) -> Any:
        """The account of every prediction: base plus contributions."""
        check_is_fitted(self)
        return self.functions_.explain(self._table(X, reset=False))


class NObSPRegressor(RegressorMixin, _Distiller):  # type: ignore[misc]
    """A teacher's functions as a regressor: one per feature, interactions, and nothing else.

    Args:
        teacher: A fitted model of any kind that `NObSP` takes, or an unfitted estimator of
            scikit-learn that is fitted on the labels; gradient boosting when None.
        correct: Whether labels correct the functions: one ridge step of their heights, its strength
            chosen by cross-validation. Rows set aside decide; where the step is not better there,
            it is not taken. A teacher that is fitted here then leaves a quarter of the rows for it.
        interactions: As for `NObSP`.
        max_forward_rows: As for `NObSP`.
        random_state: Seed of the default teacher and of which rows are set aside.

    Attributes:
        functions_: The functions, a `nobsp.Functions`.
        explainer_: The explainer they come from.
        teacher_: The fitted teacher.
        correction_: What labels changed, with losses before and after on the rows set aside; None
            without `correct`.

    Example:
        >>> import numpy as np, nobsp
        >>> from sklearn.linear_model import LinearRegression
        >>> X = np.random.default_rng(0).normal(size=(200, 3))
        >>> model = nobsp.NObSPRegressor(LinearRegression()).fit(X, X[:, 0] - X[:, 1])
        >>> model.score(X, X[:, 0] - X[:, 1]) > 0.99
        True
    """

    @keeps_torch_modes
    def fit(self, X: TableLike, y: ArrayLike, teacher: ModelLike = None) -> Self:
        """Takes the functions of a teacher.

        Args:
            X: Rows.
            y: Numbers to predict; what a fitted teacher is corrected by, where that is asked for.
            teacher: A fitted model whose functions are taken; that of the constructor when None.
        """
        rows = self._table(X, reset=True)
        labels = self._labels(y, rows)
        return self._fit(rows, labels, self._given_teacher(teacher))

    def _labels(self, y: ArrayLike, rows: TableLike) -> FloatArray:
        """Numbers, one per row."""
        if y is None:
            raise ValueError(
                "This NObSPRegressor estimator requires y to be passed, but the target y is None."
            )
        from sklearn.utils.validation import check_array, check_consistent_length

        labels = check_array(
            np.asarray(y), ensure_2d=False, dtype=np.float64, input_name="y", allow_nd=True
        )
        labels = column_or_1d(labels, warn=True)
        check_consistent_length(rows, labels)
        return np.asarray(labels)

    def predict(self, X: TableLike) -> FloatArray:
        """Predicted numbers, (rows,)."""
        check_is_fitted(self)
        return self.functions_.predict(self._table(X, reset=False))

    def _default_teacher(self) -> ModelLike:
        return HistGradientBoostingRegressor(random_state=self.random_state)

    def _as_model(self, functions: Functions, y: AnyArray) -> Functions:  # noqa: ARG002
        return functions


class NObSPClassifier(ClassifierMixin, _Distiller):  # type: ignore[misc]
    """A teacher's functions as a classifier: one per feature, interactions, and nothing else.

    Args:
        teacher: A fitted model of any kind that `NObSP` takes, or an unfitted estimator of
            scikit-learn that is fitted on the labels; gradient boosting when None.
        correct: Whether labels correct the functions; see `NObSPRegressor`. Here it is one Newton
            step.
        interactions: As for `NObSP`.
        max_forward_rows: As for `NObSP`.
        random_state: Seed of the default teacher and of which rows are set aside.

    Attributes:
        classes_: The classes.
        functions_: The functions, a `nobsp.Functions`.
        explainer_: The explainer they come from.
        teacher_: The fitted teacher.
        correction_: What labels changed, with losses before and after on the rows set aside; None
            without `correct`.

    Example:
        >>> import numpy as np, nobsp
        >>> from sklearn.linear_model import LogisticRegression
        >>> X = np.random.default_rng(0).normal(size=(200, 3))
        >>> labels = np.where(X[:, 0] > 0, "yes", "no")
        >>> model = nobsp.NObSPClassifier(LogisticRegression()).fit(X, labels)
        >>> model.predict_proba(X).shape, model.score(X, labels) > 0.9
        ((200, 2), True)
    """

    @keeps_torch_modes
    def fit(self, X: TableLike, y: ArrayLike, teacher: ModelLike = None) -> Self:
        """Takes the functions of a teacher; see `NObSPRegressor.fit`.

        Args:
            X: Rows.
            y: Classes.
            teacher: A fitted model whose functions are taken; that of the constructor when None.
        """
        rows = self._table(X, reset=True)
        labels = self._labels(y, rows)
        self.classes_ = np.unique(labels)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class, {self.classes_[0]!r}; a classifier needs two.")
        return self._fit(rows, labels, self._given_teacher(teacher))

    def _labels(self, y: ArrayLike, rows: TableLike) -> AnyArray:
        """Classes, one per row."""
        if y is None:
            raise ValueError(
                "This NObSPClassifier estimator requires y to be passed, but the target y is None."
            )
        from sklearn.utils.validation import check_consistent_length

        labels = column_or_1d(y, warn=True)
        check_consistent_length(rows, labels)
        check_classification_targets(labels)
        return np.asarray(labels)

    def _as_model(self, functions: Functions, y: AnyArray) -> Functions:
        """Functions with the labels' classes."""
        n_expected = 2 if len(functions.output_names) == 1 else len(functions.output_names)
        if not functions.classes and len(self.classes_) == n_expected:
            functions = functions.with_classes(self.classes_.tolist())
        known = getattr(functions, "classes_", None)
        if known is None:
            raise ValueError(
                f"teacher has {len(functions.output_names)} outputs, which are not those of the "
                f"{len(self.classes_)} classes of y; pass a classifier of these classes."
            )
        unknown = set(np.unique(y).tolist()) - set(known.tolist())
        if unknown:
            raise ValueError(
                f"y has classes that the teacher does not know: {sorted(map(str, unknown))}."
            )
        self.classes_ = functions.classes_
        return functions

    def predict(self, X: TableLike) -> AnyArray:
        """Predicted classes, (rows,)."""
        check_is_fitted(self)
        return self.functions_.predict(self._table(X, reset=False))

    def predict_proba(self, X: TableLike) -> FloatArray:
        """Probability of every class, (rows, classes)."""
        check_is_fitted(self)
        return self.functions_.predict_proba(self._table(X, reset=False))

    def decision_function(self, X: TableLike) -> FloatArray:
        """Scores of the classes, (rows,) for two of them, else (rows, classes)."""
        check_is_fitted(self)
        return self.functions_.decision_function(self._table(X, reset=False))

    def _default_teacher(self) -> ModelLike:
        return HistGradientBoostingClassifier(random_state=self.random_state)
