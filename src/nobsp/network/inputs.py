"""Features, groups and baselines, and the isolated and reference inputs made from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nobsp.network.summary import Summary, distinct

Subset = tuple[int, ...]


@dataclass(frozen=True)
class Features:
    """Names of the features and the columns each one stands for."""

    names: tuple[str, ...]  # one name per feature
    columns: tuple[tuple[int, ...], ...]  # per feature, its columns of the input matrix

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: str, *, argument: str = "") -> int:
        """Position of a feature, or an error with the close matches that names the argument it came from."""
        if name in self.names:
            return self.names.index(name)
        close = get_close_matches(str(name), self.names, n=3)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"there are {_listed(self.names)}."
        found = f"{argument} names {name!r}, but there is no such feature" if argument else f"no feature {name!r}"
        raise ValueError(f"{found}; {hint}")

    def columns_of(self, subset: Subset) -> list[int]:
        """All columns of some features."""
        return [column for feature in subset for column in self.columns[feature]]


def resolve_features(
    features: Sequence[str] | Mapping[str, Any] | None, *, columns: int, names: Sequence[str] | None
) -> Features:
    """What the caller calls a feature, as columns."""
    if features is None:
        found = tuple(names) if names is not None else tuple(f"x{i}" for i in range(columns))
        return Features(found, tuple((i,) for i in range(columns)))
    if isinstance(features, str):
        raise TypeError(f"features must be a list of names or a dictionary, found the string {features!r}.")
    if not isinstance(features, Iterable):
        raise TypeError(f"features must be a list of names or a dictionary, found {features!r}.")
    if not isinstance(features, Mapping):
        listed = tuple(str(name) for name in features)
        if len(listed) != columns:
            raise ValueError(
                f"features has {len(listed)} names but the data has {columns} columns; pass one name per "
                "column, or a dictionary of names and their columns to group them."
            )
        if len(set(listed)) != len(listed):
            twice = next(name for name in listed if listed.count(name) > 1)
            raise ValueError(f"features has the name {twice!r} twice; names must differ.")
        return Features(listed, tuple((i,) for i in range(columns)))
    groups: dict[str, tuple[int, ...]] = {}
    for key, given in features.items():
        if str(key) in groups:
            raise ValueError(f"features has the name {str(key)!r} twice, as text and as {key!r}; names must differ.")
        groups[str(key)] = _columns(key, given, columns, names)
    owner: dict[int, str] = {}
    for name, group in groups.items():
        for column in group:
            if column in owner:
                raise ValueError(
                    f"features puts column {_called(column, names)} into both {owner[column]!r} and {name!r}; "
                    "a column belongs to one feature."
                )
            owner[column] = name
    left = [column for column in range(columns) if column not in owner]
    if left:
        raise ValueError(
            f"features leaves out column {', '.join(_called(column, names) for column in left[:5])}"
            f"{' and others' if len(left) > 5 else ''}; every column must belong to a feature."
        )
    return Features(tuple(groups), tuple(groups.values()))


def resolve_baseline(
    baseline: Any, *, features: Features, columns: int, summary: Summary, categories: frozenset[int]
) -> Tensor:
    """The input that stands for "no feature is active", one float64 value per column."""
    if isinstance(baseline, str | Mapping):
        result = summary.mean.clone()
        given: Mapping[str, Any] = baseline if isinstance(baseline, Mapping) else {}
        for name in given:
            features.index(name, argument="baseline")
        for position, name in enumerate(features.names):
            kind = given.get(name, "mean") if isinstance(baseline, Mapping) else baseline
            group = list(features.columns[position])
            result[group] = _feature_baseline(kind, position, group, summary, position in categories, name)
        return result
    vector = _numbers("baseline", baseline)
    if vector.numel() != columns:
        raise ValueError(
            f"baseline has {vector.numel()} values but the data has {columns} columns; pass one value per column "
            'or "mean".'
        )
    return vector


def needs_data(baseline: Any, features: Features | None) -> bool:
    """Whether the baseline can only be known after reading the data once."""
    if isinstance(baseline, Mapping):
        covered = features is not None and set(baseline) >= set(features.names)
        return not covered or any(isinstance(kind, str) and kind != "zero" for kind in baseline.values())
    return isinstance(baseline, str) and baseline != "zero"


def isolated(rows: Tensor, baseline: Tensor, columns: Sequence[int]) -> Tensor:
    """The baseline with some columns of `rows` put in: x° with x_S (equation B.2)."""
    inputs = baseline.to(rows).expand(rows.shape[0], -1).clone()
    inputs[:, columns] = rows[:, columns]
    return inputs


def reference(rows: Tensor, baseline: Tensor, columns: Sequence[int]) -> Tensor:
    """The rows with some columns set to the baseline: x with x°_S (equation B.4)."""
    inputs = rows.clone()
    inputs[:, columns] = baseline.to(rows)[columns]
    return inputs


def _feature_baseline(
    kind: Any, position: int, group: list[int], summary: Summary, category: bool, name: str
) -> Tensor:
    if isinstance(kind, str):
        if kind not in ("mean", "zero", "median", "mode"):
            raise ValueError(
                f'baseline for {name!r} must be "mean", "zero", "median", "mode" or numbers, found {kind!r}.'
            )
        if kind == "zero":
            return torch.zeros(len(group), dtype=torch.float64)
        if kind == "mode" and not category and _repeats_nothing(summary, position, group):
            raise ValueError(
                f'baseline for {name!r} is "mode", but no value occurs twice, so none is the most frequent; pass '
                '"mean", "median" or a value.'
            )
        if kind == "mode" or category:
            return summary.mode(position, group)
        return summary.mean[group] if kind == "mean" else summary.median(group)
    vector = _numbers(f"baseline for {name!r}", kind)
    if vector.numel() not in (1, len(group)):
        raise ValueError(f"baseline for {name!r} has {vector.numel()} values but the feature has {len(group)} columns.")
    return vector.expand(len(group)) if vector.numel() == 1 else vector


def _repeats_nothing(summary: Summary, position: int, group: list[int]) -> bool:
    """Whether a number takes every value once, as amounts do."""
    _, counts = summary.levels_of(position, group) or distinct(summary.sample[:, group])
    return len(counts) > 2 and int(counts.max()) == 1


def _numbers(argument: str, given: Any) -> Tensor:
    try:
        # A copy: a column of a frame may be read-only, which torch warns about.
        values = given.detach().cpu().numpy() if isinstance(given, Tensor) else given
        vector = torch.from_numpy(np.asarray(values, dtype=np.float64).copy()).flatten()
    except (TypeError, ValueError) as error:
        raise TypeError(f"{argument} must be numbers, found {type(given).__name__}.") from error
    if not bool(torch.isfinite(vector).all()):
        raise ValueError(f"{argument} has values that are not finite.")
    return vector


def _columns(name: Any, given: Any, columns: int, names: Sequence[str] | None) -> tuple[int, ...]:
    if not isinstance(given, str | int | np.integer | Iterable):
        raise TypeError(f"features[{name!r}] must be a column or a list of columns, found {given!r}.")
    members = [given] if isinstance(given, str | int | np.integer) else list(given)
    if not members:
        raise ValueError(f"features[{name!r}] has no columns.")
    return tuple(_column(name, member, columns, names) for member in members)


def _column(name: Any, member: Any, columns: int, names: Sequence[str] | None) -> int:
    if isinstance(member, str):
        if names is None:
            raise ValueError(f"features[{name!r}] names column {member!r}, but the data has no column names.")
        if member not in names:
            close = get_close_matches(member, names, n=3)
            hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else "."
            raise ValueError(f"features[{name!r}] names column {member!r}, which the data does not have{hint}")
        return list(names).index(member)
    if isinstance(member, bool) or not isinstance(member, int | np.integer):
        raise TypeError(f"features[{name!r}] must list columns by position or name, found {member!r}.")
    if not 0 <= member < columns:
        raise ValueError(f"features[{name!r}] names column {member}, but the data has columns 0 to {columns - 1}.")
    return int(member)


def _called(column: int, names: Sequence[str] | None) -> str:
    return str(column) if names is None else repr(names[column])


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:8]))
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
