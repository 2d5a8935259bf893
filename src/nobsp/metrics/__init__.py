"""Metrics for explanations of any method.

Pure functions over arrays: numpy, anything numpy understands, and torch tensors. Rows come first
everywhere. A score that is not defined, of a constant vector say, is nan and comes with an
`UndefinedScoreWarning`.
"""

from nobsp.metrics.agreement import DeltaAgreement, Pairs, delta_agreement, find_pairs
from nobsp.metrics.arrays import UndefinedScoreWarning, at_target
from nobsp.metrics.concentration import gini_sparseness, sparseness
from nobsp.metrics.deletion import RegionCurves, region_deletion_auc, region_insertion_auc
from nobsp.metrics.faithfulness import Faithfulness, attribution_faithfulness, removal_effects
from nobsp.metrics.recovery import FunctionReproduction, function_reproduction

__all__ = [
    "DeltaAgreement",
    "Faithfulness",
    "FunctionReproduction",
    "Pairs",
    "RegionCurves",
    "UndefinedScoreWarning",
    "at_target",
    "attribution_faithfulness",
    "delta_agreement",
    "find_pairs",
    "function_reproduction",
    "gini_sparseness",
    "region_deletion_auc",
    "region_insertion_auc",
    "removal_effects",
    "sparseness",
]
