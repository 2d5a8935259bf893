"""The tuned numbers of an audit, each with what it is for.

Those of the vote were chosen on TinyImageNet, those of heads and labels on CIFAR-10, TinyImageNet
and HAM10000; benchmarks/results/audit.md says how far from what it reports.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


def _default_temperatures() -> NDArray[np.float64]:
    return np.exp(np.linspace(-1.5, 2.0, 29))


@dataclass(frozen=True, eq=False)
class Tuning:
    """Numbers by which neighbours, class centroids and cross-fitted heads are weighed.

    Attributes:
        n_voters: Neighbours by activations that have a vote.
        vote_sharpness: A voter counts exp(this · cosine).
        centroid_sharpness: The same for class centroids.
        vote_floor: Share of a class without a single vote, which is not impossible.
        vote_weights: How much the vote may count beside the softmax.
        fewest_errors: Errors below which neither that weight nor an AUROC says anything.
        most_centroid_rows: Rows from which centroids are computed, evenly spaced ones of more.
        most_columns: Columns past which decorrelating them takes minutes.
        n_queries_at_once: Queries whose neighbours are decorrelated together.
        most_numbers: Numbers gathered at once.
        n_folds: Folds of heads and of the cross-validated joint confidence.
        head_decay: Weight decay of heads for classes.
        head_steps: Steps of their solver.
        label_noise: Share of labels that heads take to be wrong, and where the search for that
            share begins.
        most_head_rows: Rows that heads are fitted on.
        head_weight: How much heads count beside vote and centroids.
        value_decay: Weight decay of heads for values.
        gentle_residual: Spreads of the labels from which on a residual counts by its size alone.
        most_calibration_rows: Rows that temperature and noise are chosen on.
        temperatures: Temperatures to choose from.
        n_rounds: Steps of expectation-maximisation.
        least_agreement: Share of labels that must agree with the evidence for confusions of classes
            to be looked for.
        random_labels: Wrong labels at random that are added to what is counted of each class.
        student_tails: Tails of residuals to choose from.
        local_scales: By how much the local scale of residuals may count.
        fewest_values: Labels of a regression that tell by themselves how far labels usually are
            from what is expected.
        tiny: Added to a spread: labels that are all alike have none.
    """

    n_voters: int = 50
    vote_sharpness: float = 20.0
    centroid_sharpness: float = 10.0
    vote_floor: float = 0.01
    vote_weights: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    fewest_errors: int = 20
    most_centroid_rows: int = 200_000
    most_columns: int = 4096
    n_queries_at_once: int = 2048
    most_numbers: int = 1 << 22
    n_folds: int = 5
    head_decay: float = 0.03
    head_steps: int = 30
    label_noise: float = 0.05
    most_head_rows: int = 50_000
    head_weight: float = 8.0
    value_decay: float = 0.003
    gentle_residual: float = 0.1
    most_calibration_rows: int = 20_000
    temperatures: NDArray[np.float64] = field(default_factory=_default_temperatures)
    n_rounds: int = 12
    least_agreement: float = 0.8
    random_labels: float = 20.0
    student_tails: tuple[float, ...] = (3.0, 4.0)
    local_scales: tuple[float, ...] = (0.0, 0.5, 1.0)
    fewest_values: int = 50
    tiny: float = 1e-100


TUNING = Tuning()
