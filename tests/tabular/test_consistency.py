"""Functions whose parts do not fit together are refused when they are read, not when used."""

from dataclasses import replace

import numpy as np
import pytest

from nobsp import NObSP
from nobsp.tabular.consistency import require_readable
from nobsp.tabular.functions import Functions, with_bands
from nobsp.tabular.lookup import TermTable


@pytest.fixture(scope="module")
def functions() -> Functions:
    X = np.random.default_rng(0).normal(size=(200, 2))
    return with_bands(NObSP(lambda X: X[:, 0] + X[:, 1] ** 2, features=["a", "b"]).fit(X).compile())


def test_functions_that_fit_together_are_readable(functions: Functions) -> None:
    require_readable(functions)


def with_first_table(functions: Functions, **changes: object) -> Functions:
    first, *others = functions.tables
    fields = {"features": first.features, "axes": first.axes, "values": first.values}
    return replace(functions, tables=(TermTable(**{**fields, **changes}), *others))


@pytest.mark.parametrize(
    "damaged",
    [
        lambda f: replace(f, base_values=np.array([np.nan])),
        lambda f: replace(f, base_values=np.zeros(2)),
        lambda f: replace(f, baseline=np.zeros(3)),
        lambda f: replace(f, baseline_contributions=np.zeros((1, 1))),
        lambda f: replace(f, importances={**f.importances, "main": np.zeros((3, 1))}),
        lambda f: replace(f, spreads={0: np.zeros((1, 1))}),
        lambda f: replace(f, spreads={0: np.full_like(f.spreads[0], np.inf)}),
        lambda f: replace(f, column_count=1),
        lambda f: with_first_table(f, values=f.tables[0].values[:-1]),
        lambda f: with_first_table(f, values=np.full_like(f.tables[0].values, np.nan)),
        lambda f: with_first_table(f, features=(7,)),
    ],
    ids=[
        "base values that are no numbers",
        "base values of other outputs",
        "baseline of other features",
        "baseline contributions of other terms",
        "importances of other features",
        "a spread of other points",
        "a spread that is not finite",
        "a column that the table does not have",
        "a table that does not fit its axis",
        "a table that is not finite",
        "a table of a feature that is not there",
    ],
)
def test_parts_that_do_not_fit_are_refused(functions: Functions, damaged) -> None:
    with pytest.raises((ValueError, IndexError)):
        require_readable(damaged(functions))
