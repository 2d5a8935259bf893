"""Shares a budget out over layers by what each removal costs at the outputs."""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from nobsp.parts.groups import Group, n_outputs, weight_of
from nobsp.parts.surgery import matrix_of, shrink, take_over


@dataclass(frozen=True, eq=False)
class Curve:
    """What taking parts out of a layer costs, one after another."""

    group: Group
    costs: tuple[float, ...]


@dataclass(frozen=True)
class _Step:
    """Parts of one layer that go together: the slope of its convex hull."""

    slope: float
    group: int
    parts: int


def share_out(
    model: nn.Module,
    row: Tensor,
    curves: Sequence[Curve],
    *,
    budget: float,
    budget_of: Literal["multiplications", "parameters"],
    measure: Callable[[nn.Module], int],
) -> list[int]:
    """How many parts of each layer stay, so that the whole keeps within `budget`.

    The budget is a share of what the whole takes now.

    Args:
        model: The whole network.
        row: One row that it runs on.
        curves: What removals cost, layer by layer.
        budget: The share that may stay.
        budget_of: What is counted.
        measure: Counts it in a network.
    """
    sizes = _sizes(model, row, budget_of)
    groups = [curve.group for curve in curves]
    steps = sorted(
        (
            step
            for number, curve in enumerate(curves)
            for step in _hull(curve, number, _saved_by_a_part(curve.group, sizes))
        ),
        key=lambda step: step.slope,
    )
    order = [step.group for step in steps for _ in range(step.parts)]
    total = measure(model)

    def counts_after(removals: int) -> list[int]:
        gone = Counter(order[:removals])
        return [group.count - gone[number] for number, group in enumerate(groups)]

    def keeps_within(removals: int) -> bool:
        counts = counts_after(removals)
        try:
            left = measure(_without_parts(model, groups, counts))
        except (RuntimeError, ValueError, TypeError, AttributeError):
            # Some layer does not take fewer parts, and stays whole in the end.
            return _left(sizes, groups, counts) <= budget * sum(sizes.values())
        return left <= budget * total

    # The more parts go, the less is left: the fewest removals are found by halving.
    fewest = bisect_left(range(len(order)), True, key=keeps_within)
    return counts_after(fewest)


def _without_parts(model: nn.Module, groups: Sequence[Group], counts: Sequence[int]) -> nn.Module:
    """A copy of the size that is left: which parts it has does not matter."""
    small = copy.deepcopy(model)
    layers = dict(small.named_modules())
    with torch.no_grad():
        for group, count in zip(groups, counts, strict=True):
            if count == group.count:
                continue
            shrink(layers, group, torch.arange(count))
            matrix = matrix_of(layers[group.consumer])
            # Taking over may give a layer a bias, which counts too.
            take_over(layers, group, matrix, torch.zeros(matrix.shape[1], dtype=matrix.dtype))
    return small


def _hull(curve: Curve, number: int, saved: float) -> list[_Step]:
    """The lower convex hull of accumulated costs, as slopes per number that is saved."""
    heights = [0.0]
    for cost in curve.costs:
        heights.append(heights[-1] + cost)
    corners = [0]
    for position in range(1, len(heights)):
        corners.append(position)
        while len(corners) > 2 and _turns_down(heights, *corners[-3:]):
            del corners[-2]
    steps = []
    for first, last in pairwise(corners):
        parts = last - first
        slope = (heights[last] - heights[first]) / (parts * max(saved, 1e-30))
        steps.append(_Step(slope, number, parts))
    return steps


def _turns_down(heights: Sequence[float], first: int, middle: int, last: int) -> bool:
    before = (heights[middle] - heights[first]) * (last - middle)
    after = (heights[last] - heights[middle]) * (middle - first)
    return before >= after


def _sizes(model: nn.Module, row: Tensor, budget_of: str) -> Counter[str]:
    """Multiplications or parameters of every layer with weights."""
    sizes: Counter[str] = Counter()
    handles = []
    for name, layer in model.named_modules():
        weight = getattr(layer, "weight", None)
        if not isinstance(weight, Tensor) or weight.ndim < 2 or any(layer.children()):
            continue

        def hook(part: nn.Module, _: object, leaving: Tensor, name: str = name) -> None:
            positions = leaving.numel() // n_outputs(part)
            repeats = positions if budget_of == "multiplications" else 1
            sizes[name] += weight_of(part).numel() * repeats

        handles.append(layer.register_forward_hook(hook))
    try:
        with torch.no_grad():
            model(row.clone())
    finally:
        for handle in handles:
            handle.remove()
    return sizes


def _saved_by_a_part(group: Group, sizes: Counter[str]) -> float:
    names = (group.consumer, *group.producers, *group.channelwise)
    return sum(sizes[name] for name in set(names)) / group.count


def _left(sizes: Counter[str], groups: Sequence[Group], counts: Sequence[int]) -> float:
    """What all layers take with fewer parts.

    Layers that make parts shrink, and so do those that read them.
    """
    shares = dict.fromkeys(sizes, 1.0)
    for group, count in zip(groups, counts, strict=True):
        for name in {group.consumer, *group.producers, *group.channelwise}:
            if name in shares:
                shares[name] *= count / group.count
    return sum(sizes[name] * share for name, share in shares.items())
