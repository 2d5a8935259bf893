"""The forms of Algorithm 1 that are timed compute the same coefficients."""

import pytest
import torch

from benchmarks.speed import channels
from tests.tolerances import CONTRIBUTIONS


def test_every_timed_form_finds_the_same_coefficients():
    representation, outputs = channels.pooled_rows(12, rows=60, outputs=3)
    gram = representation.T @ representation
    found = channels.channel_form(representation, outputs)
    for k in (0, 5, 11):
        for beta in (
            channels.as_printed(representation, outputs, k),
            channels.not_formed(representation, outputs, k),
            channels.gram_shared(representation, outputs, k, gram),
        ):
            torch.testing.assert_close(beta, found[k], rtol=CONTRIBUTIONS, atol=0.0)


def test_timing_a_form_leaves_the_shared_gram_matrix_alone():
    representation, outputs = channels.pooled_rows(6, rows=30, outputs=2)
    gram = representation.T @ representation
    before = gram.clone()
    channels.gram_shared(representation, outputs, 2, gram)
    assert torch.equal(gram, before)


def test_the_floor_inverts_the_channels_part_only():
    representation, outputs = channels.pooled_rows(6, rows=30, outputs=2)
    alone = channels.floor(representation, 6)
    beside = channels.floor(torch.cat([representation, outputs], dim=1), 6)
    torch.testing.assert_close(alone, beside)
    gram = representation.T @ representation + channels.RIDGE * torch.eye(6, dtype=torch.float64)
    assert (alone @ gram).diagonal().tolist() == pytest.approx([1.0] * 6)
