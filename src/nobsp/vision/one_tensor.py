"""A model of several inputs, or of more than numbers as output, as one from tensor to numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nobsp.network.readout import checked

# Under which name the model is part of what runs it.
PACKED = "model."


class OneTensorModel(nn.Module):
    """Runs a model on one tensor: images, signals, or tokens (n, keywords, tokens) by keyword."""

    def __init__(
        self,
        model: nn.Module,
        *,
        keys: tuple[str, ...] = (),
        pixels: str = "",
        fixed: Mapping[str, Tensor] | None = None,
        output: Callable[[Any], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.keys = keys  # keywords of tokens, one for each entry of the second axis
        self.pixels = pixels  # keyword of the images, where there are other inputs; else empty
        self.output = output  # makes numbers of what the model returns
        self.fixed = tuple(fixed or {})  # keywords of inputs that are the same for all images
        for name, value in (fixed or {}).items():
            self.register_buffer(f"input_{name}", value, persistent=False)

    def forward(self, x: Tensor) -> Any:
        """What the model says, or the numbers made of it."""
        if self.keys:
            result = self.model(**{key: x[:, at] for at, key in enumerate(self.keys)})
        elif self.pixels:
            others = {name: getattr(self, f"input_{name}") for name in self.fixed}
            result = self.model(**{self.pixels: x, **others})
        else:
            result = self.model(x)
        if self.output is not None:
            return self._numbers(result, len(x))
        # Of images and texts together, what is said of each image.
        per_image = getattr(result, "logits_per_image", None)
        return result if per_image is None else per_image

    def fixed_inputs(self) -> dict[str, Tensor]:
        """The inputs that are the same for all images."""
        return {name: getattr(self, f"input_{name}").cpu() for name in self.fixed}

    def _numbers(self, result: Any, rows: int) -> Tensor:
        assert self.output is not None
        try:
            numbers = self.output(result)
        except (TypeError, ValueError, LookupError, AttributeError) as failure:
            raise ValueError(
                "output, or a function as target, fails on what the model returns, "
                f"{type(result).__name__} ({type(failure).__name__}: {failure})."
            ) from failure
        if not isinstance(numbers, Tensor) or numbers.ndim not in (1, 2) or len(numbers) != rows:
            shape = tuple(numbers.shape) if isinstance(numbers, Tensor) else type(numbers).__name__
            raise ValueError(
                f"output must make a tensor (n,) or (n, k) of the model's result for n={rows} "
                f"images, found {shape}."
            )
        return numbers.reshape(rows, -1)


def as_taken(
    model: nn.Module,
    *,
    keys: tuple[str, ...] = (),
    pixels: str = "",
    fixed: Mapping[str, Tensor] | None = None,
    output: Callable[[Any], Tensor] | None = None,
) -> nn.Module:
    """The model as one that maps a tensor to numbers: itself where it does that already."""
    if not keys and not pixels and output is None:
        return model
    return OneTensorModel(checked(model), keys=keys, pixels=pixels, fixed=fixed, output=output)


def same_inputs(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Whether inputs that are the same for all images are those of another batch."""
    return first.keys() == second.keys() and all(
        torch.equal(first[name].cpu(), second[name].cpu()) for name in first
    )
