"""Signals, volumes and texts: accounts have the shape of the input's locations and add up."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.architectures import torchvision_models
from nobsp import ContributionIndex, plots
from nobsp.vision import ActivationMaps, NObSPCam, explain_images
from tests.vision.networks import made

LENGTH, CODES = 12, 50


def gap(maps: ActivationMaps) -> np.ndarray:
    """What account and class token leave of logit − base."""
    rows = np.arange(len(maps))
    gain = maps.logits[rows, maps.target] - maps.base_values[maps.target]
    return gain - maps.account.reshape(len(maps), -1).mean(1) - maps.class_token


def signals(count: int, *, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 2, 40, generator=generator, dtype=torch.float64).cumsum(2) / 5


def convolutions(axes: int, *neck: nn.Module, channels: int = 2) -> nn.Module:
    convolution = {1: nn.Conv1d, 3: nn.Conv3d}[axes]
    pool = {1: nn.AdaptiveAvgPool1d, 3: nn.AdaptiveAvgPool3d}[axes](1)
    parts = [
        convolution(channels, 6, 3),
        nn.ReLU(),
        convolution(6, 8, 3),
        nn.ReLU(),
        pool,
        nn.Flatten(),
    ]
    return made(nn.Sequential(*parts, *neck, nn.Linear(8, 3)))


class Text(nn.Module):
    """Reads the mean of its tokens, the first, or the mean of those that are no padding."""

    def __init__(self, reads: str) -> None:
        super().__init__()
        self.reads = reads
        self.embed = nn.Embedding(CODES, 16)
        self.place = nn.Parameter(
            0.1 * torch.randn(1, LENGTH, 16, generator=torch.Generator().manual_seed(0))
        )
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0, activation="gelu")
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        tokens = self.embed(input_ids) + self.place
        padding = None if attention_mask is None else attention_mask == 0
        for block in self.blocks:
            tokens = block(tokens, src_key_padding_mask=padding)
        tokens = self.norm(tokens)
        if self.reads == "first":
            return {"logits": self.head(tokens[:, 0])}
        if attention_mask is None:
            return {"logits": self.head(tokens.mean(1))}
        mask = attention_mask[..., None]
        return {"logits": self.head((tokens * mask).sum(1) / mask.sum(1))}


def texts(count: int, *, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, LENGTH + 1, (count, 1), generator=generator)
    mask = (torch.arange(LENGTH)[None] < lengths).long()
    codes = torch.randint(1, CODES, (count, LENGTH), generator=generator) * mask
    return {"input_ids": codes, "attention_mask": mask}


@pytest.mark.parametrize("neck", [(), (nn.LayerNorm(8),)])
def test_an_account_of_a_signal_adds_up(neck: tuple[nn.Module, ...]) -> None:
    cam = NObSPCam(convolutions(1, *neck)).fit(signals(20))
    maps = cam(signals(4, seed=1))
    assert maps.account.shape == (4, 36)
    assert gap(maps) == pytest.approx(maps.residual, abs=1e-12)
    assert np.abs(maps.residual).max() < 1e-6 * np.abs(maps.logits).max()
    assert maps.resize(40).account.shape == (4, 40)


def test_a_transformer_over_a_signal_has_time_steps_and_a_class_token() -> None:
    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cut = nn.Conv1d(2, 16, 4, stride=4)
            self.first = nn.Parameter(torch.ones(1, 1, 16))
            self.mix = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
            self.last = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
            self.head = nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            tokens = torch.cat([self.first.expand(len(x), -1, -1), self.cut(x).transpose(1, 2)], 1)
            return self.head(self.last(self.mix(tokens))[:, 0])

    torch.manual_seed(0)  # attention has weights that `made` does not reset
    cam = NObSPCam(made(Patches()), layer="mix").fit(signals(20))
    maps = cam(signals(4, seed=1))
    assert maps.account.shape in (
        (4, 10),
        (4, 11),
    )  # the class token is a location, or apart from them
    assert np.abs(gap(maps)).max() < 0.01 * np.abs(maps.logits).max()


def test_an_account_of_a_volume_adds_up_and_so_does_its_removal() -> None:
    volumes = torch.randn(
        12, 1, 8, 10, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    cam = NObSPCam(convolutions(3, channels=1)).fit(volumes)
    maps = cam(volumes[:3])
    assert maps.account.shape == (3, 4, 6, 5)
    assert np.abs(gap(maps)).max() < 1e-12
    assert cam.removal(volumes[:2]).order.shape == (2, 4, 6, 5)
    with pytest.raises(ValueError, match="3 axes of locations"):
        maps.overlay(volumes[:3])


@pytest.mark.parametrize("reads", ["mean", "first"])
def test_scores_of_tokens_add_up(reads: str) -> None:
    codes = texts(24)["input_ids"]
    maps = NObSPCam(made(Text(reads))).fit(codes)(codes[:5])
    assert maps.account.shape == (5, LENGTH)
    assert gap(maps) == pytest.approx(maps.residual, abs=1e-12)
    assert np.abs(maps.residual).max() < 0.01 * np.abs(maps.logits).max()


@pytest.mark.parametrize("reads", ["mean", "first"])
@pytest.mark.parametrize("scale", ["logit", "probability"])
def test_scores_of_padded_texts_add_up_and_padding_has_none(reads: str, scale: Any) -> None:
    model = made(Text(reads))
    given, asked = texts(24), texts(5, seed=1)
    maps = NObSPCam(model).fit(given)(asked, scale=scale)
    if scale == "logit":
        assert gap(maps) == pytest.approx(maps.residual, abs=1e-12)
    assert np.abs(maps.residual).max() < 0.01 * np.abs(maps.logits).max()
    assert np.abs(maps.account[asked["attention_mask"].numpy() == 0]).max() < 1e-12


def test_batches_of_a_tokenizer_and_one_dictionary_give_the_same() -> None:
    model, given = made(Text("mean")), texts(24)
    batches = [
        {key: value[at : at + 8] for key, value in given.items()} | {"labels": 0}
        for at in (0, 8, 16)
    ]
    one, other = NObSPCam(model).fit(given)(given), NObSPCam(model).fit(batches)(batches)
    assert other.account == pytest.approx(one.account, abs=1e-12)
    assert explain_images(model, given).account == pytest.approx(one.account, abs=1e-12)


def test_a_file_knows_how_tokens_are_given(tmp_path: Any) -> None:
    model, given = made(Text("first")), texts(24)
    cam = NObSPCam(model, layer="blocks.0").fit(given)
    assert cam.layer_ == "blocks.0"
    cam.save(tmp_path / "cam.safetensors")
    loaded = NObSPCam.load(tmp_path / "cam.safetensors", model)
    assert loaded(given).account == pytest.approx(cam(given).account, rel=1e-5, abs=1e-6)
    with pytest.raises(ValueError, match="fit was given"):
        cam(given["input_ids"])


@pytest.mark.parametrize("kind", ["Bert", "DistilBert"])
def test_texts_of_hugging_face(kind: str) -> None:
    with suppress(ImportError):
        torchvision_models()  # transformers imports torchvision, which has to be helped first
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    options = {"vocab_size": CODES, "max_position_embeddings": 16, "num_labels": 3}
    sizes = {
        "Bert": {
            "hidden_size": 16,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "intermediate_size": 32,
        },
        "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    }[kind]
    config = getattr(transformers, f"{kind}Config")(**options, **sizes)
    model = made(getattr(transformers, f"{kind}ForSequenceClassification")(config))
    asked = texts(4, seed=1)
    maps = NObSPCam(model).fit(texts(20))(asked)
    assert maps.account.shape == (4, LENGTH)
    assert gap(maps) == pytest.approx(maps.residual, abs=1e-12)
    assert np.abs(maps.residual).max() < 0.02 * np.abs(maps.logits).max()
    assert np.abs(maps.account[asked["attention_mask"].numpy() == 0]).max() < 1e-12


def test_a_single_image_and_flat_rows_are_refused() -> None:
    model = convolutions(1)
    with pytest.raises(ValueError, match=r"expected \(n, channels, height, width\)"):
        NObSPCam(model).fit(torch.randn(5, 7))
    with pytest.raises(ValueError, match="batch of one"):
        NObSPCam(
            made(
                nn.Sequential(
                    nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
                )
            )
        ).fit(torch.randn(2, 9, 9))


def test_signals_and_words_are_drawn() -> None:
    given = signals(20)
    maps = NObSPCam(convolutions(1), output_names=["up", "down", "flat"]).fit(given)(given[:2])
    axes = plots.signal(maps, given[:2], row=1, channel=1)
    assert len(axes.collections[0].get_segments()) == 39
    assert axes.get_title().startswith(str(maps.target_names[1]))
    text = texts(24)
    read = NObSPCam(made(Text("mean"))).fit(text)(text)
    html = plots.words_html(read, ["<b>", "good", "bad"])
    assert html.count("<span") == 3
    assert "&lt;b&gt;" in html
    assert f"{read.contrast[0, 1] / LENGTH:+.4g}" in html
    drawn = plots.words(read, ["so", "much $", "better"] * 4)
    assert [text.get_text() for text in drawn.texts][:2] == ["so", r"much \$"]
    with pytest.raises(ValueError, match="tokens"):
        plots.words(read, ["a"] * (LENGTH + 1))


def test_an_index_of_texts_takes_their_tokens() -> None:
    ids = texts(60)["input_ids"]
    cam = NObSPCam(made(Text("mean"))).fit(ids)
    labels = cam(ids).logits.argmax(1)

    index = ContributionIndex(cam).fit(ids, labels)

    assert len(index) == 60
    assert index.query(ids[:4]).predicted.tolist() == labels[:4].tolist()


def test_texts_are_called_texts() -> None:
    ids = texts(40)["input_ids"]
    cam = NObSPCam(made(Text("mean"))).fit(ids)

    assert "3 sequences" in repr(cam(ids[:3]))
    with pytest.raises(ValueError, match=r"texts of shape \(8,\)"):
        cam(ids[:3, :8])
    with pytest.raises(FileNotFoundError, match="tokenizer"):
        cam(["a great film"])


def test_lists_of_tokens_are_read_as_tensors_are() -> None:
    model = made(Text("mean"))
    ids = texts(12)["input_ids"]
    cam = NObSPCam(model).fit(ids)
    expected = cam(ids[:3]).account

    for listed in (ids[:3].tolist(), list(ids[:3]), [row.numpy() for row in ids[:3]]):
        np.testing.assert_allclose(cam(listed).account, expected, atol=1e-9)
    again = NObSPCam(model).fit(ids.tolist())
    np.testing.assert_allclose(again(ids[:3]).account, expected, atol=1e-9)
    both = texts(12)
    cam = NObSPCam(model).fit({name: values.tolist() for name, values in both.items()})
    expected = NObSPCam(model).fit(both)({name: v[:3] for name, v in both.items()}).account
    for lists in (Tensor.tolist, list):
        listed = {name: lists(values[:3]) for name, values in both.items()}
        np.testing.assert_allclose(cam(listed).account, expected, atol=1e-9)


def test_lists_of_tokens_that_have_no_shape_are_refused_in_words() -> None:
    cam = NObSPCam(made(Text("mean"))).fit(texts(12)["input_ids"])
    with pytest.raises(ValueError, match="padding=True"):
        cam([[1, 2, 3], [4, 5]])
    with pytest.raises(TypeError, match=r"\[tokens\]"):
        cam([1, 2, 3])
    for wrong in ("film", None):
        with pytest.raises(TypeError, match="not everything is a number"):
            cam([[1, 2], [3, wrong]])


def test_nested_lists_of_an_image_are_images() -> None:
    images = torch.rand(6, 1, 8, 8)
    network = made(
        nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
        )
    )
    cam = NObSPCam(network).fit(images)
    np.testing.assert_allclose(cam(images.tolist()).account, cam(images).account, atol=1e-6)
