"""Every kind of table gives the same rows, and every kind of mistake an error that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from nobsp.network import batches_of, with_progress
from tests.processes import run_python

Frames = Callable[[dict[str, Any]], Any]
MATRIX = np.arange(21, dtype=np.float64).reshape(7, 3) / 4


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.from_numpy(MATRIX))


class Again:
    """Starts anew each time it is asked."""

    def __iter__(self) -> Iterator[Any]:
        yield MATRIX[:4]
        yield MATRIX[4:]


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.from_numpy(MATRIX), torch.arange(7)), **options)


def bare(X: Any, **options: Any) -> DataLoader[Any]:
    """A loader over rows without labels."""
    rows: Any = torch.from_numpy(X)
    return DataLoader(rows, **options)


@pytest.mark.parametrize(
    ("X", "rows"),
    [
        (MATRIX, 7),
        (MATRIX.astype(object), 7),
        (np.asfortranarray(MATRIX), 7),
        (MATRIX[::-1][::-1], 7),
        (MATRIX.tolist(), 7),
        (torch.from_numpy(MATRIX), 7),
        (torch.from_numpy(MATRIX).requires_grad_(), 7),
        (loader(batch_size=5), 7),
        (DataLoader(TensorDataset(torch.from_numpy(MATRIX)), batch_size=2), 7),
        (bare(MATRIX, batch_size=4), 7),
        (DataLoader(Stream(), batch_size=3), None),
        ([MATRIX[:4], MATRIX[4:]], 7),
        ([(MATRIX[:4], np.zeros(4)), (MATRIX[4:], np.zeros(3))], 7),
        ((torch.from_numpy(MATRIX[:1]), torch.from_numpy(MATRIX[1:])), 7),
        (Again(), None),
    ],
)
def test_every_kind_of_table_gives_its_rows_twice(X: Any, rows: int | None) -> None:
    source = batches_of(X, batch_size=3)
    for _ in range(2):
        batches = list(source)
        assert max(len(batch) for batch in batches) <= 3
        np.testing.assert_array_equal(torch.cat(batches).numpy(), MATRIX)
        assert all(not batch.requires_grad for batch in batches)
    assert (source.rows, source.reiterable, source.columns) == (rows, True, 3)
    assert (source.names, source.integer) == (None, False)


def test_frames_give_names_and_rows(frame_of: Frames) -> None:
    X = frame_of({"a": [1.5, 2.5, 3.5], "b": [1, 2, 3], "c": [True, False, True]})
    source = batches_of(X, batch_size=2)
    assert source.names == ("a", "b", "c")
    expected = [[1.5, 1, 1], [2.5, 2, 0], [3.5, 3, 1]]
    assert torch.cat(list(source)).tolist() == expected
    assert torch.cat(list(batches_of([X, X], batch_size=2))).tolist() == expected * 2


def test_batches_of_frames_are_matched_to_the_first(frame_of: Frames) -> None:
    first, second = frame_of({"a": [1.0], "b": [2.0]}), frame_of({"b": [4.0], "a": [3.0]})
    assert torch.cat(list(batches_of([first, second], batch_size=5))).tolist() == [[1, 2], [3, 4]]


def test_an_iterator_can_be_read_once() -> None:
    source = batches_of((MATRIX[i : i + 2] for i in range(0, 7, 2)), batch_size=10)
    assert (source.reiterable, source.rows) == (False, None)
    np.testing.assert_array_equal(torch.cat(list(source)).numpy(), MATRIX)
    with pytest.raises(ValueError, match="X is an iterator that can be read only once"):
        list(source)


def test_an_iterable_that_runs_dry_is_noticed() -> None:
    class Dry:
        def __init__(self) -> None:
            self.left = [MATRIX]

        def __iter__(self) -> Iterator[Any]:
            while self.left:
                yield self.left.pop()

    source = batches_of(Dry(), batch_size=10)
    assert len(list(source)) == 1
    with pytest.raises(ValueError, match="gave no rows when it was read again"):
        list(source)


def test_a_loader_is_opened_once_for_one_pass() -> None:
    opened = []

    class Counting(Again):
        def __iter__(self) -> Iterator[Any]:
            opened.append(1)
            return super().__iter__()

    source = batches_of(Counting(), batch_size=10)
    list(source)
    assert len(opened) == 1
    list(source)
    assert len(opened) == 2


@pytest.mark.parametrize(
    ("loaded", "rows"),
    [
        (loader(batch_size=4, drop_last=True), 4),
        (loader(batch_size=4, shuffle=True), 7),
        (loader(batch_size=3, collate_fn=lambda items: items[0][0][None]), None),
        (loader(batch_sampler=[[0, 1], [2]]), None),
    ],
)
def test_rows_of_a_loader_are_told_only_if_certain(
    loaded: DataLoader[Any], rows: int | None
) -> None:
    source = batches_of(loaded, batch_size=10)
    assert source.rows == rows
    if rows is not None:
        assert sum(len(batch) for batch in source) == rows


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.float64, torch.float64),
        (np.float32, torch.float32),
        (np.float16, torch.float32),
        (np.int16, torch.int64),
        (np.int64, torch.int64),
        (np.uint8, torch.int64),
        (np.bool_, torch.float32),
    ],
)
def test_kinds_of_numbers_are_kept(given: Any, kept: torch.dtype) -> None:
    for X in (np.ones((2, 2), dtype=given), torch.from_numpy(np.ones((2, 2), dtype=given))):
        source = batches_of(X, batch_size=2)
        assert next(iter(source)).dtype == kept
        assert source.integer == (kept == torch.int64)
        assert batches_of([X], batch_size=2).integer == source.integer


@pytest.mark.parametrize(
    ("columns", "kept"),
    [
        ({"a": np.int32, "b": np.int64}, torch.int64),
        ({"a": np.float32, "b": np.float32}, torch.float32),
        ({"a": np.float32, "b": np.bool_}, torch.float32),
        ({"a": np.bool_, "b": np.bool_}, torch.float32),
        ({"a": np.float32, "b": np.int64}, torch.float64),
    ],
)
def test_frames_take_the_kind_that_loses_nothing(
    frame_of: Frames, columns: dict[str, Any], kept: torch.dtype
) -> None:
    X = frame_of({name: np.ones(3, dtype=dtype) for name, dtype in columns.items()})
    source = batches_of(X, batch_size=2)
    assert next(iter(source)).dtype == kept
    assert source.integer == (kept == torch.int64)


def test_whole_batches_in_a_stream_of_floats_become_floats() -> None:
    batches = list(
        batches_of([np.ones((1, 2), dtype=np.float32), np.ones((1, 2), dtype=int)], batch_size=5)
    )
    assert [batch.dtype for batch in batches] == [torch.float32, torch.float32]


def test_read_only_arrays_are_read_without_complaint() -> None:
    X = MATRIX.copy()
    X.flags.writeable = False
    assert len(list(batches_of(X, batch_size=5))) == 2


def test_encoding_is_applied_to_rows_of_the_callers_kind(frame_of: Frames) -> None:
    X = frame_of({"a": [1.0, 2.0, 3.0], "word": ["x", "y", "x"]})
    kinds = set()

    def encode(rows: Any) -> Any:
        kinds.add(type(rows))
        return np.stack([np.asarray(rows["a"]), np.asarray(rows["word"]) == "x"], axis=1)

    source = batches_of(X, batch_size=2, encode=encode, columns=["a", "word"])
    assert torch.cat(list(source)).tolist() == [[1, 1], [2, 0], [3, 1]]
    assert (source.names, source.columns, source.integer) == (("a", "word"), 2, False)
    assert kinds == {type(X)}
    assert len(list(batches_of([X, X], batch_size=2, encode=encode))) == 4


def test_columns_are_matched_by_name(frame_of: Frames) -> None:
    source = batches_of(frame_of({"b": [2.0], "a": [1.0]}), batch_size=1, columns=["a", "b"])
    assert source.names == ("a", "b")
    assert next(iter(source)).tolist() == [[1.0, 2.0]]


def test_other_columns_are_listed_with_close_matches(frame_of: Frames) -> None:
    X = frame_of({"agee": [1.0], "job": [2.0]})
    with pytest.raises(
        ValueError, match=r"lacks 'age' and has unexpected 'agee'.*'agee' to 'age'\?"
    ):
        batches_of(X, batch_size=1, columns=["age", "job"])
    with pytest.raises(ValueError, match="X has unexpected 'job'; expected columns are 'agee'"):
        batches_of(X, batch_size=1, columns=["agee"])


@pytest.mark.parametrize("X", [MATRIX, torch.from_numpy(MATRIX), [MATRIX]])
def test_another_number_of_columns_is_an_error(X: Any) -> None:
    with pytest.raises(ValueError, match="has 3 columns but 2 are expected: 'a', 'b'"):
        batches_of(X, batch_size=1, columns=["a", "b"])


def test_batches_must_agree_on_their_columns() -> None:
    source = batches_of([MATRIX, MATRIX[:, :2]], batch_size=10)
    with pytest.raises(ValueError, match="batch 1 of X has 2 columns but batch 0 had 3"):
        list(source)


@pytest.mark.parametrize(
    ("value", "said"), [(np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "infinite")]
)
def test_values_that_are_not_finite_are_placed(value: float, said: str) -> None:
    X = MATRIX.copy()
    X[5, 2] = value
    kinds: list[Any] = [X, torch.from_numpy(X), [X[:4], X[4:]], bare(X, batch_size=2)]
    for given in kinds:
        with pytest.raises(ValueError, match=f"data is {said} in row 5, column 2"):
            list(batches_of(given, batch_size=3, argument="data"))


def test_large_finite_values_are_not_mistaken_for_infinite_ones() -> None:
    X = np.full((4, 2), 3e38, dtype=np.float32)
    assert len(list(batches_of(X, batch_size=4))) == 1


def test_missing_values_in_frames_name_the_column(frame_of: Frames) -> None:
    X = frame_of({"a": [1.0, 2.0, 3.0], "b": [1.0, 2.0, None]})
    with pytest.raises(ValueError, match="in row 2, column 'b'"):
        list(batches_of(X, batch_size=2))


def test_missing_values_of_nullable_integers_name_the_column() -> None:
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame(
        {"a": [1, 2, 3], "n": pandas.array([1, None, 3], dtype="Int64")}, index=[7, 8, 9]
    )
    with pytest.raises(ValueError, match="X is missing in row 1, column 'n'"):
        list(batches_of(X, batch_size=10))
    full = batches_of(X.fillna(0), batch_size=10)
    assert full.integer
    assert next(iter(full)).tolist() == [[1, 1], [2, 0], [3, 3]]


def test_columns_of_words_are_named(frame_of: Frames) -> None:
    with pytest.raises(TypeError, match=r"X column 'job' holds \w+, not numbers"):
        batches_of(frame_of({"age": [1.0], "job": ["cook"]}), batch_size=1)


def test_frames_with_two_columns_of_a_name_are_refused() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="two columns of the same name"):
        batches_of(pandas.DataFrame(MATRIX[:, :2], columns=["a", "a"]), batch_size=1)


def test_frames_with_numbered_columns_get_names() -> None:
    pandas = pytest.importorskip("pandas")
    source = batches_of(pandas.DataFrame(MATRIX), batch_size=9, columns=["2", "0", "1"])
    np.testing.assert_array_equal(next(iter(source)).numpy(), MATRIX[:, [2, 0, 1]])


@pytest.mark.parametrize(
    ("X", "error", "said"),
    [
        (
            np.zeros(3),
            ValueError,
            r"X must have two dimensions, found shape \(3,\); pass X.reshape\(-1, 1\)",
        ),
        (torch.zeros(3), ValueError, "X must have two dimensions"),
        (np.zeros((2, 2, 2)), ValueError, "one row per sample"),
        (np.zeros((0, 3)), ValueError, "X has no rows"),
        (torch.zeros(0, 3), ValueError, "X has no rows"),
        (np.zeros((3, 0)), ValueError, "X has no columns"),
        ([], ValueError, "X has no batches"),
        ([np.zeros((0, 3))], ValueError, "batch 0 of X has no rows"),
        (np.array([["a", "b"]]), TypeError, "X must be numeric"),
        (np.array([[1.0, "b"]], dtype=object), TypeError, r"X\[:, 1\] is not numeric"),
        (np.zeros((2, 2), dtype=complex), TypeError, "X must be numeric"),
        (torch.zeros(2, 2, dtype=torch.complex64), TypeError, "dense real tensor"),
        (
            loader(collate_fn=lambda items: {"x": items}),
            TypeError,
            r"batch 0 of X is a dictionary with \['x'\]",
        ),
        ({"x": MATRIX}, TypeError, "X is a dict"),
        ("table.csv", TypeError, "X is a str"),
        (None, TypeError, "X is a NoneType"),
        (3, TypeError, "X is a int"),
        (
            TensorDataset(torch.zeros(2, 2)),
            TypeError,
            "X is a Dataset; pass torch.utils.data.DataLoader",
        ),
        (["table.csv"], TypeError, "batch 0 of X is a str"),
    ],
)
def test_bad_tables_are_explained(X: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        list(batches_of(X, batch_size=2))


def test_labels_passed_along_are_noticed() -> None:
    with pytest.raises(ValueError, match="batch 1 of X must have two dimensions"):
        list(batches_of((MATRIX, np.zeros(7)), batch_size=10))


def test_sparse_matrices_lazy_frames_and_series_are_explained() -> None:
    scipy, polars = pytest.importorskip("scipy.sparse"), pytest.importorskip("polars")
    for X, said in [
        (scipy.csr_matrix(MATRIX), "toarray"),
        (polars.LazyFrame({"a": [1]}), "collect"),
        (polars.Series([1]), "X is a Series"),
    ]:
        with pytest.raises(TypeError, match=said):
            batches_of(X, batch_size=2)


def test_empty_frames_are_refused(frame_of: Frames) -> None:
    with pytest.raises(ValueError, match="X has no rows"):
        batches_of(frame_of({"a": np.zeros(0)}), batch_size=2)
    with pytest.raises(ValueError, match="X has no"):
        batches_of(frame_of({}), batch_size=2)


@pytest.mark.parametrize("size", [0, -1, 2.5, True, None])
def test_batch_size_must_be_a_positive_whole_number(size: Any) -> None:
    with pytest.raises(ValueError, match="batch_size must be a whole number of at least 1"):
        batches_of(MATRIX, batch_size=size)


def test_map_style_datasets_without_length_still_load() -> None:
    class Endless(Dataset[Tensor]):
        def __getitem__(self, index: int) -> Tensor:
            return torch.ones(2)

    loaded = DataLoader(Endless(), batch_size=2, sampler=iter([0, 1, 2]))
    assert batches_of(loaded, batch_size=4).rows is None


def test_progress_counts_rows(capsys: pytest.CaptureFixture[str]) -> None:
    source = batches_of(MATRIX, batch_size=2)
    seen = list(with_progress(source, total=source.rows, enabled=True, description="calibrating"))
    captured = capsys.readouterr()
    assert len(seen) == 4
    assert "calibrating: 100%" in captured.err
    assert "7.00/7.00" in captured.err
    assert captured.out == ""


def test_progress_is_silent_unless_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    source = batches_of(MATRIX, batch_size=2)
    assert len(list(with_progress(source, total=None, enabled=False, description=""))) == 4
    assert capsys.readouterr() == ("", "")


def test_frame_libraries_are_not_imported_for_arrays() -> None:
    script = (
        "import sys, numpy; from nobsp.models import adapt; from nobsp.network import batches_of;"
        "list(batches_of(numpy.ones((2, 2)), batch_size=1));"
        "print([name for name in ('pandas', 'polars', 'sklearn') if name in sys.modules])"
    )
    done = run_python(script)
    assert done.stdout.strip() == "[]"


def read(X: Any, **options: Any) -> Tensor:
    return torch.cat(list(batches_of(X, batch_size=8, **options)))


def test_rows_that_are_no_table_are_refused_with_the_frame_to_pass() -> None:
    pandas = pytest.importorskip("pandas")
    record = {"age": 30.0, "city": "Oslo"}

    with pytest.raises(TypeError, match=r"Series; pass a frame"):
        read(pandas.Series(record))
    with pytest.raises(TypeError, match=r"pandas\.DataFrame\(\[X\]\)"):
        read(record)
    with pytest.raises(TypeError, match=r"pandas\.DataFrame\(X\)"):
        read([record, record])


def test_numbers_as_text_are_told_from_names(frame_of: Frames) -> None:
    with pytest.raises(TypeError, match=r"'a'.*convert it if it holds numbers as text"):
        read(frame_of({"a": ["1.5", "2.5"]}))


def encode_finite(X: Any) -> Any:
    """Like a scaler of scikit-learn: refuses infinite numbers, leaves missing ones."""
    rows = np.asarray(X, dtype=np.float64)
    if np.isinf(rows).any():
        raise ValueError("X contains infinity")
    return rows


def test_an_encoded_row_without_a_number_is_named_by_the_callers_column(frame_of: Frames) -> None:
    ages = [30.0, 40.0, float("nan"), 50.0]
    infinite = [30.0, float("inf"), 40.0, 50.0]

    with pytest.raises(ValueError, match=r"NaN in row 2, column 'age'"):
        read(frame_of({"income": [1.0, 2.0, 3.0, 4.0], "age": ages}), encode=encode_finite)
    with pytest.raises(ValueError, match=r"infinite in row 1, column 'age'"):
        read(frame_of({"age": infinite}), encode=encode_finite)


def fill_ages(X: Any) -> Any:
    """Like an imputer of the first column alone."""
    rows = np.array(X, dtype=np.float64)
    rows[:, 0] = np.nan_to_num(rows[:, 0])
    return rows


def test_a_gap_that_is_filled_is_not_blamed_alone(frame_of: Frames) -> None:
    nan = float("nan")
    frame = frame_of({"age": [30.0, nan, 50.0], "income": [1.0, nan, 2.0]})
    with pytest.raises(ValueError, match=r"NaN in row 1, column 1;.* 'age', 'income' are missing"):
        read(frame, encode=fill_ages)


def logarithm(X: Any) -> Any:
    """Of numbers below zero it makes NaN, of zero an infinite number."""
    with np.errstate(all="ignore"):
        return np.log(np.asarray(X, dtype=np.float64))


@pytest.mark.parametrize(("value", "made"), [(-1.5, "NaN"), (0.0, "an infinite number")])
def test_a_value_of_which_the_preprocessing_makes_a_gap_is_named(
    frame_of: Frames, value: float, made: str
) -> None:
    ages = [30.0] * 17
    frame = frame_of({"age": [*ages[:11], value, *ages[12:]], "income": [1.0] * 17})
    with pytest.raises(ValueError, match=rf"in row 11: column 'age' is {value}, .* makes {made}\."):
        read(frame, encode=logarithm)


def test_an_infinite_number_is_found_behind_a_missing_one(frame_of: Frames) -> None:
    frame = frame_of({"age": [30.0, float("nan")], "income": [1.0, float("inf")]})
    with pytest.raises(ValueError, match=r"infinite in row 1, column 'income'"):
        read(frame, encode=encode_finite)


def test_a_first_row_that_does_not_fit_concerns_no_other(frame_of: Frames) -> None:
    X = frame_of({"age": [float("inf"), 40.0, 50.0]})

    source = batches_of(X, batch_size=8, encode=encode_finite, strict=False)

    rows = torch.cat(list(source))
    assert rows.isnan().ravel().tolist() == [True, False, False]


def test_names_in_a_stream_are_sent_to_one_frame(frame_of: Frames) -> None:
    batch = frame_of({"city": ["Oslo", "Rome"]})
    with pytest.raises(TypeError, match="needs all rows in one frame"):
        read([batch, batch])
