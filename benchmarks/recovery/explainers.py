"""Every explainer of the grid, and what its results depend on."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import nobsp
from benchmarks.recovery import ours, peers, scores
from benchmarks.recovery.problems import Problem
from benchmarks.recovery.scores import Recovered


@dataclass(frozen=True)
class Explainer:
    """A way to recover functions; one run may give several methods' results.

    Attributes:
        name: What it is called in the file of results.
        run: Gives the recovered functions by name of the method.
        package: Whose version its results depend on; None for code of this project.
        network: Whether it explains a network; otherwise it learns from the rows and runs once for all networks.
        settings: Further things its results depend on.
    """

    name: str
    run: Callable[[Problem], dict[str, Recovered]]
    package: str | None
    network: bool = True
    settings: object = None

    def fingerprint(self, problem: Problem) -> str:
        """Changes with anything the results depend on, so that old ones are not taken for new."""
        parts = [
            problem.digest,
            inspect.getsource(self.run),
            inspect.getsource(scores),
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


NETWORK_PEERS = ("PDP", "ALE", "KernelSHAP", "Integrated Gradients")
PEERS = (*NETWORK_PEERS, "EBM", "EBM, anchored")

OURS = ("NObSP", "NObSP, single features", "NObSP, all pairs", "NObSP as published")

EXPLAINERS: tuple[Explainer, ...] = (
    Explainer("NObSP", ours.default, None),
    Explainer("NObSP, single features", ours.singles, None),
    Explainer("NObSP, all pairs", ours.all_pairs, None),
    Explainer("NObSP as published", ours.published, None),
    Explainer("PDP", peers.partial_dependence, "torch"),
    Explainer("ALE", peers.accumulated_local_effects, "effector", settings=peers.ALE_BINS),
    Explainer("KernelSHAP", peers.kernel_shap, "shap", settings=peers.SHAP_BACKGROUND),
    Explainer("Integrated Gradients", peers.integrated_gradients, "captum", settings=peers.GRADIENT_STEPS),
    Explainer("probed", peers.probed, "torch"),
    Explainer("EBM", peers.boosting_machine, "interpret-core", network=False, settings=peers.BOOSTING),
)

_own_code()
