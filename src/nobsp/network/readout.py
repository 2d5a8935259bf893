"""Finds the linear head of a model by running it, and reads the representation that enters it."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nobsp.arguments import join_names
from nobsp.network.determinism import require_function_of_row
from nobsp.network.inference import (
    Place,
    catching,
    checked_device,
    copied_to,
    device_and_dtype,
    evaluation_mode,
    explain_failure,
    find_part,
    hooked,
    plain,
    portable,
)
from nobsp.network.stand_in import unwrap
from nobsp.network.visit import Visit

PROBE_ROWS = 256
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
_OPEN = "open it with nobsp.as_module(model, rows)"

# From the simplest to the most involved: the order in which explanations of an output are preferred.
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
        weight = (
            torch.as_tensor(layer.weight).detach().to("cpu", torch.float64, copy=True).flatten(1)
        )
        bias = (
            weight.new_zeros(len(weight))
            if layer.bias is None
            else torch.as_tensor(layer.bias).detach()
        )
        return cls(weight, bias.to("cpu", torch.float64, copy=True), name)

    def logits(self, z: Tensor) -> Tensor:
        """`W z + b` in float64, shape (rows, outputs), on the device of `z` where that has float64."""
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
    link: str  # what follows it: "identity", "softmax", "log_softmax", "sigmoid", "exp", "softplus" or "clamp"
    embedded_columns: tuple[
        int, ...
    ]  # columns of the probe that reach `nn.Embedding` layers as integer codes
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
        """Run the model on the first 256 rows of `probe` and find the layer whose `W z + b` is the model's output.

        A softmax, log-softmax, sigmoid or reshape may follow it. `head` is its name, or the layer itself, for models
        with several; a container means the head inside it.
        """
        module = checked(model)
        if not isinstance(probe, Tensor) or probe.ndim == 0 or len(probe) == 0:
            raise ValueError(
                f"probe must be a tensor with at least one row, found {getattr(probe, 'shape', probe)}."
            )
        with _probing(module, probe) as (run, prepare, rows, (_, dtype, _)):
            require_function_of_row(run, prepare, rows, outputs_of, dtype)
        return cls._find(module, probe, head)

    @classmethod
    def _find(cls, module: nn.Module, probe: Tensor, head: str | nn.Module | None) -> Readout:
        """The same, of a model that is known to be a function of its row."""
        layers = _choose_layers(module, head)
        with _probing(module, probe) as (run, prepare, rows, (device, dtype, integer)):
            given = prepare(rows)
            outputs = outputs_of(run(given), len(rows))
            overwrites = not torch.equal(given, prepare(rows))
            found_head, link, place = _find_head(
                run, prepare(rows), layers, outputs, dtype, given=head is not None
            )
            columns = _embedded_columns(module, run, rows, prepare)
        return cls(module, found_head, link, columns, device, dtype, integer, place, overwrites)

    @classmethod
    def find_any(
        cls, model: nn.Module, probe: Tensor, *, head: str | nn.Module | None = None
    ) -> Readout:
        """The same for any model of one tensor: where no layer is the head, it is composed (see `compose`)."""
        try:
            return cls.find(model, probe, head=head)
        except NoHeadError:
            if head is not None:
                raise
        from nobsp.network.composed import compose

        module = checked(model)
        with _probing(module, probe) as (run, prepare, rows, (_, dtype, _)):
            composed, link = compose(module, run, prepare(rows), dtype)
        found = cls._find(composed, probe, "head")
        return replace(found, link=link, no_head=composed.places is None)

    @property
    def width(self) -> int:
        """How many numbers the representation has."""
        return int(self.head.weight.shape[1])

    @property
    def outputs(self) -> int:
        """How many outputs the head has."""
        return int(self.head.weight.shape[0])

    def __repr__(self) -> str:
        return f"Readout(head={self.head.name!r}, width={self.width}, outputs={self.outputs}, link={self.link!r})"

    @contextmanager
    def running(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """Hold the model in evaluation mode, in any number of threads, and hand out `represent`.

        That gives the representation of rows, shape (rows, width), in the model's dtype and on its device.
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
        """Hand out `heard(work, rows)`: the representation of rows that `work` sends through the head."""
        layer = self._place.module
        with catching(visit, self._place) as catch:

            def heard(work: Callable[[], object], rows: int) -> Tensor:
                source = catch(work)[1]
                positions = _positions(layer, source, rows)
                if positions == 0 or (isinstance(layer, nn.Linear) and positions != 1):
                    found = f"an input of shape {tuple(source.shape)} for {rows} rows"
                    raise ValueError(
                        f"the head {self.head.name!r} received {found}; it must treat each by itself."
                    )
                return _rows_entering(layer, source, rows)

            yield heard

    def on_device(self, device: torch.device | str | None) -> Readout:
        """The same, run on a device: in a copy of the model where that is elsewhere."""
        home, _ = device_and_dtype(self.module)
        away = checked_device(device, home)
        if away == home:
            return replace(self, device=home)
        return replace(copied_to(self, self.module, away), device=away)

    def ready(self, x: Tensor) -> Tensor:
        """Rows as the model takes them: its device and dtype, copied where the model writes into its input."""
        return _prepared(x, self.device, self.dtype, self.integer, copy=self._overwrites_x)

    def represent(self, x: Tensor) -> Tensor:
        """The representation of the rows of `x`: one call of `running`."""
        with self.running() as represent:
            return represent(x)

    def logits(self, z: Tensor) -> Tensor:
        """`W z + b` in float64, shape (rows, outputs), on the device of `z` where that has float64."""
        return self.head.logits(z)

    def fingerprint(self) -> str:
        """SHA-256 over the model's state and the head's name; the same for its wrappers, and on every device."""
        return fingerprint_of(self.module, self.head.name)


@dataclass(frozen=True, eq=False)
class Network:
    """A readout and the device to run it on, as calibration engines run it."""

    readout: Readout  # the model
    device: torch.device  # where to run it
    represent: Any = None  # runs it on rows; only inside `running`

    @contextmanager
    def running(self) -> Iterator[Network]:
        """Hands out the same with `represent`."""
        with running_on(self.readout, self.device) as represent:
            yield replace(self, represent=represent)

    def run(self, batch: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor], Tensor]:
        """A batch as the model takes it, what runs the model on others like it, and the logits, on the CPU."""
        rows = as_model_takes(batch, self.readout)
        return rows, self.represent, self.readout.logits(self.represent(rows)).cpu()

    def portable(self) -> Network:
        """The same with the model on the CPU, in a copy where it is elsewhere."""
        return portable(self, self.readout.module)

    def moved(self) -> Network:
        """The same with the model on its device for good, in a process of its own."""
        self.readout.module.to(self.device)
        return replace(self, readout=replace(self.readout, device=self.device))


@contextmanager
def running_on(
    readout: Readout, device: torch.device | str | None
) -> Iterator[Callable[[Tensor], Tensor]]:
    """Hands out the model's `represent`, run on another device where one is asked for, in a copy."""
    with readout.on_device(device).running() as represent:
        yield represent


def as_model_takes(rows: Tensor, readout: Readout) -> Tensor:
    """Whole-number tables as integers for models that take those, as floats for all others."""
    if readout.integer:
        return rows.to(torch.int64)
    # A double-precision model gets doubles: the baseline takes the rows' dtype and must not be rounded for it.
    return rows if rows.dtype == torch.float32 == readout.dtype else rows.to(torch.float64)


def fingerprint_of(module: nn.Module, head: str) -> str:
    """SHA-256 over a model's state and the name of its head."""
    digest = hashlib.sha256(f"head={head}\n".encode())
    state = {plain(name): value for name, value in module.state_dict().items()}
    for name in sorted(state):
        value = state[name]
        if isinstance(value, Tensor):
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
            dense = value.detach().cpu()
            dense = dense if dense.layout == torch.strided else dense.to_dense()
            # Of a single number the stride may be any, even where it is contiguous.
            flat = dense.contiguous().as_strided((dense.numel(),), (1,))
            digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def checked(model: nn.Module) -> nn.Module:
    """The module to run, without wrappers; an error where its layers cannot be observed."""
    if not isinstance(model, nn.Module):
        hint = (
            f"; {_OPEN}"
            if isinstance(model, torch.export.ExportedProgram | str | os.PathLike)
            else ""
        )
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
            f"model has parameters that are not initialised yet ({lazy[0]!r}); run it once on your data."
        )
    return module


@contextmanager
def _probing(module: nn.Module, probe: Tensor) -> Iterator[tuple[Any, ...]]:
    """Hands out what runs the model, what makes rows ready for it, some rows, and its device, dtype and integers."""
    device, dtype = device_and_dtype(module)
    probe = probe.detach()[:PROBE_ROWS]
    with evaluation_mode(module) as run:
        integer = not (probe.is_floating_point() or probe.is_complex() or probe.dtype == torch.bool)
        if integer:
            # Embeddings refuse floats and linear layers refuse integers, so the model itself gives the answer.
            try:
                run(probe.to(device, copy=True))
            except (RuntimeError, TypeError, NotImplementedError):
                integer = False

        try:
            yield (
                run,
                lambda x: _prepared(x, device, dtype, integer, copy=True),
                probe,
                (device, dtype, integer),
            )
        except (RuntimeError, IndexError) as failure:
            explain_failure(failure, probe, dtype=dtype, device=device)
            raise


def _prepared(
    x: Tensor, device: torch.device, dtype: torch.dtype, integer: bool, *, copy: bool
) -> Tensor:
    """Rows as the model takes them; a copy where it writes into its input (a first layer that works in place)."""
    x = x.detach()
    if not integer:
        return x.to(device, dtype, copy=copy)
    if x.is_floating_point():
        if not torch.equal(x, x.trunc()):
            raise ValueError("the model takes integers, but the rows given to it hold fractions.")
        x = x.to(torch.int64)
    return x.to(device, copy=copy)


def _linear_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Linear layers and 1x1 convolutions, whose output is W z + b at every position, compiled ones by plain names."""

    def is_linear(part: nn.Module) -> bool:
        pointwise = (
            isinstance(part, _CONVOLUTIONS)
            and all(size == 1 for size in part.kernel_size)
            and part.groups == 1
        )
        return pointwise or isinstance(part, nn.Linear)

    return {plain(name): part for name, part in module.named_modules() if is_linear(part)}


def _choose_layers(module: nn.Module, head: str | nn.Module | None) -> dict[str, nn.Module]:
    """Linear layers among which to look: all of them, or the one (or those inside the container) named."""
    layers = _linear_layers(module)
    if not layers:
        # What ExportedProgram.module() gives: its layers have become operations of a graph.
        exported = isinstance(module, torch.fx.GraphModule)
        hint = " If torch.export made it, pass nobsp.as_module(model, rows)." if exported else ""
        raise (ValueError if exported else NoHeadError)(
            "model has no linear layer (nn.Linear, or nn.Conv1d/nn.Conv2d with kernel size 1); only models that end in "
            f"one can be explained.{hint}"
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
    given: bool,
) -> tuple[Head, str, Place]:
    """The layer whose W z + b is in the outputs of a run before, the link, and where its input passes."""
    rows = len(x)
    sizes = {output.shape[1] for output in outputs.values()}
    best: dict[
        str, tuple[int, int]
    ] = {}  # per output the simplest link, then the last call as a negative number
    matches: list[
        tuple[Head, nn.Module, int, Tensor, Tensor]
    ] = []  # head, layer, which of its calls, z, its source
    counts: Counter[str] = Counter()
    near: list[tuple[float, str]] = []  # by how much the outputs of other layers differ
    apart: list[tuple[str, int]] = []  # layers at several positions of every row

    def see(name: str, layer: nn.Module, source: Tensor) -> None:
        source = source.detach()
        width = len(torch.as_tensor(layer.weight))
        positions = _positions(layer, source, rows)
        counts[name] += 1
        if width not in sizes or not (
            positions == 1 or (positions and isinstance(layer, _CONVOLUTIONS))
        ):
            if positions > 1 and {width, width * positions} & sizes:
                apart.append((name, positions))
            return

        head = Head.of(layer, name)
        entering = _rows_entering(layer, source, rows).clone()
        z = entering.to("cpu", torch.float64)
        order = -len(matches)
        logits = head.logits(z)
        allowed = _allowance(z, head, dtype, x.device)
        for path in (path for path, output in outputs.items() if output.shape == logits.shape):
            near.append((float((logits - outputs[path]).abs().max()), name))
            for rank, link in enumerate(LINKS):
                if width == 1 and "softmax" in link:
                    continue  # the softmax of a single logit is always one
                if _agrees(logits, outputs[path], allowed, link, dtype):
                    best[path] = min(best.get(path, (rank, order)), (rank, order))
                    break

        if any(number == order for _, number in best.values()):
            matches.append((head, layer, counts[name] - 1, entering, source))

    with hooked(run, layers, "input", see) as here:
        here.on = True
        run(x)
    if not best:
        refuse_non_finite(outputs)
        raise _why_none(outputs, near, apart, [name for name in layers if name not in counts])
    found = [matches[-order] for _, order in best.values()]
    names = [name for name in layers if any(head.name == name for head, *_ in found)]
    if len(names) > 1:
        asked = "head names a container with" if given else "the model's output holds"
        raise ValueError(
            f"{asked} {len(names)} heads: {join_names(names)}; choose one, e.g. head={names[0]!r}."
        )
    if len({index for _, _, index, _, _ in found}) > 1:
        several = f"the head {names[0]!r} is called several times and more than one of its results is returned"
        raise ValueError(
            f"{several}; wrap the model so that it returns only the result to explain."
        )
    rank, order = min(best.values())
    head, layer, index, z, source = matches[-order]
    overwritten = not torch.equal(z, _rows_entering(layer, source, rows))
    call = -1 if index == counts[head.name] - 1 else index
    place = Place(head.name, layers[head.name], call, "input", overwritten=overwritten)
    return head, list(LINKS)[rank], place


def _positions(layer: nn.Module, source: Tensor, rows: int) -> int:
    """At how many positions of every row a layer was applied; 0 if its input has other rows."""
    channels = source.shape[1 if isinstance(layer, _CONVOLUTIONS) else -1]
    per_row = source.numel() // channels if channels else 0
    lined_up = rows > 0 and per_row % rows == 0 and (source.shape[0] == rows or rows == 1)
    return per_row // rows if lined_up else 0


def _rows_entering(layer: nn.Module, source: Tensor, rows: int) -> Tensor:
    """The layer's input as (rows, width), a convolution's averaged over positions: mean(W z + b) = W mean(z) + b."""
    return (
        source.flatten(2).mean(dim=2)
        if isinstance(layer, _CONVOLUTIONS)
        else source.reshape(rows, -1)
    )


def _why_none(
    outputs: dict[str, Tensor],
    near: list[tuple[float, str]],
    apart: list[tuple[str, int]],
    silent: list[str],
) -> NoHeadError:
    if apart:
        return NoHeadError(
            f"the linear layer {apart[0][0]!r} is applied at each of {apart[0][1]} positions of every row, not to one "
            "vector per row. Wrap the model so that it pools the positions, or picks one, before this layer."
        )
    if near:
        difference, name = min(near)
        return NoHeadError(
            f"the model's output is not W z + b of any linear layer: the closest is {name!r}, with a largest "
            f"difference of {difference:.3g}. Something else follows that layer; pass a model that returns its result "
            "(a softmax, log_softmax, sigmoid and reshapes are recognised)."
        )
    unused = f" (never called as a module: {join_names(silent)})" if silent else ""
    return NoHeadError(
        f"the model's output of shape {', '.join(str(tuple(output.shape)) for output in outputs.values())} comes from "
        f"no linear layer that sees one vector per row{unused}. Name one with head=..., or pass a model that has one."
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
    return {
        where: found
        for step, part in parts.items()
        for where, found in tensors_in(part, path + step).items()
    }


def outputs_of(result: Any, rows: int) -> dict[str, Tensor]:
    """Outputs by path as (rows, outputs) in float64 on the CPU, reshapes undone; an error where there is none."""
    found = {}
    for path, output in tensors_in(result).items():
        per_row = output.ndim > 0 and output.shape[0] == rows
        if (per_row or rows == 1) and output.numel() and not output.is_complex():
            found[path] = output.detach().to("cpu", torch.float64).reshape(rows, -1)
    if not found:
        raise ValueError(
            f"model returned no tensor with one entry for each of the {rows} rows of the probe."
        )
    return found


def refuse_non_finite(outputs: Mapping[str, Tensor]) -> None:
    """An error that names the first output that is no number."""
    for path, output in outputs.items():
        bad = (~output.isfinite()).nonzero()
        if len(bad):
            row, column = (int(place) for place in bad[0])
            found = f"{float(output[row, column])} in row {row} of the probe (output {column}); check the input's scale"
            raise ValueError(
                f"the model's output{path} is {found}: only finite outputs can be explained."
            )


def _allowance(z: Tensor, head: Head, dtype: torch.dtype, device: torch.device) -> Tensor:
    """How far rounding may carry a model's logits from W z + b: of sums, bounded through |z| |W|ᵀ, and of results."""
    # Half precisions are summed in float32, so only their results are coarse.
    stored = torch.finfo(dtype).eps
    summed = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    tf32 = device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
    if dtype == torch.float32 and (tf32 or torch.get_float32_matmul_precision() != "highest"):
        summed = 2.0**-8
    bias = head.bias.abs()
    size = z.abs() @ head.weight.abs().T
    return 4 * stored * ((z @ head.weight.T).abs() + bias) + 16 * summed * (size + bias) + 1e-300


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


def _embedded_columns(
    module: nn.Module,
    run: Visit,
    probe: Tensor,
    prepare: Callable[[Tensor], Tensor],
) -> tuple[int, ...]:
    """Columns of `probe` whose integer part, up to a constant shift, is looked up in an embedding."""
    layers = {
        n: part
        for n, part in module.named_modules()
        if isinstance(part, nn.Embedding | nn.EmbeddingBag)
    }
    if not layers or probe.ndim != 2:
        return ()

    def lookups_of(rows: Tensor) -> list[tuple[Tensor, int]]:
        """Index vectors looked up during a forward pass, one value per row, each with its number of levels."""
        lookups: list[tuple[Tensor, int]] = []

        def see(_: str, layer: nn.Module, indices: Tensor) -> None:
            if indices.ndim and indices.shape[0] == len(rows):
                levels = len(torch.as_tensor(layer.weight))
                each = indices.detach().to("cpu", torch.int64).reshape(len(rows), -1).T
                lookups.extend((position.clone(), levels) for position in each)

        with hooked(run, layers, "input", see) as here:
            here.on = True
            run(prepare(rows))
        return lookups

    codes = probe.detach().to("cpu", torch.float64).trunc()
    before = lookups_of(probe)
    found = set()
    for number, (looked_up, levels) in enumerate(before):
        shift = looked_up[:, None].to(torch.float64) - codes
        columns = (shift == shift[:1]).all(dim=0).nonzero().flatten().tolist()
        if len(columns) == 1 and bool((looked_up != looked_up[0]).any()):
            found.add(columns[0])
        # Constant columns, or two with the same codes, may agree by chance: one is changed, and looked up again.
        for column in set(columns) - found:
            # Moved to the next valid code, so that no lookup leaves the embedding.
            changed = probe.detach().clone()
            changed[:, column] += ((looked_up + 1) % levels - looked_up).to(
                changed.device, changed.dtype
            )
            after = lookups_of(changed)
            if len(after) != len(before) or not torch.equal(after[number][0], looked_up):
                found.add(column)
    return tuple(sorted(found))
