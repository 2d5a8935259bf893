"""`nobsp compare`: two tables, two models or both in, what differs between them out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from cyclopts import Parameter

from nobsp.arguments import with_minus
from nobsp.cli.explain import MethodOptions, fit_explainer
from nobsp.cli.inputs import Data, Loaded, load_model, read_table, write_csv
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
from nobsp.deprecation import USUAL_CONFIDENCE, Usual

if TYPE_CHECKING:
    from nobsp import Comparison, NObSP
    from nobsp.tabular import Explanation

FILES = ("comparison.csv", "report.html")
# Parts that the summary names.
_MOST_PARTS = 8
# Parts below this share of the largest are rounding.
_ROUNDING = 1e-12
# Rows that a spread, and so an interval, needs at least.
FEWEST_ROWS = 2


@Parameter(name="*", group=METHOD)
@dataclass(frozen=True, kw_only=True)
class AgainstOptions:
    """What the first table and model are compared with."""

    against: Path | None = None
    """Rows to compare those of --data with; their mean is subtracted."""
    against_model: str | None = None
    """Model to compare --model with, named in the same ways."""
    names: Names = None
    """What the two are called, such as before after (default: names of the files or models)."""
    confidence: float = USUAL_CONFIDENCE
    """Share of intervals that hold what they are about."""
    level: Annotated[float | None, Parameter(show=False)] = None
    """Former name of --confidence."""
    least_change: Annotated[float, Parameter()] = 0.005
    """Of two models, the change of a function that is not claimed yet, as a share of the
    predictions' spread."""


def compare(
    *,
    model: ModelOptions,
    table: TableOptions,
    against: AgainstOptions = AgainstOptions(),
    method: MethodOptions = MethodOptions(),
    output: OutputOptions,
    console: Console = Console(),
) -> None:
    """Compare two tables, two models, or both.

    With --against, what makes the mean prediction for the rows of --data differ from that for other
    rows; with --against-model, which functions differ between two models; with both, change of
    rows, of functions and of both. The folder of --out gets **comparison.csv** (every term's part
    with its interval) and **report.html**. Functions are calibrated on --calibrate, or on all rows
    that are compared.
    """
    if against.against is None and against.against_model is None:
        raise UsageError("name what to compare with: --against rows.csv, --against-model, or both.")
    if method.reference != "terms":
        raise UsageError("--reference complement has no intervals; leave it out to compare.")
    from nobsp.comparison import compare as compare_accounts

    confidence = _confidence(against, console)
    with output.write(FILES) as folder, model.limit_threads(1):
        console.step(f"reading {table.data}")
        loaded = load_model(model)
        first = _read_compared(table.data, table, loaded, option="--data")
        second = first
        if against.against is not None:
            second = _read_compared(against.against, table, loaded, option="--against")
        calibration = _calibration_rows(first, second, table, loaded, method.calibrate)
        explainer = fit_explainer(
            model, table, loaded, calibration, console, **method.for_explainer()
        )

        other = explainer
        other_loaded = loaded
        if against.against_model is not None:
            other_model = replace(model, model=against.against_model, weights=None)
            other_loaded = load_model(other_model)
            choices = _same_interactions(method, explainer)
            other = fit_explainer(other_model, table, other_loaded, calibration, console, **choices)

        console.step("comparing")
        names = _names(against, table, loaded, other_loaded)
        comparison = compare_accounts(
            _account(explainer, first, method),
            _account(other, second, method),
            names,
            groups=_groups(first, second),
            crossed=_crossed(explainer, other, first, second, method),
            confidence=confidence,
            least_change=against.least_change,
        )
        about = _describe_subject(against, loaded, other_loaded, first, second)
        _write_files(comparison, folder, output, about=about)
    console.show(_summarise(output, comparison), _describe)


def _confidence(against: AgainstOptions, console: Console) -> float:
    """The confidence asked for, under its present name or its former one."""
    if against.level is None:
        return against.confidence
    if not isinstance(against.confidence, Usual):
        raise UsageError("--level is the former name of --confidence; pass --confidence alone.")
    console.warn("--level is now --confidence; the former name goes away with nobsp 1.0.")
    return against.level


def _write_files(
    comparison: Comparison, folder: Path, output: OutputOptions, *, about: str
) -> None:
    """The table of every term's part, and the page."""
    frame = comparison.to_frame()
    write_csv(folder / "comparison.csv", {str(name): list(frame[name]) for name in frame})
    if output.report:
        from nobsp.reporting import report

        report(comparison, folder / "report.html", title=output.title, about=about)


def _same_interactions(method: MethodOptions, explainer: NObSP) -> dict[str, Any]:
    """Options for the same interactions as another explainer has, so that like meets like."""
    interactions = [term for term in explainer.terms_ if len(term) > 1]
    return {**method.for_explainer(), "interactions": interactions or 0}


def _describe_subject(
    against: AgainstOptions, loaded: Loaded, other: Loaded, first: Data, second: Data
) -> str:
    """What is compared, in a sentence for the page."""
    about = f"{loaded.name} ({loaded.origin}) on {first.where}"
    if against.against is not None:
        about += f" and {second.where}"
    if against.against_model is not None:
        about += f", beside {other.name} ({other.origin})"
    return f"{about}."


def _read(path: Path, options: TableOptions, loaded: Loaded, *, option: str) -> Data:
    """The rows of a file."""
    return read_table(
        path, options, option=option, known=loaded.feature_names, is_calibrated_on=True
    )


def _read_compared(path: Path, options: TableOptions, loaded: Loaded, *, option: str) -> Data:
    """The rows of a file that are to be compared.

    Too few of them are an error before anything is calibrated.
    """
    data = _read(path, options, loaded, option=option)
    if len(data.rows) < FEWEST_ROWS:
        raise UsageError(f"{option} {path} has one row; a comparison needs two or more.")
    return data


def _calibration_rows(
    first: Data, second: Data, options: TableOptions, loaded: Loaded, calibrate: Path | None
) -> Data:
    """The rows of --calibrate, or all that are compared."""
    if calibrate is not None:
        return _read(calibrate, options, loaded, option="--calibrate")
    if second is first:
        return first
    import pandas as pd

    groups = None
    if first.groups is not None and second.groups is not None:
        groups = np.concatenate([np.asarray(first.groups), np.asarray(second.groups)])
    rows = pd.concat([first.rows, second.rows[first.rows.columns]], ignore_index=True)
    return replace(first, rows=rows, groups=groups)


def _account(explainer: NObSP, rows: Data, method: MethodOptions) -> Explanation:
    """The account of some rows, on the scale that was asked for."""
    from nobsp.tabular.health import ExplainedWorseWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExplainedWorseWarning)
        account = explainer(rows.rows)
    return account.to_probability() if method.probability else account


def _groups(first: Data, second: Data) -> tuple[Any, Any] | None:
    """Which rows belong together, where a column says so."""
    if first.groups is None and second.groups is None:
        return None
    return first.groups, second.groups


def _crossed(
    explainer: NObSP, other: NObSP, first: Data, second: Data, method: MethodOptions
) -> tuple[Explanation, Explanation] | None:
    """Each model on the other's rows, where both differ."""
    if other is explainer or second is first:
        return None
    return _account(explainer, second, method), _account(other, first, method)


def _names(
    against: AgainstOptions, table: TableOptions, loaded: Loaded, other: Loaded
) -> tuple[str, str]:
    """What the two are called: as the user says, or as their files or models are."""
    named = split_names(against.names)
    if named is not None:
        if len(named) != 2:
            raise UsageError(f"--names takes two names, found {len(named)}.")
        return named[0], named[1]
    pair = (loaded.name, other.name)
    if against.against is not None:
        pair = (table.data.stem, against.against.stem)
    return pair if pair[0] != pair[1] else (f"{pair[0]} (1)", f"{pair[1]} (2)")


def _summarise(output: OutputOptions, comparison: Comparison) -> dict[str, Any]:
    """What was found, for JSON."""

    def number(value: float) -> float | None:
        return float(value) if np.isfinite(value) else None

    parts = []
    for position, name in enumerate(comparison.output_names):
        for entry, label in enumerate(comparison.entries):
            part: dict[str, Any] = {
                "output": name,
                "term": label,
                "gap": number(comparison.gap.value[entry, position]),
                "lower": number(comparison.gap.lower[entry, position]),
                "upper": number(comparison.gap.upper[entry, position]),
            }
            change = comparison.change
            if change is not None:
                part["change"] = number(change.value[entry, position])
                part["change_lower"] = number(change.lower[entry, position])
                part["change_upper"] = number(change.upper[entry, position])
            part["false_discovery_rate"] = number(comparison.q_value[entry, position])
            parts.append(part)
    return {
        "kind": comparison.kind,
        "names": list(comparison.names),
        "rows": list(comparison.n_rows),
        "headline": comparison.headline,
        "total": [number(value) for value in comparison.total.value],
        "explained": None
        if comparison.explained is None
        else [number(value) for value in comparison.explained],
        "parts": parts,
        "findings": [asdict(finding) for finding in comparison.findings],
        "files": output.paths(FILES),
    }


def _describe(summary: Mapping[str, Any]) -> Sequence[str]:
    """The summary in sentences."""
    headline = summary["headline"]
    by_change = summary["kind"] == "functions"
    # Others begin with a name, which is written as it is.
    lines = [f"{headline[0].upper()}{headline[1:]}." if by_change else f"{headline}."]
    key = "change" if by_change else "gap"
    low, high = ("change_lower", "change_upper") if by_change else ("lower", "upper")
    # A spread has no sign.
    digits = ".4g" if by_change else "+.4g"
    known = [part for part in summary["parts"] if part[key] is not None]
    known.sort(key=lambda part: -abs(part[key]))
    if by_change and not any(share is not None for share in summary["explained"] or ()):
        known = []  # the models predict the same, and what differs is rounding
    # A base has no spread but that of rounding.
    known = [part for part in known if abs(part[key]) > _ROUNDING * abs(known[0][key])]

    for part in known[:_MOST_PARTS]:
        several = len(summary["total"]) > 1
        name = f"{part['output']}, {part['term']}" if several else part["term"]
        value, start, end = (with_minus(part[which], digits) for which in (key, low, high))
        lines.append(f"  {name}: {value} [{start}, {end}]")
    lines += [
        ": ".join(filter(None, (finding["severity"], finding["subject"], finding["message"])))
        for finding in summary["findings"]
    ]
    return lines
