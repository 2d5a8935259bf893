"""A classification with categories and missing values, through a pipeline

Real tables have names, gaps and a preprocessing. A scikit-learn pipeline is explained as it is, on *your*
columns: one-hot columns are put back together, and a missing number has a place of its own on the curve.
"""

# %%
# A made-up table of loans. The income is missing for some, and that says something.
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import nobsp

rng = np.random.default_rng(1)
count = 3000
loans = pd.DataFrame(
    {
        "income": rng.lognormal(10.3, 0.4, count).round(-2),
        "years": rng.integers(0, 30, count),
        "housing": rng.choice(["own", "rent", "family"], count, p=[0.4, 0.45, 0.15]),
        "purpose": rng.choice(["car", "kitchen", "debts", "travel"], count),
    }
)
loans.loc[rng.random(count) < 0.15, "income"] = np.nan
odds = (
    1.5 * np.log(loans["income"].fillna(18_000) / 30_000)
    + 0.06 * loans["years"]
    + loans["housing"].map({"own": 0.6, "rent": -0.2, "family": 0.0})
    - 1.2 * (loans["purpose"] == "debts")
)
repaid = rng.random(count) < 1 / (1 + np.exp(-odds))

# %%
# An ordinary pipeline.
pipeline = make_pipeline(
    make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["housing", "purpose"]), remainder="passthrough"
    ),
    HistGradientBoostingClassifier(max_iter=60, max_depth=3, random_state=0),
).fit(loans[:1800], repaid[:1800])
print("right on unseen rows:", f"{pipeline.score(loans[1800:], repaid[1800:]):.1%}")

# %%
# Log-odds are explained, before they become probabilities: those of the second class, here that a loan is
# repaid. Calibration is on loans that the model was not trained on, as it behaves on those as on no others.
explainer = nobsp.NObSP(pipeline, output_names=["repaid"]).fit(loans[1800:2600])
explainer.health()

# %%
# Categories are drawn as bars. The effect of a missing number is a mark beside its curve.
explainer.plot.curves()

# %%
# One decision: why does this loan have a lower chance of being repaid than others?
ex = explainer(loans[2600:])
ex.plot.waterfall(int(ex.predictions[:, 0].argmin()))

# %%
# The same account on the scale of probabilities. It still adds up; the shares depend on the path that is
# taken, which logits do not.
print(ex.to_probability()[:3].to_frame().round(3).to_string())
