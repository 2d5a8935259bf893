"""What is compared on the paper's tables: attributions of every method to every encoded column.

As in the paper, features are the encoded columns, a category's levels one by one. The output explained is the logit of
the class the network predicts, or the number it predicts, and the baseline is the training rows' mean for everyone.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks import kept
from benchmarks.tabular.problems import RECIPE, Array, Problem, trained
from nobsp import NObSP
from nobsp.metrics import at_target

PUBLISHED = "NObSP as published"
SINGLES = "NObSP, single features"
PAIRS = "NObSP, default"
STEADY = "NObSP, one by one"
TOTAL = "NObSP, removal effects"
GRADIENTS = "Integrated Gradients"
SHAP = "KernelSHAP"
STRONG = 0.1
OURS = (PUBLISHED, SINGLES, PAIRS, STEADY, TOTAL)


@dataclass(frozen=True)
class Method:
    """A way to attribute.

    Attributes:
        run: Attributions of the explained rows' target output, shape (rows, columns).
        depends: On what results depend, beside the source of `run` and the settings.
    """

    run: Callable[..., Array]
    depends: tuple[str, ...]

    def __post_init__(self) -> None:
        self.fingerprint()  # reads the source now, while it is what runs

    def fingerprint(self, *settings: object) -> str:
        return kept.fingerprint(self.run, trained, RECIPE, self.depends, settings)


def published(problem: Problem, *, calibration: int | None) -> Array:
    """Algorithm 1 to the letter; the paper's Δ-baseline attributions."""
    return _accounted(problem, NObSP.as_published(problem.network), calibration)


def singles(problem: Problem, *, calibration: int | None) -> Array:
    """All features at once, no pairs."""
    return _accounted(problem, NObSP(problem.network, interactions=0), calibration)


def pairs(problem: Problem, *, calibration: int | None) -> Array:
    """As it comes, with the pairs that pay on held-out rows."""
    return _accounted(problem, NObSP(problem.network), calibration)


def one_by_one(problem: Problem, *, calibration: int | None) -> Array:
    """Algorithm 1 with a ridge a thousand times the default's, relative to the matrix it is added to.

    Chosen on training rows: calibrated on four fifths of them and judged on the last fifth.
    """
    explainer = NObSP(problem.network, reference="complement", interactions=0, ridge=STRONG)
    return _accounted(problem, explainer, calibration)


def totals(problem: Problem, *, calibration: int | None) -> Array:
    """All terms a feature takes part in, of every order; the rows are there to know its values."""
    explainer = NObSP(problem.network, interactions=0).fit(_calibration(problem, calibration))
    return at_target(explainer.removal_effects(problem.rows), problem.target)


def _calibration(problem: Problem, most: int | None) -> Array:
    rows = problem.data.X_train
    if most is not None and len(rows) > most:
        rows = rows[np.random.default_rng(problem.seed).permutation(len(rows))[:most]]
    return rows


def _accounted(problem: Problem, explainer: NObSP, calibration: int | None) -> Array:
    """Per feature the sum of all terms it takes part in, measured from the baseline."""
    explainer.set_params(baseline=problem.data.X_train.mean(axis=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what health would say is not the question here
        explanation = explainer.fit(_calibration(problem, calibration))(problem.rows)
    return at_target(explanation.from_baseline().total(), problem.target)


def integrated_gradients(problem: Problem, *, steps: int) -> Array:
    """Captum's, along the straight path from the training mean."""
    from captum.attr import IntegratedGradients

    values = IntegratedGradients(problem.network).attribute(
        torch.as_tensor(problem.rows),
        baselines=torch.as_tensor(problem.data.X_train.mean(axis=0))[None],
        target=torch.as_tensor(problem.target),
        n_steps=steps,
    )
    return np.asarray(values.detach().numpy())


def kernel_shap(problem: Problem, *, background: int, samples: int | str) -> Array:
    """The shap package's, with its own defaults but for the background and the number of coalitions."""
    import shap

    rows = shap.sample(problem.data.X_train, background, random_state=problem.seed)
    single = copy.deepcopy(
        problem.network
    ).float()  # twice as fast, and no rank depends on the eighth digit

    def outputs(rows: Array) -> Any:
        pieces = np.array_split(
            rows, max(len(rows) // 2048, 1)
        )  # more at once would not fit into the caches
        with torch.no_grad():
            return torch.cat(
                [single(torch.as_tensor(piece, dtype=torch.float32)) for piece in pieces]
            ).numpy()

    state = np.random.get_state()  # noqa: NPY002  # shap draws from numpy's global generator
    try:
        np.random.seed(problem.seed)  # noqa: NPY002
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values = shap.KernelExplainer(outputs, rows).shap_values(
                problem.rows, nsamples=samples, silent=True
            )
    finally:
        np.random.set_state(state)  # noqa: NPY002
    return at_target(np.asarray(values).reshape(*problem.rows.shape, -1), problem.target)


_CODE = (
    kept.rooms("projection", "tabular"),
    kept.fingerprint(_accounted, STRONG),
)
METHODS: Mapping[str, Method] = {
    PUBLISHED: Method(published, _CODE),
    SINGLES: Method(singles, _CODE),
    PAIRS: Method(pairs, _CODE),
    STEADY: Method(one_by_one, _CODE),
    # Whole rooms: an earlier copy of the package, which `differences` runs, has other files.
    TOTAL: Method(totals, (kept.rooms("tabular", "network"),)),
    GRADIENTS: Method(integrated_gradients, (kept.package("captum"),)),
    SHAP: Method(kernel_shap, (kept.package("shap"),)),
}
