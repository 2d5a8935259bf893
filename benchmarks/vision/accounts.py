"""Do accounts add up, and do they tell two images apart: defaults, layers behind the map, and architectures."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.architectures import architecture, torchvision_models
from benchmarks.data import load_images
from benchmarks.report import Cell, Column, Report, Table, options, progress, publish
from benchmarks.significance import bootstrap_interval
from benchmarks.vision.networks import Setting, mobilenet_v2
from benchmarks.vision.rivals import GRADCAM, rival
from nobsp.metrics import region_deletion_auc
from nobsp.vision import NObSPCam

NAME, SEED = "accounts", 0
DEFAULT, ACCOUNT, PAPER = (
    "default picture",
    "account of the logit",
    "positive channels (the paper's map)",
)
Maps = NDArray[np.float64]


@dataclass(frozen=True)
class Effort:
    """How many images: pairs of mosaics, images explained and calibrated on, and images necks are trained on."""

    pairs: int = 20
    explained: int = 40
    calibration: int = 100
    train: int = 400
    batch: int = 8


QUICK = Effort(pairs=3, explained=6, calibration=16, train=60, batch=4)


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images as the network wants them, with the number of their class among Imagenette's ten."""

    images: Tensor
    labels: NDArray[np.int64]


def pictures(setting: Setting, split: str, count: int) -> Pictures:
    """The first of a fixed random order."""
    data = load_images("imagenette", split=split)
    chosen = data.subset(np.random.default_rng(SEED).permutation(len(data))[:count])
    prepared = setting.model.prepare(torch.from_numpy(chosen.array()))  # type: ignore[operator]
    return Pictures(
        prepared, np.array([chosen[place][1] for place in range(count)], dtype=np.int64)
    )


# ---------------------------------------------------------------------- two images side by side


@dataclass(frozen=True, eq=False)
class Mosaics:
    """Two images of different classes side by side, and the two classes."""

    images: Tensor
    left: NDArray[np.int64]
    right: NDArray[np.int64]


def mosaics(of: Pictures, pairs: int) -> Mosaics:
    places = [
        (i, i + 1) for i in range(0, len(of.labels) - 1, 2) if of.labels[i] != of.labels[i + 1]
    ][:pairs]
    one, two = (np.array(side) for side in zip(*places, strict=True))
    return Mosaics(torch.cat([of.images[one], of.images[two]], 3), of.labels[one], of.labels[two])


def share(maps: Maps, *, on_the_left: bool) -> Maps:
    """Share of a map's positive part that lies on the half asked about."""
    positive, half = np.maximum(maps, 0.0), maps.shape[2] // 2
    side = positive[:, :, :half] if on_the_left else positive[:, :, half:]
    found: Maps = side.sum((1, 2)) / np.maximum(positive.sum((1, 2)), 1e-300)
    return found


def compared(cam: NObSPCam, setting: Setting, of: Mosaics) -> dict[str, float]:
    """Shares of the default picture, of other maps, and of GradCAM at the same layer, over both halves."""
    numbers, gradcam = np.array(setting.classes), rival(setting, GRADCAM)
    found: dict[str, list[Maps]] = {}
    for target, left in ((numbers[of.left], True), (numbers[of.right], False)):
        maps = cam(of.images, target)
        ways = {
            DEFAULT: getattr(maps, maps.kind),
            ACCOUNT: maps.account,
            "account of the probability": cam(of.images, target, scale="probability").account,
            PAPER: maps.positive,
            GRADCAM: gradcam(of.images, target),
        }
        for name, values in ways.items():
            found.setdefault(name, []).append(share(values, on_the_left=left))
    return {name: float(np.mean(values)) for name, values in found.items()}


# ---------------------------------------------------------------------- layers behind the map


class Length(nn.Module):
    """Divides by the length, as cosine heads do; times ten, so that a softmax can be sure."""

    def forward(self, z: Tensor) -> Tensor:
        return 10 * nn.functional.normalize(z)


NECKS: dict[str, Callable[[int], list[nn.Module]]] = {
    "LayerNorm": lambda width: [nn.LayerNorm(width)],
    "L2 norm": lambda _: [Length()],
    "MLP, hardswish": lambda width: [nn.Linear(width, 256), nn.Hardswish()],
}


def with_neck(setting: Setting, name: str, features: Tensor, labels: NDArray[np.int64]) -> Setting:
    """The trained body of MobileNetV2 with a neck and a head of ten classes, trained on pooled features."""
    width = features.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        neck = NECKS[name](width)
        tail = nn.Sequential(*neck, nn.Linear(256 if name.startswith("MLP") else width, 10))
        optimizer = torch.optim.Adam(tail.parameters(), 1e-3, weight_decay=1e-4)
        target = torch.from_numpy(labels)
        for _ in range(60):
            for rows in torch.randperm(len(target)).split(50):
                optimizer.zero_grad()
                nn.functional.cross_entropy(tail(features[rows]), target[rows]).backward()
                optimizer.step()
    body = setting.model.network.features  # type: ignore[union-attr]
    model = nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), tail).eval()
    return Setting(name, model, setting.data, tuple(range(10)), "0.18", "0.13")


# ---------------------------------------------------------------------- adding up


@dataclass(frozen=True)
class Sum:
    """How well an account adds up: residual over what is accounted for, and what it costs in forward passes."""

    median: float
    largest: float
    class_token: float
    forward: float


def added_up(cam: NObSPCam, model: nn.Module, images: Tensor, batch: int) -> Sum:
    maps = cam(images)
    rows = np.arange(len(maps))
    gain = maps.logits[rows, maps.target] - maps.base_values[maps.target]
    missed = np.abs(maps.residual / gain)
    return Sum(
        float(np.median(missed)),
        float(missed.max()),
        float(np.median(maps.class_token / gain)),
        times_forward(cam, model, images[:batch]),
    )


def times_forward(cam: NObSPCam, model: nn.Module, images: Tensor, turns: int = 3) -> float:
    """Processor time of a call over that of a forward pass, in turn on the same images; median."""
    ratios = []
    with torch.no_grad():
        for _ in range(turns + 1):
            began = time.process_time()
            model(images)
            between = time.process_time()
            cam(images)
            ratios.append((time.process_time() - between) / (between - began))
    return float(np.median(ratios[1:]))


# Random weights: whether the map is found and the account adds up, not whether it is of use. Name, options, side.
ARCHITECTURES: tuple[tuple[str, str, dict[str, object], int], ...] = (
    ("torchvision", "convnext_tiny", {}, 96),
    ("torchvision", "vgg11", {}, 64),
    ("torchvision", "mobilenet_v3_small", {}, 96),
    ("torchvision", "vit_b_16", {"image_size": 64}, 64),
    ("timm", "convnextv2_atto", {}, 96),
    ("timm", "edgenext_xx_small", {}, 96),
    ("timm", "poolformer_s12", {}, 96),
    ("timm", "caformer_s18", {}, 96),
    ("timm", "mambaout_femto", {}, 96),
    ("timm", "mobilenetv4_conv_small", {}, 96),
    ("timm", "efficientvit_b0", {}, 96),
    ("timm", "vit_tiny_patch16_224", {"img_size": 96}, 96),
    ("timm", "vit_tiny_patch16_224", {"img_size": 96, "global_pool": "avg"}, 96),
    ("timm", "deit_tiny_distilled_patch16_224", {"img_size": 96}, 96),
    ("timm", "vit_small_patch14_dinov2", {"img_size": 56}, 56),
    ("timm", "vit_base_patch32_clip_224", {"img_size": 96}, 96),
    ("timm", "vit_base_patch16_siglip_224", {"img_size": 64}, 64),
    ("timm", "eva02_tiny_patch14_224", {"img_size": 56}, 56),
    ("timm", "resnet50_clip", {"img_size": 96}, 96),
    ("timm", "levit_128s", {}, 224),
)


def random_network(source: str, name: str, given: dict[str, object]) -> nn.Module:
    if source == "torchvision":
        plain = architecture(name, classes=10, **given)
        for part in plain.modules():
            # Some heads begin with weights of zero, and then all logits are alike.
            if isinstance(part, nn.Linear) and not bool(part.weight.any()):
                nn.init.normal_(
                    part.weight, std=0.02, generator=torch.Generator().manual_seed(SEED)
                )
        return plain
    torchvision_models()  # timm imports torchvision, which has to be helped first
    import timm  # type: ignore[import-untyped]

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network: nn.Module = timm.create_model(name, pretrained=False, num_classes=10, **given)
    return network.eval()


def architecture_row(
    source: str, name: str, given: dict[str, object], images: Tensor
) -> tuple[Cell, ...]:
    """A line of the table; where the default is a picture, the sums are those of eight points."""
    told = "".join(f", {key}={value}" for key, value in given.items() if key == "global_pool")
    progress(name + told)
    picture_cost: float | None = None
    try:
        network = random_network(source, name, given)
        cam = NObSPCam(network).fit(images)
        if cam(images[:1]).picture:
            picture_cost = times_forward(cam, network, images)
            cam = NObSPCam(network, points=8).fit(images)
        sums = added_up(cam, network, images, len(images))
    except (RuntimeError, ValueError, TypeError) as refusal:
        return name + told, f"{type(refusal).__name__}: {str(refusal)[:90]}", *[None] * 5
    return (
        name + told,
        cam.layer_,
        sums.median,
        sums.largest,
        sums.class_token,
        sums.forward,
        picture_cost,
    )


# ---------------------------------------------------------------------- earlier layers, whose maps are finer

# Layers of MobileNetV2 and points of the integral, by the side of the maps of 224 pixels.
LAYERS: dict[str, tuple[str | None, int | None]] = {
    "7 × 7": (None, None),
    "14 × 14": ("network.features.13", None),
    "28 × 28": ("network.features.6", None),
    "14 × 14, one point": ("network.features.13", 1),
}


def explainers_of(model: nn.Module, images: Tensor) -> dict[str, NObSPCam]:
    return {
        name: NObSPCam(model, layer=layer, points=points, batch_size=8).fit(images)
        for name, (layer, points) in LAYERS.items()
    }


def finer_maps(
    explainers: dict[str, NObSPCam], images: Tensor, target: NDArray[np.int64], kind: str
) -> dict[str, Maps]:
    """Maps of single layers, and averages of layers on the finest grid: they add up to the logit less the mean base."""
    found = {
        name: torch.from_numpy(getattr(cam(images, target), kind))
        for name, cam in explainers.items()
    }
    shape = found["28 × 28"].shape[1:]
    large = [
        functional.interpolate(found[name][:, None], size=shape, mode="bilinear")[:, 0]
        for name in ("7 × 7", "14 × 14", "28 × 28")
    ]
    ways = found | {
        "7 and 14, averaged": (large[0] + large[1]) / 2,
        "all three, averaged": sum(large) / 3,
    }
    return {name: maps.numpy() for name, maps in ways.items()}


def finer(pairs: int, explained: int, calibration: int) -> Report:
    """Are finer maps of earlier layers, alone or averaged with the last, as good?"""
    setting = mobilenet_v2()
    train, shown = (
        pictures(setting, "train", calibration),
        pictures(setting, "val", max(explained, 3 * pairs)),
    )
    both, numbers = mosaics(shown, pairs), np.array(setting.classes)
    progress("two images side by side")
    sized = explainers_of(setting.model, mosaics(train, calibration).images)
    shares: dict[str, list[Maps]] = {}
    for target, left in ((numbers[both.left], True), (numbers[both.right], False)):
        for name, maps in finer_maps(sized, both.images, target, "contrast").items():
            shares.setdefault(name, []).append(share(maps, on_the_left=left))
    progress("deletion")
    images = shown.images[:explained]
    explainers = explainers_of(setting.model, train.images)
    with torch.no_grad():
        target = setting.model(images).argmax(1).numpy()
    costs = {
        name: times_forward(cam, setting.model, images[:8], 1) for name, cam in explainers.items()
    }
    scores = {}
    for name, maps in finer_maps(explainers, images, target, "account").items():
        large = functional.interpolate(
            torch.from_numpy(maps)[:, None], size=images.shape[2:], mode="bilinear"
        )
        scores[name] = region_deletion_auc(
            setting.model, images, large[:, 0].numpy(), target=target
        ).auc
    rows: list[tuple[Cell, ...]] = []
    for name, score in scores.items():
        gap = bootstrap_interval(score - scores["7 × 7"], seed=SEED) if name != "7 × 7" else None
        said = "–" if gap is None else f"{gap.difference:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
        rows.append(
            (name, float(np.mean(shares[name])), float(score.mean()), said, costs.get(name))
        )
    return Report(
        name=f"{NAME}-finer",
        title="Finer maps: earlier layers, and layers together",
        tables=(
            Table(
                "MobileNetV2, ImageNet",
                (
                    Column("map"),
                    Column("share on the right half", ".3f"),
                    Column("deletion", ".3f"),
                    Column("minus 7 × 7"),
                    Column("× forward", ".1f"),
                ),
                tuple(rows),
                f"Share: the account against the others, {pairs} pairs of Imagenette images side by side. Deletion: "
                f"the account, {explained} images; in brackets 95% bootstrap intervals of paired differences.",
            ),
        ),
        findings=("Higher is better in both columns; the table says what finer maps cost.",),
        seeds=(SEED,),
        settings={"calibrated on": calibration},
        packages=("torchvision",),
    )


# ---------------------------------------------------------------------- the report


def mobilenet(effort: Effort) -> Report:
    """Real weights: two images side by side, and layers before the head."""
    setting = mobilenet_v2()
    progress("MobileNetV2: calibrating")
    calibration = pictures(setting, "train", effort.train)
    shown = pictures(setting, "val", max(effort.explained, 3 * effort.pairs))
    pairs = mosaics(shown, effort.pairs)
    cam = NObSPCam(setting.model).fit(calibration.images[: effort.calibration])
    few = NObSPCam(setting.model).fit(calibration.images[: effort.explained])
    plain = added_up(few, setting.model, shown.images[: effort.explained], effort.batch)
    shares = compared(cam, setting, pairs)
    progress("training necks")
    with torch.no_grad():
        body = setting.model.network.features  # type: ignore[union-attr]
        features = torch.cat([body(part).mean((2, 3)) for part in calibration.images.split(32)])  # type: ignore[operator]
    rows: list[tuple[Cell, ...]] = [neck_row("pooled into the head", plain, shares)]
    for name in NECKS:
        progress(name)
        necked = with_neck(setting, name, features, calibration.labels)
        own = NObSPCam(necked.model).fit(calibration.images[: effort.calibration])
        found = added_up(own, necked.model, shown.images[: effort.explained], effort.batch)
        rows.append(neck_row(name, found, compared(own, necked, pairs)))
    return Report(
        name=NAME,
        title="Accounts of images: do they add up, and do they tell classes apart?",
        tables=(
            Table(
                "MobileNetV2, ImageNet: evidence on the right half of two images side by side",
                (Column("map"), Column("share", ".3f")),
                tuple(shares.items()),
                f"{len(pairs.left)} pairs of Imagenette images, both halves asked about; 0.5 is chance.",
            ),
            Table(
                "MobileNetV2 with layers before the head: what the account misses of logit − base",
                (
                    Column("behind the map"),
                    Column("median", ".1e"),
                    Column("largest", ".1e"),
                    Column("share, default", ".3f"),
                    Column("share, account", ".3f"),
                    Column("share, GradCAM", ".3f"),
                    Column("× forward", ".2f"),
                ),
                tuple(rows),
                f"{effort.explained} unseen images; necks trained on {effort.train} Imagenette images.",
            ),
        ),
        findings=(
            f"The default picture puts {shares[DEFAULT]:.3f} of its evidence on the right half; GradCAM "
            f"{shares[GRADCAM]:.3f}, the paper's map {shares[PAPER]:.3f}.",
            f"Calibrated on {effort.explained} images, the default account misses {plain.median:.1e} of the logit.",
        ),
        seeds=(SEED,),
        settings={
            "images explained": effort.explained,
            "calibrated on": effort.calibration,
            "batch": effort.batch,
        },
        packages=("torchvision", "grad-cam"),
    )


def neck_row(name: str, found: Sum, shares: dict[str, float]) -> tuple[Cell, ...]:
    return (
        name,
        found.median,
        found.largest,
        shares[DEFAULT],
        shares[ACCOUNT],
        shares[GRADCAM],
        found.forward,
    )


def architectures(effort: Effort, *, quick: bool) -> Report:
    """Random weights: whether the map is found and the account adds up."""
    shown = pictures(mobilenet_v2(), "val", effort.batch)
    kinds = ARCHITECTURES[:3] if quick else ARCHITECTURES
    small = {
        side: nn.functional.interpolate(shown.images, size=(side, side), mode="bilinear")
        for side in {kind[3] for kind in kinds}
    }
    rows = tuple(architecture_row(*kind[:3], small[kind[3]]) for kind in kinds)
    well = [row for row in rows if isinstance(row[2], float) and row[2] <= 0.02]
    return Report(
        name=f"{NAME}-architectures",
        title="Accounts of images through many architectures",
        tables=(
            Table(
                "Architectures with random weights",
                (
                    Column("network"),
                    Column("map"),
                    Column("median", ".1e"),
                    Column("largest", ".1e"),
                    Column("class token", ".2f"),
                    Column("× forward", ".2f"),
                    Column("picture, × forward", ".2f"),
                ),
                rows,
                "Of logit − base: what the account misses, and the class token's share (median). Small images. Where "
                "the default is a picture, its cost is in the last column and the sums are those of points=8.",
            ),
        ),
        findings=(
            f"{len(well)} of {len(rows)} architectures have an account that misses 0.02 or less (median).",
        ),
        seeds=(SEED,),
        settings={"images": effort.batch},
        packages=("torchvision", "timm"),
    )


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--architectures",
        action="store_true",
        help="many architectures with random weights instead",
    )
    parser.add_argument(
        "--finer", action="store_true", help="maps of earlier layers of MobileNetV2 instead"
    )
    chosen = parser.parse_args()
    effort = QUICK if chosen.quick else Effort()
    warnings.filterwarnings("ignore", category=UserWarning)
    if chosen.finer:
        publish(finer(2, 4, 8) if chosen.quick else finer(12, 16, 40), chosen)
        return
    publish(
        architectures(effort, quick=chosen.quick) if chosen.architectures else mobilenet(effort),
        chosen,
    )


if __name__ == "__main__":
    main()
