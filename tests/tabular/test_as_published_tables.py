"""Tables and bands of Algorithm 1 are made when they are first needed, and are what the network says along a line."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nobsp
from nobsp import Functions, NObSP
from nobsp.network.guest import counting_passes
from tests.tabular.nets import net, table
from tests.tolerances import SUMS, assert_same_to_rounding

PAIR = ("x0", "x1")


def calibrate(kind: str = "silu") -> NObSP:
    """A calibration with a pair, whose tables were not asked for."""
    return NObSP.as_published(net(kind, outputs=2), interactions=[PAIR]).fit(table(kind, 300))


def has_tables(explainer: NObSP) -> bool:
    return "tables" in vars(explainer.functions_)


def assert_same_tables(found: Functions, expected: Functions) -> None:
    assert found.terms == expected.terms
    for mine, theirs in zip(found.tables, expected.tables, strict=True):
        assert_same_to_rounding(mine.values, theirs.values, within=SUMS)
    for feature, spread in expected.spreads.items():
        assert_same_to_rounding(found.spreads[feature], spread, within=SUMS)


def test_a_fit_makes_no_tables_and_reading_them_runs_the_network_once() -> None:
    explainer = calibrate()
    assert not has_tables(explainer)
    repr(explainer)
    explainer.health()
    explainer.importance()
    assert not has_tables(explainer)

    with counting_passes() as passes:
        tables = explainer.functions_.tables
        first = passes.rows
        assert first > 0
        assert explainer.functions_.tables is tables
        explainer.curves(20)
        explainer.compile()
        assert passes.rows == first
    assert has_tables(explainer)


@pytest.mark.parametrize("kind", ["relu", "silu", "embedding"])
def test_tables_are_the_functions_along_the_baseline(kind: str) -> None:
    explainer = calibrate(kind)
    functions = explainer.functions_
    assert len(functions.tables) == 6
    assert len(functions.baseline_contributions) == 6
    for term_table, term in zip(functions.tables[:5], functions.terms[:5], strict=True):
        axis = term_table.axes[0]
        x = getattr(axis, "knots", None)
        x = np.asarray(axis.levels)[:, 0] if x is None else x
        for output in range(2):
            measured = explainer.function(term, output=output)(x)
            size = float(np.abs(term_table.values).max())
            assert_same_to_rounding(
                term_table.values[:, output], measured, within=SUMS, size=10 * size
            )


@pytest.mark.parametrize(
    "touch",
    [
        lambda explainer, X: explainer(X[:3]),
        lambda explainer, X: explainer.curves(5),
        lambda explainer, X: explainer.compile(),
        lambda explainer, X: explainer.function("x0")([0.0]),
        lambda explainer, X: explainer.functions_._repr_html_(),
    ],
)
def test_whatever_is_asked_first_the_tables_are_the_same(touch: Callable[..., Any]) -> None:
    explainer = calibrate()
    touch(explainer, table("silu", 300))
    assert_same_tables(explainer.compile(), calibrate().compile())


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        lambda functions: pickle.loads(pickle.dumps(functions)),  # noqa: S301
        lambda functions: replace(functions),
    ],
)
def test_copies_of_functions_have_tables_of_their_own_and_no_rows(
    copied: Callable[[Functions], Functions],
) -> None:
    functions = calibrate().functions_
    twin = copied(functions)
    assert "tables" in vars(twin)
    assert twin._make_tables is None
    assert twin._make_bands is None
    for mine, theirs in zip(twin.tables, functions.tables, strict=True):
        assert mine.features == theirs.features
        np.testing.assert_array_equal(mine.values, theirs.values)


def test_files_pages_and_copies_of_explainers_have_tables(tmp_path: Path) -> None:
    X = table("silu", 300)
    explainer = calibrate()
    explainer.save(tmp_path / "explainer")
    loaded = NObSP.load(tmp_path / "explainer", explainer.model)
    assert has_tables(loaded)
    assert_same_tables(loaded.functions_, explainer.compile())

    functions = calibrate().functions_
    functions.save(tmp_path / "functions")
    assert_same_tables(Functions.load(tmp_path / "functions"), functions)

    twin = copy.deepcopy(calibrate())
    assert_same_tables(twin.functions_, explainer.compile())
    page = nobsp.report(calibrate()(X[:20]), tmp_path / "page.html")
    assert Path(page).stat().st_size > 0


def test_modes_of_the_caller_do_not_matter() -> None:
    expected = calibrate().compile()
    with torch.inference_mode(), torch.autocast("cpu"):
        explainer = calibrate()
        found = explainer.compile()
    assert_same_tables(found, expected)


def test_tables_of_a_model_that_has_changed_are_refused() -> None:
    explainer = calibrate()
    asked_before = calibrate()
    tables = asked_before.functions_.tables
    for changed in (explainer, asked_before):
        with torch.no_grad():
            next(changed.model.parameters()).add_(1.0)

    with pytest.raises(ValueError, match="changed"):
        explainer.curves()
    assert asked_before.functions_.tables is tables


class Amplified(nn.Module):
    """What it answers depends on a number that is no part of its state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(3, 16)
        self.head = nn.Linear(16, 1)
        self.gain = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.gain * self.first(x)))


def test_a_model_that_answers_otherwise_is_refused_though_its_weights_are_the_same() -> None:
    model = Amplified()
    rows = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    same = nobsp.NObSP(model, reference="complement", interactions=0).fit(rows)
    changed = nobsp.NObSP(model, reference="complement", interactions=0).fit(rows)
    assert len(same.curves())

    model.gain = 5.0
    with pytest.raises(ValueError, match="changed"):
        changed.curves()


def test_errors_of_properties_are_their_own() -> None:
    functions = calibrate().functions_
    with pytest.raises(AttributeError, match="no probabilities"):
        _ = functions.predict_proba
    with pytest.raises(AttributeError, match="has no 'tabels'"):
        _ = functions.tabels
