"""How far curves would move had other rows been used: other background rows, other margins, another correction.

Every copy draws the calibration rows and the background rows anew, with replacement. Prior and margins are made again
from what each background row gave; the correction follows to first order from the influence of the rows,

    δ_w − δ = (TᵀT/n + λI)⁻¹ [ Σ_i (w_i − 1) t_i e_i + Σ_i t_i (prior − prior_w)_i ] / n,

with e_i the residual of row i in a fit without its fold, and a strength λ that the folds cannot tell from the best.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nobsp.network.inputs import Subset
from nobsp.tabular.correction import level_strengths, scale_of
from nobsp.tabular.pieces import TablePiece, occupancy, purify, read, transfer
from nobsp.tabular.terms import Fit

COPIES = 64
# Rows on which the copies' priors are read.
_PRIOR_ROWS = 2048


def spread_of_curves(fit: Fit, *, copies: int = COPIES, seed: int = 0) -> dict[int, Tensor]:
    """Per feature how far its curve moves from calibration to calibration, (points, outputs).

    What the ridge pulls it towards partial dependence counts too.
    """
    if not fit.traces.mains:
        return {}
    generator = np.random.default_rng(seed)
    count = len(fit.sample)
    draws = generator.multinomial(count, np.full(count, 1 / count), size=copies).astype(np.float64)
    priors = _copy_priors(fit, draws, generator)
    delta = _copy_corrections(fit, draws, priors, generator)
    bias = _ridge_bias(fit)
    chunk = fit.sample.chunk()
    found, start = {}, 0
    for piece in fit.pieces:
        stop = start + piece.rank
        if isinstance(piece, TablePiece) and len(piece.term) == 1 and piece.points:
            held = piece.basis[piece.held()]
            curves = priors[piece.term] + torch.einsum("pr,cro->cpo", held, delta[:, start:stop])
            share = torch.stack([occupancy(piece.points[0], chunk, draw) for draw in draws])
            curves = curves - torch.einsum("cp,cpo->co", share, curves)[:, None]
            pull = held @ bias[start:stop]
            pull = pull - occupancy(piece.points[0], chunk) @ pull
            found[piece.term[0]] = (curves.var(0, correction=1) + pull.square()).sqrt()
        start = stop
    return found


def _copy_priors(fit: Fit, draws: np.ndarray, generator: np.random.Generator) -> dict[Subset, Tensor]:
    """Every table's prior in every copy: other background rows, and margins over other rows."""
    traces, chunk, copies = fit.traces, fit.sample.chunk(), len(draws)

    def weights(count: int) -> Tensor:
        drawn = generator.multinomial(count, np.full(count, 1 / count), size=copies)
        return torch.from_numpy(drawn / count).to(torch.float32)

    def mean(outputs: Tensor, drawn: Tensor) -> Tensor:
        return torch.einsum("ck,k...->c...", drawn, outputs).double()

    of_mains = weights(next(iter(traces.mains.values()))[1].shape[0])
    found: dict[Subset, Tensor] = {(k,): mean(outputs, of_mains) for k, (_, outputs) in traces.mains.items()}
    if not traces.grids:
        return found
    of_pairs = weights(next(iter(traces.grids.values())).shape[0])
    shares = {
        k: torch.stack([occupancy(points, chunk, draw) for draw in draws]) for k, (points, _) in traces.lines.items()
    }
    seen = {k: of_mains.double() @ rows for k, (_, rows) in traces.lines.items()}
    for (a, b), outputs in traces.grids.items():
        table = mean(outputs, of_pairs)
        pure = torch.stack([purify(table[c], shares[a][c], shares[b][c]) for c in range(copies)])
        found[a, b] = pure.flatten(1, 2)
        of_first, of_second = torch.einsum("cijo,cj->cio", pure, seen[b]), torch.einsum("cijo,ci->cjo", pure, seen[a])
        for k, margin in ((a, of_first), (b, of_second)):
            moved = transfer(traces.lines[k][0], margin.movedim(0, 1), traces.mains[k][0])
            found[k,] = found[k,] - moved.movedim(1, 0)
    return found


def _copy_corrections(
    fit: Fit, draws: np.ndarray, priors: dict[Subset, Tensor], generator: np.random.Generator
) -> Tensor:
    """The correction in every copy, (copies, columns, outputs)."""
    rows, copies = fit.rows, len(draws)
    count, columns = rows.terms.shape
    outputs = rows.outputs.shape[1]
    if columns == 0:
        return torch.zeros(copies, 0, outputs, dtype=torch.float64)
    centred, scale = rows.terms, scale_of(rows)
    residual = fit.held_out.chosen()
    drawn = torch.from_numpy(draws) - 1
    # One output at a time: copies × rows × columns would not fit.
    change = torch.stack([drawn @ (centred * residual[:, [o]]) for o in range(outputs)], 2) / count
    change = change + _moved_priors(fit, centred, priors)
    target = rows.outputs - rows.prior
    cross = centred.T @ (target - target.mean(0)) / count
    values, vectors = torch.linalg.eigh(rows.products.sum(0) / count)
    ridge = torch.tensor(fit.alphas, dtype=torch.float64)[_copy_strengths(fit, copies, generator)] * scale
    turned = torch.einsum("pk,cpo->cko", vectors, change + cross)
    shrunk = turned / (values.clamp_min(0)[None, :, None] + ridge[:, None]).clamp_min(1e-300)
    return torch.einsum("pk,cko->cpo", vectors, shrunk)


def _ridge_bias(fit: Fit) -> Tensor:
    """How far the ridge pulls the correction towards zero, λ (TᵀT/n + λI)⁻¹ δ, (columns, outputs)."""
    values, vectors = torch.linalg.eigh(fit.rows.products.sum(0) / len(fit.rows.terms))
    ridge = fit.correction.ridge[None]
    turned = vectors.T @ fit.correction.delta
    pulled: Tensor = vectors @ (turned * ridge / (values.clamp_min(0)[:, None] + ridge).clamp_min(1e-300))
    return pulled


def _copy_strengths(fit: Fit, copies: int, generator: np.random.Generator) -> Tensor:
    """Positions of the strengths in every copy, (copies, outputs): any that the folds cannot tell from the best."""
    plausible = level_strengths(fit.held_out.errors)
    outputs = plausible.shape[1]
    chosen = [generator.choice(np.flatnonzero(plausible[:, output].numpy()), size=copies) for output in range(outputs)]
    return torch.from_numpy(np.stack(chosen, 1))


def _moved_priors(fit: Fit, centred: Tensor, priors: dict[Subset, Tensor]) -> Tensor:
    """Σ t (prior − prior of the copy) / n, read on some of the rows."""
    count = len(fit.sample)
    few = np.linspace(0, count - 1, min(count, _PRIOR_ROWS)).astype(np.intp)
    sample, here = fit.sample.take(few), centred[torch.from_numpy(few)]
    chunk = sample.chunk()
    moved: Tensor | None = None
    for piece in fit.pieces:
        if not isinstance(piece, TablePiece) or piece.term not in priors:
            continue
        change = piece.prior[None] - priors[piece.term]
        flat = change.movedim(0, 1).flatten(1)
        part = read(piece.table(flat), chunk)
        moved = part if moved is None else moved + part
    assert moved is not None
    copies = len(next(iter(priors.values())))
    moved = (moved - moved.mean(0)).reshape(len(few), copies, -1)
    return torch.einsum("rp,rco->cpo", here - here.mean(0), moved) / len(few)
