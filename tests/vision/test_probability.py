"""Accounts can be of the probability instead of the logit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nobsp.vision import NObSPCam
from nobsp.vision.targets import Targets
from tests.tolerances import SUMS
from tests.vision.networks import averaged, images, through_layers


def sharp(factor: float = 20.0) -> nn.Module:
    """A network that is as sure of itself as trained ones are."""
    model = averaged()
    model.head.weight.data *= factor  # type: ignore[union-attr,operator]
    return model


def probability(logits: Any, target: Any) -> np.ndarray[Any, Any]:
    return torch.as_tensor(logits).softmax(-1).numpy()[..., target]


def test_the_mean_of_the_account_is_the_change_of_the_probability() -> None:
    cam = NObSPCam(sharp(), coefficients="head").fit(images(40))
    maps = cam(images(6, seed=1), target=2, scale="probability")
    change = probability(maps.logits, 2) - probability(maps.base_values, 2)
    assert np.abs(change).max() > 0.1
    np.testing.assert_allclose(maps.account.mean((1, 2)), change, atol=SUMS)
    np.testing.assert_allclose(maps.contributions.sum(1), change, atol=SUMS)
    np.testing.assert_allclose(maps.residual, 0.0, atol=SUMS)


def test_it_is_integrated_gradients_of_the_probability_at_the_map() -> None:
    model, x, calibration = sharp(), images(3, seed=1), images(40)
    maps = NObSPCam(model, coefficients="head").fit(calibration)(x, target=1, scale="probability")
    with torch.no_grad():
        stop, start = model.body(x), model.body(calibration).mean((0, 2, 3))[:, None, None]  # type: ignore[operator]
    steps, gradient = 4000, torch.zeros_like(stop)
    for number in range(steps):
        here = (start + (number + 0.5) / steps * (stop - start)).requires_grad_()
        p = model.head(here.mean((2, 3))).softmax(1)[:, 1].sum()  # type: ignore[operator]
        gradient += torch.autograd.grad(p, here)[0] / steps
    locations = stop.shape[2] * stop.shape[3]
    expected = locations * (gradient * (stop - start)).sum(1)
    np.testing.assert_allclose(maps.account, expected.numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("factor", [1.0, 10.0, 50.0])
def test_the_integral_is_exact_however_far_logits_are_apart(factor: float) -> None:
    generator = torch.Generator().manual_seed(0)
    start = factor * torch.randn(7, dtype=torch.float64, generator=generator)
    stop = factor * torch.randn(5, 7, dtype=torch.float64, generator=generator)
    targets = Targets([list(range(7))] * 5, None, outputs=7, names=(), scale="probability")
    weights = targets.question(targets.choose(stop, 0), stop, start).mean_gradient(stop)
    change = stop.softmax(1) - start.softmax(0)
    torch.testing.assert_close(
        torch.einsum("ntq,nq->nt", weights, stop - start), change, rtol=0, atol=SUMS
    )


def test_what_an_integral_misses_where_logits_are_thousands_apart_is_in_the_residual() -> None:
    cam = NObSPCam(sharp(1e5), coefficients="head").fit(images(40))
    maps = cam(images(6, seed=1), target=2, scale="probability")
    change = probability(maps.logits, 2) - probability(maps.base_values, 2)
    np.testing.assert_allclose(maps.account.mean((1, 2)) + maps.residual, change, atol=SUMS)


def test_one_output_is_a_sigmoid() -> None:
    model = averaged(classes=1)
    maps = NObSPCam(model, coefficients="head").fit(images(40))(
        images(5, seed=1), scale="probability"
    )
    change = torch.from_numpy(maps.logits).sigmoid() - torch.from_numpy(maps.base_values).sigmoid()
    np.testing.assert_allclose(maps.account.mean((1, 2)), change[:, 0], atol=SUMS)


def test_batches_do_not_matter() -> None:
    whole, pieces = (NObSPCam(sharp(), batch_size=size).fit(images(40)) for size in (32, 2))
    asked: dict[str, Any] = {"target": [[0, 1]] * 5, "scale": "probability"}
    np.testing.assert_allclose(
        whole(images(5), **asked).account, pieces(images(5), **asked).account, atol=SUMS
    )


def test_layers_before_the_head_keep_an_account_of_the_probability_with_a_residual() -> None:
    maps = NObSPCam(through_layers()).fit(images(60))(
        images(4, seed=1), target=1, scale="probability"
    )
    change = probability(maps.logits, 1) - probability(maps.base_values, 1)
    np.testing.assert_allclose(maps.account.mean((1, 2)) + maps.residual, change, atol=SUMS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": "percent"}, 'scale must be "logit" or "probability", found \'percent\''),
        ({"scale": "probability", "against": "others"}, "has all other classes in it already"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    cam = NObSPCam(averaged()).fit(images(40))
    with pytest.raises(ValueError, match=message):
        cam(images(3), **options)
