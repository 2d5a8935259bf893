"""Comparing two periods: what of the change is in the data, and what in the model

A model answers 40 more on average than last year. Have the customers changed, or has the model been trained
anew? The difference of two accounts is an account itself: one part per term, with intervals, which add up.
"""

# %%
# Made-up orders of two years: customers got older, and the shop became more expensive.
import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor

import nobsp


def orders(year: int, count: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Customers of a year and what they spent."""
    rng = np.random.default_rng(year)
    later = year - 2024
    table = pd.DataFrame(
        {
            "age": rng.normal(40 + 5 * later, 12, count).clip(18, 90).round(),
            "visits": rng.poisson(6, count),
            "distance": rng.exponential(10, count).round(1),
        }
    )
    price = 3 + 1.5 * later  # what a visit is worth
    spent = 2 * table["age"] + price * 8 * np.sqrt(table["visits"]) - 1.2 * table["distance"]
    return table, (spent + rng.normal(0, 8, count)).to_numpy()


X_2024, y_2024 = orders(2024, 2400)
X_2025, y_2025 = orders(2025, 2400)

# %%
# A model for each year, trained on one half of the rows and calibrated on others: on those it was trained on a
# model behaves as on no others. What is left is compared.
explainers = {}
for year, X, y in ((2024, X_2024, y_2024), (2025, X_2025, y_2025)):
    model = HistGradientBoostingRegressor(max_iter=60, max_depth=3, random_state=0)
    explainer = nobsp.NObSP(model.fit(X[:1200], y[:1200]), output_names=["spent"], interactions=0)
    explainers[year] = explainer.fit(X[1200:1800])

# %%
# **The same model, other people.** How much of the gap between the years is there because customers are
# others?
of_2024 = explainers[2024]
others = nobsp.compare(of_2024(X_2025[1800:]), of_2024(X_2024[1800:]), names=("2025", "2024"))
others

# %%
# **Two models, the same people.** Which functions have changed, by more than calibrating again would make? Training
# again on other rows moves functions too, and one training of each year's model cannot tell how far: with lists of
# three trainings each, `nobsp.compare` counts that as well.
of_2025 = explainers[2025]
anew = nobsp.compare(of_2025(X_2025[1800:]), of_2024(X_2025[1800:]), names=("new", "old"))
print(anew.to_frame().round(3).to_string())

# %%
# **Both at once.** Each term's part is split into a change of rows, a change of functions, and both together.
both = nobsp.compare(of_2025(X_2025[1800:]), of_2024(X_2024[1800:]), names=("2025", "2024"))
print(both.to_frame().round(2).to_string())

# %%
# The two functions of visits. A visit is worth more in the newer model.
import matplotlib.pyplot as plt

visits = np.arange(0, 15)
ax = plt.figure(figsize=(6, 3), layout="constrained").add_subplot()
for year, explainer in explainers.items():
    ax.plot(visits, explainer["visits"](visits), marker="o", label=str(year))
ax.set_xlabel("visits")
ax.set_ylabel("average effect on what is spent")
ax.legend()
