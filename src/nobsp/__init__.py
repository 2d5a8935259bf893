"""The functions a trained network has learned, taken apart by oblique subspace projections.

Public names are imported when they are first used, so that `import nobsp` itself costs next to nothing
and needs none of the optional packages.

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
    from nobsp.neighbors import ContributionIndex, Neighbors
    from nobsp.neighbors.audit import Audit, audit
    from nobsp.neighbors.curation import select
    from nobsp.network.exported import as_module
    from nobsp.reporting import report
    from nobsp.tabular import CompiledExplainer, Explanation, NObSP
    from nobsp.vision import ActivationMaps, NObSPCam, explain_images
    from nobsp.vision.confusions import confusions

__version__ = "0.1.0"

__all__ = [
    "ActivationMaps",
    "Audit",
    "CompiledExplainer",
    "ContributionIndex",
    "Explanation",
    "Local",
    "NObSP",
    "NObSPCam",
    "Neighbors",
    "Ranks",
    "RayCluster",
    "__version__",
    "as_module",
    "audit",
    "confusions",
    "explain_images",
    "metrics",
    "plots",
    "report",
    "select",
]

# Where each lazy name lives: "module" for a room of the package, "module:name" for something inside one.
_HOMES = {
    "ActivationMaps": "nobsp.vision:ActivationMaps",
    "Audit": "nobsp.neighbors:Audit",
    "CompiledExplainer": "nobsp.tabular:CompiledExplainer",
    "ContributionIndex": "nobsp.neighbors:ContributionIndex",
    "Explanation": "nobsp.tabular:Explanation",
    "Local": "nobsp.calibration:Local",
    "NObSP": "nobsp.tabular:NObSP",
    "NObSPCam": "nobsp.vision:NObSPCam",
    "Neighbors": "nobsp.neighbors:Neighbors",
    "Ranks": "nobsp.calibration:Ranks",
    "RayCluster": "nobsp.calibration:RayCluster",
    "as_module": "nobsp.network.exported:as_module",
    "audit": "nobsp.neighbors:audit",
    "confusions": "nobsp.vision:confusions",
    "explain_images": "nobsp.vision:explain_images",
    "metrics": "nobsp.metrics",
    "plots": "nobsp.plots",
    "report": "nobsp.reporting:report",
    "select": "nobsp.neighbors:select",
}

# Type checkers read the imports above; hiding this from them keeps misspelt names an error.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'nobsp' has no attribute {name!r}")
        module, _, member = _HOMES[name].partition(":")
        value = import_module(module)
        if member:
            value = getattr(value, member)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
