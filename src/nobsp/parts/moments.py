"""What a layer reads and what is wanted of it, added up over rows, and the weights that follow.

With h the columns that a layer reads, W the weights it has and u the outputs that are wanted of it,
the columns S that stay take over by

    min over δ of  E‖u − h_S (W_S + δ)‖² + λ ‖δ‖²,

means apart. The ridge λ holds weights where they are. Too little of it costs nothing as long as
nothing changes, and lets weights grow in directions in which h hardly varies: the loss then bends
so sharply that the first steps of training throw the network out of its minimum. So λ is the
largest of a few for which rows that were not fitted to are told nearly as well as by the smallest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from nobsp.parts.removal import RIDGE, with_ridge

# Ridges that are tried, as shares of the mean of the diagonal of G, the firmest first. Firmer ones
# cost accuracy, and training is no safer with them.
RIDGES = (3e-2, 1e-2, 3e-3, 1e-3, 3e-4, RIDGE)
# How much larger than that of the smallest ridge an error on held-out rows may be.
_NEARLY = 0.1


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over rows of h, less a shift, and of e, what is wanted less what the layer gives."""

    rows: int
    columns: Tensor  # Σ h
    products: Tensor  # Σ h hᵀ
    errors: Tensor  # Σ e
    crossed: Tensor  # Σ h eᵀ
    squares: Tensor  # Σ e eᵀ

    def __add__(self, more: Sums) -> Sums:
        return Sums(
            rows=self.rows + more.rows,
            columns=self.columns + more.columns,
            products=self.products + more.products,
            errors=self.errors + more.errors,
            crossed=self.crossed + more.crossed,
            squares=self.squares + more.squares,
        )

    @cached_property
    def gram(self) -> Tensor:
        """Centred products of the columns, per row."""
        return _centred(self.products, self.columns, self.columns, self.rows)

    @cached_property
    def centred_crossed(self) -> Tensor:
        """Centred products of columns and errors, per row."""
        return _centred(self.crossed, self.columns, self.errors, self.rows)

    @cached_property
    def centred_squares(self) -> Tensor:
        """Centred products of errors, per row."""
        return _centred(self.squares, self.errors, self.errors, self.rows)


def _centred(products: Tensor, first: Tensor, second: Tensor, rows: int) -> Tensor:
    # In place, and one copy only: of the widest layers it takes hundreds of megabytes.
    return (products / rows).addr_(first, second, alpha=-1 / rows**2)


@dataclass(eq=False)
class LayerMoments:
    """Sums over rows of a layer, in two halves so that one can judge what the other gave."""

    matrix: Tensor  # W of the layer as it is
    towards_whole: bool  # whether outputs of the whole network are wanted, or the layer's own
    _halves: dict[int, Sums] = field(default_factory=dict)
    _shift: Tensor | None = None

    def add(self, columns: Tensor, outputs: Tensor) -> None:
        """Rows of a batch, (rows, positions, columns) and (rows, positions, outputs)."""
        columns = in_single(columns)
        outputs = in_single(outputs)
        if self._shift is None:
            self._shift = columns.flatten(0, 1).mean(0)
        middle = (len(columns) + 1) // 2
        for half, rows in enumerate((slice(None, middle), slice(middle, None))):
            if not len(columns[rows]):
                continue
            more = self._sums(
                columns[rows].flatten(0, 1), outputs[rows].flatten(0, 1), shift=self._shift
            )
            known = self._halves.get(half)
            self._halves[half] = more if known is None else known + more

    def _sums(self, columns: Tensor, outputs: Tensor, *, shift: Tensor) -> Sums:
        if self.towards_whole:
            errors = outputs - columns @ self.matrix.to(columns.dtype)
        else:
            errors = torch.zeros_like(outputs)
        shifted = columns - shift
        return Sums(
            rows=len(columns),
            columns=shifted.sum(0).double(),
            products=(shifted.T @ shifted).double(),
            errors=errors.sum(0).double(),
            crossed=(shifted.T @ errors).double(),
            squares=(errors.T @ errors).double(),
        )

    @cached_property
    def total(self) -> Sums:
        """Of all rows; for when all were added."""
        first, *others = self._halves.values()
        return sum(others, start=first)

    @property
    def gram(self) -> Tensor:
        """Centred products of the columns, per row."""
        return self.total.gram

    @property
    def mean(self) -> Tensor:
        """Means of the columns."""
        assert self._shift is not None, "rows were added"
        return self._shift + self.total.columns / self.total.rows

    @property
    def wanted(self) -> Tensor:
        """Means of the outputs that are wanted."""
        return self.mean @ self.matrix + self.total.errors / self.total.rows

    def fitted(self, ridge: float) -> Tensor:
        """W moved towards the outputs that are wanted; a ridge holds it where it is."""
        if not self.towards_whole:
            return self.matrix
        step: Tensor = torch.linalg.solve(with_ridge(self.gram, ridge), self.total.centred_crossed)
        return self.matrix + step

    def take_over(
        self, stays: Tensor, *, metric: Tensor | None = None, least_ridge: float = RIDGE
    ) -> TakeOver:
        """The weights with which the columns that stay do the work of all.

        Args:
            stays: The columns that stay.
            metric: Errors e of the outputs cost eᵀ M e, with M this matrix; their squares by
                default.
            least_ridge: A bound for the ridge, as a share of the mean of the diagonal of G.
        """
        task = _Task.of(self.total, self.matrix, stays)
        halves = [_Task.of(half, self.matrix, stays) for half in self._halves.values()]
        ridge = max(least_ridge, _choose_ridge(halves, metric))
        return TakeOver(self.matrix[stays] + task.step(ridge), ridge)


def in_single(values: Tensor) -> Tensor:
    """Numbers in single precision at least.

    Sums in half precision would be nothing but rounding.
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))


@dataclass(frozen=True, eq=False)
class TakeOver:
    """Weights of the columns that stay, (columns, outputs), and the ridge that held them."""

    matrix: Tensor
    ridge: float


@dataclass(frozen=True, eq=False)
class _Task:
    """What δ has to make up for: t = e + h_gone W_gone.

    This is what is wanted less what the columns that stay give now.
    """

    gram: Tensor  # of the columns that stay
    crossed: Tensor  # of these and t
    squares: Tensor  # of t

    @classmethod
    def of(cls, sums: Sums, matrix: Tensor, stays: Tensor) -> _Task:
        gone = torch.ones(len(matrix), dtype=torch.bool)
        gone[stays] = False
        goes = gone.nonzero().squeeze(1)
        lost = matrix[goes]
        # Σ t tᵀ = Σ e eᵀ + both mixed terms + W_goneᵀ G_gone W_gone.
        mixed = sums.centred_crossed[goes].T @ lost
        own = lost.T @ (sums.gram[goes[:, None], goes] @ lost)
        return cls(
            gram=sums.gram[stays[:, None], stays],
            crossed=sums.centred_crossed[stays] + sums.gram[stays[:, None], goes] @ lost,
            squares=sums.centred_squares + mixed + mixed.T + own,
        )

    def step(self, ridge: float) -> Tensor:
        """δ."""
        factor, failed = torch.linalg.cholesky_ex(with_ridge(self.gram, ridge))
        if failed:
            # Rounding has made G indefinite.
            solved: Tensor = torch.linalg.solve(with_ridge(self.gram, ridge), self.crossed)
            return solved
        return torch.cholesky_solve(self.crossed, factor)

    def error(self, step: Tensor, metric: Tensor | None) -> float:
        """E (t − h δ)ᵀ M (t − h δ)."""
        weighed = step if metric is None else step @ metric
        squares = self.squares if metric is None else self.squares * metric
        total = squares.diagonal().sum() if metric is None else squares.sum()
        return float(total + (weighed * (self.gram @ step - 2 * self.crossed)).sum())


def _choose_ridge(halves: Sequence[_Task], metric: Tensor | None) -> float:
    """The largest ridge that tells each half from the other nearly as well as the smallest does."""
    if len(halves) < 2:
        return RIDGE
    first, second = halves

    def error_with(ridge: float) -> float:
        return first.error(second.step(ridge), metric) + second.error(first.step(ridge), metric)

    allowed = (1 + _NEARLY) * error_with(RIDGE)
    return next((ridge for ridge in RIDGES[:-1] if error_with(ridge) <= allowed), RIDGE)
