"""Plots of comparisons draw the numbers that the comparison has."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from nobsp import plots
from tests.plots import pictures


@pytest.fixture(scope="module")
def comparison():
    return pictures.comparison()


def test_bars_are_the_parts_and_lines_their_intervals(comparison):
    ax = comparison.plot.gaps()
    order = np.argsort(-np.abs(comparison.gap.value[:, 0]), kind="stable")
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        comparison.entries[entry] for entry in order
    ]
    widths = [bar.get_width() for bar in ax.patches]
    np.testing.assert_allclose(widths, comparison.gap.value[order, 0])
    ends = [line.get_xdata() for line in ax.lines[: len(order)]]
    np.testing.assert_allclose([end[0] for end in ends], comparison.gap.lower[order, 0])
    np.testing.assert_allclose([end[1] for end in ends], comparison.gap.upper[order, 0])
    plt.close("all")


def test_bars_along_a_feature_add_up_to_its_part(comparison):
    ax = comparison.plot.along("age", bins=6)
    heights = sum(bar.get_height() for bar in ax.patches)
    assert heights == pytest.approx(comparison.gap.value[comparison.entries.index("age"), 0])
    plt.close("all")


def test_one_explainer_has_one_curve_and_two_outlines_of_rows(comparison):
    ax = comparison.plot.two_curves("age")
    assert len(ax.lines) == 1
    assert len(ax.get_legend().get_texts()) == 3
    plt.close("all")


def test_what_is_no_comparison_is_refused():
    with pytest.raises(TypeError, match="comparison"):
        plots.gaps("a")
