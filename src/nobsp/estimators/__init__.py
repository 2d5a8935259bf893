"""Functions fitted as scikit-learn fits: models distilled from a teacher, and a selector of columns."""

from nobsp.estimators.distillers import NObSPClassifier, NObSPRegressor
from nobsp.estimators.selector import Selector

__all__ = ["NObSPClassifier", "NObSPRegressor", "Selector"]
