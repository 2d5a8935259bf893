"""A sample, the network trained on it, and how to ask it; trained networks are kept for the next run."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from benchmarks.networks import REGRESSION_HIDDEN, feed_forward, train
from benchmarks.recovery.designs import FEATURES, Array, Case, Sample, sample

# Of four recipes tried on the paper's functions, the one whose networks had the best R² on held-out rows.
STEPS, BATCH, LEARNING_RATE, WEIGHT_DECAY = 4000, 128, 1e-2, 1e-5


@dataclass(frozen=True)
class Problem:
    """What an explainer is given, and what it is scored against.

    Attributes:
        case: Place in the grid.
        sample: Rows and truth.
        network: Trained on them; None for what learns from the rows by itself.
    """

    case: Case
    sample: Sample
    network: nn.Sequential | None

    @property
    def trained(self) -> nn.Sequential:
        if self.network is None:
            raise ValueError(f"{self.case} has no network; ask for a case with an activation.")
        return self.network

    def predict(self, rows: Array) -> Array:
        """The network's output, one number a row."""
        with torch.no_grad():
            return np.asarray(
                self.trained(torch.as_tensor(rows, dtype=torch.float64))[:, 0].numpy()
            )

    @cached_property
    def digest(self) -> str:
        """Changes when the rows, the truth or the network change."""
        said = hashlib.sha256()
        s = self.sample
        for array in (s.inputs, s.targets, s.held_out, s.singles, s.output):
            said.update(np.ascontiguousarray(array).tobytes())
        for weights in self.network.state_dict().values() if self.network is not None else ():
            said.update(weights.numpy().tobytes())
        return said.hexdigest()[:16]


def problem(case: Case, networks: Path) -> Problem:
    """Draws the rows and finds or trains the network.

    Args:
        case: Place in the grid.
        networks: Folder of the networks trained so far.
    """
    rows = sample(case)
    if case.activation is None:
        return Problem(case, rows, None)
    activation = {"ReLU": nn.ReLU, "SiLU": nn.SiLU}[case.activation]
    network = feed_forward(FEATURES, REGRESSION_HIDDEN, 1, seed=case.seed, activation=activation)
    recipe = hashlib.sha256(
        repr((Problem(case, rows, None).digest, _recipe())).encode()
    ).hexdigest()[:12]
    kept = networks / f"{case}-{recipe}.safetensors"
    if kept.exists():
        network.double().load_state_dict(load_file(kept))
    else:
        _train(network, rows, seed=case.seed)
        networks.mkdir(parents=True, exist_ok=True)
        unfinished = kept.with_suffix(".part")
        save_file(network.state_dict(), unfinished)
        unfinished.rename(kept)
    return Problem(case, rows, network.eval())


def _recipe() -> tuple[float, ...]:
    return STEPS, BATCH, LEARNING_RATE, WEIGHT_DECAY, *REGRESSION_HIDDEN


def _train(network: nn.Sequential, rows: Sample, *, seed: int) -> None:
    """Trains on standardised targets, then gives the last layer their scale back."""
    mean, scale = rows.targets.mean(), rows.targets.std()
    train(
        network,
        torch.as_tensor(rows.inputs),
        torch.as_tensor((rows.targets - mean) / scale)[:, None],
        seed=seed,
        epochs=-(-STEPS // -(-len(rows.inputs) // BATCH)),
        batch_size=BATCH,
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
    )
    head = network[-1]
    with torch.no_grad():
        head.weight.mul_(scale)
        head.bias.mul_(scale).add_(mean)
