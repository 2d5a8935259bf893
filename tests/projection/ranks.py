"""Processes that add up moments of their rows together; see `tests.meeting`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import safetensors.torch
import torch
import torch.distributed as dist

from nobsp.projection import Moments

PATIENCE = timedelta(seconds=200)


def run_rank(_: str, rank: int, size: int, folder: Path) -> None:
    """What one of the processes does."""
    meeting = f"file://{folder}/meeting"
    dist.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=size, timeout=PATIENCE
    )
    pair = dist.new_group([0, 1])
    shards = safetensors.torch.load_file(folder / "rows.safetensors")
    for case, group in {"three": None, "hollow": None, "nothing": None, "two": pair}.items():
        if case == "two" and rank == 2:
            continue
        moments = Moments({"constant": 1, "rest": 4})
        for part in shards[f"{case}-{rank}"].split(37):
            if len(part):
                moments.update(part)

        before = {name: value.clone() for name, value in moments.state().items()}
        joined = moments.all_reduce(group)
        after = moments.state()
        assert all(torch.equal(value, before[name]) for name, value in after.items())
        safetensors.torch.save_file(joined.state(), folder / f"{case}-{rank}.safetensors")
    dist.destroy_process_group()
