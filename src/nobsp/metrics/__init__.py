"""Metrics for explanations of any method.

Pure functions over arrays: numpy, anything numpy understands, and torch tensors. Rows come first
everywhere. A score that is not defined, of a constant vector say, is nan and comes with an
`UndefinedScoreWarning`.
"""

from nobsp.deprecation import former_names
from nobsp.metrics.agreement import DeltaAgreement, Pairs, delta_agreement, find_pairs
from nobsp.metrics.arrays import UndefinedScoreWarning, at_target
from nobsp.metrics.concentration import gini_sparseness, sparseness
from nobsp.metrics.deletion import RegionCurves, region_deletion_auc, region_insertion_auc
from nobsp.metrics.faithfulness import Faithfulness, ablation_effects, attribution_faithfulness
from nobsp.metrics.recovery import FunctionReproduction, function_reproduction

__all__ = [
    "DeltaAgreement",
    "Faithfulness",
    "FunctionReproduction",
    "Pairs",
    "RegionCurves",
    "UndefinedScoreWarning",
    "ablation_effects",
    "at_target",
    "attribution_faithfulness",
    "delta_agreement",
    "find_pairs",
    "function_reproduction",
    "gini_sparseness",
    "region_deletion_auc",
    "region_insertion_auc",
    "sparseness",
]

__getattr__ = former_names(__name__, {"removal_effects": "nobsp.metrics.ablation_effects"})
