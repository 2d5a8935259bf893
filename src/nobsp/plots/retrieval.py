"""A query beside its nearest neighbours, by the evidence and by the activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nobsp._typing import AnyArray, AxesLike, ImagesLike, TableLike
from nobsp.arguments import array_of, as_numpy, percent, quote, require_whole_number, suggest
from nobsp.frames import frame_of
from nobsp.plots import _axes, _lookup
from nobsp.plots._axes import NORMAL, SMALL, Axes, as_axes, bare, get_panels, new_figure
from nobsp.plots._lookup import Array
from nobsp.plots.labels import (
    clean,
    format_label,
    format_number,
    format_value,
    shorten,
    shorten_all,
)

if TYPE_CHECKING:
    from nobsp.neighbors.result import Neighbors

# Columns of a table that are shown.
_MOST_COLUMNS = 8
# Standard deviations from the query that are shaded fully.
_FAR = 2.0
# Side of a neighbour's picture in inches, and how much wider that of the query is.
_PANEL = 1.55
_QUERY_WIDTH = 1.25


@dataclass(frozen=True, eq=False)
class _Space:
    """Neighbours of the query in one space.

    Labels, and agreement with the predicted class, are empty where they are unknown.
    """

    title: str
    indices: list[int]
    distances: list[float]
    labels: list[str]
    agrees: list[bool]

    def caption(self, rank: int, width: int) -> str:
        """A neighbour's label and distance, with a mark for agreement with the predicted class.

        There is no mark where agreement is unknown.
        """
        mark = ""
        if self.agrees:
            mark = "✓ " if self.agrees[rank] else "✗ "
        label = f"{shorten(self.labels[rank], width)}\n" if self.labels else ""
        return f"{mark}{label}d = {format_number(self.distances[rank], 3)}"


def retrieval_panel(
    query: TableLike,
    hits_contributions: Neighbors,
    hits_activations: Neighbors | None = None,
    *,
    database: TableLike,
    row: int = 0,
    label: object = None,
    class_names: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    max_display: int = 4,
    ax: AxesLike = None,
) -> AnyArray:
    """Draws a query beside its neighbours by contributions and its neighbours by activations.

    A solid frame and a tick mark mean the class predicted for the query, a dashed frame and a cross
    another one. Of a table, each neighbour is a column of values; the darker a cell, the further it
    is from the query, up to two standard deviations of the database.

    Args:
        query: One image or row, or all that were queried, of which `row` is taken.
        hits_contributions: Neighbours by contributions, as `ContributionIndex.query` returns them:
            anything with `indices`, `distances`, `labels`, `predicted` and `confidence`.
        hits_activations: The same by activations; may be left out.
        database: The rows that were searched: images (an array, a tensor, a dataset, a list), or a
            table.
        row: Which of the queries.
        label: The true class of the query, written where it is not the predicted one.
        class_names: Names of the classes, where labels are numbers.
        features: Of a frame, the columns to show (the first eight when None); of an array, the
            names of its columns.
        max_display: Most neighbours in each space.
        ax: Axes to draw on, in the order they are returned, the query's once; a new figure when
            None.

    Returns:
        The axes: for images of shape (spaces, 1 + neighbours), the query first in each; for a table
            of shape (spaces,).

    Example:
        >>> from types import SimpleNamespace
        >>> import numpy as np
        >>> from nobsp import plots
        >>> images = np.random.default_rng(0).random((10, 3, 8, 8))
        >>> hits = SimpleNamespace(
        ...     indices=np.array([[4, 2]]),
        ...     distances=np.array([[0.1, 0.3]]),
        ...     labels=np.array([["cat", "dog"]]),
        ...     predicted=np.array(["cat"]), confidence=np.array([0.9]),
        ... )
        >>> plots.retrieval_panel(images[0], hits, hits, database=images).shape
        (2, 3)
    """
    require_whole_number("max_display", max_display)
    by_space = {"contributions": hits_contributions, "activations": hits_activations}
    spaces = [
        _neighbours(hits, name, row, class_names, max_display)
        for name, hits in by_space.items()
        if hits is not None
    ]
    title = _query_title(hits_contributions, row, label, class_names)
    if frame_of(database) is not None or getattr(database, "ndim", 0) == 2:
        return _table(query, database, spaces, title, row, features, ax)

    first, panels = _picture_panels(ax, len(spaces), max(len(space.indices) for space in spaces))
    bare(first)
    first.imshow(picture_of(_queried(query, row), "query"))
    first.set_title(title, fontsize=NORMAL, fontweight="bold")
    for space, axes in zip(spaces, panels, strict=True):
        _draw_neighbours(axes, space, database)
    return np.array([[first, *axes] for axes in panels], dtype=object)


def _picture_panels(ax: AxesLike, n_spaces: int, n_neighbours: int) -> tuple[Axes, AnyArray]:
    """The query's axes, and those of its neighbours, (spaces, neighbours)."""
    if ax is not None:
        first, *others = as_axes(ax, 1 + n_spaces * n_neighbours, "this retrieval")
        return first, np.array(others, dtype=object).reshape(n_spaces, n_neighbours)

    width = _PANEL * (n_neighbours + _QUERY_WIDTH)
    height = (_PANEL + 0.62) * n_spaces + 0.1
    figure = new_figure((width, height))
    ratios = [_QUERY_WIDTH] + [1.0] * n_neighbours
    grid = figure.add_gridspec(n_spaces, n_neighbours + 1, width_ratios=ratios)
    first = figure.add_subplot(grid[:, 0])
    panels = np.empty((n_spaces, n_neighbours), dtype=object)
    for space, neighbour in np.ndindex(*panels.shape):
        panels[space, neighbour] = figure.add_subplot(grid[space, neighbour + 1])
    return first, panels


def _draw_neighbours(axes: Sequence[Axes], space: _Space, database: TableLike) -> None:
    """Pictures of the neighbours in one space, framed by agreement with the predicted class."""
    for panel in axes:
        bare(panel)
    for rank, (panel, index) in enumerate(zip(axes, space.indices, strict=False)):
        panel.imshow(picture_of(_from(database, index), "database"))
        panel.set_xlabel(space.caption(rank, 18), fontsize=SMALL)
        if space.agrees:
            agrees = space.agrees[rank]
            colour = _axes.MAIN if agrees else _axes.FOR
            panel.spines[:].set(
                visible=True,
                linewidth=3.0,
                color=colour,
            )
            panel.spines[:].set_linestyle("solid" if agrees else (0, (2.5, 1.5)))
    axes[0].set_title(space.title, fontsize=NORMAL, loc="left")


def _neighbours(
    hits: Neighbors, name: str, row: int, class_names: Sequence[str] | None, most: int
) -> _Space:
    """The neighbours of one query in one space, at most `most` of them."""
    for part in ("indices", "distances", "labels", "predicted", "confidence"):
        if not hasattr(hits, part):
            raise TypeError(
                f"hits_{name} must be neighbours as index.query(X) returns them, found "
                f"{type(hits).__name__} without {part}."
            )

    if isinstance(row, bool) or not isinstance(row, int | np.integer):
        raise TypeError(f"row must be a position, found {quote(row)}.")
    if not -len(hits.indices) <= row < len(hits.indices):
        raise ValueError(f"row is {row}, but hits_{name} has {len(hits.indices)} queries.")

    title = getattr(hits, "space", name)
    labels: list[str] = []
    agrees: list[bool] = []
    if hits.labels is not None:
        labels = [_class(label, class_names) for label in hits.labels[row]]
        if np.isfinite(hits.confidence[row]):  # a regression has none
            predicted = _class(hits.predicted[row], class_names)
            agrees = [label == predicted for label in labels]
            title = f"{title}: {sum(agrees)} of {len(agrees)} agree"

    return _Space(
        title=title,
        indices=np.asarray(hits.indices[row])[:most].tolist(),
        distances=np.asarray(hits.distances[row])[:most].tolist(),
        labels=labels[:most],
        agrees=agrees[:most],
    )


def _class(label: Any, class_names: Sequence[str] | None) -> str:
    """What a label is called."""
    is_number = isinstance(label, int | np.integer) and not isinstance(label, bool)
    if class_names is None or not is_number:
        return format_label(label)
    if not 0 <= label < len(class_names):
        raise ValueError(f"class_names has {len(class_names)} names, but there is a label {label}.")
    return clean(class_names[int(label)])


def _query_title(
    hits: Neighbors, row: int, label: object, class_names: Sequence[str] | None
) -> str:
    """The query in words: the prediction, how sure the model is, and the label if it differs."""
    predicted = _class(hits.predicted[row], class_names)
    text = f"query: {shorten(predicted, 20)}"
    if np.isfinite(hits.confidence[row]):
        text += f", {percent(float(hits.confidence[row]))}"
    if label is not None and _class(label, class_names) != predicted:
        text += f"\n(is {shorten(_class(label, class_names), 20)})"
    return text


def _queried(query: TableLike, row: int) -> Any:
    """The image that was asked about, alone or among all of them."""
    if getattr(query, "ndim", 0) != 4:
        return query
    if not -len(query) <= row < len(query):
        raise ValueError(f"query has {len(query)} images, so there is no row {row}.")
    return query[row]


def _from(database: TableLike, index: int) -> Any:
    """A row of the database."""
    if not hasattr(database, "__getitem__") or isinstance(database, type):
        raise TypeError(f"database must be the rows that were indexed, found {quote(database)}.")
    try:
        return database[index]
    except (IndexError, KeyError):
        raise ValueError(
            f"database has no row {index}, which is a neighbour; pass the rows that were indexed."
        ) from None


def _table(
    query: TableLike,
    database: TableLike,
    spaces: Sequence[_Space],
    title: str,
    row: int,
    features: Sequence[str] | None,
    ax: AxesLike,
) -> AnyArray:
    """Values of the query and its neighbours, space by space, shaded by distance from the query."""
    columns = _columns(database, features)
    wanted = _query(query, row, list(columns))
    labels = shorten_all(columns, 24)
    count = max(len(space.indices) for space in spaces)
    size = (1.15 * (count + 1) + 2.0, len(spaces) * (0.27 * len(columns) + 0.95) + 0.1)
    axes = get_panels(ax, len(spaces), 1, size, "this retrieval")
    for panel, space in zip(axes, spaces, strict=True):
        _draw_cells(panel, space, columns, wanted)
        heads = [title.replace("query: ", "query\n", 1)]
        heads += [space.caption(rank, 14) for rank in range(len(space.indices))]
        panel.xaxis.tick_top()
        panel.set_xticks(range(len(heads)), labels=heads, fontsize=SMALL)
        panel.set_yticks(range(len(labels)), labels=labels, fontsize=NORMAL)
        panel.tick_params(length=0)
        panel.spines[:].set_visible(False)
        panel.set_title(space.title, loc="left", fontsize=NORMAL)

    return np.array(axes, dtype=object)


def _draw_cells(
    panel: Axes, space: _Space, columns: dict[str, AnyArray], query: dict[str, Any]
) -> None:
    """Values of the query and its neighbours, a column of cells each."""
    cells = []
    shades = []
    for name, column in columns.items():
        values = [query[name], *(_from(column, index) for index in space.indices)]
        cells.append(values)
        shades.append(_far(values, column))

    colours = _axes.blend(_axes.NOTHING_TO_MUCH)
    panel.imshow(
        shades,
        cmap=colours,
        vmin=0.0,
        vmax=2.2 * _FAR,
        aspect="auto",
        gid="far",
    )
    for down, values in enumerate(cells):
        for right, value in enumerate(values):
            text = format_value(value, 12)
            panel.text(
                right,
                down,
                text,
                ha="center",
                va="center",
                fontsize=SMALL,
            )
    panel.axvline(0.5, color=_axes.MUTED, linewidth=1.5)


def _columns(database: TableLike, features: Sequence[str] | None) -> dict[str, AnyArray]:
    """The columns to show, by name."""
    every = _lookup.columns_of(database, argument="database")
    if frame_of(database) is None and features is not None:
        if len(features) != len(every):
            raise ValueError(
                f"features has {len(features)} names but database has {len(every)} columns."
            )
        every = dict(zip(map(str, features), every.values(), strict=True))
        features = None
    chosen = list(every)[:_MOST_COLUMNS] if features is None else [str(name) for name in features]
    for name in chosen:
        if name not in every:
            raise ValueError(
                f"features has {name!r}, which is not a column of database; {suggest(name, every)}"
            )
    return {name: every[name] for name in chosen}


def _query(query: TableLike, row: int, names: Sequence[str]) -> dict[str, Any]:
    """The query's values by name."""
    frame = frame_of(query)
    if frame is not None:
        position = row if len(frame) > 1 else 0
        return {str(name): frame[name].to_list()[position] for name in frame.columns}
    if hasattr(query, "to_dict"):  # a row of a pandas frame
        query = query.to_dict()
    if isinstance(query, dict):
        return {str(name): value for name, value in query.items()}
    values = as_numpy(query)
    return dict(zip(names, values[row] if values.ndim == 2 else values, strict=False))


def _far(line: Sequence[object], column: AnyArray) -> Array:
    """How far each value is from the first, in standard deviations, at most `_FAR`.

    A category that is not the first one is far from it.
    """
    numbers = _lookup.as_numbers(column)
    if numbers is None:
        return np.array([0.0 if value == line[0] else _FAR for value in line])
    spread = float(np.nanstd(numbers)) or 1.0
    values = np.asarray(line, dtype=np.float64)
    return np.asarray(np.minimum(np.abs(values - values[0]) / spread, _FAR))


def picture_of(item: ImagesLike, argument: str) -> Array:
    """One image, shape (height, width, 3), from 0 to 1."""
    from nobsp.vision.maps import pictures_of

    picture = item[0] if isinstance(item, tuple | list) and len(item) else item
    array = array_of(picture, name=argument)
    array = array[None] if array.ndim == 2 else array
    if array.ndim != 3 or array.size == 0:
        raise ValueError(
            f"{argument} has an image of shape {array.shape}; expected (channels, height, width)."
        )
    if array.shape[2] == 4 and array.shape[0] not in (1, 3):
        array = array[..., :3]  # without its transparency
    return np.asarray(pictures_of(array[None], 1, argument=argument)[0])
