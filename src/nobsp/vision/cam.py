"""NObSP-CAM: class activation maps from calibrated evidence, with one forward pass and no backward."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, Self, TypeVar

import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from nobsp.network.batches import NoRowsError, with_progress
from nobsp.network.guest import home_of
from nobsp.network.on_ray import is_ray, require_alone
from nobsp.network.ranks import Ranks, require_same, together
from nobsp.network.readout import checked
from nobsp.projection import Ridge
from nobsp.vision import keeping
from nobsp.vision.anatomy import Anatomy, Look
from nobsp.vision.channels import ChannelCalibration, Coefficients
from nobsp.vision.grid import per_channel
from nobsp.vision.health import CamHealth, examine
from nobsp.vision.images import Images, images_of
from nobsp.vision.keeping import Calibration, Evidence
from nobsp.vision.maps import ActivationMaps, joined
from nobsp.vision.on_ray import first_images, looked_at
from nobsp.vision.question import Against, Question, Scale, Targets
from nobsp.vision.removal import Removal, adds_up, silenced
from nobsp.vision.search import find_anatomy
from nobsp.vision.shards import common_calibration, common_first
from nobsp.vision.tail import TailCalibration, TailEvidence

T = TypeVar("T")


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

    def fit(self, images: Any, y: None = None, *, progress: bool = False, distributed: bool = True) -> Self:
        """Calibrates on images; a former calibration is replaced. Memory does not grow with their number.

        Where `torch.distributed` is initialised, every rank calls `fit` with its own share of the images, which may
        be uneven or empty, and ends with the same calibration on all of them: the one a single process would reach,
        but for rounding. Where layers stand between map and head and there are more images than are kept, others may
        be kept. An error on one rank is an error on all.

        Args:
            images: Tensor or array (n, channels, height, width), DataLoader (labels in its batches are left aside), an
                iterable of batches, or a `ray.data.Dataset` with a column of images, which its workers look at;
                preprocessed the way the model was trained. Data that can be read only once is read once.
            y: Not used: the network's own outputs are explained. Passing labels is an error.
            progress: Whether to show a progress bar on stderr.
            distributed: Whether to calibrate together with the other ranks where `torch.distributed` is
                initialised; without, this process calibrates alone, on what it was given.

        Returns:
            The explainer itself.
        """
        with together(distributed) as ranks:
            if y is not None:
                raise TypeError("fit takes no labels: it explains the network's own outputs. Call fit(images).")
            fitted = self._calibrated(images, ranks, progress=progress)
        self._fit = fitted
        return self

    def _calibrated(self, images: Any, ranks: Ranks, *, progress: bool) -> _Fitted:
        """A calibration on these images, and on what the other ranks have."""
        ridge = self._checked_ridge()
        source: Images | None = None
        if is_ray(images):
            require_alone(ranks, "images")
            first = first_images(images, batch_size=self.batch_size)
        else:
            source = self._source(images, ranks)
            first = common_first(ranks, source)
        with self._running():
            anatomy = find_anatomy(self.model, first, layer=self.layer, head=self.head)
            calibration = self._calibration(anatomy)
            names = self._names(anatomy)
            if not ranks.alone:
                require_same(ranks, anatomy.fingerprint(), "the model")
                asked = (anatomy.described(), self.coefficients, ridge, names)
                require_same(ranks, repr(asked), "the layer, coefficients, ridge or output_names asked for")
            if is_ray(images):
                begin = partial(type(calibration), coefficients=self.coefficients)
                calibration = looked_at(images, anatomy, begin, batch_size=self.batch_size, progress=progress)
            else:
                with anatomy.looking() as look:
                    ranks.work(_added_up(source, calibration, anatomy, look, progress=progress))
                calibration = common_calibration(ranks, calibration)
            if calibration.rows < 2:
                raise ValueError(f"images has {calibration.rows} image; calibration needs at least two.")
            # Any image will do to run the layers behind the map.
            image = first[:1].detach().to("cpu", copy=True)
            # Every rank solves, rather than wait longer than its patience for another that does, and takes what the
            # first one found: processors differ in their last digits.
            evidence: Evidence = ranks.hand_out(
                _solved(calibration, anatomy, ridge, image, progress=progress), source=0
            )
        return _Fitted(anatomy, evidence, calibration, calibration.rows, names, image)

    def _source(self, images: Any, ranks: Ranks) -> Images | None:
        """The images in batches; None where this rank has none, which is allowed where others may have some."""
        try:
            return images_of(images, batch_size=self.batch_size)
        except NoRowsError:
            if ranks.alone:
                raise
            return None

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
        same = mine.anatomy.described() == theirs.anatomy.described() and self.coefficients == other.coefficients
        if not same or mine.anatomy.fingerprint() != theirs.anatomy.fingerprint():
            raise ValueError(
                "the two calibrations are of different models, layers or kinds of coefficients and cannot be added up."
            )
        return self._with(mine.calibration.merge(theirs.calibration))  # type: ignore[arg-type]  # same anatomy

    def _with(self, calibration: Calibration) -> Self:
        fitted = self._fitted
        with self._running():
            anatomy = fitted.anatomy.at_home()
            evidence = _solved(calibration, anatomy, self._checked_ridge(), fitted.image)
        self._fit = dataclasses.replace(fitted, evidence=evidence, calibration=calibration, rows=calibration.rows)
        return self

    def _calibration(self, anatomy: Anatomy) -> Calibration:
        if anatomy.route == "regression" and self.coefficients == "head":
            raise ValueError(
                f"layer {anatomy.layer!r} is not pooled into the head, so the head has no weights for its channels; "
                'use coefficients="calibrated", or layer=None.'
            )
        kind = TailCalibration if anatomy.route == "tail" else ChannelCalibration
        return kind(anatomy, self.coefficients)

    def _checked_ridge(self) -> Ridge:
        if self.coefficients not in ("calibrated", "head"):
            raise ValueError(f'coefficients must be "calibrated" or "head", found {self.coefficients!r}.')
        return Ridge(self.ridge, self.ridge_scale)

    def _names(self, anatomy: Anatomy) -> tuple[str, ...]:
        if self.output_names is None:
            return tuple(f"class {number}" for number in range(anatomy.outputs))
        if len(self.output_names) != anatomy.outputs:
            raise ValueError(
                f"output_names has {len(self.output_names)} names but the model has {anatomy.outputs} classes."
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
            layer=fitted.anatomy.layer,
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
        if not adds_up(self._fitted.anatomy):
            raise ValueError(
                f"the logits are no sum over the locations of {self._fitted.anatomy.layer!r}: layers come between, "
                "or a maximum, so none can be taken out exactly; use the account instead, cam(images).account."
            )
        if targets.several:
            raise ValueError("target has several classes per image; ask for one at a time.")

        def taken_out(anatomy: Anatomy, view: Look, question: Question) -> tuple[Tensor, ...]:
            asked = question.target[:, 0]
            return (*silenced(anatomy, view, asked, sigmoid=targets.sigmoid), asked)

        parts = self._each(images, targets, taken_out, description="taking out", progress=progress)
        order, probability, asked = (torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True))
        return Removal(order, probability, asked, self._fitted.output_names, self._fitted.anatomy.layer)

    def _targets(self, target: Any, against: Against, scale: Scale) -> Targets:
        anatomy, names = self._fitted.anatomy, self._fitted.output_names
        sigmoid = anatomy.link == "sigmoid" or anatomy.outputs == 1
        return Targets(target, against, outputs=anatomy.outputs, names=names, scale=scale, sigmoid=sigmoid)

    def _each(
        self,
        images: Any,
        targets: Targets,
        answer: Callable[[Anatomy, Look, Question], T],
        *,
        description: str,
        progress: bool,
    ) -> list[T]:
        """The answer to what is asked about the images, batch by batch."""
        fitted = self._fitted
        source = images_of(images, batch_size=self.batch_size)
        if source.count is not None:
            targets.require(source.count)
        answers: list[T] = []
        seen = 0
        with self._running():
            anatomy = fitted.anatomy.at_home()
            with anatomy.looking() as look:
                bar = with_progress(source, total=source.count, enabled=progress, description=description)
                for batch in bar:
                    view = look(batch)
                    question = targets.question(view.logits, seen, fitted.evidence.base)
                    answers.append(answer(anatomy, view, question))
                    seen += len(batch)
        targets.require(seen)
        return answers

    def _part(self, anatomy: Anatomy, view: Look, question: Question) -> dict[str, Tensor]:
        fitted = self._fitted
        if isinstance(fitted.evidence, TailEvidence):
            answer = fitted.evidence.answer(anatomy, view, question, fitted.image)
        else:
            answer = fitted.evidence.answer(anatomy, view, question)
        return {
            "positive": answer.positive,
            "negative": answer.negative,
            "signed": answer.positive - answer.negative,
            "account": answer.account,
            "contributions": per_channel(answer.contributions, anatomy.channels, anatomy.pooling),
            "target": question.target,
            "logits": view.logits,
            "residual": question.whole - answer.account.mean((2, 3)),
            "confidence": question.confidence,
        }

    def health(self) -> CamHealth:
        """What is worth knowing before the maps are believed, each with what to do about it."""
        fitted = self._fitted
        return examine(fitted.anatomy, fitted.evidence, rows=fitted.rows)

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
        keeping.save(
            path,
            anatomy=fitted.anatomy,
            evidence=fitted.evidence,
            calibration=fitted.calibration if moments else None,
            rows=fitted.rows,
            options=self._options(),
            output_names=fitted.output_names,
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module) -> Self:
        """Reads an explainer that `save` wrote.

        Args:
            path: The file.
            model: The very model it was calibrated on; another one is an error.
        """
        tensors, about = keeping.load(path)
        cam = cls(model, **about["options"])
        # Any images show where the map is; these are the same every time.
        generator = torch.Generator().manual_seed(0)
        probe = torch.randn(2, *about["image_shape"], generator=generator)
        with cam._running():
            anatomy = find_anatomy(model, probe, layer=cam.layer, head=cam.head)
        found, known = anatomy.described(), about["anatomy"]
        if anatomy.fingerprint() != about["fingerprint"] or found["outputs"] != known["outputs"]:
            raise ValueError(
                "model is not the one this explainer was calibrated on (its weights differ); pass that model, or "
                "calibrate anew."
            )
        if found != known:
            different = [name for name in known if found[name] != known[name]]
            raise ValueError(f"the model's map is not where it was when this explainer was calibrated: {different}.")
        calibration = keeping.calibration_of(tensors, about, anatomy, cam.coefficients)
        evidence = keeping.evidence_of(tensors, about)
        cam._fit = _Fitted(anatomy, evidence, calibration, about["rows"], tuple(about["output_names"]), probe[:1])
        return cam

    def _options(self) -> dict[str, Any]:
        fitted = self._fitted
        layer = None if self.layer is None else fitted.anatomy.place.name
        head = None if self.head is None else fitted.anatomy.head.name
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
        return self._fitted.anatomy.layer

    @property
    def route_(self) -> str:
        """How the map reaches the head: "direct", "tail" or "regression"; see `health`."""
        return self._fitted.anatomy.route

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
        # scikit-learn would copy the model; it is a guest's host and stays.
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

    anatomy: Anatomy
    evidence: Evidence
    calibration: Calibration | None
    rows: int
    output_names: tuple[str, ...]
    image: Tensor


def _added_up(
    source: Images | None, calibration: Calibration, anatomy: Anatomy, look: Callable[[Tensor], Look], *, progress: bool
) -> Iterator[None]:
    """Adds every batch to the calibration, one step a batch."""
    if source is None:
        return
    for batch in with_progress(source, total=source.count, enabled=progress, description="calibrating"):
        calibration.update(anatomy, look(batch))
        yield


def _solved(
    calibration: Calibration, anatomy: Anatomy, ridge: Ridge, image: Tensor, *, progress: bool = False
) -> Evidence:
    if isinstance(calibration, TailCalibration):
        return calibration.solve(anatomy, ridge, image, progress=progress)
    return calibration.solve(anatomy, ridge)
