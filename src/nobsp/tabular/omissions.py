"""What functions leave out: strong pairs without a term, and what curves do not average over."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from nobsp.findings import Finding
from nobsp.network.columns import Subset
from nobsp.tabular.clusters import is_crowded, join_parts
from nobsp.tabular.correction import RegressionFit
from nobsp.tabular.effort import MOST_PAIR_NODES, Meter
from nobsp.tabular.features import Domain
from nobsp.tabular.health import LOW_SHARE
from nobsp.tabular.indexing import term_name
from nobsp.tabular.residual_pairs import strengths_in_residual
from nobsp.tabular.selection import FittedTerms, are_worth_looking_for
from nobsp.tabular.setting import Codes, Sample, Setting, find_neighbourhoods
from nobsp.tabular.tables import TablePiece, occupancy

# A pair this strong is named where it is not fitted: 1% of the output's variance.
STRONG_PAIR = 0.1
# Standard error of a strength, as such and as a share of it, from which it is told.
_TOLD_ERROR = 0.05
# A curve this far from partial dependence is named, in units of the output's spread.
FAR = 0.1
# Most pairs and curves that one message names.
MOST_NAMED = 5


def pairs_left_out(
    setting: Setting, terms: FittedTerms, meter: Meter, *, explained: float, limit: str
) -> list[Finding]:
    """Strong pairs without a term; of those not looked for, what the residual holds."""
    findings = name_pairs_left_out(
        terms.strengths,
        terms.order,
        setting.names,
        explained=explained,
        limit=limit,
        scatter=terms.strength_scatter,
    )
    n_tabulated = sum(domain.tabulated for domain in setting.domains)
    has_others = len(terms.strengths) < math.comb(n_tabulated, 2)
    if not has_others or not are_worth_looking_for(terms.fit):
        return findings

    sizes = zip(terms.fit.pieces, terms.fit.sizes, strict=True)
    mains = {piece.term[0]: size for piece, size in sizes if len(piece.term) == 1}
    units = _units_in_residual(terms.fit.sample, named=setting.groups is not None)
    in_residual = strengths_in_residual(terms.fit, setting.domains, mains, units)
    not_looked_for = {
        pair: in_residual[pair] for pair in in_residual if pair not in terms.strengths
    }
    if not not_looked_for:
        return findings
    reason = limit or _why_not_looked_for(next(iter(not_looked_for)), setting.domains, meter)
    return findings + name_pairs_left_out(
        not_looked_for, terms.order, setting.names, explained=explained, limit=reason
    )


def _units_in_residual(rows: Sample, *, named: bool) -> Codes:
    """Which rows belong together: neighbours, where rows crowd together that nobody named.

    What neighbours have in common looks like pairs otherwise.
    """
    if named or not is_crowded(replace(rows, groups=None)):
        return rows.units()
    codes = find_neighbourhoods(rows.inputs, generator=np.random.default_rng(0))
    return join_parts(rows.inputs, codes)


def _why_not_looked_for(pair: Subset, domains: Sequence[Domain], meter: Meter) -> str:
    """Why a pair's strength is not known, though the caller asked for the pairs that pay."""
    levels = [domains[feature].levels for feature in pair]
    nodes = math.prod(1 if axis is None else len(axis) for axis in levels)
    if meter.limit is not None and nodes <= MOST_PAIR_NODES:
        return f"max_forward_rows={meter.limit:,} left none to look for pairs"
    return "a table of so many levels would be too large"


def distances_from_average(fit: RegressionFit) -> dict[Subset, tuple[float, ...]]:
    """Per feature how far its curve is from partial dependence, in output spreads.

    It is the root mean square over the rows.
    """
    chunk = fit.sample.chunk()
    spread = fit.sample.spread
    distances = {}
    for piece, function in zip(fit.pieces, fit.functions, strict=True):
        if not isinstance(piece, TablePiece) or len(piece.points) != 1:
            continue
        share = occupancy(piece.points[0], chunk)
        correction = piece.prior.new_tensor(function.values) - piece.prior  # type: ignore[union-attr]
        correction = correction - share @ correction
        away: Tensor = (share @ correction.square()).sqrt() / spread
        distances[piece.term] = tuple(away.tolist())
    return distances


def name_pairs_left_out(
    strengths: Mapping[Subset, float],
    fitted: Collection[Subset],
    names: Sequence[str],
    *,
    explained: float,
    limit: str = "",
    scatter: Mapping[Subset, float] | None = None,
) -> list[Finding]:
    """Strong pairs without a term of their own, with their strengths.

    `explained` is the lowest held-out R² of an output, `limit` says what the caller allows, and
    `scatter` are the strengths' standard errors.
    """
    errors = scatter or {}
    # What is smaller than its standard error may be no interaction at all.
    strong = [
        pair
        for pair, strength in strengths.items()
        if strength >= max(STRONG_PAIR, errors.get(pair, 0.0))
    ]
    left_out = [pair for pair in strong if pair not in fitted]
    if not left_out:
        return []
    listed = ", ".join(
        f"{term_name([names[k] for k in pair])} "
        f"{_with_error(strengths[pair], errors.get(pair, 0.0))}"
        for pair in left_out[:MOST_NAMED]
    )
    more = f" and {len(left_out) - MOST_NAMED} more" if len(left_out) > MOST_NAMED else ""
    is_one = len(left_out) == 1
    reason = _why_left_out(explained, strengths[left_out[0]], limit, it="it" if is_one else "them")
    message = (
        f"{'A strong pair was' if is_one else 'Strong pairs were'} not fitted, as {reason}. The "
        f"number is {'its' if is_one else 'their'} strength, as a share of the output's spread. "
        "Fit by name what you want to see, with interactions=[…]."
    )
    if "±" in listed:
        message += " What follows ± is its standard error, as it was measured on few rows."
    return [Finding("note", "pair_left_out", f"{listed}{more}", message)]


def _why_left_out(explained: float, strength: float, limit: str, *, it: str) -> str:
    """Why strong pairs have no term, and where their parts are; `it` stands for the pairs."""
    its = "its part is" if it == "it" else "their parts are"
    elsewhere = f"{its} in the residual, or in the curves of features that depend on each other"
    if limit:
        return f"{limit}: {elsewhere}"
    if not explained >= LOW_SHARE:
        return (
            f"held-out rows were explained no better with {it}, which may be for want of rows: "
            f"{its} in the residual"
        )
    if 1 - explained >= strength**2:  # what is unexplained has room for it
        return f"held-out rows were explained no better with {it}: {elsewhere}"
    return (
        f"single features explain the rows without {it}: {its} in their curves, which differ from "
        "the average effect"
    )


def _with_error(strength: float, error: float) -> str:
    """A strength, with its standard error where that would change how it reads."""
    is_told = error >= max(_TOLD_ERROR, _TOLD_ERROR * strength)
    return f"{strength:.2f} ± {error:.2f}" if is_told else f"{strength:.2f}"


def name_far_curves(
    distances: Mapping[Subset, Sequence[float]], names: Sequence[str]
) -> list[Finding]:
    """Features whose curves are far from partial dependence, farthest first."""
    largest = {term: max(values) for term, values in distances.items() if len(values)}
    far = sorted((term for term in largest if largest[term] >= FAR), key=lambda t: -largest[t])
    if not far:
        return []
    listed = ", ".join(f"{names[term[0]]} {largest[term]:.2f}" for term in far[:MOST_NAMED])
    more = f" and {len(far) - MOST_NAMED} more" if len(far) > MOST_NAMED else ""
    message = (
        "The curve differs from partial dependence (the average effect over all rows), because the "
        "rows support another split of the effect, as they can where features are correlated or "
        "rows are few. The number is how far on average, as a share of the output's spread."
    )
    return [Finding("note", "far_from_average", f"{listed}{more}", message)]
