"""A forward pass written down by operations, so that pieces can be rerun with other tensors.

What is recorded is what torch computes, not the source of the model: any model that runs can be
followed, whatever its layers are called. Running a piece again is differentiable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nobsp.network.guest import DispatchMode, Visit

# These take the shape of a tensor and nothing else.
_SHAPES = frozenset(
    [
        "new_zeros",
        "new_ones",
        "new_empty",
        "new_full",
        "new_empty_strided",
        "zeros_like",
        "ones_like",
        "empty_like",
        "full_like",
        "rand_like",
        "randn_like",
    ]
)
# With these a model learns what is in a tensor, and may go another way by it.
_QUESTIONS = frozenset(
    ["_local_scalar_dense", "is_nonzero", "equal", "allclose", "_is_all_true", "_is_any_true"]
)


@dataclass(frozen=True)
class Slot:
    """A tensor among the arguments of a step, by its number on the tape."""

    number: int


@dataclass(frozen=True, eq=False)
class Step:
    """One operation."""

    operation: Any  # torch's operator
    args: tuple[Any, ...]  # with slots in the place of tensors
    kwargs: Mapping[str, Any]
    inputs: tuple[int, ...]  # numbers of the tensors whose values it reads
    outputs: tuple[int, ...]  # numbers of the tensors it returns, or writes
    written: tuple[int, ...]  # positions of the arguments that it writes
    module: str  # the layer that ran it

    @property
    def name(self) -> str:
        """The operator's name without its variant, nor the mark of those that write their input."""
        packet: str = self.operation._overloadpacket.__name__
        return packet if packet.startswith("_") else packet.removesuffix("_")

    def run(self, read: Callable[[int], Tensor]) -> tuple[Tensor, ...]:
        """What it returns; an argument that it writes is copied first."""
        args = [_fill(argument, read) for argument in self.args]
        kwargs = {name: _fill(argument, read) for name, argument in self.kwargs.items()}
        for position in self.written:
            args[position] = args[position].clone()
        result = self.operation(*args, **kwargs)
        if self.written:
            return tuple(args[position] for position in self.written)
        return tuple(_tensors_of(result))


@dataclass(frozen=True, eq=False)
class Tape:
    """The steps of one forward pass on a batch, and every tensor in it."""

    steps: tuple[Step, ...]
    values: tuple[Tensor, ...]  # by number, as they were when they were made
    source: int  # the number of the input
    output: int  # the number of what is explained
    rows: int  # how many there are in the batch
    beside: int = 0  # the last of them that only make the model take its usual steps

    @property
    def asked(self) -> int:
        """How many rows were asked about: all but those beside."""
        return self.rows - self.beside

    @cached_property
    def producer(self) -> dict[int, int]:
        """The step that makes each tensor; none for the input and for weights."""
        return {
            number: position for position, step in enumerate(self.steps) for number in step.outputs
        }

    def plan(self, starts: frozenset[int], stop: int) -> tuple[int, ...]:
        """The steps that lead from some tensors to another."""
        dirty = set(starts)
        downstream = []
        for position, step in enumerate(self.steps):
            if any(number in dirty for number in step.inputs):
                outputs = [number for number in step.outputs if number not in starts]
                dirty.update(outputs)
                downstream.append(position)

        needed = {stop} - starts
        steps = []
        for position in reversed(downstream):
            step = self.steps[position]
            if any(number in needed for number in step.outputs):
                needed.update(
                    number for number in step.inputs if number in dirty and number not in starts
                )
                steps.append(position)
        return tuple(reversed(steps))

    def rerun(
        self, replaced: Mapping[int, Tensor], stop: int, plan: Sequence[int] | None = None
    ) -> Tensor:
        """The tensor `stop` with others in the place of some that came before."""
        if plan is None:
            plan = self.plan(frozenset(replaced), stop)
        changed = {
            number: _laid_out_like(tensor, self.values[number])
            for number, tensor in replaced.items()
        }

        def read(number: int) -> Tensor:
            return changed[number] if number in changed else self.values[number]

        for position in plan:
            step = self.steps[position]
            # Recurrent layers return one more tensor at their end where gradients are wanted.
            for number, tensor in zip(step.outputs, step.run(read), strict=False):
                if number not in replaced:
                    changed[number] = tensor
        return read(stop)

    def rerun_shifted(self, shifts: Mapping[int, Tensor], stop: int) -> Tensor:
        """The tensor `stop` when `shifts` are added to other tensors.

        Each shift is added to its tensor as the shifts before it leave it.
        """
        changed: dict[int, Tensor] = {}

        def read(number: int) -> Tensor:
            return changed[number] if number in changed else self.values[number]

        for number, shift in shifts.items():
            if number not in self.producer:
                changed[number] = self.values[number] + shift
        for step in self.steps:
            moved = any(number in changed for number in step.inputs)
            results = step.run(read) if moved else ()
            changed.update(zip(step.outputs, results, strict=False))
            for number in step.outputs:
                if number in shifts:
                    changed[number] = read(number) + shifts[number]
        return read(stop)

    @property
    def asks(self) -> bool:
        """Whether the model may have chosen its steps by what is in tensors."""
        return any(step.name in _QUESTIONS for step in self.steps)

    def same_steps(self, other: Tape) -> bool:
        """Whether another batch was computed in the same way."""
        return self.layer_of_other_steps(other) is None

    def layer_of_other_steps(self, other: Tape) -> str | None:
        """The layer in which another batch first took another step; None where none did."""
        for mine, theirs in zip_longest(self.steps, other.steps):
            if mine is None or theirs is None:
                return str((mine or theirs).module)
            is_same = (
                mine.operation is theirs.operation
                and mine.inputs == theirs.inputs
                and mine.outputs == theirs.outputs
            )
            if not is_same:
                return str(mine.module)
        return None


class EveryStepSeen(TorchFunctionMode):
    """Keeps torch from its fast path for transformers, one operation that hides the layers.

    Torch does not take that path where calls are watched. Its switch would be one for all threads.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The result of the call."""
        return func(*args, **(kwargs or {}))


@contextmanager
def recording(visit: Visit, model: nn.Module) -> Iterator[Callable[..., Tape]]:
    """Hands out `record(x, choose)`, which gives the tape of a forward pass.

    `choose` takes what is explained from the result of the pass.
    """
    layers: list[str] = []
    with ExitStack() as observers:
        for name, part in model.named_modules():
            enter = partial(_enter, layers, name)
            leave = partial(_leave, layers)
            observers.enter_context(visit.observing(part, "input", enter))
            observers.enter_context(visit.observing(part, "output", leave))

        def record(x: Tensor, choose: Callable[[Any], Tensor]) -> Tape:
            layers.clear()
            recorder = _Recorder(x, layers)
            with EveryStepSeen(), torch.no_grad(), recorder:
                output = choose(visit(x))
            return recorder.tape(output, rows=len(x))

        yield record


def _enter(layers: list[str], name: str, *_: Any) -> None:
    layers.append(name)


def _leave(layers: list[str], *_: Any) -> None:
    if layers:
        layers.pop()


@dataclass(eq=False)
class _Values:
    """Tensors by number; each is held, so that no other gets its identity."""

    numbers: dict[int, int] = field(default_factory=dict)
    held: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    by_memory: dict[int, list[Tensor]] = field(default_factory=dict)

    def whole_of(self, tensor: Tensor) -> list[Tensor]:
        """Other tensors in whose memory a tensor lies."""
        if tensor.layout != torch.strided:
            return []
        return [
            other
            for other in self.by_memory.get(_memory_of(tensor), ())
            if other is not tensor and other.is_contiguous() and other.numel() >= tensor.numel()
        ]

    def number(self, tensor: Tensor) -> int:
        """The number of a tensor, a new one where it was not seen before."""
        known = self.numbers.get(id(tensor))
        return self.add(tensor) if known is None else known

    def add(self, tensor: Tensor) -> int:
        """A new number for a tensor, which may have had another."""
        if id(tensor) not in self.numbers and tensor.layout == torch.strided:
            self.by_memory.setdefault(_memory_of(tensor), []).append(tensor)
        self.numbers[id(tensor)] = len(self.values)
        self.held.append(tensor)
        self.values.append(tensor.detach())
        return len(self.values) - 1


class _Recorder(DispatchMode):
    """Writes down every operation."""

    def __init__(self, source: Tensor, layers: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._layers = layers
        self._steps: list[Step] = []
        self._values = _Values()
        self._source = self._values.add(source)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim" or func._overloadpacket.__name__ == "detach":
            return self._pass_on(func, args, kwargs)

        inputs: list[int] = []
        slots = tuple(_swap(argument, self._slot, inputs) for argument in args)
        named_slots = {
            name: _swap(argument, self._slot, inputs) for name, argument in kwargs.items()
        }
        written = _written_arguments(func, len(args))
        aliases = [
            (position, other)
            for position in written
            for other in self._values.whole_of(args[position])
        ]
        self._keep_values([args[position] for position in written])
        self._keep_values([other for _, other in aliases])

        result = func(*args, **kwargs)
        tensors = [args[position] for position in written] or _tensors_of(result)
        outputs = tuple(self._values.add(tensor) for tensor in tensors)
        module = self._layers[-1] if self._layers else ""
        if func._overloadpacket.__name__ in _SHAPES:
            inputs.clear()
        self._steps.append(Step(func, slots, named_slots, tuple(inputs), outputs, written, module))
        for position, other in aliases:
            self._write_through(args[position], other, module)
        return result

    def _keep_values(self, tensors: Sequence[Tensor]) -> None:
        """Keeps what tensors hold before they are written, under their old numbers."""
        for tensor in tensors:
            number = self._values.number(tensor)
            self._values.values[number] = tensor.detach().clone()

    def _write_through(self, tensor: Tensor, other: Tensor, module: str) -> None:
        """A step for what writing into a slice does to the tensor that it is a slice of."""
        before = self._values.number(other)
        source = self._values.number(tensor)
        offset = tensor.storage_offset() - other.storage_offset()
        args = (Slot(before), Slot(source), list(tensor.shape), list(tensor.stride()), offset)
        after = self._values.add(other)
        scatter = torch.ops.aten.as_strided_scatter.default
        self._steps.append(Step(scatter, args, {}, (before, source), (after,), (), module))

    def _pass_on(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A second name for the same tensor is no step."""
        result = func(*args, **kwargs)
        if args and isinstance(args[0], Tensor) and isinstance(result, Tensor):
            number = self._values.number(args[0])
            self._values.numbers[id(result)] = number
            self._values.held.append(result)
        return result

    def _slot(self, tensor: Tensor, inputs: list[int]) -> Slot:
        number = self._values.number(tensor)
        inputs.append(number)
        return Slot(number)

    def tape(self, output: Tensor, *, rows: int) -> Tape:
        """What was recorded."""
        return Tape(
            steps=tuple(self._steps),
            values=tuple(self._values.values),
            source=self._source,
            output=self._values.number(output),
            rows=rows,
        )


def _memory_of(tensor: Tensor) -> int:
    """Where the memory begins that a tensor lies in."""
    return tensor.untyped_storage().data_ptr()


def _laid_out_like(tensor: Tensor, template: Tensor) -> Tensor:
    """The same numbers in the same order of memory as another tensor: views depend on it."""
    if tensor.stride() == template.stride():
        return tensor
    laid_out = torch.empty_strided(
        template.shape, template.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return laid_out.copy_(tensor)


def _written_arguments(func: Any, n_passed: int) -> tuple[int, ...]:
    """Positions of arguments that an operation writes."""
    arguments = func._schema.arguments[:n_passed]
    return tuple(
        position
        for position, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _swap(argument: Any, slot: Callable[..., Slot], inputs: list[int]) -> Any:
    """An argument with slots in the place of tensors."""
    if isinstance(argument, Tensor):
        return slot(argument, inputs)
    if isinstance(argument, list | tuple):
        return [_swap(item, slot, inputs) for item in argument]
    return argument


def _fill(argument: Any, read: Callable[[int], Tensor]) -> Any:
    """An argument with tensors in the place of slots."""
    if isinstance(argument, Slot):
        return read(argument.number)
    if isinstance(argument, list):
        return [_fill(item, read) for item in argument]
    return argument


def _tensors_of(result: Any) -> list[Tensor]:
    """The tensors that an operation returns."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, list | tuple):
        return [tensor for item in result for tensor in _tensors_of(item)]
    return []
