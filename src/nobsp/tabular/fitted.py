"""What a calibration leaves behind, and how rows are explained with it.

In this order: what is estimated, and what a method does with it; a calibrated model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._typing import AnyArray, TableLike
from nobsp.calibration import Run
from nobsp.frames import frame_of
from nobsp.models.coded import unseen_levels
from nobsp.network.adapted import Adapted
from nobsp.network.batches import Source, progress_bar, rows_like
from nobsp.network.columns import Subset, Summary
from nobsp.network.readout import Readout, Represent, as_model_takes
from nobsp.published import Published
from nobsp.tabular.features import Columns, encode_typical_rows
from nobsp.tabular.functions import Functions, with_bands
from nobsp.tabular.grids import Tabulator
from nobsp.tabular.lookup import level_axes, read_columns, read_tables
from nobsp.tabular.refused import REFUSALS, refusal, refused_row, values_to_blame
from nobsp.tabular.setting import Problem, Rows, Setting
from nobsp.tabular.tables import DirectTerm


@dataclass(frozen=True, eq=False)
class Estimate:
    """What is estimated, without the network."""

    functions: Functions  # every term that has a table
    terms: tuple[Subset, ...]  # all terms, as positions of features; single features first
    baseline: Tensor  # the baseline as the network takes it
    baseline_contributions: NDArray[np.float64]  # of every term there, (terms, outputs)
    alphas: tuple[
        float, ...
    ]  # per output the strength of the ridge, on the scale that was asked for
    direct: tuple[DirectTerm, ...] = ()  # terms that run through the network row by row
    background: Tensor | None = None  # the background rows; None where they were not kept
    # Per feature with a table the mean of its prior part over the rows: what levels not seen are
    # measured from.
    offsets: dict[int, Tensor] = field(default_factory=dict)
    published: Published | None = None  # the calibration as published, where that was asked for

    @property
    def reference(self) -> str:
        """Which method estimated it, under the name that the explainer's option has."""
        return "terms" if self.published is None else "complement"

    def as_published(self, argument: str) -> Published:
        """What Algorithm 1 found, or an error where another method was used."""
        if self.published is None:
            raise ValueError(
                f'{argument} needs reference="complement" on both explainers; this works as '
                "published only."
            )
        return self.published

    def with_spreads(self) -> Estimate:
        """The estimate with bands measured, and nothing that cannot be sent to another process."""
        # A copy of the functions is without what measures the bands.
        return replace(self, functions=replace(with_bands(self.functions)))


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows to be given contributions, after the network has run."""

    rows: Tensor  # as they were read
    complete: Tensor  # which of them lack no number
    answered: Tensor  # which of them the network answers for
    from_tables: Tensor  # contributions of the terms that have tables, (rows, tables, outputs)
    readout: Readout

    def inputs(self, which: Tensor) -> Tensor:
        """Some of the rows as the model takes them."""
        return as_model_takes(self.rows[which], self.readout)

    def no_values(self, n_terms: int) -> Tensor:
        """Contributions of all rows, none of them known yet."""
        n_rows, _, n_outputs = self.from_tables.shape
        return torch.full((n_rows, n_terms, n_outputs), torch.nan, dtype=torch.float64)


class Method(ABC):
    """How functions are estimated, and how rows are given contributions with them.

    Contributions are read from tables, unless a method says otherwise.
    """

    takes_weights = True  # whether rows may have weights and groups
    reads_tables = True  # whether the function of a term that has a table is its table

    @abstractmethod
    def calibrate(
        self,
        run: Run,
        rows: Rows,
        problem: Problem,
        *,
        known: Estimate | None,
        progress: bool,
    ) -> tuple[Summary, Estimate]:
        """What the rows look like, and what is estimated from them.

        `known` is an estimate whose plan is taken over, if any.
        """

    @abstractmethod
    def require_mergeable(
        self, mine: Estimate, theirs: Estimate, *, summaries: tuple[Summary, Summary]
    ) -> None:
        """Raises a ValueError where two calibrations cannot be merged."""

    @abstractmethod
    def merge(self, mine: Estimate, theirs: Estimate, setting: Setting) -> Estimate:
        """The estimate from the rows of both; `setting` has what all of them look like."""

    def values(
        self, estimate: Estimate, batch: Batch, represent: Represent, *, batch_size: int
    ) -> Tensor:
        """Contributions from tables, and from the network for the terms that have none."""
        if not estimate.direct:
            return batch.from_tables
        values = batch.no_values(len(estimate.terms))
        for number, table in enumerate(estimate.functions.tables):
            values[:, estimate.terms.index(table.features)] = batch.from_tables[:, number]

        # Rows that the model refuses as a whole have such terms too, held where it answers.
        inputs = batch.inputs(batch.complete)
        for direct in estimate.direct:
            position = estimate.terms.index(direct.term)
            # A row with a missing number contributes 0 here; the residual takes up the difference.
            values[:, position] = 0.0
            values[batch.complete, position] = direct(represent, inputs, batch_size=batch_size)
        return values

    def term_values(
        self,
        estimate: Estimate,
        term: Subset,
        inputs: Tensor,
        represent: Represent,
        *,
        batch_size: int,
    ) -> Tensor:
        """Contributions of a term without a table."""
        direct = next(direct for direct in estimate.direct if direct.term == term)
        return direct(represent, inputs, batch_size=batch_size)

    def without_rows(self, estimate: Estimate) -> Estimate:
        """The estimate without background rows, which are rows of the calibration table."""
        return replace(estimate, background=None)


@dataclass(frozen=True, eq=False)
class Account:
    """Some rows, explained."""

    representation: Tensor  # what enters the head, NaN for rows that could not be run
    outputs: Tensor  # the network's outputs, likewise
    values: Tensor | None  # contributions, (rows, terms, outputs); None where not asked for
    outside: NDArray[np.bool_]  # which features lie outside what was calibrated, (rows, features)
    inputs: Tensor  # the rows as the network takes them


@dataclass(frozen=True, eq=False)
class CalibratedModel:
    """A calibrated model."""

    adapted: Adapted  # the model as it was given
    readout: Readout  # its linear head
    columns: Columns  # the caller's columns and features
    summary: Summary  # what the calibration rows looked like
    estimate: Estimate  # the functions
    method: Method  # how they were estimated
    weighted: bool = False  # whether rows had weights
    grouped: bool = False  # whether the caller named rows that belong together
    group_column: str = ""  # the column that named them, where it was one

    @property
    def functions(self) -> Functions:
        """Every term that has a table."""
        return self.estimate.functions

    def has_table(self, term: Subset) -> bool:
        """Whether a term's function is its table."""
        with_tables = {table.features for table in self.functions.tables}
        return self.method.reads_tables and term in with_tables

    def plan_fingerprint(self) -> str:
        """What two calibrations as published must have in common to be added up."""
        return self.estimate.as_published("like").plan.fingerprint()

    def require_same_model(self, readout: Readout) -> None:
        """An error where this is another model's calibration."""
        if self.readout.fingerprint() != readout.fingerprint():
            raise ValueError(
                "the two explainers are of different models; calibrations add up for one model "
                "only."
            )

    def without_group_column(self, X: TableLike) -> TableLike:
        """Rows without the column that named groups when the explainer was calibrated.

        Rows that do not have it stay as they are, and so does a column that the model takes.
        """
        if not self.group_column or self.group_column in (self.columns.names or ()):
            return X
        frame = frame_of(X)
        if frame is None:
            return X
        names = [str(name) for name in frame.columns]
        if self.group_column not in names:
            return X
        others = [position for position, name in enumerate(names) if name != self.group_column]
        return frame[:, others].to_native()

    def source(
        self, X: TableLike, batch_size: int, *, argument: str = "X", strict: bool = True
    ) -> Source:
        """Rows to explain, checked against the calibrated columns."""
        return rows_like(
            self.without_group_column(X),
            self.adapted,
            columns=self.columns.names,
            width=self.summary.mean.numel(),
            batch_size=batch_size,
            argument=argument,
            strict=strict,
        )

    def unseen_levels(self) -> AbstractContextManager[object]:
        """Codes for levels that calibration did not see, until the block ends.

        Only encoders meet any.
        """
        return nullcontext() if self.adapted.encode is None else unseen_levels()

    def explain(
        self,
        X: TableLike,
        represent: Represent,
        *,
        batch_size: int,
        progress: bool = False,
        with_values: bool = True,
    ) -> Iterator[Account]:
        """The account of every batch.

        Rows with missing or unseen values are explained as far as possible and flagged in
        `outside`.
        """
        with self.unseen_levels():
            source = self.source(X, batch_size, strict=False)
        batches = source.pairs()
        has_finite = torch.zeros(source.columns, dtype=torch.bool)
        n_rows = 0
        n_answered = 0
        with progress_bar(
            enabled=progress, description="explaining", unit=" rows", total=source.rows
        ) as bar:
            while True:
                # Codes of unseen levels hold for the batch that they are in.
                with self.unseen_levels():
                    rows, native = next(batches, (None, None))
                    if rows is None:
                        break
                    account = self._account(rows, native, represent, batch_size, with_values)

                has_finite |= _finite(rows).any(0)
                n_rows += len(rows)
                n_answered += int(account.outputs.isfinite().all(1).sum())
                yield account
                bar.update(len(rows))
        # A model that takes missing numbers may answer for a column of nothing else.
        if n_rows and not n_answered:
            self._require_values(has_finite)

    def _require_values(self, has_finite: Tensor) -> None:
        """Raises a ValueError where a column has no finite value at all."""
        if bool(has_finite.all()):
            return
        column = int((~has_finite).nonzero()[0])
        names = self.columns.names if self.adapted.encode is None else None
        called = repr(names[column]) if names else str(column)
        raise ValueError(f"X has no finite value in column {called}; pass a column that has some.")

    def _account(
        self,
        rows: Tensor,
        native: TableLike,
        represent: Represent,
        batch_size: int,
        with_values: bool,
    ) -> Account:
        """One batch: tables are read, the network runs, and every term gets its contribution."""
        own = self._own_columns(rows, native)
        tables, outside = read_tables(self.functions, own, len(rows))
        alike = self._read_alike(own, rows, tables, outside)
        self._mark_numbers_outside(outside, rows)

        complete = _finite(rows).all(1)
        representation, answered = self._run(
            rows, complete, torch.from_numpy(outside.any(1)), represent
        )
        outputs = torch.full((len(rows), self.readout.outputs), torch.nan, dtype=torch.float64)
        outputs[answered] = self.readout.logits(representation[answered]).cpu()
        outputs[~outputs.isfinite().all(1)] = torch.nan
        if not with_values:
            return Account(
                representation=representation,
                outputs=outputs,
                values=None,
                outside=outside,
                inputs=rows,
            )

        batch = Batch(
            rows=rows,
            complete=complete,
            answered=answered,
            from_tables=torch.from_numpy(tables),
            readout=self.readout,
        )
        values = self.method.values(self.estimate, batch, represent, batch_size=batch_size)
        self._add_unseen(values, batch, outside & ~alike, represent, batch_size)
        return Account(
            representation=representation,
            outputs=outputs,
            values=values,
            # A name that is encoded like a known level is known to the model.
            outside=outside & ~alike,
            inputs=rows,
        )

    def _own_columns(self, rows: Tensor, native: TableLike) -> dict[int, AnyArray]:
        """The caller's columns that tables are read by."""
        if self.adapted.encode is None:
            return {column: rows[:, column].numpy() for column in range(rows.shape[1])}
        own, _ = read_columns(self.functions, native)
        return own

    def _mark_numbers_outside(self, outside: NDArray[np.bool_], rows: Tensor) -> None:
        """Flags features of several numbers: outside where one of them is."""
        low = self.summary.minimum.to(rows.dtype)
        high = self.summary.maximum.to(rows.dtype)
        for feature, described in enumerate(self.functions.features):
            group = list(self.columns.features.columns[feature])
            if described.kind == "numbers" and group:
                values = rows[:, group]
                inside = (values >= low[group]) & (values <= high[group])
                outside[:, feature] |= ~inside.all(1).numpy()

    def _read_alike(
        self,
        own: Mapping[int, AnyArray],
        rows: Tensor,
        tables: NDArray[np.float64],
        outside: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Treats a name as a known level when the preprocessing encodes both the same.

        This may happen with missing values.
        """
        alike = np.zeros_like(outside)
        renamed = dict(own)
        for feature, axis in level_axes(self.functions).items():
            unseen = np.flatnonzero(outside[:, feature])
            is_encoded = self.adapted.encode is not None and isinstance(axis.levels, tuple)
            if not is_encoded or not len(unseen):
                continue
            levels = np.array(axis.levels, dtype=object)
            columns = self._columns_of_levels(feature, rows.shape[1])
            known = self._encode_levels(feature, levels)[:, columns]
            inputs = rows[torch.from_numpy(unseen)][:, columns]
            same = (inputs.double()[:, None] == known[None]).all(2)
            recognised = same.any(1).numpy()
            level = same.int().argmax(1).numpy()

            column = axis.columns[0]
            renamed[column] = renamed[column].astype(object)
            renamed[column][unseen[recognised]] = levels[level[recognised]]
            alike[unseen[recognised], feature] = True

        changed = np.flatnonzero(alike.any(1))
        if len(changed):
            read = {position: values[changed] for position, values in renamed.items()}
            tables[changed], _ = read_tables(self.functions, read, len(changed))
        return alike

    def _columns_of_levels(self, feature: int, n_columns: int) -> list[int]:
        """The columns of the network's input that a feature's levels are encoded in.

        A level that calibration did not see may have a column of its own, which belongs to no
        feature yet.
        """
        owned = {column for group in self.columns.features.columns for column in group}
        unowned = [column for column in range(n_columns) if column not in owned]
        return [*self.columns.features.columns[feature], *unowned]

    def _encode_levels(self, feature: int, levels: AnyArray) -> Tensor:
        """Rows as the network takes them, one for every level, with typical values elsewhere."""
        own = {feature: levels[:, None]}
        _, encoded = encode_typical_rows(self.columns, self.adapted, own)
        return torch.tensor(encoded, dtype=torch.float64)

    def _run(
        self, rows: Tensor, complete: Tensor, doubtful: Tensor, represent: Represent
    ) -> tuple[Tensor, Tensor]:
        """Representations of the rows that can be run, NaN elsewhere; and which rows those are."""
        representation = torch.full((len(rows), self.readout.width), torch.nan, dtype=torch.float64)
        answered = torch.zeros_like(complete)

        def run(chosen: Tensor) -> None:
            answers = represent(as_model_takes(rows[chosen], self.readout))
            representation[chosen] = answers.to("cpu", torch.float64)
            answered[chosen] = True

        def attempt(chosen: Tensor) -> None:
            if not len(chosen):
                return
            try:
                run(chosen)
            except Exception as failure:
                # A level beyond an embedding's table takes its whole batch down: the others are run
                # without it.
                if not bool(doubtful[chosen].any()):
                    if isinstance(failure, REFUSALS):
                        self._require_taken(rows[chosen], represent, failure)
                    raise
                if len(chosen) > 1:
                    for part in _halves(chosen, doubtful[chosen]):
                        attempt(part)

        attempt(complete.nonzero().flatten())
        for alike in self._alike_in_what_is_missing(rows, ~complete):
            with suppress(Exception):  # most models do not take them
                run(alike)
        return representation, answered

    def _require_taken(self, rows: Tensor, represent: Represent, failure: Exception) -> None:
        """An error that names the row, if it is one row because of which the model raised."""

        def run(part: Tensor) -> Tensor:
            return self.readout.logits(represent(as_model_takes(part, self.readout)))

        row = refused_row(run, rows, failure)
        if row is None:
            return
        values = values_to_blame(
            run,
            rows,
            row,
            names=[feature.name for feature in self.functions.features],
            groups=self.columns.features.columns,
            failure=failure,
        )
        raise ValueError(refusal(values, failure)) from failure

    def _alike_in_what_is_missing(self, rows: Tensor, incomplete: Tensor) -> list[Tensor]:
        """Rows with missing numbers, in groups that lack the same columns.

        A model takes all rows of a group or none.
        """
        if self.readout.integer or not bool(incomplete.any()):
            return []
        positions = incomplete.nonzero().flatten()
        patterns, member = torch.unique(rows[positions].isfinite(), dim=0, return_inverse=True)
        return [positions[member == number] for number in range(len(patterns))]

    def _add_unseen(
        self,
        values: Tensor,
        batch: Batch,
        outside: NDArray[np.bool_],
        represent: Represent,
        batch_size: int,
    ) -> None:
        """Gives unseen levels what the network makes of them, averaged over the background.

        Unseen levels are those that did not occur in calibration.
        """
        background = self.estimate.background
        if background is None:
            return
        rows = batch.rows
        for feature in level_axes(self.functions):
            unseen = torch.from_numpy(outside[:, feature]) & batch.answered
            if not bool(unseen.any()):
                continue
            columns = self._columns_of_levels(feature, rows.shape[1])
            inputs = rows[unseen][:, columns].double()
            levels, level = torch.unique(inputs, dim=0, return_inverse=True)

            head_weight = self.readout.head.weight.T.to("cpu", torch.float64)
            tabulator = Tabulator(represent, background, head_weight, batch_size=batch_size)
            effects = (
                tabulator.average_rows(columns, levels) @ head_weight
                - self.estimate.offsets[feature]
            )
            effects = effects.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
            values[unseen, self.estimate.terms.index((feature,))] = effects[level]

    def account_of_values(
        self, represent: Represent, term: Subset, values: Mapping[int, AnyArray], *, batch_size: int
    ) -> Tensor:
        """A term's contributions in the account of rows with these values, typical elsewhere.

        Unlike its table, the account knows levels that calibration did not see: it asks the model.
        """
        with self.unseen_levels():
            if self.adapted.encode is None:
                n_rows = len(next(iter(values.values())))
                native = None
                rows = self.estimate.baseline.expand(n_rows, -1).clone()
                for feature, own in values.items():
                    numbers = np.asarray(own, dtype=np.float64)
                    rows[:, list(self.columns.features.columns[feature])] = torch.tensor(numbers)
            else:
                native, encoded = encode_typical_rows(self.columns, self.adapted, values)
                rows = torch.as_tensor(encoded)
            account = self._account(rows, native, represent, batch_size, True)

        assert account.values is not None  # they were asked for
        return account.values[:, self.estimate.terms.index(term)]

    def term_values(
        self, represent: Represent, term: Subset, inputs: Sequence[Tensor], *, batch_size: int
    ) -> Tensor:
        """Contributions of a term without a table, for values as the network takes them.

        They are the values of the term's features.
        """
        rows = self.estimate.baseline.expand(len(inputs[0]), -1).clone()
        for feature, values in zip(term, inputs, strict=True):
            rows[:, list(self.columns.features.columns[feature])] = values
        return self.method.term_values(
            self.estimate,
            term,
            as_model_takes(rows, self.readout),
            represent,
            batch_size=batch_size,
        )


# Pickles of explainers and indexes that were written before have it under this name.
Fitted = CalibratedModel


def _finite(rows: Tensor) -> Tensor:
    """Which values are finite numbers; whole numbers always are."""
    if rows.is_floating_point():
        return rows.isfinite()
    return torch.ones(rows.shape, dtype=torch.bool)


def _halves(chosen: Tensor, doubtful: Tensor) -> Sequence[Tensor]:
    """Rows without doubt and the others; where all are doubtful, two halves."""
    sure = chosen[~doubtful]
    if len(sure):
        return sure, chosen[doubtful]
    return chosen.chunk(2)
