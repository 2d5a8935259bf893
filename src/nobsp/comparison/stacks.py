"""Two accounts as arrays with the same entries, on the rows of either."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nobsp._typing import FloatArray
from nobsp.comparison.deviations import Deviations, mix_outputs
from nobsp.comparison.pairing import Kind, Side, require_alike, same_functions, same_rows
from nobsp.comparison.trainings import Scatter
from nobsp.tabular.explanation import Explanation
from nobsp.tabular.functions import Functions
from nobsp.tabular.indexing import Term, column_names


@dataclass(frozen=True, eq=False)
class Stacks:
    """Every account as an array, (rows, models, entries + 1, outputs).

    Entries are base, terms and residual; the prediction comes last.
    """

    kind: Kind
    sides: tuple[Side, Side]
    terms: tuple[Term, ...]
    entries: tuple[
        str, ...
    ]  # what the parts are called: "base" where it differs, terms, "residual"
    term_labels: tuple[str, ...]
    values: tuple[FloatArray, FloatArray]  # on the rows of a, and on those of b
    deviations: dict[tuple[int, int], Deviations]  # by model and rows, 0 for a's and 1 for b's
    scatter: Scatter | None  # where there are several trainings, instead of deviations

    @classmethod
    def of(
        cls,
        sides: tuple[Side, Side],
        kind: Kind,
        terms: tuple[Term, ...],
        crossed: tuple[Explanation, Explanation] | None,
    ) -> Stacks:
        """Reads each model on the rows of either side, as far as the kind needs it."""
        a, b = (side.explanation for side in sides)
        on_a = [a]
        on_b = [b]
        if kind == "functions":
            on_a = [a, b]
            on_b = on_a
        elif kind == "both":
            a_on_b, b_on_a = _cross(sides, crossed)
            on_a = [a, b_on_a]
            on_b = [a_on_b, b]

        has_base = kind != "rows"
        labels = tuple(column_names(terms))
        entries = (*(("base",) if has_base else ()), *labels, "residual")
        stacked = tuple(
            np.stack([_entries_of(account, terms, has_base=has_base) for account in accounts], 1)
            for accounts in (on_a, on_b)
        )
        deviations = {}
        scatter = _scatter_of(sides, terms)
        # What calibrating does is in the scatter, as far as trainings differ by it.
        read_on = () if scatter is not None else (on_a, on_b)
        for rows, (side, accounts) in enumerate(zip(sides, read_on, strict=False)):
            models = (0,) if kind == "rows" else (0, 1)
            for model, account in zip(models, accounts, strict=True):
                owner = a if model == 0 else b
                known_rows = replace(account, data=side.explanation.data)
                deviations[model, rows] = Deviations(owner, known_rows, side.weights)
        return cls(
            kind=kind,
            sides=sides,
            terms=terms,
            entries=entries,
            term_labels=labels,
            values=(stacked[0], stacked[1]),
            deviations=deviations,
            scatter=scatter,
        )

    @property
    def first_term(self) -> int:
        """Position of the first term among the entries."""
        return int(self.kind != "rows")

    @property
    def common_terms(self) -> set[frozenset[str]]:
        """Terms that every account has."""
        return common_terms(self.sides)

    @property
    def counts_functions(self) -> bool:
        """Whether it is known how far functions may move."""
        return all(deviation.known for deviation in self.deviations.values())


def common_terms(sides: Sequence[Side]) -> set[frozenset[str]]:
    """Terms that every account of both sides has."""
    sets = [set(map(frozenset, account.terms)) for side in sides for account in side.trainings]
    return set.intersection(*sets)


def _scatter_of(sides: tuple[Side, Side], terms: tuple[Term, ...]) -> Scatter | None:
    """How far the trainings of a model lie apart; None where there is one of each."""
    if all(len(side.trainings) == 1 for side in sides):
        return None
    entries = [
        np.stack([_entries_of(account, terms, has_base=True) for account in side.trainings], 1)
        for side in sides
    ]
    return Scatter.of(entries, sides[0].weights)


def _entries_of(account: Explanation, terms: Sequence[Term], *, has_base: bool) -> FloatArray:
    """Base, terms, residual and prediction of every row, (rows, entries + 1, outputs).

    Terms that the account lacks are zero.
    """
    positions = {frozenset(term): position for position, term in enumerate(account.terms)}
    shape = (len(account), 1, len(account.output_names))
    parts = []
    if has_base:
        parts.append(np.broadcast_to(account.base_values, shape))
    for term in terms:
        position = positions.get(frozenset(term))
        parts.append(np.zeros(shape) if position is None else account.values[:, [position]])
    parts.append(account.residual[:, None])
    parts.append(account.predictions[:, None])
    return np.concatenate(parts, axis=1)


def _cross(
    sides: tuple[Side, Side], crossed: tuple[Explanation, Explanation] | None
) -> tuple[Explanation, Explanation]:
    """The first model on the second's rows, and the second on the first's."""
    a, b = (side.explanation for side in sides)
    if crossed is not None:
        if not isinstance(crossed, tuple | list) or len(crossed) != 2:
            raise ValueError("crossed must be the pair (explainer_a(X_b), explainer_b(X_a)).")
        return (
            _require_crossed(crossed[0], functions=a, side=sides[1], position=0),
            _require_crossed(crossed[1], functions=b, side=sides[0], position=1),
        )
    return _read_on(a, b), _read_on(b, a)


def _require_crossed(
    account: Explanation, *, functions: Explanation, side: Side, position: int
) -> Explanation:
    """An account that is of one's functions on the other's rows, or an error."""
    what = ("explainer_a(X_b)", "explainer_b(X_a)")[position]
    if not isinstance(account, Explanation):
        raise TypeError(f"crossed[{position}] must be {what}, found {type(account).__name__}.")
    require_alike(account, functions)
    if len(account) == side.n_passed != len(side):
        account = account[side.positions]
    if not (same_functions(account, functions) and same_rows(account, side.explanation)):
        raise ValueError(
            f"crossed[{position}] must be {what}: the functions of one on the rows of the other, "
            "in the same order, without rows that have no prediction."
        )
    return account


def _read_on(account: Explanation, rows: Explanation) -> Explanation:
    """An account's functions read on other rows; what its model predicts there is not known."""
    functions = account.origin
    mix = mix_outputs(account, functions) if isinstance(functions, Functions) else None
    has_tables = isinstance(functions, Functions) and set(account.terms) <= set(functions.terms)
    if mix is None or not has_tables or account.scale != "output":
        raise ValueError(
            "two models on two tables need crossed=(explainer_a(X_b), explainer_b(X_a)) here: not "
            "every term can be read from a table on the scale that is compared."
        )
    read = functions.explain(rows.data)
    positions = [functions.terms.index(term) for term in account.terms]
    unknown = np.full((len(rows), len(account.output_names)), np.nan)
    return replace(
        account,
        values=np.asarray(read.values[:, positions] @ mix),
        predictions=unknown,
        residual=unknown,
        data=rows.data,
        outside=read.outside,
    )
