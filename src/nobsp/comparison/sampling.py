"""Rows and functions drawn anew, and gaps in every draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nobsp._typing import FloatArray
from nobsp.comparison.deviations import Deviations
from nobsp.comparison.pairing import Kind, Places
from nobsp.comparison.resampling import draw_means
from nobsp.comparison.stacks import Stacks


@dataclass(frozen=True, eq=False)
class Sampled:
    """Means of every entry in every draw of rows and functions."""

    # Means on the rows of a and on those of b, (draws, models, entries + 1, outputs).
    rows: tuple[FloatArray, FloatArray]
    # Variance of the difference of two models on the same rows, (draws, entries + 1, outputs).
    squares: FloatArray | None
    # By model and rows, what the drawn copy of the functions adds to the means.
    moved: dict[tuple[int, int], FloatArray]
    copy: Places  # which copy every draw takes
    combinations: FloatArray | None  # of several trainings, (draws, trainings)

    def part(self, signs: dict[tuple[int, int], float]) -> Drawn:
        """A signed sum of means, by model and rows, in every draw."""
        shape = self.rows[0][:, 0].shape
        on_rows = (np.zeros(shape), np.zeros(shape))
        moved = np.zeros(shape)
        for (model, rows), sign in signs.items():
            on_rows[rows][...] += sign * self.rows[rows][:, model]
            moved += sign * self.moved[model, rows]
        return Drawn(on_rows=on_rows, moved=moved)


@dataclass(frozen=True, eq=False)
class Drawn:
    """Differences of means, (draws, entries + 1, outputs), by what makes them scatter."""

    on_rows: tuple[FloatArray, FloatArray]  # which rows of a, and of b, were drawn
    moved: FloatArray  # which functions

    @property
    def total(self) -> FloatArray:
        """The difference itself."""
        return self.on_rows[0] + self.on_rows[1] + self.moved

    def freedom(self, of_rows: tuple[float, float]) -> FloatArray:
        """Degrees of freedom that its scatter is known with, from those of the rows of a and of b.

        Welch and Satterthwaite: (Σ v)² / Σ v²/ν over the variances v. How functions scatter counts
        as known.
        """
        variances = [drawn.var(0) for drawn in self.on_rows]
        squares = sum(
            np.square(variance) / freedom
            for variance, freedom in zip(variances, of_rows, strict=True)
        )
        variances.append(self.moved.var(0))
        total = np.square(sum(variances))
        unlimited = np.full(total.shape, np.inf)
        return np.asarray(np.divide(total, squares, out=unlimited, where=squares > 0))


def draw(stacks: Stacks, *, draws: int, generator: np.random.Generator) -> Sampled:
    """Draws rows and functions anew; where there are several trainings, combinations of these."""
    squares = None
    if stacks.kind == "functions":
        means, squares = _draw_differences(stacks, draws, generator)
        rows = (means, means)
    else:
        rows = _draw_rows(stacks, draws, generator)

    if stacks.scatter is not None:
        combinations = stacks.scatter.draw(draws, generator)
        added = stacks.scatter.mean_deviations(combinations)
        return Sampled(
            rows=rows,
            squares=squares,
            moved={(0, 0): added, (1, 0): np.zeros_like(added)},
            copy=np.zeros(draws, dtype=np.intp),
            combinations=combinations,
        )

    copies = [deviation.n_copies for deviation in stacks.deviations.values()]
    most_copies = max([1, *copies])
    copy = generator.integers(most_copies, size=draws)
    return Sampled(
        rows=rows,
        squares=squares,
        moved=_moved_by(copy, stacks),
        copy=copy,
        combinations=None,
    )


def _draw_rows(
    stacks: Stacks, draws: int, generator: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """In every draw the means of every entry on the rows of a, and on those of b."""
    first, second = stacks.sides
    values_of_first, values_of_second = stacks.values
    on_first = draw_means(
        values_of_first, first.weights, first.units, draws=draws, generator=generator
    )
    on_second = draw_means(
        values_of_second, second.weights, second.units, draws=draws, generator=generator
    )
    return on_first, on_second


def _moved_by(copy: Places, stacks: Stacks) -> dict[tuple[int, int], FloatArray]:
    """What the copy of the functions that every draw takes adds to the means, by model and rows."""
    bases = {model: _base_deviations(stacks, model) for model, _ in stacks.deviations}
    moved = {}
    for (model, on_rows), deviation in stacks.deviations.items():
        means = _mean_deviations(stacks, deviation, bases[model])
        moved[model, on_rows] = means[copy % len(means)]
    return moved


def _draw_differences(
    stacks: Stacks, draws: int, generator: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """For every draw, two models' means on the same rows, and the variance of their difference."""
    side = stacks.sides[0]
    values = stacks.values[0]
    difference = values[:, 0] - values[:, 1]
    centred = difference - side.mean(difference)
    squares = np.square(centred)
    columns = np.concatenate([values, squares[:, None], centred[:, None]], axis=1)

    means = draw_means(columns, side.weights, side.units, draws=draws, generator=generator)
    of_models = means[:, :2]
    of_squares = means[:, 2]
    of_difference = means[:, 3]
    return of_models, of_squares - np.square(of_difference)


def _mean_deviations(stacks: Stacks, deviation: Deviations, base: FloatArray | None) -> FloatArray:
    """What every copy of the functions adds to each entry's mean, (copies, entries + 1, outputs).

    Predictions are the model's, whatever its functions are. What they move on the rows of their own
    account is taken up by the base, and on other rows by the residual. `base` is what the base
    takes up, None where there is none.
    """
    n_outputs = len(stacks.sides[0].explanation.output_names)
    n_copies = max(deviation.n_copies, 1)
    means = np.zeros((n_copies, len(stacks.entries) + 1, n_outputs))
    for position, term in enumerate(stacks.terms):
        values = deviation.of_term(term)
        if values is not None:
            entry = stacks.first_term + position
            means[:, entry] = np.einsum("r,rco->co", deviation.weights, values)
    if base is not None:
        means[:, 0] = base
    means[:, -2] = -means.sum(1)
    return means


def _base_deviations(stacks: Stacks, model: int) -> FloatArray | None:
    """What every copy adds to a model's base: what its terms lose on its own account's rows."""
    if stacks.kind == "rows":
        return None
    own_rows = 0 if stacks.kind == "functions" else model
    without_base = _mean_deviations(stacks, stacks.deviations[model, own_rows], None)
    return without_base[:, -2]


def gap_of(kind: Kind, means: Sequence[FloatArray]) -> FloatArray:
    """Mean over a less mean over b, by entries."""
    if kind == "functions":
        return np.asarray(means[0][0] - means[0][1])
    return np.asarray(means[0][0] - means[1][-1])


# Of which means, by model and rows, a gap and its three parts are made.
Signs = dict[tuple[int, int], float]
_GAPS: dict[Kind, Signs] = {
    "rows": {(0, 0): 1.0, (0, 1): -1.0},
    "functions": {(0, 0): 1.0, (1, 0): -1.0},
    "both": {(0, 0): 1.0, (1, 1): -1.0},
}
_THREEFOLD: dict[str, Signs] = {
    "rows": {(1, 0): 1.0, (1, 1): -1.0},
    "functions": {(0, 1): 1.0, (1, 1): -1.0},
    "both": {(0, 0): 1.0, (0, 1): -1.0, (1, 0): -1.0, (1, 1): 1.0},
}


def gap_draws(kind: Kind, sampled: Sampled) -> Drawn:
    """Mean over a less mean over b, by entries, in every draw."""
    return sampled.part(_GAPS[kind])


def threefold(means: Sequence[FloatArray], sampled: Sampled) -> list[tuple[str, FloatArray, Drawn]]:
    """Change of rows, of functions and of both, each with its draws.

    With m_fr the mean of model f over the rows r,

        m_aa − m_bb = (m_ba − m_bb) + (m_ab − m_bb) + (m_aa − m_ab − m_ba + m_bb).
    """
    parts = []
    for name, signs in _THREEFOLD.items():
        signed = [sign * means[rows][model] for (model, rows), sign in signs.items()]
        value = np.asarray(sum(signed))
        parts.append((name, value, sampled.part(signs)))
    return parts
