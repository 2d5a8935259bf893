"""NObSP-CAM: class activation maps that add up to the logit."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from nobsp import notebook, serialization
from nobsp._typing import ArrayLike, ImagesLike, TableLike
from nobsp.arguments import (
    names_of,
    number_outputs,
    quote,
    refusing_arguments,
    refusing_options,
    require_choice,
    require_whole_number,
    warn_caller,
)
from nobsp.base import Explainer
from nobsp.calibration import Engine, choose_engine
from nobsp.elsewhere import CAM_ARGUMENTS, MAPS_ARGUMENTS
from nobsp.network.batches import check_batch_size, with_progress
from nobsp.network.evidence import (
    EvidenceBatch,
    EvidenceSource,
    Wanted,
    read_activations,
    sign_coefficients,
)
from nobsp.network.guest import counting_passes, in_ordinary_modes, run_in_ordinary_modes
from nobsp.projection import Ridge
from nobsp.vision.account import Account, answer
from nobsp.vision.feature_map import FeatureMap, ForwardPass, pooled
from nobsp.vision.files import find_again, probe_of, require_names, require_same_map
from nobsp.vision.find_map import PROBE_IMAGES, find_map
from nobsp.vision.health import CamHealth, examine, inputs_of
from nobsp.vision.images import Images, images_of, make_thumbnails, read_images
from nobsp.vision.maps import KINDS, ActivationMaps, Kind, join
from nobsp.vision.means import MOST_UNEXPLAINED, ChannelMoments, MapMeans, start_calibration
from nobsp.vision.one_tensor import OneTensorModel, as_taken, same_inputs
from nobsp.vision.pictures import pictures_in
from nobsp.vision.removal import (
    Removal,
    ThoroughMaps,
    average_regions,
    lose_regions,
    remove_locations,
    standardise,
)
from nobsp.vision.targets import Against, Scale, Targets

T = TypeVar("T")
Calibration = MapMeans | ChannelMoments

KIND = "class activation maps"
VERSION = 7
# What a checkpoint of a calibration holds.
CHECKPOINTED = (MapMeans, ChannelMoments)


@refusing_options(
    CAM_ARGUMENTS, surplus="pass the images to fit, and layer= and all other options by name"
)
class NObSPCam(Explainer):
    """Class activation maps of a network, which add up to its logits.

    The map, what follows it and the head are found by running the model. Calibration streams images
    and keeps means.

    - Where the map is pooled straight into a linear head (ResNet, MobileNetV2, EfficientNet,
      RegNet, DenseNet, Swin), accounts rest on the head's weights, exactly; two images suffice. A
      maximum belongs to the location where it was found, an entry of a flattened map to its own. A
      map of the classes that is averaged (SqueezeNet) has the identity as head.
    - Anything else between map and output (LayerNorm in ConvNeXt, fully connected layers in VGG,
      attention pooling, a head that is no layer) has the gradient of those layers alone, integrated
      on the straight line from the calibration mean of the map to the map. `maps.residual` is the
      error of the integral, `maps.class_token` the share of tokens that have no place in the image.
    - A transformer that reads a class token is explained where its patches enter, by one gradient
      of its own pass with the scales of its normalisations held, and what attention carries in it:
      a picture of where a class is, which does not add up. With `points=8` it does, at about twenty
      times the cost.
    - Models of signals and texts that read one time step or token (recurrent networks, decoders)
      are explained where the time steps or tokens enter, if need be at the input itself.

    Args:
        model: A torch module that takes images (n, channels, height, width). It is only run, never
            changed.
        layer: Module whose output is the map, or its name; everything must pass through it. When
            None, the last map that is pooled into the head, or else the last on whose locations the
            output depends.
        head: The last linear layer or its name; found when None.
        coefficients: "head" for the head's own weights, or "calibrated" by the paper's Algorithm 1,
            which needs more images than channels and a map that is pooled straight into the head.
        kind: Which map pictures show where none is named: "contrast", the account against the other
            classes; "account", "positive", "negative" or "signed".
        link: "softmax" where classes exclude each other, "sigmoid" where each has a yes or no of
            its own; None for what follows the model's last layer, and a softmax where nothing does.
        ridge: Strength of the regularisation of calibrated coefficients.
        ridge_scale: "absolute" as in the paper, or "relative" to the matrix it is added to.
        points: Points of the integral through layers behind the map. None for 8, or 16 where only
            the channels' means count, and up to four times as many for images that these miss by
            more than 1%; but 1 for the picture of a transformer that reads a class token. Where 8
            or more are asked for, such images get up to eight times as many; fewer are taken as
            they are.
        output: What makes numbers (n,) or (n, k) of what the model returns, where that is a map per
            class, boxes or several things: `lambda out: out[:, 5, 20:40, 20:40].mean((1, 2))` for
            the mean score of a class in a box.
        output_names: Names of the classes.
        device: Where to run the model; where it is when None.
        batch_size: Most images in one forward call.

    Example:
        >>> import nobsp, torch
        >>> from torch import nn
        >>> body = nn.Sequential(
        ...     nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        ... )
        >>> images = torch.randn(64, 3, 16, 16)
        >>> maps = nobsp.NObSPCam(
        ...     nn.Sequential(body, nn.Linear(8, 5))
        ... ).fit(images)(images, target=2)
        >>> centred = maps.logits[:, 2] - maps.base_values[2]
        >>> maps.account.shape, bool(abs(maps.account.mean((1, 2)) - centred).max() < 1e-12)
        ((64, 14, 14), True)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        layer: str | nn.Module | None = None,
        head: str | nn.Module | None = None,
        coefficients: Literal["head", "calibrated"] = "head",
        kind: Kind = "contrast",
        link: Literal["softmax", "sigmoid"] | None = None,
        ridge: float = 1e-4,
        ridge_scale: Literal["relative", "absolute"] = "absolute",
        points: int | None = None,
        output: Callable[[Any], Tensor] | None = None,
        output_names: Sequence[str] | None = None,
        device: torch.device | str | None = None,
        batch_size: int = 32,
    ) -> None:
        self.model = model
        self.layer = layer
        self.head = head
        self.coefficients = coefficients
        self.kind = kind
        self.link = link
        self.ridge = ridge
        self.ridge_scale = ridge_scale
        self.points = points
        self.output = output
        self.output_names = output_names
        self.device = device
        self.batch_size = batch_size

    @classmethod
    def as_published(cls, model: nn.Module, **options: Any) -> Self:
        """The paper's maps: coefficients by Algorithm 1, and the positive map.

        The ridge is absolute, 1e-4.
        """
        published = {
            "coefficients": "calibrated",
            "kind": "positive",
            "ridge": 1e-4,
            "ridge_scale": "absolute",
        }
        return cls(model, **{**published, **options})

    @in_ordinary_modes
    def fit(
        self,
        images: ImagesLike,
        y: ArrayLike = None,  # noqa: ARG002 - as scikit-learn calls it
        *,
        engine: Engine | None = None,
        progress: bool = False,
    ) -> Self:
        """Calibrates on images, in memory that does not grow with them.

        Warns of what makes maps doubtful.

        Args:
            images: Tensor or array (n, channels, height, width), DataLoader (labels in its batches
                are left aside), an iterable of batches, or a `ray.data.Dataset` with a column of
                images; preprocessed the way the model was trained. Data that can be read only once
                is read once.
            y: Ignored: the network's own outputs are explained.
            engine: Where images are run, to the same result but for rounding: `nobsp.Local` in this
                process, with a checkpoint; `nobsp.Ranks` on all processes of a `torch.distributed`
                group, each with its own images, which may be uneven or none; `nobsp.RayCluster` in
                the workers of a Ray cluster. By default all ranks where there are several, else the
                cluster of a Ray dataset, else this process.
            progress: Whether to show a progress bar on stderr.
        """
        with counting_passes() as passes, choose_engine(engine, images).start(CHECKPOINTED) as run:
            ridge = self._checked_ridge()
            source = read_images(run, images, batch_size=self.batch_size)
            taken = as_taken(
                self.model,
                keys=source.keys,
                pixels=source.pixels,
                fixed=source.fixed,
                output=self.output,
            )
            feature_map = find_map(taken, source.first, layer=self.layer, head=self.head)
            working = feature_map.on_device(self.device)
            empty = start_calibration(working, self.coefficients)
            fingerprint = feature_map.fingerprint()
            names = self._names_of_outputs(feature_map.outputs)
            if run.size > 1 or run.checkpoint is not None:
                options = repr((feature_map.described(), self.coefficients, ridge, names))
                what = "the layer, coefficients, ridge or output_names asked for"
                run.require_same({"the model": fingerprint, what: options})

            calibration = run.accumulate(
                source,
                empty,
                _add_images,
                model=run.share(working),
                name="calibrating",
                progress=progress,
            )
            if calibration.rows < 2:
                raise ValueError(
                    f"images has {calibration.rows} image; calibration needs at least two."
                )

            probe = source.first[:PROBE_IMAGES].detach().to("cpu", copy=True)
            # Every rank solves, rather than wait longer than a process group allows for another
            # that does, and takes what the first one found: processors differ in their last digits.
            solved = calibration.solve(working, ridge, probe, self.points)
            account: Account = run.decide(lambda: solved)

        fitted = _Fitted(
            {}, feature_map.described(), fingerprint, account, calibration, calibration.rows, names
        )
        self._calibration = fitted.of(feature_map, probe, forward_rows=passes.rows)
        for finding in self.health().findings:
            if finding.severity == "warning":
                warn_caller(finding.message)

        return self

    def _names_of_outputs(self, n_outputs: int) -> tuple[str, ...]:
        """The names that were asked for, or numbers where none were.

        Raises a ValueError where there are not as many names as classes.
        """
        if self.output_names is None:
            return number_outputs(n_outputs)
        names = names_of("output_names", self.output_names)
        if len(names) != n_outputs:
            raise ValueError(
                f"output_names has {len(names)} names but the model has {n_outputs} classes."
            )
        return names

    @in_ordinary_modes
    def merge(self, other: NObSPCam) -> Self:
        """Adds another calibration's images to this one, as if all were read in one pass.

        Both must be of the same model and layer.
        """
        mine = self._fitted
        if not isinstance(other, NObSPCam):
            raise TypeError(f"other must be a calibrated NObSPCam, found {quote(other)}.")
        theirs = other._fitted
        if mine.calibration is None or theirs.calibration is None:
            raise ValueError(
                "a calibration saved without its moments cannot be merged; save with "
                "mergeable=True."
            )

        own_key, other_key = (
            (fit.found, fit.fingerprint, type(fit.calibration)) for fit in (mine, theirs)
        )
        if own_key != other_key:
            raise ValueError(
                "the two calibrations are of different models, layers or kinds of coefficients."
            )

        # same kind
        calibration: Calibration = mine.calibration.merge(theirs.calibration)  # type: ignore[arg-type]
        feature_map = mine.feature_map.on_device(self.device)
        ridge = self._checked_ridge()
        account = calibration.solve(feature_map, ridge, mine.probe, self.points)
        merged = dataclasses.replace(
            mine, account=account, calibration=calibration, rows=calibration.rows
        )
        self._calibration = merged.of(mine.feature_map, mine.probe)
        return self

    def _checked_ridge(self) -> Ridge:
        known = {
            "coefficients": ("head", "calibrated"),
            "link": (None, "softmax", "sigmoid"),
            "kind": KINDS,
        }
        for name, choices in known.items():
            require_choice(name, getattr(self, name), choices)
        require_whole_number("points", 1 if self.points is None else self.points)
        return Ridge(self.ridge, self.ridge_scale)

    @refusing_arguments(MAPS_ARGUMENTS, owner="the explainer")
    @in_ordinary_modes
    def __call__(
        self,
        images: ImagesLike,
        target: Any = None,
        *,
        against: Against = None,
        scale: Scale = "logit",
        progress: bool = False,
    ) -> ActivationMaps:
        """Maps for a batch of images, with one forward pass each.

        Where layers stand behind the map, some passes through these are added.

        Args:
            images: Images of any kind that `fit` takes, except a `ray.data.Dataset`.
            target: None for the predicted class; a class number or name; one per image; or several
                per image, shape (n, k), and every map then has an axis for them.
            against: What the account is compared with: None for the calibration mean alone; a class
                number or name, which must not be the target; "runner-up" for the strongest other
                class; "others" for the other classes in proportion to their softmax, which makes
                the account one of the log-odds; "mean" for all classes alike. The account is then
                of the difference of logits.
            scale: "logit", or "probability" for evidence in the target's probability: the account's
                mean is then how far that is from the probability at the calibration mean (see
                `ActivationMaps`).
            progress: Whether to show a progress bar on stderr.
        """
        if callable(target):
            raise TypeError(
                "target is a function, which has to be known before the calibration: "
                "NObSPCam(model, output=function)."
            )

        targets = self._targets(target, against, scale)
        fitted = self._fitted
        is_picture = fitted.account.is_picture(fitted.feature_map)
        # A second gradient would cost as much as the picture itself: it has one, and account and
        # contrast are the same.
        has_contrast = targets.has_contrast and (not is_picture or self.kind == "contrast")
        say = partial(answer, fitted.account, targets=targets, contrast=has_contrast)
        with counting_passes() as passes:
            parts = self._each(images, targets, say, progress=progress)
        n_images = sum(len(part.target) for part in parts)
        maps = join(
            parts,
            several=targets.several,
            base_values=fitted.account.base.numpy().copy(),
            mean_values=fitted.account.mean_logits.numpy().copy(),
            output_names=fitted.output_names,
            layer=fitted.feature_map.layer,
            against=targets.against,
            scale=scale,
            kind=self.kind if self.kind != "contrast" or has_contrast else "account",
            picture=is_picture,
            passes=passes.rows / n_images,
            gradients=passes.gradients / n_images,
            reference=f"the mean of {fitted.rows:,} calibration {inputs_of(fitted.feature_map)}",
        )
        if fitted.feature_map.direct and self.coefficients == "head":
            _warn_of_other_paths(maps)
        return maps

    explain = __call__

    @in_ordinary_modes
    def removal(self, images: ImagesLike, target: Any = None, *, progress: bool = False) -> Removal:
        """In which order locations have to go for the target to go fastest.

        It takes one forward pass per image.

        A location that goes falls silent: all its channels are zero. At each step that one goes
        whose going lowers the target's probability most, exactly, given those gone before. Time
        grows with the square of their number.

        Args:
            images: Images of any kind that a call takes.
            target: None for the predicted class; a class number or name; or one per image.
            progress: Whether to show a progress bar on stderr.

        Raises:
            ValueError: If the logits are no sum over locations: where layers stand between map and
                head, where the map is pooled by its maximum, or for a layer further down.
        """
        targets = self._one_target(target)
        feature_map = self._fitted.feature_map
        if not feature_map.direct or feature_map.pooling not in ("mean", "flatten"):
            why = "layers come between, or a maximum; use cam(images).account"
            raise ValueError(
                f"the logits are not a sum over the locations of {feature_map.layer!r}: {why}."
            )

        def remove(feature_map: FeatureMap, view: ForwardPass, own: Tensor) -> tuple[Tensor, ...]:
            return (
                *remove_locations(feature_map, view, own[:, 0], sigmoid=targets.sigmoid),
                own[:, 0],
            )

        parts = list(self._each(images, targets, remove, progress=progress))
        if len({tuple(order.shape[1:]) for order, *_ in parts}) > 1:
            raise ValueError(
                "images has batches of different sizes, whose maps have other locations; ask for "
                "each size by itself."
            )
        order, probability, own = (
            torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True)
        )
        return Removal(order, probability, own, self._fitted.output_names, feature_map.layer)

    @in_ordinary_modes
    def thorough(
        self,
        images: ImagesLike,
        target: Any = None,
        *,
        regions: int = 7,
        most: int | None = None,
        progress: bool = False,
    ) -> ThoroughMaps:
        """The account, together with what is lost without each region.

        It is slow, and the best at saying where a class is.

        Each region in turn is blurred away and the network is run again: 49 forward passes an image
        with 7 × 7 regions. What is lost and the account are brought to one scale, image by image,
        and added.

        Args:
            images: Images, signals or volumes of any kind that a call takes.
            target: None for the predicted class; a class number or name; or one per image.
            regions: How many regions along each axis.
            most: Of how many regions to try the removal, those the account ranks highest; all when
                None.
            progress: Whether to show a progress bar on stderr.
        """
        targets = self._one_target(target)
        fitted = self._fitted
        if fitted.feature_map.text:
            raise ValueError("texts have no regions to blur away; use cam(texts).account.")
        if fitted.feature_map.has_time_second:
            raise ValueError(
                "these sequences are (n, time, channels), and regions are blurred along the last "
                "axis; use cam(sequences).account, or wrap the model so that it takes (n, "
                "channels, time)."
            )
        require_whole_number("regions", regions)
        every = regions ** len(fitted.feature_map.shape)
        require_whole_number("most", every if most is None else most)
        count = every if most is None else min(most, every)

        is_picture = fitted.account.is_picture(fitted.feature_map)

        def remove(feature_map: FeatureMap, view: ForwardPass, own: Tensor) -> tuple[Tensor, ...]:
            answered = answer(
                fitted.account,
                feature_map,
                view,
                own,
                targets=targets,
                contrast=is_picture and targets.has_contrast,
            )
            account = average_regions(answered.account, regions)[:, 0]
            own = own[:, 0]
            tried = account.flatten(1).topk(count, dim=1).indices
            lost = lose_regions(
                feature_map, view, own, tried, regions, self.batch_size, targets.sigmoid
            )
            return account.cpu(), lost.reshape(account.shape).cpu(), own.cpu()

        parts = self._each(images, targets, remove, progress=progress)
        account, lost, own = (torch.cat(part) for part in zip(*parts, strict=True))
        combined = (standardise(account) + standardise(lost)).numpy()
        return ThoroughMaps(
            combined, account.numpy(), lost.numpy(), 1 + count, own.numpy(), fitted.output_names
        )

    def _one_target(self, target: Any) -> Targets:
        targets = self._targets(target, None, "logit")
        if targets.several:
            raise ValueError("target has several classes per image; ask for one at a time.")
        return targets

    def _targets(self, target: Any, against: Against, scale: Scale) -> Targets:
        feature_map = self._fitted.feature_map
        names = self._fitted.output_names
        sigmoid = (self.link or feature_map.link) == "sigmoid" or feature_map.outputs == 1
        return Targets(
            target, against, outputs=feature_map.outputs, names=names, scale=scale, sigmoid=sigmoid
        )

    def _each(
        self,
        images: ImagesLike,
        targets: Targets,
        say: Callable[[FeatureMap, ForwardPass, Tensor], T],
        *,
        progress: bool,
    ) -> list[T]:
        """What is to be said of the images and their targets (n, targets), batch by batch."""
        fitted = self._require_same_weights()
        source = self._read(images)
        if source.keys != fitted.feature_map.keys:
            raise ValueError(
                f"images has {list(source.keys)}, but fit was given "
                f"{list(fitted.feature_map.keys)}."
            )
        if source.rows is not None:
            targets.require(source.rows)
        answers: list[T] = []
        seen = 0
        for feature_map, view in self._views(source, "explaining", progress=progress):
            answers.append(say(feature_map, view, targets.choose(view.logits, seen)))
            seen += len(view.logits)
        targets.require(seen)
        return answers

    def _read(self, images: ImagesLike, *, argument: str = "images") -> Images:
        """Images like those of the calibration; inputs beside them must be the same."""
        feature_map = self._fitted.feature_map
        if self._fitted.is_normalised and pictures_in(images, argument) is not None:
            warn_caller(
                f"{argument} are pictures, which are scaled to 0 to 1 and not normalised, but the "
                "calibration images have values outside of that range; pass tensors that are "
                "prepared like those."
            )
        source = images_of(
            images,
            batch_size=self.batch_size,
            argument=argument,
            image_shape=feature_map.image_shape,
        )
        module = feature_map.module
        known = module.fixed_inputs() if isinstance(module, OneTensorModel) else {}
        if source.fixed and not same_inputs(source.fixed, known):
            raise ValueError(
                f"{argument} has other {sorted(source.fixed)} than fit was given; call fit with "
                "these."
            )
        return source

    def _views(
        self, source: Images, description: str, *, progress: bool, gradients: bool = True
    ) -> Iterator[tuple[FeatureMap, ForwardPass]]:
        """One forward pass over each batch, with the model where it is to run."""
        feature_map = self._fitted.feature_map.on_device(self.device)
        taping = gradients and self._fitted.account.needs_tape(feature_map)
        with feature_map.running(taping=taping) as forward:
            for batch in with_progress(
                source, total=source.rows, enabled=progress, description=description
            ):
                yield feature_map, forward(batch)

    def evidence_source(self) -> EvidenceSource:
        """What an index of neighbours needs of an explainer."""
        feature_map = self._fitted.feature_map
        account = self._fitted.account
        head = feature_map.head if feature_map.direct else None
        signed = account.mean[:, None] if account.coefficients is None else account.coefficients
        return EvidenceSource(
            output_names=self._fitted.output_names,
            # A single output of a network that is explained class by class is a logit.
            link="sigmoid" if feature_map.outputs == 1 else self.link or feature_map.link,
            about=f"cam {sorted(feature_map.described().items())}",
            hash_model=feature_map.fingerprint,
            signature=sign_coefficients(signed, account.base),
            read=self._read_evidence,
            head=None if head is None else (head.weight, head.bias),
            coefficients=account.coefficients,
            mean=None if account.coefficients is None else account.mean,
        )

    def _read_evidence(
        self, X: TableLike, *, wanted: Wanted, progress: bool
    ) -> Iterator[EvidenceBatch]:
        """Pooled channels and logits of images, or of activations that were pooled before.

        Activations have shape (rows, units).
        """
        fitted = self._require_same_weights()
        head = fitted.feature_map.head if fitted.feature_map.direct else None
        if isinstance(X, Tensor | np.ndarray) and X.ndim == 2 and not self._are_tokens(X):
            if head is None:
                raise ValueError(
                    "layers stand between map and head, so pooled channels are not enough; pass X "
                    "as images."
                )
            yield from read_activations(X, head.weight, head.bias, progress=progress)
            return
        source = self._read(X, argument="X")
        views = self._views(
            source, "reading", progress=progress, gradients=wanted != "none" and head is None
        )
        for feature_map, view in views:
            yield run_in_ordinary_modes(partial(self._evidence, feature_map, view, wanted))

    def _are_tokens(self, X: Tensor | np.ndarray[Any, Any]) -> bool:
        """Whether a matrix holds texts, as those of the calibration, and no pooled activations."""
        is_whole = str(X.dtype).removeprefix("torch.").startswith(("int", "uint"))
        return is_whole and self._fitted.feature_map.text

    def _evidence(
        self, feature_map: FeatureMap, view: ForwardPass, wanted: Wanted
    ) -> EvidenceBatch:
        """What one forward pass shows of its images."""
        fitted = self._fitted
        has_head = fitted.feature_map.direct
        units = pooled(view.maps, feature_map.pooling if has_head else "mean").cpu()
        logits = view.logits.cpu()
        thumbnails = make_thumbnails(view.images)
        if has_head or wanted == "none":
            return EvidenceBatch(units, logits, thumbnails=thumbnails)

        targets = self._targets(None, None, "logit")
        target = targets.choose(view.logits, 0)
        if wanted == "every":
            every_output = torch.arange(feature_map.outputs, device=target.device)
            target = every_output.expand_as(view.logits)
        answered = answer(
            fitted.account, feature_map, view, target, targets=targets, contrast=False
        )
        contributions = answered.contributions.cpu()
        return EvidenceBatch(units, logits, contributions, thumbnails=thumbnails)

    def _repr_html_(self) -> str:
        title = f"{type(self).__name__} of {type(self.model).__name__}"
        if not hasattr(self, "_calibration"):
            return notebook.card(title, notebook.line("Not calibrated yet: call fit with images."))
        return notebook.card(title, self.health()._repr_html_())

    def health(self) -> CamHealth:
        """What is worth knowing before the maps are believed, each with what to do about it."""
        fitted = self._fitted
        return examine(
            fitted.feature_map,
            fitted.account,
            rows=fitted.rows,
            forward_rows=fitted.forward_rows,
        )

    def save(self, path: str | os.PathLike[str], *, mergeable: bool = False) -> None:
        """Writes the calibration to one safetensors file, without the model and the images.

        Coefficients are kept in single precision: maps of a loaded explainer differ by less than a
        millionth.

        Args:
            path: Where to; an existing file is replaced, atomically.
            mergeable: Whether to keep what `merge` needs; without, the file is small.
        """
        fitted = self._fitted
        if mergeable and fitted.calibration is None:
            raise ValueError(
                "mergeable: this explainer was loaded from a file without what merge needs; pass "
                "False."
            )

        mergeable_part = fitted.calibration if mergeable else None
        account = fitted.account.cast(torch.float32)
        # What makes the same explainer around the same model: its parameters, and what its images
        # are like.
        feature_map = fitted.feature_map
        inside = feature_map.inside
        init = self._options() | {
            "layer": None if self.layer is None else feature_map.place.name.removeprefix(inside),
            "head": None
            if self.head is None or feature_map.head is None
            else feature_map.head.name.removeprefix(inside),
            "output": None,
            "output_names": None if self.output_names is None else list(self.output_names_),
            "device": None if self.device is None else str(self.device),
            "batch_size": int(self.batch_size),
        }
        wrapped = feature_map.module if isinstance(feature_map.module, OneTensorModel) else None
        options = {
            "init": init,
            "images": (feature_map.image_shape, feature_map.text, feature_map.keys),
            "pixels": "" if wrapped is None else wrapped.pixels,
            "fixed": {} if wrapped is None else wrapped.fixed_inputs(),
            "has_output": self.output is not None,
        }
        stored = dataclasses.replace(
            fitted, options=options, account=account, calibration=mergeable_part
        )
        serialization.save(path, stored, kind=KIND, version=VERSION)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: nn.Module,
        *,
        output: Callable[[Any], Tensor] | None = None,
    ) -> Self:
        """Reads an explainer that `save` wrote, with the very model it was calibrated on.

        Raises a ValueError for another model.

        Args:
            path: The file.
            model: The model.
            output: The function of `NObSPCam(model, output=...)`, which no file holds.
        """
        classes = (*CHECKPOINTED, Account, _Fitted)
        stored = serialization.load(path, kind=KIND, version=VERSION, classes=classes, of=_Fitted)
        with serialization.damage_in_words(path):
            require_names(stored.options)
            cam = cls(model, **{**stored.options["init"], "output": output})
            cam._checked_ridge()
            check_batch_size(cam.batch_size)
            if stored.options["has_output"] != (output is not None):
                raise ValueError("output= has to be passed if, and only if, the explainer had one")
            image_shape, text, keys = stored.options["images"]
            probe = probe_of(image_shape, text=text, keys=keys)
            known = dict(stored.found)
            account = stored.account.cast(torch.float64)
            account.require_finite()

        feature_map = find_again(
            model, stored.options, probe, layer=cam.layer, head=cam.head, output=output
        )
        require_same_map(feature_map, known, fingerprint=stored.fingerprint)

        with serialization.damage_in_words(path):
            account.require_fits(feature_map)
            if len(stored.output_names) != feature_map.outputs:
                raise ValueError(f"it names {len(stored.output_names)} outputs")

        cam._calibration = dataclasses.replace(stored, account=account).of(feature_map, probe)
        return cam

    @property
    def layer_(self) -> str:
        """Where in the model the map is."""
        return self._fitted.feature_map.layer

    @property
    def coefficients_(self) -> Any:
        """One coefficient per unit and class, shape (units, outputs).

        Raises an AttributeError unless contributions are linear in units.
        """
        coefficients = self._fitted.account.coefficients
        if coefficients is None:
            raise AttributeError(
                "layers stand between map and output, so contributions have no coefficients."
            )
        return coefficients.numpy().copy()

    @property
    def output_names_(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self._fitted.output_names

    @property
    def base_values_(self) -> Any:
        """Logits at the calibration mean of the map: what accounts start from."""
        return self._fitted.account.base.numpy().copy()

    @property
    def mean_values_(self) -> Any:
        """Mean logits over the calibration images.

        They differ from `base_values_` where layers follow that are not linear.
        """
        return self._fitted.account.mean_logits.numpy().copy()

    @property
    def _fitted(self) -> _Fitted:
        fitted: _Fitted = super()._fitted
        return fitted

    def _require_same_weights(self) -> _Fitted:
        """The calibration; an error where the model has been trained on, or loaded anew, since."""
        fitted = self._fitted
        if _state_of(fitted.feature_map.module) != fitted.state:
            # Tensors also move with their model, so that only their values count.
            if fitted.feature_map.fingerprint() != fitted.fingerprint:
                raise ValueError(
                    "the model's weights have changed since fit; call fit(images) again."
                )
            fitted.remember_state()
        return fitted


@dataclass(eq=False)
class _Fitted:
    """A calibration; what is not given to `__init__` is not in its file."""

    options: dict[str, Any]  # of the explainer, in a file
    found: dict[str, Any]  # what must be the same for it to apply
    fingerprint: str  # of the model
    account: Account
    calibration: Calibration | None  # what `merge` needs
    rows: int
    output_names: tuple[str, ...]
    feature_map: FeatureMap = field(init=False)  # where the map is
    probe: Tensor = field(init=False)  # some images
    state: tuple[Any, ...] = field(init=False)  # of the model's tensors
    # images that this process sent through the model to calibrate; zero where they were not counted
    forward_rows: int = field(init=False)

    def of(self, feature_map: FeatureMap, probe: Tensor, *, forward_rows: int = 0) -> Self:
        """The same of a model."""
        self.feature_map = feature_map
        self.probe = probe
        self.forward_rows = forward_rows
        self.remember_state()
        return self

    @property
    def is_normalised(self) -> bool:
        """Whether calibration images are known to have values outside 0 to 1.

        The images of a loaded calibration are not known.
        """
        is_known = self.forward_rows > 0 and not self.feature_map.text
        return is_known and bool((self.probe < 0).any() or (self.probe > 1).any())

    def remember_state(self) -> None:
        """Takes the model's tensors as they are for those it was calibrated on."""
        self.state = _state_of(self.feature_map.module)


def _warn_of_other_paths(maps: ActivationMaps) -> None:
    """Warns where much of what a model says of some images did not come from the map."""
    sizes = np.abs(maps.residual)
    # A logit that hardly differs from its base is missed by rounding alone.
    is_rounding = sizes.max() <= 1e-3 * np.abs(maps.logits).max()
    if is_rounding or maps.unexplained <= MOST_UNEXPLAINED:
        return
    warn_caller(
        f"the maps of these images miss {maps.unexplained:.0%} of what the model says, see "
        f"`residual`: it came along other paths than {maps.layer!r}, which did not count while it "
        "was calibrated. Calibrate on images like these, or choose another layer=."
    )


def _add_images(
    calibration: Calibration, images: Tensor, forward: Callable[[Tensor], ForwardPass]
) -> None:
    calibration.update(forward(images))


def _state_of(module: nn.Module) -> tuple[Any, ...]:
    """Where the model's tensors are, and how often each was written to.

    Cheap to find, and equal only for the same weights.
    """
    tensors = (*module.parameters(), *module.buffers())
    return tuple(
        (tensor.data_ptr(), None if tensor.is_inference() else tensor._version)
        for tensor in tensors
    )


def explain_images(
    model: nn.Module,
    images: ImagesLike,
    target: Any = None,
    *,
    against: Against = None,
    scale: Scale = "logit",
    **options: Any,
) -> ActivationMaps:
    """Maps of images without a calibration set, with the mean of these images as reference.

    They show what an image has more or less of than that mean.

    With few or similar images that mean is a poor reference; `NObSPCam(model).fit(others)` takes a
    better one.

    Args:
        model: A torch module that takes images (n, channels, height, width).
        images: At least two, of any kind that `NObSPCam.fit` takes.
        target: As a call of `NObSPCam` takes it, and so are the next two; or a function that makes
            the number to explain of what the model returns, as `output` of `NObSPCam`.
        against: A class, "runner-up", "others", "mean" or None.
        scale: "logit" or "probability".
        options: Of `NObSPCam`, such as layer, link and output_names.

    Example:
        >>> import nobsp, torch
        >>> from torch import nn
        >>> body = nn.Sequential(
        ...     nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        ... )
        >>> images = torch.randn(6, 3, 16, 16)
        >>> maps = nobsp.explain_images(nn.Sequential(body, nn.Linear(8, 5)), images)
        >>> maps.contrast.shape, maps.reference
        ((6, 14, 14), 'the mean of these 6 images')
    """
    if isinstance(images, Iterator):
        images = list(images)  # they are read twice
    if callable(target):
        options = {**options, "output": target}
        target = None
    cam = NObSPCam(model, **options).fit(images)
    maps = cam(images, target, against=against, scale=scale)
    return dataclasses.replace(maps, reference=f"the mean of these {len(maps)} images")
