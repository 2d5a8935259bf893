"""What a calibration leaves behind: the functions, and what is needed to explain rows with the network beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.models.unseen import unseen_levels
from nobsp.network.adapted import Adapted
from nobsp.network.batches import Source
from nobsp.network.inputs import MOST_LEVELS, Subset, Summary, distinct
from nobsp.network.progress import progress_bar
from nobsp.network.readout import Readout, as_model_takes
from nobsp.tabular.columns import Columns, input_values
from nobsp.tabular.complement import published_of
from nobsp.tabular.estimate import Batch, Estimate
from nobsp.tabular.functions import Functions
from nobsp.tabular.grids import Represent, Tabulator
from nobsp.tabular.method import Method, method_of
from nobsp.tabular.reading import level_axes, read_columns, read_tables
from nobsp.tabular.setting import rows_like


@dataclass(frozen=True, eq=False)
class Account:
    """Some rows, explained."""

    representation: Tensor  # what enters the head, NaN for rows that could not be run
    outputs: Tensor  # the network's outputs, likewise
    values: (
        Tensor | None
    )  # contributions, (rows, terms, outputs); None where they were not asked for
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
    weighted: bool = False  # whether rows had weights
    grouped: bool = False  # whether the caller named rows that belong together

    @property
    def functions(self) -> Functions:
        """Every term that has a table."""
        return self.estimate.functions

    @property
    def method(self) -> Method:
        """How the functions were estimated."""
        return method_of(self.estimate.reference)

    def has_table(self, term: Subset) -> bool:
        """Whether a term's function is its table."""
        with_tables = {table.features for table in self.functions.tables}
        return self.method.reads_tables and term in with_tables

    def plan_fingerprint(self) -> str:
        """What two calibrations as published must have in common to be added up."""
        return published_of(self.estimate, "like").plan.fingerprint()

    def require_same_model(self, readout: Readout) -> None:
        """An error where this is another model's calibration."""
        if self.readout.fingerprint() != readout.fingerprint():
            raise ValueError(
                "the two explainers are of different models; calibrations add up for one model only."
            )

    def source(self, X: Any, batch_size: int, **how: Any) -> Source:
        """Rows to explain, checked against the calibrated columns."""
        return rows_like(
            X, self.adapted, self.columns, self.summary.mean.numel(), batch_size, **how
        )

    def explain(
        self,
        X: Any,
        represent: Represent,
        *,
        batch_size: int,
        progress: bool = False,
        values: bool = True,
    ) -> Iterator[Account]:
        """The account of every batch; rows that cannot be read whole as far as they can, flagged in `outside`."""
        with unseen_levels():
            source = self.source(X, batch_size, strict=False)
        batches = source.pairs()
        finite = torch.zeros(source.columns, dtype=torch.bool)
        seen = 0
        answered = 0
        with progress_bar(
            enabled=progress, description="explaining", unit=" rows", total=source.rows
        ) as bar:
            while True:
                # Codes of unseen levels hold for the batch that they are in.
                with unseen_levels():
                    rows, native = next(batches, (None, None))
                    if rows is None:
                        break
                    account = self._account(rows, native, represent, batch_size, values)

                finite |= (
                    rows.isfinite().any(0) if rows.is_floating_point() else torch.ones_like(finite)
                )
                seen += len(rows)
                answered += int(account.outputs.isfinite().all(1).sum())
                yield account
                bar.update(len(rows))
        # A model that takes missing numbers may answer for a column of nothing else.
        if seen and not answered and not bool(finite.all()):
            column = int((~finite).nonzero()[0])
            names = self.columns.names if self.adapted.encode is None else None
            called = repr(names[column]) if names else str(column)
            raise ValueError(
                f"X has no finite value in column {called}; pass a column that has some."
            )

    def _account(
        self, rows: Tensor, native: Any, represent: Represent, batch_size: int, wanted: bool
    ) -> Account:
        functions, count = self.functions, len(rows)
        if self.adapted.encode is None:
            own: dict[int, NDArray[Any]] = {c: rows[:, c].numpy() for c in range(rows.shape[1])}
        else:
            own, _ = read_columns(functions, native)
        tables, outside = read_tables(functions, own, count)
        alike = self._read_alike(own, rows, tables, outside)
        low, high = self.summary.minimum.to(rows.dtype), self.summary.maximum.to(rows.dtype)
        for k, feature in enumerate(functions.features):
            group = list(self.columns.features.columns[k])
            if feature.kind == "numbers" and group:  # several: outside where one of them is
                inside = (rows[:, group] >= low[group]) & (rows[:, group] <= high[group])
                outside[:, k] |= ~inside.all(1).numpy()
        whole = (
            rows.isfinite().all(1)
            if rows.is_floating_point()
            else torch.ones(count, dtype=torch.bool)
        )
        z, ran = self._run(rows, whole, torch.from_numpy(outside.any(1)), represent)
        outputs = torch.full((count, self.readout.outputs), torch.nan, dtype=torch.float64)
        outputs[ran] = self.readout.logits(z[ran]).cpu()
        outputs[~outputs.isfinite().all(1)] = torch.nan
        values = None
        if wanted:
            batch = Batch(rows, whole, ran, torch.from_numpy(tables), self.readout)
            values = self.method.values(self.estimate, batch, represent, batch_size=batch_size)
            self._add_unseen(values, rows, outside & ~alike, ran, represent, batch_size)
        return Account(z, outputs, values, outside, rows)

    def _read_alike(
        self,
        own: Mapping[int, NDArray[Any]],
        rows: Tensor,
        tables: NDArray[np.float64],
        outside: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Reads names that the preprocessing makes the same of as of a known level, such as missing ones, as that."""
        alike, column_of = np.zeros_like(outside), dict(own)
        for k, axis in level_axes(self.functions).items():
            if not isinstance(axis.levels, tuple) or not outside[:, k].any():
                continue
            unseen, column = np.flatnonzero(outside[:, k]), axis.columns[0]
            levels = np.array(axis.levels, dtype=object)
            known = input_values(self.columns, self.adapted, k, levels[:, None]).to(torch.float64)
            given = rows[torch.from_numpy(unseen)][:, list(self.columns.features.columns[k])].to(
                torch.float64
            )
            same = (given[:, None] == known[None]).all(2)
            found = same.any(1).numpy()
            column_of[column] = column_of[column].astype(object)
            column_of[column][unseen[found]] = levels[same.int().argmax(1).numpy()[found]]
            alike[unseen[found], k] = True
        changed = np.flatnonzero(alike.any(1))
        if len(changed):
            part = {position: column[changed] for position, column in column_of.items()}
            tables[changed] = read_tables(self.functions, part, len(changed))[0]
        return alike

    def _run(
        self, rows: Tensor, whole: Tensor, doubtful: Tensor, represent: Represent
    ) -> tuple[Tensor, Tensor]:
        """Representations of the rows that can be run, NaN elsewhere; and which rows those are."""
        z = torch.full((len(rows), self.readout.width), torch.nan, dtype=torch.float64)
        ran = torch.zeros_like(whole)

        def attempt(place: Tensor) -> None:
            if not len(place):
                return
            try:
                z[place] = represent(as_model_takes(rows[place], self.readout)).to(
                    "cpu", torch.float64
                )
                ran[place] = True
            except Exception:
                # A level beyond an embedding's table takes its whole batch down: the others are run without it.
                if not bool(doubtful[place].any()):
                    raise
                if len(place) > 1:
                    sure = place[~doubtful[place]]
                    for part in (sure, place[doubtful[place]]) if len(sure) else place.chunk(2):
                        attempt(part)

        attempt(whole.nonzero().flatten())
        for alike in self._alike_in_what_is_missing(rows, ~whole):
            with suppress(Exception):  # most models do not take them
                answers = represent(as_model_takes(rows[alike], self.readout))
                z[alike] = answers.to("cpu", torch.float64)
                ran[alike] = True
        return z, ran

    def _alike_in_what_is_missing(self, rows: Tensor, incomplete: Tensor) -> list[Tensor]:
        """Rows with missing numbers, those that lack the same columns together: a model takes all of them or none."""
        if self.readout.integer or not bool(incomplete.any()):
            return []
        positions = incomplete.nonzero().flatten()
        patterns, member = torch.unique(rows[positions].isfinite(), dim=0, return_inverse=True)
        return [positions[member == number] for number in range(len(patterns))]

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
        for k in level_axes(self.functions):
            unseen = torch.from_numpy(outside[:, k]) & ran
            if not bool(unseen.any()):
                continue
            # A level that calibration did not see may have a column of its own, which belongs to no feature yet.
            columns = [*self.columns.features.columns[k], *unowned]
            levels, place = torch.unique(
                rows[unseen][:, columns].double(), dim=0, return_inverse=True
            )
            weight = self.readout.head.weight.T.to("cpu", torch.float64)
            tabulate = Tabulator(represent, background, weight, batch_size=batch_size)
            effect = tabulate.rows(columns, levels) @ weight - self.estimate.offsets[k]
            effect = effect.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
            values[unseen, self.estimate.terms.index((k,))] = effect[place]

    def term_values(
        self, represent: Represent, term: Subset, given: Sequence[Tensor], *, batch_size: int
    ) -> Tensor:
        """Contributions of a term without a table, for its features' values as the network takes them."""
        rows = self.estimate.baseline.expand(len(given[0]), -1).clone()
        for k, values in zip(term, given, strict=True):
            rows[:, list(self.columns.features.columns[k])] = values
        inputs = as_model_takes(rows, self.readout)
        return self.method.term_values(
            self.estimate, term, inputs, represent, batch_size=batch_size
        )


# Let terms be centred, so that each has mean zero over the values of any of its features. Then the mean of the output
# over the values of one feature, the others as they are, is what all terms without the feature add up to, and
#
#     f(x) − mean_v f(v, x_others)  =  Σ over all terms S that hold the feature of g_S(x).
#
# Nothing is fitted, so interactions that a calibration leaves to its residual are in here.

# Of a feature: its columns of the input, values (values, columns) that take the place of its own, and their shares.
StandIns = tuple[list[int], Tensor, Tensor]


def stand_ins(fitted: Fitted, most: int, background: Any, *, batch_size: int) -> list[StandIns]:
    """For every feature, values that stand for its distribution."""
    summary = fitted.summary
    if background is not None:
        summary = Summary(fitted.columns.features.columns)
        for batch in fitted.source(background, batch_size, argument="background"):
            summary.update(batch)
    found = []
    for feature, columns in enumerate(map(list, fitted.columns.features.columns)):
        values, counts = (
            torch.zeros(1, 0),
            torch.ones(1),
        )  # of a column that the preprocessing drops
        if columns:
            known = summary.levels_of(feature, columns)
            if known is None and len(summary.sample) == 0:
                raise ValueError(
                    "a file holds no rows to take values from; give some with background=rows."
                )
            values, counts = known or distinct(summary.sample[:, columns])
        if (
            fitted.functions.features[feature].kind == "levels"
        ):  # they have no order to be spread over
            first = counts.argsort(descending=True, stable=True)[
                :MOST_LEVELS
            ]  # the rarest are left out
            values, counts = values[first], counts[first]
        elif len(values) > most:
            # At equal steps of probability, each the middle of its step; several columns in lexical order.
            shares = counts.double().cumsum(0) / counts.sum()
            middles = (torch.arange(most, dtype=torch.float64) + 0.5) / most
            values, counts = values[torch.searchsorted(shares, middles)], torch.ones(most)
        found.append((columns, values, counts.double() / counts.sum()))
    return found


def removal_effects(
    represent: Represent, readout: Readout, rows: Tensor, replaced: list[StandIns], batch_size: int
) -> Tensor:
    """f(x) − mean_v f(v, x_others) for every feature, shape (rows, features, outputs), float64 on the CPU."""
    effects = readout.logits(represent(rows)).cpu()[:, None].repeat(1, len(replaced), 1)
    for position, (columns, values, shares) in enumerate(replaced):
        count = len(values)
        for number in torch.split(torch.arange(len(rows) * count), batch_size):
            places, chosen = number // count, number % count
            inputs = rows[places.to(rows.device)]
            inputs[:, columns] = values[chosen].to(inputs)
            outputs = readout.logits(represent(inputs)).cpu()
            effects[:, position].index_add_(0, places, outputs * -shares[chosen][:, None])
    return effects
