"""Explaining networks on tables.

Names are imported when they are first used: a compiled explainer runs where there is no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nobsp.tabular.compiled import CompiledExplainer, Health, TermHealth
    from nobsp.tabular.explainer import NObSP
    from nobsp.tabular.explanation import Explanation

__all__ = ["CompiledExplainer", "Explanation", "Health", "NObSP", "TermHealth"]

_HOMES = {
    "CompiledExplainer": "compiled",
    "Explanation": "explanation",
    "Health": "compiled",
    "NObSP": "explainer",
    "TermHealth": "compiled",
}

# Type checkers read the imports above; hiding this from them keeps misspelt names an error.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'nobsp.tabular' has no attribute {name!r}")
        value = getattr(import_module(f"nobsp.tabular.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
