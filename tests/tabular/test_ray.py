"""A Ray dataset is calibrated on as if its rows had been passed here, whatever happens to its workers."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from nobsp import Local, NObSP, RayCluster
from nobsp.calibration.local import Fold
from nobsp.calibration.ray import RayRows, RayRun
from tests.cluster import CLUSTER_WARNINGS, Mortal, cluster
from tests.processes import run_python
from tests.tabular import ranks
from tests.tabular.nets import net, table
from tests.tolerances import CONTRIBUTIONS, assert_same_to_rounding

pytestmark = [pytest.mark.filterwarnings(said) for said in CLUSTER_WARNINGS]

NAMES = ["a", "b", "c", "d", "e"]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with cluster() as started:
        yield started


def frame(rows: int = 500) -> pd.DataFrame:
    """Numbers, and whole numbers of a few levels."""
    X = table("silu", rows)
    X[:, 4] = np.round(X[:, 4])
    return pd.DataFrame(X, columns=NAMES).astype({"e": "int64"})


def assert_same(found: NObSP, expected: NObSP) -> None:
    ranks.assert_same_numbers(ranks.numbers(found), ranks.numbers(expected))


# ---------------------------------------------------------------------- the same as here


def test_parquet_files_are_as_good_as_their_table(ray: Any, tmp_path: Path) -> None:
    """Uneven files with labels that are left out; batches are small, so the tree of sums has several levels."""
    whole = frame()
    for number, (start, stop) in enumerate([(0, 111), (111, 130), (130, 500)]):
        whole[start:stop].assign(label=number).to_parquet(
            tmp_path / f"{number}.parquet", row_group_size=40
        )
    dataset = ray.data.read_parquet(str(tmp_path)).drop_columns(["label"])
    options: dict[str, Any] = {"interactions": [["a", "b"]], "ridge": 1e-4, "batch_size": 16}
    model = net("silu", outputs=2)
    before = dataset.context.execution_options.preserve_order, dataset.context.enable_progress_bars
    found = NObSP(model, **options).fit(dataset)
    assert_same(found, NObSP(model, **options).fit(whole))
    assert found.functions_.feature_names == tuple(NAMES)
    assert isinstance(found.curves(), pd.DataFrame)
    assert (
        dataset.context.execution_options.preserve_order,
        dataset.context.enable_progress_bars,
    ) == before


def test_arrays_are_calibrated_on_with_all_defaults(ray: Any) -> None:
    X = table("gelu", 500, columns=4)
    model = net("gelu", columns=4, outputs=2)
    found = NObSP(model).fit(ray.data.from_numpy([X[:350], X[350:]]), progress=True)
    assert_same(found, NObSP(model).fit(X))
    assert found.functions_.feature_names == ("x0", "x1", "x2", "x3")
    assert ("x0", "x1") in found.terms_


def test_a_pipeline_sees_the_levels_of_all_blocks(ray: Any) -> None:
    whole, model = ranks.city_table(), ranks.city_model()
    dataset = ray.data.from_pandas([whole[:200], whole[200:237], whole[237:]])
    found = NObSP(model, interactions=0, batch_size=100).fit(dataset)
    expected = NObSP(model, interactions=0, batch_size=100).fit(whole)
    assert_same(found, expected)
    cities = np.array(["bergen", "rome"], dtype=object)
    assert_same_to_rounding(
        found.function("city")(cities), expected.function("city")(cities), within=CONTRIBUTIONS
    )


def test_rows_calibrated_on_ray_are_merged_with_rows_calibrated_here(ray: Any) -> None:
    whole, model = frame(), net("tanh", width=6)
    options: dict[str, Any] = {
        "reference": "complement",
        "baseline": [0.0] * 5,
        "interactions": 0,
        "ridge": 1e-3,
        "batch_size": 64,
    }
    first = NObSP(model, **options).fit(whole[:300])
    blocks = [whole[300:420], whole[:0], whole[420:]]  # one of them is empty
    second = NObSP(model, **options).fit(ray.data.from_pandas(blocks), like=first)
    expected = NObSP(model, **options).fit(whole[:300])
    expected.merge(NObSP(model, **options).fit(whole[300:], like=first))
    assert_same(first.merge(second), expected)


# ---------------------------------------------------------------------- workers


def test_a_worker_that_is_killed_on_the_way_changes_nothing(ray: Any, tmp_path: Path) -> None:
    whole, options = frame(), {"reference": "complement", "interactions": 0, "batch_size": 32}
    # Every batch takes some forward calls, so that the worker has handed in a few when it dies.
    model = Mortal(net("silu", outputs=2), tmp_path / "killed", call=40)
    found = NObSP(model, **options).fit(
        ray.data.from_pandas([whole[start : start + 50] for start in range(0, 500, 50)])
    )
    assert int((tmp_path / "killed").read_text()) != os.getpid()
    assert_same(found, NObSP(model, **options).fit(whole))


def test_parts_are_joined_in_the_order_of_rows_and_in_one_shape_however_long_each_takes(
    ray: Any,
) -> None:
    """A sum then has the same digits every time: 70 parts by eights, and what is left of them at the end."""

    def work(batch: pd.DataFrame) -> Any:
        time.sleep(random.random() / 25)
        return int(batch["n"].iloc[0])

    def joined(parts: list[Any]) -> Any:
        return reduce(lambda a, b: (a, b), parts)

    dataset = ray.data.from_pandas([pd.DataFrame({"n": [n]}) for n in range(70)])
    rows = RayRows(dataset, lambda block: [block], batch_size=1, row_bytes=1, most_rows=1)
    found = RayRun(None, 1).accumulate(rows, Fold(work, lambda a, b: (a, b)), Fold.update).value
    eights = [joined(list(range(start, start + 8))) for start in range(0, 64, 8)]
    assert found == joined([joined(eights), *range(64, 70)])


# ---------------------------------------------------------------------- errors


def with_nan() -> pd.DataFrame:
    bad = frame(60)
    bad.loc[bad.index[7], "c"] = np.nan
    return bad


BAD: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "a missing value": (
        lambda data: data.from_pandas([frame(300), with_nan()]),
        ValueError,
        r"^X \(in one of its batches\) is missing in row \d+, column 'c'",
    ),
    "a column that is missing in one block": (
        lambda data: data.from_pandas(frame(300)).union(
            data.from_pandas(frame(60).drop(columns="d"))
        ),
        ValueError,
        "lacks 'd'|is missing in row .*column 'd'",
    ),
    "words": (
        lambda data: data.from_pandas(frame(30).assign(b="w")),
        TypeError,
        "column 'b' holds String, not numbers",
    ),
    "a label": (
        lambda data: data.from_pandas(frame(30).assign(y=1.0)),
        ValueError,
        "cannot take rows with 6 columns",
    ),
    "nothing": (lambda data: data.from_pandas(frame(0)), ValueError, "X has no rows"),
    "a shard": (
        lambda data: data.from_pandas(frame(30)).iterator(),
        TypeError,
        "pass the ray.data.Dataset itself",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_datasets_are_refused_in_our_own_words(what: str, ray: Any) -> None:
    make, kind, said = BAD[what]
    explainer = NObSP(net("silu", outputs=2), interactions=0)
    with pytest.raises(kind, match=said) as failure:
        explainer.fit(make(ray.data))
    assert type(failure.value).__module__ in ("builtins", "nobsp.network.batches")
    assert not hasattr(explainer, "_calibration")


def test_a_model_that_cannot_be_sent_is_refused_before_any_row_is_read(ray: Any) -> None:
    model = net("silu")
    model.lock = threading.Lock()
    with pytest.raises(
        TypeError,
        match=r"^the model cannot be sent to Ray's workers \(cannot pickle '_thread.lock'",
    ):
        NObSP(model, reference="complement", interactions=0).fit(ray.data.from_pandas(frame(30)))


def test_engines_that_do_not_fit_the_data_are_refused(ray: Any, tmp_path: Path) -> None:
    dataset = ray.data.from_pandas(frame(30))
    with pytest.raises(ValueError, match=r"X is a Ray dataset.*engine=nobsp.RayCluster\(\)"):
        NObSP(net("silu")).fit(dataset, engine=Local(tmp_path / "under way"))
    with pytest.raises(TypeError, match="engine is RayCluster, but X is a DataFrame"):
        NObSP(net("silu")).fit(frame(30), engine=RayCluster())


def test_explaining_a_dataset_says_where_to_do_it(ray: Any) -> None:
    explainer = NObSP(net("silu"), interactions=0).fit(frame(60))
    with pytest.raises(TypeError, match=r"only `fit` takes it whole.*X\.map_batches"):
        explainer(ray.data.from_pandas(frame(30)))


def test_compiled_functions_explain_a_dataset_where_it_is(ray: Any) -> None:
    """As the documentation does it: numpy alone in the workers."""
    whole = frame(300)
    explainer = NObSP(net("silu"), interactions=0).fit(whole)
    compiled = explainer.compile()

    def explain(batch: pd.DataFrame) -> dict[str, Any]:
        ex = compiled(batch[NAMES].to_numpy(dtype=np.float64))
        return {" × ".join(term): ex.values[:, k, 0] for k, term in enumerate(ex.terms)}

    found = ray.data.from_pandas(whole).map_batches(explain, batch_format="pandas").to_pandas()
    expected = compiled(whole.to_numpy(dtype=np.float64)).values[:, :, 0]
    assert_same_to_rounding(found[NAMES].to_numpy(dtype=np.float64), expected, within=CONTRIBUTIONS)


def test_ray_is_loaded_only_where_it_is_used() -> None:
    code = (
        "import sys, numpy, torch; from nobsp import NObSP, NObSPCam\n"
        "model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))\n"
        "NObSP(model).fit(numpy.random.default_rng(0).normal(size=(50, 2)))\n"
        "assert 'ray' not in sys.modules, 'ray was loaded'"
    )
    run_python(code)
