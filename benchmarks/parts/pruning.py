"""Networks made smaller without retraining: unique contributions beside L1, Taylor and Torch-Pruning."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.data.files import cache_folder
from benchmarks.parts.networks import Subject, makers
from benchmarks.report import Column, Report, Spread, Table, options, progress, publish, race
from nobsp.parts.groups import Group, is_transposed
from nobsp.parts.pruning import Recipe, find_groups, prune_by
from nobsp.parts.removal import Removal, keep_parts

UNIQUE = "unique + take over"
OWN_LAYER = "unique, layer by itself"
METHODS = (
    "L1, BN set anew",
    "Taylor, BN set anew",
    "Taylor + take over",
    "Torch-Pruning, BN set anew",
    OWN_LAYER,
    UNIQUE,
)
# Share of parts removed and calibration samples, by network: what two cores can do in an hour.
SHARES = {
    "resnet20": (0.5, 0.7, 0.3, 0.1),
    "resnet18": (0.5,),
    "mobilenet": (0.1, 0.3),
    "vit": (0.1, 0.3, 0.5, 0.7),
    "digits": (0.1, 0.3, 0.5, 0.7),
    "mlp": (0.1, 0.3, 0.5, 0.7),
}
SEEDS = {"resnet20": 3, "resnet18": 1, "mobilenet": 1, "vit": 1, "digits": 3, "mlp": 3}
_HELD_OUT = 0.02


def scores_by_l1(subject: Subject) -> Callable[[Group], Tensor]:
    layers = dict(subject.model.named_modules())

    def score(group: Group) -> Tensor:
        total = torch.zeros(group.count)
        for name in group.producers:
            weight = layers[name].weight.detach()
            rows = weight.T if is_transposed(layers[name]) else weight
            per_row = rows.flatten(1).abs().sum(1)
            if group.kind == "heads":
                per_row = per_row.reshape(-1, group.count, group.width).sum((0, 2))
            total += per_row
        return total

    return score


def scores_by_taylor(subject: Subject) -> Callable[[Group], Tensor]:
    """Squared sums of activation times gradient of the loss, per part, over the calibration rows."""
    model = copy.deepcopy(subject.model).eval()
    layers = dict(model.named_modules())
    groups, _ = find_groups(model, subject.calibration[:2])
    labels = subject.labels
    if subject.classes is not None:
        labels = torch.tensor(subject.classes)[labels]
    caught: dict[str, Tensor] = {}

    def catch_for(name: str) -> Callable[..., None]:
        def catch(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            args[0].retain_grad()
            caught[name] = args[0]

        return catch

    totals = {group.consumer: torch.zeros(group.count) for group in groups}
    for name in totals:
        layers[name].register_forward_pre_hook(catch_for(name))
    for rows, truth in zip(
        torch.split(subject.calibration, 64), torch.split(labels, 64), strict=True
    ):
        functional.cross_entropy(model(rows), truth, reduction="sum").backward()
        for group in groups:
            entering = caught[group.consumer]
            product = (entering * entering.grad).detach()
            if isinstance(layers[group.consumer], nn.Conv2d):
                per_row = product.sum((2, 3))
            else:
                per_row = product.reshape(len(product), -1, product.shape[-1]).sum(1)
            parts = per_row.reshape(len(per_row), group.count, -1).sum(2)
            totals[group.consumer] += parts.square().sum(0)
    return lambda group: totals[group.consumer]


def choose_by(
    score: Callable[[Group], Tensor],
) -> Callable[[Group, Tensor, Tensor, int], Removal]:
    def choose(group: Group, gram: Tensor, weight: Tensor, keep: int) -> Removal:
        alive = score(group).topk(keep).indices.sort().values
        return keep_parts(gram, weight, alive, width=group.width)

    return choose


def set_norms_anew(model: nn.Module, rows: Tensor) -> nn.Module:
    """Means and variances of batch norms from the calibration rows."""
    norms = [part for part in model.modules() if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    if norms:
        with torch.no_grad():
            for batch in torch.split(rows, 100):
                model(batch)
    return model.eval()


def by_torch_pruning(subject: Subject, share: float) -> nn.Module | None:
    """The same channels or units as ours thinned by Torch-Pruning, the better of two importances; None without it."""
    try:
        import torch_pruning
    except ImportError:
        return None
    best: tuple[float, nn.Module] | None = None
    for kind in ("GroupMagnitudeImportance", "GroupTaylorImportance"):
        model = copy.deepcopy(subject.model).eval()
        layers = dict(model.named_modules())
        ratios = {layers[name]: share for name in thinned(subject)}
        labels = subject.labels
        if subject.classes is not None:
            labels = torch.tensor(subject.classes)[labels]
        pruner = torch_pruning.pruner.BasePruner(
            model,
            subject.calibration[:1],
            importance=getattr(torch_pruning.importance, kind)(),
            pruning_ratio=0.0,
            pruning_ratio_dict=ratios,
        )
        for rows, truth in zip(
            torch.split(subject.calibration, 64), torch.split(labels, 64), strict=True
        ):
            functional.cross_entropy(model(rows), truth).backward()
        pruner.step()
        model.zero_grad()
        set_norms_anew(model, subject.calibration)
        accuracy = subject.accuracy(model)
        if best is None or accuracy > best[0]:
            best = (accuracy, model)
    assert best is not None
    return best[1]


def thinned(subject: Subject) -> list[str]:
    """Layers whose outputs may go, as ours finds them; heads are left to ours."""
    groups, _ = find_groups(subject.model, subject.calibration[:2])
    return [group.producers[0] for group in groups if group.kind != "heads"]


def thin(
    subject: Subject, method: str, share: float, taylor: Callable[[Group], Tensor]
) -> tuple[nn.Module | None, Any]:
    """A smaller network by a method."""
    keep = 1 - share
    rows = subject.calibration
    if method == UNIQUE:
        result = prune_by(subject.model, rows, keep=keep, held_out=_HELD_OUT, recipe=Recipe())
        return result.model, result
    if method == OWN_LAYER:
        recipe = Recipe(towards_whole=False, at_outputs=False)
        result = prune_by(subject.model, rows, keep=keep, held_out=_HELD_OUT, recipe=recipe)
        return result.model, result
    if method.startswith("Torch"):
        return by_torch_pruning(subject, share), None
    score = scores_by_l1(subject) if method.startswith("L1") else taylor
    takes_over = "take over" in method
    recipe = Recipe(
        towards_whole=False,
        at_outputs=False,
        choose=choose_by(score),
        takes_over=takes_over,
    )
    result = prune_by(subject.model, rows, keep=keep, held_out=_HELD_OUT, recipe=recipe)
    model = result.model
    return (model if takes_over else set_norms_anew(model, rows)), result


def latency(subject: Subject, smaller: nn.Module) -> float:
    rows = subject.test[:32]
    with torch.no_grad():
        return 1 / race(lambda: subject.model(rows), lambda: smaller(rows), repeats=5).ratio


def measure(name: str, *, quick: bool, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Accuracies by method and share, and sizes; what is found so far is kept."""
    make = makers(quick=quick)[name]()
    seeds = 1 if quick else SEEDS[name]
    subjects = [make(seed) for seed in range(seeds)]
    taylor = [scores_by_taylor(subject) for subject in subjects]
    whole = subjects[0].accuracy(subjects[0].model)
    found: dict[str, Any] = {
        "name": subjects[0].name,
        "whole": whole,
        "accuracy": {},
        "sizes": {},
    }
    for share in (0.5,) if quick else SHARES[name]:
        for seed, subject in enumerate(subjects):
            for method in METHODS:
                began = time.monotonic()
                model, result = thin(subject, method, share, taylor[seed])
                accuracy = None if model is None else subject.accuracy(model)
                found["accuracy"].setdefault(f"{share}", {}).setdefault(method, []).append(accuracy)
                seconds = time.monotonic() - began
                progress(f"{subject.name}, {share:.0%}, {method}: {accuracy} ({seconds:.0f} s)")
                if method == UNIQUE and seed == 0 and model is not None:
                    found["sizes"][f"{share}"] = {
                        "parameters": result.parameters.ratio,
                        "multiplications": result.multiplications.ratio,
                        "latency": latency(subject, model),
                        "seconds": seconds,
                    }
            if all(method in found["accuracy"][f"{share}"] for method in METHODS):
                keep(found)
    return found


def tables_of(found: dict[str, Any]) -> list[Table]:
    lines = []
    for share, by_method in sorted(found["accuracy"].items()):
        if share not in found["sizes"]:
            continue  # a run that was not finished
        cells: list[Any] = [f"{float(share):.0%}"]
        for method in METHODS:
            values = by_method.get(method, [])
            known = tuple(value for value in values if value is not None)
            cells.append(Spread(known) if len(known) > 1 else (known[0] if known else "–"))
        size = found["sizes"][share]
        cells += [size["parameters"], size["multiplications"], size["latency"]]
        lines.append(tuple(cells))
    columns = (
        Column("removed"),
        *(Column(method, ".3f") for method in METHODS),
        Column("parameters left", ".2f"),
        Column("multiplications left", ".2f"),
        Column("time left", ".2f"),
    )
    title = f"{found['name']}: {found['whole']:.3f} with nothing removed"
    return [Table(title, columns, tuple(lines))]


def _keep(path: Path | None, found: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(found), encoding="utf-8")


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=tuple(SHARES), help="one network; kept for a later run")
    parser.add_argument("--reuse", action="store_true", help="take what earlier runs have kept")
    chosen = parser.parse_args()
    kept = cache_folder() / "prune"
    kept.mkdir(parents=True, exist_ok=True)
    tables: list[Table] = []
    not_run: list[str] = []
    for name in (chosen.only,) if chosen.only else SHARES:
        path = Path(kept / f"{name}.json")
        if chosen.reuse:
            if not path.is_file():
                not_run.append(name)
                continue
            found = json.loads(path.read_text(encoding="utf-8"))
        else:
            keep = partial(_keep, None if chosen.quick else path)
            found = measure(name, quick=chosen.quick, keep=keep)
        tables += tables_of(found)
        done = {float(share) for share in found["sizes"]}
        not_run += [f"{name} at {share:.0%}" for share in SHARES[name] if share not in done]
    report = Report(
        name="prune",
        title="Networks made smaller without retraining",
        tables=tuple(tables),
        findings=(
            "Accuracy on test images (rows) after a share of inner channels, units and heads was removed from every "
            "layer. Unique contributions with the rest taking over, fitted to what the whole network gives and ranked "
            "by the cost at its outputs, beside the same layer by layer alone, and rivals. L1 and Taylor rank parts, "
            "batch norms are set anew on the calibration images; Torch-Pruning is the better of its magnitude and "
            "Taylor importances on the same layers, without heads.",
            "Times are ratios of medians of five forward passes of 32 rows beside other work on both cores; of the two "
            "smallest networks they say nothing.",
            *([f"Not run: {', '.join(not_run)}."] if not_run else []),
        ),
        seeds=(0, 1, 2),
        settings={
            "calibration": "400 images (ResNets, ViT), 200 (MobileNetV2), 2,000 rows (MLP); unlabelled for ours",
            "samples": ", ".join(f"{name} {count}" for name, count in SEEDS.items()),
        },
        packages=("torchvision",),
    )
    if chosen.only:
        for table in tables:
            print(table.text())
        return
    publish(report, chosen)


if __name__ == "__main__":
    main()
