"""Exported programs as modules whose layers can be observed, and the kind of a model's file."""

from __future__ import annotations

import io
import logging
import os
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from nobsp.arguments import quote
from nobsp.network.archive import UntrustedError, vetted
from nobsp.network.batches import batches_of

RECIPE = 'torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))'
# Rows that are taken as examples of the data.
_EXAMPLES = 256
# Numbers in the rows that a program of a fixed size is tried on: a gigabyte.
_MOST_TRIED = 1 << 28
# How far results of rows apart and together may differ, relative to the largest: rounding in single
# precision.
_SAME = 1e-4
# How a pickle begins, or one that joblib compressed with zlib, gzip, bz2, xz or lz4.
_PICKLE_STARTS = (b"\x80", b"\x78", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x04\x22\x4d\x18")


def kind_of(path: str | os.PathLike[str]) -> str:
    """What kind of model a file holds, told from its content.

    It is "exported", "script", "skops", "pickle", "safetensors" or "unknown".
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"model {str(path)!r} is not a file.")
    with open(path, "rb") as file:
        start = file.read(64)
    if zipfile.is_zipfile(path):
        return _kind_of_archive(path)
    if start[8:9] == b"{" and 0 < int.from_bytes(start[:8], "little") < 1 << 32:
        return "safetensors"
    is_pickle = start.startswith(_PICKLE_STARTS) and not start.isascii()
    return "pickle" if is_pickle else "unknown"


def _kind_of_archive(path: str | os.PathLike[str]) -> str:
    """What an archive holds, told from the names of its entries."""
    try:
        with zipfile.ZipFile(path) as archive:
            listed = archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return "unknown"

    names = {name.partition("/")[2] or name for name in listed}
    files = {name.rpartition("/")[2] for name in names}
    if "archive_format" in names or "serialized_exported_program.json" in files:
        return "exported"
    if "constants.pkl" in names:
        return "script"
    if "schema.json" in names:
        return "skops"
    return "pickle" if "data.pkl" in names else "unknown"


def load_exported(path: str | os.PathLike[str], *, trust_pickle: bool = False) -> ExportedProgram:
    """Reads what `torch.export.save` wrote.

    Args:
        path: The file.
        trust_pickle: Whether to load it as torch does, which runs any code that its author put
            there.

    Raises:
        UntrustedError: If the file could run code when it is loaded, and is not trusted.
        ValueError: If the file is damaged, or of another version of torch.
    """
    try:
        if trust_pickle:
            return _load_with_torch(path)
        archive = vetted(path)
        with _nothing_is_unpickled():
            return _load_with_torch(archive)
    except UntrustedError as untrusted:
        raise UntrustedError(
            f"{os.fspath(path)} {untrusted}, which can run code when it is loaded; export it "
            "without."
        ) from untrusted
    except OSError:
        raise
    except Exception as failure:
        # Whatever is wrong with a file, torch has many exceptions for it.
        raise ValueError(
            f"{os.fspath(path)} cannot be read by this torch ({_last_line(failure)})."
        ) from failure


def _load_with_torch(source: str | os.PathLike[str] | io.BytesIO) -> ExportedProgram:
    """A program as torch reads it, without its warnings."""
    with warnings.catch_warnings(), _without_log():
        warnings.simplefilter("ignore")
        return torch.export.load(source)


@contextmanager
def _without_log() -> Iterator[None]:
    """Keeps what torch logs of a damaged file from the terminal.

    These are pages of tracebacks, and the error says the same.
    """
    thread = threading.get_ident()
    log = logging.getLogger("torch.export")

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    log.addFilter(is_of_others)
    try:
        yield
    finally:
        log.removeFilter(is_of_others)


@contextmanager
def _nothing_is_unpickled() -> Iterator[None]:
    """Makes `torch.load` take tensors alone in this thread.

    It is a second line of defence behind `vetted`, which leaves no pickle.
    """
    thread = threading.get_ident()
    with _LOADING:
        unguarded = torch.load

        def guarded(*args: Any, **options: Any) -> Any:
            if threading.get_ident() == thread:
                options["weights_only"] = True
            return unguarded(*args, **options)

        setattr(torch, "load", guarded)  # noqa: B010 - mypy takes no assignment to a function
        try:
            yield
        finally:
            setattr(torch, "load", unguarded)  # noqa: B010


# One load at a time, so that each puts back what it found.
_LOADING = threading.Lock()


def _renew_lock() -> None:
    """Gives a forked process a lock of its own: the thread that held the other one is not there."""
    global _LOADING
    _LOADING = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def as_module(
    model: ExportedProgram | GraphModule | str | os.PathLike[str],
    example: Any,
    *,
    trust_pickle: bool = False,
) -> GraphModule:
    """An exported program as a module whose layers can be observed, so that it can be explained.

    Such programs run without calling any module. Here every operation on rows gets a module of its
    own: an `nn.Linear`, `nn.Embedding` or pointwise convolution with the model's own weights and
    named after them, or a `Step`.

    Args:
        model: An exported program, its module, or a file that holds one.
        example: Some rows (tensor, array or frame) or images (tensor or array) as the model takes
            them, the more varied the better.
        trust_pickle: Whether a file may be loaded even if that can run code which its author put
            there.

    Raises:
        UntrustedError: If a file could run code when it is loaded, and is not trusted.
        TypeError: If the model is a TorchScript module.
        ValueError: If the model takes more than one input, cannot be run on the rows, or was
            exported for a fixed number of rows on which its result depends.

    Example:
        >>> import nobsp, torch
        >>> from torch import nn
        >>> model, x = nn.Sequential(
        ...     nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)
        ... ), torch.randn(100, 2)
        >>> program = torch.export.export(
        ...     model, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},)
        ... )
        >>> nobsp.NObSP(nobsp.as_module(program, x)).fit(x).output_names_
        ('output',)
    """
    if isinstance(model, str | os.PathLike):
        model = _load_program(model, trust_pickle=trust_pickle)
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            f"model is a TorchScript module, whose layers cannot be observed; export it: {RECIPE}."
        )
    program = _unguarded_module(model) if isinstance(model, ExportedProgram) else model
    if not isinstance(program, GraphModule):
        raise TypeError(
            f"model must be what torch.export.export gives, or its file, found {quote(model)}."
        )

    with _told_as_damaged():
        module = _Rewriter(program).module
    rows = _example_rows(example)
    # Whole numbers may be codes that a model looks up, or measurements; the model itself gives the
    # answer.
    if not rows.is_floating_point():
        try:
            return _checked(module, rows)
        except ValueError:
            pass
    tensors = (*module.parameters(), *module.buffers())
    dtype = next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), None)
    return _checked(module, rows if dtype is None else rows.to(dtype))


def _load_program(path: str | os.PathLike[str], *, trust_pickle: bool) -> ExportedProgram:
    """The program in a file; an error where it is a file of another kind."""
    kind = kind_of(path)
    if kind == "exported":
        return load_exported(path, trust_pickle=trust_pickle)
    hint = ""
    if kind == "script":
        hint = f" It is a TorchScript file; export the model instead: {RECIPE}."
    raise ValueError(f"{os.fspath(path)} is not a file of torch.export.save.{hint}")


def _unguarded_module(program: ExportedProgram) -> nn.Module:
    """A program's module without its checks of sizes, which are written as Python."""
    with _told_as_damaged():
        return program.module(check_guards=False)


# What torch raises of programs whose parts do not fit each other, also where it writes them as
# Python.
_MISFITS = (
    AttributeError,
    LookupError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
    SyntaxError,
    TypeError,
)


@contextmanager
def _told_as_damaged() -> Iterator[None]:
    """Makes one clear error of those that a program causes whose parts do not fit each other."""
    try:
        yield
    except _MISFITS as failure:
        raise ValueError(
            f"model is a program whose parts do not fit each other ({_last_line(failure)}); export "
            "it again."
        ) from failure


def _example_rows(example: Any) -> Tensor:
    """Some rows or images as a tensor."""
    if isinstance(example, Tensor):
        return example
    if getattr(example, "ndim", 2) > 2:
        return torch.as_tensor(np.asarray(example))
    return next(iter(batches_of(example, batch_size=_EXAMPLES, argument="example")))


def _checked(module: GraphModule, example: Tensor) -> GraphModule:
    """The module, if it runs on the rows and treats them alike in batches of any size.

    An error is raised where it does not.
    """
    placeholder = next(node for node in module.graph.nodes if node.op == "placeholder")
    exported_with = placeholder.meta.get("val")
    has_rows = isinstance(exported_with, Tensor) and exported_with.ndim > 0
    n_rows = exported_with.shape[0] if has_rows else None
    # A symbolic number is not compared: torch would look up what the program says of it.
    is_fixed = isinstance(n_rows, int)
    plural = "" if is_fixed and n_rows == 1 else "s"
    fixed = (
        f"the model was exported for exactly {n_rows} row{plural} at a time and cannot take "
        f"others; export it with a dynamic first dimension: {RECIPE}."
    )
    try:
        with torch.no_grad():
            module(example)
            if not isinstance(n_rows, int):
                return module
            if not 0 < n_rows * example[:1].numel() <= _MOST_TRIED:
                raise ValueError(fixed)
            whole = _whole_groups(example, n_rows)
            apart = torch.cat([module(group) for group in torch.split(whole, n_rows)])
            together = module(whole)
    except (RuntimeError, IndexError, TypeError) as failure:
        shape = tuple(example.shape)
        reason = f"the model cannot be run on input of shape {shape}: {_last_line(failure)}"
        raise ValueError(fixed if is_fixed else reason) from failure

    if together.shape != apart.shape:
        raise ValueError(fixed)
    if not bool((together - apart).abs().max() <= _SAME * apart.abs().max()):
        raise ValueError(fixed)
    return module


def _whole_groups(example: Tensor, n_rows: int) -> Tensor:
    """Two to eight groups of so many rows, repeated where there are too few."""
    rows = example[: 8 * n_rows]
    if len(rows) < 2 * n_rows:
        repeats = 2 * n_rows // len(rows) + 1
        rows = rows.repeat((repeats, *([1] * (rows.ndim - 1))))
    return rows[: len(rows) // n_rows * n_rows]


class Step(nn.Module):
    """One operation of an exported program."""

    def __init__(self, operation: Any) -> None:
        super().__init__()
        self.name = str(operation)  # by name: operators cannot be sent to other processes

    def forward(self, *args: Any, **options: Any) -> Any:
        """The operation's result."""
        library, name, overload = self.name.split(".")
        return getattr(getattr(getattr(torch.ops, library), name), overload)(*args, **options)


@dataclass(frozen=True, eq=False)
class _LayerCall:
    """An operation that a layer can do: the kind of layer, what enters it, and its tensors."""

    kind: str
    entering: Any
    weight: Any
    bias: Any = None


class _Rewriter:
    """Rewrites a program's graph so that every operation on rows calls a module.

    `module` is the result, which shares the program's weights.
    """

    def __init__(self, program: GraphModule) -> None:
        inputs = sum(node.op == "placeholder" for node in program.graph.nodes)
        if inputs != 1:
            raise ValueError(
                f"the exported model takes {inputs} inputs; only models of one tensor can be "
                "explained."
            )
        self.program = program
        self.home = nn.Module()
        self.graph = Graph()
        self.copies: dict[Node, Node] = {}
        self.names: dict[tuple[Any, ...], str] = {}
        self._copy_nodes()
        self._drop_unused()
        self.module = GraphModule(self.home, self.graph)

    def _copy_nodes(self) -> None:
        """Copies the graph, operations on rows as calls of modules."""
        on_rows: set[Node] = set()
        for node in self.program.graph.nodes:
            if node.op == "call_module" or node.target in _CHECKS:
                # Checks of shapes, types and devices, which a copy in double precision would not
                # pass.
                continue
            if node.op == "placeholder" or on_rows.intersection(node.all_input_nodes):
                on_rows.add(node)
            if node.op == "output":
                flat = node.args[0]
                is_single = isinstance(flat, tuple | list) and len(flat) == 1
                result = flat[0] if is_single else flat
                self.graph.output(torch.fx.map_arg(result, self.copies.__getitem__))
            elif _is_operation(node) and node in on_rows:
                self.copies[node] = self.layer(node) or self.step(node)
            else:
                self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)

    def _drop_unused(self) -> None:
        """Leaves out weights that are now in layers, and what was made of them.

        Other weights are put into the result.
        """
        for node in reversed(self.graph.nodes):
            if node.op in ("get_attr", "call_function") and not node.users:
                self.graph.erase_node(node)
            elif node.op == "get_attr":
                node.target = self.keep(str(node.target))

    def layer(self, node: Node) -> Node | None:
        """A call of the layer that does what an operation does; None for a mere step.

        The same weights have the same layer.
        """
        call = _layer_call(node)
        if call is None or node.kwargs:
            return None
        weight_name = self.weight(call.weight)
        bias_name = self.weight(call.bias)
        if weight_name is None or (call.bias is not None and bias_name is None):
            return None
        weight = attrgetter(weight_name)(self.program).detach()
        if call.kind == "convolution" and not _is_pointwise(node.target, weight, node.args[3:]):
            return None

        key = (call.kind, weight_name, bias_name)
        if key not in self.names:
            bias = None if bias_name is None else attrgetter(bias_name)(self.program).detach()
            wanted = weight_name.rpartition(".")[0] or call.kind
            self.names[key] = _place(self.home, wanted, _layer(call.kind, weight, bias))
        return self.graph.call_module(self.names[key], (self.copies[call.entering],))

    def step(self, node: Node) -> Node:
        """A call of a step."""
        weights = [name for name in map(self.weight, node.all_input_nodes) if name is not None]
        operation = str(node.target).removeprefix("aten.").partition(".")[0].strip("_")
        wanted = weights[0].rpartition(".")[0] if weights else ""
        name = _place(self.home, wanted or operation, Step(node.target))
        args, options = torch.fx.map_arg((node.args, node.kwargs), self.copies.__getitem__)
        return self.graph.call_module(name, args, options)

    def weight(self, node: Any) -> str | None:
        """The name of one of the model's own tensors, used as it is."""
        return str(node.target) if isinstance(node, Node) and node.op == "get_attr" else None

    def keep(self, name: str) -> str:
        """Puts a tensor that steps use into the result, and hands back its name there."""
        value = attrgetter(name)(self.program)
        wanted = f"used_{name.replace('.', '_')}"
        if isinstance(value, nn.Parameter):
            self.home.register_parameter(wanted, nn.Parameter(value.detach(), requires_grad=False))
        elif isinstance(value, Tensor):
            self.home.register_buffer(wanted, value.detach())
        elif isinstance(value, nn.Module):
            self.home.add_module(wanted, value)
        else:
            raise ValueError(
                f"the exported model holds {name!r}, which is not a tensor; export without it."
            )
        return wanted


def _is_operation(node: Node) -> bool:
    """Whether a node computes a tensor."""
    is_operator = isinstance(node.target, torch._ops.OpOverload)
    return is_operator and node.target is not _aten.sym_size.int


def _layer_call(node: Node) -> _LayerCall | None:
    """An operation as a call of a layer; None where it is none."""
    operator = node.target
    # A bias may be left out at the end.
    arguments: list[Any] = [*node.args, None]
    if operator is _aten.embedding.default:
        return _LayerCall("embedding", entering=arguments[1], weight=arguments[0])
    if operator is _aten.addmm.default:
        weight = _before_turning(arguments[2])
        return _LayerCall("linear", entering=arguments[1], weight=weight, bias=arguments[0])
    if operator is _aten.mm.default:
        return _LayerCall("linear", entering=arguments[0], weight=_before_turning(arguments[1]))
    if operator is _aten.linear.default:
        return _LayerCall("linear", entering=arguments[0], weight=arguments[1], bias=arguments[2])
    if operator in _CONVOLUTIONS:
        return _LayerCall(
            "convolution", entering=arguments[0], weight=arguments[1], bias=arguments[2]
        )
    return None


def _before_turning(matrix: Any) -> Any:
    """The matrix that was transposed; None where it was not."""
    return matrix.args[0] if isinstance(matrix, Node) and matrix.target in _TURNED else None


_aten = torch.ops.aten
_CHECKS = (_aten._assert_tensor_metadata.default, _aten._assert_scalar.default)
_CONVOLUTIONS = (_aten.conv1d.default, _aten.conv2d.default, _aten.convolution.default)
_TURNED = (_aten.t.default, _aten.permute.default, _aten.transpose.int)


def _layer(name: str, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """An embedding, a linear layer or a pointwise convolution that holds these very tensors."""
    if name == "embedding":
        make: Callable[[Tensor], nn.Module] = nn.Embedding.from_pretrained
        return make(weight)
    kind: Any = {
        2: nn.Linear,
        3: partial(nn.Conv1d, kernel_size=1),
        4: partial(nn.Conv2d, kernel_size=1),
    }[weight.ndim]
    # Without initial values: drawing them would move the caller's random number generator.
    layer: nn.Module = kind(weight.shape[1], len(weight), bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


def _is_pointwise(kind: Any, weight: Tensor, options: Sequence[Any]) -> bool:
    """Whether a convolution is a linear layer at every position."""
    defaults = ([1], [0], [1], 1)
    values: list[Any] = [*options, *defaults[len(options) :]]
    stride, padding, dilation = values[:3]
    groups = values[-1]
    if kind is _aten.convolution.default and values[3]:
        return False  # transposed
    if groups != 1 or any(padding):
        return False
    if any(step != 1 for step in (*stride, *dilation)):
        return False
    return weight.ndim in (3, 4) and weight.shape[2:].numel() == 1


def _place(home: nn.Module, name: str, part: nn.Module) -> str:
    """Puts a module under a dotted name, and hands back the name it got."""
    first, _, rest = name.partition(".")
    if not rest:
        candidates = (f"{first}_{number}" if number else first for number in count())
        wanted = next(name for name in candidates if not hasattr(home, name))
        home.add_module(wanted, part)
        return wanted
    if first not in home._modules:
        home.add_module(first, nn.Module())
    return f"{first}.{_place(home.get_submodule(first), rest, part)}"


def _last_line(failure: BaseException) -> str:
    """What a failure comes down to."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(failure).__name__
