"""Calibration stays within the memory it is given, and finds the same there."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pytest

from nobsp import Local, NObSP
from nobsp.calibration.local import parse_bytes
from nobsp.published import sums
from tests.processes import run_python
from tests.tabular.nets import Passes, net, table
from tests.tabular.test_merge_and_stream import assert_same, pieces

# Five features of a network of width 12 have sums of at most (12 + 12 + 2)² numbers each, and bases of 12².
LARGEST, BASES = 8 * (12 + 12 + 2) ** 2, 5 * 8 * 12**2


def room_for(features: int) -> int:
    """The memory in which so many features' sums have room: half of it, or three quarters less the bases."""
    return max(2 * features * LARGEST, -(-4 * (features * LARGEST + BASES) // 3))


def complement(**options: Any) -> NObSP:
    return NObSP(
        net("silu", outputs=2), **{"reference": "complement", "interactions": 0, **options}
    )


@pytest.mark.parametrize("baseline", ["zero", "mean"])
@pytest.mark.parametrize("interactions", [0, [["x0", "x1"], ["x2", "x3"]]])
def test_several_passes_find_what_one_pass_finds(interactions: Any, baseline: str) -> None:
    X, options = table("silu", 500), {"interactions": interactions, "baseline": baseline}
    expected, data = complement(**options).fit(Passes(pieces(X))), Passes(pieces(X))
    found = complement(**options).fit(data, engine=Local(memory=room_for(2)))
    assert_same(found, expected, 1e-12)
    np.testing.assert_allclose(found(X).values, expected(X).values, atol=1e-12)
    looks_ahead = baseline == "mean"
    assert data.passes > 2 + looks_ahead
    assert found.health().rows == 500


def test_as_many_features_as_fit_share_a_pass() -> None:
    """Each of the five features has a full set of sums here."""
    X = table("silu", 500)
    for fitting, expected in ((1, 5), (2, 3), (4, 2), (5, 1)):
        data = Passes(pieces(X))
        complement(baseline="zero").fit(data, engine=Local(memory=room_for(fitting)))
        assert data.passes == expected


def test_an_explainer_made_in_passes_explains_but_does_not_merge() -> None:
    X = table("silu", 500)
    found = complement().fit(X, engine=Local(memory=room_for(2)))
    assert np.isfinite(found(X).values).all()
    assert np.isnan(found.curves(5)["lower"]).all()
    with pytest.raises(ValueError, match="more memory"):
        found.merge(found)


def test_an_explainer_made_in_passes_comes_back_from_its_file(tmp_path: Any) -> None:
    X = table("silu", 500)
    found = complement().fit(X, engine=Local(memory=room_for(2)))
    found.save(tmp_path / "explainer")
    again = NObSP.load(tmp_path / "explainer", net("silu", outputs=2))
    np.testing.assert_array_equal(again(X).values, found(X).values)


def test_rows_that_can_be_read_once_need_memory_for_one_pass() -> None:
    rows = iter(pieces(table("silu", 500)))
    with pytest.raises(
        ValueError, match=r"X can be read only once, but within memory.* read [3-5] times"
    ):
        complement(baseline="zero").fit(rows, engine=Local(memory=room_for(2)))


def test_a_checkpoint_needs_memory_for_one_pass(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="checkpoint needs a calibration in one pass"):
        complement().fit(
            table("silu", 500), engine=Local(tmp_path / "under way", memory=room_for(2))
        )


def test_a_limit_that_holds_nothing_names_what_is_needed() -> None:
    X = table("silu", 500)
    with pytest.raises(
        ValueError, match=r"memory is 1,000 bytes but this calibration needs at least [\d,]+"
    ) as e:
        complement().fit(X, engine=Local(memory=1000))
    needed = int(str(e.value).partition("at least ")[2].partition(";")[0].replace(",", ""))
    complement().fit(X, engine=Local(memory=needed))
    with pytest.raises(ValueError, match="needs at least"):
        complement().fit(X, engine=Local(memory=needed - 2))


def test_blocks_for_bands_give_way_first() -> None:
    X = table("silu", 500)
    roomy, tight = complement().fit(X), complement().fit(X, engine=Local(memory=room_for(5)))
    blocks = [
        {len(parts) for parts in one._fitted.estimate.published.parts.values()}
        for one in (roomy, tight)
    ]
    assert blocks == [{sums.BLOCKS}, {1}]
    assert_same(tight, roomy)


def test_a_calibration_of_few_features_is_a_small_object() -> None:
    plan = complement().fit(table("silu", 500))._fitted.estimate.published.plan
    assert all(
        basis.untyped_storage().nbytes() == 8 * basis.numel() for basis in plan.bases.values()
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("4GB", 4 * 10**9),
        ("4 GiB", 4 << 30),
        ("0.5mb", 500_000),
        ("16k", 16_000),
    ],
)
def test_limits_are_given_in_bytes_or_in_words(given: int | str, expected: int) -> None:
    assert parse_bytes(given) == expected


@pytest.mark.parametrize(
    "given", [0, -5, "0GB", "much", "4 apples", "", "-1GB", 1.5, True, None, "4ib"]
)
def test_other_limits_are_an_error(given: Any) -> None:
    with pytest.raises(ValueError, match="memory must be"):
        complement().fit(table("silu", 50), engine=Local(memory=given))


def test_many_features_stay_within_the_limit() -> None:
    """300 features of width 96 whose sums alone would take 90 MB: the process grows by less than its limit."""
    script = textwrap.dedent(
        """
        import resource, torch
        torch.set_num_threads(1)
        from nobsp import Local, NObSP
        from tests.tabular.nets import net, table
        model, X = net("gelu", columns=300, width=96), table("gelu", 600, columns=300)
        NObSP(net("gelu"), interactions=0, reference="complement").fit(table("gelu", 600))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        NObSP(model, interactions=0, reference="complement", batch_size=600).fit(X, engine=Local(memory="100MB"))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        """
    )
    done = run_python(script)
    assert int(done.stdout) * 1024 < 100e6
