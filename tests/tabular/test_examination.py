"""The headline can be believed, or a finding says why not."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from nobsp import NObSP
from nobsp.tabular.clusters import Neighbourhoods
from nobsp.tabular.correction import scatter_of_share
from nobsp.tabular.examination import few_rows_findings
from nobsp.tabular.health import ExplainedWorseWarning, far_finding
from tests.tolerances import assert_same_to_rounding


def network(columns: int, *, scale: float = 3.0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(columns, 32), nn.Tanh(), nn.Linear(32, 1)).double().eval()
        with torch.no_grad():
            model[0].weight.mul_(scale)
    return model


def codes(explainer: NObSP, X: Any = None) -> set[str]:
    return {finding.code for finding in explainer.health(X).findings}


def clustered(clusters: int, rows_each: int, noise: float) -> Any:
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(clusters, 8))
    rows = np.repeat(centres, rows_each, axis=0)
    rows = rows + noise * generator.normal(size=rows.shape)
    return rows, generator.normal(size=(3000, 8))


def test_clusters_that_nobody_named_are_noticed_and_choose_the_ridge() -> None:
    rows, fresh = clustered(60, 20, 0.05)
    explainer = NObSP(network(8), interactions=3).fit(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # neighbourhoods tell that these functions are useless
        unaware = NObSP(network(8), interactions=3, ridge=1e-5).fit(rows)
    truth = explainer.score(fresh)
    assert "clusters" in codes(explainer)
    assert truth > unaware.score(fresh) + 0.05
    assert explainer.health().neighbourhoods[0] == pytest.approx(truth, abs=0.1)


def test_strengths_that_only_neighbourhoods_choose_have_a_headline() -> None:
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(150, 10))
    rows = np.repeat(centres, 10, axis=0) + 0.3 * generator.normal(size=(1500, 10))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        explainer = NObSP(network(10)).fit(rows)
    assert "clusters" in codes(explainer)
    assert np.isfinite(explainer.explained_).all()


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_rows_without_clusters_raise_no_alarm(correlation: float) -> None:
    generator = np.random.default_rng(1)
    common = generator.normal(size=(800, 1))
    own = generator.normal(size=(800, 8))
    rows = correlation**0.5 * common + (1 - correlation) ** 0.5 * own
    assert "clusters" not in codes(NObSP(network(8), interactions=0).fit(rows))


@pytest.mark.parametrize(
    ("row_wise", "apart", "is_clustered"),
    [
        (0.95, 0.85, True),
        (0.93, 0.85, True),
        (0.75, 0.63, True),
        (0.84, 0.77, False),  # whole numbers, independent
        (0.69, 0.63, False),
        (0.99, 0.98, False),
    ],
)
def test_a_loss_as_rows_at_the_rim_have_it_tells_of_no_clusters(
    row_wise: float, apart: float, *, is_clustered: bool
) -> None:
    neighbourhoods = Neighbourhoods(
        codes=np.zeros(0, dtype=np.intp),
        regression=None,  # type: ignore[arg-type]
        row_wise=torch.tensor([row_wise]),
        explained=torch.tensor([apart]),
        scatter=torch.tensor([0.015]),
        typical_loss=torch.tensor([0.04]),
    )
    assert bool(neighbourhoods.clustered) == is_clustered


@pytest.mark.parametrize("seed", [0, 3])
def test_whole_numbers_without_clusters_raise_no_alarm(seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 7, size=(600, 6)).astype(float)
    assert "clusters" not in codes(NObSP(network(6), interactions=0).fit(rows))


def test_named_groups_are_not_called_clusters() -> None:
    rows, _ = clustered(60, 20, 0.05)
    explainer = NObSP(network(8), interactions=0).fit(rows, groups=np.repeat(np.arange(60), 20))
    assert "clusters" not in codes(explainer)


@pytest.mark.parametrize("groups", ["one per row", "shuffled", "four years"])
def test_groups_that_are_not_the_clusters_do_not_hide_them(groups: str) -> None:
    rows, fresh = clustered(60, 20, 0.05)
    named = np.arange(1200)
    if groups == "shuffled":
        named = np.random.default_rng(0).permutation(np.repeat(np.arange(60), 20))
    elif groups == "four years":
        named = np.arange(1200) % 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # neighbourhoods tell that these functions are useless
        explainer = NObSP(network(8), interactions=3).fit(rows, groups=named)
        truth = explainer.score(fresh)
    assert explainer.explained_[0] > truth + 0.2
    assert "clusters" in codes(explainer)


def test_copies_across_groups_that_join_most_of_them_do_not_hide_clusters() -> None:
    rows, fresh = clustered(50, 20, 0.1)
    generator = np.random.default_rng(1)
    is_copy = generator.random(len(rows)) < 0.3
    rows[is_copy] = rows[generator.integers(0, len(rows), is_copy.sum())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explainer = NObSP(network(8), interactions=0).fit(rows, groups=np.repeat(np.arange(50), 20))
        truth = explainer.score(fresh)
    assert explainer.explained_[0] > truth + 0.1
    assert "clusters" in codes(explainer)


def test_groups_that_copies_undo_are_warned_of_and_neighbourhoods_choose_the_ridge() -> None:
    rows, fresh = clustered(60, 20, 0.05)
    generator = np.random.default_rng(1)
    is_copy = generator.random(len(rows)) < 0.7
    rows[is_copy] = rows[generator.integers(0, len(rows), is_copy.sum())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explainer = NObSP(network(8), interactions=3).fit(rows, groups=np.repeat(np.arange(60), 20))
        truth = explainer.score(fresh)
    findings = {finding.code: finding for finding in explainer.health().findings}
    assert findings["groups"].severity == "warning"
    assert "60 groups were not" in findings["groups"].message
    assert "fit(X, groups=" not in findings["clusters"].message
    assert explainer.explained_[0] == pytest.approx(truth, abs=0.1)


def test_few_rows_have_no_headline_or_a_note() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 3))
    two = NObSP(network(3)).fit(rows[:2])
    sixty = NObSP(network(3)).fit(rows[:60])
    assert np.isnan(two.explained_).all()
    assert "few_rows" in codes(two)
    assert "few_rows" in codes(sixty)
    assert "few_rows" not in codes(NObSP(network(3)).fit(rows))


@pytest.mark.parametrize(
    ("units", "grouped", "explained", "severity"),
    [
        (10, True, 0.95, "warning"),
        (20, False, 0.95, "warning"),
        (60, True, 1.0, "note"),
        (100, False, 0.8, "warning"),
        (100, True, 0.8, "note"),
        (100, False, 0.95, None),
        (250, False, 0.8, "note"),
        (300, False, 0.8, None),
    ],
)
def test_what_is_few_rows_depends_on_what_is_unexplained(
    units: int, grouped: bool, explained: float, severity: str | None
) -> None:
    findings = few_rows_findings(5000, units, explained=explained, grouped=grouped, weighted=False)
    assert [finding.severity for finding in findings] == ([severity] if severity else [])


def test_rows_that_are_equal_by_chance_are_not_called_different() -> None:
    found = few_rows_findings(64, 640, explained=0.5, grouped=False, weighted=False)
    assert found[0].message.startswith("Held-out R² was measured on only 640 rows: ")


def test_groups_of_which_one_holds_most_rows_are_not_called_fewer_than_they_are() -> None:
    rows = np.random.default_rng(0).normal(size=(600, 3))
    site = np.where(np.arange(600) < 560, 0, np.arange(600) % 5)
    explainer = NObSP(network(3), interactions=0).fit(rows, groups=site)

    messages = {finding.code: finding.message for finding in explainer.health().findings}
    assert "as much as 1 group, as some of the 5 hold more rows" in messages["few_rows"]
    assert "5 groups in 600 rows" in messages["groups"]


@pytest.mark.parametrize(("units", "said"), [(1, "too few to tell"), (20, "about 0.38 less")])
def test_no_more_of_the_headline_is_lost_than_there_is(units: int, said: str) -> None:
    found = few_rows_findings(1500, units, explained=0.5, grouped=True, weighted=False)
    assert f"{said} " in found[0].message
    assert "on rows of new groups" in found[0].message
    assert "Calibrate on 380 groups or more." in found[0].message


def test_the_headline_of_few_groups_says_how_much_less_to_expect() -> None:
    """Ten sites of a hundred rows: R² of new sites is .1 less, though rows are many."""
    generator = np.random.default_rng(3)
    sites = generator.normal(size=(400, 6))
    site = generator.integers(0, 10, 1000)
    near_sites = 0.3 * generator.normal(size=(1000, 6))
    explainer = NObSP(network(6)).fit(sites[site] + near_sites, groups=site)
    fresh = explainer.score(sites[generator.integers(10, 400, 1000)] + near_sites)

    findings = {finding.code: finding for finding in explainer.health().findings}
    told = float(re.findall(r"about ([\d.]+) less", findings["few_rows"].message)[0])
    assert findings["few_rows"].severity == "warning"
    assert explainer.explained_[0] - 3 * told <= fresh <= explainer.explained_[0]


def test_the_standard_error_counts_rows_that_belong_together_once() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(200, 2, generator=generator, dtype=torch.float64)
    residuals = 0.3 * torch.randn(200, 2, generator=generator, dtype=torch.float64)
    apart = scatter_of_share(residuals, outputs, np.arange(200))

    together = scatter_of_share(
        residuals.repeat(3, 1), outputs.repeat(3, 1), np.tile(np.arange(200), 3)
    )

    assert_same_to_rounding(together, apart)


def test_the_standard_error_is_how_far_r_squared_scatters() -> None:
    generator = torch.Generator().manual_seed(1)
    shares = []
    errors = []
    for _ in range(400):
        outputs = torch.randn(300, 1, generator=generator, dtype=torch.float64)
        residuals = 0.3 * torch.randn(300, 1, generator=generator, dtype=torch.float64)
        shares.append(1 - float(residuals.square().mean() / outputs.var(correction=0)))
        errors.append(float(scatter_of_share(residuals, outputs, np.arange(300))[0]))

    # A standard deviation of 400 draws is known to 3.5%.
    assert np.mean(errors) == pytest.approx(np.std(shares), rel=0.15)


def test_the_headline_has_its_standard_error_beside_it() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 8))
    health = NObSP(network(8), interactions=0).fit(rows).health()
    assert 0.005 < health.scatter[0] < 0.1
    assert health.headline.endswith(f"{health.explained[0]:.3f} ± {health.scatter[0]:.3f}")
    assert health.headline in repr(health)


def rectified(columns: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(columns, 64), nn.ReLU(), nn.Linear(64, 1)).double().eval()


def test_a_headline_that_hangs_on_one_row_is_told_with_the_share_without_it() -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(300, 5))
    rows[7, 1] = 1e9
    explainer = NObSP(rectified(5)).fit(rows)
    assert explainer.explained_[0] > 0.999

    [finding] = [f for f in explainer.health().findings if f.code == "extreme_rows"]
    without = float(finding.message.partition("but ")[2].partition(" without")[0])
    assert finding.severity == "warning"
    assert without == pytest.approx(explainer.score(generator.normal(size=(2000, 5))), abs=0.05)
    for shown in (repr(explainer.health()), explainer._repr_html_()):
        assert "without the row of the most extreme prediction" in shown
    for shown in (repr(explainer), repr(explainer.compile())):
        assert "but health() warns: extreme_rows" in shown


@pytest.mark.parametrize("n_rows", [100, 300, 2000])
def test_rows_without_outliers_have_no_extreme_ones(n_rows: int) -> None:
    generator = np.random.default_rng(1)
    normal = generator.normal(size=(n_rows, 5))
    assert "extreme_rows" not in codes(NObSP(rectified(5), interactions=0).fit(normal))
    assert "extreme_rows" not in codes(NObSP(network(5), interactions=0).fit(np.exp(normal)))


def test_a_table_coarser_than_its_function_is_named() -> None:
    rows = np.random.default_rng(0).uniform(-1, 1, size=(1000, 2))
    found = codes(NObSP(lambda X: np.sin(400 * X[:, 0]) + X[:, 1], interactions=0).fit(rows))
    assert "coarse_table" in found
    assert "low_share" not in found


@pytest.mark.parametrize("n_codes", [100, 200])
def test_a_coarse_table_is_named_where_the_model_answers_only_for_known_codes(n_codes: int) -> None:
    generator = np.random.default_rng(0)
    value_of = dict(enumerate(generator.normal(size=n_codes)))

    def look_up(rows: Any) -> Any:
        return np.array([value_of[code] for code in rows[:, 0]]) + rows[:, 1]

    rows = np.stack([generator.integers(0, n_codes, 1000), generator.normal(size=1000)], 1)
    rows[:50, 0] = n_codes - 1  # beyond the last of the codes the model answers for none
    assert "coarse_table" in codes(NObSP(look_up, interactions=0).fit(rows))


def corner(rows: Any) -> Any:
    return rows[:, 0] + rows[:, 1] + 30 * rows[:, 2] * rows[:, 3] * rows[:, 4]


@pytest.fixture(scope="module")
def drifted() -> Any:
    """An explainer without the triple, rows like its own, and rows in a corner where no row was."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(2000, 5))
    rows[:, 2:] *= 0.2
    there = generator.normal(size=(400, 5)).clip(-2, 2)
    there[:, 2:] = 0.6 + 0.01 * generator.normal(size=(400, 3))
    return NObSP(corner, interactions=0).fit(rows[:1500]), rows[1500:], there


def test_the_share_explained_counts_bias(drifted: Any) -> None:
    explainer, _, there = drifted
    with pytest.warns(ExplainedWorseWarning):
        explanation = explainer(there)
    residual, predictions = explanation.residual, explanation.predictions
    expected = 1 - (residual**2).sum() / ((predictions - predictions.mean()) ** 2).sum()
    assert explanation.explained()[0] == pytest.approx(expected)
    assert explanation.explained()[0] < 0


def test_a_combination_far_from_all_rows_is_flagged(drifted: Any) -> None:
    explainer, like, there = drifted
    far = explainer._explain(there).far
    assert far.shape == (400,)
    assert far.mean() > 0.9
    assert explainer._explain(like).far.mean() < 0.01
    assert "far" in codes(explainer, there)


def test_an_explanation_tells_of_values_that_were_not_calibrated() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 3))
    explainer = NObSP(lambda X: X[:, 0] + X[:, 1], interactions=0).fit(rows)
    beyond = rows[:40].copy()
    beyond[:10, 1] += 20.0

    severities = {finding.code: finding.severity for finding in explainer(beyond).findings}

    assert severities["outside"] == "warning"
    assert [finding.code for finding in explainer(beyond[:1]).findings] == ["outside"]
    assert explainer(beyond[10:]).findings == ()


def test_an_explanation_of_one_class_or_of_probabilities_tells_of_values_outside() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 3))
    classes = (rows[:, 0] > 0).astype(int) + (rows[:, 1] > 1)
    explainer = NObSP(LogisticRegression().fit(rows, classes), interactions=0).fit(rows)
    explanation = explainer(rows + np.array([0.0, 20.0, 0.0]))

    for part in (explanation[:, :, "1"], explanation.to_probability()):
        assert "outside" in {finding.code for finding in part.findings}


def test_an_explanation_tells_of_rows_without_a_prediction_and_functions_alone_do_not() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 3))
    explainer = NObSP(lambda X: X[:, 0] + X[:, 1], interactions=0).fit(rows)
    incomplete = rows[:40].copy()
    incomplete[0, 0] = np.nan

    assert "no_predictions" in {finding.code for finding in explainer(incomplete).findings}
    assert "no_predictions" in codes(explainer, incomplete)
    without_model = explainer.compile()(rows[:40])
    assert "no_predictions" not in {finding.code for finding in without_model.findings}


def test_a_few_far_rows_of_thousands_are_flagged_and_not_told() -> None:
    far = np.zeros(4000, dtype=bool)
    far[:3] = True
    assert far_finding(far) is None
    assert far_finding(far[:100]) is not None
    far[:30] = True
    assert far_finding(far) is not None


def test_score_is_one_number_or_one_for_every_output() -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(300, 3))
    explainer = NObSP(
        lambda X: np.stack([X[:, 0], X[:, 1] + X[:, 1] * X[:, 2]], 1), interactions=0
    ).fit(rows)
    fresh = generator.normal(size=(300, 3))
    raw = explainer.score(fresh, multioutput="raw")
    predictions = np.stack([fresh[:, 0], fresh[:, 1] + fresh[:, 1] * fresh[:, 2]], 1)
    assert raw.shape == (2,)
    assert explainer.score(fresh) == pytest.approx(raw.mean())
    assert explainer.compile().score(fresh, predictions) == pytest.approx(raw.mean())
    with pytest.raises(ValueError, match="multioutput"):
        explainer.score(fresh, multioutput="mean")


def test_a_weighted_score_counts_rows_as_often_as_their_weights_say() -> None:
    generator = np.random.default_rng(0)
    explainer = NObSP(lambda X: X[:, 0] + X[:, 1] * X[:, 2], interactions=0)
    explainer.fit(generator.normal(size=(300, 3)))
    fresh = generator.normal(size=(200, 3))
    times = np.where(np.abs(fresh[:, 1] * fresh[:, 2]) > 1, 4, generator.integers(0, 3, 200))

    weighted = explainer.score(fresh, sample_weight=times)
    assert weighted == pytest.approx(explainer.score(np.repeat(fresh, times, axis=0)))
    assert weighted != pytest.approx(explainer.score(fresh), abs=0.01)
    with pytest.raises(ValueError, match="sample_weight"):
        explainer.score(fresh, sample_weight=times[:5])


def test_rows_that_hardly_differ_have_no_r_squared() -> None:
    generator = np.random.default_rng(0)
    explainer = NObSP(network(3), interactions=0).fit(generator.normal(size=(300, 3)))
    alike = generator.normal(size=(1, 3)) + 1e-9 * generator.normal(size=(100, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explanation = explainer(alike)
    assert np.isnan(explanation.explained()).all()
    assert np.isnan(explainer.score(alike))
    assert explanation.findings == ()


def test_a_weighted_score_of_rows_without_a_prediction_is_not_known() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 2))
    explainer = NObSP(lambda X: X[:, 0] + X[:, 1], interactions=0).fit(rows)
    fresh = rows.copy()
    fresh[:5, 0] = np.nan
    assert np.isnan(explainer.score(fresh, sample_weight=np.arange(200) < 5))
    assert explainer.score(fresh) == pytest.approx(1.0)


def test_rows_explained_worse_than_the_headline_warn_once(drifted: Any) -> None:
    explainer, like, there = drifted
    fresh = NObSP(corner, interactions=0).fit(like)
    with pytest.warns(ExplainedWorseWarning):
        explanation = fresh(there)
    fresh(there)
    assert "fresh_rows" in {finding.code for finding in explanation.findings}
    assert "fresh_rows" in codes(fresh, there)
    assert "fresh_rows" not in codes(explainer, like)
    assert not explanation[:40].findings or "fresh_rows" not in {
        finding.code for finding in explanation[:40].findings
    }


def test_rows_whose_predictions_vary_less_warn_as_well_and_are_told_from_larger_errors() -> None:
    """R² promises too much there, whether the errors grew or the predictions' spread shrank."""
    generator = np.random.default_rng(0)

    def model(rows: Any) -> Any:
        return 2 * rows[:, 0] + rows[:, 1] * rows[:, 2]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        explainer = NObSP(model, interactions=0).fit(generator.normal(size=(1000, 3)))
    narrower = generator.normal(size=(400, 3)) * [0.3, 1.0, 1.0]
    with pytest.warns(ExplainedWorseWarning, match="vary less"):
        explanation = explainer(narrower)
    findings = {finding.code: finding.severity for finding in explanation.findings}
    assert findings["fresh_rows"] == "warning"


def test_a_row_that_alone_makes_new_rows_worse_explained_is_noted() -> None:
    """A score far below the headline is not passed over because one row makes it uncertain."""
    generator = np.random.default_rng(0)

    def model(X: Any) -> Any:
        return 2 * X[:, 0] + 2 * X[:, 1] - np.maximum(X[:, 0] * X[:, 1] - 12, 0)

    explainer = NObSP(model, interactions=0).fit(generator.normal(size=(600, 2)))
    fresh = generator.normal(size=(400, 2))
    assert "fresh_rows" not in codes(explainer, fresh)
    fresh[7] = 6.0
    assert explainer.score(fresh) < 0.9
    findings = {finding.code: finding for finding in explainer(fresh).findings}
    assert findings["fresh_rows"].severity == "note"
    assert "due to one row with a very large residual: without, it is " in (
        findings["fresh_rows"].message
    )


def test_rows_explained_better_than_the_headline_are_noted() -> None:
    generator = np.random.default_rng(0)

    def model(X: Any) -> Any:
        return X[:, 0] + 3 * X[:, 1] * X[:, 2]

    rows = generator.normal(size=(600, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        explainer = NObSP(model, interactions=0).fit(rows)
    easier = generator.normal(size=(300, 3)) * [1.0, 0.3, 0.3]
    findings = {finding.code: finding.severity for finding in explainer(easier).findings}
    assert explainer.score(easier) > explainer.explained_[0] + 0.2
    assert findings["fresh_rows"] == "note"


def test_many_rows_where_nothing_happened_are_not_few_rows() -> None:
    generator = np.random.default_rng(0)
    rows = generator.gamma(1.0, size=(1000, 5))
    rows[generator.random(1000) < 0.6] = 0.0
    explainer = NObSP(lambda X: np.sqrt(X.sum(1)), interactions=0).fit(rows)
    assert np.isfinite(explainer.explained_).all()
    assert "few_rows" not in codes(explainer)


def test_rows_of_few_values_are_not_few_rows() -> None:
    rows = (np.random.default_rng(0).random((1000, 6)) < 0.3).astype(float)
    assert "few_rows" not in codes(NObSP(lambda X: X.max(1) + X[:, 0], interactions=0).fit(rows))


def test_copies_of_rows_are_few_rows() -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(60, 3))[generator.integers(0, 60, 1000)]
    assert "few_rows" in codes(NObSP(network(3), interactions=0).fit(rows))


def test_a_function_that_returns_probabilities_is_told_what_is_explained() -> None:
    def probabilities(rows: np.ndarray) -> np.ndarray:
        return np.exp(log_odds(rows)) / np.exp(log_odds(rows)).sum(1, keepdims=True)

    def log_odds(rows: np.ndarray) -> np.ndarray:
        return np.column_stack([rows[:, 0], -rows[:, 0]])

    rows = np.random.default_rng(0).normal(size=(120, 2))
    codes = [
        {finding.code for finding in NObSP(model, interactions=0).fit(rows).health().findings}
        for model in (probabilities, log_odds)
    ]
    assert "log_probabilities" in codes[0]
    assert "log_probabilities" not in codes[1]


def test_a_feature_that_acts_in_the_residual_only_is_not_called_unused() -> None:
    """It acts for one code of fifty, which neither background rows nor coarse grids show."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(1000, 4))
    rows[:, 2] = generator.integers(0, 50, 1000)
    rows[:, 3] = 1.0

    def model(X: Any) -> Any:
        return X[:, 0] + 5 * X[:, 1] * (X[:, 2] == 7)

    messages = {
        name: finding.message
        for formula, names in ((model, ["x1", "x3"]), (lambda X: X[:, 0], ["x2"]))
        for finding in NObSP(formula, interactions=0).fit(rows).health().findings
        for name in names
        if (finding.code, finding.subject) == ("constant", name)
    }
    assert "residual" in messages["x1"]
    assert "column is constant" in messages["x3"]
    assert "does not use it" in messages["x2"]
    assert "residual" not in messages["x2"]


def test_numbers_that_are_texts_are_named() -> None:
    from sklearn.ensemble import HistGradientBoostingRegressor

    age = np.random.default_rng(0).integers(18, 80, 200)
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"age": age, "code": age % 5})
    model = HistGradientBoostingRegressor(max_iter=5).fit(table, age)

    noted = NObSP(model, interactions=0).fit(table.astype(str)).health().findings
    assert [f.subject for f in noted if f.code == "numbers_as_text"] == ["age"]

    assert "numbers_as_text" not in codes(NObSP(model, interactions=0).fit(table))


def test_equal_messages_about_several_features_are_printed_once() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 9))
    rows[:, 1:8] = 1.0
    explainer = NObSP(lambda X: X[:, 0], interactions=0).fit(rows)

    constant = [f.subject for f in explainer.health().findings if f.code == "constant"]

    assert len(constant) >= 7
    printed = str(explainer.health()).splitlines()
    (line,) = [line for line in printed if line.startswith("note: x1")]
    assert line.startswith("note: x1, x2, x3, x4, x5 and 2 more: ")


def wavy(X: Any) -> Any:
    return np.sin(X[:, 0]) * X[:, 1] + X[:, 2] ** 2 + X[:, 3]


def test_copies_of_rows_are_counted() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 4))
    [told] = [
        finding
        for finding in NObSP(wavy).fit(np.tile(rows, (5, 1))).health().findings
        if finding.code == "copies"
    ]
    assert told.severity == "note"
    assert "1,200 of 1,500 rows are copies" in told.message
    assert "rests on 300 rows" in told.message


def test_rows_that_are_equal_by_chance_are_no_copies() -> None:
    rows = np.random.default_rng(0).integers(0, 3, size=(2000, 8)).astype(float)
    assert len(np.unique(rows, axis=0)) < 1800
    assert "copies" not in codes(NObSP(wavy).fit(rows))
