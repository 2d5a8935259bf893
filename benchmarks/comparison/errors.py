"""Gaps of networks that were trained on known functions: error of the parts beside SHAP's, and where it comes from."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks import kept, networks
from benchmarks.comparison import gaps
from benchmarks.report import Cell, Column, Report, Table, options, progress, publish

# Networks of every cell, in full and in a hurry. Errors of interactions scatter with the means of the rows drawn.
FULL = {"additive": 4, "interactions": 8}
QUICK = {"additive": 1, "interactions": 1}

HOW = (
    "Root mean square, over features, against the functions on the same rows, so that which rows were drawn is "
    "nobody's error; a pair is shared equally, as Shapley values do. SHAP: exact interventional values over "
    f"{gaps.BACKGROUND} background rows."
)


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="compute cells whose name begins so, for a later run")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    sizes = QUICK if chosen.quick else FULL
    errors = measure(sizes, keeping=not chosen.quick, only=chosen.only)
    if chosen.only is None:
        publish(report(errors, sizes=sizes), chosen)


def measure(
    sizes: dict[str, int], *, keeping: bool, only: str | None
) -> dict[tuple[str, float], dict[str, Any]]:
    """Errors by design and correlation, a network at a time; `compare` shows them too and asks for the same cells.

    Args:
        sizes: How many networks of every design.
        keeping: Whether networks are kept from one run to the next.
        only: How the names of the cells begin that are computed; all of them when None.
    """
    results = kept.Kept(kept.FOLDER / "compare-errors.jsonl" if keeping else None)
    print_ = kept.fingerprint(
        gaps, networks, kept.rooms("projection", "network", "tabular", "comparison")
    )
    errors = {}
    for design in gaps.DESIGNS:
        for correlation in gaps.CORRELATIONS:
            cells = []
            for number in range(sizes[design]):
                name = f"errors {design} {correlation} {number}"
                if only is not None and not name.startswith(only):
                    continue
                progress(name)
                compute = partial(gaps.measure_network, design, correlation, number)
                cells.append(results.cell(name, print_, compute))
            if cells:
                errors[design, correlation] = gaps.gather_errors(cells)
    return errors


def report(errors: dict[tuple[str, float], dict[str, Any]], *, sizes: dict[str, int]) -> Report:
    beside_shap: list[tuple[Cell, ...]] = []
    sources: list[tuple[Cell, ...]] = []
    for (design, correlation), error in errors.items():
        is_half = error["nobsp"] <= error["shap"] / 2
        beside_shap.append(
            (
                design,
                correlation,
                sizes[design],
                error["nobsp"],
                error["shap"],
                error["nobsp"] / error["shap"],
                "met" if is_half else "MISSED",
            )
        )
        sources.append(
            (
                design,
                correlation,
                error["known"],
                error["shap_known"],
                error["network"],
                error["named"],
                error["left_out"],
                error["unlearnt"],
            )
        )
    return Report(
        name="compare-errors",
        title="Parts of a gap: error beside SHAP's, and where it comes from",
        tables=(
            Table(
                f"Networks trained on known functions, two groups of {gaps.GROUP} rows with shifted means",
                (
                    Column("design"), Column("correlation", ".1f"), Column("networks"), Column("error", ".4f"),
                    Column("of SHAP", ".4f"), Column("ratio", ".2f"), Column("≤ half"),
                ),
                tuple(beside_shap),
                HOW,
            ),
            Table(
                "Where it comes from",
                (
                    Column("design"), Column("correlation", ".1f"),
                    Column("known functions", ".4f"), Column("SHAP, known functions", ".4f"),
                    Column("of the network", ".4f"), Column("pairs named", ".4f"),
                    Column("a pair left out"), Column("unlearnt", ".4f"),
                ),
                tuple(sources),
                "Known functions: the same error where the functions themselves are the model. Of the network: that of "
                "functions of the true form, fitted to the network's answers to "
                f"{gaps.MANY:,} rows of both groups, which is what it has learnt. Pairs named: ours with the true "
                "interactions named, beside the number of networks of which one is left out otherwise. Unlearnt: share "
                "of the functions' variance that the networks miss.",
            ),
        ),
        findings=(
            "Shapley values of a sum of functions are exact, and our error there is next to none. Where a network has "
            "learnt such a sum wherever it is asked, as without much correlation, both methods tell what it has "
            "learnt: both have the network's error, and neither can have half of the other's.",
            "With interactions both methods depend on the means of the rows that they average over, "
            f"{gaps.CALIBRATED:,} of ours and {gaps.BACKGROUND} of SHAP's.",
        ),
        seeds=(0,),
        settings=dict(sizes),
    )  # fmt: skip


if __name__ == "__main__":
    main()
