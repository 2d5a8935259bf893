"""Purity, and neighbours as a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import nobsp
from nobsp.neighbors import ContributionIndex, Neighbors, result
from tests.neighbors.cases import Headed


def hits(labels: Any, predicted: Any, classes: NDArray[Any] | None) -> Neighbors:
    labels = np.asarray(labels)
    return Neighbors(
        indices=np.arange(labels.size).reshape(labels.shape),
        distances=np.zeros(labels.shape),
        labels=labels,
        predicted=np.asarray(predicted),
        confidence=np.ones(len(labels)),
        space="contributions",
        target="query",
        classes=classes,
    )


@given(
    labels=st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=6),
    data=st.data(),
)
def test_purity_is_the_share_of_neighbours_with_the_predicted_label(
    labels: list[list[int]], data: Any
) -> None:
    predicted = data.draw(st.lists(st.integers(0, 3), min_size=len(labels), max_size=len(labels)))
    found = hits(labels, predicted, np.arange(4))

    np.testing.assert_allclose(
        found.purity, [row.count(p) / 4 for row, p in zip(labels, predicted, strict=True)]
    )


def test_purity_towards_the_truth_differs_from_purity_towards_the_prediction() -> None:
    found = hits([["cat", "cat", "dog", "owl"]], ["cat"], np.array(["cat", "dog", "owl"]))
    assert found.purity == [0.5]
    assert found.purity_towards(["dog"]) == [0.25]
    with pytest.raises(TypeError, match="labels are"):
        found.purity_towards([1])
    with pytest.raises(ValueError, match="2 entries for 1 rows"):
        found.purity_towards(["cat", "dog"])


def test_some_queries_are_those_queries(case: Headed) -> None:
    everything = ContributionIndex(case.head).fit(case.database, case.labels).query(case.queries)
    some = everything[[3, 5]]
    np.testing.assert_array_equal(some.indices, everything.indices[[3, 5]])
    np.testing.assert_array_equal(some.purity, everything.purity[[3, 5]])
    assert len(everything[7]) == 1
    np.testing.assert_array_equal(everything.nearest(3).indices, everything.indices[:, :3])
    with pytest.raises(ValueError, match="between 1 and 8"):
        everything.nearest(9)


def test_a_frame_has_a_line_per_neighbour(case: Headed) -> None:
    found = ContributionIndex(case.head).fit(case.database, case.labels).query(case.queries, k=3)
    frame = found.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert len(frame) == 120
    line = frame[(frame["query"] == 7) & (frame["rank"] == 2)].iloc[0]
    assert found.labels is not None
    assert line["index"] == found.indices[7, 2]
    assert line["distance"] == found.distances[7, 2]
    assert line["label"] == found.labels[7, 2]
    assert line["predicted"] == found.predicted[7]
    assert "mean purity" in repr(found)


@pytest.mark.parametrize(
    ("name", "new_home"),
    [
        ("Influence", nobsp.neighbors.RepresenterShares),
        ("Duplicates", nobsp.neighbors.Duplicates),
        ("select", nobsp.select),
    ],
)
def test_names_that_moved_are_found_with_a_warning(name, new_home):
    with pytest.warns(DeprecationWarning, match=name):
        assert getattr(result, name) is new_home
    with pytest.raises(AttributeError):
        result.no_such_name  # noqa: B018
