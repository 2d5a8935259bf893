"""What to know of a fit, as findings.

Whether rows come in clusters, which features others determine, and what the functions leave out
have modules of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nobsp.arguments import count, join_names, with_minus
from nobsp.findings import Finding
from nobsp.network.columns import SAMPLE_ROWS, Subset
from nobsp.tabular.correction import RegressionFit, scatter_of_share, share_explained
from nobsp.tabular.dependence import MOST_FEATURES_NAMED, dependence_findings
from nobsp.tabular.effort import Meter
from nobsp.tabular.features import Domain
from nobsp.tabular.grids import Tabulator
from nobsp.tabular.health import LOW_SHARE, WORTH_TELLING, Health, TermHealth, sort_findings
from nobsp.tabular.indexing import term_name
from nobsp.tabular.lookup import Array, NumberAxis, TermTable
from nobsp.tabular.omissions import distances_from_average, name_far_curves, pairs_left_out
from nobsp.tabular.selection import FittedTerms
from nobsp.tabular.setting import Codes, Sample, Setting

# Share from which what is left in the residual is not worth speaking of.
WHOLLY_EXPLAINED = 0.9999
# Different texts from which on those that all read as numbers are taken for amounts, not for codes.
_FEWEST_AMOUNTS = 20
# A feature whose terms vary by less than this share of the outputs does nothing: the rest is
# rounding.
_ROUNDING = 1e-9
# Most terms that one message names.
_MOST_TERMS = 5
# Keeps the inverse of the terms' correlations finite where two of them are the same.
_JITTER = 1e-12
# Keeps a division by a spread of zero finite.
_LEAST = 1e-300
# Behind a number of rows that have weights.
_EQUAL_WEIGHT = " of equal weight"
# Rows below which held-out R² says nothing.
TOO_FEW_ROWS = 10
# Rows, or groups of them, below which their number is told whatever R² is.
FEW_ROWS = 100
# Share of the rows that are copies of others, from which on it is told.
WORTH_COPIES = 0.1
# How much too high it is, as strengths and interactions are chosen on the rows that it is measured
# on: about this, divided by the number of rows or groups, times what is left unexplained. Medians
# over networks of 6 features, as multiples of what is left unexplained: 2 to 3 with 10 to 30 rows,
# 0.5 with 45, 0.4 with 60, 0.2 with 150; about half of it with groups. From 3 to 40 features their
# number made no difference.
OPTIMISM_OF_ROWS = 30
OPTIMISM_OF_GROUPS = 15
# What is too little to tell beside a number of rows, and too little to speak of them.
LEAST_OPTIMISM = 0.005
LEAST_OPTIMISM_OF_MANY = 0.02
# At most one row in a hundred is called extreme; and the share of the variance that is most of it.
_ONE_IN = 100
_MOST_OF_IT = 0.5
# Values at which a table is compared with the model between its knots, and the background rows
# that both are averaged over.
_COMPARED_VALUES = 64
_COMPARED_BACKGROUND = 8
# Share of the outputs' spread that a table may miss between its knots.
_COARSE = 0.1


@dataclass(frozen=True, eq=False)
class Validity:
    """How far the held-out R² (the headline) can be trusted."""

    findings: tuple[Finding, ...]
    worst: Tensor  # per output, the lowest of the held-out R²
    explained: Tensor  # the headline; NaN where rows are too few to tell
    neighbourhoods: Tensor  # R² with whole neighbourhoods held out; empty where not measured
    coarse: tuple[int, ...]  # features whose tables are coarser than their functions


def examine(
    setting: Setting,
    terms: FittedTerms,
    validity: Validity,
    values: Tensor,
    measured: Sample,
    meter: Meter,
) -> Health:
    """The health of functions that were fitted together.

    `values` are contributions on the `measured` rows.
    """
    fit = terms.fit
    distances = distances_from_average(fit)
    coarse = [setting.names[feature] for feature in validity.coarse]
    limit = _limit_in_words(setting.interactions())
    explained = float(validity.worst.nan_to_num(0.0).min())
    findings = [
        *share_findings(
            validity.worst,
            setting.output_names,
            what=_which_share(validity, fit),
            coarse=coarse,
            limit=limit,
            budget=f"max_forward_rows={meter.limit:,}" if meter.reduced else "",
        ),
        *validity.findings,
        *feature_findings(setting, terms.order, values, measured, explained=explained),
        *pairs_left_out(setting, terms, meter, explained=explained, limit=limit),
        *name_far_curves(distances, setting.names),
        *_notes(setting, terms, meter),
    ]

    return Health(
        findings=sort_findings(findings),
        terms=_health_of_terms(setting, terms, values, distances),
        explained=tuple(validity.explained.tolist()),
        inside=tuple(fit.inside.tolist()),
        scatter=_scatter(fit),
        neighbourhoods=tuple(validity.neighbourhoods.tolist()),
        variance=tuple(fit.sample.outputs.var(0, correction=0).tolist()),
        outside_rows=len(fit.regression.outside) / len(fit.regression.outputs),
        rows=setting.n_rows,
        columns=fit.regression.design.shape[1],
        forward_rows=meter.spent,
    )


def _health_of_terms(
    setting: Setting,
    terms: FittedTerms,
    values: Tensor,
    distances: Mapping[Subset, tuple[float, ...]],
) -> tuple[TermHealth, ...]:
    """What is told of every term; `distances` are those of curves from partial dependence."""
    costs = {direct.term: direct.cost for direct in terms.direct}
    return tuple(
        TermHealth(
            tuple(setting.names[feature] for feature in piece.term),
            piece.rank,
            share,
            costs.get(piece.term, 0),
            distances.get(piece.term, ()),
        )
        for piece, share in zip(terms.fit.pieces, _unique_shares(values), strict=True)
    )


def _limit_in_words(interactions: Sequence[Subset] | int | None) -> str:
    """Which interactions the caller allows; empty where those that pay are fitted."""
    if interactions is None:
        return ""
    if not isinstance(interactions, int):
        return "interactions=[…] names those that are fitted"
    return (
        "interactions=0 fits none"
        if interactions == 0
        else f"interactions={interactions} fits no more"
    )


def _which_share(validity: Validity, fit: RegressionFit) -> list[str]:
    """Per output, what its lowest held-out R² is of: all rows, or those that make it the lowest."""
    which = []
    for output, worst in enumerate(validity.worst.tolist()):
        if worst == float(validity.explained[output]):
            which.append("Held-out R²")
        elif worst == float(fit.inside[output]):
            which.append("Held-out R² without the rows outside the range of those fitted on")
        else:
            which.append("Held-out R² with whole neighbourhoods of rows held out")
    return which


def _scatter(fit: RegressionFit) -> tuple[float, ...]:
    """Standard error of the headline, per output."""
    sample = fit.sample
    scatter = scatter_of_share(fit.held_out.chosen(), sample.outputs, sample.units())
    return tuple(scatter.tolist())


def _notes(setting: Setting, terms: FittedTerms, meter: Meter) -> list[Finding]:
    """What was done otherwise than a reader may expect."""
    notes = _numbers_as_text(setting)

    def note(code: str, message: str, subject: str = "") -> None:
        notes.append(Finding("note", code, subject, message))

    if terms.economy:
        rows = f"{meter.spent:,} rows were run through the model"
        note("economy", f"The model is large, or has many features, so tables are coarse: {rows}.")
    if meter.reduced:
        note(
            "budget",
            f"max_forward_rows={meter.limit:,} is too few for full tables, so they are coarser "
            f"(fewer background rows, points or interactions): {meter.spent:,} rows were run "
            "through the model.",
        )
    if setting.readout.no_head:
        note(
            "no_head",
            "No linear layer that ends the model was found, so the outputs are explained directly: "
            "curves are average effects, and calibration can only scale them.",
        )
    if setting.readout.no_head and setting.readout.link == "softmax":
        note(
            "log_probabilities",
            "The model returns probabilities. Their logarithms are explained, less the mean over "
            "the classes, because these can be added up; to_probability() of an explanation "
            "converts them.",
        )
    thinned = _list_thinned(terms.thresholds, setting.names)
    if thinned:
        note(
            "thresholds",
            f"Only some thresholds of the trees are exact steps ({thinned}); the others are drawn "
            "as slopes.",
        )
    # Weights repeat rows: of such a table all rows may be in memory, and their number is not the
    # caller's.
    if setting.summary.rows > SAMPLE_ROWS and not setting.is_weighted:
        share = f"{SAMPLE_ROWS:,} of the {setting.summary.rows:,} rows"
        note(
            "sampled",
            f"Functions were fitted to a random sample of {share}; ranges and categories are those "
            "of all rows.",
        )
    if terms.direct:
        cost = sum(direct.cost for direct in terms.direct)
        note(
            "no_table",
            f"Has no table: explaining a row runs {cost:,} more rows through the model, and "
            "`compile()` leaves it out.",
            _list_terms([direct.term for direct in terms.direct], setting.names),
        )
    return notes


def groups_finding(groups: Codes | None, sample: Sample, n_rows: int) -> Finding | None:
    """What was held out together where groups are named; `n_rows` is that of the caller's table.

    A warning where groups were not held out whole: then the headline is not what was asked for.
    """
    if groups is None:
        return None
    n_groups = len(np.unique(groups))
    if not sample.keeps_groups_whole:
        message = (
            "Most rows are identical to rows of other groups, so identical rows were held out "
            f"together, and the {n_groups:,} groups were not: held-out R² is not that on new "
            "groups. Where the copies are errors, calibrate without them."
        )
        return Finding("warning", "groups", "", message)
    message = f"Rows of one group were held out together: {n_groups:,} groups in {n_rows:,} rows."
    n_copies = sample.n_copies_apart()
    if n_copies:
        share = n_copies / len(sample)
        message += (
            f" {share:.0%} of the rows have copies in other groups and were not held out with "
            "these, which would have joined most groups."
        )
    return Finding("note", "groups", "", message)


def copies_finding(sample: Sample) -> Finding | None:
    """A note where many rows repeat others: held-out R² rests on fewer than there seem to be."""
    if sample.groups is not None:
        return None  # what is said of groups counts copies
    n_copies = sample.n_copies()
    if n_copies < WORTH_COPIES * len(sample):
        return None
    message = (
        f"{n_copies:,} of {len(sample):,} rows are copies of others. Copies were held out "
        f"together, so held-out R² rests on {len(sample) - n_copies:,} rows."
    )
    return Finding("note", "copies", "", message)


def _numbers_as_text(setting: Setting) -> list[Finding]:
    """Columns of texts that all read as numbers."""
    message = (
        "Holds texts that all read as numbers, and is explained as a category, level by level. "
        "Convert it to numbers if it stands for amounts."
    )
    return [
        Finding("note", "numbers_as_text", name, message)
        for feature, name in enumerate(setting.names)
        if _are_numbers(setting.columns.texts(feature))
    ]


def _are_numbers(texts: Sequence[object]) -> bool:
    """Whether texts are more than codes: many that differ, all of which read as numbers."""
    written = [text for text in texts if isinstance(text, str)]
    if len(written) < _FEWEST_AMOUNTS:
        return False
    try:
        return bool(np.isfinite(np.array(written, dtype=np.float64)).all())
    except ValueError:
        return False


def _list_thinned(thresholds: Mapping[int, tuple[int, int]], names: Sequence[str]) -> str:
    """Features whose tables have fewer thresholds than the model."""
    thinned = [
        f"{names[feature]} {in_table:,} of {count:,}"
        for feature, (in_table, count) in thresholds.items()
        if in_table < count
    ]
    return ", ".join(thinned[:MOST_FEATURES_NAMED])


def _list_terms(terms: Sequence[Subset], names: Sequence[str]) -> str:
    """The first terms by name, and how many more there are."""
    named = [term_name([names[feature] for feature in term]) for term in terms]
    listed = ", ".join(named[:_MOST_TERMS])
    more = len(named) - _MOST_TERMS
    return f"{listed} and {more} more" if more > 0 else listed


def share_findings(
    explained: Tensor,
    names: Sequence[str],
    *,
    what: Sequence[str],
    coarse: Sequence[str] = (),
    limit: str = "",
    budget: str = "",
) -> list[Finding]:
    """What a low share explained means, for the worst output.

    `what` says per output what the share is of, `limit` which interactions the caller allows, if
    not all, and `budget` how many forward rows, if these were too few.
    """
    known = [
        (share, name, words)
        for share, name, words in zip(explained.tolist(), names, what, strict=True)
        if not np.isnan(share)
    ]
    if not known or min(known)[0] >= LOW_SHARE:
        return []

    share, name, words = min(known)
    if share < 0:
        message = (
            f"{words} is {with_minus(share, '.3f')}: worse than predicting the mean"
            f"{f', as {limit}, or rows are too few' if limit else ''}. Do not use the functions; "
            f"{_advice(limit, budget)}."
        )
        return [Finding("error", "worse_than_mean", name, message)]

    if coarse:
        message = (
            f"{words} is only {share:.3f}: the function of {join_names(coarse, 3)} bends more "
            "often than its table has points. More rows do not help; the model may follow noise in "
            "its data."
        )
        return [Finding("warning", "coarse_table", name, message)]

    cause = "too few rows for so many features, or interactions that are not fitted"
    if limit:
        cause = (
            f"too few rows for so many features, or interactions that are not fitted, as {limit}"
        )
    elif budget:
        cause = f"interactions that are not fitted, as {budget} pays for no more, or too few rows"
    advice = _advice(limit, budget) + ("" if limit or budget else ", or name interactions")
    message = f"{words} is only {share:.3f}: {cause}. {advice[0].upper()}{advice[1:]}."
    return [Finding("warning", "low_share", name, message)]


def _advice(limit: str, budget: str) -> str:
    """What to do where little is explained; more rows alone lift no limit of the caller's."""
    if limit:
        return 'leave interactions="auto", or calibrate on more rows'
    return "raise the limit, or calibrate on more rows" if budget else "calibrate on more rows"


def feature_findings(
    setting: Setting,
    terms: Sequence[Subset],
    values: Tensor,
    rows: Sample,
    *,
    explained: float = math.nan,
) -> list[Finding]:
    """Features that do nothing, and those that the rows cannot tell from another one.

    `explained` is the lowest held-out R² of an output.
    """
    return [
        *_idle_findings(setting, terms, values, rows, explained=explained),
        *dependence_findings(setting, rows),
    ]


def _idle_findings(
    setting: Setting, terms: Sequence[Subset], values: Tensor, rows: Sample, *, explained: float
) -> list[Finding]:
    """Features that do nothing; a feature may act in the residual where there is any."""
    findings = []
    spread = values.std(0, correction=0)
    scale = float(rows.outputs.std(0, correction=0).max()) if len(rows) > 1 else 0.0
    least = _ROUNDING * max(scale, _LEAST)
    for feature, positions in enumerate(terms_with(terms, len(setting.names))):
        name = setting.names[feature]
        if not setting.domains[feature].columns:
            message = (
                "Its column is constant in these rows, or the preprocessing drops it or makes it "
                "constant, so it contributes nothing."
            )
            findings.append(Finding("note", "unused", name, message))
        elif float(spread[positions].max()) <= least:
            message = "The model does not use it: it has no effect."
            if _is_constant(rows, setting.domains[feature].columns):
                message = (
                    "Its column is constant, so the rows do not show whether it has an effect."
                )
            elif not explained >= WHOLLY_EXPLAINED:
                message = (
                    "It has no effect of its own. Either the model does not use it, or only "
                    "together with other features: then what it does is in the residual."
                )
            findings.append(Finding("note", "constant", name, message))
    return findings


def _is_constant(rows: Sample, columns: Sequence[int]) -> bool:
    """Whether some inputs of the network are the same in all rows."""
    inputs = rows.inputs[:, list(columns)]
    return bool((inputs == inputs[:1]).all())


def terms_with(terms: Sequence[Subset], n_features: int) -> list[list[int]]:
    """Per feature the positions of the terms that contain it."""
    containing: list[list[int]] = [[] for _ in range(n_features)]
    for position, term in enumerate(terms):
        for feature in term:
            containing[feature].append(position)
    return containing


def _unique_shares(values: Tensor) -> list[float]:
    """Per term the share of its variance that the others cannot reproduce, 1/VIF.

    It is measured on the output that varies most; NaN where there are no more rows than terms, or a
    term does not vary.
    """
    n_rows, n_terms, _ = values.shape
    if n_rows <= n_terms:
        return [float("nan")] * n_terms
    output = int(values.var(0, correction=0).sum(0).argmax())
    centred = values[..., output] - values[..., output].mean(0)
    norms = centred.norm(dim=0)
    scaled = centred / norms.clamp_min(_LEAST)

    gram = scaled.T @ scaled + _JITTER * torch.eye(n_terms, dtype=torch.float64)
    shares = 1 / torch.linalg.pinv(gram, hermitian=True).diagonal()
    return torch.where(norms > 0, shares.clamp(0, 1), torch.nan).tolist()


def few_rows_findings(
    rows: int,
    units: int,
    *,
    explained: float,
    grouped: bool,
    weighted: bool,
    n_groups: int = 0,
    limit: int | None = None,
) -> list[Finding]:
    """What held-out R², `explained`, is worth where it rests on few rows.

    `rows` is the number of different ones (with weights, of ones of equal weight that tell as
    much), and `units` how many different ones of equal weight tell as much. Where groups were held
    out whole, `units` is how many of equal size tell as much as the `n_groups` there are. `limit`
    is that on forward rows, where it has no room for all rows that were passed.
    """
    # More rows would not help then.
    more_needed = ""
    if limit is not None:
        more_needed = f" max_forward_rows={limit:,} has no room for more rows: raise it."
    if rows < TOO_FEW_ROWS:
        message = (
            f"{count(rows, 'different row')}{_EQUAL_WEIGHT if weighted else ''} are too few to "
            "tell how well the functions hold on other rows, so there is no held-out R²."
        )
        message += more_needed or f" Calibrate on {FEW_ROWS} rows or more."
        return [Finding("warning", "few_rows", "", message)]

    optimism = (OPTIMISM_OF_GROUPS if grouped else OPTIMISM_OF_ROWS) * (1 - explained)
    enough = max(FEW_ROWS, optimism / LEAST_OPTIMISM_OF_MANY)
    if units >= enough:
        return []

    less = optimism / max(units, 1)
    if weighted:
        kind = "group" if grouped else _kind_of_row(rows, units)
        rests_on = f"as much as {count(units, kind)}{_EQUAL_WEIGHT}"
    else:
        rests_on = _groups_told(units, n_groups) if grouped else _rows_told(units, rows)
    message = f"Held-out R² was measured on {rests_on}"
    new = "rows of new groups" if grouped else "new rows"
    if less >= explained > 0:
        message += f": too few to tell what it is on {new}"
    elif min(less, explained) >= LEAST_OPTIMISM:
        message += f": expect about {less:.2f} less on {new}, at times three times that"
    wanted = f"{_rounded_up(enough):,}{' groups' if grouped else ''}"
    message += "." + (more_needed or f" Calibrate on {wanted} or more.")
    # No more than all of it is lost, so far as anyone can tell from so few rows.
    severity = "warning" if min(less, explained) >= WORTH_TELLING else "note"
    return [Finding(severity, "few_rows", "", message)]


def _kind_of_row(rows: int, units: int) -> str:
    """Rows that are equal by chance, as columns of few values make them, count one by one."""
    return "row" if units > rows else "different row"


def _rows_told(units: int, rows: int) -> str:
    told = count(units, _kind_of_row(rows, units))
    if units < rows:
        return f"as much as {told}, as some of the {rows:,} repeat more than others"
    return f"only {told}"


def _groups_told(units: int, n_groups: int) -> str:
    told = count(units, "group")
    if units < n_groups:
        return f"as much as {told}, as some of the {n_groups:,} hold more rows than others"
    return f"only {told}"


def _rounded_up(rows: float) -> int:
    """A number of rows to the next ten."""
    return 10 * math.ceil(rows / 10)


def extreme_rows_findings(
    residuals: Tensor, outputs: Tensor, names: Sequence[str]
) -> list[Finding]:
    """Whether held-out R² hangs on a few rows of extreme predictions.

    It speaks of the output for which that is so most.
    """
    hanging = [
        (without.lost, without, output)
        for output in range(outputs.shape[1])
        if (without := _without_extreme_rows(residuals[:, output], outputs[:, output])) is not None
    ]
    if not hanging:
        return []

    _, without, output = max(hanging, key=lambda entry: entry[0])
    which = "the row of the most extreme prediction"
    if without.n_rows > 1:
        which = f"the {without.n_rows} rows of the most extreme predictions"
    message = (
        f"Held-out R² is {with_minus(without.before, '.3f')}, but "
        f"{with_minus(without.after, '.3f')} without {which} (up to "
        f"{with_minus(without.extreme, '.4g')}), {without.variance:.0%} of the output's variance. "
        "Expect the lower figure on ordinary rows. Where such rows are errors, calibrate without "
        "them."
    )
    severity = "warning" if without.variance > _MOST_OF_IT else "note"
    return [Finding(severity, "extreme_rows", names[output] if len(names) > 1 else "", message)]


class _Without(NamedTuple):
    """R² with and without the rows of the most extreme predictions."""

    n_rows: int
    before: float
    after: float
    variance: float  # share of the variance that these rows make up
    extreme: float  # the prediction furthest from the middle

    @property
    def lost(self) -> float:
        return self.before - self.after


def _without_extreme_rows(residuals: Tensor, outputs: Tensor) -> _Without | None:
    """The fewest rows without which R² is clearly lower.

    None where that takes more than one row in a hundred.
    """
    before = float(share_explained(residuals[:, None], outputs[:, None])[0])
    away = (outputs - outputs.median()).abs()
    order = away.argsort(descending=True)
    most = max(len(order) // _ONE_IN, 1)
    counts = sorted({min(1 << power, most) for power in range(most.bit_length() + 1)})
    for n_rows in counts:
        rest = order[n_rows:]
        after = float(share_explained(residuals[rest, None], outputs[rest, None])[0])
        if before - after > WORTH_TELLING:
            squares = (outputs - outputs.mean()).square()
            variance = float(squares[order[:n_rows]].sum() / squares.sum())
            return _Without(n_rows, before, after, variance, float(outputs[order[0]]))
    return None


def coarse_features(
    tables: Sequence[TermTable],
    domains: Sequence[Domain],
    tabulator: Tabulator,
    sample: Sample,
) -> list[int]:
    """Features whose function bends more between its table's knots than the table can follow."""
    few = tabulator.with_rows(_COMPARED_BACKGROUND)
    chunk = sample.some(_COMPARED_VALUES).chunk()
    coarse = []
    for table in tables:
        if len(table.axes) != 1 or not isinstance(table.axes[0], NumberAxis):
            continue
        axis = table.axes[0]
        domain = domains[table.features[0]]
        values = chunk.numbers(axis.column)
        values = values[np.isfinite(values)]
        if not len(values):
            continue

        def outputs_at(points: Array, domain: Domain = domain) -> Tensor:
            return (
                few.average_rows(domain.columns, domain.encode(points[:, None])) @ few.head_weight
            )

        segment = axis.segments(values)
        along = torch.from_numpy(axis.along(values, segment))[:, None]
        left = outputs_at(axis.knots[segment])
        right = outputs_at(axis.knots[segment + 1])
        missed = outputs_at(values) - (1 - along) * left - along * right
        # Beyond the last value there may be a knot for which the model has no answer.
        missed = missed[missed.isfinite().all(1)]
        share = missed.std(0, correction=0) / sample.spread
        if len(missed) and float(share.max()) > _COARSE:
            coarse.append(table.features[0])
    return coarse
