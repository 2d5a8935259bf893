"""Gradient-based maps and Eigen-CAM, from the grad-cam package."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.architectures import torchvision_models
from benchmarks.vision.networks import Setting

Maps = NDArray[np.float64]
Method = Callable[[Tensor, NDArray[np.int64]], Maps]

GRADCAM = "GradCAM"


RIVALS = (GRADCAM, "GradCAM++", "Eigen-CAM", "LayerCAM")


def rival(setting: Setting, name: str) -> Method:
    """A method by name: maps of the same layer, at the size of the images as the package returns them."""
    torchvision_models()  # the package imports torchvision, which has to be helped first
    import pytorch_grad_cam  # type: ignore[import-untyped]
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget  # type: ignore[import-untyped]

    kind = getattr(pytorch_grad_cam, name.replace("++", "PlusPlus").replace("-", ""))
    layer = setting.model.get_submodule(setting.layer)

    def maps(x: Tensor, target: NDArray[np.int64]) -> Maps:
        with kind(model=setting.model, target_layers=[layer]) as cam:
            found = cam(
                input_tensor=x, targets=[ClassifierOutputTarget(int(one)) for one in target]
            )
        return np.asarray(found, dtype=np.float64)

    return maps
