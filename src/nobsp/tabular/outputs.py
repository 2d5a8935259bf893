"""A model's own outputs on rows, whichever way the model is handed over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nobsp._typing import FloatArray, ModelLike, TableLike
from nobsp.arguments import numbers_of

if TYPE_CHECKING:
    from nobsp.tabular.functions import Functions

_BATCH_ROWS = 4096


def outputs_of(functions: Functions, X: TableLike, model: ModelLike) -> FloatArray:
    """What a model says about rows, before its link, (rows, outputs).

    `model` is an explainer, a model of any kind that `NObSP` takes, or the outputs themselves.
    """
    if hasattr(model, "__array__") or isinstance(model, list | tuple):
        outputs = numbers_of(model, name="model")
    elif hasattr(model, "functions_") and hasattr(model, "explain"):
        outputs = np.asarray(model.explain(X).predictions)
    else:
        outputs = _run_model(model, X)

    n_outputs = len(functions.output_names)
    if outputs.ndim == 1:
        outputs = outputs[:, None]
    if outputs.ndim != 2 or outputs.shape[1] != n_outputs:
        raise ValueError(
            f"model has outputs of shape {outputs.shape}, but the functions have {n_outputs} "
            "outputs; pass the model that they were taken from."
        )
    return outputs


def _run_model(model: ModelLike, X: TableLike) -> FloatArray:
    """Outputs of a model that has not been calibrated."""
    import torch

    from nobsp.models import adapt
    from nobsp.network.batches import batches_of
    from nobsp.network.readout import PROBE_ROWS, as_model_takes, running_on
    from nobsp.tabular.setting import find_readout

    adapted = adapt(model, X)
    source = batches_of(
        X if adapted.pack is None else adapted.pack(X),
        batch_size=_BATCH_ROWS,
        encode=adapted.encode,
        columns=adapted.feature_names,
        argument="X",
        strict=True,
    )
    batches = [batch.clone() for batch in source]
    readout = find_readout(adapted, batches[0][:PROBE_ROWS], head=None)

    outputs = []
    with running_on(readout, None) as represent:
        for batch in batches:
            representation = represent(as_model_takes(batch, readout))
            outputs.append(readout.logits(representation).cpu().double())
    return np.asarray(torch.cat(outputs).numpy())
