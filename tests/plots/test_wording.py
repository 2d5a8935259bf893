"""Names and numbers in a plot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import cbook

from nobsp.plots.wording import plain, shown, shown_apart, terms_shown

NAMES = st.text(min_size=1, max_size=60)


@given(NAMES)
def test_no_name_is_taken_for_a_formula(name):
    assert not cbook.is_math_text(shown(name))
    # What matplotlib draws in the end is the name itself.
    assert shown(name, 100).replace(r"\$", "$") == plain(name)


@given(NAMES, st.integers(5, 40))
def test_no_name_is_longer_than_allowed(name, width):
    assert len(shown(name, width).replace(r"\$", "$")) <= width


@given(st.lists(NAMES, unique_by=plain, max_size=12), st.integers(6, 30))
def test_names_that_differ_are_shown_differently(names, width):
    assert len(set(shown_apart(names, width))) == len(names)


def test_long_names_keep_their_beginning_and_their_end():
    short = shown("perimeter of the cell nucleus, worst of three", 20)
    assert short.startswith("perim")
    assert short.endswith("of three")
    assert "…" in short


def test_long_names_that_differ_in_the_middle_show_where():
    names = [f"the reading of station number {k:03d}, taken in the morning, in degrees" for k in (17, 117)]
    short = shown_apart(names, 24)
    assert "017" in short[0]
    assert "117" in short[1]


@pytest.mark.parametrize("name", ["two\nlines", "a\ttab", "turned \u202eback", "null\x00"])
def test_characters_that_steer_text_are_left_out(name):
    text = shown(name)
    assert text.isprintable()
    assert "\u202e" not in text


def test_an_accent_does_not_lose_its_letter():
    assert shown("xxxxxxxxxxe\u0301yyyyyyyyyy", 20)[11] != "\u0301"


def test_terms_are_told_apart_among_all_features():
    names = [f"the reading of station number {k:03d}, taken in the morning, in degrees" for k in range(100)]
    [short] = terms_shown([(names[51],)], 24, names=names)
    assert "051" in short
    assert terms_shown([("a", "b")]) == ["a × b"]
