"""Any model as it comes: does it add up, how much do its functions carry on unseen rows, and what does SHAP take?

Every model is trained here on the training split, in seconds. The explainer gets the model as its own library made it,
calibrates on 2,000 training rows and is judged on test rows. Beside it stands SHAP's explainer for that kind of model:
TreeExplainer for trees, GradientExplainer for plain networks, and otherwise the PermutationExplainer that
`shap.Explainer` picks for functions.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.data import load
from benchmarks.networks import REGRESSION_HIDDEN, feed_forward, train
from benchmarks.report import Cell, Column, Report, Table, options, progress, publish
from nobsp import NObSP

SEED, CALIBRATED, UNSEEN, SHAP_ROWS, SHAP_BACKGROUND = 0, 2_000, 2_000, 20, 100
Peer = Literal["Tree", "Gradient", "Permutation"]
Rows = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A trained model with rows as it takes them, and the same for SHAP: an array and a function of it."""

    name: str
    model: Any
    calibration: Any
    unseen: Any
    peer: Peer
    flat: tuple[Rows, Rows]
    call: Callable[[Rows], Any] | None = None
    given: dict[str, Any] | None = None


class Data:
    """California Housing and Adult, the latter as frames, as one-hot columns and as numbers beside codes."""

    def __init__(self, quick: bool) -> None:
        self.epochs, self.trees = (2, 20) if quick else (30, 200)
        rows = 300 if quick else CALIBRATED
        homes, people = load("california_housing", seed=SEED), load("adult", seed=SEED)
        self.homes, self.people = homes, people
        self.X, self.y = homes.X_train, homes.y_train
        self.known, self.unseen = homes.X_train[:rows], homes.X_test[:UNSEEN]
        self.levels = [columns for columns in people.groups.values() if len(columns) > 1]
        self.numbers = [columns[0] for columns in people.groups.values() if len(columns) == 1]
        fresh = people.X_test[~people.unseen_levels()][:UNSEEN]
        self.split_train = self.split(people.X_train)
        self.split_known, self.split_unseen = self.split(people.X_train[:rows]), self.split(fresh)

    def split(self, X: Rows) -> tuple[Tensor, Tensor]:
        """Numbers, and codes of categories."""
        codes = np.column_stack([X[:, columns].argmax(1) for columns in self.levels])
        return torch.from_numpy(X[:, self.numbers]).float(), torch.from_numpy(codes).long()

    def cardinalities(self) -> list[int]:
        return [len(columns) for columns in self.levels]

    def frames(self) -> tuple[Any, Any]:
        """Adult in its own columns, categories as such; train and test."""
        import pandas as pd

        frames = [pd.DataFrame(raw) for raw in (self.people.raw_train, self.people.raw_test)]
        for frame in frames:
            for name in frame:
                if not pd.api.types.is_numeric_dtype(frame[name]):
                    frame[name] = frame[name].fillna("missing")
        text = [name for name in frames[0] if not pd.api.types.is_numeric_dtype(frames[0][name])]
        for name in text:
            kind = pd.CategoricalDtype(sorted(set(frames[0][name])))
            frames = [frame.assign(**{name: frame[name].astype(kind)}) for frame in frames]
        return frames[0], frames[1].dropna()[:UNSEEN]

    def flat(self) -> tuple[Rows, Rows]:
        return self.known, self.unseen[:SHAP_ROWS]

    def flat_split(self) -> tuple[Rows, Rows]:
        parts = [
            torch.cat([numbers, codes.float()], 1).double().numpy()
            for numbers, codes in self.both()
        ]
        return parts[0], parts[1][:SHAP_ROWS]

    def both(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        return self.split_known, self.split_unseen


# ---------------------------------------------------------------------- networks


class Scaled(nn.Module):
    """The mean of three networks, in the target's own units."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(
            feed_forward(inputs, (32, 32), 1, seed=seed) for seed in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.members]).mean(0) * 1.15 + 2.07


class WideAndDeep(nn.Module):
    """A linear function of the columns beside a network."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.wide, self.deep = (
            nn.Linear(inputs, 1),
            feed_forward(inputs, (64, 32), 1, seed=SEED, activation=nn.SiLU),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(x) + self.deep(x)


def fit_both(model: nn.Module, data: Data) -> nn.Module:
    """Trains a model of numbers and codes on Adult; a model with members trains each of them."""
    numbers, codes = data.split_train
    target = torch.from_numpy(data.people.y_train).float()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=1e-4)
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(max(1, data.epochs // 6)):
        for rows in torch.randperm(len(target), generator=generator).split(256):
            optimizer.zero_grad()
            logits = model(numbers[rows], codes[rows]).reshape(len(rows), -1)
            wanted = target[rows, None].expand_as(logits)
            nn.functional.binary_cross_entropy_with_logits(logits, wanted).backward()
            optimizer.step()
    return model.eval().requires_grad_(False)


def networks(data: Data) -> Iterator[Case]:
    x, y, inputs = torch.tensor(data.X), torch.tensor(data.y)[:, None], data.X.shape[1]
    torch.manual_seed(SEED)
    made: dict[str, nn.Module] = {
        "torch: 128-64 ReLU": feed_forward(inputs, REGRESSION_HIDDEN, 1, seed=SEED),
        "torch: mean of three, scaled": Scaled(inputs),
        "torch: wide & deep": WideAndDeep(inputs),
    }
    for name, model in made.items():
        net = train(model, x, y, seed=SEED, epochs=data.epochs, batch_size=256).float()
        yield Case(name, net, data.known, data.unseen, "Gradient", data.flat())
    import rtdl_revisiting_models as rtdl

    torch.manual_seed(SEED)
    resnet = rtdl.ResNet(
        d_in=inputs,
        d_out=1,
        n_blocks=2,
        d_block=64,
        d_hidden=None,
        d_hidden_multiplier=2.0,
        dropout1=0.1,
        dropout2=0.0,
    )
    resnet = train(resnet, x, y, seed=SEED, epochs=data.epochs, batch_size=256).float()
    yield Case("rtdl: tabular ResNet", resnet, data.known, data.unseen, "Gradient", data.flat())
    for name, both in two_inputs(data, rtdl):
        known, unseen = data.both()

        def call(rows: Rows, both: nn.Module = both) -> Any:
            at = len(data.numbers)
            with torch.no_grad():
                found = both(
                    torch.tensor(rows[:, :at]).float(), torch.tensor(rows[:, at:]).round().long()
                )
            return found.reshape(len(rows), -1).mean(1).numpy()

        yield Case(name, both, known, unseen, "Permutation", data.flat_split(), call)
    import skorch

    torch.manual_seed(SEED)
    module = feed_forward(inputs, (64, 32), 1, seed=SEED)
    net = skorch.NeuralNetRegressor(
        module, max_epochs=data.epochs, lr=0.05, verbose=0, train_split=None
    )
    net.fit(data.X.astype(np.float32), data.y[:, None].astype(np.float32))
    single = data.known.astype(np.float32), data.unseen.astype(np.float32)
    yield Case(
        "skorch",
        net,
        *single,
        "Permutation",
        data.flat(),
        lambda rows: net.predict(rows.astype(np.float32))[:, 0],
    )


def two_inputs(data: Data, rtdl: Any) -> Iterator[tuple[str, nn.Module]]:
    import tabm

    numbers = len(data.numbers)
    torch.manual_seed(SEED)
    transformer = rtdl.FTTransformer(
        n_cont_features=numbers,
        cat_cardinalities=data.cardinalities(),
        d_out=1,
        n_blocks=2,
        d_block=32,
        attention_n_heads=4,
        attention_dropout=0.1,
        ffn_d_hidden_multiplier=4 / 3,
        ffn_dropout=0.1,
        residual_dropout=0.0,
    )
    yield "rtdl: FT-Transformer, two inputs, Adult", fit_both(transformer, data)
    members = tabm.TabM.make(
        n_num_features=numbers, cat_cardinalities=data.cardinalities(), d_out=1, k=16, d_block=128
    )
    yield "TabM, two inputs, Adult", fit_both(members, data)


# ---------------------------------------------------------------------- scikit-learn, trees and functions


def estimators(data: Data) -> Iterator[Case]:
    from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
    from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
    from sklearn.linear_model import LinearRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, SplineTransformer, StandardScaler
    from sklearn.svm import SVR

    def network() -> Any:
        return MLPRegressor(hidden_layer_sizes=(64, 32), max_iter=data.epochs, random_state=SEED)

    scaled = TransformedTargetRegressor(network(), transformer=StandardScaler())
    searched = GridSearchCV(
        make_pipeline(StandardScaler(), network()), {"mlpregressor__alpha": [1e-4, 1e-2]}, cv=2
    )
    few = slice(0, 2000)
    for name, model, rows in (
        (
            "scikit-learn: splines and a linear model",
            make_pipeline(
                SplineTransformer(knots="quantile", extrapolation="linear"), LinearRegression()
            ),
            slice(None),
        ),
        ("scikit-learn: MLPRegressor", network(), slice(None)),
        ("scikit-learn: TransformedTargetRegressor", scaled, slice(None)),
        ("scikit-learn: GridSearchCV of a pipeline", searched, slice(None)),
        ("scikit-learn: SVR (no linear end)", SVR(C=3.0), few),
    ):
        model.fit(data.X[rows], data.y[rows])
        yield Case(name, model, data.known, data.unseen, "Permutation", data.flat(), model.predict)
    for name, model in (
        (
            "scikit-learn: RandomForestRegressor, depth 8",
            RandomForestRegressor(n_estimators=60, max_depth=8, random_state=SEED),
        ),
        (
            "scikit-learn: HistGradientBoosting",
            HistGradientBoostingRegressor(
                max_iter=data.trees, max_leaf_nodes=15, random_state=SEED
            ),
        ),
    ):
        yield Case(name, model.fit(data.X, data.y), data.known, data.unseen, "Tree", data.flat())
    frame, fresh = data.frames()
    text = [name for name in frame if str(frame[name].dtype) == "category"]
    numeric = [name for name in frame if name not in text]
    encoded = ColumnTransformer(
        [("n", StandardScaler(), numeric), ("c", OneHotEncoder(handle_unknown="ignore"), text)]
    )
    pipeline = make_pipeline(
        encoded, MLPClassifier(hidden_layer_sizes=(32, 32), max_iter=data.epochs, random_state=SEED)
    )
    pipeline.fit(frame, data.people.y_train)
    yield frame_case(
        "scikit-learn: pipeline on a frame, Adult", pipeline, frame, fresh, len(data.known)
    )


def frame_case(
    name: str, model: Any, frame: Any, fresh: Any, rows: int, peer: Peer = "Permutation"
) -> Case:
    """SHAP's maskers want numbers, so categories go to it as codes."""
    import pandas as pd

    def codes(part: Any) -> Rows:
        columns = [
            part[one].cat.codes if str(part[one].dtype) == "category" else part[one] for one in part
        ]
        return np.column_stack(columns).astype(np.float64)

    def call(values: Rows) -> Any:
        columns = {
            one: pd.Categorical.from_codes(
                values[:, place].round().astype(int), dtype=frame[one].dtype
            )
            if str(frame[one].dtype) == "category"
            else values[:, place]
            for place, one in enumerate(frame)
        }
        return model.predict_proba(pd.DataFrame(columns))[:, 1]

    return Case(
        name,
        model,
        frame[:rows],
        fresh,
        peer,
        (codes(frame[:rows]), codes(fresh[:SHAP_ROWS])),
        call,
    )


def trees(data: Data) -> Iterator[Case]:
    import catboost
    import lightgbm
    import xgboost
    from interpret.glassbox import ExplainableBoostingRegressor

    given = {"n_estimators": data.trees, "random_state": SEED, "n_jobs": 1}
    cat = {
        "iterations": data.trees,
        "depth": 5,
        "verbose": 0,
        "thread_count": 1,
        "allow_writing_files": False,
    }
    for name, model in (
        ("XGBoost", xgboost.XGBRegressor(max_depth=4, learning_rate=0.1, **given)),
        ("LightGBM", lightgbm.LGBMRegressor(num_leaves=15, verbose=-1, **given)),
        ("CatBoost", catboost.CatBoostRegressor(random_seed=SEED, **cat)),
    ):
        yield Case(name, model.fit(data.X, data.y), data.known, data.unseen, "Tree", data.flat())
    frame, fresh = data.frames()
    boosted = lightgbm.LGBMClassifier(num_leaves=15, verbose=-1, **given).fit(
        frame, data.people.y_train
    )
    yield frame_case(
        "LightGBM, frame with categories, Adult", boosted, frame, fresh, len(data.known)
    )
    one_hot = xgboost.XGBClassifier(max_depth=4, learning_rate=0.1, **given)
    one_hot.fit(data.people.X_train, data.people.y_train)
    known, unseen = (
        data.people.X_train[: len(data.known)],
        data.people.X_test[~data.people.unseen_levels()][:UNSEEN],
    )
    flat = known, unseen[:SHAP_ROWS]
    yield Case(
        "XGBoost, one-hot groups, Adult",
        one_hot,
        known,
        unseen,
        "Tree",
        flat,
        given={"features": data.people.groups},
    )
    ebm = ExplainableBoostingRegressor(
        interactions=5, random_state=SEED, n_jobs=1, outer_bags=2, max_rounds=500
    )
    ebm.fit(data.X, data.y)
    yield Case(
        "EBM with five pairs", ebm, data.known, data.unseen, "Permutation", data.flat(), ebm.predict
    )


def functions(data: Data) -> Iterator[Case]:
    import onnx
    import onnxruntime

    net = train(
        feed_forward(data.X.shape[1], (64, 32), 1, seed=SEED, activation=nn.Tanh),
        torch.tensor(data.X),
        torch.tensor(data.y)[:, None],
        seed=SEED,
        epochs=data.epochs,
        batch_size=256,
    )

    def call(rows: Rows) -> Any:
        with torch.no_grad():
            return net(torch.tensor(np.asarray(rows)))[:, 0].numpy()

    yield Case("a plain function", call, data.known, data.unseen, "Permutation", data.flat(), call)
    layers = [layer for layer in net if isinstance(layer, nn.Linear)]
    nodes, weights, last = [], [], "rows"
    for place, layer in enumerate(layers):
        weights.append(
            onnx.numpy_helper.from_array(layer.weight.detach().float().numpy(), f"w{place}")
        )
        weights.append(
            onnx.numpy_helper.from_array(layer.bias.detach().float().numpy(), f"b{place}")
        )
        nodes.append(
            onnx.helper.make_node("Gemm", [last, f"w{place}", f"b{place}"], [f"z{place}"], transB=1)
        )
        last = f"z{place}"
        if place < len(layers) - 1:
            nodes.append(onnx.helper.make_node("Tanh", [last], [f"a{place}"]))
            last = f"a{place}"
    kind = onnx.TensorProto.FLOAT
    ends = [
        onnx.helper.make_tensor_value_info(name, kind, [None, size])
        for name, size in (("rows", 8), (last, 1))
    ]
    graph = onnx.helper.make_graph(nodes, "net", ends[:1], ends[1:], weights)
    made = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9
    )
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), providers=["CPUExecutionProvider"]
    )

    def run(rows: Rows) -> Any:
        return session.run(None, {"rows": rows.astype(np.float32)})[0][:, 0]

    yield Case("ONNX session", session, data.known, data.unseen, "Permutation", data.flat(), run)


# ---------------------------------------------------------------------- measuring


def shap_seconds(case: Case) -> float:
    """Seconds for the rows, with the explainer made already."""
    import shap

    background, rows = case.flat[0][:SHAP_BACKGROUND], case.flat[1]
    if case.peer == "Tree":
        explainer: Any = shap.TreeExplainer(case.model)
        explain: Callable[[], Any] = lambda: explainer.shap_values(rows)  # noqa: E731
    elif case.peer == "Gradient":
        explainer = shap.GradientExplainer(case.model, torch.tensor(background).float())
        explain = lambda: explainer.shap_values(torch.tensor(rows).float(), nsamples=200)  # noqa: E731
    else:
        explainer = shap.PermutationExplainer(
            case.call, shap.maskers.Independent(background, len(background))
        )
        explain = lambda: explainer(rows, silent=True)  # noqa: E731
    begun = time.process_time()
    explain()
    return time.process_time() - begun


def measure(case: Case) -> tuple[Cell, ...]:
    begun = time.process_time()
    explainer = NObSP(case.model, **(case.given or {})).fit(case.calibration)
    fitted = time.process_time()
    explanation = explainer(case.unseen)
    ours = (time.process_time() - fitted) / len(explanation)
    account = explanation.base_values + explanation.values.sum(1) + explanation.residual
    rounding = (
        np.abs(account - explanation.predictions).max() / np.abs(explanation.predictions).max()
    )
    theirs = shap_seconds(case) / len(case.flat[1])
    fit = fitted - begun
    return (
        case.name,
        len(explanation.feature_names),
        sum(len(term) > 1 for term in explanation.terms),
        float(rounding),
        float(explainer.explained_.mean()),
        float(explanation.explained().mean()),
        fit,
        1e3 * ours,
        case.peer,
        1e3 * theirs,
        fit / (theirs - ours) if theirs > ours else None,
    )


def main() -> None:
    chosen = options((__doc__ or "").splitlines()[0]).parse_args()
    warnings.filterwarnings("ignore")
    data, rows = Data(chosen.quick), []
    for made in (networks, estimators, trees, functions):
        for case in made(data):
            rows.append(measure(case))
            progress(" ".join(str(cell) for cell in rows[-1]))
    weakest = min(rows, key=lambda row: row[5])
    worst = max(rows, key=lambda row: row[3])
    table = Table(
        "One row a model; California Housing where nothing else is said",
        (
            Column("model"),
            Column("features", "d"),
            Column("pairs and triples", "d"),
            Column("account off by", ".0e"),
            Column("share explained, stated", ".3f"),
            Column("share explained, unseen rows", ".3f"),
            Column("calibrate, s", ".1f"),
            Column("explain, ms a row", ".2f"),
            Column("SHAP"),
            Column("SHAP, ms a row", ".2f"),
            Column("rows until calibration has paid", ".0f"),
        ),
        tuple(rows),
        "Each is one line: NObSP(model).fit(X), once with groups of columns. Account: base + terms + residual against "
        "the output, relative to the largest. Stated: what the explainer says of itself. Rows until calibration has "
        "paid: those for which SHAP, asked for 20 rows at once, takes as long as calibration. Times are of the "
        "processor, which other work on the machine does not lengthen.",
    )
    report = Report(
        name="models",
        title="Any model as it comes",
        tables=(table,),
        findings=(
            f"All {len(rows)} models are taken as they are; their accounts add up to {worst[3]:.0e} at worst.",
            f"The functions, pairs and triples carry least of {weakest[0]}: {weakest[5]:.1%} on unseen rows.",
        ),
        seeds=(SEED,),
        settings={
            "calibration rows": len(data.known),
            "unseen rows": UNSEEN,
            "SHAP's background": SHAP_BACKGROUND,
        },
        packages=(
            "scikit-learn",
            "shap",
            "xgboost-cpu",
            "lightgbm",
            "catboost",
            "tabm",
            "rtdl-revisiting-models",
        ),
    )
    publish(report, chosen)


if __name__ == "__main__":
    main()
