"""Image sets, read from a few images written in each format."""

import builtins
import io
import json
import os
import pickle
import tarfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nobsp.datasets import IMAGE_SETS, load_images

RNG = np.random.default_rng(0)
# Rows and classes of the published or prepared files.
PREPARED = {"cifar10": (10_000, 10), "imagenette": (1_800, 10), "tiny_imagenet": (2_000, 200), "ham10000": (281, 7)}


def skip_without_files(name: str) -> None:
    """Files that are too large to ship are looked at where they are."""
    given = os.environ.get("NOBSP_DATA")
    if not given or not (Path(given) / name).is_dir():
        pytest.skip(f"no folder {name} in NOBSP_DATA")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NOBSP_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def picture(colour: tuple[int, int, int], size: tuple[int, int] = (6, 4), mode: str = "RGB") -> bytes:
    """A PNG of one colour, `size` wide and high."""
    image = pytest.importorskip("PIL.Image").new("RGB", size, colour).convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_tar(path: Path, files: dict[str, bytes], mode: str = "w") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as tape:  # type: ignore[call-overload]
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tape.addfile(entry, io.BytesIO(data))


def test_cifar10_in_sheets_has_one_image_a_row(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = RNG.integers(0, 256, size=(3, 32, 32, 3), dtype=np.uint8)
    (folder / "cifar10").mkdir()
    image.fromarray(pixels.reshape(3, 1024, 3)).save(folder / "cifar10/test_batch.png")
    (folder / "cifar10/test_labels.json").write_text(json.dumps([3, 0, 9]))
    images = load_images("cifar10")
    np.testing.assert_array_equal(images.labels, [3, 0, 9])
    np.testing.assert_array_equal(images.pixels(1), pixels[1])
    floats, label = images[1]
    assert (floats.dtype, floats.shape, images.class_names[label]) == (np.float32, (3, 32, 32), "airplane")
    np.testing.assert_allclose(floats, pixels[1].transpose(2, 0, 1) / 255, rtol=1e-6)


def test_cifar10_sheets_and_labels_of_different_lengths_are_refused(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (folder / "cifar10").mkdir()
    image.fromarray(np.zeros((2, 1024, 3), dtype=np.uint8)).save(folder / "cifar10/test_batch.png")
    (folder / "cifar10/test_labels.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"test_batch.png has 2 images but test_labels.json"):
        load_images("cifar10")


@pytest.mark.parametrize(
    ("name", "archive", "member", "label_bytes"),
    [
        ("cifar10", "cifar-10-binary.tar.gz", "test_batch.bin", 1),
        ("cifar100", "cifar-100-binary.tar.gz", "test.bin", 2),
    ],
)
def test_cifar_s_binary_rows_hold_labels_and_planes(
    folder: Path, name: str, archive: str, member: str, label_bytes: int
) -> None:
    pixels = RNG.integers(0, 256, size=(2, 32, 32, 3), dtype=np.uint8)
    # Coarse labels, where there are any, come first.
    rows = [bytes([7, 1 + k][-label_bytes:]) + pixels[k].transpose(2, 0, 1).tobytes() for k in range(2)]
    write_tar(
        folder / name / archive,
        {f"bin/{member}": b"".join(rows), "bin/fine_label_names.txt": b"apple\nbear\nbee\n"},
        "w:gz",
    )
    images = load_images(name)
    np.testing.assert_array_equal(images.labels, [1, 2])
    np.testing.assert_array_equal(images.pixels(1), pixels[1])
    assert images.class_names[:2] == (("apple", "bear") if name == "cifar100" else ("airplane", "automobile"))


def test_a_cifar_file_cut_short_is_refused(folder: Path) -> None:
    write_tar(folder / "cifar10/cifar-10-binary.tar.gz", {"test_batch.bin": b"12345"}, "w:gz")
    with pytest.raises(ValueError, match="5 bytes, which is no multiple of 3073"):
        load_images("cifar10")


def test_an_archive_without_the_split_is_refused(folder: Path) -> None:
    write_tar(folder / "cifar100/cifar-100-binary.tar.gz", {"test.bin": b"12345"}, "w:gz")
    with pytest.raises(ValueError, match=r"has no train.bin, fine_label_names.txt"):
        load_images("cifar100", split="train")


def test_stl10_is_stored_column_by_column_and_counts_from_one(folder: Path) -> None:
    pixels = RNG.integers(0, 256, size=(2, 96, 96, 3), dtype=np.uint8)
    stored = pixels.transpose(0, 3, 2, 1).tobytes()
    members = {"test_X.bin": stored, "test_y.bin": bytes([2, 1]), "class_names.txt": b"airplane\nbird\n"}
    write_tar(folder / "stl10/stl10_binary.tar.gz", members, "w:gz")
    images = load_images("stl10")
    np.testing.assert_array_equal(images.pixels(0), pixels[0])
    assert [images.class_names[label] for label in images.labels] == ["bird", "airplane"]


def test_dermamnist_is_a_file_of_arrays(folder: Path) -> None:
    pixels = RNG.integers(0, 256, size=(2, 28, 28, 3), dtype=np.uint8)
    (folder / "dermamnist").mkdir()
    np.savez(folder / "dermamnist/dermamnist.npz", val_images=pixels, val_labels=np.array([[4], [5]], dtype=np.uint8))
    images = load_images("dermamnist")
    assert [images.class_names[label] for label in images.labels] == ["melanoma", "melanocytic nevi"]
    np.testing.assert_array_equal(images.pixels(1), pixels[1])


def imagenette_files() -> dict[str, bytes]:
    return {
        "imagenette2/train/n01440764/a.JPEG": picture((255, 0, 0)),
        "imagenette2/train/n03888257/b.JPEG": picture((0, 255, 0)),
        "imagenette2/val/n03888257/c.JPEG": picture((0, 0, 255), size=(9, 4)),
        "imagenette2/val/n03888257/grey.JPEG": picture((7, 7, 7), mode="L"),
        "imagenette2/noisy.csv": b"not an image",
    }


def test_imagenette_is_read_from_its_archive(folder: Path) -> None:
    write_tar(folder / "imagenette/imagenette.tar", imagenette_files())
    images = load_images("imagenette")
    assert images.class_ids == ("n01440764", "n03888257")
    assert images.class_names == ("tench", "parachute")
    np.testing.assert_array_equal(images.labels, [1, 1])
    assert images.pixels(0).shape == (4, 9, 3)
    assert images.pixels(0)[0, 0].tolist() == [0, 0, 255]
    assert images.pixels(1)[0, 0].tolist() == [7, 7, 7]
    assert len(load_images("imagenette", split="train")) == 2


def test_unpacked_folders_are_read_as_well(folder: Path) -> None:
    for name, data in imagenette_files().items():
        write(folder / "imagenette" / name.removeprefix("imagenette2/"), data)
    np.testing.assert_array_equal(load_images("imagenette", split="train").labels, [0, 1])


def test_a_download_that_is_compressed_is_kept_so_that_single_images_can_be_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    from nobsp.datasets import pictures

    published = folder / "published.tgz"
    write_tar(published, imagenette_files(), "w:gz")
    source = dataclasses.replace(pictures._IMAGENETTE, url=published.as_uri(), archive_sha256="")
    monkeypatch.setattr(pictures, "_IMAGENETTE", source)
    assert load_images("imagenette").pixels(0).shape == (4, 9, 3)
    assert (folder / "cache/nobsp/imagenette/imagenette.tar").is_file()


def test_tiny_imagenet_as_published_names_its_held_out_classes_in_a_list(folder: Path) -> None:
    files = {
        "tiny-imagenet-200/words.txt": b"n01\tgoldfish, Carassius\nn02\tbullfrog\n",
        "tiny-imagenet-200/train/n01/images/n01_0.JPEG": picture((1, 1, 1)),
        "tiny-imagenet-200/train/n02/images/n02_0.JPEG": picture((2, 2, 2)),
        "tiny-imagenet-200/val/images/val_0.JPEG": picture((3, 3, 3)),
        "tiny-imagenet-200/val/val_annotations.txt": b"val_0.JPEG\tn02\t0\t0\t9\t9\n",
        "tiny-imagenet-200/test/images/test_0.JPEG": picture((4, 4, 4)),
    }
    (folder / "tiny_imagenet").mkdir()
    with zipfile.ZipFile(folder / "tiny_imagenet/tiny-imagenet-200.zip", "w") as box:
        for name, data in files.items():
            box.writestr(name, data)
    held_out, training = load_images("tiny_imagenet"), load_images("tiny_imagenet", split="train")
    assert held_out.class_names == training.class_names == ("goldfish", "bullfrog")
    np.testing.assert_array_equal(held_out.labels, [1])
    np.testing.assert_array_equal(training.labels, [0, 1])
    assert held_out.pixels(0)[0, 0].tolist() == [3, 3, 3]


def test_classes_without_held_out_images_keep_their_codes(folder: Path) -> None:
    write_tar(folder / "ham10000/ham10000.tar", {
        "ham10000/train/mel/a.jpg": picture((1, 1, 1)), "ham10000/train/bcc/b.jpg": picture((1, 1, 1)),
        "ham10000/val/mel/c.jpg": picture((1, 1, 1)),
    })  # fmt: skip
    images = load_images("ham10000")
    assert images.class_names[images.labels[0]] == "melanoma"
    assert images.labels[0] == 1


def test_a_size_keeps_the_middle_of_the_image(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    stripes = np.zeros((10, 30, 3), dtype=np.uint8)
    stripes[:, 10:20] = 255
    buffer = io.BytesIO()
    image.fromarray(stripes).save(buffer, format="PNG")
    write_tar(folder / "ham10000/ham10000.tar", {"ham10000/val/mel/a.jpg": buffer.getvalue()})
    assert (load_images("ham10000", size=10).pixels(0) == 255).all()
    assert load_images("ham10000", size=20).pixels(0).shape == (20, 20, 3)


def test_all_images_at_once_need_one_size(folder: Path) -> None:
    write_tar(folder / "imagenette/imagenette.tar", imagenette_files())
    with pytest.raises(ValueError, match="different sizes"):
        load_images("imagenette").array()
    assert load_images("imagenette", size=8).array().shape == (2, 3, 8, 8)


def test_subsets_keep_images_and_labels_together(folder: Path) -> None:
    write_tar(folder / "imagenette/imagenette.tar", imagenette_files())
    images = load_images("imagenette", split="train")
    swapped = images.subset([1, 0])
    np.testing.assert_array_equal(swapped.labels, [1, 0])
    np.testing.assert_array_equal(swapped.pixels(0), images.pixels(1))
    with pytest.raises(ValueError, match="some of 0 to 1"):
        images.subset([2])


def test_loaders_and_their_workers_take_the_images(folder: Path) -> None:
    from torch.utils.data import DataLoader

    write_tar(folder / "imagenette/imagenette.tar", imagenette_files())
    images = load_images("imagenette", size=8)
    [(batch, labels)] = list(DataLoader(images, batch_size=2))  # type: ignore[arg-type]
    assert batch.shape == (2, 3, 8, 8)
    assert labels.tolist() == [1, 1]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(images)).pixels(0), images.pixels(0))  # noqa: S301
    assert len(list(images)) == 2
    with pytest.raises(IndexError, match="there are 2 images"):
        images[2]


@pytest.mark.parametrize("name", IMAGE_SETS)
def test_offline_says_which_file_to_put_where(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(FileNotFoundError) as caught:
        load_images(name)
    assert f"{name}/" in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_missing_pillow_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tar(folder / "imagenette/imagenette.tar", {"imagenette2/val/n01440764/a.JPEG": b"never decoded"})
    load = builtins.__import__

    def without_pillow(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "PIL":
            raise ImportError(name)
        return load(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(ImportError, match="pip install pillow"):
        load_images("imagenette")


def test_an_archive_without_images_is_refused(folder: Path) -> None:
    write_tar(folder / "ham10000/ham10000.tar", {"ham10000/readme.txt": b"hello"})
    with pytest.raises(ValueError, match="no images below val/"):
        load_images("ham10000")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "cifar-10"}, "did you mean 'cifar10'"),
        ({"name": "cifar10", "split": "test"}, "'train' or 'val', found 'test'"),
        ({"name": "cifar10", "size": 0}, "size is 0"),
    ],
)
def test_what_is_not_there_is_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_images(**arguments)


@pytest.mark.parametrize("name", PREPARED)
def test_prepared_files_have_the_sizes_they_should(name: str) -> None:
    skip_without_files(name)
    images = load_images(name)
    assert (len(images), len(images.class_names)) == PREPARED[name]
    assert len(np.unique(images.labels)) == PREPARED[name][1]
    assert images[0][0].shape[0] == 3
