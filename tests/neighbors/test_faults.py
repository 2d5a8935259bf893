"""What goes wrong around an index: killed processes, several readers, files and arguments that are not as they seem."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from torch import nn

import nobsp
from nobsp.neighbors import ContributionIndex, Milvus, Usearch, audit
from nobsp.neighbors.backends import KIND, VERSION
from tests.changed_files import swapped_tensors
from tests.neighbors import interrupted
from tests.processes import end_of, environment, line_of, run_process, started_together

WIDTH, CLASSES, ROWS = 6, 4, 60
SCRIPT = Path(interrupted.__file__)


def world(*, width=WIDTH, classes=CLASSES, seed=0):
    rng = np.random.default_rng(seed)
    head = nn.Linear(width, classes)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(rng.normal(size=(classes, width))))
        head.bias.zero_()
    return head, rng.normal(size=(ROWS, width)), rng.integers(classes, size=ROWS)


@pytest.fixture(scope="module")
def fitted():
    head, X, labels = world()
    return ContributionIndex(head).fit(X, labels)


def run_script(*arguments):
    """Another Python that finds the same packages and uses one thread."""
    run_process([sys.executable, SCRIPT, *arguments], env=environment())


# ---------------------------------------------------------------------- processes


def test_a_killed_process_leaves_every_addition_that_was_saved_and_no_half_ones(tmp_path):
    pytest.importorskip("usearch")
    run_script(tmp_path, 4, 0, "exact", "usearch")
    step = interrupted.STEP
    for folder in (tmp_path / "exact", tmp_path / "usearch"):
        before = step
        for number, reported in enumerate(json.loads((folder / "reported").read_text())):
            index = ContributionIndex.load(folder / f"{number}.kept", interrupted.head())
            # What was reported is there; of the addition under way, either everything or nothing.
            assert len(index) - before in (reported * step, (reported + 1) * step)
            before = len(index)
        parts = [interrupted.rows(part) for part in range(before // step)]
        whole, labels = (np.concatenate(some) for some in zip(*parts, strict=True))
        hits = index.query(whole[::37], k=1)
        is_found = hits.indices[:, 0] == np.arange(len(whole))[::37]
        # Usearch is approximate, and its graph depends on when the process was killed.
        least = 1.0 if folder.name == "exact" else 0.9
        assert is_found.mean() >= least
        assert np.array_equal(hits.labels[is_found, 0], labels[::37][is_found])
        assert len(index.add(*interrupted.rows(0))) == before + step


def test_a_killed_process_leaves_a_usable_collection(tmp_path):
    pytest.importorskip("milvus_lite")
    run_script(tmp_path, 2, 0, "milvus")
    reported = json.loads((tmp_path / "milvus" / "reported").read_text())
    backend = interrupted.collection(tmp_path / "milvus")
    index = ContributionIndex.load(
        tmp_path / "milvus" / "index", interrupted.head(), backend=backend
    )
    try:
        count = len(index)
        assert count % interrupted.STEP == 0
        assert count >= (1 + sum(reported)) * interrupted.STEP
        X, labels = interrupted.rows(count // interrupted.STEP)
        hits = index.add(X, labels).query(X[:20], k=1)
        assert np.array_equal(hits.indices[:, 0], np.arange(count, count + 20))
        assert np.array_equal(hits.labels[:, 0], labels[:20])
    finally:
        index._fitted.backend.close()


READER = """
import sys, json, torch
from nobsp.neighbors import ContributionIndex
from tests.neighbors import interrupted
indices = [ContributionIndex.load(path, interrupted.head()) for path in sys.argv[1:]]
print("open", flush=True)
sys.stdin.readline()
found = [(len(index), index.query(interrupted.rows(7)[0][:25], k=5)) for index in indices]
print(json.dumps([(count, hits.indices.tolist(), hits.distances.tolist()) for count, hits in found]))
"""


def test_readers_in_two_processes_find_the_same_while_the_file_is_replaced(tmp_path):
    pytest.importorskip("usearch")
    backends = ("exact", "usearch")
    indices = [
        ContributionIndex(interrupted.head(), backend=name).fit(*interrupted.rows(0))
        for name in backends
    ]
    expected = [index.query(interrupted.rows(7)[0][:25], k=5) for index in indices]
    paths = [tmp_path / name for name in backends]
    for index, path in zip(indices, paths, strict=True):
        index.save(path)
    commands = [[sys.executable, "-c", READER, *paths]] * 2
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with started_together(commands, env=environment(), **pipes) as readers:
        assert [line_of(reader) for reader in readers] == ["open\n"] * 2
        for index, path in zip(indices, paths, strict=True):
            index.add(*interrupted.rows(1)).save(path)  # both have the former one open
        answers = [end_of(reader, "go\n")[0] for reader in readers]
    for answer in answers:
        assert json.loads(answer) == [
            [interrupted.STEP, hits.indices.tolist(), hits.distances.tolist()] for hits in expected
        ]
    assert len(ContributionIndex.load(paths[1], interrupted.head())) == 2 * interrupted.STEP


# ---------------------------------------------------------------------- files


def test_a_file_of_another_width_is_refused(fitted, tmp_path):
    fitted.save(tmp_path / "index")
    with pytest.raises(ValueError, match="made with another explainer"):
        ContributionIndex.load(tmp_path / "index", world(width=WIDTH + 1)[0])


def test_a_file_of_another_explainer_of_the_same_shape_is_refused(fitted, tmp_path):
    fitted.save(tmp_path / "index")
    with pytest.raises(ValueError, match="made with another explainer"):
        ContributionIndex.load(tmp_path / "index", world(seed=1)[0])


def test_a_file_is_refused_after_one_weight_of_the_head_has_changed(fitted, tmp_path):
    fitted.save(tmp_path / "index")
    head = world()[0]
    with torch.no_grad():
        head.weight[2, 3] += 0.01
    with pytest.raises(ValueError, match="made with another explainer"):
        ContributionIndex.load(tmp_path / "index", head)


@pytest.mark.parametrize("backend", ["exact", "usearch"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_truncated_file_is_refused(backend, share, tmp_path):
    pytest.importorskip("usearch")
    head, X, labels = world()
    path = tmp_path / "index"
    ContributionIndex(head, backend=backend).fit(X, labels).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match="damaged"):
        ContributionIndex.load(path, head)


@pytest.mark.parametrize("content", [b"PK\x03\x04 something else", b"\x00" * 4096, b"{}"])
def test_a_foreign_file_is_refused(content, tmp_path):
    path = tmp_path / "index"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged or no safetensors file"):
        ContributionIndex.load(path, world()[0])


def test_files_of_other_kinds_are_refused_by_name(tmp_path):
    from safetensors.torch import save_file

    head, X, _ = world()
    save_file({"weight": torch.zeros(3)}, tmp_path / "weights")
    with pytest.raises(
        ValueError, match="does not hold a nobsp contribution index but something else"
    ):
        ContributionIndex.load(tmp_path / "weights", head)
    net = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 2))
    nobsp.NObSP(net).fit(X).save(tmp_path / "explainer")
    with pytest.raises(ValueError, match="does not hold a nobsp contribution index but"):
        ContributionIndex.load(tmp_path / "explainer", head)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ContributionIndex.load(tmp_path / "nowhere", head)


def test_a_failed_save_leaves_the_former_file(fitted, tmp_path, monkeypatch):
    path = tmp_path / "index"
    fitted.save(path)
    before = path.read_bytes()

    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(nobsp.serialization, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        fitted.save(path)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["index"]


# ---------------------------------------------------------------------- Milvus


def test_a_missing_milvus_server_is_a_clear_error():
    pytest.importorskip("pymilvus")
    head, X, labels = world()
    with pytest.raises(
        ConnectionError, match=r"cannot be reached at 'http://127\.0\.0\.1:1'.*has to be running"
    ):
        ContributionIndex(head, backend=Milvus(uri="http://127.0.0.1:1")).fit(X, labels)


def test_a_milvus_server_that_does_not_answer_is_a_clear_error_after_its_timeout():
    pytest.importorskip("pymilvus")
    head, X, labels = world()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConnectionError, match="cannot be reached"):
            ContributionIndex(head, backend=Milvus(uri=uri, timeout=1)).fit(X, labels)


def test_places_where_milvus_cannot_be_are_refused(tmp_path):
    pytest.importorskip("milvus_lite")
    head, X, labels = world()
    with pytest.raises(ValueError, match=r'ends in "\.db"'):
        ContributionIndex(head, backend=Milvus(uri=str(tmp_path / "rows"))).fit(X, labels)
    with pytest.raises(ConnectionError, match="nowhere"):
        ContributionIndex(head, backend=Milvus(uri=str(tmp_path / "nowhere" / "rows.db"))).fit(
            X, labels
        )


# ---------------------------------------------------------------------- arguments


@pytest.mark.parametrize("k", [0, -1, 2.0, True, "8"])
def test_k_must_be_a_positive_whole_number(fitted, k):
    _, X, _ = world()
    for asked in (
        lambda: fitted.query(X, k),
        lambda: audit(fitted, X, k=k),
        lambda: fitted.prototypes(k),
    ):
        with pytest.raises(ValueError, match="must be a whole number of at least 1, found"):
            asked()


def test_more_neighbours_than_there_are_rows_is_an_error(fitted):
    _, X, _ = world()
    assert fitted.query(X, ROWS).k == ROWS
    assert fitted.query(X[:1], ROWS, exclude=[-1]).k == ROWS
    with pytest.raises(ValueError, match=f"k is {ROWS + 1}, but the database has {ROWS} rows"):
        fitted.query(X, ROWS + 1)
    with pytest.raises(
        ValueError, match=f"k is {ROWS}, but the database has {ROWS} rows, less those excluded"
    ):
        fitted.query(None, ROWS)


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (np.zeros(ROWS - 1, int), ValueError, f"labels has {ROWS - 1} entries for {ROWS} rows"),
        (
            np.full(ROWS, CLASSES),
            ValueError,
            r"labels holds 4 \(row 0\), which is not one of the classes \[0, 1, 2, 3\]",
        ),
        (np.r_[np.zeros(ROWS - 1, int), -1], ValueError, rf"labels holds -1 \(row {ROWS - 1}\)"),
        (np.full(ROWS, 0.5), ValueError, r"labels holds 0\.5 \(row 0\)"),
        (np.array(["cat"] * ROWS), ValueError, "labels holds 'cat'.*output 0.*classes="),
        (np.full(ROWS, np.nan), ValueError, "labels has no number in row 0"),
        (np.eye(CLASSES)[np.zeros(ROWS, int)], ValueError, "exactly one class in each row"),
        ([None] * ROWS, TypeError, "labels must be numbers or names"),
    ],
)
def test_wrong_labels_are_refused_with_what_was_found(fitted, labels, error, message):
    head, X, _ = world()
    with pytest.raises(error, match=message):
        ContributionIndex(head).fit(X, labels)
    with pytest.raises((ValueError, TypeError)):
        fitted.add(X, labels)
    with pytest.raises((ValueError, TypeError)):
        audit(fitted, X, labels)
    assert len(fitted) == ROWS


def test_labels_are_for_all_rows_or_for_none(fitted):
    head, X, labels = world()
    with pytest.raises(ValueError, match="the database has labels"):
        fitted.add(X)
    unlabelled = ContributionIndex(head).fit(X)
    with pytest.raises(ValueError, match="the database has no labels"):
        unlabelled.add(X, labels)
    with pytest.raises(ValueError, match="purity needs the labels of the database"):
        _ = unlabelled.query(X[:2], 3).purity
    with pytest.raises(ValueError, match="an audit needs the labels of the database"):
        audit(unlabelled, X)
    with pytest.raises(ValueError, match="labels of the database"):
        unlabelled.prototypes()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_that_are_no_numbers_are_refused_and_nothing_is_added(fitted, value):
    head, X, labels = world()
    X[3, 2] = value
    for asked in (
        lambda: ContributionIndex(head).fit(X, labels),
        lambda: fitted.query(X, 3),
        lambda: fitted.add(X, labels),
        lambda: audit(fitted, X),
    ):
        with pytest.raises(ValueError, match="in row 3, column 2"):
            asked()
    assert len(fitted) == ROWS


def test_empty_tables_and_other_shapes_are_refused(fitted):
    head, X, _ = world()
    none = np.zeros((0, WIDTH))
    for asked in (
        lambda: ContributionIndex(head).fit(none, []),
        lambda: fitted.query(none, 3),
        lambda: fitted.add(none, []),
        lambda: audit(fitted, none),
    ):
        with pytest.raises(ValueError, match="X has no rows"):
            asked()
    with pytest.raises(ValueError, match=f"X has {WIDTH - 1} columns but the head reads {WIDTH}"):
        fitted.query(X[:, 1:], 3)
    with pytest.raises(ValueError, match="two dimensions"):
        fitted.query(X[0], 3)


def test_what_is_not_fitted_says_so(tmp_path):
    head, X, labels = world()
    index = ContributionIndex(head)
    for asked in (
        lambda: index.query(X),
        lambda: index.add(X, labels),
        lambda: index.save(tmp_path / "index"),
        lambda: audit(index, X),
        lambda: index._view(space="activations"),
        lambda: len(index),
        index.prototypes,
        index.duplicates,
    ):
        with pytest.raises(NotFittedError, match="call fit"):
            asked()
    net = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 2))
    with pytest.raises(NotFittedError, match="call fit"):
        ContributionIndex(nobsp.NObSP(net)).fit(X, labels % 2)
    with pytest.raises(TypeError, match=r"found Sequential\. Make NObSP\(model\)"):
        ContributionIndex(net).fit(X, labels % 2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        (
            "space",
            "contribution",
            'space must be "contributions" or "activations", found',
        ),
        ("target", "mine", 'target must be "query" or "own", found'),
        ("metric", "l2", 'metric must be "euclidean" or "cosine", found'),
        ("backend", "faiss", 'backend must be "exact", "usearch", "milvus".*found \'faiss\''),
        ("backend", None, "backend must be .*found None"),
        ("task", "ranking", "task must be .*found 'ranking'"),
        ("classes", ["a", "b"], f"classes must be {CLASSES} different labels"),
        ("output", 1, 'output is for task="regression"'),
        ("memory_limit", 100, "memory_limit is 100 bytes"),
    ],
)
def test_unknown_options_are_refused_with_those_there_are(option, value, message):
    head, X, labels = world()
    with pytest.raises(ValueError, match=message):
        ContributionIndex(head, **{option: value}).fit(X, labels)


@pytest.mark.parametrize(
    ("exclude", "message"),
    [
        ("me", 'exclude must be None, "self", or positions'),
        ("self", "query i is row i of the database, but there are 2 queries"),
        ([1, ROWS], f"positions from 0 to {ROWS - 1}"),
        ([0.0, 1.0], "exclude must hold positions"),
        ([0], "for each of the 2 queries"),
    ],
)
def test_rows_to_exclude_must_be_positions_in_the_database(fitted, exclude, message):
    _, X, _ = world()
    with pytest.raises(ValueError, match=message):
        fitted.query(X[:2], 3, exclude=exclude)
    with pytest.raises(ValueError, match=message):
        audit(fitted, X[:2], k=3, exclude=exclude)


@pytest.mark.parametrize("threshold", [-0.1, 2.0, np.nan, True, "0.1"])
def test_a_threshold_that_no_distance_has_is_refused(fitted, threshold):
    with pytest.raises(ValueError, match="threshold must lie between 0 and 2"):
        fitted.duplicates(threshold)


def test_rows_of_one_place_are_not_read_from_another(fitted, tmp_path):
    fitted.save(tmp_path / "index")
    with pytest.raises(ValueError, match="the rows of this index are in the file"):
        ContributionIndex.load(
            tmp_path / "index", world()[0], backend=Milvus(uri=str(tmp_path / "rows.db"))
        )
    with pytest.raises(ValueError, match="found 'faiss'"):
        ContributionIndex.load(tmp_path / "index", world()[0], backend="faiss")


def test_a_file_alone_makes_nobody_connect(tmp_path, monkeypatch):
    pytest.importorskip("milvus_lite")
    head, X, labels = world()
    place = Milvus(uri=str(tmp_path / "rows.db"))
    index = ContributionIndex(head, backend=place).fit(X, labels)
    index.save(tmp_path / "index")
    index.close()
    monkeypatch.setattr(
        "nobsp.neighbors.backends._connect", lambda _: pytest.fail("the file chose where to")
    )
    with pytest.raises(ValueError, match=r"in Milvus.*pass backend="):
        ContributionIndex.load(tmp_path / "index", head)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused_before_any_search(tmp_path, wrong):
    head, X, labels = world()
    index = ContributionIndex(head).fit(X, labels)
    index._fitted.backend.rows.activations[3, 1] = wrong
    index.save(tmp_path / "index")
    with pytest.raises(ValueError, match="activations has numbers that are not finite"):
        ContributionIndex.load(tmp_path / "index", head)


def test_a_name_that_was_damaged_in_the_file_is_told(tmp_path):
    head, X, labels = world()
    path = tmp_path / "index"
    ContributionIndex(head).fit(X, labels).save(path)
    path.write_bytes(path.read_bytes().replace(b"fingerprint", b"fingerprimt"))
    with pytest.raises(ValueError, match="is damaged"):
        ContributionIndex.load(path, head)


@pytest.mark.parametrize("where", [0, 1000, 5000])
def test_a_graph_that_was_damaged_in_the_file_is_refused(where, tmp_path):
    """The library that walks it would follow whatever edges it reads, out of memory."""
    pytest.importorskip("usearch")
    head, X, labels = world()
    path = tmp_path / "index"
    ContributionIndex(head, backend=Usearch(threads=1)).fit(X, labels).save(path)
    whole = path.read_bytes()
    at = whole.rindex(b"usearch") + where  # how a graph begins
    path.write_bytes(
        whole[:at] + bytes(255 - byte for byte in whole[at : at + 64]) + whole[at + 64 :]
    )
    with pytest.raises(ValueError, match="is damaged"):
        ContributionIndex.load(path, head)


@pytest.mark.parametrize("explained", ["head", "table"])
def test_tensors_that_changed_places_are_refused_when_a_file_is_read(explained, tmp_path):
    head, X, labels = world()
    if explained == "table":
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))
        explainer = nobsp.NObSP(net, interactions=0, background=4).fit(X)
    else:
        explainer = head
    path = tmp_path / "index"
    ContributionIndex(explainer).fit(X, labels).save(path)

    swaps = 0
    for _ in swapped_tensors(path, kind=KIND, version=VERSION):
        with pytest.raises(ValueError, match=r"is damaged|another explainer"):
            ContributionIndex.load(path, explainer)
        swaps += 1

    assert swaps > 10


@pytest.mark.parametrize("labels", [3, object(), int, len])
def test_labels_that_cannot_be_counted_are_refused_by_name(fitted, labels):
    head, X, _ = world()
    rows = X.tolist()
    with pytest.raises(TypeError, match="labels"):
        ContributionIndex(head).fit(rows, labels)
    with pytest.raises(TypeError, match="labels"):
        fitted.add(rows, labels)
