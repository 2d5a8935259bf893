"""What tests of plots draw: an account written by hand, and a network whose functions are known."""

import numpy as np
import pandas as pd
import torch
from torch import nn

from nobsp import Explanation

NAMES = ("age", "income", "city", "noise")


def account(rows: int = 120, *, outputs: int = 1) -> Explanation:
    """An account by hand: four functions, a pair, and a residual that is not small."""
    draw = np.random.default_rng(0)
    data = pd.DataFrame(
        {
            "age": draw.uniform(20, 80, rows).round(1),
            "income": draw.lognormal(size=rows).round(3),
            "city": draw.choice(["Oslo", "Rome"], rows),
            "noise": draw.normal(size=rows).round(3),
        }
    )
    age, income = (data["age"].to_numpy() - 50) / 15, data["income"].to_numpy()
    single = [
        np.abs(age),
        np.log(income),
        np.where(data["city"] == "Oslo", -0.6, 0.6),
        0.05 * data["noise"].to_numpy(),
    ]
    values = np.stack([*single, 0.8 * age * (income > 1)], axis=1)
    values -= values.mean(0)
    sizes = np.array([1.0, -0.5, 2.0])[:outputs]
    values = values[:, :, None] * sizes
    residual = 0.3 * draw.normal(size=(rows, outputs)) * np.abs(sizes)
    base = np.array([3.0, -1.0, 0.5])[:outputs]
    outside = np.zeros((rows, 4), dtype=bool)
    outside[0, 0] = True
    return Explanation(
        values=values,
        base_values=base,
        residual=residual,
        predictions=base + values.sum(1) + residual,
        terms=(*((name,) for name in NAMES), ("age", "income")),
        feature_names=NAMES,
        output_names=("price", "risk", "rank")[:outputs],
        data=data,
        outside=outside,
        baseline_contributions=np.zeros((5, outputs)),
    )


class Known(nn.Module):
    """|x0| + x0·x1/2 + x2, written with rectified units, and two outputs if asked: the second is −x2."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.head = nn.Linear(5, outputs, bias=True, dtype=torch.float64)
        with torch.no_grad():
            self.head.weight.copy_(
                torch.tensor([[1.0, 1.0, 0.5, 1.0, 0.0], [0.0, 0.0, 0.0, -1.0, 0.0]])[:outputs]
            )
            self.head.bias.fill_(1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, c = x[:, 0], x[:, 1], x[:, 2]
        z = torch.stack([torch.relu(a), torch.relu(-a), a * b, c, torch.tanh(b)], dim=1)
        return self.head(z)


def rows_of_known(rows: int = 400) -> np.ndarray:
    """Two correlated columns, so that two corners are empty, and one with three values."""
    draw = np.random.default_rng(1)
    first = draw.normal(size=rows)
    second = 0.8 * first + 0.6 * draw.normal(size=rows)
    return np.column_stack([first, second, draw.integers(0, 3, rows)])
