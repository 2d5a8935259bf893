"""A limit on forward rows: never exceeded, without effect where it is not reached, and told."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestRegressor

from nobsp import NObSP
from nobsp.tabular import effort, fit_together
from nobsp.tabular.effort import (
    Costs,
    Meter,
    announce,
    announcement,
    announcement_of_grids,
    plan_spending,
)
from tests.tolerances import CONTRIBUTIONS, assert_same_to_rounding

Array = NDArray[np.float64]
X = np.random.default_rng(0).normal(size=(300, 6))
UNSEEN = np.random.default_rng(1).normal(size=(500, 6))


class Counted:
    """A model that counts the rows it is asked for."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, rows: Array) -> Array:
        self.rows += len(rows)
        return np.sin(rows[:, 0]) + rows[:, 1] * rows[:, 2] + np.abs(rows[:, 3])


def fresh_share(explainer: NObSP) -> float:
    """R² on rows nobody saw."""
    explanation = explainer(UNSEEN)
    return float(1 - np.square(explanation.residual).mean() / explanation.predictions.var())


@pytest.mark.parametrize("limit", [1_500, 5_000, 12_000, 30_000])
def test_no_more_rows_are_run_than_allowed(limit: int) -> None:
    model = Counted()
    explainer = NObSP(model, max_forward_rows=limit).fit(X)

    assert model.rows <= explainer.health().forward_rows <= limit
    assert "budget" in {finding.code for finding in explainer.health().findings}


def test_notes_of_coarse_tables_say_all_rows_that_were_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that were run after the tables were made, to check them."""
    monkeypatch.setattr(effort, "_MOST_OPERATIONS", 100)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.ReLU()),
        torch.nn.Linear(32, 1),
    )
    rows = np.random.default_rng(0).normal(size=(300, 20))
    health = NObSP(model, max_forward_rows=12_000).fit(rows).health()

    notes = {finding.code: finding.message for finding in health.findings}
    assert f"{health.forward_rows:,} rows were run" in notes["economy"]
    assert f"{health.forward_rows:,} rows were run" in notes["budget"]


def test_a_limit_that_is_not_reached_changes_nothing() -> None:
    free = NObSP(Counted()).fit(X)
    cost = free.health().forward_rows

    limited = NObSP(Counted(), max_forward_rows=cost).fit(X)

    assert limited.terms_ == free.terms_
    assert_same_to_rounding(limited(UNSEEN).values, free(UNSEEN).values, within=CONTRIBUTIONS)
    assert "budget" not in {finding.code for finding in limited.health().findings}


def test_twenty_thousand_rows_find_the_functions_and_the_pair() -> None:
    explainer = NObSP(Counted(), max_forward_rows=20_000).fit(X)

    assert ("x1", "x2") in explainer.terms_
    assert fresh_share(explainer) > 0.98


def test_terms_without_tables_keep_to_the_limit() -> None:
    model = Counted()
    features = {"group": [0, 1], "c": [2], "d": [3], "rest": [4, 5]}
    NObSP(model, features=features, max_forward_rows=15_000).fit(X)

    assert model.rows <= 15_000


@pytest.mark.parametrize("limit", [5_000, 8_000, 20_000])
@pytest.mark.parametrize(
    "options",
    [
        {"features": {"group": [1, 2], "a": [0], "d": [3], "e": [4], "f": [5]}},
        {"features": {"g": [1, 2], "h": [0, 3], "e": [4], "f": [5]}, "interactions": 0},
        {"interactions": [("x1", "x2")]},
    ],
)
def test_groups_and_named_pairs_fit_into_a_limit(options: Any, limit: int) -> None:
    model = Counted()
    rows = np.random.default_rng(2).normal(size=(1000, 6))
    explainer = NObSP(model, **options, max_forward_rows=limit).fit(rows)

    assert model.rows <= limit
    assert fresh_share(explainer) > 0.5


def test_little_explained_for_want_of_forward_rows_says_so() -> None:
    limited = NObSP(lambda x: x[:, 0] * x[:, 1] * x[:, 2] + x[:, 3], max_forward_rows=8_000)
    rows = np.random.default_rng(3).normal(size=(600, 6))
    messages = {f.code: f.message for f in limited.fit(rows).health().findings}
    assert "max_forward_rows=8,000 pays for no more" in messages["low_share"]


def test_a_named_triple_fits_into_a_limit() -> None:
    model = Counted()
    explainer = NObSP(model, interactions=[("x1", "x2", "x3")], max_forward_rows=20_000).fit(X)

    assert model.rows <= 20_000
    assert ("x1", "x2", "x3") in explainer.terms_


class Network(Counted):
    """A model of which every feature interacts with every other."""

    WEIGHTS = np.random.default_rng(7).normal(size=(6, 8))

    def __call__(self, rows: Array) -> Array:
        self.rows += len(rows)
        return np.tanh(rows[:, :5] @ self.WEIGHTS[:5]) @ self.WEIGHTS[5]


@pytest.mark.parametrize("limit", [3_000, 6_000, 9_000, 12_000, 14_000, 20_000])
@pytest.mark.parametrize(
    "named",
    [
        [("x0", "x1"), ("x2", "x3")],
        [("x0", "x1", "x2")],
        [("x0", "x1", "x2"), ("x3", "x4"), ("x0", "x4")],
        [("x0", "x1"), ("x0", "x2"), ("x1", "x2"), ("x3", "x4"), ("x0", "x4")],
    ],
)
def test_named_interactions_are_fitted_within_any_limit_that_is_not_tiny(
    named: list[tuple[str, ...]], limit: int
) -> None:
    """Also within limits that would just pay for all that comes before them."""
    model = Network()
    rows = np.random.default_rng(4).normal(size=(500, 5))
    explainer = NObSP(model, interactions=named, max_forward_rows=limit).fit(rows)

    assert model.rows <= limit
    assert set(named) <= set(explainer.terms_)


def products(rows: Array) -> Array:
    """Mostly three interactions."""
    pairs = rows[:, ::2] * rows[:, 1::2]
    return np.asarray(pairs.sum(1) + np.sin(2 * rows[:, 0]) + np.abs(rows[:, 3]))


@pytest.mark.parametrize("interactions", ["auto", 3])
def test_more_forward_rows_do_not_explain_less(interactions: Any) -> None:
    """Also those that would just pay for full tables of single features, some 13,000."""
    best = 0.0
    for limit in (4_000, 8_000, 12_000, 14_000, 16_000, 20_000):
        explainer = NObSP(products, interactions=interactions, max_forward_rows=limit).fit(X)
        explained = fresh_share(explainer)
        assert explained > best - 0.02, limit
        best = max(best, explained)


def test_a_model_of_steps_fits_into_few_forward_rows() -> None:
    """Thresholds are saved, too."""
    trees = pytest.importorskip("xgboost").XGBRegressor(n_estimators=60, max_depth=3, n_jobs=1)
    rows = np.random.default_rng(6).normal(size=(2000, 6))
    trees.fit(rows, Counted()(rows))
    options: dict[str, Any] = {"interactions": [("x1", "x2")]}

    explainer = NObSP(trees, **options, max_forward_rows=5_000).fit(rows[:1000])

    assert explainer.health().forward_rows <= 5_000
    assert explainer.score(UNSEEN) > NObSP(trees, **options).fit(rows[:1000]).score(UNSEEN) - 0.03
    assert "thresholds" in {finding.code for finding in explainer.health().findings}


def test_too_few_rows_for_the_features_is_an_error() -> None:
    with pytest.raises(ValueError, match="max_forward_rows=240"):
        NObSP(Counted(), max_forward_rows=240).fit(X)


def require_all_fit(limits: range, model: Any, rows: Array, **options: Any) -> None:
    """Every limit from the first one is enough, and none is exceeded."""
    for limit in limits:
        explainer = NObSP(model, max_forward_rows=limit, **options).fit(rows)
        assert explainer.health().forward_rows <= limit


def test_a_larger_limit_is_enough_where_a_smaller_one_was() -> None:
    """Grids that are needed leave calibration rows and single features what they can spare."""
    pairs = [("x1", "x2"), ("x0", "x3")]
    require_all_fit(range(900, 1400, 20), Counted(), X, interactions=pairs)
    grouped: dict[str, Any] = {"features": {"g": [0, 1], "c": [2], "d": [3], "e": [4], "f": [5]}}
    require_all_fit(range(700, 1100, 20), Counted(), X, interactions=[("g", "c")], **grouped)


SHARES = np.random.default_rng(2).uniform(size=(300, 3))
CODES = np.column_stack([np.arange(300) % 30, SHARES[:, 1:]]).astype(np.float64)
HEIGHTS = dict(enumerate(np.random.default_rng(3).normal(size=30)))


def checks_its_domain(rows: Array) -> Array:
    """Refuses a batch in which one value is no share."""
    if (rows < 0).any() or (rows > 1).any():
        raise ValueError("not a share")
    return answers_everywhere(rows)


def answers_everywhere(rows: Array) -> Array:
    """The same without a check."""
    return rows[:, 0] * rows[:, 1] + np.sin(3 * rows[:, 2])


def looks_up(rows: Array) -> Array:
    """Knows the codes that occur, and no number between them."""
    return np.array([HEIGHTS[code] for code in rows[:, 0]]) + rows[:, 1]


@pytest.mark.parametrize("interactions", ["auto", [("x0", "x1")]])
@pytest.mark.parametrize(("model", "rows"), [(checks_its_domain, SHARES), (looks_up, CODES)])
def test_models_of_limited_domains_fit_into_few_forward_rows(
    model: Any, rows: Array, interactions: Any
) -> None:
    """Rows that raise must not use up what tables need."""
    for limit in (1_000, 2_900, 5_000, 9_200, 20_000):
        explainer = NObSP(model, max_forward_rows=limit, interactions=interactions).fit(rows)

        assert explainer.health().forward_rows <= limit
        assert limit < 5_000 or explainer.health().explained[0] > 0.99


def test_a_model_that_raises_between_its_codes_takes_no_more_rows_than_others() -> None:
    """Halving all rows of a grid down to those that raise took five times as many."""
    generator = np.random.default_rng(4)
    rows = np.column_stack([generator.integers(0, 50, 500), generator.normal(size=(500, 2))])
    heights = dict(enumerate(generator.normal(size=50)))
    options: dict[str, Any] = {"interactions": [("x0", "x1")]}

    looking_up = NObSP(
        lambda rows: np.array([heights[code] for code in rows[:, 0]]) + rows[:, 1], **options
    ).fit(rows)
    answering = NObSP(answers_everywhere, **options).fit(rows)

    assert looking_up.health().forward_rows < 2 * answering.health().forward_rows


def test_few_rows_for_want_of_forward_rows_are_told_as_that() -> None:
    """More rows would change nothing."""
    grouped: dict[str, Any] = {"features": {"g": [0, 1], "c": [2], "d": [3], "e": [4], "f": [5]}}
    findings = NObSP(Counted(), **grouped, max_forward_rows=900).fit(X).health().findings

    messages = {finding.code: finding.message for finding in findings}
    assert "max_forward_rows=900" in messages["few_rows"]


def test_groups_have_calibration_rows_enough_within_a_limit() -> None:
    """Each row costs many for a group: with a quarter of the limit few of them fitted it badly."""
    rows = np.random.default_rng(0).normal(size=(600, 6))
    explainer = NObSP(
        lambda x: np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + x[:, 3] ** 2,
        features={"g": [0, 1], "h": [4, 5], "c": [2], "d": [3]},
        max_forward_rows=1_000,
    ).fit(rows[:300])
    assert explainer.health().forward_rows <= 1_000
    assert explainer.score(rows[300:]) > 0.4


def test_background_rows_of_groups_are_counted_before_tables_are_made() -> None:
    rows = np.random.default_rng(0).normal(size=(900, 12))[:500]
    alone = {f"x{k}": [k] for k in (0, 1, 2, 3, 4, 5, 6, 7, 10, 11)}
    explainer = NObSP(
        lambda x: (
            np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + x[:, 3] ** 2 + np.tanh(x[:, 8] * x[:, 9])
        ),
        features={"g": [8, 9], **alone},
        max_forward_rows=2_500,
    ).fit(rows)
    assert explainer.health().forward_rows <= 2_500


def test_a_limit_below_what_finding_the_head_takes_runs_no_row() -> None:
    model = Counted()
    with pytest.raises(ValueError, match="max_forward_rows=50 is too few"):
        NObSP(model, max_forward_rows=50).fit(X)
    assert model.rows == 0


@pytest.mark.parametrize("limit", range(368, 640, 16))
def test_a_limit_is_enough_where_a_smaller_one_is(limit: int) -> None:
    rows = np.random.default_rng(0).normal(size=(400, 6))

    def model(x: np.ndarray) -> np.ndarray:
        return np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + x[:, 3]

    explainer = NObSP(model, interactions=0, max_forward_rows=limit).fit(rows)
    assert explainer.health().forward_rows <= limit


@pytest.mark.parametrize("interactions", [0, 1, "auto"])
@pytest.mark.parametrize("limit", [30_000, 60_000, 100_000])
def test_forests_of_many_thresholds_fit_into_a_limit(limit: int, interactions: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(800, 4))
    answers = np.sin(rows[:, 0]) + rows[:, 0] * np.tanh(rows[:, 1])
    forest = RandomForestRegressor(8, random_state=0).fit(rows, answers)
    explainer = NObSP(forest, interactions=interactions, max_forward_rows=limit).fit(rows)
    assert explainer.health().forward_rows <= limit


def test_a_larger_limit_explains_no_less() -> None:
    """Fine grids over a few background rows, which the larger one has room for, tell less than coarse ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = torch.nn.Sequential(
            torch.nn.Linear(8, 64),
            torch.nn.Tanh(),
            torch.nn.Linear(64, 64),
            torch.nn.Tanh(),
            torch.nn.Linear(64, 1),
        ).double()
        with torch.no_grad():
            network[0].weight.mul_(2.5)
            network[2].weight.mul_(2.5)
        rows = torch.randn(1000, 8, dtype=torch.float64)
        others = torch.randn(2000, 8, dtype=torch.float64)
    smaller, larger = (
        NObSP(network, max_forward_rows=limit).fit(rows).score(others) for limit in (30_000, 60_000)
    )
    assert larger > smaller - 0.01


def test_interactions_are_not_to_be_left_out_where_there_are_none() -> None:
    rows = np.random.default_rng(0).normal(size=(400, 6))
    with pytest.raises(ValueError, match="pass more, or fewer features"):
        NObSP(Counted(), interactions=0, max_forward_rows=230).fit(rows)


@pytest.mark.parametrize("limit", [0, -5, 2.5, "many"])
def test_a_limit_must_be_a_whole_number(limit: object) -> None:
    with pytest.raises((TypeError, ValueError), match="max_forward_rows"):
        NObSP(Counted(), max_forward_rows=limit).fit(X)  # type: ignore[arg-type]


def test_background_rows_are_saved_before_knots() -> None:
    costs = Costs(sample=500, direct_runs=0, knots=300, background=32, screen=0)

    plan = plan_spending(costs, 6_000)

    assert plan is not None
    assert plan.background < 32
    assert plan.share_of_knots == 1.0


def test_the_time_of_a_row_is_that_of_the_fastest_call() -> None:
    meter = Meter()
    waits = iter([0.05, 0.0])

    def represent(rows: torch.Tensor) -> torch.Tensor:
        time.sleep(next(waits))
        return rows

    counted = meter.count(represent)
    counted(torch.zeros(8, 1))
    at_first = meter.seconds_per_row
    assert not meter.is_timed  # so few rows tell what a call takes, not a row
    counted(torch.zeros(80_000, 1))
    assert meter.is_timed
    assert meter.spent == 80_008
    assert meter.seconds_per_row < at_first


def test_only_long_calibrations_are_announced(caplog: pytest.LogCaptureFixture) -> None:
    assert announcement(80_000, 80_000, 1e-5) == ""
    assert announcement_of_grids(3, 80_000, 1e-5) == ""
    with caplog.at_level(logging.WARNING, logger="nobsp"):
        announce("")
        announce(announcement(84_772, 300_000, 0.020))
        announce(announcement_of_grids(3, 60_000, 0.020))

    assert len(caplog.records) == 2
    for words in ("28 minutes", "84,772", "100 minutes", "300,000", "20 minutes", "60,000"):
        assert words in caplog.text


@pytest.mark.parametrize("interactions", ["auto", 0, 2, [("x0", "x1")]])
def test_what_is_announced_holds_what_is_spent(
    monkeypatch: pytest.MonkeyPatch, interactions: Any
) -> None:
    """Within a factor of three: how far functions bend is not known before, nor is what triples take."""
    said: list[float] = []

    def listen(rows: float, most_rows: float, seconds_per_row: float) -> str:
        assert seconds_per_row > 0
        said.extend((rows, most_rows))
        return ""

    monkeypatch.setattr(fit_together, "announcement", listen)
    model = Counted()
    NObSP(model, interactions=interactions).fit(X)
    least, most = said
    assert least / 3 <= model.rows <= 3 * most
