"""What a situation is, and the list of them."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import benchmarks.everyday
from nobsp import NObSP

# How far the headline may be from the truth on fresh rows without a finding that says so.
TOLERANCE = 0.05

_NO_SITUATIONS = ("registry", "__main__")


@dataclass(frozen=True)
class Outcome:
    """What an explainer says of itself in a situation, and what is true."""

    headline: float | None = None  # the worst output's held-out R², None where nothing was fitted
    fresh: float | None = None  # R² of the same functions on rows that nobody saw
    codes: tuple[str, ...] = ()  # of all findings, health and explained rows together
    failure: str = ""  # the error, where there was one

    @property
    def difference(self) -> float:
        """Headline less truth; NaN where either is missing."""
        if self.headline is None or self.fresh is None:
            return float("nan")
        return self.headline - self.fresh


@dataclass(frozen=True)
class Situation:
    """A situation that people meet.

    Attributes:
        name: One line for the table.
        build: Fits an explainer and judges it; runs with older versions of the package too.
        findings: Codes of findings, any one of which tells what is wrong; empty where the headline must be true.
        fails_well: Whether an error is the right answer.
        wanted: A finding is asked for even where headline and truth agree.
    """

    name: str
    build: Callable[[], Outcome]
    findings: tuple[str, ...] = ()
    fails_well: bool = False
    wanted: bool = False

    def holds(self, outcome: Outcome) -> bool:
        """Whether the headline is true, or a finding says that it is not."""
        if outcome.failure:
            return self.fails_well
        named = bool(set(self.findings) & set(outcome.codes))
        if self.wanted:
            return named
        return named or abs(outcome.difference) <= TOLERANCE

    def run(self) -> Outcome:
        """The outcome; an error of the package is one too."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # findings are read, so warnings need not be
                return self.build()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what a user meets
            message = str(error).splitlines()[0] if str(error) else ""
            return Outcome(failure=f"{type(error).__name__}: {message}"[:120])


@dataclass
class _Registry:
    situations: dict[str, Situation] = field(default_factory=dict)


_REGISTRY = _Registry()

Build = Callable[[], Outcome]


def situation(
    name: str, *, findings: tuple[str, ...] = (), fails_well: bool = False, wanted: bool = False
) -> Callable[[Build], Build]:
    """Registers a function as a situation; see `Situation` for the options."""

    def register(build: Build) -> Build:
        if name in _REGISTRY.situations:
            raise ValueError(f"there are two situations called {name!r}; rename one.")
        _REGISTRY.situations[name] = Situation(
            name, build, findings=findings, fails_well=fails_well, wanted=wanted
        )
        return build

    return register


def all_situations() -> dict[str, Situation]:
    """Every situation of this folder, module by module."""
    for module in sorted(pkgutil.iter_modules(benchmarks.everyday.__path__), key=lambda m: m.name):
        if module.name not in _NO_SITUATIONS:
            importlib.import_module(f"benchmarks.everyday.{module.name}")
    return _REGISTRY.situations


def true_share(explainer: NObSP, rows: Any) -> float:
    """R² of the functions' sum against the model on some rows, bias counted; of the worst output."""
    explanation = explainer(rows)
    predictions = explanation.predictions
    account = explanation.base_values + explanation.values.sum(1)
    errors = np.square(predictions - account).sum(0)
    total = np.square(predictions - predictions.mean(0)).sum(0)
    shares = 1 - errors / np.where(total > 0, total, np.nan)
    return float(np.nanmin(shares))


def judge(explainer: NObSP, calibration: Any, fresh: Any, **fit_options: Any) -> Outcome:
    """Calibrates, and compares the headline with the truth on fresh rows."""
    explainer.fit(calibration, **fit_options)
    state = explainer.health(fresh)
    return Outcome(
        headline=float(np.nanmin(explainer.explained_)),
        fresh=true_share(explainer, fresh),
        codes=tuple(sorted({finding.code for finding in state.findings})),
    )
