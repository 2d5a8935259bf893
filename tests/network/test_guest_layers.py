"""The model is a guest's host: it leaves a visit exactly as it came, also after a failure."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nobsp.network import Readout
from nobsp.network.guest import evaluation_mode
from tests.processes import LONGEST_RUN, run_threads
from tests.tolerances import SINGLE, assert_same_to_rounding


class Noisy(nn.Module):
    """Draws random numbers, unused, and counts its calls, also in evaluation mode; fails on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.head = nn.Linear(8, 2)
        self.calls: Tensor
        self.replaced: Tensor
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))
        self.fails = False

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.replaced = self.replaced + 1
        y: Tensor = self.head(self.body(x + 0.0 * torch.randn_like(x)))
        if self.fails or bool((x > 1e6).any()):
            raise RuntimeError("the model fails")
        return y


class Entangled(Noisy):
    """Refers to itself in a way that cannot be copied, so that it is run itself, under guard."""

    def __init__(self) -> None:
        super().__init__()
        self.finish = lambda z: self.head(z)


@pytest.fixture(params=[Noisy, Entangled], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Noisy]:
    chosen: type[Noisy] = request.param
    monkeypatch.setitem(globals(), "KIND", chosen)
    return chosen


KIND: type[Noisy] = Noisy


def prepared() -> Noisy:
    torch.manual_seed(0)
    model = KIND().train()
    model.body[1].eval()  # frozen statistics: flags differ between submodules
    model.head.bias.requires_grad_(False)
    return model


def state(model: nn.Module) -> dict[str, Any]:
    return {
        "flags": {name: part.training for name, part in model.named_modules()},
        "tensors": {name: value.clone() for name, value in model.state_dict().items()},
        "identity": {name: id(value) for name, value in model.state_dict(keep_vars=True).items()},
        "grads": {
            name: (value.requires_grad, value.grad is None)
            for name, value in model.named_parameters()
        },
        "homes": {name: (value.dtype, value.device) for name, value in model.state_dict().items()},
        "hooks": {
            name: [
                len(part._forward_hooks),
                len(part._forward_pre_hooks),
                len(part._forward_hooks_with_kwargs),
            ]
            for name, part in model.named_modules()
        },
        "attributes": {name: sorted(part.__dict__) for name, part in model.named_modules()},
        "random": torch.get_rng_state(),
    }


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    for kind in before.keys() - {"tensors", "random"}:
        assert before[kind] == after[kind], kind
    assert all(
        torch.equal(value, after["tensors"][name]) for name, value in before["tensors"].items()
    )
    assert torch.equal(before["random"], after["random"])


def find(model: Noisy, x: Tensor) -> None:
    Readout.find(model, x)


def represent(model: Noisy, x: Tensor) -> None:
    readout = Readout.find(model, x)
    with readout.running() as run:
        run(x)
        run(x)


@pytest.mark.parametrize("act", [find, represent])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_model_is_untouched_by_a_visit(
    act: Callable[[Noisy, Tensor], None], mode: Callable[[], Any]
) -> None:
    model, x = prepared(), torch.randn(16, 4)
    before = state(model)
    with mode():
        act(model, x)
    assert_same(before, state(model))


def test_model_is_untouched_when_finding_fails() -> None:
    model, x = prepared(), torch.randn(16, 4)
    model.fails = True
    before = state(model)
    with pytest.raises(RuntimeError, match="the model fails"):
        Readout.find(model, x)
    assert_same(before, state(model))


def test_model_is_untouched_when_it_fails_while_running() -> None:
    model, x = prepared(), torch.randn(16, 4)
    readout = Readout.find(model, x)
    model.fails = True
    before = state(model)
    with pytest.raises(RuntimeError, match="the model fails"):
        readout.represent(x)
    assert_same(before, state(model))


def test_model_is_untouched_when_the_caller_fails() -> None:
    model, x = prepared(), torch.randn(16, 4)
    readout = Readout.find(model, x)
    before = state(model)

    def work() -> None:
        with readout.running() as run:
            run(x)
            raise KeyError("the caller fails")

    with pytest.raises(KeyError, match="the caller fails"):
        work()
    assert_same(before, state(model))


def test_a_failing_batch_does_not_spoil_the_next() -> None:
    model, x = prepared(), torch.randn(16, 4)
    readout = Readout.find(model, x)
    with readout.running() as run:
        expected = run(x)
        with pytest.raises(RuntimeError):
            run(x + 2e6)
        assert_same_to_rounding(run(x), expected, within=SINGLE)


def test_the_input_is_not_changed() -> None:
    model, x = prepared(), torch.randn(16, 4)
    kept = x.clone()
    Readout.find(nn.Sequential(nn.ReLU(inplace=True), model), x).represent(x)
    assert torch.equal(x, kept)


def test_representations_carry_no_gradient_and_ignore_autocast() -> None:
    model, x = prepared(), torch.randn(16, 4, requires_grad=True)
    readout = Readout.find(model, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = readout.represent(x)
    assert z.dtype == torch.float32
    assert not z.requires_grad


def test_representations_can_be_used_in_a_graph_afterwards() -> None:
    model, x = prepared(), torch.randn(16, 4)
    weight = torch.ones(8, requires_grad=True)
    total = (Readout.find(model, x).represent(x) @ weight).sum()
    assert torch.autograd.grad(total, weight)[0].shape == (8,)


def test_the_callers_own_code_keeps_its_gradients_and_its_draws() -> None:
    model, x = prepared(), torch.randn(16, 4)
    readout = Readout.find(model, x)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with readout.running() as run:
        run(x)
        drawn = torch.rand(3)
        assert torch.is_grad_enabled()
    assert torch.equal(drawn, expected)
    assert not torch.equal(torch.rand(3), expected)


def test_passes_that_overlap_all_run_in_evaluation_mode() -> None:
    model, x = prepared(), torch.randn(16, 4)
    before = state(model)
    flags: list[bool] = []
    meeting = threading.Barrier(2, timeout=LONGEST_RUN)

    def note(part: nn.Module, _: Any, __: Any) -> None:
        meeting.wait()  # both passes are under way
        flags.append(part.training)

    handle = model.body.register_forward_hook(note)

    def work(size: int) -> None:
        with evaluation_mode(model) as run:
            for _ in range(size):
                run(x)

    run_threads(partial(work, 3), partial(work, 3))
    handle.remove()
    assert flags == [False] * 6
    after = state(model)
    assert after["flags"] == before["flags"]
    assert after["hooks"] == before["hooks"]


def test_user_code_in_train_is_not_called() -> None:
    class Merging(nn.Linear):
        def train(self, mode: bool = True) -> Merging:
            raise AssertionError("train() may have side effects")

    Readout.find(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Merging(4, 2)), torch.randn(8, 4))


def test_hooks_of_the_user_stay() -> None:
    model, x = prepared(), torch.randn(16, 4)
    seen: list[int] = []
    handle = model.head.register_forward_hook(lambda *_: seen.append(1))
    Readout.find(model, x)
    seen.clear()
    model.eval()(x)
    handle.remove()
    assert seen == [1]


def test_forward_passes_record_no_graph() -> None:
    model, x = prepared(), torch.randn(16, 4)
    recording: list[bool] = []
    model.head.register_forward_hook(lambda *_: recording.append(torch.is_grad_enabled()))
    Readout.find(model, x).represent(x)
    assert set(recording) == {False}
