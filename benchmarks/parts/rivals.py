"""Other ways to make networks smaller: by L1 norm, by Taylor's importance, and Torch-Pruning."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.parts.networks import Labelled, Subject
from nobsp.parts.groups import Group, is_transposed
from nobsp.parts.pruning import Choose, Recipe, find_groups, prune_by

Score: TypeAlias = Callable[[Group], Tensor]
# Rows that a removal without any fit is given: none is looked at.
_FEW_ROWS = 12


def scores_by_l1(subject: Subject) -> Score:
    """Sums of absolute weights of the layers that make a part."""
    layers = dict(subject.model.named_modules())

    def score(group: Group) -> Tensor:
        total = torch.zeros(group.count)
        for name in group.producers:
            weight = layers[name].weight.detach()
            rows = weight.T if is_transposed(layers[name]) else weight
            per_row = rows.flatten(1).abs().sum(1)
            if group.of_heads:
                # Keys and values that several heads share have fewer rows for a part.
                width = min(group.width, len(per_row) // group.count)
                per_row = per_row.reshape(-1, group.count, width).sum((0, 2))
            total += per_row
        return total

    return score


def scores_by_taylor(subject: Subject) -> Score:
    """Squared sums of activation times gradient of the loss, per part, over the calibration rows."""
    model = copy.deepcopy(subject.model).eval()
    layers = dict(model.named_modules())
    groups, _ = find_groups(model, subject.calibration.rows[:2])
    caught: dict[str, Tensor] = {}

    def catch_for(name: str) -> Callable[..., None]:
        def catch(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            args[0].retain_grad()
            caught[name] = args[0]

        return catch

    totals = {group.consumer: torch.zeros(group.count) for group in groups}
    for name in totals:
        layers[name].register_forward_pre_hook(catch_for(name))
    for rows, labels in numbered(subject, subject.calibration).batches(64):
        functional.cross_entropy(model(rows), labels, reduction="sum").backward()
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


def numbered(subject: Subject, labelled: Labelled) -> Labelled:
    """The same with labels as numbers of the network's outputs."""
    if subject.classes is None:
        return labelled
    return Labelled(labelled.rows, torch.tensor(subject.classes)[labelled.labels])


def without_fit(subject: Subject, share: float, score: Score) -> nn.Module:
    """Parts of the smallest score go, and batch norms are set anew."""

    recipe = Recipe(towards_whole=False, at_outputs=False, choose=_largest(score), takes_over=False)
    rows = subject.calibration.rows[:_FEW_ROWS]
    model = prune_by(subject.model, rows, keep=1 - share, recipe=recipe).model
    return set_norms_anew(model, subject.calibration.rows)


def with_take_over(subject: Subject, share: float, score: Score, held_out: float) -> nn.Module:
    """Parts of the smallest score go, and the others take over as ours do."""

    recipe = Recipe(towards_whole=False, at_outputs=False, choose=_largest(score))
    rows = subject.calibration.rows
    return prune_by(subject.model, rows, keep=1 - share, held_out=held_out, recipe=recipe).model


def _largest(score: Score) -> Choose:
    return lambda group, keep: score(group).topk(keep).indices.sort().values


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
    for norm in norms:
        norm.momentum = 0.1
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
        pruner = torch_pruning.pruner.BasePruner(
            model,
            subject.calibration.rows[:1],
            importance=getattr(torch_pruning.importance, kind)(),
            pruning_ratio=0.0,
            pruning_ratio_dict={layers[name]: share for name in _thinned(subject)},
        )
        for rows, labels in numbered(subject, subject.calibration).batches(64):
            functional.cross_entropy(model(rows), labels).backward()
        pruner.step()
        model.zero_grad()
        set_norms_anew(model, subject.calibration.rows)
        accuracy = subject.accuracy(model, subject.choosing)
        if best is None or accuracy > best[0]:
            best = (accuracy, model)
    assert best is not None
    return best[1]


def _thinned(subject: Subject) -> list[str]:
    """Layers whose outputs may go, as ours finds them; heads are left to ours."""
    groups, _ = find_groups(subject.model, subject.calibration.rows[:2])
    return [group.producers[0] for group in groups if not group.of_heads]


def heads_of(subject: Subject) -> list[str]:
    """Layers that read heads."""
    groups, _ = find_groups(subject.model, subject.calibration.rows[:2])
    return [group.consumer for group in groups if group.of_heads]
