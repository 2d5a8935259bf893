"""The report: one HTML file that shows, and lets people try, what a network has learned.

Names are imported when they are first used: a report of a compiled explainer needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nobsp.reporting.build import ReportOptions, report

__all__ = ["ReportOptions", "report"]

# Type checkers read the import above; hiding this from them keeps misspelt names an error.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'nobsp.reporting' has no attribute {name!r}")
        value = getattr(import_module("nobsp.reporting.build"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
