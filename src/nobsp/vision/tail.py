"""Coefficients where layers stand between the map and the head: Algorithm 1 with channels as features."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nobsp.network.batches import with_progress
from nobsp.projection import Ridge, row_coefficients
from nobsp.vision.channels import Answer, Coefficients, Means
from nobsp.vision.feature_map import FeatureMap, ForwardPass, Reach
from nobsp.vision.grid import spread
from nobsp.vision.isolation import isolating, shaped
from nobsp.vision.question import Question

# Images on which the isolated and reference representations are made, by how coefficients come about: the head's own
# weights need only the mean isolated representation of each channel. A representation that is wider than half as many
# gets twice its width, as the regression needs more images than that.
MOST_IMAGES = {"calibrated": 4096, "head": 256}
# Bytes of maps that are kept.
KEPT_BYTES = 1 << 30
# Seconds of silence without a word of how long it will take.
_PATIENCE = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class TailEvidence:
    """Contributions g_c(x) = (z_c(x) − z̄_c) β_c, with z_c(x) the representation of channel c put in alone.

    Attributes:
        baseline: Map of an inactive channel, shape (channels, height, width), one location where only means matter.
        bases: Orthonormal bases of all channels' isolated representations side by side, shape (width, ranks).
        centres: z̄_c in those bases, shape (ranks,).
        coefficients: β in those bases, shape (ranks, outputs).
        ranks: Directions of each channel, shape (channels,).
        at_baseline: g_c where channel c is at its baseline, shape (channels, outputs).
        base: Mean logits over the calibration images.
        explained: Share of each logit's variance that the contributions carry, on the images kept.
        unique_share: Per channel, what the reference leaves of its isolated representation; None for head weights.
        ridge: Largest λ used.
        note: What is wrong with the calibration; empty when all is well.
    """

    baseline: Tensor
    bases: Tensor
    centres: Tensor
    coefficients: Tensor
    ranks: Tensor
    at_baseline: Tensor
    base: Tensor
    explained: Tensor
    unique_share: Tensor | None
    ridge: float
    note: str

    def answer(self, feature_map: FeatureMap, seen: ForwardPass, question: Question, image: Tensor) -> Answer:
        """Maps for the classes asked about; every channel is put into the model by itself."""
        maps = seen.maps
        inputs = shaped(maps, feature_map.reach)
        beta = question.of_columns(self.coefficients.to(maps.device))
        contributions = maps.new_empty(len(maps), beta.shape[1], feature_map.channels)
        bounds = _bounds(self.ranks)
        with isolating(feature_map, image, inputs, self.baseline) as isolation:
            for channels in isolation.chunks(feature_map.channels):
                z = isolation.alone(channels)
                for position, channel in enumerate(channels):
                    own = slice(bounds[channel], bounds[channel + 1])
                    place = z[position] @ self.bases[:, own].to(z.device) - self.centres[own].to(z.device)
                    contributions[:, :, channel] = torch.einsum("nr,ntr->nt", place, beta[:, :, own])
        weights = torch.cat([contributions.clamp_min(0.0), (-contributions).clamp_min(0.0)], dim=1)
        positive, negative = torch.split(spread(maps, weights, "mean"), beta.shape[1], dim=1)
        return Answer(positive, negative, self._account(feature_map, maps, contributions, question), contributions)

    def cast(self, dtype: torch.dtype) -> TailEvidence:  # noqa: ARG002 - as other evidence
        """The same: the account divides small differences of contributions by each other."""
        return self

    def _account(self, feature_map: FeatureMap, maps: Tensor, contributions: Tensor, question: Question) -> Tensor:
        """Contributions over the locations, their mean kept.

        Where only a channel's mean p matters, g runs along its secant from the baseline p°:
            g(p°) + s (F(h, w) − p°),  s = (g(p) − g(p°)) / (p − p°).
        Where all of the map matters, g is shared out as the channel departs from its baseline, |F − F°|.
        """
        if feature_map.reach == "full":
            departure = (maps - self.baseline.to(maps.device)).abs()
            whole = departure.mean((2, 3), keepdim=True)
            shares = torch.where(whole > 0, departure / whole.clamp_min(1e-300), 1.0)
            return spread(shares, contributions, "mean")
        rest = self.baseline.to(maps.device).flatten()
        at_rest = question.of_columns(self.at_baseline.to(maps.device))
        step = (maps.mean((2, 3)) - rest)[:, None]
        moved = step.abs() > 1e-12 * (rest.abs() + maps.abs().mean((2, 3)))[:, None]
        slope = torch.where(moved, (contributions - at_rest) / torch.where(moved, step, 1.0), 0.0)
        constant = torch.where(moved, at_rest - slope * rest, contributions)
        return spread(maps, slope, "mean") + constant.sum(2)[..., None, None]


@dataclass(eq=False)
class TailCalibration:
    """Means of everything and the maps of some images, drawn fairly.

    Attributes:
        coefficients: "calibrated" or "head".
        reach: What of the map the layers behind it depend on.
        shape: Shape of a map as it is kept.
        room: How many are kept at most.
        inputs: Means of the maps.
        outputs: Means of the logits.
        kept: Maps that are kept, flattened.
        kept_logits: Their logits.
    """

    coefficients: Coefficients
    reach: Reach
    shape: tuple[int, ...]
    room: int
    inputs: Means
    outputs: Means
    kept: Tensor
    kept_logits: Tensor

    @classmethod
    def start(cls, feature_map: FeatureMap, coefficients: Coefficients) -> TailCalibration:
        """One that has seen no image."""
        shape = (feature_map.channels, *(feature_map.shape if feature_map.reach == "full" else (1, 1)))
        values = math.prod(shape)
        wanted = MOST_IMAGES[coefficients]
        if coefficients == "calibrated":
            wanted = max(wanted, 2 * feature_map.head.weight.shape[1])
        room = max(2, min(wanted, KEPT_BYTES // (values * feature_map.dtype.itemsize)))
        nothing = torch.empty(0, feature_map.outputs, dtype=torch.float64)
        inputs, outputs = (Means(torch.zeros(width, dtype=torch.float64)) for width in (values, feature_map.outputs))
        kept = torch.empty(0, values, dtype=feature_map.dtype)
        return cls(coefficients, feature_map.reach, shape, room, inputs, outputs, kept, nothing)

    @property
    def rows(self) -> int:
        """Images seen."""
        return self.inputs.rows

    def update(self, seen: ForwardPass) -> None:
        """Adds a batch; every image so far is equally likely to be among those kept."""
        rows = shaped(seen.maps, self.reach)
        if tuple(rows.shape[1:]) != self.shape:
            raise ValueError(
                f"the map has shape {tuple(rows.shape[1:])} where it had {self.shape} before; the layers behind it "
                "see every location, so use images of one size."
            )
        flat, logits = rows.flatten(1).cpu(), seen.logits.cpu()
        before = self.rows
        self.inputs.update(flat)
        self.outputs.update(logits)
        kept = flat.to(self.kept.dtype)
        free = max(self.room - len(self.kept), 0)
        self.kept = torch.cat([self.kept, kept[:free]])
        self.kept_logits = torch.cat([self.kept_logits, logits[:free]])
        # A generator of our own: the caller's random numbers stay where they were.
        generator = torch.Generator().manual_seed(before)
        for position in range(free, len(kept)):
            slot = int(torch.randint(before + position + 1, (), generator=generator))
            if slot < self.room:
                self.kept[slot], self.kept_logits[slot] = kept[position], logits[position]

    def merge(self, other: TailCalibration) -> TailCalibration:
        """Both together: exact while all images fit; else as many are kept of each as it has a share in all."""
        mine, theirs = len(self.kept), len(other.kept)
        if mine + theirs > self.room:
            share = round(self.room * self.rows / (self.rows + other.rows))
            mine = min(max(share, self.room - theirs), mine)
            theirs = self.room - mine
        first, second = self._keep(mine), other._keep(theirs)
        return replace(
            self,
            inputs=self.inputs.merge(other.inputs),
            outputs=self.outputs.merge(other.outputs),
            kept=torch.cat([first.kept, second.kept]),
            kept_logits=torch.cat([first.kept_logits, second.kept_logits]),
        )

    def thin(self, total: int) -> TailCalibration:
        """The same with no more images than are kept of it among `total`."""
        return self if total <= self.room else self._keep(-(-self.room * self.rows // total))

    def _keep(self, most: int) -> TailCalibration:
        chosen = _spaced(len(self.kept), most)
        return replace(self, kept=self.kept[chosen], kept_logits=self.kept_logits[chosen])

    def solve(self, feature_map: FeatureMap, ridge: Ridge, image: Tensor, *, progress: bool = False) -> TailEvidence:
        """Algorithm 1 for every channel: its isolated representation along that of all the others."""
        device = feature_map.device
        inputs = torch.unflatten(self.kept, 1, self.shape).to(device)
        baseline = torch.unflatten(self.inputs.mean, 0, self.shape)
        origin = baseline.to(device, feature_map.dtype)
        logits = self.kept_logits
        weight = feature_map.head.weight
        fits: list[_Fit] = []
        total = torch.zeros_like(logits)
        with feature_map.behind(image) as tail:
            rest = tail(origin[None]).to("cpu", torch.float64)
        with isolating(feature_map, image, inputs, origin) as isolation:
            began = time.monotonic()
            chunks = isolation.chunks(feature_map.channels)
            for channels in with_progress(
                chunks, total=feature_map.channels, enabled=progress, description="solving channels"
            ):
                others: Tensor | None = None
                if self.coefficients == "calibrated":
                    alone, others = (part.cpu() for part in isolation.both(channels))
                else:
                    alone = isolation.alone(channels).cpu()
                for position in range(len(channels)):
                    reference = None if others is None else others[position]
                    fit, carried = _fit(alone[position], reference, logits, rest, weight, ridge, feature_map.dtype)
                    fits.append(fit)
                    total += carried
                if channels[0] == 0 and not progress:
                    self._announce(time.monotonic() - began, done=len(channels), of=feature_map.channels)
        return self._gathered(fits, total, baseline, weight)

    def _announce(self, seconds: float, *, done: int, of: int) -> None:
        """Says how long it will take, going by the first channels, where that is long."""
        to_come = seconds / done * (of - done)
        if to_come > _PATIENCE:
            known = self.coefficients == "head"
            _log.warning(
                "solving for %d channels on %d images takes about %.0f min%s; progress=True shows how far it is",
                of,
                len(self.kept),
                max(to_come / 60, 1),
                "" if known else ', while coefficients="head" takes fewer images and no regression',
            )

    def _gathered(self, fits: list[_Fit], total: Tensor, baseline: Tensor, weight: Tensor) -> TailEvidence:
        centred = self.kept_logits - self.kept_logits.mean(0)
        left, spread_of = (centred - total).square().sum(0), centred.square().sum(0)
        calibrated = self.coefficients == "calibrated"
        notes = []
        width = weight.shape[1]
        if calibrated and len(self.kept) <= width:
            # More images help only where they are kept.
            more = f"Calibrate on more than {width} images, or use" if self.room > width else "Use"
            full = "" if self.room > width else f" No more than {self.room} maps of this size are kept."
            notes.append(
                f"Fewer samples than the representation is wide ({len(self.kept)} ≤ {width}): what the head sees of "
                f"the other channels can reproduce anything, so coefficients shrink towards zero.{full} {more} "
                'coefficients="head".'
            )
        doubtful = sum(not fit.sound for fit in fits)
        if doubtful:
            notes.append(f"{doubtful} channels are decided by rounding: use a larger ridge or more images.")
        return TailEvidence(
            baseline=baseline,
            bases=torch.cat([fit.basis for fit in fits], dim=1),
            centres=torch.cat([fit.centre for fit in fits]),
            coefficients=torch.cat([fit.coefficients for fit in fits]),
            ranks=torch.tensor([fit.basis.shape[1] for fit in fits]),
            at_baseline=torch.stack([fit.at_baseline for fit in fits]),
            base=self.outputs.mean,
            explained=torch.where(spread_of > 0, 1 - left / spread_of, torch.nan),
            unique_share=torch.tensor([fit.unique_share for fit in fits]) if calibrated else None,
            ridge=max(fit.ridge for fit in fits),
            note=" ".join(notes),
        )


@dataclass(frozen=True, eq=False)
class _Fit:
    """One channel's part of `TailEvidence`."""

    basis: Tensor
    centre: Tensor
    coefficients: Tensor
    at_baseline: Tensor
    unique_share: float
    ridge: float
    sound: bool


def _fit(
    alone: Tensor,
    others: Tensor | None,
    logits: Tensor,
    rest: Tensor,
    weight: Tensor,
    ridge: Ridge,
    dtype: torch.dtype,
) -> tuple[_Fit, Tensor]:
    """One channel's coefficients, and its contributions to the logits of the images kept."""
    mean = alone.mean(0)
    # Some of them for each sum that an entry is made of, as measured.
    rounding = 4 * torch.finfo(dtype).eps * float(torch.linalg.vector_norm(alone))
    basis = row_basis(alone - mean, rounding=rounding)
    rows = (alone - mean) @ basis
    share, amount, sound = 1.0, 0.0, True
    if others is None or basis.shape[1] == 0:
        coefficients = basis.T @ weight.T
    else:
        found = row_coefficients(rows, others, logits, ridge=ridge, target_size=alone.shape[1])
        coefficients, share = found.coefficients, found.unique_share
        amount, sound = max(found.ridges), found.sound
    at_baseline = ((rest - mean) @ basis @ coefficients)[0]
    fit = _Fit(basis, mean @ basis, coefficients, at_baseline, share, amount, sound)
    return fit, rows @ coefficients


def row_basis(rows: Tensor, *, rounding: float = 0.0) -> Tensor:
    """Orthonormal basis of the directions that rows use, shape (width, rank).

    What one channel does to the representation is a curve of low rank. A few random combinations of the rows span it,
    which is checked; where they do not, more are taken, and in the end all rows.

    Args:
        rows: Shape (rows, width).
        rounding: Length of all rounding errors together. Spread over the entries they reach a length of
            rounding / √min(rows, width) or so in their strongest direction; weaker directions are the model's noise.

    Example:
        >>> row_basis(torch.tensor([[1.0, 0.0, 1.0], [2.0, 0.0, 2.0]], dtype=torch.float64)).shape
        torch.Size([3, 1])
    """
    size = float(torch.linalg.vector_norm(rows))
    if size == 0.0:
        return rows.new_zeros(rows.shape[1], 0)
    sketch = rows
    generator = torch.Generator().manual_seed(0)
    few = 24
    while 2 * few < min(rows.shape):
        draw = torch.randn(few, len(rows), dtype=rows.dtype, generator=generator)
        # Twice through the rows, so that weak directions stand out of the combinations too.
        span = torch.linalg.qr((draw @ rows).T).Q
        span = torch.linalg.qr(rows.T @ (rows @ span)).Q
        within = rows @ span
        if float(torch.linalg.vector_norm(rows - within @ span.T)) <= max(1e-12 * size, rounding):
            sketch = torch.linalg.qr(within).R @ span.T
            break
        few *= 4
    # √rows + √width over √(rows · width): the norm of noise for its length.
    noise = rounding * (len(rows) ** -0.5 + rows.shape[1] ** -0.5)
    if sketch is rows and noise > 3e-9 * size and (strong := _strong_directions(rows, noise)) is not None:
        return strong
    _, values, vectors = torch.linalg.svd(sketch, full_matrices=False)
    basis: Tensor = vectors[values > max(1e-10 * float(values[0]), noise)].T.contiguous()
    return basis


def _strong_directions(rows: Tensor, noise: float) -> Tensor | None:
    """The same from a Gram matrix, in a tenth of the time; None where that cannot tell directions down to the noise.

    An eigenvalue is known to ε of the largest: what is lost of a direction is ε σ₀² / σ, less than noise of 3e-8 σ₀.
    """
    tall = rows.shape[0] > rows.shape[1]
    values, vectors = torch.linalg.eigh(rows.T @ rows if tall else rows @ rows.T)
    if noise < 3e-8 * float(values[-1].clamp_min(0.0).sqrt()):
        return None
    kept: Tensor = vectors[:, values > noise**2]
    if tall:
        return kept
    basis: Tensor = torch.linalg.qr(rows.T @ kept).Q
    return basis


def _spaced(count: int, chosen: int) -> Tensor:
    """Positions evenly spaced: images may come sorted."""
    return torch.linspace(0, count - 1, chosen, dtype=torch.float64).long() if chosen < count else torch.arange(count)


def _bounds(ranks: Tensor) -> list[int]:
    return [0, *torch.cumsum(ranks, 0).tolist()]
