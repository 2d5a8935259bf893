"""What a call promises: exact accounts, any targets, and maps that depend on the model."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import nobsp
from nobsp.vision import ActivationMaps, NObSPCam
from tests.tolerances import CONTRIBUTIONS, PASS, SUMS, assert_same_to_rounding
from tests.vision.networks import (
    ClassMaps,
    Functional,
    Tokens,
    averaged,
    images,
    made,
    through_layers,
)

NETWORKS = {
    "average": averaged,
    "rectified": lambda: made(Functional("mean")),
    "maximum": lambda: made(Functional("max")),
    "both": lambda: made(Functional("concat")),
    "flattened": lambda: made(Functional("flatten")),
    "tokens": lambda: made(Tokens("mean")),
    "class maps": lambda: made(ClassMaps()),
}


def centred_logit(maps: ActivationMaps) -> NDArray[np.float64]:
    centred: NDArray[np.float64] = maps.logits - maps.base_values
    return np.take_along_axis(centred, maps.target[:, None], axis=1)[:, 0]


def spatial_map(cam: NObSPCam, x: Tensor) -> NDArray[np.float64]:
    with cam._fitted.feature_map.running() as forward:
        return forward(x).maps.numpy()


@pytest.mark.parametrize("name", NETWORKS)
def test_the_mean_of_the_account_is_the_centred_logit(name: str) -> None:
    x = images(40)
    maps = NObSPCam(NETWORKS[name](), coefficients="head").fit(x)(x[:7])
    np.testing.assert_allclose(
        maps.account.mean((1, 2)), centred_logit(maps), rtol=CONTRIBUTIONS, atol=SUMS
    )
    assert np.abs(maps.residual).max() < SUMS


@pytest.mark.filterwarnings("ignore:Fewer samples", "ignore:The coefficients carry only")
@pytest.mark.parametrize("name", NETWORKS)
def test_account_and_residual_add_up_to_the_centred_logit_for_calibrated_coefficients(
    name: str,
) -> None:
    x = images(60)
    maps = NObSPCam(NETWORKS[name](), coefficients="calibrated").fit(x)(x[:7])
    means = maps.account.mean((1, 2))
    np.testing.assert_allclose(
        means, maps.contributions.sum(1), rtol=CONTRIBUTIONS, atol=CONTRIBUTIONS
    )
    np.testing.assert_allclose(
        means + maps.residual, centred_logit(maps), rtol=CONTRIBUTIONS, atol=SUMS
    )


def test_the_positive_map_is_the_papers_equation() -> None:
    x = images(60)
    cam = NObSPCam.as_published(averaged()).fit(x)
    maps, features = cam(x[:5], target=2), spatial_map(cam, x[:5])
    g = maps.contributions
    np.testing.assert_allclose(
        maps.positive, np.einsum("nchw,nc->nhw", features, np.maximum(g, 0)), rtol=SUMS
    )
    np.testing.assert_allclose(
        maps.negative, np.einsum("nchw,nc->nhw", features, np.maximum(-g, 0)), rtol=SUMS
    )
    np.testing.assert_array_equal(maps.signed, maps.positive - maps.negative)
    assert maps.positive.min() >= 0
    assert maps.negative.min() >= 0


def test_the_account_is_gradcams_map_before_its_rectifier_up_to_a_constant() -> None:
    # Where the map is averaged straight into the head, gradients of a logit are the head's weights.
    model, x = averaged(), images(60)
    cam = NObSPCam(model, coefficients="head").fit(x)
    features = model.body(x[:5])
    features.retain_grad()
    model.head(model.flat(model.pool(features)))[:, 2].sum().backward()
    assert features.grad is not None
    weights = features.grad.mean((2, 3), keepdim=True)
    gradcam = (weights * features).sum(1).detach().numpy() * features[0, 0].numel()
    apart = cam(x[:5], target=2).account - gradcam
    np.testing.assert_allclose(apart, apart.mean((1, 2), keepdims=True) + 0 * apart, atol=SUMS)


def test_contributions_are_coefficients_times_centred_channels() -> None:
    x = images(60)
    cam = NObSPCam.as_published(averaged()).fit(x)
    pooled = spatial_map(cam, x).mean((2, 3))
    expected = cam.coefficients_[:, 1] * (pooled[:5] - pooled.mean(0))
    np.testing.assert_allclose(
        cam(x[:5], target=1).contributions, expected, rtol=CONTRIBUTIONS, atol=PASS
    )


def test_a_maximum_belongs_to_the_place_where_it_was_found() -> None:
    x = images(40)
    cam = NObSPCam(made(Functional("max"), seed=1), coefficients="head").fit(x)
    maps, features = cam(x[:4], target=0), spatial_map(cam, x[:4])
    tops = {
        np.unravel_index(features[0, c].argmax(), features.shape[2:])
        for c in range(features.shape[1])
    }
    floor = np.median(maps.account[0])  # every location without a maximum has the same
    elsewhere = np.abs(maps.account[0] - floor) > 1e-9
    assert {tuple(place) for place in np.argwhere(elsewhere)} <= {
        tuple(map(int, top)) for top in tops
    }


def test_a_flattened_map_gives_every_location_its_own_weight() -> None:
    model, x = made(Functional("flatten")), images(40)
    cam = NObSPCam(model, coefficients="head").fit(x)
    features = spatial_map(cam, x)
    weight = model.classifier.weight.detach().numpy()[2].reshape(features.shape[1:])
    locations = features[0].size / features.shape[1]
    expected = locations * (weight * (features[0] - features.mean(0))).sum(0)
    np.testing.assert_allclose(cam(x[:1], target=2).account[0], expected, atol=CONTRIBUTIONS)


# ---------------------------------------------------------------------- targets


def test_the_target_is_the_predicted_class_by_default() -> None:
    model, x = averaged(), images(30)
    maps = NObSPCam(model).fit(x)(x)
    with torch.no_grad():
        np.testing.assert_array_equal(maps.target, model(x).argmax(1))


@pytest.mark.parametrize("several", [[2, 0], (3, 1)])
def test_one_target_for_all_one_each_and_several_each_agree(several: Any) -> None:
    x = images(30)
    cam = NObSPCam(averaged()).fit(x)
    both = cam(x[:4], target=[several] * 4)
    assert both.positive.shape == (4, 2, 8, 8)
    assert both.contributions.shape == (4, 2, 6)
    size = float(
        np.abs(both.account).max()
    )  # the residual is what is left where numbers of this size cancel
    for position, one in enumerate(several):
        for given in (
            one,
            np.int64(one),
            torch.tensor(one),
            [one] * 4,
            np.full(4, one),
            torch.full((4,), one),
        ):
            alone = cam(x[:4], target=given)
            for field in (
                "positive",
                "negative",
                "signed",
                "account",
                "contributions",
                "residual",
                "confidence",
            ):
                expected = getattr(both.of_target(position), field)
                assert_same_to_rounding(getattr(alone, field), expected, size=size, what=field)


def test_classes_can_be_named() -> None:
    x = images(30)
    cam = NObSPCam(averaged(), output_names=["cat", "dog", "fox", "owl"]).fit(x)
    assert_same_to_rounding(cam(x[:2], target="fox").account, cam(x[:2], target=2).account)
    maps = cam(x[:2], target=["owl", "cat"])
    assert maps.target_names.tolist() == ["owl", "cat"]


def test_targets_follow_the_images_through_a_loader() -> None:
    x, labels = images(30), torch.arange(30) % 4
    cam = NObSPCam(averaged()).fit(x)
    loader = DataLoader(TensorDataset(x, labels), batch_size=7)
    np.testing.assert_allclose(
        cam(loader, target=labels).account,
        cam(x, target=labels).account,
        rtol=CONTRIBUTIONS,
        atol=SUMS,
    )


def test_evidence_against_another_class_is_the_difference_of_both() -> None:
    x = images(30)
    cam = NObSPCam(averaged()).fit(x)
    between = cam(x[:5], target=1, against=3)
    np.testing.assert_allclose(
        between.account,
        cam(x[:5], target=1).account - cam(x[:5], target=3).account,
        rtol=1e-9,
        atol=SUMS,
    )
    gap = (between.logits - between.base_values)[:, 1] - (between.logits - between.base_values)[
        :, 3
    ]
    np.testing.assert_allclose(
        between.account.mean((1, 2)) + between.residual, gap, rtol=CONTRIBUTIONS, atol=SUMS
    )


def test_the_runner_up_is_the_strongest_other_class() -> None:
    x = images(30)
    cam = NObSPCam(averaged()).fit(x)
    maps = cam(x[:5], against="runner-up")
    second = np.argsort(-maps.logits, axis=1)[:, 1]
    for i in range(5):
        expected = cam(x[i : i + 1], against=int(second[i])).account[0]
        np.testing.assert_allclose(maps.account[i], expected, rtol=CONTRIBUTIONS, atol=SUMS)


def test_against_the_others_the_account_follows_the_log_odds() -> None:
    # The slope of log p/(1 − p) along a small change of the pooled map is what "others" weighs classes with.
    model, x = averaged(), images(30)
    cam = NObSPCam(model, coefficients="head").fit(x)
    maps = cam(x[:1], target=1, against="others")
    z = torch.from_numpy(spatial_map(cam, x[:1]).mean((2, 3))).requires_grad_()
    chance = model.head(z).softmax(1)[0, 1]
    torch.log(chance / (1 - chance)).backward()
    slope = z.grad.numpy()[0] * (z.detach().numpy()[0] - cam._fitted.account.mean.numpy())  # type: ignore[union-attr]
    np.testing.assert_allclose(maps.contributions[0], slope, rtol=1e-9, atol=SUMS)


def test_against_the_mean_of_classes_the_accounts_of_all_classes_cancel() -> None:
    x = images(30)
    maps = NObSPCam(averaged()).fit(x)(x[:3], target=[[0, 1, 2, 3]] * 3, against="mean")
    np.testing.assert_allclose(maps.account.sum(1), 0, atol=SUMS)


def test_a_single_output_has_one_class() -> None:
    x = images(30)
    maps = NObSPCam(averaged(classes=1)).fit(x)(x[:3])
    assert maps.target.tolist() == [0, 0, 0]
    np.testing.assert_allclose(maps.confidence, 1 / (1 + np.exp(-maps.logits[:, 0])))


def test_a_thousand_classes_are_solved_at_once() -> None:
    x = images(60)
    maps = NObSPCam(averaged(classes=1000)).fit(x)(x[:3], target=999)
    assert maps.logits.shape == (3, 1000)
    np.testing.assert_allclose(
        maps.account.mean((1, 2)) + maps.residual,
        centred_logit(maps),
        rtol=CONTRIBUTIONS,
        atol=SUMS,
    )


def test_confidence_is_the_softmax_of_the_target() -> None:
    model, x = averaged(), images(30)
    maps = NObSPCam(model).fit(x)(x[:4], target=2)
    with torch.no_grad():
        np.testing.assert_allclose(
            maps.confidence, model(x[:4]).softmax(1)[:, 2], rtol=CONTRIBUTIONS
        )


# ---------------------------------------------------------------------- sanity: maps depend on the model


def similarity(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Mean rank correlation of maps."""
    ranks = [
        np.argsort(np.argsort(maps.reshape(len(maps), -1), axis=1), axis=1)
        for maps in (first, second)
    ]
    return float(np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(*ranks, strict=True)]))


@pytest.mark.parametrize("part", ["head", "last block"])
@pytest.mark.parametrize("coefficients", ["calibrated", "head"])
def test_maps_change_when_the_model_is_randomised(
    digits: Any, part: str, coefficients: Any
) -> None:
    randomised = copy.deepcopy(digits.model)
    torch.manual_seed(1)
    for layer in [randomised[8]] if part == "head" else [randomised[3], randomised[4]]:
        layer.reset_parameters()
    x, labels = digits.test[:60], digits.labels[:60]
    before = NObSPCam(digits.model, coefficients=coefficients).fit(digits.train)(x, target=labels)
    again = NObSPCam(digits.model, coefficients=coefficients).fit(digits.train[:700])(
        x, target=labels
    )
    after = NObSPCam(randomised, coefficients=coefficients).fit(digits.train)(x, target=labels)
    # All positive maps share where the digit is, whatever the head; the account does not.
    for kind, most in (("positive", 0.85), ("signed", 0.4), ("account", 0.4), ("contrast", 0.4)):
        assert similarity(getattr(before, kind), getattr(again, kind)) > 0.95
        assert similarity(getattr(before, kind), getattr(after, kind)) < most


def test_deleting_what_the_map_shows_hurts_more_than_deleting_the_rest(digits: Any) -> None:
    x = digits.test[:150]
    cam = NObSPCam(digits.model).fit(digits.train)
    maps = cam(x).account.reshape(len(x), -1)
    order = np.argsort(-maps, axis=1)
    chances = {}
    for name, chosen in (("shown", order[:, :16]), ("rest", order[:, -16:])):
        masked = x.clone().flatten(1)
        masked[np.arange(len(x))[:, None], chosen] = 0.0
        with torch.no_grad():
            after = digits.model(masked.reshape(x.shape)).softmax(1)
            before = digits.model(x).softmax(1).max(1)
        chances[name] = float(after.gather(1, before.indices[:, None]).mean())
    assert chances["shown"] < chances["rest"] - 0.2


# ---------------------------------------------------------------------- bad input


def test_explaining_before_calibrating_is_an_error() -> None:
    with pytest.raises(NotFittedError, match="call fit"):
        NObSPCam(averaged())(images(2))


@pytest.mark.parametrize(
    ("target", "kind", "message"),
    [
        (4, ValueError, r"target=4 is out of range; the model has 4 classes"),
        (-1, ValueError, r"target=-1 is out of range"),
        ([0, 1, 9], ValueError, r"target=9 is out of range"),
        ([0, 1], ValueError, r"target has 2 entries for 3 images"),
        ("fox", ValueError, r"target='fox' is not a class"),
        (1.5, TypeError, r"target must be a class number or name, found float"),
        (True, TypeError, r"found bool"),
        ([0.5, 1.0, 2.0], TypeError, r"target must be a class number or name, found float"),
        ([[0, 1], [1], [2, 3]], ValueError, r"rows of different lengths"),
        (np.zeros((3, 1, 1), dtype=int), ValueError, r"target has shape \(3, 1, 1\)"),
    ],
)
def test_targets_that_make_no_sense_are_named(
    target: Any, kind: type[Exception], message: str
) -> None:
    cam = NObSPCam(averaged()).fit(images(30))
    with pytest.raises(kind, match=message):
        cam(images(3), target=target)


def test_against_something_unknown_is_named() -> None:
    cam = NObSPCam(averaged()).fit(images(30))
    with pytest.raises(ValueError, match="against='second' is not a class nor one of"):
        cam(images(3), against="second")


@pytest.mark.parametrize("target", [2, [0, 2, 1], [[0, 2], [1, 2], [1, 0]]])
def test_a_class_against_itself_is_refused(target: Any) -> None:
    cam = NObSPCam(averaged()).fit(images(30))
    with pytest.raises(ValueError, match="against and target are both 'output 2'"):
        cam(images(3), target=target, against=2)


def test_a_rival_needs_a_second_class() -> None:
    cam = NObSPCam(averaged(classes=1)).fit(images(30))
    with pytest.raises(ValueError, match="needs at least two classes"):
        cam(images(3), against="runner-up")


@pytest.mark.parametrize("coefficients", ["calibrated", "head"])
def test_one_image_is_too_few_to_calibrate(coefficients: Any) -> None:
    with pytest.raises(ValueError, match="images has 1 image; calibration needs at least two"):
        NObSPCam(averaged(), coefficients=coefficients).fit(images(1))


def test_images_of_another_depth_are_named_by_their_shape() -> None:
    cam = NObSPCam(averaged()).fit(images(30))
    with pytest.raises(
        ValueError, match=r"cannot take images of shape \(1, 12, 12\).*calibrated on.*\(3, 12, 12\)"
    ):
        cam(images(2, channels=1))


def test_a_flattened_map_needs_images_of_one_size() -> None:
    cam = NObSPCam(made(Functional("flatten"))).fit(images(30))
    with pytest.raises(ValueError, match=r"cannot take images of shape|use images of one size"):
        cam(images(2, size=14))


def test_averaged_maps_take_images_of_another_size() -> None:
    cam = NObSPCam(averaged()).fit(images(30))
    assert cam(images(2, size=20)).positive.shape == (2, 16, 16)


def test_images_of_two_sizes_in_one_call_are_named() -> None:
    cam = NObSPCam(averaged()).fit(images(30))
    with pytest.raises(ValueError, match="maps of different sizes"):
        cam([images(2), images(2, size=20)])


def test_activations_that_are_not_finite_are_named() -> None:
    model = averaged(dtype=torch.float32)
    with torch.no_grad():
        model.body[0].weight *= 1e3
    cam = NObSPCam(model).fit(images(30, dtype=torch.float32))
    huge = images(3, dtype=torch.float32)
    huge[1] = 3e38 * huge[1].sign()
    with pytest.raises(ValueError, match=r"map of 'body' is not finite for image 1"):
        cam(huge)


def test_something_that_is_no_model_is_refused() -> None:
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, found str"):
        NObSPCam("resnet18").fit(images(30))  # type: ignore[arg-type]


def test_labels_are_ignored() -> None:
    model, x = averaged(), images(30)
    with_labels = NObSPCam(model).fit(x, np.zeros(30))
    np.testing.assert_array_equal(with_labels.coefficients_, NObSPCam(model).fit(x).coefficients_)


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match='coefficients must be "head" or "calibrated"'):
        NObSPCam(averaged(), coefficients="weights").fit(images(30))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='link must be None, "softmax" or "sigmoid"'):
        NObSPCam(averaged(), link="logit").fit(images(30))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="kind must be"):
        NObSPCam(averaged(), kind="map").fit(images(30))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="output_names has 2 names but the model has 4 classes"):
        NObSPCam(averaged(), output_names=["a", "b"]).fit(images(30))


def test_health_speaks_of_layers_between_map_and_head() -> None:
    health = NObSPCam(through_layers()).fit(images(60)).health()
    assert not health.direct
    assert [finding.code for finding in health.findings] == ["integral"]
    assert health.healthy


def test_a_clone_shares_the_model_and_is_not_calibrated() -> None:
    cam = NObSPCam(averaged(), ridge=0.5).fit(images(30))
    twin = clone(cam)
    assert twin.model is cam.model
    assert twin.ridge == 0.5
    with pytest.raises(NotFittedError):
        twin(images(2))


def test_softmax_at_the_end_of_the_model_is_seen_through() -> None:
    model, x = averaged(), images(30)
    plain = NObSPCam(model).fit(x)(x[:3])
    closed = NObSPCam(nn.Sequential(model, nn.Softmax(dim=1))).fit(x)(x[:3])
    np.testing.assert_allclose(closed.account, plain.account, rtol=CONTRIBUTIONS, atol=SUMS)


# ---------------------------------------------------------------------- defaults and warnings


def test_by_default_two_images_suffice_for_an_exact_account() -> None:
    maps = NObSPCam(averaged(channels=40)).fit(images(2))(images(5, seed=1))
    np.testing.assert_allclose(
        maps.account.mean((1, 2)), centred_logit(maps), rtol=CONTRIBUTIONS, atol=SUMS
    )


def test_what_makes_maps_doubtful_is_a_warning_of_fit() -> None:
    with pytest.warns(UserWarning, match="Fewer samples than channels"):
        cam = NObSPCam.as_published(averaged(channels=40)).fit(images(20))
    assert [finding.code for finding in cam.health().findings if finding.severity == "warning"] == [
        "coefficients"
    ]


def test_a_mean_of_few_images_is_noted() -> None:
    cam = NObSPCam(averaged()).fit(images(3))
    assert [finding.code for finding in cam.health().findings] == ["few_images"]


def test_one_line_explains_images_by_their_own_mean() -> None:
    model, x = averaged(), images(12)
    maps = nobsp.explain_images(model, x, output_names=list("abcd"))
    expected = NObSPCam(model).fit(x)(x)
    assert_same_to_rounding(maps.contrast, expected.contrast)
    assert "these 12 images" in maps.reference
    batches = nobsp.explain_images(model, iter(x.split(5)), target=1, against=2)
    assert_same_to_rounding(
        batches.account, NObSPCam(model).fit(x)(x, target=1, against=2).account, within=SUMS
    )
    with pytest.raises(ValueError, match="needs at least two"):
        nobsp.explain_images(model, x[:1])


@pytest.mark.parametrize("change", ["head", "body", "loaded"])
def test_weights_that_changed_after_fit_are_noticed(change: str) -> None:
    model, x = averaged(), images(30)
    cam = NObSPCam(model).fit(x)
    cam(x[:2])
    if change == "loaded":
        model.load_state_dict(made(averaged(), seed=3).state_dict())
    else:
        with torch.no_grad():
            (model.head if change == "head" else model.body[0]).weight.mul_(1.5)
    for call in (cam, cam.removal):
        with pytest.raises(ValueError, match="weights have changed since fit"):
            call(x[:2])
    cam.fit(x)(x[:2])


def test_weights_that_only_moved_are_the_same() -> None:
    model, x = averaged(), images(30)
    cam = NObSPCam(model).fit(x)
    before = cam(x[:2]).account
    for weight in model.parameters():
        weight.data = weight.data.clone()  # as a trip to another device and back does
    assert_same_to_rounding(cam(x[:2]).account, before)


def test_several_classes_at_once_have_a_sigmoid_each() -> None:
    model, x = averaged(), images(30)
    cam = NObSPCam(model, link="sigmoid").fit(x)
    maps = cam(x[:4], target=2)
    with torch.no_grad():
        chance = model(x[:4]).sigmoid()[:, 2].numpy()
    np.testing.assert_allclose(maps.confidence, chance, rtol=CONTRIBUTIONS)
    np.testing.assert_array_equal(maps.contrast, maps.account)
    assert maps.kind == "account"
    of_chance = cam(x[:4], target=2, scale="probability")
    base = 1 / (1 + np.exp(-maps.base_values[2]))
    np.testing.assert_allclose(of_chance.account.mean((1, 2)), chance - base, atol=SUMS)
    with pytest.raises(ValueError, match="have a sigmoid each"):
        cam(x[:4], against="others")


def test_thousands_of_targets_are_what_each_is_alone() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4))
    model = nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2500)).double()
    x = images(2).double()
    cam = NObSPCam(model).fit(x)
    every = cam(x, [list(range(2500))] * 2)
    for position in (0, 1000, 2499):
        one = cam(x, position)
        for kind in ("account", "contrast", "positive", "contributions", "confidence", "residual"):
            found = getattr(every, kind)[:, position]
            np.testing.assert_allclose(found, getattr(one, kind), rtol=CONTRIBUTIONS, atol=SUMS)


@pytest.mark.parametrize("pooled_into_head", [True, False])
def test_a_model_that_says_the_same_of_all_images_is_warned_of(pooled_into_head: bool) -> None:
    silent = nn.Conv2d(3, 6, 3)
    nn.init.constant_(silent.bias, -100.0)
    pooling = nn.AdaptiveAvgPool2d(1 if pooled_into_head else 2)
    model = nn.Sequential(silent, nn.ReLU(), pooling, nn.Flatten(), nn.LazyLinear(4)).eval()
    shown = images(20, dtype=torch.float32)
    model(shown)
    with pytest.warns(UserWarning, match="says the same of all") as said:
        cam = NObSPCam(model).fit(shown)
    # It points at the line that called.
    assert said[0].filename == __file__
    findings = cam.health().findings
    assert [finding.code for finding in findings if finding.severity == "warning"] == ["constant"]
