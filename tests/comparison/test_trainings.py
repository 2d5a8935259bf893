"""Several trainings of a model: what they change is measured by how far they lie apart."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import f, ttest_ind

import nobsp
from nobsp.comparison.changes import _tail, _training_noise
from nobsp.comparison.trainings import Scatter
from tests.tolerances import CONTRIBUTIONS, assert_same_to_rounding

PAIRS = [("x1", "x2")]


def training(seed, *, change=0.0):
    """A model whose functions differ a little from one training to the next."""
    sizes = np.random.default_rng(seed).normal(scale=0.05, size=(3, 4))

    def model(X):
        waves = [np.sin((k + 1) * X + k) @ sizes[:, k] for k in range(4)]
        own = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + change * np.sin(3 * X[:, 0])
        return own + np.sum(waves, axis=0)

    return model


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(1).normal(size=(300, 3))


@pytest.fixture(scope="module")
def accounts(rows):
    """Accounts of trainings, by what was changed."""
    calibration = np.random.default_rng(0).normal(size=(400, 3))

    def explain(seed, change):
        explainer = nobsp.NObSP(training(seed, change=change), interactions=PAIRS)
        return explainer.fit(calibration)(rows)

    return {
        "before": [explain(seed, 0.0) for seed in range(3)],
        "again": [explain(10 + seed, 0.0) for seed in range(3)],
        "after": [explain(20 + seed, 0.4) for seed in range(3)],
    }


def test_the_changed_function_is_named_and_what_training_again_moves_is_not(accounts):
    changed = nobsp.compare(accounts["after"], accounts["before"], draws=200)
    assert changed.changed() == ("x0",)
    assert "by more than training again makes: x0" in changed.headline
    again = nobsp.compare(accounts["again"], accounts["before"], draws=200)
    assert again.changed() == ()
    # One of each cannot know what training again does.
    alone = nobsp.compare(accounts["again"][0], accounts["before"][0], draws=200)
    assert len(alone.changed()) > 1


def test_means_of_trainings_are_compared_and_add_up(accounts):
    comparison = nobsp.compare(accounts["after"], accounts["before"], draws=200)
    predictions = [
        np.mean([account.predictions.mean() for account in accounts[name]])
        for name in ("after", "before")
    ]
    assert_same_to_rounding(
        comparison.total.value, [predictions[0] - predictions[1]], within=CONTRIBUTIONS
    )
    assert_same_to_rounding(
        comparison.gap.value.sum(0), comparison.total.value, within=CONTRIBUTIONS
    )
    frame = comparison.to_frame().set_index("term")
    part = comparison.along("x0")["part"].sum()
    assert_same_to_rounding(part, frame.loc["x0", "gap"], within=CONTRIBUTIONS)
    assert comparison.n_trainings == (3, 3)
    assert "3 and 3 trainings" in repr(comparison)


def test_a_part_of_one_direction_is_tested_as_students_t_test_does():
    generator = np.random.default_rng(0)
    shape = generator.normal(size=500)
    sizes = [generator.normal(size=4), generator.normal(size=3) + 1]
    # Every training is one shape times a number: the spread is that number.
    sides = [shape[:, None, None, None] * size[None, :, None, None] for size in sizes]
    weights = np.full(500, 1 / 500)
    scatter = Scatter.of(sides, weights)
    difference = shape * (sizes[0].mean() - sizes[1].mean())
    noise = _training_noise(scatter, scatter.draw(100, generator), 0, difference[:, None])
    assert noise.freedom == pytest.approx([1.0])
    found = _tail(np.array([difference.var()]), noise)
    assert found == pytest.approx([ttest_ind(*sizes).pvalue], rel=1e-9)
    # Several directions make an F distribution of as many.
    spread = np.array([2 * float(noise.mean[0])])
    wider = _training_noise(scatter, scatter.draw(100, generator), 0, difference[:, None])
    assert _tail(spread, wider) == pytest.approx([f.sf(2, 1, 5)], rel=1e-9)


def test_intervals_of_gaps_count_trainings_as_students_intervals_do():
    generator = np.random.default_rng(3)
    sizes = [generator.normal(size=3), generator.normal(size=3)]
    sides = [np.ones((50, 1, 1, 1)) * size[None, :, None, None] for size in sizes]
    scatter = Scatter.of(sides, np.full(50, 1 / 50))
    drawn = scatter.mean_deviations(scatter.draw(200_000, generator))[:, 0, 0]
    theory = ttest_ind(*sizes).confidence_interval(0.9)
    assert np.quantile(drawn, 0.95) == pytest.approx((theory.high - theory.low) / 2, rel=0.03)


def test_trainings_are_refused_that_say_nothing(accounts, rows):
    before = accounts["before"]
    with pytest.raises(ValueError, match="b is an empty list"):
        nobsp.compare(before, [])
    with pytest.raises(ValueError, match=r"a\[0\] and b\[0\] are of the same functions"):
        nobsp.compare(before, [before[0]])
    with pytest.raises(ValueError, match=r"b\[0\] is of other rows than a\[0\]"):
        nobsp.compare(before, accounts["after"][0][:50])
    with pytest.raises(TypeError, match=r"a\[1\] must be an Explanation.* found int"):
        nobsp.compare([before[0], 3], accounts["after"])
    with pytest.raises(TypeError, match="or a list of them, one for each training"):
        nobsp.compare(rows, accounts["after"])


def test_curves_of_several_trainings_are_their_mean(accounts):
    comparison = nobsp.compare(accounts["after"], accounts["before"], draws=100)
    x = np.linspace(-1, 1, 7)
    own = [account.origin.function("x0")(x) for account in accounts["after"]]
    found = comparison.curve("x0", x, side=0)
    assert_same_to_rounding(found, np.mean(own, axis=0), within=CONTRIBUTIONS)
    drawn = comparison.plot.two_curves("x0").lines[0]
    expected = comparison.curve("x0", drawn.get_xdata(), side=0)
    assert np.array_equal(drawn.get_ydata(), expected)


def test_rows_that_weigh_nothing_do_not_count_among_trainings(accounts):
    weights = np.ones(300)
    weights[200:] = 0
    weighted = nobsp.compare(
        accounts["after"], accounts["before"], draws=200, sample_weight=(weights, weights)
    )
    shorter = nobsp.compare(
        [account[:200] for account in accounts["after"]],
        [account[:200] for account in accounts["before"]],
        draws=200,
    )
    assert_same_to_rounding(weighted.gap.value, shorter.gap.value, within=CONTRIBUTIONS)
    assert_same_to_rounding(weighted.change.value, shorter.change.value, within=CONTRIBUTIONS)
    assert_same_to_rounding(weighted.p_value, shorter.p_value, within=1e-9)
