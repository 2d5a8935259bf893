"""Neighbors, distances and purity against what plain numpy says of every pair."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import nobsp

CLASSES, WIDTH, ROWS, QUERIES, K = 4, 6, 90, 25, 7


def world(seed=0, *, rows=ROWS):
    """A linear head with a database and queries of activations, and labels that are often what it predicts."""
    rng = np.random.default_rng(seed)
    head = nn.Linear(WIDTH, CLASSES).double()
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(rng.normal(size=(CLASSES, WIDTH))))
        head.bias.copy_(torch.from_numpy(rng.normal(size=CLASSES)))
    database, queries = (
        rng.normal(size=(n, WIDTH)) * rng.uniform(0.5, 3, WIDTH) + rng.normal(size=WIDTH)
        for n in (rows, QUERIES)
    )
    labels = np.where(
        rng.random(rows) < 0.3, rng.integers(CLASSES, size=rows), said(head, database).argmax(1)
    )
    return head, database, queries, labels


def said(head, rows):
    return rows @ head.weight.detach().numpy().T + head.bias.detach().numpy()


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def vectors_of(head, database, rows, *, space, target, metric, towards):
    """Each row's vector by the definition: z-scored on the database, then of unit length."""
    weight, mean = head.weight.detach().numpy(), database.mean(0)
    own = said(head, rows).argmax(1)

    def evidence(some, classes):
        return weight[classes] * (some - mean)

    if space == "activations":
        known, raw = database, rows
    elif target == "own":
        known, raw = evidence(database, said(head, database).argmax(1)), evidence(rows, own)
    else:
        known, raw = evidence(database, towards), evidence(rows, towards)
    if metric == "cosine":
        return unit(raw - (mean if space == "activations" else 0))
    spread = known.std(0)
    if (
        space == "contributions" and target == "query"
    ):  # one unit for all classes: each its own would cancel the weights
        spread = np.sqrt(np.mean([evidence(database, c).var(0) for c in range(CLASSES)], axis=0))
    return unit((raw - known.mean(0)) / spread)


def expected(head, database, queries, k, **way):
    """Positions and distances from all pairs, query by query."""
    positions, distances = [], []
    for query in queries:
        towards = int(said(head, query[None]).argmax())
        there = vectors_of(head, database, database, **way, towards=towards)
        here = vectors_of(head, database, query[None], **way, towards=towards)[0]
        apart = (
            1 - there @ here if way["metric"] == "cosine" else np.linalg.norm(there - here, axis=1)
        )
        order = np.argsort(apart, kind="stable")[:k]
        positions.append(order)
        distances.append(apart[order])
    return np.array(positions), np.array(distances)


WAYS = [
    pytest.param({"space": s, "target": t, "metric": m}, id=f"{s}-{t}-{m}")
    for s, t in (("activations", "query"), ("contributions", "own"), ("contributions", "query"))
    for m in ("euclidean", "cosine")
]


@pytest.mark.parametrize("way", WAYS)
def test_neighbours_and_distances_are_those_of_all_pairs(way):
    head, database, queries, labels = world()
    index = nobsp.ContributionIndex(head, **way).fit(torch.from_numpy(database), labels)
    hits = index.query(torch.from_numpy(queries), k=K)
    positions, distances = expected(head, database, queries, K, **way)
    assert np.allclose(hits.distances, distances, rtol=0, atol=1e-6)
    assert np.array_equal(hits.indices, positions)
    assert np.array_equal(hits.labels, labels[positions])


@pytest.mark.parametrize("way", WAYS)
def test_purity_counts_labels_that_are_the_predicted_class(way):
    head, database, queries, labels = world(1)
    hits = (
        nobsp.ContributionIndex(head, **way)
        .fit(torch.from_numpy(database), labels)
        .query(queries, k=K)
    )
    positions, _ = expected(head, database, queries, K, **way)
    logits = said(head, queries)
    predicted = logits.argmax(1)
    chances = np.exp(logits - logits.max(1, keepdims=True))
    assert np.array_equal(hits.predicted, predicted)
    assert hits.purity.tolist() == [
        (labels[p] == c).sum() / K for p, c in zip(positions, predicted, strict=True)
    ]
    assert np.allclose(hits.confidence, chances.max(1) / chances.sum(1), atol=1e-6)
    truth = np.arange(QUERIES) % CLASSES
    assert hits.purity_towards(truth).tolist() == [
        (labels[p] == c).mean() for p, c in zip(positions, truth, strict=True)
    ]


@given(seed=st.integers(0, 10_000), k=st.integers(1, 10), extra=st.integers(1, 30))
def test_rows_added_later_are_found_like_those_that_were_there(seed, k, extra):
    head, database, queries, labels = world(seed)
    rng = np.random.default_rng(seed)
    more, names = rng.normal(size=(extra, WIDTH)), rng.integers(CLASSES, size=extra)
    index = (
        nobsp.ContributionIndex(head, target="own", metric="cosine")
        .fit(database, labels)
        .add(more, names)
    )
    hits = index.query(queries, k=k)
    whole = np.concatenate([database, more])
    weight, mean = (
        head.weight.detach().numpy(),
        database.mean(0),
    )  # units stay those of the first rows

    def vectors(rows):
        return unit(weight[said(head, rows).argmax(1)] * (rows - mean))

    apart = 1 - vectors(queries) @ vectors(whole).T
    assert np.allclose(hits.distances, np.sort(apart, axis=1)[:, :k], atol=1e-6)
    assert np.allclose(np.take_along_axis(apart, hits.indices, 1), hits.distances, atol=1e-6)
    assert np.array_equal(hits.labels, np.concatenate([labels, names])[hits.indices])


def test_a_row_of_the_database_is_not_its_own_neighbour():
    head, database, _, labels = world(2)
    index = nobsp.ContributionIndex(head).fit(database, labels)
    among = index.query(None, k=K)
    assert not (among.indices == np.arange(ROWS)[:, None]).any()
    itself = index.query(database, k=K + 1)
    assert np.array_equal(itself.indices[:, 0], np.arange(ROWS))
    assert np.array_equal(itself.indices[:, 1:], among.indices)


@pytest.mark.parametrize("target", ["own", "query"])
def test_tables_are_compared_by_what_their_terms_contribute(target):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(120, 3))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 3)).double()
    explainer = nobsp.NObSP(net, interactions=[("x0", "x1")]).fit(X)
    database, queries = X[:100], X[100:]
    hits = (
        nobsp.ContributionIndex(explainer, target=target)
        .fit(database, np.zeros(100, int))
        .query(queries, k=5)
    )
    there, here = explainer(database), explainer(queries)
    mine, theirs = here.predictions.argmax(1), there.predictions.argmax(1)
    rows = np.arange(100)
    for query, c in enumerate(mine):
        known = there.values[rows, :, theirs] if target == "own" else there.values[:, :, c]
        spread = known.std(0) if target == "own" else np.sqrt(there.values.var(0).mean(1))
        vectors = unit((known - known.mean(0)) / spread)
        one = unit(((here.values[query, :, c] - known.mean(0)) / spread)[None])[0]
        apart = np.linalg.norm(vectors - one, axis=1)
        assert np.allclose(hits.distances[query], np.sort(apart)[:5], atol=1e-5)
        assert np.allclose(apart[hits.indices[query]], hits.distances[query], atol=1e-5)
