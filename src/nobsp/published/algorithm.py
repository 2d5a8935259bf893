"""Algorithm 1 of the paper: the part of the outputs that is unique to each term.

It is what is left along the network's view of all else.

With Z_S the rows z_S and Z_(S) the rows z_(S), the reference, centred over the calibration rows,
and y the outputs,

    y_res = y − Z_(S) (Z_(S)ᵀZ_(S) + λI)⁻¹ Z_(S)ᵀy            line 2: what it leaves of the outputs
    Z_res = Z_S − Z_(S) (Z_(S)ᵀZ_(S) + λI)⁻¹ Z_(S)ᵀZ_S        line 3: what it leaves of the target
    β_S   = (Z_resᵀZ_res + λI)⁻¹ Z_resᵀ y_res                 line 4: coefficients of the term
    g_S(x) = (z_S(x) − mean z_S) β_S                          its contribution

Line 1, the paper's A = (Z_(S)ᵀZ_(S) + λI)⁻¹ Z_(S)ᵀ, is never formed, because rows are not kept:
products of columns are enough, see `projection.partial`.

A pair's projection holds the contributions of its features too, and a triple's those of its
features and of its pairs: they are subtracted (A.14, A.15).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from nobsp.network.columns import Subset
from nobsp.projection import Moments, Ridge, merge_all, partial_coefficients
from nobsp.published.isolation import Represent, subsets_of
from nobsp.published.plan import OUTPUTS, REFERENCE, TARGET, Plan
from nobsp.published.sums import FEWEST_BLOCKS, Accumulator, MomentsByTerm

# Resamples of the calibration that bands are made of, here and with all terms at once: their spread
# is then known to a tenth.
N_RESAMPLES = 64


@dataclass(frozen=True, eq=False)
class Solution:
    """The decomposition's coefficients."""

    matrices: dict[Subset, Tensor]  # per term β_S on its representation, (width, outputs)
    offsets: dict[Subset, Tensor]  # per term, what centring subtracts, (outputs,)
    base: Tensor  # mean output over the calibration rows
    unique_share: dict[Subset, float]  # per term, the share of z_S that the reference leaves
    notes: dict[Subset, str]  # per doubtful term, what is wrong with it in words


def solve(
    plan: Plan,
    parts: Mapping[Subset, Sequence[Moments]],
    *,
    ridge: Ridge,
    weights: Sequence[float] | None = None,
) -> Solution:
    """Coefficients of all terms from the moments of blocks of rows, each counted by its weight."""
    base = torch.zeros(0, dtype=torch.float64)
    matrices: dict[Subset, Tensor] = {}
    offsets: dict[Subset, Tensor] = {}
    unique_share: dict[Subset, float] = {}
    notes: dict[Subset, str] = {}

    for term in plan.terms:
        # One after another: all terms' sums a second time would be the most that is ever held.
        moments = merge_all(parts[term], weights=weights)
        if moments.rows < 2:
            raise ValueError(f"X has {moments.rows} row; calibration needs at least two.")
        # A relative ridge divides by the width of z_S, which the reference has too, and not by its
        # rank.
        width = moments.blocks[REFERENCE]
        regression = partial_coefficients(moments, ridge=ridge, target_size=width)

        base = moments.mean(OUTPUTS)
        # With orthonormal directions V that span z_S, V (VᵀGV + λI)⁻¹ Vᵀ acts as (G + λI)⁻¹ on that
        # span: this is the paper's β, from fewer columns.
        matrices[term] = plan.bases[term] @ regression.coefficients
        offsets[term] = moments.mean(TARGET) @ regression.coefficients
        unique_share[term] = regression.unique_share
        if regression.note:
            notes[term] = regression.note
    return Solution(matrices, offsets, base, unique_share, notes)


def join_solutions(stages: Sequence[Solution]) -> Solution:
    """The coefficients of all stages of a plan."""
    joined = Solution({}, {}, stages[0].base, {}, {})
    for stage in stages:
        joined.matrices.update(stage.matrices)
        joined.offsets.update(stage.offsets)
        joined.unique_share.update(stage.unique_share)
        joined.notes.update(stage.notes)
    return joined


@dataclass(frozen=True, eq=False)
class Published:
    """A calibration as published, term by term along the complement."""

    plan: Plan  # baseline, terms and bases
    # moments per block of rows; empty where they were not saved, or not held at once
    parts: MomentsByTerm
    solution: Solution  # coefficients
    ridge: Ridge  # strength of the regularisation

    def values(
        self, represent: Represent, samples: Tensor, *, terms: Sequence[Subset] | None = None
    ) -> Tensor:
        """g_S(x) of every term, (samples, terms, outputs), float64 on the CPU."""
        wanted = self.plan.terms if terms is None else terms
        needed = {subset for term in wanted for subset in subsets_of(term)}
        ordered = sorted(needed, key=lambda subset: (len(subset), subset))
        matrices = {subset: self.solution.matrices[subset] for subset in ordered}

        # In one tensor: small ones that stay, made between large ones that go, would cut up memory.
        shape = (len(ordered), len(samples), len(self.solution.base))
        storage = torch.empty(shape, dtype=torch.float64)
        contributions = dict(zip(ordered, storage, strict=True))
        for subset, product in self.plan.isolation.products(represent, samples, matrices):
            contributions[subset].copy_(product)

        for subset in ordered:
            contributions[subset] -= self.solution.offsets[subset]
            for smaller in subsets_of(subset)[:-1]:  # A.14, A.15
                contributions[subset] -= contributions[smaller]
        return torch.stack([contributions[term] for term in wanted], dim=1)

    def require_mergeable(self, other: Published) -> None:
        """Raises a ValueError where the two cannot be added up."""
        if not self.parts or not other.parts:
            raise ValueError(
                "merge needs all moments: calibrate with more memory, and save with mergeable=True."
            )
        if self.plan.fingerprint() != other.plan.fingerprint():
            raise ValueError(
                "baselines, terms or bases differ; calibrate the second with fit(X, like=first)."
            )

    def merge(self, other: Published) -> Published:
        """The calibration on the rows of both."""
        self.require_mergeable(other)
        parts = Accumulator(self.parts).merge(Accumulator(other.parts)).parts
        return replace(self, parts=parts, solution=solve(self.plan, parts, ridge=self.ridge))

    def resampled(self, copies: int = N_RESAMPLES) -> list[Solution]:
        """Coefficients for blocks of rows drawn with replacement; none where blocks are too few."""
        blocks_of_first_term = next(iter(self.parts.values()), [])
        filled = [position for position, block in enumerate(blocks_of_first_term) if block.rows]
        if len(filled) < FEWEST_BLOCKS:
            return []

        equal_chances = np.full(len(filled), 1 / len(filled))
        draws = np.random.default_rng(0).multinomial(len(filled), equal_chances, size=copies)
        parts = {
            term: [blocks[position] for position in filled] for term, blocks in self.parts.items()
        }
        return [solve(self.plan, parts, ridge=self.ridge, weights=draw.tolist()) for draw in draws]
