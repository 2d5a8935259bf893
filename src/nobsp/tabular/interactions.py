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
from nobsp.tabular.representations import Isolation, Represent, spread_out

# Most rows that screening sends through the network.
_SCREEN_BUDGET = 2_000_000
_SCREEN_ROWS = 256
# A pair below this share of the outputs' spread is not worth fitting.
WORTH_FITTING = 0.01
# A larger system must leave this much less of the outputs' variance unexplained on held-out rows.
WORTH_KEEPING = 1e-3
MOST_PAIRS = 64
# With fewer rows to fit on there is nothing to choose between.
FEWEST_ROWS = 16
_FOLDS = 4


@dataclass(frozen=True)
class Screening:
    """How strongly every pair of features acts together.

    Attributes:
        strengths: Per pair, the spread of its pure effect on the outputs as a share of the outputs' own
            spread, strongest first.
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
    spread = (outputs - outputs.mean(0)).square().sum().clamp_min(1e-300)
    singles = {
        subset: spread_out(readout.logits(z), place)
        for subset, z, place in isolation.distinct(represent, rows, [(k,) for k in range(count)])
    }
    strengths = {}
    for pair, z, place in isolation.distinct(represent, rows, pairs):
        pure = spread_out(readout.logits(z), place) - singles[pair[:1]] - singles[pair[1:]]
        strengths[pair] = float(((pure - pure.mean(0)).square().sum() / spread).sqrt())
    ranked = dict(sorted(strengths.items(), key=lambda item: (-item[1], item[0])))
    return Screening(ranked, size, size * (len(pairs) + count + 1))


def worth_keeping(
    plan: Plan, parts: Mapping[str, Sequence[Moments]], ranked: Sequence[Subset], *, ridge: Ridge
) -> list[Subset]:
    """The pairs that lower the error on held-out blocks of rows, from the moments alone.

    Fits the 0, 1, 2, 4, … strongest pairs on all blocks but a few and measures the unexplained share of the
    outputs' variance on those few. The smallest number of pairs wins that is within a thousandth, or within
    two standard errors, of the best; of these, pairs whose fitted effect is small are left out again.
    """
    singles = [term for term in plan.terms if len(term) == 1]
    errors: list[list[float]] = []
    ladder: list[int] = []
    folds = list(_folds(parts[JOINT]))
    if len(folds) < 2 or not ranked:
        return []
    for count in _rungs(len(ranked)):
        terms = [*singles, *ranked[:count]]
        errors.append([_unexplained(train, test, terms, ridge=ridge) for train, test in folds])
        ladder.append(count)
        if _stopped_falling([sum(rung) / len(rung) for rung in errors]):
            break
    table = torch.tensor(errors, dtype=torch.float64)
    mean = table.mean(1)
    best = int(mean.argmin())
    # Folds share their difficulty, so it is the differences to the best that tell.
    doubt = 2 * (table - table[best]).std(1) / len(folds) ** 0.5
    within = (mean - mean[best]) <= doubt.clamp_min(WORTH_KEEPING)
    chosen = ranked[: ladder[int(torch.nonzero(within)[0])]]
    if not chosen:
        return []
    total = merge_all(parts[JOINT]).select([*map(label, [*singles, *chosen]), OUTPUTS])
    fit = terms_coefficients(total, ridge=ridge, outputs=OUTPUTS, diagnose=False)
    spread = (total.product(OUTPUTS, OUTPUTS).diagonal().sum() / total.weight).sqrt()
    return [pair for pair in chosen if float(fit.spread[label(pair)].norm() / spread) >= WORTH_FITTING]


def _folds(blocks: Sequence[Moments]) -> Iterator[tuple[Moments, Moments]]:
    """Moments to fit on and moments to judge by, every block judged by once."""
    filled = [block for block in blocks if block.rows > 0]
    for fold in range(min(_FOLDS, len(filled))):
        train = merge_all([block for number, block in enumerate(filled) if number % _FOLDS != fold] or filled)
        test = merge_all(filled[fold::_FOLDS])
        if train.rows >= FEWEST_ROWS and test.rows >= 2:
            yield train, test


def _rungs(most: int) -> Iterator[int]:
    """0, 1, 2, 4, … up to `most`."""
    yield 0
    count = 1
    while count < most:
        yield count
        count *= 2
    yield most


def _stopped_falling(errors: Sequence[float]) -> bool:
    """Whether the last two steps brought nothing worth keeping."""
    if len(errors) < 3:
        return False
    return min(errors[-2:]) > min(errors[:-2]) - WORTH_KEEPING / 10


def _unexplained(train: Moments, test: Moments, terms: Sequence[Subset], *, ridge: Ridge) -> float:
    """Share of the held-out outputs' variance that a fit on other rows leaves."""
    names = [*map(label, terms), OUTPUTS]
    fit = terms_coefficients(train.select(names), ridge=ridge, outputs=OUTPUTS, diagnose=False)
    beta = torch.cat([fit.coefficients[name] for name in names[:-1]])
    seen = test.select(names)
    products, size = seen.products, seen.size - seen.blocks[OUTPUTS]
    # Predictions are centred on the training rows' means, so the difference of means counts as error.
    shift = (seen.mean()[:size] - train.select(names).mean()[:size]) @ beta
    shift = seen.mean()[size:] - train.mean(OUTPUTS) - shift
    gram, cross, total = products[:size, :size], products[:size, size:], products[size:, size:].diagonal()
    left = total - 2 * (beta * cross).sum(0) + (beta * (gram @ beta)).sum(0) + seen.weight * shift.square()
    return float(left.sum() / total.sum().clamp_min(1e-300))
