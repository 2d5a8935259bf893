"""What a file of maps must hold, and its model found again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nobsp.network.guest import run_in_ordinary_modes
from nobsp.vision.feature_map import FeatureMap
from nobsp.vision.find_map import find_map
from nobsp.vision.one_tensor import as_taken


def require_names(options: dict[str, Any]) -> None:
    """An error where what a file calls layers, devices and inputs are no names."""
    init = options["init"]
    _, _, keys = options["images"]
    fixed = options["fixed"]
    names = [*keys, *fixed, options["pixels"]]
    names += [init[name] for name in ("layer", "head", "device") if init[name] is not None]
    if not all(isinstance(name, str) for name in names):
        raise ValueError("its layer, head, device or inputs have no name")
    if not all(isinstance(value, Tensor) for value in fixed.values()):
        raise ValueError("an input that is the same for all images is not a tensor")


# Numbers in one image that a file may ask for: a volume of 512 x 512 x 256.
_MOST_NUMBERS = 1 << 26


def probe_of(image_shape: Any, *, text: bool, keys: Sequence[str]) -> Tensor:
    """Two images that show where the map is, the same every time."""
    lengths = list(image_shape)
    if not lengths or not all(type(length) is int and length > 0 for length in lengths):
        raise ValueError(f"its images have the shape {lengths}")
    if math.prod(lengths) > _MOST_NUMBERS:
        raise ValueError(f"its images have {math.prod(lengths)} numbers, more than images have")
    generator = torch.Generator().manual_seed(0)
    shape = (2, *lengths)
    if text:
        probe = torch.randint(1, 4, shape, generator=generator)
    else:
        probe = torch.randn(shape, generator=generator)
    for position, key in enumerate(keys[1:], start=1):
        probe[:, position] = int(key == "attention_mask")
    return probe


def find_again(
    model: nn.Module,
    options: Mapping[str, Any],
    probe: Tensor,
    *,
    layer: str | nn.Module | None,
    head: str | nn.Module | None,
    output: Callable[[Any], Tensor] | None,
) -> FeatureMap:
    """The map of a model that was calibrated before; an error where it cannot be run so again."""
    image_shape, _, keys = options["images"]
    taken = as_taken(
        model,
        keys=tuple(keys),
        pixels=options["pixels"],
        fixed=options["fixed"],
        output=output,
    )
    try:
        return run_in_ordinary_modes(lambda: find_map(taken, probe, layer=layer, head=head))
    except RuntimeError as failure:
        raise ValueError(
            f"model cannot be run on images of shape {tuple(image_shape)}, on which this "
            "explainer was calibrated: "
            f"{str(failure).splitlines()[0] if str(failure) else type(failure).__name__}"
        ) from failure


def require_same_map(
    feature_map: FeatureMap, known: Mapping[str, Any], *, fingerprint: str
) -> None:
    """An error where this is not the model, or not the map, that a file is of."""
    described = feature_map.described()
    same_outputs = described["outputs"] == known.get("outputs")
    if feature_map.fingerprint() != fingerprint or not same_outputs:
        raise ValueError(
            "model is not the one this explainer was calibrated on; its weights differ."
        )

    if described != known:
        different = [name for name in known if described.get(name) != known[name]]
        raise ValueError(
            f"the model's map is not where it was when this explainer was calibrated: {different}."
        )
