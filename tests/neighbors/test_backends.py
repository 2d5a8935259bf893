"""Every backend finds what the exact one finds, keeps it in a file, and goes on from there."""

import numpy as np
import pytest
import torch
from torch import nn

from nobsp.neighbors import ContributionIndex, Milvus, Usearch, audit
from tests.tolerances import SINGLE, SUMS, assert_same_to_rounding

WIDTH, CLASSES, K = 24, 5, 8
# How the index is made; views of a collection can only be had where it has vectors.
WAYS = [
    pytest.param(
        {"space": space, "target": target, "metric": metric}, id=f"{space}-{target}-{metric}"
    )
    for space, target in (
        ("activations", "query"),
        ("contributions", "own"),
        ("contributions", "query"),
    )
    for metric in ("euclidean", "cosine")
]


def clustered(rows, *, width=WIDTH, seed=0, clusters=20):
    """Activations that lie in clusters, as those of trained networks do, and the head that reads them."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(clusters, width))
    where = rng.integers(clusters, size=rows)
    activations = (centres[where] + 0.5 * rng.normal(size=(rows, width))).astype(np.float32)
    head = nn.Linear(width, CLASSES)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(rng.normal(size=(CLASSES, width))))
        head.bias.copy_(torch.from_numpy(rng.normal(size=CLASSES)))
    return head, activations, where % CLASSES


def backend_of(name, folder):
    if name == "exact":
        return "exact"
    pytest.importorskip("usearch" if name == "usearch" else "milvus_lite")
    return Usearch(threads=1) if name == "usearch" else Milvus(uri=str(folder / "rows.db"))


def close(index):
    if hasattr(index._fitted.backend, "close"):
        index._fitted.backend.close()


def assert_same(found, expected, *, atol=1e-6):
    assert np.allclose(found.distances, expected.distances, rtol=0, atol=atol)
    assert np.array_equal(found.indices, expected.indices)
    assert np.array_equal(found.labels, expected.labels)
    assert np.array_equal(found.purity, expected.purity)
    assert np.array_equal(found.predicted, expected.predicted)
    assert_same_to_rounding(found.confidence, expected.confidence, within=SINGLE)


# ---------------------------------------------------------------------- usearch


def test_usearch_finds_99_of_100_neighbours_and_measures_them_exactly():
    pytest.importorskip("usearch")
    head, rows, labels = clustered(2600, width=128, clusters=40)
    database, queries = rows[:2500], rows[2500:]
    for target, metric in (("query", "euclidean"), ("own", "euclidean"), ("query", "cosine")):
        way = {"target": target, "metric": metric}
        exact = ContributionIndex(head, **way).fit(database, labels[:2500])
        near = ContributionIndex(head, **way, backend=Usearch(threads=1)).fit(
            database, labels[:2500]
        )
        views = [(exact, near)]
        if (target, metric) == ("query", "euclidean"):
            views.append((exact._view(space="activations"), near._view(space="activations")))
        for every, some in views:
            expected, found = every.query(queries, K), some.query(queries, K)
            shared = [
                len(set(a) & set(b)) for a, b in zip(expected.indices, found.indices, strict=True)
            ]
            assert np.mean(shared) >= 0.99 * K, (way, some.space)
            # The graph holds eight bits of each number, but what it finds is measured with the rows themselves.
            known = [
                dict(zip(*pair, strict=True))
                for pair in zip(expected.indices, expected.distances, strict=True)
            ]
            assert all(
                abs(known[query].get(row, away) - away) < SUMS
                for query in range(len(queries))
                for row, away in zip(found.indices[query], found.distances[query], strict=True)
            )
            assert (np.diff(found.distances, axis=1) >= 0).all()


def test_usearch_leaves_out_the_row_itself_and_those_told():
    pytest.importorskip("usearch")
    head, rows, labels = clustered(300)
    exact, near = (
        ContributionIndex(head, backend=backend).fit(rows, labels)
        for backend in ("exact", Usearch(threads=1))
    )
    assert_same(near.query(None, K), exact.query(None, K))
    told = np.column_stack([np.arange(40), exact.query(None, 2).indices[:40]])
    assert_same(near.query(rows[:40], K, exclude=told), exact.query(rows[:40], K, exclude=told))


def test_usearch_finds_as_many_as_are_asked_for_up_to_all():
    pytest.importorskip("usearch")
    head, rows, labels = clustered(150)
    exact, near = (
        ContributionIndex(head, backend=backend).fit(rows, labels)
        for backend in ("exact", Usearch(threads=1))
    )
    assert_same(near.query(rows[:5], 150), exact.query(rows[:5], 150))
    assert_same(near.query(None, 149), exact.query(None, 149))


# ---------------------------------------------------------------------- Milvus


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """One collection with vectors of both kinds, in a local file."""
    pytest.importorskip("milvus_lite")
    head, rows, labels = clustered(250)
    folder = tmp_path_factory.mktemp("milvus")
    index = ContributionIndex(head, target="own", backend=backend_of("milvus", folder)).fit(
        rows[:220], labels[:220]
    )
    yield index, head, rows, labels
    close(index)


@pytest.mark.parametrize(
    "view", [{"target": "own"}, {"target": "query"}, {"space": "activations"}], ids=str
)
def test_milvus_returns_the_same_neighbours_as_exact(collection, view):
    index, head, rows, labels = collection
    exact = ContributionIndex(head).fit(rows[:220], labels[:220])._view(**view)
    assert_same(index._view(**view).query(rows[220:], K), exact.query(rows[220:], K))
    assert_same(index._view(**view).query(None, 3), exact.query(None, 3))


def test_milvus_says_which_vectors_it_has(collection):
    index, _, rows, _ = collection
    with pytest.raises(
        ValueError, match=r"has activations \(euclidean\) and own \(euclidean\), not own"
    ):
        index._view(metric="cosine").query(rows[:2], K)


def test_milvus_does_not_replace_a_collection_unless_told(collection):
    index, head, rows, labels = collection
    with pytest.raises(ValueError, match=r"has a collection 'nobsp' at .* already.*replace=True"):
        ContributionIndex(head, backend=index.backend).fit(rows, labels)
    assert len(index) == 220


def test_audits_of_a_collection_say_what_those_of_an_exact_index_say(collection):
    index, head, rows, labels = collection
    exact = ContributionIndex(head, target="own").fit(rows[:220], labels[:220])
    found, expected = audit(index), audit(exact)
    assert found.reasons == expected.reasons
    assert np.allclose(found.joint, expected.joint, atol=1e-4)


def test_rows_behind_a_gap_in_a_collection_are_overwritten_by_the_next_addition(tmp_path):
    """What an addition leaves of which only a later message arrived."""
    pytest.importorskip("milvus_lite")
    head, rows, labels = clustered(120)
    place = backend_of("milvus", tmp_path)
    index = ContributionIndex(head, backend=place).fit(rows[:100], labels[:100])
    index.save(tmp_path / "index")
    index._fitted.backend._client.delete("nobsp", ids=list(range(80, 90)))
    close(index)
    again = ContributionIndex.load(tmp_path / "index", head, backend=place)
    try:
        assert len(again) == 80
        # Units stay those of the first rows.
        exact = ContributionIndex(head).fit(rows[:100], labels[:100])
        left_out = np.tile(np.arange(80, 100), (20, 1))
        assert_same(again.query(rows[100:], K), exact.query(rows[100:], K, exclude=left_out))
        again.add(rows[80:], labels[80:])
        assert_same(
            again.query(rows[:30], K), exact.add(rows[100:], labels[100:]).query(rows[:30], K)
        )
    finally:
        close(again)


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize("name", ["exact", "usearch", "milvus"])
@pytest.mark.parametrize("way", WAYS)
def test_an_index_comes_back_from_its_file_and_takes_more_rows(name, way, tmp_path):
    head, rows, labels = clustered(200)
    database, queries = rows[:120], rows[160:]
    expected = ContributionIndex(head, **way).fit(database, labels[:120])
    made = ContributionIndex(head, **way, backend=backend_of(name, tmp_path)).fit(
        database, labels[:120]
    )
    made.save(tmp_path / "index")
    before = made.query(queries, K)
    close(made)
    backend = backend_of(name, tmp_path) if name == "milvus" else None
    loaded = ContributionIndex.load(tmp_path / "index", head, backend=backend)
    try:
        assert (loaded.space, loaded.target, loaded.metric) == (
            way["space"],
            way["target"],
            way["metric"],
        )
        assert_same(loaded.query(queries, K), before, atol=SUMS)
        assert_same(before, expected.query(queries, K))
        loaded.add(rows[120:160], labels[120:160])
        expected.add(rows[120:160], labels[120:160])
        assert len(loaded) == 160
        assert_same(loaded.query(queries, K), expected.query(queries, K))
        loaded.save(tmp_path / "again")
    finally:
        close(loaded)
    again = ContributionIndex.load(tmp_path / "again", head, backend=backend)
    try:
        assert_same(again.query(queries, K), expected.query(queries, K))
    finally:
        close(again)


@pytest.mark.parametrize(("wrote", "reads"), [("exact", "usearch"), ("usearch", "exact")])
def test_a_file_can_be_searched_by_the_other_backend(wrote, reads, tmp_path):
    head, rows, labels = clustered(200)
    index = ContributionIndex(head, backend=backend_of(wrote, tmp_path)).fit(rows, labels)
    index.save(tmp_path / "index")
    other = ContributionIndex.load(tmp_path / "index", head, backend=backend_of(reads, tmp_path))
    assert type(other._fitted.backend) is not type(index._fitted.backend)
    assert_same(other.query(rows[:50], K), index.query(rows[:50], K))


def test_labels_are_kept_as_they_are_written(tmp_path):
    head, rows, labels = clustered(80)
    names = np.array(["ant", "bee", "cat", "dog", "eel"])
    index = ContributionIndex(head, classes=names).fit(rows, names[labels])
    index.save(tmp_path / "index")
    for one in (index, ContributionIndex.load(tmp_path / "index", head)):
        hits = one.query(rows[:10], K)
        assert np.array_equal(hits.labels, names[labels][hits.indices])
        assert set(hits.predicted) <= set(names)
        assert np.array_equal(hits.purity, (hits.labels == hits.predicted[:, None]).mean(1))
        assert len(one.add(rows[:1], names[:1])) == 81


def test_values_of_a_regression_are_kept_with_the_rows(tmp_path):
    rng = np.random.default_rng(0)
    head, rows, values = nn.Linear(WIDTH, 1), rng.normal(size=(60, WIDTH)), rng.normal(size=60)
    ContributionIndex(head).fit(rows, values).save(tmp_path / "index")
    hits = ContributionIndex.load(tmp_path / "index", head).query(rows[:7], 3)
    assert np.array_equal(hits.indices[:, 0], np.arange(7))
    assert np.array_equal(hits.labels, values[hits.indices])
    assert np.isnan(hits.confidence).all()
    with pytest.raises(ValueError, match="a regression has no classes"):
        _ = hits.purity
