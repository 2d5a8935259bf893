"""What a page tells of images.

The pictures themselves, maps for and against classes, and what an index found.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence, Sized
from dataclasses import asdict
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nobsp._typing import ArrayLike
from nobsp.arguments import count, names_of, numbers_of, quote, refuse_unreadable
from nobsp.numerics import evenly_spaced
from nobsp.reporting.audits import (
    HitsLike,
    InfluenceLike,
    Positions,
    hits_for_page,
    influence_for_page,
)
from nobsp.reporting.packing import (
    Fact,
    Names,
    PageData,
    describe_model,
    known,
    packed,
    packed_labels,
    read_labels,
)

# Told by their attributes, so that torch is not needed.
MapsLike: TypeAlias = Any
ExplainerLike: TypeAlias = Any

# A photograph of 160 pixels a side takes about 60 kB; sixty of them, and their neighbours, fit into
# 8 MB.
MOST_IMAGES = 60
_SIDE = 160
# Of neighbours, and of these where there are many.
_SMALL_SIDE = 72
_SMALLEST_SIDE = 48
_MANY = 160
# Pictures of so few pixels a side are shown as pixels.
_COARSE_SIDE = 48
# Pixels a side of a picture in a table, and lines of a table that have one: a few megabytes in all.
_SMALL_SIDE = 64
_MOST_SMALL = 500
# Steps of a map on either side of zero: what a byte holds.
_STEPS = 127


def pictures_data(
    maps: MapsLike | None,
    *,
    hits: HitsLike,
    images: ArrayLike | None,
    gallery: ArrayLike | None,
    explainer: ExplainerLike | None,
    labels: ArrayLike | None,
    class_names: Names,
    names: Names,
    influence: InfluenceLike | None = None,
    words: Sequence[Sequence[str]] | None = None,
) -> PageData:
    """Everything the page shows of maps, of neighbours, or of both."""
    total = len(maps) if maps is not None else len(hits.indices)
    if total == 0:
        raise ValueError("subject has no images; explain some first.")
    noun = _noun_of(maps, words, has_images=images is not None or gallery is not None)
    shown = evenly_spaced(total, MOST_IMAGES)

    classes = getattr(maps, "output_names", ())
    if class_names is not None:
        classes = tuple(str(name) for name in class_names)
    true = read_labels(labels, rows=total, names=classes, classes=bool(classes))
    urls = None
    if images is not None:
        urls = [image_url(picture, _SIDE) for picture in _pictures(images, shown, total, "images")]

    return {
        "count": len(shown),
        "total": total,
        "positions": shown.tolist(),
        "noun": noun,
        "names": None if names is None else [names[row] for row in shown],
        "classes": true.names or classes,
        "labels": packed_labels(true, shown),
        "images": urls,
        "coarse": _are_coarse(images if images is not None else gallery),
        "maps": None if maps is None else _maps_for_page(maps, shown),
        "words": _words_of(words, maps, shown),
        "hits": None if hits is None else hits_for_page(hits, shown, rows=total, names=classes),
        "influence": influence_for_page(influence, shown, rows=total, names=classes),
        "gallery": _gallery(gallery, (hits, influence), shown),
        "facts": _facts(maps, hits, explainer, count(total, noun)),
        **_health(explainer),
    }


def _noun_of(maps: MapsLike | None, words: object, *, has_images: bool) -> str:
    """What the page calls one of those that it shows."""
    if maps is None:
        return "image" if has_images else "row"
    if len(maps.locations) == 1:
        return "sequence" if words is None else "text"
    return "image"


def _words_of(
    words: Sequence[Sequence[str]] | None, maps: MapsLike | None, shown: Positions
) -> list[list[str]] | None:
    """The tokens of the texts that are shown; None where none were passed."""
    if words is None:
        return None
    if maps is None or len(maps.locations) != 1:
        raise ValueError("words are those of texts, and subject has no maps of texts.")
    if isinstance(words, str) or not isinstance(words, Sized) or len(words) != len(maps):
        raise ValueError(
            f"words must be the tokens of each of the {len(maps)} texts, found {quote(words)}."
        )

    [most] = maps.locations
    listed = []
    for row in shown.tolist():
        tokens = names_of(f"words[{row}]", words[row])
        if len(tokens) > most:
            raise ValueError(
                f"words[{row}] has {len(tokens)} tokens, but the maps have {most} locations; pass "
                "the tokens that the model was given."
            )
        listed.append(list(tokens))
    return listed


def small_pictures(
    images: ArrayLike, *, places: Sequence[int], rows: Sequence[int], total: int
) -> list[str]:
    """Pictures of the first lines of an audit, as URLs.

    Images are those of the lines, as many as there are, or else all that were audited.
    """
    from nobsp.vision.pictures import pictures_in

    refuse_unreadable(images, name="images")
    files = pictures_in(images, "images")
    n_images = len(images) if files is None else len(files)
    positions = places if n_images == total else rows
    wanted = np.asarray(positions[:_MOST_SMALL], dtype=np.int64)
    pictures = _pictures(images, wanted, None, "images")
    return [image_url(picture, _SMALL_SIDE) for picture in pictures]


def _are_coarse(images: ArrayLike | None) -> bool:
    """Whether pictures have so few pixels that these are to be seen."""
    # Pictures from files are read when they are shown, and taken for fine ones.
    shape = getattr(images, "shape", ())
    return bool(shape) and max(shape[1:], default=0) <= _COARSE_SIDE


def _health(explainer: ExplainerLike | None) -> PageData:
    """What was found about the calibration; None where nothing was examined.

    Silence is no verdict.
    """
    if not hasattr(explainer, "health"):
        return {"findings": None, "explained": None}

    health = explainer.health()  # type: ignore[union-attr]
    findings = [asdict(finding) | {"subject": ""} for finding in health.findings]
    return {"findings": findings, "explained": known(health.explained)}


def _gallery(
    gallery: ArrayLike | None, results: tuple[Any, ...], shown: Positions
) -> dict[str, str]:
    """Pictures of the neighbours and of the rows that speak for predictions, by their position."""
    near = [np.asarray(result.indices)[shown].ravel() for result in results if result is not None]
    if not near or gallery is None:
        return {}

    positions = np.unique(np.concatenate(near))
    positions = positions[positions >= 0]
    side = _SMALL_SIDE if len(positions) <= _MANY else _SMALLEST_SIDE
    pictures = _pictures(gallery, positions, None, "gallery")
    return {
        str(position): image_url(picture, side)
        for position, picture in zip(positions, pictures, strict=True)
    }


def _facts(
    maps: MapsLike | None, hits: HitsLike | None, explainer: ExplainerLike | None, data: str
) -> list[Fact]:
    """Model, data and what is shown, in words."""
    facts = []
    if hasattr(explainer, "model"):
        facts.append(("Model", describe_model(explainer.model)))  # type: ignore[union-attr]
    facts.append(("Data", data))

    if maps is not None:
        places = " × ".join(map(str, maps.locations))
        facts += [
            ("Classes", count(len(maps.output_names), "class")),
            ("Map", f"{places} places in layer {maps.layer}"),
            ("Shown", maps.caption()),
            ("Compared with", maps.reference),
        ]
        if hasattr(explainer, "health"):
            health = explainer.health()  # type: ignore[union-attr]
            noun = getattr(health, "inputs", "images").removesuffix("s")
            facts.append(("Calibrated on", count(health.rows, noun)))
    if hits is not None:
        facts.append(("Neighbours", f"{np.asarray(hits.indices).shape[1]} for each"))
    return facts


def _kinds_shown(maps: MapsLike) -> list[str]:
    """Which maps a page offers: the one the explainer shows, and its counterparts."""
    if maps.kind in ("positive", "negative", "signed"):
        # The paper's map and its counterparts.
        return ["positive", "negative", "signed"]
    is_picture = bool(getattr(maps, "picture", False))
    if maps.kind == "contrast" and not is_picture:
        return ["contrast", "account"]
    return [maps.kind]


def _maps_for_page(maps: MapsLike, shown: Positions) -> PageData:
    """Maps as whole numbers from −127 to 127 with the size each stands for, target by target."""
    if len(maps.locations) > 2:
        raise ValueError(
            f"maps has {len(maps.locations)} axes of locations; pages show maps of images, signals "
            "and texts. Of volumes draw a slice: maps.account[row, slice]."
        )

    kinds = _kinds_shown(maps)
    # Signals and texts have a single line of places.
    height, width = (1, *maps.locations)[-2:]
    target = maps.target[shown].reshape(len(shown), -1)
    data: PageData = {
        "height": height,
        "width": width,
        "targets": target.tolist(),
        "predicted": maps.logits[shown].argmax(1).tolist(),
        "logits": packed(maps.logits[shown], "f4"),
        "base": known(maps.base_values),
        "outputs": list(maps.output_names),
        "several": maps.target.ndim == 2,
        "kinds": kinds,
        "captions": [maps.caption(kind) for kind in kinds],
        "against": maps.against,
        "scale": maps.scale,
        "picture": bool(getattr(maps, "picture", False)),
    }
    for name in ("confidence", "residual", "class_token"):
        data[name] = known(getattr(maps, name)[shown].reshape(target.shape))
    data["without_place"] = known(maps.share_without_place[shown].reshape(target.shape))

    for kind in kinds:
        values = getattr(maps, kind)[shown].reshape(*target.shape, height, width)
        largest = np.abs(values).max((2, 3))
        divisor = np.where(largest > 0, largest, 1.0)[:, :, None, None]
        steps = np.rint(_STEPS * values / divisor)
        data[kind] = {"steps": packed(steps, "i1"), "largest": known(largest)}
    return data


def _pictures(
    images: ArrayLike, positions: Positions, total: int | None, argument: str
) -> NDArray[np.float32]:
    """Some images as (n, height, width, 3) from 0 to 1.

    Whole data sets are not converted for a few; `total` is how many there must be, if that is
    known.
    """
    from nobsp.vision.maps import pictures_of
    from nobsp.vision.pictures import pictures_in, read_pictures

    refuse_unreadable(images, name=argument)
    files = pictures_in(images, argument)
    if files is not None:
        if total is not None and len(files) != total:
            raise ValueError(f"{argument} has {len(files)} pictures; expected {total}.")
        n_needed = max(positions, default=-1) + 1
        if len(files) < n_needed:
            raise ValueError(
                f"{argument} has {len(files)} pictures; picture {n_needed - 1} is wanted."
            )
        chosen_files = [files[position] for position in positions]
        pictures = read_pictures(chosen_files, argument, channels=3)
        return np.asarray(pictures.permute(0, 2, 3, 1), dtype=np.float32)

    if not hasattr(images, "shape"):
        images = numbers_of(images, name=argument, dtype=None)
    shape = tuple(images.shape)
    if len(shape) != 4 or (total is not None and shape[0] != total):
        expected = "images" if total is None else f"{total} images"
        raise ValueError(
            f"{argument} has shape {shape}; "
            f"expected {expected}, (n, channels, height, width) or channels last."
        )
    last = int(positions.max(initial=0))
    if total is None and len(positions) and last >= shape[0]:
        raise ValueError(
            f"{argument} has {shape[0]} images but number {last} was found; "
            "pass the images of the index."
        )

    if hasattr(images, "detach"):
        chosen = images[positions.tolist()]
    else:
        chosen = np.asarray(images)[positions]
    return np.asarray(pictures_of(chosen, len(positions), argument=argument), dtype=np.float32)


def image_url(picture: NDArray[np.float32], side: int | None = None) -> str:
    """A picture (height, width, 3) from 0 to 1 as the URL of a PNG file.

    It has at most `side` pixels a side.
    """
    try:
        from PIL import Image
    except ImportError as missing:
        raise ImportError("images in a page need Pillow; install nobsp[report].") from missing

    pixels = Image.fromarray(np.rint(255 * picture).astype(np.uint8))
    is_grey = bool((picture == picture[:, :, :1]).all())
    if is_grey:
        pixels = pixels.convert("L")
    if side is not None:
        pixels.thumbnail((side, side), Image.Resampling.BOX)

    file = io.BytesIO()
    pixels.save(file, "PNG", optimize=True)
    text = base64.b64encode(file.getvalue()).decode("ascii")
    return f"data:image/png;base64,{text}"
