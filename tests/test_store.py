"""Files are whole or not there, say what they are, and are read without running anything in them."""

import json
import os
import pickle
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from nobsp import store


def saved(path, *, kind="thing", version=1, about=None):
    store.save(path, kind=kind, version=version, tensors={"a": torch.arange(3)}, about=about or {"n": 1})
    return path


def test_what_is_saved_comes_back(tmp_path):
    about = {"names": ["α", "b"], "n": 1.5, "nothing": None}
    tensors = {"a": torch.randn(3, 2, dtype=torch.float64).T, "empty": torch.zeros(0, 3)}
    store.save(tmp_path / "file", kind="thing", version=2, tensors=tensors, about=about)
    found, said = store.load(tmp_path / "file", kind="thing", version=2)
    assert said == about
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) and found[name].dtype == tensors[name].dtype for name in tensors)


def test_it_is_one_safetensors_file_that_others_can_open(tmp_path):
    saved(tmp_path / "file")
    assert torch.equal(load_file(tmp_path / "file")["a"], torch.arange(3))
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_strings_and_paths_are_both_paths(tmp_path):
    store.load(str(saved(str(tmp_path / "file"))), kind="thing", version=1)


@pytest.mark.parametrize("failing", ["save_file", "replace"])
def test_a_failed_save_leaves_the_old_file_and_no_crumbs(tmp_path, monkeypatch, failing):
    path = saved(tmp_path / "file")
    before = path.read_bytes()

    def fail(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(*((store, "save_file") if failing == "save_file" else (os, "replace")), fail)
    with pytest.raises(OSError, match="no space left"):
        saved(path, about={"n": 2})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_an_unwritable_description_leaves_the_old_file(tmp_path):
    path = saved(tmp_path / "file")
    before = path.read_bytes()
    with pytest.raises(TypeError, match="not JSON serializable"):
        saved(path, about={"n": object()})
    assert path.read_bytes() == before


@pytest.mark.skipif(os.name != "posix", reason="permission bits")
def test_files_can_be_read_by_whom_the_umask_allows(tmp_path):
    umask = os.umask(0o022)
    try:
        path = saved(tmp_path / "file")
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        path.chmod(0o640)
        saved(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    finally:
        os.umask(umask)


def test_wrong_places_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"path is in .*nowhere.*not a folder; create it first"):
        saved(tmp_path / "nowhere" / "file")
    with pytest.raises(IsADirectoryError, match="is a folder; pass the name of a file"):
        saved(tmp_path)
    with pytest.raises(FileNotFoundError, match="is not a file"):
        store.load(tmp_path / "missing", kind="thing", version=1)
    with pytest.raises(FileNotFoundError, match="is not a file"):
        store.load(tmp_path, kind="thing", version=1)


def test_other_kinds_and_versions_are_refused(tmp_path):
    path = saved(tmp_path / "file", kind="map", version=3)
    with pytest.raises(ValueError, match="does not hold a nobsp thing but map"):
        store.load(path, kind="thing", version=3)
    with pytest.raises(ValueError, match="layout version 3, but this nobsp reads version 1"):
        store.load(path, kind="map", version=1)


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "file"
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="does not hold a nobsp thing but something else"):
        store.load(path, kind="thing", version=1)
    save_file({"a": torch.zeros(2)}, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="does not hold a nobsp thing"):
        store.load(path, kind="thing", version=1)


class Boom:
    def __reduce__(self):
        return (pytest.fail, ("the pickle was run",))


@pytest.mark.parametrize(
    "content",
    [b"", b"text", pickle.dumps(Boom()), json.dumps({"a": 1}).encode()],
    ids=["empty", "text", "pickle", "json"],
)
def test_files_of_other_formats_are_refused_and_never_run(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged or no safetensors file"):
        store.load(path, kind="thing", version=1)


@pytest.mark.parametrize("kept", [4, 40, -1])
def test_a_truncated_file_is_damaged(tmp_path, kept):
    path = saved(tmp_path / "file")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match="is damaged or no safetensors file"):
        store.load(path, kind="thing", version=1)


@pytest.mark.parametrize("words", [{}, {"about": "{'n': 1}"}, {"about": ""}], ids=["missing", "no json", "empty"])
def test_a_description_that_cannot_be_read_is_damage(tmp_path, words):
    path = tmp_path / "file"
    save_file({"a": torch.zeros(2)}, path, metadata={"format": "nobsp", "kind": "thing", "version": "1", **words})
    with pytest.raises(ValueError, match=r"path .*file' is damaged: its description cannot be read"):
        store.load(path, kind="thing", version=1)


def test_saving_never_touches_the_umask_of_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the umask is shared by all threads"))
    saved(tmp_path / "file")
    saved(tmp_path / "file")


def test_no_source_file_speaks_pickle():
    words = ("import pickle", "pickle.load", "torch.load", "torch.save", "joblib", "cloudpickle", "allow_pickle=True")
    room = Path(store.__file__).parent
    # These meet other people's files: they tell pickles by their looks, and read one only where it was trusted.
    reads_models = {room / "network" / "exported.py", room / "cli" / "models.py", room / "network" / "on_ray.py"}
    for path in set(room.rglob("*.py")) - reads_models:
        text = path.read_text(encoding="utf-8")
        assert not [word for word in words if word in text], path
