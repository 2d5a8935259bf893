"""Prototypes, criticisms and duplicates, written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nobsp.neighbors import ContributionIndex, audit
from tests.neighbors.audit_cases import CLASSES, noisy, units


@pytest.mark.parametrize("space", ["activations", "contributions"])
def test_prototypes_are_those_of_the_greedy_choice_written_out(space):
    head, rows, truth = noisy(150)
    index = ContributionIndex(head, space=space).fit(rows, truth)
    found = index.prototypes(per_class=3)
    weight = head.weight.detach().numpy().astype(np.float64)
    predicted = audit(index).predicted
    known = np.asarray(rows, np.float64)
    assert np.array_equal(found.labels, np.repeat(np.arange(CLASSES), 3))
    for number in range(CLASSES):
        members = np.flatnonzero((truth == number) & (predicted == number))
        if space == "activations":
            vectors = units(known[members], known)
        else:
            evidence = weight * (known - known.mean(0))[:, None]
            scaled = (evidence[members, number] - evidence[:, number].mean(0)) / np.sqrt(
                evidence.var(0).mean(0)
            )
            vectors = scaled / np.linalg.norm(scaled, axis=1, keepdims=True)
        similarity, chosen = vectors @ vectors.T, []
        for _ in range(3):
            gains = {
                i: similarity[[*chosen, i]].max(0).sum()
                for i in range(len(members))
                if i not in chosen
            }
            chosen.append(max(gains, key=gains.get))
        assert found.of(number).tolist() == members[chosen].tolist()
        whose = similarity[chosen].argmax(0)
        assert np.allclose(
            found.shares[found.labels == number], np.bincount(whose, minlength=3) / len(members)
        )
        near = [similarity[chosen[j], whose == j].mean() for j in range(3)]
        assert np.allclose(found.similarity[found.labels == number], near, atol=1e-5)


def test_duplicates_are_the_pairs_that_are_near_enough_of_all_pairs():
    head, rows, truth = noisy(120)
    rng = np.random.default_rng(3)
    rows[40] = rows[7]
    rows[[90, 91]] = rows[12] + 0.01 * rng.normal(size=(2, rows.shape[1])).astype(np.float32)
    truth[[7, 40]] = [0, 1]
    truth[[12, 90, 91]] = 2
    index = ContributionIndex(head).fit(rows, truth)
    for threshold in (0.0, 0.1, 0.7):
        found = index.duplicates(threshold, k=119)
        vectors = units(rows, rows)
        table = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
        first, second = np.nonzero(np.triu(table <= threshold + 1e-12, 1))
        assert {tuple(pair) for pair in found.pairs.tolist()} == set(
            zip(first.tolist(), second.tolist(), strict=True)
        )
        assert np.allclose(found.distances, table[tuple(found.pairs.T)], atol=1e-7)
        assert (np.diff(found.distances) >= 0).all()
    found = index.duplicates(0.1)
    assert [group.tolist() for group in found.groups] == [[12, 90, 91], [7, 40]]
    assert found.conflicting.tolist() == [False, True]
    assert found.to_frame()["conflicting"].tolist() == [
        set(pair) == {7, 40} for pair in found.pairs.tolist()
    ]


def test_a_database_of_one_row_has_no_duplicates():
    head, rows, truth = noisy(1)
    assert len(ContributionIndex(head).fit(rows, truth).duplicates()) == 0


def test_prototypes_need_classes_and_right_predictions():
    head, rows, truth = noisy(60)
    predicted = ContributionIndex(head).fit(rows).query(rows, 1).predicted
    with pytest.raises(ValueError, match="none stands for its class"):
        ContributionIndex(head).fit(rows, (predicted + 1) % CLASSES).prototypes()
    few = ContributionIndex(head).fit(rows, truth).prototypes(per_class=1000)
    assert sorted(few.indices.tolist()) == np.flatnonzero(predicted == truth).tolist()
    with pytest.raises(ValueError, match="no prototypes of class 7; there are 0, 1, 2"):
        few.of(7)


def test_an_explainer_instead_of_an_index_is_told_what_to_make_of_it():
    with pytest.raises(
        TypeError, match=r"index must be a ContributionIndex\(explainer\)\.fit.*found Linear"
    ):
        audit(torch.nn.Linear(2, 2))


def test_rows_of_a_test_set_that_are_in_the_database_are_leaks():
    head, rows, truth = noisy(200)
    fresh = np.concatenate([rows[[5, 40]], noisy(10, seed=9)[1]])
    found = ContributionIndex(head).fit(rows, truth).duplicates(0.05, X=fresh)
    assert found.pairs.tolist() == [[0, 5], [1, 40]]
    assert found.groups == ()
    assert found.to_frame().columns.tolist() == ["first", "second", "distance"]


def test_criticisms_are_the_rows_least_like_any_prototype():
    head, rows, truth = noisy(200)
    index = ContributionIndex(head, space="activations").fit(rows, truth)
    found, predicted = index.prototypes(2), audit(index).predicted
    vectors = units(rows, rows)
    for number in range(CLASSES):
        members = np.flatnonzero((truth == number) & (predicted == number))
        near = (vectors[members] @ vectors[found.of(number)].T).max(1)
        own = found.criticisms[found.labels == number]
        assert set(own) == set(members[np.argsort(near)[:2]])
