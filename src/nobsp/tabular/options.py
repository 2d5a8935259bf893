"""The options of an explainer, checked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nobsp.arguments import require_choice
from nobsp.messages import require_whole_number
from nobsp.projection import Ridge

# What an explainer that takes over another's plan must have been asked for alike.
_TAKEN_OVER = ("features", "background", "baseline", "reference", "interactions", "ridge")


@dataclass(frozen=True, eq=False)
class Options:
    """The options of an explainer, under the names they have there."""

    features: Sequence[str] | Mapping[str, Any] | None
    background: Any
    baseline: Any
    reference: str
    interactions: Any
    ridge: Ridge | None  # a strength with its scale; None where it is to be chosen from the rows
    head: str | nn.Module | None
    output_names: Sequence[str] | None
    device: torch.device | str | None
    batch_size: int
    max_forward_rows: int | None

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Options:
        """An explainer's parameters, or an error that names the one that cannot be meant."""
        values = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in parameters.items()
        }
        del values["model"]
        ridge = values.pop("ridge")
        ridge_scale = values.pop("ridge_scale")
        reference = values["reference"]

        require_choice("reference", reference, ("terms", "complement"))
        _check_interactions(values["interactions"])
        _check_baseline(values["baseline"])
        _check_background(values["background"])
        _check_limit(values["max_forward_rows"], reference)
        return cls(**values, ridge=_checked_ridge(ridge, ridge_scale, reference))

    def require_alike(self, other: Options) -> None:
        """An error where an explainer that takes over another's plan was itself asked for something else."""
        for name in _TAKEN_OVER:
            mine = getattr(self, name)
            theirs = getattr(other, name)
            if plain(mine) != plain(theirs):
                raise ValueError(
                    f"like has {name}={theirs!r}, but this explainer {mine!r}; make it with clone(like)."
                )

    def spelled(self, head: str) -> dict[str, str]:
        """The options in words, the same for the same options in another process; `head` is the name of the head."""
        values = {name: plain(value) for name, value in vars(self).items() if name != "device"}
        values["head"] = head
        return {f"option {name}": repr(value) for name, value in values.items()}


def _check_interactions(wanted: object) -> None:
    if isinstance(wanted, str) and wanted != "auto":
        raise ValueError(
            f'interactions must be a number, "auto" or a list of pairs, found {wanted!r}.'
        )
    if isinstance(wanted, bool) or (isinstance(wanted, int) and wanted < 0):
        raise ValueError(f"interactions must not be negative or a boolean, found {wanted!r}.")
    if not isinstance(wanted, int | Iterable):
        raise TypeError(
            f'interactions must be a whole number, "auto" or a list of pairs, found {wanted!r}.'
        )


def _check_baseline(baseline: object) -> None:
    if baseline is None:
        raise TypeError('baseline must be "mean", "zero", "median", "mode" or values, found None.')


def _check_background(rows: object) -> None:
    no_rows = rows is None or isinstance(rows, bool | str | float)
    if no_rows or (isinstance(rows, int) and rows < 1):
        raise ValueError(
            f"background must be a positive number of rows, or the rows themselves, found {rows!r}."
        )


def _check_limit(limit: Any, reference: str) -> None:
    if limit is None:
        return
    require_whole_number("max_forward_rows", limit)
    if reference != "terms":
        raise ValueError('max_forward_rows needs reference="terms"; leave it out here.')


def _checked_ridge(ridge: Any, scale: Any, reference: str) -> Ridge | None:
    """The ridge with its scale; None where the rows are to choose it."""
    if isinstance(ridge, str) and ridge != "auto":
        raise ValueError(f'ridge must be a number or "auto", found {ridge!r}.')
    require_choice("ridge_scale", scale, ("relative", "absolute"))
    if scale == "absolute" and (reference == "terms" or ridge == "auto"):
        raise ValueError(
            'ridge_scale="absolute" needs reference="complement" and a number for ridge like 1e-4.'
        )
    return None if ridge == "auto" else Ridge(ridge, scale)


def plain(value: Any) -> Any:
    """An option as a file can hold it, the same whichever library's array, frame or list it came in."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, Tensor):
        return value.detach().cpu().tolist()
    if hasattr(value, "__array__"):
        return np.asarray(value).tolist()
    # What can be read only once is left alone.
    if isinstance(value, str) or not isinstance(value, Collection):
        return value
    return [plain(inner) for inner in value]
