"""torchvision's architectures, also where its compiled operators do not match the installed torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

# torchvision tells torch about these two when it is imported, which fails where its compiled part was not loaded. No
# architecture for classification calls them. The library object has to stay alive for them to stay known.
_MISSING = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_kept: list[torch.library.Library] = []


def torchvision_models() -> Any:
    """The module `torchvision.models`; ImportError where torchvision is not installed."""
    try:
        from torchvision import models
    except RuntimeError as failure:
        if "torchvision::nms" not in str(failure):
            raise
        library = torch.library.Library("torchvision", "DEF")
        for schema in _MISSING:
            library.define(schema)
        _kept.append(library)
        from torchvision import models
    return models


def architecture(name: str, *, classes: int = 10, seed: int = 0, **options: Any) -> nn.Module:
    """A torchvision architecture with random weights, in evaluation mode; the caller's random state is kept."""
    models = torchvision_models()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network: nn.Module = models.get_model(name, weights=None, num_classes=classes, **options)
    return network.eval()
