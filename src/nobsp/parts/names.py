"""Parts under the names that people give them: "embedding", "block 3, head 2", "block 3, MLP"."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nobsp.parts.stream import Branch, Heads, Join, Stream

# A layer of a repeated kind has a number in its name: blocks.3, encoder_layer_3, layer2.1.
_NUMBERED = re.compile(r"\d")
_ANY_NUMBER = re.compile(r"\d+")
# A word of a name that is nothing but a number.
_WHOLE_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(frozen=True)
class Source:
    """A tensor that is a part, or several parts beside each other."""

    value: int  # its number on the tape
    term: (
        int  # the number of the term of the stream that it becomes; the same where it is that term
    )
    join: int  # the position of the sum that it is added in; −1 for what the first sum finds
    heads: Heads | None = None  # where it is the heads of an attention layer
    unit_axis: int | None = None  # where it is the units of a layer
    count: int = 1  # how many parts it holds

    def slices(self, by_rows: Tensor) -> Tensor:
        """A tensor of its shape with rows first, as (rows, parts, all else)."""
        if self.heads is not None:
            if self.heads.merged:
                by_rows = torch.unflatten(by_rows, 1, (-1, self.count))
            return by_rows.movedim(2, 1).flatten(2)
        if self.unit_axis is not None:
            # Behind the rows stands what shares their axis.
            return by_rows.movedim(self.unit_axis + 1, 1).flatten(2)
        return by_rows.flatten(1).unsqueeze(1)


@dataclass(frozen=True)
class Part:
    """One part."""

    name: str  # as people write it
    # "embedding", "head", "attention", "MLP", "layer", "block", "branch", "unit" or "mask"
    kind: str
    block: int | None  # counted from 0 along the stream; None for what is in no block
    number: int | None  # of a head in its layer, or of a unit
    module: str  # the layer it comes from
    # the tensors it is made of, and which slice of each; none for the mask
    pieces: tuple[tuple[Source, int], ...]


# What a row's own mask or length makes of the other parts' means: no tensor of the stream.
MASK = Part("mask", "mask", None, None, "", ())


def name_parts(stream: Stream, *, split_heads: bool = True) -> tuple[Part, ...]:
    """Parts in the order in which they write into the stream, each under a name of its own."""
    parts: list[Part] = []
    if stream.stem is not None:
        name = f"up to {stream.end_module}" if stream.end else "embedding"
        source = Source(stream.stem, stream.stem, join=-1)
        parts.append(Part(name, "embedding", None, None, stream.end_module, ((source, 0),)))

    branches = [branch for join in stream.joins for branch in join.branches]
    blocks = _blocks_of(branches)
    sizes = Counter(blocks.values())
    numbers = {block: number for number, block in enumerate(sizes)}
    has_attention = any(branch.attends for branch in branches)
    for position, join in enumerate(stream.joins):
        if join.trunk is None:
            parts += _members(join, position)
            continue
        for branch in join.branches:
            block = blocks[branch.value]
            kind = "MLP" if has_attention else "layer"
            if branch.attends:
                kind = "attention"
            elif sizes[block] == 1:
                kind = "block"
            parts += _parts_of(branch, position, kind, numbers[block], split_heads=split_heads)
    return _with_unique_names(parts)


def _blocks_of(branches: Sequence[Branch]) -> dict[int, tuple[str, int]]:
    """The block of every branch, by its value: a numbered layer, and the round.

    Where one layer adds in a loop, the round tells its turns apart.

    Layers of the same name but for numbers, `attention.0.out` and `attention.1.out`, belong to
    different rounds. Inside a numbered layer `ls1` and `ls2` do not: there the number tells
    sublayers of one block apart. A block stands in one place of the stream: what comes after
    another block begins a new one.
    """
    rounds: Counter[tuple[str, str, bool]] = Counter()
    blocks: dict[int, tuple[str, int]] = {}
    names = _block_names(branches)
    for branch in branches:
        block = names[branch.value]
        inside = branch.module.removeprefix(block)
        counted = _WHOLE_NUMBER if _NUMBERED.search(block) else _ANY_NUMBER
        # Attention and what is none are no rounds of the same.
        template = (block, counted.sub("#", inside), branch.attends)
        key = (block, rounds[template])
        before = list(blocks.values())
        if key in before and key != before[-1]:
            # Rounds are counted from 0.
            key = (block, -len(before))
        blocks[branch.value] = key
        rounds[template] += 1
    return blocks


def _block_names(branches: Sequence[Branch]) -> dict[int, str]:
    """The numbered layer of every branch, by its value.

    Where attention and the MLP behind it are numbered layers each, `block.0.layer.0` and
    `block.0.layer.1` of T5, it is the numbered layer that both are inside of.
    """
    names = {branch.value: _block_name(branch.block) for branch in branches}
    inside: dict[str, list[Branch]] = {}
    for branch in branches:
        outer = _block_name(names[branch.value].rpartition(".")[0])
        inside.setdefault(outer, []).append(branch)
    for outer, members in inside.items():
        *first, last = members
        own = {names[member.value] for member in members}
        is_one_block = (
            _NUMBERED.search(outer)
            and first
            and all(member.attends for member in first)
            and not last.attends
            and len(own) == len(members)
        )
        if is_one_block:
            names.update((member.value, outer) for member in members)
    return names


def name_units(source: Source, kind: str, module: str) -> tuple[Part, ...]:
    """The units of a layer as parts."""
    return tuple(
        Part(f"{kind} {number}", "unit", None, number, module, ((source, number),))
        for number in range(source.count)
    )


def merge_blocks(parts: Sequence[Part]) -> tuple[Part, ...]:
    """All parts of a block as one."""
    merged: dict[str, Part] = {}
    for part in parts:
        if part.block is None or part.kind == "branch":
            merged[part.name] = part
            continue
        name = f"block {part.block}"
        before = merged.get(name)
        pieces = part.pieces if before is None else before.pieces + part.pieces
        merged[name] = replace(part, name=name, kind="block", number=None, pieces=pieces)
    return tuple(merged.values())


def _block_name(module: str) -> str:
    """The numbered layer that a layer is inside of.

    For `encoder.layer.3.attention.output` it is `encoder.layer.3`.
    """
    words = module.split(".")
    numbered = [position for position, word in enumerate(words) if _NUMBERED.search(word)]
    return ".".join(words[: numbered[-1] + 1]) if numbered else module


def _parts_of(branch: Branch, join: int, kind: str, block: int, *, split_heads: bool) -> list[Part]:
    """A branch, or its heads."""
    heads = branch.heads
    if heads is not None and split_heads and heads.count > 1:
        source = Source(heads.value, branch.value, join, heads=heads, count=heads.count)
        return [
            Part(
                name=f"block {block}, head {number}",
                kind="head",
                block=block,
                number=number,
                module=branch.module,
                pieces=((source, number),),
            )
            for number in range(heads.count)
        ]

    name = f"block {block}" if kind == "block" else f"block {block}, {kind}"
    source = Source(branch.value, branch.value, join)
    return [Part(name, kind, block, None, branch.module, ((source, 0),))]


def _members(join: Join, position: int) -> list[Part]:
    """Members of an ensemble, each under as much of its layer's name as the others do not have."""
    modules = [branch.module for branch in join.branches]
    parts = []
    for branch in join.branches:
        others = [module for module in modules if module != branch.module]
        name = f"branch {_own_start(branch.module, others)}".strip()
        source = Source(branch.value, branch.value, position)
        parts.append(Part(name, "branch", None, None, branch.module, ((source, 0),)))
    return parts


def _own_start(module: str, others: Sequence[str]) -> str:
    """The first words of a layer's name that no other begins with."""
    words = module.split(".")
    for length in range(1, len(words)):
        start = ".".join(words[:length])
        if not any(f"{other}.".startswith(f"{start}.") for other in others):
            return start
    return module


def _with_unique_names(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The same, with a number behind names that several have."""
    counts = Counter(part.name for part in parts)
    seen: Counter[str] = Counter()
    renamed = []
    for part in parts:
        if counts[part.name] > 1:
            renamed.append(replace(part, name=f"{part.name} {seen[part.name]}"))
            seen[part.name] += 1
        else:
            renamed.append(part)
    return tuple(renamed)
