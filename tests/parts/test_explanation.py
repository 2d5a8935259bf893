"""Outputs are sums over parts: exact, found whatever layers are called, and measured by taking parts away."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nobsp
from benchmarks.architectures import torchvision_models
from tests.parts.streams import (
    Attention,
    Block,
    Ensemble,
    MaskedIfPadded,
    Padded,
    ResNet,
    Transformer,
    drawn,
    rows,
    texts,
    tokens,
)
from tests.tolerances import PASS, SUMS, assert_same_to_rounding


def huggingface(kind: str) -> nn.Module:
    torchvision_models()  # transformers imports torchvision, which has to be helped first
    transformers = pytest.importorskip("transformers")
    shape = {"vocab_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8}
    names: dict[str, Callable[[], Any]] = {
        "bert": lambda: transformers.BertForSequenceClassification(
            transformers.BertConfig(intermediate_size=12, **shape)
        ),
        "gpt2": lambda: transformers.GPT2ForSequenceClassification(
            transformers.GPT2Config(
                vocab_size=20,
                n_embd=8,
                n_layer=2,
                n_head=2,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
            )
        ),
        "llama": lambda: transformers.LlamaForSequenceClassification(
            transformers.LlamaConfig(intermediate_size=12, pad_token_id=0, **shape)
        ),
        "llama, eager": lambda: transformers.LlamaForSequenceClassification(
            transformers.LlamaConfig(
                intermediate_size=12, pad_token_id=0, attn_implementation="eager", **shape
            )
        ),
    }
    return drawn(names[kind]())


def encoder(*, norm_first: bool, batch_first: bool = True) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        8, 2, 12, batch_first=batch_first, norm_first=norm_first, dropout=0.0
    )
    stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    network = nn.Sequential(stack, nn.Flatten(), nn.Linear(24, 2))
    return drawn(network if batch_first else TokensFirst(network))


class TokensFirst(nn.Module):
    """For layers that want tokens before rows."""

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        encoded = self.network[0](x.transpose(0, 1))
        return self.network[2](self.network[1](encoded.transpose(0, 1)))


TRANSFORMER_PARTS = (
    "embedding",
    "block 0, head 0",
    "block 0, head 1",
    "block 0, MLP",
    "block 1, head 0",
    "block 1, head 1",
    "block 1, MLP",
)
TRANSFORMERS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "written out": lambda: (drawn(Transformer(last_norm=True)), rows(12, 4, 3)),
    "pre-norm": lambda: (encoder(norm_first=True), rows(12, 3, 8)),
    "post-norm": lambda: (encoder(norm_first=False), rows(12, 3, 8)),
    "tokens first": lambda: (encoder(norm_first=False, batch_first=False), rows(12, 3, 8)),
    "bert": lambda: (huggingface("bert"), tokens(12, 4)),
    "gpt2": lambda: (huggingface("gpt2"), tokens(12, 4)),
    "llama": lambda: (huggingface("llama"), tokens(12, 4)),
    "llama, eager": lambda: (huggingface("llama, eager"), tokens(12, 4)),
}


def logits_of(model: nn.Module, x: Tensor) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        result = model(x)
    return np.asarray(getattr(result, "logits", result).to(torch.float64))


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_parts_of_transformers_have_the_names_people_give_them_and_add_up(kind: str) -> None:
    model, x = TRANSFORMERS[kind]()

    ex = nobsp.explain_parts(model, x)

    assert ex.feature_names == TRANSFORMER_PARTS
    assert_same_to_rounding(ex.predictions, logits_of(model, x), within=SUMS)
    accounted = ex.base_values + ex.values.sum(1)
    assert_same_to_rounding(accounted + ex.residual, ex.predictions)
    # What the integral through norms misses.
    change = np.abs(ex.predictions - ex.base_values).mean()
    assert np.abs(ex.residual).max() < 0.01 * change


class Summed(Ensemble):
    """Python's sum begins with 0, to which the first member is added."""

    def forward(self, x: Tensor) -> Tensor:
        total: Any = sum(member(x) for member in self.members)
        return total / 3


class Looped(nn.Module):
    """Residual blocks that are no modules of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 6)
        self.inner = nn.ModuleList([nn.Linear(6, 5) for _ in range(3)])
        self.outer = nn.ModuleList([nn.Linear(5, 6) for _ in range(3)])
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for inner, outer in zip(self.inner, self.outer, strict=True):
            x = x + 0.5 * outer(inner(x).relu())
        return self.head(x)


@pytest.mark.parametrize(
    ("network", "x", "names"),
    [
        (ResNet, rows(10, 3, 6, 6), ("embedding", "block 0", "block 1", "block 2")),
        (Ensemble, rows(10, 4), tuple(f"branch members.{number}" for number in range(3))),
        (Summed, rows(10, 4), tuple(f"branch members.{number}" for number in range(3))),
        (Looped, rows(10, 4), ("embedding", "block 0", "block 1", "block 2")),
        (
            lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2), nn.Softmax(1)),
            rows(10, 4),
            ("unit 0", "unit 1", "unit 2"),
        ),
    ],
    ids=["residual CNN", "ensemble", "sum from 0", "loop", "plain"],
)
def test_other_networks_are_taken_apart_without_any_residual(
    network: Callable[[], nn.Module], x: Tensor, names: tuple[str, ...]
) -> None:
    ex = nobsp.explain_parts(drawn(network()), x)

    assert ex.feature_names == names
    assert {finding.code for finding in ex.findings} <= {"logits"}
    size = float(np.abs(ex.values).sum(1).max())
    assert_same_to_rounding(ex.residual, np.zeros_like(ex.residual), within=SUMS, size=size)


class Headed(nn.Module):
    """A norm, a layer and an activation stand between the stream and the outputs."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.before = nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.before(self.encoder(x)[:, 0]).relu())


def test_a_head_with_an_activation_leaves_hardly_any_residual() -> None:
    """Points of an integral miss the kink of an activation, by two percent and more; its chord does not."""
    ex = nobsp.explain_parts(drawn(Headed()), rows(20, 3, 8))

    change = np.abs(ex.predictions - ex.base_values).mean()
    assert np.abs(ex.residual).max() < 1e-3 * change


class LoopedTransformer(nn.Module):
    """Attention layers in one list and MLPs in another."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleList([Attention(8, 2) for _ in range(2)])
        self.mlps = nn.ModuleList(
            [nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8)) for _ in range(2)]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(8) for _ in range(4)])
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for number in range(2):
            x = x + self.attention[number](self.norms[2 * number](x))
            x = x + self.mlps[number](self.norms[2 * number + 1](x))
        return self.head(x.mean(1))


def test_blocks_of_a_transformer_that_is_written_as_a_loop_are_told_apart() -> None:
    ex = nobsp.explain_parts(drawn(LoopedTransformer()), rows(10, 3, 8))

    assert ex.feature_names == TRANSFORMER_PARTS


@pytest.mark.parametrize(
    ("name", "options", "n_parts"),
    [
        (
            "VisionTransformer",
            {
                "image_size": 16,
                "patch_size": 8,
                "num_layers": 2,
                "num_heads": 2,
                "hidden_dim": 8,
                "mlp_dim": 12,
            },
            7,
        ),
        (
            "SwinTransformer",
            {
                "patch_size": [2, 2],
                "embed_dim": 8,
                "depths": [2, 1],
                "num_heads": [1, 2],
                "window_size": [2, 2],
            },
            8,
        ),
        ("DenseNet", {"growth_rate": 4, "block_config": (2, 2), "num_init_features": 8}, 5),
    ],
)
def test_architectures_of_torchvision_are_followed_to_the_input(
    name: str, options: dict[str, Any], n_parts: int
) -> None:
    models = torchvision_models()
    model = drawn(getattr(models, name)(num_classes=2, **options))

    ex = nobsp.explain_parts(model, rows(6, 3, 16, 16))

    assert len(ex.parts) == n_parts
    assert ex.findings == ()
    assert np.abs(ex.residual).max() < 0.01 * np.abs(ex.predictions - ex.base_values).mean()


def test_timm_transformers_are_followed_to_the_input() -> None:
    torchvision_models()
    timm = pytest.importorskip("timm")
    options = {"num_classes": 2, "img_size": 32, "patch_size": 16, "depth": 2}
    model = drawn(timm.create_model("deit_tiny_patch16_224", **options))

    ex = nobsp.explain_parts(model, rows(6, 3, 32, 32))

    assert ex.feature_names[:5] == (
        "embedding",
        *(f"block 0, head {h}" for h in range(3)),
        "block 0, MLP",
    )
    assert len(ex.parts) == 9


class Scale(nn.Module):
    """A weight for every channel, as LayerScale has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class NumberedBlock(nn.Module):
    """Sublayers whose last steps differ by a digit: scales as in DeiT III, or norms as in the second Swin."""

    def __init__(self, last: type[nn.Module]) -> None:
        super().__init__()
        self.attention = Attention(8)
        self.last1 = last(8)
        self.mlp = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))
        self.last2 = last(8)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.last1(self.attention(x))
        return x + self.last2(self.mlp(x))


class Added(nn.Module):
    """A sublayer that adds itself to the stream, as in T5."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def self_adding_block() -> nn.Module:
    mlp = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))
    return nn.Sequential(Added(Attention(8)), Added(mlp))


@pytest.mark.parametrize(
    ("block", "n_heads"),
    [
        (lambda: NumberedBlock(Scale), 2),
        (lambda: NumberedBlock(nn.LayerNorm), 1),
        (self_adding_block, 2),
    ],
    ids=["scales", "norms", "numbered sublayers"],
)
def test_sublayers_whose_names_differ_by_a_digit_are_of_one_block(
    block: Callable[[], nn.Module], n_heads: int
) -> None:
    transformer = Transformer(last_norm=True)
    transformer.blocks = nn.ModuleList([block(), block()])

    ex = nobsp.explain_parts(drawn(transformer), rows(10, 3, 3))

    attention = (", head 0", ", head 1") if n_heads == 2 else (", attention",)
    inside = (*attention, ", MLP")
    expected = [f"block {number}{name}" for number in range(2) for name in inside]
    assert ex.feature_names == ("embedding", *expected)


def test_without_a_last_norm_a_head_adds_its_slice_of_the_projection_times_the_readout() -> None:
    model = drawn(Transformer(last_norm=False))
    x = rows(12, 4, 3)
    with torch.no_grad():
        stream = model.embed(x)
        stream = model.blocks[0](stream)
        attention = model.blocks[1].attention
        per_head = attention.per_head(model.blocks[1].norm1(stream))[:, 1, 0]
        written = per_head @ attention.out.weight[:, 4:].T
        expected = (written - written.mean(0)) @ model.head.weight.T

    ex = nobsp.explain_parts(model, x)

    found = ex.values[:, ex.feature_names.index("block 1, head 1")]
    assert_same_to_rounding(found, expected.numpy(), within=SUMS)
    assert_same_to_rounding(ex.base_values, ex.predictions.mean(0), within=SUMS)


def test_the_last_norm_is_carried_by_the_integral_and_not_by_a_frozen_scale() -> None:
    model = drawn(Transformer(last_norm=True))
    x = rows(12, 4, 3)
    with torch.no_grad():
        stream = model.embed(x)
        before = model.blocks[0](stream)
        between = before + model.blocks[1].attention(model.blocks[1].norm1(before))
        last = model.blocks[1](before)
        written = (last - between)[:, 0]
    mean = last[:, 0].mean(0)
    steps = (torch.arange(400, dtype=torch.float64) + 0.5) / 400
    line = (mean + steps[:, None, None] * (last[:, 0] - mean)).requires_grad_()
    model.head(model.norm(line))[..., 0].sum().backward()
    assert line.grad is not None
    expected = (line.grad.mean(0) * (written - written.mean(0))).sum(1)

    ex = nobsp.explain_parts(model, x, target=0)

    found = ex.values[:, ex.feature_names.index("block 1, MLP"), 0]
    # The rule with 400 midpoints errs by about 1/400² of the curvature.
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-3 * float(expected.abs().max()))


def replaced_output(module: nn.Module, mean: Tensor) -> Any:
    return module.register_forward_hook(lambda *_: mean)


def test_ablation_is_what_a_hook_that_puts_in_the_mean_would_give() -> None:
    model = drawn(Transformer(last_norm=True))
    x = rows(12, 4, 3)
    caught: list[Tensor] = []
    hook = model.blocks[0].mlp.register_forward_hook(lambda _, __, out: caught.append(out))
    whole = logits_of(model, x)
    hook.remove()
    hook = replaced_output(
        model.blocks[0].mlp, caught[0].mean(0, keepdim=True).expand_as(caught[0])
    )
    without_mlp = logits_of(model, x)
    hook.remove()

    projection = model.blocks[0].attention.out

    def put_mean(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        entering = args[0].clone()
        entering[..., 4:] = entering[..., 4:].mean(0, keepdim=True)
        return (entering,)

    hook = projection.register_forward_pre_hook(put_mean)
    without_head = logits_of(model, x)
    hook.remove()

    ablation = nobsp.explain_parts(model, x).ablation(x)

    effects = dict(zip(ablation.names, ablation.effects.transpose(1, 0, 2), strict=True))
    assert_same_to_rounding(effects["block 0, MLP"], whole - without_mlp, within=SUMS, size=1.0)
    assert_same_to_rounding(effects["block 0, head 1"], whole - without_head, within=SUMS, size=1.0)
    assert_same_to_rounding(ablation.indirect, ablation.effects - ablation.direct)


@pytest.mark.parametrize(
    "network",
    [Ensemble, Summed, lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))],
    ids=["ensemble", "sum from 0", "plain"],
)
def test_parts_of_one_depth_are_ablated_and_have_no_lens(network: Callable[[], nn.Module]) -> None:
    x = rows(12, 4)
    ex = nobsp.explain_parts(drawn(network()), x)

    ablation = ex.ablation(x)

    assert_same_to_rounding(ablation.effects, ablation.direct, within=SUMS, size=1.0)
    assert ablation.lens is None
    with pytest.raises(ValueError, match="one depth"):
        ex.lens(x)


def test_parts_of_the_last_block_have_no_way_but_the_direct_one() -> None:
    model = drawn(Transformer(last_norm=False))
    x = rows(12, 4, 3)

    ablation = nobsp.explain_parts(model, x).ablation(x)

    last = ablation.names.index("block 1, MLP")
    size = float(np.abs(ablation.effects).max())
    nothing = np.zeros_like(ablation.indirect[:, last])
    assert_same_to_rounding(ablation.indirect[:, last], nothing, within=SUMS, size=size)
    assert np.abs(ablation.indirect[:, 1]).max() > 0.01 * size


def test_only_the_strongest_by_a_first_order_guess_are_measured_where_few_are_asked_for() -> None:
    model = drawn(Transformer(last_norm=True))
    x = rows(12, 4, 3)
    ex = nobsp.explain_parts(model, x)
    every = ex.ablation(x)

    few = ex.ablation(x, most=2)

    assert few.measured.sum() == 2
    assert np.isnan(few.effects[:, ~few.measured]).all()
    assert_same_to_rounding(
        few.effects[:, few.measured], every.effects[:, few.measured], within=SUMS
    )


def test_the_lens_ends_at_the_outputs_and_begins_with_all_blocks_at_their_means() -> None:
    model = drawn(Transformer(last_norm=False))
    x = rows(12, 4, 3)
    ex = nobsp.explain_parts(model, x)

    lens = ex.lens(x)

    assert lens.depths == ("embedding", "block 0", "block 1")
    assert_same_to_rounding(lens.outputs[:, -1], ex.predictions, within=SUMS)
    # Without a last norm all is linear: base and contributions up to that depth.
    assert_same_to_rounding(lens.outputs[:, 0], ex.base_values + ex.values[:, 0], within=SUMS)
    upto = ex.base_values + ex.values[:, :4].sum(1)
    assert_same_to_rounding(lens.outputs[:, 1], upto, within=SUMS)


def test_layers_and_blocks_are_sums_of_their_heads() -> None:
    model = drawn(Transformer(last_norm=True))
    x = rows(12, 4, 3)
    fine = nobsp.explain_parts(model, x)

    layers = nobsp.explain_parts(model, x, parts="layers")
    blocks = nobsp.explain_parts(model, x, parts="blocks")

    assert layers.feature_names[1] == "block 0, attention"
    assert_same_to_rounding(layers.values[:, 1], fine.values[:, 1:3].sum(1), within=SUMS, size=1.0)
    assert blocks.feature_names == ("embedding", "block 0", "block 1")
    assert_same_to_rounding(blocks.values[:, 1], fine.values[:, 1:4].sum(1), within=SUMS, size=1.0)
    whole = blocks.ablation(x)
    assert whole.effects.shape == (12, 3, 2)


def test_a_circuit_of_two_heads_is_found_by_ablation() -> None:
    """One head of block 0 carries the signal to the first token; one of block 1 doubles what that head wrote."""
    model = Transformer(last_norm=False).to(torch.float64).eval()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    for block in model.blocks:
        block.norm1 = nn.Identity()
        block.norm2 = nn.Identity()
    with torch.no_grad():
        model.embed.weight[0, 0] = 1.0
        # Head 1 of block 0 averages input 0 over tokens and writes it to place 2.
        first = model.blocks[0].attention
        first.qkv.weight[16 + 4, 0] = 1.0
        first.out.weight[2, 4] = 1.0
        # Head 0 of block 1 reads place 2 and writes it to place 3.
        second = model.blocks[1].attention
        second.qkv.weight[16, 2] = 1.0
        second.out.weight[3, 0] = 2.0
        model.head.weight[0, 3] = 1.0
    x = rows(30, 4, 3)

    ex = nobsp.explain_parts(model, x, target=0)
    sizes = np.abs(ex.ablation(x).effects[..., 0]).mean(0)

    strong = {name for name, size in zip(ex.feature_names, sizes, strict=True) if size > 1e-9}
    # The embedding carries what the heads move.
    assert strong == {"embedding", "block 0, head 1", "block 1, head 0"}
    direct = np.abs(ex.values[..., 0]).mean(0)
    assert [ex.feature_names[p] for p in np.flatnonzero(direct > 1e-9)] == ["block 1, head 0"]


def test_rounding_of_nearly_constant_outputs_is_no_large_residual() -> None:
    model = drawn(Transformer(last_norm=True)).float()
    with torch.no_grad():
        model.head.weight.mul_(1e-6)
        model.head.bias.fill_(1.0)

    ex = nobsp.explain_parts(model, rows(20, 3, 3).float())

    # Otherwise nothing is tested.
    assert np.abs(ex.residual).mean() > 0.01 * np.abs(ex.predictions - ex.base_values).mean()
    assert ex.findings == ()


def test_a_stream_that_ends_early_says_where() -> None:
    torch.manual_seed(0)
    between = [nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU()]
    model = nn.Sequential(Skip(6), *between, Skip(6), nn.Linear(6, 2)).double()

    ex = nobsp.explain_parts(model, rows(20, 6))

    assert [finding.code for finding in ex.findings] == ["stream_end"]
    assert ex.feature_names == ("up to 4", "block 0")


class CrossAttention(nn.Module):
    """A decoder that reads tokens twice: as its own, and encoded. Below both ways meet there is no single stream."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Embedding(20, 6)
        self.encoded = nn.Embedding(20, 6)
        self.encoder = Skip(6)
        self.cross = nn.Linear(6, 6)
        self.last = Skip(6)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        own = self.own(x).mean(1)
        encoded = self.encoder(self.encoded(x).mean(1))
        return self.head(self.last(own + self.cross(encoded)))


def test_what_several_ways_lead_to_is_not_called_an_embedding() -> None:
    ex = nobsp.explain_parts(drawn(CrossAttention()), tokens(20, 4))

    assert [finding.code for finding in ex.findings] == ["stream_end"]
    first, *others = ex.parts
    assert first.name.startswith("up to ")
    assert [part.name for part in others] == ["block 0"]


class Routed(nn.Module):
    """Experts, weighed by the softmax of a router."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 2)
        self.experts = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        answers = torch.stack([expert(x).relu() for expert in self.experts], dim=-1)
        return (answers * weights.unsqueeze(-2)).sum(-1)


def test_experts_behind_a_router_are_no_attention() -> None:
    network = Transformer(last_norm=True)
    for block in network.blocks:
        assert isinstance(block, Block)
        block.mlp = nn.Sequential(Routed(8))

    ex = nobsp.explain_parts(drawn(network), rows(10, 3, 3))

    assert ex.feature_names == TRANSFORMER_PARTS


class Skip(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def test_the_model_and_torch_are_left_as_they_were() -> None:
    model = encoder(norm_first=True).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = rows(8, 3, 8)
    copy = x.clone()
    torch.backends.mha.set_fastpath_enabled(True)

    ex = nobsp.explain_parts(model, x)
    ex.ablation(x, most=1)

    assert model.training
    assert all(not part._forward_hooks and not part._forward_pre_hooks for part in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(x, copy)
    assert torch.is_grad_enabled()
    assert torch.backends.mha.get_fastpath_enabled()


class Odd(nn.Module):
    """The same numbers by other steps where the number of rows is odd."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu() if len(x) % 2 else x.clamp(min=0)


def test_the_layer_whose_steps_differ_is_named() -> None:
    model = nn.Sequential(nn.Linear(3, 4), Odd(), nn.Linear(4, 2))

    with pytest.raises(ValueError, match="first in '1'"):
        nobsp.explain_parts(drawn(model), rows(8, 3))


@pytest.mark.parametrize(
    ("model", "x", "options", "said"),
    [
        (nn.Linear(2, 1), torch.zeros(1, 2), {}, "background"),
        (nn.Linear(2, 1), torch.full((3, 2), torch.nan), {}, "X"),
        (nn.Linear(2, 1), [["a", "b"]], {}, "X"),
        (nn.Linear(2, 3), torch.randn(4, 2), {"target": 3}, "target"),
        (nn.Linear(2, 3), torch.randn(4, 2), {"target": "first"}, "target"),
        (nn.Linear(2, 3), torch.randn(4, 2), {"target": [0, -3]}, "target.* twice"),
        (nn.Linear(2, 3), torch.randn(4, 2), {"target": lambda out: out.argmax(1)}, "target"),
        (nn.Linear(2, 3), torch.randn(4, 2), {"target": lambda out: out.sum()}, "target"),
        (nn.Linear(2, 3), torch.randn(4, 2), {"background": torch.zeros(1, 2)}, "^background"),
        (nn.Linear(2, 3), torch.randn(4, 2), {"parts": "neurons"}, "parts"),
        (nn.Linear(2, 3), torch.randn(4, 2), {"output_names": ["one"]}, "output_names"),
        (nn.Linear(2, 3), torch.randn(4, 2), {"output_names": 5}, "output_names"),
        (nn.Sequential(nn.Linear(2, 2), nn.Tanh()), torch.randn(4, 2), {}, "stream ends"),
        ("model.pt", torch.randn(4, 2), {}, "model"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    model: Any, x: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        nobsp.explain_parts(model, x, **options)


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_outputs_are_chosen_by_arrays_as_by_lists(kind: Callable[[list[int]], Any]) -> None:
    model = drawn(nn.Linear(2, 3))
    x = rows(6, 2)

    ex = nobsp.explain_parts(model, x, target=kind([2, 0]))

    assert ex.output_names == ("output 2", "output 0")
    expected = nobsp.explain_parts(model, x, target=[2, 0])
    assert_same_to_rounding(ex.values, expected.values, within=SUMS)


def test_probabilities_and_tables_of_outputs_are_told() -> None:
    x = rows(6, 5, 4)
    table = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    probabilities = nn.Sequential(nn.Flatten(), nn.Linear(20, 3), nn.Softmax(1))

    of_table = nobsp.explain_parts(drawn(table), x)
    of_probabilities = nobsp.explain_parts(drawn(probabilities), x)
    of_one_place = nobsp.explain_parts(drawn(table), x, target=lambda out: out[:, -1])

    assert [finding.code for finding in of_table.findings] == ["outputs_numbered"]
    assert [finding.code for finding in of_probabilities.findings] == ["logits"]
    assert of_one_place.findings == ()


class LoopAndTail(nn.Module):
    """Blocks that are added in a loop, and one more of another kind behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 6)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2)])
        self.tail = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x + self.tail(x))


def test_blocks_stand_one_behind_the_other() -> None:
    x = rows(12, 3)

    ex = nobsp.explain_parts(drawn(LoopAndTail()), x)

    assert ex.feature_names == ("embedding", "block 0", "block 1", "block 2")
    assert [part.module for part in ex.parts[1:]] == ["blocks.0.1", "blocks.1.1", "tail.1"]
    assert ex.lens(x).depths == ex.feature_names


class Writing(nn.Module):
    """Adds its branch by writing into slices of the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.branch = nn.Linear(6, 3)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        stream = self.first(x)
        stream[:, :3] += self.branch(stream).tanh()
        stream[:, 3:] = stream[:, 3:] * 2
        return self.head(stream)


def test_a_model_that_writes_into_slices_is_followed_through_what_it_writes() -> None:
    model = drawn(Writing())
    x = rows(12, 4)

    ex = nobsp.explain_parts(model, x)

    assert_same_to_rounding(ex.predictions, logits_of(model, x), within=SUMS)
    size = float(np.abs(ex.values).sum(1).max())
    assert_same_to_rounding(ex.residual, np.zeros_like(ex.residual), within=SUMS, size=size)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(3, 5, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


def test_units_of_a_recurrent_network_add_up_in_inference_mode_too() -> None:
    model = Recurrent().eval()
    x = rows(12, 4, 3).float()

    with torch.inference_mode():
        ex = nobsp.explain_parts(model, x.clone())
        ablation = ex.ablation(x.clone(), most=2)
        assert torch.is_inference_mode_enabled()

    assert ex.feature_names == tuple(f"unit {number}" for number in range(5))
    assert np.abs(ex.residual).max() < 1e-5
    assert ablation.measured.sum() == 2


def test_what_masks_of_rows_do_is_a_part_and_no_residual() -> None:
    model = drawn(Padded())
    x = texts()

    ex = nobsp.explain_parts(model, x[:12], background=x)

    assert ex.feature_names == (*TRANSFORMER_PARTS, "mask")
    size = float(np.abs(ex.values).sum(1).max())
    assert_same_to_rounding(ex.residual, np.zeros_like(ex.residual), within=SUMS, size=size)
    # Rows of one length have one mask, and the base is the mean over rows of all lengths.
    of_masks = ex.values[:, -1]
    assert_same_to_rounding(of_masks[:5], of_masks[5:10], within=SUMS, size=size)
    whole = nobsp.explain_parts(model, x)
    assert_same_to_rounding(ex.base_values, whole.base_values, within=SUMS, size=size)
    assert_same_to_rounding(
        whole.values[:, -1].mean(0),
        np.zeros(2),
        within=SUMS,
        size=float(np.abs(whole.values).max()),
    )


def assert_alone_as_beside(model: nn.Module, alone: Tensor, others: Tensor, x: Tensor) -> None:
    """Fails unless rows have the account that they have beside others."""
    ex = nobsp.explain_parts(model, alone, background=x)

    beside = nobsp.explain_parts(model, torch.cat([alone, others]), background=x)[: len(alone)]

    size = float(np.abs(ex.values).sum(1).max())
    assert beside.terms == ex.terms
    assert_same_to_rounding(beside.values, ex.values, within=SUMS, size=size)
    assert_same_to_rounding(beside.residual, ex.residual, within=SUMS, size=size)
    ablation = ex.ablation(torch.cat([alone, others]), most=1)
    assert_same_to_rounding(ablation.direct[: len(alone)], ex.values, within=SUMS, size=size)
    for output in range(len(ex.output_names)):
        one_output = nobsp.explain_parts(model, alone, background=x, target=output)
        expected = ex.values[..., [output]]
        assert_same_to_rounding(one_output.values, expected, within=SUMS, size=size)


def test_rows_do_not_change_how_finely_others_are_integrated() -> None:
    model = drawn(Padded(last_norm=True), seed=4)
    # A mean stream that is small beside those of rows: the last norm bends on the way from it.
    model.embed.weight.data *= 30  # type: ignore[operator]
    x = texts()

    for first in range(0, 30, 6):
        others = torch.cat([x[:first], x[first + 6 :]])
        assert_alone_as_beside(model, x[first : first + 6], others, x)


def test_an_extreme_row_does_not_change_the_account_of_others() -> None:
    x = rows(12, 3, 6, 6)

    assert_alone_as_beside(drawn(ResNet()), x[:6], 1e9 * x[6:8], x)


class BarelyPadded(Padded):
    """Read at its first token, and a little at the mean of those that are no padding."""

    def forward(self, x: Tensor) -> Tensor:
        padding = x == 0
        encoded = self.encoder(self.embed(x), src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1).to(encoded.dtype)
        return self.head(encoded[:, 0] + 1e-4 * (encoded * kept).sum(1) / kept.sum(1))


def test_what_masks_do_is_no_residual_however_little_it_is() -> None:
    model = drawn(BarelyPadded())
    x = texts()

    ex = nobsp.explain_parts(model, x)

    assert ex.feature_names[-1] == "mask"
    assert np.abs(ex.values[:, -1]).max() < 1e-3 * np.abs(ex.predictions - ex.base_values).mean()
    size = float(np.abs(ex.values).sum(1).max())
    assert_same_to_rounding(ex.residual, np.zeros_like(ex.residual), within=SUMS, size=size)
    assert_alone_as_beside(model, x[:6], x[6:], x)


@pytest.mark.parametrize("padded_first", [False, True])
def test_batches_without_padding_are_followed_as_those_with_it(padded_first: bool) -> None:
    x = texts()
    lengths = (x != 0).sum(1)
    x = x[lengths.argsort(descending=not padded_first, stable=True)]
    not_padded = x[(x != 0).all(1)]
    assert len(not_padded) == 6

    ex = nobsp.explain_parts(drawn(MaskedIfPadded()), not_padded, background=x, batch_size=3)

    expected = nobsp.explain_parts(drawn(Padded()), not_padded, background=x)
    size = float(np.abs(expected.values).sum(1).max())
    assert ex.feature_names == expected.feature_names
    for name in ("values", "residual", "predictions", "base_values", "mean_outputs"):
        values = getattr(expected, name)
        assert_same_to_rounding(getattr(ex, name), values, within=SUMS, size=size, what=name)
    ablation = ex.ablation(not_padded, most=3)
    expected_ablation = expected.ablation(not_padded, most=3)
    assert ablation.measured.tolist() == expected_ablation.measured.tolist()
    for name in ("direct", "effects"):
        values = getattr(expected_ablation, name)[:, ablation.measured]
        measured = getattr(ablation, name)[:, ablation.measured]
        assert_same_to_rounding(measured, values, within=SUMS, size=size, what=name)
    assert_same_to_rounding(
        ex.lens(not_padded).outputs, expected.lens(not_padded).outputs, within=SUMS, size=size
    )


def test_padded_rows_have_to_be_known_before_they_are_ablated() -> None:
    x = texts()
    is_padded = (x == 0).any(1)
    ex = nobsp.explain_parts(drawn(MaskedIfPadded()), x[~is_padded])

    with pytest.raises(ValueError, match="X or background of explain_parts needs such a row"):
        ex.ablation(x[is_padded])


class OtherIfPadded(Padded):
    """Computes something else, rather than the same by other steps, where nothing is padded."""

    def forward(self, x: Tensor) -> Tensor:
        outputs = super().forward(x)
        return outputs * 3 if bool((x != 0).all()) else outputs


def test_rows_that_other_steps_tell_otherwise_are_refused() -> None:
    x = texts()
    is_padded = (x == 0).any(1)

    with pytest.raises(ValueError, match="depends on the other rows of its batch"):
        nobsp.explain_parts(drawn(OtherIfPadded()), x[~is_padded], background=x[is_padded])


def test_masks_are_beside_what_is_ablated_and_have_no_effect_of_their_own() -> None:
    x = texts()
    ex = nobsp.explain_parts(drawn(Padded()), x)

    ablation = ex.ablation(x[:10])

    assert ablation.names == ex.feature_names
    assert ablation.measured.tolist() == [True] * 7 + [False]
    size = float(np.abs(ex.values).max())
    assert_same_to_rounding(ablation.direct, ex.values[:10], within=PASS, size=size)
    assert np.isnan(ablation.effects[:, -1]).all()
    assert np.isfinite(ablation.effects[:, :-1]).all()
    assert ex.ablation(x[:10], most=2).measured.sum() == 2


def test_a_function_may_choose_what_is_explained() -> None:
    model = drawn(Transformer(last_norm=True))
    x = rows(12, 4, 3)
    ex = nobsp.explain_parts(model, x)

    margin = nobsp.explain_parts(model, x, target=lambda out: out[:, :1] - out[:, 1:])

    expected = ex.values[..., :1] - ex.values[..., 1:]
    assert_same_to_rounding(margin.values, expected, within=1e3 * PASS, size=1.0)


def four_outputs() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True, dropout=0.0)
    stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return drawn(nn.Sequential(stack, nn.Flatten(), nn.Linear(24, 4)))


def test_a_slice_asks_only_about_its_outputs_and_parts() -> None:
    x = rows(6, 3, 8)
    ex = nobsp.explain_parts(four_outputs(), x)
    whole = ex.ablation(x[:3])

    chosen = ex[:, ["block 1, MLP", "block 0, head 1"], [2, 1]]
    some = chosen.ablation(x[:3])

    assert [part.name for part in chosen.parts] == ["block 1, MLP", "block 0, head 1"]
    assert some.names == ("block 1, MLP", "block 0, head 1")
    assert some.output_names == ("output 2", "output 1")
    assert_same_to_rounding(chosen.mean_outputs, ex.mean_outputs[[2, 1]], within=SUMS)
    positions = [whole.names.index(name) for name in some.names]
    assert_same_to_rounding(some.effects, whole.effects[:, positions][:, :, [2, 1]], within=SUMS)
    assert_same_to_rounding(some.direct, whole.direct[:, positions][:, :, [2, 1]], within=SUMS)
    lens = chosen.lens(x[:3])
    assert lens.output_names == some.output_names
    assert_same_to_rounding(lens.outputs, ex.lens(x[:3]).outputs[..., [2, 1]], within=SUMS)
    strongest = chosen.ablation(x[:3], most=1)
    assert strongest.measured.sum() == 1
    assert ex[:, :, 1][:, :, 0].ablation(x[:3]).output_names == ("output 1",)
    plt = pytest.importorskip("matplotlib.pyplot")
    chosen.plot.parts()
    some.plot.parts()
    plt.close("all")


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_a_single_row_in_a_batch_is_explained_as_among_others(batch_size: int) -> None:
    model = four_outputs()
    x = rows(5, 3, 8)
    whole = nobsp.explain_parts(model, x)

    split = nobsp.explain_parts(model, x, batch_size=batch_size)
    single = nobsp.explain_parts(model, x[:1], background=x, batch_size=batch_size)

    assert_same_to_rounding(split.values, whole.values, within=SUMS)
    assert_same_to_rounding(single.values, whole.values[:1], within=SUMS)
    assert_same_to_rounding(single.mean_outputs, whole.mean_outputs, within=SUMS)
    effects = split.ablation(x[:1])
    assert_same_to_rounding(effects.effects, whole.ablation(x).effects[:1], within=SUMS)
    assert effects.lens.outputs.shape == (1, 3, 4)


def test_further_questions_are_refused_for_other_rows_weights_and_without_a_network() -> None:
    model = four_outputs()
    x = rows(5, 3, 8)
    ex = nobsp.explain_parts(model, x)
    read = pickle.loads(pickle.dumps(ex))  # noqa: S301  # it was written a moment ago

    assert_same_to_rounding(read.values, ex.values, within=SUMS)
    assert read[:, ["embedding"]].parts == ex.parts[:1]
    for ask in (ex.ablation, ex.lens):
        for wrong in (x[0], x[:, :2]):
            with pytest.raises(ValueError, match="X"):
                ask(wrong)
    with pytest.raises(ValueError, match="background"):
        nobsp.explain_parts(model, x, background=x[:, :2])
    with pytest.raises(TypeError, match="output"):
        ex.ablation(x).to_frame(1.5)
    for ask in (read.ablation, read.lens):
        with pytest.raises(ValueError, match="explain_parts"):
            ask(x)

    with torch.no_grad():
        model[2].bias += 1.0
    for ask in (ex.ablation, ex.lens):
        with pytest.raises(ValueError, match="weights"):
            ask(x)


def test_sums_of_explanations_have_the_parts_of_their_terms_and_no_network() -> None:
    x = rows(5, 3, 8)
    ex = nobsp.explain_parts(four_outputs(), x)

    mean = (ex[:, ["embedding"]] + ex) * 0.5

    assert tuple(part.name for part in mean.parts) == tuple(name for (name,) in mean.terms)
    assert_same_to_rounding(mean.mean_outputs, ex.mean_outputs, within=SUMS)
    for computed in (mean, ex - ex, 2.0 * ex):
        with pytest.raises(ValueError, match="explain_parts"):
            computed.ablation(x)
    with pytest.raises(TypeError):
        ex * "two"
