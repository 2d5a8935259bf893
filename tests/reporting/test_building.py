"""Building a page: the same input gives the same small file, whole or not at all."""

from __future__ import annotations

import os
import pickle
import re
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from nobsp import NObSP
from nobsp.reporting import report
from nobsp.reporting import tables as tables_module
from nobsp.reporting.packing import packed_column
from nobsp.tabular.health import ExplainedWorseWarning
from tests.processes import run_python

MEGABYTES = 1e6


def small(features: int = 3, rows: int = 100, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(features, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    ).double()
    X = np.random.default_rng(0).normal(size=(rows, features))
    return NObSP(model, interactions=0, **options).fit(X), X


def test_the_same_input_gives_the_same_file(tmp_path):
    pages = []
    for name in ("one.html", "two.html"):
        explainer, X = small()
        pages.append(report(explainer(X), tmp_path / name, title="Same").read_bytes())
    assert pages[0] == pages[1]


def test_fifty_features_and_five_thousand_rows_stay_under_eight_megabytes(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(50, 24), torch.nn.ReLU(), torch.nn.Linear(24, 1)
    ).double()
    X = np.random.default_rng(0).normal(size=(5000, 50))
    pairs = [(f"x{k}", f"x{k + 1}") for k in range(0, 8, 2)]
    explainer = NObSP(model, features=[f"x{k}" for k in range(50)], interactions=pairs).fit(X[:400])
    path = report(explainer(X), tmp_path / "page.html")
    assert path.stat().st_size < 8 * MEGABYTES


def test_long_tables_keep_fewer_rows_and_say_so(tmp_path):
    explainer, X = small(features=2, rows=5200)
    text = report(explainer(X), tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"count":5000,"total":5200' in text


@pytest.mark.parametrize(
    "values",
    [
        np.array([3.0, 250.0]),
        np.array([-3.0, 70000.0]),
        np.array([0.5, 0.25, -7.75]),
        np.random.default_rng(0).normal(size=100),
        1.7e9 + np.random.default_rng(1).uniform(size=100),
        np.array([np.pi]),
        np.array([1.0, 1.0 + 2**-50]),
        np.array([1.0, np.nan, np.inf]),
        np.zeros(0),
    ],
)
def test_packed_columns_come_back(values):
    import base64

    held = packed_column(values)
    raw = np.frombuffer(base64.b64decode(held["bytes"]), np.dtype(held["kind"])).astype(float)
    assert np.array_equal(raw, np.where(np.isfinite(values), values, np.nan), equal_nan=True)


# ---------------------------------------------------------------------- files


def test_a_missing_folder_is_named_before_any_work(tmp_path):
    explainer, X = small()
    with pytest.raises(FileNotFoundError, match="not a folder"):
        report(explainer(X), tmp_path / "nowhere" / "page.html")


def test_a_folder_is_no_file(tmp_path):
    explainer, X = small()
    with pytest.raises(IsADirectoryError, match="is a folder"):
        report(explainer(X), tmp_path)


def test_an_unwritable_folder_is_a_clear_error(tmp_path, monkeypatch):
    explainer, X = small()
    monkeypatch.setattr(
        os, "access", lambda *_: False
    )  # whoever runs this may be allowed everything
    with pytest.raises(PermissionError, match="cannot be written to"):
        report(explainer(X), tmp_path / "page.html")


def test_an_existing_file_is_replaced(tmp_path):
    explainer, X = small()
    path = tmp_path / "page.html"
    path.write_text("old")
    assert report(explainer(X), str(path)) == path
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_an_interruption_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    explainer, X = small()
    path = tmp_path / "page.html"
    path.write_text("old")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        report(explainer(X), path)
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    assert path.read_text() == "old"


# ---------------------------------------------------------------------- arguments


def test_an_explanation_makes_the_same_page_after_pickling(tmp_path):
    explainer, X = small()
    explanation = explainer(X)
    assert explanation[:5].explainer is explainer.functions_
    again = pickle.loads(pickle.dumps(explanation))  # noqa: S301 - made here
    pages = [report(told, tmp_path / "page.html").read_bytes() for told in (explanation, again)]
    assert pages[0] == pages[1]
    named = report(again, tmp_path / "page.html", explainer=explainer).read_text(encoding="utf-8")
    assert "Sequential with" in named


@pytest.mark.parametrize("part", ["terms", "baseline", "contrast", "refitted", "empty"])
def test_only_the_whole_account_of_its_explainer_makes_a_page(tmp_path, part):
    explainer, X = small(features=3)
    whole = explainer(X)
    other, _ = small(features=3, rows=77)
    told = {
        "terms": lambda: whole[:, :2],
        "baseline": whole.from_baseline,
        "contrast": lambda: whole.contrast(0, 0),
        "refitted": lambda: replace(whole, explainer=other.functions_),
        "empty": lambda: whole[[]],
    }[part]()
    with pytest.raises(ValueError, match=r"subject .*(pass|explain)"):
        report(told, tmp_path / "page.html")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": [1, 2]}, "labels must be one per row"),
        ({"labels": ["a"] * 99}, "labels must be one per row"),
        ({"truth": {"nobody": np.sin}}, "not a feature"),
        (
            {
                "hits": type(
                    "H", (), {"indices": np.zeros((3, 2), int), "distances": np.zeros((3, 2))}
                )()
            },
            "hits are of 3",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused_and_nothing_is_written(tmp_path, options, message):
    explainer, X = small()
    with pytest.raises(ValueError, match=message):
        report(explainer(X), tmp_path / "page.html", **options)
    assert list(tmp_path.iterdir()) == []


def test_another_subject_is_refused_with_what_to_pass(tmp_path):
    with pytest.raises(TypeError, match=r"subject must be explainer.*found ndarray"):
        report(np.zeros((3, 3)), tmp_path / "page.html")


def small_network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    ).double()


def test_terms_without_a_table_are_shown_for_rows_and_told(tmp_path):
    X = np.random.default_rng(0).normal(size=(100, 3))
    groups = {"g": [0, 1], "c": 2}
    explainer = NObSP(small_network(), features=groups, interactions=[("g", "c")]).fit(X)
    data = table_of(explainer(X))
    assert data["terms"][-1] == {"features": [0, 1], "axes": [], "values": None, "spread": None}
    assert data["rows"]["direct"] is not None
    assert "no_table" in [finding["code"] for finding in data["findings"]]
    alone = table_of(explainer.compile()(X))  # without the network
    assert alone["rows"]["direct"] is None
    assert "not_run" in [finding["code"] for finding in alone["findings"]]


def test_edited_functions_stand_beside_those_of_the_model():
    X = np.random.default_rng(0).normal(size=(100, 3))
    explainer = NObSP(small_network(), features=list("abc"), interactions=0).fit(X)
    functions = explainer.compile()
    assert table_of(functions(X))["original"] is None

    edited = functions.edit("a", "flat above 0", X)
    data = table_of(edited(X))
    assert data["original"]["terms"][0]["values"] != data["terms"][0]["values"]
    assert data["original"]["terms"][1]["values"] == data["terms"][1]["values"]
    assert len(data["edits"]) == 1
    assert "edited" in [finding["code"] for finding in data["findings"]]

    dropped = edited.drop("b", X)
    assert table_of(dropped(X))["original"] is None


def test_triples_are_on_the_page_as_tables():
    X = np.random.default_rng(0).normal(size=(100, 3))
    explainer = NObSP(small_network(), features=list("abc"), interactions=[("a", "b", "c")]).fit(X)
    data = table_of(explainer(X))
    assert data["terms"][-1]["features"] == (0, 1, 2)
    assert len(data["terms"][-1]["axes"]) == 3
    assert data["rows"]["direct"] is None


def test_many_groups_of_numbers_make_a_page_at_once(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(144, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)
    ).double()
    X = np.random.default_rng(0).normal(size=(300, 144))
    groups = {f"g{k}": list(range(8 * k, 8 * k + 8)) for k in range(18)}
    explanation = NObSP(model, features=groups, interactions=0, background=4).fit(X)(X[:50])
    start = time.process_time()
    report(explanation, tmp_path / "page.html")
    assert time.process_time() - start < 5
    assert (
        len([f for f in table_of(explanation)["findings"] if f["code"] == "no_table"]) == 1
    )  # said once of all


def test_the_weakest_interactions_stay_out_of_a_page_that_would_be_too_large(monkeypatch):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    ).double()
    X = np.random.default_rng(0).normal(size=(100, 3))
    explainer = NObSP(
        model, features=list("abc"), interactions=[("a", "b"), ("a", "c"), ("b", "c")]
    ).fit(X)
    explanation = explainer(X)
    grids = [table.values.nbytes for table in explainer.functions_.tables[3:]]
    monkeypatch.setattr(tables_module, "ROOM", 2 * max(grids))
    data = table_of(explanation)
    sizes = np.abs(explanation.values[:, 3:]).mean((0, 2))
    strongest = explanation.terms[3 + int(np.argmax(sizes))]
    assert [tuple("abc"[k] for k in term["features"]) for term in data["terms"][3:]] == [strongest]
    assert "pairs_left_out" in [finding["code"] for finding in data["findings"]]
    # The headline is that of all terms.
    assert data["fitted"] == "3 main effects and 3 interactions"
    shown = explanation[:, [*"abc", strongest]]
    assert data["ledger"]["left"][0] == pytest.approx(1 - shown.explained()[0])


def table_of(explanation):
    """What a page is told of an explanation."""
    options = dict.fromkeys(("explainer", "labels", "class_names", "truth", "hits", "names"))
    return tables_module.table_data(explanation, **options)


def test_a_flag_that_is_missing_as_pandas_writes_it_is_on_the_page(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"flag": pd.array([True, False, None] * 40, dtype="boolean")})
    frame["number"] = np.random.default_rng(0).normal(size=120)
    as_floats = FunctionTransformer(lambda rows: rows.astype(float))
    model = make_pipeline(as_floats, SimpleImputer(), LinearRegression())
    model.fit(frame, frame["number"])
    explanation = NObSP(model).fit(frame)(frame)
    assert report(explanation, tmp_path / "page.html").exists()


def test_a_column_that_the_preprocessing_drops_has_no_slider(tmp_path):
    import pandas as pd
    from sklearn.compose import make_column_transformer
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline

    X = pd.DataFrame(np.random.default_rng(0).normal(size=(90, 2)), columns=["a", "dropped"])
    network = MLPRegressor(hidden_layer_sizes=(8,), max_iter=2000, tol=0.1, random_state=0)
    model = make_pipeline(make_column_transformer(("passthrough", ["a"])), network).fit(X, X["a"])
    text = report(NObSP(model).fit(X)(X), tmp_path / "page.html").read_text(encoding="utf-8")
    assert '{"name":"dropped","columns":[],"kind":"unused"' in text


def test_a_compiled_explainer_makes_a_page_without_torch(tmp_path):
    explainer, X = small()
    explainer.compile().save(tmp_path / "compiled.safetensors")
    np.save(tmp_path / "X.npy", X)
    code = (
        "import sys, numpy as np\n"
        "from nobsp.reporting import report\n"
        "from nobsp.tabular import Functions\n"
        f"folder = {str(tmp_path)!r}\n"
        "compiled = Functions.load(folder + '/compiled.safetensors')\n"
        "report(compiled(np.load(folder + '/X.npy')), folder + '/page.html')\n"
        "assert 'torch' not in sys.modules\n"
    )
    run_python(code)
    assert (tmp_path / "page.html").exists()


def test_without_the_extra_the_message_names_it(tmp_path, monkeypatch):
    explainer, X = small()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"nobsp\[report\]"):
        report(explainer(X), tmp_path / "page.html")


def test_a_page_without_labels_calls_both_classes_as_the_model_does(tmp_path):
    from sklearn.linear_model import LogisticRegression

    X = np.random.default_rng(0).normal(size=(100, 2))
    labels = np.where(X[:, 0] > 0, "yes", "no")
    explainer = NObSP(LogisticRegression().fit(X, labels), interactions=0).fit(X)
    text = report(explainer(X), tmp_path / "page.html").read_text(encoding="utf-8")
    assert '["no","yes"]' in text


def test_a_page_has_the_standard_error_of_its_headline_and_code_without_backticks(
    tmp_path: Path,
) -> None:
    X = np.random.default_rng(0).normal(size=(200, 3))
    explainer = NObSP(lambda rows: np.sin(3 * rows[:, 0]) * rows[:, 1] + rows[:, 2]).fit(X)
    rows = X[:50].copy()
    rows[:10, 0] = 99.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExplainedWorseWarning)
        explanation = explainer(rows)

    report(explanation, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")

    assert "<code>outside</code>" in page
    assert "<title>What the model has learned" in page
    data = re.search(r'"standard_error":\[([^\]]+)\]', page)
    assert data is not None
    assert float(data[1]) == pytest.approx(explainer.health().scatter[0], rel=1e-3)
