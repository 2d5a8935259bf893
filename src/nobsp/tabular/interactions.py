"""Which pairs deserve a term: a cheap screen of all, and a choice made on rows that were held out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from nobsp.network.inputs import Subset
from nobsp.network.readout import Readout
from nobsp.projection import Moments, Ridge, merge_all, terms_coefficients
from nobsp.tabular.calibration import JOINT, OUTPUTS, Plan, label
from nobsp.tabular.heldout import chosen_ridge, folds_of, unexplained
from nobsp.tabular.representations import Isolation, Represent, spread_out

# Most rows that screening sends through the network.
_SCREEN_BUDGET = 2_000_000
_SCREEN_ROWS = 256
# A pair below this share of the outputs' spread is not worth fitting.
WORTH_FITTING = 0.01
# Every pair must leave this much less of the outputs' variance unexplained on held-out rows.
WORTH_KEEPING = 1e-3
MOST_PAIRS = 64


@dataclass(frozen=True)
class Screening:
    """How strongly every pair of features acts together.

    Attributes:
        strengths: Per pair, the spread of its pure effect on an output as a share of the output's own
            spread, for the output it acts on most; strongest first.
        rows: Rows it was measured on.
        forward_rows: Rows sent through the network for it.
    """

    strengths: dict[Subset, float]
    rows: int
    forward_rows: int

    def strongest(self, count: int, *, at_least: float = 0.0) -> list[Subset]:
        """The strongest pairs."""
        return [pair for pair, strength in list(self.strengths.items())[:count] if strength >= at_least]


def screen(isolation: Isolation, readout: Readout, represent: Represent, sample: Tensor) -> Screening:
    """Measures every pair's pure effect, W (z_ij − z_i − z_j + z_∅), on a subsample.

    It costs one forward row per pair and sampled row; the sample shrinks from 256 rows to no fewer than 16
    where there are many pairs.
    """
    count = len(isolation.features)
    pairs = list(combinations(range(count), 2))
    if not pairs:
        return Screening({}, 0, 0)
    size = min(len(sample), _SCREEN_ROWS, max(_SCREEN_BUDGET // len(pairs), 16))
    # Spread over the sample, which may be sorted.
    rows = sample[torch.linspace(0, len(sample) - 1, size).long()]
    outputs = readout.logits(represent(rows))
    spread = outputs.std(0, correction=0)
    singles = {
        subset: spread_out(readout.logits(z), place)
        for subset, z, place in isolation.distinct(represent, rows, [(k,) for k in range(count)])
    }
    strengths = {}
    for pair, z, place in isolation.distinct(represent, rows, pairs):
        pure = spread_out(readout.logits(z), place) - singles[pair[:1]] - singles[pair[1:]]
        strengths[pair] = largest_share(pure.std(0, correction=0), spread)
    ranked = dict(sorted(strengths.items(), key=lambda item: (-item[1], item[0])))
    return Screening(ranked, size, size * (len(pairs) + count + 1))


def largest_share(effect: Tensor, spread: Tensor) -> float:
    """An effect's standard deviation as a share of the output's own, for the output it is largest in.

    Outputs may have scales of their own, and a pair may matter to the smallest of them.

    Example:
        >>> largest_share(torch.tensor([1.0, 1.0]), torch.tensor([1000.0, 2.0]))
        0.5
    """
    varying = spread > 0
    return float((effect[varying] / spread[varying]).max()) if bool(varying.any()) else 0.0


def worth_keeping(
    plan: Plan, parts: Mapping[str, Sequence[Moments]], ranked: Sequence[Subset], *, ridge: Ridge | None
) -> list[Subset]:
    """The pairs that pay for themselves on held-out blocks of rows, from the moments alone.

    Fits the 0, 1, 2, 4, … strongest pairs on all blocks but a few and measures the unexplained share of each
    output's variance on those few. Every pair has to lower it by a thousandth on average, and all together by
    more than chance (two standard errors); of those that stay, pairs with a small fitted effect are left out.
    """
    singles = [term for term in plan.terms if len(term) == 1]
    folds = list(folds_of(parts[JOINT]))
    if len(folds) < 2 or not ranked:
        return []
    if ridge is None:
        ridge = chosen_ridge(parts[JOINT], singles)
    errors: dict[int, Tensor] = {}
    for count in _rungs(len(ranked)):
        terms = [*singles, *ranked[:count]]
        left = [unexplained(train, test, terms, ridge=ridge) for train, test in folds]
        errors[count] = torch.tensor(left, dtype=torch.float64)
        costs = [float(error.mean()) + WORTH_KEEPING * pairs for pairs, error in errors.items()]
        if len(costs) > 2 and min(costs[-2:]) > min(costs[:-2]):
            break
    best = min(errors, key=lambda pairs: float(errors[pairs].mean()) + WORTH_KEEPING * pairs)
    gain = errors[0] - errors[best]
    if best == 0 or float(gain.mean()) <= 2 * float(gain.std()) / len(folds) ** 0.5:
        return []
    chosen = ranked[:best]
    total = merge_all(parts[JOINT]).select([*map(label, [*singles, *chosen]), OUTPUTS])
    fit = terms_coefficients(total, ridge=ridge, outputs=OUTPUTS, diagnose=False)
    spread = (total.product(OUTPUTS, OUTPUTS).diagonal() / total.weight).sqrt()
    return [pair for pair in chosen if largest_share(fit.spread[label(pair)], spread) >= WORTH_FITTING]


def _rungs(most: int) -> Iterator[int]:
    """0, 1, 2, 4, … up to `most`."""
    yield 0
    count = 1
    while count < most:
        yield count
        count *= 2
    yield most
