"""The subjects of plots as fixtures, the same looks everywhere, and no figure that outlives its test."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib as mpl
import numpy as np
import pytest

from nobsp import Explanation, NObSP
from tests.plots.subjects import Known, account, rows_of_known

mpl.use("Agg")


@pytest.fixture(autouse=True)
def clean_canvas() -> Iterator[None]:
    """The same looks wherever tests run, and all figures closed afterwards, and those that others left before."""
    import matplotlib.pyplot as plt

    plt.close("all")
    with mpl.rc_context(), mpl.style.context("default"):
        mpl.rcParams["font.family"] = ["DejaVu Sans"]  # comes with matplotlib
        yield
    plt.close("all")


@pytest.fixture
def ex() -> Explanation:
    return account()


@pytest.fixture
def several() -> Explanation:
    """Three outputs."""
    return account(outputs=3)


@pytest.fixture(scope="session")
def table() -> np.ndarray:
    return rows_of_known()


@pytest.fixture(scope="session")
def known(table: np.ndarray) -> NObSP:
    """An explainer of functions that are known."""
    names = ["age", "income", "rooms"]
    return NObSP(
        Known(), features=names, output_names=["price"], interactions=[("age", "income")]
    ).fit(table)


@pytest.fixture(scope="session")
def two_outputs(table: np.ndarray) -> NObSP:
    options = {"features": ["age", "income", "rooms"], "output_names": ["price", "risk"]}
    return NObSP(Known(2), interactions=[("age", "income")], **options).fit(table)


@pytest.fixture(scope="session")
def screened(table: np.ndarray) -> NObSP:
    """The same, which chose its strongest pair itself."""
    names = ["age", "income", "rooms"]
    return NObSP(Known(), features=names, output_names=["price"], interactions=1).fit(table)
