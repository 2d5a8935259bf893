"""Models with several inputs, tabular networks of other libraries, and frames with categories."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.architectures import torchvision_models
from nobsp import NObSP
from tests.tolerances import CONTRIBUTIONS, SINGLE, assert_same_to_rounding

torch.manual_seed(0)
NUMBERS = torch.randn(300, 3)
CODES = torch.stack([torch.randint(0, 3, (300,)), torch.randint(0, 4, (300,))], 1)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.town = nn.Embedding(3, 4)
        self.job = nn.Embedding(4, 4)
        self.body = nn.Sequential(nn.Linear(11, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x_num: Tensor, x_cat: Tensor) -> Tensor:
        return self.body(torch.cat([x_num, self.town(x_cat[:, 0]), self.job(x_cat[:, 1])], 1))


def check(explainer: Any, X: Any, expected: Tensor) -> Any:
    explanation = explainer(X)
    assert_same_to_rounding(
        explanation.predictions,
        expected.detach().double().reshape(len(expected), -1),
        within=SINGLE,
    )
    account = explanation.base_values + explanation.values.sum(1) + explanation.residual
    assert_same_to_rounding(account, explanation.predictions)
    return explanation


@pytest.mark.parametrize("kind", ["tuple", "dict", "loader", "loader of pairs", "loader of dicts"])
def test_several_inputs_in_every_form(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = TwoInputs()
    rows = {"x_num": NUMBERS, "x_cat": CODES}
    forms: dict[str, Any] = {
        "tuple": (NUMBERS, CODES),
        "dict": rows,
        "loader": DataLoader(TensorDataset(NUMBERS, CODES, torch.zeros(300)), batch_size=64),
        "loader of pairs": [
            ((NUMBERS[i : i + 64], CODES[i : i + 64]), torch.zeros(64)) for i in range(0, 300, 64)
        ],
        "loader of dicts": [
            {"x_num": NUMBERS[i : i + 64], "x_cat": CODES[i : i + 64], "labels": 0}
            for i in range(0, 300, 64)
        ],
    }
    explainer = NObSP(model).fit(forms[kind])
    assert explainer.functions_.feature_names == (
        "x_num[0]",
        "x_num[1]",
        "x_num[2]",
        "x_cat[0]",
        "x_cat[1]",
    )
    explanation = check(explainer, forms[kind], model(NUMBERS, CODES))
    assert explainer.explained_[0] > 0.95
    assert explainer.functions_.features[3].kind == "levels"
    explainer.save(tmp_path / "two.safetensors")
    assert_same_to_rounding(
        NObSP.load(tmp_path / "two.safetensors", model)(rows).values, explanation.values
    )


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_several_inputs_may_be_frames_whose_columns_name_the_features(
    library: str, tmp_path: Path
) -> None:
    frames = pytest.importorskip(library, reason=f"{library} is not installed")
    torch.manual_seed(1)
    model = TwoInputs()
    numbers = frames.DataFrame(dict(zip("abc", NUMBERS.T.numpy(), strict=True)))
    codes = frames.DataFrame(dict(zip(("town", "x_num"), CODES.T.numpy(), strict=True)))

    explainer = NObSP(model).fit((numbers, codes))
    explanation = check(explainer, (numbers[["c", "a", "b"]], codes), model(NUMBERS, CODES))

    # A column that is called like an input is told apart from it.
    assert explainer.functions_.feature_names == ("a", "b", "c", "town", "x_cat[x_num]")
    assert_same_to_rounding(
        explainer((NUMBERS, CODES)).values, explanation.values, within=CONTRIBUTIONS
    )
    explainer.save(tmp_path / "two.safetensors")
    loaded = NObSP.load(tmp_path / "two.safetensors", model)
    assert loaded.functions_.feature_names == explainer.functions_.feature_names
    with pytest.raises(ValueError, match="x_num"):
        explainer((numbers[["a", "b"]], codes))


def test_features_are_named_slices_of_inputs() -> None:
    torch.manual_seed(1)
    model = TwoInputs()
    features = {"age": ("x_num", 0), "rest": ("x_num", slice(1, 3)), "town": ("x_cat", 0)}
    explainer = NObSP(model, features=features, interactions=0).fit((NUMBERS, CODES))
    assert explainer.functions_.feature_names == ("age", "rest", "town", "x_cat[1]")
    check(explainer, (NUMBERS, CODES), model(NUMBERS, CODES))
    with pytest.raises(
        ValueError,
        match=r"features\['age'\] is \('x_nun', 0\).*The inputs are \['x_num', 'x_cat'\]",
    ):
        NObSP(model, features={"age": ("x_nun", 0)}).fit((NUMBERS, CODES))


class ScanAndAge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scan = nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.head = nn.Linear(3, 2)

    def forward(self, image: Tensor, age: Tensor) -> Tensor:
        return self.head(torch.cat([self.scan(image), age[:, None]], 1))


def test_whole_inputs_are_features() -> None:
    torch.manual_seed(0)
    model, rows = ScanAndAge(), {"image": torch.randn(80, 1, 6, 6), "age": torch.randn(80)}
    explainer = NObSP(model, features={"scan": "image"}, interactions=0).fit(rows)
    assert explainer.functions_.feature_names == ("scan", "age")
    explanation = check(explainer, rows, model(**rows))
    # Nothing acts together with anything else here, so that two functions say all.
    assert_same_to_rounding(
        explanation.residual, np.zeros_like(explanation.residual), within=1e-4, size=1.0
    )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(2, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, series: Tensor) -> Tensor:
        return self.head(self.cell(series)[0][:, -1])


def test_windows_of_a_series_are_features() -> None:
    torch.manual_seed(0)
    model, rows = Recurrent(), {"series": torch.randn(100, 6, 2)}
    windows = {"early": ("series", slice(0, 3)), "late": ("series", slice(3, 6))}
    explainer = NObSP(model, features=windows, interactions=[("early", "late")]).fit(rows)
    check(explainer, rows, model(rows["series"]))
    importance = {
        row["feature"]: row["importance"] for row in explainer.importance().to_dict("records")
    }
    assert importance["late"] > importance["early"]


def test_a_frame_with_categories_for_a_torch_model(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    torch.manual_seed(0)

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.town = nn.Embedding(3, 4)
            self.body = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.body(torch.cat([x[:, :1], self.town(x[:, 1].long())], 1))

    model, levels = Mixed(), ["rome", "oslo", "wien"]
    frame = pandas.DataFrame({"size": NUMBERS[:, 0].numpy()})
    frame["town"] = pandas.Categorical.from_codes(CODES[:, 0].numpy(), categories=levels)
    explainer = NObSP(model).fit(frame)
    matrix = torch.stack([NUMBERS[:, 0], CODES[:, 0].float()], 1)
    explanation = check(explainer, frame, model(matrix))
    assert explainer.functions_.features[1].labels == ("oslo", "rome", "wien")
    assert np.isfinite(explainer.function("town")(levels)).all()
    explainer.save(tmp_path / "mixed.safetensors")
    assert_same_to_rounding(
        NObSP.load(tmp_path / "mixed.safetensors", model)(frame).values, explanation.values
    )


# ---------------------------------------------------------------------- libraries


def library(name: str) -> Any:
    """A library that looks for torchvision, whose builds for another torch load with a little help."""
    torchvision_models()
    return pytest.importorskip(name, reason=f"{name} is not installed")


def train(model: nn.Module, *X: Tensor) -> None:
    """A few steps towards a target with one interaction, so that there is something to explain."""
    target = X[0][:, :1] * 2 + X[0][:, 1:2] * X[0][:, 2:3]
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(60):
        found = model(*X).reshape(len(target), -1)
        (found - target).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def test_ft_transformer_as_it_comes() -> None:
    rtdl = pytest.importorskip(
        "rtdl_revisiting_models", reason="rtdl_revisiting_models is not installed"
    )
    torch.manual_seed(0)
    model = rtdl.FTTransformer(
        n_cont_features=3,
        cat_cardinalities=[3, 4],
        d_out=1,
        n_blocks=2,
        d_block=16,
        attention_n_heads=2,
        attention_dropout=0.0,
        ffn_d_hidden_multiplier=2.0,
        ffn_dropout=0.0,
        residual_dropout=0.0,
    )
    train(model, NUMBERS, CODES)
    explainer = NObSP(model).fit((NUMBERS, CODES))
    check(explainer, (NUMBERS, CODES), model(NUMBERS, CODES))
    assert explainer.explained_[0] > 0.9
    assert "no_head" not in {finding.code for finding in explainer.health().findings}


def test_tabular_resnet() -> None:
    rtdl = pytest.importorskip(
        "rtdl_revisiting_models", reason="rtdl_revisiting_models is not installed"
    )
    torch.manual_seed(0)
    model = rtdl.ResNet(
        d_in=3,
        d_out=2,
        n_blocks=2,
        d_block=16,
        d_hidden=None,
        d_hidden_multiplier=2.0,
        dropout1=0.0,
        dropout2=0.0,
    ).eval()
    check(NObSP(model).fit(NUMBERS), NUMBERS, model(NUMBERS))


@pytest.mark.parametrize("several", [False, True])
def test_tabm_is_the_mean_of_its_members(several: bool) -> None:
    tabm = pytest.importorskip("tabm", reason="tabm is not installed")
    torch.manual_seed(0)
    cardinalities = [3, 4] if several else None
    model = tabm.TabM.make(
        n_num_features=3,
        cat_cardinalities=cardinalities,
        d_out=1,
        k=8,
        n_blocks=2,
        d_block=64,
    )
    train(model, *((NUMBERS, CODES) if several else (NUMBERS,)))
    X = (NUMBERS, CODES) if several else NUMBERS
    explainer = NObSP(model, background=8, interactions=2).fit(X)
    found = model(NUMBERS, CODES) if several else model(NUMBERS)
    check(explainer, X, found.mean(1))
    assert explainer.explained_[0] > 0.9


def test_skorch() -> None:
    skorch = pytest.importorskip("skorch", reason="skorch is not installed")
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    model = skorch.NeuralNetRegressor(module, max_epochs=2, verbose=0, train_split=None)
    with pytest.raises(Exception, match="not been fitted"):
        NObSP(model).fit(NUMBERS)
    model.fit(NUMBERS.numpy(), NUMBERS[:, :1].numpy())
    explanation = NObSP(model).fit(NUMBERS.numpy())(NUMBERS.numpy())
    assert_same_to_rounding(
        explanation.predictions, model.predict(NUMBERS.numpy()).astype(np.float64), within=SINGLE
    )


def test_lightning_modules_are_modules() -> None:
    lightning = library("lightning")

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x).squeeze(1) * 10.0 + 3.0

    model = Net()
    check(NObSP(model).fit(NUMBERS), NUMBERS, model(NUMBERS))


def test_keras_on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="keras is not installed")
    hidden = keras.layers.Dense(8, activation="tanh")(entry := keras.Input((3,)))
    X = NUMBERS.float()
    for ends, link in (
        ({"units": 1}, "identity"),
        ({"units": 3, "activation": "softmax"}, "softmax"),
    ):
        model = keras.Model(entry, keras.layers.Dense(**ends)(hidden))
        explainer = NObSP(model).fit(X)
        assert explainer.link_ == link
        assert "no_head" not in {finding.code for finding in explainer.health().findings}
        found = torch.from_numpy(explainer(X).predictions)
        answers = found.softmax(1) if link == "softmax" else found
        assert_same_to_rounding(answers, model(X).detach().double(), within=SINGLE)


def test_hugging_face_models_and_their_tokens() -> None:
    transformers = library("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        num_labels=2,
    )
    model = transformers.BertForSequenceClassification(config).eval()
    rows = {
        "input_ids": torch.randint(0, 50, (40, 8)),
        "attention_mask": torch.ones(40, 8, dtype=torch.long),
    }
    with pytest.raises(ValueError, match=r"token ids at 8 positions.*Pass spans of positions"):
        NObSP(model).fit(rows)
    with pytest.raises(ValueError, match="token ids at 8 positions"):
        NObSP(model).fit(rows["input_ids"])
    spans = {
        "first": ("input_ids", slice(0, 4)),
        "second": ("input_ids", slice(4, 8)),
        "mask": "attention_mask",
    }
    explainer = NObSP(model, features=spans, interactions=0, background=4).fit(rows)
    with torch.no_grad():
        check(explainer, rows, model(**rows).logits)


class Looks(nn.Module):
    """Looks codes up in one of several ways; those of the second line below hold categories, not tokens."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way, self.table, self.head = way, nn.Embedding(20, 8), nn.Linear(8, 1)
        self.bag, self.tables = (
            nn.EmbeddingBag(20, 8),
            nn.ModuleList(nn.Embedding(5, 8) for _ in range(3)),
        )

    def forward(self, codes: Tensor) -> Tensor:
        codes = codes.long()
        found = {
            "as they are": lambda: self.table(codes).sum(1),
            "by keyword": lambda: self.table(input=codes + 1).sum(1),
            "turned": lambda: self.table(codes.T).sum(0),
            "one by one": lambda: (
                self.table(codes[:, 0]) + self.table(codes[:, 1]) - self.table(codes[:, 2])
            ),
            "in a bag": lambda: self.bag(codes),
            "by a function": lambda: functional.embedding(codes, self.table.weight).sum(1),
            "ranges": lambda: self.table(codes + torch.tensor([0, 5, 10])).sum(1),
            "own tables": lambda: sum(table(codes[:, k]) for k, table in enumerate(self.tables)),
        }[self.way]()
        return self.head(torch.tanh(found))


INTEGERS = torch.randint(0, 5, (200, 3), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "way", ["as they are", "by keyword", "turned", "one by one", "in a bag", "by a function"]
)
def test_token_ids_are_known_by_how_they_are_looked_up(way: str) -> None:
    model = Looks(way)
    for rows in (
        INTEGERS,
        INTEGERS.numpy(),
        {"codes": INTEGERS},
        DataLoader([(row,) for row in INTEGERS], 50),
    ):
        with pytest.raises(ValueError, match="token ids at 3 positions"):
            NObSP(model).fit(rows)
    spans = NObSP(model, features={"first two": [0, 1], "last": [2]}).fit(INTEGERS)
    with torch.no_grad():
        check(spans, INTEGERS, model(INTEGERS))
    assert (
        len(
            NObSP(model, features=["a", "b", "c"], interactions=0)
            .fit(INTEGERS)
            .functions_.feature_names
        )
        == 3
    )


@pytest.mark.parametrize("way", ["ranges", "own tables"])
def test_codes_of_categories_are_no_tokens(way: str) -> None:
    for rows in (INTEGERS, {"codes": INTEGERS}):
        explainer = NObSP(Looks(way), interactions=0).fit(rows)
        assert len(explainer.functions_.feature_names) == 3
        again = pickle.loads(pickle.dumps(explainer))  # noqa: S301 - our own bytes
        assert_same_to_rounding(again(rows).values, explainer(rows).values)


@pytest.mark.parametrize("rows", [NUMBERS, [NUMBERS, CODES], NUMBERS.numpy()])
def test_rows_of_one_input_for_a_model_of_two_are_refused_with_what_to_pass(rows: Any) -> None:
    with pytest.raises(
        TypeError, match=r"takes 2 inputs \(x_num, x_cat\).*a tuple \(x_num, x_cat\)"
    ):
        NObSP(TwoInputs()).fit(rows)


def test_an_input_that_is_no_array_is_named() -> None:
    import pandas as pd

    class Sum(torch.nn.Module):
        def forward(self, numbers: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
            return numbers.sum(1, keepdim=True) + codes[:, None]

    inputs = {"numbers": pd.DataFrame({"a": ["x", "y"]}), "codes": torch.arange(2)}
    with pytest.raises(TypeError, match="input 'numbers'"):
        NObSP(Sum()).fit(inputs)


def test_a_function_of_frames_is_told_that_it_gets_arrays() -> None:
    import pandas as pd

    table = pd.DataFrame({"a": [0.0, 1.0, 2.0], "b": [1.0, 0.0, 5.0]})
    with pytest.raises(ValueError, match=r"pd\.DataFrame\(rows"):
        NObSP(lambda rows: rows["a"] + rows["b"]).fit(table)


def test_inputs_that_do_not_fit_are_named_with_what_was_found() -> None:
    torch.manual_seed(1)
    model = TwoInputs()

    with pytest.raises(
        ValueError, match=r"x_num of shape \(rows, 2\) and x_cat of shape \(rows, 3"
    ):
        NObSP(model).fit((CODES, NUMBERS))
    with pytest.raises(ValueError, match=r"lacks the input 'x_cat' .* Rename 'x_cta'"):
        NObSP(model).fit({"x_num": NUMBERS, "x_cta": CODES})
    with pytest.raises(TypeError, match="a list, which is read as batches"):
        NObSP(model).fit([NUMBERS[:2], CODES[:2]])


class ImageAndTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4 * 4 + 2, 1)

    def forward(self, image: Tensor, table: Tensor) -> Any:
        return self.head(torch.cat([image.flatten(1), table], 1))


def test_the_function_of_an_image_takes_images() -> None:
    torch.manual_seed(1)
    images, numbers = torch.rand(60, 1, 4, 4), torch.rand(60, 2)
    function = NObSP(ImageAndTable(), interactions=0).fit((images, numbers))["image"]

    assert_same_to_rounding(function(images[:3]), function(images[:3].flatten(1)))


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_lightgbm_takes_columns_whose_names_have_spaces(kind: str, tmp_path: Path) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    pandas = pytest.importorskip("pandas")
    numbers = np.random.default_rng(0).normal(size=(300, 2))
    table = pandas.DataFrame(numbers, columns=["living area", "age"])
    model = lightgbm.LGBMRegressor(n_estimators=10, verbose=-1).fit(table, numbers.sum(1))
    rows = table[["age", "living area"]]
    if kind == "polars":
        rows = pytest.importorskip("polars").from_pandas(rows)

    explainer = NObSP(model).fit(rows)

    assert explainer.functions_.feature_names == ("living area", "age")
    explanation = check(explainer, rows, torch.tensor(model.predict(table)))
    explainer.save(tmp_path / "areas.nobsp")
    loaded = NObSP.load(tmp_path / "areas.nobsp", model)
    assert_same_to_rounding(loaded(rows).values, explanation.values)


def test_text_that_a_model_cannot_take_is_named() -> None:
    pandas = pytest.importorskip("pandas")
    from sklearn.ensemble import HistGradientBoostingRegressor

    table = pandas.DataFrame({"age": np.arange(60.0), "rooms": np.arange(60.0) % 5})
    model = HistGradientBoostingRegressor(max_iter=3).fit(table, table["age"])

    with pytest.raises(ValueError, match=r"cannot take the rows of X.*'many'.* 'rooms' holds"):
        NObSP(model).fit(table.assign(rooms="many"))


class OfArrays:
    """Fitted on a frame, with methods that take arrays alone."""

    def __init__(self, columns: list[str]) -> None:
        self.feature_names_in_ = np.array(columns)

    def score_rows(self, X: Any) -> Any:
        return X[:, 0] * 2.0 + torch.from_numpy(X[:, 1]).numpy()


def test_a_method_that_takes_arrays_alone_is_given_arrays() -> None:
    pandas = pytest.importorskip("pandas")
    rows = np.random.default_rng(0).normal(size=(100, 2))
    model = OfArrays(["a", "b"])

    of_array = NObSP(model.score_rows).fit(rows)
    of_frame = NObSP(model.score_rows).fit(pandas.DataFrame(rows[:, ::-1], columns=["b", "a"]))

    expected = model.score_rows(rows)
    assert_same_to_rounding(of_array(rows).predictions[:, 0], expected)
    frame = pandas.DataFrame(rows, columns=["a", "b"])
    assert_same_to_rounding(of_frame(frame).predictions[:, 0], expected)
