"""Opens models that come out of a file as one closed piece, so that their layers can be listened to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten


class ExportedModel(nn.Module):
    """A closed model (TorchScript, or the graph of an exported program) that computes the same, layer by layer.

    Such models run without calling any module, so nobody can hear what enters their layers. Here every operation
    is caught as it is dispatched and handed to a module of its own: a product with one of the model's matrices to
    an `nn.Linear` with that matrix, a lookup to an `nn.Embedding`, a convolution of kernel size 1 to an `nn.Conv1d` or
    `nn.Conv2d`, everything else to a `Step`. Modules are named after the weights they use.

    Args:
        closed: The model. It must take one tensor, the rows.
        example: Some rows; they are run once, to see which operations there are.

    Raises:
        ValueError: If the model cannot be run on the rows.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from nobsp.network import Readout
        >>> from nobsp.network.opened import ExportedModel
        >>> _ = torch.manual_seed(0)
        >>> model, x = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(16, 3)
        >>> program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
        >>> Readout.find(ExportedModel(program.module(), x), x)
        Readout(head='2', width=8, outputs=2, link='identity')
    """

    def __init__(self, closed: nn.Module, example: Tensor) -> None:
        super().__init__()
        # Not as a submodule: who visits a module puts its parts' modes and buffers back, and scripts do not allow that.
        self._closed = (closed,)
        # A frozen script has no parameters: its weights are constants of its graph.
        frozen = isinstance(closed, torch.jit.ScriptModule) and not any(True for _ in closed.parameters())
        self._constants = dict(_constants_of(closed.inlined_graph)) if frozen else {}
        # The module of an operation: by the weights it uses, or else by the operation and how often it came before.
        self._names: dict[tuple[Any, ...], str] = {}
        first = _Dispatched(self, rows=len(example), discover=True)
        try:
            with torch.no_grad(), first:
                closed(example)
        except (RuntimeError, IndexError, TypeError) as failure:
            said = str(failure).strip().splitlines() or [type(failure).__name__]
            shape = tuple(example.shape)
            raise ValueError(f"the model cannot be run on input of shape {shape}: {said[-1]}") from failure
        held = {tensor.data_ptr() for tensor in (*self.parameters(), *self.buffers())}
        weights = {name for name, _ in closed.named_parameters()}
        for name, tensor in self.tensors().items():
            if tensor.data_ptr() in held:
                continue
            # What the steps use: it counts when models are compared, and is moved with them.
            free = _free(self, f"used_{name.replace('.', '_')}")
            if name in weights:
                self.register_parameter(free, nn.Parameter(tensor, requires_grad=False))
            else:
                self.register_buffer(free, tensor)

    def tensors(self) -> dict[str, Tensor]:
        """The closed model's parameters, buffers and, where it is frozen, constants."""
        closed = self._closed[0]
        named = {**dict(closed.named_parameters()), **dict(closed.named_buffers()), **self._constants}
        return {name: tensor.detach() for name, tensor in named.items()}

    def forward(self, x: Tensor) -> Any:
        """What the closed model makes of the rows."""
        with _Dispatched(self, rows=len(x)):
            return self._closed[0](x)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ExportedModel:
        if self._constants:
            raise TypeError("a frozen script stays on its device and in its precision; save it without freezing it.")
        for weight in self._closed[0].parameters():
            if not weight.is_leaf:  # a copied script remembers where its parameters came from
                weight.detach_()
        self._closed[0]._apply(fn)  # type: ignore[no-untyped-call]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self


class Step(nn.Module):
    """One operation of a closed model."""

    def __init__(self, operation: Any) -> None:
        super().__init__()
        self.operation = operation

    def forward(self, *args: Any, **options: Any) -> Any:
        """The operation's result."""
        return self.operation(*args, **options)

    def extra_repr(self) -> str:
        """The operation's name."""
        return str(self.operation)


class _Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sends every operation of a pass through its module; the first pass makes the modules."""

    supports_higher_order_operators = True

    def __init__(self, opened: ExportedModel, *, rows: int, discover: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.opened, self.rows, self.discover = opened, rows, discover
        self.tensors = opened.tensors()
        self.names = {tensor.data_ptr(): name for name, tensor in self.tensors.items() if tensor.numel()}
        self.times: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = None if kwargs else self.layer(func, args)
        if made is not None:
            layer, entering = made
            return layer(entering)
        if not _works_on_rows(args, self.rows):
            return func(*args, **kwargs)
        return self.module((func, self.times[func]), args, lambda: Step(func))(*args, **kwargs)

    def layer(self, func: Any, args: Sequence[Any]) -> tuple[nn.Module, Any] | None:
        """The layer that does what an operation does, and what enters it; None where a step has to do."""
        key: tuple[Any, ...]
        if func in (_aten.linear.default, _aten.addmm.default, _aten.mm.default):
            entering, matrix, bias = _product(func, args)
            weight = self.whole(matrix)
            if weight is None or (bias is not None and self.whole(bias) is None):
                return None
            key = ("linear", self.name_of(weight), self.name_of(bias))
            return self.module(key, [weight], lambda: _linear(weight, bias)), entering
        if func is _aten.embedding.default and (table := self.whole(args[0])) is not None:
            key = ("embedding", self.name_of(table))
            return self.module(key, [table], lambda: _lookup(table)), args[1]
        if func is _aten.convolution.default and (kernel := self.whole(args[1])) is not None and _is_pointwise(args):
            key = ("convolution", self.name_of(kernel), self.name_of(args[2]))
            return self.module(key, [kernel], lambda: _pointwise(kernel, args[2])), args[0]
        return None

    def module(self, key: tuple[Any, ...], own: Sequence[Any], make: Callable[[], nn.Module]) -> nn.Module:
        """The module of an operation; after the first pass, what never came before is run but not kept."""
        self.times[key[0]] += 1
        names = self.opened._names
        if key not in names:
            if not self.discover:
                return make()
            weights = [name for name in map(self.name_of, own) if name is not None]
            operation = str(key[0]).removeprefix("aten.").partition(".")[0].strip("_")
            wanted = weights[0].rpartition(".")[0] if weights else ""
            names[key] = _place(self.opened, wanted or operation, make())
        return self.opened.get_submodule(names[key])

    def name_of(self, value: Any) -> str | None:
        """The name of one of the model's own tensors; None for anything else."""
        return self.names.get(value.data_ptr()) if isinstance(value, Tensor) and value.numel() else None

    def whole(self, value: Any) -> Tensor | None:
        """One of the model's own tensors, where it is used as it is and not in part or turned round."""
        name = self.name_of(value)
        own = None if name is None else self.tensors[name]
        return own if own is not None and (own.shape, own.stride()) == (value.shape, value.stride()) else None


def _product(func: Any, args: Sequence[Any]) -> tuple[Any, Any, Any]:
    """What enters a product, its matrix as a linear layer holds it, and the bias."""
    if func is _aten.linear.default:
        return args[0], args[1], (args[2] if len(args) > 2 else None)
    bias, entering, matrix = args if func is _aten.addmm.default else (None, *args)
    return entering, matrix.t(), bias


def _constants_of(graph: Any) -> Iterator[tuple[str, Tensor]]:
    for node in graph.nodes():
        if node.kind() == "prim::Constant" and node.hasAttribute("value") and node.kindOf("value") == "t":
            yield node.output().debugName().removeprefix("self."), node.t("value")
        for block in node.blocks():
            yield from _constants_of(block)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Module:
    # Without initial values: drawing them would move the caller's random number generator.
    return _holding(nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta"), weight, bias)


def _lookup(table: Tensor) -> nn.Module:
    made: nn.Module = nn.Embedding.from_pretrained(table)  # type: ignore[no-untyped-call]
    return made


def _pointwise(weight: Tensor, bias: Tensor | None) -> nn.Module:
    kind = nn.Conv1d if weight.ndim == 3 else nn.Conv2d
    return _holding(kind(weight.shape[1], weight.shape[0], 1, bias=bias is not None, device="meta"), weight, bias)


def _holding(layer: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return layer


def _is_pointwise(args: Sequence[Any]) -> bool:
    """Whether a convolution is a linear layer at every position."""
    _, weight, _, stride, padding, dilation, transposed, _, groups = args
    plain = not transposed and groups == 1 and not any(padding) and all(step == 1 for step in (*stride, *dilation))
    return plain and weight.ndim in (3, 4) and weight.shape[2:].numel() == 1


def _works_on_rows(args: Sequence[Any], rows: int) -> bool:
    """Whether an operation is one on rows; what is done to weights alone is nobody's concern."""
    flat = [one for given in args for one in (given if isinstance(given, list | tuple) else [given])]
    return any(isinstance(one, Tensor) and one.ndim > 0 and one.shape[0] == rows for one in flat)


def _place(home: nn.Module, name: str, part: nn.Module) -> str:
    """Puts a module under a dotted name, and hands back the name it got."""
    first, _, rest = name.partition(".")
    if not rest:
        first = _free(home, first)
        home.add_module(first, part)
        return first
    if first not in home._modules:
        first = _free(home, first)
        home.add_module(first, nn.Module())
    return f"{first}.{_place(home.get_submodule(first), rest, part)}"


def _free(home: nn.Module, name: str) -> str:
    """A name that the module does not have yet."""
    number, wanted = 0, name
    while hasattr(home, wanted):
        number += 1
        wanted = f"{name}_{number}"
    return wanted
