"""Heads found by numbers: what follows the last layers, and several of them at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from nobsp import NObSP
from nobsp.network import Readout
from tests.tolerances import SINGLE, assert_same_to_rounding

LINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda z: z,
    "softmax": lambda z: z.softmax(1),
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "softplus": functional.softplus,
}


class After(nn.Module):
    """A small network, and something that follows its head."""

    def __init__(self, outputs: int, after: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 16), nn.Tanh())
        self.head = nn.Linear(16, outputs)
        self.after = after

    def forward(self, x: Tensor) -> Any:
        return self.after(self.head(self.body(x)))


class Ensemble(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(After(2, lambda y: y) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.members]).mean(0)


class WideAndDeep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Linear(3, 1), After(1, lambda y: y)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": (self.wide(x) + self.deep(x)).squeeze(1)}


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 16), nn.ReLU())
        self.mean, self.spread = nn.Linear(16, 1), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        return torch.cat([self.mean(z), 3 * self.spread(z) - 1], 1)


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 16), nn.ReLU())
        self.matrix, self.bias = nn.Parameter(torch.randn(2, 16)), nn.Parameter(torch.randn(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) @ self.matrix.T + self.bias


MODELS: dict[str, tuple[Callable[[], nn.Module], str, int]] = {
    "scaled": (lambda: After(2, lambda y: y * 5.0 + 100.0), "identity", 16),
    "one scale an output": (
        lambda: After(2, lambda y: y * torch.tensor([5.0, 0.1]) + 2.0),
        "identity",
        16,
    ),
    "temperature": (lambda: After(3, lambda y: (y / 2.5).softmax(1)), "softmax", 16),
    "scaled sigmoid": (lambda: After(1, lambda y: torch.sigmoid(y * 3.0)), "sigmoid", 16),
    "exp": (lambda: After(1, torch.exp), "exp", 16),
    "softplus": (lambda: After(1, functional.softplus), "softplus", 16),
    "clamp": (lambda: After(1, lambda y: y.clamp(-0.3, 0.3)), "clamp", 16),
    "ensemble": (Ensemble, "identity", 48),
    "wide and deep": (WideAndDeep, "identity", 19),
    "two heads": (TwoHeads, "identity", 32),
    "functional": (Functional, "identity", 16),
}


@pytest.mark.parametrize("name", MODELS)
def test_heads_are_found_by_numbers(name: str) -> None:
    torch.manual_seed(0)
    make, link, width = MODELS[name]
    model, x = make().eval(), torch.randn(300, 3)
    readout = Readout.find_any(model, x)
    assert (readout.link, readout.width, readout.no_head) == (link, width, False)
    logits = readout.logits(readout.represent(x)).detach()
    found = model(x)
    found = found["y"][:, None] if isinstance(found, dict) else found
    expected = logits.clamp(-0.3, 0.3) if link == "clamp" else LINKS[link](logits)
    assert_same_to_rounding(expected, found.detach().double(), within=SINGLE)


class NoHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.body(x)
        return z.square().sum(1).sqrt(), z.std()


def test_a_model_without_a_head_is_explained_by_its_outputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = NoHead(), torch.randn(300, 3)
    explainer = NObSP(model).fit(x)
    assert "no_head" in {finding.code for finding in explainer.health().findings}
    explanation = explainer(x)
    assert_same_to_rounding(
        explanation.predictions[:, 0], model(x)[0].detach().double(), within=SINGLE
    )
    account = explanation.base_values + explanation.values.sum(1) + explanation.residual
    assert_same_to_rounding(account, explanation.predictions)
    explainer.save(tmp_path / "model.safetensors")
    assert_same_to_rounding(
        NObSP.load(tmp_path / "model.safetensors", model)(x).values, explanation.values
    )


def test_probabilities_without_a_head_are_explained_before_their_softmax() -> None:
    torch.manual_seed(0)
    body = nn.Linear(3, 3)

    class Squares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: Tensor) -> Tensor:
            z = self.body(x).square() + 0.1
            return z / z.sum(1, keepdim=True)

    x = torch.randn(300, 3)
    readout = Readout.find_any(Squares(), x)
    assert (readout.link, readout.no_head) == ("softmax", True)
    assert_same_to_rounding(
        readout.logits(readout.represent(x)).softmax(1),
        Squares()(x).detach().double(),
        within=SINGLE,
    )


@pytest.mark.parametrize("name", ["ensemble", "wide and deep", "scaled", "exp"])
def test_composed_heads_are_explained_and_the_model_stays_as_it_was(name: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name][0]().train(), torch.randn(400, 3)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    explainer = NObSP(model).fit(x)
    explanation = explainer(x[:50])
    account = explanation.base_values + explanation.values.sum(1) + explanation.residual
    assert_same_to_rounding(account, explanation.predictions)
    assert explainer.explained_.min() > 0.9
    assert model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_outputs_that_are_not_finite_are_still_an_error() -> None:
    model = After(1, lambda y: y / 0.0)
    with pytest.raises(ValueError, match="only finite outputs can be explained"):
        NObSP(model).fit(torch.randn(50, 3))
