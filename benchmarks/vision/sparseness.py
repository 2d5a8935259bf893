"""How concentrated maps are: the paper's sparseness and the Gini index, which Quantus calls sparseness.

Both are of a map's positive part at the size of the image. Neither says whether a map is right.
"""

from __future__ import annotations

import numpy as np

from benchmarks.report import Cell, Column, Report, Table, publish
from benchmarks.vision.asking import COMPARED, PACKAGES, Run, asked, beside_the_paper
from benchmarks.vision.candidates import CHOSEN, PAPER
from benchmarks.vision.quoted import SPARSENESS
from benchmarks.vision.rivals import GRADCAM
from benchmarks.vision.scenes import SEED
from benchmarks.vision.transfer import NETWORKS

NAME = "sparseness"


def mean(run: Run, network: str, method: str, measure: str) -> float:
    return float(np.nanmean(getattr(run.judge.scores(network, "val", method), measure)))


def table(run: Run, title: str, measure: str) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (NETWORKS[network].name, *(mean(run, network, method, measure) for method in COMPARED))
        for network in run.networks
    ]
    return Table(
        title,
        (Column("network, images"), *(Column(method, ".3f") for method in COMPARED)),
        tuple(rows),
    )


def findings(run: Run) -> tuple[str, ...]:
    told = []
    for measure in ("sparseness", "gini"):
        average = {
            m: float(np.mean([mean(run, n, m, measure) for n in run.networks])) for m in COMPARED
        }
        sparsest = max(average, key=average.__getitem__)
        told.append(
            f"By {'the Gini index' if measure == 'gini' else 'the paper’s formula'}, {sparsest} is the most "
            f"concentrated ({average[sparsest]:.3f} on average); GradCAM has {average[GRADCAM]:.3f}, the paper's map "
            f"{average[PAPER]:.3f}, {CHOSEN} {average[CHOSEN]:.3f}."
        )
    return tuple(told)


def main() -> None:
    run = asked((__doc__ or "").splitlines()[0])
    if not run.networks:
        return
    paper = beside_the_paper(
        "Beside the paper",
        SPARSENESS,
        lambda network, method: mean(run, network, method, "sparseness"),
        run.networks,
        "By the paper's formula on both sides. The paper says that Quantus computes it, whose sparseness is the Gini "
        "index; that of the same maps is above.",
        ".3f",
    )
    report = Report(
        name=NAME,
        title="Sparseness of class activation maps",
        tables=(
            table(run, "Sparseness by the paper's formula, 1 − ‖a‖₁ / (√n ‖a‖₂)", "sparseness"),
            table(run, "Gini index, which Quantus calls sparseness", "gini"),
            paper,
        ),
        findings=findings(run),
        seeds=(SEED,),
        settings=run.settings,
        packages=PACKAGES,
    )
    publish(report, run.chosen)


if __name__ == "__main__":
    main()
