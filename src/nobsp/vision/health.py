"""Is this calibration healthy? What was found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nobsp.base import Finding, describe_findings, is_healthy, sort_findings
from nobsp.vision.account import POINTS, ChannelAccount, TailAccount
from nobsp.vision.feature_map import FeatureMap

# A mean of fewer images says little about what is usual.
FEW_IMAGES = 16
# Below this share, an integral is not to be relied on.
LEAST_CARRIED = 0.99


@dataclass(frozen=True, repr=False)
class CamHealth:
    """The state of a calibration.

    Attributes:
        findings: What is worth knowing, warnings first; empty when all is well.
        rows: Calibration images.
        channels: Units that have a coefficient each.
        dead: Channels that never varied over the calibration images.
        explained: Share of each logit's variance that the contributions carry over the calibration images; NaN for a
            logit that does not vary. Where layers stand between map and head, what the integral carried of the
            predicted classes' logits on the first images, for every output alike.
        layer: Where the map is.
        direct: Whether the pooled map is what the linear head sees; else layers stand between.
    """

    findings: tuple[Finding, ...]
    rows: int
    channels: int
    dead: int
    explained: tuple[float, ...]
    layer: str
    direct: bool

    @property
    def healthy(self) -> bool:
        """Whether there is no warning."""
        return is_healthy(self.findings)

    def __repr__(self) -> str:
        known = [share for share in self.explained if share == share]
        carried = f"{max(min(known), 0.0):.1%}" if known else "–"
        first = f"{self.rows} images, {self.channels} channels of {self.layer!r}; {carried} or more of each logit."
        return "\n".join([first, *describe_findings(self.findings)])


def examine(feature_map: FeatureMap, account: ChannelAccount | TailAccount, *, rows: int) -> CamHealth:
    """Collects everything that is worth knowing about a calibration."""
    findings = [Finding("warning", "coefficients", "", account.note)] if account.note else []
    known = account.explained[~account.explained.isnan()]
    least = float(known.min()) if len(known) else 1.0
    if isinstance(account, TailAccount):
        findings += _of_integral(feature_map, account, least)
    elif least < 0.8 and not account.note:
        message = (
            f"The coefficients carry only {least:.1%} of a logit's variance: the ridge is too strong for these "
            'channels, or the images are too few. Use a smaller ridge, more images, or coefficients="head".'
        )
        findings.append(Finding("warning", "weak", "", message))
    dead = 0 if account.unique_share is None else int((account.unique_share == 0).sum())
    if dead:
        message = (
            f"{dead} channels never varied over the calibration images, so nothing is known of them and they "
            "contribute nothing; more varied images may wake them."
        )
        findings.append(Finding("note", "dead", "", message))
    if rows < FEW_IMAGES:
        message = (
            f"The reference is a mean of {rows} images only: what all of them have in common is in no account. "
            "More and more varied images give a reference that means more."
        )
        findings.append(Finding("note", "few_images", "", message))
    if max(feature_map.shape) < 4:
        message = (
            f"The map has only {'×'.join(map(str, feature_map.shape))} locations for inputs of "
            f"{'×'.join(map(str, feature_map.image_shape[1:]))}; larger ones give finer maps."
        )
        findings.append(Finding("note", "coarse", "", message))
    explained = tuple(float(value) for value in account.explained.to(torch.float64))
    return CamHealth(
        sort_findings(findings), rows, feature_map.units, dead, explained, feature_map.layer, feature_map.direct
    )


def _of_integral(feature_map: FeatureMap, account: TailAccount, share: float) -> list[Finding]:
    """What is worth knowing where layers stand between map and head."""
    found = []
    if share < LEAST_CARRIED:
        message = (
            f"The integral through the layers behind {feature_map.layer!r} misses much of the logits of the first "
            f"images (it carries {max(share, 0.0):.1%} of their squares) with up to {POINTS[-1]} points; read "
            "maps.residual along with the maps, or choose a later layer."
        )
        found.append(Finding("warning", "quadrature", "", message))
    apart = account.base - account.mean_logits
    largest = int(apart.abs().argmax())
    parts = "all of it" if feature_map.reach == "full" else "only its means"
    message = (
        f"Layers stand between {feature_map.layer!r} and the output, which see {parts}: gradients are integrated "
        "through them, and maps.residual is the integral's error. Accounts start from the output at the mean map, "
        f"which is up to {abs(float(apart[largest])):.3g} away from the mean output (output {largest}), a constant."
    )
    found.append(Finding("note", "integral", "", message))
    if feature_map.head is None:
        message = (
            "No linear layer makes the model's output, so the output is explained as it is, whatever follows the map."
        )
        found.append(Finding("note", "no_head", "", message))
    if feature_map.reach == "full" and feature_map.grid.prefix:
        message = (
            f"{feature_map.grid.prefix} tokens of {feature_map.layer!r} have no place in the image; what they carry is "
            "in maps.class_token. An earlier layer leaves them less, and costs more."
        )
        found.append(Finding("note", "class_token", "", message))
    return found
