"""Where files come from: NOBSP_DATA first, then the cache, then a checked download, and clear words offline."""

import gzip
import hashlib
import http.client
import io
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import pytest

from nobsp.datasets import cache_folder, load
from nobsp.datasets.files import Source, locate, opened

CONTENT = b"1,2,3\n"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as box:
        for name, data in files.items():
            box.writestr(name, data)
    return buffer.getvalue()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home-cache"))
    monkeypatch.delenv("NOBSP_DATA", raising=False)
    return tmp_path / "home-cache" / "nobsp"


@pytest.fixture
def offline(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    return cache


def published(tmp_path: Path, data: bytes) -> str:
    """A URL that gives `data`, without a network."""
    file = tmp_path / "published"
    file.write_bytes(data)
    return file.as_uri()


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_the_named_folder_comes_before_the_cache(
    offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = put(offline / "toy/toy.csv", b"cached")
    source = Source(("toy/toy.csv",), url="https://example.org/toy.csv")
    assert locate(source) == cached
    given = put(tmp_path / "mine/toy/toy.csv.gz", gzip.compress(b"given"))
    monkeypatch.setenv("NOBSP_DATA", str(tmp_path / "mine"))
    assert locate(source) == given
    with opened(given) as file:
        assert file.read() == b"given"


def test_the_cache_serves_what_the_named_folder_lacks(
    offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = put(offline / "toy/toy.csv", b"cached")
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("NOBSP_DATA", str(tmp_path / "mine"))
    assert locate(Source(("toy/toy.csv",), url="https://example.org/toy.csv")) == cached


def test_a_named_folder_that_does_not_exist_is_an_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOBSP_DATA", "/no/such/folder")
    with pytest.raises(FileNotFoundError, match="NOBSP_DATA is '/no/such/folder', which is not a folder"):
        locate(Source(("toy/toy.csv",), url="https://example.org/toy.csv"))


@pytest.mark.parametrize("name", ["adult", "german_credit", "bank_marketing", "covertype", "california_housing"])
def test_offline_says_which_file_to_put_where(offline: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        load(name)
    said = str(caught.value)
    assert f"{name}/" in said
    assert str(offline / name) in said
    assert "NOBSP_DATA" in said
    assert "no route to host" in said
    assert not list(offline.rglob("*.*")), "nothing may be left behind"


def test_a_connection_that_breaks_off_is_offline_too(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang_up(*args: Any, **kwargs: Any) -> None:
        raise http.client.IncompleteRead(b"half")

    monkeypatch.setattr(urllib.request, "urlopen", hang_up)
    with pytest.raises(FileNotFoundError, match="get the file elsewhere"):
        locate(Source(("toy/toy.csv",), url="https://example.org/toy.csv"))


def test_a_download_is_checked_kept_and_not_repeated(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(("toy/toy.csv",), url=published(tmp_path, CONTENT), sha256=sha256(CONTENT))
    assert locate(source) == cache / "toy/toy.csv"
    assert (cache / "toy/toy.csv").read_bytes() == CONTENT
    (tmp_path / "published").unlink()
    assert locate(source) == cache / "toy/toy.csv"


def test_a_download_with_another_checksum_is_refused_and_not_kept(cache: Path, tmp_path: Path) -> None:
    source = Source(("toy/toy.csv",), url=published(tmp_path, b"tampered"), sha256=sha256(CONTENT))
    with pytest.raises(ValueError, match=sha256(b"tampered")):
        locate(source)
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_the_archive_can_be_what_the_checksum_is_of(cache: Path, tmp_path: Path) -> None:
    archive = zipped({"toy.csv": CONTENT})
    url = published(tmp_path, archive)
    locate(Source(("toy/toy.csv",), url=url, member=("toy.csv",), archive_sha256=sha256(archive)))
    with pytest.raises(ValueError, match="sha256"):
        locate(Source(("toy/other.csv",), url=url, member=("toy.csv",), archive_sha256=sha256(CONTENT)))


def test_members_are_taken_out_of_archives_inside_archives(cache: Path, tmp_path: Path) -> None:
    inner = zipped({"deep/toy.csv": CONTENT, "deep/other.csv": b"other"})
    url = published(tmp_path, zipped({"inner.zip": inner, "readme.txt": b"hello"}))
    source = Source(("toy/toy.csv",), url=url, member=("inner.zip", "toy.csv"), sha256=sha256(CONTENT))
    assert locate(source).read_bytes() == CONTENT


def test_members_are_taken_out_of_tar_files(cache: Path, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tape:
        entry = tarfile.TarInfo("Folder/toy.csv")
        entry.size = len(CONTENT)
        tape.addfile(entry, io.BytesIO(CONTENT))
    source = Source(("toy/toy.csv",), url=published(tmp_path, buffer.getvalue()), member=("toy.csv",))
    assert locate(source).read_bytes() == CONTENT


@pytest.mark.parametrize("answer", [b"<html>please log in</html>", zipped({"something.txt": b"else"})])
def test_an_answer_that_is_not_the_archive_is_refused(cache: Path, tmp_path: Path, answer: bytes) -> None:
    source = Source(("toy/toy.csv",), url=published(tmp_path, answer), member=("toy.csv",))
    with pytest.raises(ValueError, match=r"is not an archive with toy\.csv in it"):
        locate(source)
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_file_without_a_url_comes_with_instructions(cache: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"toy/toy\.csv is not in .* Ask for it at the desk"):
        locate(Source(("toy/toy.csv",), by_hand="Ask for it at the desk."))


@pytest.mark.parametrize(
    ("platform", "expected"),
    [("linux", ".cache/nobsp"), ("darwin", "Library/Caches/nobsp"), ("win32", "local/nobsp")],
)
def test_the_cache_is_where_the_platform_has_it(
    platform: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder() == tmp_path / expected
