"""Trees: the steps of a boosted model, exactly where it splits

Boosted trees are explained by their margin, and their functions are steps. The tables have a knot on either
side of every threshold of the model, so the steps are where the trees have them.
"""

# %%
# The diabetes data that come with scikit-learn: 442 patients, ten measurements, and how far the disease went
# in a year.
from sklearn.datasets import load_diabetes
from sklearn.ensemble import HistGradientBoostingRegressor

import nobsp

data = load_diabetes(as_frame=True, scaled=False)
X, y = data.data, data.target
trees = HistGradientBoostingRegressor(max_iter=60, max_depth=3, learning_rate=0.06, random_state=0)
trees.fit(X[:220], y[:220])
print(f"R² on unseen patients: {trees.score(X[220:], y[220:]):.2f}")

# %%
# The trees are used as they are: neither a last layer nor gradients are needed. Calibration is on patients that
# they were not trained on, as trees behave on those as on no others; the last patients are kept to explain.
explainer = nobsp.NObSP(trees, output_names=["progression"]).fit(X[220:360])
explainer

# %%
# The two strongest functions. The line is pale where there are hardly any patients.
explainer.plot.curves(["bmi", "s5"])

# %%
# Which features matter. The bar counts the feature's function and its interactions, the diamond the function alone.
ex = explainer(X[360:])
ex.plot.importance(max_display=6)

# %%
# One point per patient, one line per term.
ex.plot.beeswarm(max_display=6)

# %%
# The functions go into a small file that needs neither the trees nor torch. They answer within the residual,
# whose share of the variance is one minus this R², on patients that neither the trees nor calibration had seen.
functions = explainer.compile()
functions.save("progression.nobsp")
print(f"R² of the functions against the trees: {explainer.score(X[360:]):.3f}")
