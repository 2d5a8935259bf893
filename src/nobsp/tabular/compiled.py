"""Functions as they are used: every term's table with what is known of it, in a small file, needing numpy only."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from statistics import NormalDist
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from nobsp import serialization
from nobsp._messages import as_numpy, count, matched, require_whole_number, suggest
from nobsp.arguments import numbers_of, require_choice, require_number
from nobsp.base import Finding, describe_findings, is_healthy
from nobsp.tabular.distance import Reach
from nobsp.tabular.explanation import Explanation, Term, as_table, output_position, term_name
from nobsp.tabular.lookup import Array, Chunk, Feature, LevelAxis, NumberAxis, TermTable, value_rows
from nobsp.tabular.scoring import MultiOutput, average_share

KIND = "compiled explainer"
VERSION = 4

Measure = Callable[[], dict[int, Array]]

# Rows read at once: few enough that a chunk of some ten columns stays in the processor's cache.
_CHUNK_ROWS = 8192
# Numbers with at most so many distinct values are drawn at these.
_FEW_POINTS = 30
# Columns of curves as a table.
_CURVES = ("feature", "output", "x", "level", "value", "lower", "upper")


@dataclass(frozen=True)
class TermHealth:
    """One term.

    Attributes:
        term: Names of its features.
        rank: Directions its representation uses.
        unique_share: Share of the spread of its contributions that those of the other terms cannot reproduce.
        forward_rows: Rows sent through the network for every row that is explained; zero for tables.
        from_average: Per output how far a feature's curve is from partial dependence, root mean square over the rows as
            a share of the output's spread; empty where that is not known.
    """

    term: tuple[str, ...]
    rank: int
    unique_share: float
    forward_rows: int = 0
    from_average: tuple[float, ...] = ()


@dataclass(frozen=True, repr=False)
class Health:
    """The state of a calibration.

    Attributes:
        findings: What is worth knowing, the worst first; empty when all is well.
        terms: One entry per term.
        explained: Held-out R² per output: the share of its variance that the terms explain on rows that were not used
            for the coefficients. As published, on the calibration rows themselves.
        inside: The same on rows inside the range of the rows fitted on.
        outside_rows: Share of the rows held out that lie outside that range.
        rows: Calibration rows.
        columns: Columns of the regression, or the width of the reference where terms are fitted one by one.
        held_out: Whether `explained` was measured on rows held out.
        scatter: Standard error of `explained` over the rows; empty where it is not known.
        neighbourhoods: Held-out R² per output with whole neighbourhoods of rows held out, at the strengths that are
            used; empty where it was not measured. Clearly below `explained` where rows come in clusters.
        forward_rows: Rows that were sent through the model to calibrate; zero where they were not counted.
        variance: Variance of every output over the calibration rows; empty where it is not known.
    """

    findings: tuple[Finding, ...]
    terms: tuple[TermHealth, ...]
    explained: tuple[float, ...]
    inside: tuple[float, ...]
    outside_rows: float
    rows: int
    columns: int
    held_out: bool = True
    scatter: tuple[float, ...] = ()
    neighbourhoods: tuple[float, ...] = ()
    forward_rows: int = 0
    variance: tuple[float, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether there is neither an error nor a warning."""
        return is_healthy(self.findings)

    @property
    def headline(self) -> str:
        """The share explained, in one phrase; of the worst output where there are several."""
        shares = [share for share in self.explained if not math.isnan(share)]
        if not shares:
            few = any(finding.code == "few_rows" for finding in self.findings)
            return "too few rows for a held-out R²" if few else "no output varies"
        what = "held-out R²" if self.held_out else "R² on the calibration rows"
        return f"{what} {min(shares):.3f}" + (
            " for the worst output" if len(self.explained) > 1 else ""
        )

    def __repr__(self) -> str:
        counts = f"{self.rows:,} rows, {len(self.terms)} terms, {self.headline}"
        shares = [share for share in self.inside if not math.isnan(share)]
        if (
            self.held_out
            and shares
            and abs(min(shares) - min(s for s in self.explained if s == s)) >= 0.0005
        ):
            counts += (
                f" ({min(shares):.3f} without the {self.outside_rows:.1%} of the rows held out that lie outside the "
                "range of those fitted on)"
            )
        return "\n".join([f"{counts}.", *describe_findings(self.findings)])


@dataclass(frozen=True, eq=False, repr=False)
class CompiledExplainer:
    """An explainer that does not need its network: the same functions, the same account, numpy only.

    `NObSP.compile` gives it. There is no network to predict with: the explanation's `predictions` and `residual` are
    NaN unless the network's outputs are handed in. A number outside its calibrated range, a missing one and a level
    that calibration did not see are flagged in `outside`; a level that was not seen contributes nothing.

    Attributes:
        features: The features and their columns.
        column_names: Names of the caller's columns, where they have any.
        column_count: How many columns the caller's table has.
        output_names: Names of the outputs.
        tables: Every term's table; single features first.
        base_values: Mean output over the calibration rows, shape (outputs,).
        baseline_contributions: What each term contributes at the baseline, shape (terms, outputs).
        baseline: Where each feature's baseline is: a number, or the position of a level; NaN where there is none.
        state: How well the functions describe the model.
        link: What the model applies to its outputs.
        importances: Mean absolute contributions over calibration rows, (features, outputs), "main" and "total".
        strengths: Per pair of features how strongly it acts together, where that was measured.
        left_out: Terms that have no table and need the network.
        spreads: Per feature how far its curve moves from calibration to calibration, (points, outputs).
        reach: Which combinations of numbers are usual; None where too little is known.

    Example:
        >>> import numpy as np, torch
        >>> from nobsp import NObSP
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).double()
        >>> X = np.random.default_rng(0).normal(size=(500, 3))
        >>> explainer = NObSP(model, features=["a", "b", "c"]).fit(X)
        >>> compiled = explainer.compile()
        >>> bool((compiled(X).values == explainer(X).values).all())
        True
    """

    features: tuple[Feature, ...]
    column_names: tuple[str, ...] | None
    column_count: int
    output_names: tuple[str, ...]
    tables: tuple[TermTable, ...]
    base_values: Array
    baseline_contributions: Array
    baseline: Array
    state: Health
    link: str
    importances: dict[str, Array]
    strengths: dict[tuple[int, ...], float]
    left_out: tuple[Term, ...] = ()
    spreads: dict[int, Array] = field(default_factory=dict)
    reach: Reach | None = None
    _measure: Measure | None = field(default=None, init=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Pickled with its bands: what measures them holds the calibration rows, and stays here."""
        return {**self.with_spreads().__dict__, "_measure": None}

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(feature.name for feature in self.features)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms that have tables, as names of features."""
        return tuple(tuple(self.features[k].name for k in table.features) for table in self.tables)

    def explain(
        self, X: Any, *, predictions: Any = None, threads: int | None = None
    ) -> Explanation:
        """The account of every row, as the explainer this was compiled from gives it.

        Args:
            X: Array, tensor, or pandas or polars frame with the calibrated columns. Contiguous float32 and
                float64 arrays are read in place.
            predictions: The network's outputs (logits) for the rows, from which the residual follows. Both are
                NaN without.
            threads: How many threads share the rows; one per processor when None.
        """
        if threads is None:
            threads = (
                len(os.sched_getaffinity(0))
                if hasattr(os, "sched_getaffinity")
                else os.cpu_count() or 1
            )
        require_whole_number("threads", threads)
        columns, rows = self.read_columns(X)
        given = np.full((rows, len(self.output_names)), np.nan)
        if predictions is not None:
            found = numbers_of(predictions, name="predictions").copy()
            if found.size != given.size or found.ndim > 2 or found.shape[:1] != (rows,):
                raise ValueError(f"predictions must have shape {given.shape}, found {found.shape}.")
            given = found.reshape(given.shape)
        values, outside = self.read_tables(columns, rows, threads=threads)
        return self.account(X, given, values, outside)

    __call__ = explain

    def score(
        self,
        X: Any,
        predictions: Any,
        *,
        multioutput: MultiOutput = "uniform_average",
    ) -> float | Array:
        """R² of the functions' sum against the model's outputs on some rows; see `NObSP.score`."""
        return average_share(self.explain(X, predictions=predictions).explained(), multioutput)

    def account(
        self, X: Any, predictions: Array, values: Array, outside: NDArray[np.bool_]
    ) -> Explanation:
        """The account of rows whose predictions and contributions are known."""
        return Explanation(
            values=values,
            base_values=self.base_values.copy(),
            residual=predictions - self.base_values - values.sum(1),
            predictions=predictions,
            terms=self.terms,
            feature_names=self.feature_names,
            output_names=self.output_names,
            data=X,
            outside=outside,
            baseline_contributions=self.baseline_contributions.copy(),
            explainer=self,
        )

    def read_tables(
        self, columns: Mapping[int, NDArray[Any]], rows: int, *, threads: int = 1
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Contributions (rows, tables, outputs), and which features lie outside their range (rows, features)."""
        values = np.empty((rows, len(self.tables), len(self.output_names)))
        outside = np.zeros((rows, len(self.features)), dtype=bool)

        axes = self.level_axes
        with_missing = {
            table.features[0]
            for table in self.tables
            if len(table.axes) == 1
            and isinstance(table.axes[0], NumberAxis)
            and table.axes[0].missing
        }

        def work(start: int) -> None:
            here = slice(start, min(start + _CHUNK_ROWS, rows))
            chunk = Chunk(columns, here, self.column_names)
            account = np.empty((len(self.tables), chunk.count, len(self.output_names)))
            for position, table in enumerate(self.tables):
                account[position] = table(chunk)
            # Written once, row by row: term by term every line of memory would be visited as often as there are terms.
            values[here] = account.transpose(1, 0, 2)
            for position, feature in enumerate(self.features):
                if position in axes:
                    places, beyond = chunk.places(axes[position])
                    if beyond:
                        outside[here, position] = places == len(axes[position])
                elif feature.span is not None:
                    column, (low, high) = feature.columns[0], feature.span
                    x = chunk.numbers(column)
                    if (
                        columns[column].dtype == np.float32
                    ):  # a float32 copy of calibration rows lies within the range
                        low, high = float(np.float32(low)), float(np.float32(high))
                    if x.min() >= low and x.max() <= high:  # no NaN either
                        continue
                    inside = (x >= low) & (x <= high)
                    if position in with_missing:
                        inside |= chunk.absent(column)
                    outside[here, position] = ~inside
                    # A missing number that has no place in the tables contributes nothing.
                    unknown = start + np.flatnonzero(np.isnan(x))
                    values[unknown] = np.nan_to_num(values[unknown], nan=0.0)

        starts = range(0, rows, _CHUNK_ROWS)
        if threads == 1 or len(starts) < 2:
            for start in starts:
                work(start)
        else:
            with ThreadPoolExecutor(min(threads, len(starts))) as pool:
                list(pool.map(work, starts))
        return values, outside

    @property
    def level_axes(self) -> dict[int, LevelAxis]:
        """Per feature that is a category, its levels."""
        pairs = [
            pair for table in self.tables for pair in zip(table.features, table.axes, strict=False)
        ]
        return {k: axis for k, axis in reversed(pairs) if isinstance(axis, LevelAxis)}

    def function(self, term: str | Sequence[str], *, output: int | str = 0) -> Callable[..., Array]:
        """The function of a feature, or of an interaction, as something to call on values; see `NObSP.function`."""
        named = tuple(term) if isinstance(term, tuple | list) else (term,)
        asked = [self.features[self.position(name)] for name in named]
        table = next(
            (
                one
                for one, names in zip(self.tables, self.terms, strict=True)
                if set(names) == set(named)
            ),
            None,
        )
        if table is None or len(set(named)) != len(named):
            raise ValueError(f"{term_name(named)} has no table; `terms` names the terms there are.")
        chosen = output_position(output, self.output_names)

        def evaluate(*given: NDArray[Any]) -> Array:
            members = {
                column: one[:, i]
                for one, feature in zip(given, asked, strict=True)
                for i, column in enumerate(feature.columns)
            }
            return table(Chunk(members, slice(0, len(given[0])), self.column_names))[
                :, chosen
            ].copy()

        readers = [
            partial(value_rows, members=len(feature.columns), name=feature.name)
            for feature in asked
        ]
        return function_of(named, readers, evaluate)

    def position(self, name: str) -> int:
        """Position of a feature, or an error with the close matches."""
        if name not in self.feature_names:
            raise ValueError(f"no feature {name!r}; {suggest(name, self.feature_names)}")
        return self.feature_names.index(name)

    def points(self, feature: int) -> tuple[Any, Array]:
        """The table behind a feature: knots (or levels) and the contributions there, (points, outputs)."""
        table = next((one for one in self.tables if one.features == (feature,)), None)
        if table is None or len(table.axes) != 1:
            raise ValueError(
                f"feature {self.feature_names[feature]!r} is no function of one column."
            )
        axis = table.axes[0]
        return (axis.knots if isinstance(axis, NumberAxis) else axis.levels), table.values

    def with_spreads(self) -> CompiledExplainer:
        """The same with what bands are made of, measured now if it was not yet."""
        if not self.spreads and self._measure is not None:
            self.spreads.update(self._measure())
            object.__setattr__(self, "_measure", None)  # it holds the calibration rows
        return self

    def curves(self, points: int = 200, *, level: float = 0.9) -> Any:
        """Every feature's function with its band, as a tidy table; see `NObSP.curves`."""
        require_whole_number("points", points, least=2)
        require_number("level", level, above=0, below=1)
        spreads = self.with_spreads().spreads
        width = NormalDist().inv_cdf(0.5 + level / 2)
        found: list[dict[str, Any]] = []
        for table in self.tables:
            if len(table.axes) != 1:
                continue
            k = table.features[0]
            x, labels, chunk = _drawn_at(self.features[k], table.axes[0], int(points))
            values = table(chunk)
            away = np.full_like(values, np.nan)
            if k in spreads:
                away = width * TermTable(table.features, table.axes, spreads[k])(chunk)
            for position, output in enumerate(self.output_names):
                value, band = values[:, position], away[:, position]
                names = [
                    np.full(len(x), name, dtype=object) for name in (self.features[k].name, output)
                ]
                columns = (
                    *names,
                    x,
                    np.array(labels, dtype=object),
                    value,
                    value - band,
                    value + band,
                )
                found.append(dict(zip(_CURVES, columns, strict=True)))
        return as_table(
            {key: np.concatenate([np.zeros(0), *(part[key] for part in found)]) for key in _CURVES}
        )

    def importance(self, kind: Literal["total", "main"] = "total") -> Any:
        """Mean absolute contribution of each feature over calibration rows; see `NObSP.importance`."""
        require_choice("kind", kind, ("main", "total"))
        sizes = self.importances[kind]
        order = np.argsort(-sizes.sum(1), kind="stable")
        outputs = len(self.output_names)
        return as_table(
            {
                "feature": np.repeat(np.array(self.feature_names, dtype=object)[order], outputs),
                "output": np.tile(np.array(self.output_names, dtype=object), len(order)),
                "importance": sizes[order].ravel(),
            }
        )

    def interaction_strengths(self) -> Any:
        """Every pair with the share of the outputs' spread that only both together make; see `NObSP`."""
        names, fitted = self.feature_names, {table.features for table in self.tables}
        return as_table(
            {
                "first": np.array([names[a] for a, _ in self.strengths], dtype=object),
                "second": np.array([names[b] for _, b in self.strengths], dtype=object),
                "strength": np.array(list(self.strengths.values()), dtype=np.float64),
                "fitted": np.array([pair in fitted for pair in self.strengths], dtype=bool),
            }
        )

    def health(self) -> Health:
        """How well the functions describe the model."""
        return self.state

    def read_columns(self, X: Any) -> tuple[dict[int, NDArray[Any]], int]:
        """The caller's columns that tables stand on, and the number of rows."""
        X = as_numpy(X) if hasattr(X, "detach") else X
        if not isinstance(X, np.ndarray):
            return self._frame_columns(X)
        if X.ndim != 2:
            raise ValueError(
                f"X must have two dimensions, found shape {X.shape}; pass one row per sample."
            )
        self._require_count(X.shape[1])
        return {position: X[:, position] for position in range(X.shape[1])}, len(X)

    def _frame_columns(self, X: Any) -> tuple[dict[int, NDArray[Any]], int]:
        import narwhals as nw

        try:
            frame = nw.from_native(X, eager_only=True, pass_through=True)
        except nw.exceptions.DuplicateError as duplicate:
            raise ValueError(
                f"X has two columns of the same name; rename one ({duplicate})."
            ) from duplicate
        if not isinstance(frame, nw.DataFrame):
            raise TypeError(f"X must be an array, a tensor or a frame, found {type(X).__name__}.")
        if self.column_names is None:
            self._require_count(len(frame.columns))
        frame = matched(frame, argument="X", columns=self.column_names)
        needed = {column for feature in self.features for column in feature.columns}
        taken = {position: np.asarray(frame[:, position].to_numpy()) for position in needed}
        return taken, len(frame)

    def _require_count(self, found: int) -> None:
        if found != self.column_count:
            raise ValueError(
                f"X has {found} columns but the explainer was calibrated on {self.column_count}."
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes everything to one safetensors file, atomically; docs/compiled-format.md describes it."""
        serialization.save(path, self.with_spreads(), kind=KIND, version=VERSION)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads what `save` wrote; needs neither torch nor the model."""
        known = (cls, *CLASSES)
        functions: Self = serialization.load(
            path, kind=KIND, version=VERSION, classes=known, framework="numpy", of=cls
        )
        with serialization.damage_in_words(path):
            functions.require_readable()
        return functions

    def require_readable(self) -> None:
        """Reads everything once: what does not fit together shows now, and not when it is used."""
        for table in self.tables:
            nodes = tuple(len(axis) for axis in table.axes)
            if table.values.shape[:-1] != (nodes or (1,)):
                raise ValueError(f"the table of {table.features} does not fit its axes")
            if not np.isfinite(table.values).all():
                raise ValueError(f"the table of {table.features} has numbers that are not finite")
            if not all(0 <= feature < len(self.features) for feature in table.features):
                raise ValueError(f"a table is of a feature {table.features} that is not there")
        if not np.isfinite(self.base_values).all():
            raise ValueError("its base values are not finite")
        self.curves(points=2)
        self.interaction_strengths()
        self.importance()
        repr(self)

    def __repr__(self) -> str:
        nodes = sum(table.values[..., 0].size for table in self.tables)
        said = [
            count(len(self.tables), "term"),
            count(len(self.output_names), "output"),
            count(nodes, "node"),
        ]
        said += [f"{len(self.left_out)} terms need the network"] if self.left_out else []
        return f"CompiledExplainer({', '.join(said)}; {self.state.headline})"


# What files of functions are made of.
CLASSES = (
    CompiledExplainer,
    Reach,
    Feature,
    Finding,
    Health,
    LevelAxis,
    NumberAxis,
    TermHealth,
    TermTable,
)


def _drawn_at(
    feature: Feature, axis: NumberAxis | LevelAxis, points: int
) -> tuple[Array, Sequence[str], Chunk]:
    """Where a feature's function is drawn: numbers, their names, and the same as rows."""
    if isinstance(axis, LevelAxis):
        named = isinstance(axis.levels, tuple)
        levels = np.array(axis.levels, dtype=object)[:, None] if named else np.asarray(axis.levels)
        chunk = Chunk(dict(zip(axis.columns, levels.T, strict=True)), slice(0, len(axis)))
        if named or len(axis.columns) > 1:
            return np.full(len(axis), np.nan), feature.labels, chunk
        return levels[:, 0], [""] * len(axis), chunk
    low, high = feature.ranges[0]
    inside = axis.knots[(axis.knots >= low) & (axis.knots <= high)]
    grid = inside if len(inside) <= _FEW_POINTS else np.linspace(low, high, points)
    labels = [""] * len(grid)
    if axis.missing:
        grid = np.append(grid, np.nan)
        labels.append("missing")
    return grid, labels, Chunk({axis.column: grid}, slice(0, len(grid)))


def function_of(
    named: Sequence[str], readers: Sequence[Callable[[Any], Any]], evaluate: Callable[..., Array]
) -> Callable[..., Array]:
    """A term's function of its features' values, each read by a reader of its own."""

    def function(*values: Any) -> Array:
        if len(values) != len(named):
            raise TypeError(
                f"the function of {term_name(named)} takes {len(named)} arrays, found {len(values)}."
            )
        given = [read(one) for read, one in zip(readers, values, strict=True)]
        lengths = [len(one) for one in given]
        if len(set(lengths)) > 1:
            raise ValueError(
                f"the values of {term_name(named)} must be equally many, found {lengths}."
            )
        return evaluate(*given) if lengths[0] else np.zeros(0)

    return function
