"""`nobsp prune`: a network and unlabelled rows or images in, a smaller network out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from cyclopts import Parameter

from nobsp._typing import ArrayLike
from nobsp.arguments import count, percent
from nobsp.base import describe_findings
from nobsp.cli.inputs import Loaded, find_pictures, load_model, read_table
from nobsp.cli.options import (
    METHOD,
    OUTPUT,
    Console,
    Flag,
    ImageOptions,
    ModelOptions,
    Names,
    TableOptions,
    UsageError,
    split_names,
)
from nobsp.drafts import replacing

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nobsp.parts import Pruned

# Rows with which exported programs are made modules, and smaller networks are exported.
_EXAMPLE_ROWS = 4


@Parameter(name="*", group=METHOD)
@dataclass(frozen=True, kw_only=True)
class PruneOptions:
    """How much goes."""

    keep: float | None = None
    """Share of units, channels and heads that stays in every layer (default 0.5)."""
    budget: float | None = None
    """Share of multiplications or parameters that stays, shared out over layers by what each removal costs."""
    budget_of: Literal["multiplications", "parameters"] = "multiplications"
    """What --budget counts."""
    protect: Names = None
    """Layers that stay whole."""
    held_out: float = 0.2
    """Share of rows on which the change is measured, and nothing is fitted."""
    seed: int = 0
    """For which rows are held out."""


def prune(
    *,
    model: ModelOptions,
    table: TableOptions | None = None,
    images: ImageOptions | None = None,
    method: PruneOptions = PruneOptions(),
    out: Annotated[
        Path, Parameter(group=OUTPUT, help="File for the smaller network: .pt2, or .safetensors.")
    ],
    force: Annotated[
        Flag, Parameter(group=OUTPUT, help="Replace the file if it is there already.")
    ] = False,
    console: Console = Console(),
) -> None:
    """Make a network smaller.

    Takes units, inner channels and attention heads out by their unique contribution, lets the others take over what
    they shared, and measures the change on held-out rows. Needs no labels and does not retrain. Give rows with --data
    or images with --images, and the network as a function, package.module:function. --out is a torch.export program
    (.pt2), or the weights alone (.safetensors).
    """
    _check(table, images, out, force=force)
    with model.limit_threads(None):
        loaded = load_model(model)
        rows, labels = _read(model, table, images, loaded)
        network = _network(loaded, rows)
        console.step(f"taking {loaded.name} apart on {count(len(rows), 'row')}")
        from nobsp.parts import prune as make_smaller

        pruned = make_smaller(
            network,
            rows,
            keep=method.keep,
            budget=method.budget,
            budget_of=method.budget_of,
            y=labels,
            protect=split_names(method.protect) or (),
            held_out=method.held_out,
            batch_size=model.batch_size or 64,
            seed=method.seed,
        )
        _write(pruned, rows, out)
    console.show(_summarise(pruned, out), _describe)


def _check(
    table: TableOptions | None, images: ImageOptions | None, out: Path, *, force: bool
) -> None:
    """Raises a UsageError before anything is read."""
    if (table is None) == (images is None):
        raise UsageError("choose what to calibrate on: rows with --data, or images with --images.")
    if out.suffix not in (".pt2", ".safetensors"):
        raise UsageError(f"--out {out} must end in .pt2 or .safetensors.")
    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {str(out.parent)!r}.")
    if out.exists() and not force:
        raise UsageError(f"--out {out} is there already; choose another, or replace with --force.")


def _read(
    model: ModelOptions,
    table: TableOptions | None,
    images: ImageOptions | None,
    loaded: Loaded,
) -> tuple[Tensor, Any]:
    """Rows as the model takes them, and labels where there are some that are numbers of classes."""
    import torch

    if images is not None:
        pictures = find_pictures(
            images.images, images, option="--images", batch_size=model.batch_size or 64
        )
        labels = None
        if pictures.classes and all(label is not None for label in pictures.labels):
            numbers = {name: number for number, name in enumerate(pictures.classes)}
            labels = np.array([numbers[str(label)] for label in pictures.labels])
        return pictures.batch(range(len(pictures))), labels

    assert table is not None, "one of the two was given"
    data = read_table(
        table.data, table, option="--data", known=loaded.feature_names, is_calibrated_on=True
    )
    rows = torch.as_tensor(np.asarray(data.rows, dtype=np.float64)).float()
    return rows, _classes(data.labels)


def _classes(labels: ArrayLike) -> Any:
    """Labels that are numbers of classes; None where they are something else, such as prices."""
    if labels is None:
        return None
    values = np.asarray(labels)
    if values.dtype.kind not in "iub" or values.min(initial=0) < 0:
        return None
    return values.astype(np.int64)


def _network(loaded: Loaded, rows: Tensor) -> nn.Module:
    from torch import nn

    network = loaded.prepare(lambda: rows[:_EXAMPLE_ROWS])
    if loaded.origin == "exported program":
        raise UsageError(
            "--model is an exported program, in which sizes of layers are fixed; name the function that makes the "
            "network, package.module:function, and its weights with --weights."
        )
    if not isinstance(network, nn.Module):
        raise UsageError(f"--model is a {type(network).__name__}; only torch modules have parts.")
    return network


def _write(pruned: Pruned, rows: Tensor, out: Path) -> None:
    """The smaller network as a program for batches of any size, or its weights."""
    import torch

    with replacing(out) as draft:
        if out.suffix == ".safetensors":
            from safetensors.torch import save

            state = {name: value.contiguous() for name, value in pruned.model.state_dict().items()}
            draft.write_bytes(save(state))
            return
        example = rows[:_EXAMPLE_ROWS].to(next(pruned.model.parameters()))
        batch = torch.export.Dim("batch")
        program = torch.export.export(pruned.model, (example,), dynamic_shapes=({0: batch},))
        with draft.open("wb") as file:
            torch.export.save(program, file)


def _summarise(pruned: Pruned, out: Path) -> dict[str, Any]:
    return {
        "layers": [
            {"name": layer.name, "kind": layer.kind, "before": layer.before, "after": layer.after}
            for layer in pruned.layers
        ],
        "left_whole": {layer.name: layer.reason for layer in pruned.left_whole},
        "parameters": pruned.parameters.ratio,
        "multiplications": pruned.multiplications.ratio,
        "expected_change": pruned.expected_change,
        "measured_change": pruned.measured_change,
        "same_class": pruned.same_class,
        "accuracy": pruned.accuracy,
        "held_out_rows": pruned.held_out_rows,
        "findings": [finding.code for finding in pruned.findings],
        "notes": describe_findings(pruned.findings) if pruned.findings else [],
        "files": {out.name: str(out)},
    }


def _describe(summary: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{layer['name']}: {layer['after']} of {layer['before']} {layer['kind']}"
        for layer in summary["layers"]
    ]
    lines.append(
        f"{percent(summary['parameters'])} of parameters and {percent(summary['multiplications'])} of multiplications "
        "are left."
    )
    lines.append(
        f"On {count(summary['held_out_rows'], 'held-out row')} outputs changed by "
        f"{percent(summary['measured_change'])} of their variance."
    )
    if summary["same_class"] is not None:
        lines.append(f"{percent(summary['same_class'])} of them keep their class.")
    if summary["accuracy"] is not None:
        before, after = summary["accuracy"]
        lines.append(f"Accuracy was {before:.3f} and is {after:.3f}.")
    return [*lines, *summary["notes"]]
