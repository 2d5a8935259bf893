"""The functions a model has learned: tables with what is known of them, read with numpy alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np

from nobsp import notebook, serialization
from nobsp._typing import (
    AnyArray,
    ArrayLike,
    FloatArray,
    ModelLike,
    NativeFrame,
    TableLike,
)
from nobsp.arguments import (
    count,
    names_of,
    numbers_of,
    require_choice,
    require_number,
    require_whole_number,
)
from nobsp.deprecation import USUAL_CONFIDENCE, argument_of
from nobsp.elsewhere import FUNCTIONS, describe_unknown
from nobsp.findings import Finding
from nobsp.frames import as_table
from nobsp.tabular.consistency import require_readable
from nobsp.tabular.curves import (
    draw_curve,
    draw_curves,
    function_of,
    read_term,
    value_readers,
    warn_of_unseen,
)
from nobsp.tabular.editing import Edit, Rule, cap, drop, edit, original, undo
from nobsp.tabular.explanation import Explanation
from nobsp.tabular.health import Health, MultiOutput, Reach, TermHealth, average_share
from nobsp.tabular.indexing import Term, output_position
from nobsp.tabular.lookup import (
    Feature,
    Level,
    LevelAxis,
    NumberAxis,
    TermTable,
    read_columns,
    read_tables,
)
from nobsp.tabular.predicting import (
    check_classes,
    classes_of,
    decide,
    has_probabilities,
    outputs_of,
    predict,
    predict_proba,
    require_shares,
    score,
    tags_of,
)

# The word that files have for it.
KIND = "compiled explainer"
VERSION = 6


class Bands(NamedTuple):
    """How far functions move from calibration to calibration."""

    # Standard deviation per feature, (points, outputs): what curves are drawn with.
    spreads: dict[int, FloatArray]
    # Per term what each resampled calibration differs by, (resamples, nodes, outputs): read by
    # comparisons alone, and empty where nothing was resampled.
    deviations: Mapping[tuple[int, ...], AnyArray] = MappingProxyType({})


# Makes the bands when they are first needed.
MakeBands = Callable[[], Bands]
# Makes the tables when they are first read.
MakeTables = Callable[[], tuple[TermTable, ...]]

# Features and points of a curve that a notebook shows.
_SHOWN_FEATURES = 8
_SHOWN_POINTS = 60


@dataclass(frozen=True, eq=False, repr=False)
class Functions:
    """The functions a model has learned: the explainer's account without the model, numpy only.

    `NObSP.compile` gives it. There is no network to predict with: the explanation's `predictions`
    and `residual` are NaN unless the network's outputs are handed in. A number outside its
    calibrated range, a missing one and a level that calibration did not see are flagged in
    `outside`; a level that was not seen contributes nothing.

    `functions["age"]` is the function of a feature and `functions["age", "income"]` that of an
    interaction, to be called on values.

    It is a model too: `predict`, `predict_proba` and `score` are scikit-learn's, and whatever takes
    a fitted estimator there (`permutation_importance`, `PartialDependenceDisplay`,
    `FrozenEstimator`) takes it.

    Attributes:
        features: The features and their columns.
        column_names: Names of the caller's columns, where they have any.
        column_count: How many columns the caller's table has.
        output_names: Names of the outputs.
        tables: The table of every term that has one; single features first.
        base_values: Mean output over the calibration rows, shape (outputs,).
        baseline_contributions: What each of these contributes at the baseline, (terms, outputs).
        baseline: Where each feature's baseline is: a number, or the position of a level; NaN where
            there is none.
        state: How well the functions describe the model.
        link: What the model applies to its outputs.
        importances: Mean absolute contributions over calibration rows, (features, outputs), "main"
            and "total".
        strengths: Per pair of features how strongly it acts together, where that was measured.
        left_out: Terms that have no table and need the network.
        spreads: Per feature how far its curve moves from calibration to calibration, (points,
            outputs).
        reach: Which combinations of numbers are usual; None where too little is known.
        classes: The classes that the outputs tell apart; empty where numbers are predicted, or
            classes are 0, 1, ….
        are_probabilities: Whether the outputs are the classes' probabilities themselves, as those
            of forests are.
        history: What was changed by `edit`, `cap` and `drop`, and what it cost.
        former: The functions before the last change, which `undo` gives back; None where nothing
            was changed.

    Example:
        >>> import numpy as np, torch
        >>> from nobsp import NObSP
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
        ... ).double()
        >>> X = np.random.default_rng(0).normal(size=(500, 3))
        >>> explainer = NObSP(model, features=["a", "b", "c"]).fit(X)
        >>> functions = explainer.compile()
        >>> bool((functions(X).values == explainer(X).values).all())
        True
        >>> functions["a"]([0.0, 1.0]).shape
        (2,)
    """

    features: tuple[Feature, ...]
    column_names: tuple[str, ...] | None
    column_count: int
    output_names: tuple[str, ...]
    tables: tuple[TermTable, ...]
    base_values: FloatArray
    baseline_contributions: FloatArray
    baseline: FloatArray
    state: Health
    link: str
    importances: dict[str, FloatArray]
    strengths: dict[tuple[int, ...], float]
    left_out: tuple[Term, ...] = ()
    spreads: dict[int, FloatArray] = field(default_factory=dict)
    reach: Reach | None = None
    classes: tuple[Level, ...] = ()
    are_probabilities: bool = False
    history: tuple[Edit, ...] = ()
    former: Functions | None = None
    # Set by `make_functions`. None of these is part of copies made with `replace`, nor of files:
    # whoever copies calls `with_bands` first.
    _make_tables: MakeTables | None = field(default=None, init=False, compare=False)
    _make_bands: MakeBands | None = field(default=None, init=False, compare=False)
    _deviations: Mapping[tuple[int, ...], AnyArray] = field(
        default_factory=dict, init=False, compare=False
    )

    def __getstate__(self) -> dict[str, Any]:
        """Pickled with its tables and bands, without what makes them.

        That holds the calibration rows, and stays here.
        """
        return {**with_bands(self).__dict__, "_make_bands": None, "_deviations": {}}

    # Type checkers do not see this, so that misspelt names are an error to them.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Makes the tables when they are first read, if `make_functions` left them out."""
            make_tables = self.__dict__.get("_make_tables") if name == "tables" else None
            if make_tables is None:
                if name.startswith("_") or hasattr(type(self), name):
                    # A property failed with an AttributeError of its own.
                    return object.__getattribute__(self, name)
                raise AttributeError(
                    describe_unknown("Functions", name, known=dir(type(self)), elsewhere=FUNCTIONS)
                )

            tables = make_tables()
            object.__setattr__(self, "tables", tables)
            object.__setattr__(self, "_make_tables", None)  # it holds the calibration rows
            return tables

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(feature.name for feature in self.features)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms that have tables, as names of features."""
        names = self.feature_names
        return tuple(tuple(names[feature] for feature in table.features) for table in self.tables)

    def named_columns(self) -> tuple[str, ...]:
        """Names of the caller's columns; of columns without names, those of their features."""
        if self.column_names is not None:
            return self.column_names

        names = [f"x{position}" for position in range(self.column_count)]
        for feature in self.features:
            if len(feature.columns) == 1:
                names[feature.columns[0]] = feature.name
        return tuple(names)

    def explain(
        self, X: TableLike, *, predictions: ArrayLike | None = None, threads: int | None = None
    ) -> Explanation:
        """The account of every row, as the explainer this was compiled from gives it.

        Args:
            X: Array, tensor, or pandas or polars frame with the calibrated columns. Contiguous
                float32 and float64 arrays are read in place.
            predictions: The network's outputs (logits) for the rows, from which the residual
                follows. Both are NaN without.
            threads: How many threads share the rows; one per processor when None.
        """
        if threads is None:
            threads = _count_processors()
        require_whole_number("threads", threads)
        columns, n_rows = read_columns(self, X)

        outputs = self._read_predictions(predictions, n_rows)
        values, outside = read_tables(self, columns, n_rows, threads=threads)
        return Explanation(
            values=values,
            base_values=self.base_values.copy(),
            residual=outputs - self.base_values - values.sum(1),
            predictions=outputs,
            terms=self.terms,
            feature_names=self.feature_names,
            output_names=self.output_names,
            data=X,
            outside=outside,
            baseline_contributions=self.baseline_contributions.copy(),
            explainer=self,
            origin=self,
        )

    __call__ = explain

    def _read_predictions(self, predictions: ArrayLike | None, n_rows: int) -> FloatArray:
        """The network's outputs, (rows, outputs); NaN where they are not known."""
        shape = (n_rows, len(self.output_names))
        if predictions is None:
            return np.full(shape, np.nan)

        outputs = numbers_of(predictions, name="predictions").copy()
        fits = outputs.ndim <= 2 and outputs.shape[:1] == (n_rows,)
        if not fits or outputs.size != n_rows * len(self.output_names):
            raise ValueError(f"predictions must have shape {shape}, found {outputs.shape}.")
        if not np.isfinite(outputs).all():
            row = int(np.flatnonzero(~np.isfinite(outputs).reshape(n_rows, -1).all(1))[0])
            raise ValueError(f"predictions has NaN or infinity in row {row}.")
        return outputs.reshape(shape)

    def predict(self, X: TableLike) -> AnyArray:
        """What the model predicts, by its functions alone: classes of a classifier, else numbers.

        Args:
            X: Array, tensor, or pandas or polars frame with the calibrated columns.

        Returns:
            Shape (rows,) for classes and for one output, else (rows, outputs). Numbers are after
            the model's link.

        Warns:
            MissingTermsWarning: Where terms have no table; `left_out` names them.

        Example:
            >>> import numpy as np, nobsp
            >>> from sklearn.linear_model import LogisticRegression
            >>> X = np.random.default_rng(0).normal(size=(300, 2))
            >>> model = LogisticRegression().fit(X, np.where(X[:, 0] > 0, "yes", "no"))
            >>> functions = nobsp.NObSP(model).fit(X).compile()
            >>> functions.predict(np.array([[1.0, 0.0], [-1.0, 0.0]])).tolist()
            ['yes', 'no']
        """
        return predict(self, X)

    @property
    def predict_proba(self) -> Callable[[TableLike], FloatArray]:
        """`predict_proba(X)` gives every class's probability, shape (rows, classes).

        It exists only where outputs become probabilities; otherwise there is an AttributeError.
        """
        if not has_probabilities(self):
            raise AttributeError(
                f"the functions have no probabilities: their link is {self.link!r}."
            )

        def probabilities(X: TableLike) -> FloatArray:
            return predict_proba(self, X)

        probabilities.__name__ = "predict_proba"
        return probabilities

    @property
    def decision_function(self) -> Callable[[TableLike], FloatArray]:
        """`decision_function(X)` gives scores of classes; log-odds if there are probabilities."""
        if not classes_of(self):
            raise AttributeError(
                "the functions predict numbers and have no classes to decide between; use predict."
            )

        def decisions(X: TableLike) -> FloatArray:
            return decide(self, X)

        decisions.__name__ = "decision_function"
        return decisions

    def score(self, X: TableLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy of the classes, or R² of the numbers, against labels.

        `fidelity` compares with the model instead.

        Args:
            X: Rows.
            y: What they truly are.
            sample_weight: How much each row counts.

        Raises:
            ValueError: Where numbers are the same in all rows, or there is only one row: these have
                no R².
        """
        return score(self, X, y, sample_weight)

    def fidelity(
        self, X: TableLike, model: ModelLike, *, multioutput: MultiOutput = "uniform_average"
    ) -> float | FloatArray:
        """R² of the functions' sum against the model's own outputs, before its link, on any rows.

        Args:
            X: Rows.
            model: The model, its explainer, or its outputs (logits) for the rows.
            multioutput: "uniform_average" for one number, the mean over outputs that vary; "raw"
                for one each, NaN for those that do not.

        Raises:
            ValueError: Where no output varies over the rows, or there is only one.
        """
        explanation = self.explain(X, predictions=outputs_of(self, X, model))
        shares = explanation.explained()
        require_shares(shares, len(explanation.values), argument="X", what="the model's outputs")
        return average_share(shares, multioutput)

    # scikit-learn's
    def fit(self, X: TableLike, y: ArrayLike | None = None) -> Self:  # noqa: ARG002
        """Exists because scikit-learn recognises estimators by a `fit` method.

        It always raises a TypeError: functions are fitted by `NObSP`.
        """
        raise TypeError(
            "Functions are fitted already; use nobsp.NObSPRegressor or nobsp.NObSPClassifier to "
            "fit new ones, or scikit-learn's FrozenEstimator(functions) where it wants to fit."
        )

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002 - scikit-learn's
        """Nothing: everything was settled by the calibration."""
        return {}

    @property
    def classes_(self) -> AnyArray:
        """The classes, in the order of their probabilities. Only available for classifiers."""
        if not classes_of(self):
            raise AttributeError("the functions predict numbers; they have no classes.")
        return np.array(classes_of(self))

    @property
    def n_features_in_(self) -> int:
        """Columns of the table that is predicted from."""
        return self.column_count

    @property
    def feature_names_in_(self) -> AnyArray:
        """Names of these columns. Only available where the calibration's table had names."""
        if self.column_names is None:
            raise AttributeError(
                "feature_names_in_ is not known: the rows given to fit had no column names."
            )
        return np.array(self.column_names, dtype=object)

    def with_classes(self, classes: Sequence[object]) -> Functions:
        """These functions as a classifier, whose outputs tell these classes apart.

        Args:
            classes: One per output; two for a single output, the second being the one it speaks
                for. Outputs without a link are taken for log-odds.
        """
        link = self.link
        if link == "identity":
            link = "sigmoid" if len(self.output_names) == 1 else "softmax"
        names = check_classes(classes, len(self.output_names))
        return replace(with_bands(self), classes=names, link=link)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        return tags_of(self)

    def function(
        self, term: str | Sequence[str], *, output: int | str = 0
    ) -> Callable[..., FloatArray]:
        """The function of a feature or an interaction, to be called on values.

        See `NObSP.function`.
        """
        names = tuple(term) if isinstance(term, tuple | list) else (term,)
        chosen = output_position(output, self.output_names)

        def evaluate(*members: AnyArray) -> FloatArray:
            values, unseen = read_term(self, names, members)
            if unseen.any():
                warn_of_unseen(names, [rows[unseen][0] for rows in members])
            return values[:, chosen].copy()

        return function_of(names, value_readers(self, names), evaluate)

    def __getitem__(self, term: str | tuple[str, ...]) -> Callable[..., FloatArray]:
        """The function of a feature or interaction, for the first output: `functions["age"]`."""
        return self.function(term)

    def __iter__(self) -> None:
        """Says that this is no sequence, as `__getitem__` would make Python believe."""
        raise TypeError("functions cannot be iterated over; `terms` names them.")

    def curves(
        self, points: int = 200, *, confidence: float = USUAL_CONFIDENCE, level: float | None = None
    ) -> NativeFrame:
        """Every feature's function with its band, as a tidy table; see `NObSP.curves`."""
        require_whole_number("points", points, least=2)
        confidence = argument_of("level", level, present="confidence", current=confidence)
        require_number("confidence", confidence, above=0, below=1)
        # Half the width of a band in standard deviations; curves are taken to scatter normally.
        z = NormalDist().inv_cdf(0.5 + confidence / 2)
        spreads = with_bands(self).spreads
        half_widths = {feature: z * spread for feature, spread in spreads.items()}
        return draw_curves(self, half_widths, int(points))

    def importance(self, kind: Literal["total", "main"] = "total") -> NativeFrame:
        """Mean absolute contribution of each feature in calibration; see `NObSP.importance`."""
        require_choice("kind", kind, ("main", "total"))
        sizes = self.importances[kind]
        order = np.argsort(-sizes.sum(1), kind="stable")

        features = np.array(self.feature_names, dtype=object)[order]
        outputs = np.array(self.output_names, dtype=object)
        return as_table(
            {
                "feature": np.repeat(features, len(outputs)),
                "output": np.tile(outputs, len(order)),
                "importance": sizes[order].ravel(),
            }
        )

    def interaction_strengths(self) -> NativeFrame:
        """Every pair, with the share of the outputs' spread that only both together make.

        See `NObSP.interaction_strengths`.
        """
        names = self.feature_names
        fitted_terms = {table.features for table in self.tables}
        return as_table(
            {
                "first": np.array([names[pair[0]] for pair in self.strengths], dtype=object),
                "second": np.array([names[pair[1]] for pair in self.strengths], dtype=object),
                "strength": np.array(list(self.strengths.values()), dtype=np.float64),
                "fitted": np.array([pair in fitted_terms for pair in self.strengths], dtype=bool),
            }
        )

    def health(self) -> Health:
        """How well the functions describe the model."""
        return self.state

    def edit(
        self,
        feature: str,
        rule: Rule,
        X: TableLike,
        *,
        output: int | str | None = None,
        model: ModelLike = None,
    ) -> Functions:
        """New functions in which a feature keeps to a rule, changed as little as the rows allow.

        A rule is for the output before the link: the logit of a class, not its probability. The
        log-odds of one of two classes rise with its probability; of several classes, a probability
        may fall while its own logit rises.

        Args:
            feature: Name of the feature.
            rule: "increasing" or "decreasing": the sum of the feature's function and its
                interactions then rises (or falls) whatever the other features are. "smooth": few
                bends. "flat above 100_000", "flat below 0": as at that number. Or a function from
                values (numbers, or levels) to contributions, in place of the feature's own, moved
                to the mean it had over the rows; interactions stay.
            X: Rows in whose measure the change is as small as can be, and on which its cost is
                measured.
            output: The output that the rule is for. It must be chosen where there are several and
                the rule is a direction or a function; the other rules are for all when None.
            model: The model, its explainer, or its outputs for the rows: the history then tells
                what the change costs in fidelity to it.

        Returns:
            New functions, with an entry in `history`. These stay as they are.

        Example:
            >>> import numpy as np, nobsp
            >>> from sklearn.ensemble import HistGradientBoostingRegressor
            >>> X = np.random.default_rng(0).normal(size=(300, 2))
            >>> model = HistGradientBoostingRegressor(max_iter=20).fit(X, X[:, 0] + X[:, 1])
            >>> functions = nobsp.NObSP(model, features=["a", "b"]).fit(X).compile()
            >>> rising = functions.edit("a", "increasing", X, model=model)
            >>> line = np.column_stack([np.linspace(-2, 2, 50), np.zeros(50)])
            >>> bool((np.diff(rising.predict(line)) >= -1e-12).all())
            True
            >>> rising.history[0].rule, rising.undo() is functions
            ('increasing', True)
        """
        return edit(with_bands(self), feature, rule, X, output=output, model=model)

    def cap(
        self,
        feature: str,
        X: TableLike,
        *,
        least: float | None = None,
        most: float | None = None,
        output: int | str | None = None,
        model: ModelLike = None,
    ) -> Functions:
        """New functions in which a feature's own contribution stays within bounds; see `edit`.

        Args:
            feature: Name of the feature.
            X: Rows on which the cost is measured.
            least: The smallest contribution; no limit when None.
            most: The largest one.
            output: The output that the bounds are for; all when None.
            model: The model, its explainer, or its outputs for the rows.
        """
        return cap(
            with_bands(self),
            feature,
            X,
            least=least,
            most=most,
            output=output,
            model=model,
        )

    def drop(
        self, feature: str, X: TableLike, *, take_over: bool = False, model: ModelLike = None
    ) -> Functions:
        """New functions without a feature, which need its column no longer; see `edit`.

        If other features carry the same information, dropping this one does not remove it from the
        model: the entry in `history` tells in `taken_over` which share of this function every other
        feature can take over.

        Args:
            feature: Name of the feature.
            X: Rows on which the cost is measured.
            take_over: Whether the others do take over what they can.
            model: The model, its explainer, or its outputs for the rows.
        """
        return drop(with_bands(self), feature, X, take_over=take_over, model=model)

    def undo(self, steps: int = 1) -> Functions:
        """The functions before the last change, or before the last `steps` changes."""
        require_whole_number("steps", steps)
        return undo(self, int(steps))

    @property
    def original(self) -> Functions:
        """The functions before any change."""
        return original(self)

    def to_onnx(self, path: str | os.PathLike[str], *, like: TableLike | None = None) -> None:
        """Writes an ONNX model of standard operators: predictions, probabilities and contributions.

        Every column is an input of its own name, shape (rows, 1): numbers in single precision,
        names as strings; a missing name is the text that the model's metadata has under
        "nobsp.missing", "" unless that is a level. Outputs: "prediction", "probabilities" of a
        classifier, "sum" before the link, and "contributions" (rows, terms, outputs), whose terms
        the metadata names. Inside, all numbers are double precision.

        Args:
            path: Where to; an existing file is replaced, atomically.
            like: A table whose columns say which types inputs have: booleans, whole numbers, single
                or double precision. `onnx_inputs` makes rows fit.

        Raises:
            ImportError: If onnx is not installed.

        Example:
            >>> import tempfile, numpy as np, nobsp, onnxruntime
            >>> from sklearn.linear_model import LinearRegression
            >>> X = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
            >>> model = LinearRegression().fit(X, X[:, 0])
            >>> functions = nobsp.NObSP(model, features=["a", "b"]).fit(X).compile()
            >>> path = f"{tempfile.mkdtemp()}/functions.onnx"
            >>> functions.to_onnx(path)
            >>> session = onnxruntime.InferenceSession(path)
            >>> prediction, total, contributions = session.run(None, functions.onnx_inputs(X))
            >>> bool(np.allclose(prediction[:, 0], functions.predict(X), rtol=1e-9))
            True
        """
        from nobsp.tabular.exports.onnx import write_onnx

        write_onnx(self, path, like=like)

    def onnx_inputs(self, X: TableLike, *, like: TableLike | None = None) -> dict[str, AnyArray]:
        """Rows as the model of `to_onnx` takes them, by the name of the column.

        Args:
            X: Rows.
            like: The same as `to_onnx` was given.
        """
        from nobsp.tabular.exports.onnx import onnx_inputs

        return onnx_inputs(self, X, like=like)

    def to_sql(
        self,
        table: str,
        *,
        dialect: Literal["duckdb", "postgres", "sqlite"] = "duckdb",
        keep: str | Sequence[str] = (),
        contributions: bool = True,
    ) -> str:
        """One SELECT that predicts for every row of a database's table, with contributions.

        Numbers, booleans, texts, missing values and levels that were not seen are read as `predict`
        reads them. Names and levels are quoted so that none can leave its quotes. Columns of the
        result: "prediction"; for classes "probability of …"; "sum" before the link; "base" and
        "contribution of …", which add up to the sum.

        Args:
            table: Name of the table or view, with the columns of the calibration; a dot parts it
                from its schema.
            dialect: Which database: "duckdb", "postgres" (12 or later) or "sqlite" (3.35 or later).
            keep: Columns of the table to carry along, such as a key; a text is the name of one.
            contributions: Whether contributions are in the result.

        Example:
            >>> import sqlite3, numpy as np, nobsp
            >>> from sklearn.linear_model import LinearRegression
            >>> X = np.random.default_rng(0).normal(size=(300, 2))
            >>> model = LinearRegression().fit(X, X[:, 0])
            >>> functions = nobsp.NObSP(model, features=["a", "b"]).fit(X).compile()
            >>> database = sqlite3.connect(":memory:")
            >>> _ = database.execute("CREATE TABLE people (a REAL, b REAL)")
            >>> _ = database.executemany("INSERT INTO people VALUES (?, ?)", X.tolist())
            >>> query = functions.to_sql("people", dialect="sqlite", keep=["a"])
            >>> first, prediction, *_ = database.execute(query).fetchone()
            >>> bool(abs(prediction - functions.predict(X)[0]) < 1e-12)
            True
            >>> database.close()
        """
        from nobsp.tabular.exports.layout import layout_of
        from nobsp.tabular.exports.sql import write_sql

        if isinstance(table, str) and not table.strip():
            raise ValueError("table must be the name of a table or a view, found an empty text.")
        carried = (keep,) if isinstance(keep, str) else names_of("keep", keep)
        return write_sql(
            layout_of(self), table, dialect=dialect, keep=carried, contributions=contributions
        )

    def to_excel(
        self, path: str | os.PathLike[str], X: TableLike | None = None, *, lines: int = 20
    ) -> None:
        """Writes a workbook that predicts: rows to fill in, formulas beside, tables behind them.

        Sheets tell numbers apart by fifteen digits, and an empty text is an empty cell, which is
        missing; otherwise cells are read as `predict` reads them.

        Args:
            path: Where to; an existing file is replaced, atomically.
            X: Rows to fill in; an empty cell is a missing value.
            lines: How many lines have formulas, where the rows are fewer.

        Raises:
            ImportError: If openpyxl is not installed.
        """
        from nobsp.tabular.exports.excel import write_excel
        from nobsp.tabular.exports.layout import cells_of, layout_of

        require_whole_number("lines", lines)
        layout = layout_of(self)
        rows = [] if X is None else cells_of(self, layout, X)
        write_excel(layout, path, rows=rows, lines=int(lines))

    def to_javascript(self) -> str:
        """The functions as a JavaScript module without dependencies, for browsers and Node.

        It exports `predict(row)`, `probabilities(row)`, `sums(row)` and `contributions(row)` for a
        row such as `{age: 40, city: "Bern"}`; what is not there is missing.

        Example:
            >>> import numpy as np, nobsp
            >>> from sklearn.linear_model import LinearRegression
            >>> X = np.random.default_rng(0).normal(size=(300, 2))
            >>> functions = nobsp.NObSP(LinearRegression().fit(X, X[:, 0])).fit(X).compile()
            >>> "export function predict(row)" in functions.to_javascript()
            True
        """
        from nobsp.tabular.exports.javascript import write_javascript
        from nobsp.tabular.exports.layout import layout_of

        return write_javascript(layout_of(self))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all to one safetensors file, atomically; see docs/compiled-format.md."""
        serialization.save(path, with_bands(self), kind=KIND, version=VERSION)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads what `save` wrote; needs neither torch nor the model."""
        functions: Self = serialization.load(
            path,
            kind=KIND,
            version=VERSION,
            classes=(cls, *CLASSES),
            framework="numpy",
            of=cls,
        )
        with serialization.damage_in_words(path):
            require_readable(functions)
        return functions

    def __repr__(self) -> str:
        n_nodes = sum(table.values[..., 0].size for table in self.tables)
        parts = [
            count(len(self.tables), "term"),
            count(len(self.output_names), "output"),
            count(n_nodes, "node"),
        ]
        if self.left_out:
            parts.append(f"{len(self.left_out)} terms need the network")
        if self.history:
            parts.append(count(len(self.history), "edit"))
        return f"Functions({', '.join(parts)}; {self.state.headline_and_warnings})"

    def _repr_html_(self) -> str:
        return self._card(f"Functions of {count(len(self.feature_names), 'feature')}")

    def _card(self, title: str) -> str:
        """What a notebook shows: the share explained, the strongest features, findings.

        The features are shown with their curves.
        """
        return notebook.card(
            title,
            self.state._headline_bar(),
            notebook.bars(
                self._feature_bars(), heading="mean size of contributions, with interactions"
            ),
            notebook.findings(self.state.findings),
        )

    def _feature_bars(self) -> list[notebook.Bar]:
        """The strongest features, each with its curve of the first output."""
        sizes = self.importances["total"].sum(1)
        strongest = np.argsort(-sizes, kind="stable")[:_SHOWN_FEATURES].tolist()
        curves = {
            table.features[0]: draw_curve(
                self.features[table.features[0]], table, None, _SHOWN_POINTS
            )
            for table in self.tables
            if len(table.axes) == 1 and table.features[0] in strongest
        }
        spread = max((float(np.ptp(curve.values[:, 0])) for curve in curves.values()), default=0.0)
        lines = []
        for feature in strongest:
            drawn = ""
            if feature in curves:
                x = np.asarray(curves[feature].x, dtype=np.float64)
                drawn = notebook.small_curve(x, curves[feature].values[:, 0], spread=spread)
            name = self.feature_names[feature]
            lines.append(notebook.Bar(name, float(sizes[feature]), drawn, notebook.NEUTRAL))
        return lines


# What files of functions are made of.
CLASSES = (
    Functions,
    Edit,
    Reach,
    Feature,
    Finding,
    Health,
    LevelAxis,
    NumberAxis,
    TermHealth,
    TermTable,
)


def with_bands(functions: Functions) -> Functions:
    """The functions themselves, with tables and bands, which are made now if they were not yet."""
    _ = functions.tables
    make_bands = functions._make_bands
    if make_bands is not None and not functions.spreads:
        bands = make_bands()
        functions.spreads.update(bands.spreads)
        object.__setattr__(functions, "_deviations", dict(bands.deviations))
        object.__setattr__(functions, "_make_bands", None)  # it holds the calibration rows
    return functions


def resampled_deviations(functions: Functions) -> Mapping[tuple[int, ...], AnyArray]:
    """Per term deviations of other such calibrations; empty for functions from a file."""
    return with_bands(functions)._deviations


def _count_processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
