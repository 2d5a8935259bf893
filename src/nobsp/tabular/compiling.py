"""From a calibrated explainer to tables: knots, levels and grids found with the network, and their errors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from nobsp.network.inputs import Subset
from nobsp.network.readout import Readout
from nobsp.tabular.calibration import contributions
from nobsp.tabular.columns import input_values
from nobsp.tabular.compiled import CompiledExplainer, CompiledFeature
from nobsp.tabular.fitted import Fitted
from nobsp.tabular.knots import AxisOfGrid, choose_grid, kinks, needed, refined
from nobsp.tabular.lookup import Array, Axis, Chunk, CompiledTerm, Level, LevelAxis, NumberAxis
from nobsp.tabular.reading import running_on
from nobsp.tabular.representations import Represent

_AT_ONCE = 8192
_FIRST_KNOTS = 65
_MOST_KNOTS = 1 << 16
_MOST_CODES = 1 << 16
# A piecewise-linear function must be met this closely, as a share of the spread, to be called exact.
_EXACT = 1e-9
_CHECKED_POINTS = 4096
_CHECKED_NODES = 16384


@dataclass(frozen=True, eq=False)
class _Numeric:
    """A feature of one or several columns of numbers."""

    feature: int
    columns: tuple[int, ...]
    ranges: tuple[tuple[float, float], ...]
    limits: tuple[tuple[float, float], ...]
    occurring: Array


@dataclass(frozen=True, eq=False)
class _Named:
    """A category: its levels, and each one's columns of the network's input."""

    feature: int
    axis: LevelAxis
    inputs: Tensor


@dataclass(frozen=True, eq=False)
class _Unused:
    """A feature that the preprocessing drops."""

    feature: int


_Kind = _Numeric | _Named | _Unused


@dataclass(frozen=True, eq=False)
class _Run:
    """A way to run the network: as it is, or a copy in double precision, whose rounding hides no kinks."""

    represent: Represent
    readout: Readout
    eps: float


def compile_explainer(
    fitted: Fitted,
    *,
    device: torch.device | str | None,
    tolerance: float,
    pairs: Literal["grid", "network"],
    reach: float,
    grid_size: int,
) -> CompiledExplainer:
    """Tables for every term; see `NObSP.compile`."""
    terms, left_out = _chosen_terms(fitted, pairs)
    with running_on(fitted.readout, device) as represent:
        own = _Run(represent, fitted.readout, torch.finfo(fitted.readout.dtype).eps)
        with _in_double_precision(fitted, own) as fine:
            compiler = _Compiler(fitted, own, fine, reach)
            spread = compiler.spread()
            allowed = tolerance * spread
            compiled = tuple(compiler.term(term, allowed, spread, grid_size) for term in terms)
        baseline = fitted.plan.isolation.baseline[None]
        origin = baseline.to(torch.int64) if fitted.readout.integer else baseline
        at_baseline = contributions(fitted.plan, fitted.solution, represent, origin, terms=terms)[0]
    names = fitted.columns.features.names
    return CompiledExplainer(
        features=tuple(compiler.described(feature) for feature in range(len(names))),
        column_names=fitted.columns.names,
        column_count=fitted.columns.count,
        output_names=fitted.output_names,
        compiled=compiled,
        base_values=fitted.solution.base.numpy().copy(),
        baseline_contributions=at_baseline.numpy(),
        spread=spread,
        tolerance=tolerance,
        left_out=tuple(tuple(names[k] for k in term) for term in left_out),
    )


def _chosen_terms(fitted: Fitted, pairs: str) -> tuple[list[Subset], list[Subset]]:
    """Terms to compile, and terms left to the network."""
    terms = list(fitted.plan.terms)
    if pairs == "network":
        return [term for term in terms if len(term) == 1], [term for term in terms if len(term) > 1]
    names = fitted.columns.features.names
    for term in terms:
        if len(term) > 2:
            raise ValueError(
                f"the triple {tuple(names[k] for k in term)!r} cannot be compiled: its table would be too large; "
                'calibrate without triples, or leave all interactions out with pairs="network".'
            )
    return terms, []


@contextmanager
def _in_double_precision(fitted: Fitted, own: _Run) -> Iterator[_Run]:
    """The network in float64: itself, or a copy that agrees with it to its own rounding; else as it is."""
    readout = fitted.readout
    if readout.integer or readout.dtype == torch.float64:
        yield own
        return
    rows = _probe(fitted)
    try:
        double = copy.deepcopy(readout.module).double()
        found = Readout.find(double, rows, head=readout.head.name)
        before, after = own.represent(rows).double().cpu(), found.represent(rows).double().cpu()
        scale = float(before.abs().max())
        agrees = before.shape == after.shape and float((before - after).abs().max()) <= 1e4 * own.eps * scale
        if not agrees or found.dtype != torch.float64:
            raise ValueError("the copy does not compute the same.")
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        # A model that cannot be copied, or fixes its precision by itself, is run as it is, with its rounding.
        yield own
        return
    with found.running() as represent:
        yield _Run(represent, found, torch.finfo(torch.float64).eps)


def _probe(fitted: Fitted) -> Tensor:
    """The baseline, and each column at its extremes or levels."""
    rows = [fitted.plan.isolation.baseline]
    for feature, group in enumerate(fitted.columns.features.columns[:64]):
        columns = list(group)
        values = torch.stack([fitted.summary.minimum[columns], fitted.summary.maximum[columns]])
        if feature in fitted.summary.levels:
            values = fitted.summary.levels[feature][0][:4]
        for value in values:
            row = fitted.plan.isolation.baseline.clone()
            row[columns] = value
            rows.append(row)
    return torch.stack(rows)


class _Compiler:
    """Compiles term after term of one explainer."""

    def __init__(self, fitted: Fitted, own: _Run, fine: _Run, reach: float) -> None:
        self.fitted, self.own, self.fine = fitted, own, fine
        self.kinds: list[_Kind] = [_kind_of(fitted, k, reach) for k in range(len(fitted.columns.features))]

    def described(self, feature: int) -> CompiledFeature:
        kind, name = self.kinds[feature], self.fitted.columns.features.names[feature]
        if isinstance(kind, _Numeric):
            return CompiledFeature(name, kind.columns, kind.ranges, kind.limits)
        return CompiledFeature(name, tuple(self.fitted.columns.members[feature]))

    # ------------------------------------------------------------------ running the network

    def inputs(self, term: Subset, places: Sequence[Array]) -> Tensor:
        """Input rows in which the term's features take values along its axes, and all others their baseline."""
        count = len(places[0]) if places else 1
        rows = self.fitted.plan.isolation.baseline.expand(count, -1).clone()
        left = list(places)
        for feature in term:
            kind, columns = self.kinds[feature], list(self.fitted.columns.features.columns[feature])
            if isinstance(kind, _Named):
                rows[:, columns] = kind.inputs[torch.from_numpy(left.pop(0).astype(np.int64))]
            elif isinstance(kind, _Numeric):
                given = np.column_stack([left.pop(0) for _ in kind.columns])
                rows[:, columns] = _encoded(self.fitted, feature, given)
        return rows

    def values(self, term: Subset, places: Sequence[Array], run: _Run) -> Array:
        """Contributions of a term along its axes, shape (points, outputs)."""
        count = len(places[0]) if places else 1
        parts = []
        for start in range(0, count, _AT_ONCE):
            rows = self.inputs(term, [place[start : start + _AT_ONCE] for place in places])
            rows = rows.to(torch.int64) if self.fitted.readout.integer else rows
            found = contributions(self.fitted.plan, self.fitted.solution, run.represent, rows, terms=[term])
            parts.append(found[:, 0].numpy())
        return np.concatenate(parts)

    def kinks(self, term: Subset, feature: int, others: Sequence[Array]) -> Array | None:
        """Where anything in the network bends along a number, the term's other features held at a level."""
        kind = self.kinds[feature]
        assert isinstance(kind, _Numeric)
        columns = list(self.fitted.columns.features.columns[feature])
        context = self.inputs(term, others)[0] if term else self.fitted.plan.isolation.baseline
        low, high = kind.limits[0]
        with _Ear(self.fine) as ear:

            def rows_at(x: Array) -> tuple[Tensor, Tensor]:
                given = _encoded(self.fitted, feature, x[:, None])
                rows = context.expand(len(given), -1).clone()
                rows[:, columns] = given
                return given, rows

            def signals(x: Array) -> list[Array]:
                parts = []
                for start in range(0, len(x), _AT_ONCE):
                    given, rows = rows_at(x[start : start + _AT_ONCE])
                    layers, z = ear.layers(rows)
                    heard = any(layer.shape == z.shape and np.array_equal(layer, z) for layer in layers)
                    parts.append([given.numpy(), *layers, *([] if heard else [z])])
                return [np.concatenate(layer) for layer in zip(*parts, strict=True)]

            limits = [np.zeros(len(columns)), *ear.rounding(rows_at(np.linspace(low, high, 33))[1])]
            return kinks(signals, low, high, eps=self.fine.eps, rounding=limits)

    def rounding(self, term: Subset, places: Sequence[Array]) -> Array:
        """What rounding alone may do to a term's contributions: eps · Σ |z| |β|, per output."""
        rows = self.inputs(term, places)
        rows = rows.to(torch.int64) if self.fitted.readout.integer else rows
        z = self.fine.represent(rows).double().cpu().abs()
        sizes = (z @ self.fitted.solution.matrices[term].abs()).amax(0)
        return 2.0 ** (len(term) + 1) * self.fine.eps * sizes.numpy()

    def spread(self) -> Array:
        """Per output the largest standard deviation of a single feature's contribution over its range."""
        sizes = [np.zeros(len(self.fitted.output_names))]
        for kind in self.kinds:
            if isinstance(kind, _Numeric):
                rng = np.random.default_rng(0)
                even = [np.linspace(low, high, 257) for low, high in kind.ranges]
                places = even if len(even) == 1 else [rng.permutation(axis) for axis in even]
            elif isinstance(kind, _Named):
                places = [np.arange(len(kind.axis), dtype=float)]
            else:
                continue
            sizes.append(self.values((kind.feature,), places, self.own).std(0))
        largest = np.max(sizes, axis=0)
        # An output that no feature moves has no scale of its own.
        return np.where(largest > 0, largest, largest.max() if largest.max() > 0 else 1.0)

    # ------------------------------------------------------------------ terms

    def term(self, term: Subset, allowed: Array, spread: Array, grid_size: int) -> CompiledTerm:
        """One term's table, with its errors."""
        kinds = [self.kinds[k] for k in term]
        numbers = sum(len(kind.columns) for kind in kinds if isinstance(kind, _Numeric))
        exact = True
        axes: tuple[Axis, ...]
        if numbers == 0:
            axes = tuple(kind.axis for kind in kinds if isinstance(kind, _Named))
        elif numbers == 1:
            axes, exact = self._line(term, allowed, spread, grid_size)
        else:
            axes, exact = self._grid(term, allowed, spread, grid_size), False
        values = self._table(term, axes)
        nothing = np.zeros(len(spread))
        made = CompiledTerm(term, axes, values, exact, nothing, nothing, nothing)
        inside, outside, rounding = self._errors(made)
        return replace(made, error=inside, error_outside=outside, rounding=rounding)

    def _table(self, term: Subset, axes: Sequence[Axis]) -> Array:
        """Values at every node of the grid."""
        steps = [axis.knots if isinstance(axis, NumberAxis) else np.arange(len(axis), dtype=float) for axis in axes]
        nodes = [node.ravel() for node in np.meshgrid(*steps, indexing="ij")] if steps else []
        values: Array = self.values(term, nodes, self.fine).reshape(
            *(len(step) for step in steps), len(self.fitted.output_names)
        )
        return values

    def _line(self, term: Subset, allowed: Array, spread: Array, grid_size: int) -> tuple[tuple[Axis, ...], bool]:
        """One number, alone or for every level of a category."""
        [numeric] = [kind for k in term if isinstance(kind := self.kinds[k], _Numeric)]
        named = [kind for k in term if isinstance(kind := self.kinds[k], _Named)]
        levels = len(named[0].axis) if named else 1
        first = isinstance(self.kinds[term[0]], _Numeric)

        def places(x: Array) -> list[Array]:
            if not named:
                return [x]
            both = [np.repeat(x, levels), np.tile(np.arange(levels, dtype=float), len(x))]
            return both if first else both[::-1]

        def along(x: Array) -> Array:
            return self.values(term, places(x), self.fine).reshape(len(x), -1)

        (low, high) = numeric.limits[0]
        rounding = np.tile(self.rounding(term, places(np.linspace(low, high, 33))), levels)
        unit = np.tile(spread, levels)
        most = max(_FIRST_KNOTS, min(_MOST_KNOTS, grid_size // levels if named else _MOST_KNOTS))
        knots = self._exact_knots(numeric.feature, named)
        if knots is not None and len(knots) <= 16 * most:
            values = along(knots)
            kept = needed(knots, values, np.maximum(2e-13 * unit, rounding))
            x = knots[kept]
            if len(x) <= most and self._keeps_to_chords(along, x, values[kept], _EXACT * unit + 64 * rounding):
                return self._axes(term, {numeric.columns[0]: x}), True
        # Half of what is allowed is spent on leaving out knots that halving has put too close together.
        close = np.maximum(np.tile(allowed, levels), 8 * rounding)
        start = np.unique(np.concatenate([np.linspace(low, high, _FIRST_KNOTS), numeric.ranges[0], numeric.occurring]))
        x = refined(along, start, allowed=close / 4, most=most)
        x = x[needed(x, along(x), close / 2)]
        return self._axes(term, {numeric.columns[0]: x}), False

    def _exact_knots(self, feature: int, named: Sequence[_Named]) -> Array | None:
        """Kinks with all else at the baseline and, in a pair, with the category at each of its levels."""
        found = self.kinks((), feature, [])
        for kind in named:
            for level in range(len(kind.axis)):
                more = None if found is None else self.kinks((kind.feature,), feature, [np.array([float(level)])])
                if found is None or more is None:
                    return None
                found = np.union1d(found, more)
        return found

    def _keeps_to_chords(self, along: Callable[[Array], Array], x: Array, values: Array, allowed: Array) -> bool:
        """Whether a piecewise-linear guess holds at random points of every piece."""
        toward = np.random.default_rng(2).uniform(size=len(x) - 1)
        inner = x[:-1] + toward * np.diff(x)
        toward = ((inner - x[:-1]) / np.diff(x))[:, None]
        return bool((np.abs(along(inner) - (values[:-1] + toward * np.diff(values, axis=0))) <= allowed).all())

    def _grid(self, term: Subset, allowed: Array, spread: Array, grid_size: int) -> tuple[Axis, ...]:
        """Several numbers: one set of knots on each, the worst intervals halved until the grid is full."""
        kinds = [self.kinds[k] for k in term]
        levels = int(np.prod([len(kind.axis) for kind in kinds if isinstance(kind, _Named)]))
        sampled = self._points(term, 24, inside=True, seed=3), self._points(term, 8, inside=False, seed=4)
        others = [np.concatenate(both) for both in zip(*sampled, strict=True)]
        axes, columns, place = [], [], 0
        for kind in kinds:
            if isinstance(kind, _Named):
                place += 1
                continue
            assert isinstance(kind, _Numeric)
            for column, (low, high), limits in zip(kind.columns, kind.ranges, kind.limits, strict=True):

                def along(x: Array, place: int = place) -> Array:
                    points = [np.tile(other, len(x)) for other in others]
                    points[place] = np.repeat(x, len(others[0]))
                    return self.values(term, points, self.fine).reshape(len(x), -1)

                start = np.unique([*np.linspace(low, high, 5), *limits])
                axes.append(AxisOfGrid(start, low, high, along, np.tile(spread, len(others[0]))))
                columns.append(column)
                place += 1
        # Errors of several axes add up.
        choose_grid(axes, allowed=float((allowed / spread).max()) / (2 * len(axes)), most=max(1, grid_size // levels))
        return self._axes(term, {c: axis.knots for c, axis in zip(columns, axes, strict=True)})

    def _axes(self, term: Subset, knots: dict[int, Array]) -> tuple[Axis, ...]:
        """The term's axes in the order of its features and their columns."""
        axes: list[Axis] = []
        for k in term:
            kind = self.kinds[k]
            if isinstance(kind, _Named):
                axes.append(kind.axis)
            elif isinstance(kind, _Numeric):
                axes += [NumberAxis(column, knots[column]) for column in kind.columns]
        return tuple(axes)

    # ------------------------------------------------------------------ errors

    def _points(self, term: Subset, count: int, *, inside: bool, seed: int) -> list[Array]:
        """Random points in the calibrated range, or out to the limits, one array an axis."""
        rng = np.random.default_rng(seed)
        found: list[Array] = []
        for k in term:
            kind = self.kinds[k]
            if isinstance(kind, _Named):
                found.append(rng.integers(0, len(kind.axis), count).astype(float))
            elif isinstance(kind, _Numeric):
                found += [rng.uniform(low, high, count) for low, high in (kind.ranges if inside else kind.limits)]
        return found

    def _errors(self, made: CompiledTerm) -> tuple[Array, Array, Array]:
        """Largest differences to the network as it is, at points that did not choose the knots.

        Returns:
            In the calibrated range, from there to the limits, and the network's own rounding.
        """
        nothing = np.zeros(made.values.shape[-1])
        if not made.axes:
            return nothing, nothing, nothing
        if not any(isinstance(axis, NumberAxis) for axis in made.axes):
            nodes = [np.arange(len(axis)) for axis in made.axes if isinstance(axis, LevelAxis)]
            points = [node.ravel().astype(float) for node in np.meshgrid(*nodes, indexing="ij")]
            return self._differences(made, points).max(0), nothing, self._own_rounding(made, points)
        count = _CHECKED_POINTS if len(made.axes) == 1 else _CHECKED_NODES
        ranges = self._bounds(made, limits=False)
        points = self._points(made.features, count, inside=True, seed=5)
        if len(made.axes) == 1 and isinstance(axis := made.axes[0], NumberAxis):
            points = [np.concatenate([points[0], *_beside(axis.knots)])]
        points = _within(points, ranges)
        wider = self._points(made.features, count, inside=False, seed=6)
        beyond = np.zeros(count, dtype=bool)
        for place, bound in zip(wider, ranges, strict=True):
            if bound is not None:
                beyond |= (place < bound[0]) | (place > bound[1])
        outside = nothing
        if beyond.any():
            outside = self._largest(made, [place[beyond] for place in wider], self._bounds(made, limits=True))
        return self._largest(made, points, ranges), outside, self._own_rounding(made, points)

    def _own_rounding(self, made: CompiledTerm, points: list[Array]) -> Array:
        if self.fine is self.own:
            return np.zeros(made.values.shape[-1])
        term = made.features
        largest: Array = np.abs(self.values(term, points, self.own) - self.values(term, points, self.fine)).max(0)
        return largest

    def _bounds(self, made: CompiledTerm, *, limits: bool) -> list[tuple[float, float] | None]:
        """Per axis its range or limits; None for levels."""
        found: list[tuple[float, float] | None] = []
        for k in made.features:
            kind = self.kinds[k]
            if isinstance(kind, _Named):
                found.append(None)
            elif isinstance(kind, _Numeric):
                found += kind.limits if limits else kind.ranges
        return found

    def _largest(self, made: CompiledTerm, points: list[Array], bounds: Sequence[tuple[float, float] | None]) -> Array:
        """The largest differences at some points, and around the worst of them: a maximum is easily missed."""
        found = self._differences(made, points)
        largest: Array = found.max(0)
        if made.exact:
            return largest
        worst = np.argsort(-(found / largest.clip(1e-300)).max(1), kind="stable")[:48]
        rng = np.random.default_rng(7)
        nearby = []
        for place, axis, bound in zip(points, made.axes, bounds, strict=True):
            centre = np.repeat(place[worst], 48)
            if isinstance(axis, NumberAxis) and bound is not None:
                segment = axis.segments(centre)
                left, right = axis.knots[segment], axis.knots[segment + 1]
                centre = np.clip(left + rng.uniform(size=len(centre)) * (right - left), *bound)
            nearby.append(centre)
        around: Array = self._differences(made, nearby).max(0)
        return np.maximum(largest, around)

    def _differences(self, made: CompiledTerm, points: list[Array]) -> Array:
        columns: dict[int, Array] = {}
        places = {}
        for axis, place in zip(made.axes, points, strict=True):
            if isinstance(axis, NumberAxis):
                columns[axis.column] = place
            else:
                places[id(axis)] = place.astype(np.intp)
        chunk = _Chosen(columns, places, len(points[0]))
        differences: Array = np.abs(made(chunk) - self.values(made.features, points, self.own))
        return differences


class _Chosen(Chunk):
    """Rows whose levels are known by position."""

    def __init__(self, columns: dict[int, Array], places: dict[int, Any], count: int) -> None:
        super().__init__(columns, slice(0, count))
        self._places = places


def _beside(knots: Array) -> list[Array]:
    """Points at the knots and a little to either side, where a misplaced knot is seen, and halfway between them."""
    return [
        knots,
        0.5 * (knots[:-1] + knots[1:]),
        *(knots + side * step * np.ptp(knots) for side in (-1, 1) for step in (1e-12, 1e-9, 1e-6)),
    ]


def _within(points: list[Array], bounds: Sequence[tuple[float, float] | None]) -> list[Array]:
    keep = np.ones(len(points[0]), dtype=bool)
    for place, bound in zip(points, bounds, strict=True):
        if bound is not None:
            keep &= (place >= bound[0]) & (place <= bound[1])
    return [place[keep] for place in points]


# ---------------------------------------------------------------------- what kind of feature it is


def _kind_of(fitted: Fitted, feature: int, reach: float) -> _Kind:
    columns, summary = fitted.columns, fitted.summary
    group, members = columns.features.columns[feature], tuple(columns.members[feature])
    if not group:
        return _Unused(feature)
    if feature in columns.text_levels:
        return _named_levels(fitted, feature, members)
    if fitted.adapted.encode is None:
        if feature in fitted.plan.isolation.categories:
            return _numbered_levels(fitted, feature, members)
        ranges = tuple((float(summary.minimum[c]), float(summary.maximum[c])) for c in group)
    else:
        numbers = columns.number_levels.get(feature)
        if numbers and not _takes_values_between(fitted, feature, numbers):
            known = np.array(numbers, dtype=np.float64)[:, None]
            return _Named(feature, LevelAxis(members, known), _encoded(fitted, feature, known))
        if any(len(columns.ranges[member]) != 2 for member in members):
            names = columns.features.names
            raise ValueError(
                f"feature {names[feature]!r} joins columns of names, which cannot be compiled; make each a feature."
            )
        ranges = tuple((columns.ranges[member][0], columns.ranges[member][1]) for member in members)
    levels = summary.levels.get(feature)
    occurring = np.zeros(0)
    if fitted.adapted.encode is None and len(group) == 1 and levels is not None and len(levels[0]) <= _FIRST_KNOTS:
        occurring = levels[0][:, 0].numpy()
    elif len(members) == 1 and len(columns.number_levels.get(feature, [])) <= _FIRST_KNOTS:
        occurring = np.array(columns.number_levels.get(feature, []))
    return _Numeric(feature, members, ranges, _limits(fitted, feature, ranges, reach), occurring)


def _named_levels(fitted: Fitted, feature: int, members: tuple[int, ...]) -> _Named:
    levels = fitted.columns.text_levels[feature]
    name = fitted.columns.features.names[feature]
    if feature not in fitted.summary.levels:
        raise ValueError(f"feature {name!r} has too many levels to be compiled; join its rare ones.")
    odd = [level for level in levels if not isinstance(level, Level)]
    if odd:
        raise TypeError(f"feature {name!r} has levels of type {type(odd[0]).__name__}; write them as text.")
    rows = np.empty((len(levels), 1), dtype=object)
    rows[:, 0] = levels
    return _Named(feature, LevelAxis(members, tuple(levels)), _encoded(fitted, feature, rows))


def _numbered_levels(fitted: Fitted, feature: int, members: tuple[int, ...]) -> _Named:
    """Codes and one-hot columns, as the table has them."""
    if feature in fitted.summary.levels:
        inputs = fitted.summary.levels[feature][0]
        return _Named(feature, LevelAxis(members, inputs.numpy()), inputs)
    columns = list(fitted.columns.features.columns[feature])
    low, high = fitted.summary.minimum[columns], fitted.summary.maximum[columns]
    if len(columns) > 1 or float(high - low) >= _MOST_CODES:
        name = fitted.columns.features.names[feature]
        raise ValueError(f"feature {name!r} has too many levels to be compiled; join its rare ones.")
    inputs = torch.arange(float(low), float(high) + 1, dtype=torch.float64)[:, None]
    return _Named(feature, LevelAxis(members, inputs.numpy()), inputs)


def _takes_values_between(fitted: Fitted, feature: int, numbers: Sequence[float]) -> bool:
    """Whether the preprocessing knows values between those that occurred; one-hot encoders do not."""
    known = np.array(numbers, dtype=np.float64)
    between = 0.5 * (known[:-1] + known[1:])[:, None]
    if not len(between):
        return False
    try:
        fitted.require_seen(feature, _encoded(fitted, feature, between))
    except ValueError:
        return False
    return True


def _limits(
    fitted: Fitted, feature: int, ranges: tuple[tuple[float, float], ...], reach: float
) -> tuple[tuple[float, float], ...]:
    """How far each column is followed: part of its range on either side, where the preprocessing goes along."""
    found = []
    for place, (low, high) in enumerate(ranges):
        more = reach * (high - low) if high > low else max(abs(low), 1.0) * (reach or 0.5)
        sides = []
        for end, beyond in ((low, low - more), (high, high + more)):
            rows = np.tile([0.5 * (a + b) for a, b in ranges], (33, 1))
            rows[:, place] = np.linspace(end, beyond, 33)
            try:
                _encoded(fitted, feature, rows)
            except ValueError:
                beyond = end
            sides.append(beyond)
        if sides[0] == sides[1]:  # a constant that the preprocessing knows nothing beside
            sides[1] = float(np.nextafter(sides[1], np.inf))
        found.append((float(sides[0]), float(sides[1])))
    return tuple(found)


def _encoded(fitted: Fitted, feature: int, given: np.ndarray[Any, Any]) -> Tensor:
    """Values as the caller writes them, one row each, as columns of the network's input."""
    with np.errstate(all="ignore"):  # what is not finite in the end is an error there
        return input_values(fitted.columns, fitted.adapted, feature, given)


# ---------------------------------------------------------------------- listening to every layer


class _Ear:
    """Hears what every innermost layer computes while the network runs, inside its `with` block."""

    def __init__(self, run: _Run) -> None:
        self._run, self._thread = run, get_ident()
        self._caught: list[Array] = []
        self._limits: list[Array] | None = None
        self._rows = 0
        self._linear: Tensor | None = None

    def __enter__(self) -> _Ear:
        innermost = [layer for layer in self._run.readout.module.modules() if next(layer.children(), None) is None]
        self._handles = [layer.register_forward_hook(self._hear) for layer in innermost]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _hear(self, layer: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        if get_ident() != self._thread or not isinstance(output, Tensor) or not output.is_floating_point():
            return
        if output.ndim < 2 or output.shape[0] != self._rows or output.shape[1:].numel() == 0:
            return
        # A copy: a later layer may write into it.
        self._caught.append(output.detach().reshape(self._rows, -1).to("cpu", torch.float64, copy=True).numpy())
        if self._limits is not None:
            self._limits.append(self._limit(layer, given, self._limits[-1], self._caught[-1].shape[1]))
        if self._linear is not None and given and given[0] is self._linear:
            # What a linear layer hands straight to the next one bends only where its own input does.
            del self._caught[-2]
            if self._limits is not None:
                del self._limits[-2]
        self._linear = output if isinstance(layer, nn.Linear) else None

    def _limit(self, layer: nn.Module, given: tuple[Any, ...], entering: Array, width: int) -> Array:
        """Running error analysis: eps (|W| |x| + |b|) + |W| times what enters; activations pass it on."""
        if isinstance(layer, nn.Linear) and given and given[0].ndim == 2:
            weight = layer.weight.detach().double().cpu().abs()
            sums = given[0].detach().double().cpu().abs() @ weight.T
            sums = sums if layer.bias is None else sums + layer.bias.detach().double().cpu().abs()
            limit: Array = 2 * self._run.eps * sums.amax(0).numpy()
            return limit + weight.numpy() @ entering if weight.shape[1] == len(entering) else limit
        return entering if len(entering) == width else np.zeros(width)

    def layers(self, rows: Tensor) -> tuple[list[Array], Array]:
        """What every layer makes of the rows, and their representation."""
        self._caught, self._rows, self._linear = [], len(rows), None
        z = self._run.represent(rows).double().cpu().numpy()
        self._linear = None
        return self._caught, z

    def rounding(self, rows: Tensor) -> list[Array]:
        """Per layer, how much rounding there may be in each unit on these rows."""
        self._limits = [self._run.eps * rows.abs().amax(0).numpy()]
        self.layers(rows)
        limits, self._limits = self._limits[1:], None
        return limits
