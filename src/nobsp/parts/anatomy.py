"""A network taken apart: its stream, its parts, and what each adds to the outputs of a batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from nobsp.parts.layout import Layout, find_layout
from nobsp.parts.names import Part, Source, merge_blocks, name_parts, name_units
from nobsp.parts.operations import is_linear, is_weighted
from nobsp.parts.slopes import Segment, find_segments, gradients, pull_back, run_segments
from nobsp.parts.stream import Graph, Join, Stream, find_stream
from nobsp.parts.tape import Step, Tape

Detail = Literal["auto", "layers", "blocks", "units"]
# Points of the integrals: more of them are taken for rows whose residual is above the tolerance.
POINTS = (8, 32)
# The residual that is allowed, as a share of how far calibration rows are from the base.
TOLERANCE = 2e-3


class NoPartsError(ValueError):
    """The network cannot be taken apart."""


@dataclass(frozen=True, eq=False)
class Account:
    """What the parts of a batch add up to, in float64."""

    contributions: Tensor  # (rows, parts, outputs)
    # (rows, outputs); the same for all rows unless each has a mask or length of its own
    base: Tensor
    outputs: Tensor  # (rows, outputs)

    @property
    def residual(self) -> Tensor:
        """What is missed, (rows, outputs)."""
        return self.outputs - self.base - self.contributions.sum(1)


@dataclass(frozen=True, eq=False)
class Means:
    """Calibration means of what parts are made of, by number on the tape, with rows taken out."""

    values: Mapping[int, Tensor]


@dataclass(frozen=True, eq=False)
class Anatomy:
    """How a network is put together; the same for all batches."""

    stream: Stream
    parts: tuple[Part, ...]
    layouts: Mapping[int, Layout]
    # from each sum to the stream of the next, and from the last to the outputs
    ways: tuple[tuple[Segment, ...], ...]
    tail: tuple[Segment, ...]
    joins: tuple[tuple[int, ...], ...]  # per sum the steps that add its terms
    heads: Mapping[int, Segment]  # from the heads of a layer to what it adds to the stream
    start: int  # where the stream begins
    probe: Tape  # the forward pass that was looked at

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The tensors that parts are slices of."""
        pieces = [source for part in self.parts for source, _ in part.pieces]
        return tuple(dict.fromkeys(pieces))

    @property
    def terms(self) -> tuple[int, ...]:
        """The tensors whose means make the reference."""
        branches = [branch.value for join in self.stream.joins for branch in join.branches]
        stem = [self.start] if self.start not in {join.value for join in self.stream.joins} else []
        return (*stem, *branches)

    def require_same(self, tape: Tape) -> None:
        """An error where a batch was computed along another way."""
        _require_same_steps(self.probe, tape)

    def means(self, tapes: Iterable[Tape]) -> Means:
        """Calibration means over all batches."""
        sums: dict[int, Tensor] = {}
        rows = 0
        numbers = {*self.terms, *(source.value for source in self.sources)}
        for tape in tapes:
            self.require_same(tape)
            rows += tape.asked
            for number in numbers:
                asked = self.by_rows(tape, number)[: tape.asked]
                total = asked.to(torch.float64).sum(0)
                sums[number] = sums[number] + total if number in sums else total
        return Means({number: total / rows for number, total in sums.items()})

    def by_rows(self, tape: Tape, number: int) -> Tensor:
        """A tensor of a batch with rows first."""
        return self.layouts[number].by_rows(tape.values[number], tape.rows)

    def expand(self, tape: Tape, number: int, means: Means) -> Tensor:
        """The mean of a tensor, for every row of a batch."""
        value = tape.values[number]
        mean = means.values[number].to(value.dtype)
        return self.layouts[number].restore(mean.expand(tape.rows, *mean.shape)).clone()

    def references(self, tape: Tape, means: Means) -> dict[int, Tensor]:
        """The stream with every part at its mean, station by station."""
        references: dict[int, Tensor] = {}
        if self.start in self.terms:
            references[self.start] = self.expand(tape, self.start, means)
        before = self.start
        for position, join in enumerate(self.stream.joins):
            if join.trunk is not None:
                stations = run_segments(tape, self.ways[position], references[before])
                references.update(stations)
            references[join.value] = self._add_means(tape, position, references, means)
            before = join.value
        references.update(run_segments(tape, self.tail, references[before]))
        return references

    def _add_means(
        self, tape: Tape, position: int, references: Mapping[int, Tensor], means: Means
    ) -> Tensor:
        """A sum whose branches are at their means."""
        join = self.stream.joins[position]
        terms = {branch.value: self.expand(tape, branch.value, means) for branch in join.branches}
        if join.trunk is not None:
            terms[join.trunk] = references[join.trunk]
        return tape.rerun(terms, join.value, self.joins[position])

    @cached_property
    def has_masks(self) -> bool:
        """Whether masks, lengths or positions of a row's own lead the stream to the outputs.

        Whole numbers and truth values made of the input are such, and all that is made of them.
        """
        tape = self.probe
        made_of_input = {tape.source}
        for step in tape.steps:
            if any(number in made_of_input for number in step.inputs):
                made_of_input.update(step.outputs)

        segments = [*self.tail, *(segment for way in self.ways for segment in way)]
        pieces = [(frozenset([segment.start]), segment.plan) for segment in segments]
        for join, plan in zip(self.stream.joins, self.joins, strict=True):
            pieces.append((frozenset(_terms_of(join)), plan))
        return any(_reads_beside(tape, starts, plan, made_of_input) for starts, plan in pieces)

    def base(self, tape: Tape, means: Means) -> Tensor:
        """All outputs with every part at its mean, (rows, outputs)."""
        return _flat(self.references(tape, means)[self.stream.output], tape)

    def account(
        self, tape: Tape, means: Means, columns: Tensor, calibration_change: Tensor
    ) -> Account:
        """Contributions to chosen outputs of each row.

        Whether an integral takes more points is decided for each row and output by itself, so that
        an account does not depend on the rows beside it.

        Args:
            tape: The batch.
            means: Of the calibration rows.
            columns: The chosen outputs of each row, (rows, chosen outputs).
            calibration_change: How far calibration rows are from the base, (chosen outputs,).
        """
        references = self.references(tape, means)
        chosen = _choose(tape.values[self.stream.output], columns)
        base = _choose(references[self.stream.output], columns)
        allowed = TOLERANCE * calibration_change.to(chosen)

        fewest, *finer = POINTS
        contributions = self._contributions(tape, means, references, columns, fewest)
        for points in finer:
            missed = (chosen - base - contributions.sum(1)).abs() > allowed
            if not bool(missed.any()):
                break
            refined = self._contributions(tape, means, references, columns, points)
            contributions = torch.where(missed.unsqueeze(1), refined, contributions)
        asked = slice(tape.asked)
        return Account(contributions[asked], base[asked], chosen[asked])

    def outputs(self, tape: Tape) -> Tensor:
        """All outputs, (rows, outputs), in float64."""
        return _flat(tape.values[self.stream.output], tape)

    def _contributions(
        self,
        tape: Tape,
        means: Means,
        references: Mapping[int, Tensor],
        columns: Tensor,
        points: int,
    ) -> Tensor:
        by_source: dict[Source, Tensor] = {}
        slopes = _unit_slopes(tape.values[self.stream.output], columns)
        slopes = pull_back(tape, self.tail, references, slopes, points)
        for position in range(len(self.stream.joins) - 1, -1, -1):
            join = self.stream.joins[position]
            of_terms = self._slopes_of_terms(tape, position, slopes)
            for branch in join.branches:
                self._add_sources(tape, means, branch.value, of_terms[branch.value], by_source)
            if join.trunk is not None:
                slopes = pull_back(
                    tape, self.ways[position], references, of_terms[join.trunk], points
                )
        if self.start in self.terms:
            self._add_sources(tape, means, self.start, slopes, by_source)

        return torch.stack(
            [
                torch.stack([by_source[source][:, number] for source, number in part.pieces]).sum(0)
                for part in self.parts
            ],
            dim=1,
        )

    def _slopes_of_terms(self, tape: Tape, position: int, slopes: Tensor) -> dict[int, Tensor]:
        """Slopes of a sum as slopes of its terms."""
        join = self.stream.joins[position]
        numbers = _terms_of(join)
        values = [tape.values[number] for number in numbers]
        shape = tape.values[join.value].shape
        steps = [tape.steps[step] for step in self.joins[position]]
        if all(value.shape == shape for value in values) and _only_adds(steps):
            return dict.fromkeys(numbers, slopes)

        with torch.enable_grad():
            terms = [value.detach().requires_grad_() for value in values]
            replaced = dict(zip(numbers, terms, strict=True))
            result = tape.rerun(replaced, join.value, self.joins[position])
        pulled = [
            torch.autograd.grad(result, terms, weights.to(result.dtype), retain_graph=True)
            for weights in slopes
        ]
        return {
            number: torch.stack([gradient[rank] for gradient in pulled])
            for rank, number in enumerate(numbers)
        }

    def _add_sources(
        self,
        tape: Tape,
        means: Means,
        term: int,
        slopes: Tensor,
        by_source: dict[Source, Tensor],
    ) -> None:
        """Contributions (rows, slices, outputs) of all that one term of the stream is made of."""
        for source in self.sources:
            if source.term != term:
                continue
            own = slopes
            if source.value != term:
                segment = self.heads[source.value]
                own = gradients(tape, segment, tape.values[source.value], slopes)
            mean = means.values[source.value]
            change = self.by_rows(tape, source.value).to(torch.float64) - mean
            layout = self.layouts[source.value]
            per_output = [
                source.slices(layout.by_rows(weights, tape.rows).to(torch.float64) * change).sum(2)
                for weights in own
            ]
            by_source[source] = torch.stack(per_output, dim=2)

    def ablate(self, tape: Tape, means: Means, part: Part) -> Tensor:
        """All outputs with a part at its mean, through the whole network, (rows, outputs)."""
        replaced: dict[int, Tensor] = {}
        for source, number in part.pieces:
            layout = self.layouts[source.value]
            value = replaced.get(source.value, tape.values[source.value])
            by_rows = layout.by_rows(value, tape.rows).clone()
            slices = source.slices(by_rows)
            mean = means.values[source.value].to(value.dtype)
            at_mean = source.slices(mean.expand_as(by_rows))
            mask = torch.zeros_like(slices, dtype=torch.bool)
            mask[:, number] = True
            marked = _unslice(source, torch.where(mask, at_mean, slices), by_rows)
            replaced[source.value] = layout.restore(marked)
        # A later piece of the part is replaced too, whatever the earlier ones make of it.
        return _flat(tape.rerun(replaced, self.stream.output), tape)

    def screen(self, tape: Tape, means: Means, columns: Tensor) -> Tensor:
        """First-order guesses of what putting parts at their means does.

        Their shape is (rows, parts, chosen outputs).
        """
        with torch.enable_grad():
            shifts = {
                source.value: torch.zeros_like(tape.values[source.value]).requires_grad_()
                for source in self.sources
            }
            chosen = _choose(tape.rerun_shifted(shifts, self.stream.output), columns)
        guesses = []
        for position in range(chosen.shape[1]):
            chosen_output = torch.zeros_like(chosen)
            chosen_output[:, position] = 1.0
            slopes = torch.autograd.grad(
                chosen, list(shifts.values()), chosen_output, retain_graph=True, allow_unused=True
            )
            guesses.append(self._first_order(tape, means, dict(zip(shifts, slopes, strict=True))))
        return torch.stack(guesses, dim=2)[: tape.asked]

    def _first_order(self, tape: Tape, means: Means, slopes: Mapping[int, Tensor | None]) -> Tensor:
        by_source = {}
        for source in self.sources:
            layout = self.layouts[source.value]
            change = self.by_rows(tape, source.value) - means.values[source.value]
            slope = slopes[source.value]
            weights = (
                torch.zeros_like(change) if slope is None else layout.by_rows(slope, tape.rows)
            )
            by_source[source] = source.slices(weights * change).sum(2).to(torch.float64)
        return torch.stack(
            [
                torch.stack([by_source[source][:, number] for source, number in part.pieces]).sum(0)
                for part in self.parts
            ],
            dim=1,
        )

    def lens(self, tape: Tape, means: Means, position: int) -> Tensor:
        """All outputs (rows, outputs) with every part behind a sum at its mean.

        With position −1, the embedding alone is left.
        """
        first = self.start if position < 0 else self.stream.joins[position].value
        stations = {first: tape.values[first]}
        before = first
        for number in range(position + 1, len(self.stream.joins)):
            join = self.stream.joins[number]
            if join.trunk is not None:
                stations.update(run_segments(tape, self.ways[number], stations[before]))
            stations[join.value] = self._add_means(tape, number, stations, means)
            before = join.value
        stations.update(run_segments(tape, self.tail, stations[before]))
        return _flat(stations[self.stream.output], tape)


def find_usual_rows(record: Callable[[Tensor], Tape], batches: Iterable[Tensor]) -> Tensor:
    """Two rows beside which the model takes the same steps for all batches, if there are such.

    Some models look into the batch: language models build no mask where no row is padded. Beside a
    padded row they do for all.
    """
    usual = None
    for batch in batches:
        # Each pass is given a copy: a model may write into its input.
        if usual is None:
            usual = batch[:2].clone()
            steps = record(usual.clone())
            if not steps.asks:
                break
        others = record(batch.clone())
        if steps.same_steps(others) or steps.same_steps(record(torch.cat([usual, batch]))):
            continue
        pairs = (torch.cat([row, usual[:1]]) for row in batch.unsqueeze(1))
        pair = next((pair for pair in pairs if record(pair.clone()).same_steps(others)), None)
        if pair is None:
            break
        usual, steps = pair, record(pair.clone())
    assert usual is not None, "there is at least one batch"
    return usual


def dissect(record: Callable[[Tensor], Tape], rows: Tensor, detail: Detail) -> Anatomy:
    """Finds stream and parts of a network from its first rows."""
    two = record(rows[torch.tensor([0, 1])])
    flipped = record(rows[torch.tensor([1, 0])])
    three = record(rows[torch.tensor([0, 1, 0])])
    _require_same_steps(two, three)
    _require_same_steps(two, flipped)

    stream = find_stream(two)
    graph = Graph(two, stream.active)
    _require_repeatable(graph, stream)
    if stream.joins and detail != "units":
        parts = name_parts(stream, split_heads=detail == "auto")
        start = stream.joins[0].value if stream.stem is None else stream.stem
    else:
        parts, start = _units(graph, stream)
        stream = Stream((), stream.output, stream.active, "", "")
    if detail == "blocks":
        parts = merge_blocks(parts)

    last = stream.joins[-1].value if stream.joins else start
    anatomy = Anatomy(
        stream=stream,
        parts=parts,
        layouts={},
        ways=_ways_between_joins(graph, stream, start),
        tail=find_segments(graph, last, stream.output),
        joins=tuple(two.plan(frozenset(_terms_of(join)), join.value) for join in stream.joins),
        heads=_segments_of_heads(two, parts),
        start=start,
        probe=two,
    )
    return _with_layouts(anatomy, three, flipped)


def _require_same_steps(tape: Tape, other: Tape) -> None:
    """An error where two batches were computed along two ways, which names where they part."""
    layer = tape.layer_of_other_steps(other)
    if layer is not None:
        place = f"in {layer!r}" if layer else "outside its layers"
        raise NoPartsError(
            f"the forward pass takes other steps for other rows, first {place}, so that no part "
            "can be followed through all of them; pass a model whose steps do not depend on the "
            "data. If it makes masks for padded rows only, X or background of explain_parts needs "
            "such a row."
        )


def _ways_between_joins(
    graph: Graph, stream: Stream, start: int
) -> tuple[tuple[Segment, ...], ...]:
    """The trunk's own steps from each place where something is added to the next."""
    ways = []
    before = start
    for join in stream.joins:
        trunk = before if join.trunk is None else join.trunk
        ways.append(find_segments(graph, before, trunk))
        before = join.value
    return tuple(ways)


def _segments_of_heads(tape: Tape, parts: Sequence[Part]) -> dict[int, Segment]:
    """For heads told apart before they are projected, the steps from there to what they add."""
    segments = {}
    for part in parts:
        for source, _ in part.pieces:
            if source.value != source.term:
                plan = tape.plan(frozenset([source.value]), source.term)
                segments[source.value] = Segment(source.value, source.term, "linear", plan)
    return segments


def _require_repeatable(graph: Graph, stream: Stream) -> None:
    """An error where running the steps again does not give what the model gave."""
    tape = graph.tape
    begins = {number: tape.values[number] for number in stream.active if not graph.parents(number)}
    again = tape.rerun(begins, stream.output)
    output = tape.values[stream.output]
    size = output.abs().max().clamp_min(1e-30)
    if not bool(((again - output).abs() <= 1e-3 * size).all()):
        raise NoPartsError(
            "the forward pass writes into tensors in a way that cannot be followed: its steps, run "
            "again, give other outputs. Pass a model that makes new tensors where it writes into "
            "slices."
        )


def _with_layouts(anatomy: Anatomy, three: Tape, flipped: Tape) -> Anatomy:
    """The same, with where rows lie; an error names the layer where they cannot be told apart."""
    two = anatomy.probe
    numbers = {*anatomy.terms, *(source.value for source in anatomy.sources)}
    layouts = {}
    for number in numbers:
        layout = find_layout(two.values[number], three.values[number], flipped.values[number])
        if layout is None:
            module = Graph(two, anatomy.stream.active).module_of(number)
            raise NoPartsError(
                f"the stream ends at {module!r}: a tensor of shape "
                f"{tuple(two.values[number].shape)} for two rows, in which rows cannot be told "
                "apart."
            )
        layouts[number] = layout
    output = two.values[anatomy.stream.output]
    if output.ndim == 0 or output.shape[0] != two.rows:
        raise NoPartsError(
            f"the outputs of two rows, or what target takes from them, have the shape "
            f"{tuple(output.shape)}; rows must come first."
        )
    return replace(anatomy, layouts=layouts)


def _units(graph: Graph, stream: Stream) -> tuple[tuple[Part, ...], int]:
    """The units that enter the last layer with weights, and the tensor they are."""
    value = stream.output
    while True:
        step = graph.step(value)
        if step is None or not is_linear(step, graph.active):
            name = "the input" if step is None else f"{step.module!r} ({step.name})"
            raise NoPartsError(
                f"the outputs are linear in no layer: the stream ends at {name}, where nothing is "
                "added and no weights follow. Pass a model that ends in a linear layer."
            )
        parent = graph.parents(value)[0]
        if is_weighted(step):
            break
        value = parent

    shape = graph.tape.values[parent].shape
    is_map = len(shape) > 2 and "conv" in step.name
    axis = 1 if is_map else len(shape) - 1
    kind = "channel" if is_map else "unit"
    source = Source(parent, parent, join=-1, unit_axis=axis, count=int(shape[axis]))
    return name_units(source, kind, step.module), parent


def _reads_beside(
    tape: Tape, starts: Collection[int], plan: Iterable[int], made_of_input: Collection[int]
) -> bool:
    """Whether steps read what is made of the input in other ways than from their starts."""
    followed = set(starts)
    for position in plan:
        step = tape.steps[position]
        followed.update(step.outputs)
        if any(number in made_of_input and number not in followed for number in step.inputs):
            return True
    return False


def _terms_of(join: Join) -> tuple[int, ...]:
    trunk = () if join.trunk is None else (join.trunk,)
    return (*trunk, *(branch.value for branch in join.branches))


def _only_adds(steps: Iterable[Step]) -> bool:
    return all(step.name == "add" for step in steps)


def _unslice(source: Source, slices: Tensor, like: Tensor) -> Tensor:
    """Undoes `Source.slices`."""
    if source.heads is not None:
        shape = like.shape
        if source.heads.merged:
            shape = torch.unflatten(like, 1, (-1, source.count)).shape
        sizes = [size for axis, size in enumerate(shape) if axis not in (0, 2)]
        moved = torch.unflatten(slices, 2, sizes)
        return moved.movedim(1, 2).reshape(like.shape)
    if source.unit_axis is not None:
        axis = source.unit_axis + 1
        sizes = [size for position, size in enumerate(like.shape) if position not in (0, axis)]
        return torch.unflatten(slices, 2, sizes).movedim(1, axis)
    return slices.reshape(like.shape)


def _flat(outputs: Tensor, tape: Tape) -> Tensor:
    """Outputs of the rows that were asked about, (rows, outputs), in float64."""
    return outputs.detach().to(torch.float64).reshape(tape.rows, -1)[: tape.asked]


def _choose(outputs: Tensor, columns: Tensor) -> Tensor:
    """Chosen outputs of each row, in float64."""
    flat = outputs.reshape(outputs.shape[0], -1).to(torch.float64)
    return flat.gather(1, columns.to(flat.device))


def _unit_slopes(outputs: Tensor, columns: Tensor) -> Tensor:
    """One at each chosen output, (chosen outputs, *shape of the outputs)."""
    rows = outputs.shape[0]
    flat = outputs.new_zeros(columns.shape[1], rows, outputs.numel() // rows)
    flat.scatter_(2, columns.to(outputs.device).T.unsqueeze(2), 1.0)
    return flat.reshape(columns.shape[1], *outputs.shape)
