"""Networks made smaller without retraining: unique contributions beside L1, Taylor and Torch-Pruning."""

from __future__ import annotations

import copy
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks import kept
from benchmarks.parts.networks import Subject, makers
from benchmarks.parts.rivals import (
    Score,
    by_torch_pruning,
    heads_of,
    numbered,
    scores_by_l1,
    scores_by_taylor,
    with_take_over,
    without_fit,
)
from benchmarks.report import Column, Report, Spread, Table, options, progress, publish, race
from nobsp.parts.pruned import Pruned
from nobsp.parts.pruning import Recipe, prune_by

L1 = "L1, BN set anew"
TAYLOR = "Taylor, BN set anew"
TAYLOR_TAKES_OVER = "Taylor + take over"
TORCH_PRUNING = "Torch-Pruning, BN set anew"
OWN_LAYER = "unique, layer by itself"
UNIQUE = "unique + take over"
RIVALS = (L1, TAYLOR, TAYLOR_TAKES_OVER, TORCH_PRUNING)
METHODS = (*RIVALS, OWN_LAYER, UNIQUE)
# Torch-Pruning leaves heads alone; this does too, so that what is left is of one size.
HEADS_WHOLE = "unique + take over, heads whole"
_HELD_OUT = 0.02
# The code that kept results depend on.
_CODE = (
    "parts/pruning.py",
    "parts/moments.py",
    "parts/removal.py",
    "parts/surgery.py",
    "parts/groups.py",
)


@dataclass(frozen=True)
class Plan:
    """What is measured of a network: what two cores can do in the time there is."""

    shares: tuple[float, ...]
    seeds: int = 3
    methods: tuple[str, ...] = METHODS
    retrained: tuple[
        float, ...
    ] = ()  # shares after which one epoch of training follows, first sample only
    rates: tuple[float, ...] = (0.01,)  # its learning rates; the best is chosen on other rows
    version: int = 1
    timed: bool = (
        True  # passes of the smallest networks are too short to be timed beside other work
    )


_RATES = (0.01, 0.003, 0.001)
PLANS = {
    "mlp": Plan((0.1, 0.3, 0.5, 0.7), retrained=(0.5, 0.7), rates=_RATES, timed=False),
    "digits": Plan(
        (0.1, 0.3, 0.5, 0.7),
        methods=(*METHODS, HEADS_WHOLE),
        retrained=(0.5, 0.7),
        rates=_RATES,
        version=2,
        timed=False,
    ),
    "resnet20": Plan((0.5, 0.7, 0.3, 0.1), retrained=(0.5, 0.7)),
    "vit": Plan(
        (0.5, 0.7, 0.3, 0.1),
        methods=(*METHODS, HEADS_WHOLE),
        retrained=(0.5,),
        rates=_RATES,
    ),
    "mobilenet": Plan((0.3, 0.1, 0.5, 0.7), methods=(*RIVALS, UNIQUE), retrained=(0.3,)),
    "resnet18": Plan((0.5, 0.7, 0.3, 0.1), methods=(*RIVALS, UNIQUE), retrained=(0.5,)),
}


@dataclass(eq=False)
class Trial:
    """One network with one sample of calibration rows."""

    subject: Subject

    @cached_property
    def taylor(self) -> Score:
        return scores_by_taylor(self.subject)

    def smaller(self, method: str, share: float) -> tuple[nn.Module | None, Pruned | None]:
        """The network without a share of its parts, and what ours says of it."""
        subject = self.subject
        if method == TORCH_PRUNING:
            return by_torch_pruning(subject, share), None
        if method == L1:
            return without_fit(subject, share, scores_by_l1(subject)), None
        if method == TAYLOR:
            return without_fit(subject, share, self.taylor), None
        if method == TAYLOR_TAKES_OVER:
            return with_take_over(subject, share, self.taylor, _HELD_OUT), None
        recipe = Recipe(towards_whole=False, at_outputs=False) if method == OWN_LAYER else Recipe()
        rows = subject.calibration.rows
        result = prune_by(
            subject.model,
            rows,
            keep=1 - share,
            protect=heads_of(subject) if method == HEADS_WHOLE else (),
            held_out=_HELD_OUT,
            recipe=recipe,
        )
        return result.model, result

    def measure(self, method: str, share: float, plan: Plan, *, retrain: bool) -> dict[str, Any]:
        """Accuracy, change of the outputs, sizes, and accuracy after an epoch where that is asked for."""
        subject = self.subject
        # Of the processor: other work on the machine does not count.
        began = time.process_time()
        model, result = self.smaller(method, share)
        if model is None:
            return {"accuracy": None}
        seconds = time.process_time() - began
        measured: dict[str, Any] = {
            **subject.judge(model),
            "choosing": subject.accuracy(model, subject.choosing),
            "left": n_parameters(model) / n_parameters(subject.model),
            "seconds": seconds,
        }
        if result is not None:
            measured |= {
                "parameters": result.parameters.ratio,
                "multiplications": result.multiplications.ratio,
                "latency": latency(subject, model),
                "expected": result.expected_change,
            }
        if retrain:
            measured["retrained"] = {
                str(rate): self._accuracies_after_training(model, rate) for rate in plan.rates
            }
        return measured

    def _accuracies_after_training(self, model: nn.Module, rate: float) -> dict[str, float]:
        trained = train_once(self.subject, model, rate)
        return {
            "accuracy": self.subject.accuracy(trained, self.subject.test),
            "choosing": self.subject.accuracy(trained, self.subject.choosing),
        }


def n_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def train_once(subject: Subject, model: nn.Module, rate: float) -> nn.Module:
    """One epoch over the training rows, the same for all methods."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        trained = copy.deepcopy(model).train()
        for parameter in trained.parameters():
            parameter.requires_grad_(True)
        training = numbered(subject, subject.training)
        size = 64
        steps = len(training) // size
        optimizer = torch.optim.SGD(
            trained.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4, nesterov=True
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        order = torch.randperm(len(training))
        for batch in torch.split(order[: steps * size], size):
            optimizer.zero_grad()
            some = training.some(batch)
            functional.cross_entropy(trained(some.rows), some.labels).backward()
            optimizer.step()
            schedule.step()
    return trained.eval()


def _best_rate(retrained: dict[str, dict[str, float]]) -> dict[str, float]:
    return max(retrained.values(), key=lambda measured: measured["choosing"])


def latency(subject: Subject, smaller: nn.Module) -> float:
    rows = subject.test.rows[:32]
    with torch.no_grad():
        return 1 / race(lambda: subject.model(rows), lambda: smaller(rows), repeats=9).ratio


@dataclass(eq=False)
class Bench:
    """Cells of the table, kept from one run to the next."""

    results: kept.Kept
    quick: bool
    deadline: float = float("inf")  # no new cell is begun after it

    def cell_name(self, name: str, share: float, seed: int, method: str) -> str:
        return f"{name}, {share}, {seed}, {method}"

    def fingerprint(self, name: str) -> str:
        plan = PLANS[name]
        code = kept.rooms(*_CODE)
        return kept.fingerprint(plan.rates, plan.version, plan.retrained, code)

    def known(self, name: str, share: float, seed: int, method: str) -> Any:
        return self.results.get(self.cell_name(name, share, seed, method), self.fingerprint(name))

    def run(self, name: str) -> None:
        """Computes the cells of a network that are not known."""
        plan = PLANS[name]
        shares = (0.5,) if self.quick else plan.shares
        wanted = [
            (share, seed, method)
            for seed in range(1 if self.quick else plan.seeds)
            for share in shares
            for method in plan.methods
            if self.known(name, share, seed, method) is None
        ]
        whole = self.results.get(name, self.fingerprint(name))
        if whole is not None and not wanted:
            return
        make = makers(quick=self.quick)[name]()
        if whole is None:
            subject = make(0)
            about = {
                "name": subject.name,
                "accuracy": subject.accuracy(subject.model, subject.test),
                "test": len(subject.test),
                "calibration": len(subject.calibration),
                "training": len(subject.training),
            }
            self.results.put(name, self.fingerprint(name), about)
        trials: dict[int, Trial] = {}
        for share, seed, method in wanted:
            if time.monotonic() > self.deadline:
                progress("the time is up; run again for the rest")
                return
            if seed not in trials:
                trials = {seed: Trial(make(seed))}
            retrain = seed == 0 and share in plan.retrained and not self.quick
            measured = trials[seed].measure(method, share, plan, retrain=retrain)
            cell = self.cell_name(name, share, seed, method)
            self.results.put(cell, self.fingerprint(name), measured)
            progress(f"{cell}: {measured}")

    def complete_seeds(self, name: str, share: float) -> list[int]:
        """Samples of which every method is known: a mean over others would compare methods on different rows."""
        plan = PLANS[name]
        return [
            seed
            for seed in range(plan.seeds)
            if all(self.known(name, share, seed, method) is not None for method in plan.methods)
        ]

    def tables(self, name: str) -> list[Table]:
        """What is known of a network."""
        about = self.results.get(name, self.fingerprint(name))
        if about is None:
            return []
        plan = PLANS[name]
        shares = [share for share in sorted(plan.shares) if 0 in self.complete_seeds(name, share)]
        if not shares:
            return []
        told = (
            f"{about['name']}, {about['accuracy']:.3f} with nothing removed ({about['test']} test rows, "
            f"{about['calibration']} to calibrate on)"
        )
        tables = [
            self._by_method(name, shares, "accuracy", f"{told}: accuracy"),
            self._by_method(name, shares, "change", f"{about['name']}: change of the outputs"),
            self._sizes(name, shares, f"{about['name']}: what is left"),
        ]
        if HEADS_WHOLE in plan.methods:
            tables.append(
                self._by_method(name, shares, "left", f"{about['name']}: parameters left")
            )
        retrained = [share for share in shares if share in plan.retrained]
        if retrained:
            title = (
                f"{about['name']}: accuracy after one epoch over {about['training']} training rows"
            )
            tables.append(self._after_training(name, retrained, title))
        return tables

    def _after_training(self, name: str, shares: list[float], title: str) -> Table:
        """Per share a line for every learning rate, and one for the rate that other rows chose."""
        plan = PLANS[name]
        lines: list[tuple[Any, ...]] = []
        for share in shares:
            cells = [self.known(name, share, 0, method).get("retrained") for method in plan.methods]
            for rate in map(str, plan.rates):
                accuracies = ["–" if cell is None else cell[rate]["accuracy"] for cell in cells]
                lines.append((f"{share:.0%}", rate, *accuracies))
            if len(plan.rates) > 1:
                best = ["–" if cell is None else _best_rate(cell)["accuracy"] for cell in cells]
                lines.append((f"{share:.0%}", "the best of them on other rows", *best))
        columns = (
            Column("removed"),
            Column("learning rate"),
            *(Column(method, ".3f") for method in plan.methods),
        )
        return Table(title, columns, tuple(lines))

    def _by_method(self, name: str, shares: list[float], what: str, title: str) -> Table:
        methods = PLANS[name].methods
        lines = []
        for share in shares:
            cells: list[Any] = [f"{share:.0%}"]
            for method in methods:
                values = tuple(
                    cell[what]
                    for seed in self.complete_seeds(name, share)
                    if (cell := self.known(name, share, seed, method))
                    and cell.get(what) is not None
                )
                cells.append(Spread(values) if len(values) > 1 else (values[0] if values else "–"))
            lines.append(tuple(cells))
        columns = (Column("removed"), *(Column(method, ".3f") for method in methods))
        return Table(title, columns, tuple(lines))

    def _sizes(self, name: str, shares: list[float], title: str) -> Table:
        lines = []
        for share in shares:
            cell = self.known(name, share, 0, UNIQUE)
            lines.append(
                (
                    f"{share:.0%}",
                    cell["parameters"],
                    cell["multiplications"],
                    cell["latency"] if PLANS[name].timed else "–",
                    cell["seconds"],
                    cell["expected"],
                    cell["change"],
                )
            )
        columns = (
            Column("removed"),
            Column("parameters left", ".2f"),
            Column("multiplications left", ".2f"),
            Column("time left", ".2f"),
            Column("processor seconds to calibrate", ".0f"),
            Column("expected change", ".3f"),
            Column("change on test rows", ".3f"),
        )
        return Table(title, columns, tuple(lines))


def calibration_cost() -> dict[str, Any]:
    """Seconds and peak memory of one calibration of ResNet-18 in this process."""
    subject = makers(quick=True)["resnet18"]()(0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    cpu = time.process_time()
    result = prune_by(subject.model, subject.calibration.rows, keep=0.5, recipe=Recipe())
    return {
        "seconds": time.monotonic() - began,
        "cpu_seconds": time.process_time() - cpu,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "gb_before": before / 1e6,
        "threads": torch.get_num_threads(),
        "images": len(subject.calibration),
        "columns": max(layer.before * 9 for layer in result.layers),
        "load": os.getloadavg()[0],
    }


def cost_table(results: kept.Kept, bench: Bench) -> list[Table]:
    cost = results.get("calibration cost", bench.fingerprint("resnet18"))
    if cost is None:
        return []
    columns = (
        Column("network"),
        Column("threads", ".0f"),
        Column("seconds", ".0f"),
        Column("processor seconds", ".0f"),
        Column("peak memory, GB", ".2f"),
        Column("columns of the widest layer", ".0f"),
        Column("load of the machine", ".1f"),
    )
    line = (
        f"ResNet-18, {cost['images']} images, half of its parts",
        cost["threads"],
        cost["seconds"],
        cost["cpu_seconds"],
        cost["peak_gb"],
        cost["columns"],
        cost["load"],
    )
    return [Table("What a calibration costs", columns, (line,))]


def _measured_alone() -> dict[str, Any]:
    """The cost in a process of its own, with two threads."""
    script = "import json; from benchmarks.parts.pruning import calibration_cost as c; print(json.dumps(c()))"
    import json

    answer = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
        check=True,
        capture_output=True,
        text=True,
    )
    cost: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return cost


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", choices=(*PLANS, "cost"), help="one network; kept for a later run"
    )
    parser.add_argument("--minutes", type=float, help="no new cell is begun after so many minutes")
    parser.add_argument("--reuse", action="store_true", help="take what earlier runs have kept")
    chosen = parser.parse_args()
    results = kept.Kept(None if chosen.quick else kept.FOLDER / "prune.jsonl")
    minutes = float("inf") if chosen.minutes is None else chosen.minutes
    bench = Bench(results, chosen.quick, time.monotonic() + 60 * minutes)
    if not chosen.reuse:
        for name in (chosen.only,) if chosen.only in PLANS else PLANS if not chosen.only else ():
            bench.run(name)
        if chosen.only in (None, "cost") and not chosen.quick:
            results.cell("calibration cost", bench.fingerprint("resnet18"), _measured_alone)
    tables = [table for name in PLANS for table in bench.tables(name)]
    tables += cost_table(results, bench)
    if chosen.only:
        for table in tables:
            print(table.text())
        return
    publish(report_of(bench, tables), chosen)


def _not_run(bench: Bench) -> str:
    missing = []
    for name, plan in PLANS.items():
        cells = [
            bench.known(name, share, seed, method) is not None
            for share in plan.shares
            for seed in range(plan.seeds)
            for method in plan.methods
        ]
        if not all(cells):
            missing.append(f"{len(cells) - sum(cells)} of {len(cells)} cells of {name}")
    return f"Not run: {', '.join(missing)}." if missing else ""


def report_of(bench: Bench, tables: list[Table]) -> Report:
    missing = _not_run(bench)
    return Report(
        name="prune",
        title="Networks made smaller without retraining",
        tables=tuple(tables),
        findings=(
            "Accuracy on test rows after a share of inner channels, units and heads was removed from every layer, and "
            "the squared change of the outputs there as a share of their variance; means over samples of calibration "
            "rows. Unique contributions with the rest taking over, fitted to what the whole network gives and ranked "
            "by the cost at its outputs, beside the same layer by layer alone, and rivals. L1 and Taylor rank parts, "
            "batch norms are set anew on the calibration rows; Torch-Pruning is the better of its magnitude and Taylor "
            "importances on the same layers, without heads; of transformers what it leaves is therefore larger, and "
            "the last column is ours with heads left whole, of the same size.",
            "Choices between methods, Torch-Pruning's importance among them, are made on training rows that are not "
            "calibrated on. The 1,000 test images of CIFAR-10 and 200 of Imagenette that were looked at while the "
            "method was made are not among those of the tables. Adult was not looked at. How firmly weights are held "
            "while others go was chosen on another division of the digits, with another network, and on training "
            "images of ResNet-20.",
            "Time left is a ratio of medians of nine forward passes of 32 rows, one thread, beside other work; the "
            "two smallest networks are not timed. Retraining is of the first sample only: one epoch of SGD with the "
            "same settings for all. Where several learning rates are tried, the best is chosen for each method by its "
            "accuracy on rows that it was neither calibrated nor retrained on.",
            *([missing] if missing else []),
        ),
        seeds=(0, 1, 2),
        settings={
            "retraining": "SGD, Nesterov's momentum 0.9, weight decay 5e-4, batches of 64; the rate falls by a cosine",
        },
        packages=("torchvision", "torch-pruning"),
    )


if __name__ == "__main__":
    main()
