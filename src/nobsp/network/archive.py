"""Files of `torch.export.save`, read without running anything that is in them.

`torch.export.load` unpickles several entries of such a file, evaluates its symbolic sizes as
Python, imports modules that it names and writes names of tensors into source code. Here the entries
are read one by one; what torch needs is checked and written into a new archive in memory, so that
torch never sees the file itself.
"""

from __future__ import annotations

import ast
import io
import json
import keyword
import math
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pickletools import genops
from typing import Any

import torch

# Entries of an archive, behind its one folder. Names are compared as they are: one in another case
# is not known.
_MODEL = "models/model.json"
_WEIGHTS = "data/weights/model_weights_config.json"
_CONSTANTS = "data/constants/model_constants_config.json"
_SAMPLE_INPUTS = "data/sample_inputs/model.pt"
_NEEDED = ("archive_format", "archive_version", _MODEL, _WEIGHTS, _CONSTANTS)
_OPTIONAL = ("byteorder", ".data/version", ".data/serialization_id", _SAMPLE_INPUTS)
_PAYLOAD = re.compile(r"data/(weights/weight|constants/tensor)_[0-9]{1,9}")
# Texts that `torch.export.save(..., extra_files=)` adds; they are left out.
_EXTRA = re.compile(r"extra/[^/\\\x00-\x1f]+")
# What earlier versions of torch wrote, and later ones still unpickle.
_LEGACY = re.compile(
    r"data/(weights|constants)/[^/]*\.pt|version|serialized_\w+\.(json|pt)", re.IGNORECASE
)

# More than any archive has of these, so that a small file cannot take a long time or much memory.
_MOST_ENTRIES = 200_000
_MOST_SMALL_BYTES = 64
_MOST_SHARED_ELEMENTS = 1 << 20
_MOST_DIMENSIONS = 64
# Numbers of a program have 64 bits.
_LARGEST_INTEGER = 1 << 64
# What sympy takes a moment for: it compares the arguments of Max and Min with each other, and
# computes powers.
_DEEPEST_EXPRESSION = 60
_LONGEST_EXPRESSION = 10_000
_MOST_EXTREMES = 32
_LARGEST_POWER = 16
_HIGHEST_TOWER = 256

# Namespaces of operators that compute.
_NAMESPACES = ("aten", "prims", "quantized_decomposed", "torchvision")
# Operators in them that touch files or the terminal, or that take sizes and positions on trust and
# then read or write memory that is not theirs; no model that predicts has one.
_NEVER_IN_A_MODEL = re.compile(
    r"from_file|save|_print|_reshape_alias|_?segment_reduce|_?ctc_loss|\w*_backward(_\w+)?|_nested_\w+|fbgemm_\w+"
    r"|_?sparse_\w*_?tensor\w*"
)
_HIGHER_ORDER = (
    "associative_scan",
    "cond",
    "map_impl",
    "scan",
    "while_loop",
    "wrap_with_autocast",
    "wrap_with_set_grad_enabled",
)
# Arithmetic alone: attrgetter, methodcaller and call would reach everything.
_ARITHMETIC = frozenset(
    {
        "abs",
        "add",
        "and_",
        "eq",
        "floordiv",
        "ge",
        "getitem",
        "gt",
        "index",
        "inv",
        "invert",
        "le",
        "lshift",
        "lt",
        "mod",
        "mul",
        "ne",
        "neg",
        "not_",
        "or_",
        "pos",
        "pow",
        "rshift",
        "sub",
        "truediv",
        "xor",
    }
)
# Functions in symbolic sizes, those of sympy and those that torch adds.
_SYMBOLIC = frozenset(
    {
        "Abs",
        "Add",
        "And",
        "BitwiseFn_bitwise_and",
        "BitwiseFn_bitwise_or",
        "CeilToInt",
        "CleanDiv",
        "Eq",
        "Equality",
        "FloatPow",
        "FloatTrueDiv",
        "FloorDiv",
        "FloorToInt",
        "Ge",
        "GreaterThan",
        "Gt",
        "IntTrueDiv",
        "Integer",
        "IsNonOverlappingAndDenseIndicator",
        "LShift",
        "Le",
        "LessThan",
        "Lt",
        "Max",
        "Min",
        "Mod",
        "ModularIndexing",
        "Mul",
        "Ne",
        "Not",
        "OpaqueUnaryFn_sqrt",
        "Or",
        "Piecewise",
        "Pow",
        "PowByNatural",
        "PythonMod",
        "RShift",
        "Rational",
        "RoundDecimal",
        "RoundToInt",
        "StrictGreaterThan",
        "StrictLessThan",
        "ToFloat",
        "TruncToFloat",
        "TruncToInt",
        "Unequality",
        "Where",
        "Xor",
        "ceiling",
        "floor",
        "sqrt",
    }
)
_POWERS = ("FloatPow", "LShift", "Pow", "PowByNatural", "RShift")
_EXTREMES = ("Max", "Min")
_SIGNS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.USub, ast.UAdd)

# Parameters' names become part of source code between quotation marks.
_PLAIN = re.compile(r"[\w.+:<>=/@ -]*")
_NAMES = ("name", "as_name", "forward_arg_names")
_FREE_TEXTS = ("as_string", "as_strings")
# What is known of a node beside what it computes; the rest is dropped, as torch looks names up in
# it.
_KEPT_METADATA = ("nn_module_stack",)
# What torch writes for tensors, and for the containers they are in.
_PLAIN_GLOBAL = re.compile(
    r"torch(\._utils)? (_rebuild_tensor_v2|_rebuild_parameter|\w+Storage|\w*int\d+|b?float\d*)"
    r"|collections OrderedDict"
)
_NAMING_OPCODES = ("STACK_GLOBAL", "INST", "OBJ", "EXT1", "EXT2", "EXT4")


class UntrustedError(ValueError):
    """A file that could run code when it is loaded."""


def vetted(path: str | os.PathLike[str]) -> io.BytesIO:
    """An archive with those entries of a file that torch needs, all of them checked.

    Raises:
        UntrustedError: If anything in the file could run code, or is not known.
        ValueError: If the file is damaged.
    """
    with zipfile.ZipFile(path) as source:
        entries = _entries(source, size=os.path.getsize(path))
        if _SAMPLE_INPUTS in entries:
            _require_plain_samples(source.read(entries[_SAMPLE_INPUTS]))
        archive = _Archive(source, entries)

        vetted_json = {
            _MODEL: _checked_program(archive.json(_MODEL)),
            _WEIGHTS: _checked_payloads(archive, _WEIGHTS, prefix="weight_"),
            _CONSTANTS: _checked_payloads(archive, _CONSTANTS, prefix="tensor_"),
        }
        return _rewritten(archive, vetted_json)


@dataclass(frozen=True, eq=False)
class _Archive:
    """The entries of a file, by their names behind its folder."""

    source: zipfile.ZipFile
    entries: dict[str, zipfile.ZipInfo]

    def size(self, name: str) -> int:
        """Bytes of an entry; −1 where there is none."""
        return self.entries[name].file_size if name in self.entries else -1

    def json(self, name: str) -> Any:
        """An entry's JSON."""
        try:
            return json.loads(self.source.read(self.entries[name]))
        except RecursionError as failure:
            raise ValueError(f"{name} is nested too deeply") from failure


def _entries(source: zipfile.ZipFile, *, size: int) -> dict[str, zipfile.ZipInfo]:
    """The entries by name, all of them known and each there once."""
    infos = source.infolist()
    if len(infos) > _MOST_ENTRIES:
        raise ValueError(f"it has {len(infos)} entries")
    if sum(info.file_size for info in infos) > size:
        raise UntrustedError("holds entries that are larger than the file")

    root = infos[0].filename.partition("/")[0] if infos else ""
    entries: dict[str, zipfile.ZipInfo] = {}
    folded: set[str] = set()
    for info in infos:
        # zipfile cuts names at a zero byte; the name as it is written decides.
        written = info.orig_filename
        name = _name_below(root, written)
        if written.casefold() in folded:
            raise UntrustedError(f"holds the entry {written!r} twice")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 0x1:
            raise UntrustedError(f"holds the entry {written!r} compressed or encrypted")
        folded.add(written.casefold())
        entries[name] = info

    missing = [name for name in _NEEDED if name not in entries]
    if missing:
        raise ValueError(f"it lacks {missing[0]}")
    return entries


def _name_below(root: str, written: str) -> str:
    """An entry's name below the root, or an error where torch does not write such a one today."""
    folder, separator, name = written.partition("/")
    if _LEGACY.fullmatch(name) or (not separator and _LEGACY.fullmatch(folder)):
        raise UntrustedError(
            f"holds a pickle that only torch before 2.9 wrote, the entry {written!r}"
        )
    if not separator or folder != root or not root or not _is_known(name):
        raise UntrustedError(f"holds an entry that torch.export.save never writes, {written!r}")
    return name


def _is_known(name: str) -> bool:
    """Whether `torch.export.save` writes an entry of this name."""
    if name in _NEEDED or name in _OPTIONAL:
        return True
    return bool(_PAYLOAD.fullmatch(name) or _EXTRA.fullmatch(name))


def _rewritten(archive: _Archive, vetted_json: dict[str, Any]) -> io.BytesIO:
    """A new archive under names of our own, with what was checked and the bytes of tensors."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as target:
        for name, info in archive.entries.items():
            if name in vetted_json:
                target.writestr(f"archive/{name}", json.dumps(vetted_json[name]))
            elif _PAYLOAD.fullmatch(name):
                target.writestr(f"archive/{name}", archive.source.read(info))
            elif name != _SAMPLE_INPUTS and not _EXTRA.fullmatch(name):
                if info.file_size > _MOST_SMALL_BYTES:
                    raise ValueError(f"its entry {name} has {info.file_size} bytes")
                target.writestr(f"archive/{name}", archive.source.read(info))
        # Examples are pickled, and of no use here: torch takes no bytes for no examples.
        target.writestr(f"archive/{_SAMPLE_INPUTS}", b"")
    buffer.seek(0)
    return buffer


# ---------------------------------------------------------------------- tensors


def _checked_payloads(archive: _Archive, config_name: str, *, prefix: str) -> Any:
    """Where the tensors are: raw bytes alone, and no more elements than bytes."""
    folder = config_name.rpartition("/")[0]
    content = archive.json(config_name)
    config = content.get("config") if isinstance(content, dict) else None
    if not isinstance(config, dict):
        raise ValueError(f"its entry {config_name} is not a configuration")
    _require_harmless(content, key="")
    for tensor_name, payload in config.items():
        _require_raw_bytes(tensor_name, payload, prefix=prefix)
        size = archive.size(f"{folder}/{payload['path_name']}")
        _require_elements(tensor_name, payload, size=size)
    return {"config": config}


def _require_raw_bytes(tensor_name: str, payload: Any, *, prefix: str) -> None:
    """An error where torch would unpickle what a name stands for."""
    if not isinstance(payload, dict):
        raise ValueError(f"{tensor_name!r} has no description")
    path_name = payload.get("path_name")
    if payload.get("use_pickle") is not False:
        raise UntrustedError(f"holds a pickled object, {tensor_name!r}")
    if not isinstance(path_name, str) or not re.fullmatch(prefix + r"[0-9]{1,9}", path_name):
        raise UntrustedError(f"holds {path_name!r} in the place of a tensor, {tensor_name!r}")


def _require_elements(tensor_name: str, payload: dict[str, Any], *, size: int) -> None:
    """An error where a tensor has more elements than its bytes can hold."""
    if size < 0:
        raise ValueError(f"the bytes of {tensor_name!r} are missing")
    meta = payload.get("tensor_meta")
    sizes = meta.get("sizes") if isinstance(meta, dict) else None
    if not isinstance(sizes, list):
        raise ValueError(f"{tensor_name!r} has no shape")
    shape = [entry.get("as_int") if isinstance(entry, dict) else None for entry in sizes]
    lengths = [length for length in shape if type(length) is int and length >= 0]
    if len(lengths) != len(shape):
        raise ValueError(f"{tensor_name!r} has no fixed shape")
    elements = math.prod(lengths)
    # A tensor may repeat its elements, which then share their bytes.
    allowed = max(size, _MOST_SHARED_ELEMENTS) if size else 0
    if elements > allowed:
        raise ValueError(f"{tensor_name!r} has {elements} elements in {size} bytes")


def _require_plain_samples(pickled: bytes) -> None:
    """An error where the examples are more than tensors; they are looked at, not loaded."""
    if not pickled:
        return
    with zipfile.ZipFile(io.BytesIO(pickled)) as inner:
        pickles = [info for info in inner.infolist() if info.filename.endswith(".pkl")]
        # Compressed, a few bytes would be more than anybody can look through.
        if sum(info.file_size for info in pickles) > len(pickled):
            raise UntrustedError("holds pickled sample inputs")
        for info in pickles:
            for opcode, argument, _ in genops(inner.read(info)):
                named = opcode.name in _NAMING_OPCODES
                odd = opcode.name == "GLOBAL" and not _PLAIN_GLOBAL.fullmatch(str(argument))
                if named or odd:
                    raise UntrustedError("holds pickled sample inputs")


# ---------------------------------------------------------------------- the program


def _checked_program(program: Any) -> Any:
    """A program whose every text is harmless, without the texts that are not needed."""
    if not isinstance(program, dict):
        raise ValueError(f"its entry {_MODEL} is not a program")
    # Python source that torch executes to check shapes, which `as_module` checks itself.
    program = {**program, "guards_code": []}
    try:
        program = _without_remarks(program)
        _require_harmless(program, key="")
    except RecursionError as failure:
        raise ValueError(f"{_MODEL} is nested too deeply") from failure
    return program


def _without_remarks(content: Any) -> Any:
    """The same without remarks on where nodes came from."""
    if isinstance(content, list):
        return [_without_remarks(inner) for inner in content]
    if not isinstance(content, dict):
        return content
    cleaned = {key: _without_remarks(inner) for key, inner in content.items()}
    remarks = cleaned.get("metadata")
    if isinstance(remarks, dict):
        cleaned["metadata"] = {key: remarks[key] for key in _KEPT_METADATA if key in remarks}
    return cleaned


def _require_harmless(content: Any, *, key: str) -> None:
    """An error for text that torch would run, import or write into source code.

    Sizes that no tensor can have are an error too.
    """
    if isinstance(content, dict):
        for inner_key, inner in content.items():
            _require_harmless_key(inner_key, inside=key)
            _require_harmless(inner, key=inner_key)
    elif isinstance(content, int) and abs(content) >= _LARGEST_INTEGER:
        raise ValueError(f"{key!r} is a number of more than 64 bits")
    elif isinstance(content, list):
        if key in ("sizes", "strides") and len(content) > _MOST_DIMENSIONS:
            raise ValueError(f"it has a tensor of {len(content)} dimensions")
        for inner in content:
            _require_harmless(inner, key=key)
    elif isinstance(content, str):
        _check_for(key)(content)


def _require_harmless_key(key: str, *, inside: str) -> None:
    """An error for a name that would do harm; names of sizes may be expressions."""
    if inside == "range_constraints":
        _require_expression(key)
    elif inside.endswith("_values"):
        _require_identifier(key)
    else:
        _require_plain(key)


def _check_for(key: str) -> Callable[[str], None]:
    """How a text is checked, told by what it stands for."""
    if key in ("target", "as_operator"):
        return _require_operator
    if key == "expr_str":
        return _require_expression
    if key in ("in_spec", "out_spec"):
        return _require_tree
    if key in _NAMES:
        return _require_identifier
    if key in _FREE_TEXTS or key in _KEPT_METADATA:
        return _accept
    return _require_plain


def _accept(text: str) -> None:
    """Any text: it is only ever a value."""


def _require_plain(text: str) -> None:
    if not _PLAIN.fullmatch(text):
        raise UntrustedError(f"holds the name {text[:80]!r}")


def _require_identifier(text: str) -> None:
    if text and (not text.isidentifier() or keyword.iskeyword(text)):
        raise UntrustedError(f"holds the name {text[:80]!r}")


def _require_operator(target: str) -> None:
    if not is_operator(target):
        raise UntrustedError(f"holds the call {target[:80]!r}")


def is_operator(target: str) -> bool:
    """Whether a call in a graph computes and does nothing else."""
    parts = target.split(".")
    if not all(part.isidentifier() for part in parts):
        return False
    match parts:
        case ["_operator", name]:
            return name in _ARITHMETIC
        case ["math", name]:
            return not name.startswith("_")
        case ["torch", name]:
            return name.startswith("sym_")
        case ["torch", "ops", "higher_order", name]:
            return name in _HIGHER_ORDER
        case ["torch", "ops", namespace, name, overload]:
            if namespace not in _NAMESPACES or _NEVER_IN_A_MODEL.fullmatch(name):
                return False
            packet = getattr(getattr(torch.ops, namespace), name, None)
            is_overload = isinstance(getattr(packet, overload, None), torch._ops.OpOverload)
            return is_overload and _is_dispatched(namespace, name, overload)
    return False


def _is_dispatched(namespace: str, name: str, overload: str) -> bool:
    """Whether an operator is one of tensors.

    Operators of TorchScript alone are not: they print, seed and switch gradients off.
    """
    ending = "" if overload == "default" else f".{overload}"
    return bool(torch._C._dispatch_has_kernel(f"{namespace}::{name}{ending}"))


def _require_tree(text: str) -> None:
    """An error for a structure of inputs or outputs whose reading would import something."""
    for node in _tree_nodes(json.loads(text)):
        kind = node.get("type")
        context = node.get("context")
        if not isinstance(kind, str | None) or not isinstance(context, str | None):
            raise ValueError("its structure of inputs cannot be read")
        _require_plain(kind or "")
        if (
            "defaultdict" in (kind or "")
            or "__enum__" in (context or "")
            or "\\" in (context or "")
        ):
            raise UntrustedError(f"holds inputs or outputs in a {kind}")


def _tree_nodes(content: Any) -> Iterator[dict[str, Any]]:
    """The nodes of a structure."""
    if isinstance(content, list):
        for inner in content:
            yield from _tree_nodes(inner)
    elif isinstance(content, dict):
        yield content
        yield from _tree_nodes(content.get("children_spec", []))


def _require_expression(text: str) -> None:
    """An error for a symbolic size that is not arithmetic: sympy evaluates it as Python."""
    # sympy takes line breaks out before it parses, and a comment or a continued line would then end
    # elsewhere.
    one_line = text.isascii() and text.isprintable() and not set("#\\") & set(text)
    try:
        tree = ast.parse(text.strip()[: _LONGEST_EXPRESSION + 1], mode="eval")
        harmless = one_line and _is_arithmetic(tree.body, depth=0) and _is_soon_done(tree.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        harmless = False
    harmless = harmless and len(text) <= _LONGEST_EXPRESSION
    if not harmless:
        raise UntrustedError(f"holds the expression {text[:80]!r}")


def _is_arithmetic(node: ast.expr, *, depth: int) -> bool:
    """Whether an expression is made of numbers, symbols and functions of them."""
    if depth > _DEEPEST_EXPRESSION:
        return False

    match node:
        case ast.Constant(value=bool() | int() | float() as number):
            return abs(number) <= 1 << 63
        case ast.Name(id=name):
            return not name.startswith("_")
        case ast.UnaryOp(op=sign, operand=operand):
            return isinstance(sign, _SIGNS) and _is_arithmetic(operand, depth=depth + 1)
        case ast.BinOp(left=left, op=sign, right=right):
            sides = [_is_arithmetic(side, depth=depth + 1) for side in (left, right)]
            return isinstance(sign, _SIGNS) and all(sides)
        case ast.Compare(left=left, comparators=[right]):
            return all(_is_arithmetic(side, depth=depth + 1) for side in (left, right))
        case ast.Call(func=ast.Name(id="Symbol" | "Dummy"), args=[ast.Constant(value=str(name))]):
            return name.isidentifier() and _has_plain_options(node)
        case ast.Call(func=ast.Name(id="Float"), args=[ast.Constant(value=str(number))]):
            return bool(re.fullmatch(r"-?[\d.]{1,40}(e[+-]?\d{1,3})?", number)) and (
                _has_plain_options(node)
            )
        case ast.Call(func=ast.Name(id=function), args=arguments, keywords=[]):
            if function not in _SYMBOLIC or not _is_small_power(function, arguments):
                return False
            return all(_is_arithmetic(argument, depth=depth + 1) for argument in arguments)
    return False


def _has_plain_options(call: ast.Call) -> bool:
    """Whether options such as positive=True are truth values and small numbers."""
    for option in call.keywords:
        value = option.value
        if option.arg is None or not isinstance(value, ast.Constant):
            return False
        if not isinstance(value.value, bool | int | None) or int(value.value or 0) > 1 << 10:
            return False
    return True


def _is_small_power(function: str, arguments: list[ast.expr]) -> bool:
    """Whether a power is one that can be computed; others would take for ever."""
    if function not in _POWERS:
        return True
    exponents = [number for argument in arguments[1:] for number in _numbers(argument)]
    # Several numbers in an exponent are a product that may be as large as one likes.
    return len(exponents) <= 2 and all(abs(number) <= _LARGEST_POWER for number in exponents)


def _is_soon_done(expression: ast.expr) -> bool:
    """Whether sympy computes an expression in a moment."""
    calls = [node for node in ast.walk(expression) if isinstance(node, ast.Call)]
    extremes = sum(len(call.args) for call in calls if _function_of(call) in _EXTREMES)
    return extremes <= _MOST_EXTREMES and _power_of(expression) <= _HIGHEST_TOWER


def _power_of(node: ast.AST) -> float:
    """The power that a number in an expression is raised to at most: powers of powers multiply."""
    if isinstance(node, ast.Call) and _function_of(node) in _POWERS and node.args:
        exponents = [abs(number) for part in node.args[1:] for number in _numbers(part)]
        return math.prod(exponents, start=1.0) * _power_of(node.args[0])
    return max((_power_of(child) for child in ast.iter_child_nodes(node)), default=1.0)


def _function_of(call: ast.Call) -> str:
    """What is called."""
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _numbers(node: ast.expr) -> Iterator[float]:
    """All numbers in an expression, those of Float, which are written as texts, among them."""
    for inner in ast.walk(node):
        match inner:
            case ast.Constant(value=int() | float() as number):
                yield number
            case ast.Call(func=ast.Name(id="Float"), args=[ast.Constant(value=str(written))]):
                yield float(written)
