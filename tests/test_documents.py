"""Code in the documents runs: every page with what its text takes for granted, block after block.

A block that cannot run here says why, in a comment above it: `<!-- not run: reads a bucket -->`.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nobsp

DOCS = Path(__file__).parents[1] / "docs"
FENCE = re.compile(r"(?:^<!-- not run: (.+?) -->\n+)?^```python\n(.*?)^```", re.M | re.S)

Names = dict[str, Any]


@dataclass(frozen=True)
class Block:
    """Some code of a page."""

    code: str
    line: int
    # Why it is not run; empty where it is.
    reason: str


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    blocks = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start(2)) + 1
        blocks.append(Block(code=match[2], line=line, reason=match[1] or ""))
    return blocks


def table_names() -> Names:
    """A small network for a table of three columns, calibrated."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))
    X = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    with torch.no_grad():
        logits = model(torch.tensor(X)).numpy()
    return {
        "nobsp": nobsp,
        "NObSP": nobsp.NObSP,
        "torch": torch,
        "model": model,
        "X": X,
        "X_new": X[:20],
        "x": torch.tensor(X[:2]),
        "y": logits.argmax(1),
        "logits": logits,
        "path": "page.html",
        "shard_1": X[:150],
        "shard_2": X[150:],
        "explainer": nobsp.NObSP(model, interactions=0).fit(X),
        "batches": [X[:100], X[100:200], X[200:]],
    }


def image_names() -> Names:
    """A small network for images, with maps calibrated and cases to look up."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    images = torch.rand(60, 3, 16, 16)
    with torch.no_grad():
        labels = model(images).argmax(1)
    # Both classes of a pair that is confused are there.
    labels = torch.where(torch.arange(60) % 5 == 0, (labels + 1) % 4, labels)
    loader = DataLoader(TensorDataset(images, labels), batch_size=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an untrained network's maps are doubtful
        cam = nobsp.NObSPCam(model).fit(images)
    return {
        "nobsp": nobsp,
        "model": model,
        "images": images[:4],
        "train_images": images,
        "mean": [0.0] * 3,
        "std": [1.0] * 3,
        "loader": loader,
        "train_loader": images,
        "labels": labels.numpy(),
        "truth": labels[:4].numpy(),
        "cam": cam,
    }


def report_names() -> Names:
    """A table and its network, and images with theirs."""
    of_images = image_names()
    return {
        **of_images,
        **table_names(),
        "network": of_images["model"],
        "train_labels": of_images["labels"],
        "labels": of_images["truth"],
    }


def neighbor_names() -> Names:
    """Images with maps, and rows on which a linear head was trained until it converged."""
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 4)).astype(np.float32)
    y = np.argmax(rows[:, :3] + rng.normal(size=(200, 3)), axis=1)
    trained = LogisticRegression(tol=1e-8).fit(rows, y)
    head = nn.Linear(4, 3)
    head.weight.data = torch.from_numpy(trained.coef_).float()
    head.bias.data = torch.from_numpy(trained.intercept_).float()
    return {
        **image_names(),
        "head": head,
        "pool": rng.normal(size=(300, 4)).astype(np.float32),
        "rows_trained_on": rows,
        "y": y,
        "X": rows[:3],
    }


def tree_names() -> Names:
    """A table with ages, for trees."""
    import pandas as pd

    rng = np.random.default_rng(0)
    X = pd.DataFrame({"age": rng.uniform(18, 80, 2400), "income": rng.normal(size=2400)})
    return {"NObSP": nobsp.NObSP, "X": X, "y": (X["age"] > 40) + X["income"]}


def dear_names() -> Names:
    """A table, and a model that is asked through a function."""
    names = table_names()
    model = names["model"]

    def logits_of(rows: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return model(torch.as_tensor(rows, dtype=torch.float32)).numpy()

    return {**names, "logits_of": logits_of}


def named_names(n_outputs: int = 1) -> Names:
    """A frame with names of columns and a network, calibrated with one pair, as readers have it."""
    import pandas as pd

    names = table_names()
    X = pd.DataFrame(names["X"], columns=["age", "income", "rooms"])
    model = nn.Sequential(names["model"], nn.Tanh(), nn.Linear(2, n_outputs))
    explainer = nobsp.NObSP(model, interactions=[("age", "income")]).fit(X)
    return {
        **names,
        "model": model,
        "X": X,
        "X_new": X[:20],
        "rows": X,
        "explainer": explainer,
        "ex": explainer(X[:20]),
    }


def ebm_names() -> Names:
    """The same, and an EBM of the same columns."""
    glassbox = pytest.importorskip("interpret.glassbox")
    names = named_names()
    X = names["X"]
    ebm = glassbox.ExplainableBoostingRegressor(interactions=1, outer_bags=1, max_rounds=20)
    return {**names, "ebm": ebm.fit(X, X["age"] * X["income"] + X["rooms"])}


def audit_names() -> Names:
    """Images with maps, and a linear head with the activations that enter it, audited."""
    names = {**image_names(), **neighbor_names()}
    labels = image_names()["labels"]
    of_rows = {"head": names["head"], "activations": names["rows_trained_on"]}
    index = nobsp.ContributionIndex(names["head"]).fit(names["rows_trained_on"], names["y"])
    return {**names, **of_rows, "labels": labels, "index": index, "found": nobsp.audit(index)}


def map_names() -> Names:
    """Images with maps."""
    names = image_names()
    return {**names, "maps": names["cam"](names["images"])}


# What every page's text takes for granted.
PAGES: dict[str, Callable[[], Names]] = {
    "command-line.md": table_names,
    "compare.md": dict,
    "compiled-format.md": table_names,
    "functions.md": dict,
    "images.md": image_names,
    "models.md": tree_names,
    "neighbors.md": neighbor_names,
    "parts.md": dict,
    "plots.md": dict,
    "report.md": report_names,
    "scale.md": table_names,
    "tables.md": table_names,
    "coming-from/cleanlab.md": audit_names,
    "coming-from/ebm.md": ebm_names,
    "coming-from/gradcam.md": map_names,
    "coming-from/pdp-ale.md": named_names,
    "coming-from/shap.md": partial(named_names, 2),
    "how-to/another-language.md": table_names,
    "how-to/correlated-features.md": table_names,
    "how-to/dates.md": table_names,
    "how-to/dear-models.md": dear_names,
    "how-to/few-rows.md": table_names,
    "how-to/gpu.md": dict,
    "how-to/image-folder.md": image_names,
    "how-to/labels.md": table_names,
    "how-to/many-columns.md": table_names,
    "how-to/probabilities.md": table_names,
    "how-to/ray.md": dict,
    "how-to/saving.md": table_names,
    "how-to/several-outputs.md": table_names,
    "how-to/streams.md": table_names,
    "how-to/torchrun.md": dict,
    "start/first-image.md": dict,
    "start/first-table.md": dict,
}
# Pages that train networks of their own.
SLOW = {"plots.md"}


def test_every_page_with_code_is_run() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if blocks_of(path)}
    assert pages == set(PAGES)


@pytest.mark.parametrize(
    "page",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in PAGES],
)
def test_code_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # what a page writes is not ours to keep
    names = PAGES[page]()

    for block in blocks_of(DOCS / page):
        if not block.reason:
            # Lines of an error are those of the page.
            code = "\n" * (block.line - 1) + block.code
            exec(compile(code, str(DOCS / page), "exec"), names)


def calls_in_tables(page: Path) -> list[str]:
    """Calls and attributes in the second column of a page's first table, what to write here."""
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    spans = []
    for line in lines[2:]:
        cells = line.split(" | ")
        if "you write with" in lines[0] and len(cells) == 2:
            spans += re.findall(r"`([^`]+)`", cells[1])
        if set(line) <= set("|- "):
            break  # of another table

    def is_call(span: str) -> bool:
        try:
            tree = ast.parse(span, mode="eval").body
        except SyntaxError:
            return False
        return isinstance(tree, ast.Call | ast.Attribute | ast.Subscript)

    return [span for span in spans if is_call(span)]


@pytest.mark.parametrize("page", [name for name in PAGES if name.startswith("coming-from/")])
def test_what_tables_say_to_write_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    calls = calls_in_tables(DOCS / page)
    assert len(calls) >= 4
    names = PAGES[page]()
    if page == "coming-from/cleanlab.md":
        # Of the rows that the head was trained on; the page's code is of images.
        names["labels"] = names["y"]
    if page == "coming-from/shap.md":
        # Plots have to be told which of several outputs to draw.
        calls.remove("ex[:, :, 1]")
        names = named_names()
    for call in calls:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            eval(compile(call, f"{DOCS / page}: {call}", "eval"), names)
