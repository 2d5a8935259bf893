"""Attributions against what removal does: features, groups of columns, pixels."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from nobsp.metrics import UndefinedScoreWarning, ablation_effects, attribution_faithfulness
from tests.tolerances import assert_same_to_rounding

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4))
WEIGHTS = RNG.normal(size=(4, 3))


def linear(rows):
    return rows @ WEIGHTS


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
    )


def test_effects_are_differences_of_two_outputs_for_the_predicted_class() -> None:
    baseline = np.array([0.5, -1.0, 0.0, 2.0])
    effects = ablation_effects(linear, X, baseline=baseline)
    for row in range(30):
        target = linear(X[row]).argmax()
        for column in range(4):
            without = X[row].copy()
            without[column] = baseline[column]
            assert effects[row, column] == pytest.approx(
                linear(X[row])[target] - linear(without)[target]
            )


def test_a_group_is_removed_as_a_whole() -> None:
    groups = {"one": 0, "pair": [1, 3], "two": 2}
    effects = ablation_effects(linear, X, baseline=0.0, groups=groups, target=2)
    np.testing.assert_allclose(effects[:, 1], X[:, [1, 3]] @ WEIGHTS[[1, 3], 2])


def test_the_target_may_differ_from_row_to_row() -> None:
    target = RNG.integers(0, 3, size=30)
    effects = ablation_effects(linear, X, baseline=0.0, target=target)
    np.testing.assert_allclose(effects, X * WEIGHTS[:, target].T)


def test_batches_do_not_change_effects() -> None:
    np.testing.assert_allclose(
        ablation_effects(linear, X, baseline=0.0),
        ablation_effects(linear, X, baseline=0.0, batch_size=7),
    )


def test_a_torch_model_is_run_in_evaluation_mode_and_left_as_it_was() -> None:
    model = network().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first = ablation_effects(model, torch.as_tensor(X), baseline=0.0)
    assert_same_to_rounding(first, ablation_effects(model, X, baseline=0.0))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_correlation_is_spearman_of_mean_absolute_values() -> None:
    attributions, effects = RNG.normal(size=(30, 6)), RNG.normal(size=(30, 6))
    score = attribution_faithfulness(attributions, effects)
    expected = stats.spearmanr(
        np.abs(attributions).mean(axis=0), np.abs(effects).mean(axis=0)
    ).statistic
    assert score.correlation == pytest.approx(expected)


def test_attributions_of_a_group_are_added_up_before_their_size_is_taken() -> None:
    groups = {"pair": [0, 1], "one": [2], "two": [3]}
    attributions = np.array([[5.0, -5.0, 1.0, 2.0]])
    score = attribution_faithfulness(attributions, [[0.1, 1.0, 2.0]], groups=groups)
    np.testing.assert_array_equal(score.importance, [0.0, 1.0, 2.0])
    assert score.correlation == pytest.approx(1.0)


def test_exact_attributions_of_a_linear_model_are_perfectly_faithful() -> None:
    effects = ablation_effects(linear, X, baseline=0.0, target=0)
    assert attribution_faithfulness(X * WEIGHTS[:, 0], effects).correlation == pytest.approx(1.0)


def test_features_that_are_all_alike_have_no_ranking() -> None:
    with pytest.warns(UndefinedScoreWarning, match="correlation is nan"):
        assert np.isnan(attribution_faithfulness(np.ones((3, 4)), X[:3]).correlation)


@pytest.mark.parametrize(
    ("attributions", "effects", "options", "words"),
    [
        (X, X[:, :3], {}, r"\(30, 4\) but effects has \(30, 3\)"),
        (X[:5], X, {}, r"\(5, 4\) but effects has \(30, 4\)"),
        (X[:, :1], X[:, :1], {}, "one feature"),
        (X[0], X[0], {}, "2 dimensions"),
        (X, X, {"groups": {"a": [0, 1], "b": [2, 3]}}, "added up by groups"),
    ],
)
def test_attributions_that_do_not_fit_are_named(attributions, effects, options, words) -> None:
    with pytest.raises(ValueError, match=words):
        attribution_faithfulness(attributions, effects, **options)


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (linear, {"baseline": [0.0, 1.0]}, "2 values but X has 4 columns"),
        (linear, {"baseline": 0.0, "target": 3}, "there are 3 outputs"),
        (linear, {"baseline": 0.0, "batch_size": 0}, "batch_size must be .* found 0"),
        (lambda rows: rows[:2] @ WEIGHTS, {"baseline": 0.0}, "returned 2 outputs for 30 rows"),
        (
            lambda rows: rows * np.nan,
            {"baseline": 0.0},
            "what the model returned has 120 values that are nan",
        ),
    ],
)
def test_models_and_baselines_that_do_not_fit_are_named(model, options, words) -> None:
    with pytest.raises(ValueError, match=words):
        ablation_effects(model, X, **options)


def test_something_that_cannot_be_called_is_no_model() -> None:
    with pytest.raises(TypeError, match="model should be a torch module or a function, found int"):
        ablation_effects(3, X, baseline=0.0)  # type: ignore[arg-type]
