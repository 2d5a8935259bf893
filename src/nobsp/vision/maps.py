"""Class activation maps and what they say: evidence for and against a class, location by location."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from nobsp.vision.colours import coloured

Array = NDArray[np.float64]
Kind = Literal["positive", "negative", "signed", "account"]


@dataclass(frozen=True, eq=False, repr=False)
class ActivationMaps:
    """Maps for a batch of images. With several targets per image, every array has an axis for them after the first.

    With F the spatial map, z its pooled channels and g_c = β_c (z_c − z̄_c) the contribution of channel c:

    - `positive`: Σ_c F_c(h, w) · max(g_c, 0), the paper's map: where the channels that speak for the class are active.
    - `negative`: Σ_c F_c(h, w) · max(−g_c, 0), where the channels that speak against it are active.
    - `signed`: their difference, Σ_c F_c(h, w) · g_c.
    - `account`: Σ_c β_c (F_c(h, w) − z̄_c), an account in logits: its mean over the locations plus `residual` is the
      target's logit less its mean over the calibration images, to rounding in float64. With coefficients="head" on a
      network whose map is pooled straight into the head, the residual is zero.

    With scale="probability" all of this is about the target's probability p instead of its logit. On the straight line
    from the logits at the calibration mean to those of the image, each class k counts by the mean of ∂p/∂ℓ_k,
        β_c = Σ_k v_k β_ck,  v_k = ∫₀¹ p (δ_k,target − p_k) dt,
    so that the mean of the account plus the residual is p less p at the calibration mean.

    Networks whose activation function goes below zero (SiLU, GELU) have maps F that do so too, and `positive` and
    `negative` then can have small negative values.

    Attributes:
        positive: Shape (n, h, w), as are the next three.
        negative: Evidence against, not negative where activations are not.
        signed: Positive less negative.
        account: Evidence per location, in logits or in probability.
        contributions: g_c, shape (n, channels).
        target: Class each map is about, shape (n,).
        logits: What the head says, shape (n, outputs).
        base_values: Mean logits over the calibration images, shape (outputs,).
        residual: What the contributions miss of the target's centred logit or probability, shape (n,).
        confidence: The model's probability of the target, shape (n,).
        output_names: Names of the classes.
        layer: Where in the model the map is.
    """

    positive: Array
    negative: Array
    signed: Array
    account: Array
    contributions: Array
    target: NDArray[np.int64]
    logits: Array
    base_values: Array
    residual: Array
    confidence: Array
    output_names: tuple[str, ...]
    layer: str

    def __len__(self) -> int:
        return len(self.positive)

    def __repr__(self) -> str:
        size = f"{self.positive.shape[-2]}×{self.positive.shape[-1]}"
        return f"ActivationMaps({len(self)} images, {size} locations, layer={self.layer!r})"

    @property
    def target_names(self) -> NDArray[np.str_]:
        """Names of the classes the maps are about, shaped like `target`."""
        return np.array(self.output_names, dtype=np.str_)[self.target]

    def resize(self, size: int | tuple[int, int]) -> ActivationMaps:
        """The same with every map interpolated bilinearly to another size.

        The mean of an interpolated map is near that of the original but not equal to it, so sums belong to the
        original.

        Args:
            size: Height and width, or one number for both.

        Example:
            >>> import torch
            >>> from torch import nn
            >>> from nobsp.vision import NObSPCam
            >>> body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
            >>> cam = NObSPCam(nn.Sequential(body, nn.Linear(8, 5))).fit(torch.randn(64, 3, 16, 16))
            >>> cam(torch.randn(4, 3, 16, 16)).resize(32).positive.shape
            (4, 32, 32)
        """
        shape = _checked_size(size)
        return replace(
            self,
            positive=_resized(self.positive, shape),
            negative=_resized(self.negative, shape),
            signed=_resized(self.signed, shape),
            account=_resized(self.account, shape),
        )

    def overlay(self, images: Any, *, kind: Kind = "positive", opacity: float = 0.5) -> NDArray[np.float32]:
        """Images with a map laid over them in colour, each map scaled by its own largest value.

        Args:
            images: As many images as there are maps: (n, channels, height, width) or (n, height, width, channels), one
                or three channels. Values outside 0 to 1 (normalised images, say) are stretched to that range image by
                image; integers are taken to run from 0 to 255.
            kind: Which map. Evidence for the class is orange ("positive"), evidence against it blue ("negative");
                "signed" and "account" have both.
            opacity: How strong the colour is where the map is largest, 0 to 1.

        Returns:
            Shape (n, height, width, 3), red, green and blue from 0 to 1.

        Raises:
            ValueError: If the images are of another number or shape, or the maps are for several targets per image.
        """
        if kind not in ("positive", "negative", "signed", "account"):
            raise ValueError(f'kind must be "positive", "negative", "signed" or "account", found {kind!r}.')
        if not 0 <= opacity <= 1:
            raise ValueError(f"opacity must lie between 0 and 1, found {opacity!r}.")
        if self.positive.ndim != 3:
            raise ValueError("these maps are for several targets per image; choose one first, maps.of_target(0).")
        pictures = _pictures(images, len(self))
        shown = _resized(getattr(self, kind), (pictures.shape[1], pictures.shape[2]))
        colour, strength = coloured(shown, kind=kind)
        blend = (opacity * strength)[..., None]
        return (pictures * (1 - blend) + colour * blend).astype(np.float32)

    def of_target(self, position: int) -> ActivationMaps:
        """The maps of one of several targets per image."""
        if self.positive.ndim != 4:
            raise ValueError("these maps are for one target per image already.")
        names = ("positive", "negative", "signed", "account", "contributions", "target", "residual", "confidence")
        return replace(self, **{name: getattr(self, name)[:, position] for name in names})


def joined(parts: list[dict[str, Tensor]], *, several: bool, **about: Any) -> ActivationMaps:
    """Maps of all batches as arrays; the axis of targets is kept only where images have several."""
    shapes = {tuple(part["positive"].shape[2:]) for part in parts}
    if len(shapes) > 1:
        raise ValueError(
            f"the images have maps of different sizes {sorted(shapes)}; explain images of one size a call."
        )
    arrays: dict[str, Any] = {}
    for name in parts[0]:
        whole = torch.cat([part[name].cpu() for part in parts])
        arrays[name] = (whole if several or name == "logits" else whole[:, 0]).numpy()
    return ActivationMaps(**arrays, **about)


def _resized(maps: Array, size: tuple[int, int]) -> Array:
    flat = torch.from_numpy(np.ascontiguousarray(maps)).reshape(-1, 1, *maps.shape[-2:])
    larger = functional.interpolate(flat, size=size, mode="bilinear", align_corners=False)
    result: Array = larger.reshape(*maps.shape[:-2], *size).numpy()
    return result


def _checked_size(size: Any) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int | np.integer) and not isinstance(size, bool) else tuple(size)
    if len(pair) != 2 or not all(isinstance(side, int | np.integer) and side > 0 for side in pair):
        raise ValueError(f"size must be one or two positive whole numbers, found {size!r}.")
    return int(pair[0]), int(pair[1])


def _pictures(images: Any, count: int) -> Array:
    """Images as (n, height, width, 3) from 0 to 1."""
    array = images.detach().cpu().numpy() if isinstance(images, Tensor) else np.asarray(images)
    if array.ndim != 4 or len(array) != count:
        raise ValueError(f"images has shape {array.shape}; expected {count} images, (n, channels, height, width).")
    if array.shape[1] in (1, 3) and array.shape[3] not in (1, 3):
        array = np.moveaxis(array, 1, 3)
    elif array.shape[3] not in (1, 3):
        array = np.moveaxis(array, 1, 3)
        raise ValueError(f"images has {array.shape[3]} channels; expected one or three.")
    elif array.shape[1] in (1, 3):
        array = np.moveaxis(array, 1, 3)
    scaled = array.astype(np.float64) / (255.0 if array.dtype.kind in "iu" else 1.0)
    low, high = scaled.min((1, 2, 3), keepdims=True), scaled.max((1, 2, 3), keepdims=True)
    outside = (low < 0) | (high > 1)
    stretched = (scaled - low) / np.where(high > low, high - low, 1.0)
    result: Array = np.broadcast_to(np.where(outside, stretched, scaled), (*array.shape[:3], 3))
    return result
