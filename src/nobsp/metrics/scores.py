"""Former place of the scores that are now in modules of their own."""

from nobsp.deprecation import former_names

__getattr__ = former_names(
    __name__,
    {
        "DeltaAgreement": "nobsp.metrics.DeltaAgreement",
        "Faithfulness": "nobsp.metrics.Faithfulness",
        "FunctionReproduction": "nobsp.metrics.FunctionReproduction",
        "Pairs": "nobsp.metrics.Pairs",
        "RegionCurves": "nobsp.metrics.RegionCurves",
        "attribution_faithfulness": "nobsp.metrics.attribution_faithfulness",
        "delta_agreement": "nobsp.metrics.delta_agreement",
        "find_pairs": "nobsp.metrics.find_pairs",
        "function_reproduction": "nobsp.metrics.function_reproduction",
        "gini_sparseness": "nobsp.metrics.gini_sparseness",
        "region_deletion_auc": "nobsp.metrics.region_deletion_auc",
        "region_insertion_auc": "nobsp.metrics.region_insertion_auc",
        "removal_effects": "nobsp.metrics.ablation_effects",
        "sparseness": "nobsp.metrics.sparseness",
    },
)
