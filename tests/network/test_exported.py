"""Models out of files: exported programs compute the same, are observed layer by layer, and run no code."""

from __future__ import annotations

import copy
import io
import json
import pickle
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
from nobsp.network import Readout
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


class Trap:
    """Something that would run when it is unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("trap"),)


def rewritten(source: Path, target: Path, ending: str, change: Any) -> Path:
    """A copy of an archive with one of its members changed."""
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(target, "w") as after:
        for name in before.namelist():
            content = before.read(name)
            after.writestr(name, change(content) if name.endswith(ending) else content)
    return target


def test_a_program_with_pickled_objects_is_not_loaded(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def trap(_: bytes) -> bytes:
        buffer = io.BytesIO()
        torch.save(((Trap(),), {}), buffer)
        return buffer.getvalue()

    harmful = rewritten(files["dynamic.pt2"], tmp_path / "trap.pt2", "sample_inputs/model.pt", trap)
    with pytest.raises(
        ValueError, match=r"trap\.pt2 holds pickled sample inputs, which can run code"
    ):
        load_exported(harmful)
    assert not Path("trap").exists()


def test_a_program_that_calls_more_than_operators_is_not_loaded(
    files: dict[str, Path], tmp_path: Path
) -> None:
    def call(content: bytes) -> bytes:
        return content.replace(b"torch.ops.aten.relu.default", b"torch.hub.load")

    assert json.loads(call(zipfile.ZipFile(files["dynamic.pt2"]).read("dynamic/models/model.json")))
    harmful = rewritten(files["dynamic.pt2"], tmp_path / "call.pt2", "models/model.json", call)
    with pytest.raises(ValueError, match=r"holds the call 'torch\.hub\.load'"):
        load_exported(harmful)


def test_damaged_files_are_one_clear_error(files: dict[str, Path], tmp_path: Path) -> None:
    exported = rewritten(
        files["dynamic.pt2"], tmp_path / "bad.pt2", "models/model.json", lambda _: b"{"
    )
    with pytest.raises(ValueError, match=r"bad\.pt2 cannot be read"):
        load_exported(exported)
