"""Are differences in Region Deletion AUC more than chance? Bootstrap intervals and corrected sign-flip tests.

For each map of ours, paired with GradCAM on the same images: the mean difference, its 95% bootstrap interval (10,000
resamples), the p-value of a sign-flip test (10,000 flips), and the same after Holm's correction over the networks. The
last row of each table takes all images of all networks together, as the paper does; its correction is over the maps.
"""

from __future__ import annotations

import numpy as np

from benchmarks.report import Cell, Column, Report, Table, publish
from benchmarks.significance import bootstrap_interval, holm, sign_flip_p
from benchmarks.vision.asking import PACKAGES, Run, asked
from benchmarks.vision.candidates import ACCOUNT, CHOSEN, PAPER, PROBABILITY
from benchmarks.vision.judging import Array
from benchmarks.vision.quoted import OVERALL
from benchmarks.vision.rivals import GRADCAM
from benchmarks.vision.scenes import SEED
from benchmarks.vision.transfer import NETWORKS

NAME = "statistics"
OURS = (CHOSEN, PROBABILITY, ACCOUNT, PAPER)


def gaps(run: Run, method: str) -> dict[str, Array]:
    """Differences from GradCAM, image by image."""
    found = {}
    for network in run.networks:
        one, other = (run.judge.scores(network, "val", name).auc for name in (method, GRADCAM))
        found[NETWORKS[network].name] = one - other
    return found


def judged(differences: dict[str, Array]) -> dict[str, tuple[Cell, ...]]:
    """Images, difference, interval, p and corrected p of each."""
    p = {name: sign_flip_p(one, seed=SEED) for name, one in differences.items()}
    corrected = holm(p)
    rows: dict[str, tuple[Cell, ...]] = {}
    for name, one in differences.items():
        found = bootstrap_interval(one, seed=SEED)
        interval = f"[{found.low:+.4f}, {found.high:+.4f}]"
        rows[name] = (len(one), found.difference, interval, p[name], corrected[name])
    return rows


def main() -> None:
    run = asked((__doc__ or "").splitlines()[0])
    if not run.networks:
        return
    columns = (
        Column("images of"),
        Column("images", "d"),
        Column("less GradCAM's", "+.4f"),
        Column("95% interval"),
        Column("p", ".4f"),
        Column("p, Holm", ".4f"),
    )
    every = {method: gaps(run, method) for method in OURS}
    together = judged(
        {method: np.concatenate(list(found.values())) for method, found in every.items()}
    )
    tables = []
    for method, found in every.items():
        rows = [(name, *cells) for name, cells in judged(found).items()]
        rows.append(("all of them", *together[method]))
        note = ""
        if method == PAPER:
            note = (
                f"The paper, over 24 networks and 4,784 images: {OVERALL[0]:+.3f}, 95% interval [{OVERALL[1]:+.3f}, "
                f"{OVERALL[2]:+.3f}], corrected p = {OVERALL[3]}."
            )
        tables.append(
            Table(f"{method[0].upper()}{method[1:]} against GradCAM", columns, tuple(rows), note)
        )
    findings = [
        f"{method[0].upper()}{method[1:]} against GradCAM over all {cells[0]} images: {cells[1]:+.4f} {cells[2]}, "
        f"p = {cells[4]:.4f} after Holm's correction."
        for method, cells in together.items()
    ]
    report = Report(
        name=NAME,
        title="Region Deletion AUC: intervals and tests",
        tables=tuple(tables),
        findings=tuple(findings),
        seeds=(SEED,),
        settings={**run.settings, "resamples": 10_000, "flips": 10_000},
        packages=PACKAGES,
    )
    publish(report, run.chosen)


if __name__ == "__main__":
    main()
