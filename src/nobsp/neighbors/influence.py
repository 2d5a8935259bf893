"""Which training rows a logit rests on: how it would change, had each of them been left out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._typing import AnyArray, ArrayLike, TargetLike
from nobsp.arguments import array_of
from nobsp.neighbors.curvature import (
    HeadProblem,
    Loss,
    find_problem,
    gradient_left,
    measure_curvature,
)
from nobsp.neighbors.evidence import Outcomes, Rows
from nobsp.neighbors.result import Extremes, RankedRows
from nobsp.neighbors.retraining import Retrained, retrain_without
from nobsp.neighbors.search import Fitted, pieces

# Share of the gradient that may be left at the weights of a head that counts as trained on the
# rows.
MOST_GRADIENT_LEFT = 0.2
# The same before the curvature is known, when columns that are correlated make it look larger.
_CLEARLY_TOO_MUCH = 1.0
# Numbers of a table of values held at once.
_MOST_NUMBERS = 1 << 24


@dataclass(frozen=True, eq=False, repr=False)
class Influence(RankedRows):
    """How much logits of some rows would change if database rows were left out of training.

    Attributes:
        values: How much lower the logit would be without a row, which speaks for the class where
            that is positive; shape (queries, rows). Of those that were asked for, the most for it
            first and the most against it last.
        indices: Positions of these rows in the database, shape (queries, rows).
        labels: Their labels; where rows may have several classes, whether they are of the class
            asked for.
        size: Sum of the sizes of the values of all rows of the database, shape (queries,).
        logits: Logits of the classes asked for, shape (queries,); of a model with one, half of it
            for either class.
        target: These classes, written as labels are; of a regression the value predicted.
        loss: What the head was trained with, by its gradient: "softmax", "sigmoid" or "squares".
        weight_decay: λ of Σ loss + λ/2 ‖w‖², which follows from the weights; scikit-learn's 1/C, or
            Ridge's alpha.
        gradient: Share of the rows' own gradients that is left at the head's weights: 0 for a head
            trained on these rows, about 1 for one trained on others.
        retrained: How many rows were left out by training the head on, because one Newton step
            moves logits far.
        rough: How many more move logits far, whose values are of one Newton step all the same,
            since training on would take too long: their order among themselves is not to be relied
            on.
    """

    loss: Loss
    weight_decay: float
    gradient: float
    retrained: int = 0
    rough: int = 0

    def __repr__(self) -> str:
        rows = self.values.shape[1]
        rough = f", {self.rough} rows only roughly" if self.rough else ""
        return (
            f"Influence({len(self)} queries, {rows} rows, {self.loss}, gradient "
            f"{self.gradient:.1%}{rough})"
        )


def leave_out(
    fitted: Fitted,
    queries: Rows,
    target: TargetLike,
    k: int | None,
    sample_weight: ArrayLike = None,
) -> Influence:
    """Changes of logits by one Newton step on the loss without each row.

    Where one step goes far, more are taken.

    With H the Hessian of the loss and g_i the gradient of row i, leaving it out moves the weights
    by H₋ᵢ⁻¹ g_i; H₋ᵢ is H less the row's own curvature, so that one factorisation serves all rows
    (exactly so for least squares).
    """
    rows = labelled_rows(fitted, "influence")
    outcomes = fitted.outcomes
    codes = target_codes(outcomes, queries, target)
    problem = _problem_of(fitted, rows, sample_weight)
    # Before the Hessian, which takes long: a head that was never near the minimum.
    _require_trained(problem.relative_descent, at_most=_CLEARLY_TOO_MUCH)
    curvature = measure_curvature(problem)
    gradient = gradient_left(problem, curvature)
    _require_trained(gradient, at_most=MOST_GRADIENT_LEFT)

    asked = _Asked.of(outcomes, queries, codes)
    residuals = curvature.left_out_residuals()
    retrained = retrain_without(problem, curvature, residuals)
    n_rows, n_outputs = residuals.shape
    extremes = Extremes(k)
    for piece in pieces(len(queries), n_rows * n_outputs, numbers=_MOST_NUMBERS):
        some = asked.take(piece)
        directions = curvature.directions(some.design, some.column)
        moved = torch.einsum("qcj,nj,nc->qn", directions, problem.design, residuals)
        if len(retrained.rows):
            moved[:, retrained.rows] = some.changes(retrained)
        extremes.add(moved * some.sign[:, None])

    indices = extremes.indices
    logits = (asked.design @ problem.weights).gather(1, asked.column[:, None])[:, 0] * asked.sign
    return Influence(
        indices=indices,
        values=extremes.values.numpy(),
        labels=labels_at(outcomes, rows, indices, codes),
        size=extremes.sizes,
        logits=logits.numpy(),
        target=name_targets(outcomes, codes, logits),
        loss=problem.loss,
        weight_decay=float(problem.decay[0]),
        gradient=gradient,
        retrained=len(retrained.rows),
        rough=retrained.rough,
    )


@dataclass(frozen=True, eq=False)
class _Asked:
    """The queries as the head sees them, and which of its logits each is about."""

    design: Tensor  # activations and a constant, (queries, units + 1)
    column: Tensor  # the logit's column
    # what it is multiplied with: of a model with one logit for two classes, each has half of it
    sign: Tensor

    @classmethod
    def of(cls, outcomes: Outcomes, queries: Rows, codes: Tensor) -> _Asked:
        """Those of classes, or of the value that is predicted."""
        constant = torch.ones(len(queries), 1, dtype=torch.float64)
        design = torch.cat([queries.activations.to(torch.float64), constant], dim=1)
        if outcomes.classes is not None and outcomes.outputs == 1:
            return cls(design, torch.zeros_like(codes), torch.where(codes > 0, 0.5, -0.5))
        return cls(design, codes, torch.ones(len(codes)))

    def take(self, queries: slice) -> _Asked:
        """Some of the queries."""
        return _Asked(self.design[queries], self.column[queries], self.sign[queries])

    def changes(self, retrained: Retrained) -> Tensor:
        """How far the logits move when the head is trained on without a row, (queries, rows)."""
        changes = torch.einsum("qj,rjc->qrc", self.design, retrained.changes)
        column = self.column[:, None, None].expand(-1, len(retrained.rows), 1)
        return changes.gather(2, column)[:, :, 0]


def _require_trained(gradient: float, *, at_most: float) -> None:
    """An error where the gradient that is left is more than that of a head trained on the rows."""
    if gradient <= at_most:
        return
    raise ValueError(
        "the head was not trained on the rows and labels of this database: the gradient of its "
        f"loss there is {gradient:.2f} of the rows' own, and {MOST_GRADIENT_LEFT} at most for a "
        "head that was. Fit the index on the head's own training rows, or train the head on their "
        "activations until it converges."
    )


def _problem_of(fitted: Fitted, rows: Rows, sample_weight: ArrayLike) -> HeadProblem:
    """What the head was trained on, as far as its weights tell."""
    assert fitted.source.head is not None
    outcomes = fitted.outcomes
    weight, bias = fitted.source.head
    losses: tuple[Loss, ...] = ("squares",)
    if outcomes.classes is None:
        weight = weight[outcomes.output : outcomes.output + 1]
        bias = bias[outcomes.output : outcomes.output + 1]
        truth = rows.truth[:, None]
    elif outcomes.several:
        truth = rows.truth
        losses = ("sigmoid", "squares")
    elif outcomes.outputs == 1:
        truth = rows.truth[:, None]
        losses = ("sigmoid", "squares")
    else:
        truth = torch.nn.functional.one_hot(rows.truth, outcomes.count)
        losses = ("softmax", "sigmoid", "squares")

    return find_problem(
        rows.activations.to(torch.float64),
        weight.to(torch.float64),
        bias.to(torch.float64),
        truth.to(torch.float64),
        losses=losses,
        sample_weight=_read_weights(sample_weight, len(rows)),
    )


def _read_weights(sample_weight: ArrayLike, n_rows: int) -> Tensor:
    """One weight per row of the database; ones where none are given."""
    if sample_weight is None:
        return torch.ones(n_rows, dtype=torch.float64)
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (n_rows,):
        raise ValueError(
            f"sample_weight must be one weight per row of the database, {n_rows}, found shape "
            f"{weights.shape}."
        )
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError("sample_weight must hold finite weights of zero or more.")
    return torch.from_numpy(weights)


def labelled_rows(fitted: Fitted, name: str) -> Rows:
    """All rows of a database with labels, below a linear head; an error where it is another one."""
    if fitted.source.head is None:
        raise ValueError(
            f"{name} needs a linear head on the activations; there are layers between them here."
        )
    if not fitted.labelled:
        raise ValueError(f"{name} needs the labels of the database; pass labels to index.fit.")
    return fitted.backend.take(torch.arange(len(fitted.backend)))


def target_codes(outcomes: Outcomes, queries: Rows, target: TargetLike) -> Tensor:
    """Numbers of the classes asked for, one per query; the predicted ones without any."""
    if target is None:
        return queries.predicted
    if outcomes.classes is None:
        raise ValueError("a regression has no classes; leave target out.")
    targets = array_of(target, name="target")
    if targets.ndim and targets.shape != (len(queries),):
        raise ValueError(
            f"target has the shape {targets.shape}; pass one class, or one for each of "
            f"{len(queries)} rows."
        )
    targets = np.broadcast_to(targets, len(queries))
    one_class = replace(outcomes, several=False)
    return one_class.encode(targets, len(queries), argument="target")


def labels_at(
    outcomes: Outcomes, rows: Rows, indices: NDArray[np.int64], codes: Tensor
) -> AnyArray:
    """Labels of rows of the database.

    Where rows may have several classes, they say whether a row is of the class asked for.
    """
    labels = outcomes.decode(rows.truth)
    if not outcomes.several:
        chosen: AnyArray = labels[indices]
        return chosen
    is_of_class: NDArray[np.bool_] = labels[indices, codes[:, None].numpy()] > 0
    return is_of_class


def name_targets(outcomes: Outcomes, codes: Tensor, logits: Tensor) -> AnyArray:
    """The classes asked for as labels are written; values of a regression."""
    if outcomes.classes is None:
        return logits.numpy()
    names: AnyArray = outcomes.classes[codes.numpy()]
    return names
