"""All terms at once: each block compressed to its effective rank, one joint ridge regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nobsp.projection.moments import Moments
from nobsp.projection.ridge import Ridge, spectrum, with_ridge


@dataclass(frozen=True)
class TermsRegression:
    """What the joint fit finds.

    Attributes:
        coefficients: Per term, one column per output, shape (rank of the term, outputs).
        ridge: The λ used.
        explained: Share of each output's variance carried by all terms together, shape (outputs,).
        spread: Per term, the standard deviation of its contribution to each output, shape (outputs,).
        unique_share: Per term, the share of its spread that the other terms cannot reproduce.
        note: What is wrong and what to do, in words; empty when all is well.
    """

    coefficients: dict[str, Tensor]
    ridge: float
    explained: Tensor
    spread: dict[str, Tensor]
    unique_share: dict[str, float]
    note: str


def compress(gram: Tensor, *, tolerance: float = 1e-12, rows: int | None = None) -> Tensor:
    """Orthonormal basis of the directions a block really uses.

    A curve through a network has a rank of ten to forty, whatever the width of the layer, and a one-hot
    column has rank one. Rows times this basis carry all of the block but `tolerance` of its spread.

    Args:
        gram: Centred products of the block with itself, shape (width, width).
        tolerance: Directions with less than this share of the total spread are dropped.
        rows: How many rows the products were summed over, where known.

    Returns:
        The basis, shape (width, rank); rank 0 for a block that is constant.

    Raises:
        ValueError: If `gram` is not a square matrix of finite numbers or `tolerance` is negative.
        TypeError: If `gram` is not of floating point.

    Example:
        >>> line = torch.linspace(-1, 1, 9, dtype=torch.float64)[:, None] * torch.ones(1, 4)
        >>> compress(line.T @ line).shape
        torch.Size([4, 1])
    """
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
        raise ValueError(f"gram must be a square matrix, found shape {tuple(gram.shape)}.")
    if not gram.is_floating_point():
        raise TypeError(f"gram must be a floating-point tensor, found {gram.dtype}.")
    if not tolerance >= 0:
        raise ValueError(f"tolerance must not be negative, found {tolerance}.")
    if not bool(torch.isfinite(gram).all()):
        raise ValueError("gram has values that are not finite.")
    known = spectrum(gram.to(torch.float64), rows=rows)
    kept = known.values > tolerance * known.values.sum()
    return known.vectors[:, kept]


def pure_sign(term: Sequence[object], subset: Sequence[object]) -> int:
    """Sign of z_U in the pure representation of a term: (−1)^(|S| − |U|).

    Summed with these signs over all subsets U of S, the representations z_U leave what only the whole of S
    does together, and nothing whenever one of its features is at the baseline.

    Example:
        >>> pure_sign(("a", "b"), ("a",)), pure_sign(("a", "b"), ())
        (-1, 1)
    """
    return -1 if (len(term) - len(subset)) % 2 else 1


def terms_coefficients(
    moments: Moments, *, ridge: Ridge | None = None, outputs: str = "outputs", diagnose: bool = True
) -> TermsRegression:
    """Coefficients of every term, fitted together so that each is freed of what the others explain.

    Solves ỹ ≈ Σ_S Δ̃_S β_S over all blocks but `outputs` in one ridge regression (G + λI) β = s, with
    G the joint Gram matrix. Every term is thereby projected on its own subspace along all the others'.

    Args:
        moments: Products of the rows [term | term | … | outputs], each term compressed or not.
        ridge: How strongly the fit is regularised; relative 1e-4 by default.
        outputs: Name of the block of outputs.
        diagnose: Whether to work out `unique_share` too, which needs the inverse of the joint system.

    Returns:
        Coefficients per term, with what each term carries.

    Raises:
        ValueError: If fewer than two rows were seen, or there is no term.

    Example:
        >>> x = torch.randn(60, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        >>> moments = Moments({"a": 1, "b": 1, "outputs": 1})
        >>> _ = moments.update({"a": x[:, :1], "b": x[:, 1:], "outputs": x @ torch.ones(2, 1).double()})
        >>> terms_coefficients(moments, ridge=Ridge(0.0)).coefficients["b"].round(decimals=9)
        tensor([[1.]], dtype=torch.float64)
    """
    if moments.rows < 2 or moments.weight <= 0.0:
        raise ValueError(f"moments hold {moments.rows} rows; at least two are needed.")
    names = [name for name in moments.blocks if name != outputs]
    if outputs not in moments.blocks or not names:
        raise ValueError(f"moments must have a block {outputs!r} and at least one term.")
    if list(moments.blocks)[-1] != outputs:
        moments = moments.select([*names, outputs])
    joint = moments.products
    size = moments.size - moments.blocks[outputs]
    gram, cross = joint[:size, :size], joint[:size, size:]
    places = _places(names, moments.blocks)
    amount = (ridge or Ridge()).amount(gram)
    beta, unique_share = _solve(gram, cross, amount, places if diagnose else {}, moments.rows)
    total = joint.diagonal()[size:]
    fitted = 2 * (beta * cross).sum(0) - (beta * (gram @ beta)).sum(0)
    explained = torch.where(total > 0, fitted / total.clamp_min(1e-300), 1.0)
    coefficients = {name: beta[place] for name, place in places.items()}
    spread = {
        name: _spread(part, gram[places[name], places[name]], moments.weight) for name, part in coefficients.items()
    }
    note = ""
    if gram.shape[0] >= moments.rows:
        note = (
            f"More columns ({gram.shape[0]}) than samples ({moments.rows}): the ridge alone decides between "
            "terms. Calibrate on more samples or fit fewer terms."
        )
    return TermsRegression(coefficients, amount, explained, spread, unique_share, note)


def _spread(coefficients: Tensor, gram: Tensor, weight: float) -> Tensor:
    """Standard deviation of a term's contribution to each output over the calibration rows."""
    variance = (coefficients * (gram @ coefficients)).sum(0) / weight
    return variance.clamp_min(0.0).sqrt()


def _places(names: Sequence[str], blocks: Mapping[str, int]) -> dict[str, slice]:
    places, start = {}, 0
    for name in names:
        places[name] = slice(start, start + blocks[name])
        start += blocks[name]
    return places


def _solve(
    gram: Tensor, cross: Tensor, ridge: float, places: Mapping[str, slice], rows: int
) -> tuple[Tensor, dict[str, float]]:
    """β = (G + λI)⁻¹ s, and per term the share of its spread left when all others are removed.

    With K = (G + λI)⁻¹, what ridge regression on the other terms leaves of term S has the Gram matrix
    K_SS⁻¹ (K_SS − λ (K²)_SS) K_SS⁻¹: the block form of the channel formula.
    """
    factor, info = torch.linalg.cholesky_ex(with_ridge(gram, ridge))
    if ridge == 0.0 or int(info) != 0:
        # A λ that does not lift the zeros of G above rounding is as good as none for what is left of a term.
        known = spectrum(gram, rows=rows)
        beta = known.vectors @ ((known.vectors.T @ cross) / (known.values + ridge)[:, None])
        hidden = torch.eye(gram.shape[0], dtype=gram.dtype, device=gram.device) - known.vectors @ known.vectors.T
        inverse = (known.vectors / known.values) @ known.vectors.T
        return beta, {
            name: _share_without_ridge(gram[place, place], inverse[place, place], hidden[place, place])
            for name, place in places.items()
        }
    beta = torch.cholesky_solve(cross, factor)
    shares: dict[str, float] = {}
    if not places:
        return beta, shares
    inverse = torch.cholesky_inverse(factor)
    for name, place in places.items():
        own, total = inverse[place, place], gram[place, place].diagonal().sum()
        if own.shape[0] == 0 or float(total) <= 0.0:
            shares[name] = 0.0
            continue
        squared = inverse[place] @ inverse[:, place]
        left = torch.linalg.solve(own, own - ridge * squared)
        left = torch.linalg.solve(own, left.T)
        shares[name] = float((left.diagonal().sum() / total).clamp(0.0, 1.0))
    return beta, shares


def _share_without_ridge(gram: Tensor, inverse: Tensor, hidden: Tensor) -> float:
    """The λ = 0 share: (K_SS)⁻¹ on the directions that no other term can reproduce."""
    total = float(gram.diagonal().sum())
    if total <= 0.0:
        return 0.0
    values, vectors = torch.linalg.eigh(hidden)
    free = vectors[:, values < 1e-8]
    if free.shape[1] == 0:
        return 0.0
    left = torch.linalg.inv(free.T @ inverse @ free)
    return min(max(float(left.diagonal().sum()) / total, 0.0), 1.0)
