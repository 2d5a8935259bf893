"""`nobsp audit`: tables and images, against themselves or against others, and wrong labels come first."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from nobsp import ContributionIndex, NObSP
from nobsp.network.exported import as_module

Run = Callable[..., Any]
NAMES = ["cat", "dog", "owl"]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three clear classes, two rows of which are labelled wrong, and a network that tells them apart."""
    folder = tmp_path_factory.mktemp("kinds")
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], 40)
    rows = 3.0 * np.eye(3)[truth] + 0.4 * rng.normal(size=(120, 3))
    given = truth.copy()
    given[[5, 70]] = [1, 2]
    table = pd.DataFrame(rows, columns=["a", "b", "c"])
    table["code"], table["kind"] = given, np.array(NAMES)[given]
    table["other"] = given + 10
    table.to_csv(folder / "kinds.csv", index=False)
    table[::2].to_csv(folder / "half.csv", index=False)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.03)
    x, y = torch.tensor(rows, dtype=torch.float32), torch.tensor(truth)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    rows_of_any_number = ({0: torch.export.Dim("rows")},)
    program = torch.export.export(net.eval(), (x[:5],), dynamic_shapes=rows_of_any_number)
    torch.export.save(program, folder / "kinds.pt2")

    # The same network with a last layer trained on the labels as they are, until it converges.
    with torch.no_grad():
        activations = net[:2](x).double().numpy()
        trained = LogisticRegression(tol=1e-9, max_iter=5000).fit(activations, given)
        net[2].weight.copy_(torch.from_numpy(trained.coef_))
        net[2].bias.copy_(torch.from_numpy(trained.intercept_))
    program = torch.export.export(net, (x[:5],), dynamic_shapes=rows_of_any_number)
    torch.export.save(program, folder / "converged.pt2")
    return folder


def lines_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def told_in(page: Path) -> Any:
    """The data inside a report."""
    text = page.read_text(encoding="utf-8")
    return json.loads(text.partition('id="data">')[2].partition("</script>")[0])


def asked(kinds: Path, data: str, target: str) -> list[object]:
    words = [
        "--model",
        kinds / "kinds.pt2",
        "--data",
        kinds / data,
        "--target",
        target,
        "--features",
        "a,b,c",
    ]
    return ["audit", *words, "--json"]


def test_wrong_labels_of_a_table_come_first(nobsp: Run, kinds: Path, tmp_path: Path) -> None:
    done = nobsp(
        *asked(kinds, "kinds.csv", "kind"), "--output-names", *NAMES, "--out", tmp_path / "out"
    )
    found = json.loads(done.out)
    lines = lines_of(tmp_path / "out" / "audit.csv")
    assert found["likely_wrong_labels"] == 2
    assert [(line["row"], line["label"], line["suggested"]) for line in lines[:2]] in (
        [("5", "dog", "cat"), ("70", "owl", "dog")],
        [("70", "owl", "dog"), ("5", "dog", "cat")],
    )
    assert lines[0]["reason"].startswith("labelled")
    assert len(lines) == found["rows"] == 120
    page = told_in(tmp_path / "out" / "report.html")
    assert page["audit"]["total"] == 120
    assert set(page["audit"]["names"][:2]) == {"5", "70"}
    assert page["audit"]["classes"]["suggested"][:2] == [
        {"5": "cat", "70": "dog"}[row] for row in page["audit"]["names"][:2]
    ]
    assert page["table"]["rows"]["names"][70] == "70"
    assert page["audit"]["headline"][0] == "2"
    assert "kinds.csv" in page["title"]


def test_of_more_rows_than_a_page_holds_the_suspicious_keep_their_numbers(
    nobsp: Run, kinds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nobsp.cli.audit._ROWS_IN_REPORT", 3)
    nobsp(*asked(kinds, "kinds.csv", "kind"), "--output-names", *NAMES, "--out", tmp_path / "out")
    first = [line["row"] for line in lines_of(tmp_path / "out" / "audit.csv")[:3]]
    page = told_in(tmp_path / "out" / "report.html")
    assert "Shown are the 3 most suspicious." in page["about"]
    assert page["table"]["rows"]["names"] == sorted(first, key=int)
    assert set(page["audit"]["names"]) <= set(first)
    assert {"5", "70"} <= set(page["audit"]["names"])


@pytest.mark.parametrize(
    ("target", "more"),
    [("code", ()), ("other", ("--classes", "10", "11", "12")), ("kind", ("--classes", *NAMES))],
)
def test_labels_are_numbers_or_names_as_the_table_has_them(
    nobsp: Run, kinds: Path, tmp_path: Path, target: str, more: tuple[str, ...]
) -> None:
    done = nobsp(
        *asked(kinds, "kinds.csv", target), *more, "--no-report", "--out", tmp_path / "out"
    )
    assert done.code == 0, done.err
    assert {line["row"] for line in lines_of(tmp_path / "out" / "audit.csv")[:2]} == {"5", "70"}


def test_rows_may_be_compared_with_others(nobsp: Run, kinds: Path, tmp_path: Path) -> None:
    words = asked(kinds, "half.csv", "code")
    done = nobsp(
        *words, "--calibrate", kinds / "kinds.csv", "--no-report", "--out", tmp_path / "out"
    )
    assert json.loads(done.out)["rows"] == 60
    assert "calibrating on 120 rows" in done.err


def test_images_in_the_wrong_folder_are_found(nobsp: Run, gallery: Path, tmp_path: Path) -> None:
    images = tmp_path / "images"
    shutil.copytree(gallery / "more", images)
    (images / "across" / "0.png").rename(images / "down" / "moved.png")
    done = nobsp(
        "audit", "--model", gallery / "trained.pt2", "--images", images, "--channels", 1, "--neighbours", 5,
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.code == 0, done.err
    first = lines_of(tmp_path / "out" / "audit.csv")[0]
    assert (Path(first["image"]).name, first["label"], first["suggested"]) == (
        "moved.png",
        "down",
        "across",
    )
    assert "moved.png: labelled 'down'" in done.out
    page = told_in(tmp_path / "out" / "report.html")
    assert page["audit"]["names"][0] == page["pictures"]["names"][0] == "down/moved.png"
    assert page["audit"]["reasons"][0].startswith("labelled 'down'")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "choose what to audit"),
        (("--data", "kinds.csv", "--images", "."), 2, "choose what to audit"),
        (("--data", "kinds.csv"), 2, "--data needs --target"),
        (
            ("--data", "kinds.csv", "--target", "kind", "--features", "a,b,c"),
            1,
            "not one of the classes",
        ),
        (
            ("--data", "kinds.csv", "--target", "a", "--features", "b,c,code"),
            1,
            "not one of the classes",
        ),
        (("--data", "kinds.csv", "--labels", "x.csv", "--target", "a"), 2, "--data needs --target"),
        (
            (
                "--data",
                "kinds.csv",
                "--target",
                "code",
                "--features",
                "a,b,c",
                "--neighbours",
                "200",
            ),
            2,
            "only 119 others",
        ),
        (
            ("--data", "kinds.csv", "--target", "code", "--neighbours", "0"),
            2,
            "--neighbours. Must be >= 1",
        ),
        (
            ("--data", "kinds.csv", "--target", "code", "--features", "a,b,c", "--classes", *NAMES),
            2,
            "whole numbers",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    nobsp: Run,
    kinds: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(kinds)
    done = nobsp(
        "audit", "--model", "kinds.pt2", "--out", tmp_path / "out", "--no-report", "--quiet", *words
    )
    assert said in done.err
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--target", "kind"), "not one of the classes"),
        (("--target", "code", "--classes", "1", "2", "3"), "not one of the classes"),
        (("--target", "code", "--neighbours", "200"), "only 119 others"),
        (("--target", "code", "--output-names", "cat"), "output_names has 1 name"),
    ],
)
def test_what_does_not_go_together_is_said(
    nobsp: Run, kinds: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    options = ("--model", kinds / "kinds.pt2", "--data", kinds / "kinds.csv", "--features", "a,b,c")
    done = nobsp("audit", *options, "--out", tmp_path / "out", *words)
    assert done.code in (1, 2)
    assert said in done.err
    assert not (tmp_path / "out").exists()


def test_an_image_in_no_folder_has_no_label(nobsp: Run, gallery: Path, tmp_path: Path) -> None:
    images = tmp_path / "images"
    shutil.copytree(gallery / "images", images)
    (images / "down" / "0.png").rename(images / "0.png")
    done = nobsp(
        "audit",
        "--model",
        gallery / "net.pt2",
        "--images",
        images,
        "--channels",
        1,
        "--out",
        tmp_path / "out",
    )
    assert done.code == 2
    assert "0.png lies in no folder" in done.err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["--images", "scans", "--target", "kind"],
            "--data is needed, or none of the options listed with it",
        ),
        (["--data", "kinds.csv", "--target"], "--target lacks its value"),
        (["--data", "kinds.csv", "--images", "scans"], "choose what to audit"),
    ],
)
def test_options_that_lack_something_say_what(nobsp: Run, given: list[str], message: str) -> None:
    done = nobsp("audit", "--model", "net.pt2", "--out", "out", *given)
    assert done.code == 2
    assert message in done.err


# ---------------------------------------------------------------------- what speaks for a prediction


def test_rows_that_speak_for_what_was_flagged_are_those_of_the_index(
    nobsp: Run, kinds: Path, tmp_path: Path
) -> None:
    words = [*asked(kinds, "kinds.csv", "kind"), "--output-names", *NAMES, "--influence", 2]
    words[words.index(kinds / "kinds.pt2")] = kinds / "converged.pt2"
    table = pd.read_csv(kinds / "kinds.csv")
    rows = table[["a", "b", "c"]]
    explainer = NObSP(as_module(kinds / "converged.pt2", rows), output_names=NAMES).fit(rows)
    index = ContributionIndex(explainer).fit(rows, table["kind"])

    summary = json.loads(nobsp(*words, "--out", tmp_path / "out").out)

    first = [line["row"] for line in lines_of(tmp_path / "out" / "audit.csv")][:2]
    expected = index.influence(rows.iloc[[int(row) for row in first]], k=2)
    frame = expected.to_frame(4)
    lines = lines_of(tmp_path / "out" / "influence.csv")[:8]
    assert [line["row"] for line in lines] == [row for row in first for _ in range(4)]
    assert [int(line["by"]) for line in lines] == frame["index"].tolist()
    assert [line["label"] for line in lines] == frame["label"].tolist()
    values = [float(line["value"]) for line in lines]
    np.testing.assert_allclose(values, frame["value"], rtol=1e-3)
    assert summary["influence_gradient"] < 0.01
    page = told_in(tmp_path / "out" / "report.html")["table"]["influence"]
    assert (page["count"], page["targets"][int(first[0])]) == (4, expected.target[0])
    assert page["base"] is None

    without = json.loads(nobsp(*words, "--influence", 0, "--out", tmp_path / "none").out)
    assert "influence.csv" not in without["files"]
    assert {path.name for path in (tmp_path / "none").iterdir()} == {"audit.csv", "report.html"}


def test_no_influence_is_written_for_a_head_that_was_not_trained_on_the_rows(
    nobsp: Run, kinds: Path, tmp_path: Path
) -> None:
    words = [*asked(kinds, "kinds.csv", "kind"), "--output-names", *NAMES]

    summary = json.loads(nobsp(*words, "--out", tmp_path / "out").out)

    assert summary["influence_gradient"] is None
    assert "was not trained on" in summary["influence_refused"]
    assert "influence.csv" not in summary["files"]
    assert not (tmp_path / "out" / "influence.csv").exists()
    assert told_in(tmp_path / "out" / "report.html")["table"]["influence"] is None


@pytest.mark.parametrize("several", [False, True])
def test_labels_of_images_come_as_a_table(
    nobsp: Run, gallery: Path, tmp_path: Path, several: bool
) -> None:
    names = [
        path.relative_to(gallery / "more").as_posix()
        for path in sorted((gallery / "more").rglob("*.png"))
    ]
    kinds = [
        "down" if name in ("across/0.png", "across/7.png") else name.split("/")[0] for name in names
    ]  # two wrong
    labels = pd.DataFrame({"image": names[::-1], "kind": kinds[::-1]})  # in whatever order
    if several:
        labels = pd.DataFrame({"image": names[::-1]}).assign(
            **{k: (labels["kind"] == k) * 1 for k in ("across", "down")}
        )
    labels.to_csv(tmp_path / "labels.csv", index=False)
    words = [
        "audit",
        "--model",
        gallery / "trained.pt2",
        "--images",
        gallery / "more",
        "--channels",
        1,
    ]
    words += ["--labels", tmp_path / "labels.csv", "--json"]
    done = nobsp(
        *words,
        "--output-names",
        "across",
        "down",
        "--budget",
        4 if several else 2,
        "--out",
        tmp_path / "out",
    )
    assert done.code == 0, done.err
    lines = lines_of(tmp_path / "out" / "audit.csv")
    assert len(lines) == (80 if several else 40)
    wrong = [line for line in lines if line["is_label_issue"] == "True"]
    assert {Path(line["image"]).name for line in wrong} == {"0.png", "7.png"}
    assert all("across" in line["image"] for line in wrong)
    page = told_in(tmp_path / "out" / "report.html")
    told = {
        f"across/{n}.png{c}" for n in (0, 7) for c in ((", across", ", down") if several else ("",))
    }
    assert set(page["audit"]["names"][: len(told)]) == told
    assert page["pictures"]["influence"] is None  # the head was trained on other images
    labels[1:].to_csv(tmp_path / "labels.csv", index=False)
    refused = nobsp(*words, "--out", tmp_path / "other")
    assert refused.code == 2
    assert f"has no line for '{names[-1]}'" in refused.err
    if several:
        labels.to_csv(tmp_path / "labels.csv", index=False)
        decisions = ticked(
            page,
            tmp_path / "d.json",
            {"across/0.png, across": "relabel", "across/7.png, down": "drop"},
        )
        given = (
            "--images",
            gallery / "more",
            "--labels",
            tmp_path / "labels.csv",
            "--apply",
            decisions,
        )
        assert nobsp("audit", *given, "--out", tmp_path / "cleaned").code == 0
        cleaned = {
            Path(line["image"]).as_posix(): line
            for line in lines_of(tmp_path / "cleaned" / "cleaned.csv")
        }
        first = cleaned[(gallery / "more" / "across" / "0.png").as_posix()]
        assert (len(cleaned), first["across"], first["down"]) == (39, "1", "1")


# ---------------------------------------------------------------------- decisions


def decided(path: Path, *lines: tuple[object, ...]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(
            [("row", "name", "decision", "given_label", "new_label"), *lines]
        )
    return path


@pytest.mark.parametrize(
    ("target", "labels"), [("kind", ("dog", "cat", "owl")), ("other", (11, 10, 12))]
)
def test_decisions_are_applied_to_a_table(
    nobsp: Run, kinds: Path, tmp_path: Path, target: str, labels: tuple[object, ...]
) -> None:
    wrong, right, dropped = labels
    ticked = decided(
        tmp_path / "decisions.csv",
        (5, 5, "relabel", wrong, right),
        (70, 70, "drop", dropped, ""),
        (7, 7, "keep", right, ""),
    )
    words = [
        "--data",
        kinds / "kinds.csv",
        "--target",
        target,
        "--apply",
        ticked,
        "--out",
        tmp_path / "out",
        "--json",
    ]
    found = json.loads(nobsp("audit", *words).out)
    assert (found["kept"], found["dropped"], found["relabelled"]) == (119, 1, 1)
    before, after = pd.read_csv(kinds / "kinds.csv"), pd.read_csv(tmp_path / "out" / "cleaned.csv")
    before.loc[5, target] = right
    pd.testing.assert_frame_equal(after, before.drop(index=70).reset_index(drop=True))
    assert [tuple(line.values()) for line in lines_of(tmp_path / "out" / "changes.csv")] == [
        ("5", "relabel", str(wrong), str(right)),
        ("70", "drop", str(dropped), ""),
        ("7", "keep", str(right), str(right)),
    ]


def test_what_the_page_saves_can_be_applied_to_images(nobsp: Run, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("up/a.png", "up/b.png", "down/c.png"):
        (tmp_path / "scans" / name).parent.mkdir(parents=True, exist_ok=True)
        image.new("L", (4, 4)).save(tmp_path / "scans" / name)
    records = [
        {
            "row": 2,
            "name": "up/b.png",
            "decision": "relabel",
            "given_label": "up",
            "new_label": "down",
        },
        {
            "row": 0,
            "name": "down/c.png",
            "decision": "drop",
            "given_label": "down",
            "new_label": "",
        },
    ]
    (tmp_path / "decisions.json").write_text(json.dumps(records), encoding="utf-8")
    nobsp(
        "audit",
        "--images",
        tmp_path / "scans",
        "--apply",
        tmp_path / "decisions.json",
        "--out",
        tmp_path / "out",
    )
    lines = lines_of(tmp_path / "out" / "cleaned.csv")
    assert [(Path(line["image"]).name, line["label"]) for line in lines] == [
        ("a.png", "up"),
        ("b.png", "down"),
    ]


def ticked(page: Any, path: Path, decisions: dict[str, str]) -> Path:
    """Decisions by name, as the page saves them."""
    told, records = page["audit"], []
    for name, decision in decisions.items():
        at = told["names"].index(name)
        record = {
            "row": told["rows"][at],
            "name": name,
            "decision": decision,
            "output": told["outputs"][at],
        }
        suggested = told["classes"]["suggested"][at] if decision == "relabel" else ""
        records.append(
            record | {"given_label": told["classes"]["label"][at], "new_label": suggested}
        )
    path.write_text(json.dumps(records), encoding="utf-8")
    return path


def test_decisions_about_one_of_several_classes_are_applied_to_its_column(
    nobsp: Run, kinds: Path, tmp_path: Path
) -> None:
    rows = pd.read_csv(kinds / "kinds.csv")[["a", "b", "c"]]
    labels = pd.DataFrame(
        np.eye(3, dtype=int)[np.repeat([0, 1, 2], 40)], columns=["is a cat", "dog, or wolf", "owl"]
    )
    labels.loc[7, "owl"], labels.loc[[50, 90], "is a cat"] = 1, 1
    rows.to_csv(tmp_path / "rows.csv", index=False)
    labels.to_csv(tmp_path / "labels.csv", index=False)
    given = ["audit", "--data", tmp_path / "rows.csv", "--labels", tmp_path / "labels.csv"]
    done = nobsp(*given, "--model", kinds / "kinds.pt2", "--budget", 3, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    wrong = {"7, owl": "relabel", "50, is a cat": "relabel", "90, is a cat": "drop"}
    suggested = nobsp(
        *given, "--apply", tmp_path / "out" / "audit.csv", "--json", "--out", tmp_path / "suggested"
    )
    assert json.loads(suggested.out)["relabelled"] == 3
    decisions = ticked(
        told_in(tmp_path / "out" / "report.html"), tmp_path / "decisions.json", wrong
    )
    done = nobsp(*given, "--apply", decisions, "--json", "--out", tmp_path / "cleaned")
    found = json.loads(done.out)
    assert (found["kept"], found["dropped"], found["relabelled"]) == (119, 1, 2)
    labels.loc[7, "owl"], labels.loc[50, "is a cat"] = 0, 0
    expected = pd.concat([rows, labels], axis=1).drop(index=90).reset_index(drop=True)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "cleaned" / "cleaned.csv"), expected)
    log = [tuple(line.values()) for line in lines_of(tmp_path / "cleaned" / "changes.csv")]
    assert log == [
        ("7, owl", "relabel", "1", "0"),
        ("50, is a cat", "relabel", "1", "0"),
        ("90, is a cat", "drop", "1", ""),
    ]
    labels.rename(columns={"owl": "bird"}).to_csv(tmp_path / "labels.csv", index=False)
    refused = nobsp(*given, "--apply", decisions, "--out", tmp_path / "no")
    assert (refused.code, "there is no column 'owl' of labels" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ((500, 500, "drop", "cat", ""), "row '500' is not in"),
        ((5, 5, "drop", "owl", ""), "on other data"),
        ((5, 5, "burn", "dog", ""), "not keep, relabel or drop"),
        ((5, 5, "relabel", "dog", ""), "no new_label"),
    ],
)
def test_decisions_about_something_else_are_refused(
    nobsp: Run, kinds: Path, tmp_path: Path, line: tuple[object, ...], message: str
) -> None:
    ticked = decided(tmp_path / "decisions.csv", line)
    done = nobsp(
        "audit",
        "--data",
        kinds / "kinds.csv",
        "--target",
        "kind",
        "--apply",
        ticked,
        "--out",
        tmp_path / "out",
    )
    assert done.code == 2
    assert message in done.err
    assert not (tmp_path / "out").exists()


def test_labels_are_suspected_up_to_a_budget(nobsp: Run, kinds: Path, tmp_path: Path) -> None:
    words = ["--output-names", *NAMES, "--no-report", "--budget", 1, "--out", tmp_path / "out"]
    assert (
        json.loads(nobsp(*asked(kinds, "kinds.csv", "kind"), *words).out)["likely_wrong_labels"]
        == 1
    )


def test_values_are_audited_too(nobsp: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 3))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)).double()
    table = pd.DataFrame(rows, columns=["a", "b", "c"])
    table["price"] = net(torch.tensor(rows)).detach().numpy()[:, 0] * 5 + 0.1 * rng.normal(size=300)
    with torch.no_grad():
        net[2].weight.mul_(5)
        net[2].bias.mul_(5)
    table.loc[[7, 70], "price"] += [9.0, -9.0]
    table.to_csv(tmp_path / "rows.csv", index=False)
    program = torch.export.export(
        net.eval(), (torch.tensor(rows[:5]),), dynamic_shapes=({0: torch.export.Dim("rows")},)
    )
    torch.export.save(program, tmp_path / "net.pt2")
    words = [
        "audit",
        "--model",
        tmp_path / "net.pt2",
        "--data",
        tmp_path / "rows.csv",
        "--json",
        "--target",
        "price",
    ]
    done = nobsp(*words, "--out", tmp_path / "out")
    found = json.loads(done.out)
    lines = lines_of(tmp_path / "out" / "audit.csv")
    assert {lines[0]["row"], lines[1]["row"]} == {"7", "70"}
    assert lines[0]["is_label_issue"] == "True"
    assert found["median_error"] < 0.2
    page = told_in(tmp_path / "out" / "report.html")["audit"]
    assert "expected error" in page["numbers"]
    assert set(page["names"][:2]) == {"7", "70"}
    place = page["names"].index("7")
    assert float(page["classes"]["label"][place]) == pytest.approx(table.price[7])
    decided = [
        {
            "row": 7,
            "name": "7",
            "decision": "relabel",
            "given_label": page["classes"]["label"][place],
        }
    ]
    decided[0]["new_label"] = page["classes"]["suggested"][place]
    (tmp_path / "decisions.json").write_text(json.dumps(decided))
    applied = [
        "--apply",
        tmp_path / "decisions.json",
        "--data",
        tmp_path / "rows.csv",
        "--target",
        "price",
    ]
    nobsp("audit", *applied, "--out", tmp_path / "cleaned")
    cleaned = pd.read_csv(tmp_path / "cleaned" / "cleaned.csv")
    assert cleaned.price[7] == pytest.approx(table.price[7] - 9, abs=1)


def test_labels_of_several_classes_come_as_a_table(nobsp: Run, kinds: Path, tmp_path: Path) -> None:
    rows = pd.read_csv(kinds / "kinds.csv")
    labels = pd.DataFrame(np.eye(3, dtype=int)[rows.code], columns=NAMES)
    labels.loc[0, "dog"] = 1
    labels.to_csv(tmp_path / "labels.csv", index=False)
    words = [
        "audit",
        "--model",
        kinds / "kinds.pt2",
        "--data",
        kinds / "kinds.csv",
        "--features",
        "a,b,c",
        "--json",
    ]
    words += ["--labels", tmp_path / "labels.csv", "--output-names", *NAMES]
    found = json.loads(nobsp(*words, "--out", tmp_path / "out").out)
    lines = lines_of(tmp_path / "out" / "audit.csv")
    assert len(lines) == found["rows"] == 360
    wrong = {(line["row"], line["output"]) for line in lines if line["is_label_issue"] == "True"}
    assert {("0", "dog"), ("5", "cat"), ("5", "dog"), ("70", "dog"), ("70", "owl")} >= wrong
    assert wrong
    assert told_in(tmp_path / "out" / "report.html")["audit"]["names"][0] in {
        f"{r}, {o}" for r, o in wrong
    }
    labels[:-1].to_csv(tmp_path / "labels.csv", index=False)
    assert "119 lines for 120 rows" in nobsp(*words, "--out", tmp_path / "other").err


def test_an_audit_is_applied_as_it_suggests(nobsp: Run, kinds: Path, tmp_path: Path) -> None:
    before = pd.read_csv(kinds / "kinds.csv")
    given = ["audit", "--data", kinds / "kinds.csv", "--target", "kind"]
    asking = [*asked(kinds, "kinds.csv", "kind"), "--output-names", *NAMES]
    nobsp(*asking, "--out", tmp_path / "out")
    suspects = [
        line
        for line in lines_of(tmp_path / "out" / "audit.csv")
        if line["is_label_issue"] == "True"
    ]
    assert len(suspects) == 2

    done = nobsp(*given, "--apply", tmp_path / "out" / "audit.csv", "--out", tmp_path / "cleaned")

    assert done.code == 0, done.err
    for line in suspects:
        before.loc[int(line["row"]), "kind"] = line["suggested"]
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "cleaned" / "cleaned.csv"), before)


def test_an_audit_of_images_is_applied_by_their_files(nobsp: Run, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("up/a.png", "down/c.png"):
        (tmp_path / "scans" / name).parent.mkdir(parents=True, exist_ok=True)
        image.new("L", (4, 4)).save(tmp_path / "scans" / name)
    file = str(tmp_path / "scans" / "up" / "a.png")
    found = {
        "image": [file, str(tmp_path / "scans" / "down" / "c.png")],
        "row": [1, 0],
        "label": ["up", "down"],
        "suggested": ["down", "down"],
        "is_label_issue": [True, False],
    }
    pd.DataFrame(found).to_csv(tmp_path / "audit.csv", index=False)

    words = ["--images", tmp_path / "scans", "--apply", tmp_path / "audit.csv"]
    done = nobsp("audit", *words, "--out", tmp_path / "out")

    assert done.code == 0, done.err
    labels = {line["image"]: line["label"] for line in lines_of(tmp_path / "out" / "cleaned.csv")}
    assert labels[file] == "down"


def test_what_is_flagged_beyond_the_first_is_counted(
    nobsp: Run, kinds: Path, tmp_path: Path
) -> None:
    asking = [word for word in asked(kinds, "kinds.csv", "kind") if word != "--json"]
    asking += ["--output-names", *NAMES, "--budget", 3, "--outliers", 0.2]

    done = nobsp(*asking, "--out", tmp_path / "out")

    flagged = [line for line in lines_of(tmp_path / "out" / "audit.csv") if line["reason"]]
    assert len(flagged) > 5
    assert f"{len(flagged) - 5} more are flagged in audit.csv" in done.out


@pytest.mark.parametrize(("flag", "message"), [("TRUE", ""), ("true", ""), ("maybe", "'maybe'")])
def test_flags_and_labels_of_true_and_false_are_read_however_they_are_written(
    nobsp: Run, tmp_path: Path, flag: str, message: str
) -> None:
    rows = pd.DataFrame({"a": [0.1, 0.2, 0.3], "y": [True, False, True]})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    line = f"row,label,suggested,is_label_issue\n2,True,False,{flag}\n"
    (tmp_path / "audit.csv").write_text(line, encoding="utf-8")

    given = ["audit", "--data", tmp_path / "rows.csv", "--target", "y"]
    done = nobsp(*given, "--apply", tmp_path / "audit.csv", "--out", tmp_path / "cleaned")

    assert message in done.err
    if not message:
        assert done.code == 0, done.err
        cleaned = pd.read_csv(tmp_path / "cleaned" / "cleaned.csv")
        assert cleaned["y"].tolist() == [True, False, False]
