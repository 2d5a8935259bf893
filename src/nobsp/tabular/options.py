"""What an explainer was asked for, checked before anything is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nobsp._messages import number_outputs
from nobsp.network.adapted import Adapted
from nobsp.network.readout import Readout
from nobsp.projection import Ridge


@dataclass(frozen=True, eq=False)
class Options:
    """The options of an explainer, under the names they have there.

    `ridge` is a strength with its scale; None where it is to be chosen from the rows.
    """

    features: Sequence[str] | Mapping[str, Any] | None
    background: Any
    baseline: Any
    reference: str
    interactions: Any
    ridge: Ridge | None
    head: str | nn.Module | None
    output_names: Sequence[str] | None
    device: torch.device | str | None
    batch_size: int

    @property
    def ridge_or_published(self) -> Ridge:
        """The ridge of Algorithm 1: the one given, or the weak relative one."""
        return self.ridge or Ridge(1e-4, "relative")


def checked(given: Mapping[str, Any]) -> Options:
    """An explainer's options, or an error that names the one that cannot be meant."""
    if given["reference"] not in ("terms", "complement"):
        raise ValueError(f'reference must be "terms" or "complement", found {given["reference"]!r}.')
    wanted = given["interactions"]
    if isinstance(wanted, str) and wanted != "auto":
        raise ValueError(f'interactions must be a number, "auto" or a list of pairs, found {wanted!r}.')
    if isinstance(wanted, bool) or (isinstance(wanted, int | np.integer) and wanted < 0):
        raise ValueError(f"interactions must not be negative or a boolean, found {wanted!r}.")
    if not isinstance(wanted, str | int | np.integer) and not isinstance(wanted, Iterable):
        raise TypeError(f'interactions must be a whole number, "auto" or a list of pairs, found {wanted!r}.')
    if given["baseline"] is None:
        raise TypeError('baseline must be "mean", "zero", "median", "mode" or values, found None.')
    rows = given["background"]
    if isinstance(rows, bool | str | float) or rows is None or (isinstance(rows, int | np.integer) and rows < 1):
        raise ValueError(f"background must be a positive number of rows, or the rows themselves, found {rows!r}.")
    strength, scale = given["ridge"], given["ridge_scale"]
    if isinstance(strength, str) and strength != "auto":
        raise ValueError(f'ridge must be a number or "auto", found {strength!r}.')
    chosen = isinstance(strength, str)
    ridge = Ridge(1e-4 if chosen else strength.item() if isinstance(strength, np.generic) else strength, scale)
    if given["reference"] == "terms" and scale != "relative":
        raise ValueError('ridge_scale="absolute" is for reference="complement"; leave it "relative" for terms.')
    if chosen and scale != "relative":
        raise ValueError('ridge_scale is "absolute" but ridge is "auto"; pass a number for ridge, such as 1e-4.')
    kept = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in given.items()
        if name not in ("model", "ridge", "ridge_scale")
    }
    return Options(**kept, ridge=None if chosen else ridge)


def require_alike(own: Options, other: Options) -> None:
    """An error where an explainer that takes over another's plan was itself asked for something else."""
    for name in ("features", "background", "baseline", "reference", "interactions", "ridge"):
        mine, theirs = getattr(own, name), getattr(other, name)
        if _comparable(mine) != _comparable(theirs):
            raise ValueError(
                f"like was calibrated with {name}={theirs!r}, but this explainer has {name}={mine!r}; make it with "
                "sklearn.base.clone(like)."
            )


def _comparable(value: Any) -> Any:
    """Options as something that compares by value."""
    if isinstance(value, Tensor):
        return _comparable(value.detach().cpu().numpy())
    if isinstance(value, Mapping):
        return {str(key): _comparable(inner) for key, inner in value.items()}
    if isinstance(value, Ridge) or value is None or isinstance(value, str):
        return value
    plain = np.asarray(value).tolist() if not isinstance(value, Iterable) or hasattr(value, "__array__") else value
    return [_comparable(inner) for inner in plain] if isinstance(plain, list | tuple | range) else plain


def spell_options(options: Options, head: str) -> dict[str, str]:
    """The options in words, the same for the same options in another process; `head` is the name of the head."""
    asked = {name: value for name, value in vars(options).items() if name != "device"}
    return {f"option {name}": head if name == "head" else _spell(value) for name, value in asked.items()}


def _spell(value: Any) -> str:
    if isinstance(value, Mapping):
        return repr({str(key): _spell(inner) for key, inner in value.items()})
    if hasattr(value, "tolist"):  # arrays, tensors, and the columns and indices of frames
        return repr(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return repr([_spell(inner) for inner in value])
    return repr(value)


def find_readout(adapted: Adapted, probe: Tensor, *, head: str | nn.Module | None) -> Readout:
    """The model's linear head, or its outputs, or an error about the columns where the model cannot take them."""
    try:
        readout = Readout.find_any(adapted.module, probe, head=head)
        return replace(readout, embedded_columns=tuple(sorted({*readout.embedded_columns, *adapted.codes})))
    except (RuntimeError, IndexError) as failure:
        raise ValueError(
            f"the model cannot take the {probe.shape[1]} columns of X ({failure}); pass exactly the columns it "
            "was trained on, in their order, without labels."
        ) from failure


def names_of_outputs(given: Sequence[str] | None, *, outputs: int, known: Sequence[str] | None) -> tuple[str, ...]:
    """Names for the outputs: those given, those the model knows, or numbers."""
    if given is not None:
        if isinstance(given, str):
            raise TypeError(f"output_names must be a list of names, found the string {given!r}.")
        named = tuple(str(name) for name in given)
        if len(named) != outputs:
            raise ValueError(f"output_names has {len(named)} names but the model has {outputs} outputs.")
        if len(set(named)) != len(named):
            twice = next(name for name in named if named.count(name) > 1)
            raise ValueError(f"output_names has the name {twice!r} twice; names must differ.")
        return named
    if known is not None and len(known) == outputs:
        return tuple(known)
    return number_outputs(outputs)
