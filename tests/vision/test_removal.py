"""Locations are taken out in the order that costs the class most, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nobsp.vision import NObSPCam
from nobsp.vision.removal import remove_one_by_one
from tests.tolerances import SUMS
from tests.vision.networks import Functional, averaged, images, made, through_layers


def sharp(classes: int = 4) -> nn.Module:
    """A network that is as sure of itself as trained ones are."""
    model = averaged(classes=classes)
    model.head.weight.data *= 20  # type: ignore[union-attr,operator]
    return model


def by_definition(model: Any, maps: Tensor, target: int) -> tuple[list[int], list[float]]:
    """Every location remove_locations in turn, the head run on what is left, the best one taken."""
    left, order, chances = (
        maps.clone(),
        [],
        [float(model.head(maps.mean((1, 2))).softmax(0)[target])],
    )
    for _ in range(maps[0].numel()):
        trials = {}
        for place in set(range(maps[0].numel())) - set(order):
            trial = left.flatten(1).clone()
            trial[:, place] = 0.0
            trials[place] = float(model.head(trial.mean(1)).log_softmax(0)[target])
        best = min(trials, key=trials.__getitem__)
        left.flatten(1)[:, best] = 0.0
        order.append(best)
        chances.append(float(np.exp(trials[best])))
    return order, chances


def test_it_is_what_the_head_says_of_every_location_left_out_in_turn() -> None:
    model, x = sharp(), images(3, size=8, seed=1)
    cam = NObSPCam(model, coefficients="head").fit(images(40, size=8))
    removal = cam.removal(x, target=[0, 2, 3])
    with torch.no_grad():
        maps = model.body(x)  # type: ignore[operator]
        for image, target in enumerate([0, 2, 3]):
            order, chances = by_definition(model, maps[image], target)
            assert np.argsort(removal.order[image].ravel()).tolist() == order
            np.testing.assert_allclose(removal.probability[image], chances, rtol=1e-9, atol=SUMS)


def test_it_goes_from_the_image_to_what_the_head_says_of_nothing() -> None:
    model = sharp()
    cam = NObSPCam(model, coefficients="head").fit(images(40))
    x = images(5, seed=1)
    removal, maps = cam.removal(x), cam(x)
    np.testing.assert_array_equal(removal.target, maps.target)
    np.testing.assert_allclose(removal.probability[:, 0], maps.confidence, rtol=SUMS)
    of_nothing = model.head.bias.softmax(0).detach().numpy()[maps.target]  # type: ignore[union-attr,operator]
    np.testing.assert_allclose(removal.probability[:, -1], of_nothing, rtol=1e-9)


def test_it_falls_faster_than_in_the_order_of_the_account() -> None:
    model = sharp()
    cam = NObSPCam(model, coefficients="head").fit(images(40))
    x = images(20, seed=1)
    removal, maps = cam.removal(x), cam(x)
    with torch.no_grad():
        shares = (
            torch.einsum("qc,ncl->nql", model.head.weight, model.body(x).flatten(2)).numpy() / 64
        )  # type: ignore[operator]
    gone = np.take_along_axis(
        shares, np.argsort(-maps.account.reshape(20, 1, -1), axis=2), axis=2
    ).cumsum(axis=2)
    left = torch.from_numpy(maps.logits[..., None] - gone).softmax(1).numpy()
    by_account = left[np.arange(20), maps.target].mean(1)
    by_removal = removal.probability[:, 1:].mean(1)
    assert (by_removal <= by_account + 1e-12).mean() > 0.9
    assert by_removal.mean() < by_account.mean()


def test_importance_is_the_order_as_a_map() -> None:
    removal = NObSPCam(sharp()).fit(images(40)).removal(images(2))
    assert removal.importance.shape == (2, 8, 8)
    assert removal.importance[removal.order == 1].tolist() == [1.0, 1.0]
    np.testing.assert_allclose(np.sort(removal.importance[0], axis=None), np.arange(1, 65) / 64)
    assert repr(removal) == "Removal(2 images, 8×8 locations, layer='body')"


def test_a_single_output_loses_its_strongest_evidence_first() -> None:
    cam = NObSPCam(averaged(classes=1), coefficients="head").fit(images(40))
    x = images(3, seed=1)
    removal, maps = cam.removal(x), cam(x)
    expected = np.argsort(np.argsort(-maps.account.reshape(3, -1), axis=1), axis=1) + 1
    np.testing.assert_array_equal(removal.order.reshape(3, -1), expected)
    np.testing.assert_allclose(removal.probability[:, 0], maps.confidence)


def test_a_flattened_map_ends_at_nothing_too() -> None:
    model = made(Functional("flatten"))
    removal = (
        NObSPCam(model, coefficients="head").fit(images(40)).removal(images(3, seed=1), target=1)
    )
    of_nothing = model.classifier.bias.softmax(0).detach()[1]  # type: ignore[union-attr,operator]
    np.testing.assert_allclose(removal.probability[:, -1], of_nothing, rtol=1e-9)


def test_calibrated_coefficients_change_nothing_since_the_head_decides() -> None:
    head, calibrated = (
        NObSPCam(sharp(), coefficients=kind).fit(images(40)) for kind in ("head", "calibrated")
    )
    np.testing.assert_array_equal(
        head.removal(images(3)).order, calibrated.removal(images(3)).order
    )


def test_batches_and_pieces_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = NObSPCam(sharp()).fit(images(40)).removal(images(5))
    monkeypatch.setattr("nobsp.vision.removal._AT_ONCE", 300)
    pieces = NObSPCam(sharp(), batch_size=3).fit(images(40)).removal(images(5))
    np.testing.assert_array_equal(whole.order, pieces.order)


def test_evidence_beyond_all_measure_does_not_overflow() -> None:
    evidence = torch.tensor([[[2000.0, -2000.0, 1.0], [0.0, 0.0, 0.0]]], dtype=torch.float64)
    order, chances = remove_one_by_one(
        torch.tensor([[1.0, 0.0]], dtype=torch.float64), evidence, torch.tensor([0])
    )
    assert order.tolist() == [[1, 3, 2]]
    assert bool(torch.isfinite(chances).all())


@pytest.mark.parametrize(
    ("model", "options"),
    [(through_layers(), {}), (made(Functional("max")), {}), (averaged(), {"layer": "body.1"})],
    ids=["layers before the head", "maximum", "a layer further down"],
)
def test_logits_that_are_no_sum_over_locations_are_refused(
    model: nn.Module, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="not a sum over the locations"):
        NObSPCam(model, **options).fit(images(60)).removal(images(2))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ([[0, 1], [1, 2]], "several classes per image"),
        ([0, 1, 2], "3 entries for 2 images"),
        (9, "out of range"),
    ],
)
def test_targets_that_make_no_sense_are_refused(target: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NObSPCam(averaged()).fit(images(40)).removal(images(2), target)
