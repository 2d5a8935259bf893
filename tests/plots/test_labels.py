"""Names and numbers in a plot."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import cbook

from nobsp.plots.labels import (
    clean,
    decimals_for,
    format_number,
    format_value,
    shorten,
    shorten_all,
    term_labels,
)

NAMES = st.text(min_size=1, max_size=60)


@given(NAMES)
def test_no_name_is_taken_for_a_formula(name):
    assert not cbook.is_math_text(shorten(name))
    # What matplotlib draws in the end is the name itself.
    assert shorten(name, 100).replace(r"\$", "$") == clean(name)


@given(NAMES, st.integers(5, 40))
def test_no_name_is_longer_than_allowed(name, width):
    assert len(shorten(name, width).replace(r"\$", "$")) <= width


@given(st.lists(NAMES, unique_by=clean, max_size=12), st.integers(6, 30))
def test_names_that_differ_are_shown_differently(names, width):
    assert len(set(shorten_all(names, width))) == len(names)


def test_long_names_keep_their_beginning_and_their_end():
    short = shorten("perimeter of the cell nucleus, worst of three", 20)
    assert short.startswith("perim")
    assert short.endswith("of three")
    assert "…" in short


def test_long_names_that_differ_in_the_middle_show_where():
    names = [
        f"the reading of station number {k:03d}, taken in the morning, in degrees"
        for k in (17, 117)
    ]
    short = shorten_all(names, 24)
    assert "017" in short[0]
    assert "117" in short[1]


@pytest.mark.parametrize("name", ["two\nlines", "a\ttab", "turned \u202eback", "null\x00"])
def test_characters_that_steer_text_are_left_out(name):
    text = shorten(name)
    assert text.isprintable()
    assert "\u202e" not in text


def test_terms_are_told_apart_among_all_features():
    names = [
        f"the reading of station number {k:03d}, taken in the morning, in degrees"
        for k in range(100)
    ]
    [short] = term_labels([(names[51],)], 24, names=names)
    assert "051" in short
    assert term_labels([("a", "b")]) == ["a × b"]


def test_names_are_cut_in_the_middle_or_where_they_begin_to_differ():
    assert shorten("mean of the worst concave points of the nucleus", 20) == "mean of th…e nucleus"
    sites = [f"the reading at site {number} in the morning" for number in (1, 2)]
    assert shorten_all(sites, 16) == ["the…ite 1 in th…", "the…ite 2 in th…"]


def test_numbers_have_a_wide_minus_and_three_digits():
    assert [format_number(-1234.5, 1), format_number(0.25, 2, "+")] == ["−1,234.5", "+0.25"]
    assert [decimals_for([0.012, 0.4]), decimals_for([1234.0]), decimals_for([])] == [3, 0, 2]


def test_values_are_written_with_four_digits_and_names_as_they_are():
    values = {np.float32(0.1): "0.1", 1234567.0: "1.235e+06", "Rome": "Rome", True: "True"}
    assert [format_value(value) for value in values] == list(values.values())
