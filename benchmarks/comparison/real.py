"""Two gaps of real tables: men and women in Adult, north and south in California."""

from __future__ import annotations

from typing import Any

import numpy as np

import nobsp
from benchmarks.data import tables

# Parts that are listed.
LISTED = 5


def adult() -> dict[str, Any]:
    """Boosted trees that do not see the sex; rows that they were not trained on."""
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder
    from xgboost import XGBClassifier

    table = tables.read_adult()
    frame = table.features
    order = np.random.default_rng(0).permutation(len(frame))
    X = frame.drop(columns="sex").iloc[order]
    y = np.asarray(table.target)[order]
    sex = frame["sex"].iloc[order].astype(str).to_numpy()
    names = [name for name in X.columns if X[name].dtype.kind not in "biuf"]
    X[names] = X[names].astype(str)

    encode = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), names),
        remainder="passthrough",
    )
    trees = XGBClassifier(n_estimators=80, max_depth=4, n_jobs=1)
    model = make_pipeline(encode, trees).fit(X[:15_000], y[:15_000])
    explainer = nobsp.NObSP(model, interactions=8).fit(X[15_000:17_000])
    rows = X[18_000:22_000]
    of_men = np.char.lower(sex[18_000:22_000].astype(str)) == "male"
    return told(
        nobsp.compare(explainer(rows[of_men]), explainer(rows[~of_men]), names=("men", "women"))
    )


def california() -> dict[str, Any]:
    """Boosted trees; rows that they were not trained on, north and south of 36 degrees."""
    from xgboost import XGBRegressor

    table = tables.read_california_housing()
    order = np.random.default_rng(0).permutation(len(table.features))
    X = table.features.iloc[order].astype(float)
    y = np.asarray(table.target, dtype=np.float64)[order]
    model = XGBRegressor(n_estimators=100, max_depth=5, n_jobs=1).fit(X[:12_000], y[:12_000])
    explainer = nobsp.NObSP(model, interactions=8).fit(X[12_000:14_000])
    rows = X[15_000:19_000]
    in_north = (rows["Latitude"] > 36).to_numpy()
    return told(
        nobsp.compare(
            explainer(rows[in_north]), explainer(rows[~in_north]), names=("north", "south")
        )
    )


def told(comparison: nobsp.Comparison) -> dict[str, Any]:
    """The gap, its largest parts, and the residual's."""
    values = comparison.gap.value[:, 0]
    order = np.argsort(-np.abs(values), kind="stable")[:LISTED]
    return {
        "names": list(comparison.names),
        "rows": list(comparison.n_rows),
        "total": float(comparison.total.value[0]),
        "lower": float(comparison.total.lower[0]),
        "upper": float(comparison.total.upper[0]),
        "residual": float(values[-1]),
        "largest": ", ".join(f"{comparison.entries[k]} {values[k]:+.2f}" for k in order),
    }
