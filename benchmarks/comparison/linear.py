"""Linear models: Oaxaca's decompositions as statsmodels computes them, beside ours."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.linear_model import LinearRegression

import nobsp


def measure(seed: int) -> dict[str, float]:
    """Largest differences of the three parts, and of the explained part of a pooled model."""
    from statsmodels.stats.oaxaca import OaxacaBlinder

    generator = np.random.default_rng(seed)
    n_rows = 600
    in_second = generator.random(n_rows) < 0.4
    mixing = generator.normal(size=(4, 4))
    X = generator.normal(size=(n_rows, 4)) @ mixing + in_second[:, None]
    slopes = np.where(in_second[:, None], generator.normal(size=4), generator.normal(size=4))
    y = (X * slopes).sum(1) + in_second + generator.normal(size=n_rows)
    table = np.column_stack([X, in_second.astype(float)])
    theirs = OaxacaBlinder(y, table, 4, hasconst=False, swap=False)
    rows_part, functions_part, both_part, gap = theirs.three_fold().params
    _, explained, _ = theirs.two_fold(two_fold_type="nuemark").params

    own: dict[bool, Any] = {}
    for group in (False, True):
        model = LinearRegression().fit(X[in_second == group], y[in_second == group])
        own[group] = nobsp.NObSP(model, interactions=0).fit(X[in_second == group])
    threefold = nobsp.compare(own[False](X[~in_second]), own[True](X[in_second]), draws=100)
    sums = {name: part.value[:-1].sum() for name, part in threefold.parts.items()}
    pooled = nobsp.NObSP(LinearRegression().fit(X, y), interactions=0).fit(X)
    twofold = nobsp.compare(pooled(X[~in_second]), pooled(X[in_second]), draws=100)
    return {
        "gap": abs(float(threefold.total.value[0]) - gap),
        "rows": abs(sums["rows"] - rows_part),
        "functions": abs(sums["functions"] - functions_part),
        "both": abs(sums["both"] - both_part),
        "explained": abs(float(twofold.total.value[0]) - explained),
    }
