"""A network with two inputs: numbers, and codes of categories

Networks for tables often take numbers and categories apart, with an embedding for each category. Pass the
inputs as the model takes them, and name the features.
"""

# %%
import numpy as np
import torch
from torch import nn

import nobsp


class Network(nn.Module):
    """Numbers beside embedded categories."""

    def __init__(self) -> None:
        super().__init__()
        self.city = nn.Embedding(4, 3)
        self.day = nn.Embedding(7, 3)
        self.layers = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 32), nn.SiLU())
        self.head = nn.Linear(32, 1)

    def forward(self, numbers: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        embedded = [self.city(codes[:, 0]), self.day(codes[:, 1])]
        return self.head(self.layers(torch.cat([numbers, *embedded], dim=1)))


# %%
# Made-up data on hired bicycles: more rides on warm days, fewer in rain, and at weekends one city cycles to the sea.
torch.manual_seed(0)
rng = np.random.default_rng(0)
numbers = torch.tensor(rng.normal(size=(2500, 2)), dtype=torch.float32)
codes = torch.tensor(np.column_stack([rng.integers(0, 4, 2500), rng.integers(0, 7, 2500)]))
warmth, rain = numbers.T
at_the_sea = ((codes[:, 0] == 2) & (codes[:, 1] >= 5)).float()
rides = torch.tanh(warmth) - rain.clamp(min=0) + 0.2 * codes[:, 0] + 1.5 * at_the_sea

network = Network()
optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
for epoch in range(25):
    for batch in torch.randperm(1500).split(64):
        optimizer.zero_grad()
        answer = network(numbers[batch], codes[batch])[:, 0]
        nn.functional.mse_loss(answer, rides[batch]).backward()
        optimizer.step()

# %%
# The inputs go in as a dictionary by the names of `forward`, or as a tuple in its order. A feature is a
# column of one of them. Integers are codes of categories. Calibration is on rows that the network was not
# trained on, where it behaves as on new ones.
features = {
    "warmth": ("numbers", 0),
    "rain": ("numbers", 1),
    "city": ("codes", 0),
    "weekday": ("codes", 1),
}
inputs = {"numbers": numbers, "codes": codes}
calibration = {name: value[1500:2100] for name, value in inputs.items()}
explainer = nobsp.NObSP(network, features=features, output_names=["rides"]).fit(calibration)
explainer.health()

# %%
# The strongest interactions: city × weekday, the trips to the sea, comes first.
print(explainer.interaction_strengths().head(3).to_string())

# %%
# Each feature by itself: curves for numbers, bars for codes.
explainer.plot.curves()

# %%
# An unseen ride in that city at a weekend.
unseen = {name: value[2100:] for name, value in inputs.items()}
ex = explainer(unseen)
row = int(((unseen["codes"][:, 0] == 2) & (unseen["codes"][:, 1] >= 5)).nonzero()[0])
ex.plot.waterfall(row)
