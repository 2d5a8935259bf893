"""Odds of a class against all others."""

from __future__ import annotations

import torch
from torch import Tensor


def log_odds(logits: Tensor, target: Tensor, *, sigmoid: bool = False) -> Tensor:
    """Log-odds of one class per row: its logit, or logarithm of any weight, less that of the sum of the others.

    >>> log_odds(torch.tensor([[1.0, 2.0, 6.0]]).log(), torch.tensor([2])).exp().round(decimals=5)
    tensor([2.])
    """
    own = logits.gather(1, target[:, None])[:, 0]
    if sigmoid:
        return own
    others = logits.scatter(1, target[:, None], -torch.inf)
    return own - others.logsumexp(1)
