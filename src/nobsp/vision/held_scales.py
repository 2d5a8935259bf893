"""One gradient of a model's own pass that shows where a class is: normalisations keep their scale.

A layer normalisation divides by the spread of what it is given, so that its ordinary gradient has
no part along its input: a token that grows is scaled back. What every place brings shows where the
divisor is held as it is in this image,

    y = w ⊙ (x − x̄) / σ + b,    ∂y of x with σ a constant,

and then one gradient at the image itself is about as good a picture as one half-way from the mean
image, which takes a further pass. The same gradient tells what attention carries to the token that
is read (`attention_flow`): the first says what a place brings, the second where the model looks,
and together they are ahead of either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from nobsp.network.guest import count_gradients
from nobsp.vision.attention_flow import SOFTMAXES, attend, carry, multi_head_attention

_LAYER_NORMS = (functional.layer_norm, torch.layer_norm, torch.ops.aten.layer_norm.default)
_RMS_NORMS = (functional.rms_norm, torch.rms_norm)


class HeldScales(TorchFunctionMode):
    """Inside, normalisations have the gradient of a constant scale, and softmaxes are noted.

    This holds for layer and root-mean-square normalisations.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0  # normalisations met so far
        self.softmaxes: list[Tensor] = []  # in the order of the pass; attention is among them

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """What the function returns; of normalisations with another gradient."""
        keywords = kwargs or {}
        if func in _LAYER_NORMS:
            self.count += 1
            return _layer_norm(*args, **keywords)
        if func in _RMS_NORMS:
            self.count += 1
            return _rms_norm(*args, **keywords)
        if func in SOFTMAXES:
            self.softmaxes.append(func(*args, **keywords))
            return self.softmaxes[-1]
        if func is functional.scaled_dot_product_attention:
            return self._attend(*args, **keywords)
        if func is functional.multi_head_attention_forward:
            with self:
                return multi_head_attention(*args, **keywords)
        return func(*args, **keywords)

    def _attend(self, *args: Any, **keywords: Any) -> Tensor:
        """Attention written out, since torch's own keeps its softmax to itself."""
        attended = attend(*args, **keywords)
        if attended is None:
            return functional.scaled_dot_product_attention(*args, **keywords)
        result, attention = attended
        self.softmaxes.append(attention)
        return result


def _layer_norm(
    input: Tensor,  # noqa: A002 - as torch names its argument
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,  # noqa: ARG001 - of the function in C
) -> Tensor:
    apply: Any = _LayerNorm.apply  # which torch has without types
    normalised: Tensor = apply(input, tuple(normalized_shape), weight, bias, eps)
    return normalised


def _rms_norm(
    input: Tensor,  # noqa: A002 - as torch names its argument
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    axes = _last_axes(normalized_shape)
    # The least number that torch adds where none is named.
    least = torch.finfo(input.dtype).eps if eps is None else eps
    with torch.no_grad():
        scale = (input.square().mean(axes, keepdim=True) + least).rsqrt()
    normalised = input * scale
    return normalised if weight is None else normalised * weight.detach()


def _last_axes(normalized_shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(-len(normalized_shape), 0))


class _LayerNorm(torch.autograd.Function):
    """Layer normalisation whose gradient in its input takes the spread for a constant.

    Its weights have no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        shape: tuple[int, ...],
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
    ) -> Tensor:
        normalised, _, inverse_spread = torch.native_layer_norm(x, list(shape), weight, bias, eps)
        ctx.save_for_backward(inverse_spread, weight)
        ctx.axes = _last_axes(shape)
        return normalised

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inverse_spread, weight = ctx.saved_tensors
        gradient = gradients[0] if weight is None else gradients[0] * weight
        gradient = gradient * inverse_spread.to(gradient)
        return gradient - gradient.mean(ctx.axes, keepdim=True), None, None, None, None


@dataclass(frozen=True, eq=False)
class Slopes:
    """What one gradient shows of every image."""

    gradient: Tensor  # in the layout of the map
    carried: (
        Tensor | None
    )  # what attention carries from the places, (n, locations); None where it is not known


@dataclass(frozen=True, eq=False)
class Tape:
    """The graph of one pass of a model, from its map to what enters the head."""

    tensor: Tensor  # the map, as the model lays it out
    entering: Tensor  # what enters the head, or the output where there is no head, shape (n, width)
    attention: tuple[
        Tensor, ...
    ]  # of every block from the first, among all places and a token more
    locations: int  # how many places the map has

    def slopes(self, weights: Tensor) -> list[Slopes]:
        """Of weighted sums (n, sums, width) of what enters the head; one for each sum."""
        n_images, n_sums = weights.shape[:2]
        slopes = []
        count_gradients(n_images * n_sums)
        for position in range(n_sums):
            gradient, *of_attention = torch.autograd.grad(
                self.entering,
                [self.tensor, *self.attention],
                weights[:, position].to(self.entering),
                retain_graph=position + 1 < n_sums,
            )
            carried = None
            if self.attention:
                carried = carry(
                    self.attention, of_attention, n_images=n_images, locations=self.locations
                )
            slopes.append(Slopes(gradient=gradient, carried=carried))
        return slopes
