"""Scores of words from sentiment networks beside a lexicon: accounts, integrated gradients, occlusion and others.

Three small transformers are trained on rated film reviews: one that reads the mean of its tokens, one that reads its
first, and a decoder, GPT-2's classifier, which reads the last that is no padding. Each way scores the words of unseen
snippets, films and, as another kind of text, products; the valence that people gave to words is the truth. The snippets
and the lexicon are those of Hutto & Gilbert (2014).
"""

from __future__ import annotations

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch
from captum.attr import LayerIntegratedGradients
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.architectures import torchvision_models
from benchmarks.data.files import find
from benchmarks.report import Cell, Column, Report, Table, options, progress, publish
from benchmarks.significance import bootstrap_interval
from nobsp.vision import NObSPCam

LENGTH, WIDTH, PAD, UNKNOWN, FIRST = 32, 64, 0, 1, 2
SEEDS = (0,)
SNIPPETS, LEAST_WORDS = 300, 2
DECODER = "last (GPT-2)"
INTEGRATED = "integrated gradients (32 passes)"
Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Texts:
    """Codes of words, padded; which are no padding; whether raters found them positive; and the words."""

    codes: Tensor
    mask: Tensor
    positive: Tensor
    words: list[list[str]]

    def take(self, rows: Tensor) -> Texts:
        return Texts(
            self.codes[rows],
            self.mask[rows],
            self.positive[rows],
            [self.words[row] for row in rows.tolist()],
        )

    def batch(self) -> dict[str, Tensor]:
        return {"input_ids": self.codes, "attention_mask": self.mask}


def read_table(name: str) -> pd.DataFrame:
    path = find(f"text/{name}.tsv")
    if path is None:
        raise FileNotFoundError(
            f"text/{name}.tsv was not found under NOBSP_DATA; make it from the files of Hutto & Gilbert (2014), "
            "github.com/cjhutto/vaderSentiment: a tab-separated table of rating and text, or of word, valence and sd."
        )
    return pd.read_csv(path, sep="\t", quoting=3)


def read_snippets(name: str) -> tuple[list[list[str]], Tensor]:
    """Words and whether they are positive; undecided snippets are left out."""
    table = read_table(name)
    table = table[table["rating"].abs() >= 0.5]
    words = [
        re.findall(r"[a-z]+(?:'[a-z]+)*", str(text).lower())[: LENGTH - 1] for text in table["text"]
    ]
    kept = [place for place, one in enumerate(words) if one]
    return [words[place] for place in kept], torch.from_numpy(
        (table["rating"].to_numpy() > 0)[kept]
    ).long()


def encode(words: list[list[str]], positive: Tensor, vocabulary: dict[str, int]) -> Texts:
    codes = torch.full((len(words), LENGTH), PAD)
    for row, one in enumerate(words):
        codes[row, : 1 + len(one)] = torch.tensor(
            [FIRST, *(vocabulary.get(word, UNKNOWN) for word in one)]
        )
    return Texts(codes, (codes != PAD).long(), positive, words)


class Reader(nn.Module):
    """Two blocks; reads its first token or the mean of those that are no padding."""

    def __init__(self, words: int, reads: str) -> None:
        super().__init__()
        self.reads = reads
        self.embed = nn.Embedding(words, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(1, LENGTH, WIDTH))
        self.drop = nn.Dropout(0.3)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, 4, 2 * WIDTH, batch_first=True, dropout=0.3, norm_first=True
            )
            for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        tokens = self.drop(self.embed(input_ids) + self.place)
        for block in self.blocks:
            tokens = block(tokens, src_key_padding_mask=attention_mask == 0)
        tokens = self.norm(tokens)
        mask = attention_mask[..., None]
        read = tokens[:, 0] if self.reads == "first" else (tokens * mask).sum(1) / mask.sum(1)
        logits: Tensor = self.head(read)
        return logits


class Decoder(nn.Module):
    """Two blocks of GPT-2 with its own head for classes, which reads the last token that is no padding."""

    def __init__(self, words: int) -> None:
        super().__init__()
        torchvision_models()  # transformers imports torchvision, which has to be helped first
        from transformers import GPT2Config, GPT2ForSequenceClassification

        config = GPT2Config(
            vocab_size=words,
            n_positions=LENGTH,
            n_embd=WIDTH,
            n_layer=2,
            n_head=4,
            num_labels=2,
            pad_token_id=PAD,
            bos_token_id=FIRST,
            eos_token_id=FIRST,
            resid_pdrop=0.3,
            embd_pdrop=0.3,
            attn_pdrop=0.3,
        )
        self.network = GPT2ForSequenceClassification(config)

    @property
    def embed(self) -> nn.Module:
        """The table of words."""
        table: nn.Module = self.network.transformer.wte
        return table

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits: Tensor = self.network(input_ids=input_ids, attention_mask=attention_mask).logits
        return logits


Network = Reader | Decoder


def trained(texts: Texts, words: int, reads: str, seed: int, epochs: int) -> Network:
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        model = Decoder(words) if reads == DECODER else Reader(words, reads)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05)
        steps = epochs * (1 + (len(texts.codes) - 1) // 64)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps)
        for _ in range(epochs):
            for rows in torch.randperm(len(texts.codes)).split(64):
                optimizer.zero_grad()
                codes = texts.codes[rows]
                # Words that are left out now and then keep a network from learning snippets by heart.
                codes = torch.where(
                    (torch.rand(codes.shape) < 0.1) & (codes > FIRST), UNKNOWN, codes
                )
                functional.cross_entropy(
                    model(codes, texts.mask[rows]), texts.positive[rows]
                ).backward()
                optimizer.step()
                schedule.step()
    return model.eval().requires_grad_(False)


def margin(logits: Tensor) -> Tensor:
    return logits[:, 1] - logits[:, 0]


def gradients(model: Network, texts: Texts) -> Scores:
    """Gradient of the margin times the embedding."""
    kept: list[Tensor] = []

    def keep(*given: Tensor) -> Tensor:
        kept.append(given[2].requires_grad_())
        return kept[-1]

    handle = model.embed.register_forward_hook(keep)
    with torch.enable_grad():
        slope = torch.autograd.grad(margin(model(texts.codes, texts.mask)).sum(), kept)[0]
    handle.remove()
    return np.asarray((slope * kept[0]).sum(2).detach().double())


def integrated(model: Network, texts: Texts) -> Scores:
    """From the word "unknown" in every place, the usual neutral text; captum's, at the embeddings."""
    neutral = torch.where(texts.codes > FIRST, UNKNOWN, texts.codes)
    method = LayerIntegratedGradients(lambda codes, mask: margin(model(codes, mask)), model.embed)
    with torch.enable_grad():
        found = method.attribute(
            texts.codes,
            neutral,
            additional_forward_args=(texts.mask,),
            n_steps=32,
            internal_batch_size=512,
        )
    return np.asarray(found.sum(2).detach().double())


def occluded(model: Network, texts: Texts) -> Scores:
    """The margin less that with the word unknown."""
    before, parts = margin(model(texts.codes, texts.mask)), []
    for place in range(LENGTH):
        without = texts.codes.clone()
        without[:, place] = torch.where(without[:, place] > FIRST, UNKNOWN, without[:, place])
        parts.append(before - margin(model(without, texts.mask)))
    return np.asarray(torch.stack(parts, 1).double())


def score_words(
    model: Network, known: Texts, texts: Texts
) -> tuple[dict[str, Scores], dict[str, float]]:
    """Scores (texts, places) by name, and each account's median residual as a share of its gain."""
    found: dict[str, Scores] = {}
    left = {}
    layers: dict[str, str | None] = {"account, layer found": None}
    if isinstance(model, Reader):  # of a decoder, the layer found is that of the words
        layers = {"account, words themselves": "embed", **layers}
    for name, layer in layers.items():
        maps = NObSPCam(model, layer=layer).fit(known.batch())(texts.batch(), 1, against=0)
        gain = maps.logits[:, 1] - maps.logits[:, 0] - (maps.base_values[1] - maps.base_values[0])
        found[name], left[name] = maps.account, float(np.median(np.abs(maps.residual / gain)))
    found[INTEGRATED] = integrated(model, texts)
    found[f"occlusion ({LENGTH} passes)"] = occluded(model, texts)
    found["gradient × input (2 passes)"] = gradients(model, texts)
    found["random"] = np.random.default_rng(0).random(texts.codes.shape)
    return found, left


def correlations(scores: Scores, texts: Texts, lexicon: dict[str, float]) -> tuple[Scores, float]:
    """Rank correlation with valence inside every snippet that has some words of the lexicon, and over all of them."""
    inside, pooled = [], []
    for row, words in enumerate(texts.words):
        pairs = [
            (scores[row, 1 + place], lexicon[word])
            for place, word in enumerate(words)
            if word in lexicon and texts.codes[row, 1 + place] > UNKNOWN
        ]
        pooled.extend(pairs)
        if len(pairs) >= LEAST_WORDS and len({valence for _, valence in pairs}) > 1:
            inside.append(spearmanr(*zip(*pairs, strict=True)).statistic)
    return np.array(inside), float(spearmanr(*zip(*pooled, strict=True)).statistic)


@dataclass
class Judged:
    """What was found on one kind of text, seed by seed."""

    right: list[float] = field(default_factory=list)
    inside: dict[str, list[Scores]] = field(default_factory=lambda: defaultdict(list))
    pooled: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    residuals: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def judge(self, model: Network, known: Texts, fresh: Texts, lexicon: dict[str, float]) -> None:
        self.right.append(
            float((model(fresh.codes, fresh.mask).argmax(1) == fresh.positive).double().mean())
        )
        found, left = score_words(model, known, fresh)
        for name, scores in found.items():
            own, over_all = correlations(scores, fresh, lexicon)
            self.inside[name].append(own)
            self.pooled[name].append(over_all)
        for name, share in left.items():
            self.residuals[name].append(share)

    def rows(self) -> Iterator[tuple[Cell, ...]]:
        rival = np.concatenate(self.inside[INTEGRATED])
        for name, parts in self.inside.items():
            own = np.concatenate(parts)
            gap = bootstrap_interval(np.nan_to_num(own - rival), seed=0)
            said = (
                "–"
                if name == INTEGRATED
                else f"{gap.difference:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
            )
            rest = float(np.mean(self.residuals[name])) if name in self.residuals else None
            right, over_all = float(np.mean(self.right)), float(np.mean(self.pooled[name]))
            yield right, name, float(np.nanmean(own)), said, over_all, rest


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--decoder", action="store_true", help="the decoder alone, in a file of its own"
    )
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    lexicon = {
        str(word): float(value)
        for word, value in read_table("lexicon")[["word", "valence"]].to_numpy()
    }
    words, positive = read_snippets("movie_snippets")
    products = read_snippets("product_snippets")
    cut = int(0.8 * len(words))
    seeds, epochs, most = (SEEDS[:1], 1, 100) if chosen.quick else (SEEDS, 6, SNIPPETS)
    rows: list[tuple[Cell, ...]] = []
    for reads in (DECODER,) if chosen.decoder else ("mean", "first", DECODER):
        judged = {"films": Judged(), "products": Judged()}
        for seed in seeds:
            progress(f"reads its {reads}, seed {seed}")
            order = torch.from_numpy(np.random.default_rng(seed).permutation(len(words)))
            counts = Counter(word for row in order[:cut].tolist() for word in words[row])
            vocabulary = {
                word: place
                for place, word in enumerate((w for w, count in counts.items() if count > 1), 3)
            }
            films = encode(words, positive, vocabulary)
            known = films.take(order[:cut])
            model = trained(known, 3 + len(vocabulary), reads, seed, epochs)
            unseen = {"films": films.take(order[cut:]), "products": encode(*products, vocabulary)}
            for kind, fresh in unseen.items():
                judged[kind].judge(
                    model, known.take(torch.arange(400)), fresh.take(torch.arange(most)), lexicon
                )
        rows.extend((reads, kind, *row) for kind, one in judged.items() for row in one.rows())
    table = Table(
        "Rank correlation of words' scores with their valence in the lexicon, unseen snippets",
        (
            Column("reads"),
            Column("texts"),
            Column("right", ".3f"),
            Column("scores"),
            Column("inside a snippet", ".3f"),
            Column("minus integrated gradients"),
            Column("over all words", ".3f"),
            Column("residual", ".1e"),
        ),
        tuple(rows),
        f"Snippets with {LEAST_WORDS} words of the lexicon or more; scores are of the logit of positive less that of "
        "negative. In brackets 95% bootstrap intervals of paired differences. Residual: median share of the gain.",
    )
    report = Report(
        name="texts-decoder" if chosen.decoder else "texts",
        title="Words that decide, beside a lexicon",
        tables=(table,),
        findings=(),
        seeds=seeds,
        settings={
            "width": WIDTH,
            "blocks": 2,
            "longest text": LENGTH,
            "epochs": epochs,
            "snippets": most,
        },
        packages=("captum", "scipy", "transformers"),
    )
    publish(report, chosen)


if __name__ == "__main__":
    with torch.no_grad():
        main()
