"""Linear heads on a database's activations, each fitted without a fold of its rows.

In this way no row judges itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nobsp.neighbors.evidence import Rows
from nobsp.neighbors.search import Fitted, Space, spaced
from nobsp.neighbors.tuning import TUNING


@dataclass(frozen=True, eq=False)
class Heads:
    """Linear heads on z-scored activations, each fitted without one fold of the database's rows.

    Attributes:
        space: That of z-scored activations.
        weights: Shape (folds, width + 1, outputs), the last of the rows being the bias.
        fold: Of each row of the database, −1 for those that none was fitted on.
    """

    space: Space
    weights: Tensor
    fold: Tensor

    def outputs(self, rows: Rows, leave: Tensor | None) -> Tensor:
        """Outputs by the head that did not see the first row to leave out, (rows, outputs).

        Where there is no such row, they are by all heads together.
        """
        heads = self.unseen(leave, len(rows))
        outputs = self.each(rows)
        return outputs[heads, torch.arange(len(rows))]

    def each(self, rows: Rows) -> Tensor:
        """Outputs of every head, and of all together, (folds + 1, rows, outputs)."""
        scores = self.space.scaled(rows)
        outputs = [scores @ weight[:-1] + weight[-1] for weight in self.weights]
        every = torch.stack(outputs)
        together = every.mean(0, keepdim=True)
        return torch.cat([every, together])

    def unseen(self, leave: Tensor | None, count: int) -> Tensor:
        """The number of the head that did not see the first row to leave out.

        It is −1, for all heads together, where there is no such row and all are as good.
        """
        if leave is None or leave.shape[1] == 0:
            return torch.full((count,), -1)
        first = leave[:, 0]
        fold = self.fold[first.clamp_min(0)]
        return torch.where(first >= 0, fold, -1)


def fit_heads(fitted: Fitted) -> Heads | None:
    """Heads in which no single label pulls hard; None where rows are fewer than columns.

    Class numbers, and 0 and 1 in one column per class, are expected to be wrong at times: softmax
    and sigmoid minimise −mean log((1 − ν) p_y + ν (1 − p_y) / (C − 1)) + decay/2 · ‖W‖². Values
    minimise a mean absolute error, rounded at zero, in units of the labels' spread.
    """
    space = fitted.space("activations", "euclidean")
    n_rows = len(fitted.backend)
    positions = spaced(n_rows, TUNING.most_head_rows)
    if len(positions) < max(space.width, 2 * TUNING.n_folds):
        return None

    rows = fitted.backend.take(positions)
    labels = rows.truth
    scores = space.scaled(rows)
    folds = _assign_folds(labels, scores)
    fold = torch.full((n_rows,), -1)
    fold[positions] = folds

    weights = []
    for held_out in range(TUNING.n_folds):
        others = folds != held_out
        training_scores = scores[others].to(torch.float32)
        weights.append(fit_head(training_scores, labels[others], fitted.outcomes.count))
    return Heads(space, torch.stack(weights), fold)


def _assign_folds(labels: Tensor, scores: Tensor) -> Tensor:
    """Deals the rows of each class out in turn, so that folds hold all classes alike.

    The order in which rows come does not matter.
    """
    label_sums = labels.reshape(len(labels), -1).double().sum(1)
    score_sums = scores.sum(1)
    order = np.lexsort([score_sums.numpy(), label_sums.numpy()])
    folds = torch.empty(len(labels), dtype=torch.long)
    folds[torch.from_numpy(order)] = torch.arange(len(labels)) % TUNING.n_folds
    return folds


def fit_head(scores: Tensor, labels: Tensor, outputs: int) -> Tensor:
    """One head, shape (width + 1, outputs): of classes, of 0 and 1 for each class, or of values."""
    if not labels.is_floating_point():
        return _minimise(scores, labels, outputs, TUNING.head_decay)

    middle = float(labels.median())
    spread = max(float(labels.std()), 1e-12)
    standardised = ((labels - middle) / spread).to(torch.float32)
    weights = spread * _minimise(scores, standardised, outputs, TUNING.value_decay)
    weights[-1] += middle
    return weights


def _minimise(scores: Tensor, labels: Tensor, outputs: int, decay: float) -> Tensor:
    with torch.enable_grad():
        weight = torch.zeros(scores.shape[1] + 1, outputs, requires_grad=True)
        solver = torch.optim.LBFGS(
            [weight], max_iter=TUNING.head_steps, history_size=10, line_search_fn="strong_wolfe"
        )

        def objective() -> Tensor:
            solver.zero_grad()
            logits = scores @ weight[:-1] + weight[-1]
            penalty = decay / 2 * weight[:-1].square().sum()
            loss = _mean_loss(logits, labels) + penalty
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        solver.step(objective)  # type: ignore[no-untyped-call]
    return weight.detach().to(torch.float64)


def _mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """A loss in which no single label pulls hard."""
    if labels.is_floating_point():
        residuals = logits[:, 0] - labels
        rounded = residuals.square() + TUNING.gentle_residual**2
        return rounded.sqrt().mean()

    noise = TUNING.label_noise
    outputs = logits.shape[1]
    if labels.ndim == 2:
        chances = logits.sigmoid()
        right = torch.where(labels > 0, chances, 1 - chances)
        likely = (1 - noise) * right + noise * (1 - right)
        return -likely.log().mean() * outputs

    right = logits.softmax(1).gather(1, labels[:, None])
    likely = (1 - noise) * right + noise / max(1, outputs - 1) * (1 - right)
    return -likely.log().mean()
