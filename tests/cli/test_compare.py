"""`nobsp compare` and `nobsp check`: what they write, what they say, and how they end."""

from __future__ import annotations

import json
import re

import pandas as pd
import pytest

ARGUMENTS = ("--data", "houses.csv", "--target", "price", "--interactions", "0")


def test_two_tables_are_compared(nobsp, tmp_path):
    ended = nobsp(
        "compare", "--model", "house.pt2", *ARGUMENTS, "--against", "fresh.csv",
        "--names", "all", "first", "--out", tmp_path / "out", "--json",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    summary = json.loads(ended.out)
    assert summary["kind"] == "rows"
    assert summary["names"] == ["all", "first"]
    frame = pd.read_csv(tmp_path / "out" / "comparison.csv")
    assert frame["gap"].sum() == pytest.approx(summary["total"][0])
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "http" not in page.replace("http-equiv", "")


def test_two_models_are_compared_on_the_same_rows(nobsp, tmp_path):
    ended = nobsp(
        "compare", "--model", "shop.py:house", *ARGUMENTS, "--against-model", "house.pt2",
        "--out", tmp_path / "out", "--no-report", "--json",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    summary = json.loads(ended.out)
    assert summary["kind"] == "functions"
    assert summary["explained"][0] <= 1
    assert list(summary["files"]) == ["comparison.csv"]
    # Every interval is beside the number it is of.
    for part in summary["parts"]:
        assert part["lower"] <= part["gap"] <= part["upper"]
        assert 0 <= part["change_lower"] <= part["change"] <= part["change_upper"]


def test_models_and_tables_at_once_have_three_parts(nobsp, tmp_path):
    ended = nobsp(
        "compare", "--model", "shop.py:house", *ARGUMENTS, "--against-model", "house.pt2",
        "--against", "fresh.csv", "--out", tmp_path / "out",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    frame = pd.read_csv(tmp_path / "out" / "comparison.csv")
    parts = frame[["rows", "functions", "both"]].sum(axis=1)
    pd.testing.assert_series_equal(parts, frame["gap"], check_names=False)


def test_the_former_name_of_the_confidence_works_with_a_warning(nobsp, tmp_path):
    widths = {}
    for option in ("--confidence", "--level"):
        out = tmp_path / option.strip("-")
        ended = nobsp(
            "compare", "--model", "house.pt2", *ARGUMENTS, "--against", "fresh.csv",
            option, "0.5", "--out", out, "--no-report",
        )  # fmt: skip
        assert ended.code == 0, ended.err
        assert ("--level is now --confidence" in ended.err) == (option == "--level")
        frame = pd.read_csv(out / "comparison.csv")
        widths[option] = frame["upper"] - frame["lower"]
    pd.testing.assert_series_equal(widths["--level"], widths["--confidence"])


def test_there_must_be_something_to_compare_with(nobsp, tmp_path):
    ended = nobsp("compare", "--model", "house.pt2", *ARGUMENTS, "--out", tmp_path / "out")
    assert ended.code == 2
    assert "--against" in ended.err


def test_a_file_of_one_row_is_named_before_anything_is_calibrated(nobsp, home, tmp_path):
    pd.read_csv(home / "houses.csv")[:1].to_csv(tmp_path / "single.csv", index=False)
    ended = nobsp(
        "compare", "--model", "house.pt2", *ARGUMENTS, "--against", tmp_path / "single.csv",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert ended.code == 2
    assert "--against" in ended.err
    assert "single.csv" in ended.err
    assert "calibrating" not in ended.err


def test_names_of_files_are_written_as_they_are(nobsp, tmp_path):
    ended = nobsp(
        "compare", "--model", "house.pt2", *ARGUMENTS, "--against", "fresh.csv",
        "--out", tmp_path / "out", "--no-report",
    )  # fmt: skip
    assert ended.out.startswith("houses ")


def test_a_shape_is_checked_and_counterexamples_are_written(nobsp, tmp_path):
    command = (
        "check", "--model", "house.pt2", *ARGUMENTS, "--feature", "age", "--shape", "bounded",
        "--tolerance", "0.000001",
    )  # fmt: skip
    ended = nobsp(*command, "--out", tmp_path / "out", "--json")
    assert ended.code == 0, ended.err
    [check] = json.loads(ended.out)["checks"]
    assert not check["holds"]
    assert check["rate"] == check["broken"] / check["rows"]
    rows = pd.read_csv(tmp_path / "out" / "counterexamples.csv")
    assert {"checked", "prediction", "break", "age", "income"} <= set(rows.columns)
    first = rows.iloc[:2]
    assert abs(first["prediction"].diff().iloc[1]) == pytest.approx(
        first["break"].iloc[0], rel=1e-4
    )
    assert "counterexample" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert nobsp(*command, "--out", tmp_path / "strict", "--strict").code == 1


def test_an_unknown_feature_is_a_usage_error(nobsp, tmp_path):
    ended = nobsp(
        "check", "--model", "house.pt2", *ARGUMENTS, "--feature", "agee", "--shape", "increasing",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert ended.code == 2
    assert "'age'" in ended.err


def test_probabilities_of_a_model_without_any_are_refused_in_words(nobsp, tmp_path):
    ended = nobsp(
        "check", "--model", "house.pt2", *ARGUMENTS, "--feature", "age", "--shape", "increasing",
        "--probability", "--out", tmp_path / "out",
    )  # fmt: skip
    assert ended.code in (1, 2)
    assert "its link is 'identity'" in ended.err
    assert "Traceback" not in ended.err


def test_a_bound_is_asked_for_before_anything_is_calibrated(nobsp, tmp_path):
    ended = nobsp(
        "check", "--model", "house.pt2", *ARGUMENTS, "--feature", "size", "--shape", "bounded",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert ended.code == 2
    assert "--tolerance" in ended.err
    assert "calibrating" not in ended.err


def test_rounding_is_not_listed_as_a_change(nobsp, tmp_path):
    ended = nobsp(
        "compare", "--model", "shop.py:house", *ARGUMENTS, "--against-model", "house.pt2",
        "--out", tmp_path / "out", "--no-report",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert "base:" not in ended.out
    assert "e-1" not in ended.out


def test_minus_signs_are_alike_in_all_that_is_said(nobsp, home, tmp_path):
    rows = pd.read_csv(home / "houses.csv")
    rows["income"] += 2.0
    rows.to_csv(tmp_path / "march.csv", index=False)
    ended = nobsp(
        "compare", "--model", "house.pt2", *ARGUMENTS, "--against", tmp_path / "march.csv",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    said = ended.out.rpartition("Wrote")[0]
    assert "−" in said
    assert re.search(r"(?<![\w-])-\d", said) is None


@pytest.mark.parametrize(
    ("features", "tolerance", "standing"),
    [
        (("age", "income"), "1e-6", ' class="bad"'),
        (("age",), "1000", ""),
    ],
)
def test_the_number_of_shapes_that_hold_looks_like_what_it_is(
    nobsp, tmp_path, features, tolerance, standing
):
    ended = nobsp(
        "check", "--model", "house.pt2", *ARGUMENTS, "--feature", ",".join(features),
        "--shape", "bounded", "--tolerance", tolerance, "--out", tmp_path / "out",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    held = len(features) if not standing else 0
    assert f"<strong{standing}>{held} of {len(features)}</strong>" in page


def test_rounding_between_models_that_predict_the_same_is_not_listed(nobsp, tmp_path):
    ended = nobsp(
        "compare", "--model", "house.pt2", "--data", "houses.csv", "--target", "price", "--against-model", "house.pt2",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert "predict the same" in ended.out
    assert "e−" not in ended.out
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert 'id="parts"' not in page
    assert 'id="method"' in page
