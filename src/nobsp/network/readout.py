"""Finds the linear head of a model by running it, and reads the representation that enters it."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nobsp.network.composed import compose
from nobsp.network.find_head import Head, NoHeadError, chosen_layers, find_head
from nobsp.network.hooks import embedded_columns, plain, positions_of, record_inputs, rows_entering
from nobsp.network.inference import device_and_dtype, evaluation_mode, explain_failure, unwrap

PROBE_ROWS = 256
_OPEN = "open it with nobsp.as_module(model, rows)"


@dataclass(frozen=True, eq=False, repr=False)
class Readout:
    """A model seen as `W z(x) + b`: where its linear head is, and how to get `z`.

    Attributes:
        module: The model itself, without compile or parallel wrappers.
        head: Weight and bias of the last linear layer, float64 on the CPU, and its name.
        link: What follows the head: "identity", "softmax", "log_softmax", "sigmoid", "exp", "softplus" or "clamp".
        embedded_columns: Columns of the probe that reach `nn.Embedding` layers as integer codes.
        device: Where the model lives.
        dtype: Floating precision in which the model takes its input.
        integer: Whether the model takes integers.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from nobsp.network import Readout
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2), nn.Softmax(dim=1))
        >>> readout = Readout.find(model, torch.randn(16, 3))
        >>> readout
        Readout(head='2', width=8, outputs=2, link='softmax')
        >>> x = torch.randn(4, 3)
        >>> probabilities = readout.logits(readout.represent(x)).softmax(dim=1)
        >>> torch.allclose(probabilities.float(), model(x))
        True
    """

    module: nn.Module
    head: Head
    link: str
    embedded_columns: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype
    integer: bool
    _layer: nn.Module
    _call: int
    _overwrites_z: bool
    _overwrites_x: bool
    no_head: bool = False  # whether the outputs themselves stand for a representation

    @classmethod
    def find(cls, model: nn.Module, probe: Tensor, *, head: str | nn.Module | None = None) -> Readout:
        """Run the model on `probe` and find the layer whose `W z + b` is the model's output.

        Args:
            model: Any module that takes one tensor and ends in a linear layer, possibly followed by a
                softmax, log-softmax, sigmoid, squeeze or reshape.
            probe: A few rows of typical input; the first 256 are used.
            head: Name of the head, or the layer itself, for models with several. A name of a container means
                the head inside it.

        Raises:
            TypeError: If `model` is no module, or cannot be hooked, or its precision cannot be run here.
            ValueError: If the model cannot take the probe's columns, if its output is not finite or is not
                `W z + b` for any layer, if it is so for several, or if `head` names no layer.
        """
        module = checked(model)
        if not isinstance(probe, Tensor) or probe.ndim == 0 or len(probe) == 0:
            raise ValueError(f"probe must be a tensor with at least one row, found {_shape_of(probe)}.")
        probe = probe.detach()[:PROBE_ROWS]
        device, dtype = device_and_dtype(module)
        layers = chosen_layers(module, head)
        with evaluation_mode(module) as run:
            integer = _takes_integers(run, probe, device)

            def prepare(x: Tensor) -> Tensor:
                return _prepared(x, device, dtype, integer, copy=True)

            try:
                given = prepare(probe)
                run(given)
                overwrites_x = not torch.equal(given, prepare(probe))
                found = find_head(run, prepare(probe), layers, dtype=dtype, given=head is not None)
                columns = embedded_columns(module, run, probe, prepare)
            except (RuntimeError, IndexError) as failure:
                explain_failure(failure, probe, dtype=dtype, device=device)
                raise
        return cls(
            module=module,
            head=found.head,
            link=found.link,
            embedded_columns=columns,
            device=device,
            dtype=dtype,
            integer=integer,
            _layer=found.layer,
            _call=found.call,
            _overwrites_z=found.overwritten,
            _overwrites_x=overwrites_x,
        )

    @classmethod
    def find_any(cls, model: nn.Module, probe: Tensor, *, head: str | nn.Module | None = None) -> Readout:
        """The same for any model that can be run.

        Where no single layer is the head, the output is looked for among sums, means and scaled versions of several
        linear maps; where it is none, the outputs themselves are the representation and `no_head` is set.

        Args:
            model: Any module of one tensor.
            probe: A few rows of typical input; the first 256 are used.
            head: Name of the head, or the layer itself; only that is then looked at.
        """
        try:
            return cls.find(model, probe, head=head)
        except NoHeadError:
            if head is not None:
                raise
        module = checked(model)
        device, dtype = device_and_dtype(module)
        probe = probe.detach()[:PROBE_ROWS]
        with evaluation_mode(module) as run:
            integer = _takes_integers(run, probe, device)
            composed, link = compose(module, run, _prepared(probe, device, dtype, integer, copy=True), dtype)
        found = cls.find(composed, probe, head="head")
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
        shape = f"width={self.width}, outputs={self.outputs}"
        return f"Readout(head={self.head.name!r}, {shape}, link={self.link!r})"

    @contextmanager
    def running(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """Hold the model in evaluation mode and hand out `represent`; the model is restored at the end.

        Cheaper than `Readout.represent` for many batches. Several threads may do this on one model at once.

        Yields:
            `represent(x)`: the representation of the rows of `x`, shape (rows, width), in the model's dtype
            and on its device, without gradient.
        """
        with evaluation_mode(self.module) as run, self.listening() as heard:

            def represent(x: Tensor) -> Tensor:
                if len(x) == 0:
                    return torch.empty(0, self.width, dtype=self.dtype, device=self.device)
                try:
                    return heard(lambda: run(self.ready(x)), len(x))
                except (RuntimeError, IndexError) as failure:
                    columns = self.embedded_columns
                    explain_failure(failure, x, dtype=self.dtype, device=self.device, embedded=columns)
                    raise

            yield represent

    @contextmanager
    def listening(self) -> Iterator[Callable[[Callable[[], object], int], Tensor]]:
        """Hand out `heard(work, rows)`: the representation of the rows that `work` sends through the head.

        For callers that run the model themselves; `running` is this with the run included.
        """
        with record_inputs(self._layer, copy=self._overwrites_z) as here:

            def heard(work: Callable[[], object], rows: int) -> Tensor:
                here.caught = []
                try:
                    work()
                    caught: list[Tensor] = here.caught
                finally:
                    del here.caught
                return self._rows_of(caught, rows)

            yield heard

    def ready(self, x: Tensor) -> Tensor:
        """Rows as the model takes them: its device and dtype, copied where the model writes into its input."""
        return _prepared(x, self.device, self.dtype, self.integer, copy=self._overwrites_x)

    def _rows_of(self, caught: list[Tensor], rows: int) -> Tensor:
        if len(caught) <= max(self._call, 0):
            raise RuntimeError(
                f"the head {self.head.name!r} was called {len(caught)} times for this batch, fewer than on "
                "the probe; call represent inside its with block, and pass a model whose forward pass does "
                "not depend on the data."
            )
        source = caught[self._call]
        positions = positions_of(self._layer, source, rows)
        if positions == 0 or (isinstance(self._layer, nn.Linear) and positions != 1):
            raise ValueError(
                f"the head {self.head.name!r} received an input of shape {tuple(source.shape)} for {rows} "
                "rows; the model must treat every row by itself."
            )
        return rows_entering(self._layer, source, rows)

    def represent(self, x: Tensor) -> Tensor:
        """The representation of the rows of `x`: one call of `running`."""
        with self.running() as represent:
            return represent(x)

    def logits(self, z: Tensor) -> Tensor:
        """`W z + b` in float64, shape (rows, outputs), on the device of `z` where that has float64."""
        device = torch.device("cpu") if z.device.type == "mps" else z.device
        weight, bias = self.head.weight.to(device), self.head.bias.to(device)
        return z.to(device, torch.float64) @ weight.T + bias

    def fingerprint(self) -> str:
        """SHA-256 over names, shapes, dtypes and bytes of the model's state, and the head's name.

        The same for a model and its compiled or parallel wrapper, and on every device.
        """
        return fingerprint_of(self.module, self.head.name)


def _not_running(x: Tensor) -> Tensor:  # noqa: ARG001 - stands in for `represent`
    raise RuntimeError("call this inside `with network.running() as running`, as running.represent.")


@dataclass(frozen=True, eq=False)
class Network:
    """A readout and the device to run it on, as calibration engines run it."""

    readout: Readout  # the model
    device: torch.device  # where to run it
    represent: Callable[[Tensor], Tensor] = _not_running  # runs it; only inside `running`

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
        """The same with the model on the CPU, in a copy where it is elsewhere: a worker may not have that GPU."""
        module = self.readout.module
        if all(tensor.device.type == "cpu" for tensor in (*module.parameters(), *module.buffers())):
            return self
        readout = copy.deepcopy(self.readout)
        readout.module.to("cpu")
        return replace(self, readout=readout)

    def moved(self) -> Network:
        """The same with the model on its device for good, in a process of its own."""
        self.readout.module.to(self.device)
        return replace(self, readout=replace(self.readout, device=self.device))


@contextmanager
def running_on(readout: Readout, device: torch.device | str | None) -> Iterator[Callable[[Tensor], Tensor]]:
    """Hands out the model's `represent`, run on another device where one is asked for, and brings it back."""
    away = readout.device if device is None else torch.device(device)
    if away == readout.device:
        with readout.running() as represent:
            yield represent
        return
    readout.module.to(away)
    try:
        with replace(readout, device=away).running() as represent:
            yield represent
    finally:
        readout.module.to(readout.device)


def as_model_takes(rows: Tensor, readout: Readout) -> Tensor:
    """Whole-number tables as integers for models that take those, as floats for all others.

    A double-precision model gets doubles: the baseline takes the rows' dtype and must not be rounded for it.
    """
    if readout.integer:
        return rows.to(torch.int64)
    return rows if rows.dtype == torch.float32 == readout.dtype else rows.to(torch.float64)


def fingerprint_of(module: nn.Module, head: str) -> str:
    """SHA-256 over a model's state and the name of its head."""
    digest = hashlib.sha256(f"head={head}\n".encode())
    state = {plain(name): value for name, value in module.state_dict().items()}
    for name in sorted(state):
        value = state[name]
        if isinstance(value, Tensor):
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
            digest.update(_bytes_of(value))
    return digest.hexdigest()


def checked(model: nn.Module) -> nn.Module:
    """The module to run, without wrappers; an error where its layers cannot be observed."""
    if not isinstance(model, nn.Module):
        closed = isinstance(model, torch.export.ExportedProgram | str | os.PathLike)
        hint = f"; {_OPEN}" if closed else ""
        raise TypeError(f"model must be a torch.nn.Module, found {type(model).__name__}{hint}.")
    module = unwrap(model)
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError(
            "model is a TorchScript module, whose layers cannot be observed; pass the original, or export it with "
            f"torch.export and {_OPEN}."
        )
    lazy = [name for name, tensor in module.named_parameters() if torch.nn.parameter.is_lazy(tensor)]
    if lazy:
        raise ValueError(
            f"model has parameters that are not initialised yet ({lazy[0]!r}); run it once on your data first."
        )
    return module


def _shape_of(probe: Any) -> str:
    return f"shape {tuple(probe.shape)}" if isinstance(probe, Tensor) else type(probe).__name__


def _is_integer(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


def _prepared(x: Tensor, device: torch.device, dtype: torch.dtype, integer: bool, *, copy: bool) -> Tensor:
    """Rows on the model's device, in its floating dtype, or as integers where the model takes those.

    A copy where the model writes into its input (a first layer that works in place), else shared if possible.
    """
    x = x.detach()
    if not integer:
        return x.to(device, dtype, copy=copy)
    if x.is_floating_point():
        if not torch.equal(x, x.trunc()):
            raise ValueError("the model takes integers, but the rows given to it hold fractions.")
        x = x.to(torch.int64)
    return x.to(device, copy=copy)


def _takes_integers(run: Callable[[Tensor], Any], probe: Tensor, device: torch.device) -> bool:
    """Whether an integer probe can be given as it is; whole numbers may also be meant for a float model."""
    if not _is_integer(probe):
        return False
    try:
        run(probe.to(device, copy=True))
    except (RuntimeError, TypeError, NotImplementedError):
        # Embeddings refuse floats and linear layers refuse integers, so the model itself gives the answer.
        return False
    return True


def _bytes_of(tensor: Tensor) -> bytes:
    dense = tensor.detach().cpu()
    if dense.layout != torch.strided:
        dense = dense.to_dense()
    return dense.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
