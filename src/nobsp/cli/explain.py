"""`nobsp explain`: a model and a table in, the functions the model has learned out."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nobsp.cli.agreement import Agreement, agreement_of
from nobsp.cli.console import Console, Misuse, close_to, counted
from nobsp.cli.folder import require_free, written
from nobsp.cli.models import Loaded, load_model
from nobsp.cli.tables import Data, grouped, names_in, read_table, split, write_csv
from nobsp.cli.trial import tried_on_rows

if TYPE_CHECKING:
    from nobsp import NObSP
    from nobsp.tabular import Explanation, Health

FILES = ("contributions.parquet", "curves.csv", "explainer.nobsp", "report.html")


def run(options: Namespace, console: Console) -> None:
    """Reads, calibrates, explains, and writes the four files."""
    files = FILES if options.report else FILES[:-1]
    require_free(options.out, files, force=options.force)
    ridge, interactions = _ridge(options.ridge), _interactions(options.interactions)
    console.step(f"reading {options.data}")
    loaded = load_model(options.model, weights=options.weights, trust_pickle=options.trust_pickle)
    data, calibration = tables_of(options, loaded)
    columns = [str(name) for name in data.rows.columns]
    groups = grouped(columns, options.groups)
    _require_features(interactions, list(groups or columns))
    if options.report:
        require_report()

    from nobsp import NObSP

    tried = tried_on_rows(options, loaded, data, calibration)
    explainer = NObSP(
        tried.model,
        features=groups,
        baseline=options.baseline,
        reference=options.reference,
        interactions=interactions,
        ridge=ridge,
        head=options.head,
        output_names=names_in(options.output_names),
        device=options.device,
        batch_size=options.batch_size,
    )
    console.step(f"calibrating on {counted(len(calibration.rows), 'row')} of {len(columns)} columns")
    explainer.fit(calibration.rows, progress=console.progress)
    console.step(f"explaining {counted(len(data.rows), 'row')}")
    explanation = explainer(data.rows, progress=console.progress)
    health = explainer.health(data.rows if calibration is not data else None)
    agreement = _agreement(data, explainer, explanation)
    if agreement is not None and agreement.warning is not None:
        console.step(f"warning: {agreement.warning}")
    with written(options.out) as folder:
        write_contributions(folder / "contributions.parquet", explanation)
        write_curves(folder / "curves.csv", explainer)
        explainer.save(folder / "explainer.nobsp")
        if options.report:
            console.step("writing the report")
            _report(folder / "report.html", options, loaded, data, calibration, explanation, agreement)
    console.results(*_summary(options, files, data, explainer, explanation, health, agreement))


def tables_of(options: Namespace, loaded: Loaded, *, need_target: bool = False) -> tuple[Data, Data]:
    """The rows to look at and those to calibrate on, which may be the same.

    Args:
        options: Where they are, and which of their columns are meant.
        loaded: The model, which may know its columns.
        need_target: Whether rows to calibrate on need their true values too.
    """

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
    """One line per row and output: base, every term, residual, prediction."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet

    writer = None
    try:
        for output in explanation.output_names:
            account = {str(k): np.asarray(v) for k, v in explanation.to_frame(output).items()}
            names = {"row": np.arange(len(explanation)), "output": np.full(len(explanation), output)}
            table = pa.table({**{_free(name, account): values for name, values in names.items()}, **account})
            writer = writer or pyarrow.parquet.ParquetWriter(path, table.schema, compression="zstd")
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """A feature may be called "row" too."""
    return _free(f"({name})", taken) if name in taken else name


def write_curves(path: Path, explainer: NObSP) -> None:
    """Every feature's function on a grid, with its band."""
    curves = explainer.curves()
    write_csv(path, {str(name): list(curves[name]) for name in curves})


def _report(
    path: Path,
    options: Namespace,
    loaded: Loaded,
    data: Data,
    calibration: Data,
    explanation: Explanation,
    agreement: Agreement | None,
) -> None:
    from nobsp.page import report

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
    explainer: NObSP,
    explanation: Explanation,
    health: Health,
    agreement: Agreement | None,
) -> tuple[list[str], dict[str, Any]]:
    shares = [float(share) for share in explanation.explained()]
    strongest = strongest_of(explainer)
    pairs = [" × ".join(term) for term in explainer.terms_ if len(term) > 1]
    known = [share for share in shares if share == share]
    carried = f"{min(known):.1%}" if known else "an unknown share"
    several = "at least " if len(known) > 1 else ""
    lines = [
        f"{counted(len(data.rows), 'row')}, {counted(len(explainer.feature_names_), 'feature')}, "
        f"{counted(len(pairs), 'interaction')}, {counted(len(shares), 'output')}.",
        f"The functions carry {several}{carried} of the output's variance; the rest is reported as residual.",
        "Strongest: " + ", ".join(f"{name} ({size:.3g})" for name, size in strongest[:5]) + ".",
    ]
    if agreement is not None:
        lines.insert(1, agreement.said)
    if pairs:
        lines.append("Interactions: " + ", ".join(pairs[:5]) + (" …" if len(pairs) > 5 else "") + ".")
    if data.left_out:
        lines.append("Not used: " + ", ".join(data.left_out) + ".")
    for finding in health.findings:
        subject = f"{finding.subject}: " if finding.subject else ""
        lines.append(f"{finding.severity}: {subject}{finding.message}")
    lines.append("Wrote " + ", ".join(str(options.out / name) for name in files) + ".")
    return lines, {
        "rows": len(data.rows),
        "features": list(explainer.feature_names_),
        "interactions": [list(term) for term in explainer.terms_ if len(term) > 1],
        "outputs": [
            {"name": name, "explained": None if share != share else share}
            for name, share in zip(explainer.output_names_, shares, strict=True)
        ],
        "predicts": None if agreement is None else agreement.described(),
        "strongest": [{"feature": name, "importance": size} for name, size in strongest],
        "not_used": list(data.left_out),
        "health": [
            {"severity": found.severity, "subject": found.subject, "message": found.message}
            for found in health.findings
        ],
        "files": {name: str(options.out / name) for name in files},
    }


def strongest_of(explainer: NObSP) -> list[tuple[str, float]]:
    """Features by their mean absolute contribution, all outputs and interactions together."""
    sizes: dict[str, float] = {}
    table = explainer.importance("total")
    for name, size in zip(table["feature"], table["importance"], strict=True):
        sizes[str(name)] = sizes.get(str(name), 0.0) + float(size)
    return sorted(sizes.items(), key=lambda item: -item[1])
