"""The functions a trained model has learned, taken apart by oblique subspace projections.

Public names are imported when they are first used, so that `import nobsp` itself costs next to
nothing and needs none of the optional packages.

Example:
    >>> import nobsp
    >>> "NObSP" in dir(nobsp)
    True
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nobsp import metrics, plots
    from nobsp.calibration import Local, Ranks, RayCluster
    from nobsp.comparison import Comparison, compare
    from nobsp.estimators import NObSPClassifier, NObSPRegressor, Selector
    from nobsp.findings import Finding
    from nobsp.neighbors import ContributionIndex, Influence, Milvus, Neighbors, Usearch
    from nobsp.neighbors.auditing import Audit, audit
    from nobsp.neighbors.selection import select
    from nobsp.network.exported import as_module
    from nobsp.parts import PartsExplanation, Pruned, explain_parts, prune
    from nobsp.reporting import report
    from nobsp.reporting.cards import card
    from nobsp.tabular import Explanation, Functions, Health, NObSP, ShapeCheck, WeakSpot
    from nobsp.vision import ActivationMaps, NObSPCam, explain_images
    from nobsp.vision.confusions import confusions

__version__ = "0.2.0"

__all__ = [
    "ActivationMaps",
    "Audit",
    "Comparison",
    "ContributionIndex",
    "Explanation",
    "Finding",
    "Functions",
    "Health",
    "Influence",
    "Local",
    "Milvus",
    "NObSP",
    "NObSPCam",
    "NObSPClassifier",
    "NObSPRegressor",
    "Neighbors",
    "PartsExplanation",
    "Pruned",
    "Ranks",
    "RayCluster",
    "Selector",
    "ShapeCheck",
    "Usearch",
    "WeakSpot",
    "__version__",
    "as_module",
    "audit",
    "card",
    "compare",
    "confusions",
    "explain_images",
    "explain_parts",
    "metrics",
    "plots",
    "prune",
    "report",
    "select",
]

# The rooms that public names live in.
_HOMES = {
    "findings": ("Finding",),
    "calibration": ("Local", "Ranks", "RayCluster"),
    "estimators": ("NObSPClassifier", "NObSPRegressor", "Selector"),
    "comparison": ("Comparison", "compare"),
    "neighbors": (
        "Audit",
        "ContributionIndex",
        "Influence",
        "Milvus",
        "Neighbors",
        "Usearch",
        "audit",
        "select",
    ),
    "network.exported": ("as_module",),
    "parts": ("PartsExplanation", "Pruned", "explain_parts", "prune"),
    "reporting": ("report",),
    "reporting.cards": ("card",),
    "tabular": ("Explanation", "Functions", "Health", "NObSP", "ShapeCheck", "WeakSpot"),
    "vision": ("ActivationMaps", "NObSPCam", "confusions", "explain_images"),
}

# Type checkers read the imports above; hiding this from them keeps misspelt names an error.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in ("metrics", "plots"):
            return import_module(f"nobsp.{name}")
        if name == "CompiledExplainer":
            from nobsp.deprecation import warn_renamed

            warn_renamed("nobsp.CompiledExplainer", "nobsp.Functions")
            return import_module("nobsp.tabular").Functions
        for room, names in _HOMES.items():
            if name in names:
                globals()[name] = value = getattr(import_module(f"nobsp.{room}"), name)
                return value
        if name.startswith("_"):
            raise AttributeError(f"module 'nobsp' has no attribute {name!r}")
        from nobsp.elsewhere import PACKAGE, describe_unknown

        raise AttributeError(
            describe_unknown("module 'nobsp'", name, known=__all__, elsewhere=PACKAGE)
        )


def __dir__() -> list[str]:
    return sorted(__all__)
