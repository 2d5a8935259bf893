"""Account and removal of regions together: deletion, insertion and two images side by side, beside GradCAM."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from benchmarks.data import load_images
from benchmarks.report import Cell, Column, Report, Table, options, progress, publish
from benchmarks.significance import bootstrap_interval
from benchmarks.vision.accounts import Pictures, mosaics, share
from benchmarks.vision.networks import SETTINGS, Setting
from benchmarks.vision.rivals import GRADCAM, rival
from benchmarks.vision.scenes import Remembering
from nobsp.metrics import region_deletion_auc, region_insertion_auc
from nobsp.vision import NObSPCam, ThoroughMaps

SEED = 0
NETWORKS = ("mobilenet_v2", "efficientnet_lite0", "resnet18")
MOST = 24
THOROUGH, FEWER, REMOVAL = (
    "thorough (50 passes)",
    f"thorough, most={MOST} (25 passes)",
    "removal alone (50 passes)",
)
Maps = NDArray[np.float64]


@dataclass(frozen=True)
class Effort:
    """How many unseen images, images to calibrate on, and pairs of images side by side."""

    images: int = 48
    calibration: int = 100
    pairs: int = 10


QUICK = Effort(images=6, calibration=16, pairs=2)


def pictures(setting: Setting, split: str, count: int) -> Pictures:
    data = load_images(setting.data, split=split, size=setting.size)
    chosen = data.subset(np.random.default_rng(SEED).permutation(len(data))[:count])
    prepared = setting.model.prepare(torch.from_numpy(chosen.array()))  # type: ignore[operator]
    return Pictures(
        prepared, np.array([chosen[place][1] for place in range(count)], dtype=np.int64)
    )


def fewer(found: ThoroughMaps) -> Maps:
    """What `most` would have given: the removal of the regions that the account ranks highest alone."""
    account, removal = (part.reshape(len(found), -1) for part in (found.account, found.removal))
    left = np.argsort(-account, axis=1)[:, MOST:]
    removal = removal.copy()
    np.put_along_axis(removal, left, 0.0, axis=1)
    both = sum(
        (part - part.mean(1, keepdims=True)) / part.std(1, keepdims=True)
        for part in (account, removal)
    )
    return np.asarray(both).reshape(found.thorough.shape)


def ways(
    cam: NObSPCam, setting: Setting, images: Tensor, target: NDArray[np.int64]
) -> dict[str, Maps]:
    """Maps by name."""
    plain, found = cam(images, target), cam.thorough(images, target)
    gradcam = rival(setting, GRADCAM)
    parts = [
        gradcam(images[at : at + 16], target[at : at + 16]) for at in range(0, len(images), 16)
    ]
    return {
        GRADCAM: np.concatenate(parts),
        "account": plain.account,
        "account against the others": plain.contrast,
        REMOVAL: found.removal,
        FEWER: fewer(found),
        THOROUGH: found.thorough,
    }


def enlarged(maps: Maps, images: Tensor) -> Maps:
    large = functional.interpolate(
        torch.from_numpy(maps)[:, None], size=images.shape[2:], mode="bilinear"
    )
    return np.asarray(large[:, 0].numpy())


def side_by_side(cam: NObSPCam, setting: Setting, shown: Pictures, pairs: int) -> dict[str, float]:
    """Share of each map's positive part on the half that was asked about."""
    both, numbers = mosaics(shown, pairs), np.array(setting.classes)
    found: dict[str, list[Maps]] = {}
    for target, left in ((numbers[both.left], True), (numbers[both.right], False)):
        for name, maps in ways(cam, setting, both.images, target).items():
            found.setdefault(name, []).append(share(enlarged(maps, both.images), on_the_left=left))
    return {name: float(np.mean(values)) for name, values in found.items()}


def rows_of(network: str, effort: Effort) -> list[tuple[Cell, ...]]:
    progress(network)
    setting = SETTINGS[network]()
    shown = pictures(setting, "val", effort.images)
    cam = NObSPCam(setting.model).fit(pictures(setting, "train", effort.calibration).images)
    run = Remembering(setting.model, shown.images[:16])
    target = run(shown.images.numpy()).argmax(1)
    maps = ways(cam, setting, shown.images, target)
    progress(f"{network}: deletion and insertion")
    scores: dict[str, list[Maps]] = {}
    judges: tuple[Callable[..., object], ...] = (region_deletion_auc, region_insertion_auc)
    for name, values in maps.items():
        large = enlarged(values, shown.images)
        scores[name] = [judge(run, shown.images, large, target=target).auc for judge in judges]  # type: ignore[attr-defined]
    progress(f"{network}: side by side")
    halves = side_by_side(cam, setting, shown, effort.pairs)
    rows: list[tuple[Cell, ...]] = []
    for name in maps:
        gaps: list[Cell] = []
        for own, other in zip(scores[name], scores[GRADCAM], strict=True):
            gap = bootstrap_interval(own - other, seed=SEED) if name != GRADCAM else None
            said = (
                "–" if gap is None else f"{gap.difference:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]"
            )
            gaps += [float(own.mean()), said]
        rows.append((setting.name, name, *gaps, halves[name]))
    return rows


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    chosen = parser.parse_args()
    effort = QUICK if chosen.quick else Effort()
    warnings.filterwarnings("ignore", category=UserWarning)
    rows = tuple(row for network in chosen.networks for row in rows_of(network, effort))
    findings = tuple(
        f"{row[0]}: {row[1]} minus GradCAM on deletion {row[3]}, on insertion {row[5]}."
        for row in rows
        if row[1] in (THOROUGH, FEWER)
    )
    publish(
        Report(
            name="thorough",
            title="The thorough map: account and removal of regions together",
            tables=(
                Table(
                    "Unseen images: region deletion, region insertion, and two images side by side",
                    (
                        Column("network"),
                        Column("map"),
                        Column("deletion", ".3f"),
                        Column("minus GradCAM"),
                        Column("insertion", ".3f"),
                        Column("minus GradCAM "),
                        Column("right half", ".3f"),
                    ),
                    rows,
                    f"{effort.images} images a network; higher is better; in brackets 95% bootstrap intervals of the "
                    "differences. How regions are taken out (blurred) and measured (log-odds) was chosen on "
                    f"40 training images of MobileNetV2. Right half: {effort.pairs} pairs, both halves asked about.",
                ),
            ),
            findings=findings,
            seeds=(SEED,),
            settings={
                "images": effort.images,
                "calibrated on": effort.calibration,
                "regions": "7 × 7",
            },
            packages=("grad-cam",),
        ),
        chosen,
    )


if __name__ == "__main__":
    main()
