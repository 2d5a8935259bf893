"""`nobsp cam`: a network and a folder of images in, maps of the evidence out."""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nobsp.cli.agreement import wrong_order
from nobsp.cli.console import Console, Misuse, close_to, counted
from nobsp.cli.explain import require_report
from nobsp.cli.folder import require_free, written
from nobsp.cli.models import Loaded, hinting, limited_threads, load_model
from nobsp.cli.pictures import Pictures, find_pictures, require_image
from nobsp.cli.tables import names_in, write_csv

if TYPE_CHECKING:
    from torch import Tensor

    from nobsp import ActivationMaps, NObSPCam

FILES = ("maps", "predictions.csv", "explainer.nobsp", "report.html")
_IN_REPORT = 60
_FIRST_IMAGES = 4
_TARGETS = 3


def run(options: Namespace, console: Console) -> None:
    """Reads, calibrates, makes maps, and writes them."""
    files = FILES if options.report else FILES[:-1]
    require_free(options.out, files, force=options.force)
    pictures = find_pictures(options.images, options, option="--images", batch_size=options.batch_size)
    pictures = limited(pictures, options.limit)
    others = calibration_of(options, pictures)
    loaded = load_model(options.model, weights=options.weights, trust_pickle=options.trust_pickle)
    if options.report:
        require_report()
    with limited_threads(options.threads):
        _run(options, console, loaded, pictures, others, files)


def _run(
    options: Namespace, console: Console, loaded: Loaded, pictures: Pictures, others: Pictures, files: Sequence[str]
) -> None:
    found = tried(options, loaded, others, console)
    names = found.output_names
    target, against = _asked(options.target, names, "--class"), _asked(options.against, names, "--against")
    require_readable(console, pictures, others)
    cam = calibrated(options, found, others, console)
    console.step(f"making maps of {counted(len(pictures), 'image')}")
    with written(options.out) as folder:
        (folder / "maps").mkdir()
        table = _maps(folder / "maps", pictures, cam, target, against)
        write_csv(folder / "predictions.csv", table)
        warning = wrong_order(pictures.labels, table["predicted"], names)
        if warning is not None:
            console.step(f"warning: {warning}")
        cam.save(folder / "explainer.nobsp")
        if options.report:
            console.step("writing the report")
            _report(folder / "report.html", options, loaded, pictures, others, cam, target, against, warning)
    console.results(*_summary(options, files, table, cam, warning))


def limited(pictures: Pictures, limit: int | None) -> Pictures:
    """The first images, where only some are asked for."""
    if limit is not None and limit < 1:
        raise Misuse(f"--limit must be at least 1, found {limit}.")
    return pictures if limit is None else pictures.chosen(range(min(limit, len(pictures))))


def calibration_of(options: Namespace, pictures: Pictures) -> Pictures:
    """The images to calibrate on."""
    if options.calibrate is None:
        return pictures
    return find_pictures(options.calibrate, options, option="--calibrate", batch_size=pictures.batch_size)


def require_readable(console: Console, *folders: Pictures) -> None:
    """Complains about a broken image before the work, not in the middle of it."""
    from nobsp.network.batches import with_progress

    paths = list(dict.fromkeys(path for pictures in folders for path in pictures.paths))
    for path in with_progress(paths, total=len(paths), enabled=console.progress, description="checking"):
        require_image(path)


def how_prepared(pictures: Pictures) -> str:
    """Size and normalisation in words: what the network was not trained on shows here first."""
    size = "as they are" if pictures.size is None else f"{pictures.size[0]}×{pictures.size[1]}"
    mean, std = (", ".join(f"{number:g}" for number in numbers) for numbers in (pictures.mean, pictures.std))
    return f"{size}, mean {mean}, std {std}"


@dataclass(frozen=True, eq=False)
class Tried:
    """A model that runs on the caller's images, or rows.

    Attributes:
        model: Ready to be explained.
        outputs: How many outputs it has.
        output_names: Their names, where a caller or the model itself gave them; else numbers.
        link: What follows its last linear layer.
        classes: Labels of the classes as the model itself knows them.
    """

    model: Any
    outputs: int
    output_names: tuple[str, ...]
    link: str
    classes: Any = None


def tried(options: Namespace, loaded: Loaded, images: Pictures, console: Console) -> Tried:
    """The network, tried on the first images; folders name its classes where there are as many."""
    from nobsp.vision.find_map import find_map

    some = images.batch(range(min(_FIRST_IMAGES, len(images))))
    channels, height, width = some.shape[1:]
    with hinting(
        f"Images of {counted(channels, 'channel')}, {height}×{width}, were given; "
        f"--channels {3 if channels == 1 else 1} and --size give others."
    ):
        model = loaded.ready(lambda: some)
        anatomy = find_map(model, some, layer=getattr(options, "layer", None), head=options.head)
    given = names_in(options.output_names)
    if given is None and len(images.classes) == anatomy.outputs > 1:
        given = list(images.classes)
        listed = f"{', '.join(given[:5])}{' …' if len(given) > 5 else ''}"
        console.step(f"classes are named after the folders, in their order: {listed}")
    if given is not None and len(given) != anatomy.outputs:
        raise ValueError(f"--output-names has {len(given)} names but the model has {anatomy.outputs} classes.")
    names = given or [f"class {number}" for number in range(anatomy.outputs)]
    return Tried(model, anatomy.outputs, tuple(names), "identity")


def calibrated(options: Namespace, tried: Tried, others: Pictures, console: Console) -> NObSPCam:
    """The explainer, after it has seen the images."""
    from nobsp import NObSPCam

    console.step(f"calibrating on {counted(len(others), 'image')} of {others.folder} ({how_prepared(others)})")
    cam = NObSPCam(
        tried.model,
        layer=getattr(options, "layer", None),
        head=options.head,
        coefficients=getattr(options, "coefficients", "head"),
        kind=getattr(options, "kind", "contrast"),
        link=getattr(options, "link", None),
        output_names=tried.output_names,
        device=options.device,
        batch_size=others.batch_size,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # findings are in the summary
        return cam.fit(_Batches(others, console))


class _Batches:
    """Batches with a progress bar, which knows how many images are to come."""

    def __init__(self, pictures: Pictures, console: Console) -> None:
        self._pictures, self._console = pictures, console

    def __iter__(self) -> Any:
        from nobsp.network.batches import with_progress

        return with_progress(
            self._pictures, total=len(self._pictures), enabled=self._console.progress, description="calibrating"
        )


def _asked(given: str | None, names: Sequence[str], option: str) -> int | str | None:
    """A class by its name or number."""
    words = ("runner-up", "others", "mean") if option == "--against" else ()
    if given is None or given in names or given in words:
        return given
    if given.isdigit() and int(given) < len(names):
        return int(given)
    hint = f"classes are numbered from 0 to {len(names) - 1}."
    raise Misuse(
        f"{option} {given}: there is no such class; {hint if given.isdigit() else close_to(given, [*names, *words])}"
    )


# ---------------------------------------------------------------------- what is written


def _maps(folder: Path, pictures: Pictures, cam: NObSPCam, target: Any, against: Any) -> dict[str, list[Any]]:
    """Lays every map over its image, and hands back what was predicted."""
    from nobsp.vision.maps import OPACITY

    names = _file_names(pictures)
    columns = ("image", "label", "predicted", "explained", "probability", "logit", "base", "residual", "map")
    table: dict[str, list[Any]] = {name: [] for name in columns}
    seen = 0
    for batch in pictures:
        maps = _explained(cam, batch, target, against, 1)
        overlays = maps.overlay(_grey(pictures.shown(batch)), opacity=OPACITY)
        _save(folder, names[seen : seen + len(batch)], overlays)
        here = slice(seen, seen + len(batch))
        for column, values in _rows(maps, pictures.paths[here], pictures.labels[here], names[here]).items():
            table[column] += values
        seen += len(batch)
    return table


def _explained(cam: NObSPCam, images: Tensor, target: Any, against: Any, most: int) -> ActivationMaps:
    """Maps for the class asked about, or the likeliest ones: of these, not the one they are compared with."""
    import numpy as np

    names = list(cam.output_names_)
    rival = names.index(against) if against in names else against
    if target is None and len(names) > 1 and (most > 1 or isinstance(rival, int)):
        order = np.argsort(-cam(images).logits, axis=1)
        if isinstance(rival, int):
            order = order[order != rival].reshape(len(order), -1)
        target = order[:, 0] if most == 1 else order[:, :most]
    return cam(images, target, against=against)


def _grey(images: Tensor) -> Tensor:
    """Images without colours of their own, as in the report, so that all colour is the map's."""
    from nobsp.vision.maps import LIGHT

    if images.shape[1] == 1:
        return images
    return (images * images.new_tensor(LIGHT)[:, None, None]).sum(1, keepdim=True).clamp(max=1.0)


def _rows(maps: ActivationMaps, paths: Sequence[Path], labels: Sequence[str | None], names: Sequence[str]) -> Any:
    every = range(len(maps))
    return {
        "image": [str(path) for path in paths],
        "label": [label or "" for label in labels],
        "predicted": [maps.output_names[k] for k in maps.logits.argmax(1)],
        "explained": [str(name) for name in maps.target_names],
        "probability": [float(value) for value in maps.confidence],
        "logit": [float(maps.logits[row, maps.target[row]]) for row in every],
        "base": [float(maps.base_values[maps.target[row]]) for row in every],
        "residual": [float(value) for value in maps.residual],
        "map": [f"maps/{name}" for name in names],
    }


def _file_names(pictures: Pictures) -> list[str]:
    """One name per image, its folders written into it; names that would fall together get a number."""
    taken: dict[str, int] = {}
    names = []
    for path in pictures.paths:
        stem = "-".join(path.relative_to(pictures.folder).with_suffix("").parts)
        number = taken[stem] = taken.get(stem, 0) + 1
        names.append(f"{stem}.png" if number == 1 else f"{stem}-{number}.png")
    return names


def _save(folder: Path, names: Sequence[str], overlays: Any) -> None:
    import numpy as np
    from PIL import Image

    for name, overlay in zip(names, overlays, strict=True):
        picture = Image.fromarray(np.rint(255 * overlay).astype(np.uint8))
        # Small images are enlarged, or nobody would see a thing.
        factor = max(1, -(-160 // max(picture.size)))
        picture = picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
        picture.save(folder / name)


def _report(
    path: Path,
    options: Namespace,
    loaded: Loaded,
    pictures: Pictures,
    others: Pictures,
    cam: NObSPCam,
    target: Any,
    against: Any,
    warning: str | None,
) -> None:
    """Some images, evenly chosen, each with the classes it most likely is."""
    import numpy as np

    from nobsp.page import report

    kept = np.unique(np.linspace(0, len(pictures) - 1, min(_IN_REPORT, len(pictures))).round().astype(int)).tolist()
    some = pictures.chosen(kept)
    images = some.batch(range(len(some)))
    maps = _explained(cam, images, target, against, _TARGETS)
    known = all(label in cam.output_names_ for label in some.labels)
    same = "the same images" if others is pictures else f"{counted(len(others), 'image')} of {others.folder.name}"
    report(
        maps,
        path,
        title=options.title or f"Where {loaded.name} sees evidence",
        about=f"{loaded.name} ({loaded.origin}) on {counted(len(pictures), 'image')} of {pictures.folder.name}, "
        f"calibrated on {same}.{'' if warning is None else f' Warning: {warning}'}",
        explainer=cam,
        images=some.shown(images),
        labels=list(some.labels) if known else None,
        names=some.names,
    )


# ---------------------------------------------------------------------- what is said


def _summary(
    options: Namespace, files: Sequence[str], table: dict[str, list[Any]], cam: NObSPCam, warning: str | None
) -> tuple[list[str], dict[str, Any]]:
    health = cam.health()
    images = len(table["image"])
    labelled = [(label, found) for label, found in zip(table["label"], table["predicted"], strict=True) if label]
    right = sum(label == found for label, found in labelled)
    matched = bool(labelled) and {label for label, _ in labelled} <= set(cam.output_names_)
    classes = counted(len(cam.output_names_), "class", "classes")
    lines = [f"{counted(images, 'image')}, {classes}; maps of layer {cam.layer_!r}."]
    if matched:
        share = right / len(labelled)
        lines.append(f"{right} of {len(labelled)} predictions are the class of the image's folder ({share:.1%}).")
    lines += [f"{finding.severity}: {finding.message}" for finding in health.findings]
    lines.append("Wrote " + ", ".join(str(options.out / name) for name in files) + ".")
    return lines, {
        "images": images,
        "classes": list(cam.output_names_),
        "layer": cam.layer_,
        "warning": warning,
        "accuracy": right / len(labelled) if matched else None,
        "health": [
            {"severity": found.severity, "code": found.code, "message": found.message} for found in health.findings
        ],
        "files": {name: str(options.out / name) for name in files},
    }
