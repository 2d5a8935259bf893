"""The package as people meet it: its names, what importing it costs, its pins and its documents."""

import json
import re
import sys
import tomllib
from functools import partial
from importlib import import_module, metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import nobsp
from tests.processes import run_process
from tests.tolerances import assert_same_to_rounding

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

PUBLIC_NAMES = {
    "ActivationMaps",
    "Audit",
    "Comparison",
    "ContributionIndex",
    "Explanation",
    "Finding",
    "Functions",
    "Health",
    "Influence",
    "Local",
    "Milvus",
    "NObSP",
    "NObSPCam",
    "NObSPClassifier",
    "NObSPRegressor",
    "Neighbors",
    "PartsExplanation",
    "Pruned",
    "Ranks",
    "RayCluster",
    "Selector",
    "ShapeCheck",
    "Usearch",
    "WeakSpot",
    "__version__",
    "as_module",
    "audit",
    "card",
    "compare",
    "confusions",
    "explain_images",
    "explain_parts",
    "metrics",
    "plots",
    "prune",
    "report",
    "select",
}

OPTIONAL_PACKAGES = {
    "cv2",
    "captum",
    "faiss",
    "jinja2",
    "matplotlib",
    "pandas",
    "plotly",
    "polars",
    "pyarrow",
    "pymilvus",
    "ray",
    "shap",
    "torchvision",
    "usearch",
}


def modules_loaded_by(statement: str) -> set[str]:
    """Top-level modules in memory after `statement` ran in a fresh interpreter."""
    program = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    finished = run_process([sys.executable, "-c", program])
    return {name.partition(".")[0] for name in json.loads(finished.stdout.splitlines()[-1])}


def pinned_versions() -> dict[str, str]:
    """Name and version of every line of the constraints file."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    loose = [pin for pin in pins if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", pin)]
    assert not loose, f"constraints.txt wants name==version and no build tag, found {loose}"
    return dict(pin.split("==") for pin in pins)


def declared_requirements() -> dict[str, list[Requirement]]:
    """Requirements by where they are declared: the core, each extra, each group, the build."""
    project = PYPROJECT["project"]
    declared = {"core": project["dependencies"], "build": PYPROJECT["build-system"]["requires"]}
    declared |= project["optional-dependencies"] | PYPROJECT["dependency-groups"]
    requirements = {
        where: [Requirement(line) for line in lines if isinstance(line, str)]
        for where, lines in declared.items()
    }
    # The extra `all` lists the package's own extras.
    return {
        where: [one for one in ones if canonicalize_name(one.name) != "nobsp"]
        for where, ones in requirements.items()
    }


def make_targets() -> set[str]:
    return set(
        re.findall(
            r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE
        )
    )


def fenced_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands_named_in(text: str) -> set[str]:
    """Targets of every `make …` written inline or on a line of a shell block."""
    inline = re.findall(r"`make ([a-z]+)[^`]*`", text)
    shell = "\n".join(
        block for kind in ("", "sh", "bash", "console") for block in fenced_blocks(text, kind)
    )
    return {*inline, *re.findall(r"^\s*(?:\$ )?make ([a-z]+)", shell, flags=re.MULTILINE)}


def test_public_names_are_frozen() -> None:
    assert set(nobsp.__all__) == PUBLIC_NAMES


@pytest.mark.parametrize("room", ["nobsp", "nobsp.tabular"])
def test_only_public_names_are_offered_for_completion(room: str) -> None:
    module = import_module(room)
    for name in module.__all__:
        getattr(module, name)
    assert dir(module) == sorted(module.__all__)


@pytest.mark.parametrize("name", sorted(PUBLIC_NAMES))
def test_every_public_name_resolves_and_is_kept(name: str) -> None:
    assert getattr(nobsp, name) is vars(nobsp)[name]


def test_a_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="NObsp"):
        nobsp.NObsp  # noqa: B018


@pytest.mark.parametrize(
    ("module", "former", "present"),
    [
        ("nobsp", "CompiledExplainer", nobsp.Functions),
        ("nobsp.tabular", "CompiledExplainer", nobsp.Functions),
        ("nobsp.tabular.compiled", "CompiledExplainer", nobsp.Functions),
        ("nobsp.tabular.compiled", "Health", nobsp.Health),
        ("nobsp.metrics", "removal_effects", nobsp.metrics.ablation_effects),
        ("nobsp.metrics.scores", "removal_effects", nobsp.metrics.ablation_effects),
        ("nobsp.metrics.scores", "sparseness", nobsp.metrics.sparseness),
        ("nobsp.neighbors.audit", "Audit", nobsp.Audit),
    ],
)
def test_former_names_lead_to_the_present_ones_with_a_warning(
    module: str, former: str, present: object
) -> None:
    with pytest.warns(DeprecationWarning, match=former):
        found = getattr(import_module(module), former)
    assert found is present


def test_former_arguments_mean_the_present_ones_with_a_warning() -> None:
    X = np.random.default_rng(0).normal(size=(200, 2))
    explainer = nobsp.NObSP(lambda rows: rows[:, 0] - rows[:, 1] ** 2, features=["a", "b"]).fit(X)
    account = explainer(X)
    for curves in (explainer.curves, explainer.compile().curves):
        with pytest.warns(DeprecationWarning, match="level= is now confidence="):
            former = curves(points=5, level=0.5)
        present = curves(points=5, confidence=0.5)
        assert_same_to_rounding(former["upper"], present["upper"])

    with pytest.warns(DeprecationWarning, match="level= is now confidence=") as warned:
        comparison = nobsp.compare(account, account, level=0.8)
    assert warned[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=r"Comparison\.level"):
        assert comparison.level == comparison.confidence == 0.8

    # Also where the present one is what it is anyway.
    for ask in (
        explainer.curves,
        explainer.compile().curves,
        partial(nobsp.compare, account, account),
    ):
        with pytest.raises(TypeError, match="confidence= and level="):
            ask(level=0.8, confidence=0.9)


@pytest.mark.parametrize("module", ["tabular.compiled", "metrics.scores", "neighbors.audit"])
def test_a_module_that_moved_knows_no_other_names(module: str) -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        import_module(f"nobsp.{module}").no_such_name  # noqa: B018


def test_the_former_module_does_not_hide_the_function_of_its_name() -> None:
    import_module("nobsp.neighbors.audit")
    assert import_module("nobsp.neighbors").audit is nobsp.audit


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = modules_loaded_by("import nobsp")
    assert not loaded & (OPTIONAL_PACKAGES | {"numpy", "scipy", "sklearn", "torch"})


def test_using_the_explainers_loads_no_optional_package() -> None:
    # What torch and scikit-learn load by themselves is theirs to answer for.
    beneath = modules_loaded_by("import torch, sklearn.base, narwhals, safetensors.torch, tqdm")
    loaded = modules_loaded_by("import nobsp\nfor name in nobsp.__all__: getattr(nobsp, name)")
    assert not (loaded - beneath) & OPTIONAL_PACKAGES


def test_version_is_the_installed_one() -> None:
    assert metadata.version("nobsp") == nobsp.__version__
    assert "version" in PYPROJECT["project"]["dynamic"]


def test_version_is_the_one_to_cite_and_is_in_the_changelog() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^version: {re.escape(nobsp.__version__)}$", citation, flags=re.MULTILINE)
    assert nobsp.__version__ in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_package_is_marked_as_typed() -> None:
    assert (Path(nobsp.__file__).parent / "py.typed").is_file()


def test_core_dependencies_are_those_agreed_on() -> None:
    core = {requirement.name for requirement in declared_requirements()["core"]}
    assert core == {
        "cyclopts",
        "narwhals",
        "numpy",
        "safetensors",
        "scikit-learn",
        "scipy",
        "torch",
        "tqdm",
    }


def test_the_extra_all_holds_every_other_extra_but_the_rivals() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    [everything] = [Requirement(line) for line in extras["all"]]
    assert everything.extras == extras.keys() - {"all", "bench"}


@pytest.mark.parametrize("where", sorted(declared_requirements()))
def test_everything_declared_is_pinned_to_a_version_it_allows(where: str) -> None:
    pins = pinned_versions()
    for requirement in declared_requirements()[where]:
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement.name} of {where} has no line in constraints.txt"
        assert requirement.specifier.contains(pin), f"{requirement} of {where} does not allow {pin}"


def applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Whether a package installed with `extras` brings `requirement` along on this machine."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""})


def test_no_requirement_of_a_requirement_floats() -> None:
    waiting = [
        (one, frozenset(one.extras)) for ones in declared_requirements().values() for one in ones
    ]
    visited: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement, extras = waiting.pop()
        visit = (canonicalize_name(requirement.name), extras)
        if visit in visited:
            continue
        visited.add(visit)
        try:
            beneath = [Requirement(line) for line in metadata.requires(visit[0]) or ()]
        except metadata.PackageNotFoundError:
            continue  # of an extra or a group that is not installed here
        waiting += [(one, frozenset(one.extras)) for one in beneath if applies(one, extras)]
    # Builds of torch for a GPU bring their own libraries and pin them themselves.
    gpu = re.compile(r"(nvidia|cuda)-.*|triton")
    names = {name for name, _ in visited if not gpu.fullmatch(name)}
    assert "typing-extensions" in names, "the walk should have reached what torch requires"
    assert not names - pinned_versions().keys()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_documents_name_only_commands_that_exist(document: Path) -> None:
    assert commands_named_in(document.read_text(encoding="utf-8")) <= make_targets()


def test_the_readme_names_the_two_commands() -> None:
    assert commands_named_in((ROOT / "README.md").read_text(encoding="utf-8")) >= {"demo", "test"}


def test_the_example_of_the_readme_runs_and_adds_up(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    example, *_ = fenced_blocks(text, "python")
    program = f"""{example}
account = ex.base_values + ex.values.sum(1) + ex.residual
print(abs(account - ex.predictions).max() / abs(ex.predictions).max())
"""
    finished = run_process([sys.executable, "-W", "error", "-c", program], cwd=tmp_path)

    assert len([line for line in example.splitlines() if line]) <= 10
    assert float(finished.stdout.splitlines()[-1]) < 1e-12
    assert (tmp_path / "page.html").exists()


def test_the_figures_of_the_readme_are_those_of_the_results() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        figures = import_module("_figures")
    finally:
        sys.path.remove(str(ROOT / "docs"))
    for page in figures.PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert figures.table(page) in text, "results changed: run python docs/_figures.py"


def test_the_image_examples_of_the_readme_run_and_add_up(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    _, network, example, audit = fenced_blocks(text, "python")
    program = f"""import matplotlib
matplotlib.use("Agg")
{network}
{example}
account = maps.account.mean((1, 2)) + maps.class_token + maps.residual
predicted = maps.logits.argmax(1)
change = maps.logits.max(1) - maps.base_values[predicted]
print((network(images[1500:]).argmax(1) == labels[1500:]).float().mean().item())
print(abs(account - change).max())
{audit}
"""

    finished = run_process([sys.executable, "-W", "error", "-c", program], cwd=tmp_path)

    steps = [line for line in example.splitlines() if line and not line.startswith("import")]
    right, gap, audited, *_ = finished.stdout.split()
    right, gap = float(right), float(gap)
    assert len(steps) == 6
    assert right > 0.8, "maps of a network that has learned nothing show nothing"
    assert gap < 1e-4
    assert int(audited) == 297
    assert (tmp_path / "audit.html").exists()


def test_a_first_calibration_loads_neither_scikit_learn_nor_scipy_nor_pandas() -> None:
    """They take longer to import than a small network to calibrate."""
    program = (
        "import sys, torch, nobsp\n"
        "model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))\n"
        "rows = torch.randn(100, 3)\n"
        "nobsp.NObSP(model).fit(rows)(rows)\n"
        "print([name for name in ('sklearn', 'scipy', 'pandas', 'matplotlib') if name in sys.modules])"
    )
    done = run_process([sys.executable, "-c", program], cwd=ROOT)
    assert done.stdout.strip() == "[]"
