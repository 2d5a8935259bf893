"""Names that people guess from other packages are answered with what does their work here."""

import copy

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

import nobsp
from nobsp import elsewhere
from nobsp.base import Plots


@pytest.fixture(scope="module")
def explainer() -> nobsp.NObSP:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    return nobsp.NObSP(model, interactions=0).fit(torch.randn(200, 2))


@pytest.mark.parametrize("name", sorted(elsewhere.PACKAGE))
def test_the_package_answers_to_names_of_others(name: str) -> None:
    with pytest.raises(AttributeError) as failure:
        getattr(nobsp, name)
    assert elsewhere.PACKAGE[name] in str(failure.value)


def test_explainers_and_explanations_answer_to_names_of_others(explainer: nobsp.NObSP) -> None:
    explanation = explainer(torch.zeros(3, 2))
    for owner, names in ((explainer, elsewhere.EXPLAINER), (explanation, elsewhere.EXPLANATION)):
        for name, advice in names.items():
            assert not hasattr(owner, name), f"{name} exists, so nothing must be said about it"
            with pytest.raises(AttributeError) as failure:
                getattr(owner, name)
            assert advice in str(failure.value)


def test_results_do_not_have_what_is_said_to_be_missing() -> None:
    for owner, names in (
        (nobsp.ActivationMaps, elsewhere.MAPS),
        (nobsp.Audit, elsewhere.AUDIT),
        (nobsp.NObSP, elsewhere.EXPLAINER),
    ):
        assert set(names).isdisjoint(dir(owner))


def test_a_misspelt_name_gets_the_closest_one(explainer: nobsp.NObSP) -> None:
    with pytest.raises(AttributeError, match="'importance'"):
        explainer.importanse  # type: ignore[attr-defined]  # noqa: B018


def test_what_a_property_raises_is_told(explainer: nobsp.NObSP) -> None:
    with pytest.raises(NotFittedError):
        nobsp.NObSP(explainer.model).base_values_  # noqa: B018


def test_copies_go_through(explainer: nobsp.NObSP) -> None:
    values = explainer(torch.zeros(3, 2)).values
    copied = copy.deepcopy(explainer)
    np.testing.assert_allclose(copied(torch.zeros(3, 2)).values, values, atol=1e-9)


def test_plots_answer_to_names_of_others_and_to_a_call(explainer: nobsp.NObSP) -> None:
    with pytest.raises(AttributeError, match="importance"):
        explainer(torch.zeros(3, 2)).plot.bar  # noqa: B018
    with pytest.raises(TypeError, match=r"plot\.curves"):
        explainer.plot()
    assert callable(Plots(explainer, ("curves",)).curves)


@pytest.mark.parametrize("name", sorted(elsewhere.PLOT_FUNCTIONS))
def test_the_plots_answer_to_names_of_others(name: str) -> None:
    if hasattr(nobsp.plots, name):
        return
    with pytest.raises(AttributeError) as failure:
        getattr(nobsp.plots, name)
    assert elsewhere.PLOT_FUNCTIONS[name] in str(failure.value)


def test_a_misspelt_plot_gets_the_closest_one() -> None:
    with pytest.raises(AttributeError, match="'waterfall'"):
        nobsp.plots.waterfal  # type: ignore[attr-defined]  # noqa: B018
