"""Explaining a million rows from compiled tables, against the network itself and against other explainers.

One network (8 features, 128-64, one output, single precision) and one run; every way explains the same rows for the
same output. Methods whose cost grows with the rows are timed on fewer and given per row:

    compiled              tables alone, float32 and float64 rows, one thread and as many as there are processors
    uncompiled            the calibrated explainer: the same tables, and the network for predictions and residuals
    Integrated Gradients  captum, 25 steps, in batches
    DeepLift              captum, in batches
    Kernel SHAP           shap, its default number of samples, a background of 100 rows
    effector              the global effect (PDP) of each feature on 1,000 rows, fitted while warming up, at every row

Pairs are left out: the target is on functions of single features. A second table adds pairs as grids. A third one has
20 features: calibrating their functions on a million rows, and explaining these, against one forward pass over them.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.networks import feed_forward, train
from benchmarks.report import Column, Report, Table, options, progress, publish, seconds
from benchmarks.speed.ratios import Ratio, raced
from nobsp import NObSP
from nobsp.tabular import Functions

FEATURES, HIDDEN, SEED, STEPS, MANY = 8, (128, 64), 0, 25, 20
PAIRS = [("x0", "x1"), ("x2", "x3")]
# effector keeps every row beside every row of its background: more than this is gigabytes.
MOST_EFFECTS = 1000
UNCOMPILED, GRADIENTS = "uncompiled explainer", f"Integrated Gradients, {STEPS} steps"
DEEP_LIFT, EFFECTS, SHAP = "DeepLift", "effector PDP, all features", "Kernel SHAP"


def problem(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and a target with bends, curves and two interactions."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, FEATURES)).astype(np.float32)
    y = (
        np.sin(2 * X[:, 0])
        + np.abs(X[:, 1])
        + 0.3 * X[:, 2] ** 2
        + X[:, 0] * X[:, 1]
        + np.tanh(X[:, 2]) * X[:, 3]
    )
    return X, y[:, None] + X[:, 4:] @ np.linspace(-1, 1, FEATURES - 4)[:, None]


def network(activation: type[nn.Module]) -> nn.Module:
    """A trained network in single precision."""
    X, y = problem(2000, SEED)
    model = feed_forward(FEATURES, HIDDEN, 1, seed=SEED, activation=activation)
    return train(model, torch.tensor(X), torch.tensor(y), seed=SEED, epochs=10).float().eval()


# ---------------------------------------------------------------------- other explainers, per row


def integrated_gradients(model: nn.Module, X: np.ndarray) -> Callable[[], object]:
    from captum.attr import IntegratedGradients

    method, rows = IntegratedGradients(model), torch.tensor(X)
    baseline = torch.zeros(1, FEATURES)

    def work() -> list[torch.Tensor]:
        return [
            method.attribute(
                part, baselines=baseline, target=0, n_steps=STEPS, internal_batch_size=8192
            )
            for part in rows.split(1024)
        ]

    return work


def deep_lift(model: nn.Module, X: np.ndarray) -> Callable[[], object]:
    from captum.attr import DeepLift

    method, rows = DeepLift(model), torch.tensor(X)
    baseline = torch.zeros(1, FEATURES)

    def work() -> list[torch.Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # captum says at every call that it sets hooks
            return [
                method.attribute(part, baselines=baseline, target=0) for part in rows.split(4096)
            ]

    return work


def predictor(model: nn.Module) -> Callable[[np.ndarray], np.ndarray]:
    @torch.no_grad()
    def predict(X: np.ndarray) -> np.ndarray:
        return model(torch.tensor(np.asarray(X, dtype=np.float32)))[:, 0].numpy()

    return predict


def kernel_shap(model: nn.Module, X: np.ndarray, background: np.ndarray) -> Callable[[], object]:
    import shap

    method = shap.KernelExplainer(predictor(model), background)
    return lambda: method.shap_values(X, silent=True)


def global_effects(model: nn.Module, X: np.ndarray, background: np.ndarray) -> Callable[[], object]:
    import effector

    method = effector.PDP(background, predictor(model), nof_instances=len(background))

    def work() -> list[np.ndarray]:
        return [method.eval(feature, X[:, feature]) for feature in range(FEATURES)]

    return work


# ---------------------------------------------------------------------- measuring


def turns(
    ways: dict[str, tuple[Callable[[], object], int]], *, repeats: int
) -> dict[str, list[float]]:
    """Seconds per row of every way, taken in turn after a warm-up."""
    for name, (work, _) in ways.items():
        progress(f"warming up: {name}")
        work()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats):
        progress(f"round {turn + 1} of {repeats}")
        for name, (work, rows) in ways.items():
            times[name].append(seconds(work) / rows)
    return times


def extra_memory(compiled: Functions, X: np.ndarray, threads: int | None) -> float:
    """Most memory held beside the output, in MB, while all rows are explained."""
    tracemalloc.start()
    explanation = compiled(X, threads=threads)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (peak - explanation.values.nbytes - explanation.outside.nbytes) / 1e6


def facts(explainer: NObSP, X: np.ndarray, *, name: str, threads: int | None) -> tuple[object, ...]:
    """What compiling gives: time, nodes, file, throughput."""
    start = time.perf_counter()
    compiled = explainer.compile()
    took = time.perf_counter() - start
    few = X[:20_000]
    with tempfile.TemporaryDirectory() as folder:
        compiled.save(Path(folder) / "file")
        size = (Path(folder) / "file").stat().st_size / 1e3
    compiled(few)
    speed = statistics.median(seconds(lambda: compiled(X, threads=threads)) for _ in range(3))
    nodes = sum(term.values[..., 0].size for term in compiled.tables)
    return name, took, nodes, size, len(X) * len(compiled.tables) / speed


def forward_pass(*, quick: bool) -> list[Ratio]:
    """Functions of 20 features on a million rows, against running the network once over these."""
    rows, repeats = (100_000, 2) if quick else (1_000_000, 5)
    generator = torch.Generator().manual_seed(SEED)
    X = torch.randn(rows, MANY, generator=generator)
    y = (
        torch.sin(2 * X[:, :1])
        + X[:, 1:2].abs()
        + X[:, 2:] @ torch.linspace(-1, 1, MANY - 2)[:, None]
    )
    model = feed_forward(MANY, HIDDEN, 1, seed=SEED)
    model = train(model, X[:4000], y[:4000], seed=SEED, epochs=5).float().eval()
    compiled = NObSP(model, interactions=0).fit(X[:4000]).compile()
    array = X.numpy()

    @torch.no_grad()
    def forward() -> None:
        for part in X.split(4096):
            model(part)

    ways: dict[str, tuple[Callable[[], object], int]] = {
        "calibrate": (lambda: NObSP(model, interactions=0).fit(X), 1),
        "explain": (lambda: compiled(array, threads=1), 1),
        "forward": (forward, 1),
    }
    times = turns(ways, repeats=repeats)
    what = f"the functions of {rows:,} rows × {MANY} features"
    against = "one forward pass over them"
    return [
        raced(
            f"calibrate {what}",
            times["calibrate"],
            against,
            times["forward"],
            target=1.5,
            cost=True,
        ),
        raced(
            f"read {what} from tables",
            times["explain"],
            against,
            times["forward"],
            target=1.5,
            cost=True,
        ),
    ]


def everyone(
    model: nn.Module,
    explainer: NObSP,
    X: np.ndarray,
    calibration: np.ndarray,
    *,
    some: int,
    few: int,
    threads: int,
) -> dict[str, tuple[Callable[[], object], int]]:
    """Every way with the rows it is timed on; those that are slow get fewer."""
    compiled, double = explainer.compile(), X.astype(np.float64)
    at = min(some, MOST_EFFECTS)
    return {
        f"compiled, float64, threads: {threads}": (
            lambda: compiled(double, threads=threads),
            len(X),
        ),
        f"compiled, float32, threads: {threads}": (lambda: compiled(X, threads=threads), len(X)),
        "compiled, float64, one thread": (lambda: compiled(double, threads=1), len(X)),
        UNCOMPILED: (lambda: explainer(X[:some]), some),
        GRADIENTS: (integrated_gradients(model, X[:some]), some),
        DEEP_LIFT: (deep_lift(model, X[:some]), some),
        EFFECTS: (global_effects(model, X[:at], calibration[:1000]), at),
        SHAP: (kernel_shap(model, X[:few], calibration[:100]), few),
    }


def ratios(*, quick: bool) -> list[Ratio]:
    """For the table of all speeds."""
    threads = len(os.sched_getaffinity(0))
    rows, some, few = (100_000, 1_000, 2) if quick else (1_000_000, 10_000, 10)
    X, _ = problem(rows, SEED + 1)
    calibration, _ = problem(4000, SEED + 2)
    model = network(nn.ReLU)
    ways = everyone(
        model,
        NObSP(model, interactions=0).fit(calibration),
        X,
        calibration,
        some=some,
        few=few,
        threads=threads,
    )
    times = turns(ways, repeats=2 if quick else 5)
    ours = times[next(iter(times))]
    asked = 2e7
    what = f"explain {rows:,} rows × {FEATURES} features, compiled, threads: {threads}"
    speed = tuple(FEATURES / t / asked for t in ours)
    given = f"{FEATURES / statistics.median(ours):.1e} features/s"
    found = [Ratio(what, given, "the 2e7 features/s asked for", speed, 1.0)]
    for name, target in (
        (SHAP, 1000),
        (GRADIENTS, 20),
        (DEEP_LIFT, None),
        (EFFECTS, None),
        (UNCOMPILED, None),
    ):
        said = f"{name}, {ways[name][1]:,} rows"
        found.append(
            raced("one row, all features, compiled", ours, said, times[name], target=target)
        )
    return found + forward_pass(quick=quick)


def main() -> None:
    chosen = options(__doc__.splitlines()[0], threads=True).parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    threads = chosen.threads or len(os.sched_getaffinity(0))
    rows, repeats = (100_000, 2) if chosen.quick else (1_000_000, 5)
    some = 2_000 if chosen.quick else 20_000
    few = 2 if chosen.quick else 20
    X, _ = problem(rows, SEED + 1)
    calibration, _ = problem(4000, SEED + 2)
    double = X.astype(np.float64)
    model = network(nn.ReLU)
    explainer = NObSP(model, interactions=0).fit(calibration)
    compiled = explainer.compile()
    ways = everyone(model, explainer, X, calibration, some=some, few=few, threads=threads)
    times = turns(ways, repeats=repeats)
    first = next(iter(times))
    medians = {name: statistics.median(values) for name, values in times.items()}
    longer = {
        name: statistics.median(a / b for a, b in zip(values, times[first], strict=True))
        for name, values in times.items()
    }
    speeds = Table(
        "One row, all features",
        (
            Column("way"),
            Column("rows timed", ","),
            Column("µs a row", ".4g"),
            Column("features/s", ".2e"),
            Column("times", ",.1f"),
        ),
        tuple((n, ways[n][1], 1e6 * medians[n], FEATURES / medians[n], longer[n]) for n in ways),
        "Times: how many times as long as the first way, medians over turns. Building an explainer is not counted.",
    )
    interacting = {
        "ReLU, singles": explainer,
        "ReLU, two pairs": NObSP(model, interactions=PAIRS).fit(calibration),
        "SiLU, singles": NObSP(network(nn.SiLU), interactions=0).fit(calibration),
    }
    progress("compiling other networks")
    compiling = Table(
        "Compiling, and what comes out",
        (
            Column("network and terms"),
            Column("s", ".2f"),
            Column("nodes", ","),
            Column("file, kB", ".0f"),
            Column("terms/s", ".2e"),
        ),
        tuple(facts(e, double, name=name, threads=threads) for name, e in interacting.items()),
        "Compiling measures the bands and hands over the tables: nothing is approximated a second time.",
    )
    memory = extra_memory(compiled, double, threads)
    report = Report(
        name="speed-compiled",
        title=f"Explaining {rows:,} rows × {FEATURES} features without the network",
        tables=(speeds, compiling),
        findings=(
            f"Compiled tables give {FEATURES / medians[first]:.1e} feature evaluations a second, threads: {threads} "
            "(target: 2e7 on two cores).",
            f"Per row, Kernel SHAP takes {longer[SHAP]:,.0f} times as long (target: 1,000), Integrated Gradients "
            f"{longer[GRADIENTS]:,.0f} times (target: 20).",
            f"Beside the output, explaining holds {memory:.1f} MB at most.",
        ),
        seeds=(SEED, SEED + 1, SEED + 2),
        settings={"rows": rows, "features": FEATURES, "hidden": HIDDEN, "repeats": repeats},
        packages=("captum", "shap", "effector"),
    )
    publish(report, chosen)


if __name__ == "__main__":
    main()
