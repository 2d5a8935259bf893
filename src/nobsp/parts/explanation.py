"""Outputs as sums over the parts of a network, and what happens when a part is taken away."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nobsp import notebook
from nobsp._typing import ArrayLike, FloatArray, NativeFrame
from nobsp.arguments import (
    count,
    names_of,
    number_outputs,
    percent,
    quote,
    require_choice,
    require_whole_number,
    suggest,
)
from nobsp.base import Plots
from nobsp.findings import Finding
from nobsp.frames import frame_like
from nobsp.network.guest import in_ordinary_modes
from nobsp.network.readout import fingerprint_of
from nobsp.parts.anatomy import (
    Account,
    Anatomy,
    Detail,
    Means,
    NoPartsError,
    dissect,
    find_usual_rows,
)
from nobsp.parts.names import MASK, Part
from nobsp.parts.running import (
    Rows,
    Target,
    choose_outputs,
    module_of,
    read_rows,
    require_deterministic,
    watching,
)
from nobsp.parts.tape import Tape
from nobsp.tabular.explanation import Explanation
from nobsp.tabular.indexing import find_positions, split_axes

# Parts that are named in a line, and those that a notebook shows.
_PRINTED_PARTS = 3
_SHOWN_PARTS = 10
# A residual above this share of what is accounted for is said.
_LARGE_RESIDUAL = 0.01
# A residual of so many roundings of the outputs is rounding.
_ROUNDINGS = 16
# Outputs that differ by no more than this share of the largest are the same by other steps.
_SAME_OUTPUTS = 1e-3
# Bases of rows that differ by no more than so many roundings of the outputs are the same.
_ROUNDINGS_OF_BASES = 256


@dataclass(frozen=True, eq=False)
class _Subject:
    """The network that was taken apart, for further questions."""

    model: nn.Module
    anatomy: Anatomy
    means: Means
    base: Tensor  # all outputs with every part at its mean, on average over the calibration rows
    change: Tensor  # how far all outputs are from there, on average over these rows
    usual_rows: Tensor  # beside these the model takes the steps that were followed
    target: Target
    columns: tuple[int, ...]  # the outputs that are explained
    batch_size: int
    row_shape: tuple[int, ...]
    fingerprint: str  # of the weights that the means belong to

    def read(self, X: ArrayLike) -> Rows:
        """Rows for further questions.

        An error where they, or the model, are not as they were when the means were taken.
        """
        rows = read_rows(self.model, X, name="X", batch_size=self.batch_size)
        _require_shape(rows, self.row_shape, name="X")
        if fingerprint_of(self.model, "") != self.fingerprint:
            raise ValueError(
                "the model's weights have changed since it was explained, and means of its parts "
                "belong to the old ones; call explain_parts again."
            )
        require_deterministic(self.model, rows)
        return rows


@dataclass(frozen=True, eq=False, repr=False)
class PartsExplanation(Explanation):
    """Outputs as base + one contribution per part + residual, row by row and output by output.

    An `Explanation` whose terms are parts of the network: what each adds to the outputs *directly*,
    by writing into the stream that the head reads. What later parts make of it is not in it: see
    `ablation`. The base is the output with every part at its mean over the calibration rows.

    Where rows have padding masks or lengths of their own, which tell the head where to look, means
    of parts give each row a base of its own. What it is above the mean base is a last part, "mask".

    Attributes:
        parts: The parts in the order of the terms.
        mean_outputs: Mean outputs over the calibration rows; with a norm before the head they
            differ from the base.
    """

    parts: tuple[Part, ...] = ()
    mean_outputs: FloatArray = field(default_factory=lambda: np.zeros(0))
    _subject: Any = None
    _notes: tuple[Finding, ...] = ()

    def __getitem__(self, key: Any) -> PartsExplanation:
        """Some rows, parts and outputs.

        `ablation` and `lens` then answer for these parts and outputs alone.
        """
        chosen = super().__getitem__(key)
        assert isinstance(chosen, PartsExplanation), "an explanation's slice is of its own kind"
        _, _, output_key = split_axes(key)
        outputs = find_positions(output_key, len(self.output_names), "outputs", self._output)
        by_name = {part.name: part for part in self.parts}
        subject = self._subject
        if subject is not None:
            columns = tuple(subject.columns[position] for position in outputs)
            subject = replace(subject, columns=columns)
        return replace(
            chosen,
            parts=tuple(by_name[name] for (name,) in chosen.terms),
            mean_outputs=self.mean_outputs[outputs],
            _subject=subject,
        )

    def __add__(self, other: Explanation) -> PartsExplanation:
        """The account of two networks' summed outputs; no single network is behind it."""
        if not isinstance(other, PartsExplanation):
            return NotImplemented
        total = super().__add__(other)
        assert isinstance(total, PartsExplanation), "a sum is of the kind of its first term"
        by_name = {part.name: part for part in (*other.parts, *self.parts)}
        return replace(
            total,
            parts=tuple(by_name[name] for (name,) in total.terms),
            mean_outputs=self.mean_outputs + other.mean_outputs,
            _subject=None,
        )

    def __mul__(self, factor: float) -> PartsExplanation:
        """The account of the outputs times a number; no network is behind it."""
        product = super().__mul__(factor)
        if not isinstance(product, PartsExplanation):
            return NotImplemented
        return replace(product, mean_outputs=self.mean_outputs * factor, _subject=None)

    __rmul__ = __mul__

    def __getstate__(self) -> dict[str, Any]:
        # The network stays behind: an account can be kept and sent without it.
        return {**self.__dict__, "_subject": None}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Where the stream ends, what is explained, and whether the residual is large."""
        return self._notes

    @property
    def plot(self) -> Plots:
        """Its plots: `parts()`, and those of every explanation."""
        return Plots(self, ("beeswarm", "importance", "ledger", "parts", "waterfall"))

    def ablation(self, X: ArrayLike, *, most: int | None = None) -> Ablation:
        """Measures what the outputs lose when a part is put at its calibration mean.

        The effect is measured through the whole network.

        One forward pass a part and batch, from the part on.

        Args:
            X: Rows as the model takes them.
            most: How many parts to measure: those with the largest effect by a first-order guess.
                All by default.

        Returns:
            The losses beside the direct contributions to the same rows.

        Example:
            >>> import torch, nobsp
            >>> torch.manual_seed(0)  # doctest: +SKIP
            >>> model = torch.nn.Sequential(
            ...     torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2)
            ... )
            >>> rows = torch.randn(50, 4)
            >>> effects = nobsp.explain_parts(model, rows).ablation(rows)
            >>> effects.effects.shape
            (50, 6, 2)
        """
        return measure_ablation(self, X, most=most)

    def lens(self, X: ArrayLike) -> Lens:
        """The outputs as they stand at each depth: later parts are at their calibration means.

        Args:
            X: Rows as the model takes them.

        Returns:
            Outputs after the embedding, and after each block.

        Raises:
            ValueError: If all parts are of one depth: units of a plain network, members of an
                ensemble.
        """
        return read_lens(self, X)


@in_ordinary_modes
def explain_parts(
    model: nn.Module,
    X: ArrayLike,
    *,
    parts: Detail = "auto",
    target: Target = None,
    background: ArrayLike | None = None,
    output_names: Sequence[str] | None = None,
    batch_size: int = 32,
) -> PartsExplanation:
    """Writes a network's outputs as a sum over its parts.

    Parts are the embedding, attention heads, MLPs, blocks, or units.

    The stream that the head reads is found by watching what is added to what while the model runs,
    whatever its layers are called. Norms on the way are carried by the integral of their slope from
    the mean stream to the row's, not by a frozen scale, so that base + parts + residual is the
    output, and the residual only what the integral misses.

    Args:
        model: A torch model that takes X as one tensor.
        X: Rows, images or token numbers.
        parts: How finely: "auto" for heads and MLPs (residual blocks of a CNN, members of an
            ensemble, units of the last layer of a plain network), "layers" without splitting
            attention into heads, "blocks", or "units".
        target: Numbers of the outputs to explain, or a function that takes them from the model's
            result. By default all of up to ten outputs, of more those that rows are predicted as.
        background: Rows whose means are the reference; X by default.
        output_names: Names of all outputs.
        batch_size: Rows at a time; at least two, since torch takes other steps for a single row.

    Returns:
        An explanation with parts as terms.

    Raises:
        ValueError: If the model cannot be taken apart; the message says where its stream ends.

    Example:
        >>> import torch, nobsp
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
        >>> encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        >>> model = torch.nn.Sequential(encoder, torch.nn.Flatten(), torch.nn.Linear(24, 2))
        >>> ex = nobsp.explain_parts(model, torch.randn(20, 3, 8))
        >>> ex.feature_names[:4]
        ('embedding', 'block 0, head 0', 'block 0, head 1', 'block 0, MLP')
        >>> bool(abs(ex.base_values + ex.values.sum(1) + ex.residual - ex.predictions).max() < 1e-9)
        True
    """
    require_choice("parts", parts, ("auto", "layers", "blocks", "units"))
    require_whole_number("batch_size", batch_size)
    module = module_of(model)
    rows = read_rows(module, X, name="X", batch_size=batch_size)
    require_deterministic(module, rows)
    reference = _read_reference(module, rows, background)
    if isinstance(target, type):
        raise TypeError(f"target must be numbers of outputs or a function, found {quote(target)}.")

    with watching(module, target) as record:
        batches = chain(reference.batches_of_several(), rows.batches_of_several())
        usual_rows = find_usual_rows(record, batches)
        anatomy = dissect(record, usual_rows, parts)
        watched = _Watched(record, anatomy, usual_rows)
        means = anatomy.means(watched.tapes(reference))
        mean_outputs, base, change = watched.mean_outputs(reference, means)
        predictions = watched.outputs(rows)
        columns = choose_outputs(predictions, target)
        accounts = [
            anatomy.account(tape, means, _columns(columns, tape.rows), change[list(columns)])
            for tape in watched.tapes(rows)
        ]
    names = _names_of_outputs(output_names, predictions.shape[1])
    subject = _Subject(
        model=module,
        anatomy=anatomy,
        means=means,
        base=base,
        change=change,
        usual_rows=usual_rows,
        target=target,
        columns=columns,
        batch_size=batch_size,
        row_shape=tuple(rows.tensor.shape[1:]),
        fingerprint=fingerprint_of(module, ""),
    )
    chosen = list(columns)
    return _explanation(
        accounts,
        subject,
        n_rows=len(rows.tensor),
        output_names=tuple(names[column] for column in columns),
        mean_outputs=mean_outputs[chosen].numpy(),
    )


def _read_reference(module: nn.Module, rows: Rows, background: ArrayLike | None) -> Rows:
    """The rows that means are taken over: the explained ones, or others of their shape."""
    reference = rows
    if background is not None:
        reference = read_rows(module, background, name="background", batch_size=rows.batch_size)
        _require_shape(reference, tuple(rows.tensor.shape[1:]), name="background")
        require_deterministic(module, reference, name="background")
    if len(reference.tensor) < 2:
        raise ValueError(
            f"{'X' if background is None else 'background'} has one row, and contributions are "
            "measured from the mean over rows; pass more rows as background."
        )
    return reference


@dataclass(frozen=True, eq=False)
class _Watched:
    """Batches of rows with everything that is computed from them."""

    record: Callable[[Tensor], Tape]
    anatomy: Anatomy
    usual_rows: Tensor

    def tapes(self, rows: Rows) -> Iterator[Tape]:
        """One tape at a time."""
        for batch in rows.batches_of_several():
            # A copy, as a model may write into its input, and it may be needed again.
            tape = self.record(batch.clone() if self.anatomy.probe.asks else batch)
            if tape.asks and not self.anatomy.probe.same_steps(tape):
                tape = self._beside_usual_rows(batch, alone=tape)
            self.anatomy.require_same(tape)
            yield tape

    def _beside_usual_rows(self, batch: Tensor, *, alone: Tape) -> Tape:
        """The usual steps for a batch that alone takes others; an error if they tell otherwise."""
        tape = self.record(torch.cat([batch, self.usual_rows]))
        tape = replace(tape, beside=len(self.usual_rows))
        expected = alone.values[alone.output]
        difference = (tape.values[tape.output][: tape.asked] - expected).abs().max()
        share = max(_SAME_OUTPUTS, _ROUNDINGS * torch.finfo(expected.dtype).eps)
        if difference > share * expected.abs().max():
            raise NoPartsError(
                "the model's output for a row depends on the other rows of its batch: it differs "
                f"by up to {float(difference):.3g} beside rows for which other steps are taken."
            )
        return tape

    def outputs(self, rows: Rows) -> Tensor:
        """All outputs, (rows, outputs), in float64."""
        outputs = [self.anatomy.outputs(tape).cpu() for tape in self.tapes(rows)]
        return torch.cat(outputs)[: len(rows.tensor)]

    def mean_outputs(self, rows: Rows, means: Means) -> tuple[Tensor, Tensor, Tensor]:
        """Mean outputs as they are, with every part at its mean, and how far these are apart."""
        total = torch.zeros(())
        total_base = torch.zeros(())
        total_change = torch.zeros(())
        for tape in self.tapes(rows):
            outputs = self.anatomy.outputs(tape).cpu()
            base = self.anatomy.base(tape, means).cpu()
            total = total + outputs.sum(0)
            total_base = total_base + base.sum(0)
            total_change = total_change + (outputs - base).abs().sum(0)
        n_rows = len(rows.tensor)
        return total / n_rows, total_base / n_rows, total_change / n_rows


def _columns(columns: Sequence[int], rows: int) -> Tensor:
    return torch.tensor(columns).expand(rows, -1)


def _joined(batches: Sequence[Tensor], n_rows: int) -> FloatArray:
    """Batches as one array, without the copy that a single row was run beside."""
    joined: FloatArray = torch.cat(list(batches))[:n_rows].cpu().numpy()
    return joined


def _require_shape(rows: Rows, row_shape: tuple[int, ...], *, name: str) -> None:
    """An error where rows have another shape than those explained, for which no mean is known."""
    shape = tuple(rows.tensor.shape[1:])
    if shape != row_shape:
        raise ValueError(
            f"{name} has rows of the shape {shape}, and the explained ones have {row_shape}; pass "
            "rows of that shape, with one more axis for the rows themselves."
        )


def _subject_of(explanation: PartsExplanation) -> _Subject:
    """The network behind an explanation; an error where it was left behind."""
    if explanation._subject is None:
        raise ValueError(
            "no network is behind this explanation, since it was read from a pickle, copied or "
            "computed from others; call explain_parts and ask what that returns."
        )
    subject: _Subject = explanation._subject
    return subject


def _names_of_outputs(names: Sequence[str] | None, n_outputs: int) -> tuple[str, ...]:
    if names is None:
        return number_outputs(n_outputs)
    texts = names_of("output_names", names)
    if len(texts) != n_outputs:
        raise ValueError(
            f"output_names must name {count(n_outputs, 'output')}, found {len(texts)}."
        )
    return texts


def _explanation(
    accounts: Sequence[Account],
    subject: _Subject,
    *,
    n_rows: int,
    output_names: tuple[str, ...],
    mean_outputs: FloatArray,
) -> PartsExplanation:
    """Accounts of batches as one explanation."""
    values = _joined([account.contributions for account in accounts], n_rows)
    predictions = _joined([account.outputs for account in accounts], n_rows)
    base = subject.base[list(subject.columns)].numpy()
    parts = subject.anatomy.parts
    of_masks = _joined([account.base for account in accounts], n_rows) - base
    if subject.anatomy.has_masks and _is_seen(of_masks, predictions, _precision(subject.anatomy)):
        parts = (*parts, MASK)
        values = np.concatenate([values, of_masks[:, np.newaxis]], axis=1)
    residual = predictions - base - values.sum(1)
    names = tuple(part.name for part in parts)

    return PartsExplanation(
        values=values,
        base_values=base,
        residual=residual,
        predictions=predictions,
        terms=tuple((name,) for name in names),
        feature_names=names,
        output_names=output_names,
        # What a part holds is no number; plots colour by what it adds, over all outputs.
        data=np.abs(values).sum(2),
        outside=np.zeros(values.shape[:2], dtype=bool),
        baseline_contributions=np.zeros(values.shape[1:]),
        parts=parts,
        mean_outputs=mean_outputs,
        _subject=subject,
        _notes=_notes(subject.anatomy, predictions, predictions - base, residual),
    )


def _precision(anatomy: Anatomy) -> float:
    """The rounding of the numbers that the network gives."""
    return torch.finfo(anatomy.probe.values[anatomy.stream.output].dtype).eps


def _is_seen(of_masks: FloatArray, predictions: FloatArray, precision: float) -> bool:
    """Whether bases of rows differ by more than rounding.

    Where they do by less, rows have the account that they have beside rows of other masks.
    """
    rounding = _ROUNDINGS_OF_BASES * precision * float(np.abs(predictions).mean())
    return bool(np.abs(of_masks).max() > rounding)


def _notes(
    anatomy: Anatomy, predictions: FloatArray, change: FloatArray, residual: FloatArray
) -> tuple[Finding, ...]:
    findings = []
    stream = anatomy.stream
    if stream.end:
        before = "All before is one part."
        if stream.stem is None:
            before = "Each term of that sum has all before in it."
        message = (
            f"the stream is followed back to {stream.end_module!r} and no further: {stream.end}. "
            f"{before}"
        )
        findings.append(Finding("note", "stream_end", "", message))
    if anatomy.probe.output != stream.output:
        message = (
            "the model ends in probabilities; predictions, base and contributions are of the "
            "logits that these are made of."
        )
        findings.append(Finding("note", "logits", "", message))
    if numbering := _numbering(anatomy):
        findings.append(numbering)
    size = np.abs(change).mean()
    share = float(np.abs(residual).mean() / size) if size > 0 else 0.0
    rounding = _ROUNDINGS * _precision(anatomy) * np.abs(predictions).mean()
    is_rounding = np.abs(residual).mean() <= rounding
    if share > _LARGE_RESIDUAL and not is_rounding:
        message = (
            f"the parts leave {percent(share)} of the outputs' difference from the base "
            "unexplained."
        )
        findings.append(Finding("warning", "large_residual", "", message))
    return tuple(findings)


def _numbering(anatomy: Anatomy) -> Finding | None:
    """What numbers of outputs mean, where a row has a table of outputs."""
    shape = tuple(anatomy.probe.values[anatomy.stream.output].shape[1:])
    if sum(size > 1 for size in shape) < 2:
        return None
    last = ", ".join(str(size - 1) for size in shape)
    message = (
        f"a row has outputs of the shape {shape}, numbered one after another: the last, "
        f"{math.prod(shape) - 1}, is [{last}]. To explain those of one place, such as the next "
        "word, pass a function as target."
    )
    return Finding("note", "outputs_numbered", "", message)


@dataclass(frozen=True, eq=False)
class Ablation:
    """What outputs lose when a part is put at its calibration mean, beside what it adds directly.

    Attributes:
        effects: Output minus the output without the part, (rows, parts, outputs); NaN for parts
            that were not measured, and for masks, which have no mean.
        direct: What the part adds to the stream that the head reads, (rows, parts, outputs).
        parts: The parts.
        output_names: Names of the outputs.
        measured: Which parts were measured, (parts,).
        base_values: Outputs with every part at its mean, (outputs,).
        lens: Outputs by depth; None for a network whose parts are all of one depth.
    """

    effects: FloatArray
    direct: FloatArray
    parts: tuple[Part, ...]
    output_names: tuple[str, ...]
    measured: np.ndarray[Any, np.dtype[np.bool_]]
    base_values: FloatArray
    lens: Lens | None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts."""
        return tuple(part.name for part in self.parts)

    @property
    def indirect(self) -> FloatArray:
        """What later parts add to a direct contribution, or repair, (rows, parts, outputs)."""
        return self.effects - self.direct

    @property
    def plot(self) -> Plots:
        """Its plot: `parts()`."""
        return Plots(self, ("parts",))

    def to_frame(self, output: int | str = 0) -> NativeFrame:
        """Mean absolute direct contribution, effect and indirect effect of each part.

        The part with the largest effect comes first.

        Args:
            output: Which output.
        """
        column = self.column(output)
        sizes = {
            "part": np.array(self.names),
            "direct": np.abs(self.direct[..., column]).mean(0),
            "effect": np.abs(self.effects[..., column]).mean(0),
            "indirect": np.abs(self.indirect[..., column]).mean(0),
        }
        order = np.argsort(-np.nan_to_num(sizes["effect"], nan=-1.0), kind="stable")
        return frame_like(np.zeros((len(order), 1)), {k: v[order] for k, v in sizes.items()})

    def column(self, output: int | str) -> int:
        """The position of an output."""
        if isinstance(output, str):
            if output not in self.output_names:
                raise ValueError(
                    f"there is no output {output!r}; {suggest(output, self.output_names)}"
                )
            return self.output_names.index(output)
        if not isinstance(output, int | np.integer) or isinstance(output, bool):
            raise TypeError(f"output must be an output's position or name, found {quote(output)}.")
        if not 0 <= output < len(self.output_names):
            raise ValueError(
                f"output={output!r}: there are {count(len(self.output_names), 'output')}, from 0."
            )
        return int(output)

    def __repr__(self) -> str:
        rows, parts, outputs = self.effects.shape
        strongest = ", ".join(self.names[part] for part in self._strongest()[:_PRINTED_PARTS])
        measured = int(self.measured.sum())
        return (
            f"Ablation({count(rows, 'row')}, {measured} of {count(parts, 'part')}, "
            f"{count(outputs, 'output')}; strongest: {strongest})"
        )

    def _repr_html_(self) -> str:
        rows, parts, outputs = self.effects.shape
        effects, direct = _mean_sizes(self.effects), _mean_sizes(self.direct)
        strongest = [
            notebook.Bar(
                self.names[part],
                float(effects[part]),
                beside=f"{notebook.write_number(float(direct[part]))} directly",
                colour=notebook.NEUTRAL,
            )
            for part in self._strongest()[:_SHOWN_PARTS]
        ]
        measured = int(self.measured.sum())
        others = measured - len(strongest)
        return notebook.card(
            f"{measured} of {count(parts, 'part')} put at their means",
            notebook.line(f"{count(rows, 'row')}, {count(outputs, 'output')}"),
            notebook.bars(strongest, heading="mean size of what is lost without a part")
            if rows and outputs and strongest
            else "",
            notebook.line(f"and {count(others, 'other part')}: to_frame()") if others else "",
        )

    def _strongest(self) -> list[int]:
        """Positions of the parts that were measured, the one with the largest effect first."""
        order = np.argsort(-_mean_sizes(self.effects), kind="stable")
        return [int(part) for part in order if self.measured[part]]


def _mean_sizes(contributions: FloatArray) -> FloatArray:
    """Mean absolute contributions of parts, (parts,); nothing where none was measured."""
    totals = np.nan_to_num(np.abs(contributions)).sum((0, 2))
    sizes: FloatArray = totals / max(len(contributions) * contributions.shape[2], 1)
    return sizes


@dataclass(frozen=True, eq=False)
class Lens:
    """Outputs as they stand at each depth of the stream.

    Attributes:
        outputs: (rows, depths, outputs); the last depth is the model's own output.
        depths: What was added last: "embedding", "block 0", "block 1", …
        output_names: Names of the outputs.
    """

    outputs: FloatArray
    depths: tuple[str, ...]
    output_names: tuple[str, ...]

    @property
    def plot(self) -> Plots:
        """Its plot: `lens()`."""
        return Plots(self, ("lens",))

    def __repr__(self) -> str:
        rows, _, outputs = self.outputs.shape
        return (
            f"Lens({count(rows, 'row')}, {count(outputs, 'output')} at "
            f"{count(len(self.depths), 'depth')}: {', '.join(self.depths)})"
        )

    def _repr_html_(self) -> str:
        rows, _, outputs = self.outputs.shape
        missing = _mean_sizes(self.outputs - self.outputs[:, -1:])
        lines = [
            notebook.Bar(depth, float(size), colour=notebook.NEUTRAL)
            for depth, size in zip(self.depths, missing, strict=True)
        ]
        return notebook.card(
            f"{count(rows, 'row')}, {count(outputs, 'output')} at {count(len(lines), 'depth')}",
            notebook.bars(lines, heading="mean distance from the model's own outputs"),
        )


@in_ordinary_modes
def measure_ablation(
    explanation: PartsExplanation, X: ArrayLike, *, most: int | None = None
) -> Ablation:
    """The losses of every part, or of the strongest by a first-order guess."""
    if most is not None:
        require_whole_number("most", most)
    subject = _subject_of(explanation)
    rows = subject.read(X)
    anatomy = subject.anatomy
    columns = subject.columns
    parts = explanation.parts
    effects = []
    direct = []
    with watching(subject.model, subject.target) as record:
        watched = _Watched(record, anatomy, subject.usual_rows)
        chosen = _strongest(watched, rows, subject, parts, most)
        for tape in watched.tapes(rows):
            account = anatomy.account(
                tape, subject.means, _columns(columns, tape.rows), subject.change[list(columns)]
            )
            contributions = _contributions_of(parts, account, subject)
            _require_finite(account.outputs)
            lost = torch.full_like(contributions, torch.nan)
            for position in chosen:
                without = anatomy.ablate(tape, subject.means, parts[position])
                lost[:, position] = account.outputs - without[:, list(columns)]
            effects.append(lost)
            direct.append(contributions)
    measured = np.zeros(len(parts), dtype=bool)
    measured[chosen] = True

    return Ablation(
        effects=_joined(effects, len(rows.tensor)),
        direct=_joined(direct, len(rows.tensor)),
        parts=parts,
        output_names=explanation.output_names,
        measured=measured,
        base_values=explanation.base_values,
        lens=read_lens(explanation, X) if _depths(anatomy) else None,
    )


def _contributions_of(parts: Sequence[Part], account: Account, subject: _Subject) -> Tensor:
    """Direct contributions of chosen parts, (rows, parts, outputs)."""
    of_masks = account.base - subject.base[list(subject.columns)].to(account.base)
    followed = subject.anatomy.parts
    contributions = [
        of_masks if part == MASK else account.contributions[:, followed.index(part)]
        for part in parts
    ]
    return torch.stack(contributions, dim=1)


def _strongest(
    watched: _Watched, rows: Rows, subject: _Subject, parts: Sequence[Part], most: int | None
) -> list[int]:
    """Positions of the parts to measure; a mask cannot be."""
    positions = [position for position, part in enumerate(parts) if part != MASK]
    if most is None or most >= len(positions):
        return positions
    terms = [subject.anatomy.parts.index(parts[position]) for position in positions]
    size = torch.zeros(len(terms), dtype=torch.float64)
    for tape in watched.tapes(rows):
        columns = _columns(subject.columns, tape.rows)
        guesses = watched.anatomy.screen(tape, subject.means, columns)[:, terms]
        size += guesses.abs().sum((0, 2)).cpu()
    strongest = size.argsort(descending=True)[:most].tolist()
    return sorted(positions[rank] for rank in strongest)


@in_ordinary_modes
def read_lens(explanation: PartsExplanation, X: ArrayLike) -> Lens:
    """Outputs after the embedding and after each block."""
    subject = _subject_of(explanation)
    anatomy = subject.anatomy
    depths = _depths(anatomy)
    if not depths:
        raise ValueError(
            "this network has no lens: its parts, units or members of an ensemble, are all of one "
            "depth."
        )
    rows = subject.read(X)
    outputs = []
    with watching(subject.model, subject.target) as record:
        for tape in _Watched(record, anatomy, subject.usual_rows).tapes(rows):
            at_depths = [
                anatomy.lens(tape, subject.means, position)[:, list(subject.columns)]
                for position in depths.values()
            ]
            outputs.append(torch.stack(at_depths, dim=1))
            _require_finite(outputs[-1])
    return Lens(_joined(outputs, len(rows.tensor)), tuple(depths), explanation.output_names)


def _require_finite(outputs: Tensor) -> None:
    """An error where a model has no answer for some rows."""
    if not bool(outputs.isfinite().all()):
        raise ValueError(
            "model answers NaN or infinity for rows of X; leave them out, or check their scale."
        )


def _depths(anatomy: Anatomy) -> dict[str, int]:
    """The last sum of each block, by the block's name; none where parts are all of one depth."""
    depths: dict[str, int] = {}
    if anatomy.stream.stem is not None:
        depths[anatomy.parts[0].name] = -1
    for part in anatomy.parts:
        join = max(source.join for source, _ in part.pieces)
        if part.block is not None:
            depths[f"block {part.block}"] = join
    # Blocks may be merged or not: what counts is where each ends.
    return dict(sorted(depths.items(), key=lambda item: item[1]))
