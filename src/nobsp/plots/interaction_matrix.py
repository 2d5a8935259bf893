"""How strongly every two features act together."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from nobsp._messages import count, require_whole_number
from nobsp.plots import _lookup, colours
from nobsp.plots._axes import NORMAL, SMALL, add_note, colour_bar, get_axes
from nobsp.plots.labels import short_labels
from nobsp.tabular.explanation import Explanation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Pair = frozenset[str]


@dataclass(frozen=True, eq=False)
class _Strengths:
    """Features, how strongly pairs of them act together, strongest first, and which have a term."""

    features: tuple[str, ...]
    pairs: dict[Pair, float]
    fitted: set[Pair]


def interaction_matrix(
    what: Any, *, output: int | str | None = None, max_display: int = 12, ax: Axes | None = None
) -> Axes:
    """Draws how strong the interaction of every two features is, as a share of an output's spread.

    A framed cell is a pair that was fitted, and so has a term of its own. Features in the strongest pairs come first.

    Args:
        what: An `NObSP` or a `CompiledExplainer`: every pair as screened, for the output it matters to most. Or an
            `Explanation`: the fitted pairs, standard deviation of their contributions over that of the predictions;
            the largest of all outputs unless one is chosen.
        output: Position or name of the output, for an `Explanation`.
        max_display: Most features.
        ax: Axes to draw on; a new figure when None.

    Returns:
        The axes.

    Raises:
        TypeError: If it is something else.
        ValueError: If no pairs were screened, or none was fitted.

    Example:
        >>> import torch
        >>> from nobsp import NObSP, plots
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        >>> explainer = NObSP(model, features=["a", "b", "c"]).fit(torch.randn(300, 3))
        >>> ax = plots.interaction_matrix(explainer)
        >>> len(ax.get_xticklabels())
        2
    """
    require_whole_number("max_display", max_display)
    most = max(max_display, 2)
    strengths = _strengths(what, output)
    shown = _in_strongest_pairs(strengths, most)
    # Below the diagonal: the first feature has no row, and the last no column.
    matrix = np.full((len(shown) - 1, len(shown) - 1), np.nan)
    for (right, first), (down, second) in combinations(enumerate(shown), 2):
        matrix[down - 1, right] = strengths.pairs.get(frozenset((first, second)), np.nan)
    largest = float(np.nanmax(matrix)) or 1.0
    side = 0.42 * len(shown)
    ax = get_axes(ax, (side + 3.0, side + 1.5))
    mesh = ax.imshow(matrix, cmap=colours.blend(colours.NOTHING_TO_MUCH), vmin=0.0, vmax=largest, aspect="equal")
    for down, right in zip(*np.nonzero(~np.isnan(matrix)), strict=True):
        strength, framed = matrix[down, right], frozenset((shown[right], shown[down + 1])) in strengths.fitted
        cell = ax.text(right, down, f"{100 * strength:.{int(strength < 0.095)}f}", ha="center", va="center")
        cell.set(color="white" if strength > 0.55 * largest else "black", fontsize=SMALL)
        if framed:
            cell.set_fontweight("bold")
            _frame(ax, right, down)
    labels = short_labels(strengths.features, 26)
    names = [labels[name] for name in shown]
    ax.set_xticks(range(len(matrix)), labels=names[:-1], rotation=40, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(matrix)), labels=names[1:])
    ax.tick_params(length=0, labelsize=NORMAL)
    ax.spines[:].set_visible(False)
    decimals = 0 if largest > 0.04 else 1
    colour_bar(ax, mesh, "share of spread", format=lambda share, _: f"{share:.{decimals}%}")
    some = f", {len(shown)} of {count(len(strengths.features), 'feature')}" if len(shown) < len(labels) else ""
    add_note(ax, f"in percent, framed: fitted{some}")
    return ax


def _frame(ax: Axes, x: int, y: int) -> None:
    from matplotlib.patches import Rectangle

    frame = Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, fill=False, edgecolor=colours.PAIR, linewidth=2.0)
    frame.set_gid("fitted")
    ax.add_patch(frame)


def _in_strongest_pairs(strengths: _Strengths, most: int) -> list[str]:
    """Features in the order of the strongest pairs that they are in."""
    place = {name: position for position, name in enumerate(strengths.features)}
    shown: list[str] = []
    for pair in strengths.pairs:
        new = sorted(pair - set(shown), key=place.__getitem__)
        if len(shown) + len(new) <= most:
            shown += new
    return shown


def _strengths(what: Any, output: int | str | None) -> _Strengths:
    if isinstance(what, Explanation):
        return _measured(what, output)
    functions = _lookup.find_functions(what, "interaction_matrix")
    if output is not None:
        raise ValueError("output cannot be chosen for screened pairs; pass an Explanation to look at one output.")
    if not functions.strengths:
        raise ValueError('no pairs were screened; calibrate with interactions="auto", or pass an Explanation.')
    names, tables = functions.feature_names, {table.features for table in functions.tables}
    named = {pair: frozenset(names[k] for k in pair) for pair in functions.strengths}
    ordered = sorted(functions.strengths.items(), key=lambda item: -item[1])
    fitted = {named[pair] for pair in named if pair in tables}
    return _Strengths(names, {named[pair]: strength for pair, strength in ordered}, fitted)


def _measured(ex: Explanation, output: int | str | None) -> _Strengths:
    ex = _lookup.known_rows(_lookup.require_explanation(ex, "interaction_matrix"), residual="interaction_matrix")
    outputs = _lookup.some_outputs(output, ex.output_names)
    spread = ex.predictions[:, outputs].std(0)
    found = {}
    for position, term in enumerate(ex.terms):
        if len(term) == 2:
            effect = ex.values[:, position, outputs].std(0)
            found[frozenset(term)] = float((effect[spread > 0] / spread[spread > 0]).max(initial=0.0))
    if not found:
        raise ValueError('the explanation has no pairs; calibrate with interactions="auto", a number or a list.')
    pairs = dict(sorted(found.items(), key=lambda item: -item[1]))
    return _Strengths(ex.feature_names, pairs, set(pairs))
