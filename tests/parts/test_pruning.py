"""Smaller networks: really smaller, ordinary modules, that do what the whole one did where parts were superfluous."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nobsp
from benchmarks.architectures import torchvision_models
from nobsp.parts.attention import SplitAttention
from nobsp.parts.pruning import find_groups
from nobsp.parts.surgery import columns_entering, matrix_of, outputs_leaving
from tests.parts.streams import Attention, drawn, rows, tokens
from tests.parts.test_explanation import huggingface
from tests.tolerances import SINGLE, assert_same_to_rounding

# What a ridge of 1e-4 leaves where half of all parts are copies of the other half.
AS_GOOD_AS_NOTHING = 1e-4


def twice(layer: nn.Linear | nn.Conv2d, reader: nn.Linear | nn.Conv2d) -> None:
    """Makes the second half of a layer's outputs copies of the first."""
    half = len(layer.weight) // 2
    with torch.no_grad():
        layer.weight[half:] = layer.weight[:half]
        if layer.bias is not None:
            layer.bias[half:] = layer.bias[:half]


class Inner(nn.Module):
    """Convolutions with a batch norm and a depthwise pair, beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Conv2d(4, 12, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(12)
        self.depthwise = nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False)
        self.norm2 = nn.BatchNorm2d(12)
        self.project = nn.Conv2d(12, 4, 3, padding=1, bias=False)
        self.norm3 = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        inner = nn.functional.relu6(self.norm1(self.expand(x)))
        inner = nn.functional.relu6(self.norm2(self.depthwise(inner)))
        return x + self.norm3(self.project(inner))


def doubled_convolutions() -> nn.Module:
    model = drawn(
        nn.Sequential(
            nn.Conv2d(3, 4, 3), Inner(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
        )
    )
    inner = model[1]
    with torch.no_grad():
        for layer in (inner.expand, inner.norm1, inner.depthwise, inner.norm2):
            for tensor in layer.state_dict().values():
                if tensor.ndim:
                    tensor[6:] = tensor[:6]
    return model


def doubled_units() -> nn.Module:
    model = drawn(nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3)))
    twice(model[0], model[2])
    return model


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(5, 16)
        self.up = nn.Linear(5, 16)
        self.down = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def doubled_gates() -> nn.Module:
    model = drawn(Gated())
    twice(model.gate, model.down)
    twice(model.up, model.down)
    return model


class Heads(Attention):
    """Attention that remembers how many heads it has."""

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.per_head(x).transpose(1, 2)
        return self.out(mixed.reshape(*mixed.shape[:2], -1)).mean(1)

    def per_head(self, x: Tensor) -> Tensor:
        n_rows, length, _ = x.shape
        qkv = self.qkv(x).view(n_rows, length, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        weights = (query @ key.transpose(-1, -2)).softmax(-1)
        return weights @ value


def doubled_heads() -> nn.Module:
    model = drawn(Heads(8, heads=4))
    with torch.no_grad():
        for tensor in (model.qkv.weight, model.qkv.bias):
            tensor.view(3, 2, 4, *tensor.shape[1:])[:, 1] = tensor.view(3, 2, 4, *tensor.shape[1:])[
                :, 0
            ]
    return model


class SharedKeys(nn.Module):
    """Attention in which two heads each read the same keys and values."""

    def __init__(self, width: int = 8, num_heads: int = 8, num_kv_heads: int = 4) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        each = width // num_kv_heads
        self.q_proj = nn.Linear(width, num_heads * each)
        self.k_proj = nn.Linear(width, num_kv_heads * each)
        self.v_proj = nn.Linear(width, num_kv_heads * each)
        self.out = nn.Linear(num_heads * each, width)

    def forward(self, x: Tensor) -> Tensor:
        n_rows, length, _ = x.shape
        query = self.q_proj(x).view(n_rows, length, self.num_heads, -1).transpose(1, 2)
        key = self.k_proj(x).view(n_rows, length, self.num_kv_heads, -1).transpose(1, 2)
        value = self.v_proj(x).view(n_rows, length, self.num_kv_heads, -1).transpose(1, 2)
        readers = self.num_heads // self.num_kv_heads
        key = key.repeat_interleave(readers, 1)
        value = value.repeat_interleave(readers, 1)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.out(mixed.transpose(1, 2).flatten(2)).mean(1)


def doubled_groups() -> nn.Module:
    model = drawn(SharedKeys())
    twice(model.q_proj, model.out)
    twice(model.k_proj, model.out)
    twice(model.v_proj, model.out)
    return model


DOUBLED: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "units": (doubled_units, rows(400, 5)),
    "gated units": (doubled_gates, rows(400, 5)),
    "channels with a depthwise pair": (doubled_convolutions, rows(60, 3, 8, 8)),
    "heads": (doubled_heads, rows(200, 3, 8)),
    "heads that share keys": (doubled_groups, rows(200, 3, 8)),
}


@pytest.mark.parametrize("kind", DOUBLED)
def test_of_parts_that_are_there_twice_half_go_without_a_trace(kind: str) -> None:
    make, x = DOUBLED[kind]
    model = make()

    pruned = nobsp.prune(model, x, keep=0.5)

    [layer] = pruned.layers
    assert layer.after == layer.before // 2
    assert pruned.measured_change < AS_GOOD_AS_NOTHING
    assert pruned.expected_change < AS_GOOD_AS_NOTHING
    assert pruned.parameters.after < pruned.parameters.before
    assert pruned.multiplications.after < pruned.multiplications.before


def test_layers_are_really_smaller_and_the_result_is_an_ordinary_module() -> None:
    model = doubled_convolutions()
    x = rows(60, 3, 8, 8)

    small = nobsp.prune(model, x, keep=0.5).model

    inner = small[1]
    assert inner.expand.weight.shape == (6, 4, 1, 1)
    assert (inner.depthwise.groups, inner.norm2.num_features) == (6, 6)
    assert inner.project.in_channels == 6
    assert inner.project.bias is None
    state = small.state_dict()
    assert all(value.shape == small.state_dict()[name].shape for name, value in state.items())
    batch = torch.export.Dim("batch")
    exported = torch.export.export(small, (x[:4],), dynamic_shapes=({0: batch},))
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    again = torch.export.load(file).module()
    with torch.no_grad():
        torch.testing.assert_close(again(x[:7]), small(x[:7]))
        # Without a compiler of C++, which not every machine has; the tracing is the same.
        compiled = torch.compile(small, backend="eager")
        torch.testing.assert_close(compiled(x[:7]), small(x[:7]))


def test_the_model_is_left_as_it_was() -> None:
    model = doubled_convolutions().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = rows(60, 3, 8, 8)
    copy = x.clone()

    nobsp.prune(model, x, keep=0.5)

    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(not part._forward_hooks for part in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(x, copy)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama"])
def test_heads_and_units_of_transformers_go(kind: str) -> None:
    model = huggingface(kind)

    pruned = nobsp.prune(model, tokens(200, 4), keep=0.5)

    kinds = {layer.kind for layer in pruned.layers}
    assert kinds == {"heads", "units"}
    assert all(layer.after == layer.before // 2 for layer in pruned.layers)


def test_heads_of_torchs_own_attention_go_and_untouched_layers_stay_what_they_were() -> None:
    layer = nn.TransformerEncoderLayer(8, 4, 16, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = drawn(nn.Sequential(encoder, nn.Flatten(), nn.Linear(24, 2)))
    x = rows(300, 3, 8)

    pruned = nobsp.prune(model, x, keep=0.5, protect=["0.layers.1.self_attn"])

    heads = [layer for layer in pruned.layers if layer.kind == "heads"]
    assert [layer.name for layer in heads] == ["0.layers.0.self_attn"]
    assert heads[0].read_by == "0.layers.0.self_attn.out_proj"
    assert (heads[0].before, heads[0].after) == (4, 2)
    assert isinstance(pruned.model[0].layers[1].self_attn, nn.MultiheadAttention)
    assert pruned.measured_change < 0.5
    # Without a removal all stays as it was.
    kept = nobsp.prune(model, x, keep=1.0)
    assert kept.layers == ()
    assert kept.model.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("masked", ["no", "causal", "padding"])
def test_split_attention_is_the_same_attention(masked: str) -> None:
    attention = drawn(nn.MultiheadAttention(8, 2, batch_first=True))
    x = rows(3, 4, 8)
    masks: dict[str, Tensor] = {}
    if masked == "causal":
        masks["attn_mask"] = torch.ones(4, 4, dtype=torch.bool).triu(1)
    if masked == "padding":
        masks["key_padding_mask"] = torch.tensor([[False, False, False, True]] * 3)

    split = SplitAttention.of(attention)

    with torch.no_grad():
        expected = attention(x, x, x, need_weights=False, **masks)[0]
        torch.testing.assert_close(split(x, x, x, **masks)[0], expected)
    with pytest.raises(ValueError, match="itself"):
        split(x, x.clone(), x)


def test_a_pruned_transformer_is_trained_like_any_other() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True, norm_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        model = nn.Sequential(nn.Linear(3, 16), encoder, nn.Flatten(), nn.Linear(64, 2))
    x = rows(80, 4, 3).float()
    wanted = x[:, 0, :2] - x[:, 1, 1:]

    small = nobsp.prune(model, x, keep=0.5).model.train()

    optimizer = torch.optim.SGD(small.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (small(x) - wanted).square().mean()
        loss.backward()
        assert all(weight.grad is not None for weight in small.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_the_rest_takes_over_more_than_it_did_alone() -> None:
    model = drawn(nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 2)))
    x = rows(600, 4)

    pruned = nobsp.prune(model, x, keep=0.25)

    [layer] = pruned.layers
    kept = list(layer.stayed)
    with torch.no_grad():
        hidden = model[1](model[0](x))[:, kept]
        alone = hidden @ model[2].weight[:, kept].T
        whole = model(x)
        taken_over = pruned.model(x)
    before = float((whole - alone - (whole - alone).mean(0)).square().mean())
    after = float((whole - taken_over).square().mean())
    assert after < 0.2 * before
    # The mean of every output stays what it was on the rows that were fitted.
    assert float((whole - taken_over).mean(0).abs().max()) < 0.1 * after**0.5 + 1e-3


@pytest.mark.parametrize("budget_of", ["multiplications", "parameters"])
def test_a_budget_is_kept_and_spent_where_it_costs_least(budget_of: str) -> None:
    """The first layer's units are there twice, the second's are not."""
    model = drawn(
        nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 3))
    )
    twice(model[0], model[2])

    pruned = nobsp.prune(model, rows(800, 6), budget=0.62, budget_of=budget_of)

    assert getattr(pruned, budget_of).ratio <= 0.65
    assert pruned.measured_change < 0.01
    after = {layer.made_by[0]: layer.after for layer in pruned.layers}
    assert after["0"] <= 13
    assert after.get("2", 20) >= 17


@pytest.mark.parametrize("budget", [0.02, 0.1, 0.3, 0.5])
def test_a_budget_of_parameters_is_not_passed_while_parts_can_go(budget: float) -> None:
    model = drawn(
        nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    )

    pruned = nobsp.prune(model, rows(600, 6), budget=budget, budget_of="parameters")

    assert 0.5 * budget < pruned.parameters.ratio <= budget
    assert "budget_missed" not in {finding.code for finding in pruned.findings}


def test_labels_give_the_accuracy_before_and_after() -> None:
    model = doubled_units()
    x = rows(300, 5)
    labels = model(x).argmax(1)

    pruned = nobsp.prune(model, x, keep=0.5, y=labels)

    assert pruned.accuracy is not None
    assert pruned.accuracy[0] == 1.0
    assert pruned.accuracy[1] == pruned.same_class
    assert pruned.held_out_rows == 60
    assert list(pruned.to_frame()["after"]) == [8]


def test_protected_layers_stay_whole() -> None:
    model = drawn(
        nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    )

    pruned = nobsp.prune(model, rows(200, 5), keep=0.5, protect=["0"])

    assert [layer.made_by for layer in pruned.layers] == [("2",)]
    assert pruned.model[0].weight.shape == (8, 5)


def test_protecting_a_layer_between_or_the_one_that_reads_keeps_the_parts_and_says_why() -> None:
    layers = (nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 12), nn.ReLU())
    model = drawn(nn.Sequential(*layers, nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 2)))

    for protected, reason in (("1", "it is protected"), ("3", "3, which reads")):
        pruned = nobsp.prune(model, rows(200, 3), keep=0.5, protect=[protected])
        assert (pruned.model[0].out_features, pruned.model[1].num_features) == (8, 8)
        reasons = {layer.name: layer.reason for layer in pruned.left_whole}
        assert reasons["0"].startswith(reason)


def test_layers_with_few_rows_are_named() -> None:
    pruned = nobsp.prune(
        drawn(nn.Sequential(nn.Linear(3, 40), nn.ReLU(), nn.Linear(40, 2))), rows(30, 3)
    )

    assert [finding.code for finding in pruned.findings] == ["few_rows"]
    assert np.isfinite(pruned.measured_change)
    # Six held-out rows and 24 that every layer can fit: what was foreseen is no estimate, and six rows tell little.
    assert not pruned.is_foreseen
    assert "expected" not in repr(pruned)
    low, high = pruned.same_class_interval
    assert low < pruned.same_class <= high
    assert high - low > 0.4
    enough = nobsp.prune(
        drawn(nn.Sequential(nn.Linear(3, 40), nn.ReLU(), nn.Linear(40, 2))), rows(400, 3)
    )
    assert enough.is_foreseen
    assert "expected" in repr(enough)


class FixedView(nn.Module):
    """A forward pass that only takes as many units as there are."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu().view(-1, 6))


def test_a_layer_that_does_not_take_fewer_parts_stays_whole_and_says_so() -> None:
    pruned = nobsp.prune(drawn(FixedView()), rows(100, 4))

    assert pruned.layers == ()
    assert pruned.parameters.ratio == 1.0
    assert "first" in {layer.name for layer in pruned.left_whole}


class Biased(nn.Module):
    """A layer that reads constants makes a bias, as that of positions in the second Swin."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.positions = nn.Linear(2, 6)
        self.last = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        bias = self.positions(torch.ones(1, 2, dtype=x.dtype))
        return self.last((self.first(x) + bias).relu())


def test_a_layer_that_does_not_read_the_input_is_not_said_to_make_the_outputs() -> None:
    _, others = find_groups(drawn(Biased()), rows(2, 4))

    reasons = dict(others)
    assert reasons["positions"] != reasons["last"]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(4, 6, batch_first=True)
        self.last = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.memory(x)[0][:, -1])


@pytest.mark.parametrize(
    ("model", "x", "named"),
    [(Recurrent(), rows(20, 3, 4), "memory"), (nn.Linear(4, 2), rows(20, 4), "the model itself")],
)
def test_layers_that_stay_whole_are_named(model: nn.Module, x: Tensor, named: str) -> None:
    with pytest.raises(ValueError, match=f"{named}: "):
        nobsp.prune(drawn(model), x)


class OwnWeights(nn.Module):
    """Weights that are no layer's, a product of two tensors, and a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.weight = nn.Parameter(torch.zeros(8, 8))
        self.second = nn.Linear(8, 8)
        self.product = nn.Bilinear(8, 8, 8)
        self.cell = nn.GRUCell(8, 8)
        self.last = nn.Linear(8, 6)
        self.head = nn.Linear(6, 2)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second((self.first(x).relu() @ self.weight).relu()).relu()
        return self.head(self.last(self.cell(self.product(x, x))).relu())


def convolutions(dimensions: int) -> nn.Module:
    """Plain, transposed, in groups, with other padding, depthwise, and two that can be cut."""
    convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    transposed = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dimensions - 1]
    layers = [
        convolution(2, 4, 3, padding=1),
        transposed(4, 4, 3),
        convolution(4, 4, 3, groups=2),
        convolution(4, 4, 3, padding=1, padding_mode="circular"),
        convolution(4, 4, 3, groups=4, padding=1),
        convolution(4, 4, 1),
    ]
    with_bends = [module for layer in layers for module in (layer, nn.ReLU())]
    pooled = nn.Sequential(nn.Flatten(), nn.Linear(4 * 5**dimensions, 6), nn.ReLU())
    return nn.Sequential(*with_bends, pooled, nn.Linear(6, 2))


@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        (
            convolutions(1),
            (2, 5),
            {
                "0": "2 reads what it makes",
                "2": "ConvTranspose1d",
                "4": "2 groups",
                "6": "circular",
                "8": "by itself",
            },
        ),
        (convolutions(2), (2, 5, 5), {"2": "ConvTranspose2d", "4": "2 groups", "6": "circular"}),
        (
            convolutions(3),
            (2, 5, 5, 5),
            {"0": "Conv3d", "2": "ConvTranspose3d", "6": "Conv3d", "10": "Conv3d"},
        ),
        (
            OwnWeights(),
            (4,),
            {
                "first": "the model itself",
                "": "parameter of its own",
                "second": "Bilinear",
                "product": "Bilinear",
                "cell": "recurrent",
                "unused": "not called",
                "head": "network returns",
            },
        ),
    ],
)
def test_every_layer_is_smaller_or_named_with_its_own_reason(
    model: nn.Module, shape: tuple[int, ...], expected: dict[str, str]
) -> None:
    pruned = nobsp.prune(drawn(model), rows(40, *shape), keep=0.5)

    reasons = {layer.name: layer.reason for layer in pruned.left_whole}
    for name, words in expected.items():
        assert words in reasons[name]
    smaller = {name for layer in pruned.layers for name in layer.made_by}
    with_weights = {
        name
        for name, layer in pruned.model.named_modules()
        if isinstance(getattr(layer, "weight", None), Tensor)
    }
    assert with_weights <= smaller | set(reasons)


def test_heads_go_with_the_keys_they_share() -> None:
    model = doubled_groups()

    pruned = nobsp.prune(model, rows(200, 3, 8), keep=0.5)

    [layer] = pruned.layers
    assert (layer.kind, layer.before, layer.after) == ("head groups", 4, 2)
    assert set(layer.made_by) == {"q_proj", "k_proj", "v_proj"}
    small = pruned.model
    assert isinstance(small, SharedKeys)
    assert (small.num_heads, small.num_kv_heads) == (4, 2)
    made = [layer.out_features for layer in (small.q_proj, small.k_proj, small.v_proj)]
    assert (made, small.out.in_features) == ([8, 4, 4], 8)


def llama(*, keys: int) -> nn.Module:
    """Four heads that share the keys and values of fewer."""
    torchvision_models()  # transformers imports torchvision, which has to be helped first
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=20,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=keys,
        hidden_size=16,
        intermediate_size=12,
        pad_token_id=0,
    )
    return drawn(transformers.LlamaForCausalLM(config))


def test_a_language_model_that_lost_groups_of_heads_goes_on_from_its_cache() -> None:
    texts = tokens(60, 5)
    pruned = nobsp.prune(llama(keys=2), texts, keep=0.5)
    small = pruned.model

    with torch.no_grad():
        known = small(texts[:4, :-1], use_cache=True).past_key_values
        answer = small(texts[:4, -1:], past_key_values=known).logits[:, -1]
        expected = small(texts[:4]).logits[:, -1]

    assert "head groups" in {layer.kind for layer in pruned.layers}
    torch.testing.assert_close(answer, expected)


def test_heads_that_all_share_one_key_stay_and_say_so() -> None:
    pruned = nobsp.prune(llama(keys=1), tokens(20, 5))

    reasons = {layer.name: layer.reason for layer in pruned.left_whole}
    assert "share" in reasons["model.layers.0.self_attn.v_proj"]


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (nn.Linear(4, 2), {}, "no part"),
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), {"keep": 0.0}, "keep"),
        (nn.Linear(4, 2), {"keep": 0.5, "budget": 0.5}, "budget"),
        (nn.Linear(4, 2), {"budget_of": "watts"}, "budget_of"),
        (nn.Linear(4, 2), {"y": [0, 1]}, "y"),
        (nn.Linear(4, 2), {"protect": ["head"]}, "protect"),
        (nn.Linear(4, 2), {"held_out": 1.5}, "held_out"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    model: nn.Module, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        nobsp.prune(model, torch.randn(20, 4), **options)


PATCHES: dict[str, tuple[nn.Conv1d | nn.Conv2d, Tensor]] = {
    "same": (
        nn.Conv2d(3, 5, (3, 2), padding="same", dilation=(1, 2)),
        rows(2, 3, 9, 8),
    ),
    "valid": (nn.Conv2d(3, 5, 3, padding="valid", stride=2), rows(2, 3, 9, 8)),
    "numbers": (nn.Conv2d(3, 5, (3, 1), padding=(2, 1), stride=(1, 2)), rows(2, 3, 9, 8)),
    "same, a sequence": (nn.Conv1d(3, 5, 3, padding="same", dilation=2), rows(2, 3, 11)),
    "numbers, a sequence": (nn.Conv1d(3, 5, 3, padding=2, stride=2), rows(2, 3, 11)),
}


@pytest.mark.parametrize("padding", PATCHES)
def test_a_convolution_is_its_patches_times_its_weights(padding: str) -> None:
    layer, x = PATCHES[padding]
    drawn(layer)

    with torch.no_grad():
        products = columns_entering(layer, x) @ matrix_of(layer) + layer.bias
        torch.testing.assert_close(products, outputs_leaving(layer, layer(x)))


def test_channels_go_with_their_slopes_and_where_padding_is_a_word() -> None:
    first = nn.Conv2d(3, 8, 3, padding="same")
    second = nn.Conv2d(8, 6, 3, padding="same")
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2))
    model = drawn(nn.Sequential(first, nn.PReLU(8), second, nn.PReLU(), *head))
    twice(first, second)
    with torch.no_grad():
        model[1].weight[4:] = model[1].weight[:4]

    pruned = nobsp.prune(model, rows(40, 3, 8, 8), keep=0.5, protect=["4", "6"])

    [layer] = pruned.layers
    assert (layer.name, layer.after) == ("0", 4)
    assert pruned.model[1].num_parameters == len(pruned.model[1].weight) == 4
    assert pruned.measured_change < AS_GOOD_AS_NOTHING


class OneNorm(nn.Module):
    """The same batch norm twice: it cannot be made smaller for one of the two."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3)
        self.between = nn.Conv2d(6, 6, 3, groups=6)
        self.norm = nn.BatchNorm2d(6)
        self.last = nn.Conv2d(6, 4, 1)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.between(self.norm(self.first(x)).relu()))
        return self.head(self.last(x.relu()).relu().mean((2, 3)))


def test_a_layer_between_that_is_used_twice_keeps_its_channels_and_says_so() -> None:
    pruned = nobsp.prune(drawn(OneNorm()), rows(40, 3, 8, 8), keep=0.5)

    assert [layer.name for layer in pruned.layers] == ["last"]
    reasons = {layer.name: layer.reason for layer in pruned.left_whole}
    assert "used more than once" in reasons["between"]


class SharedNorm(nn.Module):
    """A batch norm behind the layer that reads the parts, and elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 12)
        self.outer = nn.Linear(12, 4, bias=False)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return self.head(x + self.norm(self.outer(self.inner(x).relu())))


def test_a_norm_that_has_other_work_does_not_take_a_mean_on() -> None:
    model = drawn(SharedNorm())

    small = nobsp.prune(model, rows(200, 4), keep=0.5).model

    assert isinstance(small, SharedNorm)
    assert torch.equal(small.norm.running_mean, model.norm.running_mean)
    assert small.outer.bias is not None


def test_numbers_that_overflow_are_refused_and_not_measured_as_nan() -> None:
    table = rows(200, 6)
    table[:, 0] = 1e38
    network = drawn(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))).float()

    with pytest.raises(ValueError, match="X makes the network's numbers overflow"):
        nobsp.prune(network, table)


class Tied(nn.Module):
    """Two layers with the same weights, and one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.same = nn.Linear(6, 6)
        self.same.weight = self.first.weight
        self.inner = nn.Linear(6, 20)
        self.last = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(self.same(self.first(x).relu()).relu()).relu())


def test_layers_that_share_their_weights_stay_tied() -> None:
    torch.manual_seed(0)

    pruned = nobsp.prune(Tied(), torch.randn(200, 6), keep=0.5)

    assert [(layer.name, layer.after) for layer in pruned.layers] == [("inner", 10)]
    small = pruned.model
    assert isinstance(small, Tied)
    assert small.same.weight is small.first.weight
    reasons = {layer.name: layer.reason for layer in pruned.left_whole}
    assert "shares its weights" in reasons["same"]


def test_language_models_are_exported_without_their_cache() -> None:
    torchvision_models()  # transformers imports torchvision, which has to be helped first
    transformers = pytest.importorskip("transformers")
    configuration = transformers.GPT2Config(
        vocab_size=32,
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=16,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = drawn(transformers.GPT2LMHeadModel(configuration))
    texts = torch.randint(0, 32, (60, 8), generator=torch.Generator().manual_seed(0))
    pruned = nobsp.prune(model, texts, keep=0.5)

    program = pruned.export(texts)

    answer = program.module()(texts[:7])
    expected = pruned.model(texts[:7])
    assert_same_to_rounding(answer.logits, expected.logits.detach(), within=SINGLE)
    # The network goes on as it was, with its cache.
    assert pruned.model.config.use_cache
    assert expected.past_key_values is not None
    with pytest.raises(ValueError, match="two or more"):
        pruned.export(texts[:1])


def test_a_network_that_was_just_trained_is_exported_without_dropout_and_stays_in_its_mode() -> (
    None
):
    torch.manual_seed(0)
    rows = torch.randn(200, 4)
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 2))
    pruned = nobsp.prune(model.eval(), rows, keep=0.5)
    pruned.model.train()

    program = pruned.export(rows).module()

    assert pruned.model.training
    expected = pruned.model.eval()(rows)
    torch.testing.assert_close(program(rows), expected)


def test_how_images_lie_in_memory_does_not_matter() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU()
    )
    model = nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)).eval()
    channels_last = torch.randn(60, 12, 12, 3).permute(0, 3, 1, 2)

    found = nobsp.prune(model, channels_last, keep=0.5)
    expected = nobsp.prune(model, channels_last.contiguous(), keep=0.5)

    assert not channels_last.is_contiguous()
    assert [layer.after for layer in found.layers] == [layer.after for layer in expected.layers]
    assert found.left_whole == expected.left_whole


class FixedRows(nn.Module):
    """A network whose forward pass makes the number of rows a constant, for programs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).reshape(len(x), 2)


def test_a_network_of_which_no_program_can_be_made_is_told() -> None:
    pruned = nobsp.prune(drawn(FixedRows()), rows(40, 3))

    with pytest.raises(ValueError, match="program for batches of any size"):
        pruned.export(rows(8, 3))


def test_layers_to_protect_are_names() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))

    with pytest.raises(TypeError, match="protect"):
        nobsp.prune(drawn(model), rows(40, 3), protect=[model[0]])  # type: ignore[list-item]


def test_rows_that_a_smaller_network_cannot_take_are_refused_before_it_is_exported() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 2))
    pruned = nobsp.prune(model, torch.randn(200, 3), keep=0.5)
    with pytest.raises(ValueError, match="cannot take rows of X"):
        pruned.export(torch.randn(20, 4))
