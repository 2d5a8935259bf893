"""A query beside its neighbours."""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from nobsp import plots

CLASSES = ["cat", "dog", "cow"]


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).random((20, 3, 8, 8))


def hits(space="contributions", **other):
    """Two queries with five neighbours each."""
    draw = np.random.default_rng(len(space))
    made = {
        "indices": draw.permutation(20)[:10].reshape(2, 5),
        "distances": np.sort(draw.random((2, 5)), axis=1),
        "labels": np.array([[0, 0, 1, 0, 2], [2, 2, 2, 1, 2]]),
        "predicted": np.array([0, 2]),
        "confidence": np.array([0.62, 0.9]),
        "space": space,
    }
    return SimpleNamespace(**made | other)


def test_the_query_tells_its_class_and_confidence(images):
    grid = plots.retrieval_panel(
        images[3], hits(), hits("activations"), database=images, class_names=CLASSES
    )
    assert grid.shape == (2, 5)
    assert grid[0, 0] is grid[1, 0]
    assert grid[0, 0].get_title() == "query: cat, 62%"
    assert np.asarray(grid[0, 0].images[0].get_array()) == pytest.approx(
        images[3].transpose(1, 2, 0)
    )


def test_neighbours_come_in_order_with_label_and_distance(images):
    found = hits()
    grid = plots.retrieval_panel(
        images[3], found, database=images, row=1, class_names=CLASSES, max_display=5
    )
    assert grid.shape == (1, 6)
    for place, ax in enumerate(grid[0, 1:]):
        index, label = found.indices[1, place], CLASSES[found.labels[1, place]]
        assert np.asarray(ax.images[0].get_array()) == pytest.approx(
            images[index].transpose(1, 2, 0)
        )
        mark = "✓" if label == "cow" else "✗"
        assert ax.get_xlabel() == f"{mark} {label}\nd = {found.distances[1, place]:.3f}"


def test_neighbours_of_another_class_have_a_dashed_frame(images):
    grid = plots.retrieval_panel(images[3], hits(), database=images, max_display=5)
    dashed = [ax.spines["left"].get_linestyle() not in ("-", "solid") for ax in grid[0, 1:]]
    assert dashed == [False, False, True, False, True]


def test_each_space_tells_how_many_of_all_neighbours_agree(images):
    grid = plots.retrieval_panel(
        images[3], hits(), hits("activations"), database=images, row=1, max_display=2
    )
    assert grid[0, 1].get_title(loc="left") == "contributions: 4 of 5 agree"
    assert grid[1, 1].get_title(loc="left") == "activations: 4 of 5 agree"


def test_a_true_class_is_told_where_it_is_another(images):
    same, other = (
        plots.retrieval_panel(images[3], hits(), database=images, label=label, class_names=CLASSES)[
            0, 0
        ].get_title()
        for label in (0, "dog")
    )
    assert "(is" not in same
    assert other.endswith("(is dog)")


def test_images_may_come_from_datasets_lists_and_tensors(images):
    pairs = [(torch.tensor(image), 0) for image in images]
    queries = torch.tensor(images[:2])
    for database in (pairs, torch.tensor(images), list((255 * images).astype(np.uint8))):
        grid = plots.retrieval_panel(queries, hits(), database=database, row=1)
        assert np.asarray(grid[0, 1].images[0].get_array()) == pytest.approx(
            images[hits().indices[1, 0]].transpose(1, 2, 0), abs=0.01
        )
        assert np.asarray(grid[0, 0].images[0].get_array()) == pytest.approx(
            images[1].transpose(1, 2, 0)
        )


def test_a_regression_has_values_and_no_agreement(images):
    found = hits(
        labels=np.array([[0.5, 0.25, 0.1, 3.0, 2.0]] * 2),
        predicted=np.array([0.4, 1.0]),
        confidence=np.full(2, np.nan),
    )
    grid = plots.retrieval_panel(images[3], found, database=images)
    assert grid[0, 0].get_title() == "query: 0.4"
    assert grid[0, 1].get_title(loc="left") == "contributions"
    assert grid[0, 1].get_xlabel().startswith("0.5\nd = ")
    assert not grid[0, 1].spines["left"].get_visible()


def test_neighbours_without_labels_have_distances(images):
    grid = plots.retrieval_panel(images[3], hits(labels=None), database=images)
    assert grid[0, 1].get_xlabel() == f"d = {hits().distances[0, 0]:.3f}"


# ---------------------------------------------------------------------- tables


@pytest.fixture(scope="module")
def frame():
    draw = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": draw.uniform(20, 80, 20),
            "city": draw.choice(["Oslo", "Rome"], 20),
            "rooms": range(20),
        }
    )


@pytest.mark.parametrize("kind", [lambda frame: frame, pl.from_pandas])
def test_a_table_is_a_column_per_neighbour(frame, kind):
    found = hits()
    [ax] = plots.retrieval_panel(frame.iloc[4], found, database=kind(frame), class_names=CLASSES)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["age", "city", "rooms"]
    cells = np.array([text.get_text() for text in ax.texts]).reshape(3, 5)
    assert cells[1].tolist() == [frame["city"][4], *frame["city"].to_numpy()[found.indices[0, :4]]]
    assert cells[2].tolist() == ["4", *(str(k) for k in found.indices[0, :4])]
    heads = [label.get_text() for label in ax.get_xticklabels()]
    assert heads[0] == "query\ncat, 62%"
    assert heads[1] == f"✓ cat\nd = {found.distances[0, 0]:.3f}"


def test_cells_are_shaded_by_how_far_they_are_from_the_query(frame):
    found = hits()
    [ax] = plots.retrieval_panel(frame.iloc[[4]], found, database=frame)
    far = np.asarray(ax.images[0].get_array())
    assert (far[:, 0] == 0).all()
    away = np.abs(found.indices[0, :4] - 4) / frame["rooms"].std(ddof=0)
    assert far[2, 1:] == pytest.approx(np.minimum(away, 2.0))
    cities = frame["city"].to_numpy()
    assert far[1, 1:].tolist() == [2.0 * (cities[k] != cities[4]) for k in found.indices[0, :4]]


def test_columns_of_a_table_can_be_chosen_and_those_of_an_array_named(frame):
    [ax] = plots.retrieval_panel(frame.iloc[4], hits(), database=frame, features=["rooms"])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["rooms"]
    numbers = frame[["age", "rooms"]].to_numpy()
    [ax] = plots.retrieval_panel(numbers, hits(), database=numbers, row=1, features=["a", "r"])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "r"]
    assert ax.texts[5].get_text() == "1"
    with pytest.raises(ValueError, match="'room', which is not a column of database"):
        plots.retrieval_panel(frame.iloc[4], hits(), database=frame, features=["room"])


def test_axes_may_be_the_callers(images, frame):
    _, given = plt.subplots(1, 9)
    grid = plots.retrieval_panel(images[3], hits(), hits("activations"), database=images, ax=given)
    assert [*grid[0], *grid[1, 1:]] == list(given)
    _, given = plt.subplots(2)
    assert list(
        plots.retrieval_panel(frame.iloc[4], hits(), hits(), database=frame, ax=given)
    ) == list(given)


def test_what_does_not_fit_is_told(images):
    with pytest.raises(TypeError, match="hits_contributions must be neighbours"):
        plots.retrieval_panel(images[0], images, database=images)
    with pytest.raises(ValueError, match="row is 2, but hits_contributions has 2 queries"):
        plots.retrieval_panel(images[0], hits(), database=images, row=2)
    with pytest.raises(ValueError, match="database has no row"):
        plots.retrieval_panel(images[0], hits(), database=images[:3])
    with pytest.raises(ValueError, match="class_names has 1 names"):
        plots.retrieval_panel(images[0], hits(), database=images, class_names=["cat"])
    with pytest.raises(ValueError, match=r"image of shape \(2, 3, 4, 5\)"):
        plots.retrieval_panel(images[0], hits(), database=np.zeros((20, 2, 3, 4, 5)))
