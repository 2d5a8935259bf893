"""Former names of what moved or was renamed: they work until 1.0, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TypeVar

Value = TypeVar("Value")


def warn_renamed(former: str, present: str, *, stacklevel: int = 2) -> None:
    """Warns that a name is gone with version 1.0; `stacklevel` counts as in `warnings.warn`."""
    warnings.warn(
        f"{former} is now {present}; the former name goes away with nobsp 1.0.",
        DeprecationWarning,
        stacklevel=stacklevel + 1,
    )


def argument_of(former: str, value: Value | None, *, present: str, default: Value) -> Value:
    """The value of an argument that may have come under its former name, of which the caller's caller is warned.

    Example:
        >>> argument_of("level", None, present="confidence", default=0.9)
        0.9
    """
    if value is None:
        return default
    warn_renamed(f"{former}=", f"{present}=", stacklevel=3)
    return value


def former_names(module: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """A module's `__getattr__` for names that moved, each with its present place.

    Example:
        >>> find = former_names("nobsp.old", {"count": "nobsp.arguments.count"})
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     function = find("count")
        >>> function.__module__, caught[0].category.__name__
        ('nobsp.arguments', 'DeprecationWarning')
    """

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_renamed(f"{module}.{name}", homes[name])
        home, _, present = homes[name].rpartition(".")
        return getattr(import_module(home), present)

    return find
