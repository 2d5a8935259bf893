"""What each rank of a calibration on images is given; run as a module, one rank."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from nobsp import Local
from nobsp.vision import NObSPCam
from nobsp.vision.means import ChannelMoments
from tests.vision.networks import averaged, images, made, through_layers

# Images of each rank, for two and for three of them.
SIZES = {2: (43, 17), 3: (34, 1, 25)}
HOLLOW = {2: (0, 60), 3: (40, 0, 20)}

Case = tuple[nn.Module, dict[str, Any], list[Any], Tensor]


def case(
    model: nn.Module,
    size: int,
    form: Callable[[Tensor], Any] = lambda x: x,
    *,
    hollow: bool = False,
    **options: Any,
) -> Case:
    """A model, its options, what each rank reads, and all of it."""
    x = images(60)
    return model, options, [form(part) for part in x.split((HOLLOW if hollow else SIZES)[size])], x


def batches(x: Tensor) -> Iterator[Tensor]:
    """Batches of uneven sizes that can be read only once."""
    return iter(x.split(7)) if len(x) else iter(())


def loader(x: Tensor) -> DataLoader[Any]:
    return DataLoader(TensorDataset(x, torch.zeros(len(x))), batch_size=8)


CASES: dict[str, Callable[[int], Case]] = {
    "calibrated": lambda size: case(averaged(), size, coefficients="calibrated"),
    "head": lambda size: case(averaged(), size),
    "earlier layer": lambda size: case(averaged(), size, layer="body.1"),
    "layers between": lambda size: case(through_layers(), size),
    "all of the map": lambda size: case(through_layers(pooled=False), size),
    "empty array": lambda size: case(
        averaged(), size, Tensor.numpy, hollow=True, coefficients="calibrated"
    ),
    "empty array, head": lambda size: case(averaged(), size, hollow=True),
    "empty loader": lambda size: case(
        averaged(), size, loader, hollow=True, coefficients="calibrated"
    ),
    "once": lambda size: case(
        averaged(), size, batches, hollow=True, batch_size=5, coefficients="calibrated"
    ),
    "layers between, empty loader": lambda size: case(through_layers(), size, loader, hollow=True),
}


def numbers(cam: NObSPCam) -> dict[str, Tensor]:
    """Everything a calibration comes to, and what it says about some images."""
    found = {
        name: value
        for name, value in vars(cam._fitted.account).items()
        if isinstance(value, Tensor)
    }
    maps = cam(images(4, seed=1))
    for name in ("positive", "negative", "account", "contributions", "residual"):
        found[f"maps {name}"] = torch.from_numpy(getattr(maps, name))
    found["rows"] = torch.tensor([cam.health().rows])
    return {name: tensor.contiguous().clone() for name, tensor in found.items()}


def bad(name: str, rank: int, size: int, stack: ExitStack) -> tuple[nn.Module, dict[str, Any], Any]:
    """What goes wrong on one rank, mostly the last: model, options and images."""
    model, options, shards, _ = case(averaged(), size, coefficients="calibrated")
    x, last = shards[rank].clone(), rank == size - 1
    if name == "nan" and last:
        x[3, 0, 0, 0] = torch.nan
    if name == "late nan":  # found only while images are looked at, of which the others have no end
        x[-1] = torch.nan if last else x[-1]
        return model, options, batches(x) if last else cycle(x.split(7))
    if name == "option" and last:
        options["coefficients"] = "best"
    if name == "coefficients" and last:
        options["coefficients"] = "head"
    if name == "model" and last:
        model = made(model, seed=5)
    if name == "solving" and rank == 0:
        stack.enter_context(
            patch.object(ChannelMoments, "solve", side_effect=ValueError("no solution"))
        )
    if name == "nothing anywhere":
        x = x[:0]
    if name == "one image":
        x = x[: int(last)]
    return model, options, x


FAILURES = (
    "nan",
    "late nan",
    "option",
    "coefficients",
    "model",
    "solving",
    "nothing anywhere",
    "one image",
)


def untouched(model: nn.Module) -> bool:
    return not any(
        part._forward_hooks or part._forward_pre_hooks or part.training for part in model.modules()
    )


def main(rank: int, size: int, folder: Path) -> None:
    for name, make in CASES.items():
        model, options, shards, _ = make(size)
        cam = NObSPCam(model, **options).fit(shards[rank])
        safetensors.torch.save_file(numbers(cam), folder / f"{name}-{rank}.safetensors")
    for name in FAILURES:
        with ExitStack() as stack:
            model, options, x = bad(name, rank, size, stack)
            cam = NObSPCam(model, **options)
            try:
                cam.fit(x)
                said = "nothing"
            except (TypeError, ValueError, RuntimeError) as failure:
                said = f"{type(failure).__name__}: {failure}\n{hasattr(cam, '_calibration')} {untouched(model)}"
            (folder / f"{name}-{rank}.txt").write_text(said)
    # Ranks that failed together go on together, and those that do not want to need not.
    model, options, shards, x = CASES["calibrated"](size)
    NObSPCam(model, **options).fit(shards[rank])
    if rank == 0:
        cam = NObSPCam(model, **options).fit(shards[rank], engine=Local())
        (folder / "alone.txt").write_text(str(cam.health().rows))


PATIENCE = timedelta(seconds=200)


def run_rank(_: str, rank: int, size: int, folder: Path) -> None:
    """What one of the processes does that were started by hand."""
    dist = torch.distributed
    meeting = f"file://{folder}/meeting"
    dist.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=size, timeout=PATIENCE
    )
    main(rank, size, folder)
    dist.destroy_process_group()


if __name__ == "__main__":  # torchrun has said who is who
    torch.distributed.init_process_group("gloo", timeout=PATIENCE)
    main(torch.distributed.get_rank(), torch.distributed.get_world_size(), Path(sys.argv[-1]))
    torch.distributed.destroy_process_group()
