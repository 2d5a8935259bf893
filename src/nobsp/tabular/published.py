"""A calibration as published: Algorithm 1 run by an engine, and its functions as tables along the baseline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nobsp.base import Finding, sort_findings
from nobsp.calibration import Run
from nobsp.network.inputs import Subset, Summary
from nobsp.network.readout import Network, as_model_takes
from nobsp.projection import Ridge
from nobsp.tabular.algorithm1 import (
    Accumulator,
    Isolation,
    Parts,
    Plan,
    Published,
    add_rows,
    add_rows_and_summarise,
    join_solutions,
    make_plan,
    rare_rows,
    replicates,
    room_for_moments,
    solve,
    split_plan,
)
from nobsp.tabular.columns import Columns, Rows, read_ahead, require_passes
from nobsp.tabular.compiled import Health, TermHealth
from nobsp.tabular.explanation import term_name
from nobsp.tabular.fitted import Estimate, Fitted
from nobsp.tabular.fitting import Facts, Options, assemble, feature_findings, share_findings
from nobsp.tabular.lookup import TermTable
from nobsp.tabular.regression import Sample, share_explained, transfer
from nobsp.tabular.tabulate import Array, Points, Represent, Tabulator
from nobsp.tabular.terms import FULL, PAIR_REACH, grid_lines, screen_pairs, tabulate_main

# Rows on which importances are measured; every one of them runs once for every term.
PUBLISHED_ROWS = 512
# Pairs are taken one by one: those whose spread is at least this share of the outputs', up to so many.
_PUBLISHED_LEAST, _PUBLISHED_PAIRS = 0.02, 16

Strengths = dict[Subset, float]


def published_of(fitted: Fitted, argument: str) -> Published:
    """What Algorithm 1 found, or an error where another method was used."""
    if fitted.estimate.published is None:
        raise ValueError(f'{argument} must be calibrated with reference="complement", as this explainer is.')
    return fitted.estimate.published


def calibrate_published(
    run: Run,
    rows: Rows,
    network: Network,
    options: Options,
    columns: Columns,
    known: Fitted | None,
    facts_of: Callable[[Summary], Facts],
    *,
    progress: bool,
) -> tuple[Summary, Published, Strengths]:
    """Summary, plan, moments, coefficients; `known` has a plan to take over."""
    readout, groups = network.readout, columns.features.columns
    model = run.share(network)
    ahead = read_ahead(run, rows, columns, options.baseline, planned=known is not None)
    summary = Summary(groups)
    if ahead:
        summary = run.accumulate(rows, summary, Summary.update, name="reading", progress=progress)
    if known is None:
        seen = summary
        if not ahead:
            seen = run.accumulate(rows.peek(), Summary(groups), Summary.update, name="first rows")
        plan, strengths = run.decide(lambda: _plan(facts_of(seen)), name="plan")
    else:
        plan, strengths = published_of(known, "like").plan, known.functions.strengths
    stages = split_plan(plan, readout, memory=run.memory)
    if len(stages) > 1:
        require_passes(run, rows, len(stages))
    room, ridge = room_for_moments(plan, run.memory), options.ridge or Ridge(1e-4, "relative")
    solutions = []
    parts: Parts = {}
    for stage in stages:
        parts = {}  # the sums of one stage at a time
        moments = Accumulator.of(stage, readout, rows=rows.rows, memory=room, in_few=run.sends_states)
        given: dict[str, Any] = {"model": model, "name": "calibrating", "progress": progress}
        if not summary.rows:  # rows that are read only once
            states, add = (Summary(groups), moments), partial(add_rows_and_summarise, stage)
            summary, moments = run.accumulate(rows, states, add, **given)
        else:
            moments = run.accumulate(rows, moments, partial(add_rows, stage), **given)
        parts = moments.parts
        del moments
        solutions.append(run.decide(partial(solve, stage, parts, ridge=ridge)))
    return summary, Published(plan, parts if len(stages) == 1 else {}, join_solutions(solutions), ridge), strengths


def _plan(facts: Facts) -> tuple[Plan, Strengths]:
    """Baseline, terms and bases of Algorithm 1, and the strengths of pairs where these were screened."""
    few = frozenset(facts.summary.levels)
    isolation = Isolation(facts.columns.features, facts.baseline, few, facts.categories, facts.options.batch_size)
    wanted = facts.pairs()
    strengths: Strengths = {}
    with facts.network.running() as running:
        if isinstance(wanted, Sequence):
            pairs = list(wanted)
        else:
            if wanted != 0:
                tabulate = _tabulator(facts, running.represent, facts.weight)
                strengths = screen_pairs(tabulate, facts.domains, facts.sample(running.represent), FULL)
            most, least = (_PUBLISHED_PAIRS, _PUBLISHED_LEAST) if wanted is None else (wanted, 0.0)
            pairs = [pair for pair, strength in list(strengths.items())[:most] if strength >= least]
        terms: list[Subset] = [*((k,) for k in range(len(facts.names))), *pairs]
        sample = as_model_takes(facts.summary.sample, facts.readout)
        rare = as_model_takes(rare_rows(facts.summary, isolation), facts.readout)
        return make_plan(isolation, running.represent, sample, terms, rare=rare), strengths


def _tabulator(facts: Facts, represent: Represent, weight: Tensor) -> Tabulator:
    """Tables along the baseline."""
    return Tabulator(represent, facts.baseline_rows(), weight, batch_size=facts.options.batch_size)


def estimate_published(facts: Facts, published: Published, strengths: Strengths) -> Estimate:
    """The functions of Algorithm 1 as tables along the baseline, beside the coefficients themselves."""
    plan, solution, order = published.plan, published.solution, published.plan.terms
    facts.baseline = plan.isolation.baseline  # the first calibration's, where the plan was taken over or merged
    with facts.network.running() as running:
        represent = running.represent
        sample = facts.sample(represent)
        rows = sample.some(PUBLISHED_ROWS)
        values = published.values(represent, rows.inputs)
        at_baseline = published.values(represent, facts.baseline_rows())[0]
        tables: dict[Subset, TermTable] = {}
        points: dict[int, Points] = {}
        compressed: dict[int, Tensor] = {}
        for term in order:
            if len(term) == 1 and not facts.domains[term[0]].columns:
                tables[term] = TermTable(term, (), np.zeros((1, facts.readout.outputs)))
            if len(term) > 2 or not all(facts.domains[k].tabulated for k in term):
                continue
            tabulate = _tabulator(facts, represent, solution.matrices[term])
            if len(term) == 1:
                k = term[0]
                points[k], table = tabulate_main(tabulate, facts.domains[k], sample, sample.spread, FULL)
                compressed[k] = table.mean @ plan.bases[term]
                found = table.mean @ solution.matrices[term] - solution.offsets[term]
                tables[term] = TermTable(term, (points[k].axis,), found.numpy())
                continue
            a, b = (grid_lines(facts.domains[k], sample, 17, 9, PAIR_REACH) for k in term)
            found = tabulate((a, b)).mean @ solution.matrices[term] - solution.offsets[term]
            first, second = (
                transfer(points[k], torch.from_numpy(tables[k,].values), line)
                for k, line in zip(term, (a, b), strict=True)
            )
            tables[term] = TermTable(term, (a.axis, b.axis), (found - first[:, None] - second[None]).numpy())
        residual = rows.outputs - solution.base - values.sum(1)
        state = _examine_published(facts, published, values, rows, residual)

    def measure() -> dict[int, Array]:
        copies = list(replicates(plan, published.parts, ridge=published.ridge))
        spreads = {}
        for k, rows in compressed.items() if copies else ():
            basis = plan.bases[k,]
            curves = torch.stack([rows @ (basis.T @ copy.matrices[k,]) - copy.offsets[k,] for copy in copies])
            spreads[k] = curves.std(0).numpy()
        return spreads

    return Estimate(
        functions=assemble(
            facts,
            tuple(tables[term] for term in order if term in tables),
            order,
            values,
            at_baseline,
            base=solution.base,
            strengths=strengths,
            state=state,
            measure=measure,
        ),
        terms=order,
        direct=(),
        baseline=facts.baseline,
        baseline_contributions=at_baseline.numpy(),
        alphas=(published.ridge.value,) * facts.readout.outputs,
        published=published,
    )


def _examine_published(facts: Facts, published: Published, values: Tensor, rows: Sample, residual: Tensor) -> Health:
    plan, solution, width = published.plan, published.solution, facts.readout.width
    explained = share_explained(residual - residual.mean(0), rows.outputs)
    findings = [
        *share_findings(explained, facts.output_names, what="R² on the calibration rows"),
        *feature_findings(facts, plan.terms, values, rows),
    ]
    if facts.summary.rows <= width:
        message = (
            f"Fewer rows ({facts.summary.rows}) than the representation is wide ({width}): the reference can reproduce "
            'anything and coefficients collapse. Calibrate on more rows, or use reference="terms".'
        )
        findings.append(Finding("warning", "few_rows", "", message))
    spoken = {finding.subject for finding in findings}
    for term, note in solution.notes.items():
        name = term_name([facts.names[k] for k in term])
        if name not in spoken:
            severity = "note" if plan.bases[term].shape[1] == 0 else "warning"
            findings.append(Finding(severity, "overlap", name, note))
    if not published.parts:
        message = "Moments are not held, so curves have no bands and nothing can be merged."
        findings.append(Finding("note", "no_moments", "", message))
    return Health(
        findings=sort_findings(findings),
        terms=tuple(
            TermHealth(tuple(facts.names[k] for k in term), plan.bases[term].shape[1], solution.unique_share[term])
            for term in plan.terms
        ),
        explained=tuple(explained.tolist()),
        inside=tuple(explained.tolist()),
        outside_rows=0.0,
        rows=facts.summary.rows,
        columns=width,
        held_out=False,
    )
