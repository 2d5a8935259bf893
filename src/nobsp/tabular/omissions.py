"""What the functions leave out or correct: strong pairs that were not fitted, curves far from partial dependence."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from nobsp.base import Finding
from nobsp.network.inputs import Subset
from nobsp.tabular.correction import Fit
from nobsp.tabular.indexing import term_name
from nobsp.tabular.pieces import TablePiece
from nobsp.tabular.purification import occupancy

# A pair this strong is named where it is not fitted: 1% of the output's variance.
STRONG_PAIR = 0.1
# A curve this far from partial dependence is named, in units of the output's spread.
FAR = 0.1
# Most pairs and curves that one message names.
MOST_NAMED = 5


def distances_from_average(fit: Fit) -> dict[Subset, tuple[float, ...]]:
    """Per feature how far its curve is from partial dependence: root mean square over the rows, in output spreads."""
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
    strengths: Mapping[Subset, float], fitted: Collection[Subset], names: Sequence[str]
) -> list[Finding]:
    """Strong pairs without a term of their own, with their strengths."""
    strong = [pair for pair, strength in strengths.items() if strength >= STRONG_PAIR]
    left_out = [pair for pair in strong if pair not in fitted]
    if not left_out:
        return []
    listed = ", ".join(
        f"{term_name([names[k] for k in pair])} {strengths[pair]:.2f}"
        for pair in left_out[:MOST_NAMED]
    )
    more = f" and {len(left_out) - MOST_NAMED} more" if len(left_out) > MOST_NAMED else ""
    message = (
        "A strong pair was not fitted, as single features explain the rows without it: their curves carry its part "
        "and differ from the average effect. The number is its strength, as a share of the output's spread. Fit it by "
        "name with interactions=[…] to see it."
    )
    return [Finding("note", "pair_left_out", f"{listed}{more}", message)]


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
        "The curve differs from partial dependence (the average effect over all rows), because features are "
        "correlated and the rows tell better. The number is how far on average, as a share of the output's spread."
    )
    return [Finding("note", "far_from_average", f"{listed}{more}", message)]
