"""Functions fitted as in scikit-learn: models distilled from a teacher, and a column selector."""

from nobsp.estimators.distillers import NObSPClassifier, NObSPRegressor
from nobsp.estimators.selector import Selector

__all__ = ["NObSPClassifier", "NObSPRegressor", "Selector"]
