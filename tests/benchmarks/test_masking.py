"""Masked pixels: the correlation is that of its definition, and that of Quantus."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from benchmarks.vision.masking import correlation_over, pixel_faithfulness
from nobsp.metrics import UndefinedScoreWarning

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(3, 2, 6, 6))


def pixel_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 16), nn.Tanh(), nn.Linear(16, 4)).double()


def test_pixel_faithfulness_is_the_correlation_over_masked_subsets() -> None:
    model, maps = pixel_model(), RNG.normal(size=(3, 6, 6))
    subsets = np.stack([[RNG.choice(72, 9, replace=False) for _ in range(20)] for _ in IMAGES])
    weights = np.broadcast_to(maps[:, None], IMAGES.shape)
    scores = correlation_over(model, IMAGES, weights, lambda image: subsets[image], 1, 0.25, 64)
    for image in range(3):
        drops, sums = [], []
        for subset in subsets[image]:
            masked = IMAGES[image].ravel().copy()
            masked[subset] = 0.25
            both = torch.as_tensor(np.stack([IMAGES[image].ravel(), masked])).reshape(2, 2, 6, 6)
            with torch.no_grad():
                outputs = model(both)[:, 1]
            drops.append(float(outputs[0] - outputs[1]))
            sums.append(weights[image].ravel()[subset].sum())
        assert scores[image] == pytest.approx(stats.pearsonr(sums, drops).statistic)


def test_pixel_faithfulness_is_that_of_quantus(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantus = pytest.importorskip("quantus")
    model, maps = pixel_model().float().eval(), np.abs(RNG.normal(size=(3, 6, 6)))
    images = IMAGES.astype(np.float32)
    target = np.array([0, 3, 2])
    drawn: list[np.ndarray] = []
    choice = np.random.choice

    def recorded(*args, **kwargs):
        drawn.append(choice(*args, **kwargs))
        return drawn[-1]

    monkeypatch.setattr(np.random, "choice", recorded)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metric = quantus.FaithfulnessCorrelation(
            nr_runs=15, subset_size=10, perturb_baseline=0.25, abs=False, normalise=False, return_aggregate=False,
            disable_warnings=True,
        )  # fmt: skip
        theirs = metric(
            model=model,
            x_batch=images,
            y_batch=target,
            a_batch=maps[:, None],
            device="cpu",
            softmax=True,
        )
    # Quantus draws for every image in turn, run after run.
    subsets = np.stack(drawn).reshape(15, 3, 10).transpose(1, 0, 2)
    probabilities = nn.Sequential(model, nn.Softmax(dim=1))
    weights = np.broadcast_to(maps[:, None], images.shape)
    ours = correlation_over(
        probabilities, images, weights, lambda image: subsets[image], target, 0.25, 64
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_pixels_do_not_depend_on_batches_and_follow_the_seed() -> None:
    model, maps = pixel_model(), RNG.normal(size=(3, 6, 6))
    options = {"subset_size": 5, "runs": 11}
    first = pixel_faithfulness(model, IMAGES, maps, **options)
    np.testing.assert_allclose(
        first, pixel_faithfulness(model, IMAGES, maps, batch_size=4, **options)
    )
    np.testing.assert_allclose(first[1:2], pixel_faithfulness(model, IMAGES, maps, **options)[1:2])
    assert not np.allclose(first, pixel_faithfulness(model, IMAGES, maps, seed=1, **options))


def test_a_constant_map_has_no_pixel_faithfulness() -> None:
    with pytest.warns(UndefinedScoreWarning, match="in 3 images"):
        scores = pixel_faithfulness(
            pixel_model(), IMAGES, np.ones((3, 6, 6)), subset_size=5, runs=4
        )
    assert np.isnan(scores).all()


@pytest.mark.parametrize(
    ("maps", "options", "words"),
    [
        (np.ones((3, 5, 6)), {"subset_size": 5}, "resize the maps"),
        (np.ones((2, 6, 6)), {"subset_size": 5}, "resize the maps"),
        (np.ones((3, 6, 6)), {}, "subset_size is 224 but an image has 72 values"),
    ],
)
def test_maps_that_do_not_fit_are_named(maps, options, words) -> None:
    with pytest.raises(ValueError, match=words):
        pixel_faithfulness(pixel_model(), IMAGES, maps, **options)
