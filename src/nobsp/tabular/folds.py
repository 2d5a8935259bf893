"""Which calibration rows belong together, and the folds that hold them out together.

Held-out rows are a fair judge only where they are no copies of rows that were fitted on. Identical rows always go
together, and so do rows of a group that the caller names. For groups that nobody named there are neighbourhoods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.frames import frame_of, is_missing
from nobsp.messages import suggest
from nobsp.network.inputs import Summary
from nobsp.numerics import as_numpy

Codes = NDArray[np.intp]

FOLDS = 5
# Neighbourhoods that rows are divided into, and the fewest rows that one has on average.
NEIGHBOURHOODS = 50
FEWEST_IN_NEIGHBOURHOOD = 4
# Rows that the centres of neighbourhoods are found on, and how often they are moved: more changes no conclusion.
_CENTRE_ROWS = 4096
_MOVES = 8


def resolve_groups(
    X: Any, groups: Any, *, model: Any, features: Any, rows: int | None
) -> tuple[Any, Codes]:
    """The rows without a column that only names groups, and the group of every row as a number.

    A column that the model takes stays a feature. A model that names no columns is taken not to know it, unless
    `features` names it.
    """
    if isinstance(groups, str):
        X, values = _take_column(X, groups, model=model, features=features)
    else:
        values = _group_values(groups)
    expected = len(values) if rows is None else rows
    if values.shape != (expected,):
        raise ValueError(
            f"groups has the shape {values.shape}; pass one group for each of the {expected:,} rows."
        )
    missing = [position for position, value in enumerate(values.tolist()) if is_missing(value)]
    if missing:
        raise ValueError(
            f"groups has a missing value in row {missing[0]}; give every row a group, those that stand alone one each."
        )
    _, codes = np.unique(
        values.astype(str) if values.dtype == object else values, return_inverse=True
    )
    if codes.max(initial=0) == 0:
        raise ValueError(
            "groups has one group only, so that no rows could be held out; name at least two, or leave it out."
        )
    return X, codes.astype(np.intp)


def _group_values(groups: Any) -> NDArray[Any]:
    """Groups from anything that holds one value a row."""
    frame = frame_of(groups)
    if frame is not None and len(frame.columns) == 1:
        return np.asarray(frame[:, 0].to_numpy())
    if hasattr(groups, "to_numpy"):
        return np.asarray(groups.to_numpy())
    return as_numpy(groups)


def _take_column(X: Any, name: str, *, model: Any, features: Any) -> tuple[Any, NDArray[Any]]:
    """A column of a frame, and the frame, without it where the model does not take it."""
    frame = frame_of(X)
    if frame is None:
        raise TypeError(
            f"groups is the name {name!r}, but X is a {type(X).__name__} without names; pass the groups themselves."
        )
    columns = [str(column) for column in frame.columns]
    if name not in columns:
        raise ValueError(
            f"groups names {name!r}, but X has no such column; {suggest(name, columns)}"
        )
    position = columns.index(name)
    values = np.asarray(frame[:, position].to_numpy())
    if name in _columns_of_model(model, features):
        return X, values
    others = [place for place in range(len(columns)) if place != position]
    return frame[:, others].to_native(), values


def _columns_of_model(model: Any, features: Any) -> set[str]:
    """Names of columns that a model says it takes, or that the caller made features of."""
    names: set[str] = set()
    for attribute in ("feature_names_in_", "feature_names_", "feature_name_"):
        stated = getattr(model, attribute, None)
        if stated is not None and not callable(stated):
            names |= {str(name) for name in stated}
    if isinstance(features, Mapping):
        for members in features.values():
            listed = [members] if isinstance(members, str) else members
            names |= {str(member) for member in listed} if isinstance(listed, Sequence) else set()
    elif features is not None:
        names |= {str(name) for name in features}
    return names


def sampled_positions(rows: int, batch_size: int) -> NDArray[np.intp]:
    """Which rows of a table a summary of its batches holds in its sample, in the sample's order."""
    tracker = Summary(((0,),))
    for positions in torch.split(torch.arange(rows, dtype=torch.float64)[:, None], batch_size):
        tracker.update(positions)
    return tracker.sample[:, 0].numpy().astype(np.intp)


def join_rows(inputs: Tensor, groups: Codes | None) -> Codes:
    """A number for every row, the same for rows that are identical or of one group; identical ones lie side by side."""
    if not len(inputs):
        return np.zeros(0, dtype=np.intp)
    differs = (inputs[1:] != inputs[:-1]) & ~(inputs[1:].isnan() & inputs[:-1].isnan())
    identical = np.concatenate([[0], np.cumsum(differs.any(1).numpy())]).astype(np.intp)
    if groups is None:
        return identical

    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # Rows that are identical tie their groups together.
    n_identical = int(identical[-1]) + 1
    size = n_identical + int(groups.max()) + 1
    links = coo_array(
        (np.ones(len(groups), dtype=np.int8), (identical, n_identical + groups)), shape=(size, size)
    )
    _, component = connected_components(links, directed=False)
    _, codes = np.unique(component[identical], return_inverse=True)
    return codes.astype(np.intp)


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


def find_neighbourhoods(inputs: Tensor, *, generator: np.random.Generator) -> Codes:
    """Rows divided by k-means of their standardised inputs; a number for every row."""
    values = inputs.to(torch.float64).nan_to_num()
    spread = values.std(0, correction=0)
    values = (values - values.mean(0)) / torch.where(spread > 0, spread, 1.0)
    values = values.to(torch.float32)
    n_centres = max(min(NEIGHBOURHOODS, len(values) // FEWEST_IN_NEIGHBOURHOOD), 1)

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
