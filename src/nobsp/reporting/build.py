"""`nobsp.report`: an explanation, maps or neighbours in, one self-contained HTML file out."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import nobsp
from nobsp._messages import count as count_of
from nobsp.arguments import names_of, require_mapping, require_text
from nobsp.drafts import check_path, replacing
from nobsp.reporting.audits import KINDS, audit_for_page
from nobsp.reporting.packing import embedded

_BASIC = ("numbers", "functions", "charts", "account")
_SCRIPTS = (*_BASIC, "overview", "curves", "whatif", "rows", "pictures", "audit", "page")
_SUBJECTS = {
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
    labels: Any = None,
    class_names: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    hits: Any = None,
    influence: Any = None,
    audit: Any = None,
    images: Any = None,
    gallery: Any = None,
    explainer: Any = None,
    truth: Mapping[str, Callable[[Any], Any]] | None = None,
) -> Path:
    """Writes one HTML file that shows what a network has learned, and lets people try it without Python.

    The learned functions travel inside the page, so its what-if section computes in the browser what Python computes.
    Nothing is loaded from elsewhere, and a content security policy keeps it so. The same input gives the same file.

    Args:
        subject: An `Explanation`, `ActivationMaps`, `confusions`, the neighbours that an index found, or an `Audit`.
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
        images: The images that maps or neighbours are about, (n, channels, height, width) or channels last.
        gallery: The images the index was fitted on, for panels of what was found.
        explainer: What made the subject, to name the model; for maps it also tells of the calibration.
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
    if class_names is not None:
        class_names = names_of("class_names", class_names)
    if hasattr(subject, "matrix") and hasattr(
        subject, "pairs"
    ):  # classes that are confused: maps of their examples
        images = subject.images if images is None else images
        labels = subject.labels if labels is None else labels
        subject = subject.maps
    kind = _kind_of(subject)
    count = len(
        subject.predicted
        if kind == "audit"
        else subject.indices
        if kind == "neighbours"
        else subject
    )
    if names is not None:
        names = names_of("names", names)
        if len(names) != count:
            raise ValueError(f"names must be one per row, {count}, found {len(names)}.")
    data: dict[str, Any] = {
        "about": about or "",
        "version": nobsp.__version__,
        "table": None,
        "pictures": None,
    }
    shared: dict[str, Any] = {
        "labels": labels,
        "class_names": class_names,
        "names": names,
        "explainer": explainer,
    }
    shared["influence"] = influence
    if kind == "table":
        from nobsp.reporting.tables import table_data

        data["table"] = table_data(subject, hits=hits, truth=truth, **shared)
    elif kind != "audit":
        from nobsp.reporting.pictures import pictures_data

        maps, hits = (subject, hits) if kind == "images" else (None, subject)
        data["pictures"] = pictures_data(maps, hits=hits, images=images, gallery=gallery, **shared)
    audit, noun = subject if kind == "audit" else audit, (data["pictures"] or {}).get("noun", "row")
    classes = class_names or (data["table"] or data["pictures"] or {}).get("classes", ())
    data["audit"] = (
        None if audit is None else audit_for_page(audit, rows=count, names=names, classes=classes)
    )
    usual = {
        "audit": "What the audit found",
        "neighbours": f"Neighbours of {count_of(count, noun)}",
    }
    data["title"] = title or usual.get(kind, "What the network has learned")
    page = render(data)
    with replacing(target) as draft:
        draft.write_text(page, encoding="utf-8", newline="\n")
    return target


def _kind_of(subject: Any) -> str:
    """Which kind of page a subject asks for, by what it has: the page knows no index, and loads no torch by itself."""
    for kind, names in _SUBJECTS.items():
        if all(hasattr(subject, name) for name in names):
            return kind
    known = "explainer(X), cam(images), index.query(X) or audit(index)"
    raise TypeError(f"subject must be {known}, found {type(subject).__name__}.")


def render(data: dict[str, Any]) -> str:
    """The whole page."""
    try:
        import jinja2  # noqa: F401 - here, so that what is missing is named
        from plotly.offline import get_plotlyjs
    except ImportError as missing:
        raise ImportError(
            "a report needs jinja2 and plotly: pip install 'nobsp[report]'."
        ) from missing
    here = resources.files("nobsp.reporting")
    own = "\n".join((here / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS)
    scripts = [(here / "theme.js").read_text(encoding="utf-8")]
    scripts.append(f'(() => {{\n"use strict";\n{own}\n}})();')
    scripts += [get_plotlyjs()] if data["table"] else []
    # As a browser reads them, so that hashes hold: a line ends in a line feed alone.
    scripts = [
        re.sub("\r\n?", "\n", script).replace("</script", "<\\/script") for script in scripts
    ]
    return fill_template(
        here / "page.html.j2",
        data=data,
        embedded=embedded(data),
        style=(here / "page.css").read_text(encoding="utf-8"),
        scripts=scripts,
        hashes=[
            base64.b64encode(hashlib.sha256(one.encode("utf-8")).digest()).decode("ascii")
            for one in scripts
        ],
    )


def fill_template(template: Any, **values: Any) -> str:
    """A template, a file or resource, with values in it."""
    import jinja2

    options: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, **options)
    return environment.from_string(template.read_text(encoding="utf-8")).render(**values)
