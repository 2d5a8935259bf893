"""Neighbours of heads, tables and images against the definition written out in numpy; what is refused."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nobsp import NObSP, NObSPCam
from nobsp.neighbors import ContributionIndex, Neighbors, audit
from tests.neighbors.cases import Explained, Headed, headed
from tests.neighbors.oracles import compared, nearest
from tests.tolerances import SUMS, assert_same_to_rounding, rounding
from tests.vision.networks import images as structured
from tests.vision.networks import through_layers

# Between rows of some twenty numbers that are brought to unit length in single precision.
UNIT = rounding(operations=100, dtype=np.float32)

SPACES = [("activations", "query"), ("contributions", "own"), ("contributions", "query")]
METRICS = ["euclidean", "cosine"]


def agree(hits: Neighbors, table: NDArray[np.float64], *, precision: float) -> None:
    """The same neighbours at the same distances; neighbours that are equally far to rounding may change places."""
    _, distances = nearest(table, hits.k)
    np.testing.assert_allclose(hits.distances, distances, rtol=0, atol=precision)
    np.testing.assert_allclose(
        np.take_along_axis(table, hits.indices, 1), distances, rtol=0, atol=precision
    )
    assert all(len(set(row)) == hits.k for row in hits.indices.tolist())


# ---------------------------------------------------------------------- the definition


@pytest.mark.parametrize(("space", "target"), SPACES)
def test_neighbours_of_images_are_those_of_their_contributions(
    pictures: Explained, space: Any, target: Any
) -> None:
    cam = pictures.explainer
    index = ContributionIndex(cam, space=space, target=target).fit(pictures.rows, pictures.labels)

    hits = index.query(pictures.queries, k=5)

    both = (pictures.rows, pictures.queries)
    every = [np.tile(np.arange(4), (len(images), 1)) for images in both]
    maps = [cam(images, classes) for images, classes in zip(both, every, strict=True)]
    expected = compared(
        tuple(cam.model[0](images).detach().numpy() for images in both),  # type: ignore[arg-type]
        tuple(part.contributions for part in maps),  # type: ignore[arg-type]
        tuple(part.logits.argmax(1) for part in maps),  # type: ignore[arg-type]
        space=space,
        target=target,
        metric="euclidean",
    )
    agree(hits, expected, precision=3e-6)
    np.testing.assert_allclose(hits.confidence, cam(pictures.queries).confidence, atol=SUMS)


@pytest.mark.parametrize("target", ["own", "query"])
def test_layers_between_map_and_head_are_searched_by_their_channels(target: Any) -> None:
    model, images = through_layers(channels=4), structured(40)
    cam = NObSPCam(model, coefficients="head").fit(images)
    index = ContributionIndex(cam, target=target).fit(images, model(images).argmax(1))

    hits = index.query(images[:6], k=4)

    maps = cam(images, np.tile(np.arange(3), (40, 1)))
    evidence, predicted = maps.contributions, maps.logits.argmax(1)
    expected = compared(
        (np.zeros((40, 4)), np.zeros((6, 4))),
        (evidence, evidence[:6]),
        (predicted, predicted[:6]),
        space="contributions",
        target=target,
        metric="euclidean",
    )
    assert not cam.health().direct
    agree(hits, expected, precision=3e-6)


def test_a_spread_for_each_class_would_leave_activations_only(case: Headed) -> None:
    """Why evidence for the query's class is divided by one spread for all classes."""
    evidence, predicted = case.evidence(case.database), case.predicted(case.queries)
    each = evidence / np.where(evidence.std(0) > 1e-9, evidence.std(0), np.inf)
    asked = case.evidence(case.queries) / np.where(evidence.std(0) > 1e-9, evidence.std(0), np.inf)
    number = int(predicted[0])
    activations = (
        ContributionIndex(case.head, space="activations")
        .fit(case.database)
        .query(case.queries[:1], k=20)
    )
    contributions = ContributionIndex(case.head).fit(case.database).query(case.queries[:1], k=20)

    vectors = [
        rows / np.linalg.norm(rows, axis=1, keepdims=True)
        for rows in (each[:, number], asked[:1, number])
    ]
    order = np.argsort(np.linalg.norm(vectors[0] - vectors[1], axis=1), kind="stable")[:20]

    np.testing.assert_array_equal(order, activations.indices[0])
    assert not np.array_equal(order, contributions.indices[0])


# ---------------------------------------------------------------------- which rows, and which labels


def test_rows_found_again_are_at_distance_zero(case: Headed) -> None:
    for space, target in SPACES:
        index = ContributionIndex(case.head, space=space, target=target).fit(case.database)  # type: ignore[arg-type]
        hits = index.query(case.database[100:130], k=1)
        np.testing.assert_array_equal(hits.indices[:, 0], np.arange(100, 130))
        assert_same_to_rounding(
            hits.distances, np.zeros_like(hits.distances), within=UNIT, size=1.0
        )


@pytest.mark.parametrize(("space", "target"), SPACES)
def test_excluded_rows_are_no_neighbours_and_the_next_ones_move_up(
    case: Headed, space: Any, target: Any
) -> None:
    index = ContributionIndex(case.head, space=space, target=target).fit(case.database, case.labels)
    everything = index.query(case.queries, k=6)

    without = index.query(case.queries, k=4, exclude=everything.indices[:, :2])
    none = index.query(case.queries, k=6, exclude=np.full(len(case.queries), -1))

    np.testing.assert_array_equal(without.indices, everything.indices[:, 2:])
    np.testing.assert_array_equal(none.indices, everything.indices)


def test_equal_rows_come_in_the_order_of_their_positions() -> None:
    case = headed(rows=60)
    database = case.database.repeat(50, 1)
    index = ContributionIndex(case.head, space="activations").fit(database)

    hits = index.query(case.database[:7], k=50)

    np.testing.assert_array_equal(hits.indices, np.arange(7)[:, None] + 60 * np.arange(50))
    assert_same_to_rounding(hits.distances, np.zeros_like(hits.distances), within=UNIT, size=1.0)


@pytest.mark.parametrize(("space", "target"), SPACES)
@pytest.mark.parametrize("metric", METRICS)
def test_rows_without_any_evidence_have_their_place(space: Any, target: Any, metric: Any) -> None:
    """A zero vector is at distance 1 from vectors of unit length, and 0 from other zero vectors."""
    head = nn.Linear(2, 2)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
        head.bias.zero_()
    rows = torch.tensor(
        [[3.0, 1.0], [-3.0, -1.0], [0.0, 0.0], [3.0, -1.0], [-3.0, 1.0], [0.0, 0.0]]
    )
    case = Headed(head, rows, np.zeros(6, dtype=np.int64), rows, np.zeros(6, dtype=np.int64))

    hits = (
        ContributionIndex(head, space=space, target=target, metric=metric)
        .fit(rows)
        .query(rows, k=6)
    )

    table = compared(
        (rows.double().numpy(),) * 2,
        (case.evidence(rows),) * 2,
        (case.predicted(rows),) * 2,
        space=space,
        target=target,
        metric=metric,
    )
    agree(hits, table, precision=SUMS)


def test_added_rows_are_measured_in_the_units_of_the_first(case: Headed) -> None:
    index = ContributionIndex(case.head).fit(case.database[:200], case.labels[:200])
    before = index.query(case.queries, k=3)

    index.add(1000 * case.database[200:], case.labels[200:])
    after = index.query(case.queries, k=len(index))

    assert len(index) == len(case.database)
    kept = np.array([row[np.isin(row, np.arange(200))][:3] for row in after.indices])
    np.testing.assert_array_equal(kept, before.indices)


@pytest.mark.parametrize("kind", ["loader", "batches", "frame", "array", "list"])
def test_rows_come_in_any_form(case: Headed, kind: str) -> None:
    expected = ContributionIndex(case.head).fit(case.database, case.labels).query(case.queries)
    labels = torch.from_numpy(case.labels)
    loader = DataLoader(TensorDataset(case.database, labels), batch_size=64)
    index = ContributionIndex(case.head)

    if kind == "loader":
        index.fit(loader)
    elif kind == "batches":
        index.fit((case.database[i : i + 50], labels[i : i + 50]) for i in range(0, 400, 50))
    elif kind == "frame":
        index.fit(pd.DataFrame(case.database.numpy()), pd.Series(case.labels))
    elif kind == "list":
        index.fit(case.database.tolist(), case.labels.tolist())
    else:
        index.fit(case.database.numpy(), case.labels)
    hits = index.query(case.queries)

    np.testing.assert_array_equal(hits.indices, expected.indices)
    np.testing.assert_array_equal(hits.labels, expected.labels)


def test_labels_may_be_names_of_outputs(table: Explained) -> None:
    names = np.array(["ash", "birch", "cedar"])
    explainer = NObSP(table.explainer.model, interactions=0, output_names=list(names)).fit(
        table.rows
    )
    numbers = ContributionIndex(table.explainer).fit(table.rows, table.labels).query(table.queries)

    hits = ContributionIndex(explainer).fit(table.rows, names[table.labels]).query(table.queries)

    np.testing.assert_array_equal(hits.labels, names[numbers.labels])
    np.testing.assert_array_equal(hits.predicted, names[numbers.predicted])
    np.testing.assert_allclose(hits.purity, numbers.purity)


def test_a_single_logit_is_two_classes() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = np.where(X[:, 0] * X[:, 1] + X[:, 2] > 0, "yes", "no")
    model = MLPClassifier((8,), max_iter=2000, random_state=0, tol=1e-3).fit(X, y)
    explainer = NObSP(model, interactions=0).fit(X)
    index = ContributionIndex(explainer).fit(X, y)

    hits = index.query(X[:10], k=5)

    np.testing.assert_array_equal(hits.predicted, model.predict(X[:10]))
    np.testing.assert_allclose(hits.confidence, model.predict_proba(X[:10]).max(1), atol=1e-6)
    assert set(np.unique(hits.labels)) <= {"no", "yes"}
    contributions = explainer(X).values[:, :, 0]
    scaled = StandardScaler().fit_transform(contributions)
    unit = scaled / np.linalg.norm(scaled, axis=1, keepdims=True)
    agree(hits, np.linalg.norm(unit[:10, None] - unit[None], axis=2), precision=3e-6)


def test_a_torch_model_with_one_output_is_a_classifier_if_labels_take_two_values() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    X = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
    explainer = NObSP(model, interactions=0).fit(X)
    logit = model(X)[:, 0].detach().numpy()

    two = ContributionIndex(explainer).fit(X, (logit > 0).astype(int)).query(X[:5], k=3)
    many = ContributionIndex(explainer).fit(X, logit).query(X[:5], k=3)

    np.testing.assert_array_equal(two.predicted, (logit[:5] > 0).astype(int))
    np.testing.assert_allclose(many.predicted, logit[:5], atol=1e-6)
    with pytest.raises(ValueError, match="task"):
        ContributionIndex(explainer).fit([(X, torch.from_numpy(logit > 0))])


def test_a_regression_has_neighbours_and_values_but_no_purity() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 3))
    y = np.sin(X[:, 0]) + X[:, 1]
    model = MLPRegressor(hidden_layer_sizes=(16,), max_iter=3000, random_state=0, tol=1e-3).fit(
        X, y
    )
    explainer = NObSP(model, interactions=0).fit(X)

    hits = ContributionIndex(explainer).fit(X, y).query(X[:10], k=4)

    assert np.isnan(hits.confidence).all()
    np.testing.assert_array_equal(hits.labels, y[hits.indices])
    with pytest.raises(ValueError, match="regression has no classes"):
        _ = hits.purity


def test_pooled_activations_stand_for_images(pictures: Explained) -> None:
    """Nothing is run twice by who has the activations already."""
    cam = pictures.explainer
    activations = cam.model[0](pictures.rows).detach()
    asked = cam.model[0](pictures.queries).detach()
    index = ContributionIndex(cam).fit(activations, pictures.labels)

    hits = index.query(asked)
    images = ContributionIndex(cam).fit(pictures.rows, pictures.labels).query(pictures.queries)

    np.testing.assert_array_equal(hits.indices, images.indices)
    np.testing.assert_allclose(hits.distances, images.distances, atol=1e-6)


def test_one_database_is_seen_in_several_spaces(case: Headed) -> None:
    index = ContributionIndex(case.head).fit(case.database, case.labels)
    seen = index._read(case.queries)

    for space, target in SPACES:
        view = index._view(space=space, target=target)  # type: ignore[arg-type]
        apart = ContributionIndex(case.head, space=space, target=target).fit(case.database)  # type: ignore[arg-type]
        np.testing.assert_array_equal(
            view._query_rows(seen, 8).indices, apart.query(case.queries).indices
        )
    index._view(space="activations").add(case.queries, case.truth)
    assert len(index) == len(case.database) + len(case.queries)


# ---------------------------------------------------------------------- manners and errors


def test_an_index_is_cloned_and_takes_options_as_estimators_do(case: Headed) -> None:
    index = ContributionIndex(case.head, space="activations", classes=None).fit(
        case.database, y=case.labels
    )
    other = clone(index).set_params(space="contributions")
    assert other.explainer is case.head
    assert (index.space, other.space) == ("activations", "contributions")
    assert not hasattr(other, "_contents")
    with pytest.raises(ValueError, match="y and labels"):
        other.fit(case.database, case.labels, labels=case.labels)
    np.testing.assert_array_equal(
        index.query(case.queries).labels,
        clone(index).fit(case.database, case.labels).query(case.queries).labels,
    )


def test_kneighbors_are_the_distances_and_positions_of_a_query(case: Headed) -> None:
    index = ContributionIndex(case.head).fit(case.database, case.labels)
    hits = index.query(case.queries, k=5)

    distances, positions = index.kneighbors(case.queries, 5)

    np.testing.assert_array_equal(distances, hits.distances)
    np.testing.assert_array_equal(positions, hits.indices)
    np.testing.assert_array_equal(
        index.kneighbors(case.queries, 5, return_distance=False), hits.indices
    )
    itself = index.kneighbors(n_neighbors=3, return_distance=False)
    assert not (itself == np.arange(400)[:, None]).any()


def test_options_changed_after_fit_are_those_of_the_next_query(case: Headed) -> None:
    index = (
        ContributionIndex(case.head).fit(case.database, case.labels).set_params(space="activations")
    )
    apart = ContributionIndex(case.head, space="activations").fit(case.database, case.labels)
    np.testing.assert_array_equal(
        index.query(case.queries).indices, apart.query(case.queries).indices
    )
    with pytest.raises(ValueError, match="space must be"):
        index.set_params(space="pixels").query(case.queries)


def test_rows_added_in_another_space_are_kept_with_what_the_database_keeps(
    table: Explained,
) -> None:
    index = ContributionIndex(table.explainer).fit(table.rows, table.labels)
    index.set_params(space="activations").add(table.queries, np.zeros(20, dtype=int))
    whole = index.set_params(space="contributions").query(table.queries, k=1)
    np.testing.assert_array_equal(whole.indices[:, 0], 300 + np.arange(20))


def test_an_index_survives_pickling(case: Headed) -> None:
    index = ContributionIndex(case.head).fit(case.database, case.labels)
    other = pickle.loads(pickle.dumps(index))  # noqa: S301 - our own bytes
    np.testing.assert_array_equal(
        other.query(case.queries).indices, index.query(case.queries).indices
    )


def test_the_model_is_left_as_it_was(pictures: Explained) -> None:
    model = pictures.explainer.model
    model.train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.random.get_rng_state()

    ContributionIndex(pictures.explainer).fit(pictures.rows, pictures.labels).query(
        pictures.queries
    )

    assert model.training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(torch.random.get_rng_state(), random)
    model.eval()


def test_an_index_takes_no_more_than_its_memory_limit(case: Headed) -> None:
    with pytest.raises(ValueError, match="memory_limit is 1,000 bytes"):
        ContributionIndex(case.head, memory_limit=1000).fit(case.database)
    index = ContributionIndex(case.head, memory_limit=4 * 12 * 410).fit(case.database)
    index.add(case.queries[:10])
    with pytest.raises(ValueError, match="411 rows take more"):
        index.add(case.queries[:1])
    assert index.query(case.queries).k == 8  # queries are not kept


def test_evidence_for_one_class_takes_less_memory_than_for_all(table: Explained) -> None:
    limit = 300 * 4 * (16 + 2 * 5)
    ContributionIndex(table.explainer, target="own", memory_limit=limit).fit(
        table.rows, table.labels
    )
    with pytest.raises(ValueError, match='target="own"'):
        ContributionIndex(table.explainer, memory_limit=limit).fit(table.rows, table.labels)


def test_what_is_no_explainer_is_refused_with_what_to_do(case: Headed, table: Explained) -> None:
    with pytest.raises(TypeError, match="fit it first"):
        ContributionIndex(nn.Sequential(case.head)).fit(case.database)
    with pytest.raises(TypeError, match="compiled"):
        ContributionIndex(table.explainer.compile()).fit(table.rows)
    with pytest.raises(NotFittedError, match="not calibrated"):
        ContributionIndex(NObSP(table.explainer.model)).fit(table.rows)
    with pytest.raises(NotFittedError, match="call fit"):
        ContributionIndex(case.head).query(case.queries)
    with pytest.raises(ValueError, match="12 activations"):
        ContributionIndex(case.head).fit(case.database[:, :5])


def test_an_index_of_activations_has_no_evidence_of_a_table(table: Explained) -> None:
    index = ContributionIndex(table.explainer, space="activations").fit(table.rows, table.labels)
    with pytest.raises(ValueError, match="keeps no evidence"):
        index._view(space="contributions")


def test_labels_may_be_the_names_given_to_outputs_though_the_model_has_numbers() -> None:
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(3, 4))
    codes = np.arange(150) % 3
    X = centres[codes] + rng.normal(size=(150, 4))
    names = np.array(["low", "mid", "high"])
    model = LogisticRegression().fit(X, codes)
    explainer = NObSP(model, output_names=list(names), interactions=0).fit(X)

    index = ContributionIndex(explainer).fit(X, names[codes])

    assert set(audit(index).suggested) <= set(names)
