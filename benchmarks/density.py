"""How densely a source tree is written, counted the same way for any Python project.

Everything is read from the text: nothing of the measured project is imported.
"""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

# Tokens that a reader does not read as code.
LAYOUT = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    }
)
# Names that point at something without saying what it is.
PRONOUNS = frozenset({"found", "one", "place", "given", "kept", "made", "both", "how"})
# What a line may hold before it no longer fits beside another window.
LONG_LINE = 100
# Functions from this length on should show their steps.
LONG_FUNCTION = 20
# Above either number a function is more than one step.
MOST_BRANCHES = 15
MOST_TOKENS = 400

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.comprehension,
    ast.match_case,
)


@dataclass(frozen=True)
class SourceFile:
    """One file, taken apart once."""

    lines: list[str]
    tree: ast.Module
    tokens_by_line: Counter[int]
    functions: list[FunctionNode]

    def tokens_between(self, first: int, last: int) -> int:
        """Tokens of code on these lines, both included."""
        return sum(self.tokens_by_line[line] for line in range(first, last + 1))


@dataclass(frozen=True)
class Density:
    """The counts of one source tree."""

    files: int
    lines: int
    tokens: int
    functions: int
    tokens_per_line: float
    long_lines: float
    without_blank_line: float
    packed_per_thousand: float
    with_pronouns: float
    many_branches: int
    many_tokens: int
    any_per_thousand: float


# What each field of `Density` is called in the table, and how it is written.
COLUMNS = {
    "files": ("files", "{:,}"),
    "lines": ("lines", "{:,}"),
    "tokens": ("tokens", "{:,}"),
    "functions": ("functions", "{:,}"),
    "tokens_per_line": ("tokens per line of code", "{:.1f}"),
    "long_lines": (f"lines over {LONG_LINE} characters", "{:.1%}"),
    "without_blank_line": (f"functions of {LONG_FUNCTION}+ lines without a blank line", "{:.0%}"),
    "packed_per_thousand": ("packed `a, b = x, y` per 1,000 lines", "{:.1f}"),
    "with_pronouns": ("functions with pronouns for names", "{:.1%}"),
    "many_branches": (f"functions of more than {MOST_BRANCHES} branches", "{:,}"),
    "many_tokens": (f"functions of more than {MOST_TOKENS} tokens", "{:,}"),
    "any_per_thousand": ("`Any` per 1,000 lines", "{:.1f}"),
}


def read_file(path: Path) -> SourceFile:
    """A file with its syntax tree and the tokens of code on each line, docstrings not counted."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)

    tokens_by_line: Counter[int] = Counter()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_long_text = token.type == tokenize.STRING and token.string.startswith(('"""', "'''"))
        if token.type not in LAYOUT and not is_long_text:
            tokens_by_line[token.start[0]] += 1

    functions = [node for node in ast.walk(tree) if isinstance(node, FunctionNode)]
    return SourceFile(text.splitlines(), tree, tokens_by_line, functions)


def read_tree(folder: Path) -> list[SourceFile]:
    """Every module of a package, its tests left out."""
    paths = sorted(
        path for path in folder.rglob("*.py") if "tests" not in path.relative_to(folder).parts
    )
    return [read_file(path) for path in paths]


def measure_tree(folder: Path) -> Density:
    """All counts of the package in `folder`."""
    files = read_tree(folder)
    lines = sum(len(file.lines) for file in files)
    code_lines = sum(len(file.tokens_by_line) for file in files)
    tokens = sum(file.tokens_by_line.total() for file in files)
    functions = [(file, function) for file in files for function in file.functions]

    long_functions = [pair for pair in functions if body_length(pair[1]) >= LONG_FUNCTION]
    unbroken = sum(not has_blank_line(*pair) for pair in long_functions)
    with_pronouns = sum(uses_pronoun(function) for _, function in functions)
    packed = sum(is_packed(node) for file in files for node in ast.walk(file.tree))
    long_lines = sum(len(line) > LONG_LINE for file in files for line in file.lines)

    return Density(
        files=len(files),
        lines=lines,
        tokens=tokens,
        functions=len(functions),
        tokens_per_line=tokens / code_lines,
        long_lines=long_lines / lines,
        without_blank_line=unbroken / max(1, len(long_functions)),
        packed_per_thousand=1000 * packed / code_lines,
        with_pronouns=with_pronouns / max(1, len(functions)),
        many_branches=sum(count_branches(node) > MOST_BRANCHES for _, node in functions),
        many_tokens=sum(function_tokens(*pair) > MOST_TOKENS for pair in functions),
        any_per_thousand=1000 * sum(map(count_any, files)) / code_lines,
    )


def body_length(function: FunctionNode) -> int:
    """Lines of a function without its signature and docstring."""
    return last_line(function) - first_line_of_body(function) + 1


def first_line_of_body(function: FunctionNode) -> int:
    """Where a function's work begins, after its docstring."""
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is None:
        return first.lineno
    return last_line(first) + 1


def last_line(node: ast.stmt) -> int:
    """The line on which a statement ends."""
    return node.end_lineno or node.lineno


def has_blank_line(file: SourceFile, function: FunctionNode) -> bool:
    """Whether a blank line separates any two steps of a function."""
    body = file.lines[first_line_of_body(function) : last_line(function)]
    return any(not line.strip() for line in body)


def uses_pronoun(function: FunctionNode) -> bool:
    """Whether a function takes or assigns a name that says nothing."""
    return not PRONOUNS.isdisjoint(assigned_names(function))


def assigned_names(function: FunctionNode) -> Iterator[str]:
    """Arguments and variables of a function."""
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def is_packed(node: ast.AST) -> bool:
    """Whether a statement assigns several values to several names at once."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    return any(isinstance(target, ast.Tuple) for target in node.targets)


def count_branches(function: FunctionNode) -> int:
    """Decisions and loops in a function, each operand of `and` and `or` after the first among them."""
    branches = 0
    for node in ast.walk(function):
        if isinstance(node, BRANCHES):
            branches += 1
        elif isinstance(node, ast.BoolOp):
            branches += len(node.values) - 1
    return branches


def function_tokens(file: SourceFile, function: FunctionNode) -> int:
    """Tokens of a function, its signature among them."""
    return file.tokens_between(function.lineno, last_line(function))


def count_any(file: SourceFile) -> int:
    """How often `Any` is written."""
    return sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(file.tree))


def density_table(measured: dict[str, Density]) -> list[str]:
    """A Markdown table, one row per count and one column per source tree."""
    rows = [
        "| | " + " | ".join(measured) + " |",
        "|---|" + "---:|" * len(measured),
    ]
    for field in fields(Density):
        title, form = COLUMNS[field.name]
        numbers = [form.format(getattr(density, field.name)) for density in measured.values()]
        rows.append(f"| {title} | " + " | ".join(numbers) + " |")
    return rows


def densest_files(folder: Path, *, most: int = 10) -> Sequence[tuple[str, float]]:
    """The files with most tokens per line, for whoever wants to know where to begin."""
    shown = []
    for path in folder.rglob("*.py"):
        counts = list(read_file(path).tokens_by_line.values())
        if counts:
            shown.append((str(path.relative_to(folder)), statistics.fmean(counts)))
    return sorted(shown, key=lambda row: -row[1])[:most]
