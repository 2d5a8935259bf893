"""What a calibration on 10⁹ rows × 100 features × width 512 would take on 64 workers, worked out from measured costs.

Costs are measured on a few thousand rows at that very shape, one thread, in processor time, so that other work on the
machine does not count. What is measured is what a worker does to a row, what it sends, and what is done once:

    look        mean, range, levels and sample of the columns: the first pass, and the only one where all terms are
                fitted at once, as that is done on the sample
    add up      as published: forward passes of isolated and reference inputs, and their products: the second pass
    join        two workers' sums made one
    settle      as published, baseline and bases, from the sample: once; otherwise the whole fit: once
    solve       as published, coefficients from the sums: once

The network is trained for a moment: how many directions of the representation a feature uses decides the size of the
system, and a random network uses more.
"""

from __future__ import annotations

import pickle
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.networks import feed_forward, train
from benchmarks.report import Column, Report, Table, options, progress, publish
from nobsp import Local, NObSP
from nobsp.calibration.local import parse_bytes
from nobsp.calibration.ray import RayRows
from nobsp.network.columns import SAMPLE_ROWS, Summary
from nobsp.network.readout import Network
from nobsp.published import (
    Accumulator,
    add_rows,
    make_plan,
    rare_rows,
    room_for_moments,
    solve,
    split_plan,
)
from nobsp.published.sums import bytes_of_moments

ROWS, WORKERS, FEATURES, WIDTH, OUTPUTS, SEED = 10**9, 64, 100, 512, 1, 0
# What a cluster is assumed to have: bytes a second of each machine's network and disk.
NETWORK, DISK = 1.25e9, 0.5e9
SAMPLE, BATCH, BYTES_A_NUMBER, MEMORY = 4096, 4096, 4, "4GiB"
HOUR = 3600.0


def processor_seconds(work: Callable[[], object], *, repeats: int) -> float:
    """Median processor time of `work`, after a warm-up."""
    work()
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


@dataclass(frozen=True)
class Costs:
    """What was measured for one way of fitting, in seconds of one thread and in bytes.

    Attributes:
        reference: The way.
        columns: Columns of the largest set of sums.
        look: To look at a row.
        forward: Of adding up a row, the bare forward passes.
        add: To add up a row, forward passes included.
        join: To join the sums of two batches.
        settle: As published, to settle baseline and bases; otherwise the whole fit: of the sample of 16,384 rows that
            is taken of many.
        solve: To solve for the coefficients.
        sums: Bytes of one set of sums.
        sent: Bytes that one batch's part takes when it is sent.
        bases: Bytes of the bases.
        blocks: Sets of sums that are kept apart.
        passes: How often the rows are added up; not at all where functions are fitted on the sample.
    """

    reference: str
    columns: int
    look: float
    forward: float
    add: float
    join: float
    settle: float
    solve: float
    sums: int
    sent: int
    bases: int
    blocks: int
    passes: int


def table(rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(SEED)
    shared = torch.randn(rows, 1, generator=generator)
    return 0.5 * shared + torch.randn(rows, FEATURES, generator=generator)


def network(X: Tensor, *, epochs: int) -> torch.nn.Module:
    """Bends in every feature, and some pairs."""
    y = torch.relu(X).sum(1, keepdim=True) / 10 + (X[:, :10] * X[:, 10:20]).sum(1, keepdim=True) / 3
    model = feed_forward(FEATURES, (WIDTH, WIDTH), OUTPUTS, seed=SEED)
    return train(model, X, y, seed=SEED, epochs=epochs).float()


def looking(X: Tensor, *, repeats: int) -> float:
    """Seconds to look at a row: ranges, levels, and the sample."""
    summary = Summary([[k] for k in range(X.shape[1])])
    return processor_seconds(lambda: summary.update(X[:BATCH]), repeats=repeats) / BATCH


def measure_terms(model: torch.nn.Module, X: Tensor, *, repeats: int) -> Costs:
    """All terms at once: every row is looked at, and functions are fitted on a sample that does not grow."""
    progress("scale: terms")
    sample = table(SAMPLE_ROWS)
    explainer = NObSP(model, interactions=0, batch_size=BATCH).fit(sample)
    fitting = processor_seconds(
        lambda: NObSP(model, interactions=0, batch_size=BATCH).fit(sample), repeats=1
    )
    summary = Summary([[k] for k in range(FEATURES)])
    summary.update(sample)
    sent = len(pickle.dumps(summary))
    joining = processor_seconds(lambda: summary.merge(summary), repeats=repeats)
    return Costs(
        reference="terms",
        columns=explainer.health().columns,
        look=looking(X, repeats=repeats),
        forward=0.0,
        add=0.0,
        join=joining,
        settle=fitting,
        solve=0.0,
        sums=sent,
        sent=sent,
        bases=0,
        blocks=1,
        passes=0,
    )


def measure_published(model: torch.nn.Module, X: Tensor, *, repeats: int) -> Costs:
    """Algorithm 1: every row goes through the network with each feature alone, and without it."""
    progress("scale: complement")
    explainer = NObSP.as_published(model, batch_size=BATCH)
    fitted = explainer.fit(X, engine=Local(memory=MEMORY))._fitted
    published, readout, memory = fitted.estimate.published, fitted.readout, parse_bytes(MEMORY)
    assert published is not None
    plan = published.plan
    stages = split_plan(plan, readout, memory=memory)
    shapes = plan.blocks(readout.width, readout.outputs)
    room = room_for_moments(plan, memory)
    batch = X[:BATCH]
    accumulator = Accumulator.of(plan, readout, memory=room)
    with Network(readout, readout.device).running() as running:
        represent = running.represent

        def add() -> None:
            add_rows(plan, accumulator, batch, running)

        def forward() -> None:
            subsets = list(plan.terms)
            for _ in plan.isolation.distinct(represent, batch, subsets):
                pass
            for _ in plan.isolation.reference(represent, batch, subsets):
                pass

        def settle() -> None:
            rare = rare_rows(fitted.summary, plan.isolation).to(X.dtype)
            make_plan(plan.isolation, represent, X, plan.terms, rare=rare)

        adding = processor_seconds(add, repeats=repeats)
        passing = processor_seconds(forward, repeats=repeats)
        settling = processor_seconds(settle, repeats=1)
    filled = {
        name: [part for part in blocks if part.rows] for name, blocks in accumulator.parts.items()
    }
    joining = processor_seconds(
        lambda: [b.merge(b) for blocks in filled.values() for b in blocks], repeats=repeats
    )
    solving = processor_seconds(lambda: solve(plan, filled, ridge=published.ridge), repeats=1)
    return Costs(
        reference="complement",
        columns=_columns(shapes),
        look=looking(X, repeats=repeats),
        forward=passing / BATCH,
        add=adding / BATCH,
        join=joining,
        settle=settling * SAMPLE_ROWS / len(X),
        solve=solving,
        sums=sum(map(bytes_of_moments, shapes.values())),
        sent=sum(len(pickle.dumps(part)) for blocks in filled.values() for part in blocks),
        bases=sum(basis.numel() * basis.element_size() for basis in plan.bases.values()),
        blocks=len(next(iter(accumulator.parts.values()))),
        passes=len(stages),
    )


def _columns(shapes: dict[tuple[int, ...], dict[str, int]]) -> int:
    return max(sum(shape.values()) for shape in shapes.values())


@dataclass(frozen=True)
class Estimate:
    """What the whole would take, in seconds and bytes."""

    adding: float
    looking: float
    reading: float
    parts: int
    joining: float
    traffic: float
    sending: float
    settling: float
    solving: float
    worker_memory: float
    last_join: float

    @property
    def total(self) -> float:
        """Passes one after another; parts are sent and joined while others are made, unless that takes longer."""
        return (
            self.looking
            + max(self.adding, self.sending, self.joining)
            + self.reading
            + self.settling
            + self.solving
        )


def estimate(costs: Costs, *, rows: int = ROWS, workers: int = WORKERS) -> Estimate:
    """Rows times their cost, over the workers; joins over the workers too; once is once."""
    at_once = RayRows(None, iter, BATCH, row_bytes=8 * FEATURES, rows=rows).at_once
    parts = max(costs.passes, 1) * -(-rows // at_once)
    # A tree of eights joins parts - 1 times, and sends every part, and every join of eight, once.
    traffic = costs.sent * parts * 8 / 7
    batch_bytes = at_once * FEATURES * 8
    return Estimate(
        adding=costs.passes * rows * costs.add / workers,
        looking=rows * costs.look / workers,
        reading=(1 + costs.passes) * rows * FEATURES * BYTES_A_NUMBER / (workers * DISK),
        parts=parts,
        joining=parts * costs.join / workers,
        traffic=traffic,
        sending=traffic / (workers * NETWORK),
        settling=costs.settle,
        solving=costs.solve,
        worker_memory=costs.bases + costs.blocks * costs.sums + costs.sent + batch_bytes,
        last_join=(8 + 3)
        * costs.sent,  # eight that wait, and of these one that is unpacked, the sum so far, and the new
    )


# ---------------------------------------------------------------------- tables


def bytes_in_words(size: float) -> str:
    """Example: 2.1 GB.

    Example:
        >>> bytes_in_words(2.1e9), bytes_in_words(130e6), bytes_in_words(5.2e13)
        ('2.1 GB', '130 MB', '52 TB')
    """
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return (
                f"{size / factor:.2g} {unit}"
                if size < 100 * factor
                else f"{size / factor:,.0f} {unit}"
            )
    return f"{size / 1e3:.0f} kB"


def time_in_words(seconds: float) -> str:
    """Example: 3.5 h.

    Example:
        >>> time_in_words(12600), time_in_words(90), time_in_words(2.0), time_in_words(0.004)
        ('3.5 h', '1.5 min', '2.0 s', '4.0 ms')
    """
    for unit, factor in (("h", HOUR), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:.1f} {unit}"
    return f"{seconds * 1e6:.1f} µs"


def cost_table(every: list[Costs]) -> Table:
    lines: list[tuple[str, Callable[[Costs], str]]] = [
        ("columns of the (largest) system", lambda c: f"{c.columns:,}"),
        ("look at a row", lambda c: time_in_words(c.look)),
        ("add up a row", lambda c: time_in_words(c.add)),
        ("of it forward passes", lambda c: time_in_words(c.forward)),
        ("join two parts", lambda c: time_in_words(c.join)),
        ("settle baseline and bases, or fit the sample", lambda c: time_in_words(c.settle)),
        ("solve", lambda c: time_in_words(c.solve)),
        ("one set of sums", lambda c: bytes_in_words(c.sums)),
        ("sets kept apart", lambda c: str(c.blocks)),
        ("a part when it is sent", lambda c: bytes_in_words(c.sent)),
        ("bases", lambda c: bytes_in_words(c.bases)),
        ("passes of adding up", lambda c: str(c.passes)),
    ]
    columns = (
        Column("measured, one thread"),
        *(Column(f'reference="{c.reference}"') for c in every),
    )
    rows = tuple((name, *(show(c) for c in every)) for name, show in lines)
    return Table(f"Costs at {FEATURES} features, width {WIDTH}", columns, rows)


def estimate_table(every: list[Costs]) -> Table:
    worked_out = [estimate(costs) for costs in every]
    lines: list[tuple[str, Callable[[Estimate], str]]] = [
        ("add up the rows", lambda e: time_in_words(e.adding)),
        ("look at the rows", lambda e: time_in_words(e.looking)),
        ("read them from disk, once a pass", lambda e: time_in_words(e.reading)),
        ("parts that are joined", lambda e: f"{e.parts:,}"),
        ("joining, over all workers", lambda e: time_in_words(e.joining)),
        ("traffic of parts, in all", lambda e: bytes_in_words(e.traffic)),
        ("sending it, while rows are added up", lambda e: time_in_words(e.sending)),
        ("settle and solve, on one machine", lambda e: time_in_words(e.settling + e.solving)),
        ("memory of a worker", lambda e: bytes_in_words(e.worker_memory)),
        ("memory of a join of eight parts", lambda e: bytes_in_words(e.last_join)),
        ("in all", lambda e: time_in_words(e.total)),
    ]
    columns = (Column("worked out"), *(Column(f'reference="{c.reference}"') for c in every))
    rows = [(name, *(show(e) for e in worked_out)) for name, show in lines]
    rows.append(
        (
            "the same for 10⁷ rows",
            *(time_in_words(estimate(costs, rows=10**7).total) for costs in every),
        )
    )
    return Table(f"{ROWS:,} rows on {WORKERS} workers of one thread each", columns, tuple(rows))


def limit_table(every: list[Costs]) -> Table:
    """Where each of the things that do not shrink with more workers takes over."""
    room = parse_bytes(MEMORY) // 2

    def features(costs: Costs) -> str:
        return "–" if not costs.passes else f"{room * FEATURES // costs.sums:,}: a second pass"

    lines: list[tuple[str, Callable[[Costs], str]]] = [
        ("processor time in all", lambda c: f"{ROWS * (c.add + c.look) / HOUR:,.0f} h"),
        (
            "workers at which what is done once is half",
            lambda c: f"{ROWS * (c.add + c.look) / (c.settle + c.solve):,.0f}",
        ),
        (
            "workers at which reading is half, if from one disk",
            lambda c: (
                f"{(c.add + c.look) * DISK / ((1 + c.passes) * FEATURES * BYTES_A_NUMBER):,.1f}"
            ),
        ),
        (f"features of this kind at width {WIDTH}, memory={MEMORY}", features),
    ]
    columns = (Column("limit"), *(Column(f'reference="{c.reference}"') for c in every))
    return Table(
        "Where it would break",
        columns,
        tuple((name, *(show(c) for c in every)) for name, show in lines),
    )


def findings(every: list[Costs]) -> tuple[str, ...]:
    said = []
    for costs in every:
        found = estimate(costs)
        share = (found.adding + found.looking) / found.total
        per_rank = 2 * (WORKERS - 1) / WORKERS * costs.blocks * costs.sums
        said.append(
            f'reference="{costs.reference}": {time_in_words(found.total)} in all, {share:.0%} of it on rows. A part is '
            f"{bytes_in_words(costs.sent)}; under torchrun every rank sends {bytes_in_words(per_rank)}, once."
        )
    return tuple(said)


def main() -> None:
    chosen = options((__doc__ or "").splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    X = table(SAMPLE)
    progress("scale: training")
    model = network(X, epochs=1 if chosen.quick else 5)
    repeats = 1 if chosen.quick else 3
    every = [measure_terms(model, X, repeats=repeats), measure_published(model, X, repeats=repeats)]
    report = Report(
        name="speed-scale",
        title="10⁹ rows × 100 features × width 512 on 64 workers, from measured costs",
        tables=(cost_table(every), estimate_table(every), limit_table(every)),
        findings=findings(every),
        seeds=(SEED,),
        settings={
            "rows measured": SAMPLE,
            "hidden": (WIDTH, WIDTH),
            "batch": BATCH,
            "bytes a number on disk": BYTES_A_NUMBER,
            "assumed network, bytes a second and machine": f"{NETWORK:.3g}",
            "assumed disk, bytes a second and machine": f"{DISK:.3g}",
            "memory limit": MEMORY,
        },
    )
    publish(report, chosen)


if __name__ == "__main__":
    main()
