"""`nobsp explain`: a model and a table in, the functions the model has learned out."""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nobsp.cli.agreement import Agreement, agreement_of
from nobsp.cli.console import Console, Misuse, close_to, counted
from nobsp.cli.folder import require_free, written
from nobsp.cli.models import Loaded, hinting, limited_threads, load_model
from nobsp.cli.tables import Data, grouped, names_in, read_table, split, write_csv

if TYPE_CHECKING:
    from nobsp import NObSP
    from nobsp.tabular import Explanation

FILES = ("contributions.parquet", "curves.csv", "explainer.nobsp", "report.html")
# Rows with which closed models are opened.
_OPENING_ROWS = 256


def run(options: Namespace, console: Console) -> None:
    """Reads, calibrates, explains, and writes the four files."""
    files = FILES if options.report else FILES[:-1]
    require_free(options.out, files, force=options.force)
    ridge, interactions = _ridge(options.ridge), _interactions(options.interactions)
    console.step(f"reading {options.data}")
    loaded = load_model(options.model, weights=options.weights, trust_pickle=options.trust_pickle)
    data, calibration = tables_of(options, loaded)
    columns = [str(name) for name in data.rows.columns]
    _require_features(interactions, list(grouped(columns, options.groups) or columns))
    if options.report:
        require_report()
    with limited_threads(options.threads):
        explainer = calibrated(
            options,
            loaded,
            calibration,
            console,
            background=options.background,
            baseline=options.baseline,
            reference=options.reference,
            interactions=interactions,
            ridge=ridge,
        )
        console.step(f"explaining {counted(len(data.rows), 'row')}")
        explanation = explainer(data.rows, progress=console.progress)
        agreement = _agreement(data, explainer, explanation)
        if agreement is not None and agreement.warning is not None:
            console.step(f"warning: {agreement.warning}")
        with written(options.out) as folder:
            write_contributions(folder / "contributions.parquet", explanation)
            curves = explainer.curves()
            write_csv(folder / "curves.csv", {str(name): list(curves[name]) for name in curves})
            explainer.save(folder / "explainer.nobsp")
            if options.report:
                console.step("writing the report")
                _report(folder / "report.html", options, loaded, data, calibration, explanation, agreement)
    found = _summary(options, files, data, calibration, explainer, explanation, agreement)
    console.results(_sentences(found, agreement), found)


def calibrated(options: Namespace, loaded: Loaded, table: Data, console: Console, **choices: Any) -> NObSP:
    """The explainer, after it has seen the rows; what must not be believed is said on stderr at once."""
    from nobsp import NObSP
    from nobsp.network.batches import batches_of

    columns = [str(name) for name in table.rows.columns]
    some = ", ".join(columns) if len(columns) <= 8 else f"{', '.join(columns[:6])}, …, {columns[-1]}"
    choose = "choose with --features" if options.target else "name the target with --target, or choose with --features"
    console.step(f"calibrating on {counted(len(table.rows), 'row')} of {len(columns)} columns")
    with (
        hinting(f"{len(columns)} columns were given ({some}); {choose}."),
        warnings.catch_warnings(record=True) as heard,
    ):
        explainer = NObSP(
            loaded.ready(lambda: next(iter(batches_of(table.rows, batch_size=_OPENING_ROWS, argument="--data")))),
            features=grouped(columns, options.groups),
            head=options.head,
            output_names=names_in(options.output_names),
            device=options.device,
            batch_size=options.batch_size or 4096,
            **choices,
        ).fit(table.rows, progress=console.progress)
    errors = [f for f in explainer.health().findings if f.severity == "error"]
    told = {f"{finding.subject}: {finding.message}" for finding in errors}
    for finding in errors:
        console.complain(f"error: {finding.subject}: {finding.message}")
    for warning in heard:
        if str(warning.message) not in told:
            console.note(warning.message)
    return explainer


def tables_of(options: Namespace, loaded: Loaded, *, need_target: bool = False) -> tuple[Data, Data]:
    """The rows to look at and those to calibrate on, which may be the same."""

    def cut(path: Path, option: str, *, need_target: bool) -> Data:
        frame = read_table(path, option=option)
        there = [str(name) for name in frame.columns]
        features = names_in(options.features, there)
        known = loaded.feature_names
        return split(frame, path=path, target=options.target, features=features, known=known, need_target=need_target)

    data = cut(options.data, "--data", need_target=True)
    if options.calibrate is None:
        return data, data
    return data, cut(options.calibrate, "--calibrate", need_target=need_target)


def _ridge(given: str) -> Any:
    if given == "auto":
        return given
    try:
        return float(given)
    except ValueError:
        raise Misuse(f"--ridge must be auto or a number, found {given!r}.") from None


def _interactions(given: Sequence[str]) -> Any:
    """The word "auto", a number of pairs, or the pairs themselves."""
    if len(given) == 1 and given[0] == "auto":
        return "auto"
    if len(given) == 1 and given[0].isdigit():
        return int(given[0])
    pairs = [tuple(word.split(":")) for word in given]
    for word, pair in zip(given, pairs, strict=True):
        if len(pair) < 2 or not all(pair):
            raise Misuse(f"--interactions {word}: write auto, a number, or pairs such as age:income.")
    return pairs


def _require_features(interactions: Any, features: Sequence[str]) -> None:
    for name in (name for pair in interactions for name in pair) if isinstance(interactions, list) else ():
        if name not in features:
            raise Misuse(f"--interactions: there is no feature {name!r}; {close_to(name, features)}")


def require_report() -> None:
    """Complains before the work, not after it, where the report's libraries are missing."""
    try:
        import jinja2  # noqa: F401
        import plotly  # noqa: F401
    except ImportError as missing:
        raise ImportError(
            "the report needs jinja2 and plotly: pip install 'nobsp[report]'; or pass --no-report."
        ) from (missing)


def _agreement(data: Data, explainer: NObSP, explanation: Explanation) -> Agreement | None:
    """How well the model predicts the target; None without one."""
    if data.target is None:
        return None
    return agreement_of(
        explanation.predictions,
        data.labels,
        target=data.target,
        output_names=explanation.output_names,
        link=explainer.link_,
    )


# ---------------------------------------------------------------------- what is written


def write_contributions(path: Path, explanation: Explanation) -> None:
    """One line per row and output: base, every term, residual, prediction, and whether it lies outside the range."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet

    writer = None
    try:
        for output in explanation.output_names:
            account = {str(k): np.asarray(v) for k, v in explanation.to_frame(output).items()}
            names = {"row": np.arange(len(explanation)), "output": np.full(len(explanation), output)}
            flags = {_free("outside", account): explanation.outside.any(1)}
            table = pa.table({**{_free(name, account): values for name, values in names.items()}, **account, **flags})
            writer = writer or pyarrow.parquet.ParquetWriter(path, table.schema, compression="zstd")
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """A feature may be called "row" too."""
    return _free(f"({name})", taken) if name in taken else name


def _report(
    path: Path,
    options: Namespace,
    loaded: Loaded,
    data: Data,
    calibration: Data,
    explanation: Explanation,
    agreement: Agreement | None,
) -> None:
    from nobsp.reporting import report

    fresh = (
        f"calibrated on {counted(len(calibration.rows), 'row')} of {options.calibrate.name}"
        if calibration is not data
        else "calibrated on the same rows"
    )
    about = f"{loaded.name} ({loaded.origin}) on {counted(len(data.rows), 'row')} of {options.data.name}, {fresh}."
    if agreement is not None:
        about += f" {agreement.said}" if agreement.warning is None else f" Warning: {agreement.warning}"
    report(
        explanation,
        path,
        title=options.title or f"What {loaded.name} has learned",
        about=about,
        labels=None if data.labels is None else data.labels.to_numpy(),
    )


# ---------------------------------------------------------------------- what is said


def _summary(
    options: Namespace,
    files: Sequence[str],
    data: Data,
    calibration: Data,
    explainer: NObSP,
    explanation: Explanation,
    agreement: Agreement | None,
) -> dict[str, Any]:
    """What was found, as --json says it."""
    state = explainer.health()
    here: Sequence[float] = [] if calibration is data else explanation.explained().tolist()
    outputs = [
        {"name": name, "explained": _number(share), "inside": _number(inside), "ridge": float(ridge)}
        for name, share, inside, ridge in zip(
            explainer.output_names_, state.explained, state.inside, explainer.ridge_, strict=True
        )
    ]
    for output, share in zip(outputs, here, strict=False):
        output["explained_here"] = _number(share)
    counts = explanation.outside.sum(0).tolist()
    return {
        "outputs": outputs,
        "held_out": state.held_out,
        "rows": len(data.rows),
        "calibration_rows": state.rows,
        "features": list(explainer.feature_names_),
        "interactions": [list(term) for term in explainer.terms_ if len(term) > 1],
        "predicts": None if agreement is None else agreement.described(),
        "strongest": [{"feature": name, "importance": size} for name, size in strongest_of(explainer)],
        "not_used": list(data.left_out),
        "outside": {
            "rows": int(explanation.outside.any(1).sum()),
            "features": {name: n for name, n in zip(explainer.feature_names_, counts, strict=True) if n},
        },
        "health": [
            {"severity": found.severity, "code": found.code, "subject": found.subject, "message": found.message}
            for found in state.findings
        ],
        "files": {name: str(options.out / name) for name in files},
    }


def _sentences(found: Mapping[str, Any], agreement: Agreement | None) -> list[str]:
    """The same in words, what matters most first."""
    pairs = [" × ".join(term) for term in found["interactions"]]
    measured = "Held-out R²" if found["held_out"] else "R² on the calibration rows"
    lines = [f"{measured}: {_outputs(found['outputs'], 'explained')}."]
    if any(abs((one["inside"] or 0) - (one["explained"] or 0)) > 5e-4 for one in found["outputs"]):
        lines.append(f"Inside the range fitted on: {_outputs(found['outputs'], 'inside')}.")
    if "explained_here" in found["outputs"][0]:
        lines.append(f"R² on the rows explained: {_outputs(found['outputs'], 'explained_here')}.")
    ridges = sorted({one["ridge"] for one in found["outputs"]})
    lines.append(
        f"{counted(found['rows'], 'row')}, {counted(len(found['features']), 'feature')}, "
        f"{counted(len(pairs), 'interaction')} kept, {counted(len(found['outputs']), 'output')}; "
        f"ridge {' to '.join(f'{ridge:.3g}' for ridge in dict.fromkeys((ridges[0], ridges[-1])))}."
    )
    if agreement is not None:
        lines.append(agreement.said)
    strongest = [f"{one['feature']} ({one['importance']:.3g})" for one in found["strongest"][:5]]
    lines.append(f"Strongest: {', '.join(strongest)}.")
    if pairs:
        lines.append("Interactions: " + ", ".join(pairs[:5]) + (" …" if len(pairs) > 5 else "") + ".")
    if found["not_used"]:
        lines.append("Not used: " + ", ".join(found["not_used"]) + ".")
    for one in found["health"]:
        lines.append(f"{one['severity']}: {one['subject']}{': ' if one['subject'] else ''}{one['message']}")
    if found["outside"]["rows"]:
        most = sorted(found["outside"]["features"].items(), key=lambda item: -item[1])
        named = ", ".join(f"{name} ({count:,})" for name, count in most[:5]) + (" …" if len(most) > 5 else "")
        lines.append(
            f"note: {found['outside']['rows']:,} of {counted(found['rows'], 'row')} lie outside what was calibrated, "
            f"in {named}; the column outside of contributions.parquet marks them."
        )
    return [*lines, "Wrote " + ", ".join(found["files"].values()) + "."]


def _outputs(outputs: Sequence[Mapping[str, Any]], what: str) -> str:
    """A share per output, the worst first."""
    known = sorted((one for one in outputs if one[what] is not None), key=lambda one: float(one[what]))
    said = [f"{one[what]:.3f} ({one['name']})" for one in known[:5]]
    return ", ".join(said) + (" …" if len(known) > 5 else "") if said else "not known, for no output varies"


def _number(share: float) -> float | None:
    return float(share) if share == share else None


def strongest_of(explainer: NObSP) -> list[tuple[str, float]]:
    """Features by their total importance, all outputs together."""
    functions = explainer.functions_
    sizes = functions.importances["total"].sum(1)
    return sorted(zip(functions.feature_names, sizes.tolist(), strict=True), key=lambda item: -item[1])
