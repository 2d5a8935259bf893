"""The account of predictions: it adds up, however it is cut, and is pleasant to look at."""

import copy
import dataclasses
import html
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from torch import nn

from nobsp import Explanation, NObSP
from tests.tolerances import SINGLE, SUMS, assert_same_to_rounding

NAMES = ["a", "b", "c", "d"]
PAIR = ("a", "b")


def small_net(outputs=3, columns=4, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(columns, 24), nn.Tanh(), nn.Linear(24, outputs))


@pytest.fixture(scope="module")
def table():
    values = np.random.default_rng(0).normal(size=(300, 4))
    return pd.DataFrame(values, columns=NAMES, index=[f"row {i}" for i in range(300)])


@pytest.fixture(scope="module")
def explainer(table):
    names = ["low", "mid", "high"]
    return NObSP(small_net(), interactions=[PAIR, ("c", "d")], output_names=names).fit(table)


@pytest.fixture
def ex(explainer, table):
    return explainer(table[:10])


def assert_adds_up(ex):
    rows, terms, outputs = ex.values.shape
    assert ex.base_values.shape == (outputs,)
    assert ex.residual.shape == ex.predictions.shape == (rows, outputs)
    assert len(ex.terms) == terms == len(ex.baseline_contributions)
    assert len(ex.output_names) == outputs
    assert len(ex.data) == rows == len(ex.outside)
    account = ex.base_values + ex.values.sum(1) + ex.residual
    assert np.allclose(account, ex.predictions, rtol=0, atol=SUMS)


def test_predictions_are_the_networks_own_outputs(ex, explainer, table):
    assert_adds_up(ex)
    with torch.no_grad():
        outputs = explainer.model(torch.tensor(table[:10].to_numpy(), dtype=torch.float32))
    assert np.allclose(ex.predictions, outputs.numpy(), atol=1e-5)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("rows", [1, 2])
def test_shapes_keep_rows_and_outputs_even_where_there_is_one(outputs, rows):
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    ex = NObSP(small_net(outputs), interactions=0).fit(x)(x[:rows])
    assert ex.shape == ex.values.shape == (rows, 4, outputs)
    assert ex.total().shape == (rows, 4, outputs)
    assert ex.outside.shape == (rows, 4)
    assert ex.explained().shape == (outputs,)
    assert_adds_up(ex)


ROW_CHOICES = {
    "3": ([3], lambda: 3),
    "-1": ([9], lambda: -1),
    "numpy integer": ([3], lambda: np.int64(3)),
    "slice": ([2, 3, 4], lambda: slice(2, 5)),
    "backwards": (list(range(9, -1, -1)), lambda: slice(None, None, -1)),
    "list": ([0, 2], lambda: [0, 2]),
    "repeated": ([1, 1], lambda: [1, 1]),
    "mask": ([0, 1, 2], lambda: np.arange(10) < 3),
    "list mask": ([0, 9], lambda: [True, *[False] * 8, True]),
    "series mask": ([8, 9], lambda: pd.Series(np.arange(10) > 7)),
    "tensor": ([4, 5], lambda: torch.tensor([4, 5])),
    "none": ([], list),
}


@pytest.mark.parametrize("choice", ROW_CHOICES)
@pytest.mark.parametrize("kind", ["pandas", "polars", "numpy", "torch"])
def test_rows_are_chosen_with_their_data(explainer, table, choice, kind):
    convert = {
        "pandas": lambda frame: frame,
        "polars": lambda frame: pl.from_pandas(frame),
        "numpy": lambda frame: frame.to_numpy(),
        "torch": lambda frame: torch.tensor(frame.to_numpy()),
    }[kind]
    positions, key = ROW_CHOICES[choice]
    ex = explainer(convert(table[:10]))
    cut = ex[key()]
    assert_adds_up(cut)
    assert np.array_equal(cut.values, ex.values[positions])
    assert np.array_equal(cut.outside, ex.outside[positions])
    assert type(cut.data) is type(ex.data)
    assert np.array_equal(np.asarray(cut.data), table.to_numpy()[positions])


TERM_CHOICES = {
    "name": ([1], lambda: "b"),
    "pair": ([4], lambda: ("a", "b")),
    "pair turned": ([4], lambda: ("b", "a")),
    "names": ([2, 0], lambda: ["c", "a"]),
    "mixed": ([5, 1], lambda: [("d", "c"), 1]),
    "position": ([5], lambda: -1),
    "slice": ([1, 2], lambda: slice(1, 3)),
    "mask": ([0, 5], lambda: np.array([True, False, False, False, False, True])),
    "none": ([], list),
}


@pytest.mark.parametrize("choice", TERM_CHOICES)
def test_terms_left_out_go_to_the_residual(ex, choice):
    positions, key = TERM_CHOICES[choice]
    cut = ex[:, key()]
    assert_adds_up(cut)
    assert np.array_equal(cut.values, ex.values[:, positions])
    assert cut.terms == tuple(ex.terms[i] for i in positions)
    left_out = np.delete(ex.values, positions, axis=1).sum(1)
    assert np.allclose(cut.residual, ex.residual + left_out, atol=SUMS)


OUTPUT_CHOICES = {
    "name": ([2], lambda: "high"),
    "position": ([2], lambda: -1),
    "names": ([2, 0], lambda: ["high", "low"]),
    "slice": ([1, 2], lambda: slice(1, None)),
    "mask": ([1], lambda: [False, True, False]),
}


@pytest.mark.parametrize("choice", OUTPUT_CHOICES)
def test_outputs_are_chosen_by_name_or_position(ex, choice):
    positions, key = OUTPUT_CHOICES[choice]
    cut = ex[:, :, key()]
    assert_adds_up(cut)
    assert np.array_equal(cut.values, ex.values[:, :, positions])
    assert cut.output_names == tuple(ex.output_names[i] for i in positions)
    assert np.array_equal(cut.residual, ex.residual[:, positions])


def test_all_three_axes_at_once_and_dots(ex):
    cut = ex[2:5, ["a", PAIR], "mid"]
    assert_adds_up(cut)
    assert np.array_equal(cut.values, ex.values[2:5][:, [0, 4]][:, :, [1]])
    assert np.array_equal(ex[..., 0].values, ex.values[:, :, [0]])
    assert np.array_equal(ex[3, ...].values, ex.values[[3]])


def test_an_explanation_can_be_walked_row_by_row(ex):
    rows = list(ex)
    assert len(rows) == len(ex) == 10
    assert np.array_equal(np.concatenate([row.values for row in rows]), ex.values)


@pytest.mark.parametrize(
    ("key", "kind", "said"),
    [
        (10, IndexError, "row 10 is out of range; there are 10 rows"),
        ([0, 11], IndexError, "row 11 is out of range"),
        ("a", IndexError, r"ex\[:, 'a'\] chooses a term"),
        (1.5, IndexError, "rows are chosen by position"),
        (True, IndexError, "rows are chosen by position"),
        (np.arange(9) < 3, IndexError, "mask has 9 entries but there are 10 rows"),
        ((slice(None), "bb"), ValueError, "no term 'bb'; did you mean 'b'"),
        ((slice(None), "z"), ValueError, "no term 'z'; there are 'a', 'b', 'c', 'd', 'a × b'"),
        ((slice(None), ("a", "d")), ValueError, "no term 'a × d'"),
        ((slice(None), ("a", "a")), ValueError, "no term 'a × a'"),
        ((slice(None), 6), IndexError, "term 6 is out of range; there are 6 terms"),
        ((slice(None), 1.5), TypeError, "found 1.5"),
        ((slice(None), [1.5]), TypeError, "found 1.5"),
        (
            (slice(None), slice(None), "tall"),
            ValueError,
            "no output 'tall'; there are 'low', 'mid', 'high'",
        ),
        ((slice(None), slice(None), 3), ValueError, "output is 3, but there are 3 outputs"),
        ((0, 0, 0, 0), IndexError, "rows, terms and outputs; found 4 indices"),
        ((..., ...), IndexError, "rows, terms and outputs"),
    ],
)
def test_a_wrong_index_says_what_there_is(ex, key, kind, said):
    with pytest.raises(kind, match=said):
        ex[key]


def test_contrast_is_the_difference_of_two_accounts(ex):
    versus = ex.contrast("high", 0)
    assert_adds_up(versus)
    assert versus.shape == (10, 6, 1)
    assert np.array_equal(versus.values[..., 0], ex.values[..., 2] - ex.values[..., 0])
    assert versus.output_names == ("high − low",)


def test_contrast_does_not_see_a_shift_that_all_outputs_share(explainer, table):
    class Shifted(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.head = inner[:2], nn.Linear(24, 3)
            with torch.no_grad():
                self.head.weight.copy_(inner[2].weight + torch.linspace(-1, 1, 24))
                self.head.bias.copy_(inner[2].bias + 5)

        def forward(self, x):
            return self.head(self.inner(x))

    given = {"interactions": explainer.interactions, "ridge": 1.0}
    shifted = NObSP(Shifted(explainer.model), **given).fit(table)(table[:10])
    plain = NObSP(explainer.model, **given).fit(table)(table[:10])
    assert not np.allclose(shifted.values, plain.values, atol=1e-3)
    # Knots are placed where some output bends, to a thousandth of its spread.
    size = shifted.predictions.std(0).max()
    assert np.allclose(
        shifted.contrast(0, 1).values, plain.contrast(0, 1).values, rtol=0, atol=4e-3 * size
    )


def test_measured_from_the_baseline_a_feature_at_its_baseline_contributes_nothing(explainer, table):
    rows = table[:3].copy()
    rows["b"] = explainer.baseline_[1]
    moved = explainer(rows).from_baseline()
    assert_adds_up(moved)
    assert np.abs(moved[:, "b"].values).max() < 1e-9
    assert np.abs(moved[:, "a"].values).max() > 1e-3
    again = moved.from_baseline()
    assert_same_to_rounding(again.values, moved.values, within=SINGLE)


def test_views_can_be_combined_and_still_add_up(ex):
    assert_adds_up(ex.from_baseline()[1:4].contrast(0, 2)[:, ["a", PAIR]])
    assert_adds_up(ex[[3, 1]].contrast(0, 2).from_baseline()[:, "a"])
    direct = ex.contrast(0, 2).from_baseline()
    assert np.allclose(ex.from_baseline().contrast(0, 2).values, direct.values, atol=SUMS)


def test_total_counts_every_term_a_feature_takes_part_in(ex):
    total = ex.total()
    assert np.allclose(total[:, 0], ex.values[:, 0] + ex.values[:, 4])
    assert np.allclose(total[:, 2], ex.values[:, 2] + ex.values[:, 5])
    assert ex[:, []].total().shape == (10, 4, 3)
    assert not ex[:, []].total().any()


def test_explained_share_is_one_where_nothing_is_left(explainer, table):
    ex = explainer(table)
    share = ex.explained()
    assert ((share > 0.5) & (share <= 1)).all()
    assert np.allclose(share, 1 - ex.residual.var(0) / ex.predictions.var(0))
    assert np.allclose(dataclasses.replace(ex, residual=0 * ex.residual).explained(), 1)
    assert (ex[:, "a"].explained() < share).all()
    assert np.isnan(ex[0].explained()).all()


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_frames_are_of_the_callers_kind(explainer, table, kind):
    rows = table[:5] if kind == "pandas" else pl.from_pandas(table[:5])
    frame = explainer(rows).to_frame("mid")
    assert type(frame) is type(rows)
    assert list(frame.columns) == [
        "base",
        "a",
        "b",
        "c",
        "d",
        "a × b",
        "c × d",
        "residual",
        "prediction",
    ]
    numbers = frame.to_numpy()
    assert np.allclose(numbers[:, :-1].sum(1), numbers[:, -1], atol=SUMS)


def test_a_pandas_index_is_kept_so_that_the_account_can_be_joined(explainer, table):
    shuffled = table[:20].sample(frac=1, random_state=0)
    ex = explainer(shuffled)
    assert ex.to_frame(0).index.equals(shuffled.index)
    assert ex[[3, 1]].to_frame(0).index.tolist() == shuffled.index[[3, 1]].tolist()


def test_arrays_get_a_frame_too(explainer, table):
    frame = explainer(table.to_numpy()[:4]).to_frame(2)
    assert isinstance(frame, pd.DataFrame)
    assert len(frame) == 4


def test_a_feature_may_be_called_like_a_column_of_the_account():
    x = np.random.default_rng(0).normal(size=(50, 3))
    ex = NObSP(small_net(1, 3), features=["base", "residual", "(residual)"], interactions=0).fit(x)(
        x[:4]
    )
    frame = ex.to_frame()
    assert list(frame.columns) == [
        "(base)",
        "base",
        "residual",
        "(residual)",
        "((residual))",
        "prediction",
    ]
    assert np.array_equal(frame["base"], ex.values[:, 0, 0])
    assert np.array_equal(frame["((residual))"], ex.residual[:, 0])


def test_a_feature_named_like_a_pair_does_not_hide_it():
    x = np.random.default_rng(0).normal(size=(50, 3))
    explainer = NObSP(small_net(1, 3), features=["a", "b", "a × b"], interactions=[("a", "b")]).fit(
        x
    )
    ex = explainer(x[:4])
    frame = ex.to_frame()
    assert list(frame.columns) == ["base", "a", "b", "a × b", "(a × b)", "residual", "prediction"]
    assert np.array_equal(frame["a × b"], ex.values[:, 2, 0])
    assert np.array_equal(frame["(a × b)"], ex.values[:, 3, 0])
    assert np.array_equal(ex[:, ("a", "b")].values[:, 0, 0], frame["(a × b)"])


def test_the_output_must_be_chosen_where_there_are_several(ex):
    with pytest.raises(ValueError, match="output must be chosen among 'low', 'mid', 'high'"):
        ex.to_frame()


# Those that draw a table; the others (text, image, benchmark, …) draw something else.
SHAP_PLOTS = (
    "bar",
    "beeswarm",
    "decision",
    "embedding",
    "force",
    "group_difference",
    "heatmap",
    "monitoring",
    "scatter",
    "violin",
    "waterfall",
)


def shap_values(ex, output=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shap's own imports warn
        pytest.importorskip("shap")
        return ex.to_shap(output)


def test_shap_values_add_up_and_hide_nothing(ex):
    shap = shap_values(ex, "high")
    assert shap.values.shape == (10, 5)
    assert np.allclose(shap.base_values + shap.values.sum(1), ex.predictions[:, 2], atol=SUMS)
    assert np.array_equal(shap.values[:, -1], ex.residual[:, 2])
    shared = ex.values[:, 0, 2] + ex.values[:, 4, 2] / 2
    assert np.allclose(shap.values[:, 0], shared)
    assert list(shap.feature_names) == [*NAMES, "(residual)"]


@pytest.mark.parametrize("plot", SHAP_PLOTS)
def test_every_plot_of_shap_takes_it(explainer, table, plot):
    ex = explainer(table[:120])  # shap.plots.monitoring needs more than a hundred rows
    values = shap_values(ex, "high")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shap's own calls of matplotlib and numpy
        import matplotlib as mpl

        mpl.use("Agg")
        import shap

        draw = getattr(shap.plots, plot)
        names = values.feature_names
        if plot == "waterfall":
            draw(values[0], show=False)
        elif plot == "monitoring":  # takes arrays, of shap's own values too
            draw(1, values.values, values.data, feature_names=names, show=False)
        elif plot == "embedding":
            draw(names[1], values.values, feature_names=names, show=False)
        elif plot == "group_difference":
            first_half = np.arange(len(ex)) < len(ex) // 2
            draw(values.values, first_half, feature_names=names, show=False)
        elif plot == "scatter":
            draw(values[:, NAMES[0]], color=values, show=False)
        elif plot == "decision":
            draw(values.base_values[0], values.values, feature_names=names, show=False)
        elif plot == "force":
            draw(values[0], matplotlib=True, show=False)
        else:
            draw(values, show=False)
    assert mpl.pyplot.get_fignums()


def test_shap_data_follows_names_not_positions(explainer, table):
    turned = shap_values(explainer(table[:5][NAMES[::-1]]), 0)
    straight = shap_values(explainer(table[:5]), 0)
    assert np.array_equal(turned.data[:, :4], table[:5].to_numpy())
    assert_same_to_rounding(turned.values, straight.values, within=SINGLE)


def test_the_rows_are_kept_as_they_were_given(explainer, table):
    assert explainer(table).data is table
    batches = explainer([table[:4].to_numpy(), table[4:9].to_numpy()])
    assert np.array_equal(batches.data, table[:9].to_numpy())


def test_rows_outside_the_calibrated_range_are_marked(explainer, table):
    rows = table[:3].copy()
    rows.iloc[1, 2] = 99.0
    expected = np.zeros((3, 4), dtype=bool)
    expected[1, 2] = True
    assert np.array_equal(explainer(rows).outside, expected)
    assert not explainer(table).outside.any()
    assert not explainer(table.astype(np.float32)).outside.any()


def test_an_explanation_is_frozen_and_can_be_copied(ex):
    with pytest.raises(dataclasses.FrozenInstanceError):
        ex.values = 0
    assert np.array_equal(copy.deepcopy(ex).values, ex.values)


def test_repr_fits_on_a_line_or_two(ex):
    said = repr(ex)
    assert said.startswith("Explanation(10 rows, 6 terms, 3 outputs, ")
    assert "; strongest: " in said
    assert len(said) < 200
    assert repr(ex[0, :, 0]).startswith("Explanation(1 row, 6 terms, 1 output; strongest: ")
    assert repr(ex[[]]) == "Explanation(0 rows, 6 terms, 3 outputs)"


def test_a_term_goes_by_the_name_frames_give_it(ex):
    assert np.array_equal(ex[:, "a × b"].values, ex[:, PAIR].values)
    assert ex.to_frame("mid").columns[5] == "a × b"


def test_repr_names_the_strongest_term_first(ex):
    sizes = np.abs(ex.values).mean((0, 2))
    strongest = " × ".join(ex.terms[int(sizes.argmax())])
    assert f"strongest: {strongest}" in repr(ex)
    shown = ex._repr_html_()
    assert shown.index(f">{strongest}</div>") < min(
        shown.index(f">{' × '.join(term)}</div>")
        for term in ex.terms
        if term != ex.terms[sizes.argmax()]
    )


def test_html_escapes_names():
    x = np.random.default_rng(0).normal(size=(50, 2))
    nasty, output = "<script>alert('x')</script>", "<b>&"
    ex = NObSP(small_net(1, 2), features=[nasty, "b"], output_names=[output]).fit(x)(x[:4])
    shown = ex._repr_html_()
    assert "<script>" not in shown
    assert "<b>" not in shown
    assert html.escape(nasty) in shown
    assert html.escape(output) in shown
    assert "nan" not in ex[0]._repr_html_()
    assert isinstance(ex[[]]._repr_html_(), str)


def test_the_public_fields_stay():
    fields = {field.name for field in dataclasses.fields(Explanation)}
    promised = {
        "values",
        "base_values",
        "residual",
        "predictions",
        "terms",
        "feature_names",
        "output_names",
        "data",
    }
    assert promised <= fields


@pytest.fixture(scope="module")
def other(table):
    names = ["low", "mid", "high"]
    return NObSP(small_net(seed=1), interactions=[PAIR, ("b", "c")], output_names=names).fit(table)


def test_sums_differences_and_multiples_of_accounts_are_accounts(ex, other, table):
    second = other(table[:10])
    both, change, mean = ex + second, ex - second, (ex + second) * 0.5
    for made in (both, change, mean, 2 * ex, -ex):
        assert_adds_up(made)
    assert set(both.terms) == {*ex.terms, *second.terms}
    assert_same_to_rounding(both.predictions, ex.predictions + second.predictions)
    assert_same_to_rounding(change[:, PAIR].values, ex[:, PAIR].values - second[:, PAIR].values)
    # A term that one of the two lacks is the other's alone.
    assert np.array_equal(change[:, ("c", "d")].values, ex[:, ("c", "d")].values)
    assert np.array_equal(change[:, ("b", "c")].values, -second[:, ("b", "c")].values)
    assert np.array_equal((ex - ex).values, np.zeros_like(ex.values))
    assert np.array_equal(mean.outside, ex.outside | second.outside)


def test_only_accounts_of_the_same_rows_and_names_are_added(explainer, ex, table):
    with pytest.raises(ValueError, match="rows"):
        ex + explainer(table[:3])
    with pytest.raises(ValueError, match="different outputs"):
        ex + ex.contrast(0, 1)
    for wrong in (1.0, "a", None):
        with pytest.raises(TypeError):
            ex + wrong
    with pytest.raises(TypeError):
        ex * "a"


def test_top_keeps_the_strongest_terms_and_the_account(ex):
    sizes = np.abs(ex.values).mean((0, 2))
    for k in (0, 1, 3, 99):
        best = ex.top(k)
        assert_adds_up(best)
        assert set(best.terms) == {ex.terms[i] for i in np.argsort(-sizes)[:k]}
    with pytest.raises(ValueError, match="k must"):
        ex.top(-1)


def test_an_order_keeps_terms_of_that_many_features(ex):
    assert [len(ex.order(size).terms) for size in (1, 2, 3)] == [4, 2, 0]
    assert_adds_up(ex.order(1))
    assert_same_to_rounding(ex.order(1).residual, ex.residual + ex.order(2).values.sum(1))


def test_plots_are_methods_too(ex, explainer):
    assert "Axes" in type(ex.plot.waterfall(row="row 0", output="low")).__name__
    assert dir(ex.plot) == [
        "beeswarm",
        "importance",
        "interaction_matrix",
        "ledger",
        "waterfall",
        "windows",
    ]
    assert callable(explainer.plot.curves)
    with pytest.raises(AttributeError, match="has no"):
        ex.plot.curves()


def brute_force(ex, link, steps=20_000):
    """The mean slope of the link on the line from the base to the prediction, by the midpoint rule."""
    total = np.zeros_like(ex.values)
    for t in (np.arange(steps) + 0.5) / steps:
        y = torch.tensor(
            ex.base_values + t * (ex.predictions - ex.base_values), dtype=torch.float64
        )
        slope = torch.func.vmap(torch.func.jacrev(link))(y).numpy()
        total += np.einsum("rck,rtk->rtc", slope, ex.values) / steps
    return total


@pytest.mark.parametrize("link", ["softmax", "sigmoid", "exp"])
def test_the_account_of_probabilities_is_the_integral_and_adds_up(ex, link):
    small = ex[:3]
    functions = {"softmax": lambda y: y.softmax(-1), "sigmoid": torch.sigmoid, "exp": torch.exp}
    made = small.to_probability(link=link)
    assert_adds_up(made)
    assert made.scale == "probability"
    expected = functions[link](torch.tensor(small.predictions)).numpy()
    assert_same_to_rounding(made.predictions, expected)
    assert_same_to_rounding(
        made.base_values, functions[link](torch.tensor(small.base_values)).numpy()
    )
    assert np.allclose(
        made.values, brute_force(small, functions[link], steps=2_000), rtol=0, atol=1e-7
    )


def test_probabilities_of_a_softmax_have_accounts_that_cancel(ex):
    made = ex.to_probability(link="softmax")
    assert np.abs(made.values.sum(2)).max() < SUMS
    shifted = dataclasses.replace(ex, predictions=ex.predictions + 5.0, residual=ex.residual + 5.0)
    assert np.allclose(
        shifted.to_probability(link="softmax").values, made.values, rtol=0, atol=1e-12
    )


def test_a_large_change_of_the_logits_still_adds_up_without_the_residual(ex):
    """The rule has enough nodes: what the terms miss is the residual's own share, carried over like the rest."""
    exact = (
        dataclasses.replace(
            ex, predictions=ex.predictions - ex.residual, residual=np.zeros_like(ex.residual)
        )
        * 40.0
    )
    made = exact.to_probability(link="softmax")
    assert np.abs(made.residual).max() < 1e-9


def test_contributions_of_more_than_one_to_a_probability_are_noted():
    """Two strong terms that cancel: the slope in between is a quarter, and each of them is six."""
    X = np.repeat([[6.0, -6.0], [-6.0, 6.0], [0.5, 0.5], [-0.5, -0.5]], 50, axis=0)
    explanation = NObSP(lambda rows: rows.sum(1), interactions=0).fit(X)(X)
    made = explanation.to_probability(link="sigmoid")
    beyond = np.abs(made.values).max((1, 2)) > 1
    assert [finding.code for finding in made.findings] == ["beyond_one"]
    assert f"{int(beyond.sum())} rows of 200" in made.findings[0].message
    assert made[~beyond].findings == ()
    assert explanation.to_probability(link="exp").findings == ()


def test_the_models_own_link_is_used_and_others_have_to_be_said(table, ex):
    with pytest.raises(ValueError, match=r"to_probability\(link="):
        ex.to_probability()
    net = nn.Sequential(small_net(), nn.Softmax(1))
    own = NObSP(net, interactions=0).fit(table)(table[:5])
    made = own.to_probability()
    with torch.no_grad():
        outputs = net(torch.tensor(table[:5].to_numpy(), dtype=torch.float32)).numpy()
    assert np.allclose(made.predictions, outputs, atol=1e-6)
    with pytest.raises(ValueError, match="all classes"):
        own[:, :, 0].to_probability()
    with pytest.raises(ValueError, match="already"):
        made.to_probability()


def test_one_output_is_said_to_be_one(ex):
    with pytest.raises(ValueError, match="there is 1 output: 'low'"):
        ex[:, :, "low"][:, :, 1]
