"""What a column holds is the same however its rows are shared out."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from nobsp.frames import frame_of
from nobsp.network.columns import MOST_CODES
from nobsp.tabular.seen import Seen, look_at

NUMBERS = [3.0, 1.0, 1.0, None, 7.0, 2.0]
TEXTS = ["b", "a", None, "b", "c", "a"]


def seen_in(values: list[object], kind: type = pd.DataFrame, most: int = 100) -> Seen:
    frame = kind({"x": values})
    return look_at(frame, frame_of(frame), 0, "x", most)


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize("values", [NUMBERS, TEXTS], ids=["numbers", "texts"])
def test_two_shares_are_merged_to_what_the_whole_holds(values: list[object], kind: type) -> None:
    whole = seen_in(values, kind)
    merged = seen_in(values[:3], kind).merge(seen_in(values[3:], kind), 100)
    assert merged.numeric == whole.numeric
    assert merged.span == whole.span
    assert merged.levels == whole.levels
    assert merged.quantiles.tolist() == whole.quantiles.tolist()


def test_a_column_that_is_text_in_either_share_is_text() -> None:
    assert not seen_in(NUMBERS).merge(seen_in(TEXTS), 100).numeric
    assert not seen_in(TEXTS).merge(seen_in(NUMBERS), 100).numeric


def test_numbers_are_levels_only_where_they_are_few() -> None:
    assert seen_in(NUMBERS, most=4).levels == [1.0, 2.0, 3.0, 7.0]
    assert seen_in(NUMBERS, most=3).levels is None


def test_the_typical_value_is_one_that_occurs() -> None:
    assert seen_in([1.0, 2.0, 4.0, 8.0]).typical in (2.0, 4.0)
    assert seen_in(TEXTS).typical in ("a", "b")


def test_a_column_that_numbers_the_rows_is_warned_of() -> None:
    names = np.array([f"row {number}" for number in range(MOST_CODES + 1)], dtype=object)
    with pytest.warns(UserWarning, match="levels"):
        column = look_at(names[:, None], None, 0, "x", 100)
    assert column.levels is not None
    assert len(column.levels) == MOST_CODES
