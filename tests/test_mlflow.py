"""Functions as a model of MLflow, where that is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nobsp import NObSP
from tests.tabular.handmade import CITIES, handmade, rows_for

mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    return tmp_path


def test_a_logged_model_says_what_python_says(tracking: Path) -> None:
    from nobsp.mlflow import log_model

    functions = handmade(link="sigmoid", classes=("no", "yes"), cities=CITIES)
    rows = rows_for(functions).drop(columns="unused").assign(unused=0.0)
    rows = rows[np.isfinite(rows["age"]) & np.isfinite(rows["income"])]
    with mlflow.start_run():
        logged = log_model(functions, rows)
    model = mlflow.pyfunc.load_model(logged.model_uri)
    assert list(model.predict(rows)) == functions.predict(rows).tolist()
    chances = model.predict(rows, params={"output": "probabilities"})
    np.testing.assert_allclose(np.asarray(chances), functions.predict_proba(rows))
    parts = model.predict(rows, params={"output": "contributions"})
    assert len(parts) == len(rows)
    assert [column.name for column in model.metadata.signature.inputs] == list(rows.columns)
    pickles = [file for _, _, files in os.walk(tracking) for file in files if file.endswith("pkl")]
    assert not pickles


def test_a_card_is_logged_beside_the_model(tracking: Path) -> None:
    from nobsp.mlflow import log_model

    X = np.random.default_rng(0).normal(size=(200, 2))

    def model(rows: Any) -> Any:
        return np.asarray(rows)[:, 0]

    explainer = NObSP(model, features=["a", "b"], interactions=0).fit(X)
    with mlflow.start_run() as run:
        log_model(explainer.compile(), X, explainer=explainer)
    artifacts = mlflow.MlflowClient().list_artifacts(run.info.run_id, "functions")
    assert any(artifact.path.endswith("card.html") for artifact in artifacts)
