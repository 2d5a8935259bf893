"""What was asked for: which explanation, which row, which output, which features; and errors that help."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from nobsp.plots.tables import frame_of
from nobsp.plots.wording import listed
from nobsp.tabular.compiled import CompiledExplainer
from nobsp.tabular.explanation import Explanation, output_position

_SEARCHED = 10_000  # labels among which close ones are looked for; more would take seconds


def explanation(given: Any, plot: str) -> Explanation:
    """An explanation of at least one row."""
    if not isinstance(given, Explanation):
        if isinstance(given, CompiledExplainer) or hasattr(type(given), "functions_"):
            raise TypeError(f"{plot} draws the account of rows, found the explainer itself; pass explainer(X).")
        raise TypeError(f"{plot} draws an Explanation, found {type(given).__name__}; pass explainer(X).")
    if len(given) == 0:
        raise ValueError(f"the explanation has no rows, so {plot} has nothing to draw.")
    return given


def known_rows(given: Explanation, *, residual: str = "") -> Explanation:
    """The rows that could be explained: a missing value may have kept some from the network."""
    known = np.isfinite(given.values).all((1, 2))
    ran = known & np.isfinite(given.residual).all(1)
    if residual and not ran.any():
        raise ValueError(
            f"{residual} needs the residual, which a compiled explainer does not know; pass the network's outputs, "
            "compiled(X, predictions=...)."
        )
    kept = ran if ran.any() else known
    return given if kept.all() else given[kept]


def row_position(row: Any, ex: Explanation) -> int:
    """Position of a row given by its position, or by its label in the index of the frame that was explained."""
    index = _labels_of(ex)
    if isinstance(row, int | np.integer) and not isinstance(row, bool):
        if -len(ex) <= row < len(ex):
            return int(row) % len(ex)
        meant = f"; for the label pass row=ex.data.index.get_loc({row})" if index is not None and row in index else ""
        raise IndexError(f"row {row} is out of range: row is a position, and there are {len(ex)}{meant}.")
    named = index is not None and index.inferred_type != "integer"
    if isinstance(row, bool | slice) or not isinstance(row, Hashable) or not named:
        raise TypeError(f"row must be the position{' or label' if named else ''} of one row, found {row!r}.")
    try:
        found = np.arange(len(index))[index.get_loc(row)]
    except (KeyError, TypeError, ValueError):  # as other kinds of indexes say that there is no such label
        close = get_close_matches(str(row), dict.fromkeys(map(str, index[:_SEARCHED])), n=3)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"there are {listed(index, 12)}."
        raise ValueError(f"no row {row!r} in the index of ex.data; {hint}") from None
    if np.size(found) != 1:
        raise ValueError(f"row {row!r} is not one row but those at {listed(found.tolist(), 12)}; pass one position.")
    return int(np.ravel(found)[0])


def _labels_of(ex: Explanation) -> Any:
    """The index of the explained frame; None where it has none."""
    import narwhals as nw

    frame = frame_of(ex.data)
    return None if frame is None else nw.maybe_get_index(frame)


def one_output(output: int | str | None, names: Sequence[str], among: Sequence[int] | None = None) -> int:
    """Position of the output to draw; may be left out where there is only one, or only one is `among` those meant."""
    if output is not None:
        return output_position(output, names)
    meant = list(range(len(names))) if among is None else list(among)
    if len(meant) != 1:
        known = listed([names[k] for k in meant], 12)
        raise ValueError(f"output must be chosen among {known}, as in output={names[meant[0]]!r}.")
    return meant[0]


def some_outputs(output: int | str | None, names: Sequence[str], among: Sequence[int] | None = None) -> list[int]:
    """Positions of the outputs to draw: the one asked for, or all that are meant."""
    if output is not None:
        return [output_position(output, names)]
    return list(range(len(names))) if among is None else list(among)


def feature_positions(asked: Any, names: Sequence[str]) -> list[int]:
    """Positions of features given by name or position."""
    wanted = [asked] if isinstance(asked, str | int | np.integer) else list(asked)
    if not wanted:
        raise ValueError("features is empty; name at least one, or leave it out to draw the strongest.")
    return [feature_position(one, names) for one in wanted]


def feature_position(asked: Any, names: Sequence[str]) -> int:
    """Position of a feature, or an error with the close matches."""
    if isinstance(asked, int | np.integer) and not isinstance(asked, bool):
        if not -len(names) <= asked < len(names):
            raise ValueError(f"feature {asked} is out of range; there are {len(names)}.")
        return int(asked) % len(names)
    if asked in names:
        return list(names).index(asked)
    close = get_close_matches(str(asked), names, n=3)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"there are {listed(names)}."
    raise ValueError(f"no feature {asked!r}; {hint}")


def pair_term(asked: Any, terms: Sequence[tuple[str, ...]], names: Sequence[str]) -> tuple[str, str]:
    """The fitted pair of two features, in the order asked for."""
    if isinstance(asked, str) or not isinstance(asked, Iterable) or len(tuple(asked)) != 2:
        raise ValueError(f"pair must be two features, found {asked!r}.")
    first, second = (names[feature_position(one, names)] for one in asked)
    pairs = [term for term in terms if len(term) == 2]
    if not any({first, second} == set(term) for term in pairs):
        have = f"fitted are {listed(pairs)}" if pairs else "none was"
        raise ValueError(
            f"the pair {(first, second)!r} was not fitted; {have}. To draw it, calibrate with "
            f"interactions=[{(first, second)!r}]."
        )
    return first, second
