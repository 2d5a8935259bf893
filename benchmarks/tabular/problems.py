"""A table of the paper, the network trained on it, and the test rows whose predictions are explained.

The paper's recipe: 20-200 (classes) or 128-64 (numbers) ReLU units, Adam at 3e-3 with a weight decay of 1e-4, at most
40 epochs, stopped early. What it leaves open is settled here: batches of 64 rows; a tenth of the training rows judges
when to stop, after 8 epochs without a lower loss, and the best weights are taken; numbers to predict are standardised
by the training rows; networks are explained in double precision. How long networks are trained decides the scores more
than anything else, so they can also be trained for all 40 epochs.
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks import kept
from benchmarks.data import Dataset, load
from benchmarks.networks import CLASSIFICATION_HIDDEN, REGRESSION_HIDDEN, feed_forward

Array = NDArray[np.float64]

EPOCHS, PATIENCE, BATCH, JUDGING_SHARE = 40, 8, 64, 0.1
LEARNING_RATE, WEIGHT_DECAY = 3e-3, 1e-4
RECIPE = (EPOCHS, PATIENCE, BATCH, JUDGING_SHARE, LEARNING_RATE, WEIGHT_DECAY)


@dataclass(frozen=True, eq=False)
class Problem:
    """A trained network and the rows on which its explanations are judged.

    Attributes:
        data: The split and encoded table.
        seed: Of the split, the network's weights and whatever a method draws.
        network: Trained on the training rows, double precision.
        rows: The test rows that are explained.
    """

    data: Dataset
    seed: int
    network: nn.Sequential
    rows: Array

    def outputs(self, rows: Array) -> Array:
        """Logits, or the number predicted: shape (rows, outputs)."""
        with torch.no_grad():
            return np.asarray(self.network(torch.as_tensor(rows, dtype=torch.float64)).numpy())

    @cached_property
    def target(self) -> NDArray[np.int64]:
        """Per row, the output that is explained: the predicted class."""
        return np.asarray(self.outputs(self.rows).argmax(axis=1))

    @property
    def features(self) -> int:
        return int(self.rows.shape[1])

    def accuracy(self) -> float:
        """Share of test rows classified correctly, or R² on them."""
        said, truth = self.outputs(self.data.X_test), self.data.y_test
        if self.data.task == "classification":
            return float((said.argmax(axis=1) == truth).mean())
        return float(
            1
            - np.square(standardised(self.data)[1] - said[:, 0]).mean()
            / standardised(self.data)[1].var()
        )


@lru_cache(maxsize=1)  # one method after another asks for the same
def problem(name: str, seed: int, *, rows: int, stopped: bool = True) -> Problem:
    """Loads the table, trains the network and draws the test rows to be explained.

    Args:
        name: As `benchmarks.data.load` knows it.
        seed: Decides everything random.
        rows: Most test rows to explain.
        stopped: Whether training is stopped early.
    """
    data = load(name, seed=seed)
    chosen = np.random.default_rng(seed).permutation(len(data.X_test))[:rows]
    network = trained_once(data, seed, stopped=stopped, name=f"{name}-{seed}-{stopped}")
    return Problem(data, seed, network, data.X_test[np.sort(chosen)])


def trained_once(data: Dataset, seed: int, *, stopped: bool, name: str) -> nn.Sequential:
    """The network of a table and seed, trained where no earlier run has left it."""
    rows = hashlib.sha256(np.ascontiguousarray(data.X_train).tobytes()).hexdigest()[:8]
    path = kept.FOLDER / "networks" / f"{name}-{kept.fingerprint(trained, RECIPE)}-{rows}.pt"
    classes = len(data.class_names)
    widths = CLASSIFICATION_HIDDEN if classes else REGRESSION_HIDDEN
    if path.exists():
        network = feed_forward(data.X_train.shape[1], widths, max(classes, 1), seed=seed).double()
        network.load_state_dict(torch.load(path, weights_only=True))
        return network.eval()
    network = trained(data, seed, stopped=stopped)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    torch.save(network.state_dict(), unfinished)
    unfinished.rename(path)
    return network


def standardised(data: Dataset) -> tuple[Array, Array]:
    """What a regression network is to predict: training and test numbers in units of the training rows' spread."""
    mean, scale = data.y_train.mean(), data.y_train.std()
    return (data.y_train - mean) / scale, (data.y_test - mean) / scale


def trained(
    data: Dataset, seed: int, *, stopped: bool = True, hidden: tuple[int, ...] | None = None
) -> nn.Sequential:
    """The paper's network for this table, or one of other widths, trained; the caller's random state is left alone."""
    classes = len(data.class_names)
    widths = hidden or (CLASSIFICATION_HIDDEN if classes else REGRESSION_HIDDEN)
    network = feed_forward(data.X_train.shape[1], widths, max(classes, 1), seed=seed)
    loss: nn.Module = nn.CrossEntropyLoss() if classes else nn.MSELoss()
    targets = (
        torch.as_tensor(data.y_train)
        if classes
        else torch.as_tensor(standardised(data)[0])[:, None].float()
    )
    inputs = torch.as_tensor(data.X_train, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(inputs), generator=generator)
    judging, learning = order.tensor_split([round(JUDGING_SHARE * len(order))])
    optimizer = torch.optim.Adam(
        network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True
    )
    best, best_loss, waited = copy.deepcopy(network.state_dict()), float("inf"), 0
    for _ in range(EPOCHS):
        _epoch(network, optimizer, loss, inputs, targets, learning, generator)
        with torch.no_grad():
            now = float(loss(network(inputs[judging]), targets[judging]))
        if now < best_loss or not stopped:
            best, best_loss, waited = copy.deepcopy(network.state_dict()), now, 0
        else:
            waited += 1
        if waited == PATIENCE:
            break
    network.load_state_dict(best)
    return network.double().eval()


def _epoch(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    learning: Tensor,
    generator: torch.Generator,
) -> None:
    shuffled = learning[torch.randperm(len(learning), generator=generator)]
    for batch in shuffled.split(BATCH):
        optimizer.zero_grad()
        loss(network(inputs[batch]), targets[batch]).backward()
        optimizer.step()


def described() -> dict[str, object]:
    """How networks are trained, for a report."""
    return {
        "hidden_for_classes": CLASSIFICATION_HIDDEN,
        "hidden_for_numbers": REGRESSION_HIDDEN,
        "most_epochs": EPOCHS,
        "patience": PATIENCE,
        "batch": BATCH,
        "learning_rate": LEARNING_RATE,
        "weight_decay": WEIGHT_DECAY,
    }
