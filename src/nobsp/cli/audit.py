"""`nobsp audit`: rows or images that deserve a second look, most suspicious first."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nobsp.cli import cam as maps
from nobsp.cli.agreement import wrong_order
from nobsp.cli.cam import Tried, calibration_of, limited, require_readable, tried
from nobsp.cli.console import Console, Misuse, counted
from nobsp.cli.explain import calibrated, require_report, tables_of
from nobsp.cli.folder import require_free, written
from nobsp.cli.models import Loaded, limited_threads, load_model
from nobsp.cli.pictures import Pictures, find_pictures
from nobsp.cli.tables import Data, names_in, write_csv

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from nobsp.neighbors import Audit, ContributionIndex

FILES = ("audit.csv", "report.html")
_ROWS_IN_REPORT, _IMAGES_IN_REPORT = 5000, 60
_TARGETS = 3
_NO_CLASSES = "an audit judges predicted classes, and a regression has none; see nobsp explain."


def run(options: Namespace, console: Console) -> None:
    """Reads, calibrates, audits, and writes what was found."""
    if (options.data is None) == (options.images is None):
        raise Misuse("say what to audit: a table with --data and --target, or images with --images.")
    if options.neighbours < 1:
        raise Misuse(f"--neighbours must be at least 1, found {options.neighbours}.")
    files = FILES if options.report else FILES[:-1]
    require_free(options.out, files, force=options.force)
    loaded = load_model(options.model, weights=options.weights, trust_pickle=options.trust_pickle)
    if options.report:
        require_report()
    with limited_threads(1 if options.threads is None and options.data is not None else options.threads):
        (_table if options.data is not None else _images)(options, console, loaded, files)


# ---------------------------------------------------------------------- tables


def _table(options: Namespace, console: Console, loaded: Loaded, files: Sequence[str]) -> None:
    if options.target is None:
        raise Misuse("--data needs --target, the column with the true classes.")
    console.step(f"reading {options.data}")
    data, database = tables_of(options, loaded, need_target=True)
    found_labels = [labels_of(table) for table in dict.fromkeys((database, data))]
    import numpy as np

    from nobsp.neighbors import audit

    explainer = calibrated(options, loaded, database, console)
    names, known = explainer.output_names_, getattr(explainer.model, "classes_", None)
    model = Tried(explainer.model, len(names), names, explainer.link_, known)
    classes = _settled(options, model, found_labels, others=len(database.rows) - (data is database))
    index = _index(explainer, options, classes).fit(database.rows, found_labels[0], progress=console.progress)
    console.step(f"auditing {counted(len(data.rows), 'row')}")
    fresh = data is not database
    found = audit(index, data.rows if fresh else None, found_labels[-1] if fresh else None, k=options.neighbours)
    with written(options.out) as folder:
        write_csv(folder / "audit.csv", _lines(found))
        if options.report:
            console.step("writing the report")
            from nobsp.reporting import report

            # In the order of the file, so that rows have the same numbers everywhere, as long as all fit.
            kept = np.sort(most_suspicious(found)[:_ROWS_IN_REPORT])
            report(
                explainer(data.rows)[kept],
                folder / "report.html",
                title=options.title or f"An audit of {loaded.name}",
                about=f"{loaded.name} ({loaded.origin}) on {counted(len(data.rows), 'row')} of {options.data.name}: "
                f"{_counts_in_words(found)}{_shown_in_words(found, kept)}",
                labels=_codes(found, kept),
                class_names=[str(one) for one in _classes(found)],
                hits=found.by_contributions[kept],
                audit=part_of(found, kept),
                names=[str(row) for row in found.rows[kept]],
            )
    console.results(*_summary(options, files, found, [f"row {row}" for row in range(len(found))]))


def labels_of(table: Data) -> NDArray[Any]:
    """The column of true classes: whole numbers, or names."""
    import numpy as np

    column = table.labels
    if column.isna().any():
        row = int(column.isna().to_numpy().argmax())
        raise Misuse(f"row {row} of {table.path} has no value in --target {column.name}; take such rows out.")
    values = column.to_numpy()
    if values.dtype.kind in "iub":
        return np.asarray(values, dtype=np.int64)
    if values.dtype.kind == "f":
        if (values != np.rint(values)).any():
            raise Misuse(f"--target {column.name} holds fractions: {_NO_CLASSES}")
        return np.asarray(values, dtype=np.int64)
    return np.asarray([str(value) for value in values])


# ---------------------------------------------------------------------- images


def _images(options: Namespace, console: Console, loaded: Loaded, files: Sequence[str]) -> None:
    size = options.batch_size or 32
    pictures = limited(find_pictures(options.images, options, option="--images", batch_size=size), options.limit)
    database = calibration_of(options, pictures)
    for option, ones in (("--images", pictures), ("--calibrate", database)):
        if None in ones.labels:
            alone = ones.paths[ones.labels.index(None)]
            raise Misuse(f"{option} {ones.folder}: {alone.name} lies in no folder; an audit needs one folder a class.")
    import numpy as np

    from nobsp.neighbors import audit

    labels = [np.array(ones.labels) for ones in dict.fromkeys((database, pictures))]
    model = tried(options, loaded, database, console)
    classes = _settled(options, model, labels, others=len(database) - (pictures is database))
    require_readable(console, pictures, database)
    cam = maps.calibrated(options, model, database, console)
    index = _index(cam, options, classes).fit(database, labels[0])
    console.step(f"auditing {counted(len(pictures), 'image')}")
    fresh = pictures is not database
    found = audit(index, pictures if fresh else None, labels[-1] if fresh else None, k=options.neighbours)
    named = [str(one) for one in _classes(found)]
    option = "--output-names" if options.classes is None else "--classes"
    warning = wrong_order(pictures.labels, [str(one) for one in found.predicted], named, option=option)
    if warning is not None:
        console.step(f"warning: {warning}")
    with written(options.out) as folder:
        names = [str(path) for path in pictures.paths]
        write_csv(folder / "audit.csv", _lines(found, image=names))
        if options.report:
            console.step("writing the report")
            _pictured(folder / "report.html", options, loaded, found, cam, pictures, database, warning)
    console.results(*_summary(options, files, found, names, warning))


def _pictured(
    path: Path,
    options: Namespace,
    loaded: Loaded,
    found: Audit,
    cam: Any,
    pictures: Pictures,
    database: Pictures,
    warning: str | None,
) -> None:
    """The most suspicious images with their maps, beside their neighbours."""
    import numpy as np

    from nobsp.reporting import report

    order = most_suspicious(found)[:_IMAGES_IN_REPORT]
    some = pictures.chosen([int(row) for row in order])
    images = some.batch(range(len(some)))
    likely = np.argsort(-cam(images).logits, axis=1)[:, :_TARGETS]
    hits = found.by_contributions[order]
    # Only the neighbours are read again, and the page is told their numbers among these.
    near, places = np.unique(hits.indices, return_inverse=True)
    hits = dataclasses.replace(hits, indices=places.reshape(hits.indices.shape))
    others = database.chosen([int(row) for row in near])
    report(
        cam(images, likely),
        path,
        title=options.title or f"An audit of {loaded.name}",
        about=f"{loaded.name} ({loaded.origin}) on {counted(len(pictures), 'image')} of {pictures.folder.name}: "
        f"{_counts_in_words(found)}{_shown_in_words(found, order)} Most suspicious first, in the order of audit.csv."
        f"{'' if warning is None else f' Warning: {warning}'}",
        explainer=cam,
        labels=_codes(found, order),
        class_names=[str(one) for one in _classes(found)],
        images=some.shown(images),
        hits=hits,
        gallery=others.shown(others.batch(range(len(others)))),
        audit=part_of(found, order),
        names=some.names,
    )


# ---------------------------------------------------------------------- the audit


def _settled(options: Namespace, model: Tried, labels: Sequence[NDArray[Any]], *, others: int) -> NDArray[Any] | None:
    """The labels of --classes; an error where labels, classes and model do not go together."""
    import numpy as np

    from nobsp.neighbors.evidence import find_outcomes

    if options.neighbours > others:
        raise Misuse(f"--neighbours {options.neighbours}: there are only {others} others to compare with.")
    named = names_in(options.classes)
    classes = None if named is None else np.array(named)
    if classes is not None and labels[0].dtype.kind == "i":
        try:
            classes = classes.astype(np.int64)
        except ValueError:
            raise Misuse(f"--classes are {', '.join(classes)}, but the labels are whole numbers.") from None
    different = np.unique(np.concatenate(labels))
    if model.outputs == 1 and model.link != "sigmoid" and different.dtype.kind == "i" and len(different) > 2:
        raise Misuse(
            f"--target {options.target} holds {len(different)} different numbers, and the model has one output and no "
            f"sigmoid: {_NO_CLASSES}"
        )
    source: Any = model  # has the attributes of an EvidenceSource that are used, and is not calibrated yet
    outcomes = find_outcomes(source, task="classification", output=None, classes=classes, labels=labels[0])
    for some in labels:
        outcomes.encode(some, len(some))
    return classes


def _index(explainer: Any, options: Namespace, classes: NDArray[Any] | None) -> ContributionIndex:
    from nobsp.neighbors import ContributionIndex

    return ContributionIndex(explainer, task="classification", classes=classes, device=options.device)


def _classes(found: Audit) -> list[Any]:
    classes = found.by_contributions.classes
    assert classes is not None  # an audit is about classes
    named: list[Any] = classes.tolist()
    return named


def _codes(found: Audit, rows: NDArray[np.intp]) -> list[int]:
    """Labels as the page takes them: numbers of the classes."""
    assert found.labels is not None  # there are labels, or there would be no audit here
    return [_classes(found).index(label) for label in found.labels[rows].tolist()]


def most_suspicious(found: Audit) -> NDArray[np.intp]:
    """All rows: likely wrong labels first, then likely errors, then what else was flagged, by joint confidence."""
    import numpy as np

    mislabelled = np.zeros(len(found), dtype=bool) if found.mislabels is None else found.mislabels
    flagged = np.array([bool(reason) for reason in found.reasons])
    return np.lexsort((found.joint, ~flagged, ~found.errors, ~mislabelled))


def part_of(found: Audit, rows: NDArray[np.intp]) -> Audit:
    """What an audit found about some of its rows, in their order."""
    kept: dict[str, Any] = {"signals": {name: values[rows] for name, values in found.signals.items()}}
    kept["reasons"] = tuple(found.reasons[row] for row in rows)
    for field in dataclasses.fields(found):
        whole = getattr(found, field.name)
        if field.name not in (*kept, "joint_kind", "joint_model", "auroc"):  # these are about all rows
            kept[field.name] = None if whole is None else whole[rows]
    return dataclasses.replace(found, **kept)


def _lines(found: Audit, **more: Sequence[Any]) -> dict[str, list[Any]]:
    """The audit as columns, most suspicious first."""
    order = most_suspicious(found)
    table = found.to_frame()
    columns = {**more, **{str(name): list(table[name]) for name in table.columns}}
    return {name: [values[row] for row in order] for name, values in columns.items()}


# ---------------------------------------------------------------------- what is said


def _counts(found: Audit) -> dict[str, int]:
    flags = {"likely wrong label": found.mislabels, "likely error": found.errors}
    flags |= {"boundary case": found.boundary, "outlier": found.outliers}
    return {name: int(flag.sum()) for name, flag in flags.items() if flag is not None}


def _shown_in_words(found: Audit, kept: NDArray[np.intp]) -> str:
    return f" Shown are the {len(kept):,} most suspicious." if len(kept) < len(found) else ""


def _counts_in_words(found: Audit) -> str:
    return ", ".join(counted(count, name) for name, count in _counts(found).items()) + "."


def _summary(
    options: Namespace, files: Sequence[str], found: Audit, names: Sequence[str], warning: str | None = None
) -> tuple[list[str], dict[str, Any]]:
    first = [int(row) for row in most_suspicious(found)[:5] if found.reasons[row]]
    lines = [f"{len(found):,} predictions audited: {_counts_in_words(found)}"]
    if found.labels is not None:
        lines.append(f"{(found.predicted == found.labels).mean():.1%} of the predictions agree with the labels.")
    if found.auroc:
        scores = ", ".join(f"{name} {score:.3f}" for name, score in found.auroc.items())
        lines.append(f"Telling right from wrong predictions, AUROC: {scores}.")
    lines += [f"{names[row]}: {found.reasons[row]}." for row in first]
    lines.append("Wrote " + ", ".join(str(options.out / name) for name in files) + ".")
    return lines, {
        "rows": len(found),
        **{f"{name}s".replace(" ", "_"): count for name, count in _counts(found).items()},
        "warning": warning,
        "auroc": found.auroc,
        "first": [{"name": names[row], "reason": found.reasons[row]} for row in first],
        "files": {name: str(options.out / name) for name in files},
    }
