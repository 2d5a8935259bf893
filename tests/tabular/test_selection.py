"""Terms of three features: found, purified of everything below them, and read from tables."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from nobsp import NObSP
from nobsp.tabular.features import Points
from nobsp.tabular.functions import Functions
from nobsp.tabular.lookup import Chunk, LevelAxis, NumberAxis
from nobsp.tabular.tables import occupancy, weights_of
from tests.tolerances import CONTRIBUTIONS

Array = NDArray[np.float64]


def normal_rows(rows: int, columns: int, *, correlation: float = 0.0, seed: int = 0) -> Array:
    generator = np.random.default_rng(seed)
    shared = generator.normal(size=(rows, 1))
    own = generator.normal(size=(rows, columns))
    return np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own


def product(X: Array) -> Array:
    return X[:, 0] * X[:, 1] * X[:, 2] + X[:, 3]


def pairs_only(X: Array) -> Array:
    return X[:, 0] * X[:, 1] + np.tanh(X[:, 1]) * X[:, 2] + np.sin(X[:, 3])


@pytest.mark.parametrize("interactions", ["auto", [("a", "b", "c")]])
def test_a_product_of_three_is_one_term_and_leaves_no_main_effect(interactions: object) -> None:
    X = normal_rows(1500, 4)

    explainer = NObSP(product, features=list("abcd"), interactions=interactions).fit(X)

    assert ("a", "b", "c") in explainer.terms_
    for name in "abc":
        ends = explainer.function(name)(np.array([-1.5, 1.5]))
        assert np.abs(ends).max() < 0.05
    np.testing.assert_allclose(explainer.function("d")(np.array([-1.0, 1.0])), [-1, 1], atol=0.1)


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_a_triple_averages_to_zero_along_each_of_its_sides(correlation: float) -> None:
    X = normal_rows(800, 4, correlation=correlation)

    def function(X: Array) -> Array:
        return np.tanh(X[:, 0] * X[:, 1]) * X[:, 2] + X[:, 3]

    explainer = NObSP(
        function, features=list("abcd"), interactions=[("a", "b", "c")], ridge=1e12
    ).fit(X)
    triple = explainer.functions_.tables[-1]
    assert triple.features == (0, 1, 2)

    chunk = Chunk({k: X[:, k] for k in range(4)}, slice(0, len(X)))
    margins = []
    for side, axis in enumerate(triple.axes):
        points = Points(axis, np.zeros((len(axis), 1)), (side,), np.arange(len(axis)))
        share = occupancy(points, chunk).numpy()
        margins.append(np.tensordot(share, triple.values, axes=([0], [side])))

    # Up to the constant that gives the term mean zero over the rows.
    for margin in margins:
        assert np.ptp(margin) < 1e-6 * np.abs(triple.values).max()


def test_no_triple_is_kept_where_pairs_are_all_there_is() -> None:
    explainer = NObSP(pairs_only).fit(normal_rows(1500, 5, correlation=0.4))
    assert max(map(len, explainer.terms_)) == 2


def test_a_triple_brings_its_pairs_and_has_a_table() -> None:
    explainer = NObSP(product, features=list("abcd"), interactions=[("c", "a", "b")])
    explainer.fit(normal_rows(300, 4))

    assert explainer.terms_[4:] == (*combinations("abc", 2), ("a", "b", "c"))
    assert explainer.compile().left_out == ()


def test_files_and_compiled_functions_read_triples_as_the_explainer_does(tmp_path) -> None:
    X = normal_rows(400, 4)
    X[:, 2] = X[:, 2] > 0
    explainer = NObSP(product, features=list("abcd"), interactions=[("a", "b", "c")]).fit(X)
    expected = explainer(X[:50]).values

    explainer.compile().save(tmp_path / "functions.safetensors")
    compiled = Functions.load(tmp_path / "functions.safetensors")

    np.testing.assert_allclose(compiled(X[:50]).values, expected, atol=CONTRIBUTIONS)
    values = compiled.function(("c", "a", "b"))(X[:50, 2], X[:50, 0], X[:50, 1])
    np.testing.assert_allclose(values, expected[:, -1, 0], atol=CONTRIBUTIONS)


def test_pairs_that_only_stood_for_a_triple_are_left_out() -> None:
    X = normal_rows(2000, 4)
    explainer = NObSP(product, features=list("abcd")).fit(X - X.mean(0))
    assert [term for term in explainer.terms_ if len(term) > 1] == [("a", "b", "c")]


def test_main_effects_beside_a_pair_with_a_group_are_the_average_effects() -> None:
    def group_with_a_partner(X: Array) -> Array:
        return X[:, 0] * X[:, 2] ** 2 + X[:, 1] * X[:, 2] + X[:, 3]

    X = normal_rows(2000, 4)
    features = {"G": [0, 1], "c": 2, "d": 3}

    explainer = NObSP(group_with_a_partner, features=features, interactions=[("G", "c")]).fit(X)

    of_group = explainer.function("G")(np.array([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    np.testing.assert_allclose(of_group, [-1.0, 1.0, 0.0], atol=0.1)
    of_partner = explainer.function("c")(np.array([-1.5, 1.5]))
    np.testing.assert_allclose(of_partner, [0.0, 0.0], atol=0.1)


@pytest.mark.parametrize(
    "axis",
    [
        NumberAxis(0, np.array([-1.0, 0.0, 0.5])),
        NumberAxis(0, np.array([-1.0, 0.0, 0.5]), missing=True),
        LevelAxis((0,), np.array([[-2.0], [0.25], [7.0]])),
    ],
)
def test_places_of_single_rows_are_the_shares_of_each_alone(axis: NumberAxis | LevelAxis) -> None:
    x = np.array([-2.0, -1.0, 0.25, 0.5, 7.0, np.nan])
    points = Points(axis, np.zeros((len(axis), 1)), (0,), np.arange(len(axis)))

    places = weights_of(points, Chunk({0: x}, slice(0, len(x)))).numpy()

    for row, place in enumerate(places):
        alone = occupancy(points, Chunk({0: x[row : row + 1]}, slice(0, 1))).numpy()
        np.testing.assert_allclose(place, alone, rtol=0, atol=CONTRIBUTIONS)
