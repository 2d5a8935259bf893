"""Levels too rare to be among the rows that bases are found on: put into such rows, or found out later."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nobsp.network.inputs import Subset
from nobsp.network.levels import among
from nobsp.network.readout import Readout
from nobsp.network.summary import Summary
from nobsp.tabular.calibration import Plan
from nobsp.tabular.reading import as_model_takes
from nobsp.tabular.representations import Isolation, Represent, through

# Rows of the sample that a value too rare to be in it is put into, and most rows for that where such values are many.
_HOSTS, _RARE_ROWS = 8, 4096
# Share of what a level does that bases may lack before the level counts as unknown to them: a weak direction may have
# been left out of them.
_LOST = 1e-2


def uncovered(summary: Summary, isolation: Isolation) -> Tensor:
    """Rows of the sample with the levels and extremes put in that it lacks, though the table has them.

    A basis that never saw a level would leave it without a contribution.
    """
    sample = summary.sample
    if summary.rows <= len(sample):
        return sample[:0]
    found = []
    for feature, group in enumerate(isolation.features.columns):
        counted = feature in summary.levels or feature in isolation.categories
        for columns, levels in _levels(summary, feature, group) if counted else []:
            found.append(_put_in(summary.some_rows(_HOSTS), columns, levels[~among(levels, sample[:, columns])]))
        if not counted and len(group) == 1:
            ends = torch.stack([summary.minimum[list(group)], summary.maximum[list(group)]])
            found.append(_put_in(summary.some_rows(_HOSTS), list(group), ends))
    return torch.cat([sample[:0], *found])


def _levels(summary: Summary, feature: int, group: Sequence[int]) -> list[tuple[list[int], Tensor]]:
    """Every level of a feature, or, where these are too many, of each of its columns; with the columns they fill."""
    joint = summary.levels_of(feature, group)
    if joint is not None:
        return [(list(group), joint[0])]
    return [([group[place]], code[0]) for place, code in summary.codes.get(feature, {}).items()]


def _put_in(hosts: Tensor, columns: Sequence[int], values: Tensor) -> Tensor:
    """Rows that hold the values in some columns, each in several hosts where there are few of them."""
    copies = max(min(len(hosts), _RARE_ROWS // max(len(values), 1)), 1)
    which = torch.arange(copies * len(values)) % len(hosts)
    rows = hosts[which]
    rows[:, list(columns)] = values.repeat_interleave(copies, dim=0)
    return rows


def outside_bases(
    plan: Plan, readout: Readout, represent: Represent, known: Summary, summary: Summary
) -> tuple[int, Tensor] | None:
    """A level that the rows which fixed the bases did not hold, and whose effect the bases lack.

    A level whose representation lies within the bases is no stranger to them, whoever saw it first.

    Args:
        plan: Terms and bases.
        readout: The model.
        represent: Runs it.
        known: What the rows that fixed the bases looked like.
        summary: What all rows look like.

    Returns:
        The first category that has such a level, and the level; None where there is none, or levels were not counted.
    """
    hosts = known.some_rows(_HOSTS) if len(known.sample) else plan.isolation.baseline[None]
    for feature in sorted(plan.isolation.categories):
        group = plan.isolation.features.columns[feature]
        terms = [term for term in plan.terms if feature in term]
        seen = {tuple(columns): levels for columns, levels in _levels(known, feature, group)}
        for columns, levels in _levels(summary, feature, group):
            before = seen.get(tuple(columns), levels)  # not counted before: there is nothing to compare with
            strangers = levels[~among(levels, before)]
            for fresh in torch.split(strangers, _RARE_ROWS) if len(strangers) else ():
                new, old = (_put_in(hosts, columns, put) for put in (fresh, before[:1].expand_as(fresh)))
                lacking = _lacking(plan, represent, terms, as_model_takes(new, readout), as_model_takes(old, readout))
                if bool(lacking.any()):
                    return feature, new[lacking][0][list(group)]
    return None


def _lacking(plan: Plan, represent: Represent, terms: Sequence[Subset], new: Tensor, old: Tensor) -> Tensor:
    """Which rows take a term's representation where its basis does not reach, from where other rows have it.

    What counts is the largest such step of all terms: of a pair that hardly acts, everything may be missing.
    """
    steps, left = [], []
    for term in terms:
        basis = plan.bases[term]
        whole = {term: torch.eye(len(basis), dtype=torch.float64)}
        step = through(plan.isolation, represent, new, whole, pure=plan.pure).cpu()
        step = step - through(plan.isolation, represent, old, whole, pure=plan.pure).cpu()
        steps.append(torch.linalg.vector_norm(step, dim=1))
        left.append(torch.linalg.vector_norm(step - (step @ basis) @ basis.T, dim=1))
    return torch.stack(left).amax(0) > _LOST * torch.stack(steps).amax(0)
