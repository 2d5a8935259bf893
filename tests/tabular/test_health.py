"""Each verdict can be provoked, says what to do, and is silent where all is well."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from nobsp import NObSP
from nobsp.tabular import Finding, Health

NAMES = ["a", "b", "c"]


class Additive(nn.Module):
    """One function per column and nothing else, so that singles explain everything."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 1)

    def forward(self, x):
        return self.head(torch.cat([torch.tanh(x), torch.sin(x)], dim=1))


class Product(nn.Module):
    """Nothing but interactions: x0·x1, x1·x2."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 1)

    def forward(self, x):
        return self.head(x[:, :2] * x[:, 1:])


@pytest.fixture(autouse=True)
def _same_weights():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture(scope="module")
def table():
    return pd.DataFrame(np.random.default_rng(0).normal(size=(400, 3)), columns=NAMES)


def relu_net(width=32):
    return nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 1))


def findings(health, subject):
    return [finding for finding in health.findings if finding.subject == subject]


def test_a_sound_calibration_has_nothing_to_say(table):
    health = NObSP(Additive()).fit(table).health()
    assert health.findings == ()
    assert health.healthy
    assert str(health).splitlines()[-1] == "Nothing to worry about."
    assert "400 rows, 3 terms; the terms carry at least 100.0% of each output." in str(health)
    assert health.rows == 400
    assert [term.term for term in health.terms] == [("a",), ("b",), ("c",)]
    assert all(term.rank >= 1 and 0 < term.unique_share <= 1 for term in health.terms)


def test_few_rows_for_the_columns(table):
    health = NObSP(relu_net()).fit(table[:15]).health()
    assert not health.healthy
    assert "More columns" in health.findings[0].message
    assert "Calibrate on more" in health.findings[0].message
    assert health.columns > 15


def test_few_rows_for_the_width_of_a_published_fit(table):
    health = NObSP.as_published(relu_net()).fit(table[:20]).health()
    assert "Fewer rows (20) than the representation is wide (32)" in str(health)
    assert 'use reference="terms"' in str(health)
    assert "interaction" not in " ".join(f.message for f in findings(health, "output"))


@pytest.mark.parametrize("reference", ["terms", "complement"])
def test_a_column_the_network_ignores(table, reference):
    net = relu_net()
    with torch.no_grad():
        net[0].weight[:, 1] = 0
    explainer = NObSP(net, reference=reference).fit(table)
    [found] = findings(explainer.health(), "b")
    assert found.severity == "note"
    assert "contributes nothing" in found.message
    assert not explainer(table)[:, "b"].values.any()


@pytest.mark.parametrize("reference", ["terms", "complement"])
def test_a_constant_column(table, reference):
    explainer = NObSP(relu_net(), reference=reference).fit(table.assign(b=1.0))
    [found] = findings(explainer.health(), "b")
    assert "contributes nothing" in found.message
    assert not explainer(table.assign(b=1.0))[:, "b"].values.any()
    assert explainer(table).outside[:, 1].all()


@pytest.mark.parametrize("copy", [lambda a: a, lambda a: 3 - 2 * a])
def test_a_duplicated_feature_names_its_twin(table, copy):
    health = NObSP(relu_net()).fit(table.assign(c=copy(table["a"]))).health()
    assert "It repeats 'a'" in findings(health, "c")[0].message
    assert "It repeats 'c'" in findings(health, "a")[0].message
    assert "Group them as one feature" in findings(health, "a")[0].message
    assert not findings(health, "b")
    assert not health.healthy


def test_strong_overlap_short_of_a_copy(table):
    near = table.assign(c=table["a"] + 1e-3 * table["c"])
    health = NObSP(relu_net()).fit(near).health()
    [found] = [finding for finding in health.findings if "of the spread is their own" in finding.message]
    assert {"a", "c"} <= set(found.subject.split(", "))
    assert "b" not in found.subject.split(", ")
    assert "Read their bands" in found.message


def test_a_weak_share_asks_for_interactions(table):
    net = Product()
    health = NObSP(net, output_names=["profit"], interactions=0).fit(table).health()
    [found] = findings(health, "profit")
    assert found.severity == "warning"
    assert 'set interactions="auto"' in found.message
    assert not findings(NObSP(net, interactions=2).fit(table).health(), "output")
    some = NObSP(net, interactions=[("a", "c")]).fit(table).health()
    assert "fit more of them" in findings(some, "output")[0].message


def test_rows_to_be_explained_may_leave_the_range(table):
    explainer = NObSP(Additive()).fit(table)
    assert explainer.health(table).findings == ()
    rows = table.copy()
    rows.loc[:99, "b"] = 50.0
    health = explainer.health(rows)
    [found] = health.findings
    assert found.subject == "b"
    assert "25.0% of the rows lie outside the calibrated range" in found.message
    assert explainer.health().healthy


def test_unseen_categories_are_reported_not_refused():
    net = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 1))
    codes = torch.randint(0, 4, (90, 2), generator=torch.Generator().manual_seed(0))
    explainer = NObSP(net).fit(codes)
    health = explainer.health(torch.tensor([[4, 0], [1, 1]]))
    assert "50.0% of the rows" in findings(health, "x0")[0].message
    assert not findings(health, "x1")


def test_a_table_that_never_changes_does_not_break_anything(table):
    explainer = NObSP(relu_net().double()).fit(table.iloc[[0] * 30])
    health = explainer.health()
    assert len(findings(health, "a")) == 1
    assert "–" in str(health)
    ex = explainer(table[:3])
    assert not ex.values.any()
    assert np.isnan(explainer(table.iloc[[0] * 30]).explained()).all()
    assert np.allclose(ex.base_values + ex.residual, ex.predictions)


def test_warnings_come_first_and_the_notebook_shows_words(table):
    net = Product()
    health = NObSP(net).fit(table.assign(c=1.0)).health(table.assign(c=1.0) * 3)
    severities = [finding.severity for finding in health.findings]
    assert severities == sorted(severities, key=["warning", "note"].index)
    assert repr(health) == str(health)
    lines = str(health).splitlines()
    assert len(lines) == 1 + len(health.findings)
    assert all(line.startswith(("warning: ", "note: ")) for line in lines[1:])
    assert all(line.endswith(".") for line in lines)


def test_health_can_be_built_and_compared():
    finding = Finding("note", "a", "Said.")
    first, second = (Health((finding,), (), (1.0,), 3, 2) for _ in range(2))
    assert first == second
    assert first.healthy
