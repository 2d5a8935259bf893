"""A zoo of small networks, each a body and a linear head, and wrappers that count what is asked of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Net(nn.Module):
    """`body` makes the representation, `head` is linear, `after` is what the user put behind it."""

    def __init__(self, body: nn.Module, head: nn.Linear, after: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.head = body, head
        self.after = after if after is not None else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.head(self.body(x)))


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Embedded(nn.Module):
    """The first two columns are codes of categories, the others are amounts; all in one table."""

    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(4, 3), nn.Embedding(3, 2)
        self.mix = nn.Sequential(
            nn.Linear(columns - 2 + 5, width), nn.ReLU(), nn.Linear(width, width), nn.SiLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        codes = x[:, :2].long()
        return self.mix(
            torch.cat([self.first(codes[:, 0]), self.second(codes[:, 1]), x[:, 2:]], dim=1)
        )


class Codes(nn.Module):
    """Every column is a code; floats are refused, as embeddings do."""

    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(4, 3) for _ in range(columns))
        self.mix = nn.Sequential(
            nn.Linear(3 * columns, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(torch.cat([table(x[:, k]) for k, table in enumerate(self.tables)], dim=1))


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "selu": nn.SELU,
}
KINDS = (
    *ACTIVATIONS,
    "residual",
    "batchnorm",
    "layernorm",
    "dropout",
    "embedding",
    "softmax",
    "sigmoid",
)


def net(
    kind: str,
    *,
    columns: int = 5,
    outputs: int = 1,
    width: int = 12,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Net:
    """A random network of some kind, in training mode as users often leave them."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        body, after = _body(kind, columns, width), None
        if kind == "softmax":
            after = nn.Softmax(dim=1) if outputs > 1 else nn.Sigmoid()
        if kind == "sigmoid":
            after = nn.Sigmoid()
        model = Net(body, nn.Linear(width, outputs), after)
        for name, parameter in model.named_parameters():
            if "weight" in name and parameter.ndim == 2:
                nn.init.normal_(parameter, std=1.2 / math.sqrt(parameter.shape[1]))
            if "bias" in name:
                nn.init.normal_(parameter, std=0.5)
        for part in model.modules():
            if isinstance(part, nn.BatchNorm1d):
                nn.init.normal_(part.running_mean, std=0.3)
                nn.init.uniform_(part.running_var, 0.5, 2.0)
    return model.to(dtype)


def _body(kind: str, columns: int, width: int) -> nn.Module:
    if kind in ACTIVATIONS:
        act = ACTIVATIONS[kind]
        return nn.Sequential(nn.Linear(columns, width), act(), nn.Linear(width, width), act())
    if kind == "residual":
        block = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        return nn.Sequential(nn.Linear(columns, width), Residual(block), nn.ReLU())
    if kind == "batchnorm":
        return nn.Sequential(
            nn.Linear(columns, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width)
        )
    if kind == "layernorm":
        return nn.Sequential(nn.Linear(columns, width), nn.LayerNorm(width), nn.GELU())
    if kind == "dropout":
        return nn.Sequential(
            nn.Linear(columns, width),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(width, width),
            nn.Tanh(),
        )
    if kind == "embedding":
        return Embedded(columns, width)
    if kind == "codes":
        return Codes(columns, width)
    return nn.Sequential(nn.Linear(columns, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())


def table(
    kind: str, rows: int, *, columns: int = 5, seed: int = 0, correlation: float = 0.3
) -> np.ndarray:
    """Rows that suit a network of some kind."""
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal((rows, 1))
    X = (
        math.sqrt(1 - correlation) * rng.standard_normal((rows, columns))
        + math.sqrt(correlation) * shared
    )
    if kind == "codes":
        return rng.choice(4, (rows, columns), p=[0.4, 0.3, 0.2, 0.1])
    if kind == "embedding":
        X[:, 0], X[:, 1] = rng.integers(0, 4, rows), rng.integers(0, 3, rows)
    return X


# ---------------------------------------------------------------------- networks known by construction


def from_layers(first: np.ndarray, bias: np.ndarray, last: np.ndarray, constant: np.ndarray) -> Net:
    """last · relu(first · x + bias) + constant."""
    body = nn.Sequential(nn.Linear(first.shape[1], first.shape[0]), nn.ReLU())
    head = nn.Linear(first.shape[0], last.shape[0])
    with torch.no_grad():
        body[0].weight.copy_(torch.tensor(first))
        body[0].bias.copy_(torch.tensor(bias))
        head.weight.copy_(torch.tensor(last))
        head.bias.copy_(torch.tensor(constant))
    return Net(body, head).double()


def ridge_functions(
    directions: list[np.ndarray],
    functions: list[Callable[[np.ndarray], np.ndarray]],
    *,
    reach: float = 8.0,
) -> Net:
    """Σ f_i(a_i · x), every f_i drawn through knots by hinges of its own: known which features meet where."""
    knots = np.linspace(-reach, reach, 33)
    first, bias, last = [], [], []
    constant = 0.0
    for direction, function in zip(directions, functions, strict=True):
        y = function(knots)
        slopes = np.diff(y) / np.diff(knots)
        constant += y[0]
        for knot, change in zip(knots[:-1], np.diff(slopes, prepend=0.0), strict=True):
            first.append(direction)
            bias.append(-knot)
            last.append(change)
    return from_layers(
        np.array(first, dtype=float), np.array(bias), np.array([last]), np.array([constant])
    )


def additive(columns: int = 4) -> Net:
    """sin, square, absolute value, tanh of single features: no two meet in any unit."""
    eye = np.eye(columns)
    functions = [np.sin, lambda x: 0.3 * x**2, np.abs, np.tanh]
    return ridge_functions(list(eye), [functions[i % 4] for i in range(columns)])


def one_product(columns: int = 5, strength: float = 1.0) -> Net:
    """Functions of single features plus x0 · x1 = ((x0 + x1)² − (x0 − x1)²) / 4."""
    eye = np.eye(columns)
    singles = [np.sin, np.tanh, np.abs, lambda x: 0.3 * x**2, np.cos]
    return ridge_functions(
        [*eye, eye[0] + eye[1], eye[0] - eye[1]],
        [
            *(singles[i % 5] for i in range(columns)),
            lambda t: strength * t**2 / 4,
            lambda t: -strength * t**2 / 4,
        ],
    )


# ---------------------------------------------------------------------- what is asked of a network


class Counted(nn.Module):
    """Counts forward calls and rows, and keeps the largest call."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        # In a list, which all that stand for this module share.
        self._sizes: list[int] = []

    def forget(self) -> None:
        self._sizes.clear()

    @property
    def calls(self) -> int:
        return len(self._sizes)

    @property
    def rows(self) -> int:
        return sum(self._sizes)

    @property
    def largest(self) -> int:
        return max(self._sizes, default=0)

    def forward(self, x: Tensor) -> Tensor:
        self._sizes.append(len(x))
        return self.inner(x)


class Passes:
    """Batches that can be read again; counts how often they were."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches, self.passes = batches, 0

    def __iter__(self) -> Any:
        self.passes += 1
        return iter(self.batches)
