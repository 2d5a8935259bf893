"""Explaining networks on tables; names are imported when first used, as a compiled explainer runs without torch."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nobsp.tabular.compiled import CompiledExplainer, Health, TermHealth
    from nobsp.tabular.explainer import NObSP
    from nobsp.tabular.explanation import Explanation

__all__ = ["CompiledExplainer", "Explanation", "Health", "NObSP", "TermHealth"]

# Type checkers read the imports above; hiding this from them keeps misspelt names an error.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'nobsp.tabular' has no attribute {name!r}")
        home = {"Explanation": "explanation", "NObSP": "explainer"}.get(name, "compiled")
        globals()[name] = value = getattr(import_module(f"nobsp.tabular.{home}"), name)
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
