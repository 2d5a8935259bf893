"""Maps from the decomposition: the paper's, the account, and what else was tried to do better than either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from benchmarks.vision.networks import Setting
from nobsp.vision import NObSPCam
from nobsp.vision.question import Targets

Maps = NDArray[np.float64]
Method = Callable[[Tensor, NDArray[np.int64]], Maps]

PAPER = "paper's map"


def candidates(setting: Setting, calibration: Tensor) -> dict[str, Method]:
    """Every map that was tried, by name."""
    calibrated = NObSPCam(setting.model).fit(calibration)
    head = NObSPCam(setting.model, coefficients="head").fit(calibration)
    earlier = NObSPCam(setting.model, layer=setting.earlier).fit(calibration)

    def kind(cam: NObSPCam, name: str, against: Any = None) -> Method:
        return lambda x, target: getattr(cam(x, target, against=against), name)

    def smooth(method: Method) -> Method:
        return lambda x, target: blurred(method(x, target))

    account = {against: kind(head, "account", against) for against in (None, "mean", "runner-up", "others")}
    return {
        PAPER: kind(calibrated, "positive"),
        "paper's map, head weights": kind(head, "positive"),
        "signed": kind(calibrated, "signed"),
        "account, calibrated": kind(calibrated, "account"),
        "account": account[None],
        "account against the mean": account["mean"],
        "account against the runner-up": account["runner-up"],
        "account against the others": account["others"],
        "per location, calibrated": per_location(calibrated, None),
        "per location": per_location(head, None),
        "per location against the others": per_location(head, "others"),
        "account, smoothed": smooth(account[None]),
        "against the mean, smoothed": smooth(account["mean"]),
        "against the others, smoothed": smooth(account["others"]),
        "earlier layer": kind(earlier, "account", "others"),
        "both layers": both(account["others"], kind(earlier, "account", "others"), 0.25),
    }


def per_location(cam: NObSPCam, against: Any) -> Method:
    """Σ_c max(β_c (F_c(h, w) − z̄_c), 0): what speaks for the class at each location, nothing taken off it."""

    def maps(x: Tensor, target: NDArray[np.int64]) -> Maps:
        fitted = cam._fitted
        targets = Targets(target, against, outputs=fitted.anatomy.outputs, names=fitted.output_names)
        with torch.no_grad(), fitted.anatomy.looking() as look:
            view = look(x)
        beta = targets.question(view.logits, 0).of_columns(fitted.evidence.coefficients)[:, 0]
        departure = view.maps - fitted.evidence.mean[:, None, None]  # type: ignore[union-attr]
        result: Maps = (beta[..., None, None] * departure).clamp_min(0.0).sum(1).numpy()
        return result

    return maps


def both(late: Method, early: Method, share: float) -> Method:
    """Two accounts on the finer grid, each by its own spread over the image."""

    def maps(x: Tensor, target: NDArray[np.int64]) -> Maps:
        fine = early(x, target)
        coarse = resized(late(x, target), fine.shape[1:])
        scaled = [one / one.std((1, 2), keepdims=True) for one in (coarse, fine)]
        return (1 - share) * scaled[0] + share * scaled[1]

    return maps


def blurred(maps: Maps) -> Maps:
    """Each location averaged with its neighbours, weights 1-2-1 both ways."""
    kernel = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)
    kernel = (kernel[:, None] * kernel / 16)[None, None]
    padded = functional.pad(torch.from_numpy(maps)[:, None], (1, 1, 1, 1), mode="replicate")
    result: Maps = functional.conv2d(padded, kernel)[:, 0].numpy()
    return result


def resized(maps: Maps, size: tuple[int, ...]) -> Maps:
    """Bilinear, as `ActivationMaps.resize`."""
    given = torch.from_numpy(np.ascontiguousarray(maps, dtype=np.float64))[:, None]
    result: Maps = functional.interpolate(given, size=size, mode="bilinear", align_corners=False)[:, 0].numpy()
    return result
