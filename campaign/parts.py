"""All parts, in the order of the table."""

from __future__ import annotations

from importlib import import_module

from campaign.part import Part

NAMES = (
    "inputs",
    "files",
    "kills",
    "disks",
    "ranks",
    "interrupts",
    "threads",
    "soak",
    "pages",
    "numbers",
    "orders",
)


def part_named(name: str) -> Part:
    """One part; its module is loaded only now, as some need packages that others do not."""
    if name not in NAMES:
        raise SystemExit(f"there is no part {name!r}; there are {', '.join(NAMES)}.")
    part: Part = import_module(f"campaign.{name}").PART
    return part
