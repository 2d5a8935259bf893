"""Boosted trees with native categories: frames are read once a batch, and mean what they meant in training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from nobsp import NObSP
from tests.tolerances import SINGLE, assert_same_to_rounding

LEVELS = ["ash", "beech", "cedar", "oak"]


def table(count: int, *, levels: list[str]) -> pd.DataFrame:
    """A category and a number, the category's levels in some order."""
    generator = np.random.default_rng(count)
    names = generator.choice(LEVELS, count)
    return pd.DataFrame(
        {"tree": pd.Categorical(names, categories=levels), "height": generator.normal(size=count)}
    )


def fitted(kind: str, rows: pd.DataFrame) -> Any:
    """A small model of one library."""
    number = rows["tree"].astype(str).map({"ash": 0.0, "beech": 2.0, "cedar": -1.0, "oak": 5.0})
    target = number.astype(float) + rows["height"]
    if kind == "xgboost":
        xgb = pytest.importorskip("xgboost", reason="XGBoost is not installed")
        return xgb.XGBRegressor(n_estimators=20, enable_categorical=True, n_jobs=1).fit(
            rows, target
        )
    if kind == "lightgbm":
        lgb = pytest.importorskip("lightgbm", reason="LightGBM is not installed")
        return lgb.LGBMRegressor(n_estimators=20, verbose=-1, n_jobs=1).fit(rows, target)
    cat = pytest.importorskip("catboost", reason="CatBoost is not installed")
    model = cat.CatBoostRegressor(
        iterations=20,
        cat_features=["tree"],
        verbose=0,
        thread_count=1,
        allow_writing_files=False,
    )
    return model.fit(rows, target)


@pytest.mark.parametrize("kind", ["xgboost", "lightgbm", "catboost"])
def test_levels_listed_in_another_order_are_the_same_levels(kind: str) -> None:
    model = fitted(kind, table(300, levels=LEVELS))
    rows = table(200, levels=LEVELS[::-1])

    explanation = NObSP(model).fit(rows)(rows)

    expected = np.asarray(model.predict(rows))
    assert_same_to_rounding(explanation.predictions[:, 0], expected, within=SINGLE)


@pytest.mark.parametrize("kind", ["xgboost", "lightgbm", "catboost"])
@pytest.mark.parametrize("value", [{"height": 1.5}, {"tree": "oak"}])
def test_a_constant_column_is_not_blamed_on_a_preprocessing_alone(
    kind: str, value: dict[str, Any]
) -> None:
    model = fitted(kind, table(300, levels=LEVELS))
    rows = table(200, levels=LEVELS)
    rows = rows.assign(**value).astype({"tree": rows["tree"].dtype})

    said = {
        finding.subject: finding.message for finding in NObSP(model).fit(rows).health().findings
    }

    assert said[next(iter(value))].startswith("Its column is constant in these rows, or")
