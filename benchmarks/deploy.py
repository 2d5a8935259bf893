"""Functions as a model of their own: parity of exports, speed, labels, edits and the fewest features.

Parity asks every export the same as Python: each model of `models`, trained for seconds, on rows as they are, with
missing numbers and with levels that were not seen; and a pipeline with booleans and text. EBMs are exported by ebm2onnx
on rows of the same kinds. Labels compares teacher, functions, corrected functions and an EBM of the labels on the same
test rows. Fewest features are judged by a new model that is fitted to the teacher's outputs with the kept columns only,
whoever chose them. With `--parts` every part has a table of its own.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import models
from benchmarks.data import load
from benchmarks.report import Cell, Column, Report, Table, options, progress, publish
from nobsp import Functions, NObSP
from nobsp.estimators.correcting import correct

SEED = 0
PARTS = ["parity", "speed", "labels", "fewest"]
BACKENDS = ("ONNX Runtime", "DuckDB", "SQLite", "Node")
ALLOWED = {"ONNX Runtime": 1e-6, "DuckDB": 1e-12, "SQLite": 1e-12, "Node": 1e-12}
TABLES_OF_LABELS = ("adult", "bank_marketing", "german_credit", "california_housing")
TABLES_OF_FEATURES = (*TABLES_OF_LABELS, "covertype", "breast_cancer", "wine", "diabetes", "iris")
NODE = """
import {readFileSync} from "node:fs";
const functions = await import(process.argv[2]);
const rows = JSON.parse(readFileSync(process.argv[3], "utf-8"));
console.log(JSON.stringify(rows.map((row) => functions.contributions(row).map((part) => part.contributions))));
"""


# ---------------------------------------------------------------------- exports


def ask_onnx(functions: Functions, rows: pd.DataFrame, folder: Path) -> Any:
    import onnxruntime

    path = folder / "functions.onnx"
    functions.to_onnx(path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["contributions"], functions.onnx_inputs(rows))[0]


def ask_sql(functions: Functions, result: pd.DataFrame) -> Any:
    names = [name for name in result.columns if name.startswith("contribution of ")]
    values = result.sort_values("nobsp_key")[names].to_numpy(dtype=np.float64)
    return values.reshape(len(result), len(functions.output_names), -1).transpose(0, 2, 1)


def ask_duckdb(functions: Functions, rows: pd.DataFrame, _: Path) -> Any:
    import duckdb

    keyed = rows.assign(nobsp_key=np.arange(len(rows)))
    with duckdb.connect() as database:
        database.register("frame", keyed)
        database.execute("CREATE TABLE people AS SELECT * FROM frame")
        select = functions.to_sql("people", dialect="duckdb", keep=["nobsp_key"])
        return ask_sql(functions, database.execute(select).df())


def ask_sqlite(functions: Functions, rows: pd.DataFrame, _: Path) -> Any:
    keyed = rows.assign(nobsp_key=np.arange(len(rows)))
    database = sqlite3.connect(":memory:")
    keyed.to_sql("people", database, index=False)
    select = functions.to_sql("people", dialect="sqlite", keep=["nobsp_key"])
    result = pd.read_sql_query(select, database)
    database.close()
    return ask_sql(functions, result)


def ask_node(functions: Functions, rows: pd.DataFrame, folder: Path) -> Any:
    node = shutil.which("node")
    if node is None:
        raise RuntimeError("Node is not installed")
    (folder / "functions.mjs").write_text(functions.to_javascript(), encoding="utf-8")
    (folder / "program.mjs").write_text(NODE, encoding="utf-8")
    records = json.loads(rows.to_json(orient="records", double_precision=15))
    exact = rows.to_dict("records")
    for record, own in zip(records, exact, strict=True):
        for name, cell in own.items():
            if isinstance(cell, float):
                record[name] = None if np.isnan(cell) else cell
    (folder / "rows.json").write_text(json.dumps(records), encoding="utf-8")
    words = [node, "program.mjs", "./functions.mjs", "rows.json"]
    finished = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    return np.array(json.loads(finished.stdout))


ASK: dict[str, Callable[[Functions, pd.DataFrame, Path], Any]] = {
    "ONNX Runtime": ask_onnx,
    "DuckDB": ask_duckdb,
    "SQLite": ask_sqlite,
    "Node": ask_node,
}


def as_frame(functions: Functions, rows: Any) -> pd.DataFrame:
    """Rows of any kind as a frame with the functions' columns; categories as text."""
    if isinstance(rows, tuple):
        rows = np.hstack([part.double().numpy() for part in rows])
    if not isinstance(rows, pd.DataFrame):
        rows = pd.DataFrame(np.asarray(rows, dtype=np.float64), columns=functions.named_columns())
    frame = rows.reset_index(drop=True).copy()
    for name in frame:
        if not pd.api.types.is_numeric_dtype(frame[name]):
            frame[name] = frame[name].astype(object)
    return frame


def kinds_of_rows(functions: Functions, frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The same rows with everything that goes wrong in tables."""
    generator = np.random.default_rng(SEED)
    single = frame.copy()
    for name in single.select_dtypes("float64"):
        single[name] = single[name].astype(np.float32)
    yield "as they are", single

    numbers = [f.columns[0] for f in functions.features if f.kind == "number"]
    missing = single.copy()
    for column in numbers:
        absent = generator.random(len(frame)) < 0.1
        name = missing.columns[column]
        if missing[name].dtype.kind == "f":
            missing.loc[absent, name] = np.nan
    yield "missing numbers", missing

    unseen = single.copy()
    changed = False
    for name in unseen:
        if unseen[name].dtype == object:
            unseen.loc[generator.random(len(frame)) < 0.1, name] = "never seen; '\""
            changed = True
    if changed:
        yield "unseen levels", unseen


def pipelines(_: Any) -> Iterator[models.Case]:
    """Numbers, booleans and text in one frame."""
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    generator = np.random.default_rng(SEED)
    frame = pd.DataFrame(
        {
            "age": generator.normal(40, 10, 600),
            "member": generator.random(600) < 0.4,
            "town": generator.choice(["Bern", "O'Hara", 'say "x"'], 600),
        }
    )
    target = frame["age"] / 10 + 2 * frame["member"] + (frame["town"] == "Bern") > 5.5
    encoder = make_column_transformer(
        (StandardScaler(), ["age"]),
        (OneHotEncoder(handle_unknown="ignore"), ["town"]),
        remainder="passthrough",
    )
    model = make_pipeline(encoder, LogisticRegression()).fit(frame, target)
    flat = (np.zeros((1, 1)), np.zeros((1, 1)))
    yield models.Case(
        "pipeline with booleans and text", model, frame[:400], frame[400:], "Permutation", flat
    )


def deviation(found: Any, expected: Any) -> float:
    """Largest difference, relative to the largest contribution."""
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-300))


def parity(quick: bool) -> Table:
    data = models.Data(True)
    rows: list[tuple[Cell, ...]] = []
    makers = (pipelines, models.estimators, models.trees, models.networks, models.functions)
    for maker in makers[:1] if quick else makers:
        for case in maker(data):
            explainer = NObSP(
                case.model, interactions=4, max_forward_rows=200_000, **(case.given or {})
            ).fit(case.calibration)
            functions = explainer.compile()
            fresh = case.unseen
            if isinstance(fresh, tuple):
                fresh = tuple(part[:200] for part in fresh)
            else:
                fresh = fresh[:200]
            for kind, frame in kinds_of_rows(functions, as_frame(functions, fresh)):
                expected = functions(frame).values
                cells: list[Cell] = []
                for backend in BACKENDS:
                    with tempfile.TemporaryDirectory() as folder:
                        try:
                            found = ASK[backend](functions, frame, Path(folder))
                            cells.append(deviation(found, expected))
                        except Exception as failure:  # noqa: BLE001 - counted and shown
                            cells.append(type(failure).__name__)
                            progress(f"{case.name} {backend}: {failure}")
                rows.append((case.name, kind, len(functions.tables), *cells))
                progress(str(rows[-1]))
    columns = (Column("model"), Column("rows"), Column("terms", "d"))
    return Table(
        "Contributions of every export beside Python's: largest difference, relative to the largest contribution",
        (*columns, *(Column(backend, ".0e") for backend in BACKENDS)),
        tuple(rows),
        "Inputs in single precision, 200 unseen rows each; four pairs a model. Allowed are 1e-6 for ONNX Runtime and "
        "1e-12 for the others. Dates have no function and are refused by `fit`.",
    )


def parity_of_ebms() -> Table:
    """ebm2onnx on rows of the same kinds."""
    from interpret.glassbox import ExplainableBoostingClassifier, ExplainableBoostingRegressor

    generator = np.random.default_rng(SEED)
    frame = pd.DataFrame(
        {
            "age": generator.normal(40, 10, 500),
            "member": generator.random(500) < 0.4,
            "town": generator.choice(["Bern", "O'Hara", 'say "x"'], 500),
        }
    )
    target = frame["age"] / 10 + 2 * frame["member"] + (frame["town"] == "Bern")
    settings = {"interactions": 2, "outer_bags": 1, "max_rounds": 50, "n_jobs": 1}
    regressor = ExplainableBoostingRegressor(**settings).fit(frame, target)
    classifier = ExplainableBoostingClassifier(**settings).fit(frame, target > 5)
    unseen = frame.assign(town="never seen")
    missing = frame.assign(age=np.where(generator.random(500) < 0.2, np.nan, frame["age"]))
    tables = {"as they are": frame, "missing numbers": missing, "unseen levels": unseen}
    rows: list[tuple[Cell, ...]] = []
    for kind, table in tables.items():
        cells: list[Cell] = []
        for ebm in (regressor, classifier):
            try:
                cells.append(_by_ebm2onnx(ebm, table))
            except Exception as failure:  # noqa: BLE001 - counted and shown
                cells.append(f"{type(failure).__name__}: {str(failure)[:70]}")
        rows.append((kind, *cells))
        progress(str(rows[-1]))
    return Table(
        "EBMs of numbers, booleans and text by ebm2onnx: largest difference to their own predictions",
        (Column("rows"), Column("regressor", ".0e"), Column("classifier", ".0e")),
        tuple(rows),
        "Types are named by hand: ebm2onnx's own reader does not know pandas' text columns.",
    )


def _by_ebm2onnx(ebm: Any, table: pd.DataFrame) -> float:
    """How far an exported EBM is from itself."""
    import ebm2onnx
    import onnxruntime

    types = {"age": "double", "member": "bool", "town": "str"}
    classify = hasattr(ebm, "predict_proba")
    made = ebm2onnx.to_onnx(ebm, types, predict_proba=classify)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    inputs = {
        "age": table["age"].to_numpy(),
        "member": table["member"].to_numpy(),
        "town": np.array(table["town"].tolist(), dtype=object),
    }
    expected = np.asarray(ebm.predict_proba(table) if classify else ebm.predict(table))
    results = [np.asarray(result) for result in session.run(None, inputs)]
    # Beside labels there are probabilities; which output they are differs from version to version.
    of_size = [result for result in results if result.size == expected.size]
    return deviation(of_size[0].reshape(expected.shape), expected)


# ---------------------------------------------------------------------- speed


def rate(work: Callable[[], Any], n_rows: int) -> float:
    """Rows a second, the best of three."""
    work()
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return n_rows / min(seconds)


def speed(quick: bool) -> Table:
    import duckdb
    import onnxruntime
    import xgboost
    from interpret.glassbox import ExplainableBoostingRegressor

    homes = load("california_housing", seed=SEED)
    names = [f"x{k}" for k in range(homes.X_train.shape[1])]
    train = pd.DataFrame(homes.X_train, columns=names)
    copies = 1 if quick else 5
    big = pd.concat([pd.DataFrame(homes.X_test, columns=names)] * copies, ignore_index=True)
    model = xgboost.XGBRegressor(n_estimators=200, max_depth=4, n_jobs=1).fit(train, homes.y_train)
    functions = NObSP(model).fit(train[:2000]).compile()
    ebm = ExplainableBoostingRegressor(interactions=10, outer_bags=2, max_rounds=300, n_jobs=1)
    ebm.fit(train[:2000], homes.y_train[:2000])

    rows: list[tuple[Cell, ...]] = []
    matrix = big.to_numpy()
    rows.append(("XGBoost itself, 200 trees", rate(lambda: model.predict(big), len(big)), None))
    rows.append(("EBM, ten pairs", rate(lambda: ebm.predict(matrix), len(big)), None))
    rows.append(("Functions.predict", rate(lambda: functions.predict(matrix), len(big)), None))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "functions.onnx"
        functions.to_onnx(path)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(path), settings)
        inputs = functions.onnx_inputs(big)
        per_second = rate(lambda: session.run(["prediction"], inputs), len(big))
        rows.append(("ONNX Runtime", per_second, path.stat().st_size / 1e3))
    with duckdb.connect() as database:
        database.execute("SET threads = 1")
        database.register("frame", big)
        database.execute("CREATE TABLE homes AS SELECT * FROM frame")
        select = functions.to_sql("homes", contributions=False)
        per_second = rate(lambda: database.execute(select).fetchnumpy(), len(big))
        rows.append(("DuckDB", per_second, len(select) / 1e3))
    connection = sqlite3.connect(":memory:")
    few = big[:4000]
    few.to_sql("homes", connection, index=False)
    select = functions.to_sql("homes", dialect="sqlite", contributions=False)
    per_second = rate(lambda: connection.execute(select).fetchall(), len(few))
    rows.append(("SQLite", per_second, len(select) / 1e3))
    connection.close()
    n_nodes = sum(table.values[..., 0].size for table in functions.tables)
    return Table(
        f"California Housing, {len(functions.tables)} terms, {n_nodes:,} nodes: rows a second on one thread",
        (Column("what"), Column("rows a second", ",.0f"), Column("file or statement, kB", ",.0f")),
        tuple(rows),
        "The machine was busy with other work meanwhile; rates compare with each other, not with other machines.",
    )


# ---------------------------------------------------------------------- labels and edits


def coded(name: str, rows: int | None = None) -> tuple[pd.DataFrame, Any, pd.DataFrame, Any, bool]:
    """A table with one column a feature, categories as codes: training and test rows with labels."""
    data = load(name, seed=SEED)
    train = pd.DataFrame(data.raw_train)
    test = pd.DataFrame(data.raw_test)
    for column in train:
        if not pd.api.types.is_numeric_dtype(train[column]):
            levels = sorted(set(train[column].dropna()))
            train[column] = pd.Categorical(train[column], levels).codes.astype(float)
            test[column] = pd.Categorical(test[column], levels).codes.astype(float)
    train = train.astype(float).fillna(train.median(numeric_only=True))
    test = test.astype(float).fillna(train.median(numeric_only=True))
    classify = data.task == "classification"
    limit = rows or len(train)
    return train[:limit], data.y_train[:limit], test[:3000], data.y_test[:3000], classify


def teacher_for(classify: bool, **settings: Any) -> Any:
    import xgboost

    kind = xgboost.XGBClassifier if classify else xgboost.XGBRegressor
    chosen = {"n_estimators": 150, "max_depth": 4, "learning_rate": 0.1, "n_jobs": 1}
    return kind(random_state=SEED, **(chosen | settings))


def quality(predicted: Any, labels: Any, classify: bool) -> float:
    """AUROC of a class, or R²."""
    from sklearn.metrics import r2_score, roc_auc_score

    return float((roc_auc_score if classify else r2_score)(labels, predicted))


def labels(quick: bool) -> tuple[Table, Table]:
    from interpret.glassbox import ExplainableBoostingClassifier, ExplainableBoostingRegressor

    rows: list[tuple[Cell, ...]] = []
    edits: list[tuple[Cell, ...]] = []
    for name in TABLES_OF_LABELS[2:3] if quick else TABLES_OF_LABELS:
        X, y, fresh, truth, classify = coded(name, 5000)
        n_teacher = int(0.75 * len(X))
        teacher = teacher_for(classify).fit(X[:n_teacher], y[:n_teacher])
        functions = NObSP(teacher).fit(X[:n_teacher][:2000]).compile()
        mended, correction = correct(functions, X[n_teacher:], y[n_teacher:])
        kind = ExplainableBoostingClassifier if classify else ExplainableBoostingRegressor
        ebm = kind(interactions=10, outer_bags=4, max_rounds=1000, n_jobs=1, random_state=SEED)
        ebm.fit(X, y)

        def said(model: Any, table: pd.DataFrame, classify: bool = classify) -> Any:
            return model.predict_proba(table)[:, 1] if classify else model.predict(table)

        rows.append(
            (
                name,
                len(X),
                *(quality(said(m, fresh), truth, classify) for m in (teacher, functions, mended)),
                quality(said(ebm, fresh), truth, classify),
                float(functions.fidelity(fresh, teacher)),
                bool(np.isfinite(correction.strength)),
            )
        )
        progress(str(rows[-1]))
        edits.append(edit_row(name, X, fresh, truth, functions, ebm, said, classify))
        progress(str(edits[-1]))
    first = Table(
        "Labels of unseen rows: AUROC, or R² for California",
        (
            Column("table"),
            Column("rows", "d"),
            Column("teacher (XGBoost)", ".4f"),
            Column("functions", ".4f"),
            Column("corrected", ".4f"),
            Column("EBM of the labels", ".4f"),
            Column("fidelity to the teacher", ".3f"),
            Column("step taken"),
        ),
        tuple(rows),
        "Teacher on three quarters of the training rows, at most 5,000 in all; its functions from 2,000 of them, "
        "corrected by labels of the last quarter. The EBM has all rows.",
    )
    second = Table(
        "A function made to rise: AUROC or R² on unseen rows before and after, beside EBM's monotonize",
        (
            Column("table"),
            Column("feature"),
            Column("functions", ".4f"),
            Column("increasing", ".4f"),
            Column("rows that fall before", ".0%"),
            Column("after", ".0%"),
            Column("EBM", ".4f"),
            Column("monotonized", ".4f"),
            Column("rows that fall after monotonize", ".0%"),
        ),
        tuple(edits),
        "Feature: the number whose function rises most. Rows that fall: share of 200 unseen rows whose prediction "
        "falls along the feature's range, the others as they are. EBM's monotonize leaves interactions alone.",
    )
    return first, second


def edit_row(
    name: str,
    X: Any,
    fresh: Any,
    truth: Any,
    functions: Functions,
    ebm: Any,
    said: Callable[..., Any],
    classify: bool,
) -> tuple[Cell, ...]:
    import copy

    numbers = [f for f in functions.features if f.kind == "number" and f.span]
    rises = []
    for feature in numbers:
        low, high = feature.span or (0.0, 1.0)
        ends = functions.function(feature.name)(np.linspace(low, high, 50))
        rises.append(float(ends[-10:].mean() - ends[:10].mean()))
    chosen = numbers[int(np.argmax(rises))]
    edited = functions.edit(chosen.name, "increasing", X)
    rising = copy.deepcopy(ebm)
    rising.monotonize(list(X.columns).index(chosen.name), increasing="auto")

    line = np.linspace(*(chosen.span or (0.0, 1.0)), 40)
    rows = fresh[:200]

    def falls(model: Any) -> float:
        repeated = rows.loc[rows.index.repeat(len(line))].copy()
        repeated[chosen.name] = np.tile(line, len(rows))
        values = np.asarray(said(model, repeated)).reshape(len(rows), -1)
        return float((np.diff(values, axis=1).min(1) < -1e-9).mean())

    return (
        name,
        chosen.name,
        quality(said(functions, fresh), truth, classify),
        quality(said(edited, fresh), truth, classify),
        falls(functions),
        falls(edited),
        quality(said(ebm, fresh), truth, classify),
        quality(said(rising, fresh), truth, classify),
        falls(rising),
    )


# ---------------------------------------------------------------------- fewest features


def fewest(quick: bool) -> Table:
    import shap
    from sklearn.feature_selection import RFE
    from sklearn.inspection import permutation_importance

    rows: list[tuple[Cell, ...]] = []
    for name in TABLES_OF_FEATURES[2:3] if quick else TABLES_OF_FEATURES:
        X, y, fresh, _, classify = coded(name, 3000)
        if classify:
            y = (y == np.unique(y)[-1]).astype(int)
        teacher = teacher_for(classify, n_estimators=80).fit(X, y)

        def outputs(table: Any, model: Any = teacher, classify: bool = classify) -> Any:
            return model.predict(table, output_margin=True) if classify else model.predict(table)

        explainer = NObSP(teacher, max_forward_rows=40_000).fit(X[:1500])
        found = explainer.fewest_features(0.98, X=X)
        ours = list(reversed(found.order))
        drawn = permutation_importance(teacher, X, y, n_repeats=3, random_state=SEED)
        shapley = np.abs(shap.TreeExplainer(teacher).shap_values(X[:1000])).mean(0)
        eliminated = RFE(teacher_for(False, n_estimators=40), n_features_to_select=1)
        eliminated.fit(X, outputs(X))
        names = np.array(X.columns)
        rankings = {
            "ours": ours,
            "permutation": list(names[np.argsort(-drawn.importances_mean)]),
            "SHAP": list(names[np.argsort(-shapley)]),
            "RFE": list(names[np.argsort(eliminated.ranking_)]),
        }
        for share in (0.25, 0.5):
            k = max(1, round(share * len(names)))
            kept = []
            for ranking in rankings.values():
                columns = ranking[:k]
                judge = teacher_for(False, n_estimators=100).fit(X[columns], outputs(X))
                kept.append(quality(judge.predict(fresh[columns]), outputs(fresh), False))
            rows.append((name, len(names), k, *kept, len(found.features)))
            progress(str(rows[-1]))
    return Table(
        "R² of a new model of the kept columns alone with the teacher's outputs, unseen rows",
        (
            Column("table"),
            Column("features", "d"),
            Column("kept", "d"),
            Column("unique contribution", ".3f"),
            Column("permutation importance", ".3f"),
            Column("SHAP", ".3f"),
            Column("RFE", ".3f"),
            Column("enough for 98%", "d"),
        ),
        tuple(rows),
        "Teacher: XGBoost on 3,000 rows, one class against the others. Who chose the columns differs, the judge is the "
        "same. Enough: features that explain 98% of what all do, the others taking over.",
    )


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    tables: list[Table] = []
    findings: list[str] = []
    if "parity" in chosen.parts:
        compared = parity(chosen.quick)
        cells = [
            (backend, row[3 + k]) for row in compared.rows for k, backend in enumerate(BACKENDS)
        ]
        passed = sum(isinstance(c, float) and c <= ALLOWED[b] for b, c in cells)
        findings.append(
            f"{passed} of {len(cells)} cells of the parity table are within their bounds."
        )
        tables += [compared, parity_of_ebms()]
    if "speed" in chosen.parts:
        tables.append(speed(chosen.quick))
    if "labels" in chosen.parts:
        tables += labels(chosen.quick)
    if "fewest" in chosen.parts:
        table = fewest(chosen.quick)
        best = sum(row[3] >= max(row[4:7]) - 0.005 for row in table.rows)  # type: ignore[operator, type-var]
        findings.append(
            f"Unique contribution is best or within 0.005 of it in {best} of {len(table.rows)} cases."
        )
        tables.append(table)
    report = Report(
        name="-".join(["deploy", *([] if set(chosen.parts) == set(PARTS) else chosen.parts)]),
        title="Functions as a model of their own",
        tables=tuple(tables),
        findings=tuple(findings),
        seeds=(SEED,),
        settings={"parts": ", ".join(chosen.parts)},
        packages=("duckdb", "ebm2onnx", "interpret-core", "onnxruntime", "shap", "xgboost-cpu"),
    )
    publish(report, chosen)


if __name__ == "__main__":
    main()
