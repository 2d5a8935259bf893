"""Do attributions move with the output? Pairs of test rows that differ in one feature (LCPDA) on nine tables.

Pairs as in the paper's supplement D.2: same predicted class, the feature differs by at least the median difference that
is not zero, the others by at most the 15th percentile, at most 800 pairs a feature. The change of the predicted
class's logit between the two rows is set against the change of the feature's attribution, over all pairs of all
features. As in the paper, NObSP is calibrated on up to 1,000 training rows, Integrated Gradients takes 32 steps from
the mean, and KernelSHAP 40 background rows and 100 coalitions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.report import Cell, Column, Quoted, Report, Table, publish
from benchmarks.tabular import problems
from benchmarks.tabular.methods import GRADIENTS, METHODS, OURS, PAIRS, PUBLISHED, SHAP, STRONG
from benchmarks.tabular.walking import (
    NAMES,
    Found,
    Scores,
    asked,
    mean,
    not_run,
    spread,
    stored,
    those,
    told_again,
    walk,
)
from nobsp.metrics import at_target, delta_agreement, find_pairs

ROWS = 300
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    **{method: {"calibration": 1000} for method in OURS},
    GRADIENTS: {"steps": 32},
    SHAP: {"background": 40, "samples": 100},
}
# Table tab:lcpda of the paper, mean ± standard deviation over model seeds 0-2: NObSP, Integrated Gradients, KernelSHAP.
PAPER_PEARSON = {
    "iris": (Quoted(0.503, 0.020), Quoted(0.429, 0.025), Quoted(0.484, 0.024)),
    "wine": (Quoted(0.254, 0.016), Quoted(0.228, 0.012), Quoted(0.275, 0.009)),
    "breast_cancer": (Quoted(0.434, 0.017), Quoted(0.401, 0.014), Quoted(0.396, 0.008)),
    "adult": (Quoted(0.629, 0.035), Quoted(0.862, 0.027), Quoted(0.862, 0.026)),
    "german_credit": (Quoted(0.204, 0.012), Quoted(0.216, 0.013), Quoted(0.259, 0.006)),
    "bank_marketing": (Quoted(0.417, 0.020), Quoted(0.434, 0.031), Quoted(0.522, 0.023)),
    "covertype": (Quoted(0.297, 0.015), Quoted(0.313, 0.029), Quoted(0.384, 0.029)),
    "diabetes": (Quoted(0.519, 0.165), Quoted(0.630, 0.002), Quoted(0.658, 0.004)),
    "california_housing": (Quoted(0.668, 0.081), Quoted(0.600, 0.010), Quoted(0.745, 0.038)),
}
PAPER_NRMSE = {
    "iris": (Quoted(0.867, 0.013), Quoted(0.935, 0.033), Quoted(0.881, 0.021)),
    "wine": (Quoted(0.976, 0.002), Quoted(0.992, 0.009), Quoted(0.970, 0.004)),
    "breast_cancer": (Quoted(0.938, 0.004), Quoted(0.933, 0.008), Quoted(0.947, 0.007)),
    "adult": (Quoted(0.787, 0.027), Quoted(0.509, 0.041), Quoted(0.522, 0.037)),
    "german_credit": (Quoted(0.983, 0.003), Quoted(0.999, 0.004), Quoted(0.968, 0.001)),
    "bank_marketing": (Quoted(0.938, 0.027), Quoted(0.945, 0.029), Quoted(0.869, 0.013)),
    "covertype": (Quoted(1.032, 0.032), Quoted(1.088, 0.031), Quoted(0.947, 0.018)),
    "diabetes": (Quoted(0.951, 0.266), Quoted(0.777, 0.002), Quoted(0.765, 0.002)),
    "california_housing": (Quoted(0.772, 0.082), Quoted(0.948, 0.006), Quoted(0.700, 0.038)),
}
PAPER_METHODS = (PUBLISHED, GRADIENTS, SHAP)


def scored(table: str, seed: int, method: str, *, rows: int, **settings: Any) -> Scores:
    """Agreement of one method's attributions with one network."""
    here = problems.problem(table, seed, rows=rows)
    start = time.perf_counter()
    attributions = METHODS[method].run(here, **settings)
    seconds = time.perf_counter() - start
    classes = here.target if here.data.task == "classification" else None
    pairs = find_pairs(here.rows, classes=classes, seed=seed)
    found = delta_agreement(attributions, at_target(here.outputs(here.rows), here.target), pairs)
    return {
        "pearson": found.pearson,
        "nrmse": found.nrmse,
        "pairs": found.pairs,
        "seconds": seconds,
    }


def main() -> None:
    chosen = asked((__doc__ or "").splitlines()[0])
    found = walk(chosen, "agreement", scored, SETTINGS, rows=ROWS)
    told: tuple[str, ...] = ()
    if chosen.ours:
        earlier = stored_scores()
        told = (same_pairs(found, earlier, chosen.tables),)
        found = earlier | found
    publish(
        Report(
            name="agreement",
            title="Do attributions move with the output between rows that differ in one feature?",
            tables=(
                comparison(
                    found,
                    chosen.tables,
                    "pearson",
                    "Pearson correlation of the deltas (higher is better)",
                ),
                comparison(
                    found,
                    chosen.tables,
                    "nrmse",
                    "Normalised error of the deltas (lower is better)",
                ),
                beside_the_paper(
                    found,
                    chosen.tables,
                    "pearson",
                    PAPER_PEARSON,
                    "Pearson correlation beside the paper",
                ),
                beside_the_paper(
                    found, chosen.tables, "nrmse", PAPER_NRMSE, "Normalised error beside the paper"
                ),
            ),
            findings=(*findings(found, chosen.tables), *told),
            seeds=chosen.seeds,
            settings={
                "test_rows": ROWS,
                "calibration_rows": SETTINGS[PUBLISHED]["calibration"],
                "gradient_steps": SETTINGS[GRADIENTS]["steps"],
                "SHAP_background": SETTINGS[SHAP]["background"],
                "SHAP_coalitions": SETTINGS[SHAP]["samples"],
                "ridge_one_by_one": f"relative {STRONG}",
                **problems.described(),
            },
            packages=("captum", "shap"),
        ),
        chosen,
    )


def stored_scores() -> Found:
    """Both scores of an earlier run."""
    facts = {"pairs": "pairs"}
    pearson = stored("agreement", "Pearson correlation of", "pearson", facts=facts)
    nrmse = stored("agreement", "Normalised error of", "nrmse", facts=facts)
    return {
        place: [first | second for first, second in zip(scores, nrmse[place], strict=True)]
        for place, scores in pearson.items()
    }


def same_pairs(found: Found, earlier: Found, tables: Sequence[str]) -> str:
    """What was measured again, and whether the pairs of rows are those of the earlier run."""
    other = [
        NAMES[table]
        for table in tables
        if (ours := mean(found, table, PAIRS, "pairs")) is not None
        and (theirs := mean(earlier, table, GRADIENTS, "pairs")) is not None
        and abs(ours - theirs) >= 0.5
    ]
    return (
        f"{told_again(found, tables)} Networks were trained again with the same seeds; pairs of rows, which depend "
        f"on the classes they predict, are as many as then{' but on ' * bool(other)}{', '.join(other)}."
    )


def comparison(found: Found, tables: Sequence[str], score: str, title: str) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            NAMES[table],
            *(spread(found, table, method, score) for method in SETTINGS),
            mean(found, table, GRADIENTS, "pairs"),
        )
        for table in tables
    ]
    return Table(
        title,
        (Column("table"), *(Column(method, ".3f") for method in SETTINGS), Column("pairs", ".0f")),
        tuple(rows),
        "Mean ± standard deviation over seeds, each with its own split and network. 'NObSP, default' sums all terms a "
        f"feature takes part in; 'NObSP, one by one' is Algorithm 1 with a relative ridge of {STRONG}; 'NObSP, removal "
        "effects' is the output less its mean over the values of the feature. Whoever gives the whole output to "
        "every feature would score 1.000, or an error of 0: the score rewards more than the truth.",
    )


def beside_the_paper(
    found: Found,
    tables: Sequence[str],
    score: str,
    paper: Mapping[str, tuple[Quoted, ...]],
    title: str,
) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for table in tables:
        ours = [spread(found, table, method, score) for method in PAPER_METHODS]
        rows.append(
            (
                NAMES[table],
                *(cell for pair in zip(paper[table], ours, strict=True) for cell in pair),
            )
        )
    names = [
        name
        for method in PAPER_METHODS
        for name in (f"paper: {method.removesuffix(' as published')}", method)
    ]
    return Table(title, (Column("table"), *(Column(name, ".3f") for name in names)), tuple(rows))


def findings(found: Found, tables: Sequence[str]) -> tuple[str, ...]:
    def ahead(table: str, method: str) -> bool | None:
        ours, *others = (mean(found, table, name, "pearson") for name in (method, GRADIENTS, SHAP))
        known = [other for other in others if other is not None]
        return None if ours is None or len(known) < 2 else ours > max(known)

    told = [
        f"{method}: a higher correlation than both Integrated Gradients and KernelSHAP on "
        f"{those(tables, lambda t, m=method: ahead(t, m))}."
        for method in OURS
        if any((table, method) in found for table in tables)
    ]
    return (*told, *not_run(found, tables, SETTINGS))


if __name__ == "__main__":
    main()
