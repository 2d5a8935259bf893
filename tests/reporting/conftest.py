"""Pages, and how to open them in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from nobsp import NObSP, NObSPCam
from nobsp.reporting import report
from tests.processes import PAGE_PATIENCE
from tests.reporting.names import NASTY, QUOTED, RTL


@dataclass
class Opened:
    """A page in the browser, and everything it complained about or asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def value(self, selector: str) -> float:
        """The number behind what is shown."""
        return float(self.page.get_attribute(selector, "data-value"))


# Everything as it was when the page was opened. Reading plotly takes a browser two seconds, this none.
AGAIN = """() => {
  const put = (id, value) => { const e = document.getElementById(id); if (!e) return;
    if (e.type === 'checkbox') e.checked = value; else e.value = value;
    e.dispatchEvent(new Event('input', {bubbles: true})); e.dispatchEvent(new Event('change', {bubbles: true})); };
  for (const id of ['find', 'find-control', 'filter-low', 'filter-high', 'from-row']) put(id, '');
  for (const id of ['only-beyond', 'only-wrong', 'same-scale', 'picture-wrong']) put(id, false);
  document.querySelector('.as-linked input:checked')?.click();  // the others follow
  put('output', '0'); put('order', 'strength'); put('picture-order', 'given');
  document.querySelectorAll('.platehead select').forEach(e => { e.value = '0'; e.dispatchEvent(new Event('change')); });
  document.getElementById('typical')?.click();
  const by = () => document.querySelector('th[data-id=residual]');
  while (by() && by().getAttribute('aria-sort') !== 'descending') by().querySelector('button').click();
  scrollTo({top: 0, behavior: 'instant'});
  document.activeElement?.blur();
}"""


@pytest.fixture(scope="session")
def kept() -> Iterator[dict[Path, Opened]]:
    """Pages that stay open from test to test."""
    pages: dict[Path, Opened] = {}
    yield pages
    for opened in pages.values():
        opened.page.context.close()


@pytest.fixture
def show(browser: Any, kept: dict[Path, Opened]) -> Iterator[Any]:
    """Opens a file and waits until it is ready; `fresh=False` takes one that is open already, and sets it back."""
    contexts = []

    def opened(path: Path, *, fresh: bool = True, **options: Any) -> Opened:
        if not fresh and path in kept:
            kept[path].page.evaluate(AGAIN)
            return kept[path]
        options.setdefault("viewport", {"width": 1280, "height": 800})
        context = browser.new_context(**options)
        context.set_default_timeout(PAGE_PATIENCE)
        found = Opened(context.new_page())
        if fresh:
            contexts.append(context)
        else:
            kept[path] = found
        found.page.on(
            "console",
            lambda said: found.complaints.append(said.text) if said.type == "error" else None,
        )
        found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
        found.page.on(
            "dialog", lambda dialog: (found.complaints.append(dialog.message), dialog.dismiss())
        )
        found.page.on("request", lambda request: found.requests.append(request.url))
        found.page.goto(path.as_uri())
        found.page.wait_for_selector("html[data-ready=yes]", state="attached")
        return found

    yield opened
    for context in contexts:
        context.close()


# ---------------------------------------------------------------------- a table of numbers and names


@pytest.fixture(scope="session")
def mixed() -> SimpleNamespace:
    """Four numbers with names that are hard to write, and a category of three levels; one output, two interactions."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model = nn.Sequential(
        nn.Linear(7, 24), nn.ReLU(), nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 1)
    ).double()
    city = np.eye(3)[rng.integers(0, 3, 400)]
    X = pd.DataFrame(
        np.column_stack([rng.normal(size=(400, 3)), rng.integers(2000, 2020, 400), city]),
        columns=[NASTY, QUOTED, RTL, "year", "oslo", "rome", "paris"],
    )
    with torch.no_grad():
        model[0].weight[:, 3] *= 0.05
        model[0].bias -= model[0].weight[:, 3] * 2010
    features = {
        NASTY: NASTY,
        QUOTED: QUOTED,
        RTL: RTL,
        "year": "year",
        "city": ["oslo", "rome", "paris"],
    }
    explainer = NObSP(
        model,
        features=features,
        interactions=[(NASTY, QUOTED), (RTL, "city")],
        output_names=["<b>spend</b>"],
    ).fit(X)
    return SimpleNamespace(
        X=X, explainer=explainer, compiled=explainer.compile(), explanation=explainer(X)
    )


@pytest.fixture(scope="session")
def mixed_page(mixed: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report(
        mixed.explanation,
        tmp_path_factory.mktemp("mixed") / "mixed.html",
        title=NASTY,
        about=QUOTED,
    )


# ---------------------------------------------------------------------- a pipeline with names and missing values


@pytest.fixture(scope="session")
def gaps() -> SimpleNamespace:
    """A ReLU pipeline on numbers, one with missing values, and a category, with interactions of every kind."""
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    rng = np.random.default_rng(3)
    X = pd.DataFrame({name: rng.normal(size=300) for name in ("a", "b", "c")})
    X["town"] = rng.choice(["oslo", "rome", "lima"], 300)
    X.loc[::9, "b"] = np.nan
    y = X.a * X.b.fillna(0) + X.c * (X.town == "rome")
    numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    encode = make_column_transformer(
        (numbers, ["a", "b", "c"]), (OneHotEncoder(handle_unknown="ignore"), ["town"])
    )
    network = MLPRegressor(hidden_layer_sizes=(16, 8), max_iter=300, tol=0.01, random_state=0)
    pairs = [("a", "b"), ("b", "town"), ("a", "c")]
    explainer = NObSP(make_pipeline(encode, network).fit(X, y), interactions=pairs).fit(X)
    rows = X.iloc[:60].copy()
    rows.iloc[0, 3] = "mars"
    rows.iloc[1, 0] = np.inf
    rows.iloc[2, 2] = 50.0
    return SimpleNamespace(X=X, rows=rows, explainer=explainer, explanation=explainer(rows))


@pytest.fixture(scope="session")
def gaps_page(gaps: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report(gaps.explanation, tmp_path_factory.mktemp("gaps") / "gaps.html")


# ---------------------------------------------------------------------- features that have no table


@pytest.fixture(scope="session")
def untabled() -> SimpleNamespace:
    """Two groups of numbers that need the network, and a number that does not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1)).double()
    X = np.random.default_rng(0).normal(size=(150, 5))
    explainer = NObSP(
        model, features={"left": [0, 1], "right": [2, 3], "own": 4}, interactions=0
    ).fit(X)
    return SimpleNamespace(X=X, explainer=explainer, explanation=explainer(X))


@pytest.fixture(scope="session")
def untabled_page(untabled: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report(untabled.explanation, tmp_path_factory.mktemp("untabled") / "untabled.html")


# ---------------------------------------------------------------------- three classes


@pytest.fixture(scope="session")
def classes() -> SimpleNamespace:
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)).double()
    with torch.no_grad():
        model[2].weight *= 4
    X = rng.normal(size=(300, 4))
    explainer = NObSP(
        model, features=list("abcd"), interactions=0, output_names=["red", "green", "blue"]
    ).fit(X)
    explanation = explainer(X)
    labels = explanation.predictions.argmax(1)
    labels[:30] = (labels[:30] + 1) % 3
    found = rng.integers(0, 50, (300, 5))
    names = np.array(["red", "green", "blue"])
    predicted = names[explanation.predictions.argmax(1)]
    near = names[rng.integers(0, 3, 50)][found]
    hits = SimpleNamespace(
        indices=found,
        distances=np.sort(rng.uniform(size=(300, 5)), axis=1),
        labels=near,
        predicted=predicted,
        purity=(near == predicted[:, None]).mean(1),
        confidence=rng.uniform(size=300),
    )
    return SimpleNamespace(
        X=X, explainer=explainer, explanation=explanation, labels=labels, hits=hits, model=model
    )


@pytest.fixture(scope="session")
def classes_page(classes: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("classes") / "classes.html"
    return report(classes.explanation, path, labels=classes.labels, hits=classes.hits)


# ---------------------------------------------------------------------- images


@pytest.fixture(scope="session")
def pictures() -> SimpleNamespace:
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    )
    images = torch.rand(80, 1, 12, 12)
    cam = NObSPCam(model, output_names=["cat", "dog", NASTY]).fit(images)
    some = images[:14]
    order = model(some).detach().argsort(1, descending=True)[:, :2]
    rng = np.random.default_rng(0)
    hits = SimpleNamespace(
        indices=rng.integers(0, 80, (14, 4)),
        distances=np.sort(rng.uniform(size=(14, 4)), axis=1),
        labels=rng.integers(0, 3, (14, 4)),
        predicted=order[:, 0].numpy(),
        purity=rng.integers(0, 5, 14) / 4,
        confidence=rng.uniform(size=14),
    )
    labels = order[:, 0].numpy().copy()
    labels[0] = order[0, 1]
    return SimpleNamespace(
        cam=cam, images=some, gallery=images, maps=cam(some, order), hits=hits, labels=labels
    )


@pytest.fixture(scope="session")
def pictures_page(pictures: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report(
        pictures.maps,
        tmp_path_factory.mktemp("pictures") / "pictures.html",
        images=pictures.images,
        explainer=pictures.cam,
        labels=pictures.labels,
        hits=pictures.hits,
        gallery=pictures.gallery,
    )
