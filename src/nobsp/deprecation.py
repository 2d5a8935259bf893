"""Former names of what moved or was renamed: they work until 1.0, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module


def warn_renamed(former: str, present: str, *, stacklevel: int = 2) -> None:
    """Warns that a name is gone with version 1.0; `stacklevel` counts as in `warnings.warn`."""
    warnings.warn(
        f"{former} is now {present}; the former name goes away with nobsp 1.0.",
        DeprecationWarning,
        stacklevel=stacklevel + 1,
    )


class Usual(float):
    """A default of an argument, told apart from the same number where somebody passes it.

    Example:
        >>> Usual(0.9)
        0.9
    """


# How sure intervals and bands are where nobody says.
USUAL_CONFIDENCE = Usual(0.9)


def argument_of(former: str, value: float | None, *, present: str, current: float) -> float:
    """The value of an argument that may have come under its former name.

    If it has, the caller's caller is warned.

    Args:
        former: The former name.
        value: What came under it; None for nothing.
        present: The present name.
        current: What came under that, a `Usual` for nothing.

    Raises:
        TypeError: If both were passed.

    Example:
        >>> argument_of("level", None, present="confidence", current=USUAL_CONFIDENCE)
        0.9
    """
    if value is None:
        return float(current) if isinstance(current, Usual) else current
    if not isinstance(current, Usual):
        raise TypeError(
            f"{present}= and {former}= are the same argument; pass {present}= alone, {former}= is "
            "its former name."
        )
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
