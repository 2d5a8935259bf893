"""Functions as a model of MLflow: a pyfunc made of the functions' file, without pickle."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nobsp._typing import AnyArray, TableLike
from nobsp.frames import as_table

if TYPE_CHECKING:
    from nobsp.tabular import Functions

# What the file is called inside the logged model.
_FILE = "functions.nobsp"


def log_model(
    functions: Functions,
    X: TableLike,
    *,
    name: str = "functions",
    explainer: Any = None,
    registered_model_name: str | None = None,
) -> Any:
    """Logs functions to the active run, or to a new one: file, signature, example, and a card.

    The model that is read back needs nobsp and numpy, neither torch nor the model. Its `predict`
    gives what `Functions.predict` gives; with `params={"output": "probabilities"}` or
    `"contributions"` those, as a frame.

    Args:
        functions: The functions, as `explainer.compile()` gives them, edited or not.
        X: Some rows, of which signature and example are made.
        name: Name of the model in the run.
        explainer: The explainer that the functions come from; a card of it on these rows is logged
            beside the model.
        registered_model_name: Name under which it is registered; not registered when None.

    Returns:
        What `mlflow.pyfunc.log_model` returns.

    Raises:
        ImportError: If mlflow is not installed.
    """
    mlflow = _import_mlflow()
    from mlflow.models import infer_signature

    import nobsp

    example = _example_of(functions, X)
    predictions = functions.predict(example)
    signature = infer_signature(example, predictions, params={"output": "prediction"})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / _FILE
        functions.save(path)
        logged = mlflow.pyfunc.log_model(
            name=name,
            loader_module="nobsp.mlflow",
            data_path=str(path),
            signature=signature,
            pip_requirements=[f"nobsp=={nobsp.__version__}"],
            registered_model_name=registered_model_name,
        )
        if explainer is not None:
            card = nobsp.card(explainer, X, Path(folder) / "card.html")
            mlflow.log_artifact(str(card), artifact_path=name)
    return logged


def _import_mlflow() -> Any:
    try:
        import mlflow
        import mlflow.pyfunc
    except ImportError as missing:
        raise ImportError("log_model needs mlflow: pip install mlflow-skinny.") from missing
    return mlflow


def _example_of(functions: Functions, X: TableLike) -> Any:
    """A few rows as a frame with the functions' columns."""
    import pandas as pd

    if isinstance(X, pd.DataFrame):
        return X.head(5)
    return pd.DataFrame(np.asarray(X)[:5], columns=list(functions.named_columns()))


class FunctionsModel:
    """What `mlflow.pyfunc.load_model` calls."""

    def __init__(self, functions: Functions) -> None:
        self.functions = functions

    def predict(
        self, model_input: TableLike, params: dict[str, Any] | None = None
    ) -> AnyArray | Any:
        """Predictions, or probabilities or contributions where these are asked for."""
        wanted = (params or {}).get("output", "prediction")
        if wanted == "prediction":
            return self.functions.predict(model_input)
        if wanted == "probabilities":
            chances = self.functions.predict_proba(model_input)
            names = [f"probability of {level}" for level in self.functions.classes_]
            return as_table(dict(zip(names, chances.T, strict=True)))
        if wanted == "contributions":
            return self.functions.explain(model_input).to_frame()
        raise ValueError(
            f'output must be "prediction", "probabilities" or "contributions", found {wanted!r}.'
        )


def _load_pyfunc(path: str) -> FunctionsModel:
    """How MLflow reads the model; the name is MLflow's."""
    from nobsp.tabular import Functions

    return FunctionsModel(Functions.load(path))
