"""An audit: from suspicious labels to a cleaned file

Every data set has wrong labels, and every model makes errors that can be expected. The audit compares the
evidence behind each prediction with that of its neighbours, says what is suspicious and why, and your
decisions become a cleaned label file.
"""

# %%
# Digits, a network, and twenty labels that are made wrong on purpose.
import csv

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import nobsp

torch.manual_seed(0)
rng = np.random.default_rng(0)
digits = load_digits()
rows = torch.tensor(digits.data / 16, dtype=torch.float32)
truth = digits.target
labels = truth.copy()
planted = 1000 + rng.choice(700, 20, replace=False)
labels[planted] = (labels[planted] + rng.integers(1, 10, 20)) % 10

network = nn.Sequential(
    nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
)
optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
given = torch.tensor(labels)
for epoch in range(20):
    for batch in torch.randperm(1000).split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(rows[batch]), given[batch]).backward()
        optimizer.step()
network = network.eval()

# %%
# The network's last layer and what enters it are enough. The database are rows with labels; the audit looks
# at others.
with torch.no_grad():
    activations = network[:-1](rows)
index = nobsp.ContributionIndex(network[-1]).fit(activations[:1000], labels[:1000])
found = nobsp.audit(index, activations[1000:], labels[1000:])
found

# %%
# How many of the suspected labels are really wrong?
suspects = 1000 + np.flatnonzero(found.mislabels)
print(
    f"{len(suspects)} suspected, {np.isin(suspects, planted).sum()} of {len(planted)} planted found"
)

# %%
# A table with the most suspicious rows first, and the reasons in words.
print(found.to_frame()[["label", "suggested", "label_score", "reason"]].head(4).to_string())

# %%
# **Act on it.** On the page one ticks keep, relabel or drop, and saves the decisions. Here they are written
# as the page would write them: take the suggestion for every suspect.
import matplotlib.pyplot as plt

panels = plt.figure(figsize=(8, 1.6)).subplots(1, 8)
for panel, row in zip(panels, suspects[:8], strict=True):
    panel.imshow(digits.images[row], cmap="gray_r")
    panel.set_title(f"{labels[row]} → {found.suggested[row - 1000]}", fontsize=9)
    panel.axis("off")

# %%
# A cleaned label file, with a log of every change.
cleaned = labels.copy()
with open("changes.csv", "w", newline="") as log:
    writer = csv.writer(log)
    writer.writerow(["row", "from", "to", "probability that the label was right"])
    for row in suspects:
        cleaned[row] = found.suggested[row - 1000]
        writer.writerow([row, labels[row], cleaned[row], f"{found.label_score[row - 1000]:.3f}"])
np.savetxt("labels.csv", cleaned, fmt="%d")
print("wrong labels before:", (labels != truth).sum(), "and after:", (cleaned != truth).sum())
