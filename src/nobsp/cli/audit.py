"""`nobsp audit`: rows or images that deserve a second look, most suspicious first."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from cyclopts import Parameter, validators

from nobsp._typing import AnyArray, ArrayLike, TableLike
from nobsp.arguments import count, suggest
from nobsp.cli import cam, options
from nobsp.cli.explain import fit_explainer, read_tables
from nobsp.cli.inputs import (
    Loaded,
    Pictures,
    find_pictures,
    load_model,
    read_frame,
    write_csv,
)
from nobsp.cli.options import (
    Console,
    ImageOptions,
    ModelOptions,
    OutputOptions,
    TableOptions,
    UsageError,
)
from nobsp.tensorfile import loads_strictly

if TYPE_CHECKING:
    from nobsp import Audit, ContributionIndex
    from nobsp.neighbors import Influence

FILES = ("audit.csv", "influence.csv", "report.html")
_COUNTS = ("likely_wrong_labels", "likely_errors", "boundary_cases", "outliers")
# Rows whose reasons are printed.
_FIRST = 5
_ROWS_IN_REPORT = 5000
_IMAGES_IN_REPORT = 60


@Parameter(name="*", group=options.METHOD)
@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """What to compare with what."""

    calibrate: Path | None = None
    """Rows (with their --target) or images to compare with (default: the others of those audited).
    """
    labels: Path | None = None
    """Table of labels, in place of --target or folders: a column of classes or values, or a column
    of 0 and 1 for each class where there may be several. A line for each row; of images, the first
    column is their names in the folder."""
    coefficients: Literal["head", "calibrated"] | None = None
    """Of images: the head's own weights (default), or found by the paper's Algorithm 1."""
    classes: options.Names = None
    """The label of every class in the model's order, if labels are neither numbers from 0 nor
    output names."""
    neighbours: Annotated[int, options.POSITIVE] = 8
    """How many neighbours to compare with."""
    precision: float = 0.8
    """Share of the suspected labels that should be wrong: the more, the fewer are suspected."""
    budget: int | None = None
    """How many labels to suspect, instead of --precision."""
    outliers: float = 0.01
    """Typicality below which a row is an outlier."""
    influence: Annotated[int, Parameter(validator=validators.Number(gte=0))] = 4
    """How many rows that speak for a prediction, and how many against it, to show; 0 for none."""
    apply: Path | None = None
    """Decisions saved from the report (CSV or JSON), or audit.csv, whose suggestions are all taken:
    writes the table, or the list of images, after them; no --model is needed."""

    def name_classes(self, labels: ArrayLike) -> AuditOptions:
        """The same options, with several classes named after the columns of their labels.

        Names that the caller gave the classes are kept.
        """
        names = options.split_names(self.classes) or [str(name) for name in labels.columns]
        return self if labels.shape[1] == 1 else dataclasses.replace(self, classes=names)

    def check(self, others: int) -> None:
        """Raises a UsageError where there are fewer others to compare with."""
        if self.neighbours > others:
            raise UsageError(
                f"--neighbours {self.neighbours}: there are only {others} others to compare with."
            )


def audit(
    *,
    model: ModelOptions | None = None,
    table: TableOptions | None = None,
    images: ImageOptions | None = None,
    method: AuditOptions = AuditOptions(),
    output: OutputOptions,
    console: Console = Console(),
) -> None:
    """Find likely errors, wrong labels and outliers.

    Finds rows, or images, that deserve a second look: likely errors of the model, likely wrong
    labels, cases on the boundary, and outliers, by comparing the evidence behind each prediction
    with that behind its neighbours'. Give a table with --data and --target (classes, or values of a
    regression), --images with one folder per class, or either with a table of --labels. The folder
    of --out gets **audit.csv** (every row with its findings, most suspicious first),
    **influence.csv** (for those flagged, the rows without which the prediction would change most,
    where a linear head was trained on them) and **report.html** (the cases with their neighbours),
    where one ticks what to keep, relabel or drop and saves it. With --apply, that file is applied:
    --out gets **cleaned.csv** and **changes.csv**, a log.
    """
    subject = _subject_of(table, images, method)
    if method.apply is not None:
        _apply_decisions(subject, method, output, console)
        return

    if model is None:
        raise UsageError(
            "--model is missing; name a file, or package.module:factory; only --apply needs none."
        )

    with output.write(FILES) as folder, model.limit_threads(1 if table else None):
        loaded = load_model(model)
        if isinstance(subject, TableOptions):
            audited = _audit_table(model, subject, method, loaded, console)
        else:
            audited = _audit_images(model, subject, method, loaded, console)

        result = audited.found
        order = result.ranking
        # Rows in the order of the file, so that they have the same numbers everywhere.
        shown = result[
            order[:_IMAGES_IN_REPORT] if audited.columns else np.sort(order[:_ROWS_IN_REPORT])
        ]
        influence, influence_refused = audited.find_influence(shown, method.influence)
        summary = _summarise(output, audited, order, influence, influence_refused)
        frame = result.to_frame()  # in the order of the ranking
        columns = {name: [values[row] for row in order] for name, values in audited.columns.items()}
        for name in frame.columns:
            columns[str(name)] = list(frame[name])
        write_csv(folder / "audit.csv", columns)
        if influence is not None:
            write_csv(folder / "influence.csv", audited.tabulate(shown, influence))
        if output.report:
            console.step("writing the report")
            title = output.title or f"Labels and predictions to check in {_name_of_data(subject)}"
            about = (
                f"{loaded.name} ({loaded.origin}) on {audited.where}: {_describe_counts(summary)}"
            )
            _write_report(
                folder / "report.html", audited, shown, influence, title=title, about=about
            )

    console.show(summary, _describe)


def _name_of_data(subject: TableOptions | ImageOptions) -> str:
    """The last part of the path of a table or of a folder of images."""
    path = subject.data if isinstance(subject, TableOptions) else subject.images
    return path.resolve().name


@dataclasses.dataclass(frozen=True, eq=False)
class Audited:
    """What was found, and what a report of some of it is made of."""

    found: Audit
    index: ContributionIndex
    names: Sequence[str]  # of the rows of the data
    others: Sequence[str]  # of the rows of the index
    where: str
    take: Callable[[Audit], Any]  # the rows that a part of the audit is about
    page: Callable[[Audit, Influence | None], dict[str, Any]]
    columns: dict[str, list[str]]  # that audit.csv begins with: the images
    warning: str | None = None

    def find_influence(self, shown: Audit, k: int) -> tuple[Influence | None, str | None]:
        """Rows that speak for and against the predictions shown; None, and why, if not known.

        Where `k` is 0, there are neither rows nor a reason.
        """
        if k == 0:
            return None, None
        try:
            return self.index.influence(self.take(shown), target=shown.outputs, k=k), None
        except ValueError as refusal:
            return None, str(refusal)

    def tabulate(self, shown: Audit, influence: Influence) -> dict[str, list[Any]]:
        """What speaks for the predictions that were flagged, as columns."""
        flagged = shown.flagged
        frame = influence[flagged].to_frame(influence.values.shape[1])
        names = [self.names[shown.rows[flagged[query]]] for query in frame["query"]]
        effect = {"image" if self.columns else "row": names, "class": list(frame["target"])}
        effect["by"] = [self.others[index] for index in frame["index"]]
        return effect | {name: list(frame[name]) for name in ("label", "value", "share", "logit")}


def _write_report(
    path: Path,
    audited: Audited,
    shown: Audit,
    influence: Influence | None,
    *,
    title: str,
    about: str,
) -> None:
    from nobsp.reporting import report

    about += (
        f" Shown are the {len(shown):,} most suspicious." if len(shown) < len(audited.found) else ""
    )
    about += " Most suspicious first, in the order of audit.csv." if audited.columns else ""
    about += "" if audited.warning is None else f" Warning: {audited.warning}"
    which = [""] * len(shown) if shown.outputs is None else [f", {name}" for name in shown.outputs]
    names = [audited.names[row] + output for row, output in zip(shown.rows, which, strict=True)]
    part: dict[str, Any] = {
        "hits": shown.by_contributions,
        "influence": influence,
        "audit": shown,
        "names": names,
    }
    classes = shown.by_contributions.classes
    if shown.labels is not None and shown.outputs is None:
        known = None if classes is None else classes.tolist()
        part["labels"] = (
            shown.labels
            if known is None
            else [known.index(label) for label in shown.labels.tolist()]
        )
        part["class_names"] = None if known is None else list(map(str, known))
    report(path=path, title=title, about=about, **part | audited.page(shown, influence))


def _audit_table(
    model: ModelOptions, table: TableOptions, method: AuditOptions, loaded: Loaded, console: Console
) -> Audited:
    if method.labels is not None and method.calibrate is not None:
        raise UsageError(
            "--labels are those of --data; with --calibrate, name the column with --target."
        )
    console.step(f"reading {table.data}")
    data, database = read_tables(table, method.calibrate, loaded, need_target=True)
    if method.labels is None:
        labels = [_read_labels(part.labels, part.path, "--target") for part in (database, data)]
    else:
        label_table = _label_table(method.labels, len(data.rows))
        labels = [_read_labels(label_table, method.labels, "--labels")] * 2
        method = method.name_classes(label_table)
    method.check(len(database.rows) - (data is database))
    explainer = fit_explainer(model, table, loaded, database, console)
    audit_of_rows, index = _compare(
        explainer, model, method, database.rows, data.rows, labels, console
    )
    names, others = ([str(row) for row in range(len(part.rows))] for part in (data, database))

    def take(shown: Audit) -> Any:
        return data.rows.iloc[shown.rows]

    def page(shown: Audit, _: Influence | None) -> dict[str, Any]:
        return {"subject": explainer(data.rows)[shown.rows]}

    return Audited(audit_of_rows, index, names, others, data.where, take, page, {})


def _subject_of(
    table: TableOptions | None, images: ImageOptions | None, method: AuditOptions
) -> TableOptions | ImageOptions:
    """What is to be audited; an error where it is nothing, or two things."""
    subject = table or images
    if subject is None or (table and images):
        raise UsageError(
            "choose what to audit: a table with --data and --target, or images with --images."
        )
    if table is not None and (table.target is None) == (method.labels is None):
        raise UsageError(
            "--data needs --target, the column with the true classes or values, or a table of "
            "--labels."
        )
    return subject


def _audit_images(
    model: ModelOptions,
    images: ImageOptions,
    method: AuditOptions,
    loaded: Loaded,
    console: Console,
) -> Audited:
    pictures, database = cam.find_images(images, method.calibrate, model)
    labels, method = _labels_of_images(pictures, database, method)
    method.check(len(database) - (pictures is database))
    link = "sigmoid" if labels[0].ndim == 2 else None
    network = cam.prepare_network(model, loaded, database, console)
    explainer = cam.fit_cam(
        model, *network, database, console, coefficients=method.coefficients, link=link
    )
    audit_of_images, index = _compare(explainer, model, method, database, pictures, labels, console)
    warning = _check_order(pictures, audit_of_images, method)
    console.warn(warning)

    def take(shown: Audit) -> Any:
        return pictures.chosen(shown.rows.tolist())

    def page(shown: Audit, influence: Influence | None) -> dict[str, Any]:
        some = take(shown)
        batch = some.batch(range(len(some)))
        likely = np.argsort(-explainer(batch).logits, axis=1)[:, : cam.CLASSES_SHOWN]
        about = {
            "subject": explainer(batch, likely),
            "explainer": explainer,
            "images": some.shown(batch),
        }
        return about | cam.show_neighbours(
            database, hits=shown.by_contributions, influence=influence
        )

    paths = {"image": [str(pictures.paths[row]) for row in audit_of_images.rows]}
    return Audited(
        audit_of_images,
        index,
        pictures.names,
        database.names,
        pictures.where,
        take,
        page,
        paths,
        warning,
    )


def _labels_of_images(
    pictures: Pictures, database: Pictures, method: AuditOptions
) -> tuple[list[AnyArray], AuditOptions]:
    """Labels of the database and of the audited images, and the options with their classes."""
    if method.labels is None:
        cam.require_folders(pictures, database, "an audit needs one folder per class, or --labels")
        return [np.array(part.labels) for part in (database, pictures)], method
    tables = [_label_table(method.labels, part.names) for part in (database, pictures)]
    labels = [_read_labels(label, method.labels, "--labels") for label in tables]
    return labels, method.name_classes(tables[0])


def _check_order(pictures: Pictures, audit_of_images: Audit, method: AuditOptions) -> str | None:
    """A warning where folders, as classes, seem to be in another order than the model's outputs."""
    if method.labels is not None or audit_of_images.by_contributions.classes is None:
        return None
    classes = [str(label) for label in audit_of_images.by_contributions.classes]
    predicted = [str(label) for label in audit_of_images.predicted]
    option = "--output-names" if method.classes is None else "--classes"
    return cam.check_order(pictures.labels, predicted, classes, option=option)


def _read_labels(columns: Any, path: Path, option: str) -> AnyArray:
    """A column of whole numbers, fractions or names; or several columns of 0 and 1."""
    frame = columns.to_frame() if columns.ndim == 1 else columns
    for name in frame.columns:
        if frame[name].isna().any():
            row = int(frame[name].isna().to_numpy().argmax())
            raise UsageError(
                f"row {row} of {path} has no value in {option} {name}; take such rows out."
            )
    values = frame.to_numpy()[:, 0] if frame.shape[1] == 1 else frame.to_numpy()
    if values.dtype.kind not in "iubf":
        return np.asarray([str(value) for value in values])
    whole = values.dtype.kind != "f" or not (values != np.rint(values)).any()
    return np.asarray(values, dtype=np.int64 if whole else np.float64)


def _label_table(path: Path, rows: int | Sequence[str]) -> Any:
    """The columns of --labels, one line per row, or one per image named in the first column.

    The names of images are those in their folder. An error is raised where lines do not match the
    rows or images.
    """
    frame = read_frame(path, option="--labels")
    if isinstance(rows, int):
        if len(frame) != rows:
            raise UsageError(f"--labels {path} has {len(frame)} lines for {rows} rows of --data.")
        return frame
    if frame.shape[1] < 2:
        raise UsageError(
            f"--labels {path} needs a column with the images' names and at least one of labels."
        )
    position_of = {str(name): row for row, name in enumerate(frame.iloc[:, 0])}
    missing = next((name for name in rows if name not in position_of), None)
    if missing is not None:
        raise UsageError(
            f"--labels {path} has no line for {missing!r}; {suggest(missing, position_of)}"
        )
    return frame.iloc[[position_of[name] for name in rows], 1:]


def _compare(
    explainer: Any,
    model: ModelOptions,
    method: AuditOptions,
    database: TableLike,
    rows: Any,
    labels: Sequence[AnyArray],
    console: Console,
) -> tuple[Audit, ContributionIndex]:
    """Compares every row with its neighbours in the database, which may hold the row itself."""
    from nobsp.neighbors import ContributionIndex, audit

    names = method.classes if labels[0].ndim == 2 else options.split_names(method.classes)
    known = None if names is None else np.array(names)
    if known is not None and labels[0].dtype.kind == "i" and labels[0].ndim == 1:
        try:
            known = known.astype(np.int64)
        except ValueError:
            raise UsageError(
                f"--classes are {', '.join(names or ())}, but the labels are whole numbers."
            ) from None
    # A single output may be a logit or a value, and labels of more than two kinds are values.
    index = ContributionIndex(explainer, classes=known, device=model.device)
    index.fit(database, labels[0])
    console.step(f"auditing {len(labels[1]):,} predictions")
    asked = (None, None) if rows is database else (rows, labels[1])
    flags: dict[str, Any] = {
        name: getattr(method, name) for name in ("budget", "precision", "outliers")
    }
    return audit(index, *asked, k=method.neighbours, **flags), index


def _summarise(
    output: OutputOptions,
    audited: Audited,
    order: Any,
    influence: Influence | None,
    influence_refused: str | None,
) -> dict[str, Any]:
    result = audited.found
    names = audited.columns.get("image") or [f"row {row}" for row in result.rows]
    flags: Any = (result.mislabels, result.errors, result.boundary, result.outliers)
    labels: Any = result.labels
    if result.expected_error is None:
        agreement = {"accuracy": float((result.predicted == labels).mean())}
    else:
        agreement = {"median_error": float(np.median(np.abs(result.predicted - labels)))}

    return {
        "rows": len(result),
        **{name: int(np.count_nonzero(flag)) for name, flag in zip(_COUNTS, flags, strict=True)},
        **agreement,
        "warning": audited.warning,
        "auroc": result.auroc,
        "first": [
            {"name": names[row], "reason": result.reasons[row]}
            for row in order[:_FIRST]
            if result.reasons[row]
        ],
        "flagged": sum(map(bool, result.reasons)),
        "influence_gradient": None if influence is None else influence.gradient,
        "influence_refused": influence_refused,
        "files": output.paths(
            [name for name in FILES if influence is not None or name != "influence.csv"]
        ),
    }


def _describe_counts(summary: Mapping[str, Any]) -> str:
    return (
        ", ".join(
            count(summary[name], name.replace("_", " ").removesuffix("s")) for name in _COUNTS
        )
        + "."
    )


def _describe(summary: Mapping[str, Any]) -> list[str]:
    lines = [f"{summary['rows']:,} predictions audited: {_describe_counts(summary)}"]
    if "accuracy" in summary:
        lines.append(f"{summary['accuracy']:.1%} of the predictions agree with the labels.")
    else:
        lines.append(
            f"Half of the predictions are within {summary['median_error']:.4g} of the labels."
        )
    if summary["auroc"]:
        scores = ", ".join(f"{name} {score:.3f}" for name, score in summary["auroc"].items())
        lines.append(f"Telling right from wrong predictions, AUROC: {scores}.")
    lines += [f"{case['name']}: {case['reason']}." for case in summary["first"]]
    n_more = summary["flagged"] - len(summary["first"])
    if n_more > 0:
        lines.append(f"{n_more:,} more are flagged in audit.csv, the most suspicious first.")
    if summary["influence_gradient"] is not None:
        lines.append("What speaks for and against what was flagged is in influence.csv.")
    if summary["influence_refused"] is not None:
        lines.append(
            "Which training rows speak for a prediction (influence.csv) is not written, as it is "
            f"not known for this model: {summary['influence_refused']} The audit does not need it."
        )
    return lines


def _apply_decisions(
    subject: TableOptions | ImageOptions,
    method: AuditOptions,
    output: OutputOptions,
    console: Console,
) -> None:
    """Writes what is left after decisions, with labels changed, and a log of the changes."""
    data = _labelled_rows(subject, method)
    log: dict[str, list[Any]] = {name: [] for name in (data.key, "decision", "before", "after")}
    rows_left = dict.fromkeys(range(len(data.names)))
    for decision in _read_decisions(method.apply):
        change = _find_change(decision, data, method.apply)
        labels = data.columns[change.column]
        if decision["decision"] == "drop":
            rows_left.pop(change.row, None)
        elif decision["decision"] == "relabel":
            labels[change.row] = change.after

        after = labels[change.row] if change.row in rows_left else ""
        entry = (change.name, decision["decision"], change.before, after)
        for column, value in zip(log, entry, strict=True):
            log[column].append(value)

    files = ("cleaned.csv", "changes.csv")
    with options.write_folder(output.out, files, force=output.force) as folder:
        cleaned = {
            name: [values[row] for row in rows_left] for name, values in data.columns.items()
        }
        write_csv(folder / files[0], cleaned, neutral=False)
        write_csv(folder / files[1], log)

    result: dict[str, Any] = {
        "kept": len(rows_left),
        "dropped": len(data.names) - len(rows_left),
        "relabelled": log["decision"].count("relabel"),
        "files": {name: str(output.out / name) for name in files},
    }
    sentence = "{kept:,} kept, {dropped:,} dropped, {relabelled:,} relabelled."
    console.show(result, lambda counts: [sentence.format(**counts)])


@dataclasses.dataclass(frozen=True, eq=False)
class _LabelledRows:
    """Rows that decisions are about."""

    columns: dict[str, list[Any]]
    changed: list[str]  # columns that hold labels
    names: list[str]  # of the rows
    key: str  # how decisions call these names
    where: Path

    @cached_property
    def positions(self) -> dict[str, int]:
        """Where each row is, by its name."""
        # Decisions have the names of images, and audit.csv has their files.
        files = self.columns.get("image", []) if self.key == "name" else []
        return {name: row for names in (files, self.names) for row, name in enumerate(names)}


class _Change(NamedTuple):
    """What a decision is about."""

    row: int
    name: str  # of the row
    column: str  # the labels it is about
    before: Any
    after: Any


def _find_change(decision: dict[str, Any], data: _LabelledRows, path: Path | None) -> _Change:
    """The label that a decision is about; an error where it is another one now, or not there."""
    # Where rows may have several classes, a decision is about one of them.
    has_output = bool(decision.get("output"))
    name = str(decision["name" if has_output else data.key])
    column = decision.get("output") or data.changed[0]
    row_name = name.removesuffix(f", {column}")
    which = f"--apply {path}: {data.key} {name!r}"
    if row_name not in data.positions:
        raise UsageError(f"{which} is not in {data.where}.")
    if column not in data.changed:
        raise UsageError(
            f"{which}: there is no column {column!r} of labels; {suggest(column, data.changed)}"
        )

    labels = data.columns[column]
    row = data.positions[row_name]
    before = labels[row]
    are_numbers = all(isinstance(label, int | float) for label in labels)
    decided_on = _as_label(decision.get("given_label", before), are_numbers)
    if decided_on != before:
        raise UsageError(
            f"{which} was labelled {decided_on!r}, and is {before!r} now; the decisions are on "
            "other data."
        )
    after = _as_label(decision.get("new_label", before), are_numbers)
    if after in (0, 1) and all(isinstance(label, bool) for label in labels):
        after = bool(after)
    if decision["decision"] == "relabel" and after is None:
        raise UsageError(
            f"{which}: new_label {decision['new_label']!r} is not a number, but all labels are."
        )
    return _Change(row, name, column, before, after)


def _labelled_rows(subject: TableOptions | ImageOptions, method: AuditOptions) -> _LabelledRows:
    """The rows of a table, or the images, with their labels."""
    data = _table_rows(subject) if isinstance(subject, TableOptions) else _image_rows(subject)
    if method.labels is None:
        return data

    is_images = data.key == "name"
    labels = _label_table(method.labels, data.names if is_images else len(data.names))
    columns = {
        name: values for name, values in data.columns.items() if not (is_images and name == "label")
    }
    changed = [str(name) for name in labels.columns]
    for name in columns.keys() & set(changed):
        raise UsageError(
            f"--labels {method.labels} has a column {name!r}, as the data has; rename one."
        )
    columns |= {name: labels[name].tolist() for name in changed}
    return dataclasses.replace(data, columns=columns, changed=changed)


def _table_rows(table: TableOptions) -> _LabelledRows:
    """The rows of a table, called by their numbers."""
    frame = read_frame(table.data, option="--data")
    target = table.target
    if target is not None and target not in frame.columns:
        raise UsageError(
            f"--target: {table.data} has no column {target!r}; {suggest(target, frame)}"
        )
    return _LabelledRows(
        columns={str(name): frame[name].tolist() for name in frame.columns},
        changed=[str(target)],
        names=[str(row) for row in range(len(frame))],
        key="row",
        where=table.data,
    )


def _image_rows(images: ImageOptions) -> _LabelledRows:
    """Images, called by their names in the folder."""
    pictures = find_pictures(
        images.images, images, option="--images", batch_size=1, names_only=True
    )
    return _LabelledRows(
        columns={"image": list(map(str, pictures.paths)), "label": list(pictures.labels)},
        changed=["label"],
        names=list(pictures.names),
        key="name",
        where=images.images,
    )


def _as_label(written: Any, numbers: bool) -> Any:
    """A label as its column has it; None where it should be a number and is not.

    Where rows may have several classes, the page writes True and False, which become 1 and 0.
    """
    if not numbers:
        return written
    try:
        number = float({"True": "1", "False": "0"}.get(str(written), written))
    except (ValueError, TypeError, OverflowError):
        return None
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() else number


def _read_decisions(path: Path | None) -> list[dict[str, Any]]:
    """Decisions as the report saves them; an error where a file is none of these."""
    assert path is not None
    options.require_path(path, "--apply")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix.lower() == ".json":
                decisions = loads_strictly(file.read())
            else:
                decisions = list(csv.DictReader(file, strict=True))
        if not isinstance(decisions, list):
            raise ValueError("it holds no list")
        if _is_audit(decisions):
            decisions = _decisions_of_audit(decisions)
        for decision in decisions:
            _require_decision(decision)
    except (ValueError, csv.Error) as failure:
        raise UsageError(
            f"--apply {path} is not a file of decisions as the report saves it, nor an audit.csv: "
            f"{failure}."
        ) from failure
    return list(decisions)


def _is_audit(lines: Sequence[Any]) -> bool:
    """Whether these are lines of audit.csv, perhaps some of them."""
    known = ("row", "label", "suggested", "is_label_issue")
    return bool(lines) and all(
        isinstance(line, dict) and all(line.get(name) is not None for name in known)
        for line in lines
    )


def _is_flagged(line: Mapping[str, Any]) -> bool:
    """Whether a label is suspected; spreadsheets write TRUE where audit.csv has True."""
    written = str(line["is_label_issue"]).strip().lower()
    if written not in ("true", "false"):
        raise UsageError(
            f"--apply: is_label_issue of row {line['row']} is {line['is_label_issue']!r}; it must "
            "be True or False."
        )
    return written == "true"


def _decisions_of_audit(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """To relabel all that is suspected, as it is suggested."""
    decisions = []
    for line in lines:
        if not _is_flagged(line):
            continue
        row_name = line.get("image") or line["row"]
        output = line.get("output")
        decisions.append(
            {
                "decision": "relabel",
                "row": line["row"],
                "name": f"{row_name}, {output}" if output else row_name,
                "output": output,
                "given_label": line["label"],
                "new_label": line["suggested"],
            }
        )
    return decisions


def _require_decision(decision: Any) -> None:
    """An error where a decision lacks something, or has something that is no text or number."""
    if not isinstance(decision, dict):
        raise ValueError(f"{str(decision)[:60]!r} is not a decision")
    for name, value in decision.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float | None):
            raise ValueError(
                f"{name!r} is a {type(value).__name__}, and should be a text or a number"
            )
    for name in ("decision", "row", "name"):
        if decision.get(name) is None:
            raise ValueError(f"it has no {name!r}")
    if decision["decision"] not in ("keep", "relabel", "drop"):
        raise ValueError(
            f"decision {str(decision['decision'])[:60]!r} is not keep, relabel or drop"
        )
    new_label = decision.get("new_label")
    if decision["decision"] == "relabel" and (new_label is None or new_label == ""):
        raise ValueError(f"row {decision['row']} is to be relabelled and has no new_label")
