"""Representer shares: they add up to the logit, and are those of the dual solution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from nobsp.neighbors import ContributionIndex
from tests.neighbors.audit_cases import noisy, several, valued
from tests.tolerances import assert_same_to_rounding


def test_training_rows_that_speak_for_a_class_are_those_of_the_dual_solution_and_add_up():
    rng = np.random.default_rng(0)
    rows, labels, ridge = (
        rng.normal(size=(80, 6)).astype(np.float32).astype(np.float64),
        rng.integers(3, size=80),
        2.0,
    )
    targets, centred = np.eye(3)[labels], rows - rows.mean(0)
    alpha = np.linalg.solve(
        centred @ centred.T + ridge * np.eye(80), targets - targets.mean(0)
    )  # the dual
    weight = centred.T @ alpha
    head = nn.Linear(6, 3).double()
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(weight.T))
        head.bias.copy_(torch.from_numpy(targets.mean(0) - rows.mean(0) @ weight))
    index, asked = ContributionIndex(head).fit(rows, labels), rows[:5] + 0.5
    found = index.representer_shares(asked, target=1)
    assert found.exact == pytest.approx(1, abs=1e-9)
    by_hand = ((asked - rows.mean(0)) @ centred.T) * alpha[:, 1]
    assert np.allclose(found.values, by_hand, rtol=0, atol=1e-5 * np.abs(by_hand).max())
    assert np.allclose(found.base + found.values.sum(1), found.logits, rtol=0, atol=1e-9)
    logits = (torch.from_numpy(asked) @ head.weight.T + head.bias).detach().numpy()
    assert np.allclose(found.logits, logits[:, 1], atol=1e-5)
    assert found.top(3).tolist() == np.argsort(-np.abs(found.values), axis=1)[:, :3].tolist()
    assert len(found.to_frame(4)) == 20
    assert np.array_equal(index.representer_shares(asked).target, logits.argmax(1))


def test_representer_shares_of_a_few_rows_is_that_of_all_with_the_rest_added_up():
    head, rows, truth = noisy(200)
    index = ContributionIndex(head, classes=list("abc")).fit(rows, np.array(list("abc"))[truth])
    every, few = index.representer_shares(rows[:7]), index.representer_shares(rows[:7], k=3)
    ranked = -np.sort(-every.values, axis=1)
    assert_same_to_rounding(few.values, np.concatenate([ranked[:, :3], ranked[:, -3:]], axis=1))
    assert_same_to_rounding(few.values, np.take_along_axis(every.values, few.indices, 1))
    assert np.array_equal(few.labels, np.array(list("abc"))[truth][few.indices])
    assert_same_to_rounding(few.base + few.values.sum(1) + few.others + few.residual, few.logits)
    assert_same_to_rounding(np.abs(every.shares).sum(1), np.ones(7))
    assert_same_to_rounding(few.shares, np.take_along_axis(every.shares, few.indices, 1))
    assert few[[2, 5]].top(2).tolist() == every.top(2)[[2, 5]].tolist()
    assert few.to_frame(2)["label"].tolist() == [
        few.labels[q][few.indices[q] == i].item() for q in range(7) for i in few.top(2)[q]
    ]
    assert index.representer_shares(rows[:2], k=150).values.shape == (2, 200)
    with pytest.raises(ValueError, match="k must be"):
        index.representer_shares(rows[:2], k=0)


def test_representer_shares_about_one_of_several_classes_says_which_rows_are_of_it():
    head, rows, given, _ = several(300)
    index = ContributionIndex(head, classes=list("abcd")).fit(rows, given)
    found = index.representer_shares(rows[:3], target=["b", "d", "a"], k=5)
    assert found.target.tolist() == ["b", "d", "a"]
    assert np.array_equal(
        found.labels,
        np.stack([given[i, c] > 0 for i, c in zip(found.indices, (1, 3, 0), strict=True)]),
    )
    logits = (torch.from_numpy(rows[:3]) @ head.weight.T).detach().numpy()[np.arange(3), [1, 3, 0]]
    assert np.allclose(found.logits, logits, atol=1e-5)


def test_representer_shares_on_a_head_trained_otherwise_adds_up_and_says_that_it_is_an_approximation():
    head, rows, truth = noisy(200)
    index = ContributionIndex(head).fit(rows, truth)
    found = index.representer_shares(rows[:7])
    assert found.exact < 0.99
    assert np.allclose(found.base + found.values.sum(1), found.logits, rtol=0, atol=1e-8)
    with pytest.raises(ValueError, match="needs the labels"):
        ContributionIndex(head).fit(rows).representer_shares(rows[:2])
    head, rows, _, given, _ = valued(200)
    found = ContributionIndex(head).fit(rows, given).representer_shares(rows[:4])
    assert np.allclose(found.base + found.values.sum(1), found.logits, rtol=0, atol=1e-8)


def test_representer_shares_leaves_what_no_row_can_add_in_the_residual():
    generator = torch.Generator().manual_seed(0)
    rows, head = (
        torch.randn(30, 64, generator=generator, dtype=torch.float64),
        nn.Linear(64, 3).double(),
    )
    index = ContributionIndex(head).fit(rows, torch.arange(30) % 3)
    asked = torch.randn(4, 64, generator=generator, dtype=torch.float64)
    found = index.representer_shares(asked)
    np.testing.assert_allclose(
        found.base + found.values.sum(1) + found.residual, found.logits, atol=1e-12
    )
    with torch.no_grad():
        assert found.logits == pytest.approx(
            head(asked).amax(1).numpy(), abs=1e-6
        )  # rows are held in single
    assert np.abs(found.residual).max() > 0.01
    assert np.abs(index.representer_shares(rows[:4]).residual).max() < 1e-9
    values = ContributionIndex(nn.Linear(64, 1).double(), task="regression").fit(rows, rows[:, 0])
    with pytest.raises(ValueError, match="a regression has no classes; leave target out"):
        values.representer_shares(asked, target=0)
