"""Do the regions that maps show carry the class? Region Deletion AUC beside gradient-based maps.

The paper's protocol: regions of 32, 16 or 8 pixels for images of at least 224, 128 or 64 (4 for CIFAR-10 at 32, which
is smaller than any the paper names) are ranked by the map and set to zero in ten steps from none to all, and the drop
of the predicted class's probability, as a share of what it was, is integrated. It differs from the paper's in one
thing: there, calibration and evaluation images share a split; here, networks are calibrated on training images and
judged on validation images. Among all maps that the decomposition offers one was chosen on training images.
"""

from __future__ import annotations

import numpy as np

from benchmarks.report import Cell, Column, Report, Table, publish
from benchmarks.significance import bootstrap_interval
from benchmarks.vision.asking import COMPARED, PACKAGES, Run, asked, beside_the_paper, difference
from benchmarks.vision.candidates import ACCOUNT, CANDIDATES, CHOSEN, PAPER, PROBABILITY
from benchmarks.vision.judging import Array, Judge
from benchmarks.vision.quoted import DELETION
from benchmarks.vision.rivals import GRADCAM
from benchmarks.vision.scenes import SEED
from benchmarks.vision.timing import FORWARD
from benchmarks.vision.transfer import CHOOSING, NETWORKS, PRETRAINED

NAME = "deletion"


def evaluation(run: Run) -> tuple[Table, Table]:
    """Means by network and method, and how far each is from GradCAM's."""
    means: list[tuple[Cell, ...]] = []
    gaps: list[tuple[Cell, ...]] = []
    for network in run.networks:
        found = {method: run.judge.scores(network, "val", method).auc for method in COMPARED}
        means.append((NETWORKS[network].name, *(float(auc.mean()) for auc in found.values())))
        others = [
            difference(auc, found[GRADCAM]) for method, auc in found.items() if method != GRADCAM
        ]
        gaps.append((NETWORKS[network].name, *others))
    first = Column("network, images")
    count = run.judge.effort.val
    return (
        Table(
            f"Region Deletion AUC, {count} validation images a network",
            (first, *(Column(method, ".4f") for method in COMPARED)),
            tuple(means),
            f"Higher is better. {CHOSEN!r} was chosen on training images.",
        ),
        Table(
            "The same less GradCAM's, with 95% intervals",
            (first, *(Column(method) for method in COMPARED if method != GRADCAM)),
            tuple(gaps),
            "Paired bootstrap over images, 10,000 resamples. An interval above zero is a lead over GradCAM.",
        ),
    )


def selection(judge: Judge, networks: tuple[str, ...]) -> Table:
    """All maps tried, on training images."""
    tried: dict[str, list[Array]] = {name: [] for name in (GRADCAM, *CANDIDATES)}
    for network in networks:  # one after the other, since only one is in memory
        for name, found in tried.items():
            found.append(judge.scores(network, "train", name).auc)
    rows: list[tuple[Cell, ...]] = []
    for name, found in tried.items():
        gaps = [one - other for one, other in zip(found, tried[GRADCAM], strict=True)]
        half = [bootstrap_interval(gap, seed=SEED) for gap in gaps]
        cells = [f"{one.difference:+.4f} ± {(one.high - one.low) / 2:.4f}" for one in half]
        rows.append((name, float(np.mean([gap.mean() for gap in gaps])), *cells))
    rows.sort(key=lambda row: -row[1])  # type: ignore[operator]
    return Table(
        f"All maps tried, {judge.effort.train} training images a network: AUC less GradCAM's",
        (
            Column("map"),
            Column("mean", "+.4f"),
            *(Column(NETWORKS[network].name) for network in networks),
        ),
        tuple(rows),
        "Half widths of 95% paired bootstrap intervals. What each map is, is said in benchmarks/vision/candidates.py.",
    )


def times(run: Run) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for network in run.networks:
        if network in PRETRAINED:  # the others are MobileNetV2 again
            alone = run.judge.times_forward(network, FORWARD)[0]
            ratios = [run.judge.times_forward(network, method)[1] for method in COMPARED]
            rows.append((NETWORKS[network].name, alone, *ratios))
    return Table(
        "Processor time of a map with its forward pass, as a multiple of the forward pass alone",
        (
            Column("network, images"),
            Column("forward pass, ms", ".1f"),
            *(Column(name, ".2f") for name in COMPARED),
        ),
        tuple(rows),
        "One image of a batch of 8; the two run in turn, medians. Calibration is not counted.",
    )


def findings(run: Run, tried: Table) -> list[str]:
    told = []
    place = [row[0] for row in tried.rows if row[0] != GRADCAM].index(CHOSEN) + 1
    told.append(
        f"Of {len(tried.rows) - 1} maps tried on training images, {CHOSEN!r} is number {place} by mean difference "
        f"from GradCAM over the networks it was chosen on."
    )
    for method in (CHOSEN, PROBABILITY, ACCOUNT, PAPER):
        gaps = {}
        for network in run.networks:
            one, other = (run.judge.scores(network, "val", name).auc for name in (method, GRADCAM))
            gaps[network] = bootstrap_interval(one - other, seed=SEED)
        ahead = [NETWORKS[network].name for network, gap in gaps.items() if gap.low > 0]
        behind = [NETWORKS[network].name for network, gap in gaps.items() if gap.high < 0]
        mean = float(np.mean([gap.difference for gap in gaps.values()]))
        told.append(
            f"{method[0].upper()}{method[1:]} against GradCAM on validation images: {mean:+.4f} on average over "
            f"{len(gaps)} networks; ahead beyond chance on {', '.join(ahead) or 'none'}; behind on "
            f"{', '.join(behind) or 'none'}."
        )
    return told


def main() -> None:
    run = asked((__doc__ or "").splitlines()[0])
    if not run.networks:
        return
    tried = selection(run.judge, tuple(name for name in CHOOSING if name in run.networks))
    tables = evaluation(run)
    paper = beside_the_paper(
        "Beside the paper",
        DELETION,
        lambda network, method: float(run.judge.scores(network, "val", method).auc.mean()),
        run.networks,
        "Each pair of columns: the paper's figure, ours. Weights, and for most rows networks, are not the paper's, so "
        "compare methods within a row.",
        ".3f",
    )
    report = Report(
        name=NAME,
        title="Region Deletion AUC of class activation maps",
        tables=(*tables, paper, times(run), tried),
        findings=tuple(findings(run, tried)),
        seeds=(SEED,),
        settings={
            **run.settings,
            "training images to choose on": run.judge.effort.train,
            "steps": 10,
        },
        packages=PACKAGES,
    )
    publish(report, run.chosen)


if __name__ == "__main__":
    main()
