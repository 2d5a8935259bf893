"""Deploying functions: a model that is small, readable, and runs in a database

Compiled functions are a model of their own. They predict without torch and without the model they came
from, say how well they stand in for it, and can be written as SQL, JavaScript or ONNX.
"""

# %%
# Made-up data on customers who leave, and a network, which could not easily run in a database.
import sqlite3
import warnings

import numpy as np
import pandas as pd
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import nobsp

rng = np.random.default_rng(0)
customers = pd.DataFrame(
    {
        "months": rng.integers(1, 72, 2400),
        "calls": rng.poisson(2, 2400),
        "bill": rng.gamma(6, 10, 2400).round(2),
    }
)
odds = 0.8 * customers["calls"] - 0.05 * customers["months"] + 0.015 * customers["bill"] - 1.5
left = rng.random(2400) < 1 / (1 + np.exp(-odds))
network = MLPClassifier(hidden_layer_sizes=(32, 16), alpha=0.1, max_iter=60, random_state=0)
model = make_pipeline(StandardScaler(), network)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # sixty passes are enough here
    model.fit(customers[:1200], left[:1200])

# %%
# The explainer is fitted to rows that the network was not trained on, where it behaves as on new ones.
# `compile` returns its functions without the network.
explainer = nobsp.NObSP(model).fit(customers[1200:1800])
functions = explainer.compile().with_classes(["stays", "leaves"])
functions

# %%
# **Can they replace the network?** R² against its log-odds on rows that neither has seen, and how often
# both decide alike.
unseen = customers[1800:]
labels = np.where(left[1800:], "leaves", "stays")
log_odds = explainer(unseen).predictions
alike = (functions.predict(unseen) == "leaves") == model.predict(unseen)
print(f"fidelity {functions.fidelity(unseen, log_odds):.4f}, decide alike {alike.mean():.1%}")
print(
    f"right: functions {functions.score(unseen, labels):.3f}, network {model.score(unseen, left[1800:]):.3f}"
)

# %%
# **One file**, without pickle: no torch and no scikit-learn model is needed to read it.
functions.save("churn.functions")
again = nobsp.Functions.load("churn.functions")
print(again.predict_proba(unseen[:3]).round(3))

# %%
# **In a database.** One SELECT predicts, with the contributions beside the prediction.
query = functions.to_sql("customers", dialect="sqlite", keep=["months"])
print(query[:300].replace("\n", " "), "…")

database = sqlite3.connect(":memory:")
unseen.to_sql("customers", database, index=False)
answers = pd.read_sql(query, database)
print(answers.head(3).round(3).T.to_string())

# %%
# The database and Python give the same numbers.
gap = answers["probability of leaves"] - functions.predict_proba(unseen)[:, 1]
print("largest gap:", f"{abs(gap).max():.0e}")
database.close()

# %%
# **In a browser**: JavaScript without any library. `functions.to_onnx(path)` writes ONNX.
script = functions.to_javascript()
print(f"{len(script) / 1024:.0f} kB of JavaScript")
