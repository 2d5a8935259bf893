"""A logit shared out among the training rows: representer values of a linear head.

A head trained with weight decay λ is a sum over its training rows, w_c = Σ_i r_ic (z_i − z̄) / λ,
with r what the head has still to learn of row i. So row i adds r_ic (z_i − z̄) · (x − z̄) / λ to
the logit of x. This shares out what the head says; it does not say what would change without a row,
which `influence` does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._typing import TargetLike
from nobsp.neighbors.evidence import Outcomes, Rows
from nobsp.neighbors.influence import labelled_rows, labels_at, name_targets, target_codes
from nobsp.neighbors.result import Extremes, RankedRows
from nobsp.neighbors.search import Fitted, pieces

Array = NDArray[np.float64]

# Numbers of a table of values held at once.
_MOST_NUMBERS = 1 << 24


@dataclass(frozen=True, eq=False, repr=False)
class RepresenterShares(RankedRows):
    """What the rows of a database add to the logits of others, as a linear head learns from them.

    Attributes:
        values: What rows of the database add, for the class where positive, shape (queries, rows);
            of those that were asked for, the most for it first and the most against it last.
        indices: Positions of these rows in the database, shape (queries, rows).
        labels: Their labels; where rows may have several classes, whether they are of the class
            asked for.
        size: Sum of the sizes of what all rows of the database add and take away, shape (queries,).
        logits: Logits of the classes asked for, shape (queries,); of a model with one, half of it
            for either class.
        target: These classes, written as labels are; of a regression the value predicted.
        others: What the rows that were not asked for add together, shape (queries,); zero without
            `k`.
        base: The logit at the mean of the database; `base + values.sum(1) + others + residual` are
            the logits.
        residual: What no row can add, as it lies in directions in which no two of them differ;
            shape (queries,).
        exact: Share of the head's weights that training with weight decay on these rows explains: 1
            where it was trained so, with a bias that is not decayed, until it converged. The rest
            is shared out among the rows as evenly as can be, and values are an approximation.
    """

    others: Array
    base: Array
    residual: Array
    exact: float

    def __repr__(self) -> str:
        rows = self.values.shape[1]
        return f"RepresenterShares({len(self)} queries, {rows} rows, exact to {self.exact:.1%})"


@dataclass(frozen=True, eq=False)
class _Coefficients:
    """The coefficients α of w_c = Σ_i α_ic (z_i − z̄), shape (rows, outputs).

    With them comes the share of w that weight decay explains.
    """

    values: Tensor
    exact: float


def share_out(
    fitted: Fitted, queries: Rows, target: TargetLike, k: int | None
) -> RepresenterShares:
    """Shares the logits of queries out among the rows of a database."""
    rows = labelled_rows(fitted, "representer_shares")
    assert fitted.source.head is not None
    outcomes = fitted.outcomes
    weight = outcomes.per_class(fitted.source.head[0].T).T
    bias = outcomes.per_class(fitted.source.head[1])
    codes = target_codes(outcomes, queries, target)

    activations = rows.activations.to(torch.float64)
    mean = activations.mean(0)
    centred_rows = activations - mean
    centred_queries = queries.activations.to(torch.float64) - mean
    coefficients = _find_coefficients(
        centred_rows,
        activations @ weight.T + bias,
        weight,
        _targets_of(outcomes, rows),
        outcomes,
    )

    base = (weight @ mean + bias)[codes]
    logits = base + (centred_queries * weight[codes]).sum(1)

    extremes, added = _add_up_shares(centred_queries, codes, centred_rows, coefficients.values, k=k)
    values = extremes.values
    indices = extremes.indices
    others = torch.zeros(len(queries))
    if values.shape[1] < len(rows):
        others = added - values.sum(1)
    return RepresenterShares(
        indices=indices,
        values=values.numpy(),
        labels=labels_at(outcomes, rows, indices, codes),
        size=extremes.sizes,
        logits=logits.numpy(),
        target=name_targets(outcomes, codes, logits),
        others=others.numpy(),
        base=base.numpy(),
        residual=(logits - base - added).numpy(),
        exact=coefficients.exact,
    )


def _add_up_shares(
    queries: Tensor, codes: Tensor, rows: Tensor, coefficients: Tensor, *, k: int | None
) -> tuple[Extremes, Tensor]:
    """The largest shares of every query, and the sum of all.

    `codes` are the queries' targets, and `coefficients` are (rows, outputs).
    """
    extremes = Extremes(k)
    sums = []
    for piece in pieces(len(queries), len(rows), numbers=_MOST_NUMBERS):
        products = queries[piece] @ rows.T
        shares = products * coefficients[:, codes[piece]].T
        sums.append(shares.sum(1))
        extremes.add(shares)
    return extremes, torch.cat(sums)


def _targets_of(outcomes: Outcomes, rows: Rows) -> Tensor:
    """What a head should say of rows: values, or 0 and 1 for each class; shape (rows, outputs)."""
    if outcomes.classes is None:
        return rows.truth[:, None]
    if outcomes.several:
        return rows.truth.to(torch.float64)
    return torch.nn.functional.one_hot(rows.truth, outcomes.count).to(torch.float64)


def _find_coefficients(
    centred_rows: Tensor, logits: Tensor, weight: Tensor, truth: Tensor, outcomes: Outcomes
) -> _Coefficients:
    """α = r / λ where training explains the weights, and the smallest α that gives their rest.

    1 / λ is found by least squares from Σ_i r_ic (z_i − z̄) / λ = w_c, for a head trained by
    likelihood and for one trained by squares; the better of them is taken.
    """
    answers = [logits]
    if outcomes.classes is not None:
        answers.insert(0, outcomes.log_probabilities(logits).exp())

    size = weight.square().sum().clamp_min(1e-300)
    best = torch.zeros_like(logits)
    best_share = 0.0
    for answer in answers:
        residuals = truth - answer
        pull = centred_rows.T @ residuals  # λ w where the head was trained so
        scale = float((pull * weight.T).sum() / pull.square().sum().clamp_min(1e-300))
        share = 1 - float((scale * pull - weight.T).square().sum() / size)
        if scale > 0 and share > best_share:
            best = scale * residuals
            best_share = share

    rest = weight.T - centred_rows.T @ best
    inverse = torch.linalg.pinv(centred_rows.T @ centred_rows, hermitian=True)
    return _Coefficients(best + centred_rows @ (inverse @ rest), best_share)
