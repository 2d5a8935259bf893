"""`nobsp.card`: one page for whoever must sign for a model, as HTML or Markdown."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from nobsp._typing import AnyArray, ArrayLike, FloatArray, TableLike
from nobsp.arguments import array_of, count, quote, require_mapping, require_text, with_minus
from nobsp.comparison import Comparison, compare
from nobsp.drafts import check_path, replacing
from nobsp.findings import Finding, merge_findings
from nobsp.reporting.build import require_jinja2
from nobsp.reporting.packing import describe_model, known
from nobsp.reporting.sheets import (
    Bar,
    Bars,
    Block,
    Curve,
    Grid,
    Line,
    Section,
    Sheet,
    Standing,
    html_of,
    markdown_of,
    number_text,
    standing_of,
)
from nobsp.tabular.explanation import Explanation
from nobsp.tabular.indexing import column_names
from nobsp.tabular.shapes import ShapeCheck
from nobsp.tabular.weak_spots import FEWEST_ROWS, WeakSpot

# A calibrated `NObSP`; told by attributes, so that torch is loaded by whoever made it.
ExplainerLike: TypeAlias = Any

# Features whose functions are drawn, the same of each of several outputs, outputs that are shown,
# terms that are listed, levels of a group that are compared, parts of each gap.
MOST_CURVES = 9
MOST_CURVES_EACH = 4
MOST_OUTPUTS = 6
MOST_TERMS = 20
MOST_LEVELS = 6
MOST_PARTS = 6
_POINTS = 60
# Rows below which a level of a group is not compared.
_FEWEST_IN_LEVEL = 20

_MARKDOWN = (".md", ".markdown")
_HTML = (".html", ".htm")

_LIMITS = (
    "Functions describe the model, not the world: no curve and no part is a cause.",
    "Held-out R² and bands are over rows like those it was calibrated on; rows of another kind, "
    "and a model trained anew, may differ by more.",
    "A shape that holds was tried on these rows and along the range named; the bound is for rows "
    "drawn as these were.",
    "Weak spots are regions of a few conditions; a fault that is spread thinly, or in fewer rows, "
    "is not found.",
    "Gaps compare mean predictions of groups as they are; whether a gap is fair is not a number.",
)


def card(
    explainer: ExplainerLike,
    X: TableLike,
    path: str | os.PathLike[str],
    *,
    checks: ShapeCheck | Sequence[ShapeCheck] = (),
    groups: Mapping[str, ArrayLike] | None = None,
    title: str | None = None,
    about: str | None = None,
) -> Path:
    """Writes one page for an auditor, on what the model does and how far that is known.

    It tells of the model, the data, the headline, functions, shapes, weak spots, gaps and limits.

    Everything is computed from the explainer, the model and these rows, and can be computed again:
    an HTML card has all its numbers as JSON in the element `numbers`.

    Args:
        explainer: A calibrated `NObSP`.
        X: Rows to judge by, best ones that neither the model nor the calibration has seen.
        path: The file: Markdown where it ends in .md, HTML in .html. One that exists is replaced,
            atomically.
        checks: What `explainer.check_shape` found, to be shown: one or several.
        groups: Groups between which gaps are shown, by name: one value per row of `X`. Each of the
            most frequent values is compared with all other rows.
        title: Heading of the page.
        about: A sentence or two on model and data.

    Returns:
        Where the card is.

    Example:
        >>> import tempfile, numpy as np, nobsp
        >>> X = np.random.default_rng(0).normal(size=(400, 2))
        >>> explainer = nobsp.NObSP(
        ...     lambda X: X[:, 0] + X[:, 1] ** 2, features=["age", "size"]
        ... ).fit(X)
        >>> check = explainer.check_shape("age", "increasing", X)
        >>> nobsp.card(explainer, X, f"{tempfile.mkdtemp()}/card.md", checks=[check]).name
        'card.md'
    """
    target = check_path(path)
    require_text("title", title)
    require_text("about", about)
    require_mapping("groups", groups, wanted="one value per row, by name")
    if not hasattr(explainer, "weak_spots") or not hasattr(explainer, "functions_"):
        raise TypeError(f"explainer must be a calibrated NObSP, found {type(explainer).__name__}.")
    if isinstance(checks, ShapeCheck):
        checks = (checks,)
    if not isinstance(checks, Sequence):
        raise TypeError(f"checks must be what check_shape returned, found {quote(checks)}.")
    for number, check in enumerate(checks):
        if not isinstance(check, ShapeCheck):
            raise TypeError(
                f"checks[{number}] must be what check_shape returned, found {type(check).__name__}."
            )
    is_markdown = target.suffix.lower() in _MARKDOWN
    if not is_markdown and target.suffix.lower() not in _HTML:
        raise ValueError(f"path must end in .html or .md, found {target.name!r}.")
    if not is_markdown:
        require_jinja2()

    sheet = card_sheet(explainer, X, checks=checks, groups=groups, title=title, about=about)
    page = markdown_of(sheet) if is_markdown else html_of(sheet)
    with replacing(target) as draft:
        draft.write_text(page, encoding="utf-8", newline="\n")
    return target


def card_sheet(
    explainer: ExplainerLike,
    X: TableLike,
    *,
    checks: Sequence[ShapeCheck],
    groups: Mapping[str, ArrayLike] | None,
    title: str | None,
    about: str | None,
) -> Sheet:
    """Everything that a card tells."""
    explanation: Explanation = explainer(X)
    n_known = int(np.isfinite(explanation.residual).all(1).sum())
    spots: tuple[WeakSpot, ...] = ()
    if n_known >= FEWEST_ROWS:
        spots = explainer.weak_spots(X)
    gaps, omissions = _gaps_between(explanation, groups or {})
    health = explainer.health(X)
    numbers = {
        "headline": _headline_numbers(explanation, health),
        "terms": _term_numbers(explanation),
        "curves": _curve_numbers(explainer, explanation),
        "checks": [_check_numbers(check) for check in checks],
        "weak_spots": [_spot_numbers(spot) for spot in spots],
        "gaps": [_gap_numbers(name, level, gap) for name, level, gap in gaps],
        "gaps_left_out": omissions,
    }
    share = _worst(health.explained)
    measured = "rows that were held out" if health.held_out else "the calibration rows"

    return Sheet(
        title=title or "Model card",
        about=about or "",
        headline=(
            "–" if np.isnan(share) else with_minus(share, ".3f"),
            f"R² of the functions against the model's own outputs on {measured}"
            + (", of the worst output." if len(health.explained) > 1 else "."),
        ),
        facts=_facts(explainer, explanation, health),
        findings=tuple(
            merge_findings(finding for finding in health.findings if finding.code != "weak_spot")
        ),
        sections=(
            _functions_section(numbers, explanation.output_names),
            _checks_section(checks),
            _spots_section(spots, searched=n_known >= FEWEST_ROWS),
            _gaps_section(gaps, omissions),
            Section(key="limits", title="What this cannot say", paragraphs=_LIMITS),
        ),
        numbers=numbers,
        standing=standing_of(share, health.findings),
    )


def _headline_numbers(explanation: Explanation, health: Any) -> dict[str, Any]:
    """How much is explained, of how many rows, and how many of them lie outside."""
    outside = explanation.outside
    return {
        "held_out": health.held_out,
        "explained": known(np.array(health.explained)),
        "calibration_rows": health.rows,
        "explained_here": known(explanation.explained()),
        "rows": len(explanation),
        "rows_outside": int(outside.any(1).sum()),
        "outside_by_feature": dict(
            zip(explanation.feature_names, outside.sum(0).tolist(), strict=True)
        ),
        "rows_far": int(explanation.far.sum()),
        "base": known(explanation.base_values),
        "residual": known(_mean_size(explanation.residual)),
        "functions": sum(len(term) == 1 for term in explanation.terms),
        "interactions": sum(len(term) > 1 for term in explanation.terms),
    }


def _worst(shares: Sequence[float]) -> float:
    """The smallest share that is known."""
    numbers = [share for share in shares if np.isfinite(share)]
    return min(numbers) if numbers else float("nan")


def _mean_size(values: AnyArray) -> AnyArray:
    """Mean absolute value over the rows where it is known."""
    is_known = np.isfinite(values)
    sums = np.where(is_known, np.abs(values), 0.0).sum(0)
    return np.asarray(sums / np.maximum(is_known.sum(0), 1))


def _facts(
    explainer: ExplainerLike, explanation: Explanation, health: Any
) -> tuple[tuple[str, str], ...]:
    """Model, data and how the headline was measured, in words."""
    shares = [
        with_minus(share, ".3f") if np.isfinite(share) else "– (its outputs do not vary)"
        for share in explanation.explained()
    ]
    here = ", ".join(
        share if len(shares) == 1 else f"{name}: {share}"
        for name, share in zip(explanation.output_names, shares, strict=True)
    )
    n_mains = sum(len(term) == 1 for term in explanation.terms)
    n_outside = int(explanation.outside.any(1).sum())
    held_out = (
        "R² on rows left out of the fit, in folds"
        if health.held_out
        else "R² on the calibration rows themselves"
    )

    return (
        ("Model", describe_model(explainer.model)),
        ("Outputs", _outputs_in_words(explanation.output_names, explainer.link_)),
        ("Calibrated on", count(health.rows, "row")),
        (
            "Judged on",
            f"{count(len(explanation), 'row')}, {n_outside:,} of them outside what was calibrated",
        ),
        ("Headline", held_out),
        ("R² on these rows", here),
        (
            "Terms",
            f"{count(n_mains, 'function')} of single features, "
            f"{count(len(explanation.terms) - n_mains, 'interaction')}",
        ),
    )


def _outputs_in_words(names: Sequence[str], link: str) -> str:
    """The outputs, and what the model applies to them afterwards."""
    listed = ", ".join(names)
    return listed if link == "identity" else f"{listed}, before the model's {link}"


def _term_numbers(explanation: Explanation) -> list[dict[str, Any]]:
    """Mean absolute contribution of every term on these rows, the largest first."""
    sizes = _mean_size(explanation.values)
    labels = column_names(explanation.terms)
    order = np.argsort(-sizes.sum(1), kind="stable")
    return [
        {
            "term": labels[term],
            "features": list(explanation.terms[term]),
            "size": known(sizes[term]),
        }
        for term in order
    ]


def _curve_numbers(explainer: ExplainerLike, explanation: Explanation) -> list[dict[str, Any]]:
    """The strongest features' functions with their bands, of every output that is shown."""
    curves = explainer.curves(points=_POINTS)
    columns = {name: np.asarray(curves[name]) for name in curves}
    sizes = _mean_size(explanation.values)
    is_single = np.array([len(term) == 1 for term in explanation.terms], dtype=bool)
    several = len(explanation.output_names) > 1
    numbers = []

    for position, output in enumerate(explanation.output_names[:MOST_OUTPUTS]):
        order = np.argsort(-sizes[:, position], kind="stable")
        strongest = [explanation.terms[term][0] for term in order if is_single[term]]
        for feature in strongest[: MOST_CURVES_EACH if several else MOST_CURVES]:
            here = (columns["feature"] == feature) & (columns["output"] == output)
            if not here.any():
                continue
            numbers.append(
                {
                    "feature": feature,
                    "output": output,
                    "x": known(columns["x"][here].astype(np.float64)),
                    "level": [str(level) for level in columns["level"][here]],
                    "value": known(columns["value"][here].astype(np.float64)),
                    "lower": known(columns["lower"][here].astype(np.float64)),
                    "upper": known(columns["upper"][here].astype(np.float64)),
                }
            )
    return numbers


def _check_numbers(check: ShapeCheck) -> dict[str, Any]:
    return {
        "feature": check.feature,
        "shape": check.shape,
        "output": check.output,
        "link": check.link,
        "scale": check.scale,
        "note": check.note,
        "tolerance": check.tolerance,
        "within": None if check.within is None else list(check.within),
        "rows": check.n_rows,
        "draws": check.n_draws,
        "broken": check.n_broken,
        "rate": check.rate,
        "bound": check.bound,
        "confidence": check.confidence,
        "worst": check.worst,
        "exact": check.exact,
        "counterexample": None if check.holds else _counterexample_numbers(check),
    }


def _counterexample_numbers(check: ShapeCheck) -> dict[str, Any]:
    """The feature's values and the model's answers in the worst counterexample."""
    each = len(check.predictions) // len(check.breaks)
    column = _column_of(check)
    return {
        "values": None if column is None else [_as_told(value) for value in column[:each]],
        "predictions": known(np.asarray(check.predictions[:each])),
    }


def _as_told(value: Any) -> Any:
    """A value as JSON has it: numbers as numbers, all else as text."""
    return value if isinstance(value, int | float) else str(value)


def _spot_numbers(spot: WeakSpot) -> dict[str, Any]:
    return {
        "conditions": [
            {
                "feature": condition.feature,
                "above": condition.above,
                "up_to": condition.up_to,
                "levels": None if condition.levels is None else list(condition.levels),
            }
            for condition in spot.conditions
        ],
        "output": spot.output,
        "share": spot.share,
        "rows": spot.n_rows,
        "explained": spot.explained if np.isfinite(spot.explained) else None,
        "error": spot.error,
        "usual_error": spot.usual_error,
        "points_to": list(spot.interaction),
        "gain": spot.gain,
    }


def _gap_numbers(name: str, level: str, gap: Comparison) -> dict[str, Any]:
    return {
        "group": name,
        "level": level,
        "rows": list(gap.n_rows),
        "means": known(gap.mean_predictions),
        "total": known(gap.total.value),
        "total_lower": known(gap.total.lower),
        "total_upper": known(gap.total.upper),
        "entries": list(gap.entries),
        "gap": known(gap.gap.value),
        "lower": known(gap.gap.lower),
        "upper": known(gap.gap.upper),
        "level_of_intervals": gap.confidence,
    }


def _gaps_between(
    explanation: Explanation, groups: Mapping[str, ArrayLike]
) -> tuple[list[tuple[str, str, Comparison]], list[str]]:
    """Frequent values of a group against all other rows; in words what was left out, and why."""
    gaps = []
    omissions = []

    for name, labels in groups.items():
        values = array_of(labels, name=f"groups[{name!r}]").reshape(-1)
        if len(values) != len(explanation):
            raise ValueError(
                f"groups[{name!r}] must be one per row, {len(explanation)}, found {len(values)}."
            )
        texts = np.array([str(value) for value in values.tolist()])
        levels, counts = np.unique(texts, return_counts=True)
        order = np.argsort(-counts, kind="stable")[:MOST_LEVELS]
        omissions += _omissions(str(name), levels, counts)
        # Of two values one comparison says it all.
        chosen = order[:1] if len(levels) == 2 else order
        for position in chosen:
            inside = texts == levels[position]
            if min(inside.sum(), (~inside).sum()) < _FEWEST_IN_LEVEL:
                continue
            others = str(levels[order[1]]) if len(levels) == 2 else "all others"
            gap = compare(
                explanation[np.flatnonzero(inside)],
                explanation[np.flatnonzero(~inside)],
                (str(levels[position]), others),
            )
            gaps.append((str(name), str(levels[position]), gap))
    return gaps, omissions


def _omissions(name: str, levels: AnyArray, counts: AnyArray) -> list[str]:
    """Values of a group that are compared with nothing, in words."""
    if len(levels) == 1:
        return [f"{name} has the same value in every row, {levels[0]}: nothing to compare."]
    n_others = counts.sum() - counts
    is_frequent = np.minimum(counts, n_others) >= _FEWEST_IN_LEVEL
    order = np.argsort(-counts, kind="stable")
    is_among_first = np.isin(np.arange(len(levels)), order[:MOST_LEVELS])

    sentences = []
    rare = [str(levels[position]) for position in order if not is_frequent[position]]
    if rare and not (len(levels) == 2 and is_frequent.any()):
        sentences.append(
            f"{name}: {_listed(rare)} left out, with fewer than {_FEWEST_IN_LEVEL} rows in or "
            "beside them."
        )
    more = [str(level) for level in levels[is_frequent & ~is_among_first]]
    if more:
        sentences.append(
            f"{name}: {_listed(more)} left out; the {MOST_LEVELS} most frequent values are "
            "compared."
        )
    return sentences


def _listed(names: Sequence[str]) -> str:
    """The first few names, and how many there are besides."""
    listed = ", ".join(names[:MOST_LEVELS])
    n_more = len(names) - MOST_LEVELS
    return f"{listed} and {n_more:,} more" if n_more > 0 else listed


def _functions_section(numbers: Mapping[str, Any], outputs: Sequence[str]) -> Section:
    """The strongest functions with their bands; levels of categories as bars."""
    lines: list[Block] = []
    categories: list[Block] = []
    for curve in numbers["curves"]:
        title = curve["feature"]
        if len(outputs) > 1:
            title = f"{curve['output']}: {title}"
        line = _line_of(curve)
        if line is not None:
            lines.append(Curve(title, (line,)))
        else:
            categories.append(Bars(title, _bars_of(curve)))
    terms = Grid(
        "Mean absolute contribution on these rows",
        ("term", "size" if len(outputs) == 1 else f"size for {', '.join(outputs[:MOST_OUTPUTS])}"),
        tuple(
            (entry["term"], _sizes_text(entry["size"])) for entry in numbers["terms"][:MOST_TERMS]
        ),
        f"Of the residual: {_sizes_text(numbers['headline']['residual'])}.",
    )

    return Section(
        key="functions",
        title="Functions",
        lead=f"What each of the strongest features adds to {_shown_outputs(outputs)}: its average "
        "effect or, if features are correlated, the part of it that no other term explains. Bands "
        "(90%) say how far it would move if other rows had been used to calibrate.",
        blocks=(*lines, *categories, terms),
    )


def _line_of(curve: Mapping[str, Any]) -> Line | None:
    """A function of numbers with its band; None for the levels of a category."""
    points = zip(curve["x"], curve["level"], strict=True)
    rows = [row for row, (x, level) in enumerate(points) if x is not None and not level]
    if len(rows) < 2:
        return None

    def column(name: str) -> FloatArray:
        return np.array([curve[name][row] for row in rows], dtype=np.float64)

    lower = column("lower")
    upper = column("upper")
    has_band = bool(np.isfinite(lower).all() and np.isfinite(upper).all())
    return Line(
        curve["feature"],
        column("x"),
        column("value"),
        low=lower if has_band else None,
        high=upper if has_band else None,
    )


def _bars_of(curve: Mapping[str, Any]) -> tuple[Bar, ...]:
    """The levels of a category, each with its interval."""
    columns = (curve[name] for name in ("x", "level", "value", "lower", "upper"))
    return tuple(
        Bar(level or number_text(x), value, _or_nan(low), _or_nan(high))
        for x, level, value, low, high in zip(*columns, strict=True)
    )


def _sizes_text(sizes: Sequence[float | None]) -> str:
    """Sizes of the outputs that are shown."""
    return ", ".join(number_text(_or_nan(size)) for size in sizes[:MOST_OUTPUTS])


def _shown_outputs(outputs: Sequence[str]) -> str:
    """Which outputs have curves and gaps, in words."""
    if len(outputs) == 1:
        return "the output"
    if len(outputs) <= MOST_OUTPUTS:
        return "each output"
    return f"the first {MOST_OUTPUTS} of {len(outputs)} outputs"


def _or_nan(number: float | None) -> float:
    return float("nan") if number is None else number


def _checks_section(checks: Sequence[ShapeCheck]) -> Section:
    """What was asked of the model, and what it said."""
    if not checks:
        return Section(
            key="shapes",
            title="Shapes",
            paragraphs=("No shape was checked: explainer.check_shape asks the model for one.",),
        )
    rows = tuple(
        (
            check.asked,
            "holds on all rows tried" if check.holds else f"broken by {check.n_broken:,}",
            f"{check.n_rows:,}{_worth(check)}",
            f"{check.rate:.2%}",
            f"{check.bound:.2%}",
            number_text(check.worst),
            "yes" if check.exact else "no",
        )
        for check in checks
    )
    columns = ("asked", "verdict", "rows", "rate", "at most", "worst", "exact")
    confidence = ", ".join(sorted({f"{check.confidence:.0%}" for check in checks}))

    return Section(
        key="shapes",
        title="Shapes",
        lead="The model itself was asked: in every row one feature is moved, and all others stay."
        + (_BEFORE_LINK if any(_is_before_link(check) for check in checks) else ""),
        paragraphs=tuple(f"{check.asked}: {check.note}." for check in checks if check.note),
        blocks=(
            Grid(
                "",
                columns,
                rows,
                f"“At most” is the share of such rows that break it, with {confidence} confidence. "
                "Exact: the model was asked on every step that it has.",
            ),
            *(_counterexample(check) for check in checks if not check.holds),
        ),
    )


_BEFORE_LINK = (
    " What is asked before a softmax is of a class's logit, which may rise where its probability "
    "falls."
)


def _is_before_link(check: ShapeCheck) -> bool:
    """Whether a verdict on the output need not be one on the probability."""
    return check.scale == "output" and check.link != "identity"


def _counterexample(check: ShapeCheck) -> Grid:
    """The worst counterexample: rows that differ in one feature, and the model's answers."""
    each = len(check.predictions) // len(check.breaks)
    column = _column_of(check)
    rows = tuple(
        (
            f"row {position + 1} of the worst counterexample",
            _value_text(column[position]) if column is not None else "",
            number_text(check.predictions[position]),
        )
        for position in range(each)
    )
    return Grid(
        f"{check.asked}: a counterexample",
        ("", check.feature, "prediction"),
        rows,
        "All other values are the same in both rows.",
    )


def _column_of(check: ShapeCheck) -> list[Any] | None:
    """The feature's values in the counterexamples, where they are in a frame that names it."""
    table: Any = check.counterexamples
    names = [str(name) for name in getattr(table, "columns", ())]
    if check.feature not in names:
        return None
    values: list[Any] = np.asarray(table[check.feature]).tolist()
    return values


def _value_text(value: Any) -> str:
    """A value of a feature, as people write it."""
    return number_text(value) if isinstance(value, float) else str(value)


def _spots_section(spots: Sequence[WeakSpot], *, searched: bool) -> Section:
    """Regions where the functions explain little."""
    if not spots:
        told = (
            "No region of 2% of the rows or more, of up to three conditions, has an R² below 0.8 "
            "and residuals clearly above the usual."
            if searched
            else f"Not searched: fewer than {FEWEST_ROWS} rows."
        )
        return Section(key="weak-spots", title="Weak spots", paragraphs=(told,))
    rows = tuple(
        (
            spot.where,
            f"{spot.share:.1%}",
            with_minus(spot.explained, ".2f"),
            number_text(spot.error),
            number_text(spot.usual_error),
            " × ".join(spot.interaction) or "none found",
        )
        for spot in spots
    )
    columns = ("where", "rows", "R²", "residual there", "everywhere", "points to")

    return Section(
        key="weak-spots",
        title="Weak spots",
        lead="Regions where the functions explain least, found on half of the rows and "
        "measured on the other half.",
        blocks=(Grid("", columns, rows),),
    )


def _gaps_section(gaps: Sequence[tuple[str, str, Comparison]], omissions: Sequence[str]) -> Section:
    """Gaps of mean predictions between groups, by their largest parts, and the groups left out."""
    title = "Gaps between groups"
    if not gaps:
        told = tuple(omissions) or ("No groups were named.",)
        return Section(key="gaps", title=title, paragraphs=told)
    outputs = gaps[0][2].output_names
    lead = "The difference of mean predictions, by what each term adds to it."
    if len(outputs) > 1:
        lead += f" Shown for {_shown_outputs(outputs)}."
    shown = range(min(len(outputs), MOST_OUTPUTS))
    return Section(
        key="gaps",
        title=title,
        lead=lead,
        blocks=tuple(_gap_bars(name, gap, output) for name, _, gap in gaps for output in shown),
        paragraphs=tuple(omissions),
    )


def _gap_bars(name: str, gap: Comparison, output: int) -> Bars:
    """The largest parts of a gap of one output."""
    values = gap.gap.value[:, output]
    order = np.argsort(-np.abs(values), kind="stable")[:MOST_PARTS]
    bars = tuple(
        Bar(
            gap.entries[entry],
            float(values[entry]),
            float(gap.gap.lower[entry, output]),
            float(gap.gap.upper[entry, output]),
        )
        for entry in order
    )
    of_output = f" of {gap.output_names[output]}" if len(gap.output_names) > 1 else ""
    return Bars(
        f"{name}: {gap.names[0]} − {gap.names[1]}{of_output}, "
        f"{number_text(gap.total.value[output], signed=True)} in all",
        bars,
        f"{gap.n_rows[0]:,} and {gap.n_rows[1]:,} rows; the {len(order)} largest of {len(values)} "
        f"parts, which add up to the gap; {gap.confidence:.0%} intervals.",
    )


def _worth(check: ShapeCheck) -> str:
    """How many independent rows tell as much, where groups or weights make these fewer."""
    if not check.n_draws < check.n_rows:
        return ""
    return f" worth {check.n_draws:,.0f} independent ones"


def _standing_of_checks(n_broken: int, n_checks: int) -> Standing:
    """How the number of shapes that hold is coloured."""
    if n_broken == 0:
        return ""
    return "bad" if n_broken == n_checks else "doubtful"


def shapes_page(
    checks: Sequence[ShapeCheck],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    about: str | None = None,
) -> Path:
    """Writes a page of shapes that were checked, as `nobsp check` does."""
    require_jinja2()
    target = check_path(path)
    n_broken = sum(not check.holds for check in checks)
    sheet = Sheet(
        title=title or "Shapes asked of the model",
        about=about or "",
        headline=(
            f"{len(checks) - n_broken} of {len(checks)}",
            "shapes hold on all rows that were tried.",
        ),
        facts=tuple(
            (
                check.asked,
                f"{count(check.n_rows, 'row')}{_worth(check)}, {count(check.n_values, 'value')} "
                f"each, tolerance {number_text(check.tolerance)}",
            )
            for check in checks
        ),
        findings=tuple(
            Finding(
                "warning",
                "broken_shape",
                check.asked,
                f"{check.n_broken:,} of {check.n_rows:,} rows break it, by "
                f"{number_text(check.worst)} at worst.",
            )
            for check in checks
            if not check.holds
        ),
        sections=(_checks_section(checks),),
        numbers={"checks": [_check_numbers(check) for check in checks]},
        standing=_standing_of_checks(n_broken, len(checks)),
    )

    with replacing(target) as draft:
        draft.write_text(html_of(sheet), encoding="utf-8", newline="\n")
    return target
