"""The model is left as it came, nothing is kept, and the surroundings of a call do not matter."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nobsp.vision import NObSPCam
from tests.processes import run_threads
from tests.tolerances import CONTRIBUTIONS, SINGLE, SUMS, assert_same_to_rounding
from tests.vision.networks import averaged, images, through_layers

MAPS = ("positive", "negative", "signed", "account", "contributions")


def hooks(model: nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())


def living_tensors() -> int:
    return sum(type(thing) is Tensor for thing in gc.get_objects())


class Failing(nn.Module):
    """Convolutions, a pooled head, and a failure on demand at the very end."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = averaged()
        self.fails = False

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        if self.fails:
            raise RuntimeError("the model fails")
        return y


def test_hooks_are_gone_and_modes_restored_after_fit_and_call() -> None:
    model = averaged().train()
    model.body[1].eval()
    before = [part.training for part in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    NObSPCam(model).fit(images(20))(images(3))
    assert hooks(model) == 0
    assert [part.training for part in model.modules()] == before
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in state.items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("step", ["fit", "call"])
def test_hooks_are_gone_after_an_exception(step: str) -> None:
    model = Failing().train()
    cam = NObSPCam(model).fit(images(20))
    model.fails = True
    with pytest.raises((RuntimeError, ValueError), match="the model fails"):
        cam(images(3)) if step == "call" else NObSPCam(model).fit(images(20))
    assert hooks(model) == 0
    assert model.training


def test_hooks_are_gone_after_a_failure_behind_the_map() -> None:
    model = through_layers()
    cam = NObSPCam(model, coefficients="head").fit(images(20))
    handle = model.hidden.register_forward_pre_hook(
        lambda *_: (_ for _ in ()).throw(RuntimeError("stop"))
    )
    with pytest.raises(RuntimeError, match="stop"):
        cam(images(3))
    handle.remove()
    assert hooks(model) == 0


def test_no_graph_is_built() -> None:
    cam = NObSPCam(averaged()).fit(images(20))
    x = images(3).requires_grad_()
    maps = cam(x)
    assert isinstance(maps.positive, np.ndarray)
    assert x.grad is None
    evidence = cam._fitted.account
    assert not any(
        value.requires_grad for value in vars(evidence).values() if isinstance(value, Tensor)
    )


def resident() -> int:
    """Bytes this process holds now; its highest mark may be another test's."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("kind", ["pooled", "through layers"])
def test_a_thousand_calls_do_not_grow_memory(kind: str) -> None:
    model = averaged().float() if kind == "pooled" else through_layers().float()
    cam = NObSPCam(model).fit(images(20, dtype=torch.float32))
    x = images(8, dtype=torch.float32)
    for _ in range(100):
        cam(x)
    gc.collect()
    tensors, before = living_tensors(), resident()
    for _ in range(1000):
        cam(x)
    gc.collect()
    assert living_tensors() <= tensors
    assert (
        resident() - before < 4 << 20
    )  # one leaked map per call would be 2 MB, one leaked batch 9 MB


def test_a_call_is_one_forward_pass() -> None:
    model = averaged()
    cam = NObSPCam(model).fit(images(20))
    seen: list[int] = []
    handle = model.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    cam(images(7), target=[[0, 1]] * 7)
    cam(images(7), scale="probability")
    cam.removal(images(7))
    handle.remove()
    assert seen == [7, 7, 7]


SURROUNDINGS: dict[str, Callable[[], Any]] = {
    "inference mode": torch.inference_mode,
    "no grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.mark.parametrize("name", SURROUNDINGS)
@pytest.mark.parametrize("kind", ["pooled", "through layers"])
def test_surroundings_do_not_change_the_maps(name: str, kind: str) -> None:
    # Autocast leaves double precision alone.
    model = averaged().float() if kind == "pooled" else through_layers().float()
    x = images(40, dtype=torch.float32)
    expected = NObSPCam(model).fit(x)(x[:3])
    with SURROUNDINGS[name]():
        assert (model(x).dtype == torch.bfloat16) == (name == "autocast")
        cam = NObSPCam(model).fit(images(40, dtype=torch.float32))
        found = cam(images(40, dtype=torch.float32)[:3])
    for field in MAPS:
        assert_same_to_rounding(
            getattr(found, field), getattr(expected, field), within=SINGLE, size=1.0, what=field
        )
    # What was calibrated inside can be used and merged outside.
    cam.merge(NObSPCam(model).fit(images(20, seed=1, dtype=torch.float32)))(x[:3])


def test_memory_format_does_not_change_the_maps() -> None:
    x = images(40, dtype=torch.float32)
    expected = NObSPCam(averaged(dtype=torch.float32)).fit(x)(x[:3])
    model = averaged(dtype=torch.float32).to(memory_format=torch.channels_last)
    last = x.to(memory_format=torch.channels_last)
    found = NObSPCam(model).fit(last)(last[:3])
    for field in MAPS:
        np.testing.assert_allclose(
            getattr(found, field), getattr(expected, field), rtol=1e-3, atol=1e-4
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_of_half_precision_are_accounted_for_exactly(dtype: torch.dtype) -> None:
    model = averaged(dtype=dtype)
    x = images(40, dtype=torch.float32)
    cam = NObSPCam(model, coefficients="head").fit(x)
    maps = cam(x[:3])
    centred = np.take_along_axis(maps.logits - maps.base_values, maps.target[:, None], 1)[:, 0]
    np.testing.assert_allclose(maps.account.mean((1, 2)), centred, rtol=CONTRIBUTIONS, atol=SUMS)
    with torch.no_grad():
        np.testing.assert_allclose(
            maps.logits, model(x[:3].to(dtype)).double(), rtol=0.05, atol=0.02
        )


def test_several_threads_share_a_model() -> None:
    cam = NObSPCam(averaged()).fit(images(40))
    batches = [images(4, seed=seed) for seed in range(6)]
    expected = [cam(batch) for batch in batches]
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        for _ in range(10):
            found[number] = cam(batches[number])

    run_threads(*(partial(work, number) for number in range(6)))
    for number, maps in enumerate(expected):
        for field in MAPS:
            assert_same_to_rounding(
                getattr(found[number], field), getattr(maps, field), size=1.0, what=field
            )
    assert hooks(cam.model) == 0


def test_threads_do_not_see_what_others_put_behind_the_map() -> None:
    cam = NObSPCam(through_layers(), coefficients="head").fit(images(30))
    batches = [images(4, seed=seed) for seed in range(4)]
    expected = [cam(batch).contributions for batch in batches]
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        for _ in range(10):
            found[number] = cam(batches[number]).contributions

    run_threads(*(partial(work, number) for number in range(4)))
    for number in range(4):
        assert_same_to_rounding(found[number], expected[number])


def test_a_first_layer_that_works_in_place_does_not_change_the_images() -> None:
    model = nn.Sequential(nn.ReLU(inplace=True), averaged())
    x = images(30)
    kept = x.clone()
    NObSPCam(model).fit(x)(x)
    assert torch.equal(x, kept)


def test_the_callers_random_numbers_stay_where_they_were() -> None:
    model = through_layers()
    state = torch.get_rng_state()
    NObSPCam(model).fit(images(30))(images(2))
    assert torch.equal(torch.get_rng_state(), state)


def test_wrapped_models_are_unwrapped() -> None:
    model, x = averaged(), images(30)
    expected = NObSPCam(model).fit(x)(x[:2])
    found = NObSPCam(nn.DataParallel(model)).fit(x)(x[:2])
    assert_same_to_rounding(found.account, expected.account)


def test_batches_of_other_sizes_have_no_common_order_of_removal() -> None:
    cam = NObSPCam(averaged()).fit(images(20))
    larger = torch.rand(2, *images(1).shape[1:-1], images(1).shape[-1] + 4)
    with pytest.raises(ValueError, match="images has batches of different sizes"):
        cam.removal([images(2), larger])


def test_a_function_of_the_output_that_fails_is_named() -> None:
    with pytest.raises(ValueError, match="output, or a function as target, fails"):
        NObSPCam(averaged(), output=dict).fit(images(20))
