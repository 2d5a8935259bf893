"""Names as codes: levels that were not there at calibration share one code."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from nobsp.models.coded import Coded


@pytest.mark.parametrize("dtype", ["object", "category"])
def test_unseen_levels_share_one_code_and_add_no_level(dtype: str) -> None:
    calibrated = pd.DataFrame({"town": pd.Series(["a", "b"] * 5, dtype=dtype), "age": range(10)})
    coded = Coded.of(calibrated, missing=True)
    assert coded is not None
    unseen = [f"level {number}" for number in range(1000)]
    rows = pd.DataFrame({"town": pd.Series([*unseen, "b"], dtype=dtype), "age": range(1001)})

    matrix = coded(rows)

    assert np.unique(matrix[:, 0]).tolist() == [1.0, 2.0]
    assert coded.layout["levels"] == {0: ["a", "b"]}
    back = coded.back(matrix)
    assert back["town"].tolist() == ["level 0"] * 1000 + ["b"]
