"""Maps that the decomposition offers: the paper's, the account, and all else that was tried to do better than either.

Everything here but an earlier layer's account is made from one forward pass. With F the spatial map, W the head, z̄ the
channels' calibration mean and B what a location is compared with, the evidence of a location for class k is
E_k(h, w) = w_k · (F(h, w) − B(h, w)), and the mean of E_k over the locations is exactly how far the class's logit is
from the one B has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from nobsp.vision import NObSPCam

Maps = NDArray[np.float64]
# What a location is compared with: the calibration mean, nothing, what the network sees in a blank image there, or what
# it sees in a blank image on average.
Baseline = Literal["mean", "zero", "blank", "pooled blank"]

PAPER, ACCOUNT, PROBABILITY, CHOSEN = (
    "paper's map",
    "account",
    "account of the probability",
    "one by one, to zero",
)
# Nodes of Gauss and Legendre for integrals along a straight path between two vectors of logits.
NODES = 32
BATCH = 8  # the fastest on one core: larger ones leave its cache


@dataclass(frozen=True, eq=False)
class Seen:
    """Images as a calibrated network sees them, float64.

    Attributes:
        images: As the network wants them.
        target: Class to explain, shape (n,).
        maps: F, shape (n, channels, height, width).
        logits: Shape (n, classes).
        weight: W, shape (classes, channels).
        bias: Shape (classes,).
        beta: Calibrated coefficients, shape (channels, classes).
        mean: z̄, shape (channels,).
        blank: F of a blank image, shape (channels, height, width).
        earlier: Gives an explainer calibrated on the setting's earlier layer.
    """

    images: Tensor
    target: Tensor
    maps: Tensor
    logits: Tensor
    weight: Tensor
    bias: Tensor
    beta: Tensor
    mean: Tensor
    blank: Tensor
    earlier: Callable[[], NObSPCam]

    def reference(self, baseline: Baseline) -> Tensor:
        """B, shape (channels, height or 1, width or 1)."""
        if baseline == "pooled blank":
            return self.blank.mean((1, 2), keepdim=True)
        return (
            self.blank if baseline == "blank" else self.mean[:, None, None] * (baseline == "mean")
        )

    def evidence(self, baseline: Baseline) -> Tensor:
        """E for all classes, shape (n, classes, height, width)."""
        return torch.einsum("qc,nchw->nqhw", self.weight, self.maps - self.reference(baseline))

    def start(self, baseline: Baseline) -> Tensor:
        """Logits of B, shape (classes,)."""
        return self.weight @ self.reference(baseline).mean((1, 2)) + self.bias


def seen_by(
    cam: NObSPCam, images: Tensor, target: NDArray[np.int64], *, earlier: Callable[[], NObSPCam]
) -> Iterator[Seen]:
    """Batches of images as a network that pools its map straight into the head sees them."""
    feature_map, account = cam._fitted.feature_map, cam._fitted.account
    assert account.coefficients is not None
    assert feature_map.head is not None
    with torch.no_grad(), feature_map.running() as forward:
        blank = forward(torch.zeros_like(images[:1])).maps[0]
        for start in range(0, len(images), BATCH):
            here = slice(start, start + BATCH)
            view = forward(images[here])
            yield Seen(
                images=images[here],
                target=torch.from_numpy(target[here]),
                maps=view.maps,
                logits=view.logits,
                weight=feature_map.head.weight,
                bias=feature_map.head.bias,
                beta=account.coefficients,
                mean=account.mean,
                blank=blank,
                earlier=earlier,
            )


Candidate = Callable[[Seen], Tensor]

# ---------------------------------------------------------------------- weights of the classes: a map is Σ_k v_k E_k


def chosen(seen: Seen) -> Tensor:
    """The target's logit."""
    return functional.one_hot(seen.target, seen.logits.shape[1]).to(seen.logits)


def against_mean(seen: Seen) -> Tensor:
    return chosen(seen) - 1 / seen.logits.shape[1]


def against_others(seen: Seen) -> Tensor:
    """Gradient of the log-odds, and in direction of the probability and its logarithm."""
    return chosen(seen) - _others(seen.logits, seen.target)


def against_runner_up(seen: Seen) -> Tensor:
    best = _others(seen.logits, seen.target).argmax(1)
    return chosen(seen) - functional.one_hot(best, seen.logits.shape[1])


def along(what: Literal["logarithm", "probability", "log-odds"], baseline: Baseline) -> Candidate:
    """Mean gradient of the target's probability, its logarithm or its log-odds on the way from the baseline's logits.

    Logits change linearly on the straight path from B to F, so this is one integral for all locations, and the mean of
    the map is exactly the change of the probability (its logarithm, its log-odds) between B and F.
    """

    def weights(seen: Seen) -> Tensor:
        nodes, shares = np.polynomial.legendre.leggauss(NODES)
        total = torch.zeros_like(seen.logits)
        for place, share in zip((nodes + 1) / 2, shares / 2, strict=True):
            logits = (1 - place) * seen.start(baseline) + place * seen.logits
            chance = logits.softmax(1)
            rival = _others(logits, seen.target) if what == "log-odds" else chance
            gradient = chosen(seen) - rival
            if what == "probability":
                gradient = gradient * chance.gather(1, seen.target[:, None])
            total += share * gradient
        return total

    return weights


def _others(logits: Tensor, target: Tensor) -> Tensor:
    return logits.scatter(1, target[:, None], -torch.inf).softmax(1)


def weighted(weights: Candidate, baseline: Baseline = "mean") -> Candidate:
    return lambda seen: torch.einsum("nq,nqhw->nhw", weights(seen), seen.evidence(baseline))


def per_location(weights: Candidate) -> Candidate:
    """Σ_c max(β_c (F_c(h, w) − z̄_c), 0): what speaks for the class at each location, nothing taken off it."""

    def maps(seen: Seen) -> Tensor:
        beta = weights(seen) @ seen.weight
        return (beta[..., None, None] * (seen.maps - seen.reference("mean"))).clamp_min(0.0).sum(1)

    return maps


# ---------------------------------------------------------------------- locations taken out


def taken_out(baseline: Baseline, *, neighbours: bool = False) -> Candidate:
    """How far the log-odds fall, exactly, when a location becomes what it is compared with.

    The head is linear in the mean over locations, so taking a location out takes E(h, w) / locations off the logits.
    The probability falls in the same order. With its neighbours, those go in part too, by weights 1-2-1 both ways.
    """

    def maps(seen: Seen) -> Tensor:
        evidence = seen.evidence(baseline)
        if neighbours:
            evidence = 4 * torch.stack([blurred(one) for one in evidence])
        left = seen.logits[..., None, None] - evidence / evidence[0, 0].numel()
        before = _log_odds(seen.logits[..., None, None], seen.target)
        return before - _log_odds(left, seen.target)

    return maps


def one_by_one(baseline: Baseline, *, neighbours: bool = False) -> Candidate:
    """Order in which locations are taken out if each time the one goes that lowers the probability most."""

    def maps(seen: Seen) -> Tensor:
        evidence = seen.evidence(baseline)
        if neighbours:
            evidence = torch.stack([blurred(one) for one in evidence])
        count, classes, height, width = evidence.shape
        parts = evidence.reshape(count, classes, -1) / (height * width)
        logits, order = seen.logits.clone(), torch.zeros(count, height * width, dtype=torch.float64)
        gone = torch.zeros_like(order, dtype=torch.bool)
        rows = torch.arange(count)
        for step in range(height * width):
            odds = _log_odds((logits[..., None] - parts)[..., None], seen.target)[..., 0]
            best = odds.masked_fill(gone, torch.inf).argmin(1)
            order[rows, best] = height * width - step
            gone[rows, best] = True
            logits = logits - parts[rows, :, best]
        return order.reshape(count, height, width)

    return maps


def _log_odds(logits: Tensor, target: Tensor) -> Tensor:
    """Of the target against all others, logits of shape (n, classes, height, width)."""
    at = target[:, None, None, None].expand(-1, 1, *logits.shape[2:])
    own = logits.gather(1, at)[:, 0]
    return own - logits.scatter(1, at, -torch.inf).logsumexp(1)


# ---------------------------------------------------------------------- other maps


def by_channel(kind: Literal["positive", "signed"], *, calibrated: bool = True) -> Candidate:
    """Σ_c F_c(h, w) max(g_c, 0), or g_c as it is, with g_c = β_c (z_c − z̄_c) and β calibrated or the head's."""

    def maps(seen: Seen) -> Tensor:
        beta = (seen.beta.T if calibrated else seen.weight)[seen.target]
        gains = beta * (seen.maps.mean((2, 3)) - seen.mean)
        return torch.einsum(
            "nc,nchw->nhw", gains.clamp_min(0.0) if kind == "positive" else gains, seen.maps
        )

    return maps


def calibrated_account(seen: Seen) -> Tensor:
    return torch.einsum(
        "nc,nchw->nhw", seen.beta.T[seen.target], seen.maps - seen.reference("mean")
    )


def earlier_layer(seen: Seen) -> Tensor:
    """The account of an earlier layer, integrated through the layers behind it."""
    return torch.from_numpy(
        seen.earlier()(seen.images, seen.target.numpy(), against="others").account
    )


def both(late: Candidate, early: Candidate, share: float) -> Candidate:
    """Two maps on the finer grid, each by its own spread over the image."""

    def maps(seen: Seen) -> Tensor:
        fine = early(seen)
        coarse = resized(late(seen), tuple(fine.shape[1:]))
        scaled = [one / one.std((1, 2), keepdim=True) for one in (coarse, fine)]
        return (1 - share) * scaled[0] + share * scaled[1]

    return maps


def rectified(one: Candidate) -> Candidate:
    """Its positive part, as GradCAM takes it before interpolating."""
    return lambda seen: one(seen).clamp_min(0.0)


def smoothed(one: Candidate) -> Candidate:
    return lambda seen: blurred(one(seen))


def blurred(maps: Tensor) -> Tensor:
    """Each location averaged with its neighbours, weights 1-2-1 both ways."""
    kernel = torch.tensor([1.0, 2.0, 1.0], dtype=maps.dtype)
    kernel = (kernel[:, None] * kernel / 16)[None, None]
    return functional.conv2d(functional.pad(maps[:, None], (1, 1, 1, 1), mode="replicate"), kernel)[
        :, 0
    ]


def resized(maps: Tensor, size: tuple[int, ...]) -> Tensor:
    """Bilinear, as `ActivationMaps.resize`."""
    return functional.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[
        :, 0
    ]


CANDIDATES: dict[str, Candidate] = {
    PAPER: by_channel("positive"),
    "paper's map, head weights": by_channel("positive", calibrated=False),
    "signed": by_channel("signed"),
    "account, calibrated": calibrated_account,
    ACCOUNT: weighted(chosen),
    "account against the mean": weighted(against_mean),
    "account against the runner-up": weighted(against_runner_up),
    "account against the others": weighted(against_others),
    "account of the log-probability": weighted(along("logarithm", "mean")),
    PROBABILITY: weighted(along("probability", "mean")),
    "account of the log-odds": weighted(along("log-odds", "mean")),
    "account of the probability, from zero": weighted(along("probability", "zero"), "zero"),
    "account from a blank image": weighted(chosen, "blank"),
    "against the others, from a blank image": weighted(against_others, "blank"),
    "account of the log-probability, from a blank image": weighted(
        along("logarithm", "blank"), "blank"
    ),
    "account of the probability, from a blank image": weighted(
        along("probability", "blank"), "blank"
    ),
    "account of the log-probability, from a pooled blank image": weighted(
        along("logarithm", "pooled blank"), "pooled blank"
    ),
    "account of the probability, from a pooled blank image": weighted(
        along("probability", "pooled blank"), "pooled blank"
    ),
    "account of the log-odds, from a pooled blank image": weighted(
        along("log-odds", "pooled blank"), "pooled blank"
    ),
    "account of the log-odds, from zero": weighted(along("log-odds", "zero"), "zero"),
    "taken out, to the mean": taken_out("mean"),
    "taken out, to zero": taken_out("zero"),
    "taken out, to the blank image": taken_out("blank"),
    "taken out with neighbours, to the mean": taken_out("mean", neighbours=True),
    "one by one, to the mean": one_by_one("mean"),
    CHOSEN: one_by_one("zero"),
    "one by one, to the blank image": one_by_one("blank"),
    "one by one, smoothed, to the mean": one_by_one("mean", neighbours=True),
    "per location": per_location(chosen),
    "per location against the others": per_location(against_others),
    "account, positive part": rectified(weighted(chosen)),
    "account, smoothed": smoothed(weighted(chosen)),
    "against the mean, smoothed": smoothed(weighted(against_mean)),
    "against the others, smoothed": smoothed(weighted(against_others)),
    "log-probability, smoothed": smoothed(weighted(along("logarithm", "mean"))),
    "probability, smoothed": smoothed(weighted(along("probability", "mean"))),
    "earlier layer": earlier_layer,
    "both layers": both(weighted(against_others), earlier_layer, 0.25),
}
