"""ONNX models in onnxruntime sessions."""

from __future__ import annotations

from typing import Any

import numpy as np

from nobsp.models.running import Array, Runs, log_odds, numbers_of
from nobsp.network.adapted import Adapted

_KINDS = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}


def adapt_session(session: Any) -> Adapted:
    """An onnxruntime session with one matrix as input: its output, or log-odds where it has probabilities."""
    inputs = session.get_inputs()
    if len(inputs) != 1:
        raise TypeError(
            f"model is an onnxruntime session with the inputs {[one.name for one in inputs]}; pass a function of one "
            "matrix that runs it, such as lambda X: session.run(None, {...})[0]."
        )
    kind = _KINDS.get(inputs[0].type)
    if kind is None:
        raise TypeError(f"model is an onnxruntime session that takes {inputs[0].type}; pass a function that runs it.")
    floats = [one for one in session.get_outputs() if one.type in ("tensor(float)", "tensor(double)")]
    if not floats:
        raise TypeError("model is an onnxruntime session without an output of floats; pass a function that runs it.")
    chosen = next((one for one in floats if "prob" in one.name.lower()), floats[0])
    classes = chosen.shape[-1] if "prob" in chosen.name.lower() and isinstance(chosen.shape[-1], int) else 1

    def run(x: Array) -> Array:
        found = numbers_of(session.run([chosen.name], {inputs[0].name: x.astype(kind)})[0], len(x))
        return log_odds(found) if classes > 1 else found

    about = repr([(one.name, one.type, one.shape) for one in [*inputs, *session.get_outputs()]]).encode()
    link = None if classes == 1 else "sigmoid" if classes == 2 else "softmax"
    return Adapted(Runs(run, about=about), link=link)
