"""Through layers behind the map, accounts are integrals of the gradient of those layers from the calibration mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nobsp.vision import NObSPCam
from nobsp.vision.account import integrate
from nobsp.vision.targets import Targets
from tests.tolerances import SUMS, assert_same_to_rounding
from tests.vision.networks import Functional, Tokens, averaged, body, images, made, through_layers


class Normalised(nn.Module):
    """Divides by the length, as cosine heads do."""

    def forward(self, z: Tensor) -> Tensor:
        return nn.functional.normalize(z)


def necked(*neck: nn.Module, classes: int = 4) -> nn.Module:
    """Average pooling, some layers, a head that speaks up."""
    width = 6
    model = made(
        nn.Sequential(
            body(width), nn.AdaptiveAvgPool2d(1), nn.Flatten(), *neck, nn.Linear(width, classes)
        )
    )
    with torch.no_grad():
        model[-1].weight *= 5  # type: ignore[index]
    return model


NECKS: dict[str, Callable[[], nn.Module]] = {
    "LayerNorm": lambda: necked(nn.LayerNorm(6)),
    "length": lambda: necked(Normalised()),
    "hidden layer": lambda: necked(nn.Linear(6, 6), nn.SiLU()),
}


@dataclass
class Parts:
    """A network cut at the map that is explained."""

    model: nn.Module
    tensor: Callable[[Tensor], Tensor]  # what passes there
    tail: Callable[[Tensor], Tensor]
    patches: Callable[[Tensor], Tensor]  # a tensor of that shape summed over channels, as (n, h, w)
    rest: Callable[[Tensor], Tensor]  # and the sum over what has no place
    layer: str | None = None  # where that map is


def parts_of(name: str) -> Parts:
    nothing: Callable[[Tensor], Tensor] = lambda a: a.new_zeros(len(a))  # noqa: E731
    channels: Callable[[Tensor], Tensor] = lambda a: a.sum(1)  # noqa: E731
    if name in NECKS:
        model: Any = NECKS[name]()
        return Parts(model, model[0], lambda maps: model[1:](maps), channels, nothing)
    if name == "all of the map":
        model = through_layers(pooled=False)
        return Parts(
            model,
            lambda x: model.pool(model.body(x)),
            lambda maps: model[2:](maps),
            channels,
            nothing,
        )
    model = made(Tokens("class"))

    def tokens(x: Tensor) -> Tensor:
        patches = model.patches(x).flatten(2).transpose(1, 2)
        return torch.cat([model.first.expand(len(x), -1, -1), patches], dim=1)

    def tail(t: Tensor) -> Tensor:
        logits: Tensor = model.head(model.norm(model.mix(t))[:, 0])
        return logits

    return Parts(
        model,
        tokens,
        tail,
        lambda a: a[:, 1:].sum(2).reshape(-1, 4, 4),
        lambda a: a[:, 0].sum(1),
        layer="entry",
    )


CASES = [*NECKS, "all of the map", "class token"]


def riemann(
    tail: Callable[[Tensor], Tensor], start: Tensor, stop: Tensor, target: int, steps: int = 2000
) -> Tensor:
    """(stop − start) times the mean gradient at the middles of many steps."""
    total = torch.zeros_like(stop)
    for step in range(steps):
        here = (start + (step + 0.5) / steps * (stop - start)).requires_grad_()
        total += torch.autograd.grad(tail(here)[:, target].sum(), here)[0]
    return (stop - start) * total / steps


@pytest.mark.parametrize("name", CASES)
def test_an_account_is_the_fine_sum_of_gradients_on_the_straight_line(name: str) -> None:
    parts, x = parts_of(name), images(40)
    maps = NObSPCam(parts.model, layer=parts.layer).fit(x)(x[:3], target=1)
    with torch.no_grad():
        tensors = parts.tensor(x)
    evidence = riemann(
        parts.tail,
        tensors.mean((0, 2, 3), keepdim=True) if name in NECKS else tensors.mean(0, True),
        tensors[:3],
        1,
    ).detach()
    account = parts.patches(evidence)
    expected = account * account[0].numel()
    np.testing.assert_allclose(
        maps.account, expected, rtol=0, atol=1e-4 * float(expected.abs().max())
    )
    np.testing.assert_allclose(
        maps.class_token, parts.rest(evidence), rtol=0, atol=1e-4 * float(account.abs().sum())
    )


@pytest.mark.parametrize("name", CASES)
def test_an_account_is_what_captum_integrates_through_the_tail(name: str) -> None:
    attr = pytest.importorskip("captum.attr", reason="captum is not installed")
    parts, x = parts_of(name), images(40)
    maps = NObSPCam(parts.model, layer=parts.layer).fit(x)(x[:3], target=2)
    with torch.no_grad():
        tensors = parts.tensor(x)
        start = (
            tensors.mean((0, 2, 3), keepdim=True) if name in NECKS else tensors.mean(0, True)
        ).expand_as(tensors)
    found = attr.IntegratedGradients(parts.tail).attribute(
        tensors[:3], start[:3], target=2, n_steps=100
    )
    account = parts.patches(found.detach())
    expected = account * account[0].numel()
    np.testing.assert_allclose(
        maps.account, expected, rtol=0, atol=1e-4 * float(expected.abs().max())
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("asked", [{}, {"against": "runner-up"}, {"scale": "probability"}], ids=str)
def test_account_class_token_and_residual_add_up(name: str, asked: Any) -> None:
    parts, x = parts_of(name), images(40)
    maps = NObSPCam(parts.model, layer=parts.layer).fit(x)(x[:7], **asked)
    with torch.no_grad():
        tensors = parts.tensor(x)
        start = (
            tensors.mean((0, 2, 3), keepdim=True).expand(1, *tensors.shape[1:])
            if name in NECKS
            else None
        )
        base = parts.tail(tensors.mean(0, True) if start is None else start)[0].double().numpy()
        logits = parts.model(x[:7]).numpy()
    rows = np.arange(7)

    def value(of: Any) -> Any:
        of = np.broadcast_to(of, logits.shape)
        if asked.get("scale") == "probability":
            return torch.from_numpy(of.copy()).softmax(1).numpy()[rows, maps.target]
        second = np.argsort(-logits, axis=1)[:, 1]
        return of[rows, maps.target] - (of[rows, second] if "against" in asked else 0.0)

    assert_same_to_rounding(maps.base_values, base, within=SUMS)
    whole = value(logits) - value(base)
    assert_same_to_rounding(
        maps.account.mean((1, 2)) + maps.class_token + maps.residual, whole, within=SUMS, size=1.0
    )
    assert np.median(np.abs(maps.residual / whole)) < 0.002


def test_a_linear_tail_has_the_product_of_its_weights() -> None:
    # A linear layer that is no head of its own makes two in a row, which are one.
    model, x = necked(nn.Linear(6, 6)), images(40)
    maps = NObSPCam(model).fit(x)(x[:5], target=0)
    with torch.no_grad():
        features = model[0](x)  # type: ignore[index]
        weight = (model[4].weight @ model[3].weight)[0]  # type: ignore[index]
    expected = torch.einsum(
        "c,nchw->nhw", weight, features[:5] - features.mean((0, 2, 3))[:, None, None]
    )
    assert_same_to_rounding(maps.account, expected, within=SUMS)
    assert np.abs(maps.residual).max() < SUMS


def test_where_pooling_enters_the_head_nothing_is_integrated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nobsp.vision.account.integrate", None)
    NObSPCam(averaged()).fit(images(20))(images(3))
    with pytest.raises(TypeError):
        NObSPCam(through_layers()).fit(images(20))


def test_the_base_is_the_output_at_the_mean_map_and_its_distance_from_the_mean_output_is_stated() -> (
    None
):
    model, x = NECKS["LayerNorm"](), images(40)
    cam = NObSPCam(model).fit(x)
    with torch.no_grad():
        features = model[0](x)  # type: ignore[index]
        at_mean = model[2:](features.mean((0, 2, 3))[None])[0]  # type: ignore[index]
        assert_same_to_rounding(cam.base_values_, at_mean, within=SUMS)
        assert_same_to_rounding(cam.mean_values_, model(x).mean(0), within=SUMS)
    assert np.abs(cam.base_values_ - cam.mean_values_).max() > 1e-3
    maps = cam(x[:2])
    np.testing.assert_array_equal(maps.mean_values, cam.mean_values_)


def test_more_points_are_taken_where_few_miss_much() -> None:
    seen: list[int] = []

    def kinked(units: Tensor, rows: Tensor | None = None) -> Tensor:
        seen.append(len(units))
        return (units - 0.31).relu().sum(1, keepdim=True) * 10

    start, stop = (
        torch.zeros(2, dtype=torch.float64),
        torch.tensor([[1.0, 0.0], [0.1, 0.2]], dtype=torch.float64),
    )
    logits = kinked(stop)
    seen.clear()
    targets = Targets(None, None, outputs=1, names=())
    question = targets.question(targets.choose(logits, 0), logits, kinked(start[None])[0])
    slopes = integrate(kinked, start, stop, logits, question)
    # The second row meets no kink, so that eight points are enough for it.
    assert seen[0] == 1
    assert seen[1:] == [2 * 8, 16]
    missed = question.whole - (slopes * stop[:, None]).sum(2)
    assert float(missed.abs().max()) < 0.02 * float(question.whole.abs().max())


def test_what_rounding_of_the_logits_misses_takes_no_more_points() -> None:
    seen: list[int] = []
    eps = torch.finfo(torch.float32).eps

    def nearly_constant(units: Tensor, rows: Tensor | None = None) -> Tensor:
        seen.append(len(units))
        return 1e-6 * units.sum(1, keepdim=True) + 1000

    start, stop = torch.zeros(2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    logits = nearly_constant(stop) + 2 * eps * 1000  # as single precision has it
    targets = Targets(None, None, outputs=1, names=())
    base = nearly_constant(start[None])[0]
    question = targets.question(targets.choose(logits, 0), logits, base)

    for rounding, points in ((eps, [8]), (0.0, [8, 16, 32])):
        seen.clear()
        integrate(nearly_constant, start, stop, logits, question, eps=rounding)
        assert seen == points


@pytest.mark.filterwarnings("ignore:The integral through the layers")
def test_the_number_of_points_can_be_chosen_and_what_they_miss_is_the_residual() -> None:
    parts, x = parts_of("class token"), images(40)
    maps = NObSPCam(parts.model, points=1).fit(x)(x[:3], target=1)
    with torch.no_grad():
        tensors = parts.tensor(x)
    start, stop = tensors.mean(0, True), tensors[:3]
    middle = riemann(parts.tail, start, stop, 1, steps=1)
    assert_same_to_rounding(
        maps.account.mean((1, 2)), parts.patches(middle).sum((1, 2)), within=SUMS, size=1.0
    )
    whole = (maps.logits - maps.base_values)[:, 1]
    assert_same_to_rounding(
        maps.account.mean((1, 2)) + maps.class_token + maps.residual, whole, within=SUMS, size=1.0
    )
    with pytest.raises(ValueError, match="points must be a whole number"):
        NObSPCam(parts.model, points=0).fit(x)


@pytest.mark.filterwarnings("ignore:The integral through the layers")
def test_images_that_eight_points_miss_get_more_so_that_numbers_add_up() -> None:
    torch.manual_seed(0)
    neck = nn.Linear(8, 32)
    with torch.no_grad():
        neck.weight.mul_(600.0)
    body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(body, neck, nn.Tanh(), nn.Linear(32, 4)).eval()
    x = images(40)

    few = NObSPCam(model, points=7).fit(x)(x[:20], target=1)
    enough = NObSPCam(model, points=8).fit(x)(x[:20], target=1)

    assert few.unexplained > 0.02
    assert enough.unexplained < 0.02


def test_the_contrast_is_the_account_against_the_others() -> None:
    for model in (averaged(), NECKS["LayerNorm"]()):
        cam = NObSPCam(model).fit(images(40))
        plain, against = cam(images(5), target=1), cam(images(5), target=1, against="others")
        np.testing.assert_allclose(
            plain.contrast, against.account, atol=1e-3 * np.abs(against.account).max()
        )
        np.testing.assert_array_equal(against.contrast, against.account)


def test_several_targets_through_a_tail_are_each_their_own() -> None:
    cam = NObSPCam(NECKS["length"]()).fit(images(40))
    both = cam(images(4), target=[[2, 0]] * 4)
    for place, one in enumerate((2, 0)):
        alone = cam(images(4), target=one)
        for field in ("account", "contrast", "contributions", "residual"):
            size = float(np.abs(alone.account).max())
            # Another number of points may have been taken for a target that needs more.
            np.testing.assert_allclose(
                getattr(both.of_target(place), field), getattr(alone, field), atol=5e-3 * size
            )


def test_a_generalised_mean_is_integrated_over_all_of_the_map() -> None:
    x = images(40)
    maps = NObSPCam(made(Functional("generalised"))).fit(x)(x[:7])
    gain = maps.logits[range(7), maps.target] - maps.base_values[maps.target]
    assert np.median(np.abs(maps.residual / gain)) < 0.01


def test_the_model_gets_no_gradients_and_builds_no_graph_outside() -> None:
    model = through_layers()
    flags = [weight.requires_grad for weight in model.parameters()]
    maps = NObSPCam(model).fit(images(20))(images(3))
    assert all(weight.grad is None for weight in model.parameters())
    assert [weight.requires_grad for weight in model.parameters()] == flags
    assert isinstance(maps.account, np.ndarray)


class Rounded(nn.Module):
    """Without gradients, as quantised layers are."""

    def forward(self, z: Tensor) -> Tensor:
        return (z.detach() * 4096).round() / 4096


def test_a_quantised_head_is_found_by_numbers() -> None:
    model, x = necked(Rounded()), images(40)
    maps = NObSPCam(model).fit(x)(x[:5], target=2)
    exact = NObSPCam(necked()).fit(x)(x[:5], target=2)
    np.testing.assert_allclose(maps.account, exact.account, atol=0.01 * np.abs(exact.account).max())
    assert np.abs(maps.residual).max() < 0.01 * np.abs(exact.account.mean((1, 2))).max()


def test_all_of_a_map_without_gradients_is_refused() -> None:
    model: Any = through_layers(pooled=False)
    model.flat = nn.Sequential(nn.Flatten(), Rounded())
    with pytest.raises(ValueError, match="give no gradients"):
        NObSPCam(model).fit(images(20))


class Choosy(nn.Module):
    """Knows no image but its own size, and fails in a way of its own at others."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.LayerNorm(8),
            nn.Linear(8, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x).relu().mean((2, 3)) * {16: 1.0}[x.shape[-1]]))


def test_a_model_that_fails_at_other_sizes_in_its_own_way_is_explained() -> None:
    torch.manual_seed(0)
    pictures = torch.randn(6, 3, 16, 16)
    maps = NObSPCam(Choosy().eval()).fit(pictures)(pictures)
    gain = maps.logits.max(1) - maps.base_values[maps.target]
    assert_same_to_rounding(
        maps.account.mean((1, 2)) + maps.class_token + maps.residual, gain, within=SUMS
    )
