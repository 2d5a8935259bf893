"""Shows examples of docstrings as code, and defaults as the values they are.

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


class DefaultsAsValues(griffe.Extension):
    """Shows `max_forward_rows: int = 200_000` where the source says `= _FORWARD_ROWS`."""

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        """Replaces names of constants in the signatures of a package, once all of its modules are read."""
        _show_defaults(pkg)


def _show_defaults(owner: Any) -> None:
    """In a module or a class, and in all they hold."""
    for member in owner.members.values():
        if member.is_alias:
            continue
        if member.is_function:
            for parameter in member.parameters:
                parameter.default = _value_of(parameter.default, member.module)
        elif member.is_class or member.is_module:
            _show_defaults(member)


def _value_of(default: Any, module: Any) -> Any:
    """What a default is called, or its value where it is a constant of the package."""
    constant = module.members.get(str(default))
    try:
        value = None if constant is None else constant.value
    except (AttributeError, griffe.AliasResolutionError):
        return default
    # A number that is told apart from the same one passed, `Usual(0.9)`, is shown as a number.
    return default if value is None else str(value).removeprefix("Usual(").removesuffix(")")
