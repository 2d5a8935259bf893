"""`nobsp prune` writes a smaller network that anyone can load, and says what it cost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from nobsp.cli import main

FACTORY = """
import torch
from torch import nn

def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.same = nn.Linear(4, 4)
        self.same.weight = self.first.weight
        self.inner = nn.Linear(4, 16)
        self.last = nn.Linear(16, 3)

    def forward(self, x):
        return self.last(torch.relu(self.inner(self.same(torch.relu(self.first(x))))))

def tied():
    torch.manual_seed(1)
    return Tied()

def table():
    return {"not": "a network"}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prune")
    (folder / "nets.py").write_text(FACTORY, encoding="utf-8")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(200, 4)), columns=list("abcd"))
    frame["kind"] = rng.integers(0, 3, size=200)
    frame["named"] = frame["kind"].map({0: "oak", 1: "ash", 2: "elm"})
    frame.drop(columns="named").to_csv(folder / "rows.csv", index=False)
    frame.drop(columns="kind").to_csv(folder / "named.csv", index=False)
    return folder


def arguments(folder: Path, out: Path, *more: str) -> list[str]:
    return [
        *("prune", "--model", f"{folder / 'nets.py'}:net", "--data", str(folder / "rows.csv")),
        *("--target", "kind", "--out", str(out), *more),
    ]


def test_the_program_that_is_written_is_smaller_and_runs_on_any_batch(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "small.pt2"

    code = main(arguments(folder, out, "--keep", "0.5", "--json"))

    assert code == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["layers"] == [
        {"name": "0", "read_by": "2", "kind": "units", "before": 16, "after": 8}
    ]
    assert list(summary["left_whole"]) == ["2"]
    assert summary["accuracy"] is not None
    assert summary["held_out_rows"] == 40
    program = torch.export.load(out)
    sizes = sorted(tensor.numel() for tensor in program.state_dict.values())
    assert sizes == [3, 8, 24, 32]
    assert program.module()(torch.zeros(7, 4)).shape == (7, 3)


def test_a_change_that_is_not_measurable_is_no_number(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One held-out row does not vary."""
    few = tmp_path / "few.csv"
    pd.read_csv(folder / "rows.csv").iloc[:4].to_csv(few, index=False)
    call = ["prune", "--model", f"{folder / 'nets.py'}:net", "--data", str(few)]
    call += ["--target", "kind", "--out", str(tmp_path / "few.safetensors"), "--force"]

    assert main([*call, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["measured_change"] is None
    assert summary["expected_change"] is None
    assert "not_measurable" in summary["findings"]
    assert main(call) == 0
    assert "nan" not in capsys.readouterr().out


def test_what_lost_units_and_what_was_left_whole_is_printed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = arguments(folder, tmp_path / "small.pt2")
    asked[asked.index("--model") + 1] = f"{folder / 'nets.py'}:tied"

    code = main(asked)

    assert code == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("inner: 8 of 16 units")]
    whole = [line for line in lines if line.startswith("left whole: ")]
    assert any("first" in line for line in whole)
    assert any("last" in line for line in whole)


def test_weights_alone_may_be_written_within_a_budget(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.safetensors"

    code = main(arguments(folder, out, "--budget", "0.6", "--budget-of", "parameters", "--quiet"))

    assert code == 0
    assert sum(tensor.numel() for tensor in load_file(out).values()) <= 0.65 * 131


@pytest.mark.parametrize(
    "wrong",
    [
        ["--out", "small.onnx"],
        ["--out", "nowhere/small.pt2"],
        ["--images", "pictures"],
        ["--keep", "0"],
        ["--protect", "nothing"],
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_is_written(
    wrong: list[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = arguments(folder, tmp_path / "small.pt2")
    if wrong[0] == "--out":
        position = given.index("--out")
        del given[position : position + 2]

    code = main([*given, *wrong])

    assert code in (1, 2)
    assert list(tmp_path.iterdir()) == []


def test_an_exported_program_and_other_models_are_refused_in_words(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tmp_path / "small.pt2"
    assert main(arguments(folder, small, "--quiet")) == 0
    for model in (str(small), f"{folder / 'nets.py'}:table"):
        given = arguments(folder, tmp_path / "again.pt2")
        given[given.index("--model") + 1] = model
        assert main(given) == 2
        assert "--model" in capsys.readouterr().err


def test_an_existing_file_is_kept_unless_forced(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.pt2"
    out.write_text("mine", encoding="utf-8")

    assert main(arguments(folder, out)) == 2
    assert out.read_text(encoding="utf-8") == "mine"
    assert main(arguments(folder, out, "--force", "--quiet")) == 0
    assert out.stat().st_size > 1000


def with_names(folder: Path, out: Path, *more: str) -> list[str]:
    return [
        *("prune", "--model", f"{folder / 'nets.py'}:net", "--data", str(folder / "named.csv")),
        *("--target", "named", "--out", str(out), "--json", *more),
    ]


def test_classes_with_names_are_numbered_by_the_names_of_outputs(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments(folder, tmp_path / "numbered.pt2"), "--json"]) == 0
    by_number = json.loads(capsys.readouterr().out)
    names = ("--output-names", "oak,ash,elm")
    assert main(with_names(folder, tmp_path / "named.pt2", *names)) == 0
    shown = capsys.readouterr()

    assert json.loads(shown.out)["accuracy"] == by_number["accuracy"]
    assert "writable" not in shown.err


def test_classes_that_cannot_be_numbered_are_told(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(with_names(folder, tmp_path / "told.pt2")) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["accuracy"] is None
    assert "--output-names" in shown.err

    assert main(with_names(folder, tmp_path / "no.pt2", "--output-names", "oak,ash")) == 2
    assert "elm" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--groups", "--head"])
def test_options_that_pruning_has_no_use_for_are_refused(
    option: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(folder, tmp_path / "small.pt2", option, "a")) == 2
    assert option in capsys.readouterr().err


def test_tied_weights_are_written_under_both_names(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "tied.safetensors"
    given = arguments(folder, out, "--protect", "first,same", "--quiet")
    given[given.index("--model") + 1] = f"{folder / 'nets.py'}:tied"

    assert main(given) == 0

    weights = load_file(out)
    assert torch.equal(weights["first.weight"], weights["same.weight"])
    assert weights["last.weight"].shape == (3, 8)


@pytest.mark.parametrize("beyond", [1, 18])
def test_whole_numbers_that_are_no_outputs_are_refused_by_the_option(
    beyond: int, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.read_csv(folder / "rows.csv")
    frame["kind"] += beyond
    frame.to_csv(tmp_path / "beyond.csv", index=False)
    given = arguments(folder, tmp_path / "small.pt2")
    given[given.index("--data") + 1] = str(tmp_path / "beyond.csv")

    assert main(given) == 2

    said = capsys.readouterr().err
    assert f"--target kind holds whole numbers from {beyond} to {beyond + 2}" in said
    assert "3 outputs" in said
    assert not (tmp_path / "small.pt2").exists()


def test_as_many_names_as_outputs_are_wanted(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("--output-names", "oak,ash,elm,fir")

    assert main(with_names(folder, tmp_path / "named.pt2", *names)) == 2

    assert "--output-names has 4 names, and the network has 3 outputs" in capsys.readouterr().err


PICTURES = """
import torch
from torch import nn

def net():
    torch.manual_seed(1)
    layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.ReLU()
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
"""


@pytest.mark.parametrize("n_folders", [2, 3])
def test_folders_that_are_not_the_outputs_give_no_accuracy(
    n_folders: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nets.py").write_text(PICTURES, encoding="utf-8")
    rng = np.random.default_rng(0)
    for kind in range(n_folders):
        (tmp_path / "pictures" / f"kind{kind}").mkdir(parents=True)
        for number in range(8):
            pixels = rng.integers(0, 255, (9, 9, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / f"kind{kind}" / f"{number}.png")
    model = f"{tmp_path / 'nets.py'}:net"
    pictures = str(tmp_path / "pictures")
    out = str(tmp_path / "small.pt2")

    assert main(["prune", "--model", model, "--images", pictures, "--out", out, "--json"]) == 0

    shown = capsys.readouterr()
    is_measured = json.loads(shown.out)["accuracy"] is not None
    assert is_measured == (n_folders == 3)
    assert ("has 2 folders and the network 3 outputs" in shown.err) == (n_folders == 2)
