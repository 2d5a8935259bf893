"""Two measures called sparseness."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nobsp.metrics import UndefinedScoreWarning, gini_sparseness, sparseness
from tests.tolerances import PASS, SUMS

MAPS = np.random.default_rng(0).normal(size=(6, 1, 5, 7))


def test_the_paper_s_formula() -> None:
    flat = MAPS.reshape(6, -1)
    expected = 1 - np.linalg.norm(flat, 1, axis=1) / (np.sqrt(35) * np.linalg.norm(flat, 2, axis=1))
    np.testing.assert_allclose(sparseness(MAPS), expected)


def test_gini_is_the_mean_difference_of_all_pairs_over_twice_the_mean() -> None:
    for one, score in zip(np.abs(MAPS.reshape(6, -1)), gini_sparseness(MAPS), strict=True):
        assert score == pytest.approx(np.abs(one[:, None] - one).mean() / (2 * one.mean()))


def test_gini_is_what_quantus_calls_sparseness() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantus = pytest.importorskip("quantus")
        metric = quantus.Sparseness(return_aggregate=False, disable_warnings=True)
        theirs = metric(model=None, x_batch=MAPS, y_batch=np.zeros(6, dtype=int), a_batch=MAPS)
    np.testing.assert_allclose(gini_sparseness(MAPS), theirs, atol=1e-5)
    assert not np.allclose(sparseness(MAPS), theirs, atol=0.05)


@pytest.mark.parametrize(("score", "one_in_four"), [(sparseness, 0.5), (gini_sparseness, 0.75)])
def test_equal_values_score_zero_and_a_single_one_scores_most(score, one_in_four) -> None:
    np.testing.assert_allclose(
        score([[2.0, -2.0, 2.0, 2.0], [0.0, -7.0, 0.0, 0.0]]), [0.0, one_in_four], atol=PASS
    )


@given(
    arrays(np.float64, (3, 6), elements=st.floats(-9, 9).filter(lambda x: abs(x) > 1e-3)),
    st.floats(1e-150, 1e150),
)
def test_scale_sign_and_order_do_not_matter(values: np.ndarray, scale: float) -> None:
    for score in (sparseness, gini_sparseness):
        np.testing.assert_allclose(score(-scale * values[:, ::-1]), score(values), atol=SUMS)


@pytest.mark.parametrize("score", [sparseness, gini_sparseness])
def test_an_attribution_of_zeros_is_nan_with_a_warning(score) -> None:
    with pytest.warns(UndefinedScoreWarning, match="1 of 2 rows are zero") as caught:
        np.testing.assert_array_equal(np.isnan(score([[0.0, 0.0], [1.0, 0.0]])), [True, False])
    assert caught[0].filename == __file__


@pytest.mark.parametrize("score", [sparseness, gini_sparseness])
def test_shapes_without_rows_or_without_values_are_refused(score) -> None:
    with pytest.raises(ValueError, match="one explanation per row"):
        score([1.0, 2.0])
    with pytest.raises(ValueError, match="one value per row"):
        score([[1.0], [2.0]])
