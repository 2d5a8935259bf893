"""Models out of files: exported programs compute the same, are observed layer by layer, and run no code."""

from __future__ import annotations

import copy
import io
import json
import logging
import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from nobsp import NObSP
from nobsp.network import Readout, exported
from nobsp.network.archive import UntrustedError
from nobsp.network.exported import as_module, kind_of, load_exported
from nobsp.vision import NObSPCam
from tests.tolerances import SINGLE, assert_same_to_rounding

ROWS = ({0: torch.export.Dim("rows")},)
NAMES = ["dynamic.pt2", "one row.pt2", "decomposed.pt2"]


class Net(nn.Module):
    """A category, a layer without bias, dropout, and a softmax behind the head."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = nn.Embedding(5, 3)
        self.body = nn.Sequential(
            nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 8, bias=False), nn.ReLU()
        )
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat([self.kind(x[:, 0].long()), x[:, 1:]], dim=1)
        return torch.softmax(self.head(self.body(joined)), dim=1)


class Mixing(nn.Module):
    """Centres over the rows it is given, so that its result depends on how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(x - x.mean(0))
        return result


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def rows() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(80, 3, generator=generator)
    x[:, 0] = torch.randint(0, 5, (80,), generator=generator)
    return x


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, net: Net, rows: Tensor) -> dict[str, Path]:
    """The same network in every kind of file."""
    folder = tmp_path_factory.mktemp("models")
    program = torch.export.export(net, (rows[:7],), dynamic_shapes=ROWS)
    torch.export.save(program, folder / "dynamic.pt2")
    torch.export.save(torch.export.export(net, (rows[:1],)), folder / "one row.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # making scripts is deprecated, having them is not
        torch.export.save(program.run_decompositions(), folder / "decomposed.pt2")
        torch.jit.script(net).save(str(folder / "script.pt"))
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.parametrize("name", NAMES)
def test_an_opened_model_computes_the_same_and_its_head_is_found(
    name: str, files: dict[str, Path], net: Net, rows: Tensor
) -> None:
    state = torch.get_rng_state()
    model = as_module(load_exported(files[name]), rows)
    readout = Readout.find(model, rows)
    torch.testing.assert_close(model(rows), net(rows).detach())
    torch.testing.assert_close(
        readout.logits(readout.represent(rows)).softmax(1).float(), net(rows).detach()
    )
    assert (readout.width, readout.outputs, readout.link) == (8, 2, "softmax")
    assert readout.head.name == "head"
    assert readout.embedded_columns == (0,)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("name", ["dynamic.pt2", "decomposed.pt2"])
def test_an_opened_model_has_the_functions_of_the_original(
    name: str, files: dict[str, Path], net: Net, rows: Tensor
) -> None:
    expected = NObSP(net, interactions=1).fit(rows)(rows)
    model = as_module(load_exported(files[name]), rows)
    explainer = NObSP(model, interactions=1).fit(rows)
    np.testing.assert_allclose(explainer(rows).values, expected.values, atol=2e-5)
    np.testing.assert_allclose(
        explainer.compile().explain(rows.numpy()).values,
        explainer(rows).values[:, : len(explainer.compile().tables)],
        atol=1e-4,
    )


@pytest.mark.parametrize("name", NAMES)
def test_an_opened_model_is_copied_and_sent_as_other_modules_are(
    name: str, files: dict[str, Path], net: Net, rows: Tensor
) -> None:
    model = as_module(files[name], rows)
    sent = pickle.loads(pickle.dumps(model))  # noqa: S301 - our own bytes
    torch.testing.assert_close(sent(rows), net(rows).detach())
    torch.testing.assert_close(
        copy.deepcopy(model).double()(rows.double()).float(), net(rows).detach()
    )


def test_an_explainer_of_a_file_is_saved_and_loaded_with_the_file(
    files: dict[str, Path], rows: Tensor, tmp_path: Path
) -> None:
    first = NObSP(as_module(load_exported(files["dynamic.pt2"]), rows), interactions=0).fit(rows)
    first.save(tmp_path / "kept.nobsp")
    again = NObSP.load(
        tmp_path / "kept.nobsp", as_module(load_exported(files["dynamic.pt2"]), rows)
    )
    assert_same_to_rounding(again(rows).values, first(rows).values, within=SINGLE)


@pytest.mark.parametrize("name", ["dynamic.pt2", "one row.pt2"])
@pytest.mark.parametrize("kind", [np.asarray, pd.DataFrame, Tensor.tolist])
def test_a_file_is_opened_with_rows_of_any_kind(
    files: dict[str, Path], rows: Tensor, name: str, kind: Any
) -> None:
    found = as_module(files[name], kind(rows))
    torch.testing.assert_close(found(rows), as_module(files[name], rows)(rows))


def test_images_may_be_an_array(tmp_path: Path) -> None:
    images = np.random.default_rng(0).normal(size=(5, 1, 6, 6)).astype(np.float32)
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2)
    ).eval()
    program = torch.export.export(net, (torch.from_numpy(images),), dynamic_shapes=ROWS)
    torch.testing.assert_close(
        as_module(program, images)(torch.from_numpy(images)), net(torch.from_numpy(images))
    )


def test_a_file_of_another_kind_is_not_opened(tmp_path: Path, rows: Tensor) -> None:
    (tmp_path / "notes.txt").write_text("a model", encoding="utf-8")
    with pytest.raises(ValueError, match=r"notes\.txt is not a file of torch\.export\.save"):
        as_module(tmp_path / "notes.txt", rows)


@pytest.mark.parametrize("explainer", [NObSP, NObSPCam])
def test_a_closed_model_is_refused_with_the_way_to_open_it(
    files: dict[str, Path], rows: Tensor, explainer: Any
) -> None:
    closed = torch.export.load(files["dynamic.pt2"])
    data = rows if explainer is NObSP else torch.zeros(3, 1, 4, 4)
    with pytest.raises(TypeError, match=r"nobsp\.as_module\(model, rows\)"):
        explainer(closed).fit(data)


@pytest.mark.parametrize("explainer", [NObSP, NObSPCam])
@pytest.mark.parametrize("closed", [str, Path])
def test_the_name_of_a_file_is_refused_with_the_way_to_open_it(
    files: dict[str, Path], rows: Tensor, explainer: Any, closed: Any
) -> None:
    data = rows if explainer is NObSP else torch.zeros(3, 1, 4, 4)
    with pytest.raises(TypeError, match=r"nobsp\.as_module\(model, rows\)"):
        explainer(closed(files["dynamic.pt2"])).fit(data)


def test_the_graph_of_a_program_is_refused_with_the_way_to_open_it(
    files: dict[str, Path], rows: Tensor
) -> None:
    graph = torch.export.load(files["dynamic.pt2"]).module()
    with pytest.raises(ValueError, match=r"no linear layer .*nobsp\.as_module\(model, rows\)"):
        NObSP(graph).fit(rows)
    assert NObSP(as_module(graph, rows)).fit(rows).output_names_


def test_weights_alone_are_refused_with_the_way_to_use_them(net: Net, rows: Tensor) -> None:
    with pytest.raises(TypeError, match=r"found OrderedDict.*load_state_dict"):
        NObSP(net.state_dict()).fit(rows)


def test_maps_of_an_opened_network_are_those_of_the_original() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 1), nn.SiLU()
    )
    net = nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)).eval()
    images = torch.randn(40, 1, 10, 10)
    expected = NObSPCam(net).fit(images)(images[:5])
    model = as_module(torch.export.export(net, (images[:2],), dynamic_shapes=ROWS), images[:4])
    maps = NObSPCam(model).fit(images)(images[:5])
    np.testing.assert_allclose(maps.account, expected.account, atol=1e-6)


def test_a_convolution_that_is_the_head_is_found() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()
    images = torch.randn(8, 1, 6, 6)
    model = as_module(torch.export.export(net, (images[:2],), dynamic_shapes=ROWS), images)
    assert Readout.find(model, images).head.name == "2"


def test_whole_numbers_are_codes_or_measurements_as_the_model_takes_them() -> None:
    whole = torch.arange(60).reshape(20, 3) % 5
    looked_up = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 1)).eval()
    codes = as_module(torch.export.export(looked_up, (whole[:4],), dynamic_shapes=ROWS), whole)
    assert Readout.find(codes, whole).integer
    measured = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).eval()
    numbers = as_module(
        torch.export.export(measured, (torch.zeros(4, 3),), dynamic_shapes=ROWS), whole
    )
    assert not Readout.find(numbers, whole).integer


def test_rows_that_a_fixed_size_mixes_are_refused_with_the_way_to_export(rows: Tensor) -> None:
    program = torch.export.export(Mixing(), (rows[:4],))
    with pytest.raises(ValueError, match=r"exported for exactly 4 rows at a time.*dynamic_shapes"):
        as_module(program, rows)


def test_a_size_written_into_the_graph_is_refused_with_the_way_to_export(rows: Tensor) -> None:
    class Reshaping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.head(x.reshape(2, 2, 3).reshape(4, 3))
            return result

    with pytest.raises(ValueError, match="exported for exactly 4 rows"):
        as_module(torch.export.export(Reshaping(), (rows[:4],)), rows)


def test_a_program_of_two_inputs_is_refused(rows: Tensor) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 1)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            result: Tensor = self.head(x + y)
            return result

    with pytest.raises(ValueError, match="takes 2 inputs"):
        as_module(torch.export.export(Two(), (rows[:4], rows[:4])), rows)


def test_columns_that_do_not_fit_are_named_by_their_shape(
    files: dict[str, Path], rows: Tensor
) -> None:
    with pytest.raises(ValueError, match=r"cannot be run on input of shape \(80, 2\)"):
        as_module(files["dynamic.pt2"], rows[:, :2])


# ---------------------------------------------------------------------- what is in a file


def test_kinds_of_files_are_told_by_their_content(
    files: dict[str, Path], net: Net, tmp_path: Path
) -> None:
    import joblib
    from safetensors.torch import save_file

    torch.save(net.state_dict(), tmp_path / "state.pt")
    save_file(net.state_dict(), tmp_path / "state.safetensors")
    (tmp_path / "model.pkl").write_bytes(pickle.dumps({"a": 1}))
    joblib.dump(list(range(1000)), tmp_path / "model.joblib", compress=3)
    (tmp_path / "model.txt").write_text("hello")
    found = {path.name: kind_of(path) for path in tmp_path.iterdir()}
    assert found == {
        "state.pt": "pickle",
        "state.safetensors": "safetensors",
        "model.pkl": "pickle",
        "model.joblib": "pickle",
        "model.txt": "unknown",
    }
    assert {kind_of(files[name]) for name in NAMES} == {"exported"}
    assert kind_of(files["script.pt"]) == "script"


def test_scripts_are_refused_with_the_way_to_export(files: dict[str, Path], rows: Tensor) -> None:
    with pytest.raises(
        ValueError, match=r"script\.pt is not .* a TorchScript file; export .*torch\.export\.export"
    ):
        as_module(files["script.pt"], rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.load(files["script.pt"])
    with pytest.raises(TypeError, match=r"TorchScript .*torch\.export\.export"):
        as_module(script, rows)
    for explainer, data in ((NObSP, rows), (NObSPCam, torch.zeros(3, 1, 4, 4))):
        with pytest.raises(TypeError, match=r"TorchScript .*torch\.export"):
            explainer(script).fit(data)


# ---------------------------------------------------------------------- files that would run code


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


Members = list[tuple[str, bytes]]


def members_of(path: Path) -> Members:
    """Names behind the folder of an archive, and what they hold."""
    with zipfile.ZipFile(path) as archive:
        return [(name.partition("/")[2], archive.read(name)) for name in archive.namelist()]


def write_archive(path: Path, members: Members) -> Path:
    """Members under one folder; a name that begins with "/" is written without one."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")  # two members of one name
        for name, content in members:
            archive.writestr(name[1:] if name.startswith("/") else f"good/{name}", content)
    return path


def replaced(members: Members, name: str, change: Any) -> Members:
    """The same with one member changed."""
    assert name in dict(members)
    return [(each, change(content) if each == name else content) for each, content in members]


def pickled(marker: Path) -> bytes:
    """What torch.save makes of a trap in the place of weights or inputs."""
    buffer = io.BytesIO()
    torch.save(((Trap(marker),), {}), buffer)
    return buffer.getvalue()


def code(marker: Path) -> str:
    """The same as an expression of Python."""
    return f"__import__('pathlib').Path('{marker}').touch()"


def with_program(change: Any) -> Any:
    """A trap in the text of the program."""

    def build(members: Members, marker: Path) -> Members:
        def edit(content: bytes) -> bytes:
            program = json.loads(content)
            change(program, marker)
            return json.dumps(program).encode()

        return replaced(members, "models/model.json", edit)

    return build


def with_config(entry: str, change: Any) -> Any:
    """A trap in the description of the tensors."""

    def build(members: Members, marker: Path) -> Members:
        def edit(content: bytes) -> bytes:
            config = json.loads(content)
            change(config["config"])
            return json.dumps(config).encode()

        return replaced(members, entry, edit)

    return build


def old_layout(trapped: str) -> Any:
    """The layout before torch 2.8, whose names have no folder, with a trap in one of its pickles."""

    def build(members: Members, marker: Path) -> Members:
        harmless = io.BytesIO()
        torch.save({}, harmless)
        pickles = ["serialized_state_dict", "serialized_constants", "serialized_example_inputs"]
        contents = {name: harmless.getvalue() for name in pickles} | {trapped: pickled(marker)}
        program = dict(members)["models/model.json"]
        entries = [("/version", b"8.20"), ("/serialized_exported_program.json", program)]
        return entries + [(f"/{name}.pt", content) for name, content in contents.items()]

    return build


def call_in_graph(program: Any, target: str, inputs: list[Any]) -> None:
    """Puts a call before all others."""
    graph = program["graph_module"]["graph"]
    call = {
        "target": target,
        "inputs": inputs,
        "outputs": [{"as_tensor": {"name": "trapped"}}],
        "metadata": {},
        "is_hop_single_tensor_return": None,
        "name": "trapped",
    }
    graph["nodes"].insert(0, call)
    graph["tensor_values"]["trapped"] = graph["tensor_values"]["x"]


def text_argument(text: str) -> dict[str, Any]:
    return {"name": "", "arg": {"as_string": text}, "kind": 1}


def rename_input(program: Any, marker: Path) -> None:
    text = json.dumps(program["graph_module"]).replace('"name": "x"', '"name": "NAME"')
    text = text.replace('"x": {"dtype"', '"NAME": {"dtype"')
    name = json.dumps(f"x={code(marker)}")[1:-1]
    program["graph_module"] = json.loads(text.replace("NAME", name))


def set_expression(program: Any, marker: Path) -> None:
    values = program["graph_module"]["graph"]["tensor_values"]
    values["x"]["sizes"][0]["as_expr"]["expr_str"] = code(marker)


def hide_expression(program: Any, marker: Path) -> None:
    values = program["graph_module"]["graph"]["tensor_values"]
    hidden = f"Add(Integer(1), {json.dumps(code(marker))})"
    values["x"]["sizes"][0]["as_expr"]["expr_str"] = hidden


def size_of(expression: str) -> Any:
    """A program whose number of rows is an expression."""

    def change(program: Any, _: Path) -> None:
        values = program["graph_module"]["graph"]["tensor_values"]
        values["x"]["sizes"][0]["as_expr"]["expr_str"] = expression

    return with_program(change)


def tower(height: int) -> str:
    """A power of a power of a power."""
    return "Integer(3)" if height == 0 else f"Pow({tower(height - 1)}, Integer(16))"


def packed_samples(members: Members, _: Path) -> Members:
    """Examples in which a few compressed bytes are more than can be looked through."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as inner:
        for number in range(3):
            inner.writestr(f"samples/{number}.pkl", b"N" * 10_000)
    return replaced(members, SAMPLES, lambda _: packed.getvalue())


def import_in_structure(program: Any, marker: Path) -> None:
    marker.with_name("trap_module.py").write_text(code(marker), encoding="utf-8")
    context = {"__enum__": True, "fqn": "trap_module:A", "name": "A"}
    node = {"type": "builtins.dict", "context": json.dumps([context]), "children_spec": []}
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    signature["out_spec"] = json.dumps([1, node])


def pickled_weight(config: Any) -> None:
    next(iter(config.values()))["use_pickle"] = True


def opaque_constant(config: Any) -> None:
    config["c"] = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": False}
    config["c"]["tensor_meta"] = None


def script_constant(config: Any) -> None:
    config["c"] = {"path_name": "custom_obj_0", "is_param": False, "use_pickle": True}
    config["c"]["tensor_meta"] = None


def elsewhere(config: Any) -> None:
    next(iter(config.values()))["path_name"] = "../sample_inputs/model.pt"


SAMPLES = "data/sample_inputs/model.pt"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"

TRAPS: dict[str, Any] = {
    # Seven that torch.export.load follows and a look at the usual names does not see.
    "legacy weights": lambda members, marker: [
        *members,
        ("data/weights/model.pt", pickled(marker)),
    ],
    "legacy constants": lambda members, marker: [
        *members,
        ("data/constants/model.pt", pickled(marker)),
    ],
    "old layout, weights": old_layout("serialized_state_dict"),
    "old layout, constants": old_layout("serialized_constants"),
    "old layout, examples": old_layout("serialized_example_inputs"),
    "another case": lambda members, marker: [
        ("data/Sample_Inputs/model.pt", pickled(marker)),
        *(member for member in members if member[0] != SAMPLES),
    ],
    "decoy in front": lambda members, marker: with_config(WEIGHTS, pickled_weight)(
        [
            ("x/data/weights/weight_0", b""),
            *replaced(members, "data/weights/weight_0", lambda _: pickled(marker)),
        ],
        marker,
    ),
    # Others.
    "pickled examples": lambda members, marker: replaced(
        members, SAMPLES, lambda _: pickled(marker)
    ),
    "pickled weight": lambda members, marker: with_config(WEIGHTS, pickled_weight)(
        replaced(members, "data/weights/weight_0", lambda _: pickled(marker)), marker
    ),
    "opaque constant": lambda members, marker: with_config(CONSTANTS, opaque_constant)(
        [*members, ("data/constants/opaque_obj_0", pickle.dumps(Trap(marker)))], marker
    ),
    "script object": lambda members, marker: with_config(CONSTANTS, script_constant)(
        [*members, ("data/constants/custom_obj_0", pickled(marker))], marker
    ),
    "two entries of a name": lambda members, marker: [*members, (SAMPLES, pickled(marker))],
    "two folders": lambda members, marker: [
        *members,
        (f"/other/{SAMPLES}", pickled(marker)),
    ],
    "path out of its folder": lambda members, marker: with_config(WEIGHTS, elsewhere)(
        members, marker
    ),
    "compiled library": lambda members, marker: [
        *members,
        ("data/aotinductor/model/model.so", b"\x7fELF"),
    ],
    "second model": lambda members, marker: [
        *members,
        ("models/other.json", dict(members)["models/model.json"]),
    ],
    "size that is code": with_program(set_expression),
    "size that hides code in a text": with_program(hide_expression),
    # These would not run code, but never come to an end.
    "size that is a tower of powers": size_of(tower(9)),
    "size with an exponent that is a product": size_of(
        f"Pow(Integer(3), Mul({', '.join(['Integer(16)'] * 40)}))"
    ),
    "size with an exponent that is a huge fraction": size_of("Pow(Integer(3), Float('1e300'))"),
    "largest of many sizes": size_of(f"Max({', '.join(map('s{0}*t{0}'.format, range(400)))})"),
    "size that is a long text": size_of(" + ".join(["Integer(1)"] * 2000)),
    "examples that were packed": packed_samples,
    "input whose name is code": with_program(rename_input),
    "structure that imports": with_program(import_in_structure),
    "call of a method by name": with_program(
        lambda program, marker: call_in_graph(
            program, "_operator.methodcaller", [text_argument("cpu")]
        )
    ),
    "call that imports": with_program(
        lambda program, marker: call_in_graph(
            program, "torch.ops.import_module.__call__", [text_argument("antigravity")]
        )
    ),
    "call that loads a library": with_program(
        lambda program, marker: call_in_graph(
            program, "torch.ops.load_library.__call__", [text_argument(f"{marker}.so")]
        )
    ),
    "call that makes a file": with_program(
        lambda program, marker: call_in_graph(
            program, "torch.ops.aten.from_file.default", [text_argument(str(marker))]
        )
    ),
    "function as an argument": with_program(
        lambda program, marker: call_in_graph(
            program,
            "torch.ops.aten.relu.default",
            [{"name": "", "arg": {"as_operator": "torch.hub.load"}, "kind": 1}],
        )
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_file_that_could_run_code_is_not_loaded(
    trap: str,
    files: dict[str, Path],
    rows: Tensor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    marker = tmp_path / "trap"
    harmful = write_archive(
        tmp_path / "harmful.pt2", TRAPS[trap](members_of(files["dynamic.pt2"]), marker)
    )
    with pytest.raises(UntrustedError):
        load_exported(harmful)
    with pytest.raises(ValueError, match=r"harmful\.pt2"):
        as_module(harmful, rows)
    assert not marker.exists()


def test_a_name_in_the_directory_that_is_not_the_one_at_the_entry_is_an_error(
    files: dict[str, Path], tmp_path: Path
) -> None:
    marker = tmp_path / "trap"
    members = [("x" * len(SAMPLES), pickled(marker)), *members_of(files["dynamic.pt2"])]
    written = write_archive(tmp_path / "harmful.pt2", members).read_bytes()
    directory = written.rindex(b"x" * len(SAMPLES))
    swapped = written[:directory] + SAMPLES.encode() + written[directory + len(SAMPLES) :]
    (tmp_path / "harmful.pt2").write_bytes(swapped)
    with pytest.raises(ValueError, match=r"harmful\.pt2"):
        load_exported(tmp_path / "harmful.pt2")
    assert not marker.exists()


def test_checks_written_as_python_are_never_run(
    files: dict[str, Path], rows: Tensor, tmp_path: Path
) -> None:
    marker = tmp_path / "trap"

    def guard(program: Any, _: Path) -> None:
        program["guards_code"] = [code(marker)]

    members = with_program(guard)(members_of(files["dynamic.pt2"]), marker)
    program = load_exported(write_archive(tmp_path / "guarded.pt2", members))
    program.module()(rows)
    assert not marker.exists()


def test_a_pickle_that_was_let_through_would_still_not_be_loaded(tmp_path: Path) -> None:
    marker = tmp_path / "trap"
    with exported._nothing_is_unpickled(), pytest.raises(pickle.UnpicklingError):
        torch.load(io.BytesIO(pickled(marker)), weights_only=False)
    assert not marker.exists()
    assert torch.load.__module__ == "torch.serialization"


def test_a_trusted_file_is_loaded_as_torch_does(
    files: dict[str, Path], rows: Tensor, tmp_path: Path
) -> None:
    marker = tmp_path / "trap"
    members = TRAPS["pickled examples"](members_of(files["dynamic.pt2"]), marker)
    harmful = write_archive(tmp_path / "trusted.pt2", members)
    with pytest.raises(ValueError, match="cannot be read"):
        as_module(harmful, rows, trust_pickle=True)  # torch finds that these are no inputs
    assert marker.exists()


def test_a_small_file_does_not_make_large_tensors(files: dict[str, Path], tmp_path: Path) -> None:
    def inflate(config: Any) -> None:
        first = next(iter(config.values()))
        first["tensor_meta"]["sizes"] = [{"as_int": 1 << 40}]

    members = members_of(files["dynamic.pt2"])
    empty = replaced(members, "data/weights/weight_0", lambda _: b"")
    for content in (members, empty):
        inflated = with_config(WEIGHTS, inflate)(content, tmp_path)
        with pytest.raises(ValueError, match="elements"):
            load_exported(write_archive(tmp_path / "large.pt2", inflated))


@pytest.mark.parametrize(
    "sizes", [[1] * 1000, [10**4000] * 60, [1 << 70]], ids=["dimensions", "product", "length"]
)
def test_shapes_that_no_tensor_has_are_refused(
    sizes: list[int], files: dict[str, Path], tmp_path: Path
) -> None:
    def inflate(config: Any) -> None:
        first = next(iter(config.values()))
        first["tensor_meta"]["sizes"] = [{"as_int": size} for size in sizes]

    members = with_config(WEIGHTS, inflate)(members_of(files["dynamic.pt2"]), tmp_path)
    with pytest.raises(ValueError, match=r"dimensions|64 bits"):
        load_exported(write_archive(tmp_path / "large.pt2", members))


@pytest.mark.parametrize("n_rows", [0, 1 << 40])
def test_numbers_of_rows_that_nobody_has_take_no_memory(
    n_rows: int, files: dict[str, Path], rows: Tensor, tmp_path: Path
) -> None:
    def resize(program: Any, _: Path) -> None:
        values = program["graph_module"]["graph"]["tensor_values"]
        for value in values.values():
            if value["sizes"] and value["sizes"][0].get("as_int") == 1:
                value["sizes"][0]["as_int"] = n_rows

    members = with_program(resize)(members_of(files["one row.pt2"]), tmp_path)
    with pytest.raises(ValueError, match=f"exactly {n_rows} rows"):
        as_module(write_archive(tmp_path / "rows.pt2", members), rows)


def test_a_program_that_is_no_python_is_one_clear_error(
    files: dict[str, Path], rows: Tensor, tmp_path: Path
) -> None:
    def rename(program: Any, _: Path) -> None:
        text = json.dumps(program["graph_module"]).replace('"name": "x"', '"name": "self"')
        program["graph_module"] = json.loads(text.replace('"x": {"dtype"', '"self": {"dtype"'))

    members = with_program(rename)(members_of(files["dynamic.pt2"]), tmp_path)
    with pytest.raises(ValueError, match="parts do not fit each other"):
        as_module(write_archive(tmp_path / "self.pt2", members), rows)


def test_extra_files_and_symbolic_sizes_are_no_hindrance(tmp_path: Path) -> None:
    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Conv2d(1, 4, 3, stride=2)
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                maps = self.body(x)
            result: Tensor = self.head(maps.relu().mean((2, 3))) * (maps.shape[2] // 2 + 1)
            return result

    images = torch.randn(4, 1, 12, 12)
    sizes = {0: torch.export.Dim("rows"), 2: torch.export.Dim("height", min=6, max=64)}
    net = Sized().eval()
    program = torch.export.export(net, (images,), dynamic_shapes=(sizes,))
    torch.export.save(program, tmp_path / "sized.pt2", extra_files={"notes.txt": "hello"})
    loaded = load_exported(tmp_path / "sized.pt2")
    torch.testing.assert_close(loaded.module()(images), net(images))


def rewritten(source: Path, target: Path, ending: str, change: Any) -> Path:
    """A copy of an archive with one of its members changed."""
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(target, "w") as after:
        for name in before.namelist():
            content = before.read(name)
            after.writestr(name, change(content) if name.endswith(ending) else content)
    return target


def test_a_program_that_calls_more_than_operators_is_not_loaded(
    files: dict[str, Path], tmp_path: Path
) -> None:
    def call(content: bytes) -> bytes:
        return content.replace(b"torch.ops.aten.relu.default", b"torch.hub.load")

    harmful = rewritten(files["dynamic.pt2"], tmp_path / "call.pt2", "models/model.json", call)
    with pytest.raises(UntrustedError, match=r"'torch\.hub\.load'"):
        load_exported(harmful)


@pytest.mark.parametrize(
    "operator",
    [
        # These print, draw or switch for the whole process.
        *("_print.default", "warn.default", "manual_seed.default", "set_grad_enabled.default"),
        # These end the process, or worse, where a file names sizes and positions that are not there.
        *("_reshape_alias.default", "_sparse_coo_tensor_unsafe.default", "segment_reduce.default"),
        *("max_pool2d_with_indices_backward.default", "_ctc_loss.default"),
        *("sparse_compressed_tensor.comp_plain_value_size", "_nested_view_from_buffer.default"),
    ],
)
def test_operators_that_no_model_has_are_not_loaded(
    operator: str, files: dict[str, Path], tmp_path: Path
) -> None:
    def call(content: bytes) -> bytes:
        return content.replace(b"aten.relu.default", f"aten.{operator}".encode())

    harmful = rewritten(files["dynamic.pt2"], tmp_path / "call.pt2", "models/model.json", call)
    with pytest.raises(UntrustedError, match=re.escape(f"'torch.ops.aten.{operator}'")):
        load_exported(harmful)


def test_layers_of_every_kind_are_operators_that_are_loaded(tmp_path: Path) -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(1, 4, 3, padding="same"), nn.BatchNorm2d(4), nn.GELU(), nn.MaxPool2d(2)
            )
            self.block = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
            self.head = nn.Sequential(nn.LayerNorm(4), nn.Dropout(), nn.Linear(4, 2))

        def forward(self, x: Tensor) -> Tensor:
            maps = nn.functional.interpolate(self.body(x), scale_factor=2.0, mode="bilinear")
            steps = self.block(maps.flatten(2).transpose(1, 2))
            result: Tensor = self.head(steps.amax(1))
            return result

    images = torch.randn(4, 1, 8, 8)
    net = Layers().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        program = torch.export.export(net, (images,))
        decomposed = program.run_decompositions()
    for number, version in enumerate((program, decomposed)):
        path = tmp_path / f"{number}.pt2"
        torch.export.save(version, path)
        torch.testing.assert_close(load_exported(path).module()(images), net(images))


def test_a_program_whose_parts_do_not_fit_is_one_clear_error(
    files: dict[str, Path], rows: Tensor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def rename(content: bytes) -> bytes:
        program = json.loads(content)
        program["graph_module"]["module_call_graph"][0]["fqn"] = "elsewhere"
        return json.dumps(program).encode()

    def misname(content: bytes) -> bytes:
        program = json.loads(content)
        program["graph_module"]["graph"]["nodes"][-1]["name"] = 1.5
        return json.dumps(program).encode()

    path = tmp_path / "bad.pt2"
    with pytest.raises(ValueError, match=r"parts do not fit each other \(.*elsewhere"):
        as_module(rewritten(files["dynamic.pt2"], path, "models/model.json", rename), rows)
    with pytest.raises(ValueError, match=r"bad\.pt2 cannot be read"):
        as_module(rewritten(files["dynamic.pt2"], path, "models/model.json", misname), rows)
    # Pages of tracebacks in torch's log would hide the one line.
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_damaged_files_are_one_clear_error(files: dict[str, Path], tmp_path: Path) -> None:
    exported = rewritten(
        files["dynamic.pt2"], tmp_path / "bad.pt2", "models/model.json", lambda _: b"{"
    )
    with pytest.raises(ValueError, match=r"bad\.pt2 cannot be read"):
        load_exported(exported)
