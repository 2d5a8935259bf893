"""Heads, activations and labels that tests of audits share."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tests.tolerances import SINGLE, assert_same_to_rounding

K = 8
WIDTH = 6
CLASSES = 3
EACH = 100
MISLABELLED = np.array([3, 57, 110, 160, 222, 290])
# Between the centres of classes 0 and 1, where the database has four rows of each.
AT_THE_BOUNDARY = np.array([2.1, 2.0, 0, 0, 0, 0])
# Of class 2 to the network, and unlike any row of it.
UNLIKE = np.array([0, 0, 1.0, 0, 0, 6.0])


def planted():
    """A head that is right about well separated classes, a database with wrong labels, and queries of known kinds."""
    rng = np.random.default_rng(0)
    centres = 4 * np.eye(CLASSES, WIDTH)
    head = nn.Linear(WIDTH, CLASSES).double()
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(centres))
        head.bias.copy_(torch.from_numpy(-(centres**2).sum(1) / 2))
    truth = np.repeat(np.arange(CLASSES), EACH)
    rows = centres[truth] + 0.5 * rng.normal(size=(len(truth), WIDTH))
    labels = truth.copy()
    labels[MISLABELLED] = (truth[MISLABELLED] + 1) % CLASSES
    boundary = AT_THE_BOUNDARY + 0.02 * rng.normal(size=(8, WIDTH))
    rows = np.concatenate([rows, boundary])
    labels = np.concatenate([labels, [0, 1] * 4])
    plain = np.repeat(np.arange(CLASSES), 20)
    queries = np.concatenate(
        [
            centres[plain] + 0.3 * rng.normal(size=(60, WIDTH)),
            AT_THE_BOUNDARY + 0.01 * rng.normal(size=(5, WIDTH)),
            UNLIKE + 0.1 * rng.normal(size=(5, WIDTH)),
        ]
    )
    return head, rows, labels, truth, queries, plain


def noisy(rows=400, *, width=16, seed=0, signal=1.0):
    """A head that is often wrong: classes overlap."""
    rng = np.random.default_rng(seed)
    centres = signal * rng.normal(size=(CLASSES, width)) / np.sqrt(width) * 3
    truth = rng.integers(CLASSES, size=rows)
    head = nn.Linear(width, CLASSES)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(centres + 0.1 * rng.normal(size=centres.shape)))
        head.bias.copy_(torch.from_numpy(-(centres**2).sum(1) / 2))
    return head, (centres[truth] + rng.normal(size=(rows, width))).astype(np.float32), truth


def units(rows, database):
    """Vectors of unit length in activation space, by definition."""
    rows, database = (np.asarray(some, dtype=np.float64) for some in (rows, database))
    scaled = (rows - database.mean(0)) / database.std(0)
    return scaled / np.linalg.norm(scaled, axis=1, keepdims=True)


def trusted(chance, typicality, n_reference):
    """What is left of a probability where a row is not typical, by definition."""
    odds = chance / (1 - chance) * (np.e * typicality) ** 0.3
    return odds / (1 + odds) * np.minimum(1, typicality * (n_reference + 1)) ** 8


def same(one, other):
    for name in ("predicted", "suggested", "errors"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    for name in ("by_contributions", "by_activations"):
        assert_same_to_rounding(getattr(one, name).purity, getattr(other, name).purity)
    assert_same_to_rounding(one.confidence, other.confidence, within=SINGLE)
    assert one.reasons == other.reasons
    assert np.allclose(one.joint, other.joint, rtol=0, atol=1e-9)
    assert np.allclose(one.typicality, other.typicality, rtol=0, atol=1e-9)


def valued(rows=1500, *, seed=0, share=0.05, noise=0.3):
    """A linear head that is right but for noise, and labels of which some are another row's."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    head = nn.Linear(8, 1).double()
    activations = rng.normal(size=(rows, 8))
    truth = (activations @ head.weight.detach().numpy().T)[:, 0] * 4 + noise * rng.normal(size=rows)
    with torch.no_grad():
        head.weight.mul_(4)
        head.bias.zero_()
    wrong = rng.random(rows) < share
    given = np.where(wrong, rng.permutation(truth), truth)
    return head, activations, truth, given, wrong & (np.abs(given - truth) > 5 * noise)


def several(rows=1200, *, seed=0, flips=0.04):
    """Four yes/no questions, some answers of which are flipped."""
    rng = np.random.default_rng(seed)
    weight, activations = (
        1.5 * rng.normal(size=(4, 10)),
        rng.normal(size=(rows, 10)).astype(np.float32),
    )
    truth = (rng.random((rows, 4)) < 1 / (1 + np.exp(-(activations @ weight.T)))).astype(int)
    head = nn.Linear(10, 4)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(weight))
        head.bias.zero_()
    wrong = rng.random((rows, 4)) < flips
    return head, activations, np.where(wrong, 1 - truth, truth), wrong


def linear_values(rows: int, *, seed: int):
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(rows, 3))
    head = nn.Linear(3, 1).double()
    with torch.no_grad():
        head.weight[:] = torch.tensor([[3.0, 0.0, 0.0]])
        head.bias[:] = 0.0
    return head, X, 3 * X[:, 0] + 0.1 * generator.normal(size=rows)
