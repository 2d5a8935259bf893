"""However the rows arrive, whole, in batches, in shards or once only, the calibration is the same."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from nobsp import NObSP
from tests.processes import run_python
from tests.tabular.nets import Net, Passes, net, one_product, table
from tests.tabular.oracles import error
from tests.tabular.ranks import city_model, city_table
from tests.tolerances import COEFFICIENTS, CONTRIBUTIONS, assert_same_to_rounding

REFERENCES = ["terms", "complement"]


def coefficients(explainer: NObSP) -> np.ndarray:
    """What a calibration solved for: coefficients as published, otherwise the functions themselves."""
    estimate = explainer._fitted.estimate
    if estimate.published is None:
        outputs = len(explainer.output_names_)
        tables = [table.values.reshape(-1, outputs) for table in explainer.functions_.tables]
        direct = [torch.cat([term.delta, term.offset[None]]).numpy() for term in estimate.direct]
        return np.concatenate([*tables, *direct, explainer.base_values_[None]])
    solution, terms = estimate.published.solution, estimate.terms
    parts = [solution.matrices[term] for term in terms]
    offsets = [solution.offsets[term][None] for term in terms]
    return torch.cat([*parts, *offsets, solution.base[None]]).numpy()


def assert_same(found: NObSP, expected: NObSP, within: float = COEFFICIENTS) -> None:
    a, b = coefficients(found), coefficients(expected)
    assert found.terms_ == expected.terms_
    assert_same_to_rounding(a, b, within=within)


def pieces(X: Any, size: int = 70) -> list[Any]:
    return [X[i : i + size] for i in range(0, len(X), size)]


def kinds_of_data(X: np.ndarray) -> dict[str, Any]:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    tensor, labels = torch.tensor(X), torch.arange(len(X))
    names = [f"x{k}" for k in range(X.shape[1])]
    return {
        "fortran": np.asfortranarray(X),
        "tensor": tensor,
        "tensor with gradient": tensor.clone().requires_grad_(),
        "loader": DataLoader(tensor, batch_size=64),
        "loader with labels": DataLoader(TensorDataset(tensor, labels), batch_size=64),
        "list of arrays": pieces(X),
        "list of pairs": [(part, np.zeros(len(part))) for part in pieces(X)],
        "list of uneven batches": [X[:1], X[1:200], X[200:]],
        "re-iterable": Passes(pieces(X)),
        "pandas": pandas.DataFrame(X, columns=names),
        "polars": polars.DataFrame(X, schema=names),
        "list of lists": X.tolist(),
    }


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("interactions", [0, [["x0", "x1"]]])
def test_the_kind_of_data_does_not_matter(reference: str, interactions: Any) -> None:
    X = table("silu", 500)
    X[:, 4] = np.round(X[:, 4])
    model = net("silu", outputs=2)
    expected = NObSP(model, reference=reference, interactions=interactions).fit(X)
    for name, data in kinds_of_data(X).items():
        found = NObSP(model, reference=reference, interactions=interactions).fit(data)
        assert_same(found, expected)
        values = found(X[:20]).values
        assert (
            error(values, expected(X[:20]).values, expected(X).predictions.std(0)) < CONTRIBUTIONS
        ), name


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("batch_size", [7, 64, 100_000])
def test_the_batch_size_does_not_matter(reference: str, batch_size: int) -> None:
    model, X = net("gelu", outputs=2), table("gelu", 150)
    expected = NObSP(model, reference=reference, interactions=[["x0", "x3"]]).fit(X)
    found = NObSP(
        model, reference=reference, interactions=[["x0", "x3"]], batch_size=batch_size
    ).fit(X)
    # Coefficients carry the rounding of forward passes of another shape along directions that hardly matter.
    assert_same(found, expected)
    rows = table("gelu", 30, seed=4)
    assert (
        error(found(rows).values, expected(rows).values, expected(X).predictions.std(0))
        < CONTRIBUTIONS
    )


def test_the_order_of_rows_does_not_matter_as_published() -> None:
    model, X = net("tanh", outputs=2), table("tanh", 400)
    given = {"interactions": 0, "reference": "complement", "ridge": 1e-4}
    expected = NObSP(model, **given).fit(X)
    assert_same(NObSP(model, **given).fit(X[np.argsort(X[:, 0])]), expected)


@pytest.mark.parametrize("given", [np.float32, np.float64, np.int64])
def test_the_precision_of_the_table_does_not_matter_where_it_holds_the_numbers(given: type) -> None:
    """Quarters, or whole numbers, are the same numbers in any precision, and so is the mean taken of them."""
    model = net("silu", outputs=2)
    X = np.round(table("silu", 300) * (1 if given is np.int64 else 4)) / (
        1 if given is np.int64 else 4
    )
    expected = NObSP(model, interactions=0).fit(X)
    found = NObSP(model, interactions=0).fit(X.astype(given))
    assert_same_to_rounding(found.baseline_, expected.baseline_)
    assert_same(found, expected)
    assert_same_to_rounding(found(X.astype(given)).values, expected(X).values, within=CONTRIBUTIONS)


# ---------------------------------------------------------------------- passes


@pytest.mark.parametrize(
    "baseline",
    ["zero", [0.0, 0.5, 1.0, 0.0, 0.0], dict.fromkeys(["x0", "x1", "x2", "x3", "x4"], 0.0)],
)
@pytest.mark.parametrize("reference", REFERENCES)
def test_one_pass_where_the_baseline_is_given(baseline: Any, reference: str) -> None:
    model, X = net("relu"), table("relu", 500)
    data = Passes(pieces(X))
    found = NObSP(model, interactions=0, baseline=baseline, reference=reference).fit(data)
    assert data.passes == 1
    assert_same(found, NObSP(model, interactions=0, baseline=baseline, reference=reference).fit(X))


@pytest.mark.parametrize("baseline", ["mean", "median", "mode", {"x0": 1.0}])
def test_two_passes_where_it_has_to_be_found_as_published(baseline: Any) -> None:
    model, X = net("relu"), table("relu", 500).round(1)
    data, given = (
        Passes(pieces(X)),
        {"interactions": 0, "baseline": baseline, "reference": "complement"},
    )
    found = NObSP(model, **given).fit(data)
    assert data.passes == 2
    assert_same(found, NObSP(model, **given).fit(X))


def test_functions_take_one_pass_whatever_the_baseline() -> None:
    model, X = net("relu"), table("relu", 500)
    data = Passes(pieces(X))
    found = NObSP(model, interactions=0).fit(data)
    assert data.passes == 1
    assert_same(found, NObSP(model, interactions=0).fit(X))
    assert_same(NObSP(model, interactions=0).fit(iter(pieces(X))), found)


@pytest.mark.parametrize("reference", REFERENCES)
def test_data_that_can_be_read_once_is_read_once(reference: str) -> None:
    model, X = net("relu", outputs=2), table("relu", 500)
    read = []

    def once() -> Iterator[np.ndarray]:
        for part in pieces(X):
            read.append(len(part))
            yield part

    found = NObSP(model, baseline="zero", reference=reference, interactions=[["x0", "x2"]]).fit(
        once()
    )
    assert sum(read) == 500
    assert_same(
        found,
        NObSP(model, baseline="zero", reference=reference, interactions=[["x0", "x2"]]).fit(X),
    )


@pytest.mark.parametrize("reiterable", [False, True])
def test_a_stream_may_fill_the_same_memory_with_every_batch(reiterable: bool) -> None:
    model, X = net("relu"), table("relu", 600)

    class Refilled:
        def __iter__(self) -> Iterator[np.ndarray]:
            buffer = np.empty((100, X.shape[1]))
            for start in range(0, len(X), 100):
                buffer[:] = X[start : start + 100]
                yield buffer
            buffer[:] = np.nan

    data = Refilled() if reiterable else iter(Refilled())
    found = NObSP(model, baseline="zero", interactions=0).fit(data)
    assert_same(found, NObSP(model, baseline="zero", interactions=0).fit(X))


@pytest.mark.parametrize("baseline", ["mean", "median", "mode", {"x0": "mean"}])
def test_data_that_can_be_read_once_cannot_give_the_baseline(baseline: Any) -> None:
    with pytest.raises(ValueError, match=r"X can be read only once.*baseline.*pass its values"):
        NObSP(net("relu"), interactions=0, baseline=baseline, reference="complement").fit(
            iter(pieces(table("relu", 200).round(1)))
        )


def test_a_single_pass_over_more_rows_than_the_bases_need_is_as_good_as_two() -> None:
    """The first 16,384 rows fix the bases of a single pass, a sample of all rows those of two."""
    model, X = net("silu", columns=2, seed=1), table("silu", 40_000, columns=2)
    once = NObSP(model, interactions=0, baseline="zero", reference="complement").fit(
        iter(pieces(X, 4000))
    )
    twice = NObSP(model, interactions=0, baseline="zero", reference="complement").fit(X)
    rows = X[(np.abs(X) < 3).all(1)][::100]
    assert error(once(rows).values, twice(rows).values, twice(rows).predictions.std(0)) < 2e-3


def test_memory_does_not_grow_with_the_rows() -> None:
    """In a stream of 1,000,000 rows the peak of the process stands still from the 200,000th row on."""
    script = textwrap.dedent(
        """
        import resource
        import numpy as np, torch
        torch.set_num_threads(1)
        from nobsp import NObSP
        from tests.tabular.nets import net

        peaks = []

        def rows():
            rng = np.random.default_rng(0)
            for _ in range(250):
                peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
                yield rng.standard_normal((4000, 16), dtype=np.float32)

        model = net("relu", columns=16, width=8, dtype=torch.float32)
        NObSP(model, baseline="zero", interactions=0).fit(rows())
        print(peaks[-1] - peaks[50])
        """
    )
    grown = run_python(script)
    rows_in_kib = 800_000 * 16 * 4 / 1024
    assert int(grown.stdout) < 0.1 * rows_in_kib


# ---------------------------------------------------------------------- shards


def shards(model: Net, X: np.ndarray, count: int, **options: Any) -> list[NObSP]:
    options = {"interactions": 0, **options}
    like = NObSP(model, **options).fit(X) if options.get("reference") == "complement" else None
    return [NObSP(model, **options).fit(part, like=like) for part in np.array_split(X, count)]


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("interactions", [0, [["x0", "x1", "x2"]], 2])
def test_shards_merge_to_the_calibration_on_all_rows(reference: str, interactions: Any) -> None:
    model, X = net("silu", outputs=2), table("silu", 600)
    whole = NObSP(model, reference=reference, interactions=interactions).fit(X)
    parts = shards(model, X, 3, reference=reference, interactions=interactions)
    together = parts[0].merge(parts[1]).merge(parts[2])
    assert_same(together, whole)
    rows = table("silu", 30, seed=8)
    assert_same_to_rounding(together(rows).values, whole(rows).values, within=CONTRIBUTIONS)
    assert together.health().rows == 600


def test_a_second_table_merges_into_the_first_as_published() -> None:
    """fit(X1), then fit(X2, like=first): together they are fit(both) with the first's baseline and bases."""
    model, given = net("relu", outputs=2), {"interactions": 0, "reference": "complement"}
    X1, X2 = table("relu", 300), table("relu", 200, seed=5) + 0.3
    first = NObSP(model, **given).fit(X1)
    second = NObSP(model, **given).fit(X2, like=first)
    whole = NObSP(model, **given).fit(np.vstack([X1, X2]), like=first)
    np.testing.assert_array_equal(second.baseline_, first.baseline_)
    assert_same(first.merge(second), whole)


def test_the_ranges_of_both_tables_are_known_after_a_merge() -> None:
    """A pipeline; the young are in one table, the old in the other."""
    frame, model = city_table().sort_values("age"), city_model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an interaction that no term holds
        parts = [NObSP(model, interactions=0).fit(part) for part in (frame[:250], frame[250:])]
        together, whole = parts[0].merge(parts[1]), NObSP(model, interactions=0).fit(frame)
    assert not together(frame).outside.any()
    assert together.functions_.features == whole.functions_.features
    assert_same(together, whole)


@pytest.mark.parametrize("reference", REFERENCES)
def test_the_order_and_grouping_of_merges_do_not_matter(reference: str) -> None:
    model, X = net("tanh", outputs=2), table("tanh", 600)

    def a_b_c() -> list[NObSP]:
        return shards(model, X, 3, reference=reference)

    a, b, c = a_b_c()
    left = a.merge(b).merge(c)
    a, b, c = a_b_c()
    right = a.merge(b.merge(c))
    a, b, c = a_b_c()
    backwards = c.merge(b).merge(a)
    assert_same(right, left)
    if reference == "complement":  # functions know the order of the rows by their background
        assert_same(backwards, left)


def test_merging_leaves_the_other_as_it_was() -> None:
    model, X = net("relu"), table("relu", 400)
    a, b = shards(model, X, 2)
    before, rows = coefficients(b), b.health().rows
    a.merge(b)
    np.testing.assert_array_equal(coefficients(b), before)
    assert b.health().rows == rows == 200


def test_explainers_of_other_features_do_not_merge() -> None:
    model, X = net("relu"), table("relu", 300)
    first = NObSP(model, interactions=0).fit(X)
    for other in ({"features": {"a": [0, 1], "b": [2, 3, 4]}}, {"reference": "complement"}):
        with pytest.raises(ValueError, match="calibrate both alike"):
            first.merge(NObSP(model, interactions=0, **other).fit(X))


@pytest.mark.parametrize(
    "other",
    [
        {"baseline": "zero"},
        {"interactions": [["x0", "x1"]]},
        {"reference": "terms"},
        {"features": {"a": [0, 1], "b": [2, 3, 4]}},
    ],
    ids=["baseline", "terms", "reference", "groups"],
)
def test_unlike_calibrations_do_not_merge_and_are_unharmed(other: dict[str, Any]) -> None:
    model, X = net("relu", outputs=2), table("relu", 300)
    given = {"interactions": 0, "reference": "complement"}
    first, second = NObSP(model, **given).fit(X), NObSP(model, **{**given, **other}).fit(X)
    before = coefficients(first), coefficients(second)
    with pytest.raises(ValueError, match=r"fit\(X, like=first\)|reference=\"complement\""):
        first.merge(second)
    np.testing.assert_array_equal(coefficients(first), before[0])
    np.testing.assert_array_equal(coefficients(second), before[1])


def test_calibrations_on_other_rows_without_like_do_not_merge() -> None:
    model = net("relu", outputs=2)
    first, second = (
        NObSP(model, interactions=0, reference="complement").fit(table("relu", 300, seed=seed))
        for seed in (0, 1)
    )
    with pytest.raises(ValueError, match="baselines, terms or bases differ"):
        first.merge(second)


def test_calibrations_of_different_models_do_not_merge() -> None:
    X = table("relu", 300)
    first, second = (
        NObSP(net("relu", seed=0), interactions=0).fit(X),
        NObSP(net("relu", seed=1), interactions=0).fit(X),
    )
    before = coefficients(first)
    with pytest.raises(ValueError, match="different models"):
        first.merge(second)
    published = NObSP(net("relu", seed=0), interactions=0, reference="complement").fit(X)
    with pytest.raises(ValueError, match="different models"):
        NObSP(net("relu", seed=1), interactions=0, reference="complement").fit(X, like=published)
    np.testing.assert_array_equal(coefficients(first), before)


def test_like_takes_the_columns_by_name() -> None:
    """A shard whose columns stand in another order is the same shard."""
    pandas = pytest.importorskip("pandas")
    model, X = net("relu"), table("relu", 300)
    frame = pandas.DataFrame(X, columns=list("abcde"))
    given = {"interactions": 0, "reference": "complement"}
    first = NObSP(model, **given).fit(frame)
    same = NObSP(model, **given).fit(frame, like=first)
    turned = NObSP(model, **given).fit(frame[list("edcba")], like=first)
    assert_same(turned, same)


def test_like_refuses_another_number_of_columns() -> None:
    given = {"interactions": 0, "reference": "complement"}
    first = NObSP(net("relu"), **given).fit(table("relu", 300))
    with pytest.raises(ValueError, match="4 columns"):
        NObSP(net("relu"), **given).fit(table("relu", 300, columns=4), like=first)


def test_like_is_for_the_published_form_only() -> None:
    model, X = net("relu"), table("relu", 300)
    first = NObSP(model, interactions=0).fit(X)
    with pytest.raises(ValueError, match=r'^like needs reference="complement" on both'):
        NObSP(model, interactions=0).fit(X, like=first)


def test_an_explainer_of_all_terms_does_not_merge_into_one_as_published() -> None:
    model, X = net("relu"), table("relu", 300)
    first = NObSP(model, interactions=0, reference="complement").fit(X)
    second = NObSP(model, interactions=0).fit(X)
    with pytest.raises(ValueError, match=r'^other needs reference="complement" on both'):
        first.merge(second)


def test_like_works_in_one_pass_on_data_that_can_be_read_once() -> None:
    model, X = net("relu"), table("relu", 400)
    given = {"interactions": 0, "reference": "complement"}
    first = NObSP(model, **given).fit(X[:200])
    second = NObSP(model, **given).fit(iter(pieces(X[200:])), like=first)
    assert_same(
        first.merge(second), NObSP(model, **given).fit(X, like=NObSP(model, **given).fit(X[:200]))
    )


def test_fitting_again_replaces() -> None:
    model = net("relu", outputs=2)
    X1, X2 = table("relu", 300), table("relu", 200, seed=5)
    twice = NObSP(model, interactions=0).fit(X1).fit(X2)
    assert_same(twice, NObSP(model, interactions=0).fit(X2), 0.0)


def test_pairs_chosen_automatically_are_chosen_from_a_stream_as_well() -> None:
    """Batches of unknown number, and few of them: the choice needs held-out rows, which a batch can be cut for."""
    model, X = one_product(4), table("relu", 1200, columns=4)
    expected = NObSP(model, baseline="zero", interactions="auto").fit(X).terms_
    assert ("x0", "x1") in expected
    assert NObSP(model, baseline="zero", interactions="auto").fit(iter([X])).terms_ == expected
    assert NObSP(model, baseline="zero", interactions="auto").fit(Passes([X])).terms_ == expected


def test_curves_from_a_stream_have_bands_as_well() -> None:
    model, X = net("relu"), table("relu", 2000)
    curves = NObSP(model, interactions=0, baseline="zero").fit(iter(pieces(X, 1000))).curves(5)
    assert np.isfinite(curves["lower"]).all()


@pytest.mark.parametrize(
    "other",
    [
        {"reference": "terms"},
        {"ridge": 10.0},
        {"baseline": "zero"},
        {"interactions": 2},
        {"features": list("abcde")},
    ],
)
def test_taking_over_a_plan_with_other_options_is_an_error_that_names_them(
    other: dict[str, Any],
) -> None:
    model, X = net("relu"), table("relu", 200)
    given = {"interactions": 0, "reference": "complement"}
    first = NObSP(model, **given).fit(X)
    with pytest.raises(ValueError, match=f"like has {next(iter(other))}="):
        NObSP(model, **{**given, **other}).fit(X, like=first)


def test_options_that_are_equal_but_not_identical_are_alike() -> None:
    model, X = net("relu"), table("relu", 200)
    first = NObSP(
        model, baseline=np.zeros(5), interactions=[("x0", "x1")], reference="complement"
    ).fit(X)
    NObSP(model, baseline=[0.0] * 5, interactions=(["x0", "x1"],), reference="complement").fit(
        X, like=first
    )
