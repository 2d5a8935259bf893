"""A calibration as a file and back: tensors in safetensors, everything else in its JSON metadata."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nobsp import store
from nobsp.projection import Moments
from nobsp.vision.anatomy import Anatomy
from nobsp.vision.channels import ChannelCalibration, ChannelEvidence, Means
from nobsp.vision.tail import TailCalibration, TailEvidence

KIND = "class activation maps"
VERSION = 1

Evidence = ChannelEvidence | TailEvidence
Calibration = ChannelCalibration | TailCalibration

# What there is much of is kept in single precision: maps move by less than a millionth. Where layers stand between map
# and head it is not, as the account divides small differences of contributions by each other.
_COMPACT = ("coefficients", "unique_share", "explained")


def save(
    path: str | os.PathLike[str],
    *,
    anatomy: Anatomy,
    evidence: Evidence,
    calibration: Calibration | None,
    rows: int,
    options: Mapping[str, Any],
    output_names: tuple[str, ...],
) -> None:
    """Writes a calibration; what it was gathered from only where `calibration` is given."""
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for name, value in vars(evidence).items():
        if isinstance(value, Tensor):
            compact = isinstance(evidence, ChannelEvidence) and name in _COMPACT
            tensors[name] = value.to(torch.float32) if compact else value
        else:
            plain[name] = value
    blocks = None
    if isinstance(calibration, ChannelCalibration):
        tensors |= {f"state/{name}": value for name, value in _state(calibration.state).items()}
        blocks = calibration.state.blocks if isinstance(calibration.state, Moments) else None
    elif calibration is not None:
        tensors |= {"state/kept": calibration.kept, "state/logits": calibration.kept_logits}
        tensors |= {f"state/inputs/{name}": value for name, value in _state(calibration.inputs).items()}
        tensors |= {f"state/outputs/{name}": value for name, value in _state(calibration.outputs).items()}
    # Coefficients may share memory with what they were found from, which a file cannot.
    tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    about = {
        "options": dict(options),
        "fingerprint": anatomy.fingerprint(),
        "anatomy": anatomy.described(),
        "image_shape": anatomy.image_shape,
        "kind": "tail" if isinstance(evidence, TailEvidence) else "channels",
        "plain": plain,
        "rows": rows,
        "output_names": output_names,
        "state": calibration is not None,
        "blocks": blocks,
    }
    store.save(path, kind=KIND, version=VERSION, tensors=tensors, about=about)


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save` wrote."""
    return store.load(path, kind=KIND, version=VERSION)


def evidence_of(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> Evidence:
    """The coefficients in a file."""
    kind = TailEvidence if about["kind"] == "tail" else ChannelEvidence
    known = {name: value for name, value in tensors.items() if not name.startswith("state/")}
    whole = {name: value.to(torch.float64) if value.is_floating_point() else value for name, value in known.items()}
    fields: dict[str, Any] = {**whole, **about["plain"]}
    return kind(**fields)


def calibration_of(
    tensors: Mapping[str, Tensor], about: Mapping[str, Any], anatomy: Anatomy, coefficients: Any
) -> Calibration | None:
    """What the coefficients were found from, where the file holds it."""
    if not about["state"]:
        return None
    if about["kind"] == "tail":
        tail = TailCalibration(anatomy, coefficients)
        tail.kept, tail.kept_logits = tensors["state/kept"], tensors["state/logits"]
        tail.inputs = _means(tensors, "state/inputs/")
        tail.outputs = _means(tensors, "state/outputs/")
        return tail
    calibration = ChannelCalibration(anatomy, coefficients)
    if about["blocks"] is None:
        calibration.state = _means(tensors, "state/")
    else:
        state = {name.removeprefix("state/"): value for name, value in tensors.items() if name.startswith("state/")}
        calibration.state = Moments.from_state(about["blocks"], state)
    return calibration


def _state(state: Moments | Means) -> dict[str, Tensor]:
    if isinstance(state, Moments):
        return state.state()
    return {"rows": torch.tensor(state.rows), "mean": state.mean}


def _means(tensors: Mapping[str, Tensor], prefix: str) -> Means:
    means = Means(len(tensors[f"{prefix}mean"]))
    means.rows, means.mean = int(tensors[f"{prefix}rows"]), tensors[f"{prefix}mean"]
    return means
