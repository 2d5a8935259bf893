"""Explanations follow the model's parameters, and not the noise in its input."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from nobsp.metrics import UndefinedScoreWarning, model_randomisation, stability
from tests.tolerances import assert_same_to_rounding

RNG = np.random.default_rng(0)
X = torch.as_tensor(RNG.normal(size=(6, 20)), dtype=torch.float32)


class Shift(nn.Module):
    """Parameters, but no way of its own to draw them anew."""

    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.arange(16.0))

    def forward(self, x):
        return x + self.by


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 16), Shift(), nn.ReLU(), nn.Linear(16, 1))


def gradient_times_input(model: nn.Module) -> torch.Tensor:
    rows = X.clone().requires_grad_()
    model(rows).sum().backward()
    assert rows.grad is not None
    return rows.grad * rows


def test_layers_are_randomised_from_the_output_on_and_stay_so() -> None:
    seen: list[nn.Module] = []
    model = network()
    check = model_randomisation(model, lambda one: (seen.append(one), gradient_times_input(one))[1])
    assert check.layers == ("3", "1", "0")
    assert check.similarity.shape == (3, 6)
    assert seen[0] is model
    assert not torch.equal(seen[1][3].weight, model[3].weight)
    assert torch.equal(seen[1][0].weight, model[0].weight)
    assert torch.equal(seen[2][3].weight, seen[1][3].weight)
    assert not torch.equal(seen[3][0].weight, model[0].weight)


def test_layers_without_a_way_to_start_anew_are_shuffled() -> None:
    seen: list[nn.Module] = []
    model_randomisation(network(), lambda one: (seen.append(one), X)[1], layers=["1"])
    assert not torch.equal(seen[1][1].by, seen[0][1].by)
    assert torch.equal(seen[1][1].by.sort().values, seen[0][1].by)


def test_without_cascade_one_layer_is_random_at_a_time() -> None:
    seen: list[nn.Module] = []
    model_randomisation(network(), lambda one: (seen.append(one), X)[1], cascade=False)
    assert torch.equal(seen[3][3].weight, seen[0][3].weight)


def test_the_model_and_the_random_numbers_of_the_caller_are_untouched() -> None:
    model = network().train()
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    model_randomisation(model, gradient_times_input)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert model.training


@pytest.mark.parametrize("measure", ["spearman", "pearson"])
@pytest.mark.parametrize("absolute", [True, False])
def test_similarity_is_the_correlation_of_each_row(measure: str, absolute: bool) -> None:
    answers = iter([RNG.normal(size=(4, 9)) for _ in range(2)])
    kept: list[np.ndarray] = []

    def explain(_: nn.Module) -> np.ndarray:
        kept.append(next(answers))
        return kept[-1]

    check = model_randomisation(network(), explain, layers=["0"], measure=measure, absolute=absolute)  # type: ignore[arg-type]
    before, after = (np.abs(one) if absolute else one for one in kept)
    correlate = stats.spearmanr if measure == "spearman" else stats.pearsonr
    expected = [correlate(a, b).statistic for a, b in zip(before, after, strict=True)]
    np.testing.assert_allclose(check.similarity[0], expected)
    np.testing.assert_allclose(check.mean, [np.mean(expected)])


def test_an_explanation_that_ignores_the_model_is_found_out() -> None:
    np.testing.assert_allclose(model_randomisation(network(), lambda _: X).mean, 1.0)
    assert model_randomisation(network(), gradient_times_input).mean[-1] < 0.8


def test_a_constant_explanation_is_nan_with_a_warning() -> None:
    with pytest.warns(UndefinedScoreWarning, match="18 explanations are constant"):
        assert np.isnan(model_randomisation(network(), lambda _: np.ones((6, 4))).mean).all()


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (network(), {"layers": ["2"]}, r"\['2'\]; layers with parameters are \['0', '1', '3'\]"),
        (network(), {"layers": []}, "no names"),
        (nn.ReLU(), {}, "no parameters"),
        (network(), {"measure": "kendall"}, "'spearman' or 'pearson'"),
    ],
)
def test_layers_that_are_not_there_are_named(model, options, words) -> None:
    with pytest.raises(ValueError, match=words):
        model_randomisation(model, lambda _: X, **options)


def test_explanations_that_change_their_shape_are_refused() -> None:
    shapes = iter([(6, 4), (6, 5)])
    with pytest.raises(ValueError, match="'3' randomised"):
        model_randomisation(network(), lambda _: RNG.normal(size=next(shapes)))


ROWS = RNG.normal(size=(30, 4)) * [1.0, 10.0, 0.1, 0.0]


def test_a_linear_explanation_moves_as_far_as_its_input() -> None:
    found = stability(lambda rows: 3 * rows, ROWS, noise=0.1, repeats=5)
    np.testing.assert_allclose(found.lipschitz, 3.0)
    assert found.change.shape == (5, 30)
    np.testing.assert_allclose(found.worst, found.change.max(axis=0))


def test_noise_is_measured_by_the_spread_of_each_column() -> None:
    seen: list[np.ndarray] = []
    rows = RNG.normal(size=(4000, 3)) * [1.0, 10.0, 0.0] + 1.0
    stability(lambda given: (seen.append(given), given)[1], rows, noise=0.05, repeats=1)
    np.testing.assert_array_equal(seen[0], rows)
    np.testing.assert_allclose((seen[1] - rows).std(axis=0), 0.05 * rows.std(axis=0), rtol=0.05)


def test_an_explanation_that_does_not_move_is_perfectly_stable() -> None:
    assert stability(np.ones_like, ROWS).mean == 0.0


def test_the_seed_decides_the_noise() -> None:
    one, same, other = (stability(np.sin, ROWS, seed=seed) for seed in (0, 0, 1))
    assert_same_to_rounding(one.change, same.change)
    assert one.mean != other.mean


def test_explain_may_spoil_what_it_is_given() -> None:
    rows = ROWS.copy()

    def spoil(given: np.ndarray) -> np.ndarray:
        result = 2 * given
        given[:] = 0
        return result

    stability(spoil, rows)
    np.testing.assert_array_equal(rows, ROWS)


def test_images_and_a_scale_of_ones_own_are_taken() -> None:
    found = stability(lambda images: images.mean(axis=1), RNG.normal(size=(1, 3, 4, 4)), scale=1.0, repeats=2)
    assert found.change.shape == (2, 1)


def test_an_explanation_of_zeros_is_nan_with_a_warning() -> None:
    with pytest.warns(UndefinedScoreWarning, match="30 explanations are zero"):
        assert np.isnan(stability(np.zeros_like, ROWS).mean)


@pytest.mark.parametrize(
    ("explain", "rows", "options", "words"),
    [
        (np.sin, ROWS[:1], {}, "pass scale otherwise"),
        (np.sin, np.ones((4, 2)), {}, "no column of X varies"),
        (np.sin, ROWS, {"noise": 0.0}, "noise is 0.0"),
        (np.sin, ROWS, {"repeats": 0}, "repeats is 0"),
        (np.sin, ROWS, {"scale": [1.0, 2.0]}, r"scale has the shape \(2,\)"),
        (lambda rows: rows[:5], ROWS, {}, "5 explanations for 30 rows"),
    ],
)
def test_noise_that_makes_no_sense_is_named(explain, rows, options, words) -> None:
    with pytest.raises(ValueError, match=words):
        stability(explain, rows, **options)
