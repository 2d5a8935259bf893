"""A calibration as a file and back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nobsp import serialization
from nobsp.network.adapted import Adapted
from nobsp.network.columns import Features, LevelCounts, Summary
from nobsp.network.readout import Readout, as_model_takes
from nobsp.projection import Ridge
from nobsp.published import Accumulator, Isolation, Plan, Published, Solution
from nobsp.tabular.consistency import require_readable
from nobsp.tabular.features import Columns, input_values
from nobsp.tabular.fitted import CalibratedModel, Estimate, Method
from nobsp.tabular.functions import CLASSES
from nobsp.tabular.seen import Seen
from nobsp.tabular.setting import find_readout, plain
from nobsp.tabular.tables import DirectTerm

KIND = "tabular explainer"
VERSION = 8

# Features, and levels of each, that are tried to find the model's head: more would tell nothing
# new.
_PROBED_FEATURES = 64
_PROBED_LEVELS = 4

# What a checkpoint of a calibration holds.
CHECKPOINTED = (Accumulator, Features, Isolation, Plan, Summary, LevelCounts)


@dataclass(frozen=True, eq=False)
class Stored:
    """What a file holds."""

    # The options of the explainer.
    options: dict[str, Any]
    # Fingerprint of the model.
    fingerprint: str
    # A few rows to find the model's head with.
    probe: Tensor
    # What the preprocessing made of some values of every feature; None without one.
    encoded: Tensor | None
    # The caller's columns and features.
    columns: Columns
    # What the calibration rows looked like.
    summary: Summary
    # The functions.
    estimate: Estimate
    # How rows become a matrix, where they are none.
    layout: dict[str, Any] | None
    # What the model makes of the probe.
    outputs: Tensor


_STORED = (
    Columns,
    DirectTerm,
    Estimate,
    Published,
    Ridge,
    Seen,
    Solution,
    Stored,
    *CHECKPOINTED,
    *CLASSES,
)


def save(
    path: str | os.PathLike[str], fitted: CalibratedModel, options: Mapping[str, Any], *, rows: bool
) -> None:
    """Writes a calibration and what was seen of its columns.

    These are ranges, means, levels and how often each occurred.
    """
    estimate = fitted.estimate.with_spreads()
    summary = fitted.summary
    columns = fitted.columns
    if not rows:
        estimate = fitted.method.without_rows(estimate)
        summary = replace(summary, pieces=[])
        columns = replace(
            columns, seen=tuple(replace(column, quantiles=np.zeros(0)) for column in columns.seen)
        )

    probe = _probe(fitted)
    stored = Stored(
        options={name: _plain(name, value, fitted) for name, value in options.items()},
        fingerprint=fitted.readout.fingerprint(),
        probe=probe,
        encoded=None if fitted.adapted.encode is None else _encoded(fitted.adapted, columns),
        columns=columns,
        summary=summary,
        estimate=estimate,
        layout=fitted.adapted.layout,
        outputs=_outputs(fitted.readout, probe),
    )
    serialization.save(path, stored, kind=KIND, version=VERSION)


def load(path: str | os.PathLike[str]) -> Stored:
    """What a file holds."""
    stored: Stored = serialization.load(
        path, kind=KIND, version=VERSION, classes=_STORED, of=Stored
    )
    with serialization.damage_in_words(path):
        if not all(isinstance(name, str) for name in stored.options):
            raise ValueError("an option has no name")
        if not isinstance(stored.options.get("device"), str | None):
            raise ValueError("its device has no name")
        require_readable(stored.estimate.functions)
        _require_features(stored.estimate)
        for feature in range(len(stored.columns.members)):
            stored.columns.column(feature)
    return stored


def _require_features(estimate: Estimate) -> None:
    """An error where a term is of features that are not there."""
    n_features = len(estimate.functions.features)
    for term in estimate.terms:
        if not all(type(feature) is int and 0 <= feature < n_features for feature in term):
            raise ValueError(f"the term {term} is of features that are not there")


def restore(
    stored: Stored, adapted: Adapted, *, method: Method, head: str | nn.Module | None
) -> CalibratedModel:
    """A calibration brought together with its model again."""
    try:
        _require_same_encoding(stored, adapted)
        readout = find_readout(adapted, stored.probe, head=head)
        _require_same_model(stored, readout)
    except (TypeError, ValueError) as failure:
        reason = str(failure).rstrip(".")
        raise ValueError(
            f"model is not the one this explainer was calibrated on ({reason}); pass that model, "
            "or calibrate anew."
        ) from failure
    return CalibratedModel(
        adapted=adapted,
        readout=readout,
        columns=stored.columns,
        summary=stored.summary,
        estimate=stored.estimate,
        method=method,
    )


def _require_same_encoding(stored: Stored, adapted: Adapted) -> None:
    """An error where the preprocessing is another one."""
    if (adapted.encode is None) != (stored.encoded is None):
        raise ValueError("one has a preprocessing, the other none")
    if stored.encoded is None:
        return

    encoded = _encoded(adapted, stored.columns)
    if not _is_near(encoded, stored.encoded, rtol=1e-9, atol=1e-12):
        raise ValueError("its preprocessing encodes the same values differently")


def _require_same_model(stored: Stored, readout: Readout) -> None:
    """An error where weights or outputs are others."""
    if readout.fingerprint() != stored.fingerprint:
        raise ValueError("its weights differ")

    # Other kernels and processors round differently, in single precision.
    outputs = _outputs(readout, stored.probe)
    if not _is_near(outputs, stored.outputs, rtol=1e-3, atol=1e-4):
        raise ValueError("its outputs differ")


def _is_near(now: Tensor, before: Tensor, *, rtol: float, atol: float) -> bool:
    return now.shape == before.shape and torch.allclose(now, before, rtol=rtol, atol=atol)


def _encoded(adapted: Adapted, columns: Columns) -> Tensor:
    """What the preprocessing makes of some values of every feature: its fingerprint."""
    pieces = [torch.zeros(0, dtype=torch.float64)]
    for feature, members in enumerate(columns.members):
        if not columns.features.columns[feature]:
            continue

        column = columns.column(feature)
        if column is not None:
            rows = np.array(column.levels or column.span, dtype=object)
        else:
            typical = [columns.seen[member].typical for member in members]
            rows = np.array([typical], dtype=object)
        pieces.append(input_values(columns, adapted, feature, rows).flatten())
    return torch.cat(pieces)


def _probe(fitted: CalibratedModel) -> Tensor:
    """A few rows to find the head with: the baseline, and features at their extremes or levels."""
    baseline = fitted.estimate.baseline
    summary = fitted.summary
    rows = [baseline]
    for feature, group in enumerate(fitted.columns.features.columns[:_PROBED_FEATURES]):
        columns = list(group)
        if feature in summary.levels:
            levels, _ = summary.levels[feature]
            settings = levels[:_PROBED_LEVELS]
        else:
            settings = torch.stack([summary.minimum[columns], summary.maximum[columns]])

        for values in settings:
            row = baseline.clone()
            row[columns] = values
            rows.append(row)

    probe = torch.stack(rows)
    return probe.to(torch.int64) if fitted.readout.integer else probe


def _outputs(readout: Readout, probe: Tensor) -> Tensor:
    """What a model makes of some rows: of a function there is nothing else to tell it by."""
    return readout.logits(readout.represent(as_model_takes(probe, readout))).cpu()


def _plain(name: str, value: Any, fitted: CalibratedModel) -> Any:
    """An option as a file can hold it."""
    if name == "head" and isinstance(value, nn.Module):
        return fitted.readout.head.name
    if name == "device" and value is not None:
        return str(value)
    if name == "background" and not isinstance(value, int):
        return 32 if fitted.estimate.background is None else len(fitted.estimate.background)
    return plain(value)
