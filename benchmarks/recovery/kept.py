"""Results kept from one run to the next, a line of JSON each, so that an interrupted run goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Kept:
    """Results by case, explainer and fingerprint.

    A line is written and flushed as soon as a result is there. A last line cut short by an interruption is
    passed over, and so its result is computed again.

    Args:
        path: The file; its folder is made and told to stay out of version control.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / ".gitignore").write_text("*\n", encoding="utf-8")
        self._path = path
        self._found: dict[tuple[str, str, str], dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._take(line)

    def get(self, case: str, explainer: str, fingerprint: str) -> dict[str, Any] | None:
        return self._found.get((case, explainer, fingerprint))

    def put(self, case: str, explainer: str, fingerprint: str, result: dict[str, Any]) -> None:
        record = {"case": case, "explainer": explainer, "fingerprint": fingerprint, "result": result}
        with self._path.open("a+b") as file:
            file.seek(0, 2)
            if file.tell():
                file.seek(-1, 2)
                if file.read(1) != b"\n":  # what an interruption left behind must not spoil this line too
                    file.write(b"\n")
            file.write((json.dumps(record) + "\n").encode())
        self._found[case, explainer, fingerprint] = result

    def _take(self, line: str) -> None:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            return
        self._found[record["case"], record["explainer"], record["fingerprint"]] = record["result"]
