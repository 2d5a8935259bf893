"""Exported programs as modules whose layers can be observed, and what kind of file a model is in."""

from __future__ import annotations

import io
import json
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from nobsp.network.batches import batches_of

RECIPE = 'torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))'
# Operators, as opposed to functions of torch that would do things; what a graph made by torch.export calls.
_OPERATOR = re.compile(r"torch\.ops(\.\w+){2,3}|_operator\.\w+|math\.\w+|torch\.sym_\w+")
_EXAMPLES = 256
_DAMAGED = (
    RuntimeError,
    AssertionError,
    LookupError,
    AttributeError,
    zipfile.BadZipFile,
    json.JSONDecodeError,
)


class UntrustedError(ValueError):
    """A file that could run code when it is loaded."""


def kind_of(path: str | os.PathLike[str]) -> str:
    """What a file holds, told from its content: "exported", "script", "skops", "pickle", "safetensors", "unknown"."""
    with open(path, "rb") as file:
        start = file.read(64)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = {name.partition("/")[2] or name for name in archive.namelist()}
        if "archive_format" in names or "serialized_exported_program.json" in {
            n.rpartition("/")[2] for n in names
        }:
            return "exported"
        if "constants.pkl" in names:
            return "script"
        return "skops" if "schema.json" in names else "pickle" if "data.pkl" in names else "unknown"
    if start[8:9] == b"{" and 0 < int.from_bytes(start[:8], "little") < 1 << 32:
        return "safetensors"
    # A pickle, or one that joblib compressed with zlib, gzip, bz2, xz or lz4.
    pickled = (b"\x80", b"\x78", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x04\x22\x4d\x18")
    return "pickle" if start.startswith(pickled) and not start.isascii() else "unknown"


def load_exported(path: str | os.PathLike[str], *, trust_pickle: bool = False) -> ExportedProgram:
    """Reads what `torch.export.save` wrote."""
    try:
        with zipfile.ZipFile(path) as archive:
            problem = None if trust_pickle else next(_code_in(archive), None)
        if problem is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.export.load(path)
    except _DAMAGED as failure:
        raise ValueError(
            f"{os.fspath(path)} cannot be read by this torch ({_said(failure)})."
        ) from failure
    raise UntrustedError(
        f"{path} holds {problem}, which can run code when it is loaded; export it without."
    )


def as_module(
    model: ExportedProgram | GraphModule | str | os.PathLike[str], example: Any
) -> GraphModule:
    """An exported program as a module whose layers can be observed, so that it can be explained.

    Such programs run without calling any module. Here every operation on rows gets a module of its own: an `nn.Linear`,
    `nn.Embedding` or pointwise convolution with the model's own weights and named after them, or a `Step`.

    Args:
        model: An exported program, its module, or a file that holds one; see `load_exported`.
        example: Some rows (tensor, array or frame) or images (tensor or array) as the model takes them, the more
            varied the better.

    Raises:
        UntrustedError: If a file could run code when it is loaded.
        TypeError: If the model is a TorchScript module.
        ValueError: If the model takes more than one input, cannot be run on the rows, or was exported for a fixed
            number of rows on which its result depends.

    Example:
        >>> import nobsp, torch
        >>> from torch import nn
        >>> model, x = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)), torch.randn(100, 2)
        >>> program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
        >>> nobsp.NObSP(nobsp.as_module(program, x)).fit(x).output_names_
        ('output',)
    """
    if isinstance(model, str | os.PathLike):
        kind = kind_of(model)
        if kind != "exported":
            hint = (
                f" It is a TorchScript file; export the model instead: {RECIPE}."
                if kind == "script"
                else ""
            )
            raise ValueError(f"{os.fspath(model)} is not a file of torch.export.save.{hint}")
        model = load_exported(model)
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            f"model is a TorchScript module, whose layers cannot be observed; export it: {RECIPE}."
        )
    program = model.module(check_guards=False) if isinstance(model, ExportedProgram) else model
    assert isinstance(program, GraphModule)
    module = _Rewriter(program).module
    if not isinstance(example, Tensor) and getattr(example, "ndim", 2) > 2:
        example = torch.as_tensor(np.asarray(example))  # images
    elif not isinstance(example, Tensor):
        example = next(iter(batches_of(example, batch_size=_EXAMPLES, argument="example")))
    # Whole numbers may be codes that a model looks up, or measurements; the model itself gives the answer.
    if not example.is_floating_point():
        try:
            return _checked(module, example)
        except ValueError:
            pass
    tensors = (*module.parameters(), *module.buffers())
    floating = next((one.dtype for one in tensors if one.is_floating_point()), None)
    return _checked(module, example if floating is None else example.to(floating))


def _checked(module: GraphModule, example: Tensor) -> GraphModule:
    """The module, where it can be run on the rows, and makes the same of rows however many there are at a time."""
    made_for = next(node for node in module.graph.nodes if node.op == "placeholder").meta.get("val")
    rows = made_for.shape[0] if isinstance(made_for, Tensor) and made_for.ndim else None
    fixed = (
        f"the model was exported for exactly {rows} row{'s' if rows != 1 else ''} at a time and cannot take others; "
        f"export it with a dynamic first dimension: {RECIPE}."
    )
    try:
        with torch.no_grad():
            module(example)
            if not isinstance(rows, int):  # any number will do
                return module
            enough = example[: 8 * rows]
            if len(enough) < 2 * rows:
                enough = enough.repeat((2 * rows // len(enough) + 1, *([1] * (enough.ndim - 1))))
            whole = enough[: len(enough) // rows * rows]
            apart, together = (
                torch.cat([module(some) for some in torch.split(whole, rows)]),
                module(whole),
            )
    except (RuntimeError, IndexError, TypeError) as failure:
        reason = (
            f"the model cannot be run on input of shape {tuple(example.shape)}: {_said(failure)}"
        )
        raise ValueError(fixed if isinstance(rows, int) else reason) from failure
    if together.shape != apart.shape or not bool(
        (together - apart).abs().max() <= 1e-4 * apart.abs().max()
    ):
        raise ValueError(fixed)
    return module


class Step(nn.Module):
    """One operation of an exported program."""

    def __init__(self, operation: Any) -> None:
        super().__init__()
        self.name = str(operation)  # by name: operators cannot be sent to other processes

    def forward(self, *args: Any, **options: Any) -> Any:
        """The operation's result."""
        library, name, overload = self.name.split(".")
        return getattr(getattr(getattr(torch.ops, library), name), overload)(*args, **options)


class _Rewriter:
    """Rewrites a program's graph so that every operation on rows calls a module; `module` shares its weights."""

    def __init__(self, program: GraphModule) -> None:
        self.program, self.home, self.graph = program, nn.Module(), Graph()
        inputs = sum(node.op == "placeholder" for node in program.graph.nodes)
        if inputs != 1:
            raise ValueError(
                f"the exported model takes {inputs} inputs; only models of one tensor can be explained."
            )
        self.copies: dict[Node, Node] = {}
        self.names: dict[tuple[Any, ...], str] = {}
        on_rows: set[Node] = set()
        for node in program.graph.nodes:
            if node.op == "call_module" or node.target in _CHECKS:
                continue  # checks of shapes, types and devices, which a copy in double precision would not pass
            if node.op == "placeholder" or on_rows.intersection(node.all_input_nodes):
                on_rows.add(node)
            operator = (
                isinstance(node.target, torch._ops.OpOverload)
                and node.target is not _aten.sym_size.int
            )
            if node.op == "output":
                flat = node.args[0]
                result = flat[0] if isinstance(flat, tuple | list) and len(flat) == 1 else flat
                self.graph.output(torch.fx.map_arg(result, self.copies.__getitem__))
            elif operator and node in on_rows:
                self.copies[node] = self.layer(node) or self.step(node)
            else:
                self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)
        for node in reversed(self.graph.nodes):
            if node.op in ("get_attr", "call_function") and not node.users:
                self.graph.erase_node(
                    node
                )  # weights that are now in layers, and what was made of them
            elif node.op == "get_attr":
                node.target = self.keep(str(node.target))
        self.module = GraphModule(self.home, self.graph)

    def layer(self, node: Node) -> Node | None:
        """A call of the layer that does what an operation does, the same one for the same weights; None for a step."""
        kind, given = node.target, list[Any]([*node.args, None])
        if kind is _aten.embedding.default:
            name, (matrix, entering), bias = "embedding", given[:2], None
        elif kind in (_aten.addmm.default, _aten.mm.default):
            name, (bias, entering, matrix) = (
                "linear",
                given[:3] if kind is _aten.addmm.default else [None, *given[:2]],
            )
            matrix = (
                matrix.args[0] if isinstance(matrix, Node) and matrix.target in _TURNED else None
            )
        elif kind is _aten.linear.default or kind in _CONVOLUTIONS:
            name, (entering, matrix, bias) = (
                "linear" if kind is _aten.linear.default else "convolution",
                given[:3],
            )
        else:
            return None
        key = (name, self.weight(matrix), self.weight(bias))
        if node.kwargs or key[1] is None or (bias is not None and key[2] is None):
            return None
        weight, shift = (attrgetter(one)(self.program).detach() if one else None for one in key[1:])
        assert weight is not None
        if name == "convolution" and not _is_pointwise(kind, weight, node.args[3:]):
            return None
        if key not in self.names:
            self.names[key] = _place(
                self.home, key[1].rpartition(".")[0] or name, _layer(name, weight, shift)
            )
        return self.graph.call_module(self.names[key], (self.copies[entering],))

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
        value, wanted = attrgetter(name)(self.program), f"used_{name.replace('.', '_')}"
        if isinstance(value, nn.Parameter):
            self.home.register_parameter(wanted, nn.Parameter(value.detach(), requires_grad=False))
        elif isinstance(value, Tensor):
            self.home.register_buffer(wanted, value.detach())
        elif isinstance(value, nn.Module):
            self.home.add_module(wanted, value)
        else:
            raise ValueError(
                f"the exported model holds {name!r}, which is no tensor; export without it."
            )
        return wanted


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
    given: list[Any] = [*options, *([1], [0], [1], 1)[len(options) :]]
    stride, padding, dilation, groups = [*given[:3], given[-1]]
    transposed = kind is _aten.convolution.default and given[3]
    plain = (
        not transposed
        and groups == 1
        and not any(padding)
        and all(step == 1 for step in (*stride, *dilation))
    )
    return plain and weight.ndim in (3, 4) and weight.shape[2:].numel() == 1


def _place(home: nn.Module, name: str, part: nn.Module) -> str:
    """Puts a module under a dotted name, and hands back the name it got."""
    first, _, rest = name.partition(".")
    if not rest:
        free = (f"{first}_{number}" if number else first for number in count())
        wanted = next(name for name in free if not hasattr(home, name))
        home.add_module(wanted, part)
        return wanted
    if first not in home._modules:
        home.add_module(first, nn.Module())
    return f"{first}.{_place(home.get_submodule(first), rest, part)}"


def _code_in(archive: zipfile.ZipFile) -> Iterator[str]:
    """What in an archive could run code: pickles that hold more than tensors, and calls that are no operators."""
    for name in archive.namelist():
        folder, file = name.partition("/")[2].rpartition("/")[::2]
        content = (
            archive.read(name) if not folder.endswith("weights") or file.endswith(".json") else b""
        )
        if folder.endswith("models") and file.endswith(".json"):
            for target in _targets(json.loads(content)):
                if not _OPERATOR.fullmatch(target):
                    yield f"the call {target!r}"
        elif file.endswith("_config.json"):
            for entry in json.loads(content).get("config", {}).values():
                if entry.get("use_pickle"):
                    part = next(
                        n
                        for n in archive.namelist()
                        if n.endswith(f"{folder}/{entry['path_name']}")
                    )
                    if not _is_plain(archive.read(part)):
                        yield "a pickled object"
        elif folder.endswith("sample_inputs") and not _is_plain(content):
            yield "pickled sample inputs"


def _targets(node: Any) -> Iterator[str]:
    """Everything a serialised graph calls."""
    if isinstance(node, dict):
        if isinstance(node.get("target"), str) and "inputs" in node:
            yield node["target"]
        node = list(node.values())
    if isinstance(node, list):
        for inner in node:
            yield from _targets(inner)


def _is_plain(pickled: bytes) -> bool:
    """Whether a file of torch.save holds tensors and plain containers alone."""
    try:
        if pickled:
            torch.load(io.BytesIO(pickled), weights_only=True)
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it is not plain
        return False
    return True


def _said(failure: BaseException) -> str:
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(failure).__name__
