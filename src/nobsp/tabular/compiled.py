"""Explaining without the network: every term's function as a table, in a small file, needing numpy only."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nobsp import store
from nobsp.tabular.explanation import Explanation, Term, output_position, term_name
from nobsp.tabular.lookup import Array, Axis, Chunk, CompiledTerm, LevelAxis, NumberAxis, UnseenError

KIND = "compiled explainer"
VERSION = 1

# Rows looked up at once: few enough that a chunk of some ten columns stays in the processor's cache.
_CHUNK_ROWS = 8192


@dataclass(frozen=True)
class CompiledFeature:
    """A feature as the caller's table has it.

    Attributes:
        name: What it is called.
        columns: Positions of its columns.
        ranges: Per column of numbers, the smallest and the largest calibrated value; empty for categories.
        limits: Per column of numbers, how far the network itself was followed beyond that range.
    """

    name: str
    columns: tuple[int, ...]
    ranges: tuple[tuple[float, float], ...] = ()
    limits: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class CompiledExplainer:
    """An explainer that no longer needs its network: the same call, the same account, numpy only.

    `NObSP.compile` makes it. The functions of piecewise-linear networks are kept exactly, those of smooth ones
    to a tolerance, and what was reached is in `errors`. There is no network to predict with: the explanation's
    `predictions` and `residual` are NaN unless the network's outputs are handed in.

    A number outside its calibrated range is flagged in `outside`. Out to the feature's limits the network's own
    values are followed; beyond them the last piece is continued as a straight line.

    Attributes:
        features: The features and their columns.
        column_names: Names of the caller's columns, where they have any.
        column_count: How many columns the caller's table has.
        output_names: Names of the outputs.
        compiled: Every term's table.
        base_values: Mean output over the calibration rows, shape (outputs,).
        baseline_contributions: What each term contributes at the baseline, shape (terms, outputs).
        spread: Per output, the unit of the tolerance: the largest standard deviation of a single feature's
            contribution over its calibrated range.
        tolerance: What was asked for, as a share of `spread`.
        left_out: Interactions that were left to the network.

    Example:
        >>> import numpy as np, torch
        >>> from nobsp import NObSP
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).double()
        >>> X = np.random.default_rng(0).normal(size=(500, 3))
        >>> explainer = NObSP(model, features=["a", "b", "c"], interactions=0).fit(X)
        >>> compiled = explainer.compile()
        >>> bool(np.abs(compiled(X).values - explainer(X).values).max() < 1e-12)
        True
    """

    features: tuple[CompiledFeature, ...]
    column_names: tuple[str, ...] | None
    column_count: int
    output_names: tuple[str, ...]
    compiled: tuple[CompiledTerm, ...]
    base_values: Array
    baseline_contributions: Array
    spread: Array
    tolerance: float
    left_out: tuple[Term, ...] = ()

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(feature.name for feature in self.features)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The compiled terms, as names of features."""
        return tuple(tuple(self.features[k].name for k in term.features) for term in self.compiled)

    @property
    def errors(self) -> dict[Term, Array]:
        """Per term the largest difference to the network, per output and in its units, in the calibrated range.

        Measured while compiling on points that were not used to choose the knots. A network in single precision
        differs from itself in double precision by its `rounding`, and no table comes closer to it than that.
        """
        return {name: term.error for name, term in zip(self.terms, self.compiled, strict=True)}

    @property
    def errors_outside(self) -> dict[Term, Array]:
        """The same between the calibrated range and the limits; zero where there is no such place."""
        return {name: term.error_outside for name, term in zip(self.terms, self.compiled, strict=True)}

    @property
    def rounding(self) -> dict[Term, Array]:
        """Per term the share of the error that is the network's own rounding; zero in double precision."""
        return {name: term.rounding for name, term in zip(self.terms, self.compiled, strict=True)}

    @property
    def missed(self) -> tuple[Term, ...]:
        """Terms whose error in the calibrated range is above the tolerance, the network's own rounding aside."""
        allowed = self.tolerance * self.spread
        return tuple(
            name
            for name, term in zip(self.terms, self.compiled, strict=True)
            if bool((term.error > allowed + term.rounding).any())
        )

    # ------------------------------------------------------------------ explaining

    def __call__(self, X: Any, *, predictions: Any = None, threads: int | None = None) -> Explanation:
        """The same as `explain`."""
        return self.explain(X, predictions=predictions, threads=threads)

    def explain(self, X: Any, *, predictions: Any = None, threads: int | None = None) -> Explanation:
        """The account of every row, as the explainer this was compiled from gives it.

        Args:
            X: Array, tensor, or pandas or polars frame with the calibrated columns. Contiguous float32 and
                float64 arrays are read in place.
            predictions: The network's outputs (logits) for the rows, from which the residual follows. Both are
                NaN without.
            threads: How many threads share the rows; one per processor when None. The numbers do not depend
                on it.

        Raises:
            ValueError: If columns do not match, a number is not finite, or a category was not seen in calibration.
        """
        columns, rows = self._columns(X)
        outputs = len(self.output_names)
        given = _checked_predictions(predictions, rows, outputs)
        values = np.empty((rows, len(self.compiled), outputs))
        outside = np.zeros((rows, len(self.features)), dtype=bool)

        def work(start: int) -> None:
            self._explain(columns, slice(start, min(start + _CHUNK_ROWS, rows)), values, outside)

        _spread_over(work, range(0, rows, _CHUNK_ROWS), _checked_threads(threads))
        if given is None:
            unknown = np.broadcast_to(np.float64(np.nan), (rows, outputs))
        return Explanation(
            values=values,
            base_values=self.base_values.copy(),
            residual=unknown if given is None else given - self.base_values - values.sum(1),
            predictions=unknown if given is None else given,
            terms=self.terms,
            feature_names=self.feature_names,
            output_names=self.output_names,
            data=X,
            outside=outside,
            baseline_contributions=self.baseline_contributions.copy(),
            explainer=self,
        )

    def _explain(
        self, columns: Mapping[int, NDArray[Any]], rows: slice, values: Array, outside: NDArray[np.bool_]
    ) -> None:
        """Fills in some rows of the account."""
        chunk = Chunk(columns, rows, lambda column, numbers: self._require_finite(column, numbers, rows.start))
        account = np.empty((len(self.compiled), chunk.count, len(self.output_names)))
        for position, term in enumerate(self.compiled):
            try:
                account[position] = term(chunk)
            except UnseenError as unseen:
                raise ValueError(self._not_seen(term, columns, rows.start + unseen.row)) from unseen
        # Written once, row by row: term by term every line of memory would be visited as often as there are terms.
        values[rows] = account.transpose(1, 0, 2)
        for position, feature in enumerate(self.features):
            for column, (low, high) in zip(feature.columns, feature.ranges, strict=False):
                x = chunk.numbers(column)
                if columns[column].dtype == np.float32:  # a float32 copy of the calibration rows lies within the range
                    low, high = float(np.float32(low)), float(np.float32(high))
                if x.min() < low or x.max() > high:
                    outside[rows, position] |= (x < low) | (x > high)

    def function(self, term: str | Sequence[str], *, output: int | str = 0) -> Callable[..., Array]:
        """The learned function of a feature, or of an interaction, as something to call on values.

        Args:
            term: Name of a feature, or the names of a compiled interaction's features.
            output: Which output.

        Returns:
            A function from values (numbers, levels, or rows of values for a feature of several columns), one
            argument a feature in the order they were named, to contributions.
        """
        named = tuple(term) if isinstance(term, tuple | list) else (term,)
        asked = [self.features[self._feature(name)] for name in named]
        compiled = next(
            (one for one, names in zip(self.compiled, self.terms, strict=True) if set(names) == set(named)), None
        )
        if compiled is None or len(set(named)) != len(named):
            raise ValueError(f"{' × '.join(named)} was not compiled; `terms` names the terms there are.")
        chosen = output_position(output, self.output_names)

        def evaluate(*values: Any) -> Array:
            if len(values) != len(asked):
                raise TypeError(f"the function of {' × '.join(named)} takes {len(asked)} arrays, found {len(values)}.")
            given = [_value_rows(one, feature) for one, feature in zip(values, asked, strict=True)]
            lengths = [len(one) for one in given]
            if len(set(lengths)) > 1:
                raise ValueError(f"the values of {' × '.join(named)} must be equally many, found {lengths}.")
            if lengths[0] == 0:
                return np.zeros(0)
            members = {
                column: one[:, i]
                for one, feature in zip(given, asked, strict=True)
                for i, column in enumerate(feature.columns)
            }
            columns = self._used(members, [compiled])
            chunk = Chunk(
                columns, slice(0, lengths[0]), lambda column, numbers: self._require_finite(column, numbers, 0)
            )
            try:
                return compiled(chunk)[:, chosen].copy()
            except UnseenError as unseen:
                raise ValueError(self._not_seen(compiled, columns, unseen.row)) from unseen

        return evaluate

    def curve(self, feature: str) -> tuple[Any, Array]:
        """The table behind a feature: knots (or levels) and the contributions there, (knots, outputs).

        A feature of several columns of numbers has no curve; its table is in `compiled`.
        """
        term = self.compiled[self._feature(feature)]
        if len(term.axes) != 1:
            raise ValueError(f"feature {feature!r} is no function of one column; look into `compiled`.")
        axis = term.axes[0]
        return (axis.knots if isinstance(axis, NumberAxis) else axis.levels), term.values

    def _feature(self, name: str) -> int:
        if name not in self.feature_names:
            close = get_close_matches(str(name), self.feature_names, n=3) or self.feature_names[:8]
            raise ValueError(f"no feature {name!r}; there are {', '.join(map(repr, close))}.")
        return self.feature_names.index(name)

    # ------------------------------------------------------------------ reading tables

    def _columns(self, X: Any) -> tuple[dict[int, NDArray[Any]], int]:
        """The caller's columns that a term asks for, and the number of rows."""
        if hasattr(X, "detach"):
            X = X.detach().cpu()
            X = X.numpy() if "bfloat16" not in str(X.dtype) else X.float().numpy()
        if not isinstance(X, np.ndarray):
            return self._frame_columns(X)
        if X.ndim != 2:
            raise ValueError(f"X must have two dimensions, found shape {X.shape}; pass one row per sample.")
        self._require_count(X.shape[1])
        return self._used({position: X[:, position] for position in range(X.shape[1])}, self.compiled), len(X)

    def _frame_columns(self, X: Any) -> tuple[dict[int, NDArray[Any]], int]:
        import narwhals as nw

        try:
            frame = nw.from_native(X, eager_only=True, pass_through=True)
        except nw.exceptions.DuplicateError as duplicate:
            raise ValueError(f"X has two columns of the same name; rename one ({duplicate}).") from duplicate
        if not isinstance(frame, nw.DataFrame):
            raise TypeError(
                f"X must be an array, a tensor or a frame, found {type(X).__name__}; pass all rows at once."
            )
        places = {str(name): position for position, name in enumerate(frame.columns)}
        if self.column_names is None:
            self._require_count(len(places))
            order = list(range(len(places)))
        else:
            missing = [name for name in self.column_names if name not in places]
            extra = [name for name in places if name not in set(self.column_names)]
            if missing or extra:
                lacks = [f"lacks {_listed(missing)}"] if missing else []
                has = [f"has the unexpected {_listed(extra)}"] if extra else []
                raise ValueError(f"X {' and '.join(lacks + has)}; expected are {_listed(self.column_names)}.")
            order = [places[name] for name in self.column_names]
        needed = {column for feature in self.features for column in feature.columns}
        taken = {i: np.asarray(frame[:, position].to_numpy()) for i, position in enumerate(order) if i in needed}
        return self._used(taken, self.compiled), len(frame)

    def _used(self, columns: Mapping[int, NDArray[Any]], terms: Iterable[CompiledTerm]) -> dict[int, NDArray[Any]]:
        """Columns that terms stand on: those of numbers as numbers, those of names as they are."""
        found: dict[int, NDArray[Any]] = {}
        for axis in (axis for term in terms for axis in term.axes):
            if isinstance(axis, LevelAxis) and isinstance(axis.levels, tuple):
                found[axis.columns[0]] = columns[axis.columns[0]]
                continue
            for position in (axis.column,) if isinstance(axis, NumberAxis) else axis.columns:
                if position not in found:
                    found[position] = self._as_numbers(columns[position], position)
        return found

    def _as_numbers(self, column: NDArray[Any], position: int) -> NDArray[Any]:
        if column.dtype.kind in "fiub":
            return column
        try:
            return column.astype(np.float64)
        except (TypeError, ValueError) as failure:
            raise TypeError(f"X, {self._called(position)}, is not numeric ({failure}).") from failure

    def _require_count(self, found: int) -> None:
        if found != self.column_count:
            raise ValueError(f"X has {found} columns but the explainer was calibrated on {self.column_count}.")

    def _require_finite(self, column: int, numbers: Array, first_row: int) -> None:
        if numbers.size and not (np.isfinite(numbers.min()) and np.isfinite(numbers.max())):
            row = int((~np.isfinite(numbers)).argmax())
            value = "NaN" if np.isnan(numbers[row]) else "infinite"
            raise ValueError(
                f"X is {value} in row {first_row + row}, {self._called(column)}; remove or impute such values first."
            )

    def _not_seen(self, term: CompiledTerm, columns: Mapping[int, NDArray[Any]], row: int) -> str:
        for axis, feature in zip(term.axes, self._owners(term), strict=True):
            if isinstance(axis, LevelAxis):
                values = [columns[c][row : row + 1] for c in axis.columns]
                try:
                    axis.places(values)
                except UnseenError:
                    shown = ", ".join(str(value[0]) for value in values[:8])
                    return (
                        f"X, row {row}, has a level of {feature.name!r} that calibration did not see ({shown}); "
                        "calibrate on rows that have it, or leave such rows out."
                    )
        raise AssertionError("every level is known")

    def _owners(self, term: CompiledTerm) -> list[CompiledFeature]:
        """The feature of each axis."""
        owner = {column: self.features[k] for k in term.features for column in self.features[k].columns}
        return [owner[axis.column if isinstance(axis, NumberAxis) else axis.columns[0]] for axis in term.axes]

    def _called(self, column: int) -> str:
        return f"column {column}" if self.column_names is None else f"column {self.column_names[column]!r}"

    # ------------------------------------------------------------------ files and looks

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes everything to one safetensors file, atomically; docs/compiled-format.md describes it.

        Args:
            path: Where to; an existing file is replaced.
        """
        tensors: dict[str, NDArray[Any]] = {
            "base_values": self.base_values,
            "baseline_contributions": self.baseline_contributions,
            "spread": self.spread,
            "errors": np.array([term.error for term in self.compiled]),
            "errors_outside": np.array([term.error_outside for term in self.compiled]),
            "rounding": np.array([term.rounding for term in self.compiled]),
        }
        levels: dict[int, LevelAxis] = {}
        terms = []
        for number, term in enumerate(self.compiled):
            tensors[f"terms/{number}/values"] = term.values
            axes: list[dict[str, Any]] = []
            for place, axis in enumerate(term.axes):
                if isinstance(axis, NumberAxis):
                    tensors[f"terms/{number}/knots/{place}"] = axis.knots
                    axes.append({"kind": "numbers", "column": axis.column})
                else:
                    feature = next(k for k in term.features if self.features[k].columns == axis.columns)
                    levels[feature] = axis
                    axes.append({"kind": "levels", "feature": feature})
            terms.append({"features": term.features, "axes": axes, "exact": term.exact})
        features = [vars(feature) | {"levels": None} for feature in self.features]
        for feature, axis in levels.items():
            if isinstance(axis.levels, tuple):
                features[feature]["levels"] = axis.levels
            else:
                features[feature]["levels"] = "tensor"
                tensors[f"levels/{feature}"] = axis.levels
        about = {
            "features": features,
            "columns": {"names": self.column_names, "count": self.column_count},
            "outputs": self.output_names,
            "terms": terms,
            "left_out": self.left_out,
            "tolerance": self.tolerance,
        }
        store.save(path, kind=KIND, version=VERSION, tensors=tensors, about=about)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads what `save` wrote; needs neither torch nor the model.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is damaged, of another kind, or of another version.
        """
        tensors, about = store.load(path, kind=KIND, version=VERSION, framework="numpy")
        try:
            return cls._restored(tensors, about)
        except (KeyError, TypeError, IndexError) as damaged:
            raise ValueError(f"path {str(path)!r} lacks a part of the compiled explainer ({damaged}).") from damaged

    @classmethod
    def _restored(cls, tensors: Mapping[str, Array], about: Mapping[str, Any]) -> Self:
        features = tuple(
            CompiledFeature(f["name"], tuple(f["columns"]), _pairs(f["ranges"]), _pairs(f["limits"]))
            for f in about["features"]
        )
        levels = {
            position: LevelAxis(
                features[position].columns,
                tensors[f"levels/{position}"] if f["levels"] == "tensor" else tuple(f["levels"]),
            )
            for position, f in enumerate(about["features"])
            if f["levels"] is not None
        }

        def axis(number: int, place: int, kept: Mapping[str, Any]) -> Axis:
            if kept["kind"] == "levels":
                return levels[kept["feature"]]
            return NumberAxis(kept["column"], tensors[f"terms/{number}/knots/{place}"])

        terms = tuple(
            CompiledTerm(
                tuple(term["features"]),
                tuple(axis(number, place, kept) for place, kept in enumerate(term["axes"])),
                tensors[f"terms/{number}/values"],
                term["exact"],
                tensors["errors"][number],
                tensors["errors_outside"][number],
                tensors["rounding"][number],
            )
            for number, term in enumerate(about["terms"])
        )
        names = about["columns"]["names"]
        return cls(
            features=features,
            column_names=None if names is None else tuple(names),
            column_count=about["columns"]["count"],
            output_names=tuple(about["outputs"]),
            compiled=terms,
            base_values=tensors["base_values"],
            baseline_contributions=tensors["baseline_contributions"],
            spread=tensors["spread"],
            tolerance=about["tolerance"],
            left_out=tuple(tuple(term) for term in about["left_out"]),
        )

    def __repr__(self) -> str:
        nodes = sum(term.values[..., 0].size for term in self.compiled)
        worst = max((float((term.error / self.spread).max()) for term in self.compiled), default=0.0)
        counts = ((len(self.compiled), "term"), (len(self.output_names), "output"), (nodes, "node"))
        said = [f"{count} {what}" if count == 1 else f"{count} {what}s" for count, what in counts]
        missed = self.missed
        if missed:
            shown = ", ".join(term_name(term) for term in missed[:3]) + (", ..." if len(missed) > 3 else "")
            said.append(f"tolerance {self.tolerance:g} missed by {shown}")
        if self.left_out:
            said.append(f"{len(self.left_out)} interactions left out")
        return f"CompiledExplainer({', '.join(said)}; error at most {worst:.1e} of the spread)"


def _spread_over(work: Callable[[int], None], starts: Sequence[int], threads: int) -> None:
    if threads == 1 or len(starts) < 2:
        for start in starts:
            work(start)
        return
    with ThreadPoolExecutor(min(threads, len(starts))) as pool:
        for done in [pool.submit(work, start) for start in starts]:
            done.result()


def _checked_threads(threads: int | None) -> int:
    if threads is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if isinstance(threads, bool) or not isinstance(threads, int | np.integer) or threads < 1:
        raise ValueError(f"threads must be a whole number of at least 1, found {threads!r}.")
    return int(threads)


def _checked_predictions(predictions: Any, rows: int, outputs: int) -> Array | None:
    if predictions is None:
        return None
    given = predictions.detach().cpu().double().numpy() if hasattr(predictions, "detach") else predictions
    found = np.array(given, dtype=np.float64)
    if found.ndim == 1 and outputs == 1:
        found = found[:, None]
    if found.shape != (rows, outputs):
        raise ValueError(f"predictions must have shape {(rows, outputs)}, found {found.shape}.")
    return found


def _pairs(nested: Sequence[Sequence[float]]) -> tuple[tuple[float, float], ...]:
    return tuple((low, high) for low, high in nested)


def _listed(names: Sequence[str], at_most: int = 12) -> str:
    shown = ", ".join(map(repr, names[:at_most]))
    return shown + (f" and {len(names) - at_most} more" if len(names) > at_most else "")


def _value_rows(values: Any, feature: CompiledFeature) -> NDArray[Any]:
    """Values of a feature as rows, one column a member."""
    members = len(feature.columns)
    given = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    given = given.reshape(-1, members) if given.ndim < 2 else given
    if given.ndim != 2 or given.shape[1] != members:
        raise ValueError(f"values of {feature.name!r} must be rows of {members}, found shape {given.shape}.")
    return given
