"""What several rooms write, check and read the same way."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray


def join_names(names: Iterable[Any], most: int = 8) -> str:
    """Names as Python writes them, the first of them where there are many."""
    known = [name.item() if isinstance(name, np.generic) else name for name in names]
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(map(repr, known[:most])) + more


def count(number: int, what: str) -> str:
    """A number of things."""
    ending = "" if number == 1 else "es" if what.endswith("s") else "s"
    return f"{number:,} {what}{ending}"


def number_outputs(outputs: int) -> tuple[str, ...]:
    """Names of outputs that have none."""
    return (
        ("output",) if outputs == 1 else tuple(f"output {position}" for position in range(outputs))
    )


def free_name(name: str, taken: Container[str]) -> str:
    """A name in as many brackets as it takes to be none of those that are taken."""
    return free_name(f"({name})", taken) if name in taken else name


def is_missing(value: Any) -> bool:
    """Whether a value of a column stands for none."""
    # Of pandas' own NA even the comparison with itself is NA.
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def percent(share: float) -> str:
    """A share in percent: a decimal where it is below ten, or close to a hundred."""
    if 0 < share < 0.0005:
        return "<0.1%"
    fine = abs(share) < 0.0995 or 0.985 < share < 0.9995
    return f"{share:.{1 if fine else 0}%}".replace("-", "−")


def suggest(name: Any, known: Iterable[Any]) -> str:
    """The last clause of an error about an unknown name: the closest matches, or what there is."""
    names = list(known)
    close = get_close_matches(str(name), [str(other) for other in names[:10_000]], n=3)
    return (
        f"did you mean {' or '.join(map(repr, close))}?"
        if close
        else f"there are {join_names(names, 12)}."
    )


def require_whole_number(name: str, value: Any, *, least: int = 1) -> None:
    """Refuses whatever is no whole number from `least` on."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, found {value!r}.")


def as_numpy(values: Any) -> NDArray[Any]:
    """Anything numpy understands as an array, and tensors on any device; recognised so that torch is not needed."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (
            values.float() if "bfloat16" in str(values.dtype) else values
        )  # numpy knows no bfloat16
    return np.asarray(values)


def frame_of(data: Any) -> Any:
    """A frame of any library as narwhals sees it; None for anything else."""
    import narwhals as nw

    frame = nw.from_native(data, eager_only=True, pass_through=True)
    return frame if isinstance(frame, nw.DataFrame) else None


def matched(frame: Any, *, argument: str, columns: Sequence[str] | None) -> Any:
    """A frame of narwhals with its columns in the expected order."""
    if columns is None:
        return frame
    places, known = (
        {str(name): position for position, name in enumerate(frame.columns)},
        set(columns),
    )
    missing = [name for name in columns if name not in places]
    unexpected = [name for name in places if name not in known]
    if missing or unexpected:
        said = [f"lacks {join_names(missing, 12)}"] if missing else []
        said += [f"has the unexpected {join_names(unexpected, 12)}"] if unexpected else []
        close = [
            f"{near[0]!r} for {name!r}"
            for name in missing
            if (near := get_close_matches(name, unexpected, n=1))
        ]
        hint = f" Is {', '.join(close)}?" if close else ""
        raise ValueError(
            f"{argument} {' and '.join(said)}; expected are {join_names(columns, 12)}.{hint}"
        )
    order = [places[name] for name in columns]
    return frame if order == sorted(order) else frame[:, order]
