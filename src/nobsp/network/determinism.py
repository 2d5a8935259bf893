"""Whether a model is a function of its row: the same output for a row every time, whatever rows are beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from nobsp.network.random_numbers import GlobalNumbers
from nobsp.network.visit import Visit

# Rows that are tried: a batch mean of 32 rows is far from one of 16, and dear models are not run for long.
_MOST_ROWS = 32
# How far outputs may differ, as a share of their spread: sums are rounded differently in batches of other sizes.
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
    """An error where running the model again, or beside other rows, or in a smaller batch gives something else."""
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
        except Exception:  # noqa: BLE001 - a model of one batch size; what else is wrong is said where it is run
            continue
        expected = {path: output[chosen.cpu()] for path, output in first.items()}
        difference = _worst(expected, beside, tolerance)
        if difference is not None and run.draws_numbers:
            raise _not_deterministic(difference)
        if difference is not None:
            raise NotAFunctionError(
                f"the model's output for a row depends on the other rows of its batch: it differs by up to "
                f"{difference:.3g} beside other rows. A batch mean, or batch normalisation without running statistics, "
                "does so; pass a model that treats each row by itself."
            )


def _not_deterministic(difference: float) -> NotAFunctionError:
    return NotAFunctionError(
        f"the model is not deterministic: its output for the same row differs by up to {difference:.3g} from one run "
        "to the next. Pass a model without random numbers or state in evaluation mode, or one that averages them out."
    )


@contextmanager
def _other_numbers(device: torch.device, *, drawn: bool) -> Iterator[None]:
    """Lets a model that draws random numbers draw others than before, and puts the generators back."""
    if not drawn:
        yield
        return
    gpus = [device] if device.type == "cuda" else []
    global_numbers = GlobalNumbers.now()
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
    """The largest difference where one is beyond tolerance; infinite where outputs are missing or no numbers."""
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
