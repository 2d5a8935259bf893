"""Layers that are not what their type says.

They have hooks, another forward pass, or weights that are computed.
"""

from __future__ import annotations

from torch import nn
from torch.nn.utils import parametrize

# Types of torch whose forward pass is known.
_KNOWN = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.MultiheadAttention,
)
# Methods with which a subclass may compute something else.
_METHODS = ("forward", "_conv_forward")


def why_altered(layer: nn.Module) -> str:
    """Why a layer may do more than its type says; empty where it does not."""
    if parametrize.is_parametrized(layer):
        return "its weights are computed from others (torch.nn.utils.parametrize)"
    if layer._forward_hooks or layer._forward_pre_hooks:
        return "it has forward hooks"
    for known in _KNOWN:
        if isinstance(layer, known) and _overrides(layer, known):
            return f"its forward pass is not that of nn.{known.__name__}"
    return ""


def _overrides(layer: nn.Module, known: type[nn.Module]) -> bool:
    """Whether a subclass, or the layer itself, has its own forward pass."""
    return any(
        name in vars(layer) or getattr(type(layer), name, None) is not getattr(known, name, None)
        for name in _METHODS
    )


def altered_layers(model: nn.Module) -> dict[str, str]:
    """Such layers of a model by name, each with the reason."""
    reasons = {name: why_altered(layer) for name, layer in model.named_modules()}
    return {name: reason for name, reason in reasons.items() if reason}
