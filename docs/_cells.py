"""Scripts in cells: read, run with their output kept, and written as pages and notebooks.

A script begins with a docstring, its title and what it shows. A line `# %%` begins a cell; comments right
after it are its text, what follows is its code. Editors and Jupyter know this form.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MARK = re.compile(r"^# %%.*\n", re.MULTILINE)
# Figures that are less wide for their height than this are read in one piece on a telephone.
WIDEST_WHOLE = 1.7


@dataclass(frozen=True)
class Cell:
    """Text, and the code after it."""

    text: str
    code: str
    # Line of the script at which the code begins.
    line: int


@dataclass(frozen=True)
class Script:
    """A script of the gallery."""

    name: str
    title: str
    about: str
    cells: tuple[Cell, ...]


@dataclass
class Shown:
    """What a cell left behind."""

    printed: str = ""
    html: str = ""
    # Names of files beside the page.
    pictures: list[str] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)


def read_script(path: Path) -> Script:
    """A script's title, text and cells."""
    source = path.read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source))
    if not docstring:
        raise ValueError(f"{path.name} has no docstring: its first line is the title of its page.")
    title, _, about = docstring.partition("\n")

    marks = list(MARK.finditer(source))
    if not marks:
        raise ValueError(f"{path.name} has no cells; a line `# %%` begins one.")
    ends = [mark.start() for mark in marks[1:]] + [len(source)]
    cells = []
    for mark, end in zip(marks, ends, strict=True):
        line = source.count("\n", 0, mark.end()) + 1
        cells.append(_read_cell(source[mark.end() : end], line))
    return Script(name=path.stem, title=title.rstrip("."), about=about.strip(), cells=tuple(cells))


def _read_cell(source: str, line: int) -> Cell:
    lines = source.splitlines()
    text = []
    while lines and lines[0].startswith("#"):
        text.append(lines.pop(0).removeprefix("#").removeprefix(" "))
        line += 1
    while lines and not lines[0].strip():
        lines.pop(0)
        line += 1
    return Cell(text="\n".join(text).strip(), code="\n".join(lines).rstrip(), line=line)


def run_script(script: Script, path: Path, folder: Path) -> list[Shown]:
    """Runs all cells in one namespace, in `folder`; what they draw and write stays there."""
    import matplotlib as mpl

    mpl.use("Agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    with _inside(folder), warnings.catch_warnings():
        warnings.simplefilter("error")
        return [
            _run_cell(cell, path, names, folder, f"{script.name}-{number}")
            for number, cell in enumerate(script.cells, start=1)
        ]


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """With `folder` as the working directory."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _run_cell(cell: Cell, path: Path, names: dict[str, Any], folder: Path, name: str) -> Shown:
    import matplotlib.pyplot as plt

    tree = ast.parse("\n" * (cell.line - 1) + cell.code, filename=str(path))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    pages_before = set(folder.glob("*.html"))
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, str(path), "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), str(path), "eval"), names)  # type: ignore[attr-defined]

    shown = Shown(printed=printed.getvalue())
    for number, figure in enumerate(map(plt.figure, plt.get_fignums()), start=1):
        # In the dark figures are inverted, and those that hold photographs are not: by their names.
        picture = f"{name}-{number}{'-photo' if _holds_photographs(figure) else ''}.png"
        _save_small(figure, folder / picture)
        shown.pictures.append(picture)
    plt.close("all")
    shown.pages = sorted(page.name for page in set(folder.glob("*.html")) - pages_before)
    if not shown.pictures:
        _show_value(value, shown)
    return shown


def _holds_photographs(figure: Any) -> bool:
    """Whether an image in it has colours of its own, or is light where much is."""
    images = [image for panel in figure.axes for image in panel.images]
    return any(image.get_array().ndim == 3 or image.get_cmap().name == "gray" for image in images)


def _save_small(figure: Any, path: Path) -> None:
    """Saves a figure with few colours, which is a third of the size and looks the same."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110, facecolor="white")
    Image.open(drawn).convert("RGB").quantize(128).save(path, optimize=True)


def _show_value(value: Any, shown: Shown) -> None:
    """The value of a cell's last line as a notebook would show it."""
    if value is None:
        return
    as_html = getattr(value, "_repr_html_", None)
    if as_html is not None:
        shown.html = as_html()
    else:
        shown.printed += f"{value!r}\n"


def page_of(script: Script, results: list[Shown], folder: Path) -> str:
    """The page of a script, in Markdown; its pictures are in `folder`."""
    parts = [f"# {script.title}", script.about]
    for cell, shown in zip(script.cells, results, strict=True):
        parts.append(cell.text)
        if cell.code:
            parts.append(f"```python\n{cell.code}\n```")
        if shown.printed:
            parts.append(f"```{{ .text .output }}\n{shown.printed.rstrip()}\n```")
        if shown.html:
            parts.append(f'<div class="output-html">{_on_one_line(shown.html)}</div>')
        parts += [_picture_of(cell, picture, folder) for picture in shown.pictures]
        parts += [_frame_of(page) for page in shown.pages]
    parts.append(
        f"[Download as a notebook]({script.name}.ipynb){{ .md-button download }} "
        f"[Download the script]({script.name}.py){{ .md-button download }}"
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _picture_of(cell: Cell, picture: str, folder: Path) -> str:
    """A picture in Markdown, marked where it is to be seen in one piece on narrow screens."""
    from PIL import Image

    with Image.open(folder / picture) as opened:
        is_whole = opened.width < WIDEST_WHOLE * opened.height
    return f"![{_describe(cell)}]({picture})" + ("{ .whole }" if is_whole else "")


def _on_one_line(html: str) -> str:
    """HTML without blank lines, at which Markdown would end it."""
    return " ".join(html.split())


def _describe(cell: Cell) -> str:
    """A picture in words: the first sentence of its cell's text."""
    sentence = re.split(r"(?<=[.:!?])\s", cell.text.replace("\n", " "))[0]
    return re.sub(r"[\[\]`*#_]", "", sentence).strip() or "What the code above draws"


def _frame_of(page: str) -> str:
    return (
        f'<iframe src="{page}" title="The page that was written" loading="lazy" class="page"></iframe>\n\n'
        f"[Open the page]({page}){{ target=_blank }}"
    )


def notebook_of(script: Script) -> str:
    """The script as a notebook, without results."""
    cells = [_markdown_cell(f"# {script.title}\n\n{script.about}")]
    for cell in script.cells:
        if cell.text:
            cells.append(_markdown_cell(cell.text))
        if cell.code:
            cells.append(_code_cell(cell.code))
    for number, cell in enumerate(cells):
        cell["id"] = f"{script.name}-{number}"
    notebook = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _markdown_cell(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": text.splitlines(keepends=True)}


def _code_cell(code: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": code.splitlines(keepends=True),
    }


def as_data_address(picture: Path) -> str:
    """A picture as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
