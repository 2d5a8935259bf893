"""A full disk, a folder that cannot be written to, and two writers at once."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from campaign.outcome import Outcome, clear, defect, describe, right
from campaign.part import Part, generator
from campaign.writing import ADD, CAM, FUNCTIONS, REPORT, SAVE, Writer, leftovers

WRITERS = (SAVE, FUNCTIONS, CAM, ADD, REPORT)
# Kinds of errors that say what is wrong with a disk.
MEANT = (OSError, ValueError)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """A file system of its own in a folder; needs root."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _full_disk(writer: Writer, folder: Path, _: float) -> BaseException | None:
    """Writes once with room, fills the disk, and writes again."""
    with small_disk(folder, "16m"):
        writer.write(folder, 0)
        _fill(folder / "ballast")
        error = _error_of(lambda: writer.write(folder, 1))
        _require_whole(writer, folder)
        if error is None:
            raise AssertionError("wrote on a full disk")
        (folder / "ballast").unlink()
        writer.write(folder, 1)
        _require_whole(writer, folder)
    return error


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (2**16, 2**12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def _read_only(writer: Writer, folder: Path, _: float) -> BaseException | None:
    with small_disk(folder, "16m"):
        writer.write(folder, 0)
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        error = _error_of(lambda: writer.write(folder, 1))
        _require_whole(writer, folder)
        if error is None:
            raise AssertionError("wrote into a folder that is read-only")
    return error


def _two_writers(writer: Writer, folder: Path, _: float) -> BaseException | None:
    """A copy of this process and this one write the same file in turn."""
    writer.write(folder, 0)
    child = os.fork()
    if child == 0:
        _write_quietly(writer, folder)
    try:
        for number in range(8):
            writer.write(folder, number)
            _require_whole(writer, folder, swept=False)
    finally:
        os.waitpid(child, 0)
    _require_whole(writer, folder)
    return None


def _write_quietly(writer: Writer, folder: Path) -> None:
    """The life of the copy; it never returns."""
    try:
        for number in range(8):
            writer.write(folder, number + 1)
    finally:
        os._exit(0)


def _error_of(write: Callable[[], None]) -> BaseException | None:
    try:
        write()
    except Exception as error:  # noqa: BLE001 - what is raised is what is judged
        return error
    return None


def _require_whole(writer: Writer, folder: Path, *, swept: bool = True) -> None:
    writer.check(folder)
    if swept and (left := leftovers(folder)):
        raise AssertionError(f"left {', '.join(left[:3])}")


SITUATIONS: tuple[Callable[[Writer, Path, float], BaseException | None], ...] = (
    _full_disk,
    _read_only,
    _two_writers,
)


def run(seed: int, case: int) -> Outcome:
    """One kind of write in one situation."""
    rng = generator(seed, "disks", case)
    writer = WRITERS[case % len(WRITERS)]
    situation = SITUATIONS[case // len(WRITERS) % len(SITUATIONS)]
    text = f"{writer.name}: {situation.__name__.strip('_').replace('_', ' ')}"
    if situation is not _two_writers and os.geteuid() != 0:
        return clear(text, "not tried: only root can make a file system")
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        try:
            error = situation(writer, Path(folder), float(rng.random()))
        except Exception as failure:  # noqa: BLE001 - whatever a half-written file causes
            return defect(text, describe(failure))
    if error is None:
        return right(text)
    if not isinstance(error, MEANT):
        return defect(text, f"an accident: {describe(error)}")
    return clear(text, error)


PART = Part(
    name="disks",
    tried="a full disk, a read-only folder and two writers at once, for every kind of file",
    must="a clear error and the old file, or the new one",
    count=150,
    sample=15,
    run=run,
    seconds=180.0,
)
