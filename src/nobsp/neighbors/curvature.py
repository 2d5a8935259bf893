"""The loss that a linear head was trained with, and its curvature at the head's weights.

A head with weights θ minimises Σ_i s_i ℓ(x_iᵀθ, y_i) + ½ Σ_j λ_j ‖θ_j‖², x_i being the activations
of a row and a constant. What matters for leaving rows out is its gradient, which vanishes where the
head was trained on these rows, and its Hessian, which is factorised once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

Loss = Literal["softmax", "sigmoid", "squares"]

# Numbers of a softmax's Hessian are the square of its weights: 8,192 of them take half a gigabyte.
MOST_WEIGHTS = 8192
# Added to the diagonal of a Hessian, as a share of its mean: without weight decay some directions
# have no curvature.
_JITTER = 1e-10
# A row of leverage one cannot be left out: nothing else says anything about its direction.
_LEAST_LEFT = 1e-6


@dataclass(frozen=True, eq=False)
class HeadProblem:
    """A loss on rows, with what the head at its weights has still to learn of them.

    Attributes:
        loss: Which loss.
        design: Activations with a constant column behind them, shape (rows, width + 1).
        weights: Of the head, the bias in the last row, shape (width + 1, outputs).
        residuals: Minus the derivative of each row's loss by its logits, shape (rows, outputs).
        logits: Of the rows, shape (rows, outputs).
        sample_weight: How much each row counts, shape (rows,).
        decay: λ of every row of the weights, shape (width + 1,).
    """

    loss: Loss
    design: Tensor
    weights: Tensor
    residuals: Tensor
    logits: Tensor
    sample_weight: Tensor
    decay: Tensor

    @property
    def weighted_residuals(self) -> Tensor:
        """Residuals, each times the weight of its row."""
        return self.residuals * self.sample_weight[:, None]

    @property
    def descent(self) -> Tensor:
        """Minus the gradient at the head's weights, shape (width + 1, outputs).

        It is zero for a head that was trained on this very problem.
        """
        return self.design.T @ self.weighted_residuals - self.decay[:, None] * self.weights

    @property
    def objective(self) -> float:
        """The loss of all rows, with what the weights cost."""
        truth = self.residuals + _expected(self.loss, self.logits)
        if self.loss == "softmax":
            losses = self.logits.logsumexp(1) - (truth * self.logits).sum(1)
        elif self.loss == "sigmoid":
            losses = (torch.nn.functional.softplus(self.logits) - truth * self.logits).sum(1)
        else:
            losses = (truth - self.logits).square().sum(1) / 2
        penalty = (self.decay[:, None] * self.weights.square()).sum() / 2
        return float((self.sample_weight * losses).sum() + penalty)

    def at(self, weights: Tensor) -> HeadProblem:
        """The same at other weights."""
        logits = self.design @ weights
        truth = self.residuals + _expected(self.loss, self.logits)
        residuals = truth - _expected(self.loss, logits)
        return replace(self, weights=weights, logits=logits, residuals=residuals)

    def without(self, row: int) -> HeadProblem:
        """The same with a row that does not count."""
        sample_weight = self.sample_weight.clone()
        sample_weight[row] = 0.0
        return replace(self, sample_weight=sample_weight)

    @property
    def relative_descent(self) -> float:
        """Squared size of the gradient, as a share of the sum of the rows' own.

        It is measured in units of the columns' spreads.
        """
        spread = self.design.std(0)
        unit = torch.where(spread > 0, 1 / spread.clamp_min(1e-300), 1.0)
        centre = self.design.mean(0) * (spread > 0)
        descent = self.descent - centre[:, None] * self.descent[-1]
        scaled_rows = (self.design - centre) * unit

        total = (descent * unit[:, None]).square().sum()
        single = (scaled_rows.square().sum(1) * self.weighted_residuals.square().sum(1)).sum()
        return float(total / single.clamp_min(1e-300))


def find_problem(
    activations: Tensor,
    weight: Tensor,
    bias: Tensor,
    truth: Tensor,
    *,
    losses: tuple[Loss, ...],
    sample_weight: Tensor,
) -> HeadProblem:
    """The loss and weight decay by which the gradient at a head's weights is the smallest.

    Args:
        activations: Shape (rows, width), float64.
        weight: Shape (outputs, width), float64.
        bias: Shape (outputs,), float64.
        truth: 0 and 1 for each output, or values; shape (rows, outputs).
        losses: Which to try.
        sample_weight: How much each row counts.
    """
    problems = _try_problems(activations, weight, bias, truth, losses, sample_weight)
    return min(problems, key=lambda problem: problem.relative_descent)


def _try_problems(
    activations: Tensor,
    weight: Tensor,
    bias: Tensor,
    truth: Tensor,
    losses: tuple[Loss, ...],
    sample_weight: Tensor,
) -> Iterator[HeadProblem]:
    constant = torch.ones(len(activations), 1, dtype=torch.float64)
    design = torch.cat([activations, constant], dim=1)
    weights = torch.cat([weight.T, bias[None]])
    logits = design @ weights
    is_binary = bool(((truth == 0) | (truth == 1)).all())

    for loss in losses:
        # Least squares on classes are written with 0 and 1, or with −1 and 1.
        codings = [truth, 2 * truth - 1] if loss == "squares" and is_binary else [truth]
        for coded in codings:
            residuals = coded - _expected(loss, logits)
            pull = design.T @ (residuals * sample_weight[:, None])
            size = weight.square().sum().clamp_min(1e-300)
            strength = float(((pull[:-1] * weights[:-1]).sum() / size).clamp_min(0))

            for bias_strength in (0.0, strength):
                decay = torch.full((len(weights),), strength, dtype=torch.float64)
                decay[-1] = bias_strength
                yield HeadProblem(
                    loss=loss,
                    design=design,
                    weights=weights,
                    residuals=residuals,
                    logits=logits,
                    sample_weight=sample_weight,
                    decay=decay,
                )


def _expected(loss: Loss, logits: Tensor) -> Tensor:
    """What a head expects of each output."""
    if loss == "softmax":
        return logits.softmax(1)
    if loss == "sigmoid":
        return logits.sigmoid()
    return logits


class Curvature(ABC):
    """The inverse of a problem's Hessian H."""

    @abstractmethod
    def solve(self, descent: Tensor) -> Tensor:
        """H⁻¹ times a matrix of the shape of the weights."""

    @abstractmethod
    def directions(self, queries: Tensor, outputs: Tensor) -> Tensor:
        """H⁻¹ times the derivative of one logit per query, shape (queries, outputs, width + 1)."""

    @abstractmethod
    def left_out_residuals(self) -> Tensor:
        """Weighted residuals, each row's own curvature taken out, shape (rows, outputs).

        With these, H⁻¹ acts on a row's gradient as if it were without the row's own curvature.
        """

    @abstractmethod
    def single_gains(self) -> Tensor:
        """g_iᵀ H⁻¹ g_i of each row's own gradient, shape (rows,)."""


class SeparateCurvature(Curvature):
    """Of losses that are a sum over outputs: each output has a Hessian of its own."""

    def __init__(self, problem: HeadProblem) -> None:
        self._residuals = problem.weighted_residuals
        self._bend = _bend_of_outputs(problem)

        design = problem.design
        inverses = []
        leverages = []
        for hessian in _separate_hessians(problem):
            inverse = _invert(hessian)
            inverses.append(inverse)
            leverages.append(((design @ inverse) * design).sum(1))
        self._inverse = torch.stack(inverses)
        self._leverage = torch.stack(leverages, dim=1)

    def solve(self, descent: Tensor) -> Tensor:
        """H⁻¹ times a matrix of the shape of the weights."""
        return torch.einsum("cjk,kc->jc", self._inverse, descent)

    def directions(self, queries: Tensor, outputs: Tensor) -> Tensor:
        """H⁻¹ times the derivative of one logit of each query."""
        count = len(self._inverse)
        result = torch.zeros(len(queries), count, queries.shape[1], dtype=torch.float64)
        for output in torch.unique(outputs).tolist():
            chosen = outputs == output
            result[chosen, output] = queries[chosen] @ self._inverse[output]
        return result

    def left_out_residuals(self) -> Tensor:
        """Weighted residuals, with the row's own curvature taken out."""
        left = (1 - self._bend * self._leverage).clamp_min(_LEAST_LEFT)
        return self._residuals / left

    def single_gains(self) -> Tensor:
        """g_iᵀ H⁻¹ g_i of each row's own gradient."""
        return (self._residuals.square() * self._leverage).sum(1)


class SoftmaxCurvature(Curvature):
    """Of a softmax, which ties the outputs together: one Hessian of all weights."""

    def __init__(self, problem: HeadProblem) -> None:
        self._residuals = problem.weighted_residuals
        self._chances = problem.logits.softmax(1)
        self._sample_weight = problem.sample_weight

        design = problem.design
        width = design.shape[1]
        outputs = problem.logits.shape[1]
        hessian = _softmax_hessian(problem)
        self._inverse = _invert(hessian).reshape(outputs, width, outputs, width)

        # x_iᵀ H⁻¹ x_i, a number for each pair of outputs.
        leverage = torch.empty(len(design), outputs, outputs, dtype=torch.float64)
        for first in range(outputs):
            for second in range(first, outputs):
                values = ((design @ self._inverse[first, :, second]) * design).sum(1)
                leverage[:, first, second] = values
                leverage[:, second, first] = values
        self._leverage = leverage

    def solve(self, descent: Tensor) -> Tensor:
        """H⁻¹ times a matrix of the shape of the weights."""
        return torch.einsum("cjdk,kd->jc", self._inverse, descent)

    def directions(self, queries: Tensor, outputs: Tensor) -> Tensor:
        """H⁻¹ times the derivative of one logit of each query."""
        shape = (len(queries), *self._inverse.shape[:2])
        result = torch.empty(shape, dtype=torch.float64)
        for output in torch.unique(outputs).tolist():
            chosen = outputs == output
            result[chosen] = torch.einsum("qj,jdk->qdk", queries[chosen], self._inverse[output])
        return result

    def left_out_residuals(self) -> Tensor:
        """Weighted residuals, with the row's own curvature taken out."""
        outputs = self._chances.shape[1]
        chances = self._chances
        bends = torch.diag_embed(chances) - chances[:, :, None] * chances[:, None, :]
        bends = bends * self._sample_weight[:, None, None]
        system = torch.eye(outputs, dtype=torch.float64) - bends @ self._leverage
        solved: Tensor = torch.linalg.solve(system, self._residuals[:, :, None])
        return solved[:, :, 0]

    def single_gains(self) -> Tensor:
        """g_iᵀ H⁻¹ g_i of each row's own gradient."""
        return torch.einsum("nc,ncd,nd->n", self._residuals, self._leverage, self._residuals)


def newton_step(problem: HeadProblem) -> Tensor:
    """The change of a problem's weights to its minimum, if its Hessian stayed as it is."""
    descent = problem.descent
    if problem.loss == "softmax":
        # Outputs come first in the Hessian.
        step = _solve(_softmax_hessian(problem), descent.T.reshape(-1, 1))
        return step.reshape(descent.T.shape).T
    columns = [
        _solve(hessian, descent[:, output, None])
        for output, hessian in enumerate(_separate_hessians(problem))
    ]
    return torch.cat(columns, dim=1)


def _bend_of_outputs(problem: HeadProblem) -> Tensor:
    """Second derivative of each row's loss by each of its logits.

    It is for losses that are a sum over outputs.
    """
    bend = torch.ones_like(problem.logits)
    if problem.loss == "sigmoid":
        chances = problem.logits.sigmoid()
        bend = chances * (1 - chances)
    return bend * problem.sample_weight[:, None]


def _separate_hessians(problem: HeadProblem) -> Iterator[Tensor]:
    """The Hessian of each output, for losses that are a sum over outputs."""
    design = problem.design
    for column in _bend_of_outputs(problem).T:
        yield design.T @ (design * column[:, None]) + torch.diag(problem.decay)


def _softmax_hessian(problem: HeadProblem) -> Tensor:
    """The Hessian of all weights, those of the first output first."""
    design = problem.design
    chances = problem.logits.softmax(1)
    width = design.shape[1]
    outputs = chances.shape[1]
    hessian = torch.empty(outputs, width, outputs, width, dtype=torch.float64)
    for first in range(outputs):
        for second in range(first, outputs):
            is_same = float(first == second)
            bend = problem.sample_weight * chances[:, first] * (is_same - chances[:, second])
            block = design.T @ (design * bend[:, None])
            if first == second:
                block = block + torch.diag(problem.decay)
            hessian[first, :, second] = block
            hessian[second, :, first] = block

    # A softmax does not see what all its logits share, and no row pulls in that direction. It gets
    # a curvature of its own, as the inverse would be without bound there.
    shared = hessian.diagonal(dim1=0, dim2=2).diagonal(dim1=0, dim2=1).mean()
    hessian += shared / outputs * torch.eye(width, dtype=torch.float64)[None, :, None, :]
    return hessian.reshape(outputs * width, outputs * width)


def measure_curvature(problem: HeadProblem) -> Curvature:
    """The curvature of a problem; an error where a softmax has too many weights."""
    if problem.loss != "softmax":
        return SeparateCurvature(problem)
    if problem.weights.numel() > MOST_WEIGHTS:
        raise ValueError(
            f"the head has {problem.weights.numel():,} weights, and influence takes a Hessian with "
            f"the square of them; at most {MOST_WEIGHTS:,} are possible. Use "
            "index.representer_shares(X) instead."
        )
    return SoftmaxCurvature(problem)


def gradient_left(problem: HeadProblem, curvature: Curvature) -> float:
    """How far a head is from having been trained on the rows: gᵀH⁻¹g / Σ_i g_iᵀH⁻¹g_i.

    Zero for a head that minimises the loss on these rows; about one for a head trained on other
    rows of the same kind; more for any other head.
    """
    descent = problem.descent
    total = (descent * curvature.solve(descent)).sum()
    single = curvature.single_gains().sum().clamp_min(1e-300)
    return float((total / single).clamp_min(0))


def _invert(hessian: Tensor) -> Tensor:
    """The inverse by one Cholesky factorisation."""
    factor = _factorise(hessian)
    if factor is None:
        pseudo_inverse: Tensor = torch.linalg.pinv(hessian, hermitian=True)
        return pseudo_inverse
    return torch.cholesky_inverse(factor)


def _solve(hessian: Tensor, columns: Tensor) -> Tensor:
    """The inverse times some columns."""
    factor = _factorise(hessian)
    if factor is None:
        solved: Tensor = torch.linalg.pinv(hessian, hermitian=True) @ columns
        return solved
    return torch.cholesky_solve(columns, factor)


def _factorise(hessian: Tensor) -> Tensor | None:
    """The Cholesky factor; None where some direction has no curvature at all."""
    size = hessian.diagonal().mean().clamp_min(1e-300)
    lifted = hessian + _JITTER * size * torch.eye(len(hessian), dtype=torch.float64)
    factor, failed = torch.linalg.cholesky_ex(lifted)
    return None if int(failed) else factor
