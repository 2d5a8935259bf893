"""Runs the scripts of examples/ and makes pages of them; results are kept in .cache until something changes.

python docs/_examples.py            runs what changed
python docs/_examples.py trees      runs one, always
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import time
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS))

from _cells import notebook_of, page_of, read_script, run_script  # noqa: E402 - beside this file

EXAMPLES = ROOT / "examples"
KEPT = ROOT / ".cache" / "gallery"


def fingerprint(script: Path) -> str:
    """What a page is made of: the script, the package and the way it is made."""
    made_of = [script, *sorted((ROOT / "src").rglob("*.py")), DOCS / "_cells.py"]
    digest = hashlib.sha256()
    for path in made_of:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def make(script: Path, *, anew: bool = False) -> Path:
    """The folder with a script's page, pictures, pages and notebook; run only if it has changed."""
    folder = KEPT / script.stem
    stamp = folder / "fingerprint"
    wanted = fingerprint(script)
    if not anew and stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return folder

    began = time.perf_counter()
    content = read_script(script)
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch)
        results = run_script(content, script, made)
        (made / f"{script.stem}.md").write_text(page_of(content, results, made), encoding="utf-8")
        (made / f"{script.stem}.ipynb").write_text(notebook_of(content), encoding="utf-8")
        shutil.copy(script, made / script.name)
        (made / "fingerprint").write_text(wanted, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(made, folder)
    print(f"{script.name}: {time.perf_counter() - began:.1f} s", file=sys.stderr)
    return folder


def scripts() -> list[Path]:
    """All scripts, by name."""
    return sorted(EXAMPLES.glob("*.py"))


if __name__ == "__main__":
    asked = sys.argv[1:]
    for path in scripts():
        if not asked or path.stem in asked:
            make(path, anew=bool(asked))
