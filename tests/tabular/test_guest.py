"""The model and the data are guests: they leave exactly as they came, also when something goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import Tensor, nn

from nobsp import NObSP
from tests.tabular.nets import KINDS, net, table
from tests.tolerances import CONTRIBUTIONS, assert_same_to_rounding


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything about a model that somebody could notice."""
    return {
        "training": [(name, part.training) for name, part in model.named_modules()],
        "hooks": [
            (name, key, len(value))
            for name, part in model.named_modules()
            for key, value in vars(part).items()
            if key.endswith("hooks") and value is not None
        ],
        "gradients": [
            (name, p.requires_grad, None if p.grad is None else p.grad.clone())
            for name, p in model.named_parameters()
        ],
        "values": {
            name: (value.data_ptr(), value.dtype, value.clone())
            for name, value in model.state_dict().items()
        },
        "identity": [id(p) for p in (*model.parameters(), *model.buffers())],
        "attributes": [(name, sorted(vars(part))) for name, part in model.named_modules()],
    }


def assert_same(before: Any, after: Any) -> None:
    if isinstance(before, Tensor):
        assert torch.equal(before, after)
    elif isinstance(before, dict):
        assert before.keys() == after.keys()
        for key in before:
            assert_same(before[key], after[key])
    elif isinstance(before, list | tuple):
        assert len(before) == len(after)
        for left, right in zip(before, after, strict=True):
            assert_same(left, right)
    else:
        assert before == after


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Nothing about the model, the random numbers or torch's switches has changed at the end."""
    before, cpu, legacy = snapshot(model), torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    switches = torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_inference_mode_enabled()
    yield
    assert_same(before, snapshot(model))
    assert torch.equal(cpu, torch.get_rng_state())
    assert np.array_equal(legacy, np.random.get_state()[1])  # noqa: NPY002
    assert switches == (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.is_inference_mode_enabled(),
    )


def used(model: nn.Module) -> nn.Module:
    """A model in the middle of its life: mixed modes, gradients, a frozen layer, hooks of its owner."""
    model.train()
    next(part for part in model.modules() if isinstance(part, nn.Linear)).eval()
    parameters = list(model.parameters())
    for parameter in parameters[1:]:
        parameter.grad = torch.ones_like(parameter)
    parameters[0].requires_grad_(False)
    model.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reference", ["terms", "complement"])
def test_the_model_is_untouched_by_everything(kind: str, reference: str) -> None:
    model = used(net(kind, outputs=2))
    X = table(kind, 200)
    with untouched(model):
        explainer = NObSP(model, reference=reference, interactions=1).fit(X)
        explainer(X[:50])
        if kind in ("batchnorm", "dropout"):
            explainer.curves(5)
        explainer.function("x3")(np.zeros(3))
        explainer.interaction_strengths()
        explainer.health(X)
        explainer.importance("total")
        like = explainer if reference == "complement" else None
        explainer.merge(clone(explainer).fit(X, like=like))


class Poisoned:
    """Batches of which a later one is bad."""

    def __init__(self, X: np.ndarray) -> None:
        self.X = X

    def __iter__(self) -> Iterator[np.ndarray]:
        bad = self.X[100:].copy()
        bad[3, 2] = np.nan
        return iter([self.X[:100], bad])


class Moody(nn.Module):
    """Works for a while, then fails."""

    def __init__(self, inner: nn.Module, patience: int) -> None:
        super().__init__()
        self.inner, self.patience = inner, [patience]

    def forward(self, x: Tensor) -> Tensor:
        self.patience[0] -= 1
        if self.patience[0] < 0:
            raise OSError("out of patience")
        return self.inner(x)


@pytest.mark.parametrize("baseline", ["zero", "mean"])
def test_the_model_is_untouched_when_bad_rows_stop_the_fit(baseline: str) -> None:
    model = used(net("batchnorm", outputs=2))
    with untouched(model), pytest.raises(ValueError, match="NaN"):
        NObSP(model, interactions=0, baseline=baseline).fit(Poisoned(table("batchnorm", 200)))


@pytest.mark.parametrize("patience", range(12))
def test_the_model_is_untouched_when_it_fails_itself(patience: int) -> None:
    model = Moody(used(net("dropout", outputs=2)), patience)
    with untouched(model), pytest.raises(OSError, match="out of patience"):
        NObSP(model, interactions=0, batch_size=64).fit(table("dropout", 200))(
            table("dropout", 200)
        )


def test_a_failing_fit_keeps_the_former_calibration() -> None:
    model, X = net("relu"), table("relu", 200)
    explainer = NObSP(model, interactions=0).fit(X)
    before = explainer(X[:5]).values
    with pytest.raises(ValueError, match="NaN"):
        explainer.fit(Poisoned(X))
    assert_same_to_rounding(explainer(X[:5]).values, before, within=CONTRIBUTIONS)


def test_the_model_is_untouched_when_explaining_fails() -> None:
    model = used(net("batchnorm"))
    explainer = NObSP(model, interactions=0).fit(table("batchnorm", 200))
    bad = table("batchnorm", 20)
    bad[:, 1] = np.inf
    with untouched(model), pytest.raises(ValueError, match="no finite value in column"):
        explainer(bad)


def data_kinds() -> list[Callable[[np.ndarray], Any]]:
    return [
        np.array,
        torch.tensor,
        lambda X: [X[:50], X[50:]],
        lambda X: torch.tensor(X, dtype=torch.float32),
    ]


@pytest.mark.parametrize("kind", data_kinds(), ids=["array", "tensor", "batches", "single"])
@pytest.mark.parametrize("reference", ["terms", "complement"])
def test_the_callers_rows_are_never_written_to(
    kind: Callable[[np.ndarray], Any], reference: str
) -> None:
    model, X = net("relu", outputs=2), table("relu", 100)
    X[:, 4] = np.round(X[:, 4])
    given, again = kind(X), kind(X)
    explainer = NObSP(model, reference=reference, interactions=1, baseline="zero").fit(given)
    explainer(given)
    for left, right in zip(given, again, strict=True):
        assert np.array_equal(np.asarray(left), np.asarray(right))


def test_rows_that_must_not_be_written_to_are_accepted() -> None:
    X = table("relu", 100)
    X.setflags(write=False)
    NObSP(net("relu"), interactions=0).fit(X)(X)


class Halved(nn.Module):
    """Scales its input, where it stands as careless first layers do, or not."""

    def __init__(self, inner: nn.Module, *, in_place: bool) -> None:
        super().__init__()
        self.inner, self.in_place = inner, in_place

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.mul_(0.5) if self.in_place else x * 0.5)


def test_a_model_that_writes_into_its_input_does_no_harm() -> None:
    X = table("relu", 200)
    before, inner = X.copy(), net("relu", outputs=2)
    found = NObSP(Halved(inner, in_place=True), interactions=0).fit(X)(X)
    np.testing.assert_array_equal(X, before)
    expected = NObSP(Halved(inner, in_place=False), interactions=0).fit(X)(X)
    assert_same_to_rounding(found.values, expected.values, within=CONTRIBUTIONS)


def test_a_model_on_loan_may_be_trained_between_calls_and_the_next_fit_sees_it() -> None:
    model, X = net("relu"), table("relu", 200)
    explainer = NObSP(model, interactions=0).fit(X)
    with torch.no_grad():
        model.head.weight.mul_(2.0)
    again = explainer.fit(X)(X)
    assert_same_to_rounding(again.predictions, model(torch.tensor(X)).detach().numpy())


def test_explanations_do_not_change_when_the_explainer_is_fitted_again() -> None:
    model, X = net("relu"), table("relu", 200)
    explainer = NObSP(model, interactions=0).fit(X)
    explanation = explainer(X)
    kept = explanation.values.copy(), explanation.base_values.copy(), explanation.residual.copy()
    explanation.base_values[:] += 1.0
    assert np.array_equal(explainer(X).base_values, kept[1])
    explainer.fit(X * 2)
    np.testing.assert_array_equal(explanation.values, kept[0])
    np.testing.assert_array_equal(explanation.residual, kept[2])
