"""Pairs that isolate a feature, and deltas over them."""

import numpy as np
import pytest
from scipy import stats

from nobsp.metrics import UndefinedScoreWarning, delta_agreement, find_pairs

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 5))
CLASSES = RNG.integers(0, 3, size=40)
GROUPS = {"a": [0], "pair": [1, 4], "b": [2], "c": [3]}


def pairs_by_definition(X, classes, groups, percentile=15.0):
    """Supplement D.2 word by word."""
    found = set()
    for feature, members in enumerate(groups):
        others = [column for column in range(X.shape[1]) if column not in members]
        candidates = [
            (i, j) for i in range(len(X)) for j in range(i + 1, len(X)) if classes[i] == classes[j]
        ]
        delta = [np.linalg.norm(X[i, members] - X[j, members]) for i, j in candidates]
        distance = [np.linalg.norm(X[i, others] - X[j, others]) for i, j in candidates]
        least = np.median([one for one in delta if one > 0])
        most = np.percentile(distance, percentile)
        found |= {
            (feature, *pair)
            for pair, moved, far in zip(candidates, delta, distance, strict=True)
            if moved >= least and far <= most
        }
    return found


def as_set(pairs):
    return set(
        zip(pairs.feature.tolist(), pairs.first.tolist(), pairs.second.tolist(), strict=True)
    )


def test_pairs_are_those_of_the_definition() -> None:
    found = as_set(find_pairs(X, classes=CLASSES))
    assert found == pairs_by_definition(X, CLASSES, [[k] for k in range(5)])
    assert found


def test_a_group_differs_by_the_distance_in_its_columns() -> None:
    found = find_pairs(X, classes=CLASSES, groups=GROUPS)
    assert as_set(found) == pairs_by_definition(X, CLASSES, list(GROUPS.values()))
    assert found.feature_names == ("a", "pair", "b", "c")


def test_differences_of_zero_do_not_lower_what_counts_as_a_difference() -> None:
    rows = X.copy()
    rows[6:, 3] = 0.0
    found = as_set(find_pairs(rows, classes=CLASSES))
    assert found == pairs_by_definition(rows, CLASSES, [[k] for k in range(5)])
    assert all(rows[i, k] != rows[j, k] for k, i, j in found)


def test_without_classes_any_two_rows_may_pair() -> None:
    assert as_set(find_pairs(X)) == pairs_by_definition(X, np.zeros(40), [[k] for k in range(5)])


def test_pairs_identical_in_all_other_columns_are_close_whatever_rounding_says() -> None:
    rows = np.column_stack([RNG.normal(size=30), np.full(30, 0.1), np.full(30, 1e3)])
    moved = np.median(np.abs(rows[:, 0][:, None] - rows[:, 0])[np.triu_indices(30, 1)])
    expected = sum(
        abs(rows[i, 0] - rows[j, 0]) >= moved for i in range(30) for j in range(i + 1, 30)
    )
    assert find_pairs(rows).per_feature() == {"x0": expected, "x1": 0, "x2": 0}


def test_at_most_so_many_pairs_are_kept_and_the_seed_decides_which() -> None:
    few, again, other = (find_pairs(X, max_pairs=4, seed=seed) for seed in (0, 0, 1))
    assert max(few.per_feature().values()) == 4
    assert as_set(few) == as_set(again) != as_set(other)
    assert as_set(few) < as_set(find_pairs(X))


def test_rows_beyond_the_limit_are_sampled_and_keep_their_positions() -> None:
    few = find_pairs(X, max_rows=20)
    assert len({*few.first, *few.second}) <= 20
    assert max(few.second) >= 20
    assert few.rows == 40


def test_scores_are_pearson_and_normalised_error_over_the_pairs() -> None:
    pairs = find_pairs(X, classes=CLASSES)
    attributions, outputs = RNG.normal(size=(40, 5)), RNG.normal(size=40)
    score = delta_agreement(attributions, outputs, pairs)
    triples = sorted(as_set(pairs))
    explained = np.array([attributions[j, k] - attributions[i, k] for k, i, j in triples])
    changed = np.array([outputs[j] - outputs[i] for _, i, j in triples])
    assert score.pearson == pytest.approx(stats.pearsonr(explained, changed).statistic)
    assert score.nrmse == pytest.approx(
        np.sqrt(((explained - changed) ** 2).mean()) / changed.std()
    )
    own = np.array([k == 2 for k, _, _ in triples])
    assert score.feature_pearson[2] == pytest.approx(
        stats.pearsonr(explained[own], changed[own]).statistic
    )
    assert score.pairs == len(triples)


def test_an_additive_model_agrees_best_with_its_own_parts() -> None:
    rows = RNG.normal(size=(150, 3))
    parts = np.column_stack([rows[:, 0] ** 2, np.sin(rows[:, 1]), 2 * rows[:, 2]])
    pairs = find_pairs(rows)
    right = delta_agreement(parts, parts.sum(axis=1), pairs)
    wrong = delta_agreement(parts[:, ::-1], parts.sum(axis=1), pairs)
    assert right.pearson > 0.9 > wrong.pearson
    assert right.nrmse < wrong.nrmse


def test_no_pairs_is_nan_with_a_warning() -> None:
    pairs = find_pairs(X, classes=np.arange(40))
    assert len(pairs) == 0
    assert set(pairs.per_feature().values()) == {0}
    with pytest.warns(UndefinedScoreWarning, match="no pairs"):
        score = delta_agreement(X, X[:, 0], pairs)
    assert np.isnan(
        [score.pearson, score.nrmse, *score.feature_pearson, *score.feature_nrmse]
    ).all()


def test_rows_that_are_all_the_same_have_no_pairs() -> None:
    assert len(find_pairs(np.ones((5, 3)))) == 0


def test_an_output_that_never_changes_is_nan_with_a_warning() -> None:
    with pytest.warns(UndefinedScoreWarning, match="deltas are the same"):
        assert np.isnan(delta_agreement(X, np.ones(40), find_pairs(X)).pearson)


def test_an_explanation_that_never_changes_has_an_error_but_no_correlation() -> None:
    with pytest.warns(UndefinedScoreWarning, match="deltas are the same"):
        score = delta_agreement(np.ones((40, 5)), X[:, 0], find_pairs(X))
    assert np.isnan(score.pearson)
    assert score.nrmse > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"classes": [1, 2]}, "one class for each of the 40 rows"),
        ({"max_pairs": 0}, "max_pairs must be .* found 0"),
        ({"max_rows": 1}, "max_rows must be .* found 1"),
        ({"distance_percentile": 101}, "between 0 and 100"),
        ({"groups": {"a": [0]}}, "column"),
    ],
)
def test_selections_that_make_no_sense_are_named(options, words) -> None:
    with pytest.raises(ValueError, match=words):
        find_pairs(X, **options)


def test_one_row_makes_no_pair() -> None:
    with pytest.raises(ValueError, match="1 rows, and comparing rows needs at least 2"):
        find_pairs(X[:1])


@pytest.mark.parametrize(
    ("attributions", "outputs", "words"),
    [
        (X[:, :4], X[:, 0], "found among 40 rows with 5 features"),
        (X[:39], X[:, 0], "found among 40 rows with 5 features"),
        (X, X[:39, 0], "outputs has 39 rows"),
    ],
)
def test_deltas_of_other_rows_are_refused(attributions, outputs, words) -> None:
    with pytest.raises(ValueError, match=words):
        delta_agreement(attributions, outputs, find_pairs(X))
