"""Explaining networks on tables.

Names are imported when first used: functions are read without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nobsp.tabular.explainer import NObSP
    from nobsp.tabular.explanation import Explanation
    from nobsp.tabular.functions import Functions
    from nobsp.tabular.health import Health, TermHealth
    from nobsp.tabular.shapes import ShapeCheck
    from nobsp.tabular.weak_spots import WeakSpot

__all__ = ["Explanation", "Functions", "Health", "NObSP", "ShapeCheck", "TermHealth", "WeakSpot"]

# The modules that public names live in.
_HOMES = {
    "Explanation": "explanation",
    "Functions": "functions",
    "Health": "health",
    "NObSP": "explainer",
    "ShapeCheck": "shapes",
    "TermHealth": "health",
    "WeakSpot": "weak_spots",
}

# Type checkers read the imports above; hiding this from them keeps misspelt names an error.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "CompiledExplainer":
            from nobsp.deprecation import warn_renamed

            warn_renamed("nobsp.tabular.CompiledExplainer", "nobsp.Functions")
            return import_module("nobsp.tabular.functions").Functions

        if name not in _HOMES:
            raise AttributeError(f"module 'nobsp.tabular' has no attribute {name!r}")
        value = getattr(import_module(f"nobsp.tabular.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
