"""The order in which an audit shows its findings: the most suspicious first, wherever it is read."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn

from nobsp.neighbors import Audit, ContributionIndex, audit

FLIPPED_LABELS = 60


@cache
def flipped_digits() -> tuple[Audit, Any]:
    """An audit of handwritten digits of which sixty have another label, and which these are."""
    rng = np.random.default_rng(0)
    images, truth = load_digits(return_X_y=True)
    pixels = (images / 16).astype(np.float32)

    flipped = rng.choice(len(truth), FLIPPED_LABELS, replace=False)
    labels = truth.copy()
    labels[flipped] = (truth[flipped] + rng.integers(1, 10, FLIPPED_LABELS)) % 10

    classifier = LogisticRegression(C=0.1, max_iter=500).fit(pixels, labels)
    head = nn.Linear(64, 10)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(classifier.coef_))
        head.bias.copy_(torch.from_numpy(classifier.intercept_))

    result = audit(ContributionIndex(head).fit(pixels, labels))
    return result, labels != truth


def test_the_first_ten_suspects_are_wrong_labels():
    result, is_wrong = flipped_digits()

    assert is_wrong[result.flagged[:10]].mean() >= 0.9


def test_suspected_labels_come_by_their_probability_and_errors_by_joint_confidence():
    result, _ = flipped_digits()
    is_suspect = result.mislabels[result.flagged]
    suspects = result.flagged[is_suspect]
    others = result.flagged[~is_suspect]
    errors = others[result.errors[others]]

    assert is_suspect[: len(suspects)].all()
    assert (np.diff(result.label_score[suspects]) >= 0).all()
    assert np.array_equal(others[: len(errors)], errors)
    assert (np.diff(result.joint[errors]) >= 0).all()


def test_print_and_frame_follow_the_same_order():
    pytest.importorskip("pandas")
    result, _ = flipped_digits()
    frame = result.to_frame()
    printed_rows = [line.split(":")[0] for line in str(result).splitlines()[-5:]]

    assert frame["row"].tolist() == result.ranking.tolist()
    assert printed_rows == [f"  row {row}" for row in result.flagged[:5]]
    # A pandas frame can be joined with the rows it is about.
    assert frame.sort_index()["label_score"].tolist() == result.label_score.tolist()


def test_without_labels_likely_errors_come_first():
    result, _ = flipped_digits()
    by_contributions = result.by_contributions
    unlabelled = Audit(
        **{
            **vars(result),
            "labels": None,
            "mislabels": None,
            "label_score": None,
            "by_contributions": by_contributions,
        }
    )

    errors = unlabelled.ranking[: int(result.errors.sum())]
    assert result.errors[errors].all()
    assert (np.diff(result.joint[errors]) >= 0).all()
