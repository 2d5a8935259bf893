"""Images that repeat others are found at the default, also shifted, with noise, or brighter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from nobsp import ContributionIndex, NObSPCam
from nobsp.neighbors.duplicates import least_correlation
from nobsp.vision.images import make_thumbnails

N_IMAGES = 300
N_PLANTED = 20


def scenes() -> Tensor:
    """Smooth coloured patterns with some texture, each of its own, from 0 to 1."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(N_IMAGES, 3, 6, 6, generator=generator)
    smooth = functional.interpolate(coarse, size=(32, 32), mode="bicubic")
    texture = torch.rand(N_IMAGES, 3, 32, 32, generator=generator)
    return (0.85 * smooth + 0.15 * texture).clamp(0, 1)


def shifted(images: Tensor) -> Tensor:
    padded = functional.pad(images, (1, 0, 1, 0), mode="replicate")
    return padded[..., :32, :32]


def noisy(images: Tensor) -> Tensor:
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(1))
    return (images + 0.03 * noise).clamp(0, 1)


def brighter(images: Tensor) -> Tensor:
    return (1.15 * images + 0.05).clamp(0, 1)


@pytest.fixture(scope="module")
def cam() -> NObSPCam:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 12, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(body, nn.Linear(12, 3)).eval()
    return NObSPCam(model).fit(scenes()[:64])


@pytest.mark.parametrize("change", [shifted, noisy, brighter])
def test_changed_copies_are_found_among_the_rows_and_few_others(cam, change):
    images = scenes()
    together = torch.cat([images, change(images[:N_PLANTED])])
    planted = {(row, N_IMAGES + row) for row in range(N_PLANTED)}

    duplicates = ContributionIndex(cam).fit(together).duplicates()

    pairs = {tuple(pair) for pair in duplicates.pairs.tolist()}
    assert len(planted & pairs) >= 0.9 * N_PLANTED
    by_pixels = duplicates.correlations >= 0.95
    others = {tuple(pair) for pair in duplicates.pairs[by_pixels].tolist()} - planted
    assert len(others) <= 2


def test_changed_copies_in_a_test_set_are_leaks(cam):
    images = scenes()
    index = ContributionIndex(cam).fit(images)

    leaks = index.duplicates(X=shifted(images[40:50]))

    assert {(row, 40 + row) for row in range(10)} <= {tuple(pair) for pair in leaks.pairs.tolist()}
    assert leaks.groups == ()


def test_rows_added_later_are_compared_as_well(cam):
    images = scenes()
    index = ContributionIndex(cam).fit(images)

    index.add(noisy(images[:5]))

    pairs = {tuple(pair) for pair in index.duplicates().pairs.tolist()}
    assert {(row, N_IMAGES + row) for row in range(5)} <= pairs


def test_where_all_images_are_alike_a_pair_must_be_nearer():
    digits = torch.from_numpy(load_digits().images[:, None]).float()

    least = least_correlation(make_thumbnails(digits))

    assert least > 0.97
    assert least_correlation(make_thumbnails(scenes())) == pytest.approx(0.95)


def test_an_index_without_images_compares_activations_alone(cam):
    images = scenes()
    index = ContributionIndex(cam.model[1]).fit(cam.model[0](images).detach())

    duplicates = index.duplicates()

    assert duplicates.correlations is None
    assert (duplicates.distances <= 0.1).all()


def test_images_of_one_colour_have_no_correlation():
    plain = make_thumbnails(torch.full((3, 3, 40, 40), 0.4))

    assert plain.shape == (3, 32, 32)
    assert np.isfinite(least_correlation(plain))
