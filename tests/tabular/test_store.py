"""A calibration kept in a file is the same calibration, and only for its own model."""

import copy
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import nn

from nobsp import NObSP, store
from nobsp.tabular import keeping
from tests.tolerances import SINGLE, assert_same_to_rounding

NAMES = ["a", "b", "c", "d"]


def make_net(columns=4, width=12, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(columns, width), nn.ReLU(), nn.Linear(width, 2))


@pytest.fixture(scope="module")
def net():
    return make_net()


@pytest.fixture(scope="module")
def table():
    return pd.DataFrame(np.random.default_rng(0).normal(size=(150, 4)), columns=NAMES)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "explainer.safetensors"


def assert_same(ours, theirs, rows):
    a, b = ours(rows), theirs(rows)
    size = float(np.abs(b.predictions).max())
    for name in ("values", "base_values", "residual", "predictions", "outside", "baseline_contributions"):
        assert_same_to_rounding(getattr(a, name), getattr(b, name), within=SINGLE, size=size, what=name)
    assert (a.terms, a.feature_names, a.output_names) == (b.terms, b.feature_names, b.output_names)


OPTIONS = {
    "plain": {},
    "pairs": {"interactions": 2},
    "auto": {"interactions": "auto"},
    "triple": {"interactions": [("a", "b", "c")]},
    "complement": {"reference": "complement", "interactions": [("a", "b")]},
    "published": {"reference": "complement", "ridge": 1e-4, "ridge_scale": "absolute"},
    "groups": {"features": {"g": ["a", "c"], "h": range(1, 2), "i": np.array([3])}},
    "names": {"features": pd.Index(["u", "v", "w", "x"]), "output_names": np.array(["no", "yes"])},
    "vector": {"baseline": pd.Series([1.0, 2.0, 3.0, 4.0])},
    "tensor": {"baseline": torch.zeros(4), "device": torch.device("cpu")},
    "mixed": {"baseline": {"a": np.float32(1.5), "b": "median"}, "ridge": np.float32(1e-3)},
}


@pytest.mark.parametrize("options", OPTIONS)
def test_a_loaded_explainer_has_every_bit_and_explains_alike(net, table, path, options):
    explainer = NObSP(net, **OPTIONS[options]).fit(table)
    explainer.save(path)
    loaded = NObSP.load(path, net)
    assert torch.equal(*(torch.cat(list(each._fitted.solution.matrices.values())) for each in (loaded, explainer)))
    assert_same(explainer, loaded, table[:20])
    assert str(loaded.health()) == str(explainer.health())
    pd.testing.assert_frame_equal(loaded.importance("total"), explainer.importance("total"))
    pd.testing.assert_frame_equal(loaded.curves(7), explainer.curves(7))


def test_a_head_given_as_a_layer_is_kept_by_name(net, table, path):
    NObSP(net, head=net[2]).fit(table).save(path)
    assert NObSP.load(path, net).head == "2"


def test_options_survive_so_that_fit_can_be_called_again(net, table, path):
    explainer = NObSP(net, ridge=1e-3, interactions=[("a", "b")], baseline="median", batch_size=64).fit(table)
    explainer.save(path)
    loaded = NObSP.load(path, net)
    assert (loaded.ridge, loaded.baseline, loaded.batch_size) == (1e-3, "median", 64)
    assert_same(explainer, loaded.fit(table), table[:5])


def test_a_loaded_explainer_can_be_saved_again(net, table, path, tmp_path):
    NObSP(net).fit(table).save(path)
    NObSP.load(path, net).save(tmp_path / "again")
    before, after = (store.load(p, kind=keeping.KIND, version=keeping.VERSION) for p in (path, tmp_path / "again"))
    assert before[1] == after[1]
    assert before[0].keys() == after[0].keys()
    assert all(torch.equal(before[0][name], after[0][name]) for name in before[0])


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, dict])
def test_tables_stay_of_the_calibrated_kind(net, table, path, kind):
    X = {pd.DataFrame: table, dict: table.to_numpy()}.get(kind, pl.from_pandas(table))
    NObSP(net).fit(X).save(path)
    assert type(NObSP.load(path, net).importance()) is kind


def test_health_knows_duplicated_features_after_loading(net, table, path):
    explainer = NObSP(net).fit(table.assign(b=2 * table["a"]))
    explainer.save(path)
    assert "repeats 'a'" in str(NObSP.load(path, net).health())


def test_embedded_codes_survive(path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 1))
    codes = torch.randint(0, 4, (80, 2), generator=torch.Generator().manual_seed(0))
    explainer = NObSP(model).fit(codes)
    explainer.save(path)
    loaded = NObSP.load(path, model)
    assert_same(explainer, loaded, codes)
    with pytest.raises(ValueError, match="did not see"):
        loaded(torch.tensor([[4, 0]]))


# ---------------------------------------------------------------------- merging


def test_merging_after_loading_equals_merging_before(net, table, path, tmp_path):
    first = NObSP(net, interactions=1).fit(table[:70])
    second = NObSP(net, interactions=1).fit(table[70:], like=first)
    first.save(path)
    second.save(tmp_path / "second")
    expected = copy.deepcopy(first).merge(second)
    loaded, other = NObSP.load(path, net), NObSP.load(tmp_path / "second", net)
    loaded.merge(other)
    assert_same(expected, loaded, table[:20])
    assert loaded.health().rows == 150
    assert np.isfinite(loaded.importance()["importance"]).all()
    assert np.isfinite(loaded.health().explained).all()


def test_without_moments_the_file_is_small_and_says_what_it_cannot(net, table, path, tmp_path):
    explainer = NObSP(net).fit(table)
    explainer.save(path)
    small = tmp_path / "small"
    explainer.save(small, moments=False)
    assert small.stat().st_size < path.stat().st_size / 5
    loaded = NObSP.load(small, net)
    assert_same(explainer, loaded, table[:5])
    curves = loaded.curves(5)
    assert curves[["lower", "upper"]].isna().all(axis=None)
    assert_same_to_rounding(curves["value"], explainer.curves(5)["value"], within=SINGLE)
    assert "Moments were not saved, so curves have no bands" in str(loaded.health())
    for a, b in ((loaded, explainer), (explainer, loaded)):
        with pytest.raises(ValueError, match=r"merge needs the moments.*moments=True"):
            a.merge(b)


def test_pairs_that_were_never_screened_cannot_be_after_loading(net, table, path):
    explainer = NObSP(net, interactions=0).fit(table)
    explainer.save(path)
    with pytest.raises(ValueError, match="pairs were not screened before this explainer was saved"):
        NObSP.load(path, net).interaction_strengths()
    screened = explainer.interaction_strengths()
    explainer.save(path)
    pd.testing.assert_frame_equal(NObSP.load(path, net).interaction_strengths(), screened)


# ---------------------------------------------------------------------- pipelines


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    city = rng.choice(["rome", "oslo", "bern"], 120)
    return pd.DataFrame({"age": rng.uniform(18, 80, 120), "city": city, "code": rng.choice([1, 2, 5], 120)})


@pytest.fixture(scope="module")
def pipeline(people):
    prepare = ColumnTransformer([("n", StandardScaler(), ["age"]), ("c", OneHotEncoder(), ["city", "code"])])
    network = MLPRegressor(hidden_layer_sizes=(8,), max_iter=500, tol=1e-2, random_state=0)
    return make_pipeline(prepare, network).fit(people, people["age"] / 40 + (people["city"] == "rome"))


def test_pipelines_come_back_with_names_and_levels(pipeline, people, path):
    explainer = NObSP(pipeline, interactions=[("age", "city")]).fit(people)
    explainer.save(path)
    loaded = NObSP.load(path, pipeline)
    assert_same(explainer, loaded, people[:9])
    ours, theirs = (each.function("city")(["rome", "oslo"]) for each in (loaded, explainer))
    assert_same_to_rounding(ours, theirs, within=SINGLE)
    pd.testing.assert_frame_equal(loaded.curves(9), explainer.curves(9))


def test_the_preprocessing_is_part_of_the_model(pipeline, people, path):
    NObSP(pipeline).fit(people).save(path)
    rescaled = copy.deepcopy(pipeline)
    rescaled[0].named_transformers_["n"].scale_ *= 2
    with pytest.raises(ValueError, match=r"model is not the one.*preprocessing encodes the same values differently"):
        NObSP.load(path, rescaled)
    with pytest.raises(ValueError, match=r"model is not the one.*without preprocessing"):
        NObSP.load(path, pipeline[-1])
    NObSP(pipeline[-1]).fit(pipeline[0].transform(people)).save(path)
    with pytest.raises(ValueError, match=r"model is not the one.*with preprocessing"):
        NObSP.load(path, pipeline)


# ---------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda: make_net(seed=1), "its weights differ"),
        (lambda: make_net(width=9), "its head takes 9 numbers, not 12"),
        (lambda: make_net(columns=5), "cannot take rows with 4 columns"),
        (lambda: nn.Sequential(nn.Linear(4, 2), nn.ReLU()), "W z"),
    ],
)
def test_another_model_is_refused(net, table, path, other, said):
    NObSP(net).fit(table).save(path)
    with pytest.raises(ValueError, match=rf"model is not the one this explainer was calibrated on.*{said}"):
        NObSP.load(path, other())


def test_the_same_model_trained_on_is_another_model(net, table, path):
    model = copy.deepcopy(net)
    NObSP(model).fit(table).save(path)
    with torch.no_grad():
        model[0].bias[3] += 1e-3
    with pytest.raises(ValueError, match="its weights differ"):
        NObSP.load(path, model)


def test_something_that_is_no_model_is_refused(net, table, path):
    NObSP(net).fit(table).save(path)
    with pytest.raises(TypeError, match="model must be"):
        NObSP.load(path, "net.pt")


@pytest.mark.parametrize("content", ["truncated", "pickle", "foreign", "version", "hollow"])
def test_bad_files_are_value_errors(net, table, path, content):
    explainer = NObSP(net).fit(table)
    explainer.save(path)
    if content == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif content == "pickle":
        path.write_bytes(pickle.dumps({"a": 1}))
    elif content == "foreign":
        store.save(path, kind="activation maps", version=1, tensors={}, about={})
    else:
        version = keeping.VERSION + (content == "version")
        store.save(path, kind=keeping.KIND, version=version, tensors={}, about={})
    with pytest.raises(ValueError, match="path "):
        NObSP.load(path, net)


def tampered(path, *, tensors=None, about=None):
    """Writes the file anew with some parts changed; a tensor that is None, or a key that is ..., is left out."""
    held, said = store.load(path, kind=keeping.KIND, version=keeping.VERSION)
    held = {name: value for name, value in (held | (tensors or {})).items() if value is not None}
    said = {name: value for name, value in (said | (about or {})).items() if value is not ...}
    store.save(path, kind=keeping.KIND, version=keeping.VERSION, tensors=held, about=said)


DAMAGED_TENSORS = {
    "missing": ({"matrix/0": None}, "lacks 'matrix/0'"),
    "narrow": ({"matrix/1": torch.zeros(11, 2, dtype=torch.float64)}, "'matrix/1' is .* of shape"),
    "single": ({"matrix/1": torch.zeros(12, 2)}, "'matrix/1' is torch.float32"),
    "nan": ({"matrix/2": torch.full((12, 2), torch.nan, dtype=torch.float64)}, "'matrix/2' has values that are not"),
    "short range": ({"summary/minimum": torch.zeros(3, dtype=torch.float64)}, "'summary/minimum'"),
    "moments": ({"moments/joint/3/products": torch.zeros(4, dtype=torch.float64)}, "'moments/joint/3/products'"),
    "no moments": ({"moments/joint/3/rows": None}, "lacks 'moments/joint/3/rows'"),
    "odd levels": ({"levels/9/values": torch.zeros(1, 1), "levels/9/counts": torch.ones(1)}, "9, which is not between"),
    "pairs": ({"screening/pairs": torch.tensor([[0, 9]])}, "9, which is not between 0 and 3"),
}


@pytest.mark.parametrize("damage", DAMAGED_TENSORS)
def test_damaged_tensors_are_found_on_loading(net, table, path, damage):
    tensors, said = DAMAGED_TENSORS[damage]
    NObSP(net, interactions=1).fit(table).save(path)
    tampered(path, tensors=tensors)
    with pytest.raises(ValueError, match=rf"path .*explainer.safetensors' is damaged: .*{said}"):
        NObSP.load(path, net)


DAMAGED_WORDS = {
    "missing": ({"terms": ...}, "lacks 'terms'"),
    "no options": ({"options": ...}, "lacks 'options'"),
    "unknown option": (lambda said: {"options": said["options"] | {"colour": "red"}}, "colour"),
    "batch size": (lambda said: {"options": said["options"] | {"batch_size": 0}}, "batch_size"),
    "column": (
        lambda said: {"features": said["features"] | {"columns": [[0], [1], [2], [99]]}},
        "99, which is not between 0 and 3",
    ),
    "names": (lambda said: {"features": said["features"] | {"names": ["a", "b", "c", "c"]}}, "the same name"),
    "term": ({"terms": [[0], [1], [2], [4]]}, "4, which is not between"),
    "frame": ({"frame": "spreadsheet"}, "spreadsheet"),
    "twins": ({"twins": {"0": 17}}, "17, which is not between"),
    "rows": ({"rows": "many"}, "'rows' is 'many'"),
}


@pytest.mark.parametrize("damage", DAMAGED_WORDS)
def test_damaged_descriptions_are_found_on_loading(net, table, path, damage):
    about, said = DAMAGED_WORDS[damage]
    NObSP(net, interactions=0).fit(table).save(path)
    if callable(about):
        about = about(store.load(path, kind=keeping.KIND, version=keeping.VERSION)[1])
    tampered(path, about=about)
    with pytest.raises(ValueError, match=rf"path .*explainer.safetensors' is damaged: .*{said}"):
        NObSP.load(path, net)


def test_screened_pairs_are_kept_as_tensors_not_in_the_header(net, table, path):
    explainer = NObSP(net, interactions=1).fit(table)
    explainer.save(path)
    tensors, about = store.load(path, kind=keeping.KIND, version=keeping.VERSION)
    assert tensors["screening/pairs"].shape == (6, 2)
    assert tensors["screening/strengths"].dtype == torch.float64
    assert about["screening"].keys() == {"rows", "forward_rows"}
    loaded = NObSP.load(path, net)
    pd.testing.assert_frame_equal(loaded.interaction_strengths(), explainer.interaction_strengths())


def test_many_codes_and_one_hot_levels_survive(path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(302, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    rows = np.column_stack([np.arange(900) % 400, np.ones(900), np.eye(300)[np.arange(900) % 300]])
    features = {"code": 0, "one": 1, "hot": list(range(2, 302))}
    explainer = NObSP(model, features=features, interactions=0).fit(rows)
    explainer.save(path)
    before, after = explainer._fitted.summary, NObSP.load(path, model)._fitted.summary
    assert torch.equal(before.codes[0][0][0], after.codes[0][0][0])
    assert torch.equal(before.many[2][1], after.many[2][1])
    assert torch.equal(before.two_valued, after.two_valued)
    nothing = np.zeros((1, 302))
    with pytest.raises(ValueError, match="'hot' that calibration did not see"):
        NObSP.load(path, model)(nothing)


def test_a_failed_save_leaves_the_old_file_usable(net, table, path, monkeypatch):
    explainer = NObSP(net).fit(table)
    explainer.save(path)

    def full(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(store, "save_file", full)
    with pytest.raises(OSError, match="no space"):
        NObSP(net).fit(table[:50]).save(path)
    assert_same(explainer, NObSP.load(path, net), table[:5])
    assert len(list(path.parent.iterdir())) == 1
