"""Threads, copies of the process, loaders and pickles: results as from one thread, and no deadlock."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nobsp
from campaign.outcome import Outcome, defect, describe, right
from campaign.part import Part, generator
from campaign.subjects import Surroundings, World, make_rows, world

THREADS = 8
# A copy of the process that has not answered by then waits for a lock.
PATIENCE = 15.0


class DifferentError(Exception):
    """Another result than from one thread."""


@cache
def _expected(kind: str, seed: int) -> np.ndarray:
    return _call(kind, seed)


def _call(kind: str, seed: int) -> np.ndarray:
    """A call whose numbers are known."""
    subjects = world()
    rows = make_rows(rows=16, seed=seed)
    if kind == "explain":
        values: np.ndarray = subjects.explainer(rows).values
    elif kind == "functions":
        values = subjects.compiled(rows).values
    elif kind == "cam":
        values = subjects.cam(subjects.images).account
    elif kind == "query":
        values = subjects.index.query(rows, 3).distances
    else:
        explainer = nobsp.NObSP(subjects.network, interactions=0, background=4).fit(rows)
        values = explainer(rows).values
    return values


KINDS = ("explain", "functions", "cam", "query", "fit")


def _require_same(values: np.ndarray, kind: str, seed: int) -> None:
    if not np.allclose(values, _expected(kind, seed), atol=1e-6):
        raise DifferentError(
            f"{kind} differs by {np.abs(values - _expected(kind, seed)).max():.2g}"
        )


def _threads(rng: np.random.Generator) -> str:
    """Eight threads call the same objects."""
    jobs = [(str(rng.choice(KINDS)), int(rng.integers(3))) for _ in range(THREADS)]
    for kind, seed in jobs:
        _expected(kind, seed)
    errors: list[BaseException] = []
    barrier = threading.Barrier(THREADS)

    def work(kind: str, seed: int) -> None:
        try:
            barrier.wait(timeout=PATIENCE)
            for _ in range(3):
                _require_same(_call(kind, seed), kind, seed)
        except BaseException as error:  # noqa: BLE001 - told to the thread that waits
            errors.append(error)

    running = [threading.Thread(target=work, args=job, daemon=True) for job in jobs]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(timeout=PATIENCE)
        if thread.is_alive():
            raise DifferentError("a thread did not come to its end")
    if errors:
        raise errors[0]
    return f"eight threads, {', '.join(sorted({kind for kind, _ in jobs}))}"


def _fork(rng: np.random.Generator) -> str:
    """A copy of the process calls, in half of the cases while a thread of this one does."""
    kind = str(rng.choice(KINDS))
    seed = int(rng.integers(3))
    busy = bool(rng.random() < 0.5)
    _expected(kind, seed)
    stop = threading.Event()
    other = threading.Thread(target=_call_until, args=(stop,), daemon=True)
    if busy:
        other.start()
    try:
        answer = _ask_copy(kind, seed)
    finally:
        stop.set()
        if busy:
            other.join(timeout=PATIENCE)
    if answer != b"1":
        raise DifferentError("the copy hung" if answer is None else "the copy has other numbers")
    return f"{kind} in a fork{' while a thread explains' if busy else ''}"


def _call_until(stop: threading.Event) -> None:
    while not stop.is_set():
        _call("explain", 0)


def _ask_copy(kind: str, seed: int) -> bytes | None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            same = np.allclose(_call(kind, seed), _expected(kind, seed), atol=1e-6)
            os.write(writing, b"1" if same else b"0")
        finally:
            os._exit(0)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], PATIENCE)
        return os.read(reading, 1) if ready else None
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)


SPAWNED = """
import pickle, sys
import numpy as np
subject, rows = pickle.load(open(sys.argv[1], "rb"))
pickle.dump(subject(rows).values, open(sys.argv[2], "wb"))
"""


def _spawn(rng: np.random.Generator) -> str:
    """An explainer in another process, by pickle."""
    seed = int(rng.integers(3))
    subject = world().explainer
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "there"
        back = Path(folder) / "back"
        there.write_bytes(pickle.dumps((subject, make_rows(rows=16, seed=seed))))
        subprocess.run(
            [sys.executable, "-c", SPAWNED, str(there), str(back)], check=True, timeout=120
        )
        _require_same(pickle.loads(back.read_bytes()), "explain", seed)  # noqa: S301 - our own
    return "explain in a spawned process"


class _Explained(torch.utils.data.Dataset[Any]):
    """Rows that are explained where they are loaded."""

    def __init__(self, seed: int) -> None:
        self.rows = make_rows(rows=16, seed=seed)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, position: int) -> np.ndarray:
        values: np.ndarray = world().explainer(self.rows[position : position + 1]).values[0]
        return values


def _loader(rng: np.random.Generator) -> str:
    """Two workers of a DataLoader, forked after use."""
    seed = int(rng.integers(3))
    loader = torch.utils.data.DataLoader(
        _Explained(seed), batch_size=4, num_workers=2, timeout=PATIENCE
    )
    values = torch.cat(list(loader)).numpy()
    _require_same(values, "explain", seed)
    return "explain in workers of a DataLoader"


def _joblib(rng: np.random.Generator) -> str:
    from joblib import Parallel, delayed

    backend = "threading"
    jobs = [(str(rng.choice(KINDS)), int(rng.integers(3))) for _ in range(6)]
    results = Parallel(n_jobs=3, backend=backend)(delayed(_call)(*job) for job in jobs)
    for values, job in zip(results, jobs, strict=True):
        _require_same(values, *job)
    return "six calls by joblib"


# Every public object, and what it is asked before and after.
OBJECTS: dict[str, tuple[Callable[[World], Any], Callable[[Any], Any]]] = {
    "NObSP": (lambda w: w.explainer, lambda o: o(make_rows(rows=4)).values),
    "Functions": (lambda w: w.compiled, lambda o: o(make_rows(rows=4)).values),
    "Explanation": (lambda w: w.explanation, lambda o: o.values),
    "NObSPCam": (lambda w: w.cam, lambda o: o(world().images[:2]).account),
    "ActivationMaps": (lambda w: w.maps, lambda o: o.account),
    "ContributionIndex": (lambda w: w.index, lambda o: o.query(make_rows(rows=4), 2).distances),
    "Neighbors": (lambda w: w.hits, lambda o: o.distances),
    "Audit": (lambda w: w.audit, lambda o: o.joint),
    "Local": (lambda _: nobsp.Local(), lambda o: np.array([o.memory])),
    "RayCluster": (lambda _: nobsp.RayCluster(), lambda o: np.array([o.memory])),
}


def _pickled(rng: np.random.Generator) -> str:
    import cloudpickle

    name = str(rng.choice(sorted(OBJECTS)))
    make, ask = OBJECTS[name]
    module = pickle if rng.random() < 0.5 else cloudpickle
    subject = make(world())
    copy = pickle.loads(module.dumps(subject))  # noqa: S301 - our own
    if not np.allclose(ask(copy), ask(subject), atol=1e-9, equal_nan=True):
        raise DifferentError(f"the copy of a {name} has other numbers")
    return f"{name} by {module.__name__}"


# How often each is tried; starting a process takes long.
SITUATIONS: tuple[tuple[Callable[[np.random.Generator], str], int], ...] = (
    (_threads, 30),
    (_pickled, 40),
    (_fork, 20),
    (_joblib, 6),
    (_loader, 3),
    (_spawn, 1),
)


def run(seed: int, case: int) -> Outcome:
    """One situation."""
    rng = generator(seed, "threads", case)
    weights = np.array([weight for _, weight in SITUATIONS], dtype=float)
    position = (
        case if case < len(SITUATIONS) else rng.choice(len(weights), p=weights / weights.sum())
    )
    situation = SITUATIONS[int(position)][0]
    text = situation.__name__.strip("_")
    models = world().models
    earlier = Surroundings.now(models)
    try:
        text = situation(rng)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is the finding
        return defect(text, describe(error))
    changes = [name for name in Surroundings.now(models).changes_since(earlier) if name == "models"]
    if changes:
        world.cache_clear()
        return defect(text, "changed the model")
    return right(text)


PART = Part(
    name="threads",
    tried="eight threads on one explainer, fork and spawn after use, workers of a DataLoader, joblib, pickle and "
    "cloudpickle of every public object",
    must="equal to results of one thread; no deadlock",
    count=1_000,
    sample=12,
    run=run,
    seconds=300.0,
)
