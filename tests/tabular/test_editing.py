"""Edits keep to their rule, cost as little as they can, say what they cost, and can be taken back."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import lsq_linear
from sklearn.ensemble import HistGradientBoostingRegressor

from nobsp import Functions, NObSP
from tests.tabular.handmade import handmade, rows_for
from tests.tolerances import assert_same_to_rounding

AGES = np.linspace(0, 150, 301)


@pytest.fixture(scope="module")
def functions() -> Functions:
    return handmade(outputs=2)


@pytest.fixture(scope="module")
def rows(functions: Functions) -> pd.DataFrame:
    return rows_for(functions, n_rows=400)


def sums_along_ages(functions: Functions, row: pd.Series) -> np.ndarray:
    """What the functions say about one row at every age, (ages, outputs)."""
    repeated = pd.DataFrame([row] * len(AGES)).assign(age=AGES)
    return functions.predict(repeated)


@pytest.mark.parametrize("rule", ["increasing", "decreasing"])
def test_the_sum_obeys_whatever_the_other_features_are(
    functions: Functions, rows: pd.DataFrame, rule: str
) -> None:
    edited = functions.edit("age", rule, rows, output=0).edit("age", rule, rows, output=1)
    sign = 1 if rule == "increasing" else -1
    violated_before = False
    for _, row in rows.head(40).iterrows():
        steps = sign * np.diff(sums_along_ages(edited, row), axis=0)
        assert steps.min() >= -1e-10
        violated_before |= (sign * np.diff(sums_along_ages(functions, row), axis=0)).min() < -0.01
    assert violated_before


def test_a_rule_for_one_output_leaves_the_others(functions: Functions, rows: pd.DataFrame) -> None:
    edited = functions.edit("age", "increasing", rows, output="out 0")
    assert_same_to_rounding(edited.predict(rows)[:, 1], functions.predict(rows)[:, 1])
    assert not np.allclose(edited.predict(rows)[:, 0], functions.predict(rows)[:, 0])


def test_what_obeys_already_is_not_changed(functions: Functions, rows: pd.DataFrame) -> None:
    edited = functions.edit("age", "increasing", rows, output=0)
    again = edited.edit("age", "increasing", rows, output=0)
    assert_same_to_rounding(again.predict(rows), edited.predict(rows))
    assert min(again.history[-1].agreement) > 1 - 1e-9


def test_the_projection_is_near_the_best_there_is(functions: Functions, rows: pd.DataFrame) -> None:
    """Against a bounded least squares over everything that rises in age."""
    pair = replace(functions, tables=(*functions.tables[:6], functions.tables[7]))
    inside = rows[np.isfinite(rows["age"])]
    inside = inside[inside["age"].between(18, 90)]
    edited = pair.edit("age", "increasing", inside, output=0)
    change = edited.predict(inside)[:, 0] - pair.predict(inside)[:, 0]

    main = pair.tables[0].axes[0]
    grid, city = pair.tables[6].axes
    ages = inside["age"].to_numpy()
    knots = np.unique(np.concatenate([main.knots, grid.knots]))
    steps = [np.clip((ages - a) / (b - a), 0, 1) for a, b in pairwise(knots)]
    levels = city.places([inside["city"].to_numpy()])
    # The sum: a rising line of age, and for every city a constant and a line on the coarse knots; the latter's steps
    # are those of the rising line less what it lends, so they are free where the former are large. A rising line of
    # age for every city holds all of that.
    columns = []
    bounds = []
    for level in range(len(city) + 1):
        here = (levels == level).astype(float)
        columns.append(here)
        bounds.append(-np.inf)
        for step in steps:
            columns.append(here * step)
            bounds.append(0.0)
    others = pair.tables[0](_chunk(inside))[:, 0] + pair.tables[6](_chunk(inside))[:, 0]
    best = lsq_linear(np.column_stack(columns), others, bounds=(bounds, np.inf))
    lower_bound = 2 * best.cost
    assert np.square(change).sum() >= lower_bound - 1e-6
    assert np.square(change).sum() <= 1.6 * lower_bound + 1e-6


def _chunk(rows: pd.DataFrame) -> Any:
    from nobsp.tabular.lookup import Chunk

    columns = {position: rows.iloc[:, position].to_numpy() for position in range(rows.shape[1])}
    return Chunk(columns, slice(0, len(rows)))


def test_beyond_a_number_nothing_changes_any_more(functions: Functions, rows: pd.DataFrame) -> None:
    edited = functions.edit("age", "flat above 45", rows)
    for _, row in rows.head(10).iterrows():
        before = sums_along_ages(functions, row)
        after = sums_along_ages(edited, row)
        assert_same_to_rounding(after[AGES >= 45], np.tile(after[AGES == 45], (211, 1)))
        assert_same_to_rounding(after[AGES <= 45], before[AGES <= 45])
    below = functions.edit("age", "flat below -1_0.5e1", rows)
    assert_same_to_rounding(below.predict(rows), functions.predict(rows))


def test_a_function_can_be_replaced(functions: Functions, rows: pd.DataFrame) -> None:
    edited = functions.edit("age", lambda age: 0.1 * age, rows, output=0)
    curve = edited["age"]([20.0, 40.0])
    assert curve[1] - curve[0] == pytest.approx(2.0)

    by_name = functions.edit("city", lambda names: np.arange(len(names)), rows, output=0)
    heights = by_name["city"](["Bern", 'say "hi"\nthere'])
    assert heights[1] - heights[0] == pytest.approx(2.0)
    with pytest.raises(ValueError, match="shape"):
        functions.edit("age", lambda age: age[:2], rows, output=0)
    with pytest.raises(ValueError, match="finite"):
        functions.edit("age", lambda age: age * np.nan, rows, output=0)


def test_a_cap_holds_everywhere(functions: Functions, rows: pd.DataFrame) -> None:
    edited = functions.cap("age", rows, least=-0.25, most=0.25)
    curve = edited["age"](np.linspace(-500, 500, 2001))
    assert np.ptp(curve) <= 0.5 + 1e-12
    named = functions.cap("city", rows, most=0.0)
    assert np.ptp(named["city"](["Bern", ""])) <= np.ptp(functions["city"](["Bern", ""])) + 1e-12
    for wrong in ({}, {"least": 2.0, "most": 1.0}):
        with pytest.raises(ValueError, match="least"):
            functions.cap("age", rows, **wrong)


def test_a_smooth_function_bends_less() -> None:
    generator = np.random.default_rng(0)
    X = pd.DataFrame(generator.uniform(-2, 2, size=(400, 2)), columns=["a", "b"])
    model = HistGradientBoostingRegressor(max_iter=30, random_state=0)
    model.fit(X, np.sin(2 * X["a"]) + 0.2 * X["b"])
    functions = NObSP(model, interactions=0).fit(X).compile()
    smooth = functions.edit("a", "smooth", X, model=model)
    line = np.linspace(-2, 2, 200)
    bends = np.abs(np.diff(functions["a"](line), 2)).sum()
    assert np.abs(np.diff(smooth["a"](line), 2)).sum() < 0.3 * bends
    [entry] = smooth.history
    assert entry.before[0] >= entry.after[0] > 0.9
    assert smooth.fidelity(X, model) == pytest.approx(entry.after[0])


def test_a_dropped_column_is_no_longer_needed(functions: Functions, rows: pd.DataFrame) -> None:
    edited = functions.drop("city", rows)
    without = rows.drop(columns="city")
    assert_same_to_rounding(edited.predict(without), edited.predict(rows))
    shuffled = rows.assign(city=rows["city"].sample(frac=1, random_state=0).to_numpy())
    assert_same_to_rounding(edited.predict(shuffled), edited.predict(rows))
    with pytest.raises(ValueError, match="age"):
        edited.predict(rows.drop(columns="age"))
    select = edited.to_sql("people")
    assert '"city"' not in select


def test_a_twin_takes_over_what_a_dropped_feature_said() -> None:
    generator = np.random.default_rng(0)
    a = generator.normal(size=500)
    X = pd.DataFrame({"a": a, "twin": a, "b": generator.normal(size=500)})
    outputs = np.sin(2 * a) + X["b"]

    def model(rows: Any) -> np.ndarray:
        rows = np.asarray(rows)
        return np.sin(2 * rows[:, 0]) + rows[:, 2]

    functions = NObSP(model, interactions=0).fit(X).compile()
    assert functions.fidelity(X, outputs.to_numpy()) > 0.99
    gone = functions.drop("a", X)
    kept = functions.drop("a", X, take_over=True)
    [entry] = gone.history
    assert entry.taken_over["twin"] > 0.85
    assert abs(entry.taken_over["b"]) < 0.05
    assert kept.fidelity(X, outputs.to_numpy()) > gone.fidelity(X, outputs.to_numpy()) + 0.3
    assert gone.fidelity(X, outputs.to_numpy()) < 0.8


def test_the_old_headline_is_never_that_of_an_edited_file(
    functions: Functions, rows: pd.DataFrame, tmp_path: Path
) -> None:
    edited = functions.edit("age", "increasing", rows, output=0).drop("code", rows)
    edited.save(tmp_path / "functions")
    loaded = Functions.load(tmp_path / "functions")
    for known in (edited, loaded):
        assert functions.state.headline not in repr(known)
        assert "edit" in known.state.headline
        assert known.state.explained == edited.history[-1].agreement
        assert {finding.code for finding in known.health().findings} == {"edited"}
    assert [entry.feature for entry in loaded.history] == ["age", "code"]
    assert_same_to_rounding(loaded.undo(2).predict(rows), functions.predict(rows))
    assert loaded.original.state.headline == functions.state.headline
    with pytest.raises(ValueError, match="steps"):
        loaded.undo(3)


def test_what_is_known_is_measured_anew(functions: Functions, rows: pd.DataFrame) -> None:
    edited = functions.edit("age", "flat above 0", rows)
    values = edited(rows).values
    expected = np.abs(values[:, 0]).mean(0)
    assert_same_to_rounding(edited.importances["main"][0], expected)
    assert edited.predict(rows).mean(0) == pytest.approx(edited.base_values + values.sum(1).mean(0))
    assert edited.baseline_contributions.shape == (len(edited.tables), 2)
    assert functions.history == ()


def test_the_mean_of_a_term_stays_where_it_was(functions: Functions, rows: pd.DataFrame) -> None:
    edited = functions.edit("age", lambda age: age + 1000.0, rows, output=0)
    known = np.isfinite(rows["age"])
    before = functions(rows[known]).values[:, 0].mean(0)
    assert edited(rows[known]).values[:, 0].mean(0) == pytest.approx(before)


@pytest.mark.parametrize(
    ("feature", "rule", "error", "about"),
    [
        ("nothing", "increasing", ValueError, "nothing"),
        ("age", "wiggly", ValueError, "rule"),
        ("city", "increasing", TypeError, "order"),
        ("city", "flat above 3", TypeError, "numbers"),
        ("unused", "increasing", ValueError, "unused"),
    ],
)
def test_what_cannot_be_done_is_refused(
    functions: Functions,
    rows: pd.DataFrame,
    feature: str,
    rule: str,
    error: type[Exception],
    about: str,
) -> None:
    with pytest.raises(error, match=about):
        functions.edit(feature, rule, rows, output=0)


def test_numbered_levels_rise_in_their_order(functions: Functions, rows: pd.DataFrame) -> None:
    edited = functions.edit("code", "decreasing", rows, output=0)
    for _, row in rows.head(10).iterrows():
        by_code = pd.DataFrame([row] * 3).assign(code=[0.0, 1.5, 7.0])
        assert np.diff(edited.predict(by_code)[:, 0]).max() <= 1e-10


@pytest.mark.parametrize("rule", ["increasing", " Decreasing", lambda age: 0.1 * age])
def test_a_direction_is_for_one_output(functions: Functions, rows: pd.DataFrame, rule: Any) -> None:
    with pytest.raises(ValueError, match="output must be chosen among 'out 0', 'out 1'"):
        functions.edit("age", rule, rows)
    assert functions.edit("age", "smooth", rows).history  # which is for all


def test_what_is_gone_cannot_be_dropped_again(functions: Functions, rows: pd.DataFrame) -> None:
    for name in ("age", "unused"):
        smaller = functions.drop(name, rows)
        with pytest.raises(ValueError, match="dropped already"):
            smaller.drop(name, rows)
    with pytest.raises(ValueError, match="nothing to undo"):
        functions.undo()
