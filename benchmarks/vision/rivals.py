"""Gradient-based maps and Eigen-CAM, from the grad-cam package."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.architectures import torchvision_models
from benchmarks.vision.candidates import Maps, Method
from benchmarks.vision.networks import Setting

GRADCAM = "GradCAM"


def rivals(setting: Setting) -> dict[str, Method]:
    """Maps of the same layer, at the size of the images as the package returns them."""
    torchvision_models()  # the package imports torchvision, which has to be helped first
    from pytorch_grad_cam import EigenCAM, GradCAM, GradCAMPlusPlus, LayerCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    layer = setting.model.get_submodule(setting.layer)

    def method(kind: Any) -> Method:
        def maps(x: Tensor, target: NDArray[np.int64]) -> Maps:
            with kind(model=setting.model, target_layers=[layer]) as cam:
                found = cam(input_tensor=x, targets=[ClassifierOutputTarget(int(one)) for one in target])
            return np.asarray(found, dtype=np.float64)

        return maps

    return {
        GRADCAM: method(GradCAM),
        "GradCAM++": method(GradCAMPlusPlus),
        "Eigen-CAM": method(EigenCAM),
        "LayerCAM": method(LayerCAM),
    }
