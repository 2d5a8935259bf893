"""Paired comparisons: intervals, sign flips, several tests at once."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from nobsp.metrics import holm, paired_bootstrap, sign_flip_test

RNG = np.random.default_rng(0)
FIRST = RNG.normal(0.3, 1.0, size=60)
SECOND = RNG.normal(0.0, 1.0, size=60)


def test_the_interval_is_that_of_scipy() -> None:
    found = paired_bootstrap(FIRST, SECOND, resamples=20_000)
    theirs = stats.bootstrap((FIRST - SECOND,), np.mean, n_resamples=20_000, method="percentile", rng=1)
    assert found.difference == pytest.approx((FIRST - SECOND).mean())
    assert (found.low, found.high) == pytest.approx(tuple(theirs.confidence_interval), abs=0.01)


def test_intervals_cover_the_true_difference_as_often_as_they_say() -> None:
    covered = [
        one.low <= 0.5 <= one.high
        for seed in range(300)
        for one in [paired_bootstrap(np.random.default_rng(seed).normal(0.5, 1.0, 80), confidence=0.9, resamples=600)]
    ]
    assert np.mean(covered) == pytest.approx(0.9, abs=0.05)


def test_pairs_stay_together() -> None:
    # The scores differ a lot from case to case, the methods always by the same.
    scores = RNG.normal(0, 100.0, size=50)
    found = paired_bootstrap(scores + 1.0, scores)
    assert (found.low, found.high) == pytest.approx((1.0, 1.0))


def test_memory_does_not_grow_with_the_resamples_times_the_pairs() -> None:
    scores = RNG.normal(size=20_000)
    tracemalloc.start()
    paired_bootstrap(scores, resamples=1_000)
    sign_flip_test(scores, resamples=1_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100e6 < 1_000 * 20_000 * 8


def test_the_seed_decides_the_draws() -> None:
    one, same, other = (paired_bootstrap(FIRST, SECOND, seed=seed, resamples=200) for seed in (0, 0, 1))
    assert one == same != other


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_the_exact_test_tries_every_pattern(alternative: str) -> None:
    differences = np.array([0.3, -0.1, 0.0, 0.7, 0.2, -0.4, 0.3])
    found = sign_flip_test(differences, alternative=alternative)  # type: ignore[arg-type]
    sums = [np.dot(signs, differences) for signs in itertools.product((-1, 1), repeat=7)]
    extreme = {
        "two-sided": [abs(one) >= abs(differences.sum()) - 1e-9 for one in sums],
        "greater": [one >= differences.sum() - 1e-9 for one in sums],
        "less": [one <= differences.sum() + 1e-9 for one in sums],
    }
    assert found.exact
    assert found.flips == 128
    assert found.p_value == np.mean(extreme[alternative])


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_the_exact_test_is_scipy_s_permutation_test(alternative: str) -> None:
    found = sign_flip_test(FIRST[:9], SECOND[:9], alternative=alternative)  # type: ignore[arg-type]
    theirs = stats.permutation_test(
        (FIRST[:9], SECOND[:9]), lambda a, b: np.mean(a - b), permutation_type="samples", alternative=alternative
    )
    assert found.p_value == pytest.approx(theirs.pvalue)


def test_random_flips_come_close_to_all_of_them() -> None:
    exact = sign_flip_test(FIRST[:16], SECOND[:16])
    drawn = sign_flip_test(FIRST[:16], SECOND[:16], exact_up_to=0, resamples=40_000)
    assert (exact.exact, drawn.exact) == (True, False)
    assert drawn.p_value == pytest.approx(exact.p_value, abs=0.01)


def test_the_observed_pattern_counts_so_that_p_is_never_zero() -> None:
    found = sign_flip_test(np.full(40, 1.0), resamples=999)
    assert found.p_value == 1 / 1000


def test_p_values_are_uniform_when_nothing_differs() -> None:
    p_values = [
        sign_flip_test(np.random.default_rng(seed).normal(size=30), resamples=199).p_value for seed in range(400)
    ]
    assert np.mean(np.array(p_values) <= 0.05) == pytest.approx(0.05, abs=0.03)


def test_sums_that_are_equal_on_paper_are_equal_here() -> None:
    # 0.1 + 0.2 - 0.3 is not zero in floating point.
    assert sign_flip_test([0.1, 0.2, -0.3]).p_value == 1.0


def test_no_difference_at_all_is_no_evidence() -> None:
    assert sign_flip_test(np.zeros(5)).p_value == 1.0
    assert sign_flip_test(np.zeros(50), resamples=99).p_value == 1.0


def test_one_pair_cannot_be_significant() -> None:
    assert sign_flip_test([0.7]).p_value == 1.0


def test_holm_worked_by_hand() -> None:
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.5, 0.9]), [1.0, 1.0])
    np.testing.assert_allclose(holm([0.2]), [0.2])


def test_holm_keeps_names_and_their_order() -> None:
    assert holm({"b": 0.04, "a": 0.01}) == pytest.approx({"b": 0.04, "a": 0.02})
    assert list(holm({"b": 0.04, "a": 0.01})) == ["b", "a"]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_lies_between_the_p_value_and_bonferroni_and_keeps_the_order(p_values: list[float]) -> None:
    found, given_ = holm(p_values), np.array(p_values)
    assert (found >= given_).all()
    assert (found <= np.minimum(len(given_) * given_, 1.0) + 1e-15).all()
    order = np.argsort(given_, kind="stable")
    assert (np.diff(found[order]) >= 0).all()


@pytest.mark.parametrize("test", [paired_bootstrap, sign_flip_test])
@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ([1.0, 2.0], [1.0], r"\(2,\) but second has \(1,\)"),
        ([1.0, np.nan], None, "first has 1 values that are nan"),
        ([[1.0], [2.0]], None, "1 dimensions"),
        ([], None, "empty"),
    ],
)
def test_scores_that_do_not_pair_up_are_refused(test, first, second, words) -> None:
    with pytest.raises(ValueError, match=words):
        test(first, second)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda: paired_bootstrap([1.0]), "1 rows, but a bootstrap needs at least 2"),
        (lambda: paired_bootstrap(FIRST, confidence=95), "confidence is 95"),
        (lambda: paired_bootstrap(FIRST, resamples=0), "resamples is 0"),
        (lambda: sign_flip_test(FIRST, resamples=0), "resamples is 0"),
        (lambda: sign_flip_test(FIRST, alternative="up"), "'greater' or 'less', found 'up'"),
        (lambda: sign_flip_test(FIRST, exact_up_to=40), "exact_up_to is 40"),
        (lambda: holm([0.1, 1.2]), "must lie between 0 and 1"),
        (lambda: holm([]), "empty"),
    ],
)
def test_settings_that_make_no_sense_are_named(run, words) -> None:
    with pytest.raises(ValueError, match=words):
        run()


def test_results_read_like_a_sentence() -> None:
    assert repr(sign_flip_test([0.62, 0.71], [0.60, 0.66])) == "SignFlip(+0.035, p=0.5, exact, 2 pairs)"
    assert repr(paired_bootstrap([2.0, 2.0])) == "Interval(+2, 95% in [+2, +2], 2 pairs)"
