"""What a page tells of images: the pictures themselves, maps for and against classes, and what an index found."""

from __future__ import annotations

import base64
import io
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp._messages import count as counted
from nobsp.arguments import numbers_of, refuse_masked
from nobsp.reporting.audits import hits_for_page, influence_for_page
from nobsp.reporting.packing import (
    Fact,
    Names,
    describe_model,
    evenly,
    known,
    packed,
    packed_labels,
    read_labels,
)

# A photograph of 160 pixels a side takes about 60 kB; sixty of them, and their neighbours, fit into 8 MB.
MOST_IMAGES = 60
_SIDE, _SMALL_SIDE = 160, 72
# With more neighbours than this, they are shown smaller.
_MANY, _SMALLEST_SIDE = 160, 48


def pictures_data(
    maps: Any,
    *,
    hits: Any,
    images: Any,
    gallery: Any,
    explainer: Any,
    labels: Any,
    class_names: Names,
    names: Names,
    influence: Any = None,
) -> dict[str, Any]:
    """Everything the page shows of maps, of neighbours, or of both."""
    count = len(maps) if maps is not None else len(hits.indices)
    if count == 0:
        raise ValueError("subject has no images; explain some first.")
    classes = (
        tuple(str(n) for n in class_names)
        if class_names is not None
        else getattr(maps, "output_names", ())
    )
    noun = "row" if maps is None and images is None and gallery is None else "image"
    kept = evenly(count, MOST_IMAGES)
    health = explainer.health() if hasattr(explainer, "health") else None
    given = read_labels(labels, rows=count, names=classes, classes=bool(classes))
    data: dict[str, Any] = {
        "count": len(kept),
        "total": count,
        "positions": kept.tolist(),
        "noun": noun,
        "names": None if names is None else [names[row] for row in kept],
        "classes": given[1] or classes,
        "labels": packed_labels(given, kept),
        "images": None
        if images is None
        else [image_url(one, _SIDE) for one in _chosen(images, kept, count, "images")],
        # Pictures of few pixels are shown as pixels.
        "coarse": max(
            getattr(images if images is not None else gallery, "shape", (0,))[1:], default=0
        )
        <= 48,
        "maps": None if maps is None else _maps(maps, kept),
        "hits": None if hits is None else hits_for_page(hits, kept, rows=count, names=classes),
        "influence": influence_for_page(influence, kept, rows=count, names=classes),
        "gallery": {},
        "facts": _facts(maps, hits, explainer, counted(count, noun)),
        # None where nothing was examined: silence is no verdict.
        "findings": None
        if health is None
        else [asdict(finding) | {"subject": ""} for finding in health.findings],
        "explained": None if health is None else known(health.explained),
    }
    near = [np.asarray(one.indices)[kept].ravel() for one in (hits, influence) if one is not None]
    if near and gallery is not None:
        found = np.unique(np.concatenate(near))
        found = found[found >= 0]
        side = _SMALL_SIDE if len(found) <= _MANY else _SMALLEST_SIDE
        pictures = _chosen(gallery, found, None, "gallery")
        data["gallery"] = {
            str(index): image_url(one, side) for index, one in zip(found, pictures, strict=True)
        }
    return data


def _facts(maps: Any, hits: Any, explainer: Any, data: str) -> list[Fact]:
    facts = [("Model", describe_model(explainer.model))] if hasattr(explainer, "model") else []
    facts.append(("Data", data))
    if maps is not None:
        height, width = maps.locations
        facts.append(("Classes", counted(len(maps.output_names), "class")))
        facts.append(("Map", f"{height} × {width} places in layer {maps.layer}"))
        facts += [("Shown", maps.caption()), ("Compared with", maps.reference)]
        facts += (
            [("Calibrated on", counted(explainer.health().rows, "image"))]
            if hasattr(explainer, "health")
            else []
        )
    return (
        facts
        if hits is None
        else [*facts, ("Neighbours", f"{np.asarray(hits.indices).shape[1]} for each")]
    )


def _maps(maps: Any, kept: NDArray[np.intp]) -> dict[str, Any]:
    """Maps as whole numbers from −127 to 127 and the size each stands for, with an axis for targets."""
    kinds = [maps.kind] if maps.kind != "contrast" else ["contrast", "account"]
    if maps.kind in ("positive", "negative", "signed"):
        kinds = ["positive", "negative", "signed"]  # the paper's map and its counterparts
    if len(maps.locations) != 2:
        raise ValueError(
            f"maps has {len(maps.locations)} axes of locations; pages show maps of images. Draw signals with "
            "nobsp.plots.signal and texts with nobsp.plots.words."
        )
    height, width = maps.positive.shape[-2:]
    target = maps.target[kept].reshape(len(kept), -1)
    data: dict[str, Any] = {
        **{
            name: known(getattr(maps, name)[kept].reshape(target.shape))
            for name in ("confidence", "residual", "class_token")
        },
        "height": height,
        "width": width,
        "targets": target.tolist(),
        "predicted": maps.logits[kept].argmax(1).tolist(),
        "logits": packed(maps.logits[kept], "f4"),
        "base": known(maps.base_values),
        "outputs": list(maps.output_names),
        "several": maps.target.ndim == 2,
        "kinds": kinds,
        "captions": [maps.caption(kind) for kind in kinds],
        "against": maps.against,
        "scale": maps.scale,
    }
    for kind in kinds:
        values = getattr(maps, kind)[kept].reshape(*target.shape, height, width)
        largest = np.abs(values).max((2, 3))
        steps = np.rint(127 * values / np.where(largest > 0, largest, 1.0)[:, :, None, None])
        data[kind] = {"steps": packed(steps, "i1"), "largest": known(largest)}
    return data


def _chosen(
    images: Any, kept: NDArray[Any], count: int | None, argument: str
) -> NDArray[np.float32]:
    """Some images as (n, height, width, 3) from 0 to 1; whole data sets are not converted for a few."""
    refuse_masked(images, name=argument)
    if not hasattr(images, "shape"):
        images = numbers_of(images, name=argument, dtype=None)
    shape = tuple(images.shape)
    if len(shape) != 4 or (count is not None and shape[0] != count):
        expected = f"{'' if count is None else f'{count} '}images, (n, channels, height, width) or channels last"
        raise ValueError(f"{argument} has shape {shape}; expected {expected}.")
    if count is None and len(kept) and int(kept.max()) >= shape[0]:
        wrong = f"{argument} has {shape[0]} images but number {int(kept.max())} was found"
        raise ValueError(f"{wrong}; pass the images of the index.")
    from nobsp.vision.maps import pictures_of

    part = images[kept.tolist()] if hasattr(images, "detach") else np.asarray(images)[kept]
    return np.asarray(pictures_of(part, len(kept)), dtype=np.float32)


def image_url(picture: NDArray[np.float32], side: int | None = None) -> str:
    """A picture (height, width, 3) from 0 to 1 as the URL of a PNG file, no larger than so many pixels a side."""
    try:
        from PIL import Image
    except ImportError as missing:
        raise ImportError("images in a page need Pillow; install nobsp[report].") from missing
    pixels = Image.fromarray(np.rint(255 * picture).astype(np.uint8))
    if bool((picture == picture[:, :, :1]).all()):
        pixels = pixels.convert("L")
    if side is not None:
        pixels.thumbnail((side, side), Image.Resampling.BOX)
    file = io.BytesIO()
    pixels.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
