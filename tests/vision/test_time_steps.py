"""Recurrent networks, transformers and decoders: one account per time step or token, whichever axis that is."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.architectures import torchvision_models
from nobsp.vision import ActivationMaps, NObSPCam
from tests.vision.networks import made

STEPS = 24
CHANNELS = 3
CODES = 50
LENGTH = 12


class Recurrent(nn.Module):
    """Reads the last state; (n, channels, time) is transposed by hand, or enters a convolution first."""

    def __init__(self, kind: str, *, entry: nn.Module | None = None, transposed: bool = False):
        super().__init__()
        self.entry = entry
        self.transposed = transposed
        self.walk = getattr(nn, kind)(CHANNELS, 8, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.entry is not None:
            x = self.entry(x)
        if self.transposed:
            x = x.mT
        states: Tensor = self.walk(x)[0]
        return self.head(states[:, -1])


class TimeFirst(nn.Module):
    """A recurrent layer that wants time on the first axis."""

    def __init__(self) -> None:
        super().__init__()
        self.walk = nn.GRU(CHANNELS, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.walk(x.transpose(0, 1))[0]
        return self.head(states[-1])


class LastStep(nn.Module):
    """A transformer over (n, time, channels), or dilated convolutions over (n, channels, time)."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        if kind == "transformer":
            self.widen: nn.Module = nn.Linear(CHANNELS, 8)
            self.mix: nn.Module = nn.TransformerEncoderLayer(
                8, 2, 16, batch_first=True, dropout=0.0
            )
        else:
            self.widen = nn.Conv1d(CHANNELS, 8, 3, padding=1)
            self.mix = nn.Conv1d(8, 8, 5, padding=8, dilation=4)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        states = self.mix(self.widen(x).tanh())
        return self.head(states[:, -1] if self.kind == "transformer" else states[..., -1])


class ReadsItsFirst(nn.Module):
    """A transformer that reads a class token before the time steps."""

    def __init__(self, *, transposed: bool = False) -> None:
        super().__init__()
        self.transposed = transposed
        self.widen = nn.Linear(CHANNELS, 8)
        self.first = nn.Parameter(torch.ones(1, 1, 8))
        blocks = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0) for _ in "ab"]
        self.mix = nn.Sequential(*blocks)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        steps = self.widen(x.mT if self.transposed else x)
        tokens = torch.cat([self.first.expand(len(x), -1, -1), steps], 1)
        return self.head(self.mix(tokens)[:, 0])


def sequences(count: int, *, channels_first: bool = False, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (count, CHANNELS, STEPS) if channels_first else (count, STEPS, CHANNELS)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def gap(maps: ActivationMaps) -> np.ndarray:
    rows = np.arange(len(maps))
    gain = maps.logits[rows, maps.target] - maps.base_values[maps.target]
    return gain - maps.account.mean(1) - maps.class_token - maps.residual


@pytest.mark.parametrize(
    ("model", "channels_first"),
    [
        (Recurrent("LSTM"), False),
        (Recurrent("GRU"), False),
        (TimeFirst(), False),
        (Recurrent("LSTM", transposed=True), True),
        (Recurrent("LSTM", entry=nn.Conv1d(CHANNELS, CHANNELS, 1), transposed=True), True),
        (LastStep("transformer"), False),
        (LastStep("convolutions"), True),
        (ReadsItsFirst(), False),
        (ReadsItsFirst(transposed=True), True),
    ],
)
def test_every_time_step_has_an_account(model: nn.Module, channels_first: bool) -> None:
    torch.manual_seed(0)  # attention has weights that `made` does not reset
    cam = NObSPCam(made(model)).fit(sequences(20, channels_first=channels_first))
    maps = cam(sequences(5, channels_first=channels_first, seed=1))
    assert maps.account.shape == (5, STEPS)
    assert np.abs(gap(maps)).max() < 1e-12
    assert maps.unexplained < 0.02
    assert (np.abs(maps.account[:, -4:]) > 0).any(0).sum() > 1


def test_a_class_token_is_no_time_step() -> None:
    torch.manual_seed(0)  # attention has weights that `made` does not reset
    cam = NObSPCam(made(ReadsItsFirst()), layer="mix.0").fit(sequences(20))
    maps = cam(sequences(5, seed=1))
    assert maps.account.shape == (5, STEPS)


def test_numbers_for_every_token_are_refused_with_what_to_do() -> None:
    torch.manual_seed(0)
    mix = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    model = nn.Sequential(nn.Embedding(CODES, 8), mix, nn.Linear(8, 3)).double().eval()
    codes = padded(6, side="right")["input_ids"]
    with pytest.raises(ValueError, match=r"output=lambda out: out\[:, 3\]"):
        NObSPCam(model).fit(codes)
    maps = NObSPCam(model, output=lambda out: out[:, 3]).fit(codes)(codes)
    assert maps.account.shape == codes.shape
    assert maps.logits == pytest.approx(model(codes)[:, 3].detach().numpy(), abs=1e-12)
    assert np.abs(gap(maps)).max() < 1e-12


def test_an_identity_can_be_named_as_layer() -> None:
    cam = NObSPCam(made(Recurrent("GRU", entry=nn.Identity())), layer="entry").fit(sequences(20))
    assert cam.layer_ == "entry"
    assert cam(sequences(5, seed=1)).account.shape == (5, STEPS)


def test_later_steps_weigh_more_where_a_network_forgets() -> None:
    maps = NObSPCam(made(Recurrent("LSTM"))).fit(sequences(40))(sequences(20, seed=1))
    sizes = np.abs(maps.account).mean(0)
    assert sizes[-6:].mean() > 3 * sizes[:6].mean()


def decoder(kind: str) -> nn.Module:
    with suppress(ImportError):
        torchvision_models()  # transformers imports torchvision, which has to be helped first
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    common = {"vocab_size": CODES, "num_labels": 3, "pad_token_id": 0}
    common |= {"bos_token_id": 1, "eos_token_id": 2}
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 32,
    }
    if kind == "GPT2":
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    config = getattr(transformers, f"{kind}Config")(**common, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = getattr(transformers, f"{kind}ForSequenceClassification")(config)
    return model.double().eval()


def padded(count: int, *, side: str, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, LENGTH + 1, (count, 1), generator=generator)
    steps = torch.arange(LENGTH)[None]
    mask = (steps < lengths if side == "right" else steps >= LENGTH - lengths).long()
    codes = torch.randint(3, CODES, (count, LENGTH), generator=generator) * mask
    return {"input_ids": codes, "attention_mask": mask}


@pytest.mark.parametrize("kind", ["GPT2", "Llama", "Qwen2"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_decoders_are_explained_where_their_tokens_enter(kind: str, side: str) -> None:
    asked = padded(4, side=side, seed=1)
    cam = NObSPCam(decoder(kind)).fit(padded(20, side=side))
    maps = cam(asked)
    assert cam.layer_ == {"GPT2": "transformer.wte"}.get(kind, "model.embed_tokens")
    assert maps.account.shape == (4, LENGTH)
    is_word = asked["attention_mask"].numpy() == 1
    assert np.abs(maps.account[~is_word]).max() < 1e-12
    assert (np.abs(maps.account[is_word]) > 1e-9).mean() > 0.9
    assert np.abs(gap(maps)).max() < 1e-12
    assert maps.unexplained < 0.02


def test_regions_of_time_are_only_blurred_where_time_is_last() -> None:
    second = NObSPCam(made(Recurrent("LSTM"))).fit(sequences(20))
    with pytest.raises(ValueError, match="time, channels"):
        second.thorough(sequences(2, seed=1), regions=4)
    last = NObSPCam(made(Recurrent("LSTM", transposed=True)))
    last.fit(sequences(20, channels_first=True))
    maps = last.thorough(sequences(2, channels_first=True, seed=1), regions=4)
    assert maps.thorough.shape == (2, 4)
