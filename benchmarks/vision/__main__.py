"""Do the regions that maps show carry the class? Region Deletion AUC beside gradient-based methods.

The paper's protocol: patches of 32 pixels (4 for CIFAR-10, whose images are smaller than any the paper names) are
ranked by the map, set to zero from the first to the last in ten steps, and the drop of the predicted class's
probability is integrated. Networks are calibrated on training images. Among the maps that the decomposition offers,
one is chosen on training images for all networks together; it, the paper's map and the others named below are then
compared on validation images, which nothing was chosen or calibrated on.
"""

from __future__ import annotations

import statistics
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.report import Column, Report, Table, options, progress, publish, seconds
from benchmarks.vision.candidates import PAPER, Maps, Method, candidates, resized
from benchmarks.vision.networks import SETTINGS, Setting
from benchmarks.vision.rivals import GRADCAM, rivals
from nobsp.datasets import load_images
from nobsp.metrics import gini_sparseness, paired_bootstrap, region_deletion_auc, sparseness

SEED, BATCH = 0, 8
CALIBRATION = 2000  # or as many as there are
# Always compared on validation images, whatever is chosen.
COMPARED = (PAPER, "account", "account against the others")


@dataclass(frozen=True)
class Scores:
    """One method on one network, image by image."""

    auc: NDArray[np.float64]
    sparseness: float
    gini: float
    milliseconds: float


@dataclass(frozen=True)
class Pictures:
    """Images ready for a network, with the class it predicts."""

    images: Tensor
    target: NDArray[np.int64]


def prepared(setting: Setting, split: str, count: int) -> Tensor:
    """The first images of a split in a fixed random order, as the network wants them."""
    data = load_images(setting.data, split=split)  # type: ignore[arg-type]
    order = np.random.default_rng(SEED).permutation(len(data))[:count]
    images: Tensor = setting.model.prepare(torch.from_numpy(data.subset(order).array()))  # type: ignore[operator]
    return images


def pictures(setting: Setting, split: str, count: int) -> Pictures:
    images = prepared(setting, split, count)
    with torch.no_grad():
        target = torch.cat([setting.model(batch).argmax(1) for batch in images.split(32)])
    return Pictures(images, target.numpy())


def maps_of(method: Method, shown: Pictures) -> tuple[Maps, float]:
    """Maps at the size of the images, and the median time for one image in milliseconds."""
    parts: list[Maps] = []
    times = []
    size = tuple(shown.images.shape[2:])
    for start in range(0, len(shown.images), BATCH):
        here = slice(start, start + BATCH)
        found: list[Maps] = []
        took = seconds(lambda here=here, found=found: found.append(method(shown.images[here], shown.target[here])))
        parts.append(found[0] if found[0].shape[1:] == size else resized(found[0], size))
        times.append(1e3 * took / len(parts[-1]))
    return np.concatenate(parts), statistics.median(times)


def scores(setting: Setting, method: Method, shown: Pictures) -> Scores:
    maps, milliseconds = maps_of(method, shown)
    curves = region_deletion_auc(setting.model, shown.images, maps, target=shown.target, batch_size=32)
    seen = np.maximum(maps, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a map without positive values has no concentration; it is left out
        concentration = float(np.nanmean(sparseness(seen))), float(np.nanmean(gini_sparseness(seen)))
    return Scores(curves.auc, *concentration, milliseconds)


def selection(settings: list[Setting], methods: list[dict[str, Method]], count: int) -> dict[str, list[Scores]]:
    """Every candidate and GradCAM on training images, one entry a network."""
    found: dict[str, list[Scores]] = {}
    for setting, known in zip(settings, methods, strict=True):
        shown = pictures(setting, "train", count)
        for name, method in {**known, GRADCAM: rivals(setting)[GRADCAM]}.items():
            progress(f"{setting.name}, training images: {name}")
            found.setdefault(name, []).append(scores(setting, method, shown))
    return found


def mean_difference(found: dict[str, list[Scores]], name: str) -> float:
    pairs = zip(found[name], found[GRADCAM], strict=True)
    return float(np.mean([one.auc.mean() - other.auc.mean() for one, other in pairs]))


def selection_table(settings: list[Setting], found: dict[str, list[Scores]]) -> Table:
    names = sorted(found, key=lambda name: -mean_difference(found, name))
    rows = []
    for name in names:
        cells = [_difference(one, other) for one, other in zip(found[name], found[GRADCAM], strict=True)]
        rows.append((name, mean_difference(found, name), *cells))
    columns = (Column("map"), Column("mean", "+.4f"), *(Column(setting.name) for setting in settings))
    return Table(
        "All maps tried, on training images: Region Deletion AUC less GradCAM's",
        columns,
        tuple(rows),
        "Half widths are those of 95% paired bootstrap intervals. The first that is not GradCAM was chosen.",
    )


def _difference(one: Scores, other: Scores) -> str:
    interval = paired_bootstrap(one.auc, other.auc, seed=SEED)
    return f"{interval.difference:+.4f} ± {(interval.high - interval.low) / 2:.4f}"


def evaluation_table(setting: Setting, found: dict[str, Scores]) -> Table:
    rows = []
    for name, one in found.items():
        interval = paired_bootstrap(one.auc, found[GRADCAM].auc, seed=SEED)
        difference = (
            None if name == GRADCAM else f"{interval.difference:+.4f} [{interval.low:+.4f}, {interval.high:+.4f}]"
        )
        rows.append((name, float(one.auc.mean()), difference, one.sparseness, one.gini, one.milliseconds))
    return Table(
        f"{setting.name}: {len(found[GRADCAM].auc)} validation images",
        (
            Column("map"),
            Column("Region Deletion AUC", ".4f"),
            Column("less GradCAM's, 95%"),
            Column("sparseness", ".3f"),
            Column("Gini", ".3f"),
            Column("ms an image", ".1f"),
        ),
        tuple(rows),
        "Higher AUC is better. Sparseness is the paper's formula, Gini what Quantus calls sparseness, both of the "
        f"map's positive part at the size of the image. Time is for maps in batches of {BATCH}, forward pass included.",
    )


def findings(settings: list[Setting], chosen: str, results: list[dict[str, Scores]]) -> tuple[str, ...]:
    told = []
    for name in dict.fromkeys((chosen, PAPER)):
        parts = []
        for setting, found in zip(settings, results, strict=True):
            interval = paired_bootstrap(found[name].auc, found[GRADCAM].auc, seed=SEED)
            parts.append(f"{setting.name} {interval.difference:+.4f} [{interval.low:+.4f}, {interval.high:+.4f}]")
        which = f"{name!r}, chosen on training images," if name == chosen else name.capitalize()
        told.append(f"{which} against GradCAM on validation images: {'; '.join(parts)}.")
    return tuple(told)


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0], threads=True)
    parser.add_argument("--images", type=int, default=200, help="validation images a network")
    parser.add_argument("--selection", type=int, default=100, help="training images a network to choose the map on")
    parser.add_argument("--only", choices=list(SETTINGS), nargs="+", default=list(SETTINGS), help="networks to run")
    chosen = parser.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    images, few = (6, 4) if chosen.quick else (chosen.images, chosen.selection)
    settings = []
    for name in chosen.only:
        try:
            settings.append(SETTINGS[name]())
        except FileNotFoundError as missing:
            progress(f"{name} is not run: {missing}")
    if not settings:
        return
    methods = []
    for setting in settings:
        progress(f"{setting.name}: calibrating")
        methods.append(candidates(setting, prepared(setting, "train", 64 if chosen.quick else CALIBRATION)))
    tried = selection(settings, methods, few)
    best = max((name for name in tried if name != GRADCAM), key=lambda name: mean_difference(tried, name))
    results = []
    for setting, known in zip(settings, methods, strict=True):
        shown = pictures(setting, "val", images)
        used = {name: known[name] for name in dict.fromkeys((best, *COMPARED))} | rivals(setting)
        found = {}
        for name, method in used.items():
            progress(f"{setting.name}, validation images: {name}")
            found[name] = scores(setting, method, shown)
        results.append(found)
    report = Report(
        name="vision",
        title="Region Deletion AUC of class activation maps",
        tables=(
            *(evaluation_table(setting, found) for setting, found in zip(settings, results, strict=True)),
            selection_table(settings, tried),
        ),
        findings=findings(settings, best, results),
        seeds=(SEED,),
        settings={
            "validation images": images,
            "training images to choose on": few,
            "calibration images": f"at most {64 if chosen.quick else CALIBRATION}, from the training split",
            "baseline": "zero after normalisation",
            "steps": 10,
        },
        packages=("grad-cam", "torchvision"),
    )
    publish(report, chosen)


if __name__ == "__main__":
    main()
