"""Rows that are worth labelling next."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import nobsp
from nobsp.neighbors import ContributionIndex
from tests.neighbors.audit_cases import noisy, units, valued


def test_rows_to_label_are_those_of_the_greedy_choice_written_out():
    head, rows, _ = noisy(300)
    index = ContributionIndex(head).fit(rows)
    vectors = units(rows, rows)
    logits = rows @ head.weight.detach().numpy().T + head.bias.detach().numpy()
    chances = np.sort(np.exp(logits - logits.max(1, keepdims=True)), axis=1)
    chances /= chances.sum(1, keepdims=True)
    doubt = 1 - (chances[:, -1] - chances[:, -2])
    known = np.array([4, 90])
    cosines = vectors @ vectors.T
    width = np.median(
        1 - np.sort(cosines, axis=1)[:, -(300 // 8) - 2]
    )  # 300 rows shared by six and two, and itself
    similar = np.exp((cosines - 1) / width)
    for by, weights in (("coverage", np.ones(300)), ("both", doubt)):
        covered, expected = similar[known].max(0), []
        for _ in range(6):
            gain = (np.maximum(similar - covered, 0) * weights).sum(1)
            gain[[*known, *expected]] = -1
            expected.append(int(gain.argmax()))
            covered = np.maximum(covered, similar[expected[-1]])
        assert nobsp.select(index, 6, by=by, labelled=known).tolist() == expected
    least = [row for row in np.argsort(-doubt) if row not in known][:5]
    assert nobsp.select(index, 5, by="uncertainty", labelled=known).tolist() == least


def test_coverage_finds_every_cluster_before_any_twice():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(10, 16))
    rows = (np.repeat(centres, 30, axis=0) + 0.05 * rng.normal(size=(300, 16))).astype(np.float32)
    index = ContributionIndex(nn.Linear(16, 3)).fit(rows)
    first = nobsp.select(index, 5, by="coverage")
    more = nobsp.select(index, 5, by="coverage", labelled=first)
    assert len(set(first // 30) | set(more // 30)) == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n must"),
        ({"n": 61}, "60 rows to choose from"),
        ({"n": 3, "by": "luck"}, "by must be"),
        ({"n": 3, "labelled": [70]}, "labelled must hold positions"),
    ],
)
def test_choices_that_make_no_sense_are_refused(options, message):
    head, rows, _ = noisy(60)
    with pytest.raises(ValueError, match=message):
        nobsp.select(ContributionIndex(head).fit(rows), **options)
    head, rows, _, given, _ = valued(60)
    with pytest.raises(ValueError, match="no margins"):
        nobsp.select(ContributionIndex(head).fit(rows, given), 3, by="both")


def test_rows_that_are_alike_are_chosen_from():
    """Once all are covered, nothing is gained by any row, and one is as good as another."""
    generator = torch.Generator().manual_seed(0)
    alike = torch.randn(2, 4, generator=generator).repeat_interleave(50, 0)
    head = nn.Linear(4, 2)
    assert len(nobsp.select(ContributionIndex(head).fit(alike), 60)) == 60
    with torch.no_grad():
        classes = head(alike).argmax(1)
    found = ContributionIndex(head).fit(alike, classes).prototypes(3)
    assert len(set(found.indices.tolist())) == len(found.indices) == 3 * len(set(classes.tolist()))


def test_a_mask_is_no_list_of_positions():
    index = ContributionIndex(nn.Linear(4, 2)).fit(
        torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    )
    with pytest.raises(TypeError, match="labelled must hold positions, found bool"):
        nobsp.select(index, 2, labelled=np.arange(20) < 3)
