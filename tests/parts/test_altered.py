"""Models with hooks, computed weights, tensors they hand out and other habits are pruned rightly or left whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import nobsp
from nobsp.parts.attention import SplitAttention
from tests.parts.streams import drawn, rows
from tests.parts.test_pruning import Heads

X = rows(200, 6)


def mlp() -> nn.Sequential:
    model: nn.Sequential = drawn(
        nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3))
    )
    return model


def reasons_of(pruned: nobsp.Pruned) -> dict[str, str]:
    return {layer.name: layer.reason for layer in pruned.left_whole}


class Doubling(nn.Linear):
    """A linear layer with something after it."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as torch calls it
        return 2.0 * super().forward(input) + 1.0


def hooked() -> nn.Module:
    model = mlp()
    model[4].register_forward_hook(lambda _layer, _read, leaving: 3.0 * leaving)
    return model


def subclassed() -> nn.Module:
    model = mlp()
    doubling = drawn(Doubling(12, 3))
    model[4] = doubling
    return model


def weight_normed() -> nn.Module:
    model = mlp()
    parametrizations.weight_norm(model[4])
    return model


def spectral_normed() -> nn.Module:
    model = mlp()
    parametrizations.spectral_norm(model[4])
    return model.eval()


def old_spectral_normed() -> nn.Module:
    model = mlp()
    nn.utils.spectral_norm(model[4])
    return model.eval()


@pytest.mark.parametrize(
    "make", [hooked, subclassed, weight_normed, spectral_normed, old_spectral_normed]
)
def test_a_layer_that_is_not_what_its_type_says_stays_whole(
    make: Callable[[], nn.Module],
) -> None:
    pruned = nobsp.prune(make(), X, keep=0.75)

    assert [(layer.name, layer.read_by) for layer in pruned.layers] == [("0", "2")]
    assert list(reasons_of(pruned)) == ["2", "4"]
    assert pruned.measured_change < 0.5


def test_a_model_that_cannot_be_copied_is_told() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    model.not_a_leaf = model[0].weight * 2.0  # type: ignore[assignment]

    with pytest.raises(ValueError, match="model cannot be copied"):
        nobsp.prune(model, X)


class Answering(nn.Module):
    """Two layers whose answer is given in some form."""

    def __init__(self, form: str, outputs: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.second = nn.Linear(16, outputs)
        self.form = form

    def forward(self, x: Tensor) -> Any:
        hidden = self.first(x).relu()
        answer = self.second(input=hidden)
        if self.form == "tuple":
            return answer, hidden
        if self.form == "logits":
            return {"logits": answer, "hidden": hidden}
        if self.form == "vector":
            return answer.squeeze(-1)
        if self.form == "positions":
            return answer.reshape(len(answer), 3, -1)
        return answer


def test_a_layer_called_by_keyword_is_pruned() -> None:
    pruned = nobsp.prune(drawn(Answering("plain")), X, keep=0.5)

    assert [layer.after for layer in pruned.layers] == [8]
    assert pruned.measured_change < 0.5


@pytest.mark.parametrize("form", ["tuple", "logits"])
def test_a_hidden_tensor_that_is_returned_is_not_narrowed(form: str) -> None:
    with pytest.raises(ValueError, match="no part of this model can be taken out"):
        nobsp.prune(drawn(Answering(form)), X)


def test_one_number_per_row_is_one_output() -> None:
    pruned = nobsp.prune(drawn(Answering("vector", outputs=1)), X, keep=0.5)

    assert pruned.model(X).shape == (200,)
    assert pruned.same_class is None
    assert pruned.measured_change < 0.5


def test_outputs_that_are_no_classes_have_no_accuracy() -> None:
    labels = torch.zeros(200, dtype=torch.int64)

    pruned = nobsp.prune(drawn(Answering("positions", outputs=6)), X, y=labels)

    assert pruned.same_class is None
    assert pruned.accuracy is None
    assert [finding.code for finding in pruned.findings] == ["labels_not_used"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"y": [3] * 200}, "y must hold numbers of classes from 0 to 2"),
        ({"y": [-1] * 200}, "y must hold numbers of classes from 0 to 2"),
        ({"y": ["cat"] * 200}, "y must hold the number of a class"),
        ({"seed": "one"}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**70}, "seed"),
    ],
)
def test_labels_and_seeds_that_cannot_be_used_are_refused(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        nobsp.prune(mlp(), X, **options)


def test_a_budget_that_cannot_be_reached_is_said() -> None:
    pruned = nobsp.prune(mlp(), X, budget=0.01)

    assert pruned.parameters.ratio > 0.01
    assert "budget_missed" in [finding.code for finding in pruned.findings]
    reached = nobsp.prune(mlp(), X, budget=0.7)
    assert reached.findings == ()


def test_one_held_out_row_measures_nothing_and_says_so() -> None:
    pruned = nobsp.prune(mlp(), X, held_out=0.005)

    assert pruned.held_out_rows == 1
    assert "not_measurable" in [finding.code for finding in pruned.findings]
    assert "nan" not in repr(pruned)


def test_heads_whose_weights_are_computed_from_others_stay() -> None:
    model = drawn(Heads(8, heads=4))
    parametrizations.weight_norm(model.qkv)

    with pytest.raises(ValueError, match="no part of this model can be taken out"):
        nobsp.prune(model, rows(60, 3, 8))


def encoder(*, dropout: float = 0.1, nested: bool = True) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 4, 16, dropout=dropout, batch_first=True)
    return drawn(nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested))


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_a_pruned_encoder_runs_where_torchs_fast_path_is_on(grad: bool, padded: bool) -> None:
    model = encoder().eval()
    x = rows(60, 4, 8)
    padding = torch.tensor([[False, False, False, True]] * 60) if padded else None
    assert torch.backends.mha.get_fastpath_enabled()

    state = torch.get_rng_state()
    pruned = nobsp.prune(model, x, keep=0.5)

    assert torch.equal(torch.get_rng_state(), state)
    assert {layer.kind for layer in pruned.layers} == {"heads", "units"}
    with torch.set_grad_enabled(grad):
        outputs = pruned.model(x, src_key_padding_mask=padding)
    assert outputs.shape == x.shape
    assert bool(outputs.isfinite().all())


def test_attention_drops_weights_in_training_as_it_did() -> None:
    attention = drawn(nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True))
    split = SplitAttention.of(attention)
    x = rows(3, 4, 8)

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        first, second = (split.train()(x, x, x)[0] for _ in range(2))
        third, fourth = (split.eval()(x, x, x)[0] for _ in range(2))

    assert not torch.allclose(first, second)
    torch.testing.assert_close(third, fourth)


class Weighed(nn.Module):
    """Attention whose weights are returned."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 4, batch_first=True)
        self.first = nn.Linear(8, 12)
        self.second = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mixed, weights = self.attention(x, x, x)
        return self.second(self.first(mixed.mean(1)).relu()), weights


def test_attention_whose_weights_are_used_keeps_its_heads() -> None:
    pruned = nobsp.prune(drawn(Weighed()), rows(60, 4, 8), keep=0.5)

    assert isinstance(pruned.model.attention, nn.MultiheadAttention)
    assert [layer.kind for layer in pruned.layers] == ["units"]
    assert pruned.model(rows(3, 4, 8))[1].shape == (3, 4, 4)
