"""Mistakes are caught, named after the argument, and cost nothing that was there before."""

import copy
import warnings
from collections.abc import Callable
from datetime import time
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy import sparse
from sklearn.linear_model import LinearRegression
from sklearn.neural_network import MLPRegressor
from torch import nn
from torch.utils.data import TensorDataset

from nobsp import NObSP
from tests.tabular import nets
from tests.tolerances import CONTRIBUTIONS, SINGLE, assert_same_to_rounding

NAMES = ["a", "b", "c"]


def make_net(columns=3, outputs=2, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(columns, 12), nn.ReLU(), nn.Linear(12, outputs))


@pytest.fixture(scope="module")
def net():
    return make_net()


@pytest.fixture(scope="module")
def table():
    return pd.DataFrame(np.random.default_rng(0).normal(size=(80, 3)), columns=NAMES)


@pytest.fixture(scope="module")
def explainer(net, table):
    return NObSP(net).fit(table)


def spoiled(table, value, kind="pandas"):
    rows = table.copy()
    rows.loc[7, "b"] = value
    return {"pandas": rows, "numpy": rows.to_numpy(), "torch": torch.tensor(rows.to_numpy())}.get(
        kind, pl.DataFrame({name: rows[name].to_numpy() for name in NAMES})
    )


# ---------------------------------------------------------------------- what X may be


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["pandas", "polars", "numpy", "torch"])
def test_gaps_and_infinities_in_calibration_rows_name_row_and_column(net, table, value, kind):
    place = r"row 7, column (1|'b'); remove or impute"
    with pytest.raises(ValueError, match=f"X is (missing|NaN|infinite) in {place}"):
        NObSP(net).fit(spoiled(table, value, kind))


def test_gaps_in_later_batches_count_rows_from_the_start(net, table):
    with pytest.raises(ValueError, match="row 7"):
        NObSP(net, batch_size=3).fit(spoiled(table, np.nan))


@pytest.mark.parametrize(
    ("X", "kind", "said"),
    [
        (lambda t: t.to_numpy()[0], ValueError, r"X must have two dimensions, found shape \(3,\)"),
        (
            lambda t: t.to_numpy()[None],
            ValueError,
            r"X must have two dimensions, found shape \(1, 80, 3\)",
        ),
        (lambda t: t["a"], TypeError, "X is a Series"),
        (lambda t: t[:0], ValueError, "X has no rows"),
        (lambda t: t.to_numpy()[:0], ValueError, "X has no rows"),
        (lambda t: t[[]], ValueError, "X (has no columns|lacks 'a', 'b', 'c')"),
        (lambda t: [], ValueError, "X has no batches"),
        (lambda t: None, TypeError, "X is a NoneType"),
        (lambda t: "table.csv", TypeError, "X is a str"),
        (lambda t: t.to_dict("list"), TypeError, "X is a dict"),
        (
            lambda t: sparse.csr_matrix(t.to_numpy()),
            TypeError,
            r"X is a sparse matrix; pass X.toarray\(\)",
        ),
        (lambda t: pl.from_pandas(t).lazy(), TypeError, r"X is a LazyFrame; pass X.collect\(\)"),
        (
            lambda t: TensorDataset(torch.zeros(4, 3)),
            TypeError,
            "X is a Dataset; pass torch.utils.data.DataLoader",
        ),
        (lambda t: t.to_numpy().astype(str), TypeError, "X must be numeric, found dtype <U"),
        (lambda t: t.assign(b="x"), TypeError, "X column 'b' holds String, not numbers"),
        (
            lambda t: t.assign(b=pd.Timestamp("2020-01-01")),
            TypeError,
            "X column 'b' holds Datetime",
        ),
        (lambda t: t.assign(b=1j), TypeError, "X column 'b'"),
        (
            lambda t: torch.zeros(4, 3, dtype=torch.complex64),
            TypeError,
            "X must be a dense real tensor",
        ),
    ],
)
def test_what_is_no_table_is_refused_by_name(net, explainer, table, X, kind, said):
    for use in (NObSP(net).fit, explainer):
        with pytest.raises(kind, match=said):
            use(X(table))


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame])
def test_dates_beside_numbers_are_named(kind):
    days = pd.date_range("2020-01-01", periods=60).to_pydatetime()
    frame = kind({"age": np.arange(60), "when": list(days)})
    with pytest.raises(TypeError, match=r"feature 'when' has levels of type .*dates are neither"):
        NObSP(lambda frame: np.asarray(frame["age"], dtype=float)).fit(frame)


@pytest.mark.parametrize(
    "values",
    [[time(minute % 24, 30) for minute in range(60)], pd.period_range("2020-01", periods=60)],
)
def test_times_of_day_and_periods_are_not_to_be_written_as_text(values):
    """A pipeline that reads them could not read the texts."""
    frame = pd.DataFrame({"age": np.arange(60), "at": values})
    with pytest.raises(TypeError, match=r"feature 'at' has levels of type .*such as (min|days)"):
        NObSP(lambda frame: np.asarray(frame["age"], dtype=float)).fit(frame)


def test_object_arrays_of_numbers_are_numbers(explainer, table):
    objects = table.to_numpy().astype(object)
    assert_same_to_rounding(explainer(objects).values, explainer(table).values, within=SINGLE)
    objects[3, 1] = "x"
    with pytest.raises(TypeError, match=r"X\[:, 1\] is not numeric"):
        explainer(objects)


def test_lists_of_rows_are_a_table(explainer, table):
    assert_same_to_rounding(
        explainer(table.to_numpy().tolist()).values, explainer(table).values, within=SINGLE
    )


def test_two_columns_of_one_name(net, table):
    with pytest.raises(ValueError, match="X has two columns of the same name"):
        NObSP(net).fit(pd.DataFrame(table.to_numpy(), columns=["a", "a", "b"]))


@pytest.mark.parametrize("options", [{}, {"groups": "b"}])
def test_two_columns_of_one_name_for_an_estimator(table, options):
    model = LinearRegression().fit(table, table["a"])
    X = pd.DataFrame(table.to_numpy(), columns=["a", "a", "b"])
    with pytest.raises(ValueError, match="X has two columns of the same name"):
        NObSP(model).fit(X, **options)


def test_a_gap_that_a_model_does_not_take_is_named(table):
    gap = table.assign(b=table["b"].where(table.index != 5))
    network = MLPRegressor(max_iter=20, tol=1.0).fit(table, table["a"])
    with pytest.raises(ValueError, match="X is missing in row 5, column 'b'"):
        NObSP(network).fit(gap)
    with pytest.raises(ValueError, match="In X 'b' has missing numbers"):
        NObSP(LinearRegression().fit(table, table["a"])).fit(gap)


@pytest.mark.parametrize("columns", [2, 4])
def test_another_number_of_columns(net, explainer, table, columns):
    X = np.zeros((5, columns))
    with pytest.raises(
        ValueError, match=f"model cannot take .*{columns} columns.*it was trained on"
    ):
        NObSP(net).fit(X)
    with pytest.raises(
        ValueError, match=f"X has {columns} columns but 3 are expected: 'a', 'b', 'c'"
    ):
        explainer(X)
    nameless = NObSP(net).fit(table.to_numpy())
    with pytest.raises(
        ValueError, match=f"X has {columns} columns but the explainer was calibrated on 3"
    ):
        nameless(X)


def test_labels_are_ignored_beside_the_table_and_an_error_in_it(net, table):
    assert NObSP(net, interactions=0).fit(table, np.zeros(80)).n_features_in_ == 3
    with pytest.raises(ValueError, match="model cannot take rows with 4 columns"):
        NObSP(net).fit(table.assign(label=0))


def test_one_row_is_not_enough_and_two_are(net, table):
    for reference in ("terms", "complement"):
        with pytest.raises(ValueError, match="X has 1 row; calibration needs at least two"):
            NObSP(net, reference=reference).fit(table[:1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # held-out R² of two rows is what it is
            ex = NObSP(net, reference=reference).fit(table[:2])(table[:5])
        assert np.allclose(
            ex.base_values + ex.values.sum(1) + ex.residual, ex.predictions, atol=CONTRIBUTIONS
        )


def test_one_row_can_be_explained(explainer, table):
    assert np.allclose(explainer(table[:1]).values, explainer(table[:4]).values[:1], atol=1e-6)


# ---------------------------------------------------------------------- categories


@pytest.fixture
def coded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Embedding(6, 3), nn.Flatten(), nn.Linear(6, 1))
    codes = torch.randint(0, 4, (90, 2), generator=torch.Generator().manual_seed(0))
    return NObSP(net, features=["city", "job"]).fit(codes)


class ManyCodes(nn.Module):
    """A column of codes among amounts, all floats."""

    def __init__(self):
        super().__init__()
        self.table, self.mix, self.head = nn.Embedding(300, 3), nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(
            torch.relu(self.mix(torch.cat([self.table(x[:, 0].long()), x[:, 1:]], dim=1)))
        )


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_codes_are_known_one_by_one_however_many(kind):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = ManyCodes()
    rng = np.random.default_rng(0)
    codes = np.concatenate([np.delete(np.arange(300), 123).repeat(3), [77.0]])
    X = np.column_stack([codes, rng.normal(size=len(codes))]).astype(kind)
    explainer = NObSP(net, features=["city", "age"], interactions=0).fit(X)
    assert explainer.baseline_[0] == 77
    assert not explainer(X).outside[:, 0].any()
    for unseen in (10.5, 123):
        assert explainer(np.array([[5, 0.0], [unseen, 0.0]], dtype=kind)).outside[
            :, 0
        ].tolist() == [False, True]


def test_grouped_codes_with_many_combinations_are_known_column_by_column():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Embedding(60, 3), nn.Flatten(), nn.Linear(6, 1))
    codes = torch.randint(0, 50, (3000, 2), generator=torch.Generator().manual_seed(0))
    explainer = NObSP(net, features={"place": [0, 1]}, interactions=0).fit(codes)
    assert not explainer(codes[:5]).outside.any()
    assert explainer(torch.tensor([[3, 55]])).outside.all()


def test_codes_too_far_apart_to_be_counted_are_said_so():
    class Far(ManyCodes):
        def forward(self, x):
            return super().forward(torch.cat([x[:, :1] - 1e6 * (x[:, :1] > 1e5), x[:, 1:]], dim=1))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Far().double()
    X = np.column_stack([np.arange(900) % 300, np.random.default_rng(0).normal(size=900)])
    X[600:, 0] += 1e6
    with pytest.warns(UserWarning, match="codes of feature 'city' .* will not be refused"):
        NObSP(net, features=["city", "age"], interactions=0).fit(X)


def test_a_wide_one_hot_group_has_its_most_frequent_level_as_baseline():
    rng = np.random.default_rng(0)
    level = np.concatenate([np.arange(300), np.full(20, 42), rng.integers(0, 300, 280)])
    X = np.column_stack([np.eye(300)[level], rng.normal(size=600)])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(301, 8), nn.ReLU(), nn.Linear(8, 1))
    explainer = NObSP(net, features={"city": range(300), "age": 300}, interactions=0).fit(X)
    assert explainer.baseline_[:300].tolist() == np.eye(300)[42].tolist()
    twice = X[:1].copy()
    twice[0, :2] = 1
    assert explainer(twice).outside.tolist() == [[True, False]]


def test_new_combinations_of_many_switches_are_explained():
    switches = np.random.default_rng(0).integers(0, 2, (2000, 20)).astype(float)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 1))
    explainer = NObSP(net, features={"switches": range(20)}, interactions=0).fit(switches[:1000])
    assert set(explainer.baseline_) <= {0.0, 1.0}
    fresh = explainer(switches[1000:])
    assert np.isfinite(fresh.values).all()
    assert (np.abs(fresh.residual) < 1e-5).all()


def test_codes_have_no_mean(coded):
    frequent = coded.baseline_
    assert np.array_equal(frequent, frequent.round())
    with pytest.raises(ValueError, match="baseline has fractions but the model takes integers"):
        NObSP(coded.model, baseline=[0.5, 1]).fit(torch.zeros(9, 2, dtype=torch.int64))


def test_a_float32_copy_of_the_table_has_no_unseen_levels():
    rng = np.random.default_rng(0)
    on = rng.random((60, 1)) < 0.5
    X = np.column_stack([on / 3, ~on / 3, rng.normal(size=60)])
    explainer = NObSP(make_net(), features={"group": [0, 1], "rest": 2}).fit(X)
    assert not explainer(X.astype(np.float32)).outside.any()


# ---------------------------------------------------------------------- models


class Wavy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, x):
        return torch.sin(3 * self.head(torch.relu(self.body(x))))


@pytest.mark.parametrize(
    ("model", "kind", "said"),
    [
        ("net.pt", TypeError, "model must be .*found str"),
        (nn.Linear, TypeError, "model must be .*found type"),
        (None, TypeError, "model must be .*found NoneType"),
    ],
)
def test_what_is_no_model_is_refused(table, model, kind, said):
    with pytest.raises(kind, match=said):
        NObSP(model).fit(table)


@pytest.mark.parametrize("model", [Wavy(), nn.ReLU()])
def test_models_without_a_linear_last_layer_are_explained_by_their_outputs(table, model):
    explainer = NObSP(model).fit(table)
    assert "no_head" in {finding.code for finding in explainer.health().findings}
    with pytest.raises(ValueError, match=r"linear layer|is not W z"):
        NObSP(model, head="" if isinstance(model, nn.ReLU) else "head").fit(table)


def test_half_precision_models_are_explained_in_double(table):
    # Not bfloat16 here: a processor without it can leave torch unable to run other layers for the rest of the process.
    rows, model = torch.tensor(table.to_numpy(), dtype=torch.float32), make_net().half()
    ex = NObSP(model).fit(table)(table)
    assert ex.values.dtype == np.float64
    assert np.allclose(
        ex.base_values + ex.values.sum(1) + ex.residual, ex.predictions, atol=CONTRIBUTIONS
    )
    assert np.allclose(ex.predictions, make_net()(rows).detach().numpy(), atol=0.05)
    assert next(model.parameters()).dtype == torch.float16


def test_outputs_that_overflow_are_named(table):
    with pytest.raises(ValueError, match=r"model's output is (nan|inf)"):
        NObSP(make_net().half()).fit(table * 1e6)


# ---------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"ridge": -1}, ValueError, "ridge must be finite and not negative, found -1"),
        ({"ridge": np.nan}, ValueError, "ridge must be finite"),
        ({"ridge": "strong"}, ValueError, "ridge must be a number or \"auto\", found 'strong'"),
        (
            {"ridge_scale": "global"},
            ValueError,
            'ridge.scale must be "relative" or "absolute", found \'global\'',
        ),
        (
            {"reference": "term"},
            ValueError,
            'reference must be "terms" or "complement", found \'term\'',
        ),
        ({"interactions": -1}, ValueError, "interactions must not be negative"),
        ({"interactions": True}, ValueError, "interactions must not be .*boolean"),
        (
            {"interactions": "all"},
            ValueError,
            "interactions must be a number, \"auto\" or a list of pairs, found 'all'",
        ),
        ({"interactions": 2.5}, TypeError, "interactions must be a whole number.*found 2.5"),
        ({"interactions": None}, TypeError, "interactions must be a whole number.*found None"),
        (
            {"interactions": ("a", "b")},
            ValueError,
            "interactions must list pairs or triples.*found 'a'",
        ),
        (
            {"interactions": [("a",)]},
            ValueError,
            r"interactions must list pairs or triples.*found \('a',\)",
        ),
        ({"interactions": [(1,)]}, ValueError, "interactions must list pairs or triples"),
        ({"interactions": [1, 2]}, ValueError, "interactions must list pairs or triples.*found 1"),
        (
            {"interactions": [("a", "a")]},
            ValueError,
            "interactions has .*which names a feature twice",
        ),
        (
            {"interactions": [("a", "z")]},
            ValueError,
            "interactions names 'z', but there is no such feature",
        ),
        (
            {"output_names": ["one"]},
            ValueError,
            "output_names has 1 names but the model has 2 outputs",
        ),
        ({"output_names": ["one", "one"]}, ValueError, "output_names has the name 'one' twice"),
        (
            {"output_names": "ab"},
            TypeError,
            "output_names must be a list of names, found 'ab'",
        ),
        ({"head": "tail"}, ValueError, "head='tail' is not in the model"),
        ({"batch_size": 0}, ValueError, "batch_size must be a whole number of at least 1, found 0"),
        (
            {"batch_size": 2.5},
            ValueError,
            "batch_size must be a whole number of at least 1, found 2.5",
        ),
    ],
)
def test_wrong_options_are_named(net, table, options, kind, said):
    with pytest.raises(kind, match=said):
        NObSP(net, **options).fit(table)


def test_numpy_numbers_are_numbers(net, table):
    explainer = NObSP(
        net, interactions=np.int64(1), ridge=np.float32(1e-3), batch_size=np.int64(32)
    ).fit(table)
    assert len(explainer.terms_) == 4
    assert len(explainer.curves(np.int64(5))) == 30


def test_more_pairs_than_there_are_means_all_of_them(net, table):
    assert len(NObSP(net, interactions=99).fit(table).terms_) == 6


# ---------------------------------------------------------------------- nothing is lost


@pytest.mark.parametrize(
    "mistake",
    [
        lambda e, t: e.fit(spoiled(t, np.nan)),
        lambda e, t: e.fit(t.assign(label=0)),
        lambda e, t: e.fit(t[:1]),
        lambda e, t: e.set_params(ridge=-1).fit(t),
        lambda e, t: e.set_params(output_names=["one"]).fit(t),
        lambda e, t: e.set_params(baseline=[1]).fit(t),
        lambda e, t: e.merge(NObSP(make_net(seed=1)).fit(t)),
    ],
)
def test_a_failed_fit_or_merge_leaves_the_calibration_usable(net, table, mistake):
    explainer = NObSP(net).fit(table[:60])
    before = explainer(table)
    with pytest.raises((TypeError, ValueError)):
        mistake(explainer, table)
    after = explainer(table)
    assert_same_to_rounding(before.values, after.values, within=SINGLE)
    assert explainer.health().rows == 60


def test_neither_the_table_nor_the_model_is_changed_by_a_failure(table):
    net = make_net().train()
    state, rows = copy.deepcopy(net.state_dict()), table.copy()
    with pytest.raises(ValueError, match="row 7"):
        NObSP(net, batch_size=4).fit(spoiled(table, np.nan))
    assert net.training
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())
    assert not net._forward_hooks
    pd.testing.assert_frame_equal(table, rows)


# ---------------------------------------------------------------------- found by the campaign


@pytest.fixture(scope="module")
def plain_explainer() -> NObSP:
    return NObSP(nets.net("silu", outputs=2), interactions=0, background=4).fit(
        nets.table("silu", 60)
    )


UNREADABLE: dict[str, Callable[[], Any]] = {
    "sparse": lambda: torch.zeros(3, 5).to_sparse(),
    "meta": lambda: torch.zeros(3, 5, device="meta"),
    "masked": lambda: np.ma.masked_array(np.zeros((3, 5)), mask=True),
    "texts": lambda: np.zeros((3, 5)).astype(str),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_functions_refuse_tables_that_hold_no_plain_numbers(
    name: str, plain_explainer: NObSP
) -> None:
    with pytest.raises(TypeError, match="X"):
        plain_explainer.compile()(UNREADABLE[name]())


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_predictions_handed_to_functions_are_finite(number: float, plain_explainer: NObSP) -> None:
    predictions = np.zeros((3, 2))
    predictions[1, 1] = number
    with pytest.raises(ValueError, match="predictions has NaN or infinity in row 1"):
        plain_explainer.compile()(nets.table("silu", 3), predictions=predictions)


def test_removal_of_rows_without_an_answer_is_an_error_and_not_nan() -> None:
    model = nets.net("silu", dtype=torch.float32)
    explainer = NObSP(model, interactions=0, background=4).fit(nets.table("silu", 60))
    rows = nets.table("silu", 3)
    rows[2, 0] = 1e300  # infinite in single precision
    with pytest.raises(ValueError, match=r"X has .*row 2"):
        explainer.removal_effects(rows)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("interactions", {"x0": "x1"}),
        ("interactions", torch.tensor(2)),
        ("ridge", np.ones(3)),
        ("baseline", 10**400),
    ],
    ids=["mapping", "tensor", "array", "huge"],
)
def test_options_of_another_kind_are_named(option: str, value: Any) -> None:
    options = {"interactions": 0, "background": 4, option: value}
    with pytest.raises((TypeError, ValueError), match=option):
        NObSP(nets.net("silu"), **options).fit(nets.table("silu", 60))


def test_a_batch_size_of_numpy_is_a_batch_size() -> None:
    rows = nets.table("silu", 40)
    explainer = NObSP(
        nets.net("silu"),
        features={"a": [0, 1], "b": [2, 3, 4]},
        batch_size=np.int64(3),
        background=4,
    )
    assert explainer.fit(rows)(rows[:5]).values.shape == (5, 2, 1)


def test_values_of_a_function_may_be_of_half_precision(plain_explainer: NObSP) -> None:
    function = plain_explainer.function("x0")
    values = torch.tensor([0.0, 0.5], dtype=torch.bfloat16)
    assert_same_to_rounding(function(values), function([0.0, 0.5]))


def test_an_output_that_is_not_there_is_named_by_its_argument(plain_explainer: NObSP) -> None:
    with pytest.raises(ValueError, match="b is no output"):
        plain_explainer(nets.table("silu", 3)).contrast(0, "elsewhere")


def test_a_column_of_lists_is_refused_by_name() -> None:
    frame = pd.DataFrame({"a": [[1], [2]] * 20, "b": np.arange(40.0), "c": np.arange(40.0)})
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    with pytest.raises((TypeError, ValueError), match="X"):
        NObSP.as_published(model, features=["a", "b", "c"]).fit(frame)


def logarithm(rows: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.log(rows[:, 0]) + rows[:, 1]


def checked_logarithm(rows: np.ndarray) -> np.ndarray:
    if (rows[:, 0] <= 0).any():
        raise ArithmeticError("not positive")
    return logarithm(rows)


@pytest.mark.parametrize("row", [7, 700], ids=["first batch", "later"])
@pytest.mark.parametrize(
    ("model", "why"), [(logarithm, "not finite"), (checked_logarithm, "ArithmeticError: not pos")]
)
def test_a_row_that_the_model_has_no_answer_for_is_named_by_its_value(
    model: Any, why: str, row: int
) -> None:
    rows = np.random.default_rng(0).uniform(0.5, 3.0, (800, 3))
    rows[row, 0] = -2.5
    with pytest.raises(ValueError, match=why) as refused:
        NObSP(model, features=["income", "age", "height"]).fit(rows)
    assert "income = -2.5" in str(refused.value)
    assert "age" not in str(refused.value)


def test_what_a_model_raises_for_every_row_is_its_own_error() -> None:
    def broken(rows: np.ndarray) -> np.ndarray:
        raise KeyError("no such table")

    with pytest.raises(KeyError, match="no such table"):
        NObSP(broken).fit(np.random.default_rng(0).normal(size=(50, 2)))


def test_memory_that_does_not_suffice_is_not_taken_for_other_columns() -> None:
    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 1).double()

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            if len(rows) > 40:
                raise torch.OutOfMemoryError("out of memory")
            return torch.as_tensor(self.head(rows))

    rows = np.random.default_rng(0).normal(size=(60, 2))
    with pytest.raises(torch.OutOfMemoryError):
        NObSP(Large()).fit(rows)
    assert NObSP(Large(), batch_size=32).fit(rows).explained_[0] > 0.99


def test_the_explained_row_that_a_model_refuses_is_named_and_unusual_ones_cost_no_others() -> None:
    codes = {0.0: 1.0, 1.0: 3.0, 2.0: 2.0}

    def looks_up(rows: Any) -> Any:
        return rows[:, 0] + np.array([codes[code] for code in rows[:, 1]])

    generator = np.random.default_rng(0)
    rows = np.column_stack([generator.normal(size=300), generator.integers(0, 3, 300)])
    explainer = NObSP(looks_up, features=["age", "code"]).fit(rows)

    # Beyond the range: this row alone has no prediction.
    explanation = explainer(np.array([[0.1, 1.0], [0.2, 7.0], [0.3, 2.0]]))
    assert np.isfinite(explanation.predictions).ravel().tolist() == [True, False, True]

    with pytest.raises(ValueError, match=r"with code = 1\.5 .*KeyError") as refused:
        explainer(np.array([[0.1, 1.0], [0.4, 1.5], [0.3, 2.0]]))
    assert "age" not in str(refused.value)
