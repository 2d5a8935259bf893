"""Images: where a network sees a digit, and what speaks against it

Class activation maps whose numbers add up: the mean of a map is the class's logit less what is usual, so
that evidence can be compared between images and classes.
"""

# %%
# Handwritten digits of 8 × 8 pixels, which come with scikit-learn, and a small convolutional network.
import torch
from sklearn.datasets import load_digits
from torch import nn

import nobsp

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
labels = torch.tensor(digits.target)
convolutions = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
)
network = nn.Sequential(convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
for epoch in range(15):
    for batch in torch.randperm(1200).split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images[batch]), labels[batch]).backward()
        optimizer.step()
network = network.eval()
with torch.no_grad():
    right = (network(images[1200:]).argmax(1) == labels[1200:]).float().mean()
print(f"right on unseen digits: {right:.1%}")

# %%
# The layer with the map is found by running the network. Maps are measured from the mean of the images passed to `fit`.
names = [f"a {digit}" for digit in range(10)]
cam = nobsp.NObSPCam(network, output_names=names).fit(images[:600])
maps = cam(images[1200:])
maps

# %%
# Orange speaks for the class that was predicted, blue against it, compared with the other classes.
maps[:8].plot.cam_grid(images[1200:1208])

# %%
# The numbers add up: the mean of the map plus the residual is the class's logit minus the base.
account = maps.account.mean((1, 2)) + maps.class_token + maps.residual
logit = maps.logits.max(1) - maps.base_values[maps.target]
print("largest gap:", f"{abs(account - logit).max():.0e}")

# %%
# Why this class and not that one? A mistake, and the evidence for the wrong class rather than the right one.
unseen, truth = images[1200:], labels[1200:].numpy()
wrong = (maps.target != truth).nonzero()[0][:4]
for row in wrong[:1]:
    print(f"image {row}: a {truth[row]} taken for a {maps.target[row]}")
cam(unseen[wrong[:1]], against=int(truth[wrong[0]])).plot.cam_grid(unseen[wrong[:1]])
