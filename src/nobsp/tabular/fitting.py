"""Calibrates: reads a table, settles the plan, adds the rows up and solves, alone or together with other ranks."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from nobsp.network.adapted import Adapted, adapt
from nobsp.network.batches import NoRowsError, Source, batches_of
from nobsp.network.inputs import needs_data
from nobsp.network.ranks import Ranks, require_same
from nobsp.network.readout import Readout
from nobsp.network.summary import Summariser, Summary
from nobsp.projection import Ridge
from nobsp.tabular.calibration import Accumulator, Plan, Solution
from nobsp.tabular.checkpoint import Checkpoint, Keeper, checkpoint_of, common_plan
from nobsp.tabular.columns import Columns
from nobsp.tabular.fitted import Fitted, Parts, frame_kind, solved
from nobsp.tabular.interactions import Screening
from nobsp.tabular.memory import bytes_of, in_passes, joined, room_for_moments
from nobsp.tabular.options import Options, find_readout, names_of_outputs
from nobsp.tabular.planning import settle_plan
from nobsp.tabular.rare import outside_bases
from nobsp.tabular.reading import Reading, as_model_takes, running_on
from nobsp.tabular.representations import Represent
from nobsp.tabular.shards import Glimpse, common_columns, common_glimpse, common_summary

# Rows on which the explained share and the importances of a calibration are measured.
MEASURED_ROWS = 1024


def calibrate(
    X: Any,
    model: Any,
    options: Options,
    *,
    ranks: Ranks,
    like: Fitted | None = None,
    progress: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 60.0,
    memory_limit: int | str = "4GiB",
) -> Fitted:
    """A calibration on `X`, and on what the other ranks have; see `NObSP.fit`."""
    memory = min(ranks.gather(bytes_of(memory_limit)))
    adapted = adapt(model)
    expected = adapted.feature_names if like is None else like.columns.names
    source = _source(X, adapted, expected, options, ranks)
    reader = Reading(source, progress) if source is not None else None
    glimpse = common_glimpse(ranks, None if source is None or reader is None else Glimpse.of(source, reader.first))
    readout = find_readout(adapted.module, glimpse.probe, head=options.head)
    if not ranks.alone:
        require_same(ranks, readout.fingerprint(), "the model")
        require_same(ranks, "" if like is None else like.plan.fingerprint(), "like")
    if like is not None:
        like.require_same_model(readout)
        columns = like.columns
    else:
        columns = common_columns(ranks, X, adapted, options.features, source)
    if source is None or reader is None:
        source = Source(glimpse.names, 0, True, False, glimpse.columns, lambda: iter(()))
        reader = Reading(source, progress)
    ahead = _looks_ahead(X, source, columns, options, ranks, like=like)
    groups = columns.features.columns
    first = reader.first if source.rows != 0 else None
    summary = _summarised(reader, groups, ranks) if ahead else None
    kept = checkpoint_of(
        checkpoint,
        checkpoint_every,
        ranks=ranks,
        readout=readout,
        options=options,
        first=first,
        rows=source.rows,
        summary=summary,
        like=None if like is None else like.plan,
    )
    resumed = None if kept is None else kept.resume(readout, batch_size=options.batch_size)
    with running_on(readout, options.device) as represent:
        agreed = common_plan(ranks, resumed) if like is None else (like.plan, like.screening)
        seen = None if like is None else like.summary
        if agreed is None:
            seen = common_summary(ranks, reader.peek(groups)) if summary is None else summary
            agreed = settled(adapted, columns, seen, readout, represent, options, ranks)
        plan, screening = agreed
        if like is not None and summary is not None:
            require_known_levels(like, summary, represent)
        stages = in_passes(plan, readout, memory=memory)
        if len(stages) > 1:
            _require_passes(len(stages), source, kept, memory)
        summariser = Summariser(groups) if summary is None else None
        solutions: list[Solution] = []
        for stage in stages:
            accumulator = Accumulator(stage, readout, rows=source.rows, memory=room_for_moments(plan, memory))
            keeper = Keeper(kept, stage, screening, accumulator, resumed)
            ranks.work(_added_up(reader, keeper, summariser, readout, represent))
            if summariser is not None:
                summary = common_summary(ranks, summariser.result() if summariser.rows else None)
                summariser = None
                if like is not None:
                    require_known_levels(like, summary, represent)
                elif seen is not None:
                    _warn_of_late_levels(plan, readout, columns, seen, summary, represent)
            ranks.all_reduce(accumulator.parts)
            ridge, solution = solved_together(stage, accumulator.parts, options, ranks)
            solutions.append(solution)
        assert summary is not None  # looked at ahead, or while the rows were added up
        fitted = concluded(
            represent,
            options,
            adapted=adapted,
            readout=readout,
            columns=columns,
            plan=plan,
            parts=accumulator.parts if len(stages) == 1 else {},
            solution=joined(solutions),
            summary=summary,
            screening=screening,
            ridge=ridge,
            frame=frame_kind(X),
        )
    ranks.gather(None)  # no rank removes its file while another may still fail
    if kept is not None:
        kept.remove()
    return fitted


def concluded(represent: Represent, options: Options, *, adapted: Adapted, readout: Readout, **found: Any) -> Fitted:
    """A calibration that was solved, with its outputs' names, explained share and importances."""
    names = names_of_outputs(options.output_names, outputs=readout.outputs, known=adapted.output_names)
    chooses = options.ridge is None
    fitted = Fitted(adapted=adapted, readout=readout, output_names=names, chooses_ridge=chooses, **found)
    return measured(fitted, represent)


def measured(fitted: Fitted, represent: Represent) -> Fitted:
    """The same with explained share and importances, measured on some of its rows."""
    return fitted.measured(represent, as_model_takes(fitted.summary.some_rows(MEASURED_ROWS), fitted.readout))


def require_known_levels(like: Fitted, summary: Summary, represent: Represent) -> None:
    """An error where rows have a level that the calibration they are to be like did not see, nor its bases hold."""
    stranger = outside_bases(like.plan, like.readout, represent, like.summary, summary)
    if stranger is not None:
        raise ValueError(
            f"X has a level of {_told(like.columns, like.adapted, *stranger)} that the calibration passed as like did "
            "not see, and its bases lack what it does; calibrate that one on rows that have every level, or leave such "
            "rows out."
        )


def _warn_of_late_levels(
    plan: Plan, readout: Readout, columns: Columns, seen: Summary, summary: Summary, represent: Represent
) -> None:
    stranger = outside_bases(plan, readout, represent, seen, summary)
    if stranger is not None:
        warnings.warn(
            f"a level of {_told(columns, None, *stranger)} came after the first rows, whose bases lack what it "
            "does: its contributions are incomplete. Shuffle the rows, or pass data that can be read again.",
            stacklevel=2,
        )


def _told(columns: Columns, adapted: Adapted | None, feature: int, level: Tensor) -> str:
    """A feature with one of its levels, which is shown where it is in the caller's own numbers."""
    shown = ", ".join(f"{number:g}" for number in level.tolist()[:8])
    own = adapted is None or adapted.encode is None
    return f"{columns.features.names[feature]!r}" + (f" ({shown})" if own else "")


def _source(X: Any, adapted: Adapted, expected: Sequence[str] | None, options: Options, ranks: Ranks) -> Source | None:
    """The rows in batches; None where this rank has none, which is allowed where others may have some."""
    try:
        return batches_of(X, batch_size=options.batch_size, encode=adapted.encode, columns=expected)
    except NoRowsError:
        if ranks.alone:
            raise
        return None


def _looks_ahead(
    X: Any, source: Source, columns: Columns, options: Options, ranks: Ranks, *, like: Fitted | None
) -> bool:
    """Whether all rows are looked at before they are added up: where the baseline needs it, or it is cheap."""
    wanted = hasattr(X, "shape") or (like is None and needs_data(options.baseline, columns.features))
    ahead = any(ranks.gather(wanted))
    if ahead and not source.reiterable:
        raise ValueError(
            f"X can be read only once, but baseline={options.baseline!r} has to be known before calibrating; pass "
            "the baseline's values, or data that can be read again (an array, a DataLoader, a list of batches)."
        )
    return ahead


def solved_together(plan: Plan, parts: Parts, options: Options, ranks: Ranks) -> tuple[Ridge, Solution]:
    """Coefficients from the moments; solved once and handed out: processors differ in their last digits."""
    rows = sum(part.rows for part in next(iter(parts.values())))
    if rows < 2:
        raise ValueError(f"X has {rows} row; calibration needs at least two.")
    return ranks.decide(lambda: solved(plan, parts, options.ridge))


def _require_passes(count: int, source: Source, kept: Checkpoint | None, memory: int) -> None:
    """An error where rows cannot be read, or not be kept, as often as the memory asks for."""
    if not source.reiterable:
        raise ValueError(
            f"X can be read only once, but within memory_limit ({memory:,} bytes) it has to be read {count} times; "
            "raise the limit, or pass data that can be read again (an array, a DataLoader, a list of batches)."
        )
    if kept is not None:
        raise ValueError(
            f"checkpoint keeps a calibration in one pass, but within memory_limit ({memory:,} bytes) this one takes "
            f"{count}; raise the limit, or calibrate without a checkpoint."
        )


def _summarised(reader: Reading, groups: Sequence[Sequence[int]], ranks: Ranks) -> Summary:
    """What all rows look like: one pass."""
    summariser = Summariser(groups)

    def steps() -> Iterator[None]:
        for batch in reader.rows("reading"):
            summariser.update(batch)
            yield

    ranks.work(steps())
    return common_summary(ranks, summariser.result() if summariser.rows else None)


def settled(
    adapted: Adapted,
    columns: Columns,
    summary: Summary,
    readout: Readout,
    represent: Represent,
    options: Options,
    ranks: Ranks,
) -> tuple[Plan, Screening | None]:
    """The plan, settled on the first rank."""
    return ranks.decide(
        lambda: settle_plan(
            adapted,
            columns,
            summary,
            readout,
            represent,
            baseline=options.baseline,
            interactions=options.interactions,
            pure=options.reference == "terms",
            ridge=options.ridge,
            batch_size=options.batch_size,
        )
    )


def _added_up(
    reader: Reading, keeper: Keeper, summariser: Summariser | None, readout: Readout, represent: Represent
) -> Iterator[None]:
    """Adds every batch that was not yet added up to the moments, one step a batch."""
    keeper.begin()
    for batch in reader.rows("calibrating"):
        if summariser is not None:
            summariser.update(batch)
        if not keeper.counted(batch):
            keeper.accumulator.update(represent, as_model_takes(batch, readout))
            keeper.added(batch)
        yield
    keeper.require_all_counted()
