"""A regression: rents, and what a network makes of them

A network is trained on a small table, taken apart, and compared with the functions that made the data.
Everything it learned is then visible: curves with bands, an account of every prediction, and what the
account leaves unexplained.
"""

# %%
# The table is made up, so that the truth is known: the rent grows with the size, less and less; it falls with
# the distance from the centre; a balcony is worth more the more sun there is.
import numpy as np
import pandas as pd
import torch

import nobsp

rng = np.random.default_rng(0)
flats = pd.DataFrame(
    {
        "size": rng.uniform(20, 140, 2000),
        "distance": rng.exponential(4, 2000).clip(0, 20),
        "sun": rng.uniform(0, 10, 2000),
        "balcony": rng.uniform(0, 12, 2000),
    }
).round(1)
rent = (
    150 * np.sqrt(flats["size"])
    - 400 * np.log1p(flats["distance"])
    + 3 * flats["sun"] * flats["balcony"]
    + rng.normal(0, 60, 2000)
)

# %%
# An ordinary network in torch. It scales its inputs itself, so the table can stay in its own units.
torch.manual_seed(0)
rows = torch.tensor(flats.to_numpy(), dtype=torch.float32)
target = torch.tensor(rent.to_numpy(), dtype=torch.float32)[:, None]
center, spread = target[:1200].mean(), target[:1200].std()
network = torch.nn.Sequential(
    torch.nn.BatchNorm1d(4, affine=False, momentum=None),
    torch.nn.Linear(4, 64),
    torch.nn.SiLU(),
    torch.nn.Linear(64, 32),
    torch.nn.SiLU(),
    torch.nn.Linear(32, 1),
)
optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
for epoch in range(30):
    for batch in torch.randperm(1200).split(64):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(network(rows[batch]), (target[batch] - center) / spread)
        loss.backward()
        optimizer.step()
with torch.no_grad():  # answers in the rent's own units
    network[-1].weight.mul_(spread)
    network[-1].bias.mul_(spread).add_(center)
network = network.eval()

# %%
# **Calibrate on rows that the network was not trained on.** On rows it knows by heart it behaves as on no
# others.
explainer = nobsp.NObSP(network, output_names=["rent"]).fit(flats[1200:1800])
explainer

# %%
# The learned functions, with 90% bands. The grey histogram at the bottom shows where the rows are.
explainer.plot.curves()

# %%
# How good are they? Here the truth is known.
sizes = np.linspace(25, 135, 100)
learned = explainer["size"](sizes)
truth = 150 * np.sqrt(sizes)
error = (learned - learned.mean()) - (truth - truth.mean())
print(f"R² of the learned function of size: {1 - error.var() / truth.var():.4f}")

# %%
# What balcony and sun do only together. Along either side it averages out: what each does by itself is in its
# curve.
explainer.plot.interaction(("sun", "balcony"))

# %%
# One flat: from the average rent to this one, step by step. The residual is shown as large as it is.
ex = explainer(flats[1800:])
ex.plot.waterfall(3)

# %%
# All flats as a table. Every line adds up: base + terms + residual = prediction.
account = ex.to_frame()
print(account.head().round(0).to_string())
gap = account.drop(columns="prediction").sum(axis=1) - account["prediction"]
print("largest gap:", f"{abs(gap).max():.0e}")

# %%
# And one HTML file to open anywhere, with sliders; it needs no server.
page = nobsp.report(ex, "rents.html", title="Rents", labels=rent[1800:].to_numpy())
