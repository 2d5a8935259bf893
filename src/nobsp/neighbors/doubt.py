"""The probability that a label, a class or a value, is wrong, given what its row makes expect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.neighbors.tuning import TUNING

Array = NDArray[np.float64]

# As if one of fifty more labels were wrong: none of a few rows says little about all.
_EXTRA_WRONG = 1
_EXTRA_LABELS = 50
# A temperature below this has a price: with few rows, less certain classes explain a few wrong
# labels nearly as well.
_USUAL_TEMPERATURE = 3
# Share of the wrong values that may be anywhere.
_ANYWHERE_SHARE = 0.1


def doubt_labels(evidence: Tensor, labels: Tensor) -> Tensor:
    """Probability that each label is wrong.

    With p = softmax(t · evidence), a label y comes about with Σ_c p_c N_cy, where N_cy is the
    probability that a row of class c is labelled y. Temperature and N maximise the likelihood of
    the labels: N is alike for all pairs of classes unless another one explains the labels better by
    more than two standard errors. A row's own label is not counted in the N that judges it.
    """
    step = -(-len(labels) // TUNING.most_calibration_rows)
    some_evidence = evidence[::step]
    some_labels = labels[::step]

    def likelihood(temperature: float) -> float:
        explained = _explain_labels(some_evidence, some_labels, temperature, by_pairs=False)
        price = 2 * min(0.0, float(np.log(temperature / _USUAL_TEMPERATURE))) ** 2
        return float(explained.log_likelihood.sum()) - price

    temperature = max(TUNING.temperatures, key=likelihood)
    by_pairs = _has_confusions(some_evidence, some_labels, temperature)
    return _explain_labels(evidence, labels, temperature, by_pairs=by_pairs).wrong


def _has_confusions(evidence: Tensor, labels: Tensor, temperature: float) -> bool:
    """Whether some classes are labelled as others so often that it explains the labels better."""
    agreement = float((evidence.argmax(1) == labels).double().mean())
    if agreement < TUNING.least_agreement or len(labels) <= 1:
        return False
    alike = _explain_labels(evidence, labels, temperature, by_pairs=False)
    in_pairs = _explain_labels(evidence, labels, temperature, by_pairs=True)
    gain = in_pairs.log_likelihood - alike.log_likelihood
    return bool(gain.mean() > 2 * gain.std() / len(gain) ** 0.5)


@dataclass(frozen=True, eq=False)
class _ExplainedLabels:
    log_likelihood: Tensor  # of each label
    wrong: Tensor  # probability that it is wrong


def _explain_labels(
    evidence: Tensor, labels: Tensor, temperature: float, *, by_pairs: bool
) -> _ExplainedLabels:
    """How likely labels are, and how likely they are wrong, by expectation-maximisation for N."""
    chances = (temperature * evidence).softmax(1).to(torch.float64)
    n_rows, n_classes = chances.shape
    prior = TUNING.random_labels

    noise = _random_noise(TUNING.label_noise, n_classes)
    joint = chances * noise[:, labels].T
    counts = torch.zeros_like(noise)
    for _ in range(TUNING.n_rounds):
        shares = _normalised(joint)
        counts = torch.zeros_like(noise).index_add_(0, labels, shares).T
        n_wrong = counts.sum() - counts.diagonal().sum()
        random_noise = _random_noise(_share_of_wrong(n_wrong, n_rows), n_classes)
        noise = random_noise
        if by_pairs:
            n_of_class = counts.sum(1, keepdim=True)
            noise = (counts + prior * random_noise) / (n_of_class + prior)
        joint = chances * noise[:, labels].T

    if by_pairs:  # without each row's own label
        shares = _normalised(joint)
        others = (counts[:, labels].T - shares).clamp_min(0)
        expected = others + prior * random_noise[:, labels].T
        n_others = counts.sum(1) - shares
        joint = chances * expected / (n_others + prior)

    total = joint.sum(1).clamp_min(1e-300)
    right = joint.gather(1, labels[:, None])[:, 0]
    return _ExplainedLabels(log_likelihood=total.log(), wrong=1 - right / total)


def _normalised(joint: Tensor) -> Tensor:
    """Probabilities of the classes, given the label of each row."""
    return joint / joint.sum(1, keepdim=True)


def _share_of_wrong(n_wrong: Tensor | float, n_labels: int) -> float:
    """The share of wrong labels, held off zero where they are few."""
    return float((n_wrong + _EXTRA_WRONG) / (n_labels + _EXTRA_LABELS))


def _random_noise(share: float, n_classes: int) -> Tensor:
    """N where a share of the labels is any other class, each as likely."""
    off_diagonal = share / max(1, n_classes - 1)
    noise = torch.full((n_classes, n_classes), off_diagonal, dtype=torch.float64)
    return noise.fill_diagonal_(1 - share)


def doubt_values(
    residuals: Array, spread: Array, labels: Array, usual_sizes: Array, usual_labels: Array
) -> Array:
    """Probability that each label is wrong, given usual residuals and labels.

    `usual_sizes` are sizes of usual residuals, a row of them for each spread; `usual_labels` are
    labels as they usually are.

    A right label is near where it is expected: its residual, in units of a scale between the local
    spread and that of all, has Student's distribution. A wrong one is another row's label, or off
    by a spread of the labels or two (Maxwell's distribution); either way one in ten is anywhere
    (Cauchy's). What kind, tails, scale and the share of wrong labels maximise the likelihood.
    """
    best_likelihood = -np.inf
    best_wrong = np.zeros(len(labels))
    wrong_densities = list(_wrong_densities(residuals, labels, usual_labels))
    for right in _right_densities(residuals, spread, usual_sizes):
        for elsewhere in wrong_densities:
            likelihood, wrong = _mix_densities(right, elsewhere)
            if likelihood > best_likelihood:
                best_likelihood = likelihood
                best_wrong = wrong
    return best_wrong


def _mix_densities(right: Array, elsewhere: Array) -> tuple[float, Array]:
    """The log-likelihood of labels that are right or elsewhere, and how likely each is wrong.

    The log-likelihood is that at the best share of wrong labels.
    """
    share = TUNING.label_noise
    for _ in range(4 * TUNING.n_rounds):
        density = (1 - share) * right + share * elsewhere
        wrong = share * elsewhere / density
        share = _share_of_wrong(wrong.sum(), len(wrong))
    density = (1 - share) * right + share * elsewhere
    return float(np.log(density).sum()), wrong


def _right_densities(residuals: Array, spread: Array, usual_sizes: Array) -> Iterator[Array]:
    """Densities of residuals of right labels, for each way to scale them."""
    from scipy import stats

    common = np.log(np.median(spread))
    for local, tail in product(TUNING.local_scales, TUNING.student_tails):
        scale = np.exp(local * np.log(spread) + (1 - local) * common)
        usual = np.median(usual_sizes / scale[:, None]) + TUNING.tiny
        unit = scale * usual / stats.t.ppf(0.75, tail)
        yield stats.t.pdf(residuals / unit, tail) / unit


def _wrong_densities(residuals: Array, labels: Array, usual_labels: Array) -> Iterator[Array]:
    """Densities of wrong labels: those of other rows, and those that are off."""
    from scipy import stats

    middle = float(np.median(usual_labels))
    deviation = float(usual_labels.std()) + TUNING.tiny
    # Where most labels are one and the same value, their median deviation is zero.
    width = max(float(np.median(np.abs(usual_labels - middle))), deviation / 2)
    anywhere = stats.cauchy.pdf(labels, middle, width)
    another = stats.norm.pdf(labels, usual_labels.mean(), deviation)
    off = stats.maxwell.pdf(np.abs(residuals), 0, deviation) / 2
    for kind in (another, off):
        yield (1 - _ANYWHERE_SHARE) * kind + _ANYWHERE_SHARE * anywhere
