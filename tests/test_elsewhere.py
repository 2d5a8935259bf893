"""Names that people guess from other packages are answered with what does their work here."""

import copy
import inspect
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

import nobsp
from nobsp import elsewhere
from nobsp.arguments import refusing_arguments
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


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (nobsp.NObSP, elsewhere.EXPLAINER_ARGUMENTS),
        (nobsp.NObSP.fit, elsewhere.FIT_ARGUMENTS),
        (nobsp.NObSP.__call__, elsewhere.CALL_ARGUMENTS),
        (nobsp.NObSPCam, elsewhere.CAM_ARGUMENTS),
        (nobsp.NObSPCam.__call__, elsewhere.MAPS_ARGUMENTS),
    ],
)
def test_arguments_of_others_are_answered(call: Any, names: dict[str, str]) -> None:
    assert set(names).isdisjoint(inspect.signature(call).parameters)
    for name, advice in names.items():
        with pytest.raises(TypeError) as failure:
            call(None, **{name: None})
        assert f"{name!r}" in str(failure.value)
        assert advice in str(failure.value)


def test_a_misspelt_argument_gets_the_closest_one_and_others_get_all() -> None:
    with pytest.raises(TypeError, match="did you mean 'features'"):
        nobsp.NObSP(None, feature=["a"])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="there are model, features,"):
        nobsp.NObSP(None, zzz=1)  # type: ignore[call-arg]


def test_rows_beside_the_model_are_sent_to_fit() -> None:
    with pytest.raises(TypeError, match=r"NObSP\(model\)\.fit\(X\)"):
        nobsp.NObSP(None, np.zeros((3, 2)))  # type: ignore[misc]
    with pytest.raises(TypeError, match="layer="):
        nobsp.NObSPCam(None, ["layer4"])  # type: ignore[misc,arg-type]


def test_type_errors_from_within_go_through_as_they_are() -> None:
    @refusing_arguments({"b": "a="}, owner="add")
    def add(a: Any) -> Any:
        return a + 1

    assert add(a=1) == 2
    with pytest.raises(TypeError, match="concatenate"):
        add("text")
    with pytest.raises(TypeError, match="missing"):
        add()  # type: ignore[call-arg]


def test_a_model_that_is_forgotten_is_asked_for() -> None:
    with pytest.raises(TypeError, match=r"Functions\.load\(path\)"):
        nobsp.NObSP.load("explainer.nobsp")  # type: ignore[call-arg]


def test_functions_answer_to_names_of_others(explainer: nobsp.NObSP) -> None:
    functions = explainer.compile()
    for name, advice in elsewhere.FUNCTIONS.items():
        assert not hasattr(functions, name)
        with pytest.raises(AttributeError) as failure:
            getattr(functions, name)
        assert advice in str(failure.value)
    with pytest.raises(AttributeError, match="'importance'"):
        functions.importanse  # type: ignore[attr-defined]  # noqa: B018


def test_signatures_are_shown_as_they_are_written() -> None:
    assert next(iter(inspect.signature(nobsp.NObSP).parameters)) == "model"
    assert "groups" in inspect.signature(nobsp.NObSP.fit).parameters
