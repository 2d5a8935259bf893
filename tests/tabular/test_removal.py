"""Total effects: every term that holds a feature, of every order."""

import itertools
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.compose import ColumnTransformer
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from torch import nn

from nobsp import NObSP
from tests.tolerances import CONTRIBUTIONS, PASS, SUMS


def network(columns: int, outputs: int = 2, *, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(columns, 12), nn.Tanh(), nn.Linear(12, outputs)).double()


def outputs_of(model: nn.Module, rows: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.as_tensor(rows)).numpy()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), columns=st.integers(1, 4), rows=st.integers(3, 12))
def test_equal_the_mean_over_all_values_written_as_loops(
    seed: int, columns: int, rows: int
) -> None:
    model, X = network(columns, seed=seed), np.random.default_rng(seed).normal(size=(rows, columns))
    expected = np.zeros((rows, columns, 2))
    for i, j in itertools.product(range(rows), range(columns)):
        replaced = np.repeat(X[i][None], rows, axis=0)
        replaced[:, j] = X[:, j]
        expected[i, j] = outputs_of(model, X[i][None])[0] - outputs_of(model, replaced).mean(0)

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # so few rows tell nothing of the functions, nor need they
        explainer = NObSP(model, interactions=0).fit(X)
    found = explainer.removal_effects(X, values=rows)

    np.testing.assert_allclose(found, expected, atol=SUMS)


def test_on_a_full_grid_they_sum_all_centred_terms_with_the_feature() -> None:
    sides = [np.array([-1.0, 0.5, 2.0]), np.array([0.0, 1.0]), np.array([-2.0, -1.0, 0.0, 3.0])]
    X = np.array(list(itertools.product(*sides)))
    model = network(3)
    y = outputs_of(model, X).reshape(3, 2, 4, 2)
    terms = {}  # the functional analysis of variance, by inclusion and exclusion of means
    for term in itertools.chain.from_iterable(
        itertools.combinations(range(3), size) for size in range(4)
    ):
        others = tuple(axis for axis in range(3) if axis not in term)
        terms[term] = y.mean(axis=others, keepdims=True) - sum(
            (terms[inner] for inner in terms if set(inner) < set(term)),
            start=np.zeros((1, 1, 1, 2)),
        )
    expected = [
        sum(np.broadcast_to(value, y.shape) for term, value in terms.items() if j in term).reshape(
            -1, 2
        )
        for j in range(3)
    ]

    found = NObSP(model, interactions=0, ridge=1e-4).fit(X).removal_effects(X)

    np.testing.assert_allclose(found, np.stack(expected, axis=1), atol=SUMS)


def test_a_feature_the_network_ignores_has_none() -> None:
    model, X = network(4), np.random.default_rng(0).normal(size=(200, 4))
    with torch.no_grad():
        model[0].weight[:, 2] = 0.0

    found = NObSP(model, interactions=0).fit(X).removal_effects(X[:20])

    assert np.abs(found[:, 2]).max() < PASS
    assert np.abs(found[:, [0, 1, 3]]).min(axis=(0, 2)).max() > 1e-4


def test_interactions_that_were_not_fitted_are_in_them() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(1, 1, bias=False).double()
            nn.init.ones_(self.head.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x[:, :1] * x[:, 1:])

    X = np.array(list(itertools.product([-1.0, 1.0], [-1.0, 1.0])))
    explainer = NObSP(Product(), interactions=0).fit(X)

    assert np.abs(explainer(X).values).max() < SUMS
    np.testing.assert_allclose(
        explainer.removal_effects(X)[:, :, 0], np.repeat(X.prod(1)[:, None], 2, axis=1)
    )


def test_levels_count_as_often_as_they_occur() -> None:
    X = np.array([[0.0, 1.0]] * 3 + [[1.0, 2.0]] * 1)
    model = network(2)
    expected = outputs_of(model, X[:1])[0] - (
        0.75 * outputs_of(model, np.array([[0.0, 1.0]]))[0]
        + 0.25 * outputs_of(model, np.array([[1.0, 1.0]]))[0]
    )

    explainer = NObSP(model, interactions=0, ridge=1e-2).fit(X)
    found = explainer.removal_effects(X[:1])

    np.testing.assert_allclose(found[0, 0], expected, atol=SUMS)


def test_values_are_spread_over_the_distribution_where_there_are_too_many() -> None:
    rows = np.random.default_rng(0).exponential(size=(20_000, 1))
    model = nn.Sequential(
        nn.Linear(1, 1), nn.Linear(1, 1)
    ).double()  # linear: only the mean of the values matters
    slope = (model[1].weight * model[0].weight).item()
    explainer = NObSP(model, interactions=0).fit(rows)

    errors = [
        abs(
            float(
                explainer.removal_effects(rows[:1], values=count)[0, 0, 0]
                - slope * (rows[0, 0] - rows.mean())
            )
        )
        for count in (2, 16, 256)
    ]

    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.02 * abs(slope)


def test_every_level_of_a_category_counts_however_few_values_are_asked_for() -> None:
    rng = np.random.default_rng(0)
    codes = np.eye(40)[rng.integers(0, 40, size=2000) ** 2 // 40]
    X = np.hstack([rng.normal(size=(2000, 1)), codes])
    model = network(41)
    expected = []
    for row in X[:5]:
        replaced = np.repeat(row[None], len(X), axis=0)
        replaced[:, 1:] = codes
        expected.append(outputs_of(model, row[None])[0] - outputs_of(model, replaced).mean(0))

    explainer = NObSP(model, features={"a": 0, "code": list(range(1, 41))}, interactions=0).fit(X)

    np.testing.assert_allclose(
        explainer.removal_effects(X[:5], values=2)[:, 1], expected, atol=SUMS
    )


def test_a_frame_through_a_pipeline_and_the_same_through_its_network() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=200),
            "colour": rng.choice(["red", "green"], size=200),
            "note": ["x"] * 200,
        }
    )
    y = frame["size"] * (frame["colour"] == "red")
    encode = ColumnTransformer(
        [
            ("keep", "passthrough", ["size"]),
            ("code", OneHotEncoder(sparse_output=False), ["colour"]),
        ]
    )
    pipeline = make_pipeline(
        encode, MLPRegressor(hidden_layer_sizes=(8,), max_iter=2000, random_state=0)
    ).fit(frame, y)
    rows = frame[:4]
    expected = np.zeros((4, 3))
    for (i, row), (j, name) in itertools.product(
        enumerate(rows.itertuples(index=False)), enumerate(frame.columns)
    ):
        replaced = pd.DataFrame([row] * 200, columns=frame.columns)
        replaced[name] = frame[name].to_numpy()
        expected[i, j] = pipeline.predict(rows)[i] - pipeline.predict(replaced).mean()

    found = NObSP(pipeline, interactions=0).fit(frame).removal_effects(rows, values=200)

    np.testing.assert_allclose(found[:, :, 0], expected, atol=CONTRIBUTIONS)


def test_the_model_is_a_guest() -> None:
    model, X = network(3).float().train(), torch.randn(60, 3)
    model.append(nn.Identity())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    explainer = NObSP(model, interactions=0, ridge=1e-4).fit(X)
    state = torch.get_rng_state()

    explainer.removal_effects(X)

    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_columns_of_one_feature_are_replaced_together() -> None:
    rng = np.random.default_rng(0)
    codes = np.eye(3)[rng.integers(0, 3, size=300)]
    X = np.hstack([rng.normal(size=(300, 1)), codes])
    model = network(4)
    seen = []
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].numpy().copy()))
    explainer = NObSP(model, features={"a": 0, "colour": [1, 2, 3]}, interactions=0).fit(X)
    seen.clear()

    assert explainer.removal_effects(X[:7]).shape == (7, 2, 2)

    assert all(set(rows[:, 1:].sum(1)) == {1.0} for rows in seen)


@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_no_forward_pass_is_longer_than_a_batch(batch_size: int) -> None:
    model, X = network(3), np.random.default_rng(0).normal(size=(40, 3))
    whole = NObSP(model, interactions=0, ridge=1e-4).fit(X)
    explainer = NObSP(model, interactions=0, ridge=1e-4, batch_size=batch_size).fit(X)
    lengths = []
    handle = model[0].register_forward_pre_hook(lambda _, inputs: lengths.append(len(inputs[0])))
    found = explainer.removal_effects(X[:9])
    handle.remove()

    assert max(lengths) <= batch_size
    np.testing.assert_allclose(found, whole.removal_effects(X[:9]), atol=SUMS)


def test_an_explainer_from_a_file_takes_values_from_rows_it_is_given(tmp_path) -> None:
    model, X = network(3), np.random.default_rng(0).normal(size=(300, 3))
    explainer = NObSP(model, interactions=0).fit(X)
    explainer.save(tmp_path / "kept.nobsp")
    loaded = NObSP.load(tmp_path / "kept.nobsp", model)

    with pytest.raises(ValueError, match="background=rows"):
        loaded.removal_effects(X[:2])

    np.testing.assert_allclose(
        loaded.removal_effects(X[:2], background=X), explainer.removal_effects(X[:2]), atol=SUMS
    )


def test_bad_input_is_named() -> None:
    model, X = network(3), np.random.default_rng(0).normal(size=(50, 3))
    explainer = NObSP(model, interactions=0, ridge=1e-4).fit(X)

    with pytest.raises(ValueError, match="values must be a whole number of at least 2, found 1"):
        explainer.removal_effects(X, values=1)
    with pytest.raises(ValueError, match="columns"):
        explainer.removal_effects(X[:, :2])
    with pytest.raises(ValueError, match="background has 2 columns"):
        explainer.removal_effects(X, background=X[:, :2])


def test_values_without_an_answer_beside_the_other_features_are_left_out_of_the_mean() -> None:
    generator = np.random.default_rng(0)
    X = np.column_stack([generator.uniform(3.0, 5.0, 200), generator.uniform(0.0, 2.0, 200)])

    def model(rows: np.ndarray) -> np.ndarray:
        difference = rows[:, 0] - rows[:, 1]
        return np.where(difference > 0, np.log(np.maximum(difference, 1e-9)), np.nan)

    explainer = NObSP(model, interactions=0).fit(X)
    row = np.array([[9.0, 4.5]])  # beside 4.5, some values of the first column have no answer

    effects = explainer.removal_effects(row, values=200)[0, :, 0]

    values = X[:, 0][X[:, 0] > 4.5]
    expected = np.log(4.5) - np.log(values - 4.5).mean()
    np.testing.assert_allclose(effects[0], expected, rtol=1e-9)
    assert np.isfinite(effects).all()
