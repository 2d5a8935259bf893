"""What is known before anything is estimated: options, model, columns, and the rows in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nobsp._typing import ArrayLike, ModelLike, TableLike
from nobsp.arguments import names_of, number_outputs, require_choice, require_whole_number
from nobsp.calibration import Run
from nobsp.models import adapt
from nobsp.network.adapted import Adapted
from nobsp.network.guest import checked_device
from nobsp.network.inputs import Subset, Summary, resolve_baseline
from nobsp.network.readout import Network, Readout, as_model_takes
from nobsp.numerics import evenly_spaced
from nobsp.projection import Ridge
from nobsp.tabular.effort import Costs, Effort, Represent, least_costs, probe_rows
from nobsp.tabular.features import Columns, categories_of, describe, input_baseline, own_columns
from nobsp.tabular.lookup import Chunk
from nobsp.tabular.rows import (
    Codes,
    Rows,
    Sample,
    count_in_memory,
    find_columns,
    repeat_rows,
    resolve_groups,
    rows_like,
    sampled_positions,
)

# What an explainer that takes over another's plan must have been asked for alike.
_TAKEN_OVER = ("features", "background", "baseline", "reference", "interactions", "ridge")


@dataclass(frozen=True, eq=False)
class Options:
    """The options of an explainer, under the names they have there."""

    features: Sequence[str] | Mapping[str, Any] | None
    background: Any
    baseline: Any
    reference: str
    interactions: Any
    ridge: Ridge | None  # a strength with its scale; None where it is to be chosen from the rows
    head: str | nn.Module | None
    output_names: Sequence[str] | None
    device: torch.device | str | None
    batch_size: int
    max_forward_rows: int | None

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Options:
        """An explainer's parameters, or an error that names the one that cannot be meant."""
        values = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in parameters.items()
        }
        del values["model"]
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
        """An error where an explainer that takes over another's plan was itself asked for something else."""
        for name in _TAKEN_OVER:
            mine = getattr(self, name)
            theirs = getattr(other, name)
            if plain(mine) != plain(theirs):
                raise ValueError(
                    f"like has {name}={theirs!r}, but this explainer {mine!r}; make it with clone(like)."
                )

    def spelled(self, head: str) -> dict[str, str]:
        """The options in words, the same for the same options in another process; `head` is the name of the head."""
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


def _check_limit(limit: Any, reference: str) -> None:
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
    """An option as a file can hold it, the same whichever library's array, frame or list it came in."""
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


# ---------------------------------------------------------------------- the model, the columns and the rows


# Features of a row that an error message shows.
_MOST_SHOWN = 8


@dataclass(eq=False, kw_only=True)
class Problem:
    """A model to be explained, with its columns and options; rows have not been read."""

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
        """The same together with what its rows look like."""
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
        self.weight = self.readout.head.weight.T.to("cpu", torch.float64)

    @property
    def n_rows(self) -> int:
        """Calibration rows, as the caller counts them."""
        return self.summary.rows if self.n_unweighted is None else self.n_unweighted

    def with_baseline(self, baseline: Tensor) -> Setting:
        """The same with a baseline that was fixed before."""
        changed = copy(self)
        changed.baseline = baseline
        return changed

    def sample(self, represent: Represent, most: int | None = None) -> Sample:
        """The rows in memory, or so many of them at even distances, with what the network makes of them."""
        rows = self.summary.sample
        groups = self.groups
        if most is not None and most < len(rows):
            chosen = evenly_spaced(len(rows), most)
            rows = rows[torch.from_numpy(chosen)]
            groups = None if groups is None else groups[chosen]

        inputs = as_model_takes(rows, self.readout)
        outputs = [
            self.readout.logits(represent(part)).cpu().double()
            for part in torch.split(inputs, self.options.batch_size)
        ]
        own = own_columns(self.domains, rows)
        self._require_finite(rows, torch.cat(outputs))
        return Sample(own, inputs, torch.cat(outputs), groups=groups)

    def _require_finite(self, rows: Tensor, outputs: Tensor) -> None:
        """An error that shows a calibration row for which the model has no finite answer."""
        unanswered = (~outputs.isfinite().all(1)).nonzero().flatten()
        if not len(unanswered):
            return
        row = rows[int(unanswered[0])]
        shown = []
        for name, columns in zip(self.names, self.columns.features.columns, strict=True):
            if columns:
                values = [f"{value:.6g}" for value in row[list(columns)].tolist()]
                shown.append(f"{name} = {', '.join(values)}")
        listed = "; ".join(shown[:_MOST_SHOWN]) + ("; …" if len(shown) > _MOST_SHOWN else "")
        raise ValueError(
            f"X has {len(unanswered):,} rows for which the model's output is not finite, such as the one with "
            f"{listed}. Leave such rows out: only finite outputs can be explained."
        )

    def least_costs(
        self, effort: Effort, background: int | Tensor, pairs: Sequence[Subset] | int | None
    ) -> Costs:
        """Forward rows that full tables of single features take at least, and screening."""
        rows = self.summary.sample
        chunk = Chunk(own_columns(self.domains, rows), slice(0, len(rows)))
        n_background = background if isinstance(background, int) else len(background)
        return least_costs(self.domains, chunk, effort, background=n_background, pairs=pairs)

    def baseline_rows(self) -> Tensor:
        """The baseline as a row that the model takes."""
        return as_model_takes(self.baseline[None], self.readout)

    def baseline_sample(self) -> Sample:
        """The baseline as a sample of one row."""
        own = own_columns(self.domains, self.baseline[None])
        return Sample(own, self.baseline_rows(), torch.zeros(1, self.readout.outputs))

    def pairs(self) -> Sequence[Subset] | int | None:
        """Interactions as `fit_terms` takes them: which, how many, or None for those that pay."""
        wanted = self.options.interactions
        if isinstance(wanted, str):
            return None
        if isinstance(wanted, int):
            return wanted
        return self._named_interactions(wanted)

    def _named_interactions(self, wanted: Iterable[Any]) -> list[Subset]:
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
            self.columns,
            self.summary.mean.numel(),
            self.options.batch_size,
            argument="background",
        )
        rows = torch.cat([batch.double() for batch in source])
        return as_model_takes(rows, self.readout)


@dataclass(frozen=True, eq=False)
class Data:
    """The caller's rows with what belongs to them, and the model as it takes them."""

    X: Any
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


def pose_problem(
    run: Run,
    rows: Rows,
    data: Data,
    options: Options,
    *,
    known_columns: Columns | None,
    known_plan: str | None,
) -> Problem:
    """Finds the model's head and the features; all processes must have the same model and options."""
    adapted = data.adapted
    probe = rows.probe[: probe_rows(options.max_forward_rows, len(rows.probe))]
    readout = find_readout(adapted, probe, head=options.head)
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
    """The model's linear head, or its outputs, or an error about the columns where the model cannot take them."""
    try:
        readout = Readout.find_any(adapted.module, probe, head=head)
    except (RuntimeError, IndexError) as failure:
        hint = "pass exactly the columns it was trained on, in their order, without labels"
        raise ValueError(
            f"the model cannot take the {probe.shape[1]} columns of X ({failure}); {hint}."
        ) from failure
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
