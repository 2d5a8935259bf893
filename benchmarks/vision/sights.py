"""Images, sequences and audits as people have them: what was asked of each, and what was measured.

A row is a situation: a model, its inputs, the figure that counts and the bound it has to keep. Models of sequences,
decoders and CLIP have random weights (whether numbers add up does not depend on training); near-duplicates are those
of CIFAR-10 as a trained ResNet-20 sees them, and inputs from elsewhere are shown to it and to a MobileNetV2.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.architectures import architecture, torchvision_models
from benchmarks.data import load_images
from benchmarks.report import Cell, Column, Report, Table, options, progress, publish
from benchmarks.significance import Interval
from benchmarks.vision.accounts import times_forward
from benchmarks.vision.class_token import CIFAR, Transformer
from benchmarks.vision.networks import SETTINGS
from nobsp import ContributionIndex, NObSPCam, audit, explain_images

STEPS, CHANNELS, LENGTH, WORDS = 24, 3, 10, 60
ADDS_UP = 0.02
_AUROC = (
    "All test images of the set are judged. Where the interval of a difference of AUROC has 0 in it, the errors are "
    "too few to tell a loss from none; the figure is held against 0 all the same."
)
NOTES = {
    "What it costs": "Processor time, on a machine that others use. Images that 16 points of the integral miss by more "
    "than 1%, and by more than rounding, take 64 more.",
    "Audits": _AUROC,
    "Audits of photographs": _AUROC,
}


@dataclass(frozen=True)
class Sight:
    """One measured figure.

    Attributes:
        situation: What was tried.
        figure: What was measured of it.
        value: The measurement.
        bound: What it has to keep to.
        at_least: Whether the bound is from below.
    """

    situation: str
    figure: str
    value: float
    bound: float
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def row(self) -> tuple[Cell, ...]:
        sign = "≥" if self.at_least else "≤"
        verdict = "met" if self.is_met else "missed"
        return self.situation, self.figure, self.value, f"{sign} {self.bound:g}", verdict


# ------------------------------------------------------------------------------------------------ sequences


class Recurrent(nn.Module):
    """A recurrent layer whose last step is read."""

    def __init__(self, kind: type[nn.RNNBase], *, time_last: bool) -> None:
        super().__init__()
        self.time_last = time_last
        self.layer = kind(CHANNELS, 8, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        steps = self.layer(x.mT if self.time_last else x)[0]
        logits: Tensor = self.head(steps[:, -1])
        return logits


class SequenceTransformer(nn.Module):
    """One block of attention whose last step is read."""

    def __init__(self, *, time_last: bool) -> None:
        super().__init__()
        self.time_last = time_last
        self.embed = nn.Linear(CHANNELS, 8)
        self.place = nn.Parameter(0.1 * torch.randn(1, STEPS, 8))
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        steps = self.block(self.embed(x.mT if self.time_last else x) + self.place)
        logits: Tensor = self.head(steps[:, -1])
        return logits


class TemporalConvolutions(nn.Module):
    """Dilated convolutions whose steps are averaged."""

    def __init__(self, *, time_last: bool) -> None:
        super().__init__()
        self.time_last = time_last
        self.body = nn.Sequential(
            nn.Conv1d(CHANNELS, 8, 3, padding=2, dilation=2),
            nn.ReLU(),
            nn.Conv1d(8, 8, 3, padding=4, dilation=4),
            nn.ReLU(),
        )
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x if self.time_last else x.mT).mean(2))
        return logits


def see_sequences() -> Iterator[Sight]:
    """Whether accounts have one number per time step, and add up."""
    models: dict[str, Callable[[bool], nn.Module]] = {
        "LSTM": lambda last: Recurrent(nn.LSTM, time_last=last),
        "GRU": lambda last: Recurrent(nn.GRU, time_last=last),
        "transformer": lambda last: SequenceTransformer(time_last=last),
        "TCN": lambda last: TemporalConvolutions(time_last=last),
    }
    for name, make in models.items():
        for time_last in (False, True):
            torch.manual_seed(0)
            model = make(time_last).eval()
            shape = (CHANNELS, STEPS) if time_last else (STEPS, CHANNELS)
            signals = torch.randn(32, *shape)
            maps = NObSPCam(model).fit(signals)(signals[:8])
            layout = "(n, c, t)" if time_last else "(n, t, c)"
            if maps.account.shape != (8, STEPS):
                yield Sight(f"{name}, {layout}", "no account per time step", 1.0, 0.0)
                continue
            yield Sight(f"{name}, {layout}", "unexplained", maps.unexplained, ADDS_UP)


def padded_texts(side: str) -> dict[str, Tensor]:
    """Random texts of different lengths, padded on one side."""
    codes = torch.randint(3, WORDS, (24, LENGTH))
    mask = torch.ones_like(codes)
    for row, missing in enumerate(torch.randint(0, 6, (24,)).tolist()):
        padding = slice(LENGTH - missing, None) if side == "right" else slice(0, missing)
        codes[row, padding] = 0
        mask[row, padding] = 0
    return {"input_ids": codes, "attention_mask": mask}


def decoders() -> Iterator[tuple[str, nn.Module]]:
    """Classifiers of `transformers` that read the last token."""
    torchvision_models()  # transformers imports torchvision, which has to be helped first
    import transformers

    common = {"vocab_size": WORDS, "num_labels": 3, "pad_token_id": 0}
    small = {
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 16,
    }
    gpt = {"n_positions": 16, "n_embd": 24, "n_layer": 2, "n_head": 2}
    gpt |= {"bos_token_id": 1, "eos_token_id": 2}
    kinds: tuple[tuple[str, Any, Any, dict[str, int]], ...] = (
        ("GPT-2", transformers.GPT2ForSequenceClassification, transformers.GPT2Config, gpt),
        ("Llama", transformers.LlamaForSequenceClassification, transformers.LlamaConfig, small),
        ("Qwen2", transformers.Qwen2ForSequenceClassification, transformers.Qwen2Config, small),
    )
    for name, network, config, sizes in kinds:
        torch.manual_seed(0)
        yield name, network(config(**common, **sizes)).eval()


def see_decoders() -> Iterator[Sight]:
    """Whether every token has its evidence, padding none, and the account adds up."""
    for name, model in decoders():
        for side in ("right", "left"):
            torch.manual_seed(1)
            texts = padded_texts(side)
            maps = NObSPCam(model).fit(texts)(texts)
            padding = texts["attention_mask"].numpy() == 0
            situation = f"{name}, padded {side}"
            yield Sight(situation, "unexplained", maps.unexplained, ADDS_UP)
            evidence = float(np.abs(maps.account[padding]).max())
            yield Sight(situation, "evidence of padding", evidence, 0.0)
            silent = float((maps.account[~padding] == 0).mean())
            yield Sight(situation, "tokens without evidence", silent, 0.0)


def see_clip() -> Iterator[Sight]:
    """Several inputs, of which one is pixels."""
    torchvision_models()
    import transformers

    torch.manual_seed(0)
    common = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    text = common | {"vocab_size": WORDS, "num_hidden_layers": 2, "max_position_embeddings": 16}
    text |= {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
    vision = common | {"num_hidden_layers": 3, "image_size": 32, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    model = transformers.CLIPModel(config).eval()
    codes = torch.randint(3, WORDS, (4, LENGTH))
    codes[:, -1] = 2
    batch = {"pixel_values": torch.randn(20, 3, 32, 32), "input_ids": codes}
    said = model(**batch).logits_per_image.numpy()

    maps = NObSPCam(model).fit(batch)(batch)
    gap = float(np.abs(maps.logits - said).max() / np.abs(said).max())
    yield Sight("CLIPModel, pixels and texts", "logits beside the model's own", gap, 1e-5)
    sums = NObSPCam(model, points=8).fit(batch)(batch)
    yield Sight("CLIPModel, points=8", "unexplained", sums.unexplained, ADDS_UP)


# --------------------------------------------------------------------------------------- what is explained


class TwoPaths(nn.Module):
    """A second path that wakes up with larger images."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Conv2d(1, 3, 3, padding=1)
        self.coarse = nn.Conv2d(1, 3, 3, padding=1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(x).amax((2, 3))
        return torch.maximum(fine, 3 * self.coarse(x).amax((2, 3)) - 4)


class Segmentation(nn.Module):
    """A map per class, as large as the image."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.ReLU())
        self.classes = nn.Conv2d(8, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return functional.interpolate(self.classes(self.body(x)), size=x.shape[2:])


def see_sums() -> Iterator[Sight]:
    """What the model says is what is explained, and what is left is in the residual."""
    torch.manual_seed(0)
    model = TwoPaths().eval()
    cam = NObSPCam(model).fit(torch.randn(16, 1, 16, 16))
    images = 2 * torch.randn(16, 1, 16, 16)
    maps = cam(images)
    gap = float(np.abs(maps.logits - model(images).double().numpy()).max())
    yield Sight("another path wakes up after fit", "logits beside the model's own", gap, 1e-5)

    def in_box(out: Tensor) -> Tensor:
        return out[:, 5, 20:40, 20:40].mean((1, 2))

    network = Segmentation().eval()
    images = torch.randn(12, 3, 64, 64)
    maps = explain_images(network, images, target=in_box)
    accounted = maps.account.mean((1, 2)) + maps.class_token + maps.residual + maps.base_values[0]
    gap = float(np.abs(accounted - in_box(network(images)).double().numpy()).max())
    yield Sight("score of a class in a box", "sum beside the model's own", gap, 1e-5)
    yield Sight("score of a class in a box", "unexplained", maps.unexplained, ADDS_UP)


def see_costs(*, quick: bool) -> Iterator[Sight]:
    """Processor time of a call over that of a forward pass."""
    torchvision_models()
    import timm

    turns = 1 if quick else 5
    torch.manual_seed(0)
    side = 64 if quick else 224
    images = torch.randn(8, 3, side, side)
    for name in ("resnet18", "mobilenet_v2"):
        network = architecture(name)
        cam = NObSPCam(network).fit(images)
        cost = times_forward(cam, network, images, turns)
        yield Sight(f"{name}, pooled into the head", "× forward", cost, 1.1)
    body = architecture("mobilenet_v2").features
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    necks = {"LayerNorm": nn.LayerNorm(1280), "MLP": nn.Sequential(nn.Linear(1280, 256), nn.GELU())}
    for name, neck in necks.items():
        width = 1280 if name == "LayerNorm" else 256
        network = nn.Sequential(body, pool, neck, nn.Linear(width, 10)).eval()
        cam = NObSPCam(network).fit(images)
        cost = times_forward(cam, network, images, turns)
        yield Sight(f"mobilenet_v2 with a neck ({name})", "× forward", cost, 1.3)

    vit = timm.create_model("vit_tiny_patch16_224", img_size=96, num_classes=10).eval()
    images = torch.randn(16, 3, 96, 96)
    cam = NObSPCam(vit).fit(images)
    cost = times_forward(cam, vit, images, turns)
    yield Sight("class token, 12 blocks", "× forward", cost, 3.0)
    six = Transformer(CIFAR).eval()
    images = torch.randn(64, 3, 32, 32)
    cam = NObSPCam(six, batch_size=64).fit(images)
    cost = times_forward(cam, six, images, turns)
    yield Sight("class token, six blocks", "× forward", cost, 6.0)


# --------------------------------------------------------------------------------- audits, inputs from elsewhere


def changed_copies(images: Tensor) -> dict[str, Tensor]:
    """Copies that were shifted by a pixel, that noise was added to, and that are brighter."""
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    padded = functional.pad(images, (1, 0, 1, 0), mode="replicate")
    return {
        "shifted by a pixel": padded[..., :-1, :-1],
        "with noise": (images + 0.03 * noise).clamp(0, 1),
        "brighter": (1.15 * images + 0.05).clamp(0, 1),
    }


def see_duplicates(
    cam: NObSPCam, images: Tensor, prepare: Callable[[Tensor], Tensor], *, planted: int
) -> Iterator[Sight]:
    """Copies among the images of CIFAR-10, at the default."""
    count = len(images)
    copies = changed_copies(images[:planted])
    index = ContributionIndex(cam).fit(prepare(torch.cat([images, *copies.values()])))
    found = {tuple(pair) for pair in index.duplicates().pairs.tolist()}
    about = f"{planted} near-duplicates among {count:,} images of CIFAR-10"
    for position, kind in enumerate(copies):
        pairs = {(row, count + position * planted + row) for row in range(planted)}
        hit = len(pairs & found)
        yield Sight(f"{about}, {kind}", "found", hit, round(0.9 * planted), at_least=True)
    others = sum(second < count for _, second in found)
    yield Sight(about, "other pairs", others, 10)


@dataclass(frozen=True, eq=False)
class Familiar:
    """Images of the kind that a network was trained on, prepared for it."""

    title: str
    known: Tensor  # of the database
    labels: Any
    own: Tensor  # others, to compare with
    classes: Any  # of these


def see_elsewhere(
    cam: NObSPCam, familiar: Familiar, prepare: Callable[[Tensor], Tensor], *, count: int
) -> Iterator[Sight]:
    """How many inputs from elsewhere keep a joint confidence above the median of known images, and what that costs."""
    side = familiar.own.shape[-1]
    digits = torch.from_numpy(load_digits().images[:count, None]).float() / 16
    lesions = load_images("ham10000", split="val", size=side)
    order = np.random.default_rng(0).permutation(len(lesions))[:count]
    generator = torch.Generator().manual_seed(0)
    strange = {
        "skin lesions": torch.from_numpy(lesions.subset(order).array()),
        "digits": functional.interpolate(digits, size=(side, side)).expand(-1, 3, -1, -1),
        "noise": torch.rand(len(digits), 3, side, side, generator=generator),
    }
    index = ContributionIndex(cam).fit(familiar.known, familiar.labels)
    own = audit(index, familiar.own)
    median = float(np.median(own.joint))
    for name, images in strange.items():
        above = float((audit(index, prepare(images)).joint > median).mean())
        situation = f"{name} shown to a network of {familiar.title}"
        yield Sight(situation, "share above the known median", above, 0.05)

    is_right = own.predicted == familiar.classes
    if bool(is_right.all()):
        return
    gain = bootstrap_auroc_gain(is_right, own.joint, own.confidence)
    errors = int((~is_right).sum())
    situation = f"{errors} wrong predictions of {len(is_right)}, {familiar.title}"
    interval = f"95% interval {gain.low:+.4f} to {gain.high:+.4f}"
    figure = f"AUROC of joint confidence less that of the softmax ({interval})"
    yield Sight(situation, figure, gain.difference, 0.0, at_least=True)


def bootstrap_auroc_gain(is_right: Any, joint: Any, softmax: Any) -> Interval:
    """How much better one score tells right predictions from wrong ones than another, rows drawn again."""
    generator = np.random.default_rng(0)
    gains = []
    while len(gains) < 1000:
        rows = generator.integers(0, len(is_right), len(is_right))
        truth = is_right[rows]
        if truth.all() or not truth.any():
            continue
        gains.append(roc_auc_score(truth, joint[rows]) - roc_auc_score(truth, softmax[rows]))
    low, high = np.quantile(gains, (0.025, 0.975))
    difference = roc_auc_score(is_right, joint) - roc_auc_score(is_right, softmax)
    return Interval(float(difference), float(low), float(high))


class TenClasses(nn.Module):
    """MobileNetV2 of ImageNet with the outputs of Imagenette's classes alone."""

    def __init__(self) -> None:
        super().__init__()
        setting = SETTINGS["mobilenet_v2"]()
        self.network = setting.model.network
        last = self.network.classifier[-1]
        rows = torch.tensor(setting.classes)
        self.network.classifier[-1] = nn.Linear(last.in_features, len(rows))
        self.network.classifier[-1].weight.copy_(last.weight[rows])
        self.network.classifier[-1].bias.copy_(last.bias[rows])
        self.prepare = setting.model.prepare

    def forward(self, prepared: Tensor) -> Tensor:
        logits: Tensor = self.network(prepared)
        return logits


def see_photographs(*, quick: bool) -> Iterator[Sight]:
    """What audits say of Imagenette as MobileNetV2 sees it."""
    model = TenClasses().eval()
    n_known, n_own = (60, 40) if quick else (600, None)
    parts = []
    for split, count in (("train", n_known), ("val", n_own)):
        data = load_images("imagenette", split=split, size=224)
        order = np.random.default_rng(0).permutation(len(data))[:count]
        part = data.subset(order)
        parts.append((model.prepare(torch.from_numpy(part.array())), part.labels))
    (known, labels), (own, classes) = parts
    cam = NObSPCam(model).fit(known[:100])
    familiar = Familiar("Imagenette", known=known, labels=labels, own=own, classes=classes)
    yield from see_elsewhere(cam, familiar, model.prepare, count=20 if quick else 200)


def see_audits(*, quick: bool) -> Iterator[Sight]:
    """What audits say of CIFAR-10 as ResNet-20 sees it."""
    model = SETTINGS["resnet20"]().model
    prepare = model.prepare  # takes mean and spread out of the images
    train = load_images("cifar10", split="train")
    test = load_images("cifar10", split="val")
    n_known = 300 if quick else 2000
    order = np.random.default_rng(0).permutation(len(train))[:n_known]
    known = train.subset(order)
    images = prepare(torch.from_numpy(known.array()))
    held_out = test.subset(np.arange(100 if quick else len(test)))
    cam = NObSPCam(model).fit(images[:256])
    familiar = Familiar(
        "CIFAR-10",
        known=images,
        labels=known.labels,
        own=prepare(torch.from_numpy(held_out.array())),
        classes=held_out.labels,
    )
    yield from see_elsewhere(cam, familiar, prepare, count=300)

    many = test.subset(np.arange(5000, 5400 if quick else 10000))
    scenes = torch.from_numpy(many.array())
    yield from see_duplicates(cam, scenes, prepare, planted=8 if quick else 40)


def main() -> None:
    chosen = options((__doc__ or "").splitlines()[0]).parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    parts: dict[str, Callable[[], Iterator[Sight]]] = {
        "Sequences": see_sequences,
        "Decoders": see_decoders,
        "Several inputs": see_clip,
        "What is explained": see_sums,
        "What it costs": lambda: see_costs(quick=chosen.quick),
        "Audits": lambda: see_audits(quick=chosen.quick),
        "Audits of photographs": lambda: see_photographs(quick=chosen.quick),
    }
    tables = []
    sights: list[Sight] = []
    for title, see in parts.items():
        began = time.process_time()
        seen = list(see())
        progress(f"{title}: {time.process_time() - began:.0f} s of processor time")
        sights += seen
        columns = ("situation", "figure", "measured", "asked", "verdict")
        formats = {"measured": ".3g"}
        tables.append(
            Table(
                title,
                tuple(Column(name, formats.get(name, "")) for name in columns),
                tuple(sight.row() for sight in seen),
                NOTES.get(title, ""),
            )
        )
    met = sum(sight.is_met for sight in sights)
    missed = "; ".join(sight.situation for sight in sights if not sight.is_met)
    report = Report(
        name="sights",
        title="Images, sequences and audits as people have them",
        tables=tuple(tables),
        findings=(
            f"{met} of {len(sights)} figures keep what was asked.",
            *([f"Missed: {missed}."] if missed else []),
        ),
        seeds=(0,),
        settings={},
        packages=("transformers", "timm", "torchvision", "scikit-learn"),
    )
    publish(report, chosen)


if __name__ == "__main__":
    with torch.no_grad():
        main()
