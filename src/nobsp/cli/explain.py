"""`nobsp explain`: a model and a table in, the functions the model has learned out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from cyclopts import Parameter
from numpy.typing import NDArray

from nobsp._typing import AnyArray, ArrayLike, FloatArray
from nobsp.arguments import count, free_name, number_outputs, suggest, with_minus
from nobsp.cli.grouping import group_columns
from nobsp.cli.inputs import (
    Data,
    Loaded,
    add_hint,
    load_model,
    read_table,
    write_csv,
)
from nobsp.cli.options import (
    METHOD,
    Console,
    ModelOptions,
    Names,
    OutputOptions,
    TableOptions,
    UsageError,
    split_names,
)
from nobsp.findings import Finding, describe_findings

if TYPE_CHECKING:
    from nobsp import Functions, NObSP
    from nobsp.tabular import Explanation
    from nobsp.tabular.health import Health

FILES = ("contributions.parquet", "curves.csv", "explainer.nobsp", "report.html")
# Rows with which exported programs are made modules.
_EXAMPLE_ROWS = 256


@Parameter(name="*", group=METHOD)
@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """How the functions are found."""

    calibrate: Path | None = None
    """Rows to calibrate on, best fresh ones (default: those of --data)."""
    interactions: Names = None
    """auto (default), a number of pairs, 0 for none, or pairs such as age:income."""
    background: int = 32
    """Rows that effects are averaged over."""
    max_forward_rows: int | None = None
    """Most rows sent through the model to calibrate (default: no limit)."""
    baseline: Literal["mean", "zero", "median", "mode"] = "mean"
    """The point that changes are measured from."""
    reference: Literal["terms", "complement"] = "terms"
    """Fit all terms together, or one by one as in the paper's Algorithm 1."""
    ridge: str = "auto"
    """Regularisation: auto, chosen on held-out rows, or a number."""
    probability: bool = False
    """Of the probability instead of the logit: contributions in contributions.parquet (a page has a
    switch for it), gaps that are compared, shapes that are checked."""

    def for_explainer(self) -> dict[str, Any]:
        """Arguments of `NObSP`."""
        passed = self.interactions or ["auto"]
        interactions: Any = [tuple(word.split(":")) for word in passed]
        if len(passed) == 1 and (passed[0] == "auto" or passed[0].isdigit()):
            interactions = "auto" if passed[0] == "auto" else int(passed[0])
        elif not all(len(pair) > 1 and all(pair) for pair in interactions):
            raise UsageError(
                f"--interactions {' '.join(passed)}: write auto, a number, or pairs such as "
                "age:income."
            )
        try:
            ridge = "auto" if self.ridge == "auto" else float(self.ridge)
        except ValueError:
            raise UsageError(f"--ridge must be auto or a number, found {self.ridge!r}.") from None
        choices = {
            "background": self.background,
            "max_forward_rows": self.max_forward_rows,
            "baseline": self.baseline,
            "reference": self.reference,
        }
        return {**choices, "interactions": interactions, "ridge": ridge}


def explain(
    *,
    model: ModelOptions,
    table: TableOptions,
    method: MethodOptions = MethodOptions(),
    output: OutputOptions,
    console: Console = Console(),
) -> None:
    """Explain a model on a table.

    Finds what each feature, and each interaction that matters, adds to every prediction. The folder
    of --out gets **report.html** (everything to look at, with what-if sliders; works offline),
    **contributions.parquet** (base, every term, residual and prediction, per row and output),
    **curves.csv** (every feature's average effect with its band) and **explainer.nobsp** (the
    calibration without its rows, for `nobsp.NObSP.load`).
    """
    from nobsp.tabular.health import ExplainedWorseWarning

    choices = method.for_explainer()
    with output.write(FILES) as folder, model.limit_threads(1):
        console.step(f"reading {table.data}")
        loaded = load_model(model)
        rows, others = read_tables(table, method.calibrate, loaded)
        _require_features(choices["interactions"], rows, others)

        explainer = fit_explainer(model, table, loaded, others, console, **choices)
        console.step(f"explaining {count(len(rows.rows), 'row')}")
        with warnings.catch_warnings():
            # The summary and the page have it among their findings.
            warnings.simplefilter("ignore", ExplainedWorseWarning)
            explanation = explainer(rows.rows, progress=console.progress)

        summary = _summarise(output, rows, others, explainer, explanation)
        console.warn(summary["predicts"] and summary["predicts"]["warning"])
        account = (
            _probabilities(explanation, summary["predicts"]) if method.probability else explanation
        )
        if method.probability:
            summary["health"] += [asdict(finding) for finding in account.findings]

        write_contributions(folder / "contributions.parquet", account)
        curves = explainer.curves()
        write_csv(folder / "curves.csv", {str(name): list(curves[name]) for name in curves})
        explainer.save(folder / "explainer.nobsp")
        if output.report:
            console.step("writing the report")
            from nobsp.reporting import report

            same = "the same rows" if others is rows else others.where
            about = f"{loaded.name} ({loaded.origin}) on {rows.where}, calibrated on {same}. "
            about += _describe_score(summary["predicts"])
            title = output.title or f"What {loaded.name} has learned"
            report(
                explanation,
                folder / "report.html",
                title=title,
                about=about,
                labels=rows.labels,
                explainer=explainer,
            )
    console.show(summary, _describe)


def _require_features(interactions: Any, rows: Data, others: Data) -> None:
    """A usage error where an interaction names a feature that is not there."""
    columns = list(rows.rows.columns)
    features = list(group_columns(columns, others.features) or columns)
    pairs = interactions if isinstance(interactions, list) else []
    for name in (name for pair in pairs for name in pair if name not in features):
        raise UsageError(f"--interactions: there is no feature {name!r}; {suggest(name, features)}")


def read_tables(
    options: TableOptions, calibrate: Path | None, loaded: Loaded, *, need_target: bool = False
) -> tuple[Data, Data]:
    """The rows to explain and those to calibrate on, which may be the same."""
    rows = read_table(
        options.data,
        options,
        option="--data",
        known=loaded.feature_names,
        is_calibrated_on=calibrate is None,
    )
    if calibrate is None:
        return rows, rows

    calibration = read_table(
        calibrate,
        options,
        option="--calibrate",
        known=loaded.feature_names,
        need_target=need_target,
    )
    return rows, calibration


def fit_explainer(
    model: ModelOptions,
    options: TableOptions,
    loaded: Loaded,
    table: Data,
    console: Console,
    **choices: Any,
) -> NObSP:
    """The calibrated explainer; errors of its health check go to stderr at once."""
    from nobsp import NObSP
    from nobsp.network.batches import batches_of

    columns = list(table.rows.columns)
    some = ", ".join(columns if len(columns) <= 8 else [*columns[:6], "…", columns[-1]])
    choose = (
        "choose with --features"
        if options.target
        else "name the target with --target, or choose with --features"
    )
    console.step(f"calibrating on {count(len(table.rows), 'row')} of {len(columns)} columns")
    hint = f"{len(columns)} columns were given ({some}); {choose}."
    with add_hint(hint), warnings.catch_warnings(record=True) as caught:
        explainer = NObSP(
            loaded.prepare(
                lambda: next(
                    iter(batches_of(table.rows, batch_size=_EXAMPLE_ROWS, argument="--data"))
                )
            ),
            features=group_columns(columns, table.features),
            head=model.head,
            output_names=split_names(model.output_names),
            device=model.device,
            batch_size=model.batch_size or 4096,
            **choices,
        ).fit(table.rows, groups=table.groups, progress=console.progress)
    errors = [
        f"{f.subject}: {f.message}" for f in explainer.health().findings if f.severity == "error"
    ]
    for error in errors:
        console.error(f"nobsp: error: {error}")
    for warning in caught:
        if str(warning.message) not in errors:
            console.note(warning.message)
    return explainer


def write_contributions(path: Path, explanation: Explanation) -> None:
    """One line per row and output: base, terms, residual, prediction, and whether out of range.

    `far` marks rows whose single values are in range but whose combination is far from all
    calibration rows.
    """
    import pyarrow as pa
    import pyarrow.parquet

    def table(output: str) -> pa.Table:
        terms = {str(k): np.asarray(v) for k, v in explanation.to_frame(output).items()}
        # Features may be called like this too.
        row, name, outside, far = (
            free_name(word, terms) for word in ("row", "output", "outside", "far")
        )
        before = {row: np.arange(len(explanation)), name: np.full(len(explanation), output)}
        after = {outside: explanation.outside.any(1), far: explanation.far}
        return pa.table({**before, **terms, **after})

    first, *others = explanation.output_names  # one after another, so that not all are in memory
    first_table = table(first)
    with pyarrow.parquet.ParquetWriter(path, first_table.schema, compression="zstd") as writer:
        writer.write_table(first_table)
        for output in others:
            writer.write_table(table(output))


def score_predictions(
    logits: NDArray[np.float64],
    labels: ArrayLike,
    *,
    target: str,
    output_names: Sequence[str],
    link: str,
) -> dict[str, Any]:
    """Compares outputs with a column: R² for numbers, accuracy for classes, otherwise neither.

    A single output is a logit where a sigmoid follows, or where the column takes two values; a
    network may also have been trained to give the two values themselves, so that the better of both
    counts.
    """
    known = labels.notna().to_numpy() & np.isfinite(logits).all(1)
    column = _Column.of(labels[known].to_numpy(), target)
    names = [str(name) for name in output_names]
    if len(names) > 1:
        comparisons = _compare_outputs(logits[known], column, names)
    else:
        comparisons = _compare_output(logits[known][:, 0], column, names[0], link)

    scores = [score for score in map(_score, comparisons) if score is not None]
    if not scores:
        return {"target": target, "measure": None, "value": None, "warning": None}
    best = next((score for score in scores if not score.as_good), scores[0])
    result = {"target": target, "measure": best.measure, "value": best.value, "warning": None}
    if best.as_good:
        sentence = _describe_score(result).rstrip(".")
        result["warning"] = (
            f"{sentence}, no better than {best.as_good}; is the order of the columns right?"
        )
    return result


class _Column(NamedTuple):
    """A column that predictions are compared with."""

    name: str
    values: AnyArray
    texts: AnyArray  # the same as names are written
    classes: set[str]  # those that occur
    is_numeric: bool

    @classmethod
    def of(cls, values: AnyArray, name: str) -> _Column:
        texts = np.array([_as_text(value) for value in values.tolist()])
        return cls(name, values, texts, set(texts.tolist()), values.dtype.kind in "iufb")


class _Comparison(NamedTuple):
    """What is measured, the truth and what is predicted."""

    measure: str
    truth: AnyArray
    predicted: AnyArray


class _Score(NamedTuple):
    """A measure with its value, and the constant that would do as well, if one does."""

    measure: str
    value: float
    as_good: str = ""


def _compare_outputs(
    logits: NDArray[np.float64], column: _Column, names: Sequence[str]
) -> list[_Comparison]:
    """Compares several outputs: as classes by name or number, or the one named like the column.

    The output that is called like the column is compared by its value.
    """
    numbers = [str(number) for number in range(len(names))]
    likeliest = logits.argmax(1)
    if column.classes <= set(names):
        return [_Comparison("accuracy", column.texts, np.array(names)[likeliest])]
    if column.is_numeric and column.classes <= set(numbers):
        return [_Comparison("accuracy", column.texts, np.array(numbers)[likeliest])]
    if column.is_numeric and column.name in names:
        return [_Comparison("r2", column.values, logits[:, names.index(column.name)])]
    return []


def _compare_output(
    logits: NDArray[np.float64], column: _Column, name: str, link: str
) -> list[_Comparison]:
    """A single output: the logit of a class, a value, or perhaps both."""
    comparisons = []
    positive = _positive_class(column, name, link)
    if positive is not None:
        comparisons.append(_Comparison("accuracy", column.texts == positive, logits > 0))
    if column.is_numeric and link != "sigmoid":
        predicted = np.exp(logits) if link == "exp" else logits
        comparisons.append(_Comparison("r2", column.values, predicted))
    return comparisons


def _positive_class(column: _Column, name: str, link: str) -> str | None:
    """The class that a single output is the logit of; None where it is none."""
    if name in column.classes and len(column.classes) <= 2:
        return name
    if not column.is_numeric:
        return None
    if len(column.classes) == 2:
        return _as_text(max(column.values.tolist()))
    return "1" if link == "sigmoid" and column.classes <= {"0", "1"} else None


def _score(comparison: _Comparison) -> _Score | None:
    """The value of a measure; None where there is nothing to compare."""
    from sklearn.metrics import r2_score

    measure, truth, predicted = comparison
    if measure == "accuracy":
        if not len(truth):
            return None
        value = float((truth == predicted).mean())
        usual = np.unique(truth, return_counts=True)[1].max() / len(truth)
        is_no_better = value <= usual < 1
        return _Score(
            measure, value, f"always predicting one class ({usual:.1%})" if is_no_better else ""
        )

    numbers = truth.astype(np.float64)
    if len(numbers) < 2 or np.ptp(numbers) == 0:
        return None
    value = float(r2_score(numbers, predicted))
    return _Score(measure, value, "its mean" if value <= 0 else "")


def _probabilities(explanation: Explanation, predicts: Mapping[str, Any] | None) -> Explanation:
    """The account of probabilities, by the model's own link.

    Where the model has none, the usual link is taken if the target holds classes.
    """
    link = explanation.explainer.link
    classes = predicts is not None and predicts["measure"] == "accuracy"
    if link == "identity" and not classes:
        raise UsageError(
            "--probability: the model applies no softmax, sigmoid or exp, and --target names no "
            "classes."
        )
    usual = "softmax" if len(explanation.output_names) > 1 else "sigmoid"
    return explanation.to_probability(link=usual if link == "identity" else None)


def _as_text(value: Any) -> str:
    """A label as names are written: class 1 is "1", also if gaps made the column fractional."""
    whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    return str(int(value)) if whole else str(value)


def _describe_score(score_of: Mapping[str, Any] | None) -> str:
    if score_of is None:
        return ""
    if score_of["warning"]:
        return f"Warning: {score_of['warning']}"
    if score_of["measure"] is None:
        return (
            f"Predictions cannot be compared with {score_of['target']}: its values are neither "
            "outputs nor classes."
        )
    score = (
        f"R² {with_minus(score_of['value'], '.3g')}"
        if score_of["measure"] == "r2"
        else f"an accuracy of {score_of['value']:.1%}"
    )
    return f"The model predicts {score_of['target']} with {score}."


def _summarise(
    output: OutputOptions, data: Data, calibration: Data, explainer: NObSP, explanation: Explanation
) -> dict[str, Any]:
    from nobsp.tabular.health import sort_findings
    from nobsp.tabular.weak_spots import weak_spot_findings

    state = explainer.health()
    findings = [*state.findings, *explanation.findings, *weak_spot_findings(explanation)]
    has_clusters = any(finding.code == "clusters" for finding in findings)
    names = explainer.output_names_
    shares = _shares_of_outputs(
        state,
        ridge=explainer.ridge_,
        neighbourhoods=state.neighbourhoods if has_clusters else None,
        explained_here=None if calibration is data else explanation.explained(),
    )
    predicts = None
    if data.target is not None:
        predicts = score_predictions(
            explanation.predictions,
            data.labels,
            target=data.target,
            output_names=names,
            link=explainer.link_,
        )
    return {
        "outputs": [{"name": name, **share} for name, share in zip(names, shares, strict=True)],
        "held_out": state.held_out,
        "rows": len(data.rows),
        "calibration_rows": state.rows,
        "features": list(explainer.functions_.feature_names),
        "interactions": [list(term) for term in explainer.terms_ if len(term) > 1],
        "predicts": predicts,
        "strongest": _strongest(explainer.functions_),
        "not_used": list(data.not_used),
        "outside": _count_outside(explanation),
        "far": {"rows": int(explanation.far.sum())},
        "health": [asdict(finding) for finding in sort_findings(findings)],
        "files": output.paths(FILES),
    }


def _shares_of_outputs(
    state: Health, *, ridge: FloatArray, neighbourhoods: Any, explained_here: FloatArray | None
) -> list[dict[str, Any]]:
    """What is known of how well every output is described; numbers that are None are left out."""
    from nobsp.reporting.packing import known  # JSON has no nan

    numbers = {
        "explained": state.explained,
        "inside": state.inside,
        "ridge": ridge,
        "standard_error": state.scatter or None,
        "neighbourhoods": neighbourhoods,
        "explained_here": explained_here,
    }
    told = {name: known(values) for name, values in numbers.items() if values is not None}
    return [
        dict(zip(told, of_output, strict=True)) for of_output in zip(*told.values(), strict=True)
    ]


def _strongest(functions: Functions) -> list[dict[str, Any]]:
    """Features by their total importance, the largest first."""
    totals = functions.importances["total"].sum(1).tolist()
    named = zip(functions.feature_names, totals, strict=True)
    by_importance = sorted(named, key=lambda pair: -pair[1])
    return [{"feature": name, "importance": size} for name, size in by_importance]


def _count_outside(explanation: Explanation) -> dict[str, Any]:
    """Rows outside the calibrated range, and how many of them by feature."""
    counts = explanation.outside.sum(0).tolist()
    by_feature = zip(explanation.feature_names, counts, strict=True)
    return {
        "rows": int(explanation.outside.any(1).sum()),
        "features": {name: n_rows for name, n_rows in by_feature if n_rows},
    }


def _describe(summary: Mapping[str, Any]) -> list[str]:
    """The summary in sentences, what matters most first."""
    outputs = summary["outputs"]
    pairs = [" × ".join(term) for term in summary["interactions"]]
    where = "Held-out R²" if summary["held_out"] else "R² on the calibration rows"
    lines = [f"{where}: {_shares(outputs, 'explained')}."]
    if any(abs((entry["inside"] or 0) - (entry["explained"] or 0)) > 5e-4 for entry in outputs):
        lines.append(f"Inside the range fitted on: {_shares(outputs, 'inside')}.")
    if "neighbourhoods" in outputs[0]:
        lines.append(
            f"With whole neighbourhoods of rows held out: {_shares(outputs, 'neighbourhoods')}."
        )

    if "explained_here" in outputs[0]:
        lines.append(f"R² on the rows explained: {_shares(outputs, 'explained_here')}.")
    ridges = sorted({f"{entry['ridge']:.3g}" for entry in outputs}, key=float)
    lines.append(
        f"{count(summary['rows'], 'row')}, {count(len(summary['features']), 'feature')}, "
        f"{count(len(pairs), 'interaction')} kept, {count(len(outputs), 'output')}; "
        f"ridge {' to '.join(dict.fromkeys((ridges[0], ridges[-1])))}."
    )
    if summary["predicts"]:
        lines.append(_describe_score(summary["predicts"]))
    lines.append(
        "Strongest: "
        + _list([f"{o['feature']} ({o['importance']:.3g})" for o in summary["strongest"]])
        + "."
    )
    lines += [f"Interactions: {_list(pairs)}."] if pairs else []
    lines += [f"Not used: {', '.join(summary['not_used'])}."] if summary["not_used"] else []
    if summary["health"]:
        lines += describe_findings(Finding(**entry) for entry in summary["health"])
    return lines


def _shares(outputs: Sequence[Mapping[str, Any]], what: str) -> str:
    """A share per output, the worst first."""
    known = sorted(
        (output for output in outputs if output[what] is not None),
        key=lambda output: float(output[what]),
    )
    is_unnamed = [output["name"] for output in outputs] == list(number_outputs(1))
    shares = [
        _share(output, what) + ("" if is_unnamed else f" ({output['name']})") for output in known
    ]
    return _list(shares) or "not known, for no output varies"


def _share(output: Mapping[str, Any], what: str) -> str:
    """A share of one output; held-out R² with its standard error."""
    share = with_minus(output[what], ".3f")
    error = output.get("standard_error") if what == "explained" else None
    is_told = error is not None and f"{error:.3f}" != "0.000"
    return f"{share} ± {error:.3f}" if is_told else share


def _list(texts: Sequence[str]) -> str:
    return ", ".join(texts[:5]) + (" …" if len(texts) > 5 else "")
