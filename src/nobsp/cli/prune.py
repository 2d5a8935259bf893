"""`nobsp prune`: a network and unlabelled rows or images in, a smaller network out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from cyclopts import Parameter

from nobsp._typing import AnyArray
from nobsp.arguments import count, join_names, percent, suggest
from nobsp.cli.inputs import Loaded, find_pictures, load_model, read_table
from nobsp.cli.options import (
    METHOD,
    MODEL,
    OUTPUT,
    POSITIVE,
    TABLE,
    Console,
    Flag,
    ImageOptions,
    ModelOptions,
    Names,
    TableOptions,
    UsageError,
    split_names,
)
from nobsp.drafts import check_path, replacing
from nobsp.findings import describe_findings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nobsp.parts import Pruned

# Rows with which exported programs are made modules.
_EXAMPLE_ROWS = 4


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Which network, and how to run it."""

    model: str
    """A function that returns the network: package.module:function or file.py:function."""
    weights: Path | None = None
    """Weights for the network that the function returns (.safetensors)."""
    trust_pickle: Flag = False
    """Read the model even if it is a pickle, which can run any code its author put there."""
    output_names: Names = None
    """Names of the classes in the order of the outputs, as --target or folders of images call them.
    """
    device: str | None = None
    """Where to run the network, such as cuda or cpu."""
    batch_size: Annotated[int, POSITIVE] = 64
    """Most rows or images in one forward call."""
    threads: Annotated[int | None, POSITIVE] = None
    """Threads torch may use (default: torch's own choice)."""

    def as_model(self) -> ModelOptions:
        """The same as other commands take them."""
        return ModelOptions(
            model=self.model,
            weights=self.weights,
            trust_pickle=self.trust_pickle,
            threads=self.threads,
        )


@Parameter(name="*", group=TABLE)
@dataclass(frozen=True, kw_only=True)
class RowsOptions:
    """Which table, and what its columns mean."""

    data: Path
    """Rows to calibrate on: CSV, Parquet or Arrow."""
    target: str | None = None
    """Column with the true classes, to measure accuracy; it is not given to the model."""
    features: Names = None
    """Columns the model takes, in its order (default: all but the target)."""


@Parameter(name="*", group=METHOD)
@dataclass(frozen=True, kw_only=True)
class PruneOptions:
    """How much goes."""

    keep: float | None = None
    """Share of units, channels and heads that stays in every layer (default 0.5)."""
    budget: float | None = None
    """Share of multiplications or parameters that stays, shared out over layers by what each
    removal costs."""
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
    model: NetworkOptions,
    table: RowsOptions | None = None,
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

    Takes units, inner channels and attention heads out by their unique contribution, lets the
    others take over what they shared, and measures the change on held-out rows. Needs no labels and
    does not retrain. Give rows with --data or images with --images, and the network as a function,
    package.module:function. --out is a torch.export program (.pt2), or the weights alone
    (.safetensors).
    """
    _check(table, images, out, force=force)
    options = model.as_model()
    with options.limit_threads(None):
        loaded = load_model(options)
        rows, labels = _read(model, table, images, loaded, console)
        network = _network(loaded, rows)
        if model.device is not None:
            network = network.to(model.device)
        if labels is not None:
            labels = _for_outputs(labels, _count_outputs(network, rows), console)
        console.step(f"taking {loaded.name} apart on {count(len(rows), 'row')}")
        from nobsp.parts import prune as make_smaller

        pruned = make_smaller(
            network,
            rows,
            keep=method.keep,
            budget=method.budget,
            budget_of=method.budget_of,
            y=None if labels is None else labels.numbers,
            protect=split_names(method.protect) or (),
            held_out=method.held_out,
            batch_size=model.batch_size,
            seed=method.seed,
        )
        _write(pruned, rows, out)
    console.show(_summarise(pruned, out), _describe)


def _check(
    table: RowsOptions | None, images: ImageOptions | None, out: Path, *, force: bool
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
    model: NetworkOptions,
    table: RowsOptions | None,
    images: ImageOptions | None,
    loaded: Loaded,
    console: Console,
) -> tuple[Tensor, _Labels | None]:
    """Rows as the model takes them, and numbers of their classes where these are known."""
    import torch

    names = split_names(model.output_names)
    n_names = None if names is None else len(names)
    if images is not None:
        pictures = find_pictures(
            images.images, images, option="--images", batch_size=model.batch_size
        )
        labels = None
        if pictures.classes and all(label is not None for label in pictures.labels):
            numbers = _by_name(pictures.labels, names or pictures.classes, option="--images")
            labels = _Labels(numbers, "--images", n_names, n_folders=len(pictures.classes))
        return pictures.batch(range(len(pictures))), labels

    assert table is not None, "one of the two was given"
    columns = TableOptions(data=table.data, target=table.target, features=table.features)
    data = read_table(
        table.data, columns, option="--data", known=loaded.feature_names, is_calibrated_on=True
    )
    # A copy: frames hand out arrays that must not be written, and torch would say so.
    rows = torch.from_numpy(np.array(data.rows, dtype=np.float64)).float()
    if data.labels is None:
        return rows, None
    classes = _numbers_of_classes(np.asarray(data.labels), names)
    if classes is None:
        console.warn(
            f"--target {table.target} holds no numbers of classes, so accuracy is not measured; "
            "name the classes in the order of the outputs with --output-names."
        )
        return rows, None
    return rows, _Labels(classes, f"--target {table.target}", n_names)


@dataclass(frozen=True, eq=False)
class _Labels:
    """True classes as numbers of outputs."""

    numbers: AnyArray
    option: str  # where they come from
    n_names: int | None  # how many outputs were named
    n_folders: int | None = None  # how many folders of images there are


def _count_outputs(network: nn.Module, rows: Tensor) -> int | None:
    """How many classes a network tells apart; None where it does not return (rows, classes)."""
    from nobsp.network.guest import evaluation_mode
    from nobsp.parts.running import read_rows, result_of

    some = read_rows(network, rows[:_EXAMPLE_ROWS], name="rows", batch_size=_EXAMPLE_ROWS)
    with evaluation_mode(network) as run:
        try:
            outputs = result_of(run(next(some.batches())))
        except RuntimeError:
            return None  # pruning says it better
    return outputs.shape[1] if outputs.ndim == 2 and outputs.shape[1] > 1 else None


def _for_outputs(labels: _Labels, n_outputs: int | None, console: Console) -> _Labels | None:
    """Labels that the outputs can be compared with.

    Where an accuracy would mean nothing, there is an error, or a warning and None.
    """
    if n_outputs is None:
        return labels
    told = count(n_outputs, "output")
    if labels.n_names is not None and labels.n_names != n_outputs:
        raise UsageError(
            f"--output-names has {count(labels.n_names, 'name')}, and the network has {told}; name "
            "each of them."
        )
    if labels.n_names is None and labels.n_folders not in (None, n_outputs):
        console.warn(
            f"--images has {labels.n_folders} folders and the network {told}, so accuracy is not "
            "measured; name the folders of all outputs in their order with --output-names."
        )
        return None
    if labels.numbers.max(initial=0) >= n_outputs:
        raise UsageError(
            f"{labels.option} holds whole numbers from {labels.numbers.min()} to "
            f"{labels.numbers.max()}, and the network has {told}, counted from 0; choose the "
            f"column with classes 0 to {n_outputs - 1}, name the classes in the order of the "
            "outputs with --output-names, or leave --target out and choose columns with --features."
        )

    return labels


def _numbers_of_classes(values: AnyArray, names: Sequence[str] | None) -> AnyArray | None:
    """Labels as numbers of classes; None where they are something else, such as prices.

    They are looked up among the names of the classes, or taken as they are.
    """
    is_whole = values.dtype.kind in "iub"
    if names is not None and not (is_whole and set(map(str, values.tolist())).isdisjoint(names)):
        return _by_name(values.tolist(), names, option="--target")
    if not is_whole or values.min(initial=0) < 0:
        return None
    return values.astype(np.int64)


def _by_name(labels: Sequence[object], names: Sequence[str], *, option: str) -> AnyArray:
    """Positions of labels among the names of classes."""
    numbers = {name: number for number, name in enumerate(names)}
    unknown = [str(label) for label in labels if str(label) not in numbers]
    if unknown:
        raise UsageError(
            f"{option} has the class {unknown[0]!r}, which --output-names does not name; "
            f"{suggest(unknown[0], names)}"
        )
    return np.array([numbers[str(label)] for label in labels])


def _network(loaded: Loaded, rows: Tensor) -> nn.Module:
    from torch import nn

    network = loaded.prepare(lambda: rows[:_EXAMPLE_ROWS])
    if loaded.origin == "exported program":
        raise UsageError(
            "--model is an exported program, in which sizes of layers are fixed; name the function "
            "that makes the network, package.module:function, and its weights with --weights."
        )
    if not isinstance(network, nn.Module):
        raise UsageError(f"--model is a {type(network).__name__}; only torch modules have parts.")
    return network


def _write(pruned: Pruned, rows: Tensor, out: Path) -> None:
    """The smaller network as a program for batches of any size, or its weights."""
    import torch

    with replacing(check_path(out)) as draft:
        if out.suffix == ".safetensors":
            from safetensors.torch import save

            # Each in memory of its own: tied weights are written under both names.
            state = {
                name: value.detach().clone(memory_format=torch.contiguous_format)
                for name, value in pruned.model.state_dict().items()
            }
            draft.write_bytes(save(state))
            return
        program = pruned.export(rows)
        with draft.open("wb") as file:
            torch.export.save(program, file)


def _summarise(pruned: Pruned, out: Path) -> dict[str, Any]:
    return {
        "layers": [
            {
                "name": layer.name,
                "read_by": layer.read_by,
                "kind": layer.kind,
                "before": layer.before,
                "after": layer.after,
            }
            for layer in pruned.layers
        ],
        "left_whole": {layer.name: layer.reason for layer in pruned.left_whole},
        "parameters": pruned.parameters.ratio,
        "multiplications": pruned.multiplications.ratio,
        "expected_change": _known(pruned.expected_change) if pruned.is_foreseen else None,
        "measured_change": _known(pruned.measured_change),
        "same_class": pruned.same_class,
        "same_class_interval": pruned.same_class_interval,
        "accuracy": pruned.accuracy,
        "held_out_rows": pruned.held_out_rows,
        "findings": [finding.code for finding in pruned.findings],
        "notes": describe_findings(pruned.findings) if pruned.findings else [],
        "files": {out.name: str(out)},
    }


def _known(number: float) -> float | None:
    """A number, or None where there is none: JSON has no NaN."""
    return None if math.isnan(number) else number


def _describe(summary: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{layer['name']}: {layer['after']} of {layer['before']} {layer['kind']} are left"
        for layer in summary["layers"]
    ]
    by_reason: dict[str, list[str]] = {}
    for name, reason in summary["left_whole"].items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        lines.append(f"left whole: {join_names(names, 5)} ({reason})")
    lines.append(
        f"{percent(summary['parameters'])} of parameters and {percent(summary['multiplications'])} "
        "of multiplications are left."
    )
    held_out = f"On {count(summary['held_out_rows'], 'held-out row')}"
    if summary["measured_change"] is None:
        lines.append(f"{held_out} the change of outputs is not measurable.")
    else:
        change = percent(summary["measured_change"])
        lines.append(f"{held_out} outputs changed by {change} of their variance.")
    if summary["same_class"] is not None:
        low, high = summary["same_class_interval"]
        lines.append(
            f"{percent(summary['same_class'])} of them keep their class; of rows like these "
            f"{percent(low)} to {percent(high)} (95% confidence)."
        )
    if summary["accuracy"] is not None:
        before, after = summary["accuracy"]
        lines.append(f"Accuracy was {before:.3f} and is {after:.3f}.")

    return [*lines, *summary["notes"]]
