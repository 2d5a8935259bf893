"""What `prune` returns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from nobsp import notebook
from nobsp._typing import ArrayLike, NativeFrame
from nobsp.arguments import count, percent
from nobsp.findings import Finding, describe_findings
from nobsp.frames import frame_like
from nobsp.numerics import clopper_pearson
from nobsp.parts.running import read_rows, require_deterministic

# Rows for each column of a layer below which a fit to them is a guess.
_FEW_ROWS = 2
# Rows that a program is traced with; it takes any number of them.
_EXAMPLE_ROWS = 4
# How far above a budget counts as kept, as a share of it: parts are whole, and biases stay.
_BUDGET_MARGIN = 0.02
# Layers that a notebook shows.
_SHOWN_LAYERS = 8


@dataclass(frozen=True)
class Size:
    """A number before and after."""

    before: int
    after: int

    @property
    def ratio(self) -> float:
        """What is left, as a share."""
        return self.after / self.before if self.before else 1.0


@dataclass(frozen=True)
class PrunedLayer:
    """A layer that lost parts."""

    # the layer that had the parts: the one that makes them, or the attention with these heads
    name: str
    made_by: tuple[str, ...]  # the layers that make them, each of which has fewer outputs now
    read_by: str  # the layer that reads them, which has fewer inputs now
    # "units", "channels", "heads", or "head groups": heads that share keys and values, with these
    kind: str
    before: int
    after: int
    stayed: tuple[int, ...]  # numbers of the parts that stayed
    rows_per_column: float  # calibration rows for each number that the layer reads
    cost: float  # expected squared change of the outputs, by what the others could not take over


@dataclass(frozen=True)
class WholeLayer:
    """A layer that kept all its parts."""

    name: str
    reason: str


@dataclass(frozen=True)
class Budget:
    """The share that was to stay, and of what."""

    share: float
    of: Literal["multiplications", "parameters"]


@dataclass(frozen=True, eq=False)
class Pruned:
    """A smaller network, what went, and what it cost on rows that nothing was fitted to.

    Attributes:
        model: The smaller network, an ordinary module in evaluation mode.
        layers: The layers that lost units, channels or heads.
        left_whole: The layers that kept all of theirs, each with the reason.
        expected_change: Mean squared change of the outputs that was foreseen, as a share of their
            variance; NaN where they do not vary on held-out rows. It means nothing where
            `is_foreseen` is False, and is too small where many layers lose much: `measured_change`
            is what to go by.
        measured_change: The same, measured on held-out rows.
        same_class: Share of held-out rows whose largest output is the same; None where outputs are
            not (rows, classes).
        accuracy: On held-out rows before and after, where labels were given and outputs are (rows,
            classes).
        parameters: How many, before and after.
        multiplications: How many per row, before and after.
        held_out_rows: How many rows the measurements are of.
        budget: What was to stay, where a budget was given.
        unused_labels: Whether labels were given that the outputs could not be compared with.
    """

    model: nn.Module = field(repr=False)
    layers: tuple[PrunedLayer, ...]
    left_whole: tuple[WholeLayer, ...]
    expected_change: float
    measured_change: float
    same_class: float | None
    accuracy: tuple[float, float] | None
    parameters: Size
    multiplications: Size
    held_out_rows: int
    budget: Budget | None = None
    unused_labels: bool = False

    @property
    def is_foreseen(self) -> bool:
        """Whether `expected_change` means anything.

        It does not where layers read more numbers than rows can tell, and so fit these rows.

        Their costs are then far too small, down to none at all.
        """
        return all(layer.rows_per_column >= _FEW_ROWS for layer in self.layers)

    @property
    def same_class_interval(self) -> tuple[float, float] | None:
        """Clopper and Pearson's 95% interval of `same_class`; None where that is None.

        It says how much as many held-out rows as there are can tell.
        """
        if self.same_class is None:
            return None
        return clopper_pearson(self.same_class * self.held_out_rows, self.held_out_rows, 0.95)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What to know before the smaller network is used.

        There may be too few rows, a budget missed, or something that was not measured.
        """
        candidates = (
            self._few_rows(),
            self._missed_budget(),
            self._not_measurable(),
            self._unused_labels(),
        )
        return tuple(finding for finding in candidates if finding is not None)

    def _few_rows(self) -> Finding | None:
        """Layers with too few calibration rows, where what others can take over is not known."""
        few = [layer for layer in self.layers if layer.rows_per_column < _FEW_ROWS]
        if not few:
            return None
        worst = min(few, key=lambda layer: layer.rows_per_column)
        message = (
            f"{count(len(few), 'layer')} had fewer than {_FEW_ROWS} calibration rows for each "
            f"number they read ({worst.read_by!r}: {worst.rows_per_column:.1f}), so that what was "
            "foreseen means nothing; pass more rows."
        )
        return Finding("warning", "few_rows", worst.name, message)

    def _missed_budget(self) -> Finding | None:
        if self.budget is None:
            return None
        size = self.multiplications if self.budget.of == "multiplications" else self.parameters
        if size.ratio <= self.budget.share * (1 + _BUDGET_MARGIN):
            return None
        message = (
            f"the budget of {percent(self.budget.share)} of {self.budget.of} was not reached, "
            f"{percent(size.ratio)} are left: every part that can go is gone, or layers stay whole "
            "(left_whole)."
        )
        return Finding("warning", "budget_missed", "", message)

    def _not_measurable(self) -> Finding | None:
        if not math.isnan(self.measured_change):
            return None
        message = (
            "the change is not measurable: outputs do not vary over "
            f"{count(self.held_out_rows, 'held-out row')}; pass more rows, or a larger held_out."
        )
        return Finding("warning", "not_measurable", "", message)

    def _unused_labels(self) -> Finding | None:
        if not self.unused_labels:
            return None
        message = (
            "accuracy was not measured: the model does not return (rows, classes), so y was not "
            "used."
        )
        return Finding("warning", "labels_not_used", "", message)

    def export(self, X: ArrayLike) -> torch.export.ExportedProgram:
        """The smaller network as a program of `torch.export`, for batches of any size.

        Language models return the keys and values of all tokens beside their outputs, which no
        program can: it is made without them, as `use_cache=False` does. It is of evaluation mode.
        The network itself is left as it is.

        Args:
            X: Rows as the network takes them, two or more.

        Returns:
            What `torch.export.save(program, "small.pt2")` writes.

        Raises:
            ValueError: If torch can make no such program of the network, smaller or not.

        Example:
            >>> import torch, nobsp
            >>> model = torch.nn.Sequential(
            ...     torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)
            ... )
            >>> rows = torch.randn(500, 4)
            >>> program = nobsp.prune(model, rows, keep=0.5).export(rows)
            >>> tuple(program.module()(rows[:7]).shape)
            (7, 2)
        """
        rows = read_rows(self.model, X, name="X", batch_size=_EXAMPLE_ROWS)
        if len(rows.tensor) < 2:
            raise ValueError(f"X has {count(len(rows.tensor), 'row')}; export needs two or more.")
        require_deterministic(self.model, rows)
        example = next(rows.batches())
        batch = torch.export.Dim("batch")
        with _without_cache(self.model), _in_evaluation_mode(self.model):
            try:
                return torch.export.export(self.model, (example,), dynamic_shapes=({0: batch},))
            except (RuntimeError, ValueError) as failure:
                reason = str(failure).partition("\n")[0]
                raise ValueError(
                    f"the network cannot be made a program for batches of any size ({reason}). "
                    "Where its forward pass fixes the number of rows, as len(x) does, take "
                    "x.shape[0]; or save the state dict of `model`."
                ) from failure

    def to_frame(self) -> NativeFrame:
        """One line per layer, what went and what it cost, in a pandas frame, or a polars one.

        It is a polars frame where pandas is missing.
        """
        columns = {
            "layer": np.array([layer.name for layer in self.layers]),
            "read_by": np.array([layer.read_by for layer in self.layers]),
            "kind": np.array([layer.kind for layer in self.layers]),
            "before": np.array([layer.before for layer in self.layers]),
            "after": np.array([layer.after for layer in self.layers]),
            "cost": np.array([layer.cost for layer in self.layers]),
        }
        return frame_like(np.zeros((len(self.layers), 1)), columns)

    def _describe_change(self) -> str:
        if math.isnan(self.measured_change):
            return "the change of outputs is not measurable"
        changed = f"outputs changed by {percent(self.measured_change)} of their variance"
        if not self.is_foreseen:
            return changed
        return f"{changed} ({percent(self.expected_change)} expected)"

    def _describe_same_class(self) -> str:
        assert self.same_class is not None
        assert self.same_class_interval is not None
        low, high = self.same_class_interval
        return f"{percent(self.same_class)} [{percent(low)}, {percent(high)}]"

    def _describe_held_out(self) -> list[str]:
        """What held-out rows say of the smaller network, line by line."""
        lines = [f"on {count(self.held_out_rows, 'held-out row')}: {self._describe_change()}"]
        if self.same_class is not None:
            lines.append(f"the same class for {self._describe_same_class()}")
        if self.accuracy is not None:
            before, after = self.accuracy
            lines.append(f"accuracy {before:.3f} before, {after:.3f} after")
        return lines

    def __repr__(self) -> str:
        lines = [
            f"Pruned({count(len(self.layers), 'layer')} smaller, {percent(self.parameters.ratio)} "
            f"of parameters and {percent(self.multiplications.ratio)} of multiplications left)",
            *self._describe_held_out(),
        ]
        if self.findings:
            lines += describe_findings(self.findings)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        left = percent(self.multiplications.ratio)
        layers = [
            notebook.Bar(
                layer.name,
                float(layer.after),
                beside=f"of {layer.before:,}",
                colour=notebook.NEUTRAL,
            )
            for layer in self.layers[:_SHOWN_LAYERS]
        ]
        others = len(self.layers) - len(layers)
        return notebook.card(
            f"{count(len(self.layers), 'layer')} smaller",
            notebook.share_bar(
                self.parameters.ratio,
                f"{percent(self.parameters.ratio)} of parameters, {left} of multiplications left",
            ),
            *(notebook.line(text) for text in self._describe_held_out()),
            notebook.bars(layers, heading="parts left in each layer") if layers else "",
            notebook.line(f"and {count(others, 'other layer')}: to_frame()") if others else "",
            notebook.findings(self.findings),
        )


@contextmanager
def _in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Keeps a network in evaluation mode.

    A program has no modes: dropout must not become part of it where the network was just trained.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def _without_cache(model: nn.Module) -> Iterator[None]:
    """Language models that do not return the keys and values of all tokens."""
    configurations: dict[int, Any] = {}
    for module in model.modules():
        configuration = getattr(module, "config", None)
        if getattr(configuration, "use_cache", None) is True:
            configurations[id(configuration)] = configuration
    for configuration in configurations.values():
        configuration.use_cache = False
    try:
        yield
    finally:
        for configuration in configurations.values():
            configuration.use_cache = True
