"""Plots of a network's parts: blocks by heads, and outputs by depth.

Shown is what each part adds directly, and what is lost without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from nobsp._typing import FloatArray
from nobsp.arguments import count, percent, require_parts, require_whole_number, suggest
from nobsp.numerics import evenly_spaced
from nobsp.plots import _axes
from nobsp.plots._axes import NORMAL, SMALL, Axes, AxesLike, Look, get_panels, label_rows, tidy
from nobsp.plots.labels import escape

# What `explain_parts` returned, or what `ablation` of that did: by their attributes, so that torch
# is not needed.
Dissected: TypeAlias = Any
Depths: TypeAlias = Any

_DIRECT = Look(_axes.MAIN)
_ABLATED = Look(_axes.FOR, _axes.AGAINST_HATCH)
# Rows that are drawn.
_MOST_LINES = 30
_LIGHT = 0.55


@dataclass(frozen=True)
class _Sizes:
    """Mean absolute numbers per part, under a heading."""

    title: str
    sizes: FloatArray
    look: Look


def parts(
    what: Dissected, *, output: int | str = 0, max_display: int = 25, ax: AxesLike = None
) -> Any:
    """Draws how much each part of a network adds to an output, on average over rows.

    Of a transformer a map of blocks by heads, with the MLP beside them; of other networks bars, in
    the order of the stream. An `Ablation` has two panels: what parts add directly, and what is lost
    when they are put at their means.

    Args:
        what: What `nobsp.explain_parts` returned, or its `ablation(X)`.
        output: Which output, by position or name.
        max_display: Most bars, for networks without heads: the largest.
        ax: Axes to draw on, two of them for an ablation; a new figure when None.

    Returns:
        The axes, or an array of both.

    Example:
        >>> import torch, nobsp
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(3, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1)
        ... )
        >>> ax = nobsp.plots.parts(nobsp.explain_parts(model, torch.randn(50, 3)))
        >>> len(ax.patches)
        6
    """
    require_parts("what", what, ("parts", "output_names"), wanted="an explanation of parts")
    require_whole_number("max_display", max_display)
    column = _output(output, what.output_names)
    panels = _panels(what, column)
    with_heads = any(part.kind == "head" for part in what.parts)
    if with_heads:
        n_lines = len(_lines_of(what.parts))
    else:
        n_lines = min(len(what.parts), max_display)
    height = 0.3 * n_lines + 1.4
    width = 4.6 * len(panels)
    axes = get_panels(ax, len(panels), len(panels), (width, height), "parts")

    largest = max(float(np.nanmax(panel.sizes, initial=0.0)) for panel in panels)
    for axis, panel in zip(axes, panels, strict=True):
        if with_heads:
            _draw_map(axis, what.parts, panel.sizes, largest)
        else:
            _draw_bars(axis, what.parts, panel, max_display)
        axis.set_title(panel.title, loc="left", fontsize=NORMAL)
        name = escape(what.output_names[column])
        axis.set_xlabel(f"mean |change| of {name}", fontsize=SMALL)
    return axes[0] if len(axes) == 1 else np.array(axes, dtype=object)


def lens(what: Depths, *, output: int | str = 0, ax: Axes | None = None) -> Axes:
    """Draws an output as it stands at each depth, with all later parts at their means.

    A line is a row, coloured by where it ends; of many rows some are drawn, evenly spaced by their
    last value.

    Args:
        what: What `explain_parts(model, X).lens(X)` returned.
        output: Which output, by position or name.
        ax: Axes to draw on; a new figure when None.

    Example:
        >>> import torch, nobsp
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
        >>> encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        >>> model = torch.nn.Sequential(encoder, torch.nn.Flatten(), torch.nn.Linear(24, 2))
        >>> rows = torch.randn(20, 3, 8)
        >>> ax = nobsp.plots.lens(nobsp.explain_parts(model, rows).lens(rows))
        >>> [label.get_text() for label in ax.get_xticklabels()]
        ['embedding', 'block 0', 'block 1']
    """
    require_parts("what", what, ("outputs", "depths"), wanted="the outputs by depth, ex.lens(X)")
    column = _output(output, what.output_names)
    outputs = what.outputs[..., column]
    positions = np.arange(len(what.depths))
    width = 0.55 * len(positions) + 3.0
    [axes] = get_panels(ax, 1, 1, (width, 3.2), "lens")
    tidy(axes)

    shades = _axes.blend(_axes.LOW_TO_HIGH)
    by_last = np.argsort(outputs[:, -1], kind="stable")
    some = evenly_spaced(len(by_last), _MOST_LINES)
    shown = outputs[by_last[some]]
    for rank, row in enumerate(shown):
        colour = shades(rank / max(len(shown) - 1, 1))
        axes.plot(
            positions,
            row,
            color=colour,
            linewidth=1.1,
            marker="o",
            markersize=2.5,
        )

    labels = [escape(name) for name in what.depths]
    _axes.turn_labels(axes.xaxis, positions, labels, room=60, degrees=35)
    axes.set_ylabel(escape(what.output_names[column]), fontsize=NORMAL)
    axes.set_title("output with later parts at their means", loc="left", fontsize=NORMAL)
    _axes.add_note(axes, count(len(outputs), "row"))
    return axes


def _output(output: int | str, names: Sequence[str]) -> int:
    """The position of an output."""
    if isinstance(output, str):
        if output not in names:
            raise ValueError(f"there is no output {output!r}; {suggest(output, names)}")
        return list(names).index(output)
    is_whole = isinstance(output, int | np.integer) and not isinstance(output, bool)
    if not is_whole or not -len(names) <= output < len(names):
        raise ValueError(f"output={output!r}: there are {count(len(names), 'output')}, from 0.")
    return int(output) % len(names)


def _panels(what: Dissected, column: int) -> list[_Sizes]:
    """What is drawn: direct contributions, and of an ablation the effects beside them."""
    if not hasattr(what, "effects"):
        direct = np.abs(what.values[..., column]).mean(0)
        return [_Sizes("added directly", direct, _DIRECT)]
    direct = np.abs(what.direct[..., column]).mean(0)
    effects = np.abs(what.effects[..., column]).mean(0)
    return [
        _Sizes("added directly", direct, _DIRECT),
        _Sizes("lost without the part", effects, _ABLATED),
    ]


def _draw_map(ax: Axes, dissected: Sequence[Any], sizes: FloatArray, largest: float) -> None:
    """Blocks down; what is not split, heads and the MLP across.

    The embedding is in a line of its own, and so is what masks do.
    """
    lines = _lines_of(dissected)
    n_heads = 1 + max(part.number for part in dissected if part.kind == "head")
    grid = np.full((len(lines), n_heads + 2), np.nan)
    for part, size in zip(dissected, sizes, strict=True):
        if part.kind == "head":
            column = part.number + 1
        elif part.block is None or part.kind == "attention":
            column = 0
        else:
            column = n_heads + 1
        grid[lines.index(_line_of(part)), column] = size

    shades = _axes.blend(_axes.NOTHING_TO_MUCH)
    ax.set_facecolor(_axes.EMPTY[0])
    image = ax.imshow(
        grid,
        cmap=shades,
        vmin=0.0,
        vmax=max(largest, 1e-30),
        aspect="auto",
    )
    if grid.size <= 300:
        _write_numbers(ax, grid, largest)

    names = [escape(line) for line in lines]
    ax.set_yticks(range(len(lines)), labels=names, fontsize=SMALL)
    word = "head " if n_heads <= 6 else ""
    heads = [f"{word}{number}" for number in range(n_heads)]
    labels = ["whole", *heads, "MLP"]
    ax.set_xticks(range(len(labels)), labels=labels, fontsize=SMALL)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    _axes.colour_bar(ax, image, "")


def _line_of(part: Any) -> str:
    return part.name if part.block is None else f"block {part.block}"


def _lines_of(dissected: Sequence[Any]) -> list[str]:
    """What is in no block has a line of its own, before the blocks."""
    alone = [part for part in dissected if part.block is None]
    inside = sorted((part for part in dissected if part.block is not None), key=lambda p: p.block)
    return list(dict.fromkeys(_line_of(part) for part in (*alone, *inside)))


def _write_numbers(ax: Axes, grid: FloatArray, largest: float) -> None:
    """The numbers themselves, dark on light and light on dark."""
    for (line, column), size in np.ndenumerate(grid):
        if np.isfinite(size):
            colour = "white" if size > _LIGHT * largest else _axes.text_colour(ax)
            text = f"{size:.2g}"
            ax.text(
                column,
                line,
                text,
                ha="center",
                va="center",
                fontsize=SMALL,
                color=colour,
            )


def _draw_bars(ax: Axes, dissected: Sequence[Any], panel: _Sizes, max_display: int) -> None:
    """The largest, in the order of the stream."""
    tidy(ax, grid=True)
    known = np.nan_to_num(panel.sizes)
    largest = np.argsort(-known, kind="stable")[:max_display]
    shown = np.sort(largest)
    names = [escape(dissected[part].name) for part in shown]
    label_rows(ax, names)
    _axes.bars(ax, np.arange(len(shown)), known[shown], left=0.0, look=panel.look)

    left_out = len(known) - len(shown)
    if left_out and known.sum() > 0:
        share = float(1 - known[shown].sum() / known.sum())
        _axes.add_note(ax, f"{count(left_out, 'part')} more have {percent(share)}")
