"""Is this calibration healthy? Angles, ranks and shares against direct computation, verdicts against cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.linalg import subspace_angles

from nobsp.projection import Moments, overlap
from tests.projection.oracles import centre, moments_of, normal
from tests.tolerances import CONTRIBUTIONS, SUMS

SEEDS = st.integers(0, 10_000)


@given(SEEDS, st.integers(1, 4), st.integers(1, 5))
def test_angles_are_the_principal_angles_between_the_centred_columns(seed: int, target: int, reference: int) -> None:
    t, a = normal(seed, 30, target) + 5, normal(seed + 1, 30, reference) - 3
    a[:, 0] += 2 * t[:, 0]
    found = overlap(moments_of(target=t, reference=a)).angles
    expected = np.sort(np.rad2deg(subspace_angles(centre(t), centre(a))))
    assert found.shape == (min(target, reference),)
    assert np.allclose(found, expected, atol=1e-5)


def test_orthogonal_and_equal_subspaces_are_told_apart() -> None:
    frame = torch.linalg.qr(torch.from_numpy(centre(normal(0, 30, 4)))).Q
    apart = overlap(moments_of(target=frame[:, :2], reference=frame[:, 2:]))
    assert np.allclose(apart.angles, 90.0, atol=1e-9)
    assert apart.unique_share == pytest.approx(1.0, abs=SUMS)
    same = overlap(moments_of(target=frame[:, :2], reference=frame[:, :2] @ normal(1, 2, 2)))
    assert float(same.angles.max()) < 1e-5
    assert same.unique_share < SUMS


@given(SEEDS, st.integers(1, 4), st.integers(1, 4))
def test_ranks_are_those_of_the_centred_rows(seed: int, target: int, reference: int) -> None:
    t = normal(seed, 40, target) @ normal(seed + 1, target, 6) + 1
    a = normal(seed + 2, 40, reference) @ normal(seed + 3, reference, 7)
    assume(np.linalg.cond(normal(seed + 1, target, 6)) < 100)
    assume(np.linalg.cond(normal(seed + 3, reference, 7)) < 100)
    seen = overlap(moments_of(target=t, reference=a))
    assert (seen.rank, seen.reference_rank, seen.rows) == (target, reference, 40)
    singular = np.linalg.svd(centre(t))[1][:target]
    assert seen.condition == pytest.approx(singular[0] / singular[-1], rel=1e-6)
    shares = singular**2 / (singular**2).sum()
    assert seen.effective_rank == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-9)
    assert 1 - 1e-9 <= seen.effective_rank <= seen.rank + 1e-9


@given(SEEDS, st.integers(1, 4), st.integers(0, 6))
def test_unique_share_is_what_least_squares_on_the_reference_leaves(seed: int, target: int, reference: int) -> None:
    t, a = normal(seed, 30, target), normal(seed + 1, 30, reference)
    if reference:
        t[:, 0] += 3 * a[:, 0]
    z, r = centre(t), centre(a)
    left = z - r @ (np.linalg.pinv(r) @ z)
    share = overlap(moments_of(target=t, reference=a)).unique_share
    assert share == pytest.approx((left**2).sum() / (z**2).sum(), abs=CONTRIBUTIONS)


def test_several_blocks_make_up_one_reference() -> None:
    t, a, b = normal(0, 50, 2), normal(1, 50, 3), normal(2, 50, 1)
    apart = overlap(moments_of(b=b, target=t, a=a), reference=["a", "b"])
    together = overlap(moments_of(target=t, reference=torch.cat([a, b], 1)))
    assert apart.unique_share == pytest.approx(together.unique_share, rel=CONTRIBUTIONS)
    assert torch.allclose(apart.angles, together.angles, atol=1e-7)
    assert apart.verdict == together.verdict


def test_no_reference_leaves_the_term_whole() -> None:
    seen = overlap(moments_of(target=normal(0, 9, 2), reference=torch.zeros(9, 0)))
    assert (seen.unique_share, seen.reference_rank, seen.verdict) == (1.0, 0, "healthy")
    assert overlap(moments_of(target=normal(0, 9, 2)), reference=[]).unique_share == 1.0


# ---------------------------------------------------------------------- verdicts


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6 + 0.1])
def test_a_constant_term_is_called_constant(value: float) -> None:
    t = torch.full((30, 3), value, dtype=torch.float64)
    seen = overlap(moments_of(target=t, reference=normal(0, 30, 2)))
    assert seen.verdict == "constant"
    assert (seen.rank, seen.effective_rank, seen.unique_share) == (0, 0.0, 0.0)
    assert seen.angles.numel() == 0
    assert "contributes nothing" in seen.advice


@pytest.mark.parametrize(("rows", "columns"), [(5, 5), (5, 20), (21, 20)])
def test_a_reference_that_spans_all_samples_is_called_few_samples(rows: int, columns: int) -> None:
    seen = overlap(moments_of(target=normal(0, rows, 2), reference=normal(1, rows, columns)))
    assert seen.verdict == "few samples"
    assert str(rows) in seen.advice
    assert str(columns) in seen.advice
    assert seen.unique_share < 1e-6


def test_many_columns_of_low_rank_are_not_called_few_samples() -> None:
    a = normal(0, 40, 3) @ normal(1, 3, 60)  # sixty columns, forty samples, three directions
    seen = overlap(moments_of(target=normal(2, 40, 2), reference=a))
    assert seen.reference_rank == 3
    assert seen.unique_share > 0.5
    assert seen.verdict == "healthy"


@pytest.mark.parametrize("factor", [1.0, -3.0, 1e4])
def test_a_duplicate_is_called_inside_the_reference(factor: float) -> None:
    a = normal(0, 50, 4)
    seen = overlap(moments_of(target=factor * a[:, :1], reference=a))
    assert seen.verdict == "inside the reference"
    assert seen.unique_share < 1e-6


@pytest.mark.parametrize(("noise", "verdict"), [(1e-2, "strong overlap"), (0.1, "strong overlap"), (1.0, "healthy")])
def test_near_duplicates_are_judged_by_what_is_their_own(noise: float, verdict: str) -> None:
    a = normal(0, 200, 4)
    seen = overlap(moments_of(target=a[:, :1] + noise * normal(1, 200, 1), reference=a))
    assert seen.verdict == verdict
    own = noise**2 / (1 + noise**2)
    assert seen.unique_share == pytest.approx(own, rel=0.3)


def test_every_verdict_comes_with_advice() -> None:
    a = normal(0, 50, 4)
    cases = {
        "healthy": moments_of(target=normal(1, 50, 2), reference=a),
        "constant": moments_of(target=torch.ones(50, 2), reference=a),
        "few samples": moments_of(target=normal(1, 4, 2), reference=normal(2, 4, 9)),
        "inside the reference": moments_of(target=a[:, :2], reference=a),
        "strong overlap": moments_of(target=a[:, :1] + 0.05 * normal(3, 50, 1), reference=a),
    }
    for verdict, moments in cases.items():
        seen = overlap(moments)
        assert seen.verdict == verdict
        assert len(seen.advice) > 20


# ---------------------------------------------------------------------- bad input


def test_fewer_than_two_rows_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="moments hold 1 rows; at least two are needed"):
        overlap(Moments({"target": 1, "reference": 1}).update(normal(0, 1, 2)))


def test_unknown_blocks_are_refused_by_name() -> None:
    moments = moments_of(target=normal(0, 5, 1), reference=normal(1, 5, 1))
    with pytest.raises(ValueError, match="no block 'other'"):
        overlap(moments, reference=["reference", "other"])
    with pytest.raises(ValueError, match="no block 'other'"):
        overlap(moments, target="other")
