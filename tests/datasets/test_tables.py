"""The published files, read from a few rows written in each format."""

import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest

from nobsp.datasets import tables
from nobsp.datasets.tables import Category

ADULT = """\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, Cuba, <=50K
50, ?, 83311, Masters, 14, Divorced, ?, Husband, Black, Female, 0, 0, 13, United-States, >50K

"""
ADULT_TEST = """\
|1x3 Cross validator
25, Private, 226802, 11th, 7, Never-married, Sales, Own-child, Black, Male, 0, 0, 40, ?, <=50K.
"""
GERMAN = """\
A11 6 A34 A43 1169 A65 A75 4 A93 A101 4 A121 67 A143 A152 2 A173 1 A192 A201 1
A12 48 A30 A410 5951 A61 A73 2 A92 A101 2 A121 22 A143 A152 1 A173 1 A191 A201 2
"""
BANK = """\
"age";"job";"marital";"education";"default";"balance";"housing";"loan";"contact";"day";"month";"duration";\
"campaign";"pdays";"previous";"poutcome";"y"
58;"management";"married";"tertiary";"no";2143;"yes";"no";"unknown";5;"may";261;1;-1;0;"unknown";"no"
44;"technician";"single";"unknown";"no";-29;"yes";"no";"unknown";5;"may";151;1;-1;0;"unknown";"yes"
"""
CALIFORNIA = "-122.23,37.88,41.0,880.0,129.0,322.0,126.0,8.3252,452600.0\n-122.22,37.86,21,7099,1106,2401,1138,8,358500"


def covertype_row(*, area: int, soil: int, kind: int, elevation: int = 2596) -> str:
    numbers = [elevation, 51, 3, 258, -7, 510, 221, 232, 148, 6279]
    areas, soils = [0] * 4, [0] * 40
    areas[area], soils[soil] = 1, 1
    return ",".join(map(str, [*numbers, *areas, *soils, kind]))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NOBSP_DATA", str(tmp_path))
    return tmp_path


def write(path: Path, content: str) -> None:
    path.parent.mkdir(exist_ok=True)
    data = content.encode()
    endings = {".gz": gzip.compress, ".xz": lzma.compress}
    path.write_bytes(endings.get(path.suffix, bytes)(data))


def category(table: tables.Table, name: str) -> list[str | None]:
    column = table.columns[name]
    assert isinstance(column, Category)
    return column.values().tolist()


def test_adult_joins_its_two_files_and_reads_question_marks_as_missing(folder: Path) -> None:
    write(folder / "adult/adult.data.gz", ADULT)
    write(folder / "adult/adult.test", ADULT_TEST)
    table = tables.read_adult()
    np.testing.assert_array_equal(table.columns["age"], [39, 50, 25])
    assert category(table, "workclass") == ["State-gov", None, "Private"]
    assert category(table, "native-country") == ["Cuba", "United-States", None]
    assert table.class_names == ("<=50K", ">50K")
    np.testing.assert_array_equal(table.target, [0, 1, 0])


def test_german_credit_spells_its_codes_out(folder: Path) -> None:
    write(folder / "german_credit/german.data", GERMAN)
    table = tables.read_german_credit()
    assert category(table, "checking_status") == ["<0", "0<=X<200"]
    assert category(table, "credit_history") == ["critical account", "no credits/all paid"]
    assert category(table, "purpose") == ["radio/tv", "other"]
    assert category(table, "own_telephone") == ["yes", "none"]
    np.testing.assert_array_equal(table.columns["credit_amount"], [1169, 5951])
    np.testing.assert_array_equal(table.target, [0, 1])
    assert table.class_names == ("good", "bad")


def test_german_credit_refuses_a_code_it_does_not_know(folder: Path) -> None:
    write(folder / "german_credit/german.data", GERMAN.replace("A201 1", "A209 1"))
    with pytest.raises(ValueError, match=r"\['A209'\] in column 20"):
        tables.read_german_credit()


def test_bank_marketing_keeps_unknown_as_a_level(folder: Path) -> None:
    write(folder / "bank_marketing/bank-full.csv.gz", BANK)
    table = tables.read_bank_marketing()
    assert category(table, "education") == ["tertiary", "unknown"]
    np.testing.assert_array_equal(table.columns["balance"], [2143, -29])
    np.testing.assert_array_equal(table.target, [0, 1])


def test_bank_marketing_with_other_columns_is_refused(folder: Path) -> None:
    write(folder / "bank_marketing/bank-full.csv", BANK.replace('"balance"', '"money"'))
    with pytest.raises(ValueError, match=r"\['balance'\]"):
        tables.read_bank_marketing()


@pytest.mark.parametrize(
    ("name", "header"), [("covtype.csv.xz", "Elevation,Aspect,and so on\n"), ("covtype.data.gz", "")]
)
def test_covertype_reads_indicators_back_into_categories(folder: Path, name: str, header: str) -> None:
    rows = [covertype_row(area=0, soil=28, kind=5), covertype_row(area=3, soil=0, kind=1, elevation=3000)]
    write(folder / "covertype" / name, header + "\n".join(rows) + "\n")
    table = tables.read_covertype()
    assert category(table, "Wilderness_Area") == ["Rawah", "Cache la Poudre"]
    assert category(table, "Soil_Type") == ["29", "1"]
    np.testing.assert_array_equal(table.columns["Elevation"], [2596, 3000])
    np.testing.assert_array_equal(table.columns["Vertical_Distance_To_Hydrology"], [-7, -7])
    assert [table.class_names[code] for code in table.target] == ["Aspen", "Spruce/Fir"]


def test_covertype_with_two_soils_in_a_row_is_refused(folder: Path) -> None:
    row = covertype_row(area=0, soil=28, kind=5).split(",")
    row[14] = "1"
    write(folder / "covertype/covtype.data", ",".join(row))
    with pytest.raises(ValueError, match="Soil_Type should be 1"):
        tables.read_covertype()


def test_covertype_with_a_short_row_is_refused(folder: Path) -> None:
    write(folder / "covertype/covtype.data", covertype_row(area=0, soil=28, kind=5) + "\n1,2,3\n")
    with pytest.raises(ValueError, match="58 values in 2 lines, expected 55"):
        tables.read_covertype()


def test_california_housing_has_the_features_of_scikit_learn(folder: Path) -> None:
    write(folder / "california_housing/cal_housing.data.gz", CALIFORNIA)
    table = tables.read_california_housing()
    first = {name: float(column[0]) for name, column in table.columns.items()}  # type: ignore[index]
    # The first row of scikit-learn's own table.
    expected = {"MedInc": 8.3252, "HouseAge": 41.0, "AveRooms": 6.98412698, "AveBedrms": 1.02380952,
                "Population": 322.0, "AveOccup": 2.55555556, "Latitude": 37.88, "Longitude": -122.23}  # fmt: skip
    assert first == pytest.approx(expected)
    assert table.target[0] == pytest.approx(4.526)
    assert not table.is_classification


def test_a_row_of_another_width_is_named(folder: Path) -> None:
    write(folder / "california_housing/cal_housing.data", CALIFORNIA + ",1")
    with pytest.raises(ValueError, match=r"cal_housing.data has 10 values in row 2, expected 9"):
        tables.read_california_housing()


def test_an_empty_file_is_named(folder: Path) -> None:
    write(folder / "german_credit/german.data", "")
    with pytest.raises(ValueError, match=r"german.data has no rows"):
        tables.read_german_credit()


def test_a_missing_number_is_read_as_nan() -> None:
    np.testing.assert_array_equal(tables.number(["1", "?", "2.5"], missing="?"), [1.0, np.nan, 2.5])
