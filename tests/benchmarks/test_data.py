"""The benchmarks' data: where files come from, how each format is read, and prepared numbers that do not change."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from benchmarks.data import IMAGE_SETS, TABLES, files, load, load_images, tables
from benchmarks.data.tables import Table

RNG = np.random.default_rng(0)
# Weighted sums of the encoded rows and of the targets (seed 3), computed by the loader that came before this one.
FINGERPRINTS = {
    "iris": (8.72507640073, -6.13568986087, 5.70271707296),
    "breast_cancer": (-37.4087425723, -7.17982716043, -1.86179157317),
    "wine": (8.42872616642, -1.10500832074, 1.40625146784),
    "adult": (-52.0404804043, -39.5149587097, 10.2511475917),
    "german_credit": (60.9217404724, -7.62122680021, -5.50199150602),
    "bank_marketing": (284.853454019, -55.8436541117, -12.2674500877),
    "covertype": (287.386064816, 237.069681472, 101.748624799),
    "diabetes": (12.3822836229, -4.38720439284, -1455.40205554),
    "california_housing": (-159.82617299, -123.322555464, 1.89671326831),
}
# Rows and encoded columns of the paper's table; Adult's 124 columns are explained in the docstring of `load`.
SIZES = {
    "iris": (150, 4),
    "breast_cancer": (569, 30),
    "wine": (178, 13),
    "diabetes": (442, 10),
    "adult": (5_000, 108),
    "german_credit": (1_000, 61),
    "bank_marketing": (5_000, 51),
    "covertype": (10_000, 54),
    "california_housing": (20_640, 8),
}
EMBEDDED = ("iris", "breast_cancer", "wine", "diabetes")
PREPARED = {
    "cifar10": (10_000, 10),
    "imagenette": (1_800, 10),
    "tiny_imagenet": (2_000, 200),
    "ham10000": (281, 7),
}


def skip_without_files(name: str) -> None:
    given = os.environ.get("NOBSP_DATA")
    if name not in EMBEDDED and (not given or not (Path(given) / name).is_dir()):
        pytest.skip(f"no folder {name} in NOBSP_DATA")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of NOBSP_DATA, empty, with an empty cache and no network."""
    (tmp_path / "given").mkdir()
    monkeypatch.setenv("NOBSP_DATA", str(tmp_path / "given"))
    monkeypatch.setattr(files, "cache_folder", lambda: tmp_path / "cache")
    for module in (tables, __import__("benchmarks.data.images", fromlist=["images"])):
        monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "cache")

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("pooch.retrieve", refuse)
    monkeypatch.setattr("sklearn.datasets.fetch_covtype", refuse)
    monkeypatch.setattr("sklearn.datasets.fetch_california_housing", refuse)
    return tmp_path / "given"


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes({".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)(data))
    return path


# ---------------------------------------------------------------------- files


def test_the_named_folder_comes_before_the_cache_and_may_be_compressed(folder: Path) -> None:
    cached = write(files.cache_folder() / "toy/toy.csv", b"cached")
    assert files.find("toy/toy.csv") == cached
    given = write(folder / "toy/toy.csv.xz", b"given")
    assert files.find("toy/toy.csv") == given
    assert files.read(given) == b"given"


def test_a_named_folder_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOBSP_DATA", "/no/such/folder")
    with pytest.raises(FileNotFoundError, match="/no/such/folder"):
        load("adult")


@pytest.mark.parametrize("name", [name for name in SIZES if name not in EMBEDDED])
def test_offline_names_the_file_and_the_folders(folder: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        load(name)
    for word in (f"{name}/", str(files.cache_folder() / name), "NOBSP_DATA", "no route to host"):
        assert word in str(caught.value)


@pytest.mark.parametrize("name", [name for name in IMAGE_SETS if name != "cifar10"])
def test_images_that_are_not_there_are_named_offline(folder: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"{name}/{name}.tar"):
        load_images(name)


def zipped(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


def test_members_of_archives_inside_archives_are_checked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hashlib

    path = write(folder.parent / "outer.zip", zipped("inner.zip", zipped("toy.csv", b"1,2")))
    monkeypatch.setattr("pooch.retrieve", lambda *_, **__: str(path))
    options = {"url": "https://example.org/outer.zip", "members": ("inner.zip", "toy.csv")}
    digest = hashlib.sha256(b"1,2").hexdigest()
    assert files.read_member("toy/toy.csv", sha256=digest, **options) == b"1,2"
    with pytest.raises(ValueError, match=digest):
        files.read_member("toy/toy.csv", sha256="0" * 64, **options)


# ---------------------------------------------------------------------- tables

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
    areas, soils = [0] * 4, [0] * 40
    areas[area], soils[soil] = 1, 1
    return ",".join(
        map(str, [elevation, 51, 3, 258, -7, 510, 221, 232, 148, 6279, *areas, *soils, kind])
    )


def levels(table: Table, name: str) -> list[str | None]:
    return [None if pd.isna(value) else value for value in table.features[name]]


def test_adult_joins_its_two_files_and_reads_question_marks_as_missing(folder: Path) -> None:
    write(folder / "adult/adult.data.gz", ADULT)
    write(folder / "adult/adult.test", ADULT_TEST)
    table = tables.read_adult()
    np.testing.assert_array_equal(table.features["age"], [39, 50, 25])
    assert levels(table, "workclass") == ["State-gov", None, "Private"]
    assert levels(table, "native-country") == ["Cuba", "United-States", None]
    assert (table.class_names, table.target.tolist()) == (("<=50K", ">50K"), [0, 1, 0])


def test_german_credit_spells_its_codes_out(folder: Path) -> None:
    write(folder / "german_credit/german.data", GERMAN)
    table = tables.read_german_credit()
    assert levels(table, "credit_history") == ["critical account", "no credits/all paid"]
    assert levels(table, "purpose") == ["radio/tv", "other"]
    np.testing.assert_array_equal(table.features["credit_amount"], [1169, 5951])
    assert (table.class_names, table.target.tolist()) == (("good", "bad"), [0, 1])


def test_german_credit_refuses_a_code_it_does_not_know(folder: Path) -> None:
    write(folder / "german_credit/german.data", GERMAN.replace("A201 1", "A209 1"))
    with pytest.raises(ValueError, match=r"\['A209'\] in column 20"):
        tables.read_german_credit()


def test_bank_marketing_keeps_unknown_as_a_level(folder: Path) -> None:
    write(folder / "bank_marketing/bank-full.csv.gz", BANK)
    table = tables.read_bank_marketing()
    assert levels(table, "education") == ["tertiary", "unknown"]
    np.testing.assert_array_equal(table.features["balance"], [2143, -29])
    assert table.target.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "header"),
    [("covtype.csv.xz", "Elevation,Aspect,and so on\n"), ("covtype.data.gz", "")],
)
def test_covertype_reads_indicators_back_into_categories(
    folder: Path, name: str, header: str
) -> None:
    rows = [
        covertype_row(area=0, soil=28, kind=5),
        covertype_row(area=3, soil=0, kind=1, elevation=3000),
    ]
    write(folder / "covertype" / name, header + "\n".join(rows) + "\n")
    table = tables.read_covertype()
    assert levels(table, "Wilderness_Area") == ["Rawah", "Cache la Poudre"]
    assert levels(table, "Soil_Type") == ["29", "1"]
    np.testing.assert_array_equal(table.features["Elevation"], [2596, 3000])
    assert [table.class_names[code] for code in table.target] == ["Aspen", "Spruce/Fir"]


def test_covertype_with_two_soils_in_a_row_is_refused(folder: Path) -> None:
    row = covertype_row(area=0, soil=28, kind=5).split(",")
    row[14] = "1"
    write(folder / "covertype/covtype.data", ",".join(row))
    with pytest.raises(ValueError, match="Soil_Type"):
        tables.read_covertype()


def test_california_housing_has_the_features_of_scikit_learn(folder: Path) -> None:
    write(folder / "california_housing/cal_housing.data.gz", CALIFORNIA)
    table = tables.read_california_housing()
    # The first row of scikit-learn's own table.
    expected = {"MedInc": 8.3252, "HouseAge": 41.0, "AveRooms": 6.98412698, "AveBedrms": 1.02380952,
                "Population": 322.0, "AveOccup": 2.55555556, "Latitude": 37.88, "Longitude": -122.23}  # fmt: skip
    assert table.features.iloc[0].to_dict() == pytest.approx(expected)
    assert table.target[0] == pytest.approx(4.526)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table with a gap in a number, a gap in a category, and a level that only one row has."""
    rng = np.random.default_rng(0)
    amount = rng.normal(10.0, 4.0, size=40)
    amount[::7] = np.nan
    colour = rng.integers(0, 2, size=40)
    colour[::5], colour[1] = -1, 2
    colours = pd.Categorical.from_codes(colour, categories=["blue", "green", "red"])
    frame = pd.DataFrame({"amount": amount, "colour": colours, "flat": np.full(40, 3.0)})
    monkeypatch.setitem(
        tables.READERS, "made_up", lambda: Table(frame, np.arange(40) % 2, ("no", "yes"))
    )


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_prepared_numbers_do_not_change(name: str) -> None:
    skip_without_files(name)
    data = load(name, seed=3)
    found = [(np.cos(np.arange(one.size)).reshape(one.shape) * one).sum() for one in
             (data.X_train, data.X_test, data.y_train)]  # fmt: skip
    # Sums of a million terms that cancel keep nine digits of the terms.
    np.testing.assert_allclose(found, FINGERPRINTS[name], rtol=1e-8, atol=1e-8)
    assert (len(data.X_train) + len(data.X_test), len(data.column_names)) == SIZES[name]


def test_every_table_has_a_fingerprint() -> None:
    assert set(TABLES) == set(FINGERPRINTS) == set(SIZES)


@pytest.mark.parametrize("name", EMBEDDED)
def test_numbers_are_standardised_by_the_training_rows_alone(name: str) -> None:
    data = load(name)
    np.testing.assert_allclose(data.X_train.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(data.X_train.std(axis=0), 1.0)
    raw_train, raw_test = (
        np.column_stack(list(raw.values())) for raw in (data.raw_train, data.raw_test)
    )
    np.testing.assert_allclose(
        data.X_test, (raw_test - raw_train.mean(axis=0)) / raw_train.std(axis=0)
    )


def test_the_seed_decides_the_split_and_the_split_keeps_every_row_once() -> None:
    first, other = load("wine", seed=1), load("wine", seed=2)
    assert not np.array_equal(first.X_test, other.X_test)
    everything = np.sort(np.concatenate([first.raw_train["proline"], first.raw_test["proline"]]))
    np.testing.assert_array_equal(
        everything, np.sort(tables.read_embedded("wine").features["proline"])
    )


def test_groups_name_every_column_once_and_levels_after_their_feature(made_up: None) -> None:
    for seed in range(8):  # also where a rare level is in no training row
        data = load("made_up", seed=seed)
        assert data.groups == {"amount": [0], "colour": [1, 2, 3, 4], "flat": [5]}
    assert data.column_names == (
        "amount",
        "colour=blue",
        "colour=green",
        "colour=red",
        "colour=missing",
        "flat",
    )


def test_a_missing_number_becomes_the_median_of_the_training_rows(made_up: None) -> None:
    data = load("made_up", seed=4)
    gaps, median = np.isnan(data.raw_test["amount"]), np.nanmedian(data.raw_train["amount"])
    assert gaps.any()
    filled = np.where(np.isnan(data.raw_train["amount"]), median, data.raw_train["amount"])
    np.testing.assert_allclose(data.X_test[gaps, 0], (median - filled.mean()) / filled.std())


def test_a_missing_category_is_a_level_of_its_own_and_a_flat_column_is_zero(made_up: None) -> None:
    data = load("made_up")
    missing = np.array([value is None for value in data.raw_train["colour"]])
    assert missing.any()
    np.testing.assert_array_equal(data.X_train[:, 4] == 1, missing)
    np.testing.assert_array_equal(data.X_train[:, 1:5].sum(axis=1), 1.0)
    assert not data.X_train[:, 5].any()


def test_test_rows_with_a_level_of_their_own_are_found(made_up: None) -> None:
    seeds = [load("made_up", seed=seed) for seed in range(12)]
    assert 0 < sum("red" in data.raw_test["colour"] for data in seeds) < 12
    for data in seeds:
        np.testing.assert_array_equal(data.unseen_levels(), data.raw_test["colour"] == "red")


def test_rows_are_drawn_before_splitting(made_up: None) -> None:
    assert len(load("made_up", rows=20).X_train) == 16
    assert len(load("made_up", rows="all").X_train) == 32
    with pytest.raises(ValueError, match="rows is 41"):
        load("made_up", rows=41)


# ---------------------------------------------------------------------- images


def picture(
    colour: tuple[int, int, int], size: tuple[int, int] = (6, 4), mode: str = "RGB"
) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).convert(mode).save(buffer, format="PNG")
    return buffer.getvalue()


def write_tar(path: Path, content: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in content.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


IMAGENETTE = {
    "imagenette2/train/n01440764/a.JPEG": picture((255, 0, 0)),
    "imagenette2/train/n03888257/b.JPEG": picture((0, 255, 0)),
    "imagenette2/val/n03888257/c.JPEG": picture((0, 0, 255), size=(9, 4)),
    "imagenette2/val/n03888257/grey.JPEG": picture((7, 7, 7), mode="L"),
    "imagenette2/noisy.csv": b"not an image",
}


def test_cifar10_in_sheets_has_one_image_a_row(folder: Path) -> None:
    pixels = RNG.integers(0, 256, size=(3, 32, 32, 3), dtype=np.uint8)
    (folder / "cifar10").mkdir()
    Image.fromarray(pixels.reshape(3, 1024, 3)).save(folder / "cifar10/test_batch.png")
    (folder / "cifar10/test_labels.json").write_text(json.dumps([3, 0, 9]))
    images = load_images("cifar10")
    floats, label = images[1]
    assert (floats.dtype, floats.shape, images.class_names[label]) == (
        np.float32,
        (3, 32, 32),
        "airplane",
    )
    np.testing.assert_allclose(floats, pixels[1].transpose(2, 0, 1) / 255, rtol=1e-6)
    (folder / "cifar10/test_labels.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"test_batch.png has 3 images but test_labels.json"):
        load_images("cifar10")


@pytest.mark.parametrize("unpacked", [False, True])
def test_imagenette_is_read_from_its_archive_and_from_folders(folder: Path, unpacked: bool) -> None:
    if unpacked:
        for name, data in IMAGENETTE.items():
            write(folder / "imagenette" / name.removeprefix("imagenette2/"), data)
    else:
        write_tar(folder / "imagenette/imagenette.tar", IMAGENETTE)
    images = load_images("imagenette")
    assert (images.class_ids, images.class_names) == (
        ("n01440764", "n03888257"),
        ("tench", "parachute"),
    )
    np.testing.assert_array_equal(images.labels, [1, 1])
    assert images.pixels(0).shape == (4, 9, 3)
    assert images.pixels(1)[0, 0].tolist() == [7, 7, 7]
    assert len(load_images("imagenette", split="train")) == 2


def test_tiny_imagenet_as_published_names_its_held_out_classes_in_a_list(folder: Path) -> None:
    content = {
        "tiny-imagenet-200/words.txt": b"n01\tgoldfish, Carassius\nn02\tbullfrog\n",
        "tiny-imagenet-200/train/n01/images/n01_0.JPEG": picture((1, 1, 1)),
        "tiny-imagenet-200/train/n02/images/n02_0.JPEG": picture((2, 2, 2)),
        "tiny-imagenet-200/val/images/val_0.JPEG": picture((3, 3, 3)),
        "tiny-imagenet-200/val/val_annotations.txt": b"val_0.JPEG\tn02\t0\t0\t9\t9\n",
        "tiny-imagenet-200/test/images/test_0.JPEG": picture((4, 4, 4)),
    }
    write_tar(folder / "tiny_imagenet/tiny_imagenet.tar", content)
    held_out, training = load_images("tiny_imagenet"), load_images("tiny_imagenet", split="train")
    assert held_out.class_names == training.class_names == ("goldfish", "bullfrog")
    assert (held_out.labels.tolist(), training.labels.tolist()) == ([1], [0, 1])
    assert held_out.pixels(0)[0, 0].tolist() == [3, 3, 3]


def test_classes_without_held_out_images_keep_their_codes(folder: Path) -> None:
    one = picture((1, 1, 1))
    content = {"h/train/mel/a.jpg": one, "h/train/bcc/b.jpg": one, "h/val/mel/c.jpg": one}
    write_tar(folder / "ham10000/ham10000.tar", content)
    images = load_images("ham10000")
    assert (images.class_names[images.labels[0]], images.labels[0]) == ("melanoma", 1)


def test_a_size_keeps_the_middle_of_the_image(folder: Path) -> None:
    stripes = np.zeros((10, 30, 3), dtype=np.uint8)
    stripes[:, 10:20] = 255
    buffer = io.BytesIO()
    Image.fromarray(stripes).save(buffer, format="PNG")
    write_tar(folder / "ham10000/ham10000.tar", {"ham10000/val/mel/a.jpg": buffer.getvalue()})
    assert (load_images("ham10000", size=10).pixels(0) == 255).all()
    assert load_images("ham10000", size=20).pixels(0).shape == (20, 20, 3)


def test_subsets_loaders_and_workers_keep_images_and_labels_together(folder: Path) -> None:
    from torch.utils.data import DataLoader

    write_tar(folder / "imagenette/imagenette.tar", IMAGENETTE)
    with pytest.raises(ValueError, match="different sizes"):
        load_images("imagenette").array()
    images = load_images("imagenette", split="train", size=8)
    swapped = images.subset([1, 0])
    assert swapped.labels.tolist() == [1, 0]
    np.testing.assert_array_equal(swapped.pixels(0), images.pixels(1))
    [(batch, labels)] = list(DataLoader(swapped, batch_size=2))  # type: ignore[arg-type]
    np.testing.assert_array_equal(batch.numpy(), swapped.array())
    assert labels.tolist() == [1, 0]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(images)).pixels(0), images.pixels(0))  # noqa: S301


@pytest.mark.parametrize("options", [{"name": "cifar-10"}, {"name": "cifar10", "split": "test"}])
def test_what_is_not_there_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"known are|'train' or 'val'"):
        load_images(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PREPARED)
def test_prepared_files_have_the_sizes_they_should(name: str) -> None:
    skip_without_files(name)
    images = load_images(name)
    assert (len(images), len(images.class_names)) == PREPARED[name]
    assert len(np.unique(images.labels)) == PREPARED[name][1]
