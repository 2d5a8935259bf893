"""Activation maps beside the images they are of."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nobsp._messages import percent, require_whole_number
from nobsp.plots import colours
from nobsp.plots._axes import NORMAL, SMALL, as_axes, bare, new_figure
from nobsp.plots.labels import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from nobsp.vision import ActivationMaps

Array = NDArray[np.float64]

# How light red, green and blue look.
_LIGHT = np.array([0.299, 0.587, 0.114], dtype=np.float32)
_KINDS = ("contrast", "account", "positive", "negative", "signed")


def cam_grid(
    maps: ActivationMaps,
    images: Any,
    *,
    kinds: Sequence[str] | str | None = None,
    labels: Any = None,
    mean: Any = None,
    std: Any = None,
    share_scale: bool = True,
    opacity: float = 0.75,
    max_display: int = 6,
    ax: Any = None,
) -> NDArray[Any]:
    """Draws each image beside its maps, with the class they are about and the model's confidence in it.

    Red is evidence for the class, blue evidence against it; the image below is grey, so that its own colours are not
    taken for evidence. Lines run where a map reaches half of its scale: solid around evidence for, dashed around
    evidence against. Of "positive", "negative" and "signed", all share one scale in each row, so that they can be
    compared; a map that stays below it says how far it gets.

    Args:
        maps: What an `NObSPCam` returned; with several targets an image, each has a row.
        images: The images, as many as there are maps: (n, channels, height, width) or (n, height, width, channels).
        kinds: Which maps, of "contrast", "account", "positive", "negative" and "signed"; by default the one the
            explainer shows (the account against the other classes) and, where that is another, the account.
        labels: True classes, numbers or names; where one is not the class of the map, it is written beside it.
        mean: What was subtracted from each channel when the images were normalised, to show them in their colours.
        std: What each channel was divided by.
        share_scale: Whether maps of an image share one scale, or each has its own.
        opacity: How strong the colour is where a map is largest, 0 to 1.
        max_display: Most rows.
        ax: Axes to draw on, as many as there are panels; a new figure when None.

    Returns:
        The axes, shape (rows, 1 + kinds).

    Raises:
        ValueError: If images and maps do not belong together, or there is no such kind.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from nobsp import NObSPCam, plots
        >>> body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> cam = NObSPCam(nn.Sequential(body, nn.Linear(8, 5))).fit(torch.randn(64, 3, 16, 16))
        >>> images = torch.randn(2, 3, 16, 16)
        >>> plots.cam_grid(cam(images), images).shape
        (2, 3)
    """
    require_whole_number("max_display", max_display)
    if not hasattr(maps, "overlay"):
        raise TypeError(f"maps must be ActivationMaps, found {type(maps).__name__}; pass cam(images).")
    if kinds is None:
        kinds = [maps.kind] if maps.kind != "contrast" else ["contrast", "account"]
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    for kind in kinds:
        if kind not in _KINDS:
            raise ValueError(f"kinds must be of {', '.join(map(repr, _KINDS))}, found {kind!r}.")
    if not 0 <= opacity <= 1:
        raise ValueError(f"opacity must lie between 0 and 1, found {opacity!r}.")
    several = maps.positive.ndim == 4
    targets = [maps.of_target(place) for place in range(maps.positive.shape[1])] if several else [maps]
    pictures = targets[0].overlay(images, opacity=0.0, mean=mean, std=std)
    rows = [(image, one) for image in range(len(maps)) for one in targets][:max_display]
    true = _names_of(labels, maps)
    height, width = pictures.shape[1:3]
    columns = 1 + len(kinds)
    if ax is None:
        figure = new_figure((1.75 * columns + 1.3, (1.75 * height / width + 0.15) * len(rows) + 0.4))
        axes = [figure.add_subplot(len(rows), columns, place + 1) for place in range(len(rows) * columns)]
    else:
        axes = as_axes(ax, len(rows) * columns, "this grid")
    grid = np.array(axes, dtype=object).reshape(len(rows), columns)
    for place, (image, one) in enumerate(rows):
        large = one.resize((height, width))
        both = max(_peak(large.positive[image]), _peak(large.negative[image]))
        grey = np.broadcast_to((pictures[image] @ _LIGHT)[..., None], pictures[image].shape)
        for panel, kind in zip(grid[place], ["image", *kinds], strict=True):
            bare(panel)
            panel.imshow(pictures[image] if kind == "image" else grey)
            if kind != "image":
                own = getattr(large, kind)[image]
                shared = share_scale and kind in ("positive", "negative", "signed")
                _lay_over(panel, own, kind, both if shared else _peak(own), opacity)
                if shared and _peak(own) < 0.995 * both:
                    panel.set_xlabel(f"at most {percent(_peak(own) / both)} of the scale", fontsize=SMALL)
            if place == 0:
                panel.set_title(fill("image" if kind == "image" else one.caption(kind), 22), fontsize=NORMAL)
        _name_row(grid[place, 0], one, image, true)
    return grid


def _peak(values: Array) -> float:
    return float(np.abs(values).max())


def _lay_over(ax: Axes, values: Array, kind: str, scale: float, opacity: float) -> None:
    """A map in colour, stronger where it is larger, with lines at half the scale."""
    from matplotlib.colors import to_rgb

    part = values / (scale if scale > 0 else 1.0)
    if kind in ("positive", "negative"):
        part = np.maximum(part, 0.0) * (1.0 if kind == "positive" else -1.0)
    tint = np.empty((*part.shape, 4))
    tint[..., :3] = np.where((part >= 0)[..., None], to_rgb(colours.FOR_TINT), to_rgb(colours.AGAINST_TINT))
    tint[..., 3] = opacity * np.abs(part).clip(0.0, 1.0)
    ax.imshow(tint, interpolation="bilinear", gid=kind)
    for level, line in ((0.5, "solid"), (-0.5, "dashed")):
        if part.min() < level < part.max():
            for width, colour in ((2.2, "white"), (1.0, "black")):
                ax.contour(part, levels=[level], colors=colour, linestyles=line, linewidths=width)


def _name_row(ax: Axes, maps: ActivationMaps, image: int, true: Sequence[str]) -> None:
    target = str(maps.target_names[image])
    text = f"{shorten(target, 18)}\n{percent(float(maps.confidence[image]))}"
    if true and true[image] != target:
        text += f"\n(is {shorten(true[image], 16)})"
    ax.set_ylabel(text, rotation=0, ha="right", va="center", fontsize=NORMAL, labelpad=6)


def _names_of(labels: Any, maps: ActivationMaps) -> list[str]:
    """True classes by name."""
    if labels is None:
        return []
    given = np.asarray(labels.detach().cpu() if hasattr(labels, "detach") else labels).ravel()
    if len(given) != len(maps):
        raise ValueError(f"labels has {len(given)} entries but there are {len(maps)} images; pass one each.")
    if given.dtype.kind not in "iu":
        return [str(label) for label in given]
    wrong = given[(given < 0) | (given >= len(maps.output_names))]
    if len(wrong):
        raise ValueError(f"labels has the class {wrong[0]}, but there are {len(maps.output_names)} classes.")
    return [maps.output_names[label] for label in given]
