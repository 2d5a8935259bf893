"""Is this calibration healthy? What was found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nobsp.vision.channels import ChannelEvidence
from nobsp.vision.feature_map import FeatureMap
from nobsp.vision.tail import TailEvidence


@dataclass(frozen=True)
class Finding:
    """Something worth knowing.

    Attributes:
        severity: "warning" for what makes maps doubtful, "note" for what limits what they say.
        message: What was found and what to do.
    """

    severity: str
    message: str


@dataclass(frozen=True)
class CamHealth:
    """The state of a calibration.

    Attributes:
        findings: What is worth knowing, warnings first; empty when all is well.
        rows: Calibration images.
        channels: Units that have a coefficient each.
        dead: Channels that never varied over the calibration images.
        explained: Share of each logit's variance that the contributions carry over the calibration images; NaN for a
            logit that does not vary.
        layer: Where the map is.
        route: "direct" where the pooled map is what the head sees, "tail" where layers stand between, "regression"
            where the layer was chosen by the caller and other layers follow.
    """

    findings: tuple[Finding, ...]
    rows: int
    channels: int
    dead: int
    explained: tuple[float, ...]
    layer: str
    route: str

    @property
    def healthy(self) -> bool:
        """Whether there is no warning."""
        return not any(finding.severity == "warning" for finding in self.findings)

    def __str__(self) -> str:
        known = [share for share in self.explained if share == share]
        carried = f"{max(min(known), 0.0):.1%}" if known else "–"
        lines = [
            f"{self.rows} images, {self.channels} channels of {self.layer!r}; the contributions carry at least "
            f"{carried} of each logit."
        ]
        lines += [f"{finding.severity}: {finding.message}" for finding in self.findings]
        return "\n".join(lines if self.findings else [*lines, "Nothing to worry about."])


def examine(feature_map: FeatureMap, evidence: ChannelEvidence | TailEvidence, *, rows: int) -> CamHealth:
    """Collects everything that is worth knowing about a calibration."""
    findings = [Finding("warning", evidence.note)] if evidence.note else []
    known = evidence.explained[~evidence.explained.isnan()]
    weak = known[known < 0.8]
    if len(weak) and not evidence.note:
        findings.append(Finding("warning", _weak(feature_map, float(weak.min()))))
    share = evidence.unique_share
    dead = 0
    if share is not None and isinstance(evidence, ChannelEvidence):
        dead = int((share == 0).sum())
    if dead:
        findings.append(
            Finding(
                "note",
                f"{dead} channels never varied over the calibration images, so nothing is known of them and they "
                "contribute nothing; more varied images may wake them.",
            )
        )
    if feature_map.route == "tail":
        findings.append(Finding("note", _between(feature_map)))
    if feature_map.route == "regression":
        findings.append(
            Finding(
                "note",
                f"The head does not see the pooled channels of {feature_map.layer!r} but what later layers make of "
                "them: the maps rest on a regression of the logits, and maps.residual says what it misses of each.",
            )
        )
    if max(feature_map.shape) < 4:
        findings.append(
            Finding(
                "note",
                f"The map has only {feature_map.shape[0]}×{feature_map.shape[1]} locations for images of "
                f"{feature_map.image_shape[1]}×{feature_map.image_shape[2]}; larger images give finer maps.",
            )
        )
    findings.sort(key=lambda finding: finding.severity != "warning")
    explained = tuple(float(value) for value in evidence.explained.to(torch.float64))
    return CamHealth(tuple(findings), rows, feature_map.units, dead, explained, feature_map.layer, feature_map.route)


def _weak(feature_map: FeatureMap, share: float) -> str:
    if feature_map.route == "regression":
        return (
            f"The pooled channels of {feature_map.layer!r} carry only {share:.1%} of a logit's variance; choose a "
            "later layer, or leave layer=None for the map that is pooled into the head."
        )
    if feature_map.route == "tail":
        found = f"only {share:.1%} of a logit's variance is carried" if share > 0 else "a logit is missed altogether"
        return (
            f"Channel by channel, {found}: the layers between map and head make it of channels together. Read "
            "maps.residual along with the maps."
        )
    return (
        f"The coefficients carry only {share:.1%} of a logit's variance: the ridge is too strong for these channels, "
        'or the images are too few. Use a smaller ridge, more images, or coefficients="head".'
    )


def _between(feature_map: FeatureMap) -> str:
    seen = "only through its means" if feature_map.reach != "full" else "location by location"
    return (
        f"Layers stand between {feature_map.layer!r} and the head, which see the map {seen}: contributions are those "
        "of each channel put into those layers alone, and what channels do together is in maps.residual."
    )
