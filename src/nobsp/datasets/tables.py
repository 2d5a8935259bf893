"""Readers of the published files: columns and target of each table, before any preprocessing."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nobsp.datasets.files import Source, locate, opened, text_of

MISSING = -1


@dataclass(frozen=True, eq=False)
class Category:
    """A categorical column as codes into its levels; a missing value has the code -1."""

    codes: NDArray[np.int64]
    levels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def rows(self, chosen: NDArray[np.int64]) -> Category:
        """The same column with some of the rows."""
        return Category(self.codes[chosen], self.levels)

    def values(self) -> NDArray[np.object_]:
        """The level of every row, None where it is missing."""
        # The extra entry at the end is the one that code -1 reads.
        return np.array([*self.levels, None], dtype=object)[self.codes]


Column = NDArray[np.float64] | Category


@dataclass(frozen=True, eq=False)
class Table:
    """A data set as published.

    Attributes:
        columns: Every feature by name: numbers with nan where one is missing, or a category.
        target: Class codes, or the numbers to predict.
        class_names: Names of the classes in the order of their codes; empty for regression.
    """

    columns: dict[str, Column]
    target: NDArray[np.int64] | NDArray[np.float64]
    class_names: tuple[str, ...] = ()

    @property
    def is_classification(self) -> bool:
        """Whether the target is a class."""
        return bool(self.class_names)


def category(values: Sequence[str], *, missing: str | None = None) -> Category:
    """A categorical column from text; its levels are the values that occur, sorted.

    Args:
        values: One value a row.
        missing: The text that stands for a missing value.
    """
    levels = sorted(set(values) - {missing})
    code = {level: position for position, level in enumerate(levels)}
    return Category(np.array([code.get(value, MISSING) for value in values], dtype=np.int64), tuple(levels))


def number(values: Iterable[str], *, missing: str | None = None) -> NDArray[np.float64]:
    """A numeric column from text, nan where a value is missing."""
    return np.array([np.nan if value == missing else float(value) for value in values], dtype=np.float64)


_ADULT = {
    name: Source(
        names=(f"adult/{name}",),
        url="https://archive.ics.uci.edu/static/public/2/adult.zip",
        member=(name,),
        sha256=sha256,
    )
    for name, sha256 in {
        "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    }.items()
}
_ADULT_NUMERIC = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
_ADULT_COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship",
    "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country",
)  # fmt: skip


def read_adult() -> Table:
    """UCI Adult, its two files one after the other; "?" is a missing value."""
    rows: list[list[str]] = []
    for name, source in _ADULT.items():
        with text_of(source) as text:
            rows += [row for row in csv.reader(text, skipinitialspace=True) if len(row) > 1]
        _expect_width(rows, len(_ADULT_COLUMNS) + 1, name)
    # The labels of the test file end with a full stop.
    target = category([row[-1].rstrip(".") for row in rows])
    return Table(_columns(rows, _ADULT_COLUMNS, _ADULT_NUMERIC, missing="?"), target.codes, target.levels)


_GERMAN = Source(
    names=("german_credit/german.data",),
    url="https://archive.ics.uci.edu/static/public/144/statlog+german+credit+data.zip",
    member=("german.data",),
    sha256="b21f3d81db8071257d5ff1deaeba1fd4303b62712e6fcc9715c7a86202cb5871",
)
# Per column its name and, where it is categorical, what its codes mean, in the order A<column>1, A<column>2, ...
_GERMAN_COLUMNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("checking_status", ("<0", "0<=X<200", ">=200", "no checking")),
    ("duration", ()),
    ("credit_history", ("no credits/all paid", "all paid", "existing paid", "delayed previously", "critical account")),
    ("purpose", ("new car", "used car", "furniture/equipment", "radio/tv", "domestic appliance", "repairs", "education",
                 "vacation", "retraining", "business", "other")),
    ("credit_amount", ()),
    ("savings_status", ("<100", "100<=X<500", "500<=X<1000", ">=1000", "no known savings")),
    ("employment", ("unemployed", "<1", "1<=X<4", "4<=X<7", ">=7")),
    ("installment_commitment", ()),
    ("personal_status", ("male div/sep", "female div/dep/mar", "male single", "male mar/wid", "female single")),
    ("other_parties", ("none", "co applicant", "guarantor")),
    ("residence_since", ()),
    ("property_magnitude", ("real estate", "life insurance", "car", "no known property")),
    ("age", ()),
    ("other_payment_plans", ("bank", "stores", "none")),
    ("housing", ("rent", "own", "for free")),
    ("existing_credits", ()),
    ("job", ("unemployed/unskilled non-resident", "unskilled resident", "skilled", "management/self-employed")),
    ("num_dependents", ()),
    ("own_telephone", ("none", "yes")),
    ("foreign_worker", ("yes", "no")),
)  # fmt: skip
# These two columns count their codes from zero: A30, A40.
_GERMAN_FROM_ZERO = ("credit_history", "purpose")


def read_german_credit() -> Table:
    """Statlog German Credit in its symbolic form, with the codes spelt out; class 1 is a good credit, 2 a bad one."""
    with text_of(_GERMAN) as text:
        rows = [line.split() for line in text if line.strip()]
    _expect_width(rows, len(_GERMAN_COLUMNS) + 1, "german.data")
    columns: dict[str, Column] = {}
    for position, (name, meanings) in enumerate(_GERMAN_COLUMNS):
        values = [row[position] for row in rows]
        if meanings:
            first = 0 if name in _GERMAN_FROM_ZERO else 1
            meant = {f"A{position + 1}{first + i}": meaning for i, meaning in enumerate(meanings)}
            unknown = sorted(set(values) - meant.keys())
            if unknown:
                raise ValueError(
                    f"german.data has the codes {unknown} in column {position + 1}, known are {list(meant)}."
                )
            columns[name] = category([meant[value] for value in values])
        else:
            columns[name] = number(values)
    return Table(columns, np.array([row[-1] == "2" for row in rows], dtype=np.int64), ("good", "bad"))


_BANK = Source(
    names=("bank_marketing/bank-full.csv",),
    url="https://archive.ics.uci.edu/static/public/222/bank+marketing.zip",
    member=("bank.zip", "bank-full.csv"),
    sha256="d1513ec63b385506f7cfce9f2c5caa9fe99e7ba4e8c3fa264b3aaf0f849ed32d",
)
_BANK_NUMERIC = ("age", "balance", "day", "duration", "campaign", "pdays", "previous")


def read_bank_marketing() -> Table:
    """UCI Bank Marketing; "unknown" is one of its own levels, as its authors have it."""
    with text_of(_BANK) as text:
        header, *rows = csv.reader(text, delimiter=";")
    _expect_width(rows, len(header), "bank-full.csv")
    absent = sorted({*_BANK_NUMERIC, "y"} - set(header))
    if absent or header[-1] != "y":
        raise ValueError(f"bank-full.csv should name {absent or 'y'} in its first line, last of all y; found {header}.")
    target = category([row[-1] for row in rows])
    return Table(_columns(rows, header[:-1], _BANK_NUMERIC), target.codes, target.levels)


_COVERTYPE = Source(
    names=("covertype/covtype.csv", "covertype/covtype.data"),
    url="https://ndownloader.figshare.com/files/5976039",
    saved_as="covertype/covtype.data.gz",
    archive_sha256="614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
)
_COVERTYPE_NUMERIC = (
    "Elevation", "Aspect", "Slope", "Horizontal_Distance_To_Hydrology", "Vertical_Distance_To_Hydrology",
    "Horizontal_Distance_To_Roadways", "Hillshade_9am", "Hillshade_Noon", "Hillshade_3pm",
    "Horizontal_Distance_To_Fire_Points",
)  # fmt: skip
_COVERTYPE_INDICATORS = {
    "Wilderness_Area": ("Rawah", "Neota", "Comanche Peak", "Cache la Poudre"),
    "Soil_Type": tuple(str(soil) for soil in range(1, 41)),
}
_COVERTYPE_CLASSES = (
    "Spruce/Fir", "Lodgepole Pine", "Ponderosa Pine", "Cottonwood/Willow", "Aspen", "Douglas-fir", "Krummholz",
)  # fmt: skip


def read_covertype() -> Table:
    """UCI Covertype; its 4 and 40 indicator columns are read back into the two categories they stand for."""
    width = len(_COVERTYPE_NUMERIC) + sum(map(len, _COVERTYPE_INDICATORS.values())) + 1
    with opened(locate(_COVERTYPE)) as file:
        content = file.read().strip()
    if content[:1].isalpha():
        content = content.partition(b"\n")[2]
    # Every value fits 16 bits: 64 MB for all rows.
    flat = np.fromstring(content.replace(b"\n", b","), dtype=np.int16, sep=",")
    lines = content.count(b"\n") + 1
    if flat.size != lines * width:
        raise ValueError(f"covtype has {flat.size} values in {lines} lines, expected {width} whole numbers in each.")
    values = flat.reshape(lines, width)
    columns: dict[str, Column] = {
        name: values[:, position].astype(np.float64) for position, name in enumerate(_COVERTYPE_NUMERIC)
    }
    start = len(_COVERTYPE_NUMERIC)
    for name, levels in _COVERTYPE_INDICATORS.items():
        indicators = values[:, start : start + len(levels)]
        if indicators.min() < 0 or not (indicators.sum(axis=1) == 1).all():
            raise ValueError(
                f"covtype: exactly one of the {len(levels)} indicators of {name} should be 1 in every row."
            )
        columns[name] = Category(indicators.argmax(axis=1).astype(np.int64), levels)
        start += len(levels)
    target = values[:, -1].astype(np.int64) - 1
    if target.min() < 0 or target.max() >= len(_COVERTYPE_CLASSES):
        raise ValueError(f"covtype: classes go from 1 to 7, found {target.min() + 1} to {target.max() + 1}.")
    return Table(columns, target, _COVERTYPE_CLASSES)


_CALIFORNIA = Source(
    names=("california_housing/cal_housing.data",),
    url="https://ndownloader.figshare.com/files/5976036",
    member=("cal_housing.data",),
    archive_sha256="aaa5c9a6afe2225cc2aed2723682ae403280c4a3695a2ddda4ffb5d8215ea681",
)


def read_california_housing() -> Table:
    """California Housing with scikit-learn's eight features; the target is in 100,000 dollars."""
    with text_of(_CALIFORNIA) as text:
        rows = [row for row in csv.reader(text) if row]
    _expect_width(rows, 9, "cal_housing.data")
    longitude, latitude, age, rooms, bedrooms, population, households, income, value = np.array(
        rows, dtype=np.float64
    ).T
    columns: dict[str, Column] = {
        "MedInc": income,
        "HouseAge": age,
        "AveRooms": rooms / households,
        "AveBedrms": bedrooms / households,
        "Population": population,
        "AveOccup": population / households,
        "Latitude": latitude,
        "Longitude": longitude,
    }
    return Table(columns, value / 1e5)


def read_embedded(name: str) -> Table:
    """One of the small tables that come with scikit-learn, in original units.

    Args:
        name: "iris", "breast_cancer", "wine" or "diabetes".
    """
    import sklearn.datasets

    if name == "diabetes":
        bunch = sklearn.datasets.load_diabetes(scaled=False)
    else:
        bunch = getattr(sklearn.datasets, f"load_{name}")()
    columns: dict[str, Column] = {
        str(feature): np.asarray(bunch.data[:, position], dtype=np.float64)
        for position, feature in enumerate(bunch.feature_names)
    }
    if name == "diabetes":
        return Table(columns, np.asarray(bunch.target, dtype=np.float64))
    return Table(columns, np.asarray(bunch.target, dtype=np.int64), tuple(str(one) for one in bunch.target_names))


READERS: dict[str, Callable[[], Table]] = {
    "iris": lambda: read_embedded("iris"),
    "breast_cancer": lambda: read_embedded("breast_cancer"),
    "wine": lambda: read_embedded("wine"),
    "adult": read_adult,
    "german_credit": read_german_credit,
    "bank_marketing": read_bank_marketing,
    "covertype": read_covertype,
    "diabetes": lambda: read_embedded("diabetes"),
    "california_housing": read_california_housing,
}


def _columns(
    rows: Sequence[Sequence[str]], names: Sequence[str], numeric: Sequence[str], *, missing: str | None = None
) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for position, name in enumerate(names):
        values = [row[position] for row in rows]
        columns[name] = number(values, missing=missing) if name in numeric else category(values, missing=missing)
    return columns


def _expect_width(rows: Sequence[Sequence[str]], width: int, name: str) -> None:
    if not rows:
        raise ValueError(f"{name} has no rows.")
    for line, row in enumerate(rows, start=1):
        if len(row) != width:
            raise ValueError(f"{name} has {len(row)} values in row {line}, expected {width}.")
