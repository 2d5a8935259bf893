"""`nobsp explain`: four files come out, whatever the model is in, and bad input is one clear line."""

from __future__ import annotations

import copy
import csv
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from torch import nn

from nobsp import NObSP
from nobsp.network.archive import UntrustedError
from nobsp.network.exported import as_module, load_exported
from tests.tolerances import SINGLE, assert_same_to_rounding

Run = Callable[..., object]
FILES = {"contributions.parquet", "curves.csv", "explainer.nobsp", "report.html"}
HOUSE = ("--model", "house.pt2", "--data", "houses.csv", "--target", "price")
FAST = ("--interactions", "0")


def test_four_files_and_a_summary_come_out(nobsp: Run, home: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    done = nobsp("explain", *HOUSE, *FAST, "--out", out)
    assert (done.code, {path.name for path in out.iterdir()}) == (0, FILES)
    assert "120 rows, 4 features, 0 interactions" in done.out
    assert done.out.startswith("Held-out R²: ")
    assert "calibrating on 120 rows" in done.err
    assert "calibrating" not in done.out
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_the_files_hold_what_the_library_finds(nobsp: Run, home: Path, tmp_path: Path) -> None:
    nobsp("explain", *HOUSE, *FAST, "--out", tmp_path / "out", "--no-report")
    rows = pd.read_csv(home / "houses.csv").drop(columns="price")
    model = as_module(load_exported(home / "house.pt2"), torch.tensor(rows.to_numpy()))
    explanation = NObSP(model, interactions=0).fit(rows)(rows)
    written = pd.read_parquet(tmp_path / "out" / "contributions.parquet")
    terms = ["age", "income", "oslo", "rome"]
    assert list(written) == [
        "row",
        "output",
        "base",
        *terms,
        "residual",
        "prediction",
        "outside",
        "far",
    ]
    assert_same_to_rounding(
        written[["age", "income", "oslo", "rome"]], explanation.values[:, :, 0], within=SINGLE
    )
    account = written[["base", "age", "income", "oslo", "rome", "residual"]].sum(axis=1)
    assert_same_to_rounding(account, written["prediction"], within=SINGLE)
    loaded = NObSP.load(tmp_path / "out" / "explainer.nobsp", as_module(home / "house.pt2", rows))
    assert_same_to_rounding(loaded(rows).values, explanation.values, within=SINGLE)
    with (tmp_path / "out" / "curves.csv").open(encoding="utf-8") as file:
        curves = list(csv.DictReader(file))
    assert set(curves[0]) == {"feature", "output", "x", "level", "value", "lower", "upper"}
    assert {curve["feature"] for curve in curves} == {"age", "income", "oslo", "rome"}


@pytest.mark.parametrize("left_out", ["--model", "--data", "--out"])
def test_what_is_required_is_asked_for_before_anything_runs(
    nobsp: Run, home: Path, tmp_path: Path, left_out: str
) -> None:
    given = {"--model": "house.pt2", "--data": "houses.csv", "--out": tmp_path / "out"}
    done = nobsp(
        "explain", *(word for pair in given.items() if pair[0] != left_out for word in pair)
    )
    assert done.code == 2
    assert left_out in done.err
    assert "reading" not in done.err


def test_json_is_all_there_is_on_stdout(nobsp: Run, home: Path, tmp_path: Path) -> None:
    done = nobsp(
        "explain", *HOUSE, *FAST, "--out", tmp_path / "out", "--no-report", "--json", "--quiet"
    )
    found = json.loads(done.out)
    rows = pd.read_csv(home / "houses.csv").drop(columns="price")
    explainer = NObSP(as_module(home / "house.pt2", rows), interactions=0).fit(rows)
    [output] = found["outputs"]
    assert_same_to_rounding(output["explained"], explainer.explained_[0], within=SINGLE)
    assert output["ridge"] == pytest.approx(explainer.ridge_[0])
    assert found["held_out"] is True
    assert next(iter(found)) == "outputs"
    assert [one["feature"] for one in found["strongest"]] == list(
        explainer.importance("total")["feature"]
    )
    assert set(found["files"]) == FILES - {"report.html"}
    assert done.err == ""


def test_the_file_of_the_calibration_is_small(nobsp: Run, tmp_path: Path) -> None:
    nobsp("explain", *HOUSE, *FAST, "--out", tmp_path / "out", "--no-report", "--quiet")
    assert (tmp_path / "out" / "explainer.nobsp").stat().st_size < 200_000


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_those_asked_for_and_left_as_they_were(
    nobsp: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    seen: list[int] = []
    fit = NObSP.fit

    def watched(self: NObSP, *arguments: object, **options: object) -> NObSP:
        seen.append(torch.get_num_threads())
        return fit(self, *arguments, **options)

    monkeypatch.setattr(NObSP, "fit", watched)
    before = torch.get_num_threads()
    words = () if threads == 1 else ("--threads", threads)  # one is what is taken by default
    done = nobsp(
        "explain", *HOUSE, *FAST, *words, "--out", tmp_path / "out", "--no-report", "--quiet"
    )
    assert (done.code, seen, torch.get_num_threads()) == (0, [threads], before)


def test_the_background_is_as_large_as_asked_for(
    nobsp: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    monkeypatch.setattr(
        "nobsp.NObSP", lambda model, **options: made.append(options) or NObSP(model, **options)
    )
    done = nobsp(
        "explain",
        *HOUSE,
        *FAST,
        "--background",
        5,
        "--out",
        tmp_path / "out",
        "--no-report",
        "--quiet",
    )
    assert (done.code, made[0]["background"]) == (0, 5)


def test_a_long_calibration_is_announced_on_stderr_in_options(
    nobsp: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nobsp.tabular.effort._LONG", 0.0)
    options = (*HOUSE, *FAST, "--no-report", "--json")
    done = nobsp("explain", *options, "--out", tmp_path / "out")
    quiet = nobsp("explain", *options, "--quiet", "--out", tmp_path / "quiet")
    assert done.err.count("note: calibrating takes about") == 1
    assert "--max-forward-rows limits them" in done.err
    assert json.loads(done.out)["rows"] > 0
    assert quiet.err == ""


def test_rows_outside_the_range_are_one_note_with_a_count(
    nobsp: Run, home: Path, tmp_path: Path
) -> None:
    table = pd.read_csv(home / "fresh.csv")
    table.loc[[3, 7], "age"], table.loc[7, "rome"], table.loc[9, "income"] = 99.0, -99.0, np.nan
    table.to_csv(tmp_path / "far.csv", index=False)
    options = (
        "--model",
        "house.pt2",
        "--data",
        tmp_path / "far.csv",
        "--target",
        "price",
        "--calibrate",
        "houses.csv",
    )
    done = nobsp("explain", *options, *FAST, "--no-report", "--out", tmp_path / "out", "--json")
    found = json.loads(done.out)
    assert found["outside"] == {"rows": 3, "features": {"age": 2, "income": 1, "rome": 1}}
    assert found["outputs"][0]["explained_here"] is not None
    written = pd.read_parquet(tmp_path / "out" / "contributions.parquet")
    assert written.index[written["outside"]].tolist() == [3, 7, 9]
    words = nobsp("explain", *options, *FAST, "--no-report", "--out", tmp_path / "again").out
    assert words.count("flagged in the column `outside`") == 1
    # Row 9, whose income is missing.
    assert [e["severity"] for e in found["health"] if e["code"] == "no_predictions"] == ["note"]
    assert words.count("note: 1 of 60 rows has no prediction") == 1


def _write_correlated(folder: Path) -> tuple[Path, Path]:
    """Rows whose first two columns are nearly equal, and rows where one is the other's opposite."""
    generator = np.random.default_rng(0)
    columns = ["age", "income", "oslo", "rome"]
    rows = generator.normal(size=(300, 4))
    rows[:, 1] = rows[:, 0] + 0.05 * rows[:, 1]
    others = rows[:80].copy()
    others[:20, 1] = -np.clip(others[:20, 0], -2.0, 2.0)
    paths = folder / "usual.csv", folder / "opposite.csv"
    for path, values in zip(paths, (rows, others), strict=True):
        pd.DataFrame(values, columns=columns).to_csv(path, index=False)
    return paths


def test_combinations_far_from_the_calibration_rows_are_told_and_marked(
    nobsp: Run, tmp_path: Path
) -> None:
    usual, opposite = _write_correlated(tmp_path)
    options = ("--model", "house.pt2", "--data", opposite, "--calibrate", usual, *FAST)

    done = nobsp("explain", *options, "--no-report", "--out", tmp_path / "out", "--json")

    summary = json.loads(done.out)
    severities = {finding["code"]: finding["severity"] for finding in summary["health"]}
    assert severities["far"] == "warning"
    assert 10 <= summary["far"]["rows"] <= 25
    written = pd.read_parquet(tmp_path / "out" / "contributions.parquet")
    assert int(written["far"].sum()) == summary["far"]["rows"]


HOLE = """
import torch

def network():
    return lambda X: X[:, 2] + 6 * ((X[:, 0] > 0.6) & (X[:, 1] > 0.6))
"""


def test_the_summary_tells_of_the_same_findings_as_the_page(nobsp: Run, tmp_path: Path) -> None:
    (tmp_path / "hole.py").write_text(HOLE, encoding="utf-8")
    rows = np.random.default_rng(0).normal(size=(1500, 4))
    table = tmp_path / "rows.csv"
    pd.DataFrame(rows, columns=list("abcd")).to_csv(table, index=False)
    options = ("--model", f"{tmp_path / 'hole.py'}:network", "--data", table, *FAST)

    done = nobsp("explain", *options, "--out", tmp_path / "out", "--json")

    told = [finding["code"] for finding in json.loads(done.out)["health"]]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "weak_spot" in told
    assert set(told) == set(re.findall(r'data-code="(\w+)"', page))


WAVY = """
import torch
from torch import nn

def network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))
    with torch.no_grad():
        net[0].weight.mul_(4)
    return net
"""


def test_clusters_are_told_with_both_figures(nobsp: Run, tmp_path: Path) -> None:
    (tmp_path / "wavy.py").write_text(WAVY, encoding="utf-8")
    table = _write_customers(tmp_path, customers=50, rows_each=20)
    model = ("--model", f"{tmp_path / 'wavy.py'}:network", "--features", "age,income,oslo,rome")
    options = (*model, "--data", table, *FAST, "--no-report")

    done = nobsp("explain", *options, "--out", tmp_path / "out", "--json")

    summary = json.loads(done.out)
    finding = next(finding for finding in summary["health"] if finding["code"] == "clusters")
    assert finding["severity"] == "warning"
    assert f"{summary['outputs'][0]['neighbourhoods']:.3f}" in finding["message"]


PRODUCT = """
import torch
from torch import nn

class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 1)

    def forward(self, x):
        return self.head(torch.stack([x[:, 0], 10 * x[:, 1] * x[:, 2]], 1))

def network():
    return Product()
"""


def test_rows_explained_worse_than_the_headline_are_told(nobsp: Run, tmp_path: Path) -> None:
    (tmp_path / "product.py").write_text(PRODUCT, encoding="utf-8")
    generator = np.random.default_rng(0)
    usual = generator.normal(size=(500, 3)) * [1.0, 0.2, 0.2]
    drifted = generator.normal(size=(100, 3)) * [1.0, 0.01, 0.01] + [0.0, 0.4, 0.4]
    for name, rows in (("usual", usual), ("drifted", drifted)):
        pd.DataFrame(rows, columns=list("abc")).to_csv(tmp_path / f"{name}.csv", index=False)
    model = ("--model", f"{tmp_path / 'product.py'}:network", "--interactions", "0")
    files = ("--data", tmp_path / "drifted.csv", "--calibrate", tmp_path / "usual.csv")

    done = nobsp("explain", *model, *files, "--no-report", "--out", tmp_path / "out", "--json")

    summary = json.loads(done.out)
    severities = {finding["code"]: finding["severity"] for finding in summary["health"]}
    assert severities["fresh_rows"] == "warning"


MAZE = '''
import torch
from torch import nn

class Maze(nn.Module):
    """What no sum of functions of single columns comes near."""
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(1, 1)
        nn.init.ones_(self.head.weight)

    def forward(self, x):
        return self.head(torch.sin(40 * x.prod(1, keepdim=True)))
'''


def test_what_must_not_be_believed_is_said_first_and_on_stderr(nobsp: Run, tmp_path: Path) -> None:
    (tmp_path / "maze.py").write_text(MAZE, encoding="utf-8")
    options = (
        "--model",
        f"{tmp_path / 'maze.py'}:Maze",
        "--data",
        "houses.csv",
        "--target",
        "price",
    )
    done = nobsp(
        "explain", *options, *FAST, "--no-report", "--out", tmp_path / "out", "--quiet", "--json"
    )
    codes = [(one["severity"], one["code"]) for one in json.loads(done.out)["health"]]
    assert (done.code, codes[0]) == (0, ("error", "worse_than_mean"))
    assert done.err.count("error: ") == done.err.count("\n") == 1


def test_quiet_says_nothing(nobsp: Run, tmp_path: Path) -> None:
    done = nobsp("explain", *HOUSE, *FAST, "--out", tmp_path / "out", "--no-report", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")


@pytest.mark.parametrize("data", ["houses.parquet", "houses-semicolon.csv"])
def test_tables_of_other_kinds_give_the_same(
    nobsp: Run, home: Path, tmp_path: Path, data: str
) -> None:
    for name, source in (("a", "houses.csv"), ("b", data)):
        options = (
            "--model",
            "house.pt2",
            "--data",
            source,
            "--target",
            "price",
            *FAST,
            "--no-report",
        )
        assert nobsp("explain", *options, "--out", tmp_path / name).code == 0
    first, second = (pd.read_parquet(tmp_path / name / "contributions.parquet") for name in "ab")
    pd.testing.assert_frame_equal(first, second, rtol=1e-9)


def test_groups_pairs_names_and_fresh_rows_are_taken(
    nobsp: Run, home: Path, tmp_path: Path
) -> None:
    done = nobsp(
        "explain", "--model", "house.pt2", "--data", "fresh.csv", "--target", "price", "--calibrate", "houses.csv",
        "--groups", "city=oslo,rome", "--interactions", "age:income", "--output-names", "price in crowns", "--json",
        "--no-report", "--out", tmp_path / "out",
    )  # fmt: skip
    found = json.loads(done.out)
    assert found["features"] == ["age", "income", "city"]
    assert found["interactions"] == [["age", "income"]]
    assert found["outputs"][0]["name"] == "price in crowns"
    assert found["rows"] == 60
    assert "calibrating on 120 rows" in done.err


def test_groups_are_also_read_from_a_file(nobsp: Run, tmp_path: Path) -> None:
    (tmp_path / "groups.json").write_text('{"city": ["oslo", "rome"]}', encoding="utf-8")
    done = nobsp("explain", *HOUSE, *FAST, "--groups", tmp_path / "groups.json", "--json", "--no-report", "--out",
                 tmp_path / "out")  # fmt: skip
    assert json.loads(done.out)["features"] == ["age", "income", "city"]


def _write_customers(folder: Path, *, customers: int = 12, rows_each: int = 10) -> Path:
    """Customers with nearly equal rows each."""
    generator = np.random.default_rng(0)
    customer = np.repeat(np.arange(customers), rows_each)
    centres = generator.normal(size=(customers, 4))
    rows = centres[customer] + 0.01 * generator.normal(size=(len(customer), 4))
    frame = pd.DataFrame(rows, columns=["age", "income", "oslo", "rome"])
    frame.insert(0, "customer", customer)
    path = folder / "customers.csv"
    frame.to_csv(path, index=False)
    return path


def test_a_column_named_by_groups_holds_its_rows_out_together(nobsp: Run, tmp_path: Path) -> None:
    table = _write_customers(tmp_path)
    model = ("--model", "house.pt2", "--data", table, "--no-report", "--json")
    features = ("--features", "age,income,oslo,rome")

    alone = nobsp("explain", *model, *features, *FAST, "--out", tmp_path / "alone")
    together = nobsp(
        "explain", *model, *FAST, "--groups", "customer", "--out", tmp_path / "together"
    )

    apart, grouped = json.loads(alone.out), json.loads(together.out)
    assert grouped["features"] == ["age", "income", "oslo", "rome"]
    unexplained = [1 - summary["outputs"][0]["explained"] for summary in (apart, grouped)]
    assert unexplained[1] > 10 * unexplained[0]


def test_groups_of_rows_and_of_columns_go_together(nobsp: Run, tmp_path: Path) -> None:
    table = _write_customers(tmp_path)
    words = ("--groups", "customer", "--groups", "city=oslo,rome")
    model = (
        "--model",
        "house.pt2",
        "--data",
        "fresh.csv",
        "--calibrate",
        table,
        "--target",
        "price",
    )
    done = nobsp(
        "explain", *model, *words, *FAST, "--no-report", "--json", "--out", tmp_path / "out"
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["features"] == ["age", "income", "city"]


def test_groups_that_could_mean_two_things_are_refused(
    nobsp: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _write_customers(tmp_path)
    model = ("--model", Path("house.pt2").resolve(), "--data", table)
    (tmp_path / "customer").write_text('{"city": ["oslo", "rome"]}', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    done = nobsp("explain", *model, *FAST, "--groups", "customer", "--out", tmp_path / "out")
    assert done.code == 2
    assert "could also be a file" in done.err


def test_a_factory_with_weights_is_the_same_model(nobsp: Run, home: Path, tmp_path: Path) -> None:
    nobsp("explain", *HOUSE, *FAST, "--no-report", "--out", tmp_path / "a")
    for name, factory in (("b", "shop:house"), ("c", "shop.py:ready")):
        options = (
            "--model",
            factory,
            "--weights",
            "house.safetensors",
            "--data",
            "houses.csv",
            "--target",
            "price",
        )
        done = nobsp("explain", *options, *FAST, "--no-report", "--out", tmp_path / name)
        assert done.code == 0, done.err
        first, second = (
            pd.read_parquet(tmp_path / n / "contributions.parquet") for n in ("a", name)
        )
        pd.testing.assert_frame_equal(first, second, rtol=1e-4, atol=1e-6)


def test_a_script_is_refused_with_what_to_do(nobsp: Run, home: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.trace(nn.Linear(4, 1), torch.zeros(2, 4)).save(str(tmp_path / "house.pt"))
    options = (
        "--model",
        tmp_path / "house.pt",
        "--data",
        "houses.csv",
        "--target",
        "price",
        *FAST,
        "--no-report",
    )
    found = nobsp("explain", *options, "--out", tmp_path / "out")
    assert found.code == 2
    assert "torch.export" in found.err


def test_an_exported_file_that_could_run_code_is_refused(
    nobsp: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise UntrustedError("holds a pickled object")

    monkeypatch.setattr("nobsp.network.exported.vetted", refuse)
    options = (*HOUSE, *FAST, "--no-report", "--out", tmp_path / "out")
    refused = nobsp("explain", *options)
    assert refused.code == 2
    assert "holds a pickled object, which can run code when it is loaded" in refused.err
    assert nobsp("explain", *options, "--trust-pickle").code == 0


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scikit-learn pipeline with a column of text, in a skops file and in a pickle, and its table."""
    import joblib
    import skops.io

    folder = tmp_path_factory.mktemp("pipelines")
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "id": range(90),
            "age": rng.normal(size=90),
            "city": rng.choice(["oslo", "rome", "bonn"], 90),
        }
    )
    table["rich"] = np.where(table["age"] + (table["city"] == "oslo") > 0.3, "yes", "no")
    table.to_csv(folder / "people.csv", index=False)

    def fitted(scaler: object) -> object:
        columns = make_column_transformer((scaler, ["age"]), (OneHotEncoder(), ["city"]))
        network = MLPClassifier(hidden_layer_sizes=(8,), max_iter=40, random_state=0)
        with pytest.warns(ConvergenceWarning):
            return make_pipeline(columns, network).fit(table[["age", "city"]], table["rich"])

    skops.io.dump(fitted(StandardScaler()), folder / "people.skops")
    skops.io.dump(fitted(FunctionTransformer(copy.copy)), folder / "custom.skops")
    joblib.dump(fitted(StandardScaler()), folder / "people.joblib")
    return folder


def test_contributions_to_a_probability_add_up_to_it(
    nobsp: Run, pipelines: Path, tmp_path: Path
) -> None:
    given = (
        "--model",
        pipelines / "people.skops",
        "--data",
        pipelines / "people.csv",
        "--target",
        "rich",
        *FAST,
    )
    written = {}
    for name, more in {"logits": (), "chances": ("--probability",)}.items():
        done = nobsp("explain", *given, *more, "--no-report", "--out", tmp_path / name)
        assert done.code == 0, done.err
        written[name] = pd.read_parquet(tmp_path / name / "contributions.parquet")
    chances = written["chances"]
    assert_same_to_rounding(
        chances["prediction"], 1 / (1 + np.exp(-written["logits"]["prediction"]))
    )
    assert_same_to_rounding(
        chances[["base", "age", "city", "residual"]].sum(axis=1), chances["prediction"]
    )


def test_an_output_that_is_no_probability_has_no_account_of_one(
    nobsp: Run, home: Path, tmp_path: Path
) -> None:
    done = nobsp(
        "explain", *HOUSE, *FAST, "--probability", "--no-report", "--out", tmp_path / "out"
    )
    assert done.code == 2
    assert "--probability: the model applies no softmax" in done.err
    assert not (tmp_path / "out").exists()


def test_a_pipeline_from_skops_explains_the_caller_s_own_columns(
    nobsp: Run, pipelines: Path, tmp_path: Path
) -> None:
    options = ("--data", pipelines / "people.csv", "--target", "rich", "--json", *FAST)
    done = nobsp(
        "explain", "--model", pipelines / "people.skops", *options, "--out", tmp_path / "out"
    )
    found = json.loads(done.out)
    assert (found["features"], found["outputs"][0]["name"]) == (["age", "city"], "yes")
    assert found["not_used"] == ["id"]
    assert (tmp_path / "out" / "report.html").stat().st_size > 100_000


def test_pickles_are_refused_with_the_reason_and_read_when_trusted(
    nobsp: Run, pipelines: Path, tmp_path: Path
) -> None:
    options = (
        "--data",
        pipelines / "people.csv",
        "--target",
        "rich",
        *FAST,
        "--no-report",
        "--out",
        tmp_path / "out",
    )
    refused = nobsp("explain", "--model", pipelines / "people.joblib", *options)
    assert refused.code == 2
    assert "is a pickle, and reading a pickle can run any code" in refused.err
    assert (
        nobsp("explain", "--model", pipelines / "people.joblib", *options, "--trust-pickle").code
        == 0
    )


def test_a_whole_network_pickled_by_torch_is_refused_and_a_state_is_told_apart(
    nobsp: Run, tmp_path: Path
) -> None:
    torch.save(nn.Linear(4, 1), tmp_path / "net.pt")
    torch.save(nn.Linear(4, 1).state_dict(), tmp_path / "state.pt")
    options = (
        "--data",
        "houses.csv",
        "--target",
        "price",
        *FAST,
        "--no-report",
        "--out",
        tmp_path / "out",
    )
    assert "is a pickle" in nobsp("explain", "--model", tmp_path / "net.pt", *options).err
    assert "holds weights alone" in nobsp("explain", "--model", tmp_path / "state.pt", *options).err
    assert nobsp("explain", "--model", tmp_path / "net.pt", *options, "--trust-pickle").code == 0


def test_objects_that_skops_does_not_know_are_named(
    nobsp: Run, pipelines: Path, tmp_path: Path
) -> None:
    options = ("--data", pipelines / "people.csv", "--target", "rich", "--out", tmp_path / "out")
    refused = nobsp("explain", "--model", pipelines / "custom.skops", *options)
    assert refused.code == 2
    assert "could run code when they are loaded" in refused.err
    assert "copy.copy" in refused.err


# ---------------------------------------------------------------------- how well the target is predicted

SUM = '''
"""A network that has learned 3 a - 2 b + c."""
import torch
from torch import nn

def summed():
    net = nn.Linear(3, 1)
    net.load_state_dict({"weight": torch.tensor([[3.0, -2.0, 1.0]]), "bias": torch.zeros(1)})
    return net
'''


@pytest.fixture
def summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nobsp: Run) -> Run:
    """Explains a network that is exactly right when it is given a, b and c in this order."""
    monkeypatch.chdir(tmp_path)
    Path("summed.py").write_text(SUM, encoding="utf-8")
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(80, 3)), columns=["a", "b", "c"])
    table["y"] = 3 * table["a"] - 2 * table["b"] + table["c"]
    table.to_csv("table.csv", index=False)
    options = (
        "--model",
        "summed.py:summed",
        "--data",
        "table.csv",
        "--target",
        "y",
        *FAST,
        "--out",
        "out",
    )
    return lambda *words: nobsp("explain", *options, *words)


def test_how_well_the_target_is_predicted_is_said(summed: Run) -> None:
    done = summed("--no-report")
    assert "The model predicts y with R² 1." in done.out
    assert "warning" not in done.err
    found = json.loads(summed("--no-report", "--force", "--json").out)["predicts"]
    assert found == {"target": "y", "measure": "r2", "value": pytest.approx(1.0), "warning": None}


def test_columns_in_the_wrong_order_are_asked_about(summed: Run, tmp_path: Path) -> None:
    done = summed("--features", "b", "a", "c", "--json")
    found = json.loads(done.out)["predicts"]
    assert found["value"] < 0
    assert f"warning: {found['warning']}\n" in done.err
    assert found["warning"] in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_classes_are_said_by_accuracy(nobsp: Run, pipelines: Path, tmp_path: Path) -> None:
    table = pd.read_csv(pipelines / "people.csv")
    options = (
        "--data",
        pipelines / "people.csv",
        "--target",
        "rich",
        "--json",
        *FAST,
        "--no-report",
    )
    done = nobsp(
        "explain",
        "--model",
        pipelines / "people.joblib",
        "--trust-pickle",
        *options,
        "--out",
        tmp_path / "o",
    )
    import joblib

    accuracy = joblib.load(pipelines / "people.joblib").score(table[["age", "city"]], table["rich"])
    found = json.loads(done.out)["predicts"]
    assert (found["measure"], found["value"]) == ("accuracy", pytest.approx(accuracy))


# ---------------------------------------------------------------------- what does not fit the model


@pytest.mark.parametrize("model", ["house.pt2", "shop:house"])
def test_columns_that_are_too_many_are_named_with_what_to_do(
    nobsp: Run, tmp_path: Path, model: str
) -> None:
    done = nobsp("explain", "--model", model, "--data", "houses.csv", "--out", tmp_path / "out")
    assert done.code == 1
    given = "5 columns were given (age, income, oslo, rome, price)"
    assert f"{given}; name the target with --target, or choose with --features.\n" in done.err


# ---------------------------------------------------------------------- what is refused

WRONG: dict[str, tuple[tuple[object, ...], int, str]] = {
    "no data": (("--data", "hauses.csv"), 2, "there is no such file; did you mean 'houses.csv'"),
    "no model": (("--model", "hose.pt2"), 2, "there is no such file; did you mean 'house.pt2'"),
    "data is a folder": (("--data", "."), 2, "is a folder"),
    "wrong target": (
        ("--target", "prize"),
        2,
        "houses.csv has no column 'prize'; did you mean 'price'?",
    ),
    "wrong feature": (
        ("--features", "age,incom"),
        2,
        "has no column 'incom'; did you mean 'income'?",
    ),
    "target as feature": (("--features", "age,price"), 2, "which is the --target"),
    "feature twice": (("--features", "age,age"), 2, "'age' is named twice"),
    "wrong group": (("--groups", "city=oslo,room"), 2, "the column 'room'; did you mean 'rome'?"),
    "group without columns": (("--groups", "city=", "b=oslo"), 2, "write name=column,column"),
    "group in two": (("--groups", "a=oslo,rome", "b=rome"), 2, "'rome' is in 'a' and in 'b'"),
    "group named like a column": (("--groups", "age=oslo,rome"), 2, "choose another name"),
    "groups by no column": (("--groups", "incom"), 2, "no such column; did you mean 'income'?"),
    "groups by two columns": (("--groups", "age", "income"), 2, "by one column only"),
    "groups by the target": (("--groups", "price"), 2, "which is the --target"),
    "groups file missing": (("--groups", "groups.json"), 2, "there is no such file"),
    "wrong pair": (
        ("--interactions", "age:incom"),
        2,
        "no feature 'incom'; did you mean 'income'?",
    ),
    "half a pair": (("--interactions", "age"), 2, "write auto, a number, or pairs"),
    "ridge in words": (
        ("--ridge", "strong"),
        2,
        "--ridge must be auto or a number, found 'strong'",
    ),
    "negative ridge": (("--ridge", "-1"), 1, "ridge"),
    "names of outputs": (
        ("--output-names", "a", "b"),
        1,
        "output_names has 2 names but the model has 1 output",
    ),
    "unknown head": (("--head", "3"), 1, "head='3' is not in the model"),
    "too few columns": (
        ("--features", "age,income"),
        1,
        "cannot be run on input of shape (120, 2)",
    ),
    "no such factory": (("--model", "shop:hous"), 2, "has no 'hous'; did you mean 'house'"),
    "no such module": (("--model", "shopping:house"), 2, "there is no module 'shopping'"),
    "a factory that makes no model": (("--model", "shop:number"), 1, "found int"),
    "weights for a file": (("--weights", "house.safetensors"), 2, "--weights goes with a factory"),
    "weights as a model": (("--model", "house.safetensors"), 2, "holds weights alone"),
    "a model that is none": (
        ("--model", "houses.csv"),
        2,
        "is not a model that this command reads",
    ),
    "a file of code without a function": (("--model", "shop.py"), 2, "shop.py:function"),
    "out is a file": (("--out", "houses.csv"), 2, "--out houses.csv is a file"),
    "out below a file": (("--out", "houses.csv/out"), 2, "cannot be written to"),
    "out where nobody may write": (("--out", "/proc/nobsp"), 2, "cannot be written to"),
    "option that is none": (("--modell", "x"), 2, "--modell"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_one_line(nobsp: Run, tmp_path: Path, case: str) -> None:
    words, code, said = WRONG[case]
    fast = () if "--interactions" in words else FAST  # given twice, names add up
    done = nobsp("explain", *HOUSE, *fast, "--out", tmp_path / "out", "--quiet", *words)
    assert done.code == code, done.err
    assert said in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""
    assert not (tmp_path / "out").exists()


BAD_TABLES = {
    "empty": ("", "cannot be read"),
    "names only": ("age,income,oslo,rome,price\n", "has no rows"),
    "ragged": ("age,income,oslo,rome,price\n1,2,3,4,5\n1,2\n", "cannot be read"),
    "the same name twice": ("age,age,oslo,rome,price\n1,2,3,4,5\n", "two columns called 'age'"),
    "binary": ("\x00\x01\x02", "cannot be read"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_tables_that_are_none_are_one_line(nobsp: Run, tmp_path: Path, case: str) -> None:
    content, said = BAD_TABLES[case]
    (tmp_path / "bad.csv").write_text(content, encoding="utf-8")
    done = nobsp(
        "explain", *HOUSE, "--out", tmp_path / "out", "--quiet", "--data", tmp_path / "bad.csv"
    )
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert said in done.err


def test_words_and_gaps_in_a_network_s_table_are_named(nobsp: Run, tmp_path: Path) -> None:
    (tmp_path / "words.csv").write_text(
        "age,income,oslo,rome\n1,2,a,4\n2,3,b,5\n", encoding="utf-8"
    )
    (tmp_path / "gaps.csv").write_text("age,income,oslo,rome\n1,2,3,4\n2,,4,5\n", encoding="utf-8")
    options = ("explain", "--model", "house.pt2", "--out", tmp_path / "out", "--quiet", "--data")
    words, gaps = nobsp(*options, tmp_path / "words.csv"), nobsp(*options, tmp_path / "gaps.csv")
    assert "'oslo'" in words.err
    assert "row 1" in gaps.err
    assert "'income'" in gaps.err
    assert (words.code, gaps.code) == (1, 1)


def test_weights_that_do_not_fit_are_refused(nobsp: Run, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"0.weight": torch.zeros(2, 2)}, tmp_path / "other.safetensors")
    options = ("--data", "houses.csv", "--target", "price", "--out", tmp_path / "out", "--quiet")
    done = nobsp(
        "explain", "--model", "shop:house", "--weights", tmp_path / "other.safetensors", *options
    )
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "does not fit the model" in done.err


# ---------------------------------------------------------------------- what is there already


def test_results_are_not_overwritten_without_force(nobsp: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "curves.csv").write_text("mine", encoding="utf-8")
    (out / "notes.txt").write_text("also mine", encoding="utf-8")
    refused = nobsp("explain", *HOUSE, *FAST, "--no-report", "--out", out)
    assert (refused.code, (out / "curves.csv").read_text(encoding="utf-8")) == (2, "mine")
    assert "has curves.csv already" in refused.err
    assert nobsp("explain", *HOUSE, *FAST, "--no-report", "--out", out, "--force").code == 0
    assert (out / "curves.csv").read_text(encoding="utf-8").startswith("feature,")
    assert (out / "notes.txt").read_text(encoding="utf-8") == "also mine"
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_a_failure_while_writing_leaves_nothing(
    nobsp: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(NObSP, "save", full)
    done = nobsp(
        "explain", *HOUSE, *FAST, "--no-report", "--out", tmp_path / "new" / "out", "--quiet"
    )
    assert (done.code, done.err) == (1, "nobsp: no space left on device.\n")
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_where_an_error_came_from(nobsp: Run, tmp_path: Path) -> None:
    done = nobsp("explain", *HOUSE, "--out", tmp_path / "out", "--head", "3", "--debug")
    assert done.code == 1
    assert "Traceback" in done.err


def test_an_onnx_file_is_explained_and_a_damaged_one_refused(
    nobsp: Run, home: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    node = onnx.helper.make_node("ReduceSum", ["x"], ["y"], keepdims=1)
    kind = onnx.TensorProto.FLOAT
    rows = onnx.helper.make_tensor_value_info("x", kind, ["rows", 4])
    sums = onnx.helper.make_tensor_value_info("y", kind, ["rows", 1])
    axes = onnx.numpy_helper.from_array(np.array([1]), "axes")
    node.input.append("axes")
    graph = onnx.helper.make_graph([node], "sums", [rows], [sums], initializer=[axes])
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "sums.onnx"
    )
    (tmp_path / "damaged.onnx").write_bytes(b"nothing of the kind")
    arguments = ("--data", "houses.csv", "--target", "price", *FAST, "--no-report")

    done = nobsp(
        "explain", "--model", tmp_path / "sums.onnx", *arguments, "--out", tmp_path / "out"
    )
    refused = nobsp(
        "explain", "--model", tmp_path / "damaged.onnx", *arguments, "--out", tmp_path / "other"
    )

    assert done.code == 0, done.err
    contributions = pd.read_parquet(tmp_path / "out" / "contributions.parquet")
    expected = pd.read_csv(home / "houses.csv").drop(columns="price").sum(axis=1)
    assert np.abs(contributions["prediction"] - expected).max() < 1e-5
    assert (refused.code, "--model" in refused.err) == (2, True)


def test_contributions_of_more_than_one_to_a_probability_are_in_the_summary(
    nobsp: Run, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    strong = rng.choice([-6.0, 6.0], 200)
    table = pd.DataFrame({"a": strong + rng.normal(size=200), "b": -strong + rng.normal(size=200)})
    table.assign(kind=(table.a + table.b > 0).astype(int)).to_csv(tmp_path / "r.csv", index=False)
    (tmp_path / "made.py").write_text(
        "import torch\nready = torch.nn.Linear(2, 1)\n"
        "torch.nn.init.ones_(ready.weight)\ntorch.nn.init.zeros_(ready.bias)\n",
        encoding="utf-8",
    )

    done = nobsp(
        "explain",
        *("--model", f"{tmp_path / 'made.py'}:ready", "--data", tmp_path / "r.csv"),
        *("--target", "kind", "--probability", *FAST),
        *("--out", tmp_path / "out", "--no-report", "--json"),
    )

    assert done.code == 0, done.err
    assert "beyond_one" in {finding["code"] for finding in json.loads(done.out)["health"]}
