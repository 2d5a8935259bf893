"""Finds the head: the linear layer for which the output of the model is W z + b, possibly followed by a link."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from nobsp.network.hooks import Call, is_linear, linear_layers, plain, record_calls, weight_of
from nobsp.network.inference import unwrap

_NAMED_AT_MOST = 12


class NoHeadError(ValueError):
    """The model's output is W z + b of no linear layer."""


@dataclass(frozen=True, eq=False)
class Head:
    """The last linear layer: `outputs = weight @ z + bias`."""

    weight: Tensor  # shape (outputs, width), float64 on the CPU
    bias: Tensor  # shape (outputs,), float64; zeros for a layer without bias
    name: str  # the layer's name in the model


@dataclass(frozen=True, eq=False)
class Found:
    """A head, and how to catch its input again."""

    head: Head
    link: str
    layer: nn.Module
    call: int  # position among the layer's calls; -1 for the last
    overwritten: bool  # whether the model changes the head's input in place after the call


@dataclass(frozen=True, eq=False)
class _Match:
    call: Call
    order: int  # position among all calls
    output: str  # path of the output tensor
    link: str

    @property
    def rank(self) -> tuple[int, int]:
        """Small is better: the simplest link, then the last executed."""
        return list(LINKS).index(self.link), -self.order


def chosen_layers(module: nn.Module, head: str | nn.Module | None) -> dict[str, nn.Module]:
    """Linear layers among which to look: all of them, or the one (or those inside the container) named."""
    layers = linear_layers(module)
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
    parts = {plain(name): part for name, part in module.named_modules(remove_duplicate=False)}
    if isinstance(head, nn.Module):
        wanted = unwrap(head)
        names = [name for name, part in parts.items() if unwrap(part) is wanted]
        if not names:
            raise ValueError(f"head is a {type(wanted).__name__} that is not part of the model; {_offer(layers)}")
        name = names[0]
    elif isinstance(head, str):
        name = _without_wrapper(plain(head), parts)
        if name not in parts:
            close = get_close_matches(name, [*layers, *(part for part in parts if part)], n=3)
            hint = f"did you mean {_listed(dict.fromkeys(close))}? " if close else ""
            raise ValueError(f"head={head!r} is not in the model; {hint}{_offer(layers)}")
    else:
        raise TypeError(f"head must be a layer's name or the layer itself, found {type(head).__name__}.")
    part = unwrap(parts[name])
    if is_linear(part):
        return {name: part}
    inside = {f"{name}.{inner}".strip("."): layer for inner, layer in linear_layers(part).items()}
    if not inside:
        raise ValueError(f"head {name!r} is a {type(part).__name__} without a linear layer; {_offer(layers)}")
    return inside


def _without_wrapper(name: str, parts: dict[str, nn.Module]) -> str:
    """A name as a DataParallel wrapper gives it, `module.fc`, means `fc`."""
    bare = name.removeprefix("module.")
    return bare if name not in parts and bare in parts else name


def find_head(
    run: Callable[[Tensor], Any], x: Tensor, layers: dict[str, nn.Module], *, dtype: torch.dtype, given: bool
) -> Found:
    """Run the model on `x` and return the layer whose W z + b is in its output."""
    rows = len(x)
    # A first run tells what sizes to look for. The model may write into its input, so each run has a copy.
    sizes = {flat.shape[1] for flat in _outputs(run(x.clone()), rows).values()}
    with record_calls(layers, rows=rows, sizes=sizes) as calls:
        outputs = _outputs(run(x.clone()), rows)
    if not outputs:
        raise ValueError(f"model returned no tensor with one entry for each of the {rows} rows of the probe.")

    matches: list[_Match] = []
    near: list[tuple[float, str]] = []
    heads: dict[str, Head] = {}
    for order, call in enumerate(calls):
        if call.z is None:
            continue
        head = heads.setdefault(call.name, Head(*weight_of(call.layer), name=call.name))
        z = call.z.to("cpu", torch.float64)
        logits = z @ head.weight.T + head.bias
        allowed = allowance(z, head.weight, head.bias, dtype, x.device)
        for path, output in outputs.items():
            if output.shape != logits.shape:
                continue
            for link in LINKS:
                if "softmax" in link and logits.shape[1] == 1:
                    continue  # the softmax of a single logit is always one
                same, difference = compare(logits, output, allowed, link, dtype)
                if same:
                    matches.append(_Match(call, order, path, link))
                    break
                if link == "identity":
                    near.append((difference, call.name))
    if not matches:
        raise _why_none(outputs, calls, near, layers)
    best = _decide(matches, given=given)
    times = sum(call.name == best.call.name for call in calls)
    last = best.call.index == times - 1
    return Found(
        head=heads[best.call.name],
        link=best.link,
        layer=best.call.layer,
        call=-1 if last else best.call.index,
        overwritten=best.call.overwritten,
    )


def _outputs(result: Any, rows: int) -> dict[str, Tensor]:
    flat = {path: as_rows(tensor, rows) for path, tensor in tensors_in(result).items()}
    return {path: tensor for path, tensor in flat.items() if tensor is not None}


def _decide(matches: list[_Match], *, given: bool) -> _Match:
    """The best match of each output tensor; they must agree on the layer and the call."""
    best: dict[str, _Match] = {}
    for match in matches:
        if match.output not in best or match.rank < best[match.output].rank:
            best[match.output] = match
    names = dict.fromkeys(match.call.name for match in best.values())
    if len(names) > 1:
        asked = "head names a container with" if given else "the model's output holds"
        raise ValueError(f"{asked} {len(names)} heads: {_listed(names)}; choose one, e.g. head={next(iter(names))!r}.")
    if len({match.call.index for match in best.values()}) > 1:
        raise ValueError(
            f"the head {next(iter(names))!r} is called several times and more than one of its results is "
            "returned; wrap the model so that it returns only the result to explain."
        )
    return min(best.values(), key=lambda match: match.rank)


def _why_none(
    outputs: dict[str, Tensor],
    calls: list[Call],
    near: list[tuple[float, str]],
    layers: dict[str, nn.Module],
) -> ValueError:
    for path, output in outputs.items():
        bad = (~output.isfinite()).nonzero()
        if len(bad):
            row, column = (int(place) for place in bad[0])
            return ValueError(
                f"the model's output{path} is {float(output[row, column])} in row {row} of the probe "
                f"(output {column}); only finite outputs can be explained, so check the input's scale."
            )
    sizes = {output.shape[1] for output in outputs.values()}
    for call in calls:
        width = int(torch.as_tensor(call.layer.weight).shape[0])
        if call.positions > 1 and call.z is None and {width, width * call.positions} & sizes:
            return NoHeadError(
                f"the linear layer {call.name!r} is applied at each of {call.positions} positions of every "
                "row; only heads that see one vector per row can be explained. Wrap the model so that it "
                "pools the positions, or picks one, before this layer."
            )
    if near:
        difference, name = min(near)
        return NoHeadError(
            "the model's output is not W z + b of any linear layer: the closest is "
            f"{name!r}, with a largest difference of {difference:.3g}. Something else follows that layer; "
            "pass a model that returns its result (a softmax, log_softmax, sigmoid and reshapes are "
            "recognised)."
        )
    called = dict.fromkeys(call.name for call in calls)
    silent = [name for name in layers if name not in called]
    shapes = ", ".join(f"{tuple(output.shape)}" for output in outputs.values())
    found = f"called were {_listed(called)}" if called else "no linear layer was called"
    unused = f"; never called as a module: {_listed(dict.fromkeys(silent))}" if silent else ""
    return NoHeadError(
        f"the model's output of shape {shapes} comes from no linear layer that sees one vector per row: "
        f"{found}{unused}. Name the right one with head=..., or pass a model that ends in a linear layer."
    )


def _offer(layers: dict[str, nn.Module]) -> str:
    return f"its linear layers are {_listed(layers)}."


def _listed(names: Iterable[str]) -> str:
    quoted = [repr(name) for name in names]
    more = f" and {len(quoted) - _NAMED_AT_MOST} before them" if len(quoted) > _NAMED_AT_MOST else ""
    return ", ".join(quoted[-_NAMED_AT_MOST:]) + more


# From the simplest to the most involved: the order in which explanations of an output are preferred.
LINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda logits: logits,
    "log_softmax": lambda logits: torch.log_softmax(logits, dim=-1),
    "softmax": lambda logits: torch.softmax(logits, dim=-1),
    "sigmoid": torch.sigmoid,
}


def tensors_in(result: Any) -> dict[str, Tensor]:
    """Tensors of a model's result by path; only `logits` where the result has such an entry."""
    return dict(_walk(result, ""))


def _walk(result: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(result, Tensor):
        yield path, result
    elif isinstance(result, Mapping):
        keys = ["logits"] if result.get("logits") is not None else list(result)
        for key in keys:
            yield from _walk(result[key], f"{path}[{key!r}]")
    elif getattr(result, "logits", None) is not None:
        yield from _walk(result.logits, f"{path}.logits")
    elif isinstance(result, tuple | list):
        for position, part in enumerate(result):
            yield from _walk(part, f"{path}[{position}]")
    elif dataclasses.is_dataclass(result) and not isinstance(result, type):
        for field in dataclasses.fields(result):
            yield from _walk(getattr(result, field.name), f"{path}.{field.name}")


def as_rows(output: Tensor, rows: int) -> Tensor | None:
    """The output as (rows, outputs) in float64 on the CPU, reshapes undone; None where that cannot be."""
    per_row = output.ndim > 0 and output.shape[0] == rows
    if not (per_row or rows == 1) or output.numel() == 0 or output.is_complex():
        return None
    return output.detach().to("cpu", torch.float64).reshape(rows, -1)


def allowance(z: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """How far a model's own rounding may carry its logits from W z + b in float64, elementwise.

    Two parts: products summed in the working precision, bounded through |z| |W|ᵀ; and the stored result,
    rounded to `dtype`. Half precisions are summed in float32, so only their results are coarse.
    """
    stored = torch.finfo(dtype).eps
    summed = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    if dtype == torch.float32 and _reduced_products(device):
        summed = 2.0**-8
    exact = z @ weight.T
    size = z.abs() @ weight.abs().T
    return 4 * stored * (exact.abs() + bias.abs()) + 16 * summed * (size + bias.abs()) + 1e-300


def _reduced_products(device: torch.device) -> bool:
    tf32 = device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
    return tf32 or torch.get_float32_matmul_precision() != "highest"


def compare(logits: Tensor, output: Tensor, allowed: Tensor, link: str, dtype: torch.dtype) -> tuple[bool, float]:
    """Whether `output` is `link(logits)` within rounding, and the largest difference."""
    expected = LINKS[link](logits)
    difference = (expected - output).abs()
    coarse = 8 * torch.finfo(dtype).eps
    worst = allowed.amax(dim=-1, keepdim=True)
    if link == "identity":
        tolerance = allowed
    elif link == "log_softmax":
        tolerance = 2 * worst + coarse * (expected.abs() + logits.abs().amax(dim=-1, keepdim=True))
    elif link == "softmax":
        tolerance = expected * (2 * worst + coarse * (1 + logits.abs().amax(dim=-1, keepdim=True))) + coarse
    else:
        tolerance = expected * (1 - expected) * allowed + coarse
    largest = float(difference.max())
    return bool((difference <= tolerance).all()), largest
