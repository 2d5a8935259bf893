"""`nobsp.report`: an explanation, maps or neighbours in, one self-contained HTML file out."""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypedDict, Unpack

import nobsp
from nobsp._messages import count as count_of
from nobsp._messages import require_whole_number, suggest
from nobsp.reporting.audits import audit_for_page, is_audit
from nobsp.reporting.packing import embedded

_SCRIPTS = (
    "numbers",
    "functions",
    "charts",
    "account",
    "overview",
    "curves",
    "whatif",
    "rows",
    "pictures",
    "audit",
    "page",
)


class ReportOptions(TypedDict, total=False):
    """Options of a report that are rarely needed.

    Attributes:
        explainer: The explainer the subject is from, which names the model. An explanation knows its own functions; for
            maps it tells of the calibration.
        class_names: Names of classes 0, 1, …; the outputs' names when missing.
        link: "identity", "softmax", "sigmoid" or "exp": how outputs become probabilities. The model's own when missing,
            or the usual one where labels are classes.
        truth: Known functions by feature, drawn over the learned ones.
        gallery: The images the index was fitted on, for panels of what was found.
        names: Names of the rows or images, e.g. those of files; positions when missing.
        rows: Most rows that can be browsed in the page, 5000; fewer are kept where a table is wide. Statistics use all.
        overwrite: Whether a file that is there is replaced; it is.
    """

    explainer: Any
    class_names: Sequence[str] | None
    link: str | None
    truth: Mapping[str, Callable[[Any], Any]] | None
    gallery: Any
    names: Sequence[str] | None
    rows: int
    overwrite: bool


def report(
    subject: Any,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    about: str | None = None,
    labels: Any = None,
    images: Any = None,
    hits: Any = None,
    audit: Any = None,
    **options: Unpack[ReportOptions],
) -> Path:
    """Writes one HTML file that shows what a network has learned, and lets people try it without Python.

    The learned functions travel inside the page, so its what-if section computes in the browser what Python computes.
    Nothing is loaded from elsewhere, and a content security policy keeps it so. The same input gives the same file.

    Args:
        subject: An `Explanation`, `ActivationMaps`, the neighbours that an index found, or an `Audit`.
        path: The file; its folder must be there. Writing is atomic.
        title: Heading of the page.
        about: A sentence or two on model and data, shown below it.
        labels: What the rows or images truly are: class numbers, names, or numbers of a regression.
        images: The images that maps or neighbours are about, (n, channels, height, width) or channels last.
        hits: Neighbours of the same rows or images, as an index finds them.
        audit: What an audit of the same rows or images found, for a section of its own.
        options: What is rarely needed, by name; see `ReportOptions`.

    Returns:
        Where the page is.

    Raises:
        ImportError: If the extra "report" is not installed.
        OSError: If the file cannot be written there.
        TypeError: If the subject is of another kind.
        ValueError: If arguments do not fit the subject.

    Example:
        >>> import tempfile, torch
        >>> from nobsp import NObSP
        >>> from nobsp.reporting import report
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        >>> X = torch.randn(200, 2)
        >>> explanation = NObSP(model, features=["age", "income"]).fit(X)(X)
        >>> folder = tempfile.mkdtemp()
        >>> report(explanation, f"{folder}/report.html", title="Loans").name
        'report.html'
    """
    unknown = [name for name in options if name not in ReportOptions.__annotations__]
    if unknown:
        raise TypeError(f"report has no option {unknown[0]!r}; {suggest(unknown[0], ReportOptions.__annotations__)}")
    target = check_path(path, overwrite=options.get("overwrite", True))
    rows, names, class_names = options.get("rows", 5000), options.get("names"), options.get("class_names")
    require_whole_number("rows", rows)
    data: dict[str, Any] = {
        "title": title,
        "about": about or "",
        "version": nobsp.__version__,
        "table": None,
        "pictures": None,
        "audit": None,
    }
    kind = _kind_of(subject)
    count = len(subject.predicted if kind == "audit" else subject.indices if kind == "neighbours" else subject)
    if names is not None:
        names = [str(name) for name in names]
        if len(names) != count:
            raise ValueError(f"names must be one per row, {count}, found {len(names)}.")
    if kind == "table":
        from nobsp.reporting.tables import table_data

        data["table"] = table_data(
            subject,
            explainer=options.get("explainer"),
            labels=labels,
            class_names=class_names,
            link=options.get("link"),
            truth=options.get("truth"),
            hits=hits,
            names=names,
            rows=rows,
        )
    elif kind != "audit":
        from nobsp.reporting.pictures import pictures_data

        data["pictures"] = pictures_data(
            subject if kind == "images" else None,
            hits=hits if kind == "images" else subject,
            images=images,
            gallery=options.get("gallery"),
            explainer=options.get("explainer"),
            labels=labels,
            class_names=class_names,
            names=names,
            rows=rows,
        )
    audit = subject if kind == "audit" else audit
    if audit is not None:
        classes = class_names or (data["table"] or data["pictures"] or {}).get("classes", ())
        data["audit"] = audit_for_page(audit, rows=count, names=names, classes=classes)
    data["title"] = title or _usual_title(data)
    write_text(target, render(data))
    return target


def _kind_of(subject: Any) -> str:
    """Which kind of page a subject asks for, by what it has: the page knows no index, and loads no torch by itself."""
    if all(hasattr(subject, name) for name in ("values", "base_values", "terms", "feature_names")):
        return "table"
    if all(hasattr(subject, name) for name in ("positive", "negative", "signed", "logits")):
        return "images"
    if all(hasattr(subject, name) for name in ("indices", "distances")):
        return "neighbours"
    if is_audit(subject):
        return "audit"
    raise TypeError(
        "subject must be an Explanation, ActivationMaps, what an index found, or an Audit, "
        f"found {type(subject).__name__}; pass explainer(X), cam(images), index.query(X) or audit(index)."
    )


def _usual_title(data: dict[str, Any]) -> str:
    pictures = data["pictures"]
    if data["table"] is None and pictures is None:
        return "What the audit found"
    if pictures is None or pictures["maps"] is not None:
        return "What the network has learned"
    return f"Neighbours of {count_of(pictures['total'], pictures['noun'])}"


def render(data: dict[str, Any]) -> str:
    """The whole page."""
    try:
        import jinja2
        from plotly.offline import get_plotlyjs
    except ImportError as missing:
        raise ImportError("a report needs jinja2 and plotly: pip install 'nobsp[report]'.") from missing
    here = resources.files("nobsp.reporting")
    own = "\n".join((here / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS)
    scripts = [(here / "theme.js").read_text(encoding="utf-8")]
    scripts.append(f'(() => {{\n"use strict";\n{own}\n}})();')
    scripts += [get_plotlyjs()] if data["table"] else []
    scripts = [_as_parsed(script) for script in scripts]
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((here / "page.html.j2").read_text(encoding="utf-8"))
    return template.render(
        data=data,
        embedded=embedded(data),
        style=(here / "page.css").read_text(encoding="utf-8"),
        scripts=scripts,
        hashes=[_hash(script) for script in scripts],
    )


def _as_parsed(script: str) -> str:
    """A script as a browser reads it, so that its hash holds: a line ends in a line feed alone."""
    return script.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def check_path(path: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """The file to write, or an error before any work is done for it."""
    target = Path(path)
    folder = target.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"path is in {str(folder)!r}, which is not a folder; create it first.")
    if target.is_dir():
        raise IsADirectoryError(f"path {str(target)!r} is a folder; pass the name of a file.")
    if target.exists() and not overwrite:
        raise FileExistsError(f"path {str(target)!r} is there already; pass another, or overwrite=True.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"path is in {str(folder)!r}, which cannot be written to; choose another folder.")
    return target


def write_text(target: Path, text: str) -> None:
    """Writes to a file beside the target, and puts it in its place when it is complete."""
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(8)}.part")
    try:
        with open(temporary, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
