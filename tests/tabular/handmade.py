"""Functions made by hand, with every kind of axis and term there is, and rows that try each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from nobsp import Functions, Health
from nobsp.tabular.lookup import Feature, LevelAxis, NumberAxis, TermTable

NUMBERS = ("age", "income")
CITIES = ("Bern", "O'Hara; DROP", 'say "hi"\nthere', "")


def handmade(
    *,
    link: str = "identity",
    outputs: int = 1,
    classes: tuple[Any, ...] = (),
    cities: tuple[Any, ...] = (*CITIES, None),
    filled_in: int | None = None,
    names: tuple[str, ...] = ("age", "income", "city", "code", "hot 1", "hot 2", "unused"),
    seed: int = 0,
) -> Functions:
    """A number, one that may be missing, categories of names, numbers and one-hot columns, an unused column."""
    rng = np.random.default_rng(seed)
    age = NumberAxis(0, np.array([18.0, 30.0, 30.000000000000004, 52.5, 90.1]))
    income = NumberAxis(1, np.array([-3.0, 0.1, 1e3, 1e5]), missing=True)
    city = LevelAxis((2,), cities, filled_in)
    code = LevelAxis((3,), np.array([[0.0], [1.5], [7.0]]), filled_in)
    hot = LevelAxis((4, 5), np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    coarse_age = NumberAxis(0, np.array([20.0, 40.0, 80.0]))
    coarse_income = NumberAxis(1, np.array([0.0, 0.3, 2e4]), missing=True)

    terms: list[tuple[tuple[int, ...], tuple[Any, ...]]] = [
        ((0,), (age,)),
        ((1,), (income,)),
        ((2,), (city,)),
        ((3,), (code,)),
        ((4,), (hot,)),
        ((5,), ()),
        ((0, 1), (coarse_age, coarse_income)),
        ((0, 2), (coarse_age, city)),
        ((2, 3), (city, code)),
        ((0, 1, 3), (coarse_age, coarse_income, code)),
    ]
    tables = []
    for features, axes in terms:
        shape = (*(len(axis) for axis in axes), outputs)
        scale = 0.0 if not axes else 1.0
        tables.append(TermTable(features, axes, scale * rng.normal(size=shape)))

    features = (
        Feature(names[0], (0,), "number", ranges=((18.0, 90.0),)),
        Feature(names[1], (1,), "number", ranges=((0.1, 1e5),)),
        Feature(names[2], (2,), "levels", labels=tuple(map(str, cities))),
        Feature(names[3], (3,), "levels", labels=("0", "1.5", "7")),
        Feature("hot", (4, 5), "levels", labels=("neither", "one", "two")),
        Feature(names[6], (6,), "unused"),
    )
    n_terms = len(tables)
    return Functions(
        features=features,
        column_names=names,
        column_count=len(names),
        output_names=tuple(f"out {position}" for position in range(outputs)),
        tables=tuple(tables),
        base_values=rng.normal(size=outputs),
        baseline_contributions=np.zeros((n_terms, outputs)),
        baseline=np.zeros(len(features)),
        state=Health((), (), (0.9,) * outputs, (0.9,) * outputs, 0.0, 100, 10),
        link=link,
        importances={kind: np.ones((len(features), outputs)) for kind in ("main", "total")},
        strengths={},
        classes=classes,
    )


def rows_for(functions: Functions, n_rows: int = 60, seed: int = 1) -> pd.DataFrame:
    """Rows inside, at the knots, beyond the ends, missing, infinite, of unseen levels, and booleans."""
    rng = np.random.default_rng(seed)
    names = functions.column_names
    assert names is not None
    axis = functions.tables[2].axes[0]
    assert isinstance(axis, LevelAxis)
    special_ages = [18.0, 30.0, 30.000000000000004, 90.1, 5.0, 200.0, np.nan, np.inf, -np.inf, 80.0]
    special_incomes = [np.nan, -3.0, 0.1, 1e5, -50.0, 1e7, np.inf, 0.0, 0.3, 2e4]
    ages = np.concatenate([special_ages, rng.uniform(10, 100, n_rows - 10)])
    incomes = np.concatenate([special_incomes, rng.uniform(-1, 2e5, n_rows - 10)])
    absent = [None] if axis.filled_in is not None else []
    cities = np.array([*axis.levels, "elsewhere", *absent], dtype=object)
    columns = [
        ages,
        incomes,
        cities[rng.integers(0, len(cities), n_rows)],
        rng.choice([0.0, 1.5, 7.0, 3.0, np.nan], n_rows),
        rng.integers(0, 2, n_rows).astype(bool),
        rng.integers(0, 2, n_rows).astype(bool),
        np.zeros(n_rows),
    ]
    return pd.DataFrame(dict(zip(names, columns, strict=True)))
