"""Regions masked or uncovered in the order a map ranks them."""

import numpy as np
import pytest
import torch
from torch import nn

from nobsp.metrics import region_deletion_auc, region_insertion_auc
from tests.tolerances import SUMS

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(3, 2, 8, 12))
MAPS = RNG.normal(size=(3, 8, 12))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 12), nn.Tanh(), nn.Linear(12, 4)).double()


def probabilities(network: nn.Module, image: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return torch.softmax(network(torch.as_tensor(image[None])), dim=1)[0].numpy()


def curve_by_definition(network, image, heat, *, patch, steps, baseline, insert):
    corners = [(r, c) for r in range(0, 8, patch) for c in range(0, 12, patch)]
    worth = [heat[r : r + patch, c : c + patch].mean() for r, c in corners]
    ranked = [corners[k] for k in sorted(range(len(corners)), key=lambda k: -worth[k])]
    whole = probabilities(network, image)
    target = whole.argmax()
    curve, fractions = [], []
    for step in range(steps + 1):
        count = round(step * len(corners) / steps)
        shown = np.full_like(image, baseline) if insert else image.copy()
        for r, c in ranked[:count]:
            there = (slice(None), slice(r, r + patch), slice(c, c + patch))
            shown[there] = image[there] if insert else baseline
        share = probabilities(network, shown)[target] / whole[target]
        curve.append(share if insert else 1 - share)
        fractions.append(count / len(corners))
    return np.array(curve), np.trapezoid(curve, fractions)


@pytest.mark.parametrize("insert", [False, True])
@pytest.mark.parametrize(("patch", "steps"), [(4, 6), (4, 4), (3, 5), (1, 10)])
def test_curves_are_those_of_the_definition(insert: bool, patch: int, steps: int) -> None:
    network = model()
    score = region_insertion_auc if insert else region_deletion_auc
    found = score(network, IMAGES, MAPS, patch=patch, steps=steps, baseline=0.3)
    for image in range(3):
        curve, area = curve_by_definition(
            network,
            IMAGES[image],
            MAPS[image],
            patch=patch,
            steps=steps,
            baseline=0.3,
            insert=insert,
        )
        np.testing.assert_allclose(found.curves[image], curve, atol=SUMS)
        assert found.auc[image] == pytest.approx(area)
    assert found.mean == pytest.approx(found.auc.mean())


def test_deletion_starts_at_no_drop_and_both_end_with_every_region() -> None:
    deletion, insertion = (
        score(model(), IMAGES, MAPS) for score in (region_deletion_auc, region_insertion_auc)
    )
    np.testing.assert_allclose(deletion.curves[:, 0], 0.0, atol=SUMS)
    np.testing.assert_allclose(insertion.curves[:, -1], 1.0)
    np.testing.assert_allclose(insertion.curves[:, 0], 1 - deletion.curves[:, -1])


def test_a_map_and_its_negative_trade_deletion_for_insertion() -> None:
    # Removing the best first leaves what inserting the worst first builds up, read backwards.
    deletion = region_deletion_auc(model(), IMAGES, MAPS, steps=6)
    insertion = region_insertion_auc(model(), IMAGES, -MAPS, steps=6)
    np.testing.assert_allclose(1 - deletion.curves, insertion.curves[:, ::-1])


def test_neither_batches_nor_the_scale_of_the_map_matter() -> None:
    one = region_deletion_auc(model(), IMAGES, MAPS)
    np.testing.assert_allclose(
        one.auc, region_deletion_auc(model(), IMAGES, 100 * MAPS + 7, batch_size=2).auc
    )


def test_logits_and_their_softmax_give_the_same() -> None:
    network = model()
    soft = nn.Sequential(network, nn.Softmax(dim=1))
    np.testing.assert_allclose(
        region_deletion_auc(network, IMAGES, MAPS).auc,
        region_deletion_auc(soft, IMAGES, MAPS, outputs="probabilities").auc,
    )


def test_tensors_and_functions_on_arrays_work_alike() -> None:
    network = model()

    def on_arrays(images: np.ndarray) -> torch.Tensor:
        return network(torch.as_tensor(images))

    np.testing.assert_allclose(
        region_deletion_auc(network, torch.as_tensor(IMAGES), torch.as_tensor(MAPS)).auc,
        region_deletion_auc(on_arrays, IMAGES, MAPS).auc,
    )


def test_the_target_may_be_given() -> None:
    given = region_deletion_auc(model(), IMAGES, MAPS, target=[3, 0, 1])
    np.testing.assert_array_equal(given.target, [3, 0, 1])
    assert not np.allclose(given.auc, region_deletion_auc(model(), IMAGES, MAPS).auc)


@pytest.mark.parametrize(
    "baseline", [np.array([0.3, 0.3]), np.full((2, 8, 12), 0.3), np.full((3, 2, 8, 12), 0.3)]
)
def test_the_baseline_may_be_a_colour_or_images(baseline: np.ndarray) -> None:
    number = region_deletion_auc(model(), IMAGES, MAPS, baseline=0.3)
    np.testing.assert_allclose(
        region_deletion_auc(model(), IMAGES, MAPS, baseline=baseline).auc, number.auc
    )


@pytest.mark.parametrize(
    ("side", "patch"), [(224, 32), (256, 32), (128, 16), (64, 8), (96, 8), (32, 4)]
)
def test_regions_are_as_large_as_in_the_paper(side: int, patch: int) -> None:
    images = np.zeros((1, 1, side, side), dtype=np.float32)
    found = region_deletion_auc(lambda x: np.ones((len(x), 2)), images, images[:, 0], steps=2)
    assert found.patch == patch


def test_a_class_without_any_probability_has_nothing_to_drop() -> None:
    found = region_deletion_auc(
        lambda x: np.tile([1.0, 0.0], (len(x), 1)), IMAGES, MAPS, target=1, outputs="probabilities"
    )
    assert np.isfinite(found.auc).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"maps": MAPS[:2]}, "one map per image"),
        ({"maps": MAPS[:, :4, :6]}, "resized to it"),
        ({"images": IMAGES[0]}, "channels, height, width"),
        ({"outputs": "odds"}, '"logits" or "probabilities"'),
        ({"outputs": "probabilities"}, "pass outputs='logits'"),
        ({"patch": 9}, "pass 1 to 8"),
        ({"steps": 0}, "steps must be .* found 0"),
        ({"baseline": [1.0, 2.0, 3.0]}, "one per channel"),
        ({"target": 4}, "there are 4 outputs"),
        ({"model": lambda x: np.ones(len(x))}, "at least two classes"),
    ],
)
@pytest.mark.parametrize("score", [region_deletion_auc, region_insertion_auc])
def test_arguments_that_do_not_fit_are_named(score, changes, words) -> None:
    arguments = {"model": model(), "images": IMAGES, "maps": MAPS, **changes}
    with pytest.raises(ValueError, match=words):
        score(arguments.pop("model"), arguments.pop("images"), arguments.pop("maps"), **arguments)
