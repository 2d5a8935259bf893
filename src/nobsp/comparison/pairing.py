"""Two accounts side by side: whether they can be compared, and in what they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nobsp._typing import AnyArray, ArrayLike, FloatArray
from nobsp.arguments import array_of, count, join_names, numbers_of
from nobsp.frames import frame_of, group_codes
from nobsp.tabular.explanation import Explanation
from nobsp.tabular.functions import Functions
from nobsp.tabular.indexing import Term

# What two accounts differ in.
Kind = Literal["rows", "functions", "both"]
# Two of something, one for each account.
Pair = tuple[Any, Any]
Places = NDArray[np.intp]

# Rows that a spread, and so an interval, needs at least.
FEWEST_ROWS = 2


@dataclass(frozen=True, eq=False)
class Side:
    """The rows of one account that can be compared."""

    explanation: Explanation  # without rows whose prediction is not known or that weigh nothing
    weights: FloatArray  # how much each row counts, adding up to one
    units: Places  # rows with the same number belong together
    n_left_out: int  # rows without a prediction
    positions: Places  # where its rows are in the account that was passed
    n_passed: int  # how many rows that had
    trainings: tuple[Explanation, ...]  # the accounts it is the mean of: one, or one per training

    def __len__(self) -> int:
        return len(self.explanation)

    def mean(self, values: FloatArray) -> FloatArray:
        """Weighted mean over the rows."""
        return np.asarray(np.tensordot(self.weights, values, axes=(0, 0)))

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the scatter between its units: (Σ w)² / Σ w² less one.

        They are at least 1.
        """
        totals = np.bincount(self.units, weights=self.weights)
        return max(float(totals.sum() ** 2 / np.square(totals).sum()) - 1, 1.0)


def require_alike(a: Explanation, b: Explanation) -> None:
    """Raises where two accounts are not of the same features, outputs and scale."""
    for name, account in (("a", a), ("b", b)):
        if not isinstance(account, Explanation):
            raise TypeError(
                f"{name} must be an Explanation, as explainer(X) gives it, found "
                f"{type(account).__name__}."
            )
    if set(a.feature_names) != set(b.feature_names):
        only = sorted(set(a.feature_names) ^ set(b.feature_names))
        raise ValueError(
            f"a and b have different features: {join_names(only)} belong to one of them only; "
            "explain both with the same."
        )
    if a.output_names != b.output_names:
        raise ValueError(
            f"a and b have different outputs, {join_names(a.output_names)} and "
            f"{join_names(b.output_names)}; choose the same with a[:, :, name]."
        )
    if (a.scale, a.link) != (b.scale, b.link):
        raise ValueError(
            f"a is on the scale {_scale_name(a)} and b on the scale {_scale_name(b)}; "
            "call to_probability on both, or on none."
        )
    links = [getattr(account.origin, "link", None) for account in (a, b)]
    if None not in links and links[0] != links[1]:
        raise ValueError(
            f"a's model applies {links[0]!r} to its outputs and b's {links[1]!r}: their outputs "
            "do not mean the same."
        )


def _scale_name(account: Explanation) -> str:
    """The scale of an account in words."""
    return repr(account.scale) if account.scale == "output" else f"{account.scale} ({account.link})"


def require_names(names: object) -> tuple[str, str]:
    """Two different texts."""
    texts = [*names] if isinstance(names, tuple | list) else []
    if len(texts) != 2 or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"names must be two texts, as in ('before', 'after'), found {names!r}.")
    first, second = texts
    if first == second:
        raise ValueError(f"names must differ, found {first!r} twice.")
    return first, second


def find_kind(a: Explanation, b: Explanation) -> Kind:
    """Whether two accounts are of other rows, of other functions, or of both."""
    if same_functions(a, b):
        return "rows"
    return "functions" if same_rows(a, b) else "both"


def same_functions(a: Explanation, b: Explanation) -> bool:
    """Whether two accounts were read from the same functions."""
    first = a.origin
    second = b.origin
    if isinstance(first, Functions) and isinstance(second, Functions):
        return first is second or _equal_tables(first, second)
    # Of accounts made by hand only the numbers tell.
    return (
        a.terms == b.terms
        and np.array_equal(a.base_values, b.base_values)
        and np.array_equal(a.baseline_contributions, b.baseline_contributions)
    )


def _equal_tables(first: Functions, second: Functions) -> bool:
    """Whether two sets of functions, one of them perhaps from a file, are copies of each other."""
    if first.terms != second.terms or not np.array_equal(first.base_values, second.base_values):
        return False
    pairs = zip(first.tables, second.tables, strict=True)
    return all(np.array_equal(table.values, other.values) for table, other in pairs)


def same_rows(a: Explanation, b: Explanation) -> bool:
    """Whether two accounts are of the same rows, in the same order."""
    if a.data is b.data:
        return len(a) == len(b)
    if len(a) != len(b):
        return False

    first = _columns_by_name(a)
    second = _columns_by_name(b)
    if first.keys() != second.keys():
        return False
    return all(_equal_columns(column, second[name]) for name, column in first.items())


def _columns_by_name(account: Explanation) -> dict[str, AnyArray]:
    """The columns of an account's rows, by name or position."""
    frame = frame_of(account.data)
    if frame is not None:
        return {str(name): np.asarray(frame[name].to_numpy()) for name in frame.columns}
    matrix = array_of(account.data, name="data")
    return {
        str(position): column for position, column in enumerate(matrix.reshape(len(matrix), -1).T)
    }


def _equal_columns(first: AnyArray, second: AnyArray) -> bool:
    """Whether two columns have the same values, missing ones alike."""
    if first.dtype.kind in "fc" and second.dtype.kind in "fc":
        return bool(np.array_equal(first, second, equal_nan=True))
    alike = (first == second) | ((first != first) & (second != second))
    return bool(np.all(alike))


def every_term(a: Explanation, b: Explanation) -> tuple[Term, ...]:
    """The terms of both accounts, single features first.

    The features of a term are in the order of the first account.
    """
    known = {frozenset(term): term for term in a.terms}
    for term in b.terms:
        known.setdefault(frozenset(term), term)
    return tuple(sorted(known.values(), key=len))


def side_of(
    account: Explanation,
    *,
    name: str,
    sample_weight: ArrayLike | None,
    groups: ArrayLike | None,
    trainings: tuple[Explanation, ...] = (),
) -> Side:
    """The rows of an account that count and have a prediction, with their weights and groups.

    Groups say which rows belong together.
    """
    is_known = np.isfinite(account.residual).all(1) & np.isfinite(account.values).all((1, 2))
    weights = _read_weights(sample_weight, name=name, n_rows=len(account))
    units = _read_groups(groups, name=name, n_rows=len(account))

    # Rows that weigh nothing are as good as absent: draws of nothing but them would have no mean.
    rows = np.flatnonzero(is_known & (weights > 0))
    _require_rows(len(rows), name=name, n_rows=len(account), n_known=int(is_known.sum()))
    codes = np.unique(units[rows], return_inverse=True)[1].reshape(-1).astype(np.intp)
    if codes.max() == 0:
        raise ValueError(
            f"groups of {name} are all the same in the rows that count; an interval needs two or "
            "more."
        )
    is_whole = len(rows) == len(account)
    explanation = account if is_whole else account[rows]
    if len(trainings) > 1:
        trainings = trainings if is_whole else tuple(training[rows] for training in trainings)
    else:
        trainings = (explanation,)
    return Side(
        explanation=explanation,
        weights=weights[rows] / weights[rows].sum(),
        units=codes,
        n_left_out=int((~is_known).sum()),
        positions=rows,
        n_passed=len(account),
        trainings=trainings,
    )


def _require_rows(n_counted: int, *, name: str, n_rows: int, n_known: int) -> None:
    """Raises where too few rows have a prediction and a weight for an interval."""
    if n_counted >= FEWEST_ROWS:
        return
    hint = ""
    if n_known > n_counted:
        what = f"{count(n_counted, 'row')} with a sample_weight above zero"
    elif n_known:
        what = f"{count(n_known, 'row')} with a prediction"
    elif n_rows:
        what = "no predictions"
        hint = (
            " Functions do not know the model's: explain with the explainer, or pass them, "
            "functions.explain(X, predictions=...)."
        )
    else:
        what = "no rows"
    raise ValueError(
        f"{name} has {what}, but a comparison needs two rows or more with predictions of the "
        f"model.{hint}"
    )


def _read_weights(weights: ArrayLike | None, *, name: str, n_rows: int) -> FloatArray:
    """One weight for every row."""
    if weights is None:
        return np.ones(n_rows)
    numbers = numbers_of(weights, name="sample_weight").reshape(-1)
    if len(numbers) != n_rows:
        raise ValueError(
            f"sample_weight of {name} must be one per row, {n_rows}, found {len(numbers)}."
        )
    if not np.isfinite(numbers).all() or (numbers < 0).any():
        raise ValueError(f"sample_weight of {name} must be finite and not negative.")
    # As shares, so that what underflows is seen to weigh nothing; by the largest first, whose sum
    # may overflow.
    scaled = numbers / max(numbers.max(initial=0.0), np.finfo(np.float64).tiny)
    return np.asarray(scaled / max(scaled.sum(), np.finfo(np.float64).tiny), dtype=np.float64)


def _read_groups(groups: ArrayLike | None, *, name: str, n_rows: int) -> Places:
    """A number for every row, the same for rows that belong together."""
    if groups is None:
        return np.arange(n_rows, dtype=np.intp)
    return group_codes(groups, n_rows=n_rows, name=f"groups of {name}")


def pair_of(value: object, *, argument: str) -> Pair:
    """One value for each account; None for both where nothing was passed."""
    if value is None:
        return None, None
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ValueError(f"{argument} must be a pair, one for a and one for b.")
    return value[0], value[1]
