"""Where a function of one number bends: exactly for piecewise-linear networks, by refinement for smooth ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# Everything the network computes along a line, layer by layer: numbers (n,) in, one array (n, units) a layer out.
Signals = Callable[[Array], list[Array]]
Function = Callable[[Array], Array]

# Where an interval is looked at; neither even nor symmetric, so that no two kinks cancel at all of them.
_PROBES = np.array([0.11, 0.29, 0.52, 0.68, 0.91])
_FIRST_INTERVALS = 32
_MOST_INTERVALS = 4096
_MOST_HELD = 1 << 24  # numbers held between rounds: wide networks get fewer intervals
_ROUNDS = 120
_AT_ONCE = 1 << 21  # numbers held while intervals are looked at


def kinks(signals: Signals, low: float, high: float, *, eps: float, rounding: Sequence[Array] = ()) -> Array | None:
    """Points between which everything the network computes is straight; None where it is smooth instead.

    What enters a layer is straight between the kinks of the layers before, and a straight line through one
    kink leaves its chord everywhere in between. So an interval on which every unit of every layer keeps to its
    chord at some inner points holds no kink, though single units or the output may hide one. An interval that
    does not is cut where the two lines at its ends meet, if there is one kink, and in the middle otherwise.

    Args:
        signals: What the network computes along the line.
        low: Where the line begins.
        high: Where it ends.
        eps: Relative rounding of the network's arithmetic.
        rounding: For the first layers, what is known of the rounding of each unit; more of it is measured.
    """
    noise = _noise(signals, low, high, eps, rounding)
    if _is_smooth(signals, low, high, eps, noise):
        return None
    span = high - low
    x = np.linspace(low, high, _FIRST_INTERVALS + 1)
    values = np.hstack(signals(x))
    most = min(_MOST_INTERVALS, max(256, _MOST_HELD // values.shape[1]))
    found = [x]
    a, b, at_a, at_b = x[:-1], x[1:], values[:-1], values[1:]
    for _ in range(_ROUNDS):
        cut = _cuts(signals, a, b, at_a, at_b, noise)
        width = b - a
        jump = (np.abs(at_b - at_a) / noise).max(1) > 1e6
        smallest = np.maximum(32 * eps * span, 8 * eps * np.maximum(np.abs(a), np.abs(b)))
        tiny = width <= smallest
        # A step is followed down to neighbouring numbers; towards zero those lie too deep, so zero is cut at first.
        cut = np.where(tiny & jump & np.isfinite(cut) & (a < 0) & (b > 0), 0.0, cut)
        open_ = np.isfinite(cut) & (~tiny | (jump & (cut > a) & (cut < b)))
        if not open_.any():
            return np.unique(np.concatenate(found))
        if open_.sum() > most:
            return None
        a, b, at_a, at_b, cut = a[open_], b[open_], at_a[open_], at_b[open_], cut[open_]
        at_cut = np.hstack(signals(cut))
        found.append(cut)
        a, b = np.concatenate([a, cut]), np.concatenate([cut, b])
        at_a, at_b = np.concatenate([at_a, at_cut]), np.concatenate([at_cut, at_b])
    return np.unique(np.concatenate(found))


def _noise(signals: Signals, low: float, high: float, eps: float, rounding: Sequence[Array]) -> Array:
    """How far each unit may leave a chord by rounding alone: its second differences over tiny steps, with room."""
    rng = np.random.default_rng(0)
    step = eps**0.4 * (high - low)
    x = rng.uniform(low + step, high - step, 256)
    left, right = x - step, x + step
    toward = ((x - left) / (right - left))[:, None]
    limits: list[Array] = []
    before_size = 0.0
    for number, layer in enumerate(signals(np.concatenate([left, x, right]))):
        before, here, after = np.split(layer, 3)
        # Not the very largest: a step may hit a kink.
        seen = np.quantile(np.abs(here - (before + toward * (after - before))), 0.98, axis=0)
        size = float(np.abs(layer).max(initial=0.0))
        # A unit that hardly moves shows its rounding in none of the tiny steps; its neighbours do.
        limit: Array = np.maximum(10 * seen, 10 * np.quantile(seen, 0.75)) + 16 * eps * size
        if limits and before_size > 0:
            # A unit that is off almost everywhere shows no noise, and has that of what enters it where it is on.
            entering = limits[-1] if len(limits[-1]) == len(limit) else np.median(limits[-1])
            limit = np.maximum(limit, entering * min(1.0, size / before_size))
        if number < len(rounding):
            limit = np.maximum(limit, 4 * rounding[number])
        limits.append(limit)
        before_size = size
    found: Array = np.maximum(np.concatenate(limits), np.finfo(float).tiny)
    return found


def _is_smooth(signals: Signals, low: float, high: float, eps: float, noise: Array) -> bool:
    """Whether most tiny windows are bent: kinks are few and far between, curvature is everywhere."""
    width = eps**0.25 * (high - low)
    a = np.random.default_rng(1).uniform(low, high - width, 48)
    values = np.hstack(signals(np.concatenate([a, a + width])))
    cut = _cuts(signals, a, a + width, values[:48], values[48:], noise)
    return bool(np.isfinite(cut).mean() > 0.5)


def _cuts(signals: Signals, a: Array, b: Array, at_a: Array, at_b: Array, noise: Array) -> Array:
    """Per interval where to cut it; NaN where it is straight."""
    size = max(1, _AT_ONCE // (at_a.shape[1] * 8))
    parts = [
        _some_cuts(signals, a[i : i + size], b[i : i + size], at_a[i : i + size], at_b[i : i + size], noise)
        for i in range(0, len(a), size)
    ]
    return np.concatenate(parts)


def _some_cuts(signals: Signals, a: Array, b: Array, at_a: Array, at_b: Array, noise: Array) -> Array:
    count = len(a)
    x = a[:, None] + _PROBES * (b - a)[:, None]
    inside = np.hstack(signals(x.ravel())).reshape(count, len(_PROBES), -1)
    toward = ((x - a[:, None]) / (b - a)[:, None])[:, :, None]
    off = np.abs(inside - (at_a[:, None] + toward * (at_b - at_a)[:, None])).max(1) / noise
    unit = off.argmax(1)
    rows = np.arange(count)
    points = np.column_stack([a, x, b])
    values = np.column_stack([at_a[rows, unit], inside[rows, :, unit], at_b[rows, unit]])
    cut = _meeting(points, values, noise[unit])
    return np.where(off[rows, unit] > 1, cut, np.nan)


def _meeting(x: Array, y: Array, noise: Array) -> Array:
    """Where the line through an interval's first points meets that through its last; its middle if they do not.

    Args:
        x: Points, shape (intervals, points).
        y: Values of the unit that bends most.
        noise: Its rounding.
    """
    last = x.shape[1] - 1
    middle = x[:, 0] + 0.5 * (x[:, -1] - x[:, 0])
    cut = middle
    room = 4 * noise[:, None]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # A kink before the first or after the last inner point: one line through all the others.
        for apart, kept in ((1, slice(1, None)), (last - 1, slice(None, -1))):
            slope = (y[:, kept][:, -1] - y[:, kept][:, 0]) / (x[:, kept][:, -1] - x[:, kept][:, 0])
            line = y[:, kept][:, :1] + slope[:, None] * (x[:, kept] - x[:, kept][:, :1])
            cut = np.where((np.abs(y[:, kept] - line) <= room).all(1), x[:, apart], cut)
        for gap in range(1, last - 1):
            left = (y[:, gap] - y[:, 0]) / (x[:, gap] - x[:, 0])
            right = (y[:, -1] - y[:, gap + 1]) / (x[:, -1] - x[:, gap + 1])
            on_left = y[:, :1] + left[:, None] * (x[:, : gap + 1] - x[:, :1])
            on_right = y[:, -1:] + right[:, None] * (x[:, gap + 1 :] - x[:, -1:])
            # From the gap's own left end, so that large x lose no digits.
            meet = x[:, gap] + (y[:, gap] - y[:, gap + 1] - right * (x[:, gap] - x[:, gap + 1])) / (right - left)
            fits = (np.abs(y[:, : gap + 1] - on_left) <= room).all(1) & (
                np.abs(y[:, gap + 1 :] - on_right) <= room
            ).all(1)
            fits &= (meet >= x[:, gap]) & (meet <= x[:, gap + 1]) & (meet > x[:, 0]) & (meet < x[:, -1])
            cut = np.where(fits, meet, cut)
    return np.where((cut > x[:, 0]) & (cut < x[:, -1]), cut, middle)


def refined(function: Function, x: Array, *, allowed: Array, most: int) -> Array:
    """Knots between which the function keeps to its chord, found by halving where it does not.

    Args:
        function: Numbers (n,) to values (n, any).
        x: Knots to begin with.
        allowed: Per value, how far it may be off its chord.
        most: Stop before there are more knots than this; the worst intervals are halved first.
    """
    knots, values = x, function(x)
    a, b, at_a, at_b = x[:-1], x[1:], values[:-1], values[1:]
    probes = np.array([0.25, 0.5, 0.75])
    found = [knots]
    total = len(knots)
    for _ in range(60):
        inner = a[:, None] + probes * (b - a)[:, None]
        inside = function(inner.ravel()).reshape(len(a), 3, -1)
        chord = at_a[:, None] + probes[:, None] * (at_b - at_a)[:, None]
        off = (np.abs(inside - chord) / allowed).max((1, 2))
        middle = inner[:, 1]
        bent = np.flatnonzero((off > 1) & (middle > a) & (middle < b))
        bent = bent[np.argsort(-off[bent], kind="stable")][: max(0, most - total)]
        if not len(bent):
            break
        found.append(middle[bent])
        total += len(bent)
        at_middle = inside[bent, 1]
        a, b = np.concatenate([a[bent], middle[bent]]), np.concatenate([middle[bent], b[bent]])
        at_a, at_b = np.concatenate([at_a[bent], at_middle]), np.concatenate([at_middle, at_b[bent]])
    return np.unique(np.concatenate(found))


def needed(x: Array, values: Array, allowed: Array) -> NDArray[np.intp]:
    """Positions of the knots that are needed: between them every value dropped lies this close to the chord.

    Walks along the knots with a cone of slopes that pass close enough to all knots dropped so far.

    Example:
        >>> x = np.array([0.0, 1.0, 2.0, 3.0])
        >>> needed(x, np.array([[0.0], [1.0], [2.0], [0.0]]), np.array([1e-9])).tolist()
        [0, 2, 3]
    """
    kept = [0]
    flattest: Any = -np.inf
    steepest: Any = np.inf
    with np.errstate(over="ignore"):
        for i in range(1, len(x)):
            width = x[i] - x[kept[-1]]
            rise = values[i] - values[kept[-1]]
            slope = rise / width
            if i - kept[-1] > 1 and bool(((slope < flattest) | (slope > steepest)).any()):
                kept.append(i - 1)
                width = x[i] - x[i - 1]
                rise = values[i] - values[i - 1]
                flattest, steepest = -np.inf, np.inf
            flattest = np.maximum(flattest, (rise - allowed) / width)
            steepest = np.minimum(steepest, (rise + allowed) / width)
    kept.append(len(x) - 1)
    return np.array(kept, np.intp)


@dataclass(eq=False)
class AxisOfGrid:
    """One axis of a tensor-product grid while its knots are chosen.

    Attributes:
        knots: The knots so far.
        low: Where the calibrated range begins.
        high: Where it ends.
        function: Numbers along the axis (n,) to values (n, places on the other axes × outputs).
        scale: Per value, the unit of the error.
    """

    knots: Array
    low: float
    high: float
    function: Function
    scale: Array

    def __post_init__(self) -> None:
        self._at = self.function(self.knots)
        self._middle = self.function(self._middles())

    def _middles(self) -> Array:
        middles: Array = 0.5 * (self.knots[:-1] + self.knots[1:])
        return middles

    @property
    def errors(self) -> Array:
        """Per interval how far its middle is off the chord; an eighth of it outside the calibrated range."""
        off = (np.abs(self._middle - 0.5 * (self._at[:-1] + self._at[1:])) / self.scale).max(1)
        outside = (self.knots[1:] <= self.low) | (self.knots[:-1] >= self.high)
        errors: Array = np.where(outside, off / 8, off)
        return errors

    def halve(self, chosen: NDArray[np.intp]) -> None:
        """Cuts some intervals in the middle."""
        chosen = np.sort(chosen)
        middles = self._middles()[chosen]
        at = self._middle[chosen]
        quarters = np.column_stack(
            [0.5 * (self.knots[chosen] + middles), 0.5 * (middles + self.knots[chosen + 1])]
        ).ravel()
        fresh = self.function(quarters).reshape(len(chosen), 2, -1)
        knots = np.insert(self.knots, chosen + 1, middles)
        self._at = np.insert(self._at, chosen + 1, at, axis=0)
        middle = self._middle.copy()
        middle[chosen] = fresh[:, 0]
        self._middle = np.insert(middle, chosen + 1, fresh[:, 1], axis=0)
        self.knots = knots


def choose_grid(axes: Sequence[AxisOfGrid], *, allowed: float, most: int) -> None:
    """Halves the worst intervals of all axes until none is off by more than allowed, or the grid is full.

    Args:
        axes: The axes; their knots are changed.
        allowed: Error to reach on each axis, in its unit.
        most: Most nodes of the grid.
    """
    while True:
        errors = [axis.errors for axis in axes]
        worst = max(float(error.max()) for error in errors)
        if worst <= allowed:
            return
        ranked = sorted(
            (
                (float(error[i]), place, int(i))
                for place, error in enumerate(errors)
                for i in np.flatnonzero(error > max(allowed, 0.35 * worst))
            ),
            reverse=True,
        )
        sizes = [len(axis.knots) for axis in axes]
        chosen: list[list[int]] = [[] for _ in axes]
        for _, place, interval in ranked:
            sizes[place] += 1
            if np.prod(sizes, dtype=float) > most:
                sizes[place] -= 1
                break
            chosen[place].append(interval)
        if not any(chosen):
            return
        for axis, intervals in zip(axes, chosen, strict=True):
            if intervals:
                axis.halve(np.array(intervals, np.intp))
