"""The grid's scores as tables, and the targets judged by them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.recovery.designs import Case
from benchmarks.recovery.explainers import ALIKE, OURS, PEERS
from benchmarks.recovery.run import Outcome
from benchmarks.report import Cell, Column, Spread, Table, written

Outcomes = Mapping[Case, Outcome]
DEFAULT, PUBLISHED = OURS
SHOWN = (DEFAULT, PUBLISHED, *PEERS)
PAIRED = (DEFAULT, "distilled EBM", "distilled EBM, purified", "bins")
ABOUT_CASE = (Column("functions"), Column("n"), Column("correlation", "g"), Column("network"))
LEVEL = 0.002  # within this of the best is level with it
WHOLE = 58
SMALL = 0.01


def cells(outcomes: Outcomes) -> dict[tuple[Any, ...], list[Outcome]]:
    """Outcomes by place in the grid, one per seed."""
    found: dict[tuple[Any, ...], list[Outcome]] = {}
    for case, outcome in outcomes.items():
        found.setdefault(case.cell, []).append(outcome)
    return found


def mean_score(places: Iterable[Outcome], method: str, score: str = "main") -> float | None:
    """Over seeds; None where a method was not run."""
    scores = [place.methods[method][score] for place in places if method in place.methods]
    return statistics.fmean(scores) if scores else None


def best_peer(places: Sequence[Outcome], peers: Sequence[str]) -> tuple[float, str]:
    """The highest score of those that were run, and whose it is."""
    return max((score, peer) for peer in peers if (score := mean_score(places, peer)) is not None)


def own_score(places: Iterable[Outcome]) -> float:
    return statistics.fmean(place.methods[DEFAULT]["main"] for place in places)


def recovery_table(outcomes: Outcomes) -> Table:
    """R² of the functions of one feature, a row a cell."""
    rows: list[tuple[Cell, ...]] = []
    for cell, places in cells(outcomes).items():
        means = [mean_score(places, method) for method in SHOWN]
        lead = own_score(places) - best_peer(places, PEERS)[0]
        own = (statistics.fmean(p.network[name] for p in places) for name in ("r2", "fit"))
        rows.append((*cell, *own, *means, lead))
    return Table(
        "R² of the functions of one feature",
        (
            *ABOUT_CASE,
            Column("network's R²", ".4f"),
            Column("its fit", ".5f"),
            *(Column(m, ".4f") for m in SHOWN),
            Column("lead", "+.4f"),
        ),
        tuple(rows),
        "Network's R²: on held-out rows against the noise-free truth. Its fit: on its training targets. Lead: of NObSP "
        "over the best of the others. The truth are average effects over the product of the marginals, in which the "
        "true pairs hold nothing of one feature. ALE and RHALE take in a part of interactions when features are "
        "correlated, KernelSHAP half of each: they are judged by that truth too, and the better counts. An EBM is "
        "distilled from the network's outputs with the two pairs it finds strongest, as it comes and with its pairs "
        "purified over the product of the marginals. Bins are least squares on bins, told the true pairs.",
    )


def null_table(outcomes: Outcomes) -> Table:
    """What the feature that plays no part is given, a row a method."""
    families = list(dict.fromkeys(case.family for case in outcomes))
    rows: list[tuple[Cell, ...]] = []
    for method in SHOWN:
        sizes = [
            [
                o.methods[method]["null"]
                for c, o in outcomes.items()
                if c.family == family and method in o.methods
            ]
            for family in families
        ]
        every = [size for some in sizes for size in some]
        if not every:
            continue
        means = [statistics.fmean(some) if some else None for some in sizes]
        rows.append(
            (method, *means, max(every), f"{sum(s > SMALL for s in every)} of {len(every)}")
        )
    return Table(
        "The feature that plays no part: standard deviation as a share of the output's",
        (
            Column("method"),
            *(Column(family, ".2%") for family in families),
            Column("largest", ".2%"),
            Column("networks above 1%"),
        ),
        tuple(rows),
    )


def nothing_table(outcomes: Outcomes) -> Table:
    """What plays no part: what the network itself learnt of it, and what NObSP says."""
    rows: list[tuple[Cell, ...]] = []
    for name, score in (
        ("feature that plays no part", "null"),
        ("largest false pair", "false_pair"),
    ):
        sizes = [(o.network[score], o.methods[DEFAULT][score]) for o in outcomes.values()]
        large = [own > SMALL for own, _ in sizes], [said > SMALL for _, said in sizes]
        invented = [said for own, said in sizes if said > SMALL and own <= SMALL]
        largest = [max(some) for some in zip(*sizes, strict=True)]
        rows.append(
            (
                name,
                len(sizes),
                sum(large[0]),
                sum(large[1]),
                len(invented),
                *largest,
                max(invented, default=0),
            )
        )
    return Table(
        "What plays no part: the network itself, and NObSP",
        (
            Column("what"),
            Column("networks"),
            Column("network above 1%"),
            Column("NObSP above 1%"),
            Column("NObSP alone above 1%"),
            *(Column(f"largest, {who}", ".2%") for who in ("network", "NObSP", "NObSP alone")),
        ),
        tuple(rows),
        "Spread on the held-out rows as a share of the output's. The network itself: average effects by brute force "
        "over many rows, pairs purified, nothing fitted; what it has learnt of nothing, no account of it should hide.",
    )


def pairs_table(outcomes: Outcomes) -> Table:
    """How well x0·x1 and tanh(2x2)·x3 are found, and what pairs that do not exist are given."""
    rows: list[tuple[Cell, ...]] = []
    for cell, places in cells(outcomes).items():
        if cell[0] != "interactions":
            continue
        numbers: list[Cell] = []
        for method in PAIRED:
            found = [place.methods[method] for place in places if method in place.methods]
            numbers += [
                statistics.fmean(f["pairs"][k] for f in found) if found else None for k in range(2)
            ]
        numbers.append(max(place.methods[DEFAULT]["false_pair"] for place in places))
        rows.append((*cell, *numbers))
    heads = [
        Column(f"{method}: {what}", ".4f")
        for method in PAIRED
        for what in ("x0·x1", "tanh(2x2)·x3")
    ]
    return Table(
        "R² of the functions of two features",
        (*ABOUT_CASE, *heads, Column("NObSP: largest false pair", ".2%")),
        tuple(rows),
        "Truth and estimates are centred. A false pair is shown by its standard deviation as a share of the output's.",
    )


# ---------------------------------------------------------------------- targets


def target_table(outcomes: Outcomes) -> Table:
    """Every target, what was measured, and whether it is met."""
    return Table(
        "Targets",
        (Column("target"), Column("asked"), Column("measured", ".4f"), Column("met")),
        tuple(_targets(outcomes)),
        f"By the R² of the functions of one feature, seeds averaged. Level: within {LEVEL} of the best peer. Peers: "
        + ", ".join(PEERS)
        + ".",
    )


def _targets(outcomes: Outcomes) -> Iterable[tuple[Cell, ...]]:
    def told(name: str, asked: str, value: Cell, met: bool) -> tuple[Cell, ...]:
        return name, asked, value, "met" if met else "MISSED"

    gaps = standing(outcomes, PEERS)
    count, ahead, level = (
        len(gaps),
        sum(g < 0 for g in gaps.values()),
        sum(g <= LEVEL for g in gaps.values()),
    )
    worst = max(gaps, key=lambda cell: gaps[cell])
    share = 45 / WHOLE
    yield told(
        "ahead of or level with every peer, cells",
        "≥ 45 of 58",
        f"{level} of {count}",
        level >= share * count,
    )
    yield told(
        "strictly ahead of every peer, cells",
        "≥ 45 of 58",
        f"{ahead} of {count}",
        ahead >= share * count,
    )
    where = " ".join(map(str, worst))
    yield told(
        "largest gap to the best peer",
        "≤ 0.01",
        f"{max(gaps[worst], 0.0):.4f} ({where})",
        gaps[worst] <= 0.01,
    )
    gaps = standing(outcomes, ALIKE)
    level = sum(g <= LEVEL for g in gaps.values())
    worst = max(gaps, key=lambda cell: gaps[cell])
    name = "all judged by average effects: ahead or level, cells"
    yield told(name, "≥ 45 of 58", f"{level} of {count}", level >= share * count)
    where = " ".join(map(str, worst))
    yield told(
        "the same: largest gap",
        "≤ 0.01",
        f"{max(gaps[worst], 0.0):.4f} ({where})",
        gaps[worst] <= 0.01,
    )
    for name, score in (
        ("feature that plays no part", "null"),
        ("largest false pair", "false_pair"),
    ):
        sizes = {str(c): o.methods[DEFAULT][score] for c, o in outcomes.items()}
        large = [c for c, size in sizes.items() if size > SMALL]
        named = f" ({', '.join(large[:6])}{' …' if len(large) > 6 else ''})" if large else ""
        measured = f"{len(large)} of {len(sizes)}, largest {max(sizes.values()):.2%}{named}"
        yield told(f"{name} above 1% of the output's spread, networks", "none", measured, not large)

    def spread(chosen: Callable[[Case], bool], score: str) -> Spread | None:
        values = [o.methods[DEFAULT][score] for c, o in outcomes.items() if chosen(c)]
        return Spread(tuple(values)) if values else None

    for name, asked, rho, score, limit in (
        ("paper's functions, ReLU, FRS", "≥ 0.996", 0.0, "main", 0.996),
        (
            "paper's functions, ReLU, null feature, mean absolute",
            "≤ 0.010",
            0.0,
            "null_size",
            0.010,
        ),
        ("paper's functions, ReLU, correlation 0.9, FRS", "≥ 0.98", 0.9, "main", 0.98),
    ):
        value = spread(
            lambda c, rho=rho: (
                c.family == "paper" and c.correlation == rho and c.activation == "ReLU"
            ),
            score,
        )
        if value is not None:
            yield told(
                name,
                asked,
                value,
                value.mean <= limit if score == "null_size" else value.mean >= limit,
            )


def standing(outcomes: Outcomes, peers: tuple[str, ...]) -> dict[tuple[Any, ...], float]:
    """Per cell, how far NObSP is below the best of the peers; negative where it is ahead."""
    return {
        cell: best_peer(places, peers)[0] - own_score(places)
        for cell, places in cells(outcomes).items()
        if any(peer in place.methods for place in places for peer in peers)
    }


def standing_table(outcomes: Outcomes) -> Table:
    """Against each peer by itself."""
    rows: list[tuple[Cell, ...]] = []
    for peer in (PUBLISHED, *PEERS, *(peer for peer in ALIKE if peer not in PEERS)):
        gaps = standing(outcomes, (peer,))
        if not gaps:
            continue
        rows.append(
            (
                peer,
                len(gaps),
                sum(g < 0 for g in gaps.values()),
                sum(g <= LEVEL for g in gaps.values()),
                max(gaps.values()),
                statistics.fmean(
                    s
                    for places in cells(outcomes).values()
                    if (s := mean_score(places, peer)) is not None
                ),
                statistics.fmean(
                    o.methods[peer]["seconds"] for o in outcomes.values() if peer in o.methods
                ),
            )
        )
    own = statistics.fmean(map(own_score, cells(outcomes).values()))
    seconds = statistics.fmean(o.methods[DEFAULT]["seconds"] for o in outcomes.values())
    rows.insert(0, (DEFAULT, len(cells(outcomes)), None, None, None, own, seconds))
    return Table(
        "NObSP against each",
        (
            Column("method"),
            Column("cells", "d"),
            Column("NObSP ahead", "d"),
            Column("ahead or level", "d"),
            Column("largest gap to it", "+.4f"),
            Column("its mean R²", ".4f"),
            Column("s", ".2f"),
        ),
        tuple(rows),
        "Seconds: processor time of one thread, mean over networks; both EBMs are one fit.",
    )


def findings(outcomes: Outcomes) -> tuple[str, ...]:
    """What the tables say, a sentence each, from their numbers."""
    targets = target_table(outcomes)
    missed = [f"{r[0]} ({written(r[2], '.4f')})" for r in targets.rows if r[3] != "met"]
    said = [
        f"{len(cells(outcomes))} of {WHOLE} cells were run, all calibrated on fresh rows; the distilled EBM on "
        f"{len(standing(outcomes, ('distilled EBM',)))} of them.",
        f"{len(targets.rows) - len(missed)} of {len(targets.rows)} targets are met; missed: "
        + ("; ".join(missed) or "none")
        + ".",
    ]
    gaps = {cell: gap for cell, gap in standing(outcomes, PEERS).items() if gap > LEVEL}
    for cell in sorted(gaps, key=lambda cell: -gaps[cell]):
        places = cells(outcomes)[cell]
        score, best = best_peer(places, PEERS)
        said.append(
            f"Behind by {gaps[cell]:.4f} on {' '.join(map(str, cell))}: {best} has {score:.4f}."
        )
    return tuple(said)
