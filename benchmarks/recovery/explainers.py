"""Every explainer of the grid, and what its results depend on."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import nobsp
from benchmarks.recovery import ours, peers, scores
from benchmarks.recovery.problems import Problem
from benchmarks.recovery.scores import Recovered


@cache
def _source(part: Any) -> str:
    return inspect.getsource(part)


@dataclass(frozen=True)
class Explainer:
    """A way to recover functions; one run may give several methods' results.

    Attributes:
        name: What it is called in the file of results.
        run: Gives the recovered functions by name of the method.
        package: Whose version its results depend on; None for code of this project.
        settings: Further things its results depend on.
        helpers: Functions and classes it calls, whose source its results depend on.
        dear: Whether it takes longest, and comes after all others.
    """

    name: str
    run: Callable[[Problem], dict[str, Recovered]]
    package: str | None
    settings: object = None
    helpers: tuple[Any, ...] = ()
    dear: bool = False

    def __post_init__(self) -> None:
        for part in (self.run, *self.helpers, scores):  # read now, while it is what runs
            _source(part)

    def fingerprint(self, problem: Problem) -> str:
        """Changes with anything the results depend on, so that old ones are not taken for new."""
        parts = [
            problem.digest,
            *map(_source, (self.run, *self.helpers, scores)),
            repr(self.settings),
            metadata.version(self.package) if self.package else _own_code(),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@cache  # once, and early: code edited while the grid runs is not the code that runs
def _own_code() -> str:
    """Digest of the rooms an explanation of a table passes through."""
    rooms = Path(inspect.getfile(nobsp)).parent
    said = hashlib.sha256()
    for room in ("projection", "network", "tabular"):
        for file in sorted((rooms / room).glob("*.py")):
            said.update(file.read_bytes())
    return said.hexdigest()


PEERS = (
    "PDP", "ALE", "RHALE", "distilled EBM", "distilled EBM, purified", "KernelSHAP", "Integrated Gradients", "bins"
)  # fmt: skip
# The same, all judged by average effects.
ALIKE = tuple(
    f"{peer}, as average effects" if peer in ("ALE", "RHALE", "KernelSHAP") else peer
    for peer in PEERS
)

OURS = ("NObSP", "NObSP as published")

EXPLAINERS: tuple[Explainer, ...] = (
    Explainer("NObSP", ours.default, None),
    Explainer("NObSP as published", ours.published, None),
    Explainer("PDP", peers.partial_dependence, "torch"),
    Explainer("ALE", peers.accumulated_local_effects, "effector", settings=peers.ALE_BINS),
    Explainer("RHALE", peers.robust_local_effects, "effector"),
    Explainer(
        "distilled EBM",
        peers.distilled_machine,
        "interpret-core",
        settings=(peers.BOOSTING, peers.PARTNERS),
        helpers=(peers._boosted, peers._purified),
        dear=True,
    ),
    Explainer("KernelSHAP", peers.kernel_shap, "shap", settings=peers.SHAP_BACKGROUND),
    Explainer(
        "judged alike",
        peers.judged_alike,
        "effector",
        settings=(peers.ALE_BINS, peers.SHAP_BACKGROUND),
        helpers=(peers.accumulated_local_effects, peers.robust_local_effects, peers.kernel_shap),
    ),
    Explainer(
        "Integrated Gradients", peers.integrated_gradients, "captum", settings=peers.GRADIENT_STEPS
    ),
    Explainer(
        "bins",
        peers.least_squares_on_bins,
        "numpy",
        settings=(peers.MOST_BINS, peers.PAIR_BINS),
        helpers=(peers.Bins, peers._held_out_error, peers._purified),
    ),
)

_own_code()
