"""How fast neighbours are found: exact search beside faiss, usearch beside exact search, Milvus in a local file.

The vectors are like real ones: 512 of MobileNetV2's 1,280 channels on TinyImageNet. The database is the 12,000 real
rows and, to 100,000, made ones: the mean of a class plus a random combination of eight deviations of rows of that
class from it, on the square roots of the activations, which are never negative. The queries are real held-out rows.
The local intrinsic dimension around the queries, which decides how hard a graph is to search, is reported for the
real rows and for as many made ones.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import process_time

import faiss
import numpy as np
import torch
from torch import Tensor

from benchmarks.report import Column, Race, Report, Table, options, progress, publish, race, seconds
from benchmarks.retrieval.cases import TINY, classes_of
from benchmarks.retrieval.features import Features, features
from benchmarks.retrieval.heads import REGULARISED, trained_head
from benchmarks.retrieval.votes import standardised, unit
from nobsp.neighbors import ContributionIndex, Milvus, Neighbors, Usearch, audit
from nobsp.neighbors.tuning import TUNING

SEED, ROWS, WIDTH, MIXED, K = 0, 100_000, 512, 8, 8
QUICK_ROWS = 20_000
MILVUS_ROWS, MILVUS_QUERIES, AUDITED = 10_000, 200, 2000
# Queries asked at once, and how often each is timed.
BATCHES, QUICK_BATCHES = {1: 40, 32: 15, 1000: 7}, {1: 20, 1000: 3}


@dataclass(frozen=True)
class Work:
    """A database, queries, and a head that reads both."""

    database: Features
    queries: Tensor
    head: torch.nn.Linear
    dimension_real: float
    dimension_made: float


def work(rows: int, cache: Path | None) -> Work:
    """Real rows, and made ones until there are enough."""
    generator = torch.Generator().manual_seed(SEED)
    train, held_out = features(TINY, "train", cache=cache), features(TINY, "val", cache=cache)
    channels = torch.randperm(train.activations.shape[1], generator=generator)[:WIDTH]
    real = Features(train.activations[:, channels].contiguous(), train.labels)
    queries = held_out.activations[:, channels].contiguous()
    made = made_rows(real, rows - len(real), generator)
    head = trained_head(real, classes=classes_of(real), decay=REGULARISED, cache=cache)
    alike = made.activations[: len(real)]
    return Work(
        Features(
            torch.cat([real.activations, made.activations]),
            np.concatenate([real.labels, made.labels]),
        ),
        queries,
        head.layer(),
        local_dimension(queries[:1000], real.activations, real.activations),
        local_dimension(queries[:1000], alike, real.activations),
    )


def made_rows(real: Features, count: int, generator: torch.Generator) -> Features:
    """Rows that resemble the real ones: mean of a class + Σ_k w_k · deviation of a row of the class, ‖w‖ = 1."""
    roots, labels = real.activations.sqrt(), torch.from_numpy(real.labels)
    sizes = torch.bincount(labels)
    first = sizes.cumsum(0) - sizes
    order = labels.argsort(stable=True)
    means = torch.zeros(len(sizes), roots.shape[1]).index_add_(0, labels, roots) / sizes[:, None]
    chosen = torch.randint(len(sizes), (count,), generator=generator)
    weights = unit(torch.randn(count, MIXED, generator=generator))
    rows = means[chosen].clone()
    for number in range(MIXED):
        place = (torch.rand(count, generator=generator) * sizes[chosen]).long()
        rows += weights[:, number, None] * (roots[order[first[chosen] + place]] - means[chosen])
    return Features(rows.clamp_min(0).square(), chosen.numpy())


def local_dimension(queries: Tensor, rows: Tensor, like: Tensor, *, near: int = 20) -> float:
    """Median of the maximum-likelihood estimate of Levina and Bickel, from each query's nearest rows."""
    asked, there = unit(standardised(queries, like)), unit(standardised(rows, like))
    away = (2 - 2 * (asked @ there.T).topk(near, dim=1).values).clamp_min(1e-9).sqrt()
    return float((-1 / (away[:, :-1] / away[:, -1:]).log().mean(1)).median())


# ---------------------------------------------------------------------- what is measured


@dataclass(frozen=True)
class Timed:
    """Searches with so many queries at once, the first way raced against the second."""

    batch: int
    race: Race

    @property
    def milliseconds(self) -> tuple[float, float]:
        """A query, by either way."""
        first, second = self.race.medians
        return 1e3 * first / self.batch, 1e3 * second / self.batch


def against_faiss(
    exact: ContributionIndex, queries: Tensor, batches: dict[int, int], threads: int
) -> list[Timed]:
    """Exact search by the index, and by faiss' flat index on the very vectors that the index compares."""
    faiss.omp_set_num_threads(threads)
    seen = exact._read(queries)
    space = exact._space
    flat = faiss.IndexFlatL2(WIDTH)
    rows = exact._fitted.backend.take(torch.arange(len(exact)))
    flat.add(space.vectors(rows, rows.predicted).float().numpy())
    probes = space.vectors(seen, seen.predicted).float().numpy()

    def timed(batch: int, repeats: int) -> Timed:
        some, vectors = seen.take(slice(0, batch)), probes[:batch]
        return Timed(
            batch,
            race(
                lambda: exact._query_rows(some, K), lambda: flat.search(vectors, K), repeats=repeats
            ),
        )

    return [timed(*asked) for asked in batches.items()]


def against_exact(
    exact: ContributionIndex, graph: ContributionIndex, queries: Tensor, batches: dict[int, int]
) -> list[Timed]:
    """The same questions, by comparing with every row and by walking the graph."""
    seen = exact._read(queries)

    def timed(batch: int, repeats: int) -> Timed:
        some = seen.take(slice(0, batch))
        ways = (lambda: exact._query_rows(some, K)), (lambda: graph._query_rows(some, K))
        return Timed(batch, race(*ways, repeats=repeats))

    return [timed(*asked) for asked in batches.items()]


def recall(found: Neighbors, exact: Neighbors) -> float:
    """Share of the true neighbours among those found."""
    return float((found.indices[:, :, None] == exact.indices[:, None, :]).any(2).mean())


@dataclass(frozen=True)
class Milvused:
    """What Milvus in a local file gave back.

    Attributes:
        rows: In the collection.
        same: Share of its neighbours that are exactly those of the exact search, in the same place.
        furthest: Largest difference between distances.
        seconds: To write the rows.
        milliseconds: A query.
    """

    rows: int
    same: float
    furthest: float
    seconds: float
    milliseconds: float


def by_milvus(made: Work, rows: int) -> Milvused:
    """The first rows in a collection of their own."""
    some, labels, queries = (
        made.database.activations[:rows],
        made.database.labels[:rows],
        made.queries[:MILVUS_QUERIES],
    )
    exact = ContributionIndex(made.head, space="activations").fit(some, labels).query(queries, K)
    with tempfile.TemporaryDirectory() as folder:
        backend = Milvus(uri=str(Path(folder) / "neighbours.db"), timeout=120.0)
        index = ContributionIndex(made.head, space="activations", backend=backend)
        wrote = seconds(lambda: index.fit(some, labels))
        found: list[Neighbors] = []
        took = seconds(lambda: found.append(index.query(queries, K)))
        index._fitted.backend.close()  # a local file is let go before its folder goes
    return Milvused(
        rows,
        float((found[0].indices == exact.indices).mean()),
        float(np.abs(found[0].distances - exact.distances).max()),
        wrote,
        1e3 * took / len(queries),
    )


def of_an_audit(made: Work, rows: int) -> tuple[float, float, float]:
    """Seconds of the processor: what an audit of the database fits once, all of it, and its searches alone.

    Measured on some rows and multiplied, as a search compares each row with all.
    """
    index = ContributionIndex(made.head).fit(made.database.activations, made.database.labels)
    some, times = np.linspace(0, len(index) - 1, rows).astype(np.int64), len(index) / rows
    asked, labels = made.database.activations[torch.from_numpy(some)], made.database.labels[some]

    def taken(work: Callable[[], object]) -> float:
        start = process_time()
        work()
        return process_time() - start

    once = taken(lambda: audit(index, asked[:8], labels[:8], exclude=some[:8]))
    whole = taken(lambda: audit(index, asked, labels, exclude=some)) * times
    seen, by_activations = index._read(asked), index._view(space="activations")
    leave = torch.from_numpy(some)[:, None]
    searches = taken(lambda: index._query_rows(seen, K, leave))
    searches += taken(lambda: by_activations._query_rows(seen, TUNING.n_voters, leave))
    return once, once + whole, searches * times


# ---------------------------------------------------------------------- tables


def faiss_table(found: list[Timed]) -> Table:
    return Table(
        "Exact search: this package and faiss IndexFlatL2",
        (
            Column("queries at once"),
            Column("ours, ms a query", ".3f"),
            Column("faiss", ".3f"),
            Column("ratio", ".2f"),
        ),
        tuple((f"{one.batch:,}", *one.milliseconds, one.race.ratio) for one in found),
        "Ours z-scores and scales the queries, compares in double precision block by block; faiss "
        "is given the finished vectors. Ratios are medians over runs taken in turn.",
    )


def usearch_table(found: dict[str, list[Timed]], recalls: dict[str, float]) -> Table:
    return Table(
        "usearch beside exact search",
        (
            Column("neighbours by, queries at once"),
            Column(f"recall@{K}", ".4f"),
            Column("exact, ms a query", ".3f"),
            Column("usearch", ".3f"),
            Column("times as fast", ".1f"),
        ),
        tuple(
            (f"{name}, {one.batch:,}", recalls[name], *one.milliseconds, one.race.ratio)
            for name, times in found.items()
            for one in times
        ),
        "Evidence for the query's class is searched by activations, and its candidates are ranked by evidence. Asked "
        "one by one, exact search is bound by reading the rows; asked a thousand at once, they are read once for all.",
    )


def milvus_table(found: Milvused) -> Table:
    return Table(
        "Milvus in a local file beside exact search",
        (
            Column("rows"),
            Column("same neighbours", ".4f"),
            Column("largest difference of distances", ".1e"),
            Column("writing, s", ".1f"),
            Column("ms a query", ".2f"),
        ),
        ((f"{found.rows:,}", found.same, found.furthest, found.seconds, found.milliseconds),),
    )


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0], threads=True)
    parser.add_argument("--cache", type=Path, help="folder of activations and heads")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads or torch.get_num_threads())
    threads = torch.get_num_threads()
    rows, batches = (QUICK_ROWS, QUICK_BATCHES) if chosen.quick else (ROWS, BATCHES)
    progress(f"making {rows:,} rows")
    made = work(rows, chosen.cache)
    exact = ContributionIndex(made.head, space="activations").fit(
        made.database.activations, made.database.labels
    )
    progress("exact search and faiss")
    flat = against_faiss(exact, made.queries, batches, threads)
    progress("building the graph")
    graph = ContributionIndex(made.head, space="activations", backend=Usearch(threads=threads))
    built = seconds(lambda: graph.fit(made.database.activations, made.database.labels))
    spaces = {
        "activations": (exact, graph),
        "evidence": tuple(i._view(space="contributions") for i in (exact, graph)),
    }
    timed, recalls = {}, {}
    for name, (whole, walked) in spaces.items():
        progress(f"usearch by {name}")
        recalls[name] = recall(walked.query(made.queries, K), whole.query(made.queries, K))
        timed[name] = against_exact(whole, walked, made.queries, batches)
    progress("Milvus")
    milvus = by_milvus(made, MILVUS_ROWS // (10 if chosen.quick else 1))
    progress("an audit")
    audited = of_an_audit(made, AUDITED)
    report = Report(
        name="speed-neighbours",
        title="Finding neighbours: exact, usearch, Milvus",
        tables=(
            faiss_table(flat),
            usearch_table(timed, recalls),
            milvus_table(milvus),
            Table(
                "An audit of the database by itself, seconds of the processor",
                (Column("fitted once", ".0f"), Column("all", ".0f"), Column("its searches", ".0f")),
                (audited,),
                f"Measured on {AUDITED:,} rows and multiplied.",
            ),
        ),
        findings=(
            *findings(flat, timed, recalls, milvus),
            f"An audit takes {audited[1] / audited[2]:.2f} times as long as its searches (2 was aimed at).",
        ),
        seeds=(SEED,),
        settings={
            "rows": f"{rows:,} of {WIDTH} numbers, {min(rows, 12_000):,} of them real",
            "queries": f"{len(made.queries):,}, all real, held out",
            "intrinsic_dimension": f"{made.dimension_real:.1f} among real rows, {made.dimension_made:.1f} among made",
            "K": K,
            "graph": f"{Usearch()}",
            "building_the_graph": f"{built:.0f} s",
        },
        packages=("faiss-cpu", "usearch", "pymilvus", "milvus-lite"),
    )
    publish(report, chosen)


def findings(
    flat: list[Timed], timed: dict[str, list[Timed]], recalls: dict[str, float], milvus: Milvused
) -> tuple[str, ...]:
    one, many = timed["activations"][0], timed["activations"][-1]
    return (
        "Exact search takes "
        + ", ".join(
            f"{t.race.ratio:.2f} times as long as faiss at {t.batch:,} queries at once"
            for t in flat
        )
        + " (1.2 was aimed at).",
        f"usearch finds {recalls['activations']:.2%} of the neighbours by activations (99% was aimed at), "
        f"{one.race.ratio:.0f} times as fast as exact search for queries asked one by one (10 was aimed at) and "
        f"{many.race.ratio:.1f} times for {many.batch:,} at once, where exact search reads the rows once for all of "
        f"them. By evidence for the query's class it finds {recalls['evidence']:.2%}.",
        f"Milvus in a local file returns {milvus.same:.2%} of the neighbours in the same place as exact search; "
        f"distances differ by {milvus.furthest:.0e} at most.",
    )


if __name__ == "__main__":
    main()
