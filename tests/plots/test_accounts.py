"""One row's account as a waterfall, and what carries the variance of all rows."""

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from torch import nn

from nobsp import NObSP, plots
from nobsp.plots.accounts import variance_shares
from tests.plots.pictures import series


def bars_of(ax):
    """Start and width of each bar, from top to bottom."""
    return sorted(
        ((bar.get_y(), bar.get_x(), bar.get_width()) for bar in ax.patches), key=lambda bar: bar[0]
    )


def labels_of(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


@pytest.mark.parametrize("max_display", [1, 3, 10])
def test_bars_lead_from_the_base_to_the_prediction_without_a_gap(ex, max_display):
    ax = plots.waterfall(ex, row=5, max_display=max_display)
    bars = bars_of(ax)
    assert len(bars) == min(max_display, 5) + 1
    end = ex.base_values[0]
    for _, start, width in bars:
        assert start == pytest.approx(end)
        end += width
    assert end == pytest.approx(ex.predictions[5, 0])


@pytest.mark.parametrize("max_display", [1, 2, 10])
def test_the_residual_always_has_a_bar_of_its_own(ex, max_display):
    ax = plots.waterfall(ex, row=5, max_display=max_display)
    [bar] = [patch for patch in ax.patches if patch.get_gid() == "residual"]
    assert bar.get_width() == pytest.approx(ex.residual[5, 0])
    assert labels_of(ax)[-2] == "residual"


def test_terms_come_in_the_order_of_their_size_and_the_rest_together(ex):
    ax = plots.waterfall(ex, row=5, max_display=3)
    widths = [width for *_, width in bars_of(ax)]
    sizes = np.sort(np.abs(ex.values[5, :, 0]))[::-1]
    assert np.abs(widths[:2]) == pytest.approx(sizes[:2])
    assert labels_of(ax)[3] == "3 other terms"
    assert widths[2] == pytest.approx(ex.values[5, :, 0].sum() - sum(widths[:2]))


def test_every_bar_says_its_number(ex):
    ax = plots.waterfall(ex, row=5)
    said = [float(text.get_text().replace("−", "-")) for text in ax.texts]
    assert said == pytest.approx([width for *_, width in bars_of(ax)], abs=0.006)


def test_bars_against_are_hatched_and_bars_for_are_not(ex):
    ax = plots.waterfall(ex, row=5)
    for bar in ax.patches:
        if bar.get_gid() != "residual":
            assert bool(bar.get_hatch()) == (bar.get_width() < 0)


def test_names_tell_values_and_mark_what_is_out_of_range(ex):
    row = ex.data.iloc[0]
    labels = labels_of(plots.waterfall(ex, row=0))
    assert f"age = {row['age']:.4g}*" in labels
    assert f"city = {row['city']}" in labels
    assert any(label.startswith("age = ") and " × income = " in label for label in labels)
    assert "outside the calibrated range" in plots.waterfall(ex, row=0).get_title(loc="right")
    assert plots.waterfall(ex, row=1).get_title(loc="right") == ""


def test_a_group_of_columns_is_told_by_the_level_it_has():
    draw = np.random.default_rng(0)
    X = np.column_stack([draw.normal(size=120), np.eye(3)[draw.integers(0, 3, 120)]])
    features = {"size": 0, "city": [1, 2, 3]}
    ex = NObSP(nn.Linear(4, 1).double(), features=features, interactions=0).fit(X)(X[:5])
    for row in range(5):
        assert f"city = x{1 + X[row, 1:].argmax()}" in labels_of(plots.waterfall(ex, row=row))


def test_a_residual_that_is_not_known_is_said_to_be_so(ex):
    unknown = replace(
        ex,
        residual=np.full_like(ex.residual, np.nan),
        predictions=np.full_like(ex.residual, np.nan),
    )
    ax = plots.waterfall(unknown, row=5)
    assert labels_of(ax)[-2] == "residual"
    assert any("not known" in text.get_text() for text in ax.texts)
    assert labels_of(ax)[-1].startswith("base and terms = ")


def test_an_output_is_chosen_by_name_or_position_and_has_to_be(several):
    by_name, by_place = plots.waterfall(several, output="risk"), plots.waterfall(several, output=1)
    assert bars_of(by_name) == bars_of(by_place)
    assert by_name.get_xlabel() == "risk"
    with pytest.raises(ValueError, match="output must be chosen among 'price', 'risk', 'rank'"):
        plots.waterfall(several)


@pytest.mark.parametrize(
    ("row", "error"), [(500, IndexError), ("3", TypeError), ([1, 2], TypeError), (True, TypeError)]
)
def test_a_row_that_is_none_is_an_error(ex, row, error):
    with pytest.raises(error, match="row"):
        plots.waterfall(ex, row=row)


def labelled(ex, labels):
    """The first rows, in a frame with these labels."""
    some = ex[: len(labels)]
    return replace(some, data=some.data.set_axis(labels))


@pytest.mark.parametrize(
    ("labels", "row", "position"),
    [
        (["Ada", "Bo", "Cy"], "Cy", 2),
        ([2.5, 0.5, 1.5], 0.5, 1),
        (pd.date_range("2024-01-01", periods=3), "2024-01-02", 1),
        (pd.date_range("2024-01-01", periods=3), pd.Timestamp("2024-01-03"), 2),
        (pd.MultiIndex.from_product([["a"], [7, 8, 9]]), ("a", 8), 1),
        (["Ada", 2, 0], 0, 0),
        ([2, 0, 1], 0, 0),
        (["Ada", "Bo", "Cy"], -1, 2),
    ],
)
def test_a_row_is_found_by_its_label_and_a_whole_number_is_a_position(ex, labels, row, position):
    ax = plots.waterfall(labelled(ex, labels), row=row)
    assert bars_of(ax) == bars_of(plots.waterfall(ex, row=position))


def test_the_title_is_the_label_that_was_asked_for(ex):
    few = labelled(ex, ["Ada", "Bo", "Cy"])
    assert plots.waterfall(few, row="Bo").get_title(loc="left") == "row Bo"
    assert plots.waterfall(few, row=-2).get_title(loc="left") == "row 1"


def test_chosen_rows_keep_their_labels(ex):
    assert bars_of(plots.waterfall(labelled(ex, ["Ada", "Bo", "Cy"])[1:], row="Cy")) == bars_of(
        plots.waterfall(ex, row=2)
    )


@pytest.mark.parametrize(
    ("labels", "row", "error", "message"),
    [
        (["Ada", "Bob", "Cy"], "Bo", ValueError, "did you mean 'Bob'"),
        (["Ada", "Bob", "Cy"], "Zoë", ValueError, "there are 'Ada', 'Bob', 'Cy'"),
        (["Ada", "Bo", "Ada"], "Ada", ValueError, "those at 0, 2; pass one position"),
        (["Ada", "Bob", "Cy"], ("Ada", 1), ValueError, "no row"),
        (["Ada", "Bob", "Cy"], None, ValueError, "no row None"),
        (["Ada", "Bob", "Cy"], ["Ada"], TypeError, "position or label of one row"),
        (
            [10, 20, 30],
            20,
            IndexError,
            r"there are 3; for the label pass row=ex\.data\.index\.get_loc\(20\)",
        ),
        ([10, 20, 30], 20.0, TypeError, "row must be the position of one row"),
        (["Ada", "Bob", "Cy"], 3, IndexError, "there are 3"),
    ],
)
def test_a_label_that_names_no_single_row_is_an_error_that_helps(ex, labels, row, error, message):
    with pytest.raises(error, match=message):
        plots.waterfall(labelled(ex, labels), row=row)


@pytest.mark.parametrize("kind", [pl.from_pandas, np.asarray])
def test_rows_without_labels_go_by_position(ex, kind):
    with pytest.raises(TypeError, match="row must be the position of one row, found 'Ada'"):
        plots.waterfall(replace(ex, data=kind(ex.data)), row="Ada")


# ---------------------------------------------------------------------- variance


def test_shares_of_variance_add_up_and_agree_with_what_is_explained(several):
    shares = variance_shares(several)
    assert shares.sum(0) == pytest.approx(1.0)
    assert 1 - shares[3] == pytest.approx(several.explained())


def test_pairs_carry_what_they_add_to_single_features(ex):
    total = ex.predictions[:, 0].var()
    left = ex.predictions[:, 0] - ex.base_values[0] - ex.values[:, :4, 0].sum(1)
    alone = 1 - np.square(left).mean() / total
    assert variance_shares(ex)[0, 0] == pytest.approx(alone)
    without = ex[:, ["age", "income", "city", "noise"]]
    assert variance_shares(without)[1, 0] == 0
    assert variance_shares(without)[3, 0] == pytest.approx(1 - alone)


def test_bars_of_the_ledger_are_the_shares(several):
    ax = plots.ledger(several)
    widths = np.array([bar.get_width() for bar in ax.patches]).reshape(3, 3)
    assert widths == pytest.approx(variance_shares(several)[[0, 1, 3]])
    assert len(ax.get_legend().get_texts()) == 3


def test_the_ledger_tells_every_residual_in_words(several):
    said = [
        text.get_text() for text in plots.ledger(several).texts if "residual" in text.get_text()
    ]
    assert len(said) == 3


def test_terms_that_overdo_go_to_the_left_of_zero(ex):
    values = ex.values.copy()
    values[:, 0, 0] *= 5
    values[:, 4, 0] -= 4 * ex.values[:, 0, 0]
    ax = plots.ledger(replace(ex, values=values))
    assert ax.patches[0].get_width() < 0
    assert ax.get_xlim()[0] < ax.patches[0].get_width()


def test_of_many_outputs_those_with_the_largest_residual_are_shown(several):
    worst = int(np.argmax(1 - several.explained()))
    ax = plots.ledger(several, max_display=1)
    assert labels_of(ax) == [several.output_names[worst]]
    assert ax.get_title(loc="right") == "1 of 3 outputs"


def test_without_variance_or_residual_there_is_no_ledger(ex):
    with pytest.raises(ValueError, match="no output varies"):
        plots.ledger(ex[:1])
    with pytest.raises(ValueError, match="predictions="):
        plots.ledger(replace(ex, residual=np.full_like(ex.residual, np.nan)))


# ---------------------------------------------------------------------- windows of a sequence


@pytest.fixture(scope="module")
def sequence():
    return series()


def cells_of(ax):
    [mesh] = [part for part in ax.collections if part.get_gid() == "windows"]
    return np.asarray(mesh.get_array())


def test_windows_have_their_main_effects_and_half_of_each_pair_and_the_rest_is_told(sequence):
    ax = plots.windows(sequence, 3)
    cells, alone = cells_of(ax), sequence.values[3, :, 0]
    assert cells.shape == (2, 12)
    pair = alone[sequence.terms.index(("3, 0", "9, 1"))]
    own = {
        name: alone[sequence.terms.index((name,))] + pair / 2 * (name in ("3, 0", "9, 1"))
        for name in sequence.feature_names
    }
    expected = [[own[f"{t - t % 3}, {c}"] for t in range(12)] for c in (0, 1)]
    assert cells == pytest.approx(np.array(expected))
    rest = sequence.predictions[3, 0] - sequence.base_values[0] - cells[:, ::3].sum()
    assert ax.get_title(loc="right").endswith(f"{rest:+.3f}".replace("-", "−"))
    assert rest == pytest.approx(sequence.residual[3, 0])


def test_only_windows_below_zero_are_hatched_and_few_of_them_have_numbers(sequence):
    ax = plots.windows(sequence, 3)
    [hatched] = [part for part in ax.collections if part.get_gid() == "against"]
    assert len(hatched.get_paths()) == (cells_of(ax) < 0).sum()
    assert len(ax.texts) == 8


def test_without_a_row_windows_have_their_mean_size(sequence):
    cells = cells_of(plots.windows(sequence, None))
    sizes = np.abs(sequence.values[:, sequence.terms.index(("6, 1",)), 0]).mean()
    assert cells[1, 6:9] == pytest.approx(sizes)
    assert cells.min() >= 0


def test_channels_may_come_first(sequence):
    assert cells_of(plots.windows(sequence, channels_first=True)).shape == (12, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence": "serie"}, "choose it among 'series'"),
        ({"channels": ["pulse"]}, "channels has 1 names but the sequence has 2"),
    ],
)
def test_sequences_and_channels_that_are_not_there_are_told(sequence, options, message):
    with pytest.raises(ValueError, match=message):
        plots.windows(sequence, **options)


def test_a_table_has_no_windows(ex, known, table):
    for what in (ex, known(table)):
        with pytest.raises(ValueError, match="no feature that is a window of a sequence"):
            plots.windows(what)
