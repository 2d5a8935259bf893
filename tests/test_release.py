"""What would be published: wheel and sdist, their metadata, the files around them, and what type checkers see."""

from __future__ import annotations

import email
import json
import sys
import sysconfig
import tomllib
import venv
import zipfile
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import nobsp
from tests.processes import run_process

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
REPOSITORY = "https://example.org/nobsp"
TESTED_EXTRAS = ("plot", "images", "report", "frames")


@pytest.fixture(scope="module")
def check() -> Any:
    """The script that `make release` runs."""
    sys.path.insert(0, str(ROOT / "release"))
    try:
        import check
    finally:
        sys.path.remove(str(ROOT / "release"))
    return check


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Wheel and sdist, with the address of a repository."""
    folder = tmp_path_factory.mktemp("dist")
    run_process(
        [sys.executable, "-m", "hatchling", "build", "-d", folder],
        cwd=ROOT,
        env=environment(NOBSP_REPOSITORY=REPOSITORY),
    )
    [wheel] = folder.glob("*.whl")
    [sdist] = folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def environment(**added: str) -> dict[str, str]:
    import os

    return {**os.environ, **added}


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_holds_the_package_and_nothing_else(check: Any, built: dict[str, Path]) -> None:
    metadata = check.check_wheel(built["wheel"])
    assert metadata["Version"] == nobsp.__version__


def test_metadata_are_complete_and_links_lead_to_the_repository(
    check: Any, built: dict[str, Path]
) -> None:
    metadata = metadata_of(built["wheel"])
    check.check_metadata(metadata, repository=REPOSITORY)
    assert f"{REPOSITORY}/blob/v{nobsp.__version__}/docs/" in str(metadata.get_payload())


def test_without_a_repository_no_address_is_made_up(check: Any) -> None:
    sys.path.insert(0, str(ROOT))
    try:
        from hatch_build import describe
    finally:
        sys.path.remove(str(ROOT))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    text = describe(readme, repository="", version=nobsp.__version__)
    assert not check.RELATIVE_LINK.findall(text)
    assert "make demo" in text


def test_the_sdist_holds_what_is_needed_to_build_and_test_it(
    check: Any, built: dict[str, Path]
) -> None:
    check.check_sdist(built["sdist"])


def test_a_lacking_file_is_a_reason_not_to_release(check: Any, tmp_path: Path) -> None:
    wheel = tmp_path / "nobsp-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("nobsp-0.dist-info/METADATA", "Name: nobsp\n")
    with pytest.raises(SystemExit, match=r"py\.typed"):
        check.check_wheel(wheel)


def test_lowest_versions_are_those_declared() -> None:
    project = PYPROJECT["project"]
    lines = list(project["dependencies"])
    for extra in TESTED_EXTRAS:
        lines += project["optional-dependencies"][extra]
    declared = {}
    for requirement in map(Requirement, lines):
        [bound] = requirement.specifier
        assert bound.operator == ">="
        declared[canonicalize_name(requirement.name)] = bound.version

    listed = {}
    for line in (ROOT / "release" / "lowest.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, version = line.split("==")
            listed[name] = version
    padded = {name: pad(version) for name, version in declared.items()}
    assert {name: pad(version) for name, version in listed.items()} == padded


def pad(version: str) -> list[int]:
    """A version of three numbers."""
    numbers = [int(part) for part in version.split(".")]
    return [*numbers, 0, 0][:3]


@pytest.mark.parametrize(
    "path",
    sorted([*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"]),
    ids=lambda path: path.name,
)
def test_files_of_the_host_can_be_read(path: Path) -> None:
    assert yaml.safe_load(path.read_text(encoding="utf-8"))


def test_workflows_cover_the_pythons_that_are_declared() -> None:
    workflow = yaml.safe_load(
        (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    )
    matrix = workflow["jobs"]["systems"]["strategy"]["matrix"]
    classifiers = PYPROJECT["project"]["classifiers"]
    prefix = "Programming Language :: Python :: 3."
    declared = [line.rpartition(" ")[2] for line in classifiers if line.startswith(prefix)]
    assert matrix["python"] == declared
    assert len(matrix["system"]) == 3


@pytest.fixture(scope="module")
def installed(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the wheel installed, and whatever else this one has."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    site = Path(run_process([python, "-c", PRINT_SITE]).stdout.strip())
    with zipfile.ZipFile(built["wheel"]) as archive:
        archive.extractall(site)
    # After the wheel, so that its nobsp comes first; a .pth in that folder is not followed.
    (site / "others.pth").write_text(sysconfig.get_paths()["purelib"], encoding="utf-8")
    return python


PRINT_SITE = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
# Torch itself takes mypy a minute; that a user's network is one of its modules is all that matters here.
MYPY = "[mypy]\nstrict = true\n[mypy-torch.*]\nfollow_imports = skip\n"


def test_mypy_understands_a_user_of_the_wheel(installed: Path, tmp_path: Path) -> None:
    script = copy_of_the_script(tmp_path)
    (tmp_path / "mypy.ini").write_text(MYPY, encoding="utf-8")
    words = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini"]
    words += ["--python-executable", str(installed), "--cache-dir", str(tmp_path / "cache")]
    finished = run_process([*words, script.name], cwd=tmp_path, check=False, env=without_source())
    assert finished.returncode == 0, finished.stdout


def test_pyright_understands_a_user_of_the_wheel(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("basedpyright", reason="basedpyright is not installed")
    script = copy_of_the_script(tmp_path)
    options = {
        "include": [script.name],
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": True,
        "enableTypeIgnoreComments": False,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(options), encoding="utf-8")
    words = [sys.executable, "-m", "basedpyright", "--pythonpath", str(installed)]
    finished = run_process(
        [*words, "-p", "pyrightconfig.json"], cwd=tmp_path, check=False, env=without_source()
    )
    assert finished.returncode == 0, finished.stdout


def copy_of_the_script(folder: Path) -> Path:
    """The script where no other file of the project is in sight."""
    text = (ROOT / "tests" / "user_script.py").read_text(encoding="utf-8")
    (folder / "user_script.py").write_text(text, encoding="utf-8")
    return folder / "user_script.py"


def without_source() -> dict[str, str]:
    """The environment without paths to the source: it is the wheel that is looked at."""
    return {**environment(), "PYTHONPATH": "", "MYPYPATH": ""}


def test_every_dependency_has_its_licence_listed() -> None:
    page = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    project = PYPROJECT["project"]
    lines = list(project["dependencies"])
    for extra, requirements in project["optional-dependencies"].items():
        if extra not in ("all", "bench"):
            lines += requirements
    for requirement in map(Requirement, lines):
        assert f"| {canonicalize_name(requirement.name)} |" in page, (
            "run python release/licences.py"
        )


def test_the_conda_recipe_asks_for_what_is_declared() -> None:
    recipe = yaml.safe_load((ROOT / "release" / "conda" / "recipe.yaml").read_text("utf-8"))
    renamed = {"torch": "pytorch"}
    declared = set()
    for line in PYPROJECT["project"]["dependencies"]:
        requirement = Requirement(line)
        declared.add(f"{renamed.get(requirement.name, requirement.name)} {requirement.specifier}")
    assert recipe["context"]["version"] == nobsp.__version__
    assert set(recipe["requirements"]["run"][1:]) == declared


def test_the_page_on_installing_names_every_extra() -> None:
    page = (ROOT / "docs" / "start" / "install.md").read_text(encoding="utf-8")
    extras = PYPROJECT["project"]["optional-dependencies"]
    assert {extra for extra in extras if f"| `{extra}` |" not in page} == set()
