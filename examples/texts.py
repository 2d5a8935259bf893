"""Texts: which words speak for a class

The same call takes tokens. Every token has its share of the logit, and padding has none.
"""

# %%
# A tiny world of reviews, made up, with a network that looks at three words at a time: "not good" is bad.
import numpy as np
import torch
from torch import nn

import nobsp

good, bad = ["good", "lovely", "fine"], ["bad", "dull", "awful"]
fill = ["the", "film", "was", "and", "story", "with", "a", "very"]
vocabulary = ["<pad>", "not", *good, *bad, *fill]
code = {word: number for number, word in enumerate(vocabulary)}
rng = np.random.default_rng(0)


def write_review() -> tuple[list[str], float]:
    """Twelve words, and whether they are kind: what follows "not" is turned round."""
    words, kindness, turned = [], 0.0, False
    while len(words) < 12:
        word = str(rng.choice(["not", *good, *bad, *fill]))
        feeling = (word in good) - (word in bad)
        kindness += -feeling if turned else feeling
        turned = word == "not"
        words.append(word)
    return words, kindness


reviews = [write_review() for _ in range(2500)]
reviews = [(words, kindness) for words, kindness in reviews if kindness != 0]
tokens = torch.tensor([[code[word] for word in words] for words, _ in reviews])
kind = torch.tensor([kindness > 0 for _, kindness in reviews]).long()


class Reader(nn.Module):
    """Looks at words with their neighbours, and adds up what it finds."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(vocabulary), 16)
        self.look = nn.Conv1d(16, 32, 3, padding=1)
        self.head = nn.Linear(32, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        seen = torch.relu(self.look(self.embed(tokens).transpose(1, 2)))
        return self.head(seen.mean(2))


torch.manual_seed(0)
reader = Reader()
optimizer = torch.optim.AdamW(reader.parameters(), lr=1e-2)
for epoch in range(12):
    for batch in torch.randperm(1500).split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(reader(tokens[batch]), kind[batch]).backward()
        optimizer.step()
reader = reader.eval()
with torch.no_grad():
    right = (reader(tokens[1500:]).argmax(1) == kind[1500:]).float().mean()
print(f"right on unseen reviews: {right:.1%}")

# %%
# What each word contributes. The network has two outputs (logits): unkind and kind.
cam = nobsp.NObSPCam(reader, output_names=["unkind", "kind"]).fit(tokens[:500])
unseen = tokens[1500:]
maps = cam(unseen, target=1)
maps

# %%
# Words that speak for "kind" are orange, words against it blue. What follows "not" is turned round, as it
# should be.
row = next(row for row in range(len(unseen)) if 1 in unseen[row, 3:9])
words = [vocabulary[token] for token in unseen[row]]
maps.plot.words(words, row=row)

# %%
# What each word does on average, over all unseen reviews: in a context, not as a lexicon has it.
score = {
    word: float(maps.account[(unseen == code[word]).numpy()].mean())
    for word in ["not", *good, *bad, "film"]
}
print("\n".join(f"{word:>8} {value:+.2f}" for word, value in score.items()))
