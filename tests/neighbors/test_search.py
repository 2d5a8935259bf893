"""Exact search: what blocks might lose is not lost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn

from nobsp.neighbors import ContributionIndex, search
from nobsp.neighbors.evidence import Rows
from nobsp.neighbors.search import Evidence, Exact, Space
from tests.tolerances import SINGLE, assert_same_to_rounding


def found(
    database: Tensor, queries: Tensor, k: int, leave: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Neighbours of vectors as the exact backend finds them."""
    width = database.shape[1]
    space = Space("activations", "euclidean", Evidence(), torch.zeros(1, width), torch.ones(width))
    backend = Exact(rows=_rows(database))
    return backend.nearest(space, _rows(queries), k, leave, walked=space)


def _rows(activations: Tensor) -> Rows:
    number = torch.zeros(len(activations), dtype=torch.long)
    return Rows(activations, None, number, number.double())


def unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=1, keepdim=True)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few scores at once that every search takes many blocks and lots."""
    monkeypatch.setattr(search, "_AT_ONCE", 700)
    monkeypatch.setattr(Exact, "at_once", 16)


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 300),
    width=st.integers(1, 20),
    queries=st.integers(1, 12),
    levels=st.sampled_from([2, 1000]),
)
def test_the_order_is_that_of_sorting_all_distances(
    seed: int, rows: int, width: int, queries: int, levels: int
) -> None:
    """Few levels make many rows equal, so that positions decide."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(count: int) -> Tensor:
        whole = torch.randint(-levels, levels + 1, (count, width), generator=generator).double()
        whole[:, 0] += 2 * levels + 1  # no row is zero
        return unit(whole)

    database, asked = drawn(rows), drawn(queries)
    k = min(rows, 5)
    positions, distances = found(database, asked, k)

    table = (database[None] - asked[:, None]).square().sum(-1).sqrt()
    order = table.argsort(dim=1, stable=True)[:, :k]
    assert_same_to_rounding(distances, table.gather(1, order), size=1.0)
    # Rows at one distance may be told apart by rounding; equal rows may not, and come in the order of their positions.
    assert_same_to_rounding(table.gather(1, positions), distances, size=1.0)
    equal = (database[positions[:, 1:]] == database[positions[:, :-1]]).all(2)
    assert bool((positions[:, 1:] > positions[:, :-1])[equal].all())


@pytest.mark.usefixtures("small_blocks")
def test_neighbours_are_those_of_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    database, queries = (
        unit(torch.randn(count, 24, generator=generator).double()) for count in (1500, 70)
    )
    positions, distances = found(database, queries, 9)

    model = NearestNeighbors(n_neighbors=9, algorithm="brute").fit(database.numpy())
    expected_distances, expected = model.kneighbors(queries.numpy())

    np.testing.assert_array_equal(positions.numpy(), expected)
    np.testing.assert_allclose(distances.numpy(), expected_distances, atol=1e-7)


@pytest.mark.usefixtures("small_blocks")
def test_rows_left_out_are_left_out_in_every_block() -> None:
    generator = torch.Generator().manual_seed(0)
    database = unit(torch.randn(600, 8, generator=generator).double())
    leave = torch.stack([torch.arange(600), (torch.arange(600) + 1) % 600], dim=1)

    positions, _ = found(database, database, 3, leave)

    table = (database[None] - database[:, None]).square().sum(-1).sqrt()
    table.scatter_(1, leave, torch.inf)
    assert torch.equal(positions, table.argsort(dim=1, stable=True)[:, :3])


@pytest.mark.usefixtures("small_blocks")
def test_evidence_of_all_classes_at_once_equals_one_class_after_another() -> None:
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(6, 5)
    with torch.no_grad():
        head.weight.copy_(torch.randn(5, 6, generator=generator))
        head.weight[2] = 0.0
        head.weight[2, 3] = 1e-30  # a class with hardly any evidence
        head.bias.zero_()
    database, queries = (
        torch.randn(700, 6, generator=generator),
        torch.randn(60, 6, generator=generator),
    )
    index = ContributionIndex(head).fit(database)

    together = index.query(queries, k=4)
    apart = [index.query(queries[i : i + 1], k=4) for i in range(60)]

    assert len(np.unique(together.predicted)) > 3
    np.testing.assert_array_equal(
        together.indices, np.concatenate([hits.indices for hits in apart])
    )
    assert_same_to_rounding(
        together.distances, np.concatenate([hits.distances for hits in apart]), within=SINGLE
    )
