"""Recovered functions against true ones."""

import numpy as np
import pytest
from sklearn.metrics import r2_score

from nobsp.metrics import UndefinedScoreWarning, function_reproduction

X = np.random.default_rng(0).uniform(-2, 2, size=(200, 3))
TRUTH = np.column_stack([np.abs(X[:, 0]), X[:, 1] ** 3, np.zeros(200)])


def test_scores_are_those_of_centred_functions() -> None:
    found = TRUTH + np.random.default_rng(1).normal(size=TRUTH.shape) + [3.0, -1.0, 0.5]
    scores = function_reproduction(found, TRUTH, outputs=TRUTH.sum(axis=1) + 7.0)
    a, b = found - found.mean(axis=0), TRUTH - TRUTH.mean(axis=0)
    expected = [r2_score(b[:, k], a[:, k]) for k in (0, 1)]
    np.testing.assert_allclose(scores.r2[:2], expected)
    np.testing.assert_allclose(
        scores.nrmse[0], np.sqrt(((a - b)[:, 0] ** 2).mean()) / b[:, 0].std()
    )
    assert scores.mean_r2 == pytest.approx(np.mean(expected))
    assert scores.mean_null_attribution == pytest.approx(np.abs(a[:, 2]).mean())
    assert scores.reconstruction_r2 == pytest.approx(r2_score(b.sum(axis=1), a.sum(axis=1)))


def test_offsets_do_not_matter() -> None:
    scores = function_reproduction(
        TRUTH + np.array([5.0, -2.0, 1.0]), TRUTH, outputs=TRUTH.sum(axis=1)
    )
    assert (scores.mean_r2, scores.reconstruction_r2) == pytest.approx((1.0, 1.0))
    assert (scores.mean_nrmse, scores.mean_null_attribution) == pytest.approx((0.0, 0.0))


def test_a_feature_that_plays_no_part_has_no_r2_and_the_others_no_false_positive() -> None:
    scores = function_reproduction(TRUTH, TRUTH)
    np.testing.assert_array_equal(np.isnan(scores.r2), [False, False, True])
    np.testing.assert_array_equal(np.isnan(scores.null_attribution), [True, True, False])
    assert np.isnan(scores.reconstruction_r2)


def test_without_anything_to_reproduce_scores_are_nan_with_a_warning() -> None:
    with pytest.warns(UndefinedScoreWarning, match="every true function is constant"):
        scores = function_reproduction(X, np.ones_like(X))
    assert np.isnan(scores.mean_r2)
    assert scores.mean_null_attribution > 0


def test_constant_outputs_have_no_reconstruction() -> None:
    with pytest.warns(UndefinedScoreWarning, match="outputs are constant") as caught:
        scores = function_reproduction(TRUTH, TRUTH, outputs=np.ones(200))
    assert np.isnan(scores.reconstruction_r2)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("found", "truth", "options", "words"),
    [
        (TRUTH, TRUTH[:, :2], {}, r"\(200, 3\) but truth has \(200, 2\)"),
        (TRUTH[:1], TRUTH[:1], {}, "1 rows, and comparing rows needs at least 2"),
        (TRUTH, TRUTH, {"outputs": np.ones(3)}, "one number for each of the 200 rows"),
        (TRUTH[:, 0], TRUTH[:, 0], {}, "should have 2 dimensions"),
    ],
)
def test_arguments_that_do_not_fit_are_named(found, truth, options, words) -> None:
    with pytest.raises(ValueError, match=words):
        function_reproduction(found, truth, **options)


def test_the_result_reads_like_a_line_of_the_paper() -> None:
    assert repr(function_reproduction(TRUTH, TRUTH, outputs=TRUTH.sum(axis=1))) == (
        "FunctionReproduction(mean_r2=1.000, mean_nrmse=0.000, mean_null_attribution=0, reconstruction_r2=1.000)"
    )
