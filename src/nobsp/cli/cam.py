"""`nobsp cam` and `nobsp confusions`: from a network and a folder of images to evidence maps."""

from __future__ import annotations

import shlex
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from cyclopts import Parameter

from nobsp._typing import AnyArray
from nobsp.arguments import count, join_names, number_outputs, suggest
from nobsp.cli import options
from nobsp.cli.inputs import Loaded, Pictures, add_hint, find_pictures, load_model, write_csv
from nobsp.cli.options import (
    METHOD,
    POSITIVE,
    Console,
    Flag,
    ImageOptions,
    ModelOptions,
    OutputOptions,
    UsageError,
)

if TYPE_CHECKING:
    from torch import Tensor

    from nobsp import ActivationMaps, Neighbors, NObSPCam
    from nobsp.neighbors import Influence
    from nobsp.vision.confusions import Confusions

FILES = ("maps", "predictions.csv", "explainer.nobsp", "report.html")
CONFUSION_FILES = ("confusions.csv", "report.html")
_IN_REPORT = 60
# Of each of two classes that are confused so many neighbours are shown, looked for among so many
# nearest images.
_NEIGHBOURS = 3
_SEARCHED = 500
_EXAMPLE_IMAGES = 4
# Classes shown per image in a report.
CLASSES_SHOWN = 3
# Another order of the names is suggested where most predictions agree with it, and many more than
# with this one.
_MOST = 0.5
_MANY_MORE = 0.3


@Parameter(name="*", group=METHOD)
@dataclass(frozen=True, kw_only=True)
class MapOptions:
    """Which maps."""

    calibrate: Path | None = None
    """Images whose mean is the reference, best other ones (default: those of --images)."""
    target: Annotated[str | None, Parameter(name="--class")] = None
    """Class to explain (default: the predicted one)."""
    against: str | None = None
    """Compare with a class, runner-up, others or mean."""
    kind: Annotated[
        Literal["contrast", "account", "positive", "negative", "signed"] | None,
        Parameter(name="--map"),
    ] = None
    """Show the account against the other classes (default), of the logit, or the paper's maps for,
    against, both."""
    layer: str | None = None
    """Layer whose map to show (default: the last one that counts)."""
    coefficients: Literal["head", "calibrated"] | None = None
    """The head's own weights (default), or found by the paper's Algorithm 1."""
    link: Literal["softmax", "sigmoid"] | None = None
    """sigmoid where images may have several classes (default: as found)."""
    points: Annotated[int | None, POSITIVE] = None
    """Points of the integral through the layers behind the map; 8 make numbers add up (default: as
    many as needed)."""
    thorough: Flag = False
    """Lay the thorough map over the images in maps/: slow, 50 forward passes an image."""
    removal: Flag = False
    """Lay over the images in maps/ in which order places have to go for the class to go fastest."""


def cam(
    *,
    model: ModelOptions,
    images: ImageOptions,
    maps: MapOptions = MapOptions(),
    output: OutputOptions,
    console: Console = Console(),
) -> None:
    """Show where a network sees evidence in images.

    Shows where in each image a network sees evidence for a class, and against it. The folder of
    --out gets **report.html** (images with their maps), **maps/** (every image with its map laid
    over it), **predictions.csv** (what was predicted, how surely, and what the map leaves
    unexplained) and **explainer.nobsp** (the calibration, for `nobsp.NObSPCam.load`).
    """
    with output.write(FILES) as folder, model.limit_threads(None):
        pictures, others = find_images(images, maps.calibrate, model)
        _require_one_map(maps)
        broken = sorted({*pictures.broken, *others.broken})
        console.warn(_name_broken(broken))
        loaded = load_model(model)
        network, names = prepare_network(model, loaded, others, console)
        target = _find_class(maps.target, names, "--class")
        against = _find_class(maps.against, names, "--against")
        chosen = {"target": target, "against": against}
        options_of_map = ("layer", "coefficients", "kind", "link", "points")
        choices = {name: getattr(maps, name) for name in options_of_map}
        if maps.removal:
            _require_removal(model, network, others, layer=maps.layer)
        explainer = fit_cam(model, network, names, others, console, **choices)
        console.step(f"making maps of {count(len(pictures), 'image')}")
        (folder / "maps").mkdir()
        table = _write_maps(folder / "maps", pictures, explainer, chosen, maps)
        write_csv(folder / "predictions.csv", table)
        explainer.save(folder / "explainer.nobsp")
        warning = check_order(pictures.labels, table["predicted"], names)
        console.warn(warning)
        if output.report:
            console.step("writing the report")
            same = "the same images" if others is pictures else others.where
            about = f"{loaded.name} ({loaded.origin}) on {pictures.where}, calibrated on {same}."
            if len(pictures) > _IN_REPORT:
                about += f" Shown are {_IN_REPORT} of them, evenly chosen; maps/ has all."
            about += "" if warning is None else f" Warning: {warning}"
            title = output.title or f"What the network sees in {pictures.where}"
            _write_report(
                folder / "report.html", pictures, explainer, chosen, title=title, about=about
            )

    summary = _summarise(output, table, explainer, warning)
    summary["skipped"] = [str(path) for path in broken]
    console.show(summary, _describe)


def _require_one_map(maps: MapOptions) -> None:
    """A usage error where options name two maps at once."""
    if maps.thorough and maps.removal:
        raise UsageError("--thorough and --removal are two maps; choose one.")
    if (maps.thorough or maps.removal) and (maps.against or maps.kind):
        raise UsageError(
            "--thorough and --removal are maps of their own; leave --against and --map out."
        )


def _require_removal(
    model: ModelOptions, network: Any, others: Pictures, *, layer: str | None
) -> None:
    """A usage error where places cannot be removed one by one.

    It is found with a few images, before the work on all of them.
    """
    from nobsp import NObSPCam

    some = others.batch(range(min(_EXAMPLE_IMAGES, len(others))))
    explainer = NObSPCam(network, head=model.head, layer=layer, device=model.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # few images have findings of their own
        explainer.fit(some)
    try:
        explainer.removal(some[:1])
    except ValueError as refusal:
        raise UsageError(
            f"--removal is for networks whose logits are a sum over places, which is not so here "
            f"(map of {explainer.layer_!r}); leave it out."
        ) from refusal


def _name_broken(broken: Sequence[Path]) -> str | None:
    """Which files were left out, in words."""
    if not broken:
        return None
    names = join_names([path.name for path in broken], 5)
    left_out = "an image and was" if len(broken) == 1 else "images and were"
    return f"{count(len(broken), 'file')} cannot be read as {left_out} left out: {names}"


@Parameter(name="*", group=METHOD)
@dataclass(frozen=True, kw_only=True)
class ConfusionOptions:
    """Which confusions."""

    calibrate: Path | None = None
    """Images to calibrate on and to take neighbours from, one folder per class (default: those of
    --images)."""
    pairs: Annotated[int, POSITIVE] = 10
    """Most pairs of classes, the most frequent first."""
    examples: Annotated[int, POSITIVE] = 4
    """Most images of a pair."""
    layer: str | None = None
    """Layer whose map to show (default: the last one that counts)."""


def confusions(
    *,
    model: ModelOptions,
    images: ImageOptions,
    method: ConfusionOptions = ConfusionOptions(),
    output: OutputOptions,
    console: Console = Console(),
) -> None:
    """Show which classes a network confuses, and why.

    Counts which class is taken for which, with one folder of --images per class, and shows for each
    such pair where the network sees the wrong class rather than the right one, beside the nearest
    images of both. The folder of --out gets **confusions.csv** (pairs, counts and the channels that
    decide) and **report.html**.
    """
    from nobsp import confusions as find_confusions

    with output.write(CONFUSION_FILES) as folder, model.limit_threads(None):
        pictures, others = find_images(images, method.calibrate, model)
        require_folders(pictures, others, "confusions need one folder per class")
        loaded = load_model(model)
        network, names = prepare_network(model, loaded, others, console)
        unknown = sorted(set(map(str, pictures.labels)) - set(names))
        if unknown:
            raise UsageError(
                f"folder {unknown[0]}: there is no such class; {suggest(unknown[0], names)}"
            )
        explainer = fit_cam(model, network, names, others, console, layer=method.layer)
        console.step(f"looking for confusions in {count(len(pictures), 'image')}")
        most = {"pairs": method.pairs, "examples": method.examples}
        confused = find_confusions(explainer, pictures, list(pictures.labels), **most)
        frame = confused.to_frame()
        write_csv(
            folder / "confusions.csv", {str(name): list(frame[name]) for name in frame.columns}
        )
        warning = suggest_order(confused.matrix, names)
        console.warn(warning)
        if output.report and confused.pairs:
            console.step("writing the report")
            title = output.title or f"What the network confuses in {pictures.where}"
            _write_confusions(folder / "report.html", confused, explainer, pictures, others, title)
    right = int(confused.matrix.trace())
    every = int(confused.matrix.sum())
    written = [name for name in CONFUSION_FILES if confused.pairs or name != "report.html"]
    result = {
        "images": every,
        "right": right,
        "pairs": frame.to_dict("records"),
        "warning": warning,
    }
    console.show(result | {"files": output.paths(written)}, _describe_confusions)


def require_folders(pictures: Pictures, others: Pictures, advice: str) -> None:
    """A usage error where an image has no class."""
    for option, ones in (("--images", pictures), ("--calibrate", others)):
        if None in ones.labels:
            alone = ones.paths[ones.labels.index(None)].name
            raise UsageError(f"{option} {ones.folder}: {alone} lies in no folder; {advice}.")


def _write_confusions(
    path: Path,
    confused: Confusions,
    explainer: NObSPCam,
    pictures: Pictures,
    others: Pictures,
    title: str,
) -> None:
    """Writes a page of the examples, each with the nearest images of two classes.

    The classes are the example's own and the one that it was taken for.
    """
    from nobsp import ContributionIndex
    from nobsp.reporting import report

    shown = [
        int(position) for pair in confused.pairs for position in pair.positions[: len(pair.images)]
    ]
    index = ContributionIndex(
        explainer, task="classification", classes=np.array(confused.output_names)
    )
    index.fit(others, np.array(others.labels))
    most = min(len(others) - 1, _SEARCHED)
    own = np.array(shown)[:, None] if others is pictures else None
    hits = index.query(confused.images, most, exclude=own)
    assert hits.labels is not None  # they were given
    chosen_rows = []
    for row, (true, said) in enumerate(
        zip(confused.labels, confused.maps.target_names, strict=True)
    ):
        nearest_of_each = [
            np.flatnonzero(hits.labels[row] == pair)[:_NEIGHBOURS] for pair in (true, said)
        ]
        rest = np.setdiff1d(np.arange(most), np.concatenate(nearest_of_each))
        chosen_rows.append(
            np.sort(np.concatenate([*nearest_of_each, rest])[: 2 * _NEIGHBOURS])
        )  # nearest first
    parts = ("indices", "distances", "labels")
    taken: dict[str, Any] = {
        part: np.take_along_axis(getattr(hits, part), np.array(chosen_rows), 1) for part in parts
    }
    pairs = "; ".join(
        f"{pair.count} × {pair.truth} taken for {pair.predicted}" for pair in confused.pairs
    )
    report(
        confused,
        path,
        title=title,
        about=f"{pairs}. Orange speaks for the class that was predicted and blue for the true "
        "one. Neighbours: "
        "the nearest images of both.",
        explainer=explainer,
        images=pictures.shown(confused.images),
        names=[pictures.names[position] for position in shown],
        **show_neighbours(others, hits=replace(hits, **taken)),
    )


def show_neighbours(others: Pictures, **neighbours: Neighbors | Influence | None) -> dict[str, Any]:
    """What was found of other images, together with these images, for a report.

    Only the images found are read again, and they are numbered anew.
    """
    known = {name: hits for name, hits in neighbours.items() if hits is not None}
    near = np.unique(np.concatenate([hits.indices.ravel() for hits in known.values()]))
    gallery = others.chosen(near.tolist())
    numbered = {
        name: replace(hits, indices=np.searchsorted(near, hits.indices))
        for name, hits in known.items()
    }
    return {**numbered, "gallery": gallery.shown(gallery.batch(range(len(gallery))))}


def _describe_confusions(summary: Mapping[str, Any]) -> list[str]:
    lines = [f"{summary['right']:,} of {count(summary['images'], 'image')} right."]
    if not summary["pairs"]:
        lines.append("No image was taken for another class.")
    return lines + [
        "{count:,} × {truth} taken for {predicted} ({share:.1%}).".format(**pair)
        for pair in summary["pairs"]
    ]


def find_images(
    images: ImageOptions, calibrate: Path | None, model: ModelOptions
) -> tuple[Pictures, Pictures]:
    """The images to look at and those to calibrate on, which may be the same."""
    size = model.batch_size or 32
    pictures = find_pictures(images.images, images, option="--images", batch_size=size)
    if calibrate is None:
        return pictures, pictures

    return pictures, find_pictures(calibrate, images, option="--calibrate", batch_size=size)


def prepare_network(
    model: ModelOptions, loaded: Loaded, images: Pictures, console: Console
) -> tuple[Any, list[str]]:
    """The network, run once on the first images, and the names of its classes.

    Classes are named after the folders if there are as many of these.
    """
    from torch import nn

    from nobsp.network.guest import device_and_dtype, evaluation_mode

    some = images.batch(range(min(_EXAMPLE_IMAGES, len(images))))
    channels, height, width = some.shape[1:]
    described = f"Images of {count(channels, 'channel')}, {height}×{width}, were given"
    with add_hint(f"{described}; --channels {3 if channels == 1 else 1} and --size give others."):
        module = loaded.prepare(lambda: some)
        if not isinstance(module, nn.Module):
            raise ValueError(
                f"--model {model.model} is a {type(module).__name__}; maps need a torch module."
            )
        device, dtype = device_and_dtype(module)
        with evaluation_mode(module) as run:
            try:
                outputs = run(some.to(device, dtype)).shape[-1]
            except (RuntimeError, IndexError, TypeError) as failure:
                shape = tuple(some.shape)
                raise ValueError(
                    f"the model cannot be run on input of shape {shape}: {failure}"
                ) from failure
    names = options.split_names(model.output_names)
    if names is None and len(images.classes) == outputs > 1:
        names = list(images.classes)
        console.step(f"classes are named after the folders, in their order: {join_names(names, 5)}")
    if names is not None and len(names) != outputs:
        raise ValueError(
            f"--output-names has {len(names)} names but the model has {outputs} classes."
        )
    return module, names or list(number_outputs(outputs))


def fit_cam(
    model: ModelOptions,
    network: Any,
    names: Sequence[str],
    others: Pictures,
    console: Console,
    **choices: Any,
) -> NObSPCam:
    """The calibrated explainer."""
    from nobsp import NObSPCam

    console.step(
        f"calibrating on {count(len(others), 'image')} of {others.folder} ({others.preparation})"
    )
    explainer = NObSPCam(
        network,
        head=model.head,
        output_names=names,
        device=model.device,
        batch_size=others.batch_size,
        **{
            name: value for name, value in choices.items() if value is not None
        },  # else the library's defaults
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # findings are in the summary
        return explainer.fit(replace(others, progress=console.progress))


def _find_class(wanted: str | None, names: Sequence[str], option: str) -> int | str | None:
    """A class by its name or number."""
    words = ("runner-up", "others", "mean") if option == "--against" else ()
    if wanted is None or wanted in names or wanted in words:
        return wanted
    if wanted.isdigit() and int(wanted) < len(names):
        return int(wanted)
    numbered = f"classes are numbered from 0 to {len(names) - 1}."
    hint = numbered if wanted.isdigit() else suggest(wanted, [*names, *words])
    raise UsageError(f"{option} {wanted}: there is no such class; {hint}")


def check_order(
    labels: Sequence[str | None],
    predicted: Sequence[str],
    names: Sequence[str],
    option: str = "--output-names",
) -> str | None:
    """A warning where the images' folders suggest that the classes are named in the wrong order."""
    from sklearn.metrics import confusion_matrix

    pairs = [
        (label, prediction)
        for label, prediction in zip(labels, predicted, strict=True)
        if label is not None
    ]
    if {label for label, _ in pairs} != set(names):
        return None
    return suggest_order(
        confusion_matrix(*zip(*pairs, strict=True), labels=list(names)), names, option
    )


def suggest_order(
    confusion: Any, names: Sequence[str], option: str = "--output-names"
) -> str | None:
    """What to pass if far more predictions agree with another order of folders; None otherwise.

    The order is the assignment of folders to classes.
    """
    from scipy.optimize import linear_sum_assignment

    folders, classes = linear_sum_assignment(confusion, maximize=True)
    now = confusion.trace() / confusion.sum()
    then = confusion[folders, classes].sum() / confusion.sum()
    if not confusion.sum(1).all() or then < _MOST or then - now < _MANY_MORE:
        return None
    order = shlex.join(names[folder] for _, folder in sorted(zip(classes, folders, strict=True)))
    return (
        f"{now:.1%} of the predictions agree with the folders, but {then:.1%} would if the classes "
        f"were named in another order; if that is how the model was trained, pass {option} {order}"
    )


def _explain(
    explainer: NObSPCam, images: Tensor, chosen: Mapping[str, Any], most: int
) -> ActivationMaps:
    """Maps for the class asked about, or else for the likeliest classes.

    The class that they are compared with is not among the likeliest.
    """
    names = list(explainer.output_names_)
    target = chosen["target"]
    against = chosen["against"]
    rival = names.index(against) if against in names else against
    if target is None and len(names) > 1 and (most > 1 or isinstance(rival, int)):
        order = np.argsort(-explainer(images).logits, axis=1)
        if isinstance(rival, int):
            order = order[order != rival].reshape(len(order), -1)
        target = order[:, 0] if most == 1 else order[:, :most]
    return explainer(images, target, against=against)


def _write_maps(
    folder: Path,
    pictures: Pictures,
    explainer: NObSPCam,
    chosen: Mapping[str, Any],
    options_of_map: MapOptions,
) -> dict[str, list[Any]]:
    """Lays every map over its image; returns what was predicted."""
    table: dict[str, list[Any]] = {}
    names = _file_names(pictures)
    for start, batch in zip(range(0, len(pictures), pictures.batch_size), pictures, strict=True):
        maps = _explain(explainer, batch, chosen, 1)
        here = slice(start, start + len(batch))
        overlays = _lay_over(
            explainer, batch, _as_grey(pictures.shown(batch)), maps, options_of_map
        )
        for name, overlay in zip(names[here], overlays, strict=True):
            _save_picture(folder / name, overlay)

        every = np.arange(len(maps))
        target = maps.target
        columns = {
            "image": map(str, pictures.paths[here]),
            "label": [label or "" for label in pictures.labels[here]],
            "predicted": [maps.output_names[k] for k in maps.logits.argmax(1)],
            "explained": map(str, maps.target_names),
            "probability": map(float, maps.confidence),
            "logit": maps.logits[every, target].tolist(),
            "base": maps.base_values[target].tolist(),
            "residual": map(float, maps.residual),
            "map": [f"maps/{name}" for name in names[here]],
        }
        for column, values in columns.items():
            table.setdefault(column, []).extend(values)
    return table


def _file_names(pictures: Pictures) -> list[str]:
    """One name per image, its folders written into it."""
    names = []
    taken: Counter[str] = Counter()
    for path in pictures.paths:
        stem = "-".join(path.relative_to(pictures.folder).with_suffix("").parts)
        taken[stem] += 1
        names.append(f"{stem}.png" if taken[stem] == 1 else f"{stem}-{taken[stem]}.png")
    return names


def _lay_over(
    explainer: NObSPCam, batch: Tensor, grey: Tensor, maps: ActivationMaps, wanted: MapOptions
) -> AnyArray:
    """Maps of the kind that was asked for, over images without colours of their own."""
    from nobsp.vision.maps import OPACITY

    if wanted.thorough:
        return explainer.thorough(batch, maps.target).overlay(grey, opacity=OPACITY)
    if wanted.removal:
        return explainer.removal(batch, maps.target).overlay(grey, opacity=OPACITY)
    return maps.overlay(grey, opacity=OPACITY)


def _save_picture(path: Path, overlay: AnyArray) -> None:
    """Writes one picture; small ones are enlarged to be seen."""
    from PIL import Image

    picture = Image.fromarray(np.rint(255 * overlay).astype(np.uint8))
    factor = max(1, -(-160 // max(picture.size)))
    size = (picture.width * factor, picture.height * factor)
    picture.resize(size, Image.Resampling.NEAREST).save(path)


def _as_grey(images: Tensor) -> Tensor:
    """Images without colours of their own, as in the report, so that all colour is the map's."""
    from nobsp.vision.maps import LIGHT

    if images.shape[1] == 1:
        return images
    return (images * images.new_tensor(LIGHT)[:, None, None]).sum(1, keepdim=True).clamp(max=1.0)


def _write_report(
    path: Path, pictures: Pictures, explainer: NObSPCam, chosen: Mapping[str, Any], **texts: Any
) -> None:
    """Some images, evenly chosen, each with its most likely classes."""
    from nobsp.reporting import report

    positions = (
        np.linspace(0, len(pictures) - 1, min(_IN_REPORT, len(pictures))).round().astype(int)
    )
    some = pictures.chosen(positions.tolist())
    images = some.batch(range(len(some)))
    maps = _explain(explainer, images, chosen, CLASSES_SHOWN)
    labels = list(some.labels) if set(some.labels) <= set(explainer.output_names_) else None
    report(
        maps,
        path,
        explainer=explainer,
        images=some.shown(images),
        labels=labels,
        names=some.names,
        **texts,
    )


def _summarise(
    output: OutputOptions, table: Mapping[str, list[Any]], explainer: NObSPCam, warning: str | None
) -> dict[str, Any]:
    right = [
        label == prediction
        for label, prediction in zip(table["label"], table["predicted"], strict=True)
        if label
    ]
    known = right and set(filter(None, table["label"])) <= set(explainer.output_names_)
    return {
        "images": len(table["image"]),
        "classes": list(explainer.output_names_),
        "layer": explainer.layer_,
        "warning": warning,
        "accuracy": sum(right) / len(right) if known else None,
        "health": [asdict(finding) for finding in explainer.health().findings],
        "files": output.paths(FILES),
    }


def _describe(summary: Mapping[str, Any]) -> list[str]:
    what = f"{count(summary['images'], 'image')}, {count(len(summary['classes']), 'class')}"
    lines = [f"{what}; maps of layer {summary['layer']!r}."]
    if summary["accuracy"] is not None:
        lines.append(
            f"{summary['accuracy']:.1%} of the predictions are the class of the image's folder."
        )
    lines += [f"{finding['severity']}: {finding['message']}" for finding in summary["health"]]
    return lines
