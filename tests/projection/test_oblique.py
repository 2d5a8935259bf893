"""Definition 3.1, Theorems 3.1 to 3.3 and Supplement B as properties of the projector."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from nobsp.projection import Ridge, partial_coefficients
from tests.projection.oracles import moments_of, normal
from tests.projection.projectors import (
    centred,
    complement_projector,
    oblique_coefficients,
    oblique_projector,
    orthonormal_basis,
    project,
    transfer_matrix,
)

SEEDS = st.integers(0, 10_000)


@st.composite
def subspaces(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Two subspaces in direct sum whose smallest angle is not tiny, with bases of any condition up to 1e3."""
    seed, target, reference = draw(SEEDS), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    rows = draw(st.integers(target + reference, 12))
    scales = 10.0 ** torch.from_numpy(
        np.random.default_rng(seed).uniform(-1.5, 1.5, target + reference)
    )
    both = normal(seed, rows, target + reference)
    assume(float(torch.linalg.cond(both)) < 1e3)
    both = both * scales
    return both[:, :target], both[:, target:]


def close(found: Tensor, expected: Tensor, scale: float = 1.0) -> bool:
    return (
        bool((found - expected).abs().max() <= 1e-9 * scale)
        if found.numel()
        else found.shape == expected.shape
    )


def size(projector: Tensor) -> float:
    return float(torch.linalg.matrix_norm(projector, 2)) + 1.0


@given(subspaces(), SEEDS)
def test_every_vector_lands_in_the_target(spaces: tuple[Tensor, Tensor], seed: int) -> None:
    target, reference = spaces
    projector = oblique_projector(target, reference)
    landed = projector @ normal(seed, target.shape[0], 3)
    assert close(
        complement_projector(target) @ landed, torch.zeros_like(landed), size(projector) ** 2
    )


@given(subspaces(), SEEDS)
def test_vectors_of_the_target_are_left_as_they_are(
    spaces: tuple[Tensor, Tensor], seed: int
) -> None:
    target, reference = spaces
    projector = oblique_projector(target, reference)
    inside = target @ normal(seed, target.shape[1], 2)
    assert close(projector @ inside, inside, size(projector) * float(inside.abs().max()))


@given(subspaces(), SEEDS)
def test_vectors_of_the_reference_are_annihilated(spaces: tuple[Tensor, Tensor], seed: int) -> None:
    target, reference = spaces
    projector = oblique_projector(target, reference)
    inside = reference @ normal(seed, reference.shape[1], 2)
    assert close(
        projector @ inside, torch.zeros_like(inside), size(projector) * float(inside.abs().max())
    )


@given(subspaces())
def test_projecting_twice_is_projecting_once(spaces: tuple[Tensor, Tensor]) -> None:
    projector = oblique_projector(*spaces)
    assert close(projector @ projector, projector, size(projector) ** 2)


@given(subspaces())
def test_the_projector_is_the_formula_of_definition_3_1(spaces: tuple[Tensor, Tensor]) -> None:
    target, reference = (m.numpy() for m in spaces)
    q = np.eye(len(target)) - reference @ np.linalg.pinv(reference)
    expected = target @ np.linalg.pinv(target.T @ q @ target, rcond=1e-13) @ target.T @ q
    projector = oblique_projector(*spaces)
    assert close(projector, torch.from_numpy(expected), 1e3 * size(projector) ** 2)


@given(SEEDS, st.integers(1, 4), st.integers(1, 4))
def test_orthogonal_subspaces_give_the_orthogonal_projector(
    seed: int, first: int, second: int
) -> None:
    frame = torch.linalg.qr(normal(seed, 10, first + second)).Q
    target = frame[:, :first] @ normal(seed + 1, first, first)
    reference = frame[:, first:] @ normal(seed + 2, second, second)
    assume(float(torch.linalg.cond(target)) < 1e4)
    orthogonal = frame[:, :first] @ frame[:, :first].T
    assert close(oblique_projector(target, reference), orthogonal)


@given(subspaces(), SEEDS)
def test_any_basis_of_the_same_subspaces_gives_the_same_projector(
    spaces: tuple[Tensor, Tensor], seed: int
) -> None:
    target, reference = spaces
    changes = [normal(seed + i, m.shape[1], m.shape[1] + 2) for i, m in enumerate(spaces)]
    assume(all(float(torch.linalg.cond(c)) < 1e2 for c in changes))
    other = oblique_projector(target @ changes[0], reference @ changes[1])  # redundant columns too
    assert close(other, oblique_projector(target, reference), size(other) ** 2)


@given(subspaces(), SEEDS)
def test_projecting_vectors_equals_multiplying_by_the_projector(
    spaces: tuple[Tensor, Tensor], seed: int
) -> None:
    vectors = normal(seed, spaces[0].shape[0], 3)
    projector = oblique_projector(*spaces)
    assert close(project(vectors, *spaces), projector @ vectors, 10 * size(projector))


@given(subspaces())
def test_target_and_reference_swapped_give_the_identity_on_their_sum(
    spaces: tuple[Tensor, Tensor],
) -> None:
    target, reference = spaces
    both = torch.cat(spaces, dim=1)
    there, back = oblique_projector(target, reference), oblique_projector(reference, target)
    assert close((there + back) @ both, both, size(there) * float(both.abs().max()))


@given(SEEDS)
def test_where_the_subspaces_meet_the_shared_part_is_annihilated(seed: int) -> None:
    shared, own, other = normal(seed, 9, 1), normal(seed + 1, 9, 2), normal(seed + 2, 9, 2)
    target, reference = torch.cat([shared, own], 1), torch.cat([other, shared], 1)
    projector = oblique_projector(target, reference)
    assert close(projector @ reference, torch.zeros_like(reference), size(projector) ** 2 * 10)
    assert close(projector @ projector, projector, size(projector) ** 2 * 10)
    # The coefficients are the smallest that do it (Moore and Penrose's).
    q = complement_projector(reference)
    assert close(
        oblique_coefficients(own, target, reference),
        torch.linalg.pinv(q @ target, rtol=1e-9) @ own,
        1e2,
    )


@given(SEEDS, st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_transfer_matrix_carries_the_heads_weights_to_the_coefficients(
    seed: int, width: int, reference_width: int, outputs: int
) -> None:
    rows = 16
    target, reference = (
        centred(normal(seed, rows, width)),
        centred(normal(seed + 1, rows, reference_width)),
    )
    representation, weights = (
        centred(normal(seed + 2, rows, width)),
        normal(seed + 3, outputs, width),
    )
    omega = transfer_matrix(target, reference, representation)
    y = representation @ weights.T
    assert omega.shape == (width, width)
    direct = oblique_coefficients(y, target, reference)
    scale = 10 * float(direct.abs().max()) + 1
    assert close(omega @ weights.T, direct, scale)
    moments = moments_of(target=target, reference=reference, outputs=y)
    assert close(partial_coefficients(moments, ridge=Ridge(0.0)).coefficients, direct, scale * 10)


@given(SEEDS)
def test_a_vanishing_ridge_gives_the_direct_projector(seed: int) -> None:
    target, reference, y = (centred(normal(seed + i, 20, w)) for i, w in enumerate((3, 4, 2)))
    moments = moments_of(target=target, reference=reference, outputs=y)
    direct = project(y, target, reference)
    errors = []
    for ridge in (1e-2, 1e-5, 1e-8):
        beta = partial_coefficients(moments, ridge=Ridge(ridge, "absolute")).coefficients
        errors.append(float((target @ beta - direct).abs().max()))
    assert errors[2] < 1e-7
    assert errors[2] < 1e-2 * errors[1] < 1e-4 * errors[0]  # linear in λ


def test_orthogonal_contributions_and_residual_add_up_to_the_outputs() -> None:
    frame = torch.linalg.qr(centred(normal(0, 30, 6))).Q
    blocks = [frame[:, :2], frame[:, 2:3], frame[:, 3:]]
    y = normal(1, 30, 2)
    parts = [project(y, own, torch.cat([b for b in blocks if b is not own], 1)) for own in blocks]
    assert close(sum(parts, torch.zeros_like(y)), frame @ (frame.T @ y))


@given(SEEDS, st.integers(1, 5), st.integers(0, 5))
def test_complement_projector_is_symmetric_idempotent_and_kills_the_reference(
    seed: int, width: int, copies: int
) -> None:
    reference = normal(seed, 8, width)
    reference = torch.cat([reference, reference[:, :1].repeat(1, copies)], 1)
    q = complement_projector(reference)
    assert close(q, q.T)
    assert close(q @ q, q)
    assert close(q @ reference, torch.zeros_like(reference), 10)
    assert round(float(q.trace())) == 8 - width


def test_centring_removes_the_mean_and_nothing_else() -> None:
    rows = normal(0, 7, 3) + 100
    middle = torch.eye(7, dtype=torch.float64) - 1 / 7  # equation B.8
    assert close(centred(rows), middle @ rows, 10)
    assert centred(rows.float()).dtype == torch.float64


def test_basis_spans_the_columns_whatever_their_precision() -> None:
    rows = normal(0, 20, 2) @ normal(1, 2, 6)
    for matrix in (rows, rows.float()):
        basis = orthonormal_basis(matrix)
        assert basis.dtype == torch.float64
        assert close(basis.T @ basis, torch.eye(basis.shape[1], dtype=torch.float64))
    assert orthonormal_basis(rows).shape == (20, 2)


def test_an_empty_reference_leaves_the_orthogonal_projector() -> None:
    target, nothing = normal(0, 6, 2), torch.zeros(6, 0, dtype=torch.float64)
    assert close(oblique_projector(target, nothing), target @ torch.linalg.pinv(target))
    assert close(complement_projector(nothing), torch.eye(6, dtype=torch.float64))


def test_an_empty_or_zero_target_projects_to_zero() -> None:
    reference, v = normal(0, 6, 2), normal(1, 6, 3)
    for target in (torch.zeros(6, 0, dtype=torch.float64), torch.zeros(6, 2, dtype=torch.float64)):
        assert bool((project(v, target, reference) == 0).all())
        assert project(v, target, reference).shape == v.shape


def test_a_target_inside_the_reference_projects_to_zero() -> None:
    reference, v = normal(0, 9, 3) * 1e3, normal(1, 9, 2)
    assert bool((project(v, reference @ normal(2, 3, 2), reference) == 0).all())


@pytest.mark.parametrize("name", ["vectors", "target", "reference"])
@pytest.mark.parametrize(
    ("bad", "kind", "what"),
    [
        (torch.ones(5, 2, dtype=torch.int64), TypeError, "floating-point"),
        (torch.full((5, 2), torch.nan), ValueError, "not finite"),
        (torch.full((5, 2), torch.inf), ValueError, "not finite"),
        (torch.ones(5), ValueError, "two dimensions"),
        (torch.ones(1, 2), ValueError, "at least two rows"),
        (np.ones((5, 2)), TypeError, "floating-point"),
    ],
)
def test_bad_matrices_are_refused_by_name(
    name: str, bad: object, kind: type[Exception], what: str
) -> None:
    given_: dict[str, object] = {n: normal(0, 5, 2) for n in ("vectors", "target", "reference")} | {
        name: bad
    }
    with pytest.raises(kind, match=f"{name} .*{what}"):
        project(**given_)  # type: ignore[arg-type]


def test_rows_that_do_not_match_are_refused_with_their_numbers() -> None:
    with pytest.raises(ValueError, match=r"same number of rows, found 5, 6 and 7"):
        project(normal(0, 5, 1), normal(1, 6, 1), normal(2, 7, 1))


@pytest.mark.parametrize("function", [centred, complement_projector, orthonormal_basis])
@pytest.mark.parametrize(
    "bad", [torch.ones(3, 2, dtype=torch.int32), torch.full((3, 2), torch.nan)]
)
def test_every_entrance_refuses_bad_matrices(function: object, bad: Tensor) -> None:
    with pytest.raises((TypeError, ValueError), match=r"matrix|reference"):
        function(bad)  # type: ignore[operator]
