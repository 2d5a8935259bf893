"""Exact search: blocked products in single precision, what they find measured and ordered in double."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# Bytes of scores held at once.
BUFFER = 64 << 20
# Rows whose largest score stands for all of them: maxima are found many times faster than the k largest.
_GROUP = 64
# Numbers whose squares are worked out at once: few enough to stay in the processor's cache.
_CACHED = 1 << 18
# Rows found beyond those asked for, so that rounding seldom decides who is among them.
_SPARE = 8

Measure = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Scores:
    """How rows of a database are scored for queries: larger is nearer.

    The score of row i for query j is rows_i · probes_j, divided, where `squares` is given, by the length
    sqrt(rows_i² · squares_g) that row i has for the group g of query j. Queries of a group stand together.

    Attributes:
        rows: The database, shape (n, width), float32.
        probes: The queries, shape (m, width), float32.
        squares: Squared weights per group, shape (groups, width), or None.
        bounds: Where each group's queries begin, and the end; only with `squares`.
        empty: Score of a row whose vector is zero.
        lengthless: Which rows are zero, shape (n,), without `squares`; None where none is.
    """

    rows: Tensor
    probes: Tensor
    squares: Tensor | None = None
    bounds: tuple[int, ...] = ()
    empty: float = 0.0
    lengthless: Tensor | None = None

    @property
    def rounding(self) -> float:
        """How far a score may be from the true one: the usual bound for inner products of vectors of unit length."""
        width = self.rows.shape[1]
        exact = torch.get_float32_matmul_precision() == "highest"
        return 2 * (width + 8) * 2.0**-24 + (0.0 if exact else 2.0**-6)

    def of(self, chosen: slice, part: slice) -> Tensor:
        """Scores of some rows for some queries, shape (queries, rows)."""
        rows = self.rows[part]
        scores = self.probes[chosen] @ rows.T
        if self.squares is not None:
            self._by_length(scores, rows, chosen)
        elif self.lengthless is not None:
            scores[:, self.lengthless[part]] = self.empty
        return scores

    def blocks(self, queries: int) -> Iterator[slice]:
        """Rows in blocks whose scores fit the buffer."""
        groups = len(self.bounds)
        step = max(_GROUP, BUFFER // 4 // max(queries, groups) // _GROUP * _GROUP)
        for start in range(0, len(self.rows), step):
            yield slice(start, min(start + step, len(self.rows)))

    def _by_length(self, scores: Tensor, rows: Tensor, chosen: slice) -> None:
        assert self.squares is not None
        present = [
            (group, max(start, chosen.start) - chosen.start, min(stop, chosen.stop) - chosen.start)
            for group, (start, stop) in enumerate(zip(self.bounds, self.bounds[1:], strict=False))
            if start < chosen.stop and stop > chosen.start
        ]
        first, last = present[0][0], present[-1][0] + 1
        squares = self.squares[first:last]
        lengths = torch.empty(len(squares), len(rows), device=rows.device)
        step = max(1, _CACHED // rows.shape[1])
        for start in range(0, len(rows), step):
            torch.mm(squares, rows[start : start + step].square().T, out=lengths[:, start : start + step])
        none = lengths <= torch.finfo(torch.float32).tiny
        factors = lengths.rsqrt_()
        gaps = bool(none.any())
        if gaps:
            factors[none] = 0.0
        for group, start, stop in present:
            scores[start:stop] *= factors[group - first]
            if gaps:
                scores[start:stop] += self.empty * none[group - first]


def nearest(
    scores: Scores, k: int, measure: Measure, score_of: Measure, *, leave: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The k nearest rows of each query, nearest first, equal distances by position.

    Candidates are found in single precision and measured in double. A query whose last neighbour could have been
    displaced by rounding, or by rows equally far, is looked at again, with every row that comes into question.

    Args:
        scores: Database and queries.
        k: How many; at most as many as there are rows beside those left out.
        measure: From positions and queries to distances in double precision.
        score_of: From distances and queries to scores.
        leave: Rows to leave out for each query, shape (m, any); −1 for none.

    Returns:
        Positions and distances, shape (m, k).
    """
    asked = min(len(scores.rows), k + _SPARE)
    positions, distances = [], []
    for chosen in _lots(len(scores.probes), max(1, min(len(scores.rows), 1 << 14))):
        found, least = _candidates(scores, chosen, asked, leave)
        queries = torch.arange(chosen.start, chosen.stop, device=found.device)
        away = measure(found.clamp_min(0), queries[:, None].expand_as(found))
        away = torch.where(found < 0, torch.inf, away)
        best, order = ordered(found, away, k)
        reached = score_of(order[:, -1], queries)
        doubtful = reached <= least + scores.rounding
        for row in torch.nonzero(doubtful)[:, 0].tolist():
            best[row], order[row] = _again(scores, chosen.start + row, k, measure, float(reached[row]), leave)
        positions.append(best)
        distances.append(order)
    return torch.cat(positions), torch.cat(distances)


def _candidates(scores: Scores, chosen: slice, count: int, leave: Tensor | None) -> tuple[Tensor, Tensor]:
    """The rows that score highest, and the least score among them: what is not here scores no more."""
    held: tuple[Tensor, Tensor] | None = None
    for part in scores.blocks(chosen.stop - chosen.start):
        block = scores.of(chosen, part)
        _leave_out(block, leave, chosen, part)
        values, places = _largest(block, min(count, part.stop - part.start))
        places += part.start
        if held is not None:
            values, places = torch.cat([held[0], values], 1), torch.cat([held[1], places], 1)
            if values.shape[1] > count:
                values, kept = values.topk(count, dim=1)
                places = places.gather(1, kept)
        held = values, places
    assert held is not None
    values, places = held
    everything = values.shape[1] == len(scores.rows)
    least = values.amin(1).to(torch.float64) if not everything else torch.full((len(values),), -torch.inf)
    return torch.where(values == -torch.inf, -1, places), least.to(values.device)


def _largest(block: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest scores of each query: the groups with the largest maxima hold them all."""
    queries, rows = block.shape
    groups = rows // _GROUP
    if groups <= 2 * count:
        values, places = block.topk(count, dim=1)
        return values, places
    whole = groups * _GROUP
    grouped = torch.unflatten(block[:, :whole], 1, (groups, _GROUP))
    tops = grouped.amax(2).topk(count, dim=1).indices
    values = grouped.gather(1, tops[..., None].expand(-1, -1, _GROUP)).flatten(1)
    places = (tops[..., None] * _GROUP + torch.arange(_GROUP, device=block.device)).flatten(1)
    if whole < rows:
        rest = torch.arange(whole, rows, device=block.device).expand(queries, -1)
        values, places = torch.cat([values, block[:, whole:]], 1), torch.cat([places, rest], 1)
    values, kept = values.topk(count, dim=1)
    return values, places.gather(1, kept)


def _again(
    scores: Scores, query: int, k: int, measure: Measure, reached: float, leave: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One query looked at again: every row that may be as near as the k-th is measured."""
    chosen = slice(query, query + 1)
    device = scores.rows.device
    best = torch.zeros(1, 0, dtype=torch.long, device=device)
    away = torch.zeros(1, 0, dtype=torch.float64, device=device)
    for part in scores.blocks(1):
        block = scores.of(chosen, part)
        _leave_out(block, leave, chosen, part)
        places = torch.nonzero(block[0] >= reached - scores.rounding)[:, 0] + part.start
        for some in places.split(max(k, BUFFER // (8 * scores.rows.shape[1]))):
            measured = measure(some[None], torch.full((1, len(some)), query, device=device))
            best, away = torch.cat([best, some[None]], 1), torch.cat([away, measured], 1)
            best, away = ordered(best, away, min(k, best.shape[1]))
    return best[0], away[0]


def ordered(found: Tensor, away: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest, nearest first, equal distances by position."""
    by_position = found.argsort(dim=1)
    found, away = found.gather(1, by_position), away.gather(1, by_position)
    order = away.argsort(dim=1, stable=True)[:, :k]
    return found.gather(1, order), away.gather(1, order)


def _leave_out(block: Tensor, leave: Tensor | None, chosen: slice, part: slice) -> None:
    if leave is None:
        return
    inside = leave[chosen] - part.start
    query, column = torch.nonzero((inside >= 0) & (inside < part.stop - part.start), as_tuple=True)
    block[query, inside[query, column]] = -torch.inf


def _lots(queries: int, rows: int) -> Iterator[slice]:
    """Queries in lots whose scores for a block of rows fit the buffer."""
    step = max(1, BUFFER // (4 * rows))
    for start in range(0, queries, step):
        yield slice(start, min(start + step, queries))
