"""Mean slopes of outputs along the stream.

With u a tensor of the stream and r its reference, what a piece g of the network makes of both
differs by exactly

    g(u) − g(r) = J (u − r),    J = ∫₀¹ ∂g(r + a (u − r)) da.

Where g is linear, J is its derivative anywhere; where it changes number by number, J is the slope
of a chord; elsewhere (norms, necks) the integral is Gauss and Legendre's. Multiplied from the
output backwards, these slopes carry every part of the stream to the outputs, and the parts add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nobsp.numerics import gauss_legendre
from nobsp.parts.stream import Graph
from nobsp.parts.tape import Tape

# Chords shorter than this share of the numbers at their ends are taken for tangents,
_SHORT = 1e-6
# and so are those that rise by no more than so many roundings of what is at their ends.
_ROUNDINGS = 16


@dataclass(frozen=True)
class Segment:
    """A piece of the way from one tensor to another."""

    start: int
    stop: int
    kind: str  # "linear", "pointwise" or "integral"
    plan: tuple[int, ...]  # its steps on the tape


def find_segments(graph: Graph, start: int, stop: int) -> tuple[Segment, ...]:
    """The way from one tensor to another, piece by piece.

    Slopes of each piece are means between its own two ends.
    """
    pairs = graph.segments(start, stop)
    kinds = [graph.kind(*pair) for pair in pairs]
    return tuple(
        Segment(
            start=begin,
            stop=end,
            kind="integral" if kind == "other" else kind,
            plan=graph.tape.plan(frozenset([begin]), end),
        )
        for (begin, end), kind in zip(pairs, kinds, strict=True)
    )


def run_segments(tape: Tape, segments: Sequence[Segment], start: Tensor) -> dict[int, Tensor]:
    """What the way makes of a tensor at each of its stations."""
    stations = {}
    tensor = start
    for segment in segments:
        stations[segment.start] = tensor
        tensor = tape.rerun({segment.start: tensor}, segment.stop, segment.plan)
        stations[segment.stop] = tensor
    return stations


def pull_back(
    tape: Tape,
    segments: Sequence[Segment],
    references: Mapping[int, Tensor],
    slopes: Tensor,
    points: int,
) -> Tensor:
    """Slopes (outputs, *shape) by the end of a way, turned into slopes by its start."""
    for segment in reversed(segments):
        reference = references[segment.start]
        if segment.kind == "linear":
            slopes = gradients(tape, segment, tape.values[segment.start], slopes)
        elif segment.kind == "pointwise":
            slopes = slopes * _chord(tape, segment, reference, references[segment.stop])
        else:
            slopes = _integrate(tape, segment, reference, slopes, points)
    return slopes


def gradients(tape: Tape, segment: Segment, at: Tensor, slopes: Tensor) -> Tensor:
    """Slopes times the derivative of a segment at one point."""
    with torch.enable_grad():
        point = at.detach().requires_grad_()
        result = tape.rerun({segment.start: point}, segment.stop, segment.plan)
    pulled: list[Tensor] = []
    for weights in slopes.to(result.dtype):
        (gradient,) = torch.autograd.grad(result, point, weights, retain_graph=True)
        pulled.append(gradient)
    return torch.stack(pulled)


def _integrate(
    tape: Tape, segment: Segment, reference: Tensor, slopes: Tensor, points: int
) -> Tensor:
    """Slopes times the mean derivative between the reference and the value."""
    nodes, shares = gauss_legendre(points)
    change = tape.values[segment.start] - reference
    total = torch.zeros_like(change)
    for node, share in zip(nodes.tolist(), shares.tolist(), strict=True):
        total = total + share * gradients(tape, segment, reference + node * change, slopes)
    return total


def _chord(tape: Tape, segment: Segment, reference: Tensor, reference_after: Tensor) -> Tensor:
    """(g(u) − g(r)) / (u − r), number by number.

    Where u and r are nearly the same, or g(u) and g(r) are, the quotient would be rounding, and the
    slope between them is taken. Each number is looked at by itself: rows do not change each other.
    """
    value = tape.values[segment.start]
    after = tape.values[segment.stop]
    change = value - reference
    rise = after - reference_after
    tangent = gradients(
        tape, segment, (value + reference) / 2, torch.ones_like(after).unsqueeze(0)
    )[0]
    # A slope of nothing halfway does not make a rise small: ReLU has one below zero.
    largest_rise = torch.maximum(rise.abs(), (tangent * change).abs())
    rounding = _ROUNDINGS * torch.finfo(after.dtype).eps
    is_short = (change.abs() <= _SHORT * _larger(value, reference)) | (
        largest_rise <= rounding * _larger(after, reference_after)
    )
    return torch.where(is_short, tangent, rise / torch.where(is_short, 1.0, change))


def _larger(value: Tensor, other: Tensor) -> Tensor:
    """The larger of two tensors' sizes, number by number."""
    return torch.maximum(value.abs(), other.abs())
