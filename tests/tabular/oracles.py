"""The method on raw rows, written from its formulas: no moments, no bases, no batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch

from nobsp.tabular.functions import Functions
from nobsp.tabular.lookup import NumberAxis
from tests.tabular.nets import Codes, Net

Array = np.ndarray
Subset = tuple[int, ...]


def singles(count: int) -> list[Subset]:
    return [(k,) for k in range(count)]


def all_subsets(term: Subset) -> list[Subset]:
    return [subset for size in range(len(term) + 1) for subset in combinations(term, size)]


def centred(rows: Array) -> Array:
    """Rows less their mean, which is taken in extended precision."""
    return (rows - rows.astype(np.longdouble).mean(0)).astype(np.float64)


class Network:
    """A network as the formulas see it: z(x), W and b, features as groups of columns, and a baseline."""

    def __init__(
        self,
        net: Net,
        baseline: Array,
        groups: Sequence[Sequence[int]] | None = None,
        *,
        piece: int = 0,
    ):
        self.net, self.piece = net, piece
        self.dtype = next(net.parameters()).dtype
        self.baseline = np.asarray(baseline, dtype=np.float64)
        self.groups = (
            [list(g) for g in groups]
            if groups is not None
            else [[k] for k in range(len(self.baseline))]
        )
        self.weight = net.head.weight.detach().double().numpy()
        self.bias = net.head.bias.detach().double().numpy()

    def z(self, X: Array) -> Array:
        """Representation, by the body alone, in pieces of `piece` rows (all at once by default)."""
        training = {part: part.training for part in self.net.modules()}
        self.net.eval()
        with torch.no_grad():
            x = torch.tensor(X).to(torch.int64 if isinstance(self.net.body, Codes) else self.dtype)
            found = (
                torch.cat([self.net.body(part) for part in x.split(self.piece or len(x))])
                .double()
                .numpy()
            )
        for part, flag in training.items():
            part.training = flag
        return found

    def logits(self, X: Array) -> Array:
        return self.z(X) @ self.weight.T + self.bias

    def columns(self, term: Subset) -> list[int]:
        return [column for k in term for column in self.groups[k]]

    def isolated(self, term: Subset, X: Array) -> Array:
        inputs = np.tile(self.baseline, (len(X), 1))
        inputs[:, self.columns(term)] = X[:, self.columns(term)]
        return self.z(inputs)

    def reference(self, term: Subset, X: Array) -> Array:
        inputs = X.copy()
        inputs[:, self.columns(term)] = self.baseline[self.columns(term)]
        return self.z(inputs)

    def pure(self, term: Subset, X: Array) -> Array:
        """Δ_S(x) = Σ_{U⊆S} (−1)^{|S|−|U|} z_U(x), the empty set included."""
        return sum(
            (-1) ** (len(term) - len(subset)) * self.isolated(subset, X)
            for subset in all_subsets(term)
        )


# ---------------------------------------------------------------------- Algorithm 1


def algorithm_1(Z_k: Array, Z_ref: Array, y: Array, ridge: float) -> Array:
    """Line by line; the arguments are centred."""
    eye = np.eye(Z_ref.shape[1])
    A = np.linalg.solve(Z_ref.T @ Z_ref + ridge * eye, Z_ref.T)
    y_res = y - Z_ref @ (A @ y)
    Z_res = Z_k - Z_ref @ (A @ Z_k)
    return np.linalg.solve(Z_res.T @ Z_res + ridge * eye, Z_res.T @ y_res)


class Published:
    """The paper's decomposition calibrated on X."""

    def __init__(self, network: Network, X: Array, ridge: float = 1e-4) -> None:
        self.network, self.X, self.ridge = network, X, ridge
        self.y = centred(network.logits(X))

    def coefficients(self, term: Subset) -> Array:
        target, reference = (
            self.network.isolated(term, self.X),
            self.network.reference(term, self.X),
        )
        return algorithm_1(centred(target), centred(reference), self.y, self.ridge)

    def projection(self, term: Subset, X: Array) -> Array:
        """P_{S/(S)} y, out of sample: (z_S(x) − mean of z_S) β_S."""
        mean = self.network.isolated(term, self.X).mean(0)
        return (self.network.isolated(term, X) - mean) @ self.coefficients(term)

    def term(self, term: Subset, X: Array) -> Array:
        """A.14 and A.15: the projection less every lower-order term."""
        lower = [subset for subset in all_subsets(term) if 0 < len(subset) < len(term)]
        return self.projection(term, X) - sum(
            (self.term(subset, X) for subset in lower), np.zeros(())
        )


# ---------------------------------------------------------------------- all terms at once


class Background:
    """Representations averaged over background rows, by brute force; the network is a double-precision `Net`."""

    def __init__(self, net: Net, background: Array) -> None:
        self.network, self.rows = (
            Network(net, background[0]),
            np.asarray(background, dtype=np.float64),
        )
        self.weight = self.network.weight.T

    def mean(self, term: Subset, points: Array) -> Array:
        """z̄_S at rows of values of the term's columns: 1/K Σ_i z(x_S, b_i outside S)."""
        found = []
        for point in np.atleast_2d(points):
            rows = self.rows.copy()
            rows[:, list(term)] = point
            found.append(self.network.z(rows).mean(0))
        return np.array(found)


def share_explained(residual: Array, outputs: Array) -> Array:
    return 1 - (residual**2).mean(0) / outputs.var(0)


def error(found: Array, expected: Array, spread: Array) -> float:
    """Largest difference as a share of each output's spread."""
    return float((np.abs(found - expected) / spread).max())


def points_of(functions: Functions, feature: int) -> tuple[Any, Array]:
    """The table behind a feature: knots (or levels) and the contributions there, (points, outputs)."""
    [table] = [table for table in functions.tables if table.features == (feature,)]
    [axis] = table.axes
    return axis.knots if isinstance(axis, NumberAxis) else axis.levels, table.values
