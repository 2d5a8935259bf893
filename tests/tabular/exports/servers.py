"""A PostgreSQL of a test's own: in a folder that goes with it, reached by a socket there and by nothing else."""

from __future__ import annotations

import csv
import io
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.processes import run_process, started

LONGEST_START = 60.0


def programs_of_postgres() -> Path:
    """The folder of PostgreSQL's programs; the test is skipped where there is none."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if all((folder / name).exists() for name in ("initdb", "postgres", "psql", "pg_isready")):
            return folder
    pytest.skip("PostgreSQL is not installed")


def ordinary_user() -> dict[str, Any]:
    """Options that start a process as somebody else than root, as whom PostgreSQL does not run."""
    if os.getuid() != 0:
        return {}
    import pwd

    try:
        owner = pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("the tests run as root and there is no user postgres to run PostgreSQL as")
    return {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}


class Postgres:
    """A running server."""

    def __init__(self, programs: Path, folder: Path, options: dict[str, Any]) -> None:
        self._programs = programs
        self._folder = folder
        self._options = options

    def run(self, script: str, **options: Any) -> str:
        """What a script of psql writes."""
        path = self._folder / "script.sql"
        path.write_text(script, encoding="utf-8")
        words = [self._programs / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1"]
        words += ["-h", self._folder, "-U", "tester", "-d", "postgres", "-f", path]
        return run_process(words, **self._options, **options).stdout

    def create(self, table: str, types: list[str], rows: pd.DataFrame) -> None:
        """A table of rows; missing values are NULL."""
        names = ['"' + name.replace('"', '""') + '"' for name in rows.columns]
        columns = ", ".join(f"{name} {kind}" for name, kind in zip(names, types, strict=True))
        written = io.StringIO()
        rows.to_csv(written, index=False, header=False, na_rep="\\N", quoting=csv.QUOTE_MINIMAL)
        copied = f"COPY {table} FROM STDIN (FORMAT csv, NULL '\\N');\n{written.getvalue()}\\.\n"
        self.run(f"CREATE TABLE {table} ({columns});\n{copied}")

    def query(self, select: str) -> pd.DataFrame:
        """The rows of a SELECT."""
        text = self.run(f"COPY ({select}) TO STDOUT (FORMAT csv, HEADER);")
        names, *records = csv.reader(io.StringIO(text))
        return pd.DataFrame(records, columns=names).astype({"key": int})


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A server from an empty folder to its end."""
    programs = programs_of_postgres()
    options = ordinary_user()
    folder = Path(tempfile.mkdtemp(prefix="nobsp-postgres-", dir="/tmp"))
    try:
        if options:
            os.chown(folder, options["user"], options["group"])
        options["cwd"] = folder
        data = folder / "data"
        initialise = [programs / "initdb", "-D", data, "-U", "tester", "-A", "trust"]
        run_process([*initialise, "--no-sync", "-E", "UTF8", "--locale=C.UTF-8"], **options)

        serve = [programs / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses="]
        serve += ["-c", "fsync=off", "-c", "shared_buffers=16MB"]
        with (
            open(folder / "log", "wb") as log,
            started(serve, stdout=log, stderr=log, **options),
        ):
            server = Postgres(programs, folder, options)
            _wait_until_ready(programs, folder, options)
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_ready(programs: Path, folder: Path, options: dict[str, Any]) -> None:
    """Asks until the server answers."""
    ends = time.monotonic() + LONGEST_START
    while time.monotonic() < ends:
        asked = run_process([programs / "pg_isready", "-h", folder], check=False, **options)
        if asked.returncode == 0:
            return
        time.sleep(0.1)
    raise AssertionError(f"PostgreSQL did not start:\n{(folder / 'log').read_text()}")
