"""A class-token transformer trained on digits: region deletion of accounts beside attention maps and occlusion."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.report import Cell, Column, Report, Table, options, publish
from benchmarks.significance import bootstrap_interval
from benchmarks.vision.accounts import times_forward
from nobsp.metrics import region_deletion_auc, region_insertion_auc
from nobsp.vision import NObSPCam

SEED, SIDE, PATCH, WIDTH, BLOCKS = 0, 8, 2, 48, 4
CELLS = SIDE // PATCH
POINTS = (1, 2, 4, 8, None)
Maps = NDArray[np.float64]


class Embed(nn.Module):
    """Patches and a class token, each with its place."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(1, WIDTH, PATCH, stride=PATCH)
        self.first = nn.Parameter(0.02 * torch.randn(1, 1, WIDTH))
        self.place = nn.Parameter(0.02 * torch.randn(1, 1 + CELLS**2, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        patches = self.cut(x).flatten(2).transpose(1, 2)
        return torch.cat([self.first.expand(len(x), -1, -1), patches], 1) + self.place


class Block(nn.Module):
    """Attention and two linear layers; keeps its attention for those who read it."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.attention = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.mix(self.one(x)).chunk(3, 2)
        )
        self.attention = (query @ key.transpose(2, 3) / query.shape[-1] ** 0.5).softmax(3)
        x = x + self.out((self.attention @ value).transpose(1, 2).flatten(2))
        return x + self.wide(self.two(x))


class Transformer(nn.Module):
    """Reads its class token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks = Embed(), nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.blocks(self.embed(x)))[:, 0])
        return logits


def trained(epochs: int) -> tuple[Transformer, Tensor, Tensor, Tensor]:
    """The network, training images, and unseen images with their classes."""
    data = load_digits()
    images = torch.from_numpy(data.images)[:, None].float() / 16
    images = (images - images[:1400].mean()) / images[:1400].std()
    classes = torch.from_numpy(data.target)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = Transformer()
        optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=14 * epochs)
        for _ in range(epochs):
            for rows in torch.randperm(1400).split(100):
                shift = [int(step) for step in torch.randint(-1, 2, (2,))]
                optimizer.zero_grad()
                moved = images[rows].roll(shift, (2, 3))
                functional.cross_entropy(model(moved), classes[rows], label_smoothing=0.05).backward()
                optimizer.step()
                schedule.step()
    model.zero_grad(set_to_none=True)
    return model.eval().requires_grad_(False), images[:1400], images[1400:], classes[1400:]


def attention_maps(model: Transformer, images: Tensor, target: Tensor) -> dict[str, Maps]:
    """Rollout, Chefer's rule, LeGrad's and GradCAM on the tokens that enter the last block."""
    kept: list[Tensor] = []
    with torch.enable_grad():
        tokens = model.embed(images).requires_grad_()
        for block in model.blocks:
            kept.append(tokens)
            tokens = block(tokens)
        own = model.head(model.norm(tokens)[:, 0]).gather(1, target[:, None]).sum()
        attention = [block.attention for block in model.blocks]
        gradients = torch.autograd.grad(own, [*attention, kept[-1]])
    eye = torch.eye(1 + CELLS**2)
    rollout, chefer, legrad = eye.expand(len(images), -1, -1), eye.expand(len(images), -1, -1), torch.zeros(1)
    for one, slope in zip(attention, gradients, strict=False):
        rollout = (one.mean(1) + eye) / 2 @ rollout
        chefer = chefer + (one * slope).clamp_min(0).mean(1) @ chefer
        legrad = legrad + slope.clamp_min(0).mean((1, 2))[:, 1:]
    last, slope = kept[-1][:, 1:], gradients[-1][:, 1:]
    gradcam = (last * slope.mean(1, keepdim=True)).sum(2).clamp_min(0)
    found = {"attention rollout": rollout[:, 0, 1:], "Chefer": chefer[:, 0, 1:], "LeGrad": legrad, "GradCAM": gradcam}
    return {name: as_grid(values) for name, values in found.items()}


def as_grid(values: Tensor) -> Maps:
    return values.detach().double().reshape(-1, CELLS, CELLS).numpy()


def scaled(maps: Maps) -> Maps:
    centred = maps - maps.mean((1, 2), keepdims=True)
    found: Maps = centred / np.maximum(centred.std((1, 2), keepdims=True), 1e-12)
    return found


def occluded(model: Transformer, images: Tensor, target: Tensor) -> Maps:
    """Loss of the logit without each patch."""
    before = model(images).gather(1, target[:, None])[:, 0]
    parts = []
    for place in range(CELLS**2):
        row, column = (PATCH * step for step in divmod(place, CELLS))
        without = images.clone()
        without[:, :, row : row + PATCH, column : column + PATCH] = 0
        parts.append(before - model(without).gather(1, target[:, None])[:, 0])
    return as_grid(torch.stack(parts, 1))


def explainer(model: nn.Module, block: int, images: Tensor, points: int | None = None) -> NObSPCam:
    """Of the tokens that enter a block."""
    layer = "embed" if block == 0 else f"blocks.{block - 1}"
    return NObSPCam(model, layer=layer, points=points, batch_size=128).fit(images[:400])


def deletion(model: nn.Module, images: Tensor, maps: Maps, target: Tensor) -> Maps:
    large = np.repeat(np.repeat(maps, PATCH, 1), PATCH, 2)
    found: Maps = region_deletion_auc(model, images, large, target=target.numpy(), patch=PATCH, steps=16).auc
    return found


def price(model: nn.Module, train: Tensor, images: Tensor, target: Tensor) -> list[tuple[Cell, ...]]:
    """What the number of points of the integral costs and brings, block by block."""
    rows: list[tuple[Cell, ...]] = []
    for block in range(BLOCKS):
        for points in POINTS:
            cam = explainer(model, block, train, points)
            maps = cam(images, target)
            gain = maps.logits[range(len(maps)), maps.target] - maps.base_values[maps.target]
            missed = float(np.median(np.abs(maps.residual / gain)))
            score = float(deletion(model, images, maps.account, target).mean())
            cost = times_forward(cam, model, images[:128])
            rows.append((f"entering block {block}", str(points or "8 to 32"), score, missed, cost))
    return rows


def main() -> None:
    chosen = options((__doc__ or "").splitlines()[0]).parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    with torch.enable_grad():
        model, train, images, classes = trained(2 if chosen.quick else 60)
    images, classes = (images[:20], classes[:20]) if chosen.quick else (images, classes)
    target = model(images).argmax(1)
    right = float((target == classes).double().mean())
    maps = attention_maps(model, images, target)
    share: dict[str, float] = {}
    for block in range(BLOCKS):
        cam = explainer(model, block, train)
        found, name = cam(images, target), f"account entering block {block}"
        maps[name] = found.account
        gain = found.logits[range(len(found)), found.target] - found.base_values[found.target]
        share[name] = float(np.median(found.class_token / gain))
        if block == 0:
            thorough = cam.thorough(images, target, regions=CELLS)
            maps["thorough, block 0 (17 passes)"] = thorough.thorough
            maps["its removal alone (17 passes)"] = thorough.removal
    accounts = [maps[f"account entering block {block}"] for block in range(BLOCKS)]
    maps["accounts of blocks 0 and 1, scaled and added"] = scaled(accounts[0]) + scaled(accounts[1])
    maps["accounts of all blocks, scaled and added"] = np.sum([scaled(one) for one in accounts], axis=0)
    maps["account of block 0 and Chefer, scaled and added"] = scaled(accounts[0]) + scaled(maps["Chefer"])
    maps["occlusion (17 passes)"] = occluded(model, images, target)
    maps["random"] = np.random.default_rng(SEED).random((len(images), CELLS, CELLS))
    scores = {}
    for name, values in maps.items():
        large = np.repeat(np.repeat(values, PATCH, 1), PATCH, 2)
        inserted = region_insertion_auc(model, images, large, target=target.numpy(), patch=PATCH, steps=16).auc
        scores[name] = [deletion(model, images, values, target), inserted]
    rivals = ("attention rollout", "Chefer", "LeGrad", "GradCAM")
    best = max(rivals, key=lambda name: float(scores[name][0].mean()))
    rows: list[tuple[Cell, ...]] = []
    for name, (deleted, inserted) in sorted(scores.items(), key=lambda one: -float(one[1][0].mean())):
        gap = bootstrap_interval(deleted - scores[best][0], seed=SEED) if name != best else None
        said = "–" if gap is None else f"{gap.difference:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
        rows.append((name, float(deleted.mean()), said, float(inserted.mean()), share.get(name)))
    report = Report(
        name="class-token",
        title="A class-token transformer: which map?",
        tables=(
            Table(
                f"Four blocks, trained on digits, {right:.1%} right on {len(images)} unseen images",
                (
                    Column("map"),
                    Column("deletion", ".3f"),
                    Column(f"minus {best}"),
                    Column("insertion", ".3f"),
                    Column("class token's share", ".2f"),
                ),
                tuple(rows),
                "4 × 4 patches, deleted or inserted one by one; higher is better. In brackets 95% bootstrap intervals "
                f"of paired differences from {best}, the best of the attention maps.",
            ),
            Table(
                "Points of the integral: what they cost and bring",
                (
                    Column("account"),
                    Column("points"),
                    Column("deletion", ".3f"),
                    Column("missed", ".3f"),
                    Column("× forward", ".1f"),
                ),
                tuple(price(model, train, images, target)),
                "Missed of logit − base (median); processor time of a call, account and contrast, over a forward pass.",
            ),
        ),
        findings=(
            f"Of the maps that take one backward pass, {best} has the highest deletion; the table says which accounts "
            "are level with it.",
        ),
        seeds=(SEED,),
        settings={"blocks": BLOCKS, "width": WIDTH, "patches": CELLS**2, "epochs": 60},
        packages=("scikit-learn",),
    )
    publish(report, chosen)


if __name__ == "__main__":
    with torch.no_grad():
        main()
