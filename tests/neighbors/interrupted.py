"""A process that adds rows to an index and keeps it, killed again and again at random moments.

    python interrupted.py folder kills seed backend...

Before every kill it waits until a save (for Milvus: an addition) has been reported. `<n>.kept` is a copy of the
file after kill n, and `reported` says after how many additions each kill came; each backend has a folder.
"""

import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import nobsp

WIDTH, CLASSES, STEP = 48, 3, 200


def head():
    rng = np.random.default_rng(0)
    made = nn.Linear(WIDTH, CLASSES)
    with torch.no_grad():
        made.weight.copy_(torch.from_numpy(rng.normal(size=(CLASSES, WIDTH))))
        made.bias.zero_()
    return made


def rows(part):
    """The rows of the n-th addition, and their labels."""
    rng = np.random.default_rng(100 + part)
    return rng.normal(size=(STEP, WIDTH)), rng.integers(CLASSES, size=STEP)


def collection(folder):
    from nobsp.neighbors import Milvus

    return Milvus(uri=str(folder / "rows.db"))


def made(backend, folder):
    if backend == "milvus":
        backend = collection(folder)
    nobsp.ContributionIndex(head(), backend=backend).fit(*rows(0)).save(folder / "index")
    os._exit(0)


def add_forever(folder, said):
    """Goes on from what is kept; one byte for each addition that is safe."""
    backend = collection(folder) if (folder / "rows.db").exists() else None
    index = nobsp.ContributionIndex.load(folder / "index", head(), backend=backend)
    assert len(index) % STEP == 0, len(index)
    for part in range(len(index) // STEP, 10_000):
        index.add(*rows(part))
        index.save(folder / "index")
        os.write(said, b".")
    os._exit(1)


def in_another_process(work, *arguments):
    """The number of a forked process; a fork of several threads could wait for what the others held."""
    threads = threading.active_count()
    assert threads == 1, f"{threads} threads are running"
    pid = os.fork()
    if pid == 0:
        try:
            work(*arguments)
        finally:
            os._exit(1)
    return pid


def main(folder, kills, seed, *backends):
    nobsp.ContributionIndex(head()).fit(*rows(0)).query(
        rows(1)[0], k=1
    )  # whatever is imported late, once for all
    for backend in backends:
        (folder / backend).mkdir()
        interrupt(backend, folder / backend, kills, random.Random(seed))


def interrupt(backend, folder, kills, moments):
    reported = []
    assert os.waitpid(in_another_process(made, backend, folder), 0)[1] == 0
    for number in range(kills):
        hears, says = os.pipe()
        pid = in_another_process(add_forever, folder, says)
        os.close(says)
        heard = len(os.read(hears, 1))
        time.sleep(moments.uniform(0, 0.05))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while more := os.read(hears, 4096):
            heard += len(more)
        os.close(hears)
        assert heard, "the process ended by itself"
        reported.append(heard)
        shutil.copy(folder / "index", folder / f"{number}.kept")
    (folder / "reported").write_text(json.dumps(reported))


if __name__ == "__main__":
    # A process that has used several threads cannot be forked: its copy waits for threads that it lacks.
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
