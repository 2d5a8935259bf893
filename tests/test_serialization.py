"""Files are whole or not there, say what they are, and are read without running anything in them."""

import dataclasses
import json
import math
import os
import pickle
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import load_file, save_file

from nobsp import drafts, serialization
from nobsp.projection import Moments
from tests.processes import end_of, run_python, started


def saved(path, *, kind="thing", version=1, about=None):
    serialization.write(
        path, kind=kind, version=version, tensors={"a": torch.arange(3)}, about=about or {"n": 1}
    )
    return path


def test_what_is_saved_comes_back(tmp_path):
    about = {"names": ["α", "b"], "n": 1.5, "nothing": None}
    tensors = {"a": torch.randn(3, 2, dtype=torch.float64).T, "empty": torch.zeros(0, 3)}
    serialization.write(tmp_path / "file", kind="thing", version=2, tensors=tensors, about=about)
    found, said = serialization.read(tmp_path / "file", kind="thing", version=2)
    assert said == about
    assert found.keys() == tensors.keys()
    assert all(
        torch.equal(found[name], tensors[name]) and found[name].dtype == tensors[name].dtype
        for name in tensors
    )


def test_it_is_one_safetensors_file_that_others_can_open(tmp_path):
    saved(tmp_path / "file")
    assert torch.equal(load_file(tmp_path / "file")["a"], torch.arange(3))
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_strings_and_paths_are_both_paths(tmp_path):
    serialization.read(str(saved(str(tmp_path / "file"))), kind="thing", version=1)


@pytest.mark.parametrize("failing", ["save_file", "replace"])
def test_a_failed_save_leaves_the_old_file_and_no_crumbs(tmp_path, monkeypatch, failing):
    path = saved(tmp_path / "file")
    before = path.read_bytes()

    def fail(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(
        *((serialization, "save_file") if failing == "save_file" else (os, "replace")), fail
    )
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
    with pytest.raises(
        FileNotFoundError, match=r"path is in .*nowhere.*not a folder; create it first"
    ):
        saved(tmp_path / "nowhere" / "file")
    with pytest.raises(IsADirectoryError, match="is a folder; pass the name of a file"):
        saved(tmp_path)
    with pytest.raises(FileNotFoundError, match="is not a file"):
        serialization.read(tmp_path / "missing", kind="thing", version=1)
    with pytest.raises(FileNotFoundError, match="is not a file"):
        serialization.read(tmp_path, kind="thing", version=1)


def test_other_kinds_and_versions_are_refused(tmp_path):
    path = saved(tmp_path / "file", kind="map", version=3)
    with pytest.raises(ValueError, match="does not hold a nobsp thing but map"):
        serialization.read(path, kind="thing", version=3)
    with pytest.raises(ValueError, match="layout version 3, but this nobsp reads version 1"):
        serialization.read(path, kind="map", version=1)


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "file"
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="does not hold a nobsp thing but something else"):
        serialization.read(path, kind="thing", version=1)
    save_file({"a": torch.zeros(2)}, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="does not hold a nobsp thing"):
        serialization.read(path, kind="thing", version=1)


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
        serialization.read(path, kind="thing", version=1)


@pytest.mark.parametrize("kept", [4, 40, -1])
def test_a_truncated_file_is_damaged(tmp_path, kept):
    path = saved(tmp_path / "file")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match="is damaged or no safetensors file"):
        serialization.read(path, kind="thing", version=1)


@pytest.mark.parametrize(
    "words", [{}, {"about": "{'n': 1}"}, {"about": ""}], ids=["missing", "no json", "empty"]
)
def test_a_description_that_cannot_be_read_is_damage(tmp_path, words):
    path = tmp_path / "file"
    save_file(
        {"a": torch.zeros(2)},
        path,
        metadata={"format": "nobsp", "kind": "thing", "version": "1", **words},
    )
    with pytest.raises(
        ValueError, match=r"path .*file' is damaged: its description cannot be read"
    ):
        serialization.read(path, kind="thing", version=1)


def test_saving_never_touches_the_umask_of_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the umask is shared by all threads"))
    saved(tmp_path / "file")
    saved(tmp_path / "file")


def test_no_source_file_speaks_pickle():
    words = (
        "import pickle",
        "pickle.load",
        "torch.load",
        "torch.save",
        "joblib",
        "cloudpickle",
        "allow_pickle=True",
    )
    room = Path(serialization.__file__).parent
    # These meet other people's files: they tell pickles by their looks, and read one only where it was trusted.
    reads_models = {
        room / "network" / "exported.py",
        room / "cli" / "inputs.py",
        room / "calibration" / "ray.py",
        room / "models" / "estimators.py",  # a hash of the model, which nothing is read from
    }
    for path in set(room.rglob("*.py")) - reads_models:
        text = path.read_text(encoding="utf-8")
        assert not [word for word in words if word in text], path


# ---------------------------------------------------------------------- whole values


@dataclasses.dataclass(frozen=True, eq=False)
class Leaf:
    name: str
    values: Any = None


@dataclasses.dataclass(eq=False)
class Branch:
    parts: dict[Any, Any]
    leaf: Leaf | None = None
    derived: int = dataclasses.field(default=7, init=False)


CLASSES = (Leaf, Branch)


def through_a_file(value: Any, path: Path, classes: Any = CLASSES) -> Any:
    serialization.save(path, value, kind="thing", version=1)
    return serialization.load(path, kind="thing", version=1, classes=classes)


def same(a: Any, b: Any) -> bool:
    """Equal in type, structure and every bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return (
            a.dtype == b.dtype
            and a.shape == b.shape
            and same(a.contiguous().numpy(), b.contiguous().numpy())
        )
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (
            math.isnan(a) and math.isnan(b)
        )
    if isinstance(a, Moments):
        return a.blocks == b.blocks and same(a.state(), b.state())
    if dataclasses.is_dataclass(a):
        return same(vars(a), vars(b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(
            same(x, y) for x, y in zip(a.values(), b.values(), strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


DTYPES = st.sampled_from(["bool", "int8", "int64", "uint8", "float16", "float32", "float64"])
ARRAYS = DTYPES.flatmap(
    lambda kind: hnp.arrays(kind, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
KEYS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(max_size=5),
    st.tuples(st.integers(), st.text()),
)
PLAIN = st.one_of(KEYS, st.floats(), st.frozensets(KEYS, max_size=3))
LEAVES = st.one_of(PLAIN, ARRAYS, ARRAYS.map(lambda array: torch.from_numpy(array.copy())))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
        st.builds(Leaf, st.text(max_size=3), inner),
        st.builds(
            Branch,
            st.dictionaries(KEYS, inner, max_size=2),
            st.none() | st.builds(Leaf, st.text(max_size=2)),
        ),
    ),
    max_leaves=8,
)


@given(VALUES)
def test_values_come_back_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    assert same(
        through_a_file(value, tmp_path_factory.getbasetemp() / f"value-{os.getpid()}"), value
    )


@pytest.mark.parametrize("rows", [0, 1, 40])
def test_moments_come_back_and_go_on(rows: int, tmp_path: Path) -> None:
    X = torch.randn(50, 70, dtype=torch.float64)
    moments = Moments({"a": 66, "b": 4})
    if rows:
        moments.update(X[:rows])
    found = through_a_file({"m": moments}, tmp_path / "file")["m"]
    assert same(found, moments)
    assert same(found.update(X[rows:]), moments.update(X[rows:]))


def test_symmetric_products_are_stored_once(tmp_path: Path) -> None:
    moments = Moments({"a": 200}).update(torch.randn(300, 200, dtype=torch.float64))
    through_a_file(moments, tmp_path / "file")
    assert (tmp_path / "file").stat().st_size < 0.6 * 8 * 200**2


def test_tensors_that_share_memory_are_saved_one_by_one(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    value = (whole, whole[1], whole.T, torch.nn.Parameter(whole))
    found = through_a_file(value, tmp_path / "file")
    assert all(torch.equal(a, b) for a, b in zip(found, value, strict=True))
    found[0].zero_()
    assert torch.equal(found[1], whole[1])


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, np.array(["a"]), np.array([None]), 1j, Leaf, len]
)
def test_what_cannot_be_saved_is_an_error_that_leaves_no_file(value: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="cannot be saved"):
        serialization.save(tmp_path / "file", {"a": [value]}, kind="thing", version=1)
    assert not list(tmp_path.iterdir())


def test_arrays_need_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np; from nobsp import serialization as s\n"
        "s.save(sys.argv[1], {'a': (np.arange(3), 1.5)}, kind='thing', version=1)\n"
        "found = s.load(sys.argv[1], kind='thing', version=1, framework='numpy')\n"
        "assert found['a'][0].tolist() == [0, 1, 2] and 'torch' not in sys.modules"
    )
    run_python(code, tmp_path / "file")


def test_files_of_tensors_are_read_with_numpy_and_the_other_way_round(tmp_path: Path) -> None:
    value = (torch.arange(3), np.arange(2.0))
    serialization.save(tmp_path / "file", value, kind="thing", version=1)
    for framework in ("pt", "numpy"):
        assert same(
            serialization.load(tmp_path / "file", kind="thing", version=1, framework=framework),
            value,
        )


def a_description() -> tuple[Any, dict[str, Any]]:
    tensors: dict[str, Any] = {}
    moments = Moments({"a": 2}).update(torch.randn(3, 2, dtype=torch.float64))
    return serialization.pack(
        Branch({(1, "b"): moments, "t": torch.ones(2)}, Leaf("x")), tensors
    ), tensors


def places(said: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a description."""
    inner = (
        said.items()
        if isinstance(said, dict)
        else enumerate(said)
        if isinstance(said, list)
        else ()
    )
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


@pytest.mark.parametrize(
    "wrong", [None, 3, "x", [], {}, {"@class": "Branch"}, {"@tensor": "9"}, {"@dict": [[1]]}, "del"]
)
def test_a_damaged_description_gives_a_value_or_an_error_about_it(wrong: Any) -> None:
    """Whatever stands anywhere else: never anything but a ValueError."""
    for place in places(a_description()[0])[1:]:
        said, tensors = a_description()
        holder = said
        for key in place[:-1]:
            holder = holder[key]
        if wrong == "del":
            del holder[place[-1]]
        else:
            holder[place[-1]] = wrong
        try:
            serialization.unpack(said, tensors, CLASSES)
        except ValueError:
            continue


@pytest.mark.parametrize(
    "damage",
    [
        lambda said, tensors: said.update({"@class": "Other"}),
        lambda said, tensors: said["fields"].pop("leaf"),
        lambda said, tensors: said["fields"].update(more=1),
        lambda said, tensors: said.update(more=1),
        lambda said, tensors: tensors.pop("0"),
        lambda said, tensors: tensors.update(more=torch.ones(1)),
    ],
    ids=[
        "unknown class",
        "missing field",
        "extra field",
        "extra key",
        "missing tensor",
        "extra tensor",
    ],
)
def test_damage_is_told_from_another_version_by_nobody_and_said_so(
    damage: Any, tmp_path: Path
) -> None:
    said, tensors = a_description()
    damage(said, tensors)
    serialization.write(tmp_path / "file", kind="thing", version=1, tensors=tensors, about=said)
    with pytest.raises(ValueError, match="is damaged or of another version"):
        serialization.load(tmp_path / "file", kind="thing", version=1, classes=CLASSES)


@given(st.integers(0, 2**31), st.integers(1, 255))
def test_a_changed_byte_is_an_error_or_another_number(
    tmp_path_factory: pytest.TempPathFactory, place: int, change: int
) -> None:
    path = tmp_path_factory.getbasetemp() / f"byte-{os.getpid()}"
    serialization.save(path, Leaf("x", (torch.ones(3), [1.5, None])), kind="thing", version=1)
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= change
    path.write_bytes(content)
    try:
        serialization.load(path, kind="thing", version=1, classes=CLASSES)
    except ValueError:
        return


# ---------------------------------------------------------------------- promises of a save and of a load


def test_two_saves_of_the_same_have_equal_bytes(tmp_path: Path) -> None:
    first = saved(tmp_path / "first").read_bytes()
    assert saved(tmp_path / "second").read_bytes() == first


def test_a_save_through_a_link_writes_the_target_and_keeps_the_link(tmp_path: Path) -> None:
    target = saved(tmp_path / "target")
    link = tmp_path / "link"
    link.symlink_to(target)
    saved(link, about={"n": 2})
    assert link.is_symlink()
    assert serialization.read(target, kind="thing", version=1)[1] == {"n": 2}


def test_drafts_of_dead_processes_are_swept_and_others_are_not(tmp_path: Path) -> None:
    with started([sys.executable, "-c", ""]) as ended:
        end_of(ended)
    own = drafts.draft_of(tmp_path / "file")
    dead = own.with_name(own.name.replace(f"-{os.getpid()}-", f"-{ended.pid}-"))
    for draft in (own, dead):
        draft.touch()
    saved(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["file", own.name])


def test_a_changed_byte_of_a_tensor_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "file")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="checksum"):
        serialization.read(path, kind="thing", version=1)


def test_a_file_of_the_library_without_a_checksum_is_read(tmp_path: Path) -> None:
    metadata = {"format": "nobsp", "kind": "thing", "version": "1", "about": "{}"}
    save_file({"a": torch.arange(3)}, tmp_path / "file", metadata=metadata)
    tensors, _ = serialization.read(tmp_path / "file", kind="thing", version=1)
    assert torch.equal(tensors["a"], torch.arange(3))


@pytest.mark.parametrize("columns", [1 << 40, -1])
def test_moments_of_impossible_sizes_take_no_memory(columns: int) -> None:
    said = serialization.pack(Moments({"a": 2}), {})
    said["@moments"]["@tuple"][0]["@dict"][0][1] = columns
    with pytest.raises(ValueError, match="columns"):
        serialization.unpack(said, {})


@pytest.mark.parametrize("about", ['{"a": 1, "a": 2}', "[" * 100_000, "NaN"])
def test_json_that_is_twofold_too_deep_or_no_number_is_refused(about: str, tmp_path: Path) -> None:
    metadata = {"format": "nobsp", "kind": "thing", "version": "1", "about": about}
    save_file({"a": torch.arange(3)}, tmp_path / "file", metadata=metadata)
    with pytest.raises(ValueError, match="description cannot be read"):
        serialization.read(tmp_path / "file", kind="thing", version=1)


@pytest.mark.parametrize(
    "shape",
    [[1] * 100, [10**4000] * 400, [0, 1 << 61, 1 << 61], [0, 1 << 70]],
    ids=["dimensions", "product", "empty", "length"],
)
def test_shapes_that_no_tensor_has_are_damage(shape: list[int], tmp_path: Path) -> None:
    metadata = {"format": "nobsp", "kind": "thing", "version": "1", "about": "{}"}
    stop = 4 if 0 not in shape else 0
    described = {"dtype": "F32", "shape": shape, "data_offsets": [0, stop]}
    header = json.dumps({"__metadata__": metadata, "a": described}).encode()
    path = tmp_path / "file"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(stop))
    for framework in ("pt", "numpy"):
        with pytest.raises(ValueError, match=r"file'.*described wrongly"):
            serialization.read(path, kind="thing", version=1, framework=framework)


@pytest.mark.parametrize("tag", ["@frozenset", "@dict"])
def test_keys_that_are_made_to_collide_are_refused(tag: str) -> None:
    # All of them have the hash 0, and comparing each with all others takes hours for a million.
    keys = [number * sys.hash_info.modulus for number in range(1, 1000)]
    said = {tag: keys if tag == "@frozenset" else [[key, None] for key in keys]}
    with pytest.raises(ValueError, match="keys"):
        serialization.unpack(said, {})


def test_many_keys_come_back() -> None:
    value = {number: frozenset({number, -number, str(number)}) for number in range(1000)}
    assert serialization.unpack(serialization.pack(value, {}), {}) == value


@dataclasses.dataclass
class Counted:
    position: int
    share: float
    known: bool


@pytest.mark.parametrize(
    ("field", "value"),
    [("position", 0.5), ("position", True), ("share", True), ("share", "x"), ("known", 1)],
)
def test_numbers_are_of_the_sort_that_a_field_has(field: str, value: Any, tmp_path: Path) -> None:
    right = {"position": 1, "share": 2, "known": False}
    path = tmp_path / "file"
    serialization.save(path, Counted(**right), kind="thing", version=1)
    assert serialization.load(path, kind="thing", version=1, classes=(Counted,)).share == 2

    serialization.save(path, Counted(**{**right, field: value}), kind="thing", version=1)
    with pytest.raises(ValueError, match=f"'{field}' of 'Counted'"):
        serialization.load(path, kind="thing", version=1, classes=(Counted,))
