"""How the attribution for questions of removal was chosen: candidates judged on training rows of nine tables.

A fifth of the training rows, at most 300, judge; up to 1,000 of the others calibrate. No test row is looked at. For
every feature, with z the representation, T its rows with all other features at their means (isolated), A its rows with
the feature at its mean (complement), z° the one with all at their means, y = zW the output, D = y − AW what removal to
the mean changes, a tilde for centring by the calibration rows, and λ = ridge · trace/width of the matrix inverted:

    K = (ÃᵀÃ + λI)⁻¹Ãᵀ    R = (I − ÃK)T̃    β = (RᵀR + λI)⁻¹Rᵀ(I − ÃK)ỹ    γ = K(ỹ − T̃β)

- own function: (T − z°)β, Algorithm 1 measured from the baseline;
- own plus residual: (T − z°)β + (ỹ − T̃β − Ãγ), all that the complement does not account for;
- half of each: the mean of these two;
- removal to the mean: D;
- removal, complement's part out: own plus residual with D in the place of y, in β and γ as well;
- total effects: y less its mean over values of the feature, `NObSP.removal_effects`;
- all terms at once: what the functions of the default give, all terms that a feature takes part in, from the baseline.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks import kept
from benchmarks.report import Cell, Column, Report, Table, publish, written
from benchmarks.tabular import problems
from benchmarks.tabular.methods import GRADIENTS, SHAP, integrated_gradients, kernel_shap
from benchmarks.tabular.problems import Array, Problem
from benchmarks.tabular.walking import NAMES, Found, Scores, asked, mean, not_run, spread, those
from nobsp import NObSP
from nobsp.metrics import (
    ablation_effects,
    at_target,
    attribution_faithfulness,
    delta_agreement,
    find_pairs,
)

JUDGED, CALIBRATION = 300, 1000
RIDGES, FEWER_RIDGES, HALVED, STRONGEST = (1e-4, 1e-2, 0.1, 1.0), (1e-4, 0.1, 1.0), 0.1, 1.0
STEPS, BACKGROUND, COALITIONS = 32, 40, 100
OWN, WHOLE, HALF = (
    "own function, ridge {:g}",
    "own plus residual, ridge {:g}",
    "half of each, ridge {:g}",
)
REMOVAL, APART, TOTAL, DEFAULT = (
    "removal to the mean",
    "removal, complement's part out, ridge {:g}",
    "total effects",
    "all terms at once, the default",
)
CANDIDATES = (
    *map(OWN.format, RIDGES),
    *map(WHOLE.format, RIDGES),
    HALF.format(HALVED),
    REMOVAL,
    *map(APART.format, FEWER_RIDGES),
    TOTAL,
    DEFAULT,
)
OTHERS = (GRADIENTS, SHAP)
# Which score, whose to compare with, by how much a candidate may be behind.
QUESTIONS: dict[str, tuple[str, tuple[str, ...], float]] = {
    "at least KernelSHAP's": ("faithfulness", (SHAP,), 1e-9),
    "within 0.03 of Integrated Gradients": ("faithfulness", (GRADIENTS,), 0.03),
    "ahead of both in LCPDA": ("agreement", OTHERS, -1e-9),
}
Two = Sequence[Tensor]  # of the calibration rows, of the judged rows


def split(name: str, seed: int) -> tuple[Problem, Array]:
    """The network of a table with training rows to judge on, and other training rows to calibrate with."""
    here = problems.problem(name, seed, rows=JUDGED)
    rows = here.data.X_train
    order = np.random.default_rng(100 + seed).permutation(len(rows))
    fifth = len(rows) // 5
    return replace(here, rows=rows[order[:fifth][:JUDGED]]), rows[order[fifth:][:CALIBRATION]]


def fitted(own: Tensor, others: Tensor, outputs: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """β and γ of centred rows, as the formulas above say."""

    def inverse(block: Tensor) -> Tensor:
        gram = block.T @ block
        # A feature that is constant in the calibration rows has a matrix of zeros.
        gram.diagonal().add_(ridge * gram.diagonal().mean() + 1e-12)
        return torch.linalg.solve(gram, block.T)

    apart = inverse(others)
    rest = own - others @ (apart @ own)
    beta = inverse(rest) @ (outputs - others @ (apart @ outputs))
    return beta, apart @ (outputs - own @ beta)


def of_feature(
    isolated: Two, complement: Two, outputs: Two, head: Tensor, start: Tensor
) -> dict[str, Tensor]:
    """What a feature is given by every candidate of one split, shape (judged rows, outputs).

    Args:
        isolated: Representations with all other features at their means.
        complement: Representations with the feature at its mean.
        outputs: Of the network, without its bias.
        head: Weights W of the last layer.
        start: Representation z° of the means.
    """
    both = [
        torch.cat([y, y - others @ head], dim=1)
        for y, others in zip(outputs, complement, strict=True)
    ]
    (own, own_judged), (others, others_judged), (said, said_judged) = (
        [rows - pair[0].mean(dim=0) for rows in pair] for pair in (isolated, complement, both)
    )
    given = {REMOVAL: both[1].tensor_split(2, dim=1)[1]}
    for ridge in RIDGES:
        beta, gamma = fitted(own, others, said, ridge)
        function = (isolated[1] - start) @ beta
        residual = said_judged - own_judged @ beta - others_judged @ gamma
        alone, _ = function.tensor_split(2, dim=1)
        whole, apart = (function + residual).tensor_split(2, dim=1)
        given |= {OWN.format(ridge): alone, WHOLE.format(ridge): whole}
        if ridge == HALVED:
            given[HALF.format(ridge)] = (alone + whole) / 2
        if ridge in FEWER_RIDGES:
            given[APART.format(ridge)] = apart
    return given


@torch.no_grad()
def candidates(
    network: nn.Sequential, calibration: Array, rows: Array, means: Array
) -> dict[str, Array]:
    """Every candidate of one split, shape (rows, features + 1, outputs).

    The last is what a feature would be given that the network ignores: alone it changes nothing, and its complement
    is all there is.
    """
    inputs = [torch.as_tensor(each, dtype=torch.float64) for each in (calibration, rows)]
    baseline = torch.as_tensor(means, dtype=torch.float64)
    represent, head = network[:-1], network[-1].weight.T
    start, whole = represent(baseline), [represent(each) for each in inputs]
    outputs = [each @ head for each in whole]
    found = []
    for feature in range(len(means)):
        here = torch.arange(len(means)) == feature
        isolated = [represent(torch.where(here, each, baseline)) for each in inputs]
        complement = [represent(torch.where(here, baseline, each)) for each in inputs]
        found.append(of_feature(isolated, complement, outputs, head, start))
    found.append(of_feature([start.expand_as(each) for each in whole], whole, outputs, head, start))
    return {name: torch.stack([each[name] for each in found], dim=1).numpy() for name in found[0]}


def of_package(here: Problem, calibration: Array, means: Array) -> dict[str, Array]:
    """Total effects and the sums of all terms of the default, shape (judged rows, features, outputs)."""
    total = NObSP(here.network, interactions=0).fit(calibration).removal_effects(here.rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what health would say is not the question here
        account = NObSP(here.network, baseline=means).fit(calibration)(here.rows)
    return {TOTAL: total, DEFAULT: account.from_baseline().total()}


def scored(table: str, seed: int, *, measured: bool) -> dict[str, Scores]:
    """Both scores on one network: of total effects and the default, as the package gives them, or of all others.

    Of the candidates that are fitted also what they give to a feature that the network ignores.
    """
    here, calibration = split(table, seed)
    means, output = here.data.X_train.mean(axis=0), at_target(here.outputs(here.rows), here.target)
    effects = ablation_effects(here.network, here.rows, baseline=means, target=here.target)
    pairs = find_pairs(
        here.rows, classes=here.target if here.data.task == "classification" else None, seed=seed
    )

    def scores(attributions: Array) -> Scores:
        return {
            "faithfulness": attribution_faithfulness(attributions, effects).correlation,
            "agreement": delta_agreement(attributions, output, pairs).pearson,
        }

    if measured:
        given = of_package(here, calibration, means)
        return {name: scores(at_target(values, here.target)) for name, values in given.items()}
    found = {
        GRADIENTS: scores(integrated_gradients(here, steps=STEPS)),
        SHAP: scores(kernel_shap(here, background=BACKGROUND, samples=COALITIONS)),
    }
    for name, values in candidates(here.network, calibration, here.rows, means).items():
        candidate = at_target(values, here.target)
        own, ignored = candidate[:, :-1], candidate[:, -1:]
        share = float(ignored.std() / output.std())
        found[name] = {
            **scores(own),
            "ignored": share,
            "without": scores(own - ignored)["agreement"],
        }
    return found


_COMMON = kept.fingerprint(
    *(split, scored, problems.trained, problems.RECIPE, JUDGED, CALIBRATION),
    kept.rooms("metrics"),
)
_FITTED = kept.fingerprint(
    *(_COMMON, fitted, of_feature, candidates, integrated_gradients, kernel_shap),
    *(
        RIDGES,
        FEWER_RIDGES,
        HALVED,
        STEPS,
        BACKGROUND,
        COALITIONS,
        kept.package("captum"),
        kept.package("shap"),
    ),
)
_MEASURED = kept.fingerprint(_COMMON, of_package, kept.rooms("projection", "tabular"))


def walked(chosen: argparse.Namespace) -> Found:
    """Scores by table and candidate, one a seed; only where every seed is known."""
    results = kept.Kept(None if chosen.quick else kept.FOLDER / "choosing.jsonl")
    found: Found = {}
    cells = [(table, seed) for table in chosen.tables for seed in chosen.seeds]
    for table, seed in tqdm(cells, desc="choosing", unit="network", dynamic_ncols=True):
        for measured, fingerprint in ((False, _FITTED), (True, _MEASURED)):
            cell = f"{table}, seed {seed}, {'measured' if measured else 'fitted'}"
            if not chosen.known:
                results.cell(cell, fingerprint, partial(scored, table, seed, measured=measured))
            for name, scores in (results.get(cell, fingerprint) or {}).items():
                found.setdefault((table, name), []).append(scores)
    return {place: scores for place, scores in found.items() if len(scores) == len(chosen.seeds)}


def main() -> None:
    chosen = asked((__doc__ or "").splitlines()[0])
    found = walked(chosen)
    publish(
        Report(
            name="choosing",
            title="How the attribution for questions of removal was chosen",
            tables=(
                summary(found, chosen.tables),
                by_table(
                    found,
                    chosen.tables,
                    "faithfulness",
                    "Faithfulness correlation on training rows",
                ),
                by_table(
                    found,
                    chosen.tables,
                    "agreement",
                    "LCPDA, Pearson correlation, on training rows",
                ),
            ),
            findings=findings(found, chosen.tables),
            seeds=chosen.seeds,
            settings={
                "judged_rows": f"a fifth of the training rows, at most {JUDGED}",
                "calibration_rows": CALIBRATION,
                "ridges": tuple(f"relative {ridge:g}" for ridge in RIDGES),
                "gradient_steps": STEPS,
                "SHAP_background": BACKGROUND,
                "SHAP_coalitions": COALITIONS,
                **problems.described(),
            },
            packages=("captum", "shap"),
        ),
        chosen,
    )


def average(found: Found, tables: Sequence[str], name: str, score: str) -> float | None:
    """Mean over tables and seeds; None unless all are known and the method has the score."""
    known = [
        scores[score]
        for table in tables
        for scores in found.get((table, name), ())
        if score in scores
    ]
    return (
        float(np.mean(known)) if known and all((table, name) in found for table in tables) else None
    )


def where(
    found: Found, tables: Sequence[str], name: str, question: str, *, own: str | None = None
) -> str:
    """On how many tables, and which, the answer is yes; `own` is the candidate's score where it is another."""
    score, others, margin = QUESTIONS[question]

    def holds(table: str) -> bool | None:
        ours = mean(found, table, name, own or score)
        theirs = [mean(found, table, other, score) for other in others]
        known = [other for other in theirs if other is not None]
        if ours is None or len(known) < len(others):
            return None
        return ours >= max(known) - margin

    return those(tables, holds)


def summary(found: Found, tables: Sequence[str]) -> Table:
    def row(name: str) -> tuple[Cell, ...]:
        counts = [where(found, tables, name, question).partition(" (")[0] for question in QUESTIONS]
        faithful, near, ahead = (None if name in OTHERS else count for count in counts)
        means = [
            average(found, tables, name, score)
            for score in ("faithfulness", "agreement", "ignored", "without")
        ]
        return name, means[0], faithful, near, means[1], ahead, *means[2:]

    first, second, third = QUESTIONS
    names = (
        "faithfulness",
        first,
        second,
        "LCPDA",
        third,
        "given to an ignored feature",
        "LCPDA without that",
    )
    return Table(
        "On how many tables",
        (Column("attribution"), *(Column(name, ".3f") for name in names)),
        tuple(map(row, (*CANDIDATES, *OTHERS))),
        "Means over tables and seeds; a table counts by its mean over seeds. 'Given to an ignored feature': what one "
        "that the network ignores would get, its standard deviation over rows as a share of the output's. It should "
        "be nothing; total effects give nothing by definition, as the output does not change with its values. 'LCPDA "
        "without that': the score once it is taken away from every feature.",
    )


def by_table(found: Found, tables: Sequence[str], score: str, title: str) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            *(spread(found, table, name, score) for table in tables),
            average(found, tables, name, score),
        )
        for name in (*CANDIDATES, *OTHERS)
    ]
    names = (*(NAMES[table] for table in tables), "mean")
    return Table(
        title,
        (Column("attribution"), *(Column(name, ".3f") for name in names)),
        tuple(rows),
        "Mean ± standard deviation over seeds, each with its own split and network; higher is better.",
    )


def findings(found: Found, tables: Sequence[str]) -> tuple[str, ...]:
    faithful, near, ahead = QUESTIONS
    everywhere = f"{len(tables)} of {len(tables)}"
    passing = [
        f"{name} ({where(found, tables, name, ahead).partition(' (')[0]})"
        for name in CANDIDATES
        if all(where(found, tables, name, asks).startswith(everywhere) for asks in (faithful, near))
    ]
    strongest = WHOLE.format(STRONGEST)

    def number(name: str, score: str) -> str:
        return written(average(found, tables, name, score), ".3f")

    def beside(name: str) -> str:
        return (
            f"at least KernelSHAP's on {where(found, tables, name, faithful)}; within 0.03 of Integrated Gradients on "
            f"{where(found, tables, name, near)}; ahead of both in LCPDA on {where(found, tables, name, ahead)}, with "
            f"a mean of {number(name, 'agreement')} beside {number(GRADIENTS, 'agreement')} and "
            f"{number(SHAP, 'agreement')}."
        )

    return (
        f"Of {len(CANDIDATES)} candidates, at least KernelSHAP's in faithfulness and within 0.03 of Integrated "
        f"Gradients on every table, and in brackets ahead of both in LCPDA: {'; '.join(passing) or 'none'}.",
        f"Total effects: {beside(TOTAL)}",
        f"All terms at once, the default: {beside(DEFAULT)}",
        "Removal to the mean is the faithfulness score's own question, so how it scores there says nothing; total "
        "effects come close to that question too.",
        f"{strongest[0].upper()}{strongest[1:]}: ahead of both in LCPDA on {where(found, tables, strongest, ahead)}, "
        f"with a mean of {number(strongest, 'agreement')}, because a ridge that shrinks the complement leaves part of "
        "the whole output in every feature, and whoever gives the whole output to every feature scores 1. One that "
        f"the network ignores would get {number(strongest, 'ignored')} of the output. Without that part it is ahead on "
        f"{where(found, tables, strongest, ahead, own='without')}, with a mean of {number(strongest, 'without')}.",
        "Networks were trained on the rows that judge here, too, and means are those of all training rows; what was "
        "calibrated has not seen them.",
        *not_run(found, tables, (TOTAL, SHAP)),  # with which all others are run, or not
    )


if __name__ == "__main__":
    main()
