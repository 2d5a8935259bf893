"""Codes of a preprocessing are read back as the values that have them."""

import numpy as np
import torch

from nobsp.tabular.decoding import decode_levels, decode_numbers, snap_to_known
from nobsp.tabular.lookup import LevelAxis

NUMBERS = np.linspace(-2.0, 3.0, 51)


def as_codes(*columns: np.ndarray) -> torch.Tensor:
    return torch.tensor(np.stack(columns, 1))


def test_a_falling_encoding_is_read_backwards() -> None:
    rows = np.array([-1.05, 0.0, 2.95])
    decoded = decode_numbers(as_codes(-2 * rows), as_codes(-2 * NUMBERS), NUMBERS, None)
    np.testing.assert_allclose(decoded, rows, rtol=1e-12, atol=1e-12)


def test_rows_of_one_bin_share_its_numbers_evenly() -> None:
    bins = np.floor(NUMBERS)
    rows = np.repeat([-2.0, 1.0], 10)
    decoded = decode_numbers(as_codes(rows), as_codes(bins), NUMBERS, None)
    for number in (-2.0, 1.0):
        members = NUMBERS[bins == number]
        assert sorted(decoded[rows == number]) == sorted(members)


def test_the_code_of_a_missing_number_is_missing_unless_a_number_has_it() -> None:
    codes = as_codes(NUMBERS, np.zeros(len(NUMBERS)))
    missing = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    rows = torch.cat([codes[[20]], missing])
    assert np.isnan(decode_numbers(rows, codes, NUMBERS, missing)).tolist() == [False, True]
    filled_in = codes[[20]]
    assert not np.isnan(decode_numbers(rows[:1], codes, NUMBERS, filled_in)).any()


def test_a_code_that_no_level_has_is_missing() -> None:
    axis = LevelAxis((3,), ("bern", "oslo"))
    codes = torch.eye(2, dtype=torch.float64)
    rows = torch.tensor([[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert decode_levels(rows, axis, codes)[3].tolist() == ["oslo", None, "bern"]


def test_numbers_that_differ_by_rounding_become_the_known_ones() -> None:
    known = np.array([0.1, 0.2, 0.4])
    values = np.array([0.1 + 1e-9, 0.3, 0.4 - 1e-9])
    assert snap_to_known(values, known).tolist() == [0.1, 0.3, 0.4]
