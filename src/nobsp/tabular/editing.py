"""Functions changed by a person: rules, what they cost, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from nobsp._typing import AnyArray, ArrayLike, FloatArray, ModelLike, TableLike
from nobsp.arguments import quote, require_flag, require_number, with_minus
from nobsp.findings import Finding
from nobsp.numerics import evenly_spaced
from nobsp.tabular.health import Health, r_squared, sort_findings
from nobsp.tabular.heights import Ridge, add_tables, blocks_of, relative_penalties
from nobsp.tabular.indexing import output_position
from nobsp.tabular.lookup import (
    Axis,
    Chunk,
    LevelAxis,
    TermTable,
    feature_position,
    read_columns,
    read_tables,
)
from nobsp.tabular.predicting import outputs_of
from nobsp.tabular.shaping import bounded, flat_beyond, read_flat, replaced, rising, smooth

if TYPE_CHECKING:
    from nobsp.tabular.functions import Functions

Rule = str | Callable[[AnyArray], ArrayLike]

# Rows in whose measure a function is changed; its cost is measured on all.
MOST_ROWS = 16_384
# Rules that are words.
_DIRECTIONS = ("increasing", "decreasing")
_RULES = (*_DIRECTIONS, "smooth")
# How strongly corrections of the others are held to none where they take over.
_TAKE_OVER = 1e-3
DROPPED = "dropped"


@dataclass(frozen=True)
class Edit:
    """What was changed, and what it cost on the rows it was measured on.

    Attributes:
        feature: Name of the feature.
        rule: What was asked for, in words.
        rows: How many rows it was measured on.
        agreement: Per output, R² of the edited functions' sum against the one before this edit.
        before: Per output, R² of the functions before against the model; empty where no model was
            at hand.
        after: The same after the edit.
        taken_over: For a dropped feature, per other feature the share of what it said that this one
            can say in its place; together what is not lost.
    """

    feature: str
    rule: str
    rows: int
    agreement: tuple[float, ...]
    before: tuple[float, ...] = ()
    after: tuple[float, ...] = ()
    taken_over: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        agreement = with_minus(min(self.agreement), ".3f")
        cost = f"R² {agreement} to the functions before, on {self.rows:,} rows"
        if self.after:
            before = with_minus(min(self.before), ".3f")
            after = with_minus(min(self.after), ".3f")
            cost += f"; to the model {before} before, {after} after"
        return f"{self.feature}: {self.rule} ({cost})"


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows that edits are measured on."""

    columns: dict[int, AnyArray]
    count: int
    outputs: FloatArray | None  # the model's, where it is known

    @classmethod
    def read(cls, functions: Functions, X: TableLike, model: ModelLike) -> Rows:
        """Reads a table, and asks the model where there is one."""
        columns, n_rows = read_columns(functions, X)
        if n_rows < 2:
            raise ValueError(f"X has {n_rows} rows; an edit is measured on at least two.")
        outputs = None if model is None else outputs_of(functions, X, model)
        return cls(columns, n_rows, outputs)

    def some(self) -> Rows:
        """At most so many rows, at even distances, that every one can be set beside every node."""
        chosen = evenly_spaced(self.count, MOST_ROWS)
        if len(chosen) == self.count:
            return self
        columns = {column: values[chosen] for column, values in self.columns.items()}
        outputs = None if self.outputs is None else self.outputs[chosen]
        return Rows(columns, len(chosen), outputs)

    def chunk(self, functions: Functions) -> Chunk:
        """The rows as tables read them."""
        return Chunk(self.columns, slice(0, self.count), functions.column_names)


def edit(
    functions: Functions,
    feature: str,
    rule: Rule,
    X: TableLike,
    *,
    output: int | str | None,
    model: ModelLike,
) -> Functions:
    """The functions with one feature under a rule."""
    position = feature_position(functions, feature)
    outputs = _chosen_outputs(functions, output)
    rows = Rows.read(functions, X, model)
    tables = _tables_with(functions, position)
    _require_function(tables, feature)
    _require_output(functions, rule, output)
    chunk = rows.some().chunk(functions)

    if callable(rule):
        called = f"replaced by {getattr(rule, '__name__', 'a function')}"
        own = replaced(tables[0], rule, name=feature, outputs=outputs)
        changed = [_at_the_same_mean(own, tables[0], chunk), *tables[1:]]
        return _finish(functions, feature, called, tables, changed, rows)

    word = rule.strip().lower()
    flat = read_flat(rule)
    if flat is not None:
        above, number = flat
        changed = [
            flat_beyond(table, position, number, above=above, outputs=outputs) for table in tables
        ]
    elif word in _DIRECTIONS:
        changed = rising(tables, position, chunk, falling=word == "decreasing", outputs=outputs)
    elif word == "smooth":
        changed = [smooth(table, position, chunk, outputs=outputs) for table in tables]
    else:
        raise ValueError(
            f"rule must be one of {', '.join(_RULES)}, 'flat above 100_000', 'flat below 0' or a "
            f"function from values to contributions, found {rule!r}."
        )
    return _finish(functions, feature, rule, tables, changed, rows)


def cap(
    functions: Functions,
    feature: str,
    X: TableLike,
    *,
    least: float | None,
    most: float | None,
    output: int | str | None,
    model: ModelLike,
) -> Functions:
    """The functions with one feature's own contribution held within bounds."""
    if least is None and most is None:
        raise ValueError("cap needs least, most or both: the bounds of the contribution.")
    for name, bound in (("least", least), ("most", most)):
        if bound is not None:
            require_number(name, bound)
    if least is not None and most is not None and least > most:
        raise ValueError(f"least is {least} but most is {most}; the first must not be larger.")
    position = feature_position(functions, feature)
    rows = Rows.read(functions, X, model)
    tables = _tables_with(functions, position)
    _require_function(tables, feature)

    outputs = _chosen_outputs(functions, output)
    changed = [bounded(tables[0], least, most, outputs=outputs), *tables[1:]]
    bounds = " and ".join(
        f"{word} {with_minus(bound, 'g')}"
        for word, bound in (("at least", least), ("at most", most))
        if bound is not None
    )
    return _finish(functions, feature, f"capped, {bounds}", tables, changed, rows)


def drop(
    functions: Functions, feature: str, X: TableLike, *, take_over: bool, model: ModelLike
) -> Functions:
    """The functions without a feature.

    Where `take_over` asks for it, the others say in its place what they can.
    """
    require_flag("take_over", take_over)
    position = feature_position(functions, feature)
    if _is_dropped(functions, position):
        raise ValueError(f"feature {feature!r} was dropped already.")
    rows = Rows.read(functions, X, model)
    tables = _tables_with(functions, position)
    others = without_feature(functions, position)

    some = rows.some()
    chunk = some.chunk(functions)
    lost = np.sum([np.nan_to_num(table(chunk)) for table in tables], axis=0)
    corrections, shares = _take_over(others, some, lost)
    if take_over:
        others = _with_corrections(others, corrections)
    rule = f"{DROPPED}, the others taking over" if take_over else DROPPED
    return record(functions, others, feature, rule, rows, taken_over=shares)


def _is_dropped(functions: Functions, feature: int) -> bool:
    """Whether an edit took a feature away, be it one that the model never looked at."""
    if functions.features[feature].kind != "unused":
        return False
    name = functions.features[feature].name
    drops = [entry for entry in functions.history if entry.rule.startswith(DROPPED)]
    was_read = original(functions).features[feature].kind != "unused"
    return was_read or any(entry.feature == name for entry in drops)


def _chosen_outputs(functions: Functions, output: int | str | None) -> list[int]:
    """Positions of the outputs that a rule is for."""
    if output is None:
        return list(range(len(functions.output_names)))
    return [output_position(output, functions.output_names)]


def _require_output(functions: Functions, rule: Rule, output: int | str | None) -> None:
    """An error where one direction, or one function, would be meant for several outputs at once."""
    names = functions.output_names
    if isinstance(rule, type) or not (callable(rule) or isinstance(rule, str)):
        raise TypeError(f"rule must be a text, or a function of values, found {quote(rule)}.")
    for_one = callable(rule) or rule.strip().lower() in _DIRECTIONS
    if for_one and output is None and len(names) > 1:
        raise ValueError(
            f"output must be chosen among {', '.join(map(repr, names))}. Choose one output: a rule "
            "for all at once is ambiguous."
        )


def _tables_with(functions: Functions, feature: int) -> list[TermTable]:
    """All tables of a feature, its own first."""
    tables = [table for table in functions.tables if feature in table.features]
    return sorted(tables, key=lambda table: len(table.features))


def _require_function(tables: Sequence[TermTable], feature: str) -> None:
    """An error for what has no function of its own."""
    if not tables or len(tables[0].features) > 1 or not tables[0].axes:
        raise ValueError(
            f"feature {feature!r} has no function of its own that could be changed: it has no "
            "table, or the model never sees it."
        )


def _finish(
    functions: Functions,
    feature: str,
    rule: str,
    tables: Sequence[TermTable],
    changed: Sequence[TermTable],
    rows: Rows,
) -> Functions:
    """Puts changed tables in the places of the former ones."""
    by_term = {
        new.features: new for former, new in zip(tables, changed, strict=True) if new is not former
    }
    everything = tuple(by_term.get(table.features, table) for table in functions.tables)
    return record(functions, replace(functions, tables=everything), feature, rule, rows)


def _at_the_same_mean(new: TermTable, former: TermTable, rows: Chunk) -> TermTable:
    """A function moved up or down so that its mean over the rows is the former one."""
    difference = new(rows) - former(rows)
    known = np.isfinite(difference).all(1)
    if isinstance(new.axes[0], LevelAxis):
        levels, _ = rows.places(new.axes[0])
        known &= levels < len(new.axes[0])
    moved = difference[known].mean(0) if known.any() else np.zeros(new.values.shape[-1])
    return TermTable(new.features, new.axes, new.values - moved)


def without_feature(functions: Functions, feature: int) -> Functions:
    """The functions without a feature: it is one that is never looked at."""
    n_outputs = len(functions.output_names)
    nothing = TermTable((feature,), (), np.zeros(n_outputs))
    tables = []
    baseline_contributions = []
    for table, contribution in zip(functions.tables, functions.baseline_contributions, strict=True):
        if table.features == (feature,):
            tables.append(nothing)
            baseline_contributions.append(np.zeros(n_outputs))
        elif feature not in table.features:
            tables.append(table)
            baseline_contributions.append(contribution)

    name = functions.features[feature].name
    features = list(functions.features)
    features[feature] = replace(features[feature], kind="unused", ranges=(), labels=())
    return replace(
        functions,
        features=tuple(features),
        tables=tuple(tables),
        baseline_contributions=np.array(baseline_contributions).reshape(-1, n_outputs),
        strengths={pair: size for pair, size in functions.strengths.items() if feature not in pair},
        left_out=tuple(term for term in functions.left_out if name not in term),
        reach=None,
    )


def _take_over(
    others: Functions, rows: Rows, lost: FloatArray
) -> tuple[list[TermTable], dict[str, float]]:
    """What other features can say in place of what is lost, and the share of it that each says."""
    blocks = blocks_of(others, rows.columns, rows.count)
    centred = lost - lost.mean(0)
    total = float(np.square(centred).sum())
    if not blocks or total == 0:
        return [], {}
    design = np.hstack([block.design for block in blocks])
    ridge = Ridge.fit(design, centred, penalties=relative_penalties(design, _TAKE_OVER))

    corrections = []
    shares = {}
    start = 0
    for block in blocks:
        heights = ridge.coefficients[start : start + block.design.shape[1]]
        start += block.design.shape[1]
        corrections.append(block.table(heights))
        said = block.design @ heights
        # Shares of covariances add up to the R² of all together.
        share = float((said * centred).sum()) / total
        shares[others.features[block.feature].name] = share
    return corrections, dict(sorted(shares.items(), key=lambda pair: -abs(pair[1])))


def _with_corrections(functions: Functions, corrections: Sequence[TermTable]) -> Functions:
    """Corrections added to the functions of their features."""
    by_term = {correction.features: correction for correction in corrections}
    tables = tuple(
        add_tables(table, by_term[table.features]) if table.features in by_term else table
        for table in functions.tables
    )
    return replace(functions, tables=tables)


def record(
    former: Functions,
    edited: Functions,
    feature: str,
    rule: str,
    rows: Rows,
    *,
    taken_over: Mapping[str, float] | None = None,
) -> Functions:
    """The edited functions, measured anew, with an entry in their history and the way back."""
    before, _ = read_tables(former, rows.columns, rows.count)
    after, _ = read_tables(edited, rows.columns, rows.count)
    sums_before = former.base_values + before.sum(1)
    sums_after = edited.base_values + after.sum(1)
    entry = Edit(
        feature=feature,
        rule=rule,
        rows=rows.count,
        agreement=_shares(sums_before, sums_after),
        before=() if rows.outputs is None else _shares(rows.outputs, sums_before),
        after=() if rows.outputs is None else _shares(rows.outputs, sums_after),
        taken_over=dict(taken_over or {}),
    )
    changed = {
        table.features for table in edited.tables if all(table is not old for old in former.tables)
    }
    touched = {member for term in changed for member in term if len(term) == 1}

    return replace(
        edited,
        state=_state_after(former.state, entry, edited),
        importances=_importances(edited, after),
        baseline_contributions=_at_baseline(edited),
        spreads={k: spread for k, spread in former.spreads.items() if k not in touched},
        history=(*former.history, entry),
        former=former,
    )


def _shares(outputs: FloatArray, sums: FloatArray) -> tuple[float, ...]:
    """R² per output; 1.0 for an output that does not vary over the rows, which has none."""
    shares = r_squared(outputs - sums, outputs)
    return tuple(1.0 if np.isnan(share) else float(share) for share in shares)


def _state_after(state: Health, entry: Edit, edited: Functions) -> Health:
    """What is known of edited functions: the former headline is not theirs."""
    finding = Finding(
        "note",
        "edited",
        entry.feature,
        f"This function was changed ({entry.rule}): it is no longer the model's. `history` tells "
        "what it cost, `undo` takes it back.",
    )
    names = set(edited.terms)
    measured = entry.after or entry.agreement

    return replace(
        state,
        findings=sort_findings([*state.findings, finding]),
        terms=tuple(term for term in state.terms if term.term in names),
        explained=measured,
        inside=measured,
        outside_rows=0.0,
        held_out=False,
        scatter=(),
        neighbourhoods=(),
        edited="model" if entry.after else "functions",
    )


def _importances(functions: Functions, values: FloatArray) -> dict[str, FloatArray]:
    """Mean absolute contributions over the rows, of every feature alone and of all its terms."""
    n_features = len(functions.features)
    own = np.zeros((n_features, values.shape[2]))
    totals = np.zeros((values.shape[0], n_features, values.shape[2]))
    for position, table in enumerate(functions.tables):
        if len(table.features) == 1:
            own[table.features[0]] = np.abs(values[:, position]).mean(0)
        for feature in table.features:
            totals[:, feature] += values[:, position]
    return {"main": own, "total": np.abs(totals).mean(0)}


def _at_baseline(functions: Functions) -> FloatArray:
    """What each term contributes at the baseline; zero where there is none."""
    columns: dict[int, AnyArray] = {}
    axes: dict[int, Axis] = {}
    for table in functions.tables:
        axes.update(zip(table.features, table.axes, strict=False))
    for position, axis in axes.items():
        at_baseline = functions.baseline[position]
        if isinstance(axis, LevelAxis):
            columns.update(_level_columns(axis, at_baseline))
        else:
            columns[axis.column] = np.array([at_baseline])

    chunk = Chunk(columns, slice(0, 1))
    contributions = [np.nan_to_num(table(chunk))[0] for table in functions.tables]
    return np.array(contributions).reshape(len(functions.tables), len(functions.output_names))


def _level_columns(axis: LevelAxis, position: float) -> dict[int, AnyArray]:
    """The columns of one level, by its position; one that was not seen where there is none."""
    if np.isnan(position):
        # No level equals it, not even the one that missing names have.
        unseen = object() if isinstance(axis.levels, tuple) else np.inf
        return {column: np.array([unseen], dtype=object) for column in axis.columns}
    level = axis.levels[int(position)]
    if isinstance(axis.levels, tuple):
        cell = np.empty(1, dtype=object)
        cell[0] = level
        return {axis.columns[0]: cell}
    numbers = np.asarray(level, dtype=np.float64)
    return {column: numbers[[k]] for k, column in enumerate(axis.columns)}


def undo(functions: Functions, steps: int) -> Functions:
    """The functions before the last edits."""
    if not functions.history:
        raise ValueError("there is nothing to undo: these functions were not edited.")
    if not 1 <= steps <= len(functions.history):
        raise ValueError(
            f"steps must be between 1 and {len(functions.history)}, the edits there are, "
            f"found {steps}."
        )
    earlier = functions
    for _ in range(steps):
        assert earlier.former is not None  # there is one for every entry
        earlier = earlier.former
    return earlier


def original(functions: Functions) -> Functions:
    """The functions before any edit."""
    return undo(functions, len(functions.history)) if functions.history else functions
