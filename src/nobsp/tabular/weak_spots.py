"""Regions where functions explain least, found on half of the rows, measured on the other half."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from nobsp._typing import AnyArray, BoolArray, FloatArray
from nobsp.arguments import require_number, require_whole_number, with_minus
from nobsp.findings import Finding
from nobsp.frames import is_missing
from nobsp.numerics import evenly_spaced
from nobsp.tabular.explanation import Explanation
from nobsp.tabular.functions import Functions
from nobsp.tabular.health import r_squared
from nobsp.tabular.indexing import term_name
from nobsp.tabular.lookup import Feature, Places, read_columns

# Fewest rows that are searched, and fewest of a region in either half.
FEWEST_ROWS = 200
FEWEST_IN_REGION = 20
# Most rows that are searched.
MOST_ROWS = 20_000
# How many times the usual squared residual a region must have: where predictions hardly vary, R² is
# low without any fault of the functions.
CLEARLY_WORSE = 2.0
# Share of the largest squared residuals that do not count for more than the others: a tree would
# cut single rows out.
CAPPED = 0.01
# Features of which interactions are tried, by how well a tree tells the residual with them.
TRIED_FEATURES = 8
# Leaves of the trees that try an interaction, and what they must gain beyond single features to be
# named.
TRIED_LEAVES = 48
LEAST_GAIN = 0.05
# How many standard errors a gain must exceed, as it is the largest of some forty.
CLEAR_GAIN = 3.0
# Keeps a division by a residual of zero finite.
_LEAST = 1e-300
# The largest number that a tree takes: sums over all rows must be finite in single precision.
_LARGEST = float(np.finfo(np.float32).max) / 2**32
# What health tells of: regions of at least this share of the rows, with an R² below this.
TOLD_SHARE = 0.02
TOLD_BELOW = 0.5
# And how many: where little is explained anywhere, one region follows on another.
MOST_TOLD = 3


@dataclass(frozen=True)
class Condition:
    """One condition on a feature.

    Attributes:
        feature: Its name.
        above: The number that it must exceed; None without.
        up_to: The number that it must not exceed; None without.
        levels: The levels it may have, of a category; None for numbers.
        with_missing: Whether a missing number belongs to the region. Where it does not, and there
            is no other condition, all known numbers do.
    """

    feature: str
    above: float | None = None
    up_to: float | None = None
    levels: tuple[str, ...] | None = None
    with_missing: bool = False

    def __str__(self) -> str:
        if self.levels is not None:
            return f"{self.feature} in {{{', '.join(self.levels)}}}"
        missing = " or missing" if self.with_missing else ""
        if self.with_missing and self.above is not None and not np.isfinite(self.above):
            return f"{self.feature} missing"
        above = None if self.above is None else with_minus(self.above, ".4g")
        up_to = None if self.up_to is None else with_minus(self.up_to, ".4g")
        if above is None and up_to is None:
            return f"{self.feature} not missing"
        if above is None:
            return f"{self.feature} ≤ {up_to}{missing}"
        if up_to is None:
            return f"{self.feature} > {above}{missing}"
        return f"{above} < {self.feature} ≤ {up_to}{missing}"


@dataclass(frozen=True, eq=False, repr=False)
class WeakSpot:
    """A region where the functions explain little, as `NObSP.weak_spots` found it.

    Attributes:
        conditions: What a row must meet to be in it, at most as many as were asked for.
        output: Of which output.
        share: Share of the rows, in the half that was measured on.
        n_rows: How many rows that is.
        explained: R² there, against the mean prediction in the region.
        error: Root mean square residual there.
        usual_error: The same over all rows of that half.
        interaction: Features whose interaction would tell most of the residual there; one feature
            where its own function does, and none where nothing small was clearly found.
        gain: Share of the squared residual there that a small tree of these features takes away.
        rows: Positions in `X` of all rows in the region.
        is_fitted: Whether these features have a term, which is then too coarse, or of another shape
            in this region.

    Example:
        >>> import numpy as np, nobsp
        >>> X = np.random.default_rng(0).normal(size=(2000, 3))
        >>> def model(X):
        ...     return X[:, 0] + 3 * (X[:, 0] > 0.5) * np.sin(6 * X[:, 1]) * np.sign(X[:, 2])
        >>> explainer = nobsp.NObSP(model, interactions=0).fit(X)
        >>> spot = explainer.weak_spots(X)[0]
        >>> spot.conditions[0].feature
        'x0'
    """

    conditions: tuple[Condition, ...]
    output: str
    share: float
    n_rows: int
    explained: float
    error: float
    usual_error: float
    interaction: tuple[str, ...]
    gain: float
    rows: Places
    is_fitted: bool = False

    @property
    def where(self) -> str:
        """The conditions in words."""
        return " and ".join(str(condition) for condition in self.conditions)

    @property
    def message(self) -> str:
        """What is known of it, in a sentence or two."""
        sentences = (
            f"Where {self.where} ({self.share:.1%} of the rows), R² is "
            f"{with_minus(self.explained, '.2f')}: residuals are "
            f"{self.error / self.usual_error:.1f} times as large as on all rows."
        )
        if len(self.interaction) > 1 and not self.is_fitted:
            sentences += (
                f" The interaction of {term_name(self.interaction)} would explain {self.gain:.0%} "
                f"of them; fit with interactions=[..., {self.interaction!r}]."
            )
        elif self.interaction:
            sentences += (
                f" {term_name(self.interaction)} alone would explain {self.gain:.0%} of them: its "
                "function has more detail than its table, or differs in this region."
            )
        else:
            sentences += (
                " No interaction of up to three features was found that would explain them: more "
                "features act together there, or in a way that a small tree does not follow."
            )

        return sentences

    def __repr__(self) -> str:
        return f"WeakSpot({self.message})"


def find_weak_spots(
    explanation: Explanation,
    *,
    below: float,
    least_share: float,
    most_conditions: int,
    output: int | None = None,
) -> tuple[WeakSpot, ...]:
    """Regions of some rows where R² is low, the lowest first."""
    require_number("below", below, most=1)
    require_number("least_share", least_share, above=0, below=1)
    require_whole_number("most_conditions", most_conditions)
    functions = explanation.origin
    assert isinstance(functions, Functions)
    known = np.flatnonzero(np.isfinite(explanation.residual).all(1))
    if len(known) < FEWEST_ROWS:
        raise ValueError(
            f"X has {len(known):,} rows with predictions, but weak spots need {FEWEST_ROWS} or "
            "more."
        )
    if not any(map(_is_searched, functions.features)):
        return ()
    columns, _ = read_columns(functions, explanation.data)
    searched = known[evenly_spaced(len(known), MOST_ROWS)]
    order = np.random.default_rng(0).permutation(searched)
    halves = (np.sort(order[::2]), np.sort(order[1::2]))

    spots: list[WeakSpot] = []
    outputs = range(len(explanation.output_names)) if output is None else [output]
    for position in outputs:
        search = _Search.of(explanation, functions, columns, halves, position)
        for region in search.regions(below, least_share, most_conditions):
            spot = search.measure(region, known)
            is_weak = spot.explained < below and spot.share >= least_share
            is_worse = spot.error**2 >= CLEARLY_WORSE * spot.usual_error**2
            if is_weak and is_worse and spot.n_rows >= FEWEST_IN_REGION:
                spots.append(spot)
    return tuple(sorted(spots, key=lambda spot: spot.explained))


def weak_spot_findings(explanation: Explanation) -> list[Finding]:
    """What health tells of these rows: regions of 2% or more with an R² below one half."""
    n_known = int(np.isfinite(explanation.residual).all(1).sum())
    if n_known < FEWEST_ROWS or not isinstance(explanation.origin, Functions):
        return []
    spots = find_weak_spots(
        explanation, below=TOLD_BELOW, least_share=TOLD_SHARE, most_conditions=3
    )
    messages = [spot.message for spot in spots[:MOST_TOLD]]
    if len(spots) > MOST_TOLD:
        more = len(spots) - MOST_TOLD
        messages[-1] += f" Such regions that are not listed: {more}; `weak_spots(X)` has them all."
    several = len(explanation.output_names) > 1
    return [
        Finding("warning", "weak_spot", spot.output if several else "", message)
        for spot, message in zip(spots, messages, strict=False)
    ]


@dataclass(frozen=True, eq=False)
class _Coded:
    """A feature as numbers that a tree can split."""

    name: str
    numbers: FloatArray  # less `middle`
    levels: tuple[str, ...] | None  # names of the codes 0, 1, …, of a category
    middle: float = 0.0


@dataclass(frozen=True, eq=False)
class _Region:
    """A node of the tree: per feature the numbers that are in it."""

    limits: Mapping[int, tuple[float, float, bool]]  # above, up to, and whether missing ones are in

    def holds(self, matrix: FloatArray) -> BoolArray:
        """Which rows are in it."""
        inside = np.ones(len(matrix), dtype=bool)
        for feature, (above, up_to, with_missing) in self.limits.items():
            column = matrix[:, feature]
            within = (column > above) & (column <= up_to)
            inside &= within | (np.isnan(column) & with_missing)
        return inside


class _Gains(NamedTuple):
    """What a tree of some features takes away of the squared residual of rows."""

    term: tuple[int, ...]
    per_row: FloatArray  # as a share of all rows' squared residual


@dataclass(frozen=True, eq=False)
class _Search:
    """Rows of one output, half to find regions on and half to measure them on."""

    features: tuple[_Coded, ...]
    matrix: FloatArray  # (rows, features)
    residual: FloatArray
    predictions: FloatArray
    found_on: Places
    measured_on: Places
    output: str
    fitted_terms: frozenset[frozenset[str]]

    @classmethod
    def of(
        cls,
        explanation: Explanation,
        functions: Functions,
        columns: Mapping[int, AnyArray],
        halves: tuple[Places, Places],
        output: int,
    ) -> _Search:
        """Features as numbers; levels in the order of their squared residuals on the first half."""
        squares = np.square(explanation.residual[:, output])
        features = []
        for feature in functions.features:
            if _is_searched(feature):
                column = np.asarray(columns[feature.columns[0]])
                features.append(_code(feature.name, column, squares, halves[0]))
        return cls(
            features=tuple(features),
            matrix=np.column_stack([feature.numbers for feature in features]),
            residual=explanation.residual[:, output],
            predictions=explanation.predictions[:, output],
            found_on=halves[0],
            measured_on=halves[1],
            output=explanation.output_names[output],
            fitted_terms=frozenset(map(frozenset, explanation.terms)),
        )

    def regions(self, below: float, least_share: float, most_conditions: int) -> list[_Region]:
        """Nodes of a tree of squared residuals whose R² is low, with all or none of their parts."""
        from sklearn.tree import DecisionTreeRegressor

        rows = self.found_on
        squares = np.square(self.residual[rows])
        squares = np.minimum(squares, np.quantile(squares, 1 - CAPPED))
        if not squares.max() > 0:
            return []
        fewest = max(FEWEST_IN_REGION, int(np.ceil(least_share * len(rows))))
        tree = DecisionTreeRegressor(
            max_depth=most_conditions, min_samples_leaf=fewest, random_state=0
        ).fit(self.matrix[rows], squares / squares.max())

        usual = float(np.square(self.residual[rows]).mean())
        regions = []
        waiting = [(0, _Region({}))]
        while waiting:
            node, region = waiting.pop()
            children = _children(tree.tree_, node, region)
            weak = [child for child in children if self._is_weak(child[1], below, usual)]
            # A weak region of which one part is not weak is smaller than it seems.
            is_whole = len(weak) != 1
            if region.limits and is_whole and self._is_weak(region, below, usual):
                regions.append(region)
                continue
            waiting += children
        return regions

    def _is_weak(self, region: _Region, below: float, usual: float) -> bool:
        """Whether R² in a region is low, and errors are large, on the half that it was found on."""
        rows = self.found_on[region.holds(self.matrix[self.found_on])]
        errors = float(np.square(self.residual[rows]).mean())
        return errors >= CLEARLY_WORSE * usual and self._explained(rows) < below

    def _explained(self, rows: Places) -> float:
        """R² on some rows."""
        share = r_squared(self.residual[rows][:, None], self.predictions[rows][:, None])[0]
        # Where predictions do not vary at all, residuals explain nothing away.
        return float(share) if np.isfinite(share) else -np.inf

    def measure(self, region: _Region, known: Any) -> WeakSpot:
        """A region on the half that it was not found on."""
        inside = region.holds(self.matrix[self.measured_on])
        rows = self.measured_on[inside]
        interaction, gain = self._missing_interaction(rows)
        return WeakSpot(
            conditions=tuple(
                self._condition(feature, *limits) for feature, limits in region.limits.items()
            ),
            output=self.output,
            share=float(inside.mean()),
            n_rows=len(rows),
            explained=self._explained(rows) if len(rows) > 1 else np.nan,
            error=float(np.sqrt(np.square(self.residual[rows]).mean())) if len(rows) else 0.0,
            usual_error=float(np.sqrt(np.square(self.residual[self.measured_on]).mean())),
            interaction=interaction,
            gain=gain,
            rows=known[region.holds(self.matrix[known])],
            is_fitted=len(interaction) == 1 or frozenset(interaction) in self.fitted_terms,
        )

    def _condition(self, feature: int, above: float, up_to: float, with_missing: bool) -> Condition:
        """Limits of a feature in words."""
        coded = self.features[feature]
        if coded.levels is not None:
            inside = [level for code, level in enumerate(coded.levels) if above < code <= up_to]
            return Condition(coded.name, levels=tuple(inside))
        has_missing = bool(np.isnan(coded.numbers).any())
        return Condition(
            coded.name,
            above=None if above == -np.inf else float(above + coded.middle),
            up_to=None if up_to == np.inf else float(up_to + coded.middle),
            with_missing=with_missing and has_missing,
        )

    def _missing_interaction(self, rows: Places) -> tuple[tuple[str, ...], float]:
        """Features by which a small tree tells most of the residual of some rows.

        The tree is grown on the first half of the rows.
        """
        if len(rows) < FEWEST_IN_REGION:
            return (), 0.0
        candidates = self._tried_features()
        if len(candidates) < 2:
            return (), 0.0
        single = self._best([(k,) for k in candidates], rows)
        pair = self._best(list(combinations(candidates, 2)), rows)
        others = [k for k in candidates if k not in pair.term]
        triple = self._best([(*pair.term, k) for k in others], rows)
        # A tree may follow a pair only after splits of a third feature, whichever that is.
        without_third = _Gains(pair.term, self._gains(triple.term, rows, shuffles_last=True))

        best = _Gains((), np.zeros(len(rows)))
        for larger in (single, pair, without_third, triple):
            if larger.term and _is_clear(larger.per_row - best.per_row):
                best = larger
        return tuple(self.features[k].name for k in sorted(best.term)), float(best.per_row.sum())

    def _best(self, terms: Sequence[tuple[int, ...]], rows: Places) -> _Gains:
        """The features that take most away, among some."""
        tried = [_Gains(term, self._gains(term, rows)) for term in terms]
        nothing = _Gains((), np.zeros(len(rows)))
        return max(tried, key=lambda gains: float(gains.per_row.sum()), default=nothing)

    def _tried_features(self) -> list[int]:
        """The features that a tree of the residual uses most."""
        from sklearn.tree import DecisionTreeRegressor

        rows = self.found_on
        tree = DecisionTreeRegressor(max_depth=6, min_samples_leaf=10, random_state=0)
        tree.fit(self.matrix[rows], self.residual[rows])
        order = np.argsort(-tree.feature_importances_, kind="stable")[:TRIED_FEATURES]
        return sorted(int(k) for k in order)

    def _gains(
        self, features: Sequence[int], rows: Places, *, shuffles_last: bool = False
    ) -> FloatArray:
        """What a small tree of some features takes away of some rows' squared residual.

        Per row, as a share of all. With `shuffles_last` the last feature tells nothing.
        """
        from sklearn.tree import DecisionTreeRegressor

        if not features:
            return np.zeros(len(rows))
        matrix = self.matrix[:, list(features)]
        if shuffles_last:
            matrix[:, -1] = np.random.default_rng(0).permutation(matrix[:, -1])
        tree = DecisionTreeRegressor(
            max_leaf_nodes=TRIED_LEAVES, min_samples_leaf=5, random_state=0
        )
        tree.fit(matrix[self.found_on], self.residual[self.found_on])
        left = self.residual[rows] - tree.predict(matrix[rows])
        before = np.square(self.residual[rows])
        gains: FloatArray = (before - np.square(left)) / max(before.sum(), _LEAST)
        return gains


def _is_searched(feature: Feature) -> bool:
    """Whether regions may have conditions on a feature: a single column that the model uses."""
    return len(feature.columns) == 1 and feature.kind in ("number", "levels")


def _is_clear(gains: FloatArray) -> bool:
    """Whether rows gain enough together, and more than they would by chance."""
    least_by_chance = CLEAR_GAIN * gains.std() * len(gains) ** 0.5
    return bool(gains.sum() > max(LEAST_GAIN, least_by_chance))


def _code(name: str, column: AnyArray, squares: FloatArray, rows: Places) -> _Coded:
    """A column as numbers: as it is, or as positions of levels, small residuals first."""
    if column.dtype.kind in "biuf":
        return _code_numbers(name, column.astype(np.float64))

    texts = np.array(["missing" if is_missing(value) else str(value) for value in column.tolist()])
    names, codes = np.unique(texts, return_inverse=True)
    codes = codes.reshape(-1)
    sums = np.bincount(codes[rows], weights=squares[rows], minlength=len(names))
    counts = np.bincount(codes[rows], minlength=len(names))
    order = np.argsort(sums / np.maximum(counts, 1), kind="stable")
    rank = np.empty(len(names))
    rank[order] = np.arange(len(names))
    return _Coded(name, rank[codes], tuple(str(names[position]) for position in order))


def _code_numbers(name: str, column: FloatArray) -> _Coded:
    """Numbers by their distance from the middle one, which a tree can tell apart.

    Trees take single precision: seconds since 1970 would be minutes, and some numbers are too large
    for it.
    """
    known = column[np.isfinite(column)]
    middle = float(np.median(known)) if len(known) else 0.0
    numbers = np.clip(column - middle, -_LARGEST, _LARGEST)
    return _Coded(name, numbers, None, middle)


def _children(tree: Any, node: int, region: _Region) -> list[tuple[int, _Region]]:
    """The two parts of a region that a node of a tree makes; none of a leaf."""
    left, right = int(tree.children_left[node]), int(tree.children_right[node])
    if left < 0:
        return []
    feature = int(tree.feature[node])
    threshold = float(tree.threshold[node])
    missing_left = bool(tree.missing_go_to_left[node])
    above, up_to, with_missing = region.limits.get(feature, (-np.inf, np.inf, True))
    lower = (above, min(up_to, threshold), with_missing and missing_left)
    upper = (max(above, threshold), up_to, with_missing and not missing_left)
    return [
        (left, _Region({**region.limits, feature: lower})),
        (right, _Region({**region.limits, feature: upper})),
    ]
