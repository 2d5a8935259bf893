"""Along which axis of a sequence a model walks, by what its layers are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

# Sequences that are remembered of one pass: those near the input are the ones that are asked about.
_MOST_SEQUENCES = 16

_ALONG_SECOND_AXIS = (nn.Linear, nn.LayerNorm, nn.MultiheadAttention, nn.TransformerEncoderLayer)


@dataclass(eq=False)
class TimeAxis:
    """Sequences (n, time, channels) that layers of a known kind were given in a pass."""

    recurrent: list[Tensor] = field(default_factory=list)  # by recurrent layers and convolutions
    pointwise: list[Tensor] = field(default_factory=list)  # by layers that work on the last axis
    steps: set[int] = field(default_factory=set)  # numbers of time steps of recurrent layers

    def note(self, part: nn.Module, passing: Any) -> None:
        """Remember what a layer is given."""
        if not isinstance(passing, Tensor) or passing.ndim != 3:
            return
        if isinstance(part, nn.RNNBase):
            sequence = passing if part.batch_first else passing.transpose(0, 1)
            self.steps.add(sequence.shape[1])
            self._remember(self.recurrent, sequence)
        elif isinstance(part, nn.Conv1d):
            # A kernel of one step walks along no axis; it treats the second one as channels all the
            # same.
            self._remember(self.recurrent, passing.mT)
        elif isinstance(part, _ALONG_SECOND_AXIS):
            self._remember(self.pointwise, passing)

    def layout_of(self, tensor: Tensor) -> Literal["first", "tokens"] | None:
        """Whether (n, a, b) is "tokens", (n, time, channels), or has its channels "first".

        None where that is not known.
        """
        for sequences in (self.recurrent, self.pointwise):
            if any(_equal(tensor, sequence) for sequence in sequences):
                return "tokens"
            if any(_equal(tensor.mT, sequence) for sequence in sequences):
                return "first"

        lengths = tensor.shape[1:]
        timed = [length in self.steps for length in lengths]
        if timed == [True, False]:
            return "tokens"
        if timed == [False, True]:
            return "first"
        return None

    @staticmethod
    def _remember(sequences: list[Tensor], sequence: Tensor) -> None:
        if len(sequences) < _MOST_SEQUENCES:
            sequences.append(sequence.detach().clone())


def _equal(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.equal(first, second)
