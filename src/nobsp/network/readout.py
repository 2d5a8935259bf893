"""Finds the linear head of a model by running it, and reads the representation that enters it.

A model must be a function of its row: the same output for a row every time, whatever rows are
beside it.

In this order: the head and the readout, how a head is found, a function of its row, layers by name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nobsp.arguments import join_names
from nobsp.network.embeddings import embedded_columns
from nobsp.network.guest import (
    GlobalGeneratorStates,
    Place,
    Visit,
    catching,
    checked_device,
    copied_to,
    device_and_dtype,
    evaluation_mode,
    hooked,
    plain_name,
    portable,
    unwrap,
)
from nobsp.network.layers import explain_failure, find_part

# What runs the model on rows: their representation, (rows, width).
Represent = Callable[[Tensor], Tensor]

PROBE_ROWS = 256
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
_OPEN = "open it with nobsp.as_module(model, rows)"

# From the simplest to the most involved: the order in which explanations of an output are
# preferred.
LINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda logits: logits,
    "log_softmax": lambda logits: torch.log_softmax(logits, dim=-1),
    "softmax": lambda logits: torch.softmax(logits, dim=-1),
    "sigmoid": torch.sigmoid,
}


class NoHeadError(ValueError):
    """The model's output is W z + b of no linear layer."""


@dataclass(frozen=True, eq=False)
class Head:
    """The last linear layer: `outputs = weight @ z + bias`."""

    weight: Tensor  # shape (outputs, width), float64 on the CPU
    bias: Tensor  # shape (outputs,), float64; zeros for a layer without bias
    name: str  # the layer's name in the model

    @classmethod
    def of(cls, layer: nn.Module, name: str) -> Head:
        """The head that a linear layer is."""
        stored = torch.as_tensor(layer.weight).detach()
        weight = stored.to("cpu", torch.float64, copy=True).flatten(1)
        if layer.bias is None:
            return cls(weight, weight.new_zeros(len(weight)), name)

        bias = torch.as_tensor(layer.bias).detach()
        return cls(weight, bias.to("cpu", torch.float64, copy=True), name)

    def logits(self, z: Tensor) -> Tensor:
        """`W z + b` in float64, shape (rows, outputs), on the device of `z` if that has float64."""
        z = exact(z)
        return z @ self.weight.to(z.device).T + self.bias.to(z.device)


def exact(tensor: Tensor) -> Tensor:
    """Float64, on the CPU where the device has none."""
    return tensor.to("cpu" if tensor.device.type == "mps" else tensor.device, torch.float64)


@dataclass(frozen=True, eq=False, repr=False)
class Readout:
    """A model seen as `W z(x) + b`: where its linear head is, and how to get `z`.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2), nn.Softmax(dim=1))
        >>> Readout.find(model, torch.randn(16, 3))
        Readout(head='2', width=8, outputs=2, link='softmax')
    """

    module: nn.Module  # the model itself, without compile or parallel wrappers
    head: Head  # the last linear layer
    # what follows it: "identity", "softmax", "log_softmax", "sigmoid", "exp", "softplus" or "clamp"
    link: str
    # columns of the probe that reach `nn.Embedding` layers as integer codes
    embedded_columns: tuple[int, ...]
    device: torch.device  # where the model lives
    dtype: torch.dtype  # floating precision in which the model takes its input
    integer: bool  # whether the model takes integers
    _place: Place  # where the representation passes
    _overwrites_x: bool
    no_head: bool = False  # whether the outputs themselves stand for a representation

    @classmethod
    def find(
        cls, model: nn.Module, probe: Tensor, *, head: str | nn.Module | None = None
    ) -> Readout:
        """Runs the first 256 rows of `probe` and finds the layer whose `W z + b` is the output.

        A softmax, log-softmax, sigmoid or reshape may follow it. `head` is its name, or the layer
        itself, for models with several; a container means the head inside it.
        """
        module = checked(model)
        if not isinstance(probe, Tensor) or probe.ndim == 0 or len(probe) == 0:
            raise ValueError(
                "probe must be a tensor with at least one row, found "
                f"{getattr(probe, 'shape', probe)}."
            )
        with _probing(module, probe) as probing:
            require_function_of_row(
                probing.run, probing.prepare, probing.rows, outputs_of, probing.dtype
            )
        return cls._find(module, probe, head)

    @classmethod
    def _find(cls, module: nn.Module, probe: Tensor, head: str | nn.Module | None) -> Readout:
        """The head of a model that is known to treat every row by itself."""
        layers = _choose_layers(module, head)
        with _probing(module, probe) as probing:
            rows = probing.rows
            inputs = probing.prepare(rows)
            outputs = outputs_of(probing.run(inputs), len(rows))
            overwrites_x = not torch.equal(inputs, probing.prepare(rows))
            last_layer, link, position = _find_head(
                probing.run,
                probing.prepare(rows),
                layers,
                outputs,
                probing.dtype,
                named=head is not None,
            )
            columns: tuple[int, ...] = ()
            embeddings = _embeddings(module)
            if embeddings:
                columns = embedded_columns(embeddings, probing.run, rows, probing.prepare)

        return cls(
            module=module,
            head=last_layer,
            link=link,
            embedded_columns=columns,
            device=probing.device,
            dtype=probing.dtype,
            integer=probing.integer,
            _place=position,
            _overwrites_x=overwrites_x,
        )

    @classmethod
    def find_any(
        cls, model: nn.Module, probe: Tensor, *, head: str | nn.Module | None = None
    ) -> Readout:
        """`find` for any model of one tensor.

        Where no layer is the head, one is composed (see `compose`).
        """
        try:
            return cls.find(model, probe, head=head)
        except NoHeadError:
            if head is not None:
                raise
        from nobsp.network.composed import compose

        module = checked(model)
        with _probing(module, probe) as probing:
            composed, link = compose(
                module, probing.run, probing.prepare(probing.rows), probing.dtype
            )
        readout = cls._find(composed, probe, "head")
        return replace(readout, link=link, no_head=composed.places is None)

    @property
    def width(self) -> int:
        """How many numbers the representation has."""
        return int(self.head.weight.shape[1])

    @property
    def outputs(self) -> int:
        """How many outputs the head has."""
        return int(self.head.weight.shape[0])

    def __repr__(self) -> str:
        return (
            f"Readout(head={self.head.name!r}, width={self.width}, outputs={self.outputs}, "
            f"link={self.link!r})"
        )

    @contextmanager
    def running(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """Hold the model in evaluation mode, in any number of threads, and hand out `represent`.

        That gives the representation of rows, shape (rows, width), in the model's dtype and on its
        device.
        """
        with evaluation_mode(self.module) as run, self.listening(run) as heard:

            def represent(x: Tensor) -> Tensor:
                if len(x) == 0:
                    return torch.empty(0, self.width, dtype=self.dtype, device=self.device)
                try:
                    return heard(lambda: run(self.ready(x)), len(x))
                except (RuntimeError, IndexError) as failure:
                    columns = self.embedded_columns
                    explain_failure(
                        failure, x, dtype=self.dtype, device=self.device, embedded=columns
                    )
                    raise

            yield represent

    @contextmanager
    def listening(self, visit: Visit) -> Iterator[Callable[[Callable[[], object], int], Tensor]]:
        """Hands out `heard(work, rows)`: the representation of rows `work` sends to the head."""
        layer = self._place.module
        with catching(visit, self._place) as catch:

            def heard(work: Callable[[], object], rows: int) -> Tensor:
                source = catch(work)[1]
                positions = _positions(layer, source, rows)
                if positions == 0 or (isinstance(layer, nn.Linear) and positions != 1):
                    raise ValueError(
                        f"the head {self.head.name!r} received an input of shape "
                        f"{tuple(source.shape)} for {rows} rows; it must treat each by itself."
                    )
                return _rows_entering(layer, source, rows)

            yield heard

    def on_device(self, device: torch.device | str | None) -> Readout:
        """This readout run on a device.

        Where the model itself is on another one, a copy of it runs.
        """
        home, _ = device_and_dtype(self.module)
        away = checked_device(device, home)
        if away == home:
            return replace(self, device=home)
        return replace(copied_to(self, self.module, away), device=away)

    def ready(self, x: Tensor) -> Tensor:
        """Rows in the device and dtype of the model, copied where it writes into its input."""
        return _prepared(x, self.device, self.dtype, self.integer, copy=self._overwrites_x)

    def represent(self, x: Tensor) -> Tensor:
        """The representation of the rows of `x`: one call of `running`."""
        with self.running() as represent:
            return represent(x)

    def logits(self, z: Tensor) -> Tensor:
        """`W z + b` in float64, shape (rows, outputs), on the device of `z` if that has float64."""
        return self.head.logits(z)

    def fingerprint(self) -> str:
        """SHA-256 over the model's state and the head's name.

        It is the same for wrappers of the model, and on every device.
        """
        return fingerprint_of(self.module, self.head.name)


@dataclass(frozen=True, eq=False)
class Network:
    """A readout and the device to run it on, as calibration engines run it."""

    readout: Readout  # the model
    device: torch.device  # where to run it
    represent: Any = None  # runs it on rows; only inside `running`

    @contextmanager
    def running(self) -> Iterator[Network]:
        """Hands out this network with `represent`, which runs it."""
        with running_on(self.readout, self.device) as represent:
            yield replace(self, represent=represent)

    def run(self, batch: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor], Tensor]:
        """A batch as the model takes it, what runs the model on others like it, and logits.

        The logits are on the CPU.
        """
        rows = as_model_takes(batch, self.readout)
        return rows, self.represent, self.readout.logits(self.represent(rows)).cpu()

    def portable(self) -> Network:
        """This network with its model on the CPU, in a copy where the model itself is elsewhere."""
        return portable(self, self.readout.module)

    def moved(self) -> Network:
        """This network with its model moved to the device for good.

        For a process that has the model to itself.
        """
        self.readout.module.to(self.device)
        return replace(self, readout=replace(self.readout, device=self.device))


@contextmanager
def running_on(
    readout: Readout, device: torch.device | str | None
) -> Iterator[Callable[[Tensor], Tensor]]:
    """Hands out the model's `represent`, run in a copy on another device where one is asked for."""
    with readout.on_device(device).running() as represent:
        yield represent


def as_model_takes(rows: Tensor, readout: Readout) -> Tensor:
    """Whole-number tables as integers for models that take those, as floats for all others."""
    if readout.integer:
        return rows.to(torch.int64)
    # A double-precision model gets doubles: the baseline takes the rows' dtype and must not be
    # rounded for it.
    both_single = rows.dtype == torch.float32 and readout.dtype == torch.float32
    return rows if both_single else rows.to(torch.float64)


def fingerprint_of(module: nn.Module, head: str) -> str:
    """SHA-256 over a model's state and the name of its head."""
    digest = hashlib.sha256(f"head={head}\n".encode())
    state = {plain_name(name): value for name, value in module.state_dict().items()}
    for name in sorted(state):
        value = state[name]
        if isinstance(value, Tensor):
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
            dense = value.detach().cpu()
            dense = dense if dense.layout == torch.strided else dense.to_dense()
            # A one-element tensor may have any stride, even when contiguous.
            flat = dense.contiguous().as_strided((dense.numel(),), (1,))
            digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def checked(model: nn.Module) -> nn.Module:
    """The module to run, without wrappers; an error where its layers cannot be observed."""
    if not isinstance(model, nn.Module):
        can_be_opened = isinstance(model, torch.export.ExportedProgram | str | os.PathLike)
        hint = f"; {_OPEN}" if can_be_opened else ""
        raise TypeError(f"model must be a torch.nn.Module, found {type(model).__name__}{hint}.")

    module = unwrap(model)
    if isinstance(module, torch.jit.ScriptModule):
        hint = f"pass the original, or export it with torch.export and {_OPEN}"
        raise TypeError(f"model is a TorchScript module, whose layers cannot be observed; {hint}.")
    lazy = [
        name for name, tensor in module.named_parameters() if torch.nn.parameter.is_lazy(tensor)
    ]
    if lazy:
        raise ValueError(
            f"model has parameters that are not initialised yet ({lazy[0]!r}); run it once on your "
            "data."
        )
    return module


class _Probing(NamedTuple):
    """A model that is held in evaluation mode, and some rows to run it on."""

    run: Visit  # runs it
    prepare: Callable[[Tensor], Tensor]  # copies rows as the model takes them
    rows: Tensor
    device: torch.device  # where the model lives
    dtype: torch.dtype  # in which it takes numbers
    integer: bool  # whether it takes integers


@contextmanager
def trial(model: nn.Module, probe: Tensor) -> Iterator[Callable[[Tensor], Any]]:
    """What the model makes of rows such as those of a probe, as it is run to find the head."""
    with _probing(checked(model), probe) as probing:
        yield lambda rows: probing.run(probing.prepare(rows))


@contextmanager
def _probing(module: nn.Module, probe: Tensor) -> Iterator[_Probing]:
    """Holds a model in evaluation mode to run it on some rows; what it refuses is explained."""
    device, dtype = device_and_dtype(module)
    probe = probe.detach()[:PROBE_ROWS]
    with evaluation_mode(module) as run:
        integer = not (probe.is_floating_point() or probe.is_complex() or probe.dtype == torch.bool)
        if integer:
            # Embeddings refuse floats and linear layers refuse integers, so the model itself gives
            # the answer.
            try:
                run(probe.to(device, copy=True))
            except (RuntimeError, TypeError, NotImplementedError):
                integer = False

        try:
            yield _Probing(
                run=run,
                prepare=lambda x: _prepared(x, device, dtype, integer, copy=True),
                rows=probe,
                device=device,
                dtype=dtype,
                integer=integer,
            )
        except (RuntimeError, IndexError) as failure:
            explain_failure(failure, probe, dtype=dtype, device=device)
            raise


def _prepared(
    x: Tensor, device: torch.device, dtype: torch.dtype, integer: bool, *, copy: bool
) -> Tensor:
    """Rows as the model takes them; a copy where it writes into its input.

    Such a model has a first layer that works in place.
    """
    x = x.detach()
    if not integer:
        return x.to(device, dtype, copy=copy)
    if x.is_floating_point():
        if not torch.equal(x, x.trunc()):
            raise ValueError("the model takes integers, but the rows given to it hold fractions.")
        x = x.to(torch.int64)
    return x.to(device, copy=copy)


def _linear_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Linear layers and 1x1 convolutions, whose output is W z + b at every position.

    Compiled ones have plain names.
    """

    def is_linear(part: nn.Module) -> bool:
        if isinstance(part, nn.Linear):
            return True
        if not isinstance(part, _CONVOLUTIONS):
            return False
        return part.groups == 1 and all(size == 1 for size in part.kernel_size)

    return {plain_name(name): part for name, part in module.named_modules() if is_linear(part)}


def _embeddings(module: nn.Module) -> dict[str, nn.Module]:
    """The layers in which codes are looked up, by name."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    return {name: part for name, part in module.named_modules() if isinstance(part, kinds)}


def _choose_layers(module: nn.Module, head: str | nn.Module | None) -> dict[str, nn.Module]:
    """Linear layers among which to look: all, or the one named, or those in the container named."""
    layers = _linear_layers(module)
    if not layers:
        # What ExportedProgram.module() gives: its layers have become operations of a graph.
        exported = isinstance(module, torch.fx.GraphModule)
        hint = " If torch.export made it, pass nobsp.as_module(model, rows)." if exported else ""
        raise (ValueError if exported else NoHeadError)(
            "model has no linear layer (nn.Linear, or nn.Conv1d/nn.Conv2d with kernel size 1); "
            f"only models that end in one can be explained.{hint}"
        )

    if head is None:
        return layers

    name, part = find_part(module, head, argument="head", offer=layers)
    inside = {
        f"{name}.{inner}".strip("."): layer for inner, layer in _linear_layers(unwrap(part)).items()
    }
    if not inside:
        known = f"the model's are {join_names(layers)}"
        raise ValueError(
            f"head {name!r} is a {type(part).__name__} without a linear layer; {known}."
        )

    return inside


def _find_head(
    run: Visit,
    x: Tensor,
    layers: dict[str, nn.Module],
    outputs: dict[str, Tensor],
    dtype: torch.dtype,
    *,
    named: bool,
) -> tuple[Head, str, Place]:
    """The layer whose W z + b is in the outputs of a former run, its link, and its input's place.

    `named` tells whether the caller named a head, or a container of heads.
    """
    search = _HeadSearch(len(x), x.device, outputs, dtype)
    with hooked(run, layers, "input", search.see) as here:
        here.on = True
        run(x)
    if not search.best:
        refuse_non_finite(outputs)
        raise search.why_none(silent=[name for name in layers if name not in search.calls])

    _require_one_head(search.winners(), list(layers), named=named)
    best = min(search.best.values())
    match = search.matches[best.match]
    link = list(LINKS)[best.link]
    return match.head, link, search.place_of(match, layers[match.head.name])


@dataclass(frozen=True, eq=False)
class _Match:
    """A call of a layer that gave an output."""

    head: Head
    layer: nn.Module
    call: int  # which of the layer's calls
    entering: Tensor  # a copy of what entered it, (rows, width)
    source: Tensor  # the tensor itself, which the model may overwrite


@dataclass(frozen=True)
class _Rank:
    """How good a match is: of the simplest link, and then the last call, comes first."""

    link: int  # position in LINKS, simplest first
    match: int  # position among the matches, in the order of the calls

    def __lt__(self, other: _Rank) -> bool:
        return (self.link, -self.match) < (other.link, -other.match)


class _HeadSearch:
    """Compares what every linear layer gives with the outputs, while the model runs."""

    def __init__(
        self, rows: int, device: torch.device, outputs: dict[str, Tensor], dtype: torch.dtype
    ) -> None:
        self._rows = rows
        self._device = device
        self._outputs = outputs
        self._dtype = dtype
        self._sizes = {output.shape[1] for output in outputs.values()}
        self.best: dict[str, _Rank] = {}  # by output
        self.matches: list[_Match] = []
        self.calls: Counter[str] = Counter()
        self._near: list[tuple[float, str]] = []  # by how much the outputs of other layers differ
        self._apart: list[tuple[str, int]] = []  # layers at several positions of every row

    def see(self, name: str, layer: nn.Module, source: Tensor) -> None:
        """Looks at one call of a layer, before it runs."""
        source = source.detach()
        width = len(torch.as_tensor(layer.weight))
        positions = _positions(layer, source, self._rows)
        self.calls[name] += 1

        sees_rows = positions == 1 or (positions > 1 and isinstance(layer, _CONVOLUTIONS))
        if width not in self._sizes or not sees_rows:
            if positions > 1 and {width, width * positions} & self._sizes:
                self._apart.append((name, positions))
            return

        head = Head.of(layer, name)
        entering = _rows_entering(layer, source, self._rows).clone()
        number = len(self.matches)
        self._compare(head, entering.to("cpu", torch.float64), number)
        if any(rank.match == number for rank in self.best.values()):
            self.matches.append(_Match(head, layer, self.calls[name] - 1, entering, source))

    def _compare(self, head: Head, z: Tensor, number: int) -> None:
        """Notes which outputs a head gives, and through which link.

        `number` is what its match would have.
        """
        logits = head.logits(z)
        allowed = _allowance(z, head, self._dtype, self._device)
        for path, output in self._outputs.items():
            if output.shape != logits.shape:
                continue
            self._near.append((float((logits - output).abs().max()), head.name))
            for position, link in enumerate(LINKS):
                if logits.shape[1] == 1 and "softmax" in link:
                    continue  # the softmax of a single logit is always one
                if _agrees(logits, output, allowed, link, self._dtype):
                    rank = _Rank(position, number)
                    self.best[path] = min(self.best.get(path, rank), rank)
                    break

    def winners(self) -> list[_Match]:
        """For every output that a head gives, the call that does."""
        return [self.matches[rank.match] for rank in self.best.values()]

    def place_of(self, match: _Match, layer: nn.Module) -> Place:
        """Where the input of a match passes in the caller's own layer.

        The last call is the last one whatever its number.
        """
        name = match.head.name
        is_last = match.call == self.calls[name] - 1
        still_there = torch.equal(
            match.entering, _rows_entering(match.layer, match.source, self._rows)
        )
        return Place(
            name,
            layer,
            -1 if is_last else match.call,
            "input",
            overwritten=not still_there,
        )

    def why_none(self, silent: list[str]) -> NoHeadError:
        """An error with what is known of the layers that came closest."""
        return _why_none(self._outputs, self._near, self._apart, silent)


def _require_one_head(winners: list[_Match], layers: list[str], *, named: bool) -> None:
    """An error where outputs come from several heads, or from several calls of one."""
    heads = {match.head.name for match in winners}
    names = [name for name in layers if name in heads]
    if len(names) > 1:
        subject = "head names a container with" if named else "the model's output holds"
        raise ValueError(
            f"{subject} {len(names)} heads: {join_names(names)}; choose one, e.g. "
            f"head={names[0]!r}."
        )
    if len({match.call for match in winners}) > 1:
        raise ValueError(
            f"the head {names[0]!r} is called several times and more than one of its results is "
            "returned; wrap the model so that it returns only the result to explain."
        )


def _positions(layer: nn.Module, source: Tensor, rows: int) -> int:
    """At how many positions of every row a layer was applied; 0 if its input has other rows."""
    channels = source.shape[1 if isinstance(layer, _CONVOLUTIONS) else -1]
    per_row = source.numel() // channels if channels else 0
    lined_up = rows > 0 and per_row % rows == 0 and (source.shape[0] == rows or rows == 1)
    return per_row // rows if lined_up else 0


def _rows_entering(layer: nn.Module, source: Tensor, rows: int) -> Tensor:
    """The layer's input as (rows, width), that of a convolution averaged over positions.

    Averaging is right because mean(W z + b) = W mean(z) + b.
    """
    if isinstance(layer, _CONVOLUTIONS):
        return source.flatten(2).mean(dim=2)
    return source.reshape(rows, -1)


def _why_none(
    outputs: dict[str, Tensor],
    near: list[tuple[float, str]],
    apart: list[tuple[str, int]],
    silent: list[str],
) -> NoHeadError:
    if apart:
        return NoHeadError(
            f"the linear layer {apart[0][0]!r} is applied at each of {apart[0][1]} positions of "
            "every row, not to one vector per row. Wrap the model so that it pools the positions, "
            "or picks one, before this layer."
        )
    if near:
        difference, name = min(near)
        return NoHeadError(
            f"the model's output is not W z + b of any linear layer: the closest is {name!r}, with "
            f"a largest difference of {difference:.3g}. Something else follows that layer; pass a "
            "model that returns its result (a softmax, log_softmax, sigmoid and reshapes are "
            "recognised)."
        )
    unused = f" (never called as a module: {join_names(silent)})" if silent else ""
    return NoHeadError(
        "the model's output of shape "
        f"{', '.join(str(tuple(output.shape)) for output in outputs.values())} comes from no "
        f"linear layer that sees one vector per row{unused}. Name one with head=..., or pass a "
        "model that has one."
    )


def tensors_in(result: Any, path: str = "") -> dict[str, Tensor]:
    """Tensors of a model's result by path; only `logits` where the result has such an entry."""
    if isinstance(result, Tensor):
        return {path: result}
    parts: dict[str, Any] = {}
    if isinstance(result, Mapping):
        keys = ["logits"] if result.get("logits") is not None else list(result)
        parts = {f"[{key!r}]": result[key] for key in keys}
    elif getattr(result, "logits", None) is not None:
        parts = {".logits": result.logits}
    elif isinstance(result, tuple | list):
        parts = {f"[{position}]": part for position, part in enumerate(result)}
    elif dataclasses.is_dataclass(result) and not isinstance(result, type):
        parts = {
            f".{field.name}": getattr(result, field.name) for field in dataclasses.fields(result)
        }

    tensors: dict[str, Tensor] = {}
    for step, part in parts.items():
        tensors |= tensors_in(part, path + step)
    return tensors


def outputs_of(result: Any, rows: int) -> dict[str, Tensor]:
    """Outputs by path as (rows, outputs), in float64 on the CPU, with reshapes undone.

    An error where there is none.
    """
    outputs = {}
    for path, output in tensors_in(result).items():
        per_row = output.ndim > 0 and output.shape[0] == rows
        if (per_row or rows == 1) and output.numel() and not output.is_complex():
            outputs[path] = output.detach().to("cpu", torch.float64).reshape(rows, -1)
    if not outputs:
        raise ValueError(
            f"model returned no tensor with one entry for each of the {rows} rows of the probe."
        )
    return outputs


class NotFiniteError(ValueError):
    """The model's output for a row is no number."""


def refuse_non_finite(outputs: Mapping[str, Tensor]) -> None:
    """An error that names the first output that is no number."""
    for path, output in outputs.items():
        bad = (~output.isfinite()).nonzero()
        if len(bad):
            row, column = bad[0].tolist()
            raise NotFiniteError(
                f"the model's output{path} is {float(output[row, column])} in row {row} of the "
                f"probe (output {column}); check the input's scale: only finite outputs can be "
                "explained."
            )


def _allowance(z: Tensor, head: Head, dtype: torch.dtype, device: torch.device) -> Tensor:
    """How far rounding may carry a model's logits from W z + b.

    It is that of sums, bounded through |z| |W|ᵀ, and that of results.
    """
    # Half precisions are summed in float32, so only their results are coarse.
    stored = torch.finfo(dtype).eps
    summed = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    tf32 = device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
    if dtype == torch.float32 and (tf32 or torch.get_float32_matmul_precision() != "highest"):
        summed = 2.0**-8

    bias = head.bias.abs()
    size = z.abs() @ head.weight.abs().T
    of_results = 4 * stored * ((z @ head.weight.T).abs() + bias)
    of_sums = 16 * summed * (size + bias)
    return of_results + of_sums + 1e-300


def _agrees(logits: Tensor, output: Tensor, allowed: Tensor, link: str, dtype: torch.dtype) -> bool:
    """Whether `output` is `link(logits)` within rounding."""
    expected = LINKS[link](logits)
    coarse = 8 * torch.finfo(dtype).eps
    tolerance = allowed
    worst = allowed.amax(dim=-1, keepdim=True)
    largest = logits.abs().amax(dim=-1, keepdim=True)

    if link == "log_softmax":
        tolerance = 2 * worst + coarse * (expected.abs() + largest)
    elif link == "softmax":
        tolerance = expected * (2 * worst + coarse * (1 + largest)) + coarse
    elif link == "sigmoid":
        tolerance = expected * (1 - expected) * allowed + coarse
    return bool(((expected - output).abs() <= tolerance).all())


def log_odds(logits: Tensor, target: Tensor, *, sigmoid: bool = False) -> Tensor:
    """Log-odds of one class per row: its logit less that of the sum of the others.

    In place of logits, logarithms of any weights will do.

    >>> log_odds(torch.tensor([[1.0, 2.0, 6.0]]).log(), torch.tensor([2])).exp().round(decimals=5)
    tensor([2.])
    """
    own = logits.gather(1, target[:, None])[:, 0]
    if sigmoid:
        return own
    others = logits.scatter(1, target[:, None], -torch.inf)
    return own - others.logsumexp(1)


# ---------------------------------------------------------------------- a function of its row


# Rows that are tried: a batch mean of 32 rows is far from one of 16, and slow models are not run
# for long.
_MOST_ROWS = 32
# How far outputs may differ, as a share of their spread: sums are rounded differently in batches of
# other sizes.
_SHARE_OF_SPREAD = 1e-3
# The same in units of the model's precision, for outputs that hardly differ from row to row.
_ROUNDING = 32
# Precision of products in TensorFloat-32.
_TF32_EPS = 2.0**-10

Outputs = Mapping[str, Tensor]


class NotAFunctionError(ValueError):
    """The model's output for a row is not determined by the row."""


def require_function_of_row(
    run: Visit,
    prepare: Callable[[Tensor], Tensor],
    rows: Tensor,
    outputs_of: Callable[[Any, int], Outputs],
    dtype: torch.dtype,
) -> None:
    """An error where what a model gives for a row is not a function of that row alone.

    It is run again, beside other rows, and in a smaller batch, and must give the same.
    """
    rows = rows[:_MOST_ROWS]
    count = len(rows)
    first = outputs_of(run(prepare(rows)), count)
    with _other_numbers(rows.device, drawn=run.draws_numbers):
        again = outputs_of(run(prepare(rows)), count)

    tolerance = {path: _tolerance(output, dtype) for path, output in first.items()}
    difference = _worst(first, again, tolerance)
    if difference is not None:
        raise _not_deterministic(difference)

    half = (count + 1) // 2
    repeated = torch.arange(count, device=rows.device) % half
    for chosen in (repeated, repeated[:half]):
        if count < 2:
            break
        try:
            beside = outputs_of(run(prepare(rows[chosen])), len(chosen))
        except Exception:  # noqa: BLE001 - a model of one batch size; other failures are reported when it is run for real
            continue
        expected = {path: output[chosen.cpu()] for path, output in first.items()}
        difference = _worst(expected, beside, tolerance)
        if difference is not None and run.draws_numbers:
            raise _not_deterministic(difference)
        if difference is not None:
            raise NotAFunctionError(
                "the model's output for a row depends on the other rows of its batch: it differs "
                f"by up to {difference:.3g} beside other rows. A batch mean, or batch "
                "normalisation without running statistics, does so; pass a model that treats each "
                "row by itself."
            )


def _not_deterministic(difference: float) -> NotAFunctionError:
    return NotAFunctionError(
        "the model is not deterministic: its output for the same row differs by up to "
        f"{difference:.3g} from one run to the next. Pass a model without random numbers or state "
        "in evaluation mode, or one that averages them out."
    )


@contextmanager
def _other_numbers(device: torch.device, *, drawn: bool) -> Iterator[None]:
    """Lets a model that draws random numbers draw other ones, and puts the generators back."""
    if not drawn:
        yield
        return
    gpus = [device] if device.type == "cuda" else []
    global_numbers = GlobalGeneratorStates.now()
    try:
        with torch.random.fork_rng(devices=gpus):
            torch.rand(1, device=device)
            if global_numbers is not None:
                global_numbers.move_on()
            yield
    finally:
        if global_numbers is not None:
            global_numbers.rewind()


def _tolerance(output: Tensor, dtype: torch.dtype) -> float:
    """How far two runs may differ by rounding."""
    # Models of other libraries take doubles and may work in single precision.
    eps = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    if torch.get_float32_matmul_precision() != "highest" or torch.backends.cuda.matmul.allow_tf32:
        eps = max(eps, _TF32_EPS)
    known = output[output.isfinite()]
    if not known.numel():
        return 0.0
    spread = float(_spread(output))
    size = float(known.abs().max())
    return max(_SHARE_OF_SPREAD, _ROUNDING * eps) * spread + _ROUNDING * eps * size


def _spread(output: Tensor) -> Tensor:
    """The largest range of an output over the rows."""
    low = torch.where(output.isfinite(), output, torch.inf).amin(0)
    high = torch.where(output.isfinite(), output, -torch.inf).amax(0)
    return (high - low).clamp_min(0.0).max()


def _worst(expected: Outputs, repeated: Outputs, tolerance: Mapping[str, float]) -> float | None:
    """The largest difference where one is beyond tolerance; None where none is.

    It is infinite where outputs are missing or are no numbers.
    """
    for path, output in expected.items():
        other = repeated.get(path)
        if other is None or other.shape != output.shape:
            return torch.inf
        same = (output == other) | (output.isnan() & other.isnan())
        differences = torch.where(same, 0.0, (output - other).abs())
        largest = float(differences.nan_to_num(nan=torch.inf).max())
        if largest > tolerance[path]:
            return largest
    return None
