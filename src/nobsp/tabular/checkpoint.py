"""A calibration under way as a file, so that one that was interrupted goes on where it was."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nobsp import store
from nobsp.network.inputs import Features, Subset
from nobsp.network.ranks import Ranks
from nobsp.network.readout import Readout
from nobsp.network.summary import Summary
from nobsp.projection import Moments
from nobsp.tabular.calibration import Accumulator, Plan, label
from nobsp.tabular.interactions import Screening
from nobsp.tabular.options import Options
from nobsp.tabular.representations import Isolation

KIND = "calibration under way"
VERSION = 1

Parts = dict[str, list[Moments]]


def digest_of(batch: Tensor, before: str = "") -> str:
    """A fingerprint of all rows up to and including a batch, from the one before it."""
    digest = hashlib.blake2b(f"{before} {batch.dtype} {tuple(batch.shape)}".encode(), digest_size=16)
    digest.update(batch.contiguous().numpy().tobytes())
    return digest.hexdigest()


@dataclass
class Position:
    """How far a calibration has come.

    Attributes:
        rows: Rows that were added up.
        batches: The batches they came in.
        digest: Fingerprint of these rows, in their batches.
    """

    rows: int = 0
    batches: int = 0
    digest: str = ""

    def pass_by(self, batch: Tensor) -> None:
        """Counts a batch in."""
        self.rows, self.batches = self.rows + batch.shape[0], self.batches + 1
        self.digest = digest_of(batch, self.digest)


@dataclass(frozen=True, eq=False)
class Resumed:
    """What a file knew of a calibration that was interrupted."""

    plan: Plan
    screening: Screening | None
    parts: Parts
    next_block: int
    position: Position


@dataclass(eq=False)
class Checkpoint:
    """Keeps a calibration under way in a file, written every so many seconds.

    Args:
        path: The file; of several ranks, each has its own beside it.
        every: Seconds between two writes; 0 writes after every batch.
        about: What the calibration is of; a file about anything else is an error.
    """

    path: Path
    every: float
    about: Mapping[str, Any]
    _written: float = field(default_factory=time.monotonic)

    def resume(self, readout: Readout, *, batch_size: int) -> Resumed | None:
        """What was interrupted, or None where nothing was.

        Raises:
            ValueError: If the file is damaged, or is about other rows, another model or other options.
        """
        self._sweep()
        if not self.path.exists():
            return None
        try:
            tensors, held = store.load(self.path, kind=KIND, version=VERSION)
            self._require_same(held["about"])
            return _restored(tensors, held, readout, batch_size)
        except (KeyError, TypeError, ValueError) as failure:
            raise ValueError(
                f"checkpoint {str(self.path)!r} cannot be gone on with: {str(failure).rstrip('.')}; remove it to start "
                "anew, or pass another path."
            ) from failure

    @property
    def due(self) -> bool:
        """Whether the last write was long enough ago."""
        return time.monotonic() - self._written >= self.every

    def write(
        self, plan: Plan, screening: Screening | None, parts: Parts, *, next_block: int, position: Position
    ) -> None:
        """Writes the file, atomically: it is always one whole state of the calibration."""
        isolation = plan.isolation
        tensors = {"baseline": isolation.baseline, **{f"basis/{label(t)}": plan.bases[t] for t in plan.terms}}
        for name, blocks in parts.items():
            for number, part in enumerate(blocks):
                if part.rows:
                    tensors.update({f"moments/{name}/{number}/{k}": v for k, v in part.state().items()})
        held = {
            "about": self.about,
            "features": {"names": isolation.features.names, "columns": isolation.features.columns},
            "few_valued": sorted(isolation.few_valued),
            "categories": sorted(isolation.categories),
            "terms": plan.terms,
            "pure": plan.pure,
            "truncated": plan.truncated,
            "fingerprint": plan.fingerprint(),
            "screening": None if screening is None else _screening_as_list(screening),
            "moments": {name: len(blocks) for name, blocks in parts.items()},
            "next_block": next_block,
            "position": asdict(position),
        }
        store.save(self.path, kind=KIND, version=VERSION, tensors=tensors, about=held)
        self._written = time.monotonic()

    def remove(self) -> None:
        """Removes the file: the calibration is done."""
        self.path.unlink(missing_ok=True)

    def _require_same(self, held: Mapping[str, Any]) -> None:
        for name, value in self.about.items():
            if held[name] != value:
                raise ValueError(f"it is of another calibration ({name} differs)")

    def _sweep(self) -> None:
        """Removes what a killed process had begun to write."""
        pattern = re.compile(re.escape(self.path.name) + r"\.[0-9a-f]{16}\.part")  # as `store.save` names them
        for file in self.path.parent.iterdir():
            if pattern.fullmatch(file.name):
                shutil.rmtree(file, ignore_errors=True)


class Keeper:
    """Adds up rows that are kept in a checkpoint, and passes by those that it already holds.

    Args:
        checkpoint: Where to keep them; None for nowhere.
        plan: Terms and bases.
        screening: How pairs were screened.
        accumulator: What rows are added to.
        resumed: What the checkpoint held.
    """

    def __init__(
        self,
        checkpoint: Checkpoint | None,
        plan: Plan,
        screening: Screening | None,
        accumulator: Accumulator,
        resumed: Resumed | None,
    ) -> None:
        self.accumulator = accumulator
        self._checkpoint, self._plan, self._screening = checkpoint, plan, screening
        self._position = Position()
        self._goal = Position() if resumed is None else resumed.position
        if resumed is not None:
            accumulator.resume(resumed.parts, next_block=resumed.next_block)

    def begin(self) -> None:
        """Keeps the plan, before any row was added up; it may have taken long to settle."""
        if self._checkpoint is not None and self._goal.batches == 0:
            self._write(self._checkpoint)

    def counted(self, batch: Tensor) -> bool:
        """Whether a batch is already held; the caller adds it up otherwise.

        Raises:
            ValueError: If the rows that are held are not the ones that come.
        """
        if self._checkpoint is None or self._position.batches >= self._goal.batches:
            return False
        self._position.pass_by(batch)
        if self._position.batches == self._goal.batches and self._position != self._goal:
            raise ValueError(self._other_rows())
        return True

    def added(self, batch: Tensor) -> None:
        """Counts a batch that was added up, and writes where that is due."""
        if self._checkpoint is not None:
            self._position.pass_by(batch)
            if self._checkpoint.due:
                self._write(self._checkpoint)

    def require_all_counted(self) -> None:
        """An error where fewer rows came than the checkpoint holds."""
        if self._position.batches < self._goal.batches:
            raise ValueError(self._other_rows())

    def _other_rows(self) -> str:
        path = "" if self._checkpoint is None else str(self._checkpoint.path)
        return (
            f"checkpoint {path!r} holds {self._goal.rows} rows that are not the first ones of X as it is read now "
            "(is it shuffled?); pass the same rows in the same order and batches, or remove the file to start anew."
        )

    def _write(self, checkpoint: Checkpoint) -> None:
        checkpoint.write(
            self._plan,
            self._screening,
            self.accumulator.parts,
            next_block=self.accumulator.next_block,
            position=self._position,
        )


def checkpoint_of(
    path: str | os.PathLike[str] | None,
    every: float,
    *,
    ranks: Ranks,
    readout: Readout,
    options: Options,
    first: Tensor | None,
    rows: int | None,
    summary: Summary | None,
    like: Plan | None,
) -> Checkpoint | None:
    """The checkpoint of one calibration; None where none was asked for.

    Args:
        path: Where to; with several ranks, their numbers are added to it.
        every: Seconds between two writes.
        ranks: Who calibrates.
        readout: The model.
        options: What was asked for.
        first: The first rows, where there are any.
        rows: How many rows will come, where known.
        summary: What all rows look like, where they were all looked at.
        like: A plan that is taken over.
    """
    if path is None:
        return None
    if isinstance(every, bool | str) or not 0 <= every < float("inf"):
        raise ValueError(f"checkpoint_every must be a number of seconds, found {every!r}.")
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"checkpoint is in {str(target.parent)!r}, which is not a folder; create it first.")
    if not ranks.alone:
        target = target.with_name(f"{target.name}.rank-{ranks.rank}-of-{ranks.size}")
    asked = {name: value for name, value in vars(options).items() if name != "device"}
    about = {
        "the model": readout.fingerprint(),
        **{f"option {name}": _spelled(name, value, readout.head.name) for name, value in asked.items()},
        "like": None if like is None else like.fingerprint(),
        "the number of rows": rows,
        "the first batch": None if first is None else digest_of(first),
        # Not its means: sums differ in their last digits with the number of threads.
        "the table": None if summary is None else digest_of(torch.cat([summary.minimum[None], summary.sample])),
    }
    return Checkpoint(target, float(every), about)


def common_plan(ranks: Ranks, mine: Resumed | None) -> tuple[Plan, Screening | None] | None:
    """The plan that interrupted ranks had agreed on, on all ranks; None where none was interrupted."""
    found = ranks.gather(None if mine is None else mine.plan.fingerprint())
    plans = {fingerprint for fingerprint in found if fingerprint is not None}
    if not plans:
        return None
    if len(plans) > 1:
        raise ValueError("the ranks' checkpoints are of different calibrations; remove them to start anew.")
    held: tuple[Plan, Screening | None] | None = None if mine is None else (mine.plan, mine.screening)
    source = next(rank for rank, fingerprint in enumerate(found) if fingerprint is not None)
    shared: tuple[Plan, Screening | None] = ranks.hand_out(held, source=source)
    return shared


def _restored(tensors: Mapping[str, Tensor], held: Mapping[str, Any], readout: Readout, batch_size: int) -> Resumed:
    features = Features(tuple(held["features"]["names"]), _tuples(held["features"]["columns"]))
    few_valued, categories = frozenset(held["few_valued"]), frozenset(held["categories"])
    isolation = Isolation(features, tensors["baseline"], few_valued, categories, batch_size)
    terms: tuple[Subset, ...] = _tuples(held["terms"])
    bases = {term: tensors[f"basis/{label(term)}"] for term in terms}
    plan = Plan(isolation, terms, bases, held["pure"], held["truncated"])
    if plan.fingerprint() != held["fingerprint"]:
        raise ValueError("it is damaged")
    shapes = plan.blocks(readout.width, readout.outputs)
    parts = {
        name: [_moments(shapes[name], tensors, f"moments/{name}/{number}/") for number in range(count)]
        for name, count in held["moments"].items()
    }
    position = Position(**held["position"])
    if any(sum(part.rows for part in blocks) != position.rows for blocks in parts.values()):
        raise ValueError("it is damaged")
    screening = None
    if held["screening"] is not None:
        pairs, rows, forward_rows = held["screening"]
        screening = Screening({(a, b): strength for a, b, strength in pairs}, rows, forward_rows)
    return Resumed(plan, screening, parts, held["next_block"], position)


def _moments(blocks: Mapping[str, int], tensors: Mapping[str, Tensor], prefix: str) -> Moments:
    """A block of rows; one without any is not in the file."""
    state = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return Moments.from_state(blocks, state) if state else Moments(blocks)


def _spelled(name: str, value: Any, head: str) -> str:
    """An option in words, the same for the same option in another process."""
    if name == "head":
        return head
    if isinstance(value, Mapping):
        return repr({str(key): _spelled("", inner, head) for key, inner in value.items()})
    if hasattr(value, "tolist"):  # arrays, tensors, and the columns and indices of frames
        return repr(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return repr([_spelled("", inner, head) for inner in value])
    return repr(value)


def _screening_as_list(screening: Screening) -> list[Any]:
    pairs = [[*pair, strength] for pair, strength in screening.strengths.items()]
    return [pairs, screening.rows, screening.forward_rows]


def _tuples(nested: Sequence[Sequence[Any]]) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(inner) for inner in nested)
