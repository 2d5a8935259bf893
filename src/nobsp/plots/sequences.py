"""What windows of a sequence contribute, as a heat map over time and channels."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from nobsp._typing import FloatArray
from nobsp.arguments import count, join_names
from nobsp.plots import _axes, _lookup, labels
from nobsp.plots._axes import Axes
from nobsp.plots._lookup import Output
from nobsp.tabular.explanation import Explanation

# More windows have no room for a number each.
_MOST_NUMBERS = 48
# Names of columns that belong to a sequence: "series[time,channel]", or "series[time]".
_PLACE_IN_SEQUENCE = re.compile(r"(.+)\[(\d+)(?:,(\d+))?\]")


def windows(
    ex: Explanation,
    row: Hashable = 0,
    *,
    sequence: str | None = None,
    output: Output = None,
    channels: Sequence[str] | None = None,
    channels_first: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draws what windows of a sequence contribute as a heat map.

    Time along the bottom, a line for each channel.

    A window has its main effect and equal shares of its interactions, so that all windows, other
    features and the residual add up to the prediction less the base. What is below zero is hatched.

    Args:
        ex: An explanation whose features are windows of an input (n, time, channels) or (n, time).
        row: Position or label of the row, as in `waterfall`; None for the mean absolute value over
            all rows.
        sequence: Name of the input; may be left out where only one is a sequence.
        output: Position or name of the output; may be left out where there is only one.
        channels: Names of the channels.
        channels_first: Whether the input is (n, channels, time).
        ax: Axes to draw on; a new figure when None.

    Example:
        >>> import torch
        >>> from nobsp import NObSP, plots
        >>> from torch.nn import Flatten, Linear, ReLU, Sequential
        >>> model = Sequential(Flatten(), Linear(24, 8), ReLU(), Linear(8, 1))
        >>> X = {"input": torch.randn(100, 12, 2)}
        >>> parts = {f"{t} to {t + 3}": ("input", slice(t, t + 4)) for t in (0, 4, 8)}
        >>> explainer = NObSP(model, features=parts, interactions=0).fit(X)
        >>> plots.windows(explainer(X), row=3).get_xlabel()
        'time step'
    """
    chosen = _lookup.one_output(output, _lookup.require_explanation(ex, "windows").output_names)
    feature_of_cell = _features_of_sequence(ex, sequence)
    if not channels_first:
        feature_of_cell = feature_of_cell.T
    names = _channel_names(channels, len(feature_of_cell))

    if row is None:
        title = count(len(ex), "row")
        values = _mean_size(_shares_of_features(ex, chosen))
    else:
        position, title = _lookup.find_row(row, ex)
        values = _shares_of_features(ex, chosen)[position]
    cells = values[feature_of_cell]
    if not np.isfinite(cells).all():
        raise ValueError(
            f"row is {row!r}, of which contributions are not known: it has missing values."
        )

    ax = _axes.get_axes(ax, (7.4, 0.36 * len(names) + 1.5))
    meaning = "mean |contribution|" if row is None else "contribution"
    output_name = labels.shorten(ex.output_names[chosen], 24)
    _draw_cells(ax, cells, label=f"{meaning} to {output_name}", signed=row is not None)
    _draw_borders(ax, feature_of_cell)
    decimals = labels.decimals_for([float(np.abs(cells).max()) or 1.0])
    drawn = np.unique(feature_of_cell)
    _write_numbers(ax, feature_of_cell, values, decimals, sign="" if row is None else "+")

    _label_channels(ax, names)
    if row is not None:
        change = ex.predictions[position, chosen] - ex.base_values[chosen]
        rest = float(change - values[drawn].sum())
        number = labels.format_number(rest, decimals, "+")
        _axes.add_note(ax, f"all else, residual included: {number}")
    ax.set_title(title, loc="left", fontsize=_axes.LARGE)
    return ax


def _write_numbers(
    ax: Axes, feature_of_cell: NDArray[np.intp], values: FloatArray, decimals: int, *, sign: str
) -> None:
    """A number in every window, where these are few."""
    drawn = np.unique(feature_of_cell)
    if len(drawn) > _MOST_NUMBERS:
        return
    for feature in drawn:
        number = labels.format_number(float(values[feature]), decimals, sign)
        _write_number(ax, feature_of_cell == feature, number)


def _label_channels(ax: Axes, names: Sequence[str]) -> None:
    """Channels from the top downwards, and time along the bottom."""
    ax.set_yticks(range(len(names)), labels=names)
    ax.tick_params(labelsize=_axes.SMALL, length=3)
    ax.spines[:].set_visible(False)
    ax.invert_yaxis()
    ax.set_xlabel("time step", fontsize=_axes.NORMAL)


def _channel_names(channels: Sequence[str] | None, n_channels: int) -> list[str]:
    """The caller's names of the channels, or their numbers."""
    if channels is None:
        return [str(channel) for channel in range(n_channels)]

    names = labels.shorten_all(channels, 24)
    if len(names) != n_channels:
        raise ValueError(
            f"channels has {len(names)} names but the sequence has {n_channels}; pass one each."
        )
    return names


def _shares_of_features(ex: Explanation, output: int) -> FloatArray:
    """What each feature contributes in each row, interactions in equal shares, (rows, features)."""
    is_member = [[name in term for name in ex.feature_names] for term in ex.terms]
    members = np.array(is_member, dtype=np.float64)
    return np.asarray(ex.values[:, :, output] @ (members / members.sum(1, keepdims=True)))


def _mean_size(shares: FloatArray) -> FloatArray:
    """Mean absolute contributions over the rows that could be explained."""
    known = np.isfinite(shares).all(1)
    return np.asarray(np.abs(shares[known]).mean(0))


def _draw_cells(ax: Axes, cells: FloatArray, *, label: str, signed: bool) -> None:
    """The heat map with its colour bar; cells below zero are hatched."""
    from matplotlib.collections import PolyCollection

    largest = float(np.abs(cells).max()) or 1.0
    lines, steps = cells.shape
    mesh = ax.pcolormesh(
        np.arange(steps + 1) - 0.5,
        np.arange(lines + 1) - 0.5,
        cells,
        cmap=_axes.blend(_axes.AGAINST_TO_FOR if signed else _axes.NOTHING_TO_MUCH),
        vmin=-largest if signed else 0.0,
        vmax=largest,
        gid="windows",
    )
    mesh.set_rasterized(True)
    _axes.colour_bar(ax, mesh, label)

    corners = np.array([(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)])
    below_zero = np.argwhere(cells < 0)[:, ::-1]
    squares = [cell + corners for cell in below_zero]
    hatched = PolyCollection(squares, hatch="///", linewidths=0)
    hatched.set(facecolor="none", edgecolor="#00000059", gid="against")
    ax.add_collection(hatched)


def _draw_borders(ax: Axes, feature_of_cell: NDArray[np.intp]) -> None:
    """White lines between windows."""
    line, step = np.nonzero(np.diff(feature_of_cell, axis=1))
    ax.vlines(step + 0.5, line - 0.5, line + 0.5, color="white", linewidth=1.5)

    line, step = np.nonzero(np.diff(feature_of_cell, axis=0))
    ax.hlines(line + 0.5, step - 0.5, step + 0.5, color="white", linewidth=1.5)


def _write_number(ax: Axes, is_inside: NDArray[np.bool_], number: str) -> None:
    """A number in the middle of a window."""
    line, step = np.nonzero(is_inside)
    text = ax.text(step.mean(), line.mean(), number, ha="center", va="center")
    text.set_fontsize(_axes.SMALL)
    text.set_bbox({"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.0})


def _features_of_sequence(ex: Explanation, sequence: str | None) -> NDArray[np.intp]:
    """The feature that each place of a sequence belongs to, (time, channels)."""
    functions = ex.explainer
    names = getattr(functions, "column_names", None) or ()
    matches = {column: _PLACE_IN_SEQUENCE.fullmatch(name) for column, name in enumerate(names)}
    in_sequences = {column: match for column, match in matches.items() if match}
    if not in_sequences or functions is None:
        raise ValueError(
            "ex has no feature that is a window of a sequence; "
            "fit a model of inputs (n, time, channels)."
        )

    chosen = _choose_sequence(sequence, list(in_sequences.values()))
    columns = {column: match for column, match in in_sequences.items() if match[1] == chosen}
    time = [int(match[2]) for match in columns.values()]
    channel = [int(match[3] or 0) for match in columns.values()]
    feature_of_column = {
        column: number
        for number, feature in enumerate(functions.features)
        for column in feature.columns
    }
    features = np.zeros((max(time) + 1, max(channel) + 1), dtype=np.intp)
    features[time, channel] = [feature_of_column[column] for column in columns]
    return features


def _choose_sequence(sequence: str | None, matches: Sequence[re.Match[str]]) -> str:
    """The name of the sequence to draw; one with channels is preferred where none is chosen."""
    every_name = {match[1] for match in matches}
    with_channels = {match[1] for match in matches if match[3]}
    candidates = with_channels or every_name
    if sequence is None and len(candidates) == 1:
        return next(iter(candidates))
    if sequence is None or sequence not in every_name:
        choice = join_names(sorted(candidates))
        raise ValueError(f"sequence is {sequence!r}; choose it among {choice}.")
    return sequence
