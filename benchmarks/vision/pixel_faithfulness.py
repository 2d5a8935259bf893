"""Faithfulness correlation at the level of pixels, on which class activation maps score near zero, all of them.

As Quantus computes it (100 random subsets of 224 values an image, set to zero after normalisation): the correlation of
the map's sum over a subset with the drop of the predicted class's probability. Maps of 7 by 7 locations say nothing of
single pixels; the table is here because the paper has it.
"""

from __future__ import annotations

import numpy as np

from benchmarks.report import Cell, Column, Report, Table, publish
from benchmarks.significance import bootstrap_interval
from benchmarks.vision.asking import COMPARED, PACKAGES, asked, beside_the_paper
from benchmarks.vision.quoted import PIXELS
from benchmarks.vision.scenes import SEED
from benchmarks.vision.transfer import NETWORKS

NAME = "pixel-faithfulness"


def main() -> None:
    run = asked((__doc__ or "").splitlines()[0])
    if not run.networks:
        return
    rows: list[tuple[Cell, ...]] = []
    apart, first = 0, set()
    for network in run.networks:
        cells, means = [], {}
        for method in COMPARED:
            found = run.judge.faithfulness(network, method)
            means[method] = float(np.nanmean(found))
            known = bootstrap_interval(found[np.isfinite(found)], seed=SEED)
            apart += known.low > 0 or known.high < 0
            cells.append(f"{known.difference:+.3f} [{known.low:+.3f}, {known.high:+.3f}]")
        first.add(max(means, key=means.__getitem__))
        rows.append((NETWORKS[network].name, *cells))
    table = Table(
        f"Mean correlation over {run.judge.effort.pixels} validation images a network, with 95% intervals",
        (Column("network, images"), *(Column(method) for method in COMPARED)),
        tuple(rows),
        "Images where the map or the probability does not change at all are left out.",
    )
    paper = beside_the_paper(
        "Beside the paper",
        PIXELS,
        lambda network, method: float(np.nanmean(run.judge.faithfulness(network, method))),
        run.networks,
        "The paper has 20 to 50 images a row.",
        "+.3f",
    )
    report = Report(
        name=NAME,
        title="Faithfulness correlation of class activation maps at the level of pixels",
        tables=(table, paper),
        findings=(
            f"{apart} of {len(rows) * len(COMPARED)} intervals exclude zero. Methods with the highest mean on some "
            f"network: {', '.join(sorted(first))}.",
        ),
        seeds=(SEED,),
        settings={
            **run.settings,
            "images": run.judge.effort.pixels,
            "subsets": run.judge.effort.runs,
            "values": 224,
        },
        packages=PACKAGES,
    )
    publish(report, run.chosen)


if __name__ == "__main__":
    main()
