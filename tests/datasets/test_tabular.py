"""Tables as `load` gives them: the split, what is learnt from which rows, and the encoded columns."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nobsp.datasets import TABLES, load, tables
from nobsp.datasets.tables import Category, Table

EMBEDDED = {"iris": (150, 4, 3), "breast_cancer": (569, 30, 2), "wine": (178, 13, 3), "diabetes": (442, 10, 0)}
# Rows and encoded columns of the paper's table; Adult's 124 columns are explained in the docstring of `load`.
PUBLISHED = {
    "adult": (5_000, 108),
    "german_credit": (1_000, 61),
    "bank_marketing": (5_000, 51),
    "covertype": (10_000, 54),
    "california_housing": (20_640, 8),
}


def made_up(rows: int = 40) -> Table:
    """A table with a gap in a number, a gap in a category, and a level that only one row has."""
    rng = np.random.default_rng(0)
    amount = rng.normal(10.0, 4.0, size=rows)
    amount[::7] = np.nan
    colour = rng.integers(0, 2, size=rows)
    colour[::5], colour[1] = -1, 2
    return Table(
        {"amount": amount, "colour": Category(colour, ("blue", "green", "red")), "flat": np.full(rows, 3.0)},
        np.arange(rows) % 2,
        ("no", "yes"),
    )


def skip_without_files(name: str) -> None:
    """Files that are too large to ship are looked at where they are."""
    given = os.environ.get("NOBSP_DATA")
    if not given or not (Path(given) / name).is_dir():
        pytest.skip(f"no folder {name} in NOBSP_DATA")


@pytest.fixture
def made_up_table(monkeypatch: pytest.MonkeyPatch) -> Table:
    table = made_up()
    monkeypatch.setitem(tables.READERS, "made_up", lambda: table)
    return table


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_tables_have_the_sizes_of_the_paper(name: str) -> None:
    rows, columns, classes = EMBEDDED[name]
    data = load(name)
    assert len(data.X_train) + len(data.X_test) == rows
    assert data.X_train.shape[1] == data.X_test.shape[1] == len(data.column_names) == columns
    assert len(data.class_names) == classes
    assert data.task == ("classification" if classes else "regression")
    assert len(data.X_test) == pytest.approx(0.2 * rows, abs=1)


@pytest.mark.parametrize("name", EMBEDDED)
def test_numbers_are_standardised_by_the_training_rows_alone(name: str) -> None:
    data = load(name)
    np.testing.assert_allclose(data.X_train.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(data.X_train.std(axis=0), 1.0)
    assert np.abs(data.X_test.mean(axis=0)).max() > 1e-3
    raw_train, raw_test = (np.column_stack(list(raw.values())) for raw in (data.raw_train, data.raw_test))
    np.testing.assert_allclose(data.X_test, (raw_test - raw_train.mean(axis=0)) / raw_train.std(axis=0))


def test_the_seed_decides_the_split_and_the_split_keeps_every_row_once() -> None:
    first, again, other = load("wine", seed=1), load("wine", seed=1), load("wine", seed=2)
    np.testing.assert_array_equal(first.X_train, again.X_train)
    assert not np.array_equal(first.y_test, other.y_test) or not np.array_equal(first.X_test, other.X_test)
    everything = np.sort(np.concatenate([first.raw_train["proline"], first.raw_test["proline"]]))
    np.testing.assert_array_equal(everything, np.sort(tables.read_embedded("wine").columns["proline"]))


def test_splits_keep_the_shares_of_the_classes() -> None:
    data = load("breast_cancer", seed=3)
    assert data.y_train.mean() == pytest.approx(data.y_test.mean(), abs=0.01)


def test_arrays_have_the_types_networks_are_trained_with() -> None:
    assert load("iris").X_train.dtype == np.float64
    assert load("iris").y_train.dtype == np.int64
    assert load("diabetes").y_train.dtype == np.float64


def test_groups_name_every_column_once_and_levels_after_their_feature(made_up_table: Table) -> None:
    data = load("made_up")
    assert data.groups == {"amount": [0], "colour": [1, 2, 3, 4], "flat": [5]}
    assert data.column_names == ("amount", "colour=blue", "colour=green", "colour=red", "colour=missing", "flat")
    assert data.feature_names == ("amount", "colour", "flat")


def test_groups_are_what_the_explainer_takes(made_up_table: Table) -> None:
    from nobsp.network.inputs import resolve_features

    data = load("made_up")
    features = resolve_features(data.groups, columns=len(data.column_names), names=None)
    assert features.names == data.feature_names


def test_a_missing_number_becomes_the_median_of_the_training_rows(made_up_table: Table) -> None:
    data = load("made_up", seed=4)
    gaps = np.isnan(data.raw_test["amount"].astype(float))
    assert gaps.any()
    median = np.nanmedian(data.raw_train["amount"].astype(float))
    filled = np.where(np.isnan(data.raw_train["amount"].astype(float)), median, data.raw_train["amount"].astype(float))
    np.testing.assert_allclose(data.X_test[gaps, 0], (median - filled.mean()) / filled.std())


def test_a_missing_category_is_a_level_of_its_own(made_up_table: Table) -> None:
    data = load("made_up")
    missing = np.array([value is None for value in data.raw_train["colour"]])
    assert missing.any()
    np.testing.assert_array_equal(data.X_train[:, 4] == 1, missing)
    np.testing.assert_array_equal(data.X_train[:, 1:5].sum(axis=1), 1.0)
    np.testing.assert_array_equal(data.X_train[:, 1] == 1, data.raw_train["colour"] == "blue")


def test_columns_do_not_depend_on_the_seed_even_where_a_level_is_rare(made_up_table: Table) -> None:
    assert len({load("made_up", seed=seed).column_names for seed in range(8)}) == 1


def test_test_rows_with_a_level_of_their_own_are_found(made_up_table: Table) -> None:
    seeds = [load("made_up", seed=seed) for seed in range(12)]
    held_out = [data for data in seeds if "red" in data.raw_test["colour"]]
    assert 0 < len(held_out) < 12
    for data in seeds:
        np.testing.assert_array_equal(data.unseen_levels(), data.raw_test["colour"] == "red")


def test_a_column_that_does_not_vary_is_zero_and_not_nan(made_up_table: Table) -> None:
    data = load("made_up")
    assert not data.X_train[:, 5].any()
    assert not data.X_test[:, 5].any()


def test_rows_are_drawn_before_splitting(made_up_table: Table) -> None:
    assert len(load("made_up", rows=20).X_train) == 16
    assert len(load("made_up", rows="all").X_train) == 32
    with pytest.raises(ValueError, match="rows is 41 but made_up has 40"):
        load("made_up", rows=41)


def test_raw_rows_make_a_frame_and_belong_to_the_encoded_ones(made_up_table: Table) -> None:
    pd = pytest.importorskip("pandas")
    data = load("made_up")
    frame = pd.DataFrame(data.raw_train)
    assert frame.shape == (32, 3)
    assert frame["amount"].isna().sum() == np.isnan(data.raw_train["amount"].astype(float)).sum()


def test_a_misspelt_name_gets_the_close_one() -> None:
    with pytest.raises(ValueError, match="did you mean 'german_credit'"):
        load("german credit")


def test_loading_needs_no_frame_library() -> None:
    program = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pandas", "polars", "pyarrow", "PIL", "torchvision"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Without())
import nobsp.datasets
print(nobsp.datasets.load("iris"))
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "120 training and 30 test rows" in finished.stdout


def test_the_nine_tables_of_the_paper_are_there() -> None:
    assert set(TABLES) == {*EMBEDDED, *PUBLISHED}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_give_the_sizes_of_the_paper(name: str) -> None:
    skip_without_files(name)
    rows, columns = PUBLISHED[name]
    data = load(name)
    assert len(data.X_train) + len(data.X_test) == rows
    assert len(data.column_names) == columns
    assert np.isfinite(data.X_train).all()
    assert np.isfinite(data.X_test).all()
