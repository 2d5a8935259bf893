"""Builds wheel and sdist and checks them: contents, metadata, links, and that they install and work.

python release/check.py --out dist                 builds and reads them
python release/check.py --out dist --install       also installs them into fresh environments and tries them
"""

import argparse
import email
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Extras that are installed one by one, each into an environment of its own.
TRIED_EXTRAS = (
    "plot",
    "images",
    "report",
    "frames",
    "ann",
    "milvus",
    "ray",
    "skops",
    "onnx",
    "excel",
)
# Where an address in the long description would lead nowhere.
RELATIVE_LINK = re.compile(r"\]\((?!https?://|#|\[)[^)]*\)|(?:src|srcset)=\"(?!https?://)[^\"]*\"")


@dataclass(frozen=True)
class Built:
    """What was built."""

    wheel: Path
    sdist: Path


def run(words: Sequence[object], **options: object) -> str:
    """Runs a command and returns what it wrote; an error shows it."""
    command = [str(word) for word in words]
    finished = subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if finished.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{finished.stdout}{finished.stderr}")
    return str(finished.stdout)


def build(out: Path) -> Built:
    """The sdist, and the wheel made from the same tree."""
    run([sys.executable, "-m", "hatchling", "build", "-d", out.resolve()], cwd=ROOT)
    [wheel] = out.glob("*.whl")
    [sdist] = out.glob("*.tar.gz")
    return Built(wheel=wheel, sdist=sdist)


def check_wheel(wheel: Path) -> Message:
    """The package and nothing else, typed, with its pages; returns the metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [about] = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(about))

    strangers = [name for name in names if not re.match(r"nobsp(/|-[^/]*\.dist-info/)", name)]
    require(not strangers, f"the wheel holds {strangers}")
    for needed in ("nobsp/py.typed", "nobsp/reporting/page.html.j2", "nobsp/demo/index.html.j2"):
        require(needed in names, f"the wheel lacks {needed}")
    sources = {f"nobsp/{path.relative_to(ROOT / 'src/nobsp')}" for path in source_files()}
    require(sources <= set(names), f"the wheel lacks {sorted(sources - set(names))}")
    require(any(name.endswith("licenses/LICENSE") for name in names), "the wheel lacks LICENSE")
    return metadata


def source_files() -> Iterable[Path]:
    """Every Python file of the package."""
    return (path for path in (ROOT / "src" / "nobsp").rglob("*.py"))


def check_metadata(metadata: Message, *, repository: str) -> None:
    """What a page that lists the package would show."""
    for field in ("Name", "Version", "Summary", "Author", "License-Expression", "Requires-Python"):
        require(bool(metadata[field]), f"the metadata lacks {field}")
    require(
        metadata["Description-Content-Type"] == "text/markdown", "the description is no Markdown"
    )
    description = str(metadata.get_payload())
    require(len(description) > 1000, "the long description is missing")
    links = RELATIVE_LINK.findall(description)
    require(not links, f"links that lead nowhere elsewhere: {links}")

    addresses = metadata.get_all("Project-URL") or []
    if repository:
        require(
            all(repository in address for address in addresses) and bool(addresses),
            f"addresses are {addresses}",
        )
    classifiers = metadata.get_all("Classifier") or []
    for minor in (11, 12, 13, 14):
        wanted = f"Programming Language :: Python :: 3.{minor}"
        require(wanted in classifiers, f"no classifier {wanted!r}")
    check_classifiers(classifiers)


def check_classifiers(classifiers: Iterable[str]) -> None:
    """Classifiers that exist."""
    from trove_classifiers import classifiers as known

    unknown = [line for line in classifiers if line not in known]
    require(not unknown, f"unknown classifiers {unknown}")


def check_sdist(sdist: Path) -> None:
    """All that is needed to build and test it, and nothing that was lying about."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py", "tests/conftest.py"):
        require(needed in names, f"the sdist lacks {needed}")
    strangers = [
        name for name in names if "__pycache__" in name or name.startswith(("demo", "site"))
    ]
    require(not strangers, f"the sdist holds {strangers}")


def check_tests_collect(sdist: Path) -> None:
    """The tests of the sdist can be collected from where it was unpacked."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        [unpacked] = Path(folder).iterdir()
        words = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
        environment = {**os.environ, "PYTHONPATH": str(unpacked / "src")}
        listed = run(words, cwd=unpacked, env=environment)
    print(f"sdist: {listed.strip().splitlines()[-1]}")


def check_installs(wheel: Path, extras: Iterable[str]) -> None:
    """Installs the wheel into a fresh environment, alone and with each extra, and tries it there."""
    for extra in ("", *extras):
        with tempfile.TemporaryDirectory() as folder:
            venv.create(folder, with_pip=True)
            python = Path(folder) / ("Scripts" if os.name == "nt" else "bin") / "python"
            wanted = f"{wheel.resolve()}[{extra}]" if extra else str(wheel.resolve())
            constraints = ROOT / "constraints.txt"
            run([python, "-m", "pip", "install", "-q", "-c", constraints, wanted])
            words = [python, ROOT / "release" / "try_it.py", "--extras", extra]
            print(run(words, cwd=folder).strip())


def check_version(version: str) -> None:
    """Changelog, citation and package agree."""
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    require(f"\nversion: {version}\n" in citation, f"CITATION.cff is not of {version}")
    require(f"## [{version}]" in changelog, f"CHANGELOG.md has no section [{version}]")
    unreleased = changelog.partition("## [Unreleased]")[2].partition("\n## [")[0]
    require(not unreleased.strip(), f"CHANGELOG.md has notes under Unreleased, not under {version}")


def require(condition: bool, complaint: str) -> None:
    """Ends with a sentence where something is not as it must be."""
    if not condition:
        raise SystemExit(f"not ready to be released: {complaint}.")


def main() -> None:
    """Builds, checks, and says what is left to do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument(
        "--install", action="store_true", help="install and try it, in fresh environments"
    )
    parser.add_argument("--extras", default=",".join(TRIED_EXTRAS))
    arguments = parser.parse_args()
    repository = os.environ.get("NOBSP_REPOSITORY", "").rstrip("/")

    built = build(arguments.out)
    metadata = check_wheel(built.wheel)
    check_metadata(metadata, repository=repository)
    check_sdist(built.sdist)
    check_version(metadata["Version"])
    check_tests_collect(built.sdist)
    if arguments.install:
        check_installs(built.wheel, [name for name in arguments.extras.split(",") if name])
    print(
        f"ready: {built.wheel.name} and {built.sdist.name} in {arguments.out}; the upload is left to you."
    )
    if not repository:
        print(
            "no REPOSITORY was given: the metadata has no addresses, and the description no links."
        )


if __name__ == "__main__":
    main()
