"""Linear heads trained on frozen activations: softmax regression, solved to its optimum and kept in the cache."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.retrieval.features import Features, Recipe, keep, kept_below
from benchmarks.vision.networks import SETTINGS

# Weight decay, and L-BFGS steps that solve it: the weaker the decay, the longer the way.
FITTING, REGULARISED = 0.003, 0.03
STEPS = {FITTING: 120, REGULARISED: 50}


@dataclass(frozen=True)
class Head:
    """A linear layer on activations.

    Attributes:
        weight: Shape (classes, width).
        bias: Shape (classes,).
    """

    weight: Tensor
    bias: Tensor

    def logits(self, activations: Tensor) -> Tensor:
        return functional.linear(activations, self.weight, self.bias)

    def accuracy(self, rows: Features) -> float:
        return float((self.logits(rows.activations).argmax(1).numpy() == rows.labels).mean())

    def layer(self) -> nn.Linear:
        layer = nn.Linear(self.weight.shape[1], len(self.weight))
        layer.weight.data, layer.bias.data = self.weight.clone(), self.bias.clone()
        return layer


def own_head(recipe: Recipe) -> Head:
    """The network's own last layer, for the classes of its images."""
    setting = SETTINGS[recipe.network]()
    last = [layer for layer in setting.model.modules() if isinstance(layer, nn.Linear)][-1]
    classes = list(setting.classes)
    return Head(last.weight.detach()[classes], last.bias.detach()[classes])


def trained_head(rows: Features, *, classes: int, decay: float, cache: Path | None = None) -> Head:
    """A head trained on rows, or the one that was kept from an earlier run on the very same rows.

    Args:
        rows: What to train on.
        classes: How many there are.
        decay: FITTING or REGULARISED.
        cache: Folder to keep it in.
    """
    known = hashlib.sha256(f"{classes} {decay} {STEPS[decay]}".encode())
    known.update(rows.activations.numpy().tobytes())
    known.update(rows.labels.tobytes())
    path = kept_below(cache) / "heads" / f"{known.hexdigest()[:16]}.safetensors"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        head = softmax_regression(rows, classes=classes, decay=decay, steps=STEPS[decay])
        keep(path, {"weight": head.weight, "bias": head.bias})
    kept = load_file(path)
    return Head(kept["weight"], kept["bias"])


def softmax_regression(rows: Features, *, classes: int, decay: float, steps: int) -> Head:
    """Least mean cross-entropy + decay/2 · ‖W‖² on standardised activations, by L-BFGS on all rows at once.

    The objective is convex and the start is zero, so there is no seed. The standardisation is folded into the weights
    that are returned.
    """
    mean, spread = rows.activations.mean(0), rows.activations.std(0).clamp_min(1e-6)
    standard, truth = (rows.activations - mean) / spread, torch.from_numpy(rows.labels)
    weight = torch.zeros(classes, standard.shape[1], requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    solver = torch.optim.LBFGS(
        [weight, bias], max_iter=steps, history_size=10, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        solver.zero_grad()
        surprise = functional.cross_entropy(functional.linear(standard, weight, bias), truth)
        loss = surprise + decay / 2 * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    solver.step(objective)  # type: ignore[no-untyped-call]
    scaled = weight.detach() / spread
    return Head(scaled, bias.detach() - scaled @ mean)
