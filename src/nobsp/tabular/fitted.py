"""What a calibration leaves behind: the functions, and what is needed to explain rows with the network beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.network.adapted import Adapted
from nobsp.network.batches import Source, batches_of, with_progress
from nobsp.network.inputs import Subset, Summary
from nobsp.network.readout import Readout, as_model_takes
from nobsp.projection import Moments, Ridge
from nobsp.tabular.algorithm1 import Plan, Solution, contributions
from nobsp.tabular.columns import Columns, input_values
from nobsp.tabular.compiled import CompiledExplainer
from nobsp.tabular.pieces import DirectTerm
from nobsp.tabular.tabulate import Represent, Tabulator

Parts = dict[str, list[Moments]]


@dataclass(frozen=True, eq=False)
class Published:
    """A calibration as published, term by term along the complement."""

    plan: Plan  # baseline, terms and bases
    parts: Parts  # moments per block of rows; empty where they were not saved, or not held at once
    solution: Solution  # coefficients
    ridge: Ridge  # strength of the regularisation


@dataclass(frozen=True, eq=False)
class Estimate:
    """What is estimated, without the network."""

    functions: CompiledExplainer  # every term that has a table
    terms: tuple[Subset, ...]  # all terms, as positions of features; single features first
    direct: tuple[DirectTerm, ...]  # terms that run through the network row by row
    baseline: Tensor  # the baseline as the network takes it
    baseline_contributions: NDArray[np.float64]  # what each term contributes there, (terms, outputs)
    alphas: tuple[float, ...]  # per output the relative strength of the ridge
    background: Tensor | None = None  # the background rows; None where they were not kept
    offsets: dict[int, Tensor] = field(default_factory=dict)  # per category, what its prior part is measured from
    published: Published | None = None  # the calibration as published, where that was asked for

    def with_spreads(self) -> Estimate:
        """The same with bands measured, and nothing that cannot be sent to another process."""
        functions = replace(self.functions.with_spreads())  # a copy without what measures them
        return replace(self, functions=functions)


@dataclass(frozen=True, eq=False)
class Account:
    """Some rows, explained."""

    representation: Tensor  # what enters the head, NaN for rows that could not be run
    outputs: Tensor  # the network's outputs, likewise
    values: Tensor | None  # contributions, (rows, terms, outputs); None where they were not asked for
    outside: NDArray[np.bool_]  # which features lie outside what was calibrated, (rows, features)
    inputs: Tensor  # the rows as the network takes them


@dataclass(frozen=True, eq=False)
class Fitted:
    """A calibrated model."""

    adapted: Adapted  # the model as it was given
    readout: Readout  # its linear head
    columns: Columns  # the caller's columns and features
    summary: Summary  # what the calibration rows looked like
    estimate: Estimate  # the functions

    @property
    def functions(self) -> CompiledExplainer:
        """Every term that has a table."""
        return self.estimate.functions

    def require_same_model(self, readout: Readout) -> None:
        """An error where this is another model's calibration."""
        if self.readout.fingerprint() != readout.fingerprint():
            raise ValueError("the two explainers are of different models; calibrations add up for one model only.")

    def source(self, X: Any, *, batch_size: int, strict: bool = False) -> Source:
        """Rows to explain, checked against the calibrated columns."""
        X = X if self.adapted.pack is None else self.adapted.pack(X)
        source = batches_of(
            X, batch_size=batch_size, encode=self.adapted.encode, columns=self.columns.names, strict=strict
        )
        expected = self.summary.mean.numel()
        if source.columns != expected:
            raise ValueError(f"X has {source.columns} columns but the explainer was calibrated on {expected}.")
        return source

    def explain(
        self, X: Any, represent: Represent, *, batch_size: int, progress: bool = False, values: bool = True
    ) -> Iterator[Account]:
        """The account of every batch of rows.

        Rows that cannot be read as a whole are explained as far as they can, and flagged in `outside`.
        """
        source = self.source(X, batch_size=batch_size)
        finite = torch.zeros(source.columns, dtype=torch.bool)
        seen = 0
        with_rows = (_Pair(rows, native) for rows, native in source.pairs())
        for pair in with_progress(with_rows, total=source.rows, enabled=progress, description="explaining"):
            finite |= pair.rows.isfinite().any(0) if pair.rows.is_floating_point() else torch.ones_like(finite)
            seen += len(pair)
            yield self._account(pair, represent, batch_size, values)
        if seen and not bool(finite.all()):
            column = int((~finite).nonzero()[0])
            names = self.columns.names if self.adapted.encode is None else None
            called = repr(names[column]) if names else str(column)
            raise ValueError(f"X has no finite value in column {called}; pass a column that has some.")

    def _account(self, pair: _Pair, represent: Represent, batch_size: int, wanted: bool) -> Account:
        functions, estimate, count = self.functions, self.estimate, len(pair)
        if self.adapted.encode is None:
            own: dict[int, NDArray[Any]] = {c: pair.rows[:, c].numpy() for c in range(pair.rows.shape[1])}
        else:
            own, _ = functions.read_columns(pair.native)
        tables, outside = functions.read_tables(own, count)
        alike = self._read_alike(own, pair.rows, tables, outside)
        self._flag_numbers(pair.rows, outside)
        whole = pair.rows.isfinite().all(1) if pair.rows.is_floating_point() else torch.ones(count, dtype=torch.bool)
        z, ran = self._run(pair.rows, whole, torch.from_numpy(outside.any(1)), represent)
        outputs = torch.full((count, self.readout.outputs), torch.nan, dtype=torch.float64)
        outputs[ran] = self.readout.logits(z[ran]).cpu()
        values = None
        if wanted:
            inputs = as_model_takes(pair.rows[ran], self.readout)
            if estimate.published is not None:
                plan, solution = estimate.published.plan, estimate.published.solution
                found = contributions(plan, solution, represent, inputs)
                values = torch.full((count, *found.shape[1:]), torch.nan, dtype=torch.float64)
                values[ran] = found
            else:
                values = self._assemble(tables, inputs, ran, represent, batch_size)
                self._add_unseen(values, pair.rows, outside & ~alike, ran, represent, batch_size)
        return Account(z, outputs, values, outside, pair.rows)

    def _read_alike(
        self, own: Mapping[int, NDArray[Any]], rows: Tensor, tables: NDArray[np.float64], outside: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Reads names that the preprocessing makes the same of as of a known level, such as missing ones, as that."""
        alike, column_of = np.zeros_like(outside), dict(own)
        for k, axis in self.functions.level_axes.items():
            if not isinstance(axis.levels, tuple) or not outside[:, k].any():
                continue
            unseen, column = np.flatnonzero(outside[:, k]), axis.columns[0]
            levels = np.array(axis.levels, dtype=object)
            known = input_values(self.columns, self.adapted, k, levels[:, None]).to(torch.float64)
            given = rows[torch.from_numpy(unseen)][:, list(self.columns.features.columns[k])].to(torch.float64)
            same = (given[:, None] == known[None]).all(2)
            found = same.any(1).numpy()
            column_of[column] = column_of[column].astype(object)
            column_of[column][unseen[found]] = levels[same.int().argmax(1).numpy()[found]]
            alike[unseen[found], k] = True
        changed = np.flatnonzero(alike.any(1))
        if len(changed):
            part = {position: column[changed] for position, column in column_of.items()}
            tables[changed] = self.functions.read_tables(part, len(changed))[0]
        return alike

    def _flag_numbers(self, rows: Tensor, outside: NDArray[np.bool_]) -> None:
        """Features of several numbers are outside where one of them is."""
        low, high = self.summary.minimum.to(rows.dtype), self.summary.maximum.to(rows.dtype)
        for k, feature in enumerate(self.functions.features):
            group = list(self.columns.features.columns[k])
            if feature.kind == "numbers" and group:
                inside = (rows[:, group] >= low[group]) & (rows[:, group] <= high[group])
                outside[:, k] |= ~inside.all(1).numpy()

    def _run(self, rows: Tensor, whole: Tensor, doubtful: Tensor, represent: Represent) -> tuple[Tensor, Tensor]:
        """Representations of the rows that can be run, NaN elsewhere; and which rows those are."""
        z = torch.full((len(rows), self.readout.width), torch.nan, dtype=torch.float64)
        ran = torch.zeros_like(whole)

        def attempt(place: Tensor) -> None:
            if not len(place):
                return
            try:
                z[place] = represent(as_model_takes(rows[place], self.readout)).to("cpu", torch.float64)
                ran[place] = True
            except (IndexError, RuntimeError, ValueError):
                # A level beyond an embedding's table takes its whole batch down: the others are run without it.
                if not bool(doubtful[place].any()):
                    raise
                if len(place) > 1:
                    sure = place[~doubtful[place]]
                    for part in (sure, place[doubtful[place]]) if len(sure) else place.chunk(2):
                        attempt(part)

        attempt(whole.nonzero().flatten())
        return z, ran

    def _assemble(
        self, tables: NDArray[np.float64], inputs: Tensor, ran: Tensor, represent: Represent, batch_size: int
    ) -> Tensor:
        """Contributions of all terms in their order, those of tables and those of the network."""
        estimate, found = self.estimate, torch.from_numpy(tables)
        if not estimate.direct:
            return found
        values = torch.full((len(found), len(estimate.terms), found.shape[2]), torch.nan, dtype=torch.float64)
        for place, table in enumerate(self.functions.tables):
            values[:, estimate.terms.index(table.features)] = found[:, place]
        for term in estimate.direct:
            values[ran, estimate.terms.index(term.term)] = term(represent, inputs, batch_size=batch_size)
        return values

    def _add_unseen(
        self,
        values: Tensor,
        rows: Tensor,
        outside: NDArray[np.bool_],
        ran: Tensor,
        represent: Represent,
        batch_size: int,
    ) -> None:
        """Gives levels that calibration did not see what the network makes of them over the background."""
        background = self.estimate.background
        if background is None:
            return
        owned = {column for group in self.columns.features.columns for column in group}
        unowned = [column for column in range(rows.shape[1]) if column not in owned]
        for k in self.functions.level_axes:
            unseen = torch.from_numpy(outside[:, k]) & ran
            if not bool(unseen.any()):
                continue
            # A level that calibration did not see may have a column of its own, which belongs to no feature yet.
            columns = [*self.columns.features.columns[k], *unowned]
            levels, place = torch.unique(rows[unseen][:, columns].double(), dim=0, return_inverse=True)
            weight = self.readout.head.weight.T.to("cpu", torch.float64)
            tabulate = Tabulator(represent, background, weight, batch_size=batch_size)
            effect = tabulate.rows(columns, levels) @ weight - self.estimate.offsets[k]
            values[unseen, self.estimate.terms.index((k,))] = effect[place]

    def term_values(self, represent: Represent, term: Subset, given: Sequence[Tensor], *, batch_size: int) -> Tensor:
        """Contributions of a term without a table, for its features' values as the network takes them."""
        rows = self.estimate.baseline.expand(len(given[0]), -1).clone()
        for k, values in zip(term, given, strict=True):
            rows[:, list(self.columns.features.columns[k])] = values
        inputs = as_model_takes(rows, self.readout)
        if self.estimate.published is not None:
            plan, solution = self.estimate.published.plan, self.estimate.published.solution
            return contributions(plan, solution, represent, inputs, terms=[term])[:, 0]
        direct = next(one for one in self.estimate.direct if one.term == term)
        return direct(represent, inputs, batch_size=batch_size)


@dataclass(frozen=True, eq=False)
class _Pair:
    """A batch of rows, and the same before encoding."""

    rows: Tensor
    native: Any

    def __len__(self) -> int:
        return len(self.rows)
