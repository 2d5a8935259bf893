"""The grid's scores as tables, and the targets judged by them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from benchmarks.recovery.designs import Case
from benchmarks.recovery.explainers import NETWORK_PEERS, OURS, PEERS
from benchmarks.recovery.run import CALIBRATIONS, FRESH, TRAINING, Outcome
from benchmarks.report import Cell, Column, Spread, Table

Outcomes = Mapping[Case, Outcome]
DEFAULT, SINGLES, EVERY, PUBLISHED = OURS
SHOWN = (DEFAULT, SINGLES, PUBLISHED, *PEERS, "probed at the mean")
ABOUT_CASE = (Column("functions"), Column("n"), Column("correlation", "g"), Column("network"))


def cells(outcomes: Outcomes) -> dict[tuple[Any, ...], list[Outcome]]:
    """Outcomes by place in the grid, one per seed."""
    found: dict[tuple[Any, ...], list[Outcome]] = {}
    for case, outcome in outcomes.items():
        found.setdefault(case.cell, []).append(outcome)
    return found


def mean_score(places: Iterable[Outcome], calibration: str, method: str, score: str = "main") -> float:
    return statistics.fmean(place.methods[calibration][method][score] for place in places)


def recovery_table(outcomes: Outcomes, calibration: str) -> Table:
    """R² of the functions of one feature, a row a cell."""
    rows: list[tuple[Cell, ...]] = []
    for cell, places in cells(outcomes).items():
        means = (mean_score(places, calibration, method) for method in SHOWN)
        own = (statistics.fmean(p.network[name] for p in places) for name in ("r2", "fit"))
        rows.append((*cell, *own, *means))
    return Table(
        f"R² of the functions of one feature, explained on {calibration}",
        (
            *ABOUT_CASE,
            Column("network's R²", ".4f"),
            Column("its fit", ".5f"),
            *(Column(m, ".4f") for m in SHOWN),
        ),
        tuple(rows),
        "Network's R²: on held-out rows against the noise-free truth. Its fit: on its training targets. EBM learns "
        "from the training rows and explains no network. Attributions of KernelSHAP and Integrated Gradients hold "
        "shares of the interactions, and are scored as they are. 'Probed at the mean' is no method: the output "
        "with one feature moved, the others at their mean; it is not counted among the peers.",
    )


def null_table(outcomes: Outcomes) -> Table:
    """What the feature that plays no part is given, a row a method."""
    families = list(dict.fromkeys(case.family for case in outcomes))
    rows: list[tuple[Cell, ...]] = []
    for calibration in CALIBRATIONS:
        for method in (*OURS, *PEERS, "probed at the mean"):
            sizes = [
                mean_score([o for c, o in outcomes.items() if c.family == family], calibration, method, "null")
                for family in families
            ]
            rows.append((method, calibration, *sizes))
    return Table(
        "Mean absolute contribution of the feature that plays no part",
        (Column("method"), Column("explained on"), *(Column(family, ".4f") for family in families)),
        tuple(rows),
    )


def pairs_table(outcomes: Outcomes, calibration: str) -> Table:
    """How well x0·x1 and tanh(2x2)·x3 are found, and what pairs that do not exist are given."""
    methods = (DEFAULT, EVERY, "EBM", "EBM, anchored", "probed at the mean")
    rows: list[tuple[Cell, ...]] = []
    for cell, places in cells(outcomes).items():
        if cell[0] != "interactions":
            continue
        numbers: list[Cell] = []
        for method in methods:
            found = [place.methods[calibration][method] for place in places]
            numbers += [statistics.fmean(f["pairs"][k] for f in found) for k in range(2)]
            numbers.append(max(f["false_pair"] for f in found))
        rows.append((*cell, *numbers))
    heads = [
        Column(f"{method}: {what}", spec)
        for method in methods
        for what, spec in (("x0·x1", ".4f"), ("tanh(2x2)·x3", ".4f"), ("largest false pair", ".2%"))
    ]
    return Table(
        f"R² of the functions of two features, explained on {calibration}",
        (*ABOUT_CASE, *heads),
        tuple(rows),
        "True pairs vanish where either feature is at zero, the mean of its distribution, and so does NObSP's pure "
        "pair at the baseline; both are centred and compared. EBM's own pairs are defined otherwise; anchored, they "
        "are brought to this definition. A false pair is shown by its standard deviation as a share of that of "
        "the output.",
    )


# ---------------------------------------------------------------------- targets


def target_table(outcomes: Outcomes) -> Table:
    """Every target, what was measured, and whether it is met, for either choice of calibration rows."""
    rows = [row for calibration in CALIBRATIONS for row in _targets(outcomes, calibration)]
    return Table(
        "Targets",
        (Column("target"), Column("explained on"), Column("asked"), Column("measured", ".4f"), Column("met")),
        tuple(rows),
        "Ahead: a higher R² of the functions of one feature, seeds averaged. Peers: " + ", ".join(PEERS) + ".",
    )


def _targets(outcomes: Outcomes, calibration: str) -> Iterable[tuple[Cell, ...]]:
    def told(name: str, asked: str, value: Cell, met: bool) -> tuple[Cell, ...]:
        return name, calibration, asked, value, "met" if met else "MISSED"

    def spread(chosen: Callable[[Case], bool], method: str, score: str) -> Spread | None:
        values = [o.methods[calibration][method][score] for c, o in outcomes.items() if chosen(c)]
        return Spread(tuple(values)) if values else None

    def paper(rho: float) -> Callable[[Case], bool]:
        return lambda c: c.family == "paper" and c.correlation == rho and c.activation == "ReLU"

    for name, asked, rho, score, limit in (
        ("paper's functions, ReLU, FRS, NObSP", "≥ 0.996", 0.0, "main", 0.996),
        ("paper's functions, ReLU, null feature, NObSP", "≤ 0.010", 0.0, "null", 0.010),
        ("paper's functions, ReLU, correlation 0.9, NObSP", "≥ 0.98", 0.9, "main", 0.98),
    ):
        value = spread(paper(rho), DEFAULT, score)
        if value is not None:
            yield told(name, asked, value, value.mean <= limit if score == "null" else value.mean >= limit)
    for size in sorted({c.size for c in outcomes if c.family == "interactions" and c.correlation == 0.5}):
        worst = min(
            min(o.methods[calibration][DEFAULT]["pairs"])
            for c, o in outcomes.items()
            if c.family == "interactions" and c.correlation == 0.5 and c.size == size
        )
        yield told(f"pairs, correlation 0.5, n = {size}, worst of all, {DEFAULT}", "≥ 0.98", worst, worst >= 0.98)
    for method in (DEFAULT, EVERY):
        sizes = [o.methods[calibration][method]["false_pair"] for o in outcomes.values()]
        small = sum(size <= 0.01 for size in sizes)
        yield told(
            f"pairs that do not exist, {method}: cases within the limit",
            "≤ 1% of output, all",
            f"{small} of {len(sizes)}, largest {max(sizes):.1%}",
            small == len(sizes),
        )
    for method in (DEFAULT, SINGLES):
        for label, peers in (("every peer", PEERS), ("every peer that explains the network", NETWORK_PEERS)):
            ahead, gap, where = standing(outcomes, calibration, method, peers)
            count = len(cells(outcomes))
            yield told(f"{method} ahead of {label}, cells", "≥ 8 of 10", f"{ahead} of {count}", ahead >= 0.8 * count)
            yield told(
                f"{method} below the best: {label}, largest gap",
                "≤ 0.02",
                f"{max(gap, 0.0):.4f} ({where})",
                gap <= 0.02,
            )


def standing(outcomes: Outcomes, calibration: str, method: str, peers: tuple[str, ...]) -> tuple[int, float, str]:
    """Cells in which a method is ahead of all peers, the largest gap to the best of them, and where that is."""
    gaps = {}
    for cell, places in cells(outcomes).items():
        best = max(mean_score(places, calibration, peer) for peer in peers)
        gaps[cell] = best - mean_score(places, calibration, method)
    worst = max(gaps, key=lambda cell: gaps[cell])
    return sum(gap < 0 for gap in gaps.values()), gaps[worst], " ".join(map(str, worst))


def findings(outcomes: Outcomes) -> tuple[str, ...]:
    """What the tables say, a sentence each, from their numbers."""
    targets = target_table(outcomes)
    told = [
        f"On {calibration}, {sum(r[4] == 'met' for r in rows)} of {len(rows)} targets are met; missed: "
        + ("; ".join(str(r[0]) for r in rows if r[4] != "met") or "none")
        + "."
        for calibration in CALIBRATIONS
        if (rows := [r for r in targets.rows if r[1] == calibration])
    ]
    additive = [o for c, o in outcomes.items() if c.family != "interactions"]
    if additive:
        numbers = {
            (calibration, method): mean_score(additive, calibration, method)
            for calibration in CALIBRATIONS
            for method in (DEFAULT, "PDP", "ALE")
        }
        told.append(
            "Which rows NObSP is calibrated on decides much of its lead where functions simply add up: R² "
            f"{numbers[TRAINING, DEFAULT]:.4f} on the training rows, {numbers[FRESH, DEFAULT]:.4f} on fresh rows "
            f"(PDP {numbers[TRAINING, 'PDP']:.4f} and {numbers[FRESH, 'PDP']:.4f}, ALE "
            f"{numbers[TRAINING, 'ALE']:.4f} and {numbers[FRESH, 'ALE']:.4f}); the networks' own R² on held-out rows "
            f"is {statistics.fmean(o.network['r2'] for o in additive):.4f}, on their training targets "
            f"{statistics.fmean(o.network['fit'] for o in additive):.5f}. On rows that a network has all but "
            "memorised its outputs are the targets, and calibrating there is close to fitting the targets "
            "themselves: a score above the network's own is not knowledge of the network."
        )
    return tuple(told)
