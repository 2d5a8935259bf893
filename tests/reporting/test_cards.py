"""A card: every number on it is computed a second time, from the explainer's file, the model and the rows."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest

import nobsp
from nobsp.reporting.cards import shapes_page
from nobsp.reporting.sheets import number_text, standing_of

COLUMNS = ["age", "income", "rooms", "noise"]


def model(X):
    X = np.asarray(X, dtype=float)
    wave = 3 * np.sin(5 * X[:, 2]) * np.sign(X[:, 3])
    strange = (X[:, 0] > 0.3) & (X[:, 1] < 0.0)
    return np.sin(2 * X[:, 0]) + X[:, 1] ** 3 + np.where(strange, wave, 0.0)


def rows(seed, n):
    values = np.random.default_rng(seed).uniform(-1, 1, size=(n, 4))
    return pd.DataFrame(values, columns=COLUMNS)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("card")
    explainer = nobsp.NObSP(model, interactions=0).fit(rows(0, 1200))
    X = rows(1, 1500)
    sex = np.where(X["income"] + 0.3 * X["noise"] > 0, "f", "m")
    checks = [
        explainer.check_shape("income", "increasing", X, most_rows=200),
        explainer.check_shape("age", "bounded", X[:100], tolerance=0.5),
    ]
    given = {"checks": checks, "groups": {"sex": sex}, "title": "House <prices>", "about": "A & B."}
    page = nobsp.card(explainer, X, folder / "card.html", **given)
    text = nobsp.card(explainer, X, folder / "card.md", **given)
    explainer.save(folder / "explainer.nobsp")
    html = page.read_text(encoding="utf-8")
    found = re.search(r'id="numbers">(.*?)</script>', html, re.DOTALL).group(1)
    return {
        "html": html,
        "markdown": text.read_text(encoding="utf-8"),
        "numbers": json.loads(found),
        "file": folder / "explainer.nobsp",
        "X": X,
        "sex": sex,
    }


def recompute(path, X, sex):
    """The card's numbers by other means: tables read from the file, the model asked, plain numpy."""
    explainer = nobsp.NObSP.load(path, model)
    functions = explainer.functions_
    outputs = model(X)
    contributions = np.column_stack(
        [functions.function(name)(X[name].to_numpy()) for name in COLUMNS]
    )
    residual = outputs - functions.base_values[0] - contributions.sum(1)
    spread = np.square(outputs - outputs.mean()).sum()
    is_first = sex == pd.Series(sex).value_counts().index[0]
    gap = contributions[is_first].mean(0) - contributions[~is_first].mean(0)
    return {
        "outputs": outputs,
        "contributions": contributions,
        "residual": residual,
        "explained": 1 - np.square(residual).sum() / spread,
        "sizes": dict(zip(COLUMNS, np.abs(contributions).mean(0), strict=True)),
        "gap": [*gap, residual[is_first].mean() - residual[~is_first].mean()],
        "functions": functions,
    }


def test_every_number_is_computed_again(made):
    numbers = made["numbers"]
    again = recompute(made["file"], made["X"], made["sex"])
    headline = numbers["headline"]
    assert headline["explained"] == pytest.approx(again["functions"].state.explained)
    assert headline["explained_here"][0] == pytest.approx(again["explained"])
    assert headline["residual"][0] == pytest.approx(np.abs(again["residual"]).mean())
    assert headline["base"] == pytest.approx(again["functions"].base_values)
    assert (headline["rows"], headline["calibration_rows"]) == (1500, 1200)
    spans = {f.name: f.span for f in again["functions"].features}
    outside = np.column_stack(
        [(made["X"][name] < low) | (made["X"][name] > high) for name, (low, high) in spans.items()]
    )
    assert headline["rows_outside"] == outside.any(1).sum()
    assert headline["outside_by_feature"] == dict(zip(spans, outside.sum(0), strict=True))
    assert (headline["functions"], headline["interactions"]) == (4, 0)
    for entry in numbers["terms"]:
        assert entry["size"][0] == pytest.approx(again["sizes"][entry["term"]])
    for curve in numbers["curves"]:
        values = again["functions"].function(curve["feature"])(np.array(curve["x"]))
        assert curve["value"] == pytest.approx(values)
        middle = (np.array(curve["lower"]) + np.array(curve["upper"])) / 2
        assert middle == pytest.approx(values)
    [gap] = numbers["gaps"]
    assert [row[0] for row in gap["gap"]] == pytest.approx(again["gap"], abs=1e-9)
    assert gap["total"][0] == pytest.approx(sum(again["gap"]))
    for low, value, high in zip(gap["lower"], gap["gap"], gap["upper"], strict=True):
        assert low[0] <= value[0] <= high[0]


def strings_of(value):
    """Every way in which a card writes the numbers of its JSON."""
    if isinstance(value, dict):
        return set().union(*(strings_of(entry) for entry in value.values()))
    if isinstance(value, list):
        return set().union(*(strings_of(entry) for entry in value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return set()
    ways = {number_text(value), number_text(value, signed=True), f"{value:,}"}
    return ways | {f"{value:.2f}", f"{value:.3f}", f"{value:.0%}", f"{value:.1%}", f"{value:.2%}"}


def beside_the_largest(gap):
    """How the parts of a gap are written, each with no more decimals than the largest of them has use for."""
    size = np.abs(gap["gap"]).max()
    values = np.concatenate([np.ravel(gap[key]) for key in ("gap", "lower", "upper")])
    return {number_text(value, signed=True, size=size) for value in values}


NUMBER = re.compile(r"[+−]?\d[\d,]*(?:\.\d+)?(?:e[+−]?\d+)?%?")


def test_no_number_is_shown_that_is_not_among_those_computed_again(made):
    text = made["markdown"]
    # What a health finds has tests of its own, but for rows outside.
    lines = [
        line
        for line in text[: text.index("## What this cannot say")].splitlines()
        if not line.startswith(("- note", "- warning")) or "outside" in line
    ]
    shown = set(NUMBER.findall("\n".join(lines)))
    [gap] = made["numbers"]["gaps"]
    # How many parts are listed and of how many, the rows of a counterexample, and the level of bands.
    listed = {str(len(gap["entries"])), "1", "2", "90%"}
    beside = beside_the_largest(gap)
    assert shown - strings_of(made["numbers"]) - beside - listed == set()


def softmax_card(folder):
    """A card of three classes, with its numbers and all that they are made from."""
    from sklearn.linear_model import LogisticRegression

    X = rows(0, 600)
    labels = np.digitize(X["income"] + 0.3 * X["age"], [-0.3, 0.3])
    classifier = LogisticRegression().fit(X, labels)
    explainer = nobsp.NObSP(classifier, interactions=0).fit(X)
    side = np.where(X["age"] + 0.2 * X["rooms"] > 0.1, "old", "young")
    check = explainer.check_shape("income", "increasing", X[:80], output="1", scale="probability")
    page = nobsp.card(explainer, X, folder / "a.html", checks=check, groups={"side": side})
    explainer.save(folder / "e.nobsp")
    html = page.read_text(encoding="utf-8")
    numbers = json.loads(re.search(r'id="numbers">(.*?)</script>', html, re.DOTALL).group(1))
    functions = nobsp.NObSP.load(folder / "e.nobsp", classifier).functions_
    return X, side, classifier, functions, check, numbers


def test_every_number_of_several_outputs_is_computed_again(tmp_path):
    X, side, classifier, functions, _, numbers = softmax_card(tmp_path)
    outputs = classifier.decision_function(X)
    is_first = side == pd.Series(side).value_counts().index[0]
    [gap] = numbers["gaps"]
    assert gap["rows"] == [is_first.sum(), (~is_first).sum()]
    for output in range(3):
        contributions = np.column_stack(
            [functions.function(name, output=output)(X[name].to_numpy()) for name in COLUMNS]
        )
        residual = outputs[:, output] - functions.base_values[output] - contributions.sum(1)
        spread = np.square(outputs[:, output] - outputs[:, output].mean()).sum()
        headline = numbers["headline"]
        share = 1 - np.square(residual).sum() / spread
        assert headline["explained_here"][output] == pytest.approx(share)
        assert headline["residual"][output] == pytest.approx(np.abs(residual).mean(), abs=1e-9)
        sizes = dict(zip(COLUMNS, np.abs(contributions).mean(0), strict=True))
        for entry in numbers["terms"]:
            assert entry["size"][output] == pytest.approx(sizes[entry["term"]])
        for curve in numbers["curves"]:
            if curve["output"] == str(output):
                values = functions.function(curve["feature"], output=output)(np.array(curve["x"]))
                assert curve["value"] == pytest.approx(values, abs=1e-9)
        parts = np.column_stack([contributions, residual])
        expected = parts[is_first].mean(0) - parts[~is_first].mean(0)
        assert [row[output] for row in gap["gap"]] == pytest.approx(expected, abs=1e-9)
        means = outputs[is_first, output].mean(), outputs[~is_first, output].mean()
        assert [row[output] for row in gap["means"]] == pytest.approx(means)
        assert gap["total"][output] == pytest.approx(means[0] - means[1])
        error = np.sqrt(sum(outputs[chosen, output].var(ddof=1) / chosen.sum()
                            for chosen in (is_first, ~is_first)))  # fmt: skip
        width = gap["total_upper"][output] - gap["total_lower"][output]
        assert width == pytest.approx(2 * 1.645 * error, rel=0.12)
    assert {curve["output"] for curve in numbers["curves"]} == {"0", "1", "2"}


def test_shapes_of_probabilities_are_computed_again(tmp_path):
    X, _, classifier, _, check, numbers = softmax_card(tmp_path)
    [told] = numbers["checks"]
    grid = np.linspace(*told["within"], 400)
    lines = X[:80].loc[np.repeat(X.index[:80], len(grid))].reset_index(drop=True)
    lines["income"] = np.tile(grid, 80)
    answers = classifier.predict_proba(lines)[:, 1].reshape(80, -1)
    falls = (np.maximum.accumulate(answers, axis=1) - answers).max(1)
    assert told["broken"] == pytest.approx((falls > told["tolerance"]).sum(), abs=1)
    assert told["worst"] == pytest.approx(falls.max(), rel=0.05)
    assert told["rate"] == told["broken"] / told["rows"]
    fed = classifier.predict_proba(check.counterexamples)[:2, 1]
    assert told["counterexample"]["predictions"] == pytest.approx(fed, abs=1e-6)
    values = check.counterexamples["income"].to_numpy()[:2]
    assert told["counterexample"]["values"] == pytest.approx(values)


def test_weak_spots_are_measured_as_the_card_says(made):
    again = recompute(made["file"], made["X"], made["sex"])
    half = np.random.default_rng(0).permutation(1500)[1::2]
    assert made["numbers"]["weak_spots"]
    for spot in made["numbers"]["weak_spots"]:
        inside = np.ones(1500, dtype=bool)
        for condition in spot["conditions"]:
            column = made["X"][condition["feature"]].to_numpy()
            if condition["above"] is not None:
                inside &= column > condition["above"]
            if condition["up_to"] is not None:
                inside &= column <= condition["up_to"]
        chosen = half[inside[half]]
        outputs, residual = again["outputs"][chosen], again["residual"][chosen]
        share = 1 - np.square(residual).sum() / np.square(outputs - outputs.mean()).sum()
        assert spot["rows"] == len(chosen)
        assert spot["share"] == pytest.approx(len(chosen) / 750)
        assert spot["explained"] == pytest.approx(share)
        assert spot["error"] == pytest.approx(np.sqrt(np.square(residual).mean()))
        usual = np.sqrt(np.square(again["residual"][half]).mean())
        assert spot["usual_error"] == pytest.approx(usual)


def test_shapes_are_what_the_model_says(made):
    rising, bounded = made["numbers"]["checks"]
    # Without the strange region it rises; in it the wave is the same for all incomes below zero, and drops out above.
    X = made["X"][:100].to_numpy()
    low, high = bounded["within"]
    grid = np.linspace(low, high, 400)
    lines = np.repeat(X, len(grid), 0)
    lines[:, 0] = np.tile(grid, len(X))
    moves = np.ptp(model(lines).reshape(len(X), -1), axis=1)
    assert bounded["broken"] == pytest.approx((moves > 0.5).sum(), abs=2)
    assert bounded["worst"] == pytest.approx(moves.max(), rel=0.05)
    assert rising["rows"] == 200
    from scipy.stats import binom

    for check in (rising, bounded):
        if check["broken"] < check["rows"]:
            tail = binom.cdf(check["broken"], check["rows"], check["bound"])
            assert tail == pytest.approx((1 - check["confidence"]) / 2)


def test_html_loads_nothing_and_escapes_what_it_is_told(made):
    html = made["html"]
    assert "House &lt;prices&gt;" in html
    assert "<prices>" not in html
    assert "http" not in html.replace("http-equiv", "")
    assert "default-src 'none'" in html


def test_markdown_says_the_same(made):
    text = made["markdown"]
    headline = made["numbers"]["headline"]
    assert f"{headline['explained'][0]:.3f}" in text
    for title in (
        "Functions",
        "Shapes",
        "Weak spots",
        "Gaps between groups",
        "What this cannot say",
    ):
        assert f"## {title}" in text


def test_bad_input_is_refused_by_name(tmp_path):
    explainer = nobsp.NObSP(model, interactions=0).fit(rows(0, 100))
    X = rows(1, 50)
    with pytest.raises(ValueError, match="groups"):
        nobsp.card(explainer, X, tmp_path / "a.md", groups={"sex": ["f"]})
    with pytest.raises(TypeError, match="checks"):
        nobsp.card(explainer, X, tmp_path / "a.md", checks=["income"])
    with pytest.raises(TypeError, match="explainer"):
        nobsp.card(model, X, tmp_path / "a.md")
    assert nobsp.card(explainer, X, tmp_path / "a.md").exists()


def test_groups_that_are_left_out_are_named(tmp_path):
    explainer = nobsp.NObSP(model, interactions=0).fit(rows(0, 100))
    X = rows(1, 150)
    groups = {
        "number": np.arange(150),
        "constant": ["same"] * 150,
        "mixed": ["often"] * 75 + ["also"] * 70 + ["seldom"] * 5,
    }
    text = nobsp.card(explainer, X, tmp_path / "a.md", groups=groups).read_text(encoding="utf-8")
    section = text[text.index("## Gaps") :]
    for word in ("number:", "constant has", "seldom left out", "often − all others"):
        assert word in section
    assert "No groups were named" not in section


def test_endings_and_single_checks(tmp_path):
    explainer = nobsp.NObSP(model, interactions=0).fit(rows(0, 100))
    X = rows(1, 50)
    with pytest.raises(ValueError, match="path"):
        nobsp.card(explainer, X, tmp_path / "card.txt")
    check = explainer.check_shape("income", "increasing", X)
    text = nobsp.card(explainer, X[:1], tmp_path / "a.md", checks=check).read_text(encoding="utf-8")
    assert "income increasing" in text
    assert "nan" not in text.lower().replace("finance", "")


def test_names_from_right_to_left_stand_at_the_left_of_their_card(browser, tmp_path):
    X = np.random.default_rng(0).normal(size=(100, 2))
    names = ["שם", "other"]
    explainer = nobsp.NObSP(lambda X: X[:, 0] ** 2, features=names, interactions=0).fit(X)
    page = browser.new_page(viewport={"width": 400, "height": 800})
    page.goto(nobsp.card(explainer, X, tmp_path / "card.html").as_uri())
    left = page.locator(".card h3 bdi", has_text="שם").bounding_box()["x"]
    page.close()
    assert left < 100


def test_numbers_below_a_curve_stay_whole_beside_a_long_name(browser, tmp_path):
    name = "a_very_long_name_of_a_feature_without_any_space_that_goes_on_and_on"
    X = np.random.default_rng(0).normal(size=(100, 2))
    explainer = nobsp.NObSP(lambda X: X[:, 0] ** 2, features=[name, "other"], interactions=0).fit(X)
    path = nobsp.card(explainer, X, tmp_path / "card.html")
    page = browser.new_page(viewport={"width": 400, "height": 800})
    page.goto(path.as_uri())
    heights = page.evaluate(
        "[...document.querySelectorAll('.ends span')].map(e => e.getBoundingClientRect().height)"
    )
    width = page.evaluate("document.documentElement.scrollWidth")
    page.close()
    assert max(heights) < 30
    assert width <= 400


def test_outputs_are_named_where_there_are_several(tmp_path):
    def scores(X):
        return np.column_stack([model(X), -model(X)])

    explainer = nobsp.NObSP(scores, output_names=["up", "down"], interactions=0).fit(rows(0, 100))
    X = rows(1, 60)
    check = explainer.check_shape("income", "increasing", X, output="down")
    groups = {"half": np.arange(60) % 2}
    page = nobsp.card(explainer, X, tmp_path / "a.md", checks=[check], groups=groups)
    text = page.read_text(encoding="utf-8")
    assert "income increasing for down: a counterexample" in text
    # Every output has its gaps and its functions.
    for output in ("up", "down"):
        assert f"− 1 of {output}" in text
        assert f"{output}: income" in text


def test_probabilities_of_classes_are_checked_as_such(tmp_path):
    from sklearn.linear_model import LogisticRegression

    X = rows(0, 300)
    labels = np.digitize(X["income"], [-0.3, 0.3])
    explainer = nobsp.NObSP(LogisticRegression().fit(X, labels), interactions=0).fit(X)
    checks = [
        explainer.check_shape("income", "increasing", X[:50], output="2", scale=scale)
        for scale in ("output", "probability")
    ]
    text = nobsp.card(explainer, X, tmp_path / "a.md", checks=checks).read_text(encoding="utf-8")
    assert "income increasing for 2, before the model's softmax" in text
    assert "income increasing for 2, after the model's softmax" in text


def test_headlines_that_explain_little_do_not_look_like_good_news():
    assert [standing_of(share) for share in (0.99, 0.5, -0.1, float("nan"))] == [
        "",
        "doubtful",
        "bad",
        "",
    ]


def test_some_broken_shapes_are_doubtful(tmp_path):
    explainer = nobsp.NObSP(model, interactions=0).fit(rows(0, 400))
    checks = [
        explainer.check_shape("income", "increasing", rows(1, 100)),
        explainer.check_shape("age", "bounded", rows(1, 100), tolerance=1000.0),
    ]
    page = shapes_page(checks, tmp_path / "shapes.html").read_text(encoding="utf-8")
    assert '<strong class="doubtful">1 of 2</strong>' in page
