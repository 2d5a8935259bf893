"""Why this class and not that one: the classes a network confuses, and what decides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._typing import ArrayLike, ImagesLike, NativeFrame
from nobsp.arguments import quote, require_parts, require_whole_number
from nobsp.network.guest import keeps_torch_modes
from nobsp.vision.cam import NObSPCam
from nobsp.vision.images import images_of
from nobsp.vision.maps import ActivationMaps


@dataclass(frozen=True, eq=False, repr=False)
class Confusion:
    """Images of one class that were taken for another."""

    truth: str  # the class they are of
    predicted: str  # the class they were taken for
    count: int
    # their numbers; the first are those of `images`, which are kept as examples
    positions: NDArray[np.int64]
    images: Tensor
    # why the predicted class and not the true one: the account of one logit less the other
    maps: ActivationMaps
    # channels of the map by their mean contribution to that difference, largest first
    channels: NDArray[np.int64]
    contributions: NDArray[np.float64]  # these means


@dataclass(frozen=True, eq=False, repr=False)
class Confusions:
    """Pairs of classes that a network confuses, the most frequent first."""

    pairs: tuple[Confusion, ...]
    matrix: NDArray[np.int64]  # how many images of each class (rows) were taken for which (columns)
    output_names: tuple[str, ...]  # names of the classes

    @property
    def maps(self) -> ActivationMaps:
        """The maps of all examples, pair by pair: why the predicted class, not the true one."""
        if not self.pairs:
            raise ValueError("there are no pairs: no image was taken for another class.")
        parts = [pair.maps for pair in self.pairs]
        first = self.pairs[0].maps
        names = [
            name
            for name, value in vars(first).items()
            if isinstance(value, np.ndarray) and "values" not in name
        ]
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in names
        }
        return replace(first, **joined, against="the true class", kind="account")

    @property
    def images(self) -> Tensor:
        """The examples, as `maps` has them."""
        return torch.cat([pair.images for pair in self.pairs]) if self.pairs else torch.empty(0)

    @property
    def labels(self) -> list[str]:
        """What the examples truly are."""
        return [pair.truth for pair in self.pairs for _ in pair.images]

    def __repr__(self) -> str:
        wrong = int(self.matrix.sum() - self.matrix.trace())
        lines = [f"Confusions({wrong} of {int(self.matrix.sum())} images, {len(self.pairs)} pairs)"]
        lines += [
            f"  {pair.count} × {pair.truth} taken for {pair.predicted}" for pair in self.pairs[:10]
        ]
        return "\n".join(lines)

    def frame(self) -> Any:
        """The former name of `to_frame`."""
        import warnings

        warnings.warn("Confusions.frame is to_frame now.", DeprecationWarning, stacklevel=2)
        return self.to_frame()

    def to_frame(self) -> NativeFrame:
        """A pandas frame with one row per confused pair.

        Its columns are the classes, the count, the share of the true class, and the three channels
        that decide.
        """
        import pandas as pd

        of_class = dict(zip(self.output_names, self.matrix.sum(1), strict=True))
        rows = [
            (
                pair.truth,
                pair.predicted,
                pair.count,
                pair.count / of_class[pair.truth],
                tuple(pair.channels[:3].tolist()),
            )
            for pair in self.pairs
        ]
        return pd.DataFrame(rows, columns=["truth", "predicted", "count", "share", "channels"])


@keeps_torch_modes
def confusions(
    cam: NObSPCam,
    images: ImagesLike,
    labels: ArrayLike = None,
    *,
    pairs: int = 10,
    examples: int = 4,
) -> Confusions:
    """The classes that a network confuses most, and the evidence in each case.

    That is what speaks for the wrong class and against the right one.

    Args:
        cam: A calibrated explainer.
        images: Images of any kind that a call takes, read once; with labels=None, batches of images
            and labels.
        labels: The true class of each image, numbers or names.
        pairs: Of how many pairs of classes to keep examples.
        examples: Most images of a pair that are explained: the first ones.

    Example:
        >>> import nobsp, torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> body = nn.Sequential(
        ...     nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        ... )
        >>> images, labels = torch.randn(40, 3, 8, 8), torch.arange(40) % 3
        >>> found = nobsp.confusions(
        ...     nobsp.NObSPCam(nn.Sequential(body, nn.Linear(8, 3))).fit(images), images, labels
        ... )
        >>> int(found.matrix.sum()), found.pairs[0].maps.against == found.pairs[0].truth
        (40, True)
    """
    for argument, wanted in (("pairs", pairs), ("examples", examples)):
        require_whole_number(argument, wanted)
    require_parts("cam", cam, ("_read_evidence",), wanted="a calibrated NObSPCam")
    names = cam.output_names_
    if len(names) < 2:
        raise ValueError(
            "the model has one output, and there is no other class to take an image for."
        )

    matrix = np.zeros((len(names), len(names)), dtype=np.int64)
    confused: dict[tuple[int, int], list[int]] = {}
    examples_by_position: dict[int, Tensor] = {}
    seen = 0
    for batch, batch_labels in _batches(images, labels, cam.batch_size):
        logits = torch.cat(
            [part.logits for part in cam._read_evidence(batch, wanted="none", progress=False)]
        )
        truth = _true_classes(cam, batch_labels, logits)
        for row, pair in enumerate(zip(truth.tolist(), logits.argmax(1).tolist(), strict=True)):
            matrix[pair] += 1
            if pair[0] != pair[1]:
                confused.setdefault(pair, []).append(seen + row)
                if len(confused[pair]) <= examples:
                    examples_by_position[seen + row] = batch[row].clone()

        seen += len(batch)

    most_frequent = sorted(confused.items(), key=lambda item: -len(item[1]))[:pairs]
    confused_pairs = []
    for pair, positions in most_frequent:
        shown = torch.stack([examples_by_position[position] for position in positions[:examples]])
        confused_pairs.append(_explain_confusion(cam, pair, positions, shown))
    return Confusions(tuple(confused_pairs), matrix, names)


def _true_classes(cam: NObSPCam, labels: ArrayLike, logits: Tensor) -> Tensor:
    """Numbers of the classes that images truly are of, one for each row of the logits."""
    try:
        listed = labels.cpu() if isinstance(labels, Tensor) else np.asarray(labels)
    except ValueError as ragged:
        raise ValueError("labels must hold one class per image, not lists of them.") from ragged

    if listed.ndim != 1:
        raise ValueError(
            f"labels must hold one class per image, found the shape {tuple(listed.shape)}."
        )
    try:
        targets = cam._targets(listed, None, "logit")
        targets.require(len(logits))
        return targets.choose(logits, 0)[:, 0]
    except (TypeError, ValueError) as failure:
        raise type(failure)(f"labels are not classes of the model: {failure}") from failure


def _explain_confusion(
    cam: NObSPCam, pair: tuple[int, int], positions: Sequence[int], shown: Tensor
) -> Confusion:
    """Evidence for the predicted class against the true one, on images of a confused pair."""
    true, said = pair
    maps = cam(shown, said, against=true)
    mean = maps.contributions.mean(0)
    order = np.argsort(-mean)
    return Confusion(
        truth=cam.output_names_[true],
        predicted=cam.output_names_[said],
        count=len(positions),
        positions=np.array(positions),
        images=shown,
        maps=maps,
        channels=order,
        contributions=mean[order],
    )


def _batches(
    images: ImagesLike, labels: ArrayLike, batch_size: int
) -> Iterator[tuple[Tensor, Any]]:
    """Images with their labels, from two places or from one."""
    if labels is None:
        if isinstance(images, type) or not isinstance(images, Iterable):
            raise TypeError(f"images must be batches of images and labels, found {quote(images)}.")
        for batch in images:
            if not isinstance(batch, tuple | list) or len(batch) < 2:
                raise ValueError(
                    "labels is None, so images must be batches of images and labels; pass labels."
                )
            yield next(iter(images_of([batch[0]], batch_size=len(batch[0])))), batch[1]
        return

    single = isinstance(labels, str | bytes | type | Mapping)
    if single or not hasattr(labels, "__getitem__") or not hasattr(labels, "__len__"):
        raise TypeError(f"labels must hold one class per image, found {quote(labels)}.")

    start = 0
    for batch in images_of(images, batch_size=batch_size):
        yield batch, labels[start : start + len(batch)]
        start += len(batch)

    if len(labels) != start:
        raise ValueError(
            f"labels has {len(labels)} entries for {start} images; pass one per image."
        )
