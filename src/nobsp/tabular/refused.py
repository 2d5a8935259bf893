"""Calibration rows for which the model has no answer: which one, and because of which value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# What models raise where they check their domain, and not for want of memory or of a connection.
REFUSALS = (ValueError, TypeError, ArithmeticError, LookupError, AssertionError)
# Features of a row that are shown at most, and those that are tried one by one.
_MOST_SHOWN = 6
_MOST_TRIED = 64


def refused_row(
    run: Callable[[Tensor], Any], rows: Tensor, failure: Exception | None
) -> int | None:
    """The row because of which a model raised; None where it is not the row.

    Halves are run until one row is left. It must raise the same by itself, and another row must
    not.
    """
    first, count = 0, len(rows)
    while count > 1:
        half = count // 2
        if _fails(run, rows[first : first + half], failure):
            count = half
        else:
            first, count = first + half, count - half
    if not _fails(run, rows[first : first + 1], failure):
        return None
    return first if _answered_row(run, rows, first, failure) is not None else None


def values_to_blame(
    run: Callable[[Tensor], Any],
    rows: Tensor,
    refused: int,
    *,
    names: Sequence[str],
    groups: Sequence[Sequence[int]],
    failure: Exception | None = None,
) -> str:
    """A row's value that another row's in its place mends; all of its values where none does.

    `groups` are the columns of the features; without a failure, the answer is not finite.
    """
    row = rows[refused]
    named = [(name, list(columns)) for name, columns in zip(names, groups, strict=True) if columns]
    answered = _answered_row(run, rows, refused, failure)
    for name, columns in named[:_MOST_TRIED] if answered is not None else ():
        mended = row.clone()
        mended[columns] = rows[answered, columns]
        if not _fails(run, mended[None], failure):
            return _shown(name, row[columns])

    shown = [_shown(name, row[columns]) for name, columns in named]
    return "; ".join(shown[:_MOST_SHOWN]) + ("; …" if len(shown) > _MOST_SHOWN else "")


def refusal(values: str, failure: Exception | None) -> str:
    """What to say of a row that a model refuses; without a failure, its answer is not finite."""
    if failure is None:
        return (
            f"the model's output is not finite for the row of X with {values}. Leave such rows "
            "out: only finite outputs can be explained."
        )
    return (
        f"the model does not take the row of X with {values} (it raises "
        f"{type(failure).__name__}: {failure}). Leave such rows out, or pass a model that answers "
        "there."
    )


def _shown(name: str, values: Tensor) -> str:
    listed = ", ".join(f"{value:.6g}" for value in values.tolist())
    return f"{name} = {listed}"


def _answered_row(
    run: Callable[[Tensor], Any], rows: Tensor, refused: int, failure: Exception | None
) -> int | None:
    """One of the rows around another that the model does answer for."""
    for row in (refused - 1, refused + 1, 0, len(rows) - 1):
        is_other = 0 <= row < len(rows) and row != refused
        if is_other and not _fails(run, rows[row : row + 1], failure):
            return row
    return None


def _fails(run: Callable[[Tensor], Any], rows: Tensor, failure: Exception | None) -> bool:
    """Whether a model raises for some rows, as it did before, or gives no finite answer."""
    try:
        answer = run(rows)
    except Exception as again:  # noqa: BLE001 - models check their domain with errors of any kind
        return failure is None or type(again) is type(failure)
    has_numbers = failure is None and isinstance(answer, Tensor)
    return has_numbers and not bool(torch.isfinite(answer).all())
