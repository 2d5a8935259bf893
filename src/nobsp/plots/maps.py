"""Activation maps beside the images they are of, along signals, and under words."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from nobsp._typing import AnyArray, ArrayLike, AxesLike, ImagesLike
from nobsp.arguments import (
    array_of,
    count,
    names_of,
    percent,
    quote,
    require_choice,
    require_number,
    require_parts,
    require_whole_number,
    with_minus,
)
from nobsp.plots import _axes
from nobsp.plots._axes import NORMAL, SMALL, Axes, bare, get_axes, get_panels, tidy
from nobsp.plots._lookup import Array
from nobsp.plots.labels import escape, shorten

if TYPE_CHECKING:
    from nobsp.vision import ActivationMaps, Confusions

# Letters in a line of a text.
_COLUMNS = 72
# Rows of a grid of maps: a usual batch, and a figure that can still be scrolled through.
_MOST_ROWS = 16


# Evidence of tokens without a place in the image is told beside the picture above this share.
WITHOUT_PLACE = 0.1


def cam_grid(
    maps: ActivationMaps,
    images: ImagesLike,
    *,
    kinds: Sequence[str] | str | None = None,
    labels: ArrayLike = None,
    mean: ArrayLike = None,
    std: ArrayLike = None,
    share_scale: bool = True,
    opacity: float = 0.75,
    max_display: int = _MOST_ROWS,
    ax: AxesLike = None,
) -> AnyArray:
    """Draws each image beside its maps, with their class and the model's confidence in it.

    Orange is evidence for the class, blue evidence against it, on the image in grey. Lines run
    where a map reaches half of its scale: solid around evidence for, dashed around evidence
    against. "positive", "negative" and "signed" share one scale in each row; a map that stays below
    it says how far it gets.

    Args:
        maps: What an `NObSPCam` returned; with several targets an image, each has a row.
        images: The images, as many as there are maps: (n, channels, height, width) or (n, height,
            width, channels).
        kinds: Which maps, of "contrast", "account", "positive", "negative" and "signed"; by default
            the one the explainer shows (the account against the other classes) and, where that is
            another, the account.
        labels: True classes, numbers or names; where one is not the class of the map, it is written
            beside it.
        mean: What was subtracted from each channel when images were normalised, and `std` what they
            were divided by.
        std: See `mean`.
        share_scale: Whether maps of an image share one scale, or each has its own.
        opacity: How strong the colour is where a map is largest, 0 to 1.
        max_display: Most rows; where there are more, the first are drawn and the figure says how
            many there are.
        ax: Axes to draw on, as many as there are panels; a new figure when None.

    Returns:
        The axes, shape (rows, 1 + kinds).

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from nobsp import NObSPCam, plots
        >>> body = nn.Sequential(
        ...     nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        ... )
        >>> cam = NObSPCam(nn.Sequential(body, nn.Linear(8, 5))).fit(torch.randn(64, 3, 16, 16))
        >>> images = torch.randn(2, 3, 16, 16)
        >>> plots.cam_grid(cam(images), images).shape
        (2, 3)
    """
    require_whole_number("max_display", max_display)
    require_number("opacity", opacity, least=0, most=1)
    if not hasattr(maps, "overlay"):
        raise TypeError(
            f"maps must be ActivationMaps, found {type(maps).__name__}; pass cam(images)."
        )
    shown_kinds = _kinds_of(maps, kinds)

    targets = _targets_of(maps)
    pictures = targets[0].overlay(images, opacity=0.0, mean=mean, std=std)
    every_row = [(image, of_target) for image in range(len(maps)) for of_target in targets]
    rows = every_row[:max_display]
    true_names = _names_of(labels, maps)
    style = _Style(shown_kinds, share_scale=share_scale, opacity=opacity)

    grid = _grid_of_panels(
        ax, len(rows), 1 + len(shown_kinds), aspect=pictures.shape[1] / pictures.shape[2]
    )
    for panels_of_row, (image, of_target) in zip(grid, rows, strict=True):
        axes = list(panels_of_row)
        _draw_row(axes, of_target, image, pictures[image], style)
        true_name = true_names[image] if true_names else None
        _label_row(axes[0], _row_label(of_target, image, true_name))

    _caption_columns(list(grid[0]), rows[0][1], shown_kinds)
    if ax is None:
        what = "image" if len(targets) == 1 else "map"
        _tell_left_out(grid[0, 0], drawn=len(rows), there_are=len(every_row), what=what)
    return grid


def _grid_of_panels(ax: AxesLike, n_rows: int, n_columns: int, *, aspect: float) -> AnyArray:
    """The axes that were passed, or those of a new figure.

    `aspect` is the height of an image by its width.
    """
    size = (1.75 * n_columns + 1.3, (1.75 * aspect + 0.15) * n_rows + 0.4)
    panels = get_panels(ax, n_rows * n_columns, n_columns, size, "this grid")
    return np.array(panels, dtype=object).reshape(n_rows, -1)


def _caption_columns(panels: Sequence[Axes], maps: ActivationMaps, kinds: Sequence[str]) -> None:
    """Writes above the first row what each column shows."""
    captions = ["image", *(maps.caption(kind) for kind in kinds)]
    for panel, caption in zip(panels, captions, strict=True):
        panel.set_title(fill(caption, 22), fontsize=NORMAL)


@dataclass(frozen=True)
class _Style:
    """Which maps are drawn, and how."""

    kinds: Sequence[str]
    share_scale: bool  # whether maps of an image share one scale
    opacity: float  # where a map is largest


def _draw_row(
    axes: Sequence[Axes], maps: ActivationMaps, image: int, picture: Array, style: _Style
) -> None:
    """Draws an image, and beside it its maps in the image's own resolution."""
    for panel in axes:
        bare(panel)
    axes[0].imshow(picture)
    height, width = picture.shape[:2]
    _draw_maps(axes[1:], maps.resize((height, width)), image, picture, style)


def _tell_left_out(panel: Axes, *, drawn: int, there_are: int, what: str) -> None:
    """Says in small print below the figure how many of the rows are drawn, unless all are."""
    if drawn == there_are:
        return
    text = f"the first {drawn} of {count(there_are, what)}; max_display={there_are} draws all"
    panel.figure.supxlabel(text, fontsize=SMALL, color=_axes.MUTED, x=0.99, ha="right")


def _label_row(panel: Axes, text: str) -> None:
    """Writes what a row shows to the left of its first panel."""
    panel.set_ylabel(text, rotation=0, ha="right", va="center", fontsize=NORMAL, labelpad=6)


def _targets_of(maps: ActivationMaps) -> list[ActivationMaps]:
    """Maps of one target per image, once for every target."""
    if maps.target.ndim == 1:
        return [maps]
    return [maps.of_target(number) for number in range(maps.target.shape[1])]


def _kinds_of(maps: ActivationMaps, kinds: Sequence[str] | str | None) -> list[str]:
    """The kinds of maps to draw; by default the one that is shown, and the account."""
    from nobsp.vision.maps import KINDS

    if kinds is None:
        # Account and contrast of a picture are one map.
        is_one_map = maps.kind != "contrast" or maps.picture
        return [maps.kind] if is_one_map else ["contrast", "account"]
    listed = [kinds] if isinstance(kinds, str) else list(names_of("kinds", kinds))
    for kind in listed:
        require_choice("kinds", kind, KINDS)
    return listed


def _draw_maps(
    axes: Sequence[Axes], maps: ActivationMaps, image: int, picture: Array, style: _Style
) -> None:
    """Maps of one image, each over the image in grey."""
    from nobsp.vision.maps import LIGHT

    brightness = picture @ np.array(LIGHT, np.float32)
    grey = np.broadcast_to(brightness[..., None], picture.shape)
    common_scale = max(_peak(maps.positive[image]), _peak(maps.negative[image]))
    for panel, kind in zip(axes, style.kinds, strict=True):
        panel.imshow(grey)
        values = getattr(maps, kind)[image]
        is_shared = style.share_scale and kind in ("positive", "negative", "signed")
        scale = common_scale if is_shared else _peak(values)
        _lay_over(panel, values, kind, scale, style.opacity)
        if _peak(values) < 0.995 * scale:
            share = percent(_peak(values) / scale)
            panel.set_xlabel(f"at most {share} of the scale", fontsize=SMALL)


def _row_label(maps: ActivationMaps, image: int, true_name: str | None) -> str:
    """The class that an image's maps are about, how sure the model is, and what else matters."""
    target = str(maps.target_names[image])
    lines = [shorten(target, 18), percent(float(maps.confidence[image]))]
    if true_name is not None and true_name != target:
        lines.append(f"(is {shorten(true_name, 16)})")

    without_place = float(maps.share_without_place[image])
    if without_place > WITHOUT_PLACE:
        lines += [f"{percent(without_place)} of it", "has no place"]
    return "\n".join(lines)


def confusions(
    found: Confusions,
    *,
    mean: ArrayLike = None,
    std: ArrayLike = None,
    max_display: int = _MOST_ROWS,
    ax: AxesLike = None,
) -> AnyArray:
    """Draws the first image of each confused pair of classes, and the evidence for and against.

    The evidence is what speaks for the one class and against the other.

    Args:
        found: What `nobsp.confusions` returned.
        mean: What was subtracted from each channel when images were normalised, and `std` what they
            were divided by.
        std: See `mean`.
        max_display: Most pairs, the most frequent ones; where there are more, the figure says how
            many.
        ax: Axes to draw on, two for each pair; a new figure when None.

    Returns:
        The axes, shape (pairs, 2).
    """
    require_whole_number("max_display", max_display)
    require_parts("found", found, ("pairs",), wanted="what nobsp.confusions returned")
    shown = found.pairs[:max_display]
    if not shown:
        raise ValueError("found has no pairs: no image was taken for another class.")

    panels = get_panels(ax, 2 * len(shown), 2, (5.2, 2.1 * len(shown) + 0.4), "this grid")
    grid = np.array(panels, dtype=object).reshape(-1, 2)
    for axes, pair in zip(grid, shown, strict=True):
        true = [pair.truth] * len(pair.maps)
        cam_grid(
            pair.maps,
            pair.images,
            kinds="account",
            labels=true,
            mean=mean,
            std=std,
            max_display=1,
            ax=axes,
        )
        axes[0].set_title(f"{pair.count} images", fontsize=NORMAL)
        axes[1].set_title(fill(f"for {pair.predicted}, against {pair.truth}", 28), fontsize=NORMAL)

    if ax is None:
        _tell_left_out(grid[0, 0], drawn=len(shown), there_are=len(found.pairs), what="pair")
    return grid


def _peak(values: Array) -> float:
    """The largest size of a value."""
    return float(np.abs(values).max())


def _lay_over(ax: Axes, values: Array, kind: str, scale: float, opacity: float) -> None:
    """A map in colour, stronger where it is larger, with lines at half the scale."""
    from matplotlib.colors import to_rgb

    part = values / (scale if scale > 0 else 1.0)
    if kind in ("positive", "negative"):
        part = np.maximum(part, 0.0) * (1.0 if kind == "positive" else -1.0)

    is_for = (part >= 0)[..., None]
    tint = np.empty((*part.shape, 4))
    tint[..., :3] = np.where(is_for, to_rgb(_axes.FOR_TINT), to_rgb(_axes.AGAINST_TINT))
    tint[..., 3] = opacity * np.abs(part).clip(0.0, 1.0)
    ax.imshow(tint, interpolation="bilinear", gid=kind)

    for level, line in ((0.5, "solid"), (-0.5, "dashed")):
        if part.min() < level < part.max():
            for width, colour in ((2.2, "white"), (1.0, "black")):
                ax.contour(
                    part,
                    levels=[level],
                    colors=colour,
                    linestyles=line,
                    linewidths=width,
                )


def _names_of(labels: ArrayLike, maps: ActivationMaps) -> list[str]:
    """True classes by name."""
    if labels is None:
        return []

    values = array_of(labels, name="labels").ravel()
    if len(values) != len(maps):
        raise ValueError(
            f"labels has {len(values)} entries but there are {len(maps)} images; pass one each."
        )
    if values.dtype.kind not in "iu":
        return [str(label) for label in values]

    wrong = values[(values < 0) | (values >= len(maps.output_names))]
    if len(wrong):
        raise ValueError(
            f"labels has the class {wrong[0]}, but there are {len(maps.output_names)} classes."
        )
    return [maps.output_names[label] for label in values]


def signal(
    maps: ActivationMaps,
    signals: ImagesLike,
    *,
    row: int = 0,
    channel: int = 0,
    ax: AxesLike = None,
) -> Axes:
    """Draws a signal as a line: red where it speaks for the class, blue where against it.

    Args:
        maps: What an `NObSPCam` returned for signals (n, channels, time), for one target each.
        signals: The signals.
        row: Which signal.
        channel: Which of its channels is drawn.
        ax: Axes to draw on; those of a new figure when None.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from nobsp import NObSPCam, plots
        >>> body = nn.Sequential(
        ...     nn.Conv1d(2, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()
        ... )
        >>> signals = torch.randn(64, 2, 40)
        >>> cam = NObSPCam(nn.Sequential(body, nn.Linear(8, 3))).fit(signals)
        >>> plots.signal(cam(signals[:2]), signals[:2]).get_xlabel()
        'time step'
    """
    from matplotlib.collections import LineCollection

    values = array_of(signals, name="signals")
    has_signals = values.ndim == 3 and len(values) == len(maps)
    if not has_signals or not _is_along_a_line(maps):
        raise ValueError(
            f"maps has the shape {maps.account.shape} and signals {values.shape}; pass the signals "
            "(n, channels, time), and maps of them for one target each."
        )

    line = values[row, channel].astype(np.float64)
    values = getattr(maps.resize(len(line)), maps.kind)[row]
    strength = values / (_peak(values) or 1.0)

    axes = get_axes(ax, (6.4, 2.2))
    points = np.stack([np.arange(len(line)), line], axis=1)
    pieces = list(np.stack([points[:-1], points[1:]], axis=1))
    drawn = LineCollection(
        pieces, cmap=_axes.blend(_axes.AGAINST_TO_FOR), linewidths=2.2, capstyle="round"
    )
    drawn.set(array=(strength[:-1] + strength[1:]) / 2, clim=(-1.0, 1.0))
    axes.add_collection(drawn)
    axes.autoscale_view()

    tidy(axes)
    axes.set_xlabel("time step", fontsize=NORMAL)
    axes.set_title(f"{shorten(str(maps.target_names[row]), 24)}: {maps.caption()}", fontsize=NORMAL)
    return axes


def words(
    maps: ActivationMaps, tokens: Sequence[str], *, row: int = 0, ax: AxesLike = None
) -> Axes:
    """Draws a text with each token tinted: red where it speaks for the class, blue where against.

    Args:
        maps: What an `NObSPCam` returned for texts, for one target each.
        tokens: The tokens of one text, as many as there are locations, or fewer where the rest is
            padding.
        row: Which text.
        ax: Axes to draw on; those of a new figure when None.
    """
    tinted = _tinted(maps, tokens, row)
    starts = _wrap([token for token, _, _ in tinted])
    last_line = max((line for _, line in starts), default=0)

    axes = get_axes(ax, (7.0, 0.32 * (last_line + 1) + 0.5))
    bare(axes)
    axes.set_xlim(-1, _COLUMNS + 1)
    axes.set_ylim(last_line + 0.7, -0.7)
    for (column, line), (token, _, colour) in zip(starts, tinted, strict=True):
        axes.text(
            column,
            line,
            escape(token),
            fontsize=SMALL,
            family="monospace",
            va="center",
            color="black",
            bbox={"facecolor": colour, "edgecolor": "none", "boxstyle": "round,pad=0.15"},
        )

    name = shorten(str(maps.target_names[row]), 24)
    axes.set_xlabel(f"{name}: {maps.caption()}", fontsize=NORMAL)
    return axes


def _wrap(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Column and line in which each token of a text begins."""
    starts = []
    line = 0
    column = 0
    for token in tokens:
        if column and column + len(token) > _COLUMNS:
            line += 1
            column = 0
        starts.append((column, line))
        column += len(token) + 1
    return starts


def words_html(maps: ActivationMaps, tokens: Sequence[str], *, row: int = 0) -> str:
    """The same as HTML, for a page or `IPython.display.HTML`.

    A token's share is shown when the mouse is over it.

    Shares add up to the logit less its base value, with `class_token` and `residual`.

    Args:
        maps: What an `NObSPCam` returned for texts, for one target each.
        tokens: The tokens of one text.
        row: Which text.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from nobsp import NObSPCam, plots
        >>> layers = nn.Embedding(9, 4), nn.AdaptiveAvgPool2d((1, 4)), nn.Flatten(), nn.Linear(4, 2)
        >>> codes = torch.randint(0, 9, (16, 3))
        >>> maps = NObSPCam(nn.Sequential(*layers)).fit(codes)(codes)
        >>> plots.words_html(maps, ["not", "so", "good"]).count("<span")
        3
    """
    style = "color:#000;padding:0 .15em;border-radius:.2em;background:"
    spans = []
    for token, share, colour in _tinted(maps, tokens, row):
        shown = with_minus(share, "+.4g")
        spans.append(f'<span style="{style}{colour}" title="{shown}">{html.escape(token)}</span>')
    return " ".join(spans)


def _is_along_a_line(maps: ActivationMaps) -> bool:
    """Whether maps are of signals or texts, for one target each."""
    return len(maps.locations) == 1 and maps.target.ndim == 1


def _tinted(maps: ActivationMaps, tokens: Sequence[str], row: int) -> list[tuple[str, float, str]]:
    """Each token with its share and its colour."""
    from matplotlib.colors import to_hex

    if not isinstance(tokens, Iterable):
        raise TypeError(f"tokens must be the words of one text, found {quote(tokens)}.")
    nested = [token for token in tokens if isinstance(token, list | tuple)]
    if isinstance(tokens, str) or nested:
        kind = "a text" if isinstance(tokens, str) else "lists"
        raise ValueError(
            f"tokens must be the words of one text, found {kind}; pass those of row {row}, as in "
            f"words[{row}]."
        )
    tokens = [str(token) for token in tokens]
    if not _is_along_a_line(maps) or len(tokens) > maps.locations[0]:
        raise ValueError(
            f"maps has the shape {maps.account.shape} but there are {len(tokens)} tokens; pass "
            "maps of texts for one target each, and the tokens of one text."
        )

    shares = getattr(maps, maps.kind)[row, : len(tokens)] / maps.locations[0]
    tint = _axes.blend(_axes.AGAINST_TO_FOR)
    largest = _peak(shares) or 1.0
    return [
        (token, float(share), to_hex(tint(0.5 + 0.5 * share / largest)))
        for token, share in zip(tokens, shares, strict=True)
    ]
