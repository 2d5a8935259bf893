"""Which rows to label: accuracy of a linear head on rows chosen by `nobsp.select`, beside other ways of choosing.

Rows are chosen round by round, 1 to 50 a class; each round sees the head trained on the labels bought so far. Beside
`nobsp.select`: at random, by margin, k-center greedy, and TypiClust's choice (the most typical row of each of the
largest clusters without a label).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans, MiniBatchKMeans
from torch import Tensor

import nobsp
from benchmarks.report import Cell, Column, Report, Spread, Table, options, progress, publish
from benchmarks.retrieval.cases import SMALLER
from benchmarks.retrieval.features import Features, Recipe, features, kept_below
from benchmarks.retrieval.heads import REGULARISED, STEPS, Head, softmax_regression

Rows = NDArray[np.int64]
Way = Callable[[Tensor, Head | None, Rows, int, np.random.Generator], Rows]

CIFAR = Recipe("cifar10", "mobilenet_v2", 64)
SEEDS = (0, 1, 2)
BUDGETS = {"CIFAR-10": (1, 2, 5, 10, 20, 50), "TinyImageNet": (1, 2, 5, 10, 20)}
CLASSES = (
    50  # of TinyImageNet's 200: 60 rows each, so that more than 20 a class would be most of them
)


def scaled(rows: Tensor) -> Tensor:
    standard = (rows - rows.mean(0)) / rows.std(0).clamp_min(1e-6)
    return torch.nn.functional.normalize(standard)


def margins(rows: Tensor, head: Head) -> Tensor:
    best = head.logits(rows).softmax(1).topk(2, dim=1).values
    return best[:, 0] - best[:, 1]


def at_random(
    rows: Tensor, _: Head | None, known: Rows, n: int, generator: np.random.Generator
) -> Rows:
    return generator.choice(np.setdiff1d(np.arange(len(rows)), known), n, replace=False)


def by_margin(
    rows: Tensor, head: Head | None, known: Rows, n: int, generator: np.random.Generator
) -> Rows:
    if head is None:
        return at_random(rows, head, known, n, generator)
    found = margins(rows, head)
    found[torch.from_numpy(known)] = torch.inf
    return found.argsort()[:n].numpy()


def k_center(
    rows: Tensor, _: Head | None, known: Rows, n: int, generator: np.random.Generator
) -> Rows:
    unit, chosen = scaled(rows), []
    nearest = torch.full((len(rows),), -1.0)
    for row in known:
        nearest = torch.maximum(nearest, unit @ unit[row])
    for _round in range(n):
        best = (
            int(generator.integers(len(rows)))
            if not chosen and not len(known)
            else int(nearest.argmin())
        )
        chosen.append(best)
        nearest = torch.maximum(nearest, unit @ unit[best])
    return np.array(chosen)


def typical(
    rows: Tensor, _: Head | None, known: Rows, n: int, generator: np.random.Generator
) -> Rows:
    """TypiClust: as many clusters as labels there will be; of each without a label, largest first, its densest row."""
    unit = scaled(rows)
    clusters = min(len(known) + n, 500)
    make = KMeans if clusters <= 50 else MiniBatchKMeans
    cluster = make(clusters, n_init=1, random_state=int(generator.integers(1 << 30))).fit_predict(
        unit.numpy()
    )
    chosen: list[int] = []
    density = np.full(len(rows), -np.inf)
    for number in range(clusters):
        members = np.flatnonzero(cluster == number)
        if len(members):
            own = unit[torch.from_numpy(members)]
            away = (
                (2 - 2 * own @ own.T)
                .clamp_min(0)
                .sqrt()
                .topk(min(20, len(members)), largest=False)
                .values
            )
            density[members] = -away.mean(1).numpy()
    while len(chosen) < n:
        taken = np.concatenate([known, np.array(chosen, dtype=np.int64)])
        labels = np.bincount(cluster[taken], minlength=clusters)
        left = np.bincount(cluster, minlength=clusters) - labels
        order = np.lexsort((-left, labels))
        number = next(one for one in order if left[one] > 0)
        members = np.setdiff1d(np.flatnonzero(cluster == number), taken)
        chosen.append(int(members[density[members].argmax()]))
    return np.array(chosen)


def ours(by: str) -> Way:
    def choose(
        rows: Tensor, head: Head | None, known: Rows, n: int, _: np.random.Generator
    ) -> Rows:
        layer = torch.nn.Linear(rows.shape[1], 2) if head is None else head.layer()
        way = "coverage" if head is None else by
        index = nobsp.ContributionIndex(layer, space="activations").fit(rows)
        return nobsp.select(index, n, by=way, labelled=known)  # type: ignore[arg-type]

    return choose


OURS = ('select, by="coverage"', 'select, by="both"')
WAYS: dict[str, Way] = {
    'select, by="both"': ours("both"),
    'select, by="coverage"': ours("coverage"),
    "at random": at_random,
    "margin": by_margin,
    "k-center greedy": k_center,
    "TypiClust": typical,
}


def run(
    way: Way, pool: Features, test: Features, budgets: tuple[int, ...], seed: int
) -> list[float]:
    """Accuracy at each budget; the pool is the same nine tenths for every way."""
    generator = np.random.default_rng(seed)
    pool = pool.subset(generator.permutation(len(pool))[: 9 * len(pool) // 10])
    classes = int(pool.labels.max()) + 1
    known, head, found = np.empty(0, dtype=np.int64), None, []
    for budget in budgets:
        more = way(pool.activations, head, known, budget * classes - len(known), generator)
        known = np.concatenate([known, more])
        assert len(np.unique(known)) == budget * classes
        head = softmax_regression(
            pool.subset(known), classes=classes, decay=REGULARISED, steps=STEPS[REGULARISED]
        )
        found.append(head.accuracy(test))
    return found


def data(cache: Path | None, *, quick: bool) -> dict[str, tuple[Features, Features]]:
    """Rows to choose from, and rows to test on."""
    cifar = features(CIFAR, "val", 1500 if quick else 6000, cache=cache)
    cut = len(cifar) * 2 // 3
    found = {"CIFAR-10": (cifar.subset(np.arange(cut)), cifar.subset(np.arange(cut, len(cifar))))}
    if not quick:
        tiny = [features(SMALLER, split, cache=cache) for split in ("train", "val")]
        found["TinyImageNet"] = tuple(
            one.subset(np.flatnonzero(one.labels < CLASSES)) for one in tiny
        )  # type: ignore[assignment]
    return found


def describe(
    name: str, by: str, budgets: tuple[int, ...], found: dict[str, NDArray[np.float64]]
) -> str:
    """One way of ours beside random choice, budget by budget, and beside the best of the others on average."""
    mine, random = found[by], found["at random"]
    missed = [str(budget) for budget, a, b in zip(budgets, mine, random, strict=True) if a <= b]
    peers = {title: scores.mean() for title, scores in found.items() if title not in OURS}
    best = max(peers, key=lambda title: peers[title])
    where = "every budget" if not missed else f"all budgets but {', '.join(missed)} a class"
    return (
        f"{name}: {by} is ahead of random choice at {where}; on average it has {mine.mean():.3f}, the best other way "
        f"({best}) {peers[best]:.3f}."
    )


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0], threads=True)
    parser.add_argument(
        "--cache", type=Path, help=f"folder of activations; {kept_below(None)} by default"
    )
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads or torch.get_num_threads())
    tables, findings = [], []
    for name, (pool, test) in data(chosen.cache, quick=chosen.quick).items():
        budgets, found = BUDGETS[name], {}
        for title, way in WAYS.items():
            progress(f"{name}: {title}")
            found[title] = np.array([run(way, pool, test, budgets, seed) for seed in SEEDS])
        lines: list[tuple[Cell, ...]] = [
            (title, *(Spread(tuple(column)) for column in scores.T), Spread(tuple(scores.mean(1))))
            for title, scores in found.items()
        ]
        tables.append(
            Table(
                f"Accuracy by labels a class: {name}",
                (
                    Column("rows chosen by"),
                    *(Column(str(budget), ".3f") for budget in budgets),
                    Column("mean", ".3f"),
                ),
                tuple(lines),
                f"{len(pool):,} rows, of which nine tenths are drawn for each seed {SEEDS}; {len(test):,} test rows; "
                "mean ± standard deviation.",
            )
        )
        findings += [
            describe(name, by, budgets, {title: scores.mean(0) for title, scores in found.items()})
            for by in OURS
        ]
    publish(
        Report(
            name="select",
            title="Which rows to label",
            tables=tuple(tables),
            findings=tuple(findings),
            seeds=SEEDS,
            settings={"features": f"{CIFAR}; {SMALLER}, the first {CLASSES} classes"},
            packages=("scikit-learn", "torchvision"),
        ),
        chosen,
    )


if __name__ == "__main__":
    main()
