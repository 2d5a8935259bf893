"""Class activation maps and what they say: evidence for and against a class, by location."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from nobsp import notebook
from nobsp._typing import AnyArray, ArrayLike, ImagesLike
from nobsp.arguments import numbers_of, require_choice, require_number, require_whole_number
from nobsp.base import Plots
from nobsp.elsewhere import MAPS, NamesFromElsewhere
from nobsp.vision.account import Answer
from nobsp.vision.pictures import pictures_in, read_pictures

Array = NDArray[np.float64]
Kind = Literal["contrast", "account", "positive", "negative", "signed"]
KINDS = ("contrast", "account", "positive", "negative", "signed")
# What else there is of every image and target.
PER_TARGET = ("contributions", "class_token", "target", "residual", "confidence")

# Orange and blue: distinct for people who do not see red and green, and bright enough to shine on a
# dark picture.
FOR = "#e8590c"
AGAINST = "#1f7fd1"
# Above this share, what is unexplained is said wherever maps are printed.
NOTEWORTHY = 0.01
# Maps that a notebook shows.
_SHOWN_MAPS = 8
# How strong the colour is where a map is largest, and how bright red, green and blue look, as
# browsers count it.
OPACITY = 0.7
LIGHT = (0.2126, 0.7152, 0.0722)


@dataclass(frozen=True, eq=False, repr=False)
class ActivationMaps(NamesFromElsewhere):
    """Maps for a batch of images.

    With several targets per image, every array has an axis for them after the first.

    With F the map, z̄ the channels' calibration means and g_c the contribution of channel c:

    Attributes:
        positive: Σ_c F_c(h, w) · max(g_c, 0), the paper's map: where the channels that speak for
            the class are active, shape (n, h, w), as are the next four; (n, t) for signals and
            tokens, (n, d, h, w) for volumes. It can be below zero where activations are (SiLU,
            GELU).
        negative: Σ_c F_c(h, w) · max(−g_c, 0), where the channels that speak against it are active.
        signed: Their difference, Σ_c F_c(h, w) · g_c.
        account: Evidence per location in logits: its mean over the locations, plus `class_token`,
            plus `residual`, is the target's logit less `base_values`, to rounding in float64. Where
            the pooled map enters the head it is Σ_c w_c (F_c(h, w) − z̄_c), with w the head's
            weights. With scale="probability" it is of the target's probability p, and its mean is p
            less p at the calibration mean of the map.
        contrast: The account less that of the other classes in proportion to their softmax, which
            tells classes apart best; the account itself where `against` or a probability is asked
            for, classes exclude no other, or the maps are pictures.
        contributions: g_c, shape (n, channels).
        class_token: Share of the account that belongs to tokens without a place in the image, or to
            a text's mask (the output at the mean map depends on it), shape (n,).
        target: Class each map is about, shape (n,).
        logits: What the model says, shape (n, outputs).
        base_values: Logits at the calibration mean of the map, shape (outputs,).
        mean_values: Mean logits over the calibration images; not `base_values` where layers follow
            that are not linear.
        residual: What the account misses of what the model says, shape (n,): zero where the pooled
            map enters the head and no other path led to the output.
        confidence: The model's probability of the target, shape (n,).
        output_names: Names of the classes.
        layer: Where in the model the map is.
        against: What the account is compared with: a class, "runner-up", "others", "mean", or None.
        scale: "logit" or "probability".
        kind: Which map is shown where none is named.
        reference: What accounts start from, in words.
        picture: Whether the maps show where a class is, from the first tokens of a transformer,
            without adding up; account and contrast are then one map. `NObSPCam(model, points=8)`
            gives numbers that do.
        passes: Forward passes per image that were run for these maps, those through the layers
            behind the map included.
        gradients: Gradients per image that were taken for these maps.
    """

    positive: Array
    negative: Array
    signed: Array
    account: Array
    contrast: Array
    contributions: Array
    class_token: Array
    target: NDArray[np.int64]
    logits: Array
    base_values: Array
    mean_values: Array
    residual: Array
    confidence: Array
    output_names: tuple[str, ...]
    layer: str
    against: str | None = None
    scale: str = "logit"
    kind: Kind = "account"
    reference: str = "the calibration mean"
    picture: bool = False
    passes: float = 1.0
    gradients: float = 0.0
    _elsewhere = MAPS

    def __len__(self) -> int:
        return len(self.positive)

    def __getitem__(self, rows: int | slice | Sequence[int] | AnyArray) -> ActivationMaps:
        """Maps of some images, by position, slice, positions or mask; of one, a batch of one."""
        if isinstance(rows, int | np.integer):
            if not -len(self) <= rows < len(self):
                raise IndexError(f"image {rows} is out of range; there are {len(self)} images.")
            rows = [int(rows)]
        index = rows if isinstance(rows, slice) else np.asarray(rows)
        per_image = [*KINDS, *PER_TARGET, "logits"]
        return replace(self, **{name: getattr(self, name)[index] for name in per_image})

    @property
    def plot(self) -> Plots:
        """Plots such as `maps.plot.cam_grid(images)` and `maps.plot.words(words)`.

        Signals have `maps.plot.signal(signals)`.
        """
        return Plots(self, ("cam_grid", "signal", "words"))

    def __repr__(self) -> str:
        size = "×".join(map(str, self.locations))
        inputs = {1: "sequences", 3: "volumes"}.get(len(self.locations), "images")
        names = list(dict.fromkeys(self.target_names.ravel().tolist()))
        target = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        return (
            f"ActivationMaps({len(self)} {inputs}, {size} locations, layer={self.layer!r}, "
            f"target={target!r}, against={self.against!r}, scale={self.scale!r}{self._warning()})"
        )

    def _repr_html_(self) -> str:
        size = "×".join(map(str, self.locations))
        shown = self if self.target.ndim == 1 else self.of_target(0)
        about = f"{self.caption()}; layer {self.layer!r}{self._warning()}"
        return notebook.card(
            f"{len(self)} maps of {size} locations",
            notebook.line(about),
            notebook.gallery(shown._thumbnails()),
        )

    def _thumbnails(self) -> list[str]:
        """The first maps as small pictures, orange for the class and blue against it.

        Volumes are shown by their middle.
        """
        names = self.target_names
        pictures = []
        for row in range(min(len(self), _SHOWN_MAPS)):
            values = np.asarray(getattr(self, self.kind)[row], dtype=np.float64)
            if values.ndim == 3:
                values = values[len(values) // 2]
            colour, strength = colour_maps(np.atleast_2d(values)[None], kind=self.kind)
            # What is weak lets the notebook's own paper through, light or dark.
            pixels = np.concatenate(
                [np.broadcast_to(colour[0], (*strength[0].shape, 3)), strength[0][..., None]],
                axis=-1,
            )
            pictures.append(
                notebook.picture(pixels, f"{names[row]}, {float(self.confidence[row]):.0%}")
            )
        return pictures

    def _warning(self) -> str:
        if self.picture:
            return ", picture=True"
        share = self.unexplained
        return f", {share:.0%} unexplained" if share > NOTEWORTHY else ""

    @property
    def share_without_place(self) -> Array:
        """Size of `class_token` as a share of all that is accounted for, shape (n,).

        This part is in no picture.
        """
        located = np.abs(self.account.reshape(*self.target.shape, -1).mean(-1))
        token = np.abs(self.class_token)
        whole = located + token
        share: Array = token / np.where(whole > 0, whole, 1.0)
        return share

    @property
    def unexplained(self) -> float:
        """The residuals' sizes as a share of those of what is accounted for, over all images."""
        carried = self.account.reshape(*self.target.shape, -1).mean(-1) + self.class_token
        whole = float(np.abs(carried + self.residual).sum())
        missed = float(np.abs(self.residual).sum())
        return missed / whole if whole > 0 else 0.0

    @property
    def locations(self) -> tuple[int, ...]:
        """Extent of a map: height and width, or time, or depth too, or the number of tokens."""
        return self.account.shape[self.target.ndim :]

    def caption(self, kind: str | None = None) -> str:
        """What a map shows, in a few words.

        When `kind` is None, this is the map that is shown where none is named.
        """
        require_choice("kind", kind, (None, *KINDS))
        kind = kind or self.kind
        kind_of_map = "picture" if self.picture else "account"
        if self.picture and "contrast" in (kind, self.kind):
            # Of a picture the two are one map.
            kind = "contrast" if kind == "account" else kind
        if kind == "contrast" and self.against is None and self.scale == "logit":
            return f"{kind_of_map} against the other classes"
        if kind in ("contrast", "account"):
            rivals = {
                "others": "the other classes",
                "mean": "all classes",
                "runner-up": "the runner-up",
            }
            rival = (
                "" if self.against is None else f" against {rivals.get(self.against, self.against)}"
            )
            return f"{kind_of_map} of the {self.scale}{rival}"

        return {
            "positive": "channels for",
            "negative": "channels against",
            "signed": "channels for less against",
        }[kind]

    @property
    def target_names(self) -> NDArray[np.str_]:
        """Names of the classes the maps are about, shaped like `target`."""
        return np.array(self.output_names, dtype=np.str_)[self.target]

    def resize(self, size: int | tuple[int, ...]) -> ActivationMaps:
        """The same with every map interpolated linearly along each axis; sums are the original's.

        Args:
            size: Height and width, or one number for all axes.
        """
        axes = len(self.locations)
        shape: Any = (size,) * axes if isinstance(size, int | np.integer) else size
        if not isinstance(shape, tuple | list) or len(shape) != axes:
            raise ValueError(f"size must be one or {axes} positive whole numbers, found {size!r}.")
        for side in shape:
            require_whole_number("size", side)
        larger: dict[str, Any] = {
            kind: _resized(getattr(self, kind), tuple(shape)) for kind in KINDS
        }
        return replace(self, **larger)

    def overlay(
        self,
        images: ImagesLike,
        *,
        kind: Kind | None = None,
        opacity: float = 0.5,
        mean: ArrayLike = None,
        std: ArrayLike = None,
    ) -> NDArray[np.float32]:
        """Images with a map laid over them in colour, each map scaled by its own largest value.

        Args:
            images: As many images as there are maps: (n, channels, height, width) or (n, height,
                width, channels), one or three channels; integers are taken to run from 0 to 255. Or
                Pillow images, paths or a folder; of one map, a single image.
            kind: Which map; the account against the other classes by default. Evidence for the
                class is orange, evidence against it blue.
            opacity: How strong the colour is where the map is largest, 0 to 1.
            mean: What was subtracted from each channel when the images were normalised, to undo it.
                Without, images with values outside 0 to 1 are stretched to that range one by one,
                and their colours are not true.
            std: What each channel was divided by.

        Returns:
            Shape (n, height, width, 3), red, green and blue from 0 to 1.
        """
        require_choice("kind", kind, (None, *KINDS))
        kind = kind or self.kind
        if self.target.ndim != 1:
            raise ValueError(
                "these maps are for several targets per image; choose one first, maps.of_target(0)."
            )
        return lay_over(getattr(self, kind), images, kind=kind, opacity=opacity, mean=mean, std=std)

    def of_target(self, position: int) -> ActivationMaps:
        """The maps of one of several targets per image."""
        if self.target.ndim != 2:
            raise ValueError("these maps are for one target per image already.")
        require_whole_number("position", position, least=0)
        if position >= self.target.shape[1]:
            raise ValueError(
                f"position is {position}, but there are {self.target.shape[1]} targets per image."
            )
        names = [*KINDS, *PER_TARGET]
        return replace(self, **{name: getattr(self, name)[:, position] for name in names})


def join(answers: Sequence[Answer], *, several: bool, **about: Any) -> ActivationMaps:
    """Maps of all batches as arrays; the axis of targets is kept only where images have several."""
    shapes = {tuple(answer.positive.shape[2:]) for answer in answers}
    if len(shapes) > 1:
        raise ValueError(
            f"the images have maps of different sizes {sorted(shapes)}; pass images of one size a "
            "call."
        )
    arrays: dict[str, Any] = {}
    for name in (field.name for field in fields(Answer)):
        whole = torch.cat([getattr(answer, name).cpu() for answer in answers])
        has_targets = several or name == "logits"
        arrays[name] = (whole if has_targets else whole[:, 0]).numpy()
    return ActivationMaps(**arrays, **about)


def lay_over(
    maps: Array, images: ImagesLike, *, kind: str, opacity: float, mean: ArrayLike, std: ArrayLike
) -> NDArray[np.float32]:
    """Images (n, height, width, 3) with maps (n, h, w) laid over them in colour."""
    require_number("opacity", opacity, least=0, most=1)
    if maps.ndim != 3:
        use = "use nobsp.plots.signal or nobsp.plots.words, or slices of maps.account"
        raise ValueError(
            f"these maps have {maps.ndim - 1} axes of locations, so they lie over no image; {use}."
        )
    pictures = pictures_of(images, len(maps), mean=mean, std=std)
    colour, strength = colour_maps(
        _resized(maps, (pictures.shape[1], pictures.shape[2])), kind=kind
    )
    blend = (opacity * strength)[..., None]
    return (pictures * (1 - blend) + colour * blend).astype(np.float32)


def resize_maps(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Maps (n, channels, *locations) interpolated linearly along each axis."""
    mode = ("linear", "bilinear", "trilinear")[len(size) - 1]
    return functional.interpolate(maps, size=tuple(size), mode=mode, align_corners=False)


def _resized(maps: Array, size: tuple[int, ...]) -> Array:
    flat = torch.from_numpy(np.ascontiguousarray(maps)).reshape(-1, 1, *maps.shape[-len(size) :])
    result: Array = resize_maps(flat, size).reshape(*maps.shape[: -len(size)], *size).numpy()
    return result


def colour_maps(maps: Array, *, kind: str) -> tuple[Array, Array]:
    """Colours of maps (n, h, w), shape (n, h, w, 3), and how strongly to show them.

    The strength is from 0 to 1, shape (n, h, w).
    """
    shown = np.maximum(maps, 0.0) if kind in ("positive", "negative") else maps
    against = (shown < 0) | (kind == "negative")
    strength = np.abs(shown)
    largest = strength.max((1, 2), keepdims=True)
    colours = [
        np.array([int(name[at : at + 2], 16) / 255 for at in (1, 3, 5)]) for name in (AGAINST, FOR)
    ]
    return np.where(against[..., None], *colours), strength / np.where(largest > 0, largest, 1.0)


def pictures_of(
    images: ImagesLike,
    count: int,
    *,
    mean: ArrayLike = None,
    std: ArrayLike = None,
    argument: str = "images",
) -> Array:
    """Images as (n, height, width, 3) from 0 to 1, their normalisation undone where it is given."""
    listed = pictures_in(images, argument)
    if listed is not None:
        images = read_pictures(listed, argument, channels=3)
    array = _channels_last(numbers_of(images, name=argument, dtype=None), count, argument)
    scaled = array.astype(np.float64) / (255.0 if array.dtype.kind in "iu" else 1.0)
    if mean is not None or std is not None:
        scaled = _undo_normalisation(
            scaled, mean=0.0 if mean is None else mean, std=1.0 if std is None else std
        )

    # What goes beyond what can be shown is stretched, image by image.
    low = scaled.min((1, 2, 3), keepdims=True)
    high = scaled.max((1, 2, 3), keepdims=True)
    outside = (low < 0) | (high > 1)
    stretched = (scaled - low) / np.where(high > low, high - low, 1.0)
    result: Array = np.broadcast_to(np.where(outside, stretched, scaled), (*array.shape[:3], 3))
    return result


def _channels_last(array: AnyArray, count: int, argument: str) -> AnyArray:
    """Images as (n, height, width, channels), as many as are needed, or an error."""
    _require_finite(array, argument)
    if count == 1 and array.ndim == 3:
        array = array[None]
    if array.ndim != 4 or len(array) != count:
        raise ValueError(
            f"{argument} has shape {array.shape}; expected {count} images, (n, channels, height, "
            "width)."
        )

    if array.shape[1] in (1, 3) or array.shape[3] not in (1, 3):
        array = np.moveaxis(array, 1, 3)
    if array.shape[3] not in (1, 3):
        raise ValueError(f"{argument} has {array.shape[3]} channels; expected one or three.")
    return array


def _undo_normalisation(scaled: Array, *, mean: ArrayLike, std: ArrayLike) -> Array:
    """Images before they were normalised, held between 0 and 1."""
    n_channels = scaled.shape[3]
    shift = numbers_of(mean, name="mean").ravel()
    factor = numbers_of(std, name="std").ravel()
    for name, values in (("mean", shift), ("std", factor)):
        _require_finite(values, name)
        if len(values) not in (1, n_channels):
            raise ValueError(
                f"{name} has {len(values)} values, but the images have {n_channels} channels."
            )
    return np.clip(scaled * factor + shift, 0.0, 1.0)


def _require_finite(values: AnyArray, argument: str) -> None:
    """An error where a number is NaN or infinite, which has no colour."""
    if not np.isfinite(values).all():
        raise ValueError(
            f"{argument} has values that are not finite; leave them out or replace them."
        )
