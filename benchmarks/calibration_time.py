"""Seconds to calibrate class activation maps, by width: ours, Algorithm 1, and the paper's figures.

The widths are those of the paper's networks. Rows and outputs are synthetic, and as many as the paper's ranges allow:
2,000 images, 200 classes. Algorithm 1 is timed channel by channel, as printed and with its Gram matrix shared, on a few
channels and scaled to all of them, as every channel costs the same; the channel form, which finds the same
coefficients, is timed whole. The forward passes that give the pooled channels are in neither. The paper's times
were taken on a graphics card in mixed precision, ours on one thread of a processor in double precision: only the
last columns compare like with like.
"""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.kept import FOLDER, Kept, fingerprint, rooms
from benchmarks.report import Cell, Column, Report, Table, options, progress, publish
from benchmarks.speed import channels

# Channels in all, and how many of them Algorithm 1 is timed on.
SIZES = {440: 8, 512: 8, 1280: 5}
QUICK_SIZES = {440: 3, 512: 3}
# Table tab:calibration_time of the paper: network, median and largest time.
PAPER = {
    440: (("RegNetY-400MF", "< 1 s", "< 1 s"),),
    512: (("ResNet-18", "6.7 s", "~30 s"),),
    1280: (("EfficientNet-B0", "14 min", "45 min"), ("MobileNetV2", "25 min", "2.7 h")),
}


@dataclass(frozen=True)
class Times:
    """Seconds for one width.

    Attributes:
        printed: Algorithm 1 as printed, all channels.
        shared: The same with the Gram matrix taken out of the loop.
        form: All channels from one factorisation.
        difference: Largest between the coefficients of the first and the last, as a share of the largest.
    """

    printed: float
    shared: float
    form: float
    difference: float


def measured(width: int, timed_on: int) -> dict[str, Any]:
    representation, outputs = channels.pooled_rows(width)
    picks = [round(i * (width - 1) / (timed_on - 1)) for i in range(timed_on)]
    printed, _, shared = channels.channel_by_channel(representation, outputs, picks)
    found = channels.channel_form(representation, outputs)[picks]
    expected = torch.stack([channels.as_printed(representation, outputs, k) for k in picks])
    times = Times(
        printed=printed.medians[0],
        shared=shared.medians[0],
        form=statistics.median(printed.second),
        difference=float((found - expected).abs().max() / expected.abs().max()),
    )
    return dataclasses.asdict(times)


def table(found: dict[int, Times], timed_on: dict[int, int]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for width, times in found.items():
        for network, median, largest in PAPER[width]:
            rows.append(
                (
                    network,
                    str(width),
                    median,
                    largest,
                    times.printed,
                    times.shared,
                    times.form,
                    times.printed / times.form,
                    times.shared / times.form,
                    times.difference,
                )
            )
    told = ", ".join(f"{count} of {width}" for width, count in timed_on.items())
    return Table(
        f"Seconds to calibrate: {channels.ROWS} rows, {channels.OUTPUTS} outputs",
        (
            Column("network of the paper"),
            Column("width"),
            Column("paper: median"),
            Column("paper: max"),
            Column("Algorithm 1", ".3g"),
            Column("Gram shared", ".3g"),
            Column("ours", ".3g"),
            Column("Algorithm 1 / ours", ",.0f"),
            Column("Gram shared / ours", ",.0f"),
            Column("difference", ".0e"),
        ),
        tuple(rows),
        f"Both forms of Algorithm 1 are timed on some channels ({told}) and scaled to all. 'difference' is the largest "
        "between the coefficients, as a share of the largest coefficient. The paper does not say how many images and "
        "classes each of its times is for.",
    )


def findings(found: dict[int, Times]) -> tuple[str, ...]:
    width, times = max(found.items())
    return (
        f"At {width} channels all coefficients take {times.form:.2g} s, from raw rows, on one thread; Algorithm 1 "
        f"takes {times.printed:,.0f} s channel by channel as printed and {times.shared:,.0f} s with its Gram matrix "
        f"shared. The paper reports {' and '.join(median for _, median, _ in PAPER[width])} (median) on a graphics "
        "card.",
        f"The coefficients are the same: they differ by {max(t.difference for t in found.values()):.0e} at most.",
    )


def main() -> None:
    chosen = options((__doc__ or "").splitlines()[0], threads=True).parse_args()
    torch.set_num_threads(chosen.threads or 1)
    sizes = QUICK_SIZES if chosen.quick else SIZES
    kept = Kept(None if chosen.quick else FOLDER / "calibration-time.jsonl")
    depends = channels, measured, rooms("projection"), torch.get_num_threads()
    found: dict[int, Times] = {}
    for width, count in sizes.items():
        progress(f"{width} channels, Algorithm 1 on {count} of them")
        found[width] = Times(
            **kept.cell(str(width), fingerprint(*depends, count), partial(measured, width, count))
        )
    report = Report(
        name="calibration-time",
        title="Seconds to calibrate class activation maps, by width",
        tables=(table(found, sizes),),
        findings=findings(found),
        seeds=(channels.SEED,),
        settings={
            "rows": channels.ROWS,
            "outputs": channels.OUTPUTS,
            "ridge": f"absolute {channels.RIDGE}",
            "precision": "float64",
        },
    )
    publish(report, chosen)


if __name__ == "__main__":
    main()
