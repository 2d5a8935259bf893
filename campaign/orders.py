"""The same data in another order, precision, batch size or number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

import nobsp
from campaign.outcome import Outcome, defect, right
from campaign.part import Part, generator
from campaign.subjects import seeded

# Stated bounds, as shares of the largest contribution.
ROWS = 1e-6  # the same rows in another order
COLUMNS = 1e-6  # columns in another order
SINGLE = 1e-3  # a network in single precision beside the same in double
BATCHES = 1e-6
THREADS = 1e-6


class BoundError(Exception):
    """A stated bound does not hold."""


def _network(rng: np.random.Generator, columns: int = 4) -> nn.Module:
    with seeded(int(rng.integers(1000))):
        layers = (nn.Linear(columns, 16), nn.Tanh(), nn.Linear(16, 2))
        return nn.Sequential(*layers).double()


def _table(rng: np.random.Generator, columns: int = 4) -> np.ndarray:
    X = rng.normal(size=(200, columns))
    X[:, 1] += 0.5 * X[:, 0]
    return X


def _values(model: nn.Module, X: Any, at: Any, **options: Any) -> np.ndarray:
    values: np.ndarray = nobsp.NObSP(model, interactions=0, **options).fit(X)(at).values
    return values


def _require_close(found: np.ndarray, expected: np.ndarray, bound: float) -> None:
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    if not difference <= bound:
        raise BoundError(f"values differ by {difference:.2g} of the largest, more than {bound:g}")


def _rows(rng: np.random.Generator) -> str:
    """Explaining rows in another order; each keeps its account."""
    model = _network(rng)
    X = _table(rng)
    order = rng.permutation(len(X))
    explainer = nobsp.NObSP(model, interactions=0).fit(X)
    _require_close(explainer(X[order]).values, explainer(X).values[order], ROWS)
    return "rows of a call permuted"


def _calibration_rows(rng: np.random.Generator) -> str:
    """Calibrating on rows in another order."""
    model = _network(rng)
    X = _table(rng)
    order = rng.permutation(len(X))
    _require_close(_values(model, X[order], X[:20]), _values(model, X, X[:20]), ROWS)
    return "calibration rows permuted"


class _Reordered(nn.Module):
    def __init__(self, inner: nn.Module, order: np.ndarray) -> None:
        super().__init__()
        self.inner = inner
        self.back = torch.from_numpy(np.argsort(order))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.inner(x[:, self.back])
        return answer


def _columns(rng: np.random.Generator) -> str:
    model = _network(rng)
    X = _table(rng)
    order = rng.permutation(X.shape[1])
    expected = _values(model, X, X[:20])
    found = _values(_Reordered(model, order), X[:, order], X[:20][:, order])
    _require_close(found[:, np.argsort(order)], expected, COLUMNS)
    return f"columns {order.tolist()}"


def _columns_of_pairs(rng: np.random.Generator) -> str:
    """Columns in another order where interactions are chosen: the same terms, and the same values."""
    model = _network(rng)
    X = _table(rng)
    order = rng.permutation(X.shape[1])
    names = np.array(["a", "b", "c", "d"])
    plain = nobsp.NObSP(model, features=names.tolist()).fit(X)(X[:20])
    reordered = _Reordered(model, order)
    other = nobsp.NObSP(reordered, features=names[order].tolist()).fit(X[:, order])(
        X[:20][:, order]
    )
    positions = {frozenset(term): position for position, term in enumerate(other.terms)}
    if positions.keys() != {frozenset(term) for term in plain.terms}:
        raise BoundError("other interactions were chosen")
    places = [positions[frozenset(term)] for term in plain.terms]
    _require_close(other.values[:, places], plain.values, COLUMNS)
    return f"columns {order.tolist()}, with interactions"


def _precision(rng: np.random.Generator) -> str:
    model = _network(rng)
    X = _table(rng).astype(np.float32).astype(np.float64)
    expected = _values(model, X, X[:20])
    _require_close(_values(model.float(), X, X[:20]), expected, SINGLE)
    return "single and double precision"


def _batches(rng: np.random.Generator) -> str:
    model = _network(rng)
    X = _table(rng)
    size = int(rng.integers(1, 200))
    found = _values(model, X, X[:20], batch_size=size)
    _require_close(found, _values(model, X, X[:20]), BATCHES)
    return f"batches of {size}"


def _stream(rng: np.random.Generator) -> str:
    model = _network(rng)
    X = _table(rng)
    cuts = np.sort(rng.choice(np.arange(1, len(X)), 3, replace=False))
    found = _values(model, np.split(X, cuts), X[:20])
    _require_close(found, _values(model, X, X[:20]), BATCHES)
    return f"a stream cut at {cuts.tolist()}"


@contextmanager
def _with_threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _threads(rng: np.random.Generator) -> str:
    model = _network(rng)
    X = _table(rng)
    number = int(rng.integers(2, 5))
    expected = _values(model, X, X[:20])
    with _with_threads(number):
        _require_close(_values(model, X, X[:20]), expected, THREADS)
    return f"{number} threads"


def _index(rng: np.random.Generator) -> str:
    """Rows of an index in another order: the same neighbours."""
    model = _network(rng)
    X = _table(rng)
    order = rng.permutation(len(X))
    explainer = nobsp.NObSP(model, interactions=0).fit(X)
    plain = nobsp.ContributionIndex(explainer).fit(X).query(X[:10], 4)
    other = nobsp.ContributionIndex(explainer).fit(X[order]).query(X[:10], 4)
    if not np.array_equal(order[other.indices], plain.indices):
        raise BoundError("other neighbours")
    _require_close(other.distances + 1.0, plain.distances + 1.0, ROWS)
    return "rows of an index permuted"


CHECKS: tuple[Callable[[np.random.Generator], str], ...] = (
    _rows,
    _calibration_rows,
    _columns,
    _columns_of_pairs,
    _precision,
    _batches,
    _stream,
    _threads,
    _index,
)


def run(seed: int, case: int) -> Outcome:
    """One comparison."""
    rng = generator(seed, "orders", case)
    check = CHECKS[case % len(CHECKS)]
    text = check.__name__.strip("_").replace("_", " ")
    try:
        return right(check(rng))
    except BoundError as error:
        return defect(text, error)


PART = Part(
    name="orders",
    tried="rows and columns permuted, single and double precision, batch sizes, streams, threads",
    must="equal to the bounds stated below",
    count=800,
    sample=9,
    run=run,
    seconds=180.0,
)
