"""Several trainings of a model: what they share, and how far training again moves each part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nobsp._typing import FloatArray
from nobsp.comparison.pairing import Places, require_alike, same_functions, same_rows
from nobsp.numerics import evenly_spaced
from nobsp.tabular.explanation import Explanation
from nobsp.tabular.indexing import Term

Accounts = tuple[Explanation, ...]

# Rows on which trainings are told apart: their spreads change little with more.
MOST_ROWS = 2048


def accounts_of(value: object, *, name: str) -> Accounts:
    """The accounts of one side: one, or a list of several trainings of the same model."""
    if isinstance(value, Explanation):
        return (value,)
    if not isinstance(value, tuple | list):
        raise TypeError(
            f"{name} must be an Explanation, as explainer(X) gives it, or a list of them, one for "
            f"each training of the model; found {type(value).__name__}."
        )
    if not value:
        raise ValueError(f"{name} is an empty list; pass at least one explanation.")
    for number, account in enumerate(value):
        if not isinstance(account, Explanation):
            raise TypeError(
                f"{name}[{number}] must be an Explanation, as explainer(X) gives it, found "
                f"{type(account).__name__}."
            )
    return tuple(value)


def require_trainings(first: Accounts, second: Accounts) -> None:
    """Raises unless all accounts are of different models on the same rows."""
    reference = first[0]
    labels = [*(f"a[{k}]" for k in range(len(first))), *(f"b[{k}]" for k in range(len(second)))]
    accounts = (*first, *second)
    for label, account in zip(labels[1:], accounts[1:], strict=True):
        require_alike(reference, account)
        if not same_rows(reference, account):
            raise ValueError(
                f"{label} is of other rows than {labels[0]}; several trainings are compared on the "
                "same rows, in the same order."
            )
    for position, account in enumerate(accounts):
        for earlier in range(position):
            if same_functions(accounts[earlier], account):
                raise ValueError(
                    f"{labels[earlier]} and {labels[position]} are of the same functions; each "
                    "must be a training of its own, since their scatter is what changes are "
                    "measured by. A learner without chance has to be trained on other rows, such "
                    "as resampled ones."
                )


def average(accounts: Accounts) -> Explanation:
    """The mean account of several trainings; a term that one lacks contributes nothing there."""
    if len(accounts) == 1:
        return accounts[0]
    first = accounts[0]
    terms = terms_of_any(accounts)
    shape = (len(first), len(terms), len(first.output_names))
    values = np.zeros(shape)
    at_baseline = np.zeros(shape[1:])
    for account in accounts:
        positions = {frozenset(term): position for position, term in enumerate(account.terms)}
        for position, term in enumerate(terms):
            own = positions.get(frozenset(term))
            if own is not None:
                values[:, position] += account.values[:, own] / len(accounts)
                at_baseline[position] += account.baseline_contributions[own] / len(accounts)

    return replace(
        first,
        values=values,
        base_values=np.mean([account.base_values for account in accounts], axis=0),
        residual=np.mean([account.residual for account in accounts], axis=0),
        predictions=np.mean([account.predictions for account in accounts], axis=0),
        terms=terms,
        outside=np.any([account.outside for account in accounts], axis=0),
        baseline_contributions=at_baseline,
        explainer=None,
    )


def terms_of_any(accounts: Sequence[Explanation]) -> tuple[Term, ...]:
    """Terms that at least one account has, single features first."""
    known: dict[frozenset[str], Term] = {}
    for account in accounts:
        for term in account.terms:
            known.setdefault(frozenset(term), term)
    return tuple(sorted(known.values(), key=len))


@dataclass(frozen=True, eq=False)
class Scatter:
    """How far trainings of one model lie from their mean, on some rows."""

    positions: Places  # the rows
    weights: FloatArray  # of these rows, adding up to one
    values: (
        FloatArray  # every training less its side's mean, (rows, trainings, entries + 1, outputs)
    )
    freedom: int  # trainings less sides that have several
    share: (
        float  # 1/n_a + 1/n_b: of one training's variance, how much the difference of two means has
    )

    @classmethod
    def of(cls, sides: Sequence[FloatArray], weights: FloatArray) -> Scatter:
        """From all trainings' entries on either side, (rows, trainings, entries + 1, outputs)."""
        positions = evenly_spaced(len(weights), MOST_ROWS)
        chosen = [values[positions] for values in sides]
        deviations = [values - values.mean(1, keepdims=True) for values in chosen]
        several = [values for values in deviations if values.shape[1] > 1]
        return cls(
            positions=positions,
            weights=weights[positions] / weights[positions].sum(),
            values=np.concatenate(several, axis=1),
            freedom=sum(values.shape[1] - 1 for values in several),
            share=sum(1 / values.shape[1] for values in sides),
        )

    def draw(self, draws: int, generator: np.random.Generator) -> FloatArray:
        """Weights of the trainings, (draws, trainings), that make a difference of two means vary.

        Normal combinations of few deviations scatter as these do; that the variance is itself
        estimated, from `freedom` of them, makes tails heavier, as in Student's distribution.
        """
        n_trainings = self.values.shape[1]
        normal = generator.standard_normal((draws, n_trainings))
        known_variance = generator.chisquare(self.freedom, size=(draws, 1)) / self.freedom
        return np.asarray(normal * np.sqrt(self.share / self.freedom / known_variance))

    def mean_deviations(self, combinations: FloatArray) -> FloatArray:
        """What every combination adds to the mean of every entry, (draws, entries + 1, outputs)."""
        means = np.tensordot(self.weights, self.values, axes=(0, 0))
        return np.asarray(np.tensordot(combinations, means, axes=(1, 0)))

    def products_of(self, entry: int) -> FloatArray:
        """Covariances of an entry's deviations over the rows, (outputs, trainings, trainings)."""
        centred = self._centred(entry)
        return np.asarray(np.einsum("r,rto,ruo->otu", self.weights, centred, centred))

    def products_with(self, entry: int, difference: FloatArray) -> FloatArray:
        """Covariances over rows of an entry's deviations with a function, (trainings, outputs)."""
        centred = self._centred(entry)
        return np.asarray(
            np.einsum("r,rto,ro->to", self.weights, centred, difference[self.positions])
        )

    def _centred(self, entry: int) -> FloatArray:
        """An entry's deviations without their means over the rows."""
        values = self.values[:, :, entry]
        return np.asarray(values - np.tensordot(self.weights, values, axes=(0, 0)))
