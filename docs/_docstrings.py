"""Shows examples of docstrings as code.

The style guide of docstrings says `Example:`, which would be shown as a quotation; `Examples:` is shown as code.
"""

from typing import Any

import griffe


class ExamplesAsCode(griffe.Extension):
    """Renames the section of examples before it is read."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Renames it in the docstring of a class, a function or a module."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
