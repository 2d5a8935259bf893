"""NObSP-CAM: class activation maps from calibrated evidence, with one forward pass and no backward."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Self, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from nobsp import serialization
from nobsp.calibration import Engine, choose_engine
from nobsp.network.batches import with_progress
from nobsp.network.evidence import EvidenceBatch, EvidenceSource, Wanted, read_activations, sign_coefficients
from nobsp.network.guest import home_of
from nobsp.network.readout import checked
from nobsp.projection import Ridge
from nobsp.vision.channels import (
    ChannelEvidence,
    ChannelMeans,
    ChannelMoments,
    Coefficients,
    Means,
    start_channels,
)
from nobsp.vision.feature_map import FeatureMap, ForwardPass
from nobsp.vision.find_map import find_map
from nobsp.vision.grid import per_channel, pooled
from nobsp.vision.health import CamHealth, examine
from nobsp.vision.images import Images, images_of, read_images
from nobsp.vision.maps import ActivationMaps, joined
from nobsp.vision.question import Against, Question, Scale, Targets
from nobsp.vision.removal import Removal, adds_up, silenced
from nobsp.vision.tail import TailCalibration, TailEvidence

T = TypeVar("T")

Calibration = ChannelMeans | ChannelMoments | TailCalibration
Evidence = ChannelEvidence | TailEvidence

KIND = "class activation maps"
VERSION = 2
# What a checkpoint of a calibration holds.
CHECKPOINTED = (ChannelMeans, ChannelMoments, Means, TailCalibration)


class NObSPCam(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Class activation maps of a network whose spatial map is pooled into a linear head.

    The map, the way it is pooled and the head are found by running the model. Calibration streams images and keeps
    the moments of the pooled channels; all channels and classes are then solved from one factorisation. What a map
    then rests on depends on the network:

    - Global average pooling straight into the head (ResNet, MobileNetV2, EfficientNet, RegNet, DenseNet, Swin): every
      channel is a feature, and its coefficient is found by Algorithm 1 in closed form. With more images than channels
      and a small ridge it is the head's own weight. Max pooling, both side by side, and flattened maps go the same
      way: a maximum belongs to the location where it was found, a flattened entry to its own.
    - A map of the classes themselves that is averaged (SqueezeNet): the head is the identity.
    - Layers between pooling and head (LayerNorm in ConvNeXt, fully connected ones in MobileNetV3 and VGG): the general
      algorithm. Each channel is put into those layers alone, the others at their mean, and the representation that
      reaches the head is projected along that of all other channels. Maps then show where the channels are active
      whose own effect supports the class; what channels do only together is in `maps.residual`. It costs one pass
      through the layers behind the map per channel and image.
    - A layer named by the caller that is not pooled into the head: the logits are regressed on its pooled channels,
      and `maps.residual` says what that misses.

    Networks whose head reads a class token have no map that is pooled into it; they are refused with what to do.

    Args:
        model: A torch module that takes images (n, channels, height, width). It is only run, never changed.
        layer: Module whose output is the map, or its name; the last map that is pooled into the head when None.
        head: The last linear layer or its name; found when None.
        coefficients: "calibrated" by Algorithm 1, or "head" for the head's own weights, which need only means.
        ridge: Strength of the regularisation.
        ridge_scale: "absolute" as in the paper, or "relative" to the matrix it is added to.
        output_names: Names of the classes.
        device: Where to run the model; where it is when None.
        batch_size: Most images in one forward call.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from nobsp.vision import NObSPCam
        >>> _ = torch.manual_seed(0)
        >>> body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        >>> model = nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
        >>> cam = NObSPCam(model, coefficients="head").fit(torch.randn(64, 3, 16, 16))
        >>> maps = cam(torch.randn(4, 3, 16, 16))
        >>> maps.positive.shape, maps.contributions.shape
        ((4, 14, 14), (4, 8))
        >>> centred = maps.logits[range(4), maps.target] - maps.base_values[maps.target]
        >>> bool(abs(maps.account.mean((1, 2)) - centred).max() < 1e-12)
        True
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        layer: str | nn.Module | None = None,
        head: str | nn.Module | None = None,
        coefficients: Coefficients = "calibrated",
        ridge: float = 1e-4,
        ridge_scale: Literal["relative", "absolute"] = "absolute",
        output_names: Sequence[str] | None = None,
        device: torch.device | str | None = None,
        batch_size: int = 32,
    ) -> None:
        self.model = model
        self.layer = layer
        self.head = head
        self.coefficients = coefficients
        self.ridge = ridge
        self.ridge_scale = ridge_scale
        self.output_names = output_names
        self.device = device
        self.batch_size = batch_size

    # ------------------------------------------------------------------ calibration

    def fit(
        self,
        images: Any,
        y: Any = None,  # noqa: ARG002 - as scikit-learn calls it
        *,
        engine: Engine | None = None,
        progress: bool = False,
    ) -> Self:
        """Calibrates on images; a former calibration is replaced. Memory does not grow with their number.

        On several ranks or in the workers of a Ray cluster, the calibration is the one a single process would reach,
        but for rounding. Where layers stand between map and head and there are more images than are kept, others may
        be kept.

        Args:
            images: Tensor or array (n, channels, height, width), DataLoader (labels in its batches are left aside), an
                iterable of batches, or a `ray.data.Dataset` with a column of images; preprocessed the way the model
                was trained. Data that can be read only once is read once.
            y: Ignored: the network's own outputs are explained.
            engine: Where images are run: `nobsp.Local` in this process, with a checkpoint; `nobsp.Ranks` on all
                processes of a `torch.distributed` group, each with its own images, which may be uneven or none;
                `nobsp.RayCluster` in the workers of a Ray cluster. By default all ranks where there are several, else
                the cluster of a Ray dataset, else this process.
            progress: Whether to show a progress bar on stderr.

        Returns:
            The explainer itself.
        """
        with choose_engine(engine, images).start(CHECKPOINTED) as run, self._running():
            ridge = self._checked_ridge()
            source = read_images(run, images, batch_size=self.batch_size)
            feature_map = find_map(self.model, source.first, layer=self.layer, head=self.head)
            empty, names = self._start(feature_map), self._names(feature_map)
            if run.size > 1 or run.has_checkpoint:
                asked = repr((feature_map.described(), self.coefficients, ridge, names))
                what = "the layer, coefficients, ridge or output_names asked for"
                run.require_same({"the model": feature_map.fingerprint(), what: asked})
            calibration = run.accumulate(
                source, empty, _add_images, model=run.share(feature_map), name="calibrating", progress=progress
            )
            if calibration.rows < 2:
                raise ValueError(f"images has {calibration.rows} image; calibration needs at least two.")
            # Any image will do to run the layers behind the map.
            image = source.first[:1].detach().to("cpu", copy=True)
            # Every rank solves, rather than wait longer than a process group allows for another that does, and takes
            # what the first one found: processors differ in their last digits.
            solved = calibration.solve(feature_map, ridge, image, progress=progress)
            evidence: Evidence = run.decide(lambda: solved)
        self._fit = _Fitted(feature_map, evidence, calibration, calibration.rows, names, image)
        return self

    def merge(self, other: NObSPCam) -> Self:
        """Adds another calibration's images to this one: to rounding, as if both had been read in one pass.

        Both must be of the same model, layer and kind of coefficients. Where layers stand between map and head, images
        are kept for the solution, and merging is exact as long as all of both are.
        """
        mine, theirs = self._fitted, other._fitted
        if mine.calibration is None or theirs.calibration is None:
            raise ValueError(
                "a calibration that was saved without its moments cannot be merged; save with moments=True."
            )
        same = (
            mine.feature_map.described() == theirs.feature_map.described() and self.coefficients == other.coefficients
        )
        if not same or mine.feature_map.fingerprint() != theirs.feature_map.fingerprint():
            raise ValueError(
                "the two calibrations are of different models, layers or kinds of coefficients and cannot be added up."
            )
        calibration: Calibration = mine.calibration.merge(theirs.calibration)  # type: ignore[arg-type]  # same feature_map
        with self._running():
            evidence = calibration.solve(mine.feature_map.on_current_device(), self._checked_ridge(), mine.image)
        self._fit = dataclasses.replace(mine, evidence=evidence, calibration=calibration, rows=calibration.rows)
        return self

    def _start(self, feature_map: FeatureMap) -> Calibration:
        """A calibration that has seen no image."""
        if feature_map.route == "regression" and self.coefficients == "head":
            raise ValueError(
                f"layer {feature_map.layer!r} is not pooled into the head, so the head has no weights for its "
                'channels; use coefficients="calibrated", or layer=None.'
            )
        start = TailCalibration.start if feature_map.route == "tail" else start_channels
        return start(feature_map, self.coefficients)

    def _checked_ridge(self) -> Ridge:
        if self.coefficients not in ("calibrated", "head"):
            raise ValueError(f'coefficients must be "calibrated" or "head", found {self.coefficients!r}.')
        return Ridge(self.ridge, self.ridge_scale)

    def _names(self, feature_map: FeatureMap) -> tuple[str, ...]:
        if self.output_names is None:
            return tuple(f"class {number}" for number in range(feature_map.outputs))
        if len(self.output_names) != feature_map.outputs:
            raise ValueError(
                f"output_names has {len(self.output_names)} names but the model has {feature_map.outputs} classes."
            )
        return tuple(str(name) for name in self.output_names)

    # ------------------------------------------------------------------ explaining

    def __call__(
        self,
        images: Any,
        target: Any = None,
        *,
        against: Against = None,
        scale: Scale = "logit",
        progress: bool = False,
    ) -> ActivationMaps:
        """Maps for a batch of images, with one forward pass each.

        Args:
            images: Images of any kind that `fit` takes, except a `ray.data.Dataset`.
            target: None for the predicted class; a class number or name; one per image; or several per image, shape
                (n, k), and every map then has an axis for them.
            against: What the evidence is compared with: None for the calibration mean alone; a class number or name;
                "runner-up" for the strongest other class; "others" for the other classes in proportion to their
                softmax, which makes the account one of the log-odds; "mean" for all classes alike. The account is then
                of the difference of logits.
            scale: "logit", or "probability" for evidence in the target's probability: the account's mean is then how
                far that is from the probability at the calibration mean (see `ActivationMaps`).
            progress: Whether to show a progress bar on stderr.

        Raises:
            NotFittedError: If `fit` has not been called.
            ValueError: If a target is out of range, or images have another shape or values that are not finite.
        """
        targets = self._targets(target, against, scale)
        fitted = self._fitted
        parts = self._each(images, targets, self._part, description="explaining", progress=progress)
        return joined(
            parts,
            several=targets.several,
            base_values=fitted.evidence.base.numpy().copy(),
            output_names=fitted.output_names,
            layer=fitted.feature_map.layer,
        )

    def explain(
        self,
        images: Any,
        target: Any = None,
        *,
        against: Against = None,
        scale: Scale = "logit",
        progress: bool = False,
    ) -> ActivationMaps:
        """The same as calling the explainer."""
        return self(images, target, against=against, scale=scale, progress=progress)

    def removal(self, images: Any, target: Any = None, *, progress: bool = False) -> Removal:
        """In which order locations have to go for the target to go fastest, with one forward pass an image.

        A location that goes falls silent: all its channels are zero. At each step that one goes whose going lowers the
        target's probability most, exactly, given those gone before. Time grows with the square of the number of
        locations.

        Args:
            images: Images of any kind that a call takes.
            target: None for the predicted class; a class number or name; or one per image.
            progress: Whether to show a progress bar on stderr.

        Raises:
            NotFittedError: If `fit` has not been called.
            ValueError: If several targets per image are given, or if the logits are no sum over locations: where layers
                stand between map and head, where the map is pooled by its maximum, or for a layer further down.

        Example:
            >>> import torch
            >>> from torch import nn
            >>> from nobsp.vision import NObSPCam
            >>> body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
            >>> cam = NObSPCam(nn.Sequential(body, nn.Linear(8, 5))).fit(torch.randn(64, 3, 6, 6))
            >>> removal = cam.removal(torch.randn(2, 3, 6, 6))
            >>> removal.order.shape, removal.probability.shape
            ((2, 4, 4), (2, 17))
        """
        targets = self._targets(target, None, "logit")
        if not adds_up(self._fitted.feature_map):
            raise ValueError(
                f"the logits are no sum over the locations of {self._fitted.feature_map.layer!r}: layers come between, "
                "or a maximum, so none can be taken out exactly; use the account instead, cam(images).account."
            )
        if targets.several:
            raise ValueError("target has several classes per image; ask for one at a time.")

        def taken_out(feature_map: FeatureMap, view: ForwardPass, question: Question) -> tuple[Tensor, ...]:
            asked = question.target[:, 0]
            return (*silenced(feature_map, view, asked, sigmoid=targets.sigmoid), asked)

        parts = self._each(images, targets, taken_out, description="taking out", progress=progress)
        order, probability, asked = (torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True))
        return Removal(order, probability, asked, self._fitted.output_names, self._fitted.feature_map.layer)

    def _targets(self, target: Any, against: Against, scale: Scale) -> Targets:
        feature_map, names = self._fitted.feature_map, self._fitted.output_names
        sigmoid = feature_map.link == "sigmoid" or feature_map.outputs == 1
        return Targets(target, against, outputs=feature_map.outputs, names=names, scale=scale, sigmoid=sigmoid)

    def _each(
        self,
        images: Any,
        targets: Targets,
        answer: Callable[[FeatureMap, ForwardPass, Question], T],
        *,
        description: str,
        progress: bool,
    ) -> list[T]:
        """The answer to what is asked about the images, batch by batch."""
        fitted = self._fitted
        source = images_of(images, batch_size=self.batch_size)
        if source.rows is not None:
            targets.require(source.rows)
        answers: list[T] = []
        seen = 0
        for feature_map, view in self._views(source, description, progress=progress):
            question = targets.question(view.logits, seen, fitted.evidence.base)
            answers.append(answer(feature_map, view, question))
            seen += len(view.logits)
        targets.require(seen)
        return answers

    def _views(self, source: Images, description: str, *, progress: bool) -> Iterator[tuple[FeatureMap, ForwardPass]]:
        """One forward pass over each batch, with the model where it is to run."""
        with self._running():
            feature_map = self._fitted.feature_map.on_current_device()
            with feature_map.running() as forward:
                for batch in with_progress(source, total=source.rows, enabled=progress, description=description):
                    yield feature_map, forward(batch)

    def _part(self, feature_map: FeatureMap, view: ForwardPass, question: Question) -> dict[str, Tensor]:
        fitted = self._fitted
        answer = fitted.evidence.answer(feature_map, view, question, fitted.image)
        return {
            "positive": answer.positive,
            "negative": answer.negative,
            "signed": answer.positive - answer.negative,
            "account": answer.account,
            "contributions": per_channel(answer.contributions, feature_map.channels, feature_map.pooling),
            "target": question.target,
            "logits": view.logits,
            "residual": question.whole - answer.account.mean((2, 3)),
            "confidence": question.confidence,
        }

    def _evidence(self) -> EvidenceSource:
        """What an index of neighbours asks of an explainer."""
        feature_map, evidence = self._fitted.feature_map, self._fitted.evidence
        channels = evidence if isinstance(evidence, ChannelEvidence) else None
        return EvidenceSource(
            output_names=self._fitted.output_names,
            # A single output of a network that is explained class by class is a logit.
            link="sigmoid" if feature_map.outputs == 1 else feature_map.link,
            about=f"cam {sorted(feature_map.described().items())}",
            hash_model=feature_map.fingerprint,
            signature=sign_coefficients(evidence.coefficients, evidence.base),
            read=self._read_evidence,
            head=(feature_map.head.weight, feature_map.head.bias) if feature_map.route == "direct" else None,
            coefficients=None if channels is None else channels.coefficients,
            mean=None if channels is None else channels.mean,
        )

    def _read_evidence(self, X: Any, *, wanted: Wanted, progress: bool) -> Iterator[EvidenceBatch]:
        """Pooled channels and logits of images, or of activations (rows, units) that were pooled before."""
        fitted, feature_map = self._fitted, self._fitted.feature_map
        if isinstance(X, Tensor | np.ndarray) and X.ndim == 2:
            if feature_map.route != "direct":
                raise ValueError(
                    f"X has shape {tuple(X.shape)}, but the logits do not follow from the pooled channels of this "
                    "network: layers stand between map and head; pass the images."
                )
            yield from read_activations(X, feature_map.head.weight, feature_map.head.bias, progress=progress)
            return
        every = torch.arange(feature_map.outputs) if wanted == "every" else None
        source = images_of(X, batch_size=self.batch_size, argument="X")
        for feature_map, view in self._views(source, "reading", progress=progress):
            contributions = None
            if isinstance(fitted.evidence, TailEvidence) and wanted != "none":
                targets = self._targets(None if every is None else every.expand_as(view.logits), None, "logit")
                question = targets.question(view.logits, 0, fitted.evidence.base)
                contributions = fitted.evidence.answer(feature_map, view, question, fitted.image).contributions.cpu()
            yield EvidenceBatch(pooled(view.maps, feature_map.pooling).cpu(), view.logits.cpu(), contributions)

    def health(self) -> CamHealth:
        """What is worth knowing before the maps are believed, each with what to do about it."""
        fitted = self._fitted
        return examine(fitted.feature_map, fitted.evidence, rows=fitted.rows)

    # ------------------------------------------------------------------ files

    def save(self, path: str | os.PathLike[str], *, moments: bool = False) -> None:
        """Writes the calibration to one safetensors file; the model itself and the images are not in it.

        Coefficients of channels are kept in single precision, so maps of a loaded explainer differ by less than a
        millionth of their largest value.

        Args:
            path: Where to; an existing file is replaced, atomically.
            moments: Whether to keep what `merge` needs: the products of all channels with all others, or, where layers
                stand between map and head, the maps of the images kept. Without them the file is small.
        """
        fitted = self._fitted
        if moments and fitted.calibration is None:
            raise ValueError("this explainer was loaded from a file without moments, so it has none to save.")
        stored = _Stored(
            options=self._options(),
            fingerprint=fitted.feature_map.fingerprint(),
            feature_map=fitted.feature_map.described(),
            image_shape=fitted.feature_map.image_shape,
            evidence=fitted.evidence.cast(torch.float32),
            calibration=fitted.calibration if moments else None,
            rows=fitted.rows,
            output_names=fitted.output_names,
        )
        serialization.save(path, stored, kind=KIND, version=VERSION)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module) -> Self:
        """Reads an explainer that `save` wrote.

        Args:
            path: The file.
            model: The very model it was calibrated on; another one is an error.
        """
        classes = (*CHECKPOINTED, ChannelEvidence, TailEvidence, _Stored)
        stored = serialization.load(path, kind=KIND, version=VERSION, classes=classes)
        if not isinstance(stored, _Stored):
            raise ValueError(f"path {str(path)!r} is damaged: it does not hold an explainer.")
        cam = cls(model, **stored.options)
        # Any images show where the map is; these are the same every time.
        generator = torch.Generator().manual_seed(0)
        probe = torch.randn(2, *stored.image_shape, generator=generator)
        with cam._running():
            feature_map = find_map(model, probe, layer=cam.layer, head=cam.head)
        found, known = feature_map.described(), stored.feature_map
        if feature_map.fingerprint() != stored.fingerprint or found["outputs"] != known["outputs"]:
            raise ValueError(
                "model is not the one this explainer was calibrated on (its weights differ); pass that model, or "
                "calibrate anew."
            )
        if found != known:
            different = [name for name in known if found[name] != known[name]]
            raise ValueError(f"the model's map is not where it was when this explainer was calibrated: {different}.")
        evidence = stored.evidence.cast(torch.float64)
        cam._fit = _Fitted(feature_map, evidence, stored.calibration, stored.rows, stored.output_names, probe[:1])
        return cam

    def _options(self) -> dict[str, Any]:
        fitted = self._fitted
        layer = None if self.layer is None else fitted.feature_map.place.name
        head = None if self.head is None else fitted.feature_map.head.name
        return {
            "layer": layer,
            "head": head,
            "coefficients": self.coefficients,
            "ridge": self.ridge,
            "ridge_scale": self.ridge_scale,
            "output_names": None if self.output_names is None else list(fitted.output_names),
            "device": None if self.device is None else str(self.device),
            "batch_size": int(self.batch_size),
        }

    # ------------------------------------------------------------------ what was found

    @property
    def layer_(self) -> str:
        """Where in the model the map is."""
        return self._fitted.feature_map.layer

    @property
    def route_(self) -> str:
        """How the map reaches the head: "direct", "tail" or "regression"; see `health`."""
        return self._fitted.feature_map.route

    @property
    def coefficients_(self) -> Any:
        """One coefficient per unit and class, shape (units, outputs); only where contributions are linear in units."""
        evidence = self._fitted.evidence
        if isinstance(evidence, TailEvidence):
            raise AttributeError(
                "layers stand between map and head, so contributions are functions, not multiples, of the channels."
            )
        return evidence.coefficients.numpy().copy()

    @property
    def output_names_(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self._fitted.output_names

    @property
    def base_values_(self) -> Any:
        """Mean logits over the calibration images."""
        return self._fitted.evidence.base.numpy().copy()

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fit")

    def __sklearn_clone__(self) -> NObSPCam:
        # scikit-learn would copy the model.
        options = {name: value for name, value in self.get_params(deep=False).items() if name != "model"}
        return type(self)(self.model, **options)

    @property
    def _fitted(self) -> _Fitted:
        if not hasattr(self, "_fit"):
            raise NotFittedError("This NObSPCam is not calibrated yet; call fit(images) first.")
        return self._fit

    @contextmanager
    def _running(self) -> Iterator[None]:
        """No gradients, ordinary tensors also inside an inference mode, and the model on the chosen device."""
        module = checked(self.model)
        home, _ = home_of(module)
        away = home if self.device is None else torch.device(self.device)
        with torch.inference_mode(False), torch.no_grad():
            if away != home:
                module.to(away)
            try:
                yield
            finally:
                if away != home:
                    module.to(home)


@dataclasses.dataclass(frozen=True, eq=False)
class _Fitted:
    """A calibration: where the map is, what was found, and what it was found from."""

    feature_map: FeatureMap
    evidence: Evidence
    calibration: Calibration | None
    rows: int
    output_names: tuple[str, ...]
    image: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class _Stored:
    """What a file holds."""

    options: dict[str, Any]
    fingerprint: str
    feature_map: dict[str, Any]
    image_shape: tuple[int, int, int]
    evidence: Evidence
    calibration: Calibration | None
    rows: int
    output_names: tuple[str, ...]


def _add_images(calibration: Calibration, images: Tensor, forward: Callable[[Tensor], ForwardPass]) -> None:
    """Runs a batch and adds it to a calibration."""
    calibration.update(forward(images))
