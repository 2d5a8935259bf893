"""What is worth knowing about a calibration before its maps are believed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nobsp import notebook
from nobsp.findings import Finding, describe_findings, is_healthy
from nobsp.vision.account import POINTS, Account
from nobsp.vision.feature_map import FeatureMap, Picture

# A mean of fewer images says little about what is usual.
FEW_IMAGES = 16
# An integral that carries less is not to be relied on.
LEAST_CARRIED = 0.99
# Calibrated coefficients that carry less of a logit's variance are not its own.
LEAST_VARIANCE = 0.8
# What came along another path is a warning above this share of how far logits vary, and a note
# below.
NOTEWORTHY = 0.01
# A map with fewer locations along its longest side shows little.
FEW_LOCATIONS = 4


@dataclass(frozen=True, repr=False)
class CamHealth:
    """The state of a calibration."""

    findings: tuple[Finding, ...]  # what is worth knowing, warnings first; empty when all is well
    rows: int  # calibration images
    channels: int  # units that have a coefficient each
    dead: int  # channels that never varied over the calibration images
    # share of each logit's variance that the contributions carry, NaN for one that does not vary;
    # where layers stand between map and head, what the integral carried of the first images, for
    # all alike; NaN for pictures
    explained: tuple[float, ...]
    layer: str  # where the map is
    direct: bool  # whether the pooled map is what the linear head sees; else layers stand between
    unexplained: float = 0.0  # of how far logits vary, the share that came along another path
    inputs: str = "images"  # what was calibrated on: images, texts, signals or volumes
    # images that this process sent through the model to calibrate, to find the map and to try it
    # out; zero where they were not counted, as after `load`
    forward_rows: int = 0
    # forward passes that an account takes per image, counted on the first ones: the model's own,
    # and those through the layers behind the map; contrasts are asked in the same passes
    passes: float = 1.0
    gradients: float = 0.0  # gradients of an account per image; a contrast has as many more

    @property
    def healthy(self) -> bool:
        """Whether there is no warning."""
        return is_healthy(self.findings)

    def _repr_html_(self) -> str:
        known = [share for share in self.explained if share == share]
        carried = max(min(known), 0.0) if known else math.nan
        about = f"{self.rows} {self.inputs}, {self.channels} channels of {self.layer!r}"
        return notebook.card(
            "Health",
            notebook.share_bar(carried, f"{carried:.1%} or more of each logit") if known else "",
            notebook.line(about),
            notebook.findings(self.findings, most=len(self.findings)),
            "" if self.findings else notebook.line("Nothing to worry about."),
        )

    def __repr__(self) -> str:
        known = [share for share in self.explained if share == share]
        carried = f"; {max(min(known), 0.0):.1%} or more of each logit" if known else ""
        first = f"{self.rows} {self.inputs}, {self.channels} channels of {self.layer!r}"
        first += f"{carried}. {self._describe_cost()}"
        return "\n".join([first, *describe_findings(self.findings)])

    def _describe_cost(self) -> str:
        """What an account takes, in words."""
        cost = f"An account of one of the {self.inputs} takes {self.passes:.3g} forward"
        if self.gradients:
            cost += f" and {self.gradients:.3g} backward passes"
        else:
            cost += " pass" if self.passes == 1 else " passes"
        return cost + "."


def examine(
    feature_map: FeatureMap, account: Account, *, rows: int, forward_rows: int = 0
) -> CamHealth:
    """Collects everything that is worth knowing about a calibration, warnings first."""
    dead = 0
    if account.unique_share is not None:
        dead = int((account.unique_share == 0).sum())
    findings = [
        *_find_misfit(feature_map, account),
        *_find_other_paths(feature_map, account),
        *_describe_layers_behind(feature_map, account),
        *_find_poor_images(feature_map, dead=dead, rows=rows),
    ]

    return CamHealth(
        findings=tuple(sorted(findings, key=lambda finding: finding.severity != "warning")),
        rows=rows,
        channels=feature_map.units,
        dead=dead,
        explained=tuple(account.explained.double().tolist()),
        layer=feature_map.layer,
        direct=feature_map.direct,
        unexplained=account.unexplained,
        inputs=inputs_of(feature_map),
        forward_rows=forward_rows,
        passes=account.passes,
        gradients=account.gradients,
    )


def inputs_of(feature_map: FeatureMap) -> str:
    """What the model is given, in a word."""
    if feature_map.text:
        return "texts"
    return {1: "signals", 3: "volumes"}.get(len(feature_map.shape), "images")


def _find_misfit(feature_map: FeatureMap, account: Account) -> list[Finding]:
    """Coefficients or integrals that do not carry the logits."""
    if account.note:
        return [Finding("warning", "coefficients", "", account.note)]

    if account.is_picture(feature_map):
        return []
    explained = account.explained.double()
    known = explained[~explained.isnan()]
    if not len(known):
        message = (
            f"The model says the same of all calibration {inputs_of(feature_map)}, so that nothing "
            "tells how much of it maps explain: check its weights, and that these are prepared as "
            "in its training."
        )
        return [Finding("warning", "constant", "", message)]
    least = float(known.min())
    if account.coefficients is None and least < LEAST_CARRIED:
        message = (
            f"The integral through the layers behind {feature_map.layer!r} misses much of the "
            f"logits of the first {inputs_of(feature_map)} (it carries {max(least, 0.0):.1%} of "
            f"their squares) with up to {account.points or POINTS[-1]} points; read maps.residual "
            "along with the maps, or choose a later layer."
        )
        return [Finding("warning", "quadrature", "", message)]
    if account.coefficients is not None and least < LEAST_VARIANCE:
        message = (
            f"The coefficients carry only {least:.1%} of a logit's variance: the ridge is too "
            "strong for these "
            "channels, or the images are too few. Use a smaller ridge, more images, or "
            'coefficients="head".'
        )
        return [Finding("warning", "weak", "", message)]
    return []


def _find_other_paths(feature_map: FeatureMap, account: Account) -> list[Finding]:
    """Logits that do not come from the map alone."""
    share = account.unexplained
    if share == 0.0:
        return []
    message = (
        f"{share:.2%} of how far the logits vary does not come from {feature_map.layer!r}: another "
        "path leads to the output too. It is in no map, but in maps.residual; choose a layer= "
        "through which everything passes."
    )
    return [Finding("warning" if share > NOTEWORTHY else "note", "another_path", "", message)]


def _describe_layers_behind(feature_map: FeatureMap, account: Account) -> list[Finding]:
    """What is integrated, and where it starts."""
    if account.coefficients is not None:
        return []

    if account.is_picture(feature_map):
        return [_describe_picture(feature_map)]

    layer = feature_map.layer
    is_full = feature_map.reach == "full"
    apart = account.base - account.mean_logits
    largest = int(apart.abs().argmax())
    message = (
        f"Layers stand between {layer!r} and the output, which see "
        f"{'all of it' if is_full else 'only its means'}: gradients are integrated through them, "
        "and maps.residual is the integral's error. Accounts start from the output at the mean "
        f"map, which is up to {abs(float(apart[largest])):.3g} away from the mean output, a "
        f"constant (output {largest})."
    )
    findings = [Finding("note", "integral", "", message)]
    if feature_map.head is None:
        message = "The model does not end in a linear layer, so its output is explained as it is."
        findings.append(Finding("note", "no_head", "", message))
    if is_full and feature_map.grid.prefix:
        without_place = (
            "1 token" if feature_map.grid.prefix == 1 else f"{feature_map.grid.prefix} tokens"
        )
        message = (
            f"{without_place} of {layer!r} have no place in the image; maps.class_token has their "
            "part. An earlier layer= gives better maps and needs more forward passes."
        )
        findings.append(Finding("note", "class_token", "", message))
    return findings


# How the one gradient of a picture is taken.
_PICTURES: dict[Picture, str] = {
    "own_pass": "of the model's own pass with the scales of its normalisations held",
    "attention": (
        "of the model's own pass with the scales of its normalisations held, and what attention "
        "carries in it"
    ),
    "half_way": "half-way from the mean image",
}


def _describe_picture(feature_map: FeatureMap) -> Finding:
    """That maps are pictures, and how to get numbers."""
    message = (
        "The model reads a class token, and maps are pictures of what enters at "
        f"{feature_map.layer!r}: one gradient, {_PICTURES[feature_map.picture]}, shows where a "
        "class is, but does not add up. Pass points=8 for numbers that add up, at about twenty "
        "times the cost."
    )
    return Finding("note", "picture", "", message)


def _find_poor_images(feature_map: FeatureMap, *, dead: int, rows: int) -> list[Finding]:
    """Calibration images that are too few or too much alike, or too small."""
    findings = []
    inputs = inputs_of(feature_map)
    if dead:
        message = (
            f"{dead} channels never varied over the calibration {inputs} and add nothing. "
            f"Use more varied {inputs}."
        )
        findings.append(Finding("note", "dead", "", message))
    if rows < FEW_IMAGES:
        message = (
            f"The reference is the mean of only {rows} {inputs}: what they have in common appears "
            "in no map. Use more."
        )
        findings.append(Finding("note", "few_images", "", message))
    if max(feature_map.shape) < FEW_LOCATIONS:
        size = "×".join(map(str, feature_map.shape))
        whole = "×".join(map(str, feature_map.image_shape[1:]))
        message = (
            f"The map has only {size} locations for inputs of {whole}; larger inputs give finer "
            "maps."
        )
        findings.append(Finding("note", "coarse", "", message))

    return findings
