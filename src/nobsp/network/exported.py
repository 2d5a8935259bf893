"""Reads models from `torch.export` and TorchScript files, and says what kind of file a model is in."""

from __future__ import annotations

import copy
import io
import json
import os
import re
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from nobsp.network.batches import batches_of
from nobsp.network.opened import ExportedModel

Kind = Literal["exported", "script", "skops", "pickle", "safetensors", "unknown"]

RECIPE = 'torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))'
# Operators, as opposed to functions of torch that would do things; what a graph made by torch.export calls.
_OPERATOR = re.compile(r"torch\.ops(\.\w+){2,3}|_operator\.\w+|math\.\w+|torch\.sym_\w+")
_EXAMPLES = 256
_DAMAGED = (RuntimeError, AssertionError, LookupError, AttributeError, zipfile.BadZipFile, json.JSONDecodeError)


class UntrustedError(ValueError):
    """A file that could run code when it is loaded."""


def kind_of(path: str | os.PathLike[str]) -> Kind:
    """What a file holds, told from its content.

    Args:
        path: The file.

    Returns:
        "exported" (`torch.export.save`), "script" (TorchScript), "skops", "pickle" (`torch.save`, pickle, joblib),
        "safetensors", or "unknown".
    """
    with open(path, "rb") as file:
        start = file.read(64)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = {name.partition("/")[2] or name for name in archive.namelist()}
        if "archive_format" in names or "serialized_exported_program.json" in {n.rpartition("/")[2] for n in names}:
            return "exported"
        if "constants.pkl" in names:
            return "script"
        return "skops" if "schema.json" in names else "pickle" if "data.pkl" in names else "unknown"
    if start[8:9] == b"{" and 0 < int.from_bytes(start[:8], "little") < 1 << 32:
        return "safetensors"
    # A pickle, or one that joblib compressed with zlib, gzip, bz2, xz or lz4.
    pickled = (b"\x80", b"\x78", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x04\x22\x4d\x18")
    return "pickle" if start.startswith(pickled) and not start.isascii() else "unknown"


def load_exported(path: str | os.PathLike[str], *, trust_pickle: bool = False) -> Program:
    """Reads what `torch.export.save` wrote.

    Args:
        path: The file.
        trust_pickle: Whether pickled parts of the file may be read that could run code.

    Raises:
        UntrustedError: If the file holds pickled objects, or calls what is no operator, and is not trusted.
        ValueError: If it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            problem = None if trust_pickle else next(_code_in(archive), None)
        if problem is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return Program(torch.export.load(path))
    except _DAMAGED as failure:
        raise ValueError(f"{os.fspath(path)} cannot be read by this torch ({_said(failure)}).") from failure
    raise UntrustedError(
        f"{os.fspath(path)} holds {problem}, which can run code when it is loaded; export the model again without it."
    )


def load_script(path: str | os.PathLike[str]) -> nn.Module:
    """Reads a TorchScript file, onto the CPU and in evaluation mode.

    Raises:
        ValueError: If the file cannot be read.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the caller has the file and no choice
            model: nn.Module = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
    except RuntimeError as failure:
        raise ValueError(f"{os.fspath(path)} cannot be read by this torch ({_said(failure)}).") from failure
    return model.eval() if hasattr(model, "training") else model


def opened(model: ExportedProgram | nn.Module | str | os.PathLike[str], example: Any) -> ExportedModel:
    """A closed model as a module whose layers can be observed, so that it can be explained.

    Args:
        model: An exported program, a TorchScript module, or a file that holds one.
        example: Some rows (tensor, array or frame) or images (tensor or array) as the model takes them, the more
            varied the better.

    Raises:
        UntrustedError: If a file could run code when it is loaded; see `load_exported`.
        ValueError: If the model takes more than one input, cannot be run on the rows, or was exported for a fixed
            number of rows on which its result depends.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from nobsp import NObSP
        >>> from nobsp.network.exported import opened
        >>> _ = torch.manual_seed(0)
        >>> model, x = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)), torch.randn(100, 2)
        >>> program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
        >>> NObSP(opened(program, x)).fit(x).output_names_
        ('output',)
    """
    if isinstance(model, str | os.PathLike):
        model = _from_file(model)
    example = _rows_of(example)
    closed = Program(model) if isinstance(model, ExportedProgram) else model
    floating = next((t.dtype for t in (*closed.parameters(), *closed.buffers()) if t.is_floating_point()), None)
    as_floats = example if floating is None else example.to(floating)
    # Whole numbers may be codes that a model looks up, or measurements; the model itself gives the answer.
    if not example.is_floating_point():
        try:
            return _opened(closed, example)
        except ValueError:
            return _opened(closed, as_floats)
    return _opened(closed, as_floats)


def _from_file(path: str | os.PathLike[str]) -> nn.Module:
    kind = kind_of(path)
    if kind not in ("exported", "script"):
        raise ValueError(f"{os.fspath(path)} is neither a file of torch.export.save nor a TorchScript file.")
    return load_exported(path) if kind == "exported" else load_script(path)


def _rows_of(example: Any) -> Tensor:
    """Rows of any kind as a tensor; a batch of images is one already, or an array."""
    if isinstance(example, Tensor):
        return example
    if getattr(example, "ndim", 2) > 2:
        return torch.as_tensor(np.asarray(example))
    return next(iter(batches_of(example, batch_size=_EXAMPLES, argument="example")))


def _opened(closed: nn.Module, example: Tensor) -> ExportedModel:
    rows = closed.rows if isinstance(closed, Program) else None
    if rows is None:
        return ExportedModel(closed, example)
    fixed = (
        f"the model was exported for exactly {rows} row{'s' if rows != 1 else ''} at a time and cannot take others; "
        f"export it with a dynamic first dimension: {RECIPE}."
    )
    try:
        made = ExportedModel(closed, example)
    except ValueError as failure:
        raise ValueError(fixed) from failure
    if not _same_rows(closed, example[: 8 * rows], rows):
        raise ValueError(fixed)
    return made


class Program(nn.Module):
    """An exported program without the checks of the shapes it was exported with.

    Attributes:
        rows: How many rows it was exported for, or None where any number will do.
    """

    def __init__(self, program: ExportedProgram) -> None:
        super().__init__()
        graph = copy.deepcopy(program.graph_module)
        for node in list(graph.graph.nodes):
            # A check of types and devices, which a copy in double precision would not pass.
            if node.target is torch.ops.aten._assert_tensor_metadata.default:
                graph.graph.erase_node(node)
        graph.recompile()
        self._graph = graph
        self._given: list[str | None] = []  # per input of the graph the name of a tensor; None for the rows
        state = {**program.state_dict, **program.constants}
        for spec in program.graph_signature.input_specs:
            if spec.kind is InputKind.USER_INPUT:
                self._given.append(None)
                continue
            value = state[str(spec.target)]
            if not isinstance(value, Tensor):
                raise ValueError(
                    f"the exported model holds {str(spec.target)!r}, which is no tensor; export without it."
                )
            self._given.append(_registered(self, str(spec.target), value))
        inputs = self._given.count(None)
        if inputs != 1:
            raise ValueError(f"the exported model takes {inputs} inputs; only models of one tensor can be explained.")
        kinds = [spec.kind for spec in program.graph_signature.output_specs]
        self._results = [place for place, kind in enumerate(kinds) if kind is OutputKind.USER_OUTPUT]
        holes = [node for node in graph.graph.nodes if node.op == "placeholder"]
        example = holes[self._given.index(None)].meta.get("val")
        first = example.shape[0] if isinstance(example, Tensor) and example.ndim else None
        self.rows = first if isinstance(first, int) else None

    def forward(self, x: Tensor) -> Any:
        """The program's result; a tuple where it has several."""
        state = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        results = self._graph(*(x if name is None else state[name] for name in self._given))
        kept = [results[place] for place in self._results]
        return kept[0] if len(kept) == 1 else tuple(kept)


def _registered(home: nn.Module, name: str, value: Tensor) -> str:
    """Puts a tensor under its dotted name, as the model had it."""
    *path, last = name.split(".")
    for step in path:
        if step not in home._modules:
            home.add_module(step, nn.Module())
        home = home.get_submodule(step)
    if isinstance(value, nn.Parameter):
        home.register_parameter(last, nn.Parameter(value.detach(), requires_grad=False))
    else:
        home.register_buffer(last, value.detach())
    return name


def _same_rows(closed: nn.Module, example: Tensor, rows: int) -> bool:
    """Whether a model makes the same of rows given at once and given as many at a time as it was exported for."""
    whole = len(example) // rows * rows
    if whole < 2 * rows:  # too few to tell
        example = example.repeat((2 * rows // len(example) + 1, *([1] * (example.ndim - 1))))
        whole = 2 * rows
    try:
        with torch.no_grad():
            parts = [closed(example[start : start + rows]) for start in range(0, whole, rows)]
            together = closed(example[:whole])
            apart = torch.cat(parts)
    except (RuntimeError, TypeError, IndexError):
        return False
    scale = float(apart.abs().max())
    return together.shape == apart.shape and bool((together - apart).abs().max() <= 1e-4 * scale)


def _code_in(archive: zipfile.ZipFile) -> Iterator[str]:
    """What in an archive could run code: pickles that hold more than tensors, and calls that are no operators."""
    for name in archive.namelist():
        folder, file = name.partition("/")[2].rpartition("/")[::2]
        content = archive.read(name) if not folder.endswith("weights") or file.endswith(".json") else b""
        if folder.endswith("models") and file.endswith(".json"):
            for target in _targets(json.loads(content)):
                if not _OPERATOR.fullmatch(target):
                    yield f"the call {target!r}"
        elif file.endswith("_config.json"):
            for entry in json.loads(content).get("config", {}).values():
                if entry.get("use_pickle"):
                    part = next(n for n in archive.namelist() if n.endswith(f"{folder}/{entry['path_name']}"))
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
    if not pickled:
        return True
    try:
        torch.load(io.BytesIO(pickled), weights_only=True)
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it is not plain
        return False
    return True


def _said(failure: BaseException) -> str:
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(failure).__name__
