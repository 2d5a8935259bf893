"""Adds up the batches of a Ray dataset in its workers, and puts their states together in a tree."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

from nobsp._typing import ModelLike
from nobsp.calibration.checkpoint import merge_states, rows_of
from nobsp.calibration.local import Local, Run, Work
from nobsp.network.batches import NoRowsError

S = TypeVar("S", bound=Any)

# Parts that are joined at a time.
_FAN = 8
# Joins under way at a time: workers that make parts faster than they are joined have to wait.
_MOST_JOINS = 8
# Bytes of a batch, which a worker holds, and batches of a dataset that is small.
_MOST_BYTES = 128 << 20
_MANY_BATCHES = 256
# Rows whose states are sent at a time: sending them takes about as long as adding up a few thousand
# rows.
MOST_ROWS = 1 << 16
_COLUMN = "part"


class RayCluster(Local):
    """Calibrates in the workers of a Ray cluster; the default for data in a `ray.data.Dataset`.

    Its workers read and add up the rows, and load the model once; only sums come back, in the order
    of the rows. Workers that die are replaced. The calibration is the one that this process would
    reach, but for rounding and the sample of rows past 16,384.

    Args:
        memory: As in `nobsp.Local`, of each worker.

    Example:
        >>> import nobsp
        >>> engine = nobsp.RayCluster(memory="8GiB")
        >>> # explainer.fit(ray.data.read_parquet("rows/"), engine=engine)
    """

    def __init__(self, *, memory: int | str = "4GiB") -> None:
        super().__init__(memory=memory)

    @contextmanager
    # as other engines are started
    def start(self, classes: Iterable[type] = ()) -> Iterator[RayRun]:  # noqa: ARG002
        """Begins a calibration."""
        yield RayRun(None, self.memory)


@dataclass(eq=False)
class RayRows:
    """A Ray dataset, and how workers make batches of its blocks."""

    dataset: Any  # the dataset
    # makes batches of a block of rows; it is sent to the workers
    read: Callable[[Any], Iterable[Any]]
    batch_size: int  # rows of a forward call
    row_bytes: int  # bytes of a row
    rows: int | None = None  # how many rows there are; known after the first pass
    # "pandas" for blocks that are frames, "numpy" for dictionaries of arrays
    batch_format: str = "pandas"
    most_rows: int = MOST_ROWS  # rows whose states are sent at a time

    @property
    def at_once(self) -> int:
        """How many rows are made into one part and sent at once.

        It depends on the data alone, so that sums are the same on any cluster.
        """
        rows = min(self.most_rows, _MOST_BYTES // max(self.row_bytes, 1))
        rows = rows if self.rows is None else min(rows, self.rows // _MANY_BATCHES)
        return max(rows // self.batch_size, 1) * self.batch_size


class RayRun(Run):
    """A calibration under way in the workers of a Ray cluster."""

    def accumulate(
        self,
        source: Any,
        state: S,
        work: Work,
        *,
        model: ModelLike = None,
        progress: bool = False,
        **_: Any,
    ) -> S:
        """The sum over all `RayRows`, in their order, whichever part is done first.

        `model` is what `share` gave.
        """
        import ray

        reference, device = model or (None, None)
        read = source.read

        def make() -> Callable[[Any], S]:
            """A function that adds the batches of a block to an empty state.

            It is made in a worker, with the model on the device where it is to run.
            """
            here = nullcontext if reference is None else ray.get(reference).moved().running

            def add(block: Any) -> S:
                added = copy.deepcopy(state)
                with here() as running:
                    reference_state = () if reference is None else (running,)
                    for batch in read(block):
                        work(added, batch, *reference_state)
                return added

            return add

        sent = send(make, "the preprocessing" if model is None else "the model")
        options: dict[str, Any] = {
            "batch_size": source.at_once,
            "batch_format": source.batch_format,
        }
        if model is None:
            options |= {"fn": _in_task, "fn_kwargs": {"sent": sent}}
        else:
            compute = ray.data.ActorPoolStrategy(min_size=1)
            options |= {"fn": _Worker, "fn_constructor_args": (sent,), "compute": compute}
        if device is not None and device.type == "cuda":
            options |= {"num_gpus": 1}
        with _as_here(source.dataset, progress=progress):
            parts = source.dataset.map_batches(**options)
            joined = _joined(
                block for bundle in parts.iter_internal_ref_bundles() for block in bundle.block_refs
            )
            cells: list[S] = _cells(ray.get(joined))
        if not cells:
            raise ValueError(
                "the dataset gave no rows when read again; it must give the same rows each time."
            )
        source.rows = rows_of(cells[0])
        return cells[0]

    def share(self, model: ModelLike) -> Any:
        """The model in Ray's object store."""
        return send(model.portable(), "the model"), model.device


def first_batch(dataset: Any, count: int, *, argument: str, batch_format: str) -> Any:
    """The first rows of a Ray dataset."""
    if not hasattr(dataset, "map_batches") or not hasattr(dataset, "take_batch"):
        kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
        raise TypeError(f"{argument} is a {kind}; pass the ray.data.Dataset itself.")
    try:
        with _as_here(dataset, progress=False):
            return dataset.take_batch(count, batch_format=batch_format)
    except ValueError as failure:
        if "empty" not in str(failure):
            raise
        raise NoRowsError(f"{argument} has no rows.") from failure


def send(held: Any, what: str) -> Any:
    """A reference to something that workers can have."""
    import ray

    try:
        return ray.put(held)
    except (TypeError, AttributeError, RuntimeError, ValueError) as failure:
        reason = str(failure.__cause__ or failure).strip().splitlines()[0].rstrip(":.")
        raise TypeError(
            f"{what} cannot be sent to Ray's workers ({reason}); leave out of it what belongs to "
            "this process alone, such as open files, locks and generators."
        ) from failure


class _Worker:
    """Lives in an actor, and so loads what it needs once."""

    def __init__(self, sent: Any) -> None:
        import ray

        self._work = ray.get(sent)()

    def __call__(self, batch: Any) -> Any:
        rows = (
            max(map(len, batch.values()), default=0) if isinstance(batch, Mapping) else len(batch)
        )
        return _table(self._work(batch) if rows else None)


def _in_task(batch: Any, *, sent: Any) -> Any:
    return _Worker(sent)(batch)


def _join_tables(*tables: Any) -> Any:
    """All parts in some tables, one after another, as one."""
    parts = (part for table in tables for part in _cells(table))  # one at a time: each may be large
    first = next(parts, None)
    return _table(None if first is None else reduce(merge_states, parts, first))


def _table(part: Any) -> Any:
    """A part as a table of one cell, which is how it travels; of none where there is no part."""
    import pyarrow as pa
    from ray import cloudpickle

    cells = [] if part is None else [cloudpickle.dumps(part)]  # type: ignore[no-untyped-call]
    return pa.table({_COLUMN: pa.array(cells, type=pa.large_binary())})


def _cells(table: Any) -> list[Any]:
    from ray import cloudpickle

    # An empty table may have lost its columns on the way.
    return (
        [cloudpickle.loads(cell.as_buffer()) for cell in table.column(_COLUMN)]
        if table.num_rows
        else []
    )


def _joined(blocks: Iterator[Any]) -> Any:
    """A reference to the part of all blocks, which tasks of Ray join as they come in."""
    import ray

    # Without a processor of its own: the workers whose parts it joins may have them all.
    task = ray.remote(num_cpus=0)(_join_tables)
    # `levels[k]` holds what stands for 8^k blocks each: the last digits of a sum depend on the
    # number of blocks alone.
    levels: list[list[Any]] = []
    under_way: list[Any] = []
    for block in blocks:
        part = block
        level_number = 0
        while True:
            if level_number == len(levels):
                levels.append([])
            levels[level_number].append(part)
            if len(levels[level_number]) < _FAN:
                break
            part = task.remote(*levels[level_number])
            levels[level_number] = []
            under_way.append(part)
            level_number += 1
        if len(under_way) > _MOST_JOINS:
            ray.wait([under_way.pop(0)], fetch_local=False)
    left = [part for level in reversed(levels) for part in level]
    while len(left) > _FAN:
        left = [task.remote(*left[start : start + _FAN]) for start in range(0, len(left), _FAN)]
    return task.remote(*left)


@contextmanager
def _as_here(dataset: Any, *, progress: bool) -> Iterator[None]:
    """Blocks in the dataset's order, and workers' errors as they would be raised here.

    The settings of the dataset are restored afterwards.
    """
    from ray.exceptions import RayTaskError

    context = dataset.context
    settings = [
        (context.execution_options, "preserve_order", True),
        (context, "raise_original_map_exception", True),
        (context, "enable_progress_bars", progress),
    ]
    before = [getattr(owner, name) for owner, name, _ in settings]
    try:
        for owner, name, value in settings:
            setattr(owner, name, value)
        yield
    except RayTaskError as failure:
        if isinstance(failure.cause, ValueError | TypeError):
            raise failure.cause from None
        raise
    finally:
        for (owner, name, _), value in zip(settings, before, strict=True):
            setattr(owner, name, value)
