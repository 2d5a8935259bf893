"""Sums over calibration rows: all that Algorithm 1 needs of them, in memory that does not grow.

Per term the centred products of the columns [target | reference | outputs] are added up. They add
over batches, ranks and machines, so rows may be read once and anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from nobsp.network.columns import Subset, Summary
from nobsp.network.readout import Network, Readout
from nobsp.projection import Moments, update_in_turn
from nobsp.published.plan import OUTPUTS, REFERENCE, TARGET, Plan

MomentsByTerm = dict[Subset, list[Moments]]

# Blocks of calibration rows whose moments are kept apart: bands draw from them with replacement.
BLOCKS = 12
# With fewer blocks the bands would be unreliable, so only one block is kept (no bands).
FEWEST_BLOCKS = 8
# Most memory for all blocks together; past it bands are given up before terms are.
BLOCK_BYTES = 400 << 20


@dataclass(eq=False)
class Accumulator:
    """Moments of calibration rows, by term in a few blocks of rows kept apart: a `State`."""

    # Row i goes to block i modulo their number: of a sorted table each block sees all of it,
    # whatever the batches are.
    parts: MomentsByTerm

    @classmethod
    def of(cls, plan: Plan, readout: Readout, *, memory: int = BLOCK_BYTES) -> Accumulator:
        """One without rows, with as many blocks as the memory in bytes allows."""
        widths_by_term = plan.widths_by_term(readout.width, readout.outputs)
        size = sum(bytes_of_moments(widths) for widths in widths_by_term.values())
        limit = min(memory, BLOCK_BYTES)

        n_blocks = 1
        if FEWEST_BLOCKS * size <= limit:
            n_blocks = FEWEST_BLOCKS
        if BLOCKS * size <= limit:
            n_blocks = BLOCKS
        return cls(
            {
                term: [Moments(widths) for _ in range(n_blocks)]
                for term, widths in widths_by_term.items()
            }
        )

    @property
    def rows(self) -> int:
        """How many rows were added."""
        blocks_of_first_term = next(iter(self.parts.values()))
        return sum(moments.rows for moments in blocks_of_first_term)

    def update(self, batch: Iterable[tuple[Subset, Mapping[str, Tensor]]]) -> None:
        """Adds a batch: the columns of each term's moments."""
        first_row = self.rows
        for term, columns in batch:
            update_in_turn(self.parts[term], columns, first=first_row)

    def merge(self, other: Accumulator) -> Accumulator:
        """These rows and then the other's, whose blocks move on to where these end."""
        if self._block_counts() != other._block_counts():
            raise ValueError("the two sums differ in terms or blocks, and cannot be added up")
        # Row i lives in block i % n, so the other's blocks shift by our rows.
        n_rows = self.rows
        joined: MomentsByTerm = {}
        for term, blocks in self.parts.items():
            others = other.parts[term]
            joined[term] = [
                block.merge(others[(position - n_rows) % len(blocks)])
                for position, block in enumerate(blocks)
            ]
        return Accumulator(joined)

    def all_reduce(self, reduce: Callable[[Moments], Moments]) -> None:
        """Replaces every block by that of all ranks."""
        for blocks in self.parts.values():
            # One after another: all of them twice would be the most that is ever held.
            for position, moments in enumerate(blocks):
                blocks[position] = reduce(moments)

    def _block_counts(self) -> dict[Subset, int]:
        return {term: len(blocks) for term, blocks in self.parts.items()}


def add_rows(plan: Plan, state: Accumulator, batch: Tensor, network: Network) -> None:
    """Adds a batch of input rows to the moments of a plan's terms.

    Per term the columns are target (z_S in its basis), reference (z_(S)) and outputs.
    """
    samples, represent, outputs = network.run(batch)
    targets = plan.isolation.products(represent, samples, plan.bases)
    references = plan.isolation.references(represent, samples, plan.bases)
    # Both go through the terms in the order of the bases.
    state.update(
        (term, {TARGET: target, REFERENCE: reference.cpu(), OUTPUTS: outputs})
        for (term, target), reference in zip(targets, references, strict=True)
    )


def add_rows_and_summarise(
    plan: Plan, states: tuple[Summary, Accumulator], batch: Tensor, network: Network
) -> None:
    """Adds a batch of rows to the moments and to the summary, where rows are read only once."""
    summary, moments = states
    summary.update(batch)
    add_rows(plan, moments, batch, network)


def bytes_of_moments(widths: Mapping[str, int]) -> int:
    """What one set of moments takes: a square of float64 over all columns."""
    return 8 * sum(widths.values()) ** 2


def room_for_moments(plan: Plan, memory: int) -> int:
    """Bytes for sums: half of all, less where bases are large; a quarter is left for batches."""
    return min(memory // 2, 3 * memory // 4 - plan.bytes_of_bases())


def split_plan(plan: Plan, readout: Readout, *, memory: int) -> list[Plan]:
    """The plan in as many stages as its moments need, each with some of the terms."""
    room = room_for_moments(plan, memory)
    sizes = {
        term: bytes_of_moments(widths)
        for term, widths in plan.widths_by_term(readout.width, readout.outputs).items()
    }
    largest = max(sizes.values())
    if largest > room:
        for_sums = 2 * largest
        for_both = math.ceil(4 * (largest + plan.bytes_of_bases()) / 3)
        raise ValueError(
            f"memory is {memory:,} bytes but this calibration needs at least "
            f"{max(for_sums, for_both):,}; pass engine=nobsp.Local(memory=...) to allow that much."
        )

    stages: list[list[Subset]] = [[]]
    used = 0
    for term in plan.terms:
        if used + sizes[term] > room:
            stages.append([])
            used = 0
        stages[-1].append(term)
        used += sizes[term]
    return [plan.only(terms) for terms in stages]
