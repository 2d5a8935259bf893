"""`nobsp.report`: an explanation, maps or neighbours in, one self-contained HTML file out."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import nobsp
from nobsp._typing import ArrayLike, ImagesLike
from nobsp.arguments import count, names_of, require_mapping, require_text
from nobsp.drafts import check_path, replacing
from nobsp.notebook import with_code
from nobsp.reporting.audits import KINDS, audit_for_page
from nobsp.reporting.packing import PageData, embedded
from nobsp.reporting.parts import is_dissected, parts_page

# The page's own scripts, in the order in which they need each other.
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
# What each kind of subject is recognised by.
_SUBJECTS = {
    "comparison": ("entries", "gap", "sides", "along"),
    "table": ("values", "base_values", "terms", "feature_names"),
    "images": ("positive", "negative", "signed", "logits"),
    "neighbours": ("indices", "distances"),
    "audit": ("predicted", "suggested", "reasons", "joint", "confidence", *KINDS),
}


def report(
    subject: Any,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    about: str | None = None,
    labels: ArrayLike = None,
    class_names: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    hits: Any = None,
    influence: Any = None,
    audit: Any = None,
    images: ImagesLike = None,
    gallery: ImagesLike = None,
    words: Sequence[Sequence[str]] | None = None,
    explainer: Any = None,
    truth: Mapping[str, Callable[[Any], Any]] | None = None,
) -> Path:
    """Writes one HTML file that shows what a network has learned, to be tried without Python.

    The learned functions travel inside the page, so its what-if section computes in the browser
    what Python computes. Nothing is loaded from elsewhere, and a content security policy keeps it
    so. The same input gives the same file.

    Args:
        subject: An `Explanation`, `ActivationMaps`, `confusions`, the neighbours that an index
            found, an `Audit`, a `Comparison`, or parts of a network, that is what `explain_parts`
            returned or its `ablation(X)`; the last two take `title` and `about` alone.
        path: The file; its folder must be there. One that exists is replaced, atomically.
        title: Heading of the page.
        about: A sentence or two on model and data, shown below it.
        labels: What the rows or images truly are: class numbers, names, or numbers of a regression.
        class_names: Names of classes 0, 1, …; the outputs' names when None.
        names: Names of the rows or images, e.g. those of files; positions when None.
        hits: Neighbours of the same rows or images, as an index finds them.
        influence: Which rows of an index speak for the predictions, as `index.influence` or
            `index.representer_shares` finds them.
        audit: What an audit of the same rows or images found, for a section of its own.
        images: The images that maps, neighbours or an audit are about, (n, channels, height, width)
            or channels last.
        gallery: The images the index was fitted on, for panels of what was found.
        words: The tokens of every text that maps are about, as many as there are locations, or
            fewer where the rest is padding.
        explainer: What made the subject, to name the model; for maps it also tells of the
            calibration.
        truth: Known functions by feature, drawn over the learned ones.

    Returns:
        Where the page is.

    Raises:
        ImportError: If the extra "report" is not installed.
        OSError: If the file cannot be written there.

    Example:
        >>> import tempfile, torch, nobsp
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(2, 8), ReLU(), Linear(8, 1))
        >>> X = torch.randn(200, 2)
        >>> explanation = nobsp.NObSP(model, features=["age", "income"]).fit(X)(X)
        >>> nobsp.report(explanation, f"{tempfile.mkdtemp()}/report.html", title="Loans").name
        'report.html'
    """
    target = check_path(path)
    require_text("title", title)
    require_text("about", about)
    require_mapping("truth", truth, wanted="functions by feature")
    if is_dissected(subject):
        return _write(parts_page(subject, title=title, about=about), target)
    class_names = _class_names_of(class_names)
    if _are_confusions(subject):
        images = _or_default(images, subject.images)
        labels = _or_default(labels, subject.labels)
        subject = subject.maps

    kind = _kind_of(subject)
    if kind == "comparison":
        return _report_comparison(subject, target, title=title, about=about)
    n_rows = _count_rows(subject, kind)
    shared = _Shared(
        labels=labels,
        class_names=class_names,
        names=_names_of_rows(names, n_rows),
        explainer=explainer,
        influence=influence,
    )
    sections = _sections(
        subject,
        kind,
        shared,
        hits=hits,
        audit=audit,
        images=images,
        gallery=gallery,
        words=words,
        truth=truth,
    )
    data: PageData = {"about": about or "", "version": nobsp.__version__, **sections}
    section = data["table"] or data["pictures"] or {}
    data["title"] = title or _usual_title(kind, count(n_rows, section.get("noun", "row")))
    return _write(render(data), target)


def _sections(
    subject: Any,
    kind: str,
    shared: _Shared,
    *,
    hits: Any,
    audit: Any,
    images: ImagesLike,
    gallery: ImagesLike,
    words: Sequence[Sequence[str]] | None,
    truth: Mapping[str, Callable[[Any], Any]] | None,
) -> PageData:
    """What the page shows: a table or pictures, and what an audit found.

    None for each that it lacks.
    """
    if words is not None and kind != "images":
        raise ValueError("words are those of texts, and subject has no maps of texts.")
    table: PageData | None = None
    pictures: PageData | None = None
    if kind == "table":
        table = _table_section(subject, shared, hits=hits, truth=truth)
    elif kind == "neighbours":
        pictures = _pictures_section(None, subject, shared, images=images, gallery=gallery)
    elif kind == "images":
        pictures = _pictures_section(
            subject, hits, shared, images=images, gallery=gallery, words=words
        )

    section = table or pictures or {}
    audited = subject if kind == "audit" else audit
    audit_section: PageData | None = None
    if audited is not None:
        n_rows = _count_rows(subject, kind)
        audit_section = audit_for_page(
            audited,
            rows=n_rows,
            names=shared.names,
            classes=shared.class_names or section.get("classes", ()),
        )
        if pictures is None and images is not None:
            audit_section["images"] = _pictures_of_audit(audit_section, images, n_rows)
    return {"table": table, "pictures": pictures, "audit": audit_section}


def _pictures_of_audit(lines: PageData, images: ImagesLike, total: int) -> list[str]:
    """A small picture for each line of an audit."""
    from nobsp.reporting.pictures import small_pictures

    return small_pictures(images, places=lines["places"], rows=lines["rows"], total=total)


def _or_default(value: Any, default: Any) -> Any:
    """What the caller passed, or what the subject itself has."""
    return default if value is None else value


@dataclass(frozen=True, eq=False)
class _Shared:
    """What tables and pictures are shown with alike."""

    labels: ArrayLike
    class_names: Sequence[str] | None
    names: tuple[str, ...] | None
    explainer: Any
    influence: Any


def _table_section(
    explanation: Any,
    shared: _Shared,
    *,
    hits: Any,
    truth: Mapping[str, Callable[[Any], Any]] | None,
) -> Any:
    """What a page tells of rows of a table."""
    from nobsp.reporting.tables import table_data

    return table_data(
        explanation,
        hits=hits,
        truth=truth,
        labels=shared.labels,
        class_names=shared.class_names,
        names=shared.names,
        explainer=shared.explainer,
        influence=shared.influence,
    )


def _pictures_section(
    maps: Any,
    hits: Any,
    shared: _Shared,
    *,
    images: ImagesLike,
    gallery: ImagesLike,
    words: Sequence[Sequence[str]] | None = None,
) -> Any:
    """What a page tells of images, or of the neighbours of rows that may be images."""
    from nobsp.reporting.pictures import pictures_data

    return pictures_data(
        maps,
        hits=hits,
        images=images,
        gallery=gallery,
        words=words,
        labels=shared.labels,
        class_names=shared.class_names,
        names=shared.names,
        explainer=shared.explainer,
        influence=shared.influence,
    )


def _class_names_of(names: Sequence[str] | None) -> Sequence[str] | None:
    """Names of classes as texts; None where there are none."""
    return None if names is None else names_of("class_names", names)


def _names_of_rows(names: Sequence[str] | None, rows: int) -> tuple[str, ...] | None:
    """Names of the rows, as many as there are; None where they go by position."""
    if names is None:
        return None
    listed = names_of("names", names)
    if len(listed) != rows:
        raise ValueError(f"names must be one per row, {rows}, found {len(listed)}.")
    return listed


def _write(page: str, target: Path) -> Path:
    """Puts a page into its file, whole or not at all."""
    with replacing(target) as draft:
        draft.write_text(page, encoding="utf-8", newline="\n")
    return target


def _report_comparison(
    comparison: Any, target: Path, *, title: str | None, about: str | None
) -> Path:
    """Writes the page of a comparison, which needs no scripts."""
    require_jinja2()
    from nobsp.reporting.comparisons import comparison_sheet
    from nobsp.reporting.sheets import html_of

    return _write(html_of(comparison_sheet(comparison, title=title, about=about)), target)


def require_jinja2() -> None:
    """Raises an ImportError that names the extra where templates cannot be filled."""
    try:
        import jinja2  # noqa: F401
    except ImportError as missing:
        raise ImportError("a page needs jinja2: pip install 'nobsp[report]'.") from missing


def _are_confusions(subject: Any) -> bool:
    """Whether these are classes that are confused, which are shown as maps of their examples."""
    return hasattr(subject, "matrix") and hasattr(subject, "pairs")


def _kind_of(subject: Any) -> str:
    """Which kind of page a subject asks for.

    It is told by its attributes: the page knows no index, and loads no torch by itself.
    """
    for kind, names in _SUBJECTS.items():
        if all(hasattr(subject, name) for name in names):
            return kind
    if hasattr(subject, "fit"):
        raise TypeError(
            "a page shows rows or images: pass the result of calling this "
            f"{type(subject).__name__} on some, as in nobsp.report(explainer(X), path)."
        )
    known = "explainer(X), cam(images), index.query(X), audit(index) or compare(a, b)"
    raise TypeError(f"subject must be {known}, found {type(subject).__name__}.")


def _count_rows(subject: Any, kind: str) -> int:
    """How many rows or images a subject is about."""
    if kind == "audit":
        return len(subject.predicted)
    if kind == "neighbours":
        return len(subject.indices)
    return len(subject)


def _usual_title(kind: str, rows: str) -> str:
    """The heading of a page that has none of its own."""
    if kind == "audit":
        return "What the audit found"
    if kind == "neighbours":
        return f"Neighbours of {rows}"
    return "What the model has learned"


def render(data: PageData) -> str:
    """The whole page."""
    folder = resources.files("nobsp.reporting")
    scripts = _read_scripts(folder, with_plotly=bool(data["table"]))
    return fill_template(
        folder / "page.html.j2",
        data=data,
        embedded=embedded(data),
        style=(folder / "page.css").read_text(encoding="utf-8"),
        scripts=scripts,
        hashes=[content_hash(script) for script in scripts],
    )


def _read_scripts(folder: Traversable, *, with_plotly: bool) -> list[str]:
    """The scripts of a page, as a browser reads them."""
    try:
        # Imported here, so that what is missing is named.
        import jinja2  # noqa: F401
        from plotly.offline import get_plotlyjs
    except ImportError as missing:
        raise ImportError(
            "a report needs jinja2 and plotly: pip install 'nobsp[report]'."
        ) from missing

    # Tables are read by the same lines in a page and in a module of functions.
    reading = resources.files("nobsp.tabular.exports") / "reading.js"
    parts = [reading.read_text(encoding="utf-8")]
    parts += [(folder / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS]
    own = "\n".join(parts)
    theme = (folder / "theme.js").read_text(encoding="utf-8")
    scripts = [theme, f'(() => {{\n"use strict";\n{own}\n}})();']
    if with_plotly:
        scripts.append(get_plotlyjs())

    # Lines end in a line feed alone, so that the hashes hold.
    one_ending = [re.sub("\r\n?", "\n", script) for script in scripts]
    return [script.replace("</script", "<\\/script") for script in one_ending]


def content_hash(script: str) -> str:
    """The hash by which a content security policy allows a script."""
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return base64.b64encode(digest).decode("ascii")


def fill_template(template: Traversable | Path, **values: ArrayLike) -> str:
    """A template, a file or resource, with values in it."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["with_code"] = lambda text: Markup(with_code(text))
    return environment.from_string(template.read_text(encoding="utf-8")).render(**values)
