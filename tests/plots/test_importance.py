"""Mean sizes of contributions, and swarms of them."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from matplotlib.collections import PathCollection

from nobsp import plots


def names_of(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


def swarms_of(ax):
    return [part for part in ax.collections if isinstance(part, PathCollection)]


def test_bars_are_total_effects_and_diamonds_main_effects(ex):
    ax = plots.importance(ex)
    main = {name: np.abs(ex.values[:, k, 0]).mean() for k, name in enumerate(ex.feature_names)}
    total = dict(zip(ex.feature_names, np.abs(ex.total()[:, :, 0]).mean(0), strict=True))
    names = names_of(ax)
    assert names == [*sorted(total, key=lambda name: -total[name]), "residual"]
    assert [bar.get_width() for bar in ax.patches][:4] == pytest.approx(
        [total[name] for name in names[:4]]
    )
    [diamonds] = [line for line in ax.lines if line.get_gid() == "main"]
    assert diamonds.get_xdata() == pytest.approx([main[name] for name in names[:4]])


def test_the_residual_stands_below_the_features(ex):
    ax = plots.importance(ex, max_display=2)
    [bar] = [patch for patch in ax.patches if patch.get_gid() == "residual"]
    assert bar.get_width() == pytest.approx(np.abs(ex.residual).mean())
    assert names_of(ax)[-1] == "residual"
    assert "2 strongest of 4 features" in ax.get_title(loc="right")


def test_a_feature_that_acts_only_with_another_is_not_left_out(ex):
    values = ex.values.copy()
    values[:, 0], values[:, 4] = (
        0.0,
        3 * values[:, 4],
    )  # age has no function of its own, only the pair
    ax = plots.importance(replace(ex, values=values), max_display=2)
    assert names_of(ax) == ["income", "age", "residual"]


def test_without_interactions_there_are_no_diamonds(ex):
    ax = plots.importance(ex[:, ["age", "income", "city", "noise"]])
    assert not [line for line in ax.lines if line.get_gid() == "main"]
    assert ax.get_legend() is None


def test_bars_of_several_outputs_are_stacked(several):
    ax = plots.importance(several)
    first = [bar for bar in ax.patches if bar.get_y() < 0]
    assert [bar.get_x() for bar in first] == pytest.approx(
        np.cumsum([0, *(bar.get_width() for bar in first[:-1])])
    )
    assert {bar.get_hatch() for bar in first} == {"", "////", "...."}
    alone = plots.importance(several, output="risk")
    assert alone.get_xlabel() == "mean |contribution| to risk"


def test_more_outputs_than_can_be_told_apart_are_summed(ex):
    many = replace(
        ex,
        values=np.repeat(ex.values, 12, 2),
        base_values=np.repeat(ex.base_values, 12),
        baseline_contributions=np.repeat(ex.baseline_contributions, 12, 1),
        residual=np.repeat(ex.residual, 12, 1),
        predictions=np.repeat(ex.predictions, 12, 1),
        output_names=tuple(f"class {k}" for k in range(12)),
    )
    ax = plots.importance(many)
    assert "12 outputs" in ax.get_xlabel()
    assert ax.patches[0].get_width() == pytest.approx(
        12 * plots.importance(ex).patches[0].get_width()
    )


def test_an_explainer_is_measured_on_its_calibration_rows_with_the_network_or_without(two_outputs):
    table = two_outputs.importance("total")
    expected = {
        name: size
        for name, output, size in zip(
            table["feature"], table["output"], table["importance"], strict=True
        )
        if output == "risk"
    }
    for what in (two_outputs, two_outputs.compile()):
        ax = plots.importance(what, output="risk")
        assert [bar.get_width() for bar in ax.patches] == pytest.approx(
            [expected[name] for name in names_of(ax)]
        )


def test_rows_that_could_not_be_run_are_left_aside(ex):
    values, residual = ex.values.copy(), ex.residual.copy()
    values[3, 0], residual[3] = np.nan, np.nan
    gaps, others = (
        replace(ex, values=values, residual=residual),
        ex[[k for k in range(len(ex)) if k != 3]],
    )
    for plot in (plots.importance, plots.ledger):
        widths, expected = (
            [bar.get_width() for bar in plot(what).patches] for what in (gaps, others)
        )
        assert widths == pytest.approx(expected)
    assert names_of(plots.beeswarm(gaps))[-1] == "residual"


# ---------------------------------------------------------------------- swarms


def test_every_row_is_a_point_at_its_contribution(ex):
    ax = plots.beeswarm(ex)
    order = np.argsort(-np.abs(ex.values[:, :, 0]).mean(0), kind="stable")
    for swarm, term in zip(swarms_of(ax), order, strict=False):
        assert np.asarray(swarm.get_offsets())[:, 0] == pytest.approx(ex.values[:, term, 0])
    assert np.asarray(swarms_of(ax)[-1].get_offsets())[:, 0] == pytest.approx(ex.residual[:, 0])
    assert names_of(ax)[-1] == "residual"


def test_points_stay_in_their_row_and_do_not_hide_each_other(ex):
    for place, swarm in enumerate(swarms_of(plots.beeswarm(ex))):
        points = np.asarray(swarm.get_offsets())
        assert np.abs(points[:, 1] - place).max() < 0.45
        assert len(np.unique(np.round(points, 9), axis=0)) == len(points)


def test_colour_is_the_rank_of_the_features_value(ex):
    ax = plots.beeswarm(ex)
    swarm = swarms_of(ax)[names_of(ax).index("age")]
    shades, age = np.asarray(swarm.get_array()), ex.data["age"].to_numpy()
    assert shades[age.argmin()] == pytest.approx(0.0, abs=0.02)
    assert shades[age.argmax()] == pytest.approx(1.0, abs=0.02)
    assert (np.diff(shades[np.argsort(age)]) >= 0).all()


@pytest.mark.parametrize("name", ["city", "age × income", "residual"])
def test_what_has_no_order_has_no_colour(ex, name):
    ax = plots.beeswarm(ex)
    assert swarms_of(ax)[names_of(ax).index(name)].get_array() is None


def test_polars_frames_and_arrays_are_coloured_too(ex):
    numbers = ex.data.assign(city=(ex.data["city"] == "Oslo") * 1.0)
    for data in (pl.from_pandas(ex.data), numbers.to_numpy()):
        ax = plots.beeswarm(replace(ex, data=data))
        assert swarms_of(ax)[names_of(ax).index("age")].get_array() is not None


def test_thousands_of_rows_are_thinned_and_it_says_so(ex):
    rows = np.arange(5000) % len(ex)
    ax = plots.beeswarm(ex[list(rows)])
    assert len(swarms_of(ax)[0].get_offsets()) == 2000
    assert "2,000 of 5,000 rows" in ax.get_title(loc="right")


def test_a_residual_that_is_not_known_is_left_out(ex):
    ax = plots.beeswarm(replace(ex, residual=np.full_like(ex.residual, np.nan)))
    assert "residual" not in names_of(ax)
