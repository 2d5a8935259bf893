"""Finds the stream that a head reads, and the parts that write into it, by what is added to what.

A tensor through which everything passes on the way from the input to the output is a *waypoint*.
Where a waypoint is a sum, its terms are parts: the term that is closest to the waypoint before is
the stream itself and is followed further back, the others are branches (an attention layer, an MLP,
the layers of a residual block).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nobsp.parts.operations import (
    active_values,
    is_attention,
    is_join,
    is_linear,
    is_link,
    is_lookup,
    is_pointwise,
    is_product,
    is_weighted,
)
from nobsp.parts.tape import Step, Tape

_SOFTMAX = ("_softmax", "_safe_softmax", "softmax")


@dataclass(frozen=True)
class Branch:
    """A term of a sum that writes into the stream."""

    value: int  # the number of what it adds
    module: str  # the layer it comes from
    block: str  # the layer that adds it to the stream
    attends: bool = False  # whether there is attention in it
    heads: Heads | None = None  # where it is attention whose output can be split


@dataclass(frozen=True)
class Heads:
    """Attention before its output projection, which is linear."""

    # the number of the heads' outputs: (…, heads, tokens, width), or heads inside the first axis
    value: int
    count: int
    merged: bool = False  # whether rows and heads share the first axis


@dataclass(frozen=True)
class Join:
    """A sum through which everything passes."""

    value: int
    branches: tuple[Branch, ...]
    trunk: int | None  # the term that is the stream before; None where the stream begins here


@dataclass(frozen=True)
class Stream:
    """The sums from the first to the last, and what each part of them is called."""

    joins: tuple[Join, ...]
    output: int  # the number of the outputs
    active: frozenset[int]
    # why it was not followed further back; empty where it was followed to the input
    end: str
    end_module: str

    @property
    def stem(self) -> int | None:
        """The number of what the first sum finds in the stream: the embedding."""
        return self.joins[0].trunk if self.joins else None


def find_stream(tape: Tape) -> Stream:
    """The stream of a forward pass; without any sum where the network is a plain one."""
    active = active_values(tape)
    output = _before_link(tape, active)
    graph = Graph(tape, active)
    waypoints = graph.waypoints(output)
    joins: list[Join] = []
    end = ""
    end_module = ""
    for position in range(len(waypoints) - 1, 0, -1):
        value = waypoints[position]
        before = waypoints[position - 1]
        terms = graph.terms(value, before)
        if len(terms) < 2 or graph.kind(before, value) == "linear":
            continue
        if joins and not graph.can_follow(value, _trunk_of(joins[-1])):
            end = "more than one layer stands between two sums"
            end_module = graph.module_of(_trunk_of(joins[-1]))
            break

        trunk = graph.choose_trunk(terms, before)
        if trunk is None and not _may_begin(graph, value, output):
            if joins:
                end = "no term of what is put together there is simpler than the others"
                end_module = graph.module_of(value)
            break
        branches = tuple(graph.branch(term, value, before) for term in terms if term != trunk)
        joins.append(Join(value, branches, trunk))
        if trunk is None:
            # Members of an ensemble begin at the input: nothing is left before them.
            if before in tape.producer:
                end = "no term of the sum is simpler than the others"
                end_module = graph.module_of(value)
            break
    has_stem = bool(joins) and joins[-1].trunk is not None
    if has_stem and not end and graph.is_made_by_layers(waypoints[0]):
        end = "several ways lead there from the input"
        end_module = graph.module_of(_trunk_of(joins[-1]))
    return Stream(tuple(reversed(joins)), output, active, end, end_module)


def _trunk_of(join: Join) -> int:
    return join.value if join.trunk is None else join.trunk


def _may_begin(graph: Graph, value: int, output: int) -> bool:
    """Whether a sum without a stream before it counts.

    Tensors put beside each other count only where all else is linear.
    """
    step = graph.step(value)
    if step is not None and step.name == "add":
        return True
    steps = graph.tape.plan(frozenset([value]), output)
    return all(is_linear(graph.tape.steps[number], graph.active) for number in steps)


def _before_link(tape: Tape, active: frozenset[int]) -> int:
    """The logits, where the model ends in a softmax or a sigmoid."""
    value = tape.output
    while value in tape.producer:
        step = tape.steps[tape.producer[value]]
        is_last_link = is_link(step)
        if not is_last_link and step.name not in ("view", "squeeze", "reshape", "select"):
            return tape.output
        value = next((number for number in step.inputs if number in active), -1)
        if is_last_link:
            return value
    return tape.output


@dataclass(frozen=True, eq=False)
class Graph:
    """What is computed from what."""

    tape: Tape
    active: frozenset[int]

    def step(self, value: int) -> Step | None:
        """The operation that makes a tensor."""
        position = self.tape.producer.get(value)
        return None if position is None else self.tape.steps[position]

    def parents(self, value: int) -> tuple[int, ...]:
        """The tensors of the input's that a tensor is made of."""
        step = self.step(value)
        if step is None:
            return ()
        return tuple(dict.fromkeys(number for number in step.inputs if number in self.active))

    def ancestors(self, value: int, stops: Iterable[int] = ()) -> list[int]:
        """A tensor and all it is made of, in the order of the tape; nothing behind the stops."""
        known = {value}
        waiting = [value]
        halt = set(stops)
        while waiting:
            number = waiting.pop()
            if number in halt:
                continue
            for parent in self.parents(number):
                if parent not in known:
                    known.add(parent)
                    waiting.append(parent)
        return sorted(known)

    def waypoints(self, output: int, start: int | None = None) -> list[int]:
        """Tensors through which everything passes on the way to the output.

        In the order of the tape, a tensor is one exactly where no step reads something from before
        it to make something after it.
        """
        order = self.ancestors(output, () if start is None else (start,))
        position = {number: rank for rank, number in enumerate(order)}
        furthest = list(range(len(order)))
        begins = []
        for number in order:
            parents = [parent for parent in self.parents(number) if parent in position]
            if number == start or not parents:
                begins.append(position[number])
                continue
            for parent in parents:
                rank = position[parent]
                furthest[rank] = max(furthest[rank], position[number])

        passed_by_all = []
        # Where there are several beginnings, nothing before the last of them is passed by all.
        reach = max(begins)
        for rank, number in enumerate(order):
            if rank >= reach:
                passed_by_all.append(number)
            reach = max(reach, furthest[rank])
        return passed_by_all

    def terms(self, value: int, before: int) -> list[int]:
        """The terms of a sum; those of sums inside it too, as far as nothing else reads these."""
        step = self.step(value)
        if step is None or value == before or not is_join(step, self.active):
            return [value]
        if step.name != "add":
            return [number for number in step.inputs if number in self.active]

        terms = []
        for number in step.inputs:
            if number not in self.active:
                continue
            inner = self.step(number)
            nested = inner is not None and inner.name == "add" and number != before
            terms += self.terms(number, before) if nested else [number]
        # x + x is one part, twice; who is who could not be told.
        return terms if len(set(terms)) == len(terms) else [value]

    def choose_trunk(self, terms: Sequence[int], before: int) -> int | None:
        """The term with the fewest weights, and then steps, since the waypoint before.

        None where two are alike.
        """
        costs = [self._cost(term, before) for term in terms]
        cheapest = min(costs)
        if costs.count(cheapest) > 1:
            return None
        others = [cost[0] for cost in costs if cost != cheapest]
        # Members of an ensemble are all made of the input, none of them is what the others are
        # added to.
        if before not in self.tape.producer and cheapest[0] == min(others):
            return None
        return terms[costs.index(cheapest)]

    def _cost(self, term: int, before: int) -> tuple[int, int]:
        ancestors = [number for number in self.ancestors(term, (before,)) if number != before]
        steps = {self.tape.producer[number] for number in ancestors if number in self.tape.producer}
        weighted = sum(is_weighted(self.tape.steps[position]) for position in steps)
        return weighted, len(steps)

    def can_follow(self, start: int, stop: int) -> bool:
        """Whether at most one step from a sum to the next one's stream is not linear.

        Such a step is a norm, for example.
        """
        if stop == start:
            return True
        if start not in self.ancestors(stop, (start,)):
            return False
        bends = [pair for pair in self.segments(start, stop) if self.kind(*pair) != "linear"]
        weighted = sum(
            is_weighted(self.tape.steps[position])
            for position in self.tape.plan(frozenset([start]), stop)
        )
        return len(bends) <= 1 or weighted <= 1

    def segments(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The way from one tensor to another, from waypoint to waypoint."""
        if start == stop:
            return []
        way = [start, *(number for number in self.waypoints(stop, start) if number != start)]
        return list(pairwise(way))

    def is_made_by_layers(self, value: int) -> bool:
        """Whether layers with weights, other than tables that are looked up, come before it."""
        steps = (self.step(number) for number in self.ancestors(value))
        return any(step is not None and is_weighted(step) and not is_lookup(step) for step in steps)

    def kind(self, start: int, stop: int) -> str:
        """Whether a segment is "linear", "pointwise" or "other"."""
        steps = [self.tape.steps[position] for position in self.tape.plan(frozenset([start]), stop)]
        if all(is_linear(step, self.active, jointly=True) for step in steps):
            return "linear"
        if len(steps) == 1 and is_pointwise(steps[0]):
            return "pointwise"
        return "other"

    def branch(self, term: int, join: int, before: int) -> Branch:
        """A term of a sum, its layer, and its heads where it has some."""
        return Branch(
            value=term,
            module=self._writer_of(term, self.module_of(join)),
            block=self.module_of(join),
            attends=any(self._attends(number) for number in self.ancestors(term, (before,))),
            heads=self.heads_behind(term),
        )

    def _attends(self, value: int) -> bool:
        """Whether a tensor is what attention makes: values, mixed by weights from a softmax.

        A softmax whose numbers are only multiplied one by one with others is no attention: so
        routers weigh experts.
        """
        step = self.step(value)
        if step is None:
            return False
        if is_attention(step):
            return True
        mixed = self.parents(value)
        return is_product(step) and len(mixed) > 1 and any(map(self._is_behind_softmax, mixed))

    def _is_behind_softmax(self, value: int) -> bool:
        """Whether a softmax leads to a tensor, with no layer between."""
        waiting = [value]
        seen = {value}
        while waiting:
            number = waiting.pop()
            step = self.step(number)
            if step is None or is_weighted(step):
                continue
            if step.name in _SOFTMAX:
                return True
            more = [parent for parent in self.parents(number) if parent not in seen]
            seen.update(more)
            waiting += more
        return False

    def module_of(self, value: int) -> str:
        """The layer that made a tensor; of one that was only reshaped, the layer before."""
        step = self.step(value)
        return "" if step is None else str(step.module)

    def _writer_of(self, term: int, adder: str) -> str:
        """The layer that made a term.

        Scales of its channels, and reshaping by the layer that adds it, are looked through.
        """
        value = term
        while True:
            step = self.step(value)
            parents = self.parents(value)
            is_passed = step is not None and (
                step.name == "mul" or (step.module == adder and not is_weighted(step))
            )
            if not is_passed or len(parents) != 1 or parents[0] not in self.tape.producer:
                return self.module_of(value)
            value = parents[0]

    def heads_behind(self, term: int) -> Heads | None:
        """Heads of attention that reach a tensor by linear steps only."""
        value = term
        while True:
            step = self.step(value)
            if step is None:
                return None
            if is_attention(step) and step.outputs[0] == value:
                shape = self.tape.values[value].shape
                return Heads(value, count=int(shape[1])) if len(shape) == 4 else None
            weights = self._softmax_behind(step.inputs[0]) if step.name == "bmm" else None
            if weights is not None:
                return self._heads_of_product(value, weights)
            if not is_linear(step, self.active):
                return None
            value = self.parents(value)[0]

    def _heads_of_product(self, product: int, weights: int) -> Heads | None:
        """Heads of attention written as a product, (rows × heads, tokens, width).

        The product is that of weights and values.
        """
        first = int(self.tape.values[product].shape[0])
        shape = self.tape.values[weights].shape
        if len(shape) == 4 and shape[0] * shape[1] == first:
            return Heads(product, count=int(shape[1]), merged=True)
        rows = self.tape.rows
        if first % rows or first == rows:
            return None
        return Heads(product, count=first // rows, merged=True)

    def _softmax_behind(self, value: int) -> int | None:
        """The softmax that a tensor is, reshaped or cast."""
        while True:
            step = self.step(value)
            if step is None:
                return None
            if step.name in _SOFTMAX:
                return value
            if not is_linear(step, self.active):
                return None
            value = self.parents(value)[0]
