"""`nobsp check`: asks a model whether it rises, bends or stays as it should along a feature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from cyclopts import Parameter

from nobsp._typing import Shape
from nobsp.arguments import suggest
from nobsp.cli.explain import MethodOptions, fit_explainer, read_tables
from nobsp.cli.inputs import load_model, write_csv
from nobsp.cli.options import (
    METHOD,
    POSITIVE,
    Console,
    Flag,
    ModelOptions,
    Names,
    Numbers,
    OutputOptions,
    TableOptions,
    UsageError,
    split_names,
)

if TYPE_CHECKING:
    from nobsp import ShapeCheck

FILES = ("counterexamples.csv", "report.html")


class ShapeBrokenError(ValueError):
    """A shape that was required does not hold."""


@Parameter(name="*", group=METHOD)
@dataclass(frozen=True, kw_only=True)
class ShapeOptions:
    """What is asked of the model."""

    feature: Names
    """Features to follow; several are checked one after another."""
    shape: Shape
    """What the model should do along them."""
    tolerance: float | None = None
    """What may deviate, in units of the output (default: a ten-thousandth of the predictions'
    spread); for bounded, by how much the feature may move a prediction."""
    within: Numbers = None
    """Range of the feature, two numbers (default: the calibrated range)."""
    output: str | None = None
    """Which output, where there are several."""
    rows: Annotated[int, POSITIVE] = 2000
    """Most rows whose lines are followed."""
    strict: Flag = False
    """End with exit code 1 where a shape is broken."""


def check(
    *,
    model: ModelOptions,
    table: TableOptions,
    shape: ShapeOptions,
    method: MethodOptions = MethodOptions(interactions=["0"]),
    output: OutputOptions,
    console: Console = Console(),
) -> None:
    """Check a shape on the model itself.

    Follows every row's own line through a feature and tells the share of rows that break the shape,
    with a bound, and how much at worst. The folder of --out gets **report.html** and
    **counterexamples.csv**: rows to feed to the model.
    """
    within = _range(shape.within)
    if shape.shape == "bounded" and shape.tolerance is None:
        raise UsageError(
            "--shape bounded needs --tolerance: by how much the feature alone may move a "
            "prediction."
        )
    with output.write(FILES) as folder, model.limit_threads(1):
        console.step(f"reading {table.data}")
        loaded = load_model(model)
        rows, others = read_tables(table, method.calibrate, loaded)
        explainer = fit_explainer(model, table, loaded, others, console, **method.for_explainer())
        known = explainer.functions_.feature_names
        features = split_names(shape.feature, known) or []
        for name in features:
            if name not in known:
                raise UsageError(f"--feature: there is no feature {name!r}; {suggest(name, known)}")

        console.step("asking the model")
        checks = [
            explainer.check_shape(
                name,
                shape.shape,
                rows.rows,
                tolerance=shape.tolerance,
                output=shape.output,
                within=within,
                most_rows=shape.rows,
                scale="probability" if method.probability else "output",
                groups=rows.groups,
            )
            for name in features
        ]
        write_csv(folder / "counterexamples.csv", _counterexamples(checks))
        if output.report:
            from nobsp.reporting.cards import shapes_page

            shapes_page(
                checks,
                folder / "report.html",
                title=output.title,
                about=f"{loaded.name} ({loaded.origin}) on {rows.where}.",
            )
    console.show({**_summarise(checks), "files": output.paths(FILES)}, _describe)
    if shape.strict and not all(answer.holds for answer in checks):
        raise ShapeBrokenError("a shape is broken (--strict).")


def _range(numbers: Sequence[float] | None) -> tuple[float, float] | None:
    """Two numbers, or none."""
    if numbers is None:
        return None
    if len(numbers) != 2:
        raise UsageError(f"--within takes two numbers, found {len(numbers)}.")
    return float(numbers[0]), float(numbers[1])


def _counterexamples(checks: Sequence[ShapeCheck]) -> dict[str, list[Any]]:
    """Rows to feed to the model, with what was checked, its predictions and sizes of breaks."""
    columns: dict[str, list[Any]] = {"checked": [], "prediction": [], "break": []}
    for answer in checks:
        if answer.counterexamples is None:
            continue
        n_rows = len(answer.predictions)
        each = n_rows // len(answer.breaks)
        columns["checked"] += [answer.asked] * n_rows
        columns["prediction"] += answer.predictions.tolist()
        columns["break"] += np.repeat(answer.breaks, each).tolist()
        for name in answer.counterexamples:
            columns.setdefault(str(name), []).extend(answer.counterexamples[name].tolist())
    return columns


def _summarise(checks: Sequence[ShapeCheck]) -> dict[str, Any]:
    """What was found, for JSON."""
    return {
        "checks": [
            {
                "asked": answer.asked,
                "feature": answer.feature,
                "shape": answer.shape,
                "output": answer.output,
                "link": answer.link,
                "scale": answer.scale,
                "note": answer.note,
                "holds": answer.holds,
                "rows": answer.n_rows,
                "draws": answer.n_draws,
                "broken": answer.n_broken,
                "rate": answer.rate,
                "bound": answer.bound,
                "confidence": answer.confidence,
                "worst": answer.worst,
                "tolerance": answer.tolerance,
                "values": answer.n_values,
                "exact": answer.exact,
            }
            for answer in checks
        ]
    }


def _describe(summary: Mapping[str, Any]) -> list[str]:
    """The summary in sentences."""
    lines = []
    for answer in summary["checks"]:
        asked = answer["asked"]
        if answer["holds"]:
            verdict = f"holds on all {answer['rows']:,} rows tried"
        else:
            verdict = (
                f"broken by {answer['broken']:,} of {answer['rows']:,} rows, by "
                f"{answer['worst']:.4g} at worst"
            )
        if answer["draws"] < answer["rows"]:
            verdict += f", worth {answer['draws']:,.0f} independent ones"
        exact = "" if answer["exact"] else " Between the values the model was not asked."
        if answer["note"]:
            exact += f" Note: {answer['note']}."
        lines.append(
            f"{asked}: {verdict}; at most {answer['bound']:.2%} of such rows "
            f"({answer['confidence']:.0%} confidence).{exact}"
        )
    return lines
