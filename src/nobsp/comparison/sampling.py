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

    rows: tuple[
        FloatArray, FloatArray
    ]  # (draws, models, entries + 1, outputs) on the rows of a and of b
    squares: (
        FloatArray | None
    )  # of the difference of two models on the same rows, (draws, entries + 1, outputs)
    moved: dict[
        tuple[int, int], FloatArray
    ]  # what the drawn copy of the functions adds to the means
    copy: Places  # which copy every draw takes
    combinations: FloatArray | None  # of several trainings, (draws, trainings)

    def mean(self, model: int, rows: int) -> FloatArray:
        """Means of a model's entries over some rows, in every draw."""
        return self.rows[rows][:, model] + self.moved[model, rows]


def draw(stacks: Stacks, *, draws: int, generator: np.random.Generator) -> Sampled:
    """Draws rows and functions anew."""
    first, second = stacks.sides
    squares = None
    if stacks.kind == "functions":
        values = stacks.values[0]
        difference = values[:, 0] - values[:, 1]
        centred = difference - first.mean(difference)
        everything = np.concatenate([values, np.square(centred)[:, None], centred[:, None]], axis=1)
        means = draw_means(everything, first.weights, first.units, draws=draws, generator=generator)
        squares = means[:, 2] - np.square(means[:, 3])
        rows = (means[:, :2], means[:, :2])
    else:
        rows = (
            draw_means(
                stacks.values[0], first.weights, first.units, draws=draws, generator=generator
            ),
            draw_means(
                stacks.values[1], second.weights, second.units, draws=draws, generator=generator
            ),
        )

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

    n_copies = max([deviation.n_copies for deviation in stacks.deviations.values()] + [1])
    copy = generator.integers(n_copies, size=draws)
    moved = {}
    bases = {model: _base_deviations(stacks, model) for model, _ in stacks.deviations}
    for (model, on_rows), deviation in stacks.deviations.items():
        means = _mean_deviations(stacks, deviation, bases[model])
        moved[model, on_rows] = means[copy % len(means)]
    return Sampled(rows=rows, squares=squares, moved=moved, copy=copy, combinations=None)


def _mean_deviations(stacks: Stacks, deviation: Deviations, base: FloatArray | None) -> FloatArray:
    """What every copy of the functions adds to the mean of every entry, (copies, entries + 1, outputs).

    Predictions are the model's, whatever its functions are. What they move on the rows of their own account is taken up
    by the base, and on other rows by the residual. `base` is what the base takes up, None where there is none.
    """
    n_outputs = len(stacks.sides[0].explanation.output_names)
    means = np.zeros((max(deviation.n_copies, 1), len(stacks.entries) + 1, n_outputs))
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
    """What every copy adds to a model's base: what its terms lose on the rows of its own account."""
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


def gap_draws(kind: Kind, sampled: Sampled) -> FloatArray:
    """The same in every draw."""
    if kind == "functions":
        return sampled.mean(0, 0) - sampled.mean(1, 0)
    if kind == "rows":
        return sampled.mean(0, 0) - sampled.mean(0, 1)
    return sampled.mean(0, 0) - sampled.mean(1, 1)


def threefold(
    means: Sequence[FloatArray], sampled: Sampled
) -> list[tuple[str, FloatArray, FloatArray]]:
    """Change of rows, of functions and of both, each with its draws.

    With m_fr the mean of model f over the rows r,

        m_aa − m_bb = (m_ba − m_bb) + (m_ab − m_bb) + (m_aa − m_ab − m_ba + m_bb).
    """
    aa, ba = means[0]
    ab, bb = means[1]
    daa, dba = sampled.mean(0, 0), sampled.mean(1, 0)
    dab, dbb = sampled.mean(0, 1), sampled.mean(1, 1)
    return [
        ("rows", ba - bb, dba - dbb),
        ("functions", ab - bb, dab - dbb),
        ("both", aa - ab - ba + bb, daa - dab - dba + dbb),
    ]
