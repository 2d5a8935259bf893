"""Networks that are trained side by side learn what they would learn alone."""

from __future__ import annotations

import torch

from benchmarks.networks import feed_forward, train, train_together
from tests.tolerances import SINGLE, assert_same_to_rounding


def test_networks_trained_together_are_those_trained_alone():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, 90, 4, generator=generator)
    targets = inputs.square().sum(2, keepdim=True) + torch.arange(3.0)[:, None, None]
    seeds = (5, 6, 7)
    schedule = {"epochs": 2, "batch_size": 40, "learning_rate": 1e-2, "weight_decay": 1e-3}

    together = [feed_forward(4, (8, 6), 1, seed=seed) for seed in seeds]
    train_together(together, inputs, targets, seeds=seeds, **schedule)

    for number, seed in enumerate(seeds):
        alone = feed_forward(4, (8, 6), 1, seed=seed)
        start = alone[0].weight.detach().clone()
        train(alone, inputs[number], targets[number], seed=seed, **schedule)
        assert (alone[0].weight - start).abs().max() > 1e-2, "training moves weights"
        for name, weights in alone.state_dict().items():
            learnt = together[number].state_dict()[name]
            assert_same_to_rounding(learnt, weights, within=SINGLE, what=name)
