"""What all tables about maps share: their options, the networks that can run, and differences in words."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from benchmarks.report import Cell, Column, Table, options, progress
from benchmarks.significance import bootstrap_interval
from benchmarks.vision.candidates import ACCOUNT, CHOSEN, PAPER, PROBABILITY
from benchmarks.vision.judging import Array, Judge
from benchmarks.vision.quoted import METHODS, Quotation
from benchmarks.vision.rivals import RIVALS
from benchmarks.vision.scenes import QUICK, SEED, Effort
from benchmarks.vision.transfer import NETWORKS, PRETRAINED

COMPARED = (*RIVALS, PAPER, ACCOUNT, PROBABILITY, CHOSEN)
PACKAGES = ("grad-cam", "torchvision", "scikit-learn")


@dataclass(frozen=True)
class Run:
    """A run of a table.

    Attributes:
        judge: Judges maps.
        networks: Those whose weights and images are there.
        absent: Why the others are not.
        chosen: The options given.
    """

    judge: Judge
    networks: tuple[str, ...]
    absent: dict[str, str]
    chosen: argparse.Namespace

    @property
    def settings(self) -> dict[str, object]:
        effort = self.judge.effort
        return {
            "validation images": effort.val,
            "calibration images": f"at most {effort.calibration}, all from the training split",
            "baseline": "zero after normalisation",
        }


def asked(description: str) -> Run:
    """Reads the options and finds out what can run."""
    parser = options(description, threads=True)
    parser.add_argument(
        "--only", choices=list(NETWORKS), nargs="+", help="networks to run; all by default"
    )
    chosen = parser.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    # Heads are trained on the activations of whole training splits, which takes longer than a quick run may.
    networks = tuple(chosen.only or (PRETRAINED if chosen.quick else NETWORKS))
    absent = (
        {} if os.environ.get("NOBSP_DATA") else dict.fromkeys(networks, "its weights are not there")
    )
    for name, why in absent.items():
        progress(f"{name} is not run: {why}; set NOBSP_DATA to a folder that has them.")
    judge = Judge(QUICK, folder=None) if chosen.quick else Judge(Effort())
    return Run(judge, tuple(name for name in networks if name not in absent), absent, chosen)


def difference(one: Array, other: Array) -> str:
    """Mean difference with its 95% interval."""
    found = bootstrap_interval(one - other, seed=SEED)
    return f"{found.difference:+.4f} [{found.low:+.4f}, {found.high:+.4f}]"


def beside_the_paper(
    title: str,
    quoted: Quotation,
    ours: Callable[[str, str], float],
    networks: Sequence[str],
    note: str,
    spec: str,
) -> Table:
    """Every row of a table of the paper, our figures for the same methods where a network comes near it."""
    near = {NETWORKS[name].quoted: name for name in networks if NETWORKS[name].quoted}
    rows: list[tuple[Cell, ...]] = []
    for row, figures in quoted.items():
        name = near.get(row)
        found: list[Cell] = []
        for method in METHODS:
            found += [figures[method], None if name is None else ours(name, method)]
        known = row in {network.quoted for network in NETWORKS.values()}
        absent = "not run this time" if known else "not run: there are no weights of it"
        rows.append((", ".join(row), *found, absent if name is None else NETWORKS[name].remark))
    columns = [Column(text, spec) for method in METHODS for text in (f"{method}, paper", "ours")]
    return Table(
        title, (Column("network, images"), *columns, Column("our network")), tuple(rows), note
    )
