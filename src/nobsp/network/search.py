"""Decides which linear layer is the head: the one for which the model's output is W z + b."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from nobsp.network.calls import Call, is_linear, linear_layers, plain, watching, weight_of
from nobsp.network.guest import unwrapped
from nobsp.network.outputs import LINKS, allowance, as_rows, compare, tensors_in

_NAMED_AT_MOST = 12


class NoHeadError(ValueError):
    """The model's output is W z + b of no linear layer."""


@dataclass(frozen=True, eq=False)
class Head:
    """The last linear layer: `outputs = weight @ z + bias`.

    Attributes:
        weight: Shape (outputs, width), float64 on the CPU.
        bias: Shape (outputs,), float64; zeros for a layer without bias.
        name: The layer's name in the model.
    """

    weight: Tensor
    bias: Tensor
    name: str


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
    """Linear layers among which to look: all of them, or the one (or those inside the container) named.

    Raises:
        ValueError: If `head` is not in the model or holds no linear layer; close matches are offered.
        TypeError: If `head` is neither a name nor a module.
    """
    layers = linear_layers(module)
    if not layers:
        # What ExportedProgram.module() gives: its layers have become operations of a graph.
        exported = isinstance(module, torch.fx.GraphModule)
        hint = " If torch.export made it, pass nobsp.network.exported.opened(model, rows)." if exported else ""
        raise (ValueError if exported else NoHeadError)(
            "model has no linear layer (nn.Linear, or nn.Conv1d/nn.Conv2d with kernel size 1); "
            f"only models that end in one can be explained.{hint}"
        )
    if head is None:
        return layers
    parts = {plain(name): part for name, part in module.named_modules(remove_duplicate=False)}
    if isinstance(head, nn.Module):
        wanted = unwrapped(head)
        names = [name for name, part in parts.items() if unwrapped(part) is wanted]
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
    part = unwrapped(parts[name])
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
    """Run the model on `x` and return the layer whose W z + b is in its output.

    Args:
        run: Runs the model as a guest.
        x: Rows ready for the model.
        layers: Where to look.
        dtype: The model's floating dtype.
        given: Whether the caller has named the head already.
    """
    rows = len(x)
    # A first run tells what sizes to look for. The model may write into its input, so each run has a copy.
    sizes = {flat.shape[1] for flat in _outputs(run(x.clone()), rows).values()}
    with watching(layers, rows=rows, sizes=sizes) as calls:
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
