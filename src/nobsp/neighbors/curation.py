"""Which rows to label next, and which training rows speak for a prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._messages import require_whole_number
from nobsp.neighbors.index import ContributionIndex
from nobsp.neighbors.result import choose_covering
from nobsp.neighbors.search import Fitted
from nobsp.tabular.explanation import frame_like

Array = NDArray[np.float64]

# Rows that are to be covered, evenly spaced ones of a larger database; and most numbers of a table of similarities.
_COVERED, _MOST_NUMBERS = 4096, 1 << 26


def select(
    index: ContributionIndex,
    n: int,
    by: Literal["coverage", "uncertainty", "both"] = "coverage",
    *,
    labelled: Any = None,
) -> NDArray[np.int64]:
    """Chooses rows of an index that are worth labelling next.

    - "coverage": rows that together are near all others, by activations: Σ_i max over the chosen p of
      exp(−‖v_i − v_p‖² / 2σ²) is raised most by each next one. σ shrinks as more rows are chosen: it is the distance
      within which each of them would have its share of the others. Needs no head that has learnt anything.
    - "uncertainty": rows with the smallest margin between the two likeliest classes.
    - "both": coverage in which every row counts by one minus its margin. A head that has seen few rows of some classes
      is misled about what it does not know: where that may be, "coverage" is better.

    Labels of the index are not looked at; it may have none.

    Args:
        index: An index of the rows to choose from.
        n: How many rows.
        by: See above.
        labelled: Positions of rows that are labelled already: they are not chosen again, and cover what is near them.

    Returns:
        Positions in the index, the most worthwhile first.

    Raises:
        ValueError: If there are fewer rows to choose from, or if uncertainty is asked of a regression.

    Example:
        >>> import torch
        >>> from nobsp.neighbors import ContributionIndex, select
        >>> _ = torch.manual_seed(0)
        >>> rows = torch.randn(4, 8).repeat_interleave(25, 0) + 0.1 * torch.randn(100, 8)  # four lots of 25
        >>> index = ContributionIndex(torch.nn.Linear(8, 3)).fit(rows)
        >>> sorted(select(index, 4, by="coverage") // 25)
        [np.int64(0), np.int64(1), np.int64(2), np.int64(3)]
    """
    require_whole_number("n", n)
    if by not in ("coverage", "uncertainty", "both"):
        raise ValueError(f'by must be "coverage", "uncertainty" or "both", found {by!r}.')
    count, fitted = len(index), index._fitted
    given = np.asarray([] if labelled is None else labelled)
    if given.size and given.dtype.kind not in "iu":
        raise TypeError(f"labelled must hold positions, found {given.dtype}; of a mask, pass np.flatnonzero(mask).")
    known = torch.unique(torch.as_tensor(given.astype(np.int64)))
    if len(known) and not 0 <= int(known.min()) <= int(known.max()) < count:
        raise ValueError(f"labelled must hold positions from 0 to {count - 1}, found {known.min()} to {known.max()}.")
    if n > count - len(known):
        raise ValueError(f"n is {n}, but there are {count - len(known)} rows to choose from.")
    weights = torch.ones(count) if by == "coverage" else 1 - _margins(fitted)
    if by == "uncertainty":
        weights[known] = -torch.inf
        return weights.argsort(descending=True, stable=True)[:n].numpy()
    rows = fitted.backend.take(torch.arange(count))
    vectors = fitted.space("activations", "euclidean").vectors(rows, rows.predicted).to(torch.float32)
    some = torch.linspace(0, count - 1, min(count, _COVERED), dtype=torch.float64).long()
    covered = vectors[some]
    # Each of those chosen stands for an equal share of the rows; the nearest of them so many are its own.
    share = max(1, round(len(some) / (n + len(known))))
    near = (covered[:: max(1, len(some) // 512)] @ covered.T).topk(min(share + 1, len(some)), dim=1).values[:, -1]
    width = float((1 - near).median().clamp_min(1e-6))  # half a squared distance

    whole = None if count * len(some) > _MOST_NUMBERS else ((vectors @ covered.T - 1) / width).exp()

    def similar(positions: Tensor) -> Tensor:
        return ((vectors[positions] @ covered.T - 1) / width).exp() if whole is None else whole[positions]

    start = torch.zeros(len(some))
    for position in known:
        start = torch.maximum(start, similar(position[None])[0])
    return choose_covering(similar, count, n, weights=weights[some].float(), covered=start, taken=known).numpy()


def _margins(fitted: Fitted) -> Tensor:
    """Difference between the probabilities of the two likeliest classes, of every row."""
    if fitted.outcomes.classes is None:
        raise ValueError('a regression has no margins between classes; pass by="coverage".')
    rows = fitted.backend.take(torch.arange(len(fitted.backend)))
    chances = fitted.outcomes.log_probabilities(fitted.logits(rows)).exp()
    if fitted.outcomes.sigmoid:  # the least certain of the questions
        return (2 * chances - 1).abs().amin(1)
    best = chances.topk(2, dim=1).values
    return best[:, 0] - best[:, 1]


# ---------------------------------------------------------------------- influence


@dataclass(frozen=True, eq=False, repr=False)
class Influence:
    """What the rows of a database add to the logits of others, as a linear head learns from them.

    Attributes:
        values: What each row of the database adds, for the class where positive, shape (queries, rows).
        base: The logit at the mean of the database; `base + values.sum(1) + residual` are the logits.
        logits: Logits of the classes asked for, shape (queries,); of a model with one, half of it for either class.
        residual: What no row can add, as it lies in directions in which no two of them differ; shape (queries,).
        target: These classes, written as labels are; of a regression the value predicted.
        exact: Share of the head's weights that training with weight decay on these rows explains: 1 where it was
            trained so, with a bias that is not decayed, until it converged. The rest is shared out among the rows as
            evenly as can be, and values are an approximation.
    """

    values: Array
    base: Array
    logits: Array
    residual: Array
    target: NDArray[Any]
    exact: float

    def __len__(self) -> int:
        return len(self.values)

    def top(self, k: int = 8) -> NDArray[np.int64]:
        """The rows that add or take away most, largest first, shape (queries, k)."""
        return np.argsort(-np.abs(self.values), axis=1, kind="stable")[:, :k].astype(np.int64)

    def to_frame(self, k: int = 8) -> Any:
        """One line per query and row, the k that matter most, as a pandas frame, or a polars one."""
        rows = self.top(k)
        queries = np.repeat(np.arange(len(self)), rows.shape[1])
        found = {"query": queries, "index": rows.ravel(), "value": self.values[queries, rows.ravel()]}
        return frame_like(None, found | {"target": self.target[queries], "logit": self.logits[queries]})

    def __repr__(self) -> str:
        return f"Influence({len(self)} queries, {self.values.shape[1]} rows, exact to {self.exact:.1%})"


def weigh_influence(fitted: Fitted, X: Any, read: Callable[[Any], Any], target: Any) -> Influence:
    """Representer values of a linear head: w_c = Σ_i α_ic (z_i − z̄), so that row i adds α_ic (z_i − z̄) · (x − z̄).

    Where w minimises a loss with weight decay λ, α_ic = r_ic / λ, with r what the head has still to learn of row i: its
    label less its probability (of a head trained by squares, less its logit). λ is found by least squares from
    Σ_i r_ic (z_i − z̄) = λ w_c, and what this leaves of w is written as Σ_i δ_i (z_i − z̄) with the smallest δ.
    """
    outcomes = fitted.outcomes
    if fitted.source.head is None:
        raise ValueError("influence needs a linear head on the activations; layers stand between them here.")
    if not fitted.labelled:
        raise ValueError("influence needs the labels of the database; pass labels to index.fit.")
    rows, asked = fitted.backend.take(torch.arange(len(fitted.backend))), read(X)
    assert rows.labels is not None
    weight, bias = fitted.source.head
    weight, bias = outcomes.per_class(weight.T).T, outcomes.per_class(bias)
    z = rows.activations.to(torch.float64)
    mean = z.mean(0)
    centred, logits = z - mean, z @ weight.T + bias
    if outcomes.classes is None:
        truth, learnt = rows.labels[:, None], [logits]
    else:
        several = rows.labels if outcomes.several else torch.nn.functional.one_hot(rows.labels, outcomes.count)
        truth, learnt = several.to(torch.float64), [outcomes.log_probabilities(logits).exp(), logits]
    best, exact = torch.zeros_like(logits), -torch.inf
    for known in learnt:
        left = truth - known
        pull = centred.T @ left  # (width, classes), λ w where the head was trained so
        decay = float((pull * weight.T).sum() / weight.square().sum().clamp_min(1e-300))
        if decay > 0:
            share = 1 - float((pull / decay - weight.T).square().sum() / weight.square().sum())
            if share > exact:
                best, exact = left / decay, share
    rest = weight.T - centred.T @ best
    best = best + centred @ (torch.linalg.pinv(centred.T @ centred, hermitian=True) @ rest)
    if target is not None and outcomes.classes is None:
        raise ValueError("a regression has no classes; leave target out.")
    codes = (
        asked.predicted
        if target is None
        else outcomes.encode(np.broadcast_to(np.asarray(target), len(asked)), len(asked))
    )
    x = asked.activations.to(torch.float64) - mean
    values = (x @ centred.T) * best[:, codes].T
    base = (weight @ mean + bias)[codes]
    found = base + (x * weight[codes]).sum(1)
    said = found.numpy() if outcomes.classes is None else outcomes.classes[codes.numpy()]
    residual = found - base - values.sum(1)
    parts = (values.numpy(), base.numpy(), found.numpy(), residual.numpy())
    return Influence(*parts, said, max(0.0, float(exact)))
