"""Bad input: every public function with one argument, or two, that is not as it should be."""

from __future__ import annotations

import dataclasses
import io
import shutil
import tempfile
import warnings
from contextlib import redirect_stderr
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

import nobsp
from campaign.bad_values import Bad, values_for
from campaign.outcome import Outcome, defect, judge_error, right
from campaign.part import Part, generator
from campaign.public import TARGETS, Target
from campaign.public_results import RESULTS
from campaign.subjects import Surroundings, fingerprint, world

# How far apart the account and the prediction may be: single precision through a small network, at the scale of both.
ACCOUNT = 1e-4


@cache
def _plan() -> tuple[tuple[Target, str, Bad], ...]:
    """Every target with every argument and every bad value of its kind; cases walk through it again and again."""
    return tuple(
        (target, argument, bad)
        for target in (*TARGETS, *RESULTS)
        for argument, kind in target.arguments.items()
        for bad in values_for(kind)
    )


def run(seed: int, case: int) -> Outcome:
    """One call. The first round has one bad argument, later ones have a second in every other case."""
    rng = generator(seed, "inputs", case)
    plan = _plan()
    position = int(np.random.default_rng(seed).permutation(len(plan))[case % len(plan)])
    target, argument, bad = plan[position]
    spoiled = {argument: bad.make(rng)}
    named = [argument]
    text = f"{target.name}({argument}={bad.name}"
    must_refuse = bad.refused and bad.name not in target.takes
    if case >= len(plan) and rng.random() < 0.5:
        others = [other for other in target.arguments if other != argument]
        if others:
            second = others[int(rng.integers(len(others)))]
            options = values_for(target.arguments[second])
            worse = options[int(rng.integers(len(options)))]
            spoiled[second] = worse.make(rng)
            named.append(second)
            text += f", {second}={worse.name}"
            must_refuse = must_refuse or (worse.refused and worse.name not in target.takes)
    return _try(target, spoiled, named, f"{text})", must_refuse=must_refuse)


def _try(
    target: Target, spoiled: dict[str, Any], named: list[str], text: str, *, must_refuse: bool
) -> Outcome:
    subjects = world()
    models = [*subjects.models, *(v for v in spoiled.values() if isinstance(v, nn.Module))]
    earlier = Surroundings.now(tuple(models))
    prints = fingerprint([*spoiled.values(), subjects.X, subjects.images, subjects.labels])
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    error: BaseException | None = None
    result: Any = None
    try:
        with (
            warnings.catch_warnings(record=True) as told,
            redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("always")
            result = target.call(subjects, folder, spoiled)
    except Exception as raised:  # noqa: BLE001 - what is raised is what is judged
        error = raised
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    outcome = _judge(target, error, result, named, text, told=bool(told), must_refuse=must_refuse)
    if changes := Surroundings.now(tuple(models)).changes_since(earlier):
        world.cache_clear()
        return defect(text, f"changed {', '.join(changes)}")
    if fingerprint([*spoiled.values(), subjects.X, subjects.images, subjects.labels]) != prints:
        world.cache_clear()
        return defect(text, "changed what it was given")
    return outcome


def _judge(
    target: Target,
    error: BaseException | None,
    result: Any,
    named: list[str],
    text: str,
    *,
    told: bool,
    must_refuse: bool,
) -> Outcome:
    if error is not None:
        if "on purpose" in str(error):
            # A model or a generator of the caller failed: passing on what it said is right.
            return Outcome("clear", text, str(error))
        return judge_error(
            text, error, {*named, *target.also, f"{target.name.rpartition('.')[2]} draws"}
        )
    if must_refuse:
        return defect(text, "taken, though it has no meaning here")
    problem = find_problem(result)
    expected = told or target.may_be_nan
    if problem and not (expected and problem == "NaN in the result"):
        return defect(text, problem)
    return right(text)


def find_problem(result: Any, depth: int = 0) -> str | None:
    """What is wrong with a result: numbers that are none, an account that does not add up; None if nothing is."""
    if isinstance(result, nobsp.Explanation):
        return _find_wrong_account(result)
    if isinstance(result, torch.Tensor):
        result = result.detach().cpu().float().numpy()
    if isinstance(result, np.ndarray):
        if result.dtype.kind in "fc" and not np.isfinite(result).all():
            return "NaN in the result"
        return None
    if isinstance(result, float):
        return None if np.isfinite(result) else "NaN in the result"
    if isinstance(result, pd.DataFrame):
        return find_problem(result.select_dtypes("number").to_numpy(dtype=float))
    if depth > 3:
        return None
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        parts = [getattr(result, field.name) for field in dataclasses.fields(result)]
        return _first_problem(parts, depth)
    if isinstance(result, list | tuple):
        return _first_problem(list(result), depth)
    if isinstance(result, dict):
        return _first_problem(list(result.values()), depth)
    return None


def _find_wrong_account(explanation: Any) -> str | None:
    """What is wrong with an account; rows outside of the calibrated range are flagged, so their NaN is told."""
    inside = ~explanation.outside.any(axis=1)
    values = explanation.values[inside]
    if not np.isfinite(values).all():
        return "NaN in the result"
    predictions = explanation.predictions[inside]
    if np.isnan(explanation.predictions).all():
        return None  # functions without their model say nothing of predictions
    account = explanation.base_values + values.sum(1) + explanation.residual[inside]
    if not np.isfinite(account).all():
        return "NaN in the result"
    size = max(1.0, np.abs(predictions).max(initial=0.0), np.abs(values).max(initial=0.0))
    if np.abs(account - predictions).max(initial=0.0) > ACCOUNT * size:
        return "the account does not add up"
    return None


def _first_problem(parts: list[Any], depth: int) -> str | None:
    for part in parts:
        if problem := find_problem(part, depth + 1):
            return problem
    return None


PART = Part(
    name="inputs",
    tried="every public function with wrong types, shapes, dtypes, NaN, infinities, huge and tiny numbers, empty and "
    "strange data, generators that end or raise, models that raise, change or answer nonsense",
    must="a right result, or an error of ours that names the argument; nothing of the caller's changed",
    count=50_000,
    sample=250,
    run=run,
)
