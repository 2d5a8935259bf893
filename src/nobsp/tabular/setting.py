"""What is known before anything is estimated: options, model, columns, and the rows in memory.

In this order: options, the problem and its setting; then the rows: read in batches, shared among
processes, sampled into memory, dealt into folds. Identical rows always share a fold, and so do rows
of a group that the caller names: held-out rows are a fair judge only where they are no copies of
rows that were fitted on. For groups that nobody named there are neighbourhoods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import chain, combinations, islice
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nobsp._typing import AnyArray, ArrayLike, BaselineLike, ModelLike, TableLike
from nobsp.arguments import (
    count,
    join_names,
    names_of,
    number_outputs,
    require_choice,
    require_whole_number,
)
from nobsp.calibration import Run
from nobsp.calibration.local import Fold, is_ray
from nobsp.calibration.ray import RayRun
from nobsp.models import adapt
from nobsp.models.adapting import Unpacks
from nobsp.models.coded import Coded, Runs
from nobsp.network.adapted import Adapted, grouping_rows, join_grouping_rows
from nobsp.network.batches import NoRowsError, Source, batches_of, rows_like
from nobsp.network.columns import SAMPLE_ROWS, Subset, Summary, needs_data, resolve_baseline
from nobsp.network.guest import checked_device
from nobsp.network.readout import (
    PROBE_ROWS,
    Network,
    NotFiniteError,
    Readout,
    Represent,
    as_model_takes,
    trial,
)
from nobsp.numerics import evenly_spaced
from nobsp.projection import Ridge
from nobsp.tabular.features import (
    Columns,
    FeatureOption,
    categories_of,
    columns_of,
    describe,
    input_baseline,
    own_columns,
    whole_table,
)
from nobsp.tabular.groups import resolve_groups
from nobsp.tabular.lookup import Chunk
from nobsp.tabular.ray import DatasetRows, dataset_rows
from nobsp.tabular.refused import REFUSALS, refusal, refused_row, values_to_blame
from nobsp.tabular.weights import count_in_memory, repeat_rows

# Share of a limit that the rows used for finding the head may have.
_PROBE_SHARE = 0.01
_FEWEST_PROBE_ROWS = 16
# Rows that finding the head takes: calls of a few rows, and some of the whole probe.
_PROBING_ROWS = 128
_PROBING_CALLS = 6
# Options that an explainer must share with the one whose plan it takes over.
_TAKEN_OVER = ("features", "background", "baseline", "reference", "interactions", "ridge")


@dataclass(frozen=True, eq=False)
class Options:
    """The options of an explainer, under the names they have there."""

    features: FeatureOption
    background: int | TableLike
    baseline: BaselineLike
    reference: str
    interactions: int | Literal["auto"] | Iterable[Sequence[str]]
    ridge: Ridge | None  # a strength with its scale; None where it is to be chosen from the rows
    head: str | nn.Module | None
    output_names: Sequence[str] | None
    device: torch.device | str | None
    batch_size: int
    max_forward_rows: int | None

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Options:
        """The options among an explainer's attributes.

        An error names the one that cannot be meant.
        """
        names = [field.name for field in fields(cls)]
        values = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in parameters.items()
            if name in (*names, "ridge_scale")
        }
        ridge = values.pop("ridge")
        ridge_scale = values.pop("ridge_scale")
        reference = values["reference"]

        require_choice("reference", reference, ("terms", "complement"))
        _check_interactions(values["interactions"])
        _check_baseline(values["baseline"])
        _check_background(values["background"])
        _check_limit(values["max_forward_rows"], reference)
        return cls(**values, ridge=_checked_ridge(ridge, ridge_scale, reference))

    def require_alike(self, other: Options) -> None:
        """Raises a ValueError where the options of `like`, whose plan is taken over, differ."""
        for name in _TAKEN_OVER:
            mine = getattr(self, name)
            theirs = getattr(other, name)
            if plain(mine) != plain(theirs):
                raise ValueError(
                    f"like has {name}={theirs!r}, but this explainer {mine!r}; make it with "
                    "clone(like)."
                )

    def spelled(self, head: str) -> dict[str, str]:
        """The options in words, the same for the same options in another process.

        `head` is the name of the head.
        """
        values = {name: plain(value) for name, value in vars(self).items() if name != "device"}
        values["head"] = head
        return {f"option {name}": repr(value) for name, value in values.items()}


def _check_interactions(wanted: object) -> None:
    if isinstance(wanted, str) and wanted != "auto":
        raise ValueError(
            f'interactions must be a number, "auto" or a list of pairs, found {wanted!r}.'
        )
    if isinstance(wanted, bool) or (isinstance(wanted, int) and wanted < 0):
        raise ValueError(f"interactions must not be negative or a boolean, found {wanted!r}.")
    no_list = isinstance(wanted, Mapping) or getattr(wanted, "ndim", 1) == 0
    if no_list or not isinstance(wanted, int | Iterable):
        raise TypeError(
            f'interactions must be a whole number, "auto" or a list of pairs, found {wanted!r}.'
        )


def _check_baseline(baseline: object) -> None:
    if baseline is None:
        raise TypeError('baseline must be "mean", "zero", "median", "mode" or values, found None.')


def _check_background(rows: object) -> None:
    no_rows = rows is None or isinstance(rows, bool | str | float)
    if no_rows or (isinstance(rows, int) and rows < 1):
        raise ValueError(
            f"background must be a positive number of rows, or the rows themselves, found {rows!r}."
        )


def _check_limit(limit: int | None, reference: str) -> None:
    if limit is None:
        return
    require_whole_number("max_forward_rows", limit)
    if reference != "terms":
        raise ValueError('max_forward_rows needs reference="terms"; leave it out here.')


def _checked_ridge(ridge: Any, scale: Any, reference: str) -> Ridge | None:
    """The ridge with its scale; None where the rows are to choose it."""
    is_chosen_by_rows = isinstance(ridge, str)
    if is_chosen_by_rows and ridge != "auto":
        raise ValueError(f'ridge must be a number or "auto", found {ridge!r}.')
    require_choice("ridge_scale", scale, ("relative", "absolute"))
    if scale == "absolute" and (reference == "terms" or is_chosen_by_rows):
        raise ValueError(
            'ridge_scale="absolute" needs reference="complement" and a number for ridge like 1e-4.'
        )
    return None if is_chosen_by_rows else Ridge(ridge, scale)


def plain(value: Any) -> Any:
    """An option as a file can hold it, the same for any library's array, frame or list."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, Tensor):
        return value.detach().cpu().tolist()
    if hasattr(value, "__array__"):
        return np.asarray(value).tolist()
    # What can be read only once is left alone.
    if isinstance(value, str) or not isinstance(value, Collection):
        return value
    return [plain(inner) for inner in value]


# -------------------------------------------------------------- the model, the columns and the rows


@dataclass(eq=False, kw_only=True)
class Problem:
    """A model to be explained, with its columns and options.

    The rows that the head was found with have been read by then; all rows, where what a
    preprocessing makes of each column had to be learnt from them.
    """

    adapted: Adapted
    network: Network
    columns: Columns
    options: Options
    output_names: tuple[str, ...]
    n_unweighted: int | None = None  # rows before weights repeated them; None without weights
    groups: Codes | None = None  # of every row of the sample, where the caller named groups
    n_probed: int = 0  # rows that the head was found with

    @property
    def readout(self) -> Readout:
        """The linear head."""
        return self.network.readout

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features."""
        return self.columns.features.names

    def with_rows(self, summary: Summary) -> Setting:
        """The problem together with what its rows look like."""
        known = {field.name: getattr(self, field.name) for field in fields(Problem)}
        return Setting(**known, summary=summary)


@dataclass(eq=False, kw_only=True)
class Setting(Problem):
    """A problem with its rows: everything that functions are estimated from."""

    summary: Summary

    def __post_init__(self) -> None:
        self.categories = categories_of(
            self.columns,
            self.summary,
            self.readout.embedded_columns,
            integer=self.readout.integer,
        )
        self.baseline = resolve_baseline(
            input_baseline(self.columns, self.adapted, self.options.baseline),
            features=self.columns.features,
            columns=self.summary.mean.numel(),
            summary=self.summary,
            categories=self.categories,
        )
        if self.readout.integer and not torch.equal(self.baseline, self.baseline.round()):
            raise ValueError(
                'baseline has fractions but the model takes integers; pass whole numbers or "mode".'
            )

        self.domains = [
            describe(self.columns, self.adapted, self.summary, self.categories, feature)
            for feature in range(len(self.columns.features))
        ]
        # Wᵀ, (width, outputs); weights of rows are `sample_weight`.
        self.head_weight = self.readout.head.weight.T.to("cpu", torch.float64)

    @property
    def n_rows(self) -> int:
        """Calibration rows, as the caller counts them."""
        return self.summary.rows if self.n_unweighted is None else self.n_unweighted

    @property
    def is_weighted(self) -> bool:
        """Whether rows were repeated by their weights."""
        return self.n_unweighted is not None

    def with_baseline(self, baseline: Tensor) -> Setting:
        """The setting with a baseline that was fixed before."""
        changed = copy(self)
        changed.baseline = baseline
        return changed

    def sample(self, represent: Represent, most: int | None = None) -> Sample:
        """The rows in memory, or `most` of them at even distances, with the network's outputs."""
        rows = self.summary.sample
        groups = self.groups
        if most is not None and most < len(rows):
            chosen = evenly_spaced(len(rows), most)
            rows = rows[torch.from_numpy(chosen)]
            groups = None if groups is None else groups[chosen]

        inputs = as_model_takes(rows, self.readout)
        outputs = self._outputs_of(inputs, represent)
        own = own_columns(self.domains, rows)
        features = tuple(domain.columns for domain in self.domains if domain.columns)
        return Sample(own, inputs, outputs, groups=groups, features=features)

    def _outputs_of(self, inputs: Tensor, represent: Represent) -> Tensor:
        """What the model says of calibration rows; an error that shows one it has no answer for."""
        blame = partial(
            values_to_blame,
            lambda part: self.readout.logits(represent(part)),
            inputs,
            names=self.names,
            groups=self.columns.features.columns,
        )
        try:
            parts = [
                self.readout.logits(represent(part)).cpu().double()
                for part in torch.split(inputs, self.options.batch_size)
            ]
        except REFUSALS as failure:
            row = refused_row(represent, inputs, failure)
            if row is None:
                raise
            raise ValueError(refusal(blame(row, failure=failure), failure)) from failure

        outputs = torch.cat(parts)
        unanswered = (~outputs.isfinite().all(1)).nonzero().flatten()
        if len(unanswered):
            n_rows = count(len(unanswered), "row")
            values = blame(int(unanswered[0]))
            raise ValueError(f"{refusal(values, None)} X has {n_rows} of this kind.")
        return outputs

    def chunk(self) -> Chunk:
        """The rows in memory, as tables are read at them."""
        rows = self.summary.sample
        return Chunk(own_columns(self.domains, rows), slice(0, len(rows)))

    def baseline_rows(self) -> Tensor:
        """The baseline as a row that the model takes."""
        return as_model_takes(self.baseline[None], self.readout)

    def baseline_sample(self) -> Sample:
        """The baseline as a sample of one row."""
        own = own_columns(self.domains, self.baseline[None])
        return Sample(own, self.baseline_rows(), torch.zeros(1, self.readout.outputs))

    def interactions(self) -> Sequence[Subset] | int | None:
        """Interactions as `fit_terms` takes them: which, how many, or None for those that pay."""
        wanted = self.options.interactions
        if isinstance(wanted, str):
            return None
        if isinstance(wanted, int):
            return wanted
        return self._named_interactions(wanted)

    def _named_interactions(self, wanted: Iterable[Sequence[str]]) -> list[Subset]:
        """The pairs and triples that were named, as positions of features."""
        terms: set[Subset] = set()
        for names in wanted:
            if isinstance(names, str) or not isinstance(names, Collection):
                raise _no_interaction(names)
            if not 2 <= len(names) <= 3:
                raise _no_interaction(names)
            features = self.columns.features
            positions = [features.index(name, argument="interactions") for name in names]
            term = tuple(sorted(positions))
            if len(set(term)) != len(term):
                raise ValueError(f"interactions has {tuple(names)!r}, which names a feature twice.")
            terms |= {term, *combinations(term, 2)}  # a triple brings its pairs along
        return sorted(terms, key=lambda term: (len(term), term))

    def background(self) -> int | Tensor:
        """How many background rows, or the rows themselves; one is the baseline."""
        wanted = self.options.background
        if isinstance(wanted, int):
            return wanted if wanted > 1 else self.baseline_rows()
        source = rows_like(
            wanted,
            self.adapted,
            columns=self.columns.names,
            width=self.summary.mean.numel(),
            batch_size=self.options.batch_size,
            argument="background",
        )
        rows = torch.cat([batch.double() for batch in source])
        return as_model_takes(rows, self.readout)


@dataclass(frozen=True, eq=False)
class Data:
    """The caller's rows with what belongs to them, and the model as it takes them."""

    X: TableLike
    adapted: Adapted
    n_unweighted: int | None  # rows before weights repeated them; None without weights
    groups: Codes | None  # per row a number, the same for rows of one named group


def prepare_data(
    X: TableLike, *, model: ModelLike, options: Options, sample_weight: ArrayLike, groups: ArrayLike
) -> Data:
    """Adapts the model to the rows, takes a column of groups out, and repeats rows by weight."""
    codes = None
    if isinstance(groups, str):  # before anything looks at the columns
        X, codes = resolve_groups(X, groups, model=model, features=options.features, rows=None)
    adapted = adapt(model, X)
    several = adapted.pack is not None
    if groups is not None and codes is None:
        n_rows = count_in_memory(X, several=several, argument="groups")
        X, codes = resolve_groups(X, groups, model=model, features=options.features, rows=n_rows)

    n_unweighted = None
    if sample_weight is not None:
        X, n_unweighted, positions = repeat_rows(X, sample_weight, several=several)
        codes = None if codes is None else codes[positions]
    return Data(X, adapted, n_unweighted, codes)


def _count_probe_rows(limit: int | None, available: int) -> int:
    """How many rows find the head."""
    if limit is None:
        return available
    return min(available, max(int(limit * _PROBE_SHARE), _FEWEST_PROBE_ROWS))


def _refusal_in_probe(
    run: Run, rows: Rows, probe: Tensor, adapted: Adapted, options: Options, failure: Exception
) -> ValueError | None:
    """An error that shows the first row that the model has no answer for; None for other errors.

    What a preprocessing refuses is named by itself.
    """
    if adapted.encode is not None:
        return None
    from_model = failure.__cause__ if isinstance(failure.__cause__, Exception) else failure
    raised = None if isinstance(failure, NotFiniteError) else from_model
    with trial(adapted.module, probe) as answer:
        row = refused_row(answer, probe, raised)
        if row is None:
            return None
        features = find_columns(run, rows, adapted, options.features).features
        values = values_to_blame(
            answer, probe, row, names=features.names, groups=features.columns, failure=raised
        )
    return ValueError(refusal(values, raised))


def probing_cost(rows: int) -> int:
    """Forward rows that finding the head takes at most."""
    return _PROBING_ROWS + _PROBING_CALLS * rows


def _require_room_for_probing(limit: int | None, n_rows: int) -> None:
    """An error before any row is run where finding the head alone may take too many."""
    cost = probing_cost(n_rows)
    if limit is not None and limit < cost:
        raise ValueError(
            f"max_forward_rows={limit} is too few: finding out what the model ends in may take "
            f"{cost} rows; pass more."
        )


def pose_problem(
    run: Run,
    rows: Rows,
    data: Data,
    options: Options,
    *,
    known_columns: Columns | None,
    known_plan: str | None,
) -> Problem:
    """Finds the model's head and the features.

    All processes must have the same model and options.
    """
    adapted = data.adapted
    probe = rows.probe[: _count_probe_rows(options.max_forward_rows, len(rows.probe))]
    _require_room_for_probing(options.max_forward_rows, len(probe))
    try:
        readout = find_readout(adapted, probe, head=options.head)
    except REFUSALS as failure:
        refused = _refusal_in_probe(run, rows, probe, adapted, options, failure)
        if refused is None:
            raise
        raise refused from failure
    network = Network(readout, checked_device(options.device, readout.device))
    output_names = names_of_outputs(
        options.output_names, outputs=readout.outputs, known=adapted.output_names
    )
    run.require_same(
        {"the model": readout.fingerprint(), "like": known_plan},
        options.spelled(readout.head.name),
    )

    columns = known_columns
    if columns is None:
        columns = find_columns(run, rows, adapted, options.features)
    groups = data.groups
    if groups is not None:
        groups = groups[sampled_positions(len(groups), options.batch_size)]
    return Problem(
        adapted=adapted,
        network=network,
        columns=columns,
        options=options,
        output_names=output_names,
        n_unweighted=data.n_unweighted,
        groups=groups,
        n_probed=len(probe),
    )


def _no_interaction(names: object) -> ValueError:
    return ValueError(f"interactions must list pairs or triples of feature names, found {names!r}.")


def find_readout(adapted: Adapted, probe: Tensor, *, head: str | nn.Module | None) -> Readout:
    """The model's linear head, or else its outputs.

    Raises a ValueError about the columns where the model cannot take them.
    """
    try:
        readout = Readout.find_any(adapted.module, probe, head=head)
    except torch.OutOfMemoryError:
        raise  # about the machine, not about the columns: fewer rows at once may do
    except (RuntimeError, IndexError) as failure:
        what = f"the {probe.shape[1]} columns of X"
        hint = "pass exactly the columns it was trained on, in their order, without labels"
        if isinstance(adapted.module, Unpacks):
            what = f"the inputs {adapted.module.packing}"
            hint = "pass a tuple in the order of its arguments, or a dict by their names"
        if isinstance(adapted.module, Runs):
            hint = (
                "a function is called with an array where all columns are numbers, so "
                f"pd.DataFrame(rows, columns=[...]) makes a frame of it; otherwise {hint}"
            )
        raise ValueError(f"the model cannot take {what} ({failure}); {hint}.") from failure
    except (TypeError, ValueError) as failure:
        if not isinstance(adapted.encode, Coded):
            raise
        if adapted.encode.names_of_levels:
            named = join_names(adapted.encode.names_of_levels)
            hint = f"In X {named} holds names, texts or dates; pass what the model was trained on"
        else:
            named = join_names(adapted.encode.names_of_gaps)
            hint = (
                f"In X {named} has missing numbers; if the model does not take them, leave such "
                "rows out or fill them as in training"
            )
        kind = TypeError if isinstance(failure, TypeError) else ValueError
        raise kind(f"the model cannot take the rows of X ({failure}). {hint}.") from failure
    embedded = {*readout.embedded_columns, *adapted.codes}
    return replace(readout, embedded_columns=tuple(sorted(embedded)))


def names_of_outputs(
    wanted: Sequence[str] | None, *, outputs: int, known: Sequence[str] | None
) -> tuple[str, ...]:
    """Names for the outputs: those asked for, those the model knows, or numbers."""
    if wanted is None:
        if known is not None and len(known) == outputs:
            return tuple(known)
        return number_outputs(outputs)
    names = names_of("output_names", wanted)
    if len(names) != outputs:
        raise ValueError(
            f"output_names has {len(names)} names but the model has {outputs} outputs."
        )
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"output_names has the name {twice!r} twice; names must differ.")
    return names


# ---------------------------------------------------------------------- the rows: read in batches


class TableRows:
    """A table's rows in batches, read as often as it allows; rows looked at first are not lost."""

    def __init__(self, X: TableLike, source: Source) -> None:
        self.X = X
        self.source = source
        self.rows = source.rows
        self.tables = [X] if source.rows != 0 else []  # as the caller passed it, where it has rows
        self._begun: Iterator[Tensor] = iter(source)
        # Copies: a stream may fill the same memory again with its next rows.
        self._held = [batch.clone() for batch in islice(self._begun, 1)]

        # The first rows of all; those of another process where this one has none.
        self.probe = torch.zeros(0, source.columns)
        if self._held:
            self.probe = self._held[0][:PROBE_ROWS].clone()

    def __iter__(self) -> Iterator[Tensor]:
        held = self._held
        self._held = []
        return chain(held, self._begun) if held else iter(self.source)

    def peek(self) -> list[Tensor]:
        """The first rows, as many as a sample has; they are read again with the others."""
        while sum(map(len, self._held)) < SAMPLE_ROWS:
            batch = next(self._begun, None)
            if batch is None:
                break
            self._held.append(batch.clone())
        return list(self._held)


Rows = TableRows | DatasetRows


# ----------------------------------------------------------------- rows on one or several processes


def open_rows(
    run: Run,
    X: TableLike,
    adapted: Adapted,
    batch_size: int,
    *,
    columns: Sequence[str] | None,
) -> Rows:
    """The rows of `X`. Only one process needs to have rows; all must have the same columns."""
    if isinstance(run, RayRun):
        return dataset_rows(X, adapted, batch_size, columns)
    if is_ray(X):
        raise ValueError(
            "X is a Ray dataset; call fit in one process, with engine=nobsp.RayCluster()."
        )

    X = X if adapted.pack is None else adapted.pack(X)
    rows = None
    try:
        source = batches_of(X, batch_size=batch_size, encode=adapted.encode, columns=columns)
        rows = TableRows(X, source)
    except NoRowsError:
        if run.size == 1:
            raise

    first = _first_share(run, rows)
    if rows is None:
        nothing = Source(first.names, 0, True, False, first.width, lambda: iter(()))
        rows = TableRows(X, nothing)
    rows.probe = first.probe
    return rows


@dataclass(frozen=True, eq=False)
class _Share:
    """What one rank knows of its rows."""

    rank: int
    probe: Tensor
    names: tuple[str, ...] | None
    width: int

    def says(self) -> tuple[str, ...] | str:
        """Its columns in words."""
        return self.names or f"{self.width} columns"


def _first_share(run: Run, rows: TableRows | None) -> _Share:
    """The rows of the first rank that has any, after a check that all have the same columns."""
    own = None if rows is None else (rows.probe, rows.source.names, rows.source.columns)
    gathered = run.gather(own)
    shares = [_Share(rank, *share) for rank, share in enumerate(gathered) if share is not None]
    if not shares:
        raise ValueError(f"X has no rows on any of the {run.size} ranks.")

    first = shares[0]
    for other in shares[1:]:
        if (other.names, other.width) != (first.names, first.width):
            raise ValueError(
                f"X has {other.says()} on rank {other.rank} but {first.says()} on rank "
                f"{first.rank}; all need the same."
            )
    return first


# --------------------------------------------------------------- what rows tell before they are run


def find_columns(run: Run, rows: Rows, adapted: Adapted, features: FeatureOption) -> Columns:
    """The columns, with levels and ranges of all rows if preprocessing precedes the network."""
    settle = partial(
        columns_of,
        features=features,
        width=rows.source.columns,
        names=rows.source.names,
    )
    if adapted.encode is None:
        return settle(None, adapted=adapted)

    # The network is not sent along.
    preprocessing = replace(adapted, module=torch.nn.Identity())

    # Rows that tell which columns a preprocessing makes of which.
    def grouping(table: TableLike) -> Any:
        return grouping_rows(whole_table(table, preprocessing)[0])

    sample = run.accumulate(rows.tables, Fold(grouping, join_grouping_rows), Fold.update)
    groups = adapted.groups(sample.value)

    settle = partial(settle, adapted=preprocessing, groups=groups)
    settled = run.accumulate(rows.tables, Fold(settle, Columns.merge), Fold.update)
    columns: Columns = settled.value
    return columns


def read_ahead(
    run: Run, rows: Rows, columns: Columns, baseline: BaselineLike, *, planned: bool
) -> bool:
    """Whether all rows are read before they are run: if the baseline needs it, or it is cheap."""
    if isinstance(rows, DatasetRows):
        return True

    is_in_memory = hasattr(rows.X, "shape")
    needs_rows = not planned and needs_data(baseline, columns.features)
    is_ahead = any(run.gather(is_in_memory or needs_rows))
    if is_ahead and not rows.source.reiterable:
        raise ValueError(
            f"X can be read only once, but baseline={baseline!r} must be known before; pass its "
            "values, or data that can be read again."
        )
    return is_ahead


def require_passes(run: Run, rows: Rows, count: int) -> None:
    """An error where rows cannot be read, or not be kept, as often as the memory asks for."""
    if not rows.source.reiterable:
        raise ValueError(
            f"X can be read only once, but within memory={run.memory:,} bytes it is read {count} "
            "times; pass data that can be read again, or give the engine more memory."
        )
    if run.checkpoint is not None:
        raise ValueError(
            "checkpoint needs a calibration in one pass; give the engine more memory, or no "
            "checkpoint."
        )


# ---------------------------------------------------------------------- the rows in memory


# Steps that a column's range is cut into where rows are put into an order that does not depend on
# units.
_STEPS = 2.0**30
# The step of a missing or infinite value: beyond all others.
_NOT_FINITE = np.uint64(2**40)
# Most rows that `some` takes where no number is said: enough for a spread or a correlation.
SOME_ROWS = 512


@dataclass(frozen=True, eq=False)
class Sample:
    """Calibration rows in memory, with the network's outputs."""

    own: Mapping[int, AnyArray]  # the caller's columns that have tables, by position
    inputs: Tensor  # the same rows as the network takes them
    outputs: Tensor
    groups: Codes | None = None  # per row a number, the same for rows of one named group
    features: tuple[Subset, ...] = ()  # the inputs' columns of each; empty where these are alone

    def __len__(self) -> int:
        return len(self.inputs)

    def chunk(self) -> Chunk:
        """All rows, at which tables are read, many of which have axes in common."""
        return Chunk(self.own, slice(0, len(self)), remembers=True)

    def in_canonical_order(self) -> Sample:
        """The same rows in an order that follows from their contents alone: equal rows adjoin.

        How a table was sorted, in which order its columns stand and in which units they are does
        not matter.
        """
        values = self.inputs.double().numpy() + 0.0  # −0 becomes 0
        by_share = _row_keys(_shares_of_range(values))
        # Rows that are equal to nine digits of a column's range are told apart by all of theirs.
        words = values.view(np.uint64)
        by_value = _row_keys(words)  # whatever the order of the columns, but for ties
        return self.take(np.lexsort((_keys_by_place(words), by_value, by_share)))

    def take(self, rows: NDArray[np.intp]) -> Sample:
        """Some of the rows."""
        positions = torch.from_numpy(rows)
        return replace(
            self,
            own={column: values[rows] for column, values in self.own.items()},
            inputs=self.inputs[positions],
            outputs=self.outputs[positions],
            groups=None if self.groups is None else self.groups[rows],
        )

    def units(self) -> Codes:
        """A number for every row; rows that share it are held out together, and drawn together.

        Rows must be in canonical order, or some of them in that order: equal ones are looked for
        side by side.
        """
        return self._units

    @cached_property
    def _units(self) -> Codes:
        return join_rows(self.inputs, self.groups, self.features)

    @property
    def keeps_groups_whole(self) -> bool:
        """Whether all rows of a named group are in one unit; False without groups."""
        if self.groups is None:
            return False
        units = self.units()
        first_row = np.unique(self.groups, return_index=True)[1]
        unit_of_group = np.zeros(int(self.groups.max(initial=0)) + 1, dtype=np.intp)
        unit_of_group[self.groups[first_row]] = units[first_row]
        return bool((unit_of_group[self.groups] == units).all())

    def n_copies_apart(self) -> int:
        """Rows with a copy in another unit, as holding all copies together would join all groups.

        Rows that are equal by chance are no copies.
        """
        identical = number_rows(self.inputs)
        pairs = np.unique(np.stack([identical, self.units()]), axis=1)
        is_apart = np.bincount(pairs[0]) > 1
        is_apart &= ~is_by_chance(self.inputs, identical, self.features)
        return int(is_apart[identical].sum())

    def n_copies(self) -> int:
        """Rows that are the same as another one, where that is no chance.

        It may be one where columns hold few values: then there are about as many pairs of equal
        rows as if features were independent.
        """
        sizes = np.bincount(number_rows(self.inputs))
        n_copies = int((sizes - 1).sum())
        if not n_copies:
            return 0
        n_rows = len(self)
        by_chance = n_rows * (n_rows - 1) / 2
        for values in number_values(self.inputs, self.features):
            by_chance *= float(np.square(np.bincount(values) / n_rows).sum())
        n_pairs = float((sizes * (sizes - 1)).sum()) / 2
        return n_copies if n_pairs > _PAIRS_BY_CHANCE * by_chance else 0

    def effective_units(self, *, weighted: bool) -> float:
        """How many units of equal size tell as much: (Σ c)² / Σ c², after Kish.

        c is the number of rows in each unit. Groups that share copies of rows count one by one.
        Without groups and weights, rows that are equal by chance, as their columns hold few values,
        count one by one too, and the most frequent other row counts once, however often it occurs:
        in many tables that is where nothing happened.
        """
        units = self.units()
        if self.groups is not None and self.keeps_groups_whole:
            units = self.groups
        sizes = np.bincount(units).astype(np.float64)
        if not weighted and not self.keeps_groups_whole:
            by_chance = is_by_chance(self.inputs, units, self.features)
            copied = np.sort(sizes[~by_chance])
            copied[-1:] = 1.0
            sizes = np.concatenate([np.ones(int(sizes[by_chance].sum())), copied])
        return float(sizes.sum() ** 2 / np.square(sizes).sum())

    def some(self, most: int = SOME_ROWS) -> Sample:
        """At most `most` of the rows, at even distances."""
        if len(self) <= most:
            return self
        return self.take(evenly_spaced(len(self), most))

    @property
    def spread(self) -> Tensor:
        """Spread of each output; one where it does not vary."""
        spread = self.outputs.std(0, correction=0)
        return torch.where(spread > 0, spread, 1.0)


def _shares_of_range(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Where each value lies between the smallest and the largest of its column, in whole steps."""
    known = np.where(np.isfinite(values), values, 0.0)
    low = known.min(axis=0, initial=0.0 if len(known) == 0 else np.inf)
    # Halves, as the difference of the largest numbers would be infinite.
    span = known.max(axis=0, initial=-np.inf) / 2 - low / 2

    shares = (known / 2 - low / 2) / np.where(span > 0, span, 1.0)
    steps = np.rint(shares * _STEPS).astype(np.uint64)
    return np.where(np.isfinite(values), steps, _NOT_FINITE)


def _row_keys(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A number per row that depends on what its columns hold, not on the order of rows or columns.

    Sums of whole numbers modulo 2⁶⁴ are exact in whatever order. A column is known by the sum over
    its own rows, so that equal values in different columns count differently, as they must for
    one-hot columns.
    """
    mixed = _mix(words)
    column_keys = mixed.sum(axis=0, dtype=np.uint64)
    told_apart = _mix(mixed ^ column_keys)
    row_sums = told_apart.sum(axis=1, dtype=np.uint64)
    return _mix(row_sums)


def _keys_by_place(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A number per row that depends on which column holds what.

    Columns of the same numbers in another order, as those of balanced designs are, are not known
    apart by what they hold: rows of different ones would lie among each other.
    """
    places = _mix(np.arange(words.shape[1], dtype=np.uint64))
    row_sums = _mix(_mix(words) ^ places).sum(axis=1, dtype=np.uint64)
    return _mix(row_sums)


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Whole numbers scattered over all 64 bits (the finaliser of SplitMix64)."""
    mixed = words + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


Codes = NDArray[np.intp]
Flags = NDArray[np.bool_]

# ------------------------------------------------------------- rows that belong together, and folds


FOLDS = 5
# Neighbourhoods that rows are divided into, and the fewest rows that one has on average.
NEIGHBOURHOODS = 50
FEWEST_IN_NEIGHBOURHOOD = 4
# Rows that the centres of neighbourhoods are found on, and how often they are moved: more changes
# no conclusion.
_CENTRE_ROWS = 4096
_MOVES = 8


def sampled_positions(rows: int, batch_size: int) -> NDArray[np.intp]:
    """Which rows of a table a summary of its batches holds in its sample, in the sample's order."""
    tracker = Summary(((0,),))
    for positions in torch.split(torch.arange(rows, dtype=torch.float64)[:, None], batch_size):
        tracker.update(positions)
    return tracker.sample[:, 0].numpy().astype(np.intp)


# A row that occurs up to this often, against what independent columns make by chance, is no copy.
_BY_CHANCE = 2.0
# So many times the pairs of equal rows that independent columns make are no chance: columns of a
# table depend on each other.
_PAIRS_BY_CHANCE = 10
# Ties that would join groups of more than this share of the rows are left out: folds need several
# units.
_LARGEST_UNIT = 0.2


def join_rows(inputs: Tensor, groups: Codes | None, features: Sequence[Subset] = ()) -> Codes:
    """A number for every row, the same for rows that are identical or of one group.

    Identical rows must lie side by side. With groups, those that columns of few values make by
    chance do not count, nor does the most frequent row (where nothing happened, say): they would
    join all groups. Where most rows are copies of rows of other groups, identical rows are joined
    and groups are not.
    """
    identical = number_rows(inputs)
    if groups is None or not len(inputs):
        return identical

    copies = _rows_of_several_groups(identical, groups, is_by_chance(inputs, identical, features))
    spanned = sum(len(rows) for _, rows in copies)
    if spanned > len(groups) / 2:
        return identical
    return _tie_groups(copies, groups)


def number_rows(inputs: Tensor) -> Codes:
    """A number for every row, the same for identical ones, which must lie side by side."""
    if not len(inputs):
        return np.zeros(0, dtype=np.intp)
    differs = (inputs[1:] != inputs[:-1]) & ~(inputs[1:].isnan() & inputs[:-1].isnan())
    return np.concatenate([[0], np.cumsum(differs.any(1).numpy())]).astype(np.intp)


def number_values(inputs: Tensor, features: Sequence[Subset]) -> Iterator[Codes]:
    """For every feature a number per row, the same for equal values.

    `features` are the columns of each; without them every column is one.
    """
    generator = np.random.default_rng(0)
    values = inputs.double().nan_to_num().numpy()
    for columns in features or [(column,) for column in range(inputs.shape[1])]:
        # Sums with random weights are the same for equal values, and for no others.
        keys = values[:, list(columns)] @ generator.normal(size=len(columns))
        yield np.unique(keys, return_inverse=True)[1]


def is_by_chance(inputs: Tensor, identical: Codes, features: Sequence[Subset]) -> Flags:
    """Per different row, whether it occurs about as often as if features were independent.

    Features of few values make such rows; a copy of a row of measured numbers is none. `features`
    are the columns of each; without them every column is one.
    """
    sizes = np.bincount(identical)
    if len(sizes) == len(identical):
        return np.ones(len(sizes), dtype=np.bool_)

    first = np.unique(identical, return_index=True)[1]
    expected = np.full(len(sizes), float(len(identical)))
    varying = 0
    for values in number_values(inputs, features):
        counts = np.bincount(values)
        varying += len(counts) > 1
        expected *= counts[values[first]] / len(identical)
    if varying < 2:  # nothing to be independent of
        return np.asarray(sizes == 1)
    return np.asarray((sizes == 1) | (sizes <= _BY_CHANCE * expected))


def _rows_of_several_groups(
    identical: Codes, groups: Codes, by_chance: Flags
) -> list[tuple[int, Codes]]:
    """Copies of one row that are of several groups: of how many, and their positions."""
    sizes = np.bincount(identical)
    is_copied = (sizes > 1) & ~by_chance
    is_copied[sizes.argmax()] &= sizes.max() < _LARGEST_UNIT * len(identical)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    copies = []
    for number in np.flatnonzero(is_copied).tolist():
        rows = np.arange(starts[number], starts[number + 1])
        n_groups = len(np.unique(groups[rows]))
        if n_groups > 1:
            copies.append((n_groups, rows))
    return copies


def _tie_groups(copies: Sequence[tuple[int, Codes]], groups: Codes) -> Codes:
    """Groups joined by copies of rows, first by those that are in the fewest groups."""
    unit_of_group = np.arange(int(groups.max()) + 1)
    sizes = np.bincount(groups).astype(np.float64)
    for _, rows in sorted(copies, key=lambda copy: copy[0]):
        joined = np.unique(unit_of_group[groups[rows]])
        if sizes[joined].sum() <= max(_LARGEST_UNIT * len(groups), sizes[joined].max()):
            unit_of_group[np.isin(unit_of_group, joined)] = joined[0]
            sizes[joined[0]] = sizes[joined].sum()
    return _in_order_of_rows(unit_of_group[groups])


def _in_order_of_rows(codes: Codes) -> Codes:
    """The same codes, numbered by the first row of each: folds do not depend on groups' names."""
    _, first_row, code_of_row = np.unique(codes, return_index=True, return_inverse=True)
    return np.asarray(first_row.argsort().argsort()[code_of_row], dtype=np.intp)


def deal_folds(codes: Codes, *, generator: np.random.Generator, folds: int = FOLDS) -> Codes:
    """A fold for every row: rows of one code share it, and folds are of about the same size."""
    n_codes = int(codes.max()) + 1
    folds = min(folds, n_codes)
    shuffled = generator.permutation(n_codes)
    if n_codes == len(codes):
        return np.asarray((shuffled % folds)[codes], dtype=np.intp)

    sizes = np.bincount(codes, minlength=n_codes)
    order = shuffled[np.argsort(-sizes[shuffled], kind="stable")]
    loads = np.zeros(folds)
    fold_of_code = np.zeros(n_codes, dtype=np.intp)
    for code in order:
        emptiest = int(loads.argmin())
        fold_of_code[code] = emptiest
        loads[emptiest] += sizes[code]
    return fold_of_code[codes]


def standardise_inputs(inputs: Tensor) -> Tensor:
    """Columns with mean zero and spread one, in double precision; missing values count zero."""
    values = inputs.to(torch.float64).nan_to_num()
    spread = values.std(0, correction=0)
    return (values - values.mean(0)) / torch.where(spread > 0, spread, 1.0)


def find_neighbourhoods(
    inputs: Tensor, *, generator: np.random.Generator, most: int = NEIGHBOURHOODS
) -> Codes:
    """Rows divided by k-means of their standardised inputs; a number for every row."""
    values = standardise_inputs(inputs).to(torch.float32)
    n_centres = max(min(most, len(values) // FEWEST_IN_NEIGHBOURHOOD), 1)

    some = values[torch.from_numpy(generator.permutation(len(values))[:_CENTRE_ROWS])]
    centres = some[:n_centres].clone()
    for _ in range(_MOVES):
        nearest = torch.cdist(some, centres).argmin(1)
        counts = torch.bincount(nearest, minlength=n_centres)
        sums = torch.zeros_like(centres).index_add_(0, nearest, some)
        occupied = counts > 0
        centres[occupied] = sums[occupied] / counts[occupied, None]
    nearest = torch.cdist(values, centres).argmin(1)
    _, codes = np.unique(nearest.numpy(), return_inverse=True)
    return codes.astype(np.intp)
