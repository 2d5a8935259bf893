"""What to know of a fit, and the ridge chosen again where rows are clustered.

Groups of near-equal rows that nobody named make held-out rows too easy: each has neighbours among
the rows fitted on. Holding out whole neighbourhoods takes these away; independent rows lose little
by it.

In this order: findings, whether the headline holds, what the functions leave out, features that
others determine.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._typing import FloatArray
from nobsp.arguments import count, join_names, with_minus
from nobsp.base import Finding
from nobsp.network.columns import SAMPLE_ROWS, Subset
from nobsp.tabular.correction import (
    HeldOut,
    Regression,
    RegressionFit,
    clamp_outside,
    complete_fit,
    judge,
    judge_also,
    share_explained,
)
from nobsp.tabular.crowding import crowding
from nobsp.tabular.features import Domain
from nobsp.tabular.grids import MOST_PAIR_NODES, Meter, Tabulator
from nobsp.tabular.health import STANDARD_ERRORS, WORTH_TELLING, Health, TermHealth, sort_findings
from nobsp.tabular.indexing import term_name
from nobsp.tabular.lookup import Array, LevelAxis, NumberAxis, TermTable
from nobsp.tabular.residual_pairs import strengths_in_residual
from nobsp.tabular.selection import FittedTerms, are_worth_looking_for
from nobsp.tabular.setting import (
    FOLDS,
    NEIGHBOURHOODS,
    Codes,
    Sample,
    Setting,
    deal_folds,
    find_neighbourhoods,
    number_rows,
)
from nobsp.tabular.tables import TablePiece, occupancy

# Share of an output's variance below which held-out R² is a warning.
LOW_SHARE = 0.8
# Share from which what is left in the residual is not worth speaking of.
WHOLLY_EXPLAINED = 0.9999
# Two numbers with such a rank correlation cannot be told apart by the rows.
_SAME_RANKS = 0.995
# Rows below which correlations say nothing.
_FEWEST_COMPARED_ROWS = 10
# Different texts from which on those that all read as numbers are taken for amounts, not for codes.
_FEWEST_AMOUNTS = 20
# Most values of features that are compared one to one: of many different values all are one-to-one.
_MOST_VALUES = 64
# A feature whose terms vary by less than this share of the outputs does nothing: the rest is
# rounding.
_ROUNDING = 1e-9
# Most features or terms that one message names.
_MOST_FEATURES = 8
_MOST_TERMS = 5
# Keeps the inverse of the terms' correlations finite where two of them are the same.
_JITTER = 1e-12
# Keeps a division by a spread of zero finite.
_LEAST = 1e-300


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
        *_pairs_left_out(setting, terms, meter, explained=explained, limit=limit),
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


def _pairs_left_out(
    setting: Setting, terms: FittedTerms, meter: Meter, *, explained: float, limit: str
) -> list[Finding]:
    """Strong pairs without a term; of those not looked for, what the residual holds."""
    found = name_pairs_left_out(
        terms.strengths,
        terms.order,
        setting.names,
        explained=explained,
        limit=limit,
        scatter=terms.strength_scatter,
    )
    n_tabulated = sum(domain.tabulated for domain in setting.domains)
    has_others = len(terms.strengths) < math.comb(n_tabulated, 2)
    if not has_others or not are_worth_looking_for(terms.fit):
        return found

    sizes = zip(terms.fit.pieces, terms.fit.sizes, strict=True)
    mains = {piece.term[0]: size for piece, size in sizes if len(piece.term) == 1}
    units = _units_in_residual(terms.fit.sample, named=setting.groups is not None)
    seen = strengths_in_residual(terms.fit, setting.domains, mains, units)
    others = {pair: seen[pair] for pair in seen if pair not in terms.strengths}
    if not others:
        return found
    reason = limit or _why_not_looked_for(next(iter(others)), setting.domains, meter)
    return found + name_pairs_left_out(
        others, terms.order, setting.names, explained=explained, limit=reason
    )


def _units_in_residual(rows: Sample, *, named: bool) -> Codes:
    """Which rows belong together: neighbours, where rows crowd together that nobody named.

    What neighbours have in common looks like pairs otherwise.
    """
    if named or not _is_crowded(replace(rows, groups=None)):
        return rows.units()
    generator = np.random.default_rng(0)
    return find_neighbourhoods(rows.inputs, generator=generator, most=NEIGHBOURHOODS_OF_CROWDED)


def _why_not_looked_for(pair: Subset, domains: Sequence[Domain], meter: Meter) -> str:
    """Why a pair's strength is not known, though the caller asked for the pairs that pay."""
    levels = [domains[feature].levels for feature in pair]
    nodes = math.prod(1 if axis is None else len(axis) for axis in levels)
    if meter.limit is not None and nodes <= MOST_PAIR_NODES:
        return f"max_forward_rows={meter.limit:,} left none to look for pairs"
    return "a table of so many levels would be too large"


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
    if setting.groups is not None:
        note("groups", _groups_in_words(setting.groups, terms.fit.sample, setting.n_rows))
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


def _groups_in_words(groups: Codes, sample: Sample, n_rows: int) -> str:
    """What was held out together where groups are named; `n_rows` is that of the caller's table."""
    n_groups = len(np.unique(groups))
    if not sample.keeps_groups_whole:
        return (
            "Most rows are identical to rows of other groups, so identical rows were held out "
            f"together, and the {n_groups:,} groups were not: held-out R² is not that on new "
            "groups."
        )
    message = f"Rows of one group were held out together: {n_groups:,} groups in {n_rows:,} rows."
    n_copies = sample.n_copies_apart()
    if n_copies:
        share = n_copies / len(sample)
        message += (
            f" {share:.0%} of the rows have copies in other groups and were not held out with "
            "these, which would have joined most groups."
        )
    return message


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
    return ", ".join(thinned[:_MOST_FEATURES])


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
            f"{words} is {with_minus(share, '.3f')}: worse than predicting the mean. Do not use "
            "the functions; calibrate on more rows."
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
    advice = "Calibrate on more rows, or name interactions."
    if limit:
        cause = (
            f"too few rows for so many features, or interactions that are not fitted, as {limit}"
        )
        advice = 'Leave interactions="auto", or calibrate on more rows.'
    elif budget:
        cause = f"interactions that are not fitted, as {budget} pays for no more, or too few rows"
        advice = "Raise the limit, or calibrate on more rows."
    message = f"{words} is only {share:.3f}: {cause}. {advice}"
    return [Finding("warning", "low_share", name, message)]


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
        *_dependence_findings(setting, rows),
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
            message = "The preprocessing drops it or makes it constant, so it contributes nothing."
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


def _dependence_findings(setting: Setting, rows: Sample) -> list[Finding]:
    """Features that another one, or several others, determine."""
    if setting.is_weighted:
        # A heavy row is there so often that its values are levels, each of which tells the others.
        rows = rows.take(np.unique(number_rows(rows.inputs), return_index=True)[1])
    findings = []
    partners = _find_partners(setting, rows)
    for feature, partner, evidence in partners:
        message = (
            f"It is tied to {setting.names[partner]!r} ({evidence}): the data cannot show which "
            "has the effect. Group them as one feature (NObSP.suggest_features), or leave one out."
        )
        findings.append(Finding("warning", "dependent", setting.names[feature], message))

    named = {frozenset((feature, partner)) for feature, partner, _ in partners}
    linear = find_determined(setting.domains, rows)
    curved = find_functions_of_one(_varying_codes(setting, rows), rows.groups)
    products = find_products(setting.domains, rows)
    for determined in (*linear, *curved, *products):
        members = frozenset((determined.feature, *determined.by))
        if members not in named:
            named.add(members)
            findings.append(_determined_finding(determined, setting.names))
    return findings


def _determined_finding(determined: Determined, names: Sequence[str]) -> Finding:
    subject = names[determined.feature]
    others = join_names([names[feature] for feature in determined.by], _MOST_FEATURES)
    if determined.level:
        message = (
            f"Whether it is {determined.level!r} follows from {others} (R² "
            f"{determined.share:.3f}), so the data cannot show which of them has the effect there."
        )
        return Finding("note", "determined", subject, message)
    how = " as a product or quotient" if determined.is_curved and len(determined.by) > 1 else ""
    message = (
        f"It follows from {others}{how} (R² {determined.share:.3f}): the data cannot show which of "
        "them has the effect. Group them as one feature, or leave one out."
    )
    # A curve may fit by chance, as that of a counter beside a random walk does.
    return Finding("note" if determined.is_curved else "warning", "determined", subject, message)


def _find_partners(setting: Setting, rows: Sample) -> list[tuple[int, int, str]]:
    """Features that another one determines, with that one and how it was noticed."""
    codes = _varying_codes(setting, rows)
    if len(codes) < 2 or len(rows) < _FEWEST_COMPARED_ROWS:
        return []
    numbers = [feature for feature in codes if setting.domains[feature].span is not None]
    partners: dict[int, tuple[int, str]] = {}
    if len(numbers) > 1:
        alike = np.abs(np.corrcoef([ranks(codes[feature]) for feature in numbers]))
        for first, second in np.argwhere(np.triu(alike > _SAME_RANKS, 1)):
            evidence = f"rank correlation {alike[first, second]:.3f}"
            partners.setdefault(numbers[second], (numbers[first], evidence))

    for feature, partner in _one_to_one(codes, n_rows=len(rows)):
        partners.setdefault(feature, (partner, "their values are one-to-one"))
    return [
        (feature, partner, evidence) for feature, (partner, evidence) in sorted(partners.items())
    ]


def ranks(x: FloatArray) -> FloatArray:
    """Positions in order, equal values sharing theirs."""
    _, position, counts = np.unique(x, return_inverse=True, return_counts=True)
    middle_of_ties = np.cumsum(counts) - (counts - 1) / 2
    shared: FloatArray = middle_of_ties[position]
    return shared


def _varying_codes(setting: Setting, rows: Sample) -> dict[int, Array]:
    """Numbers, and positions of levels, of the features that vary."""
    codes: dict[int, Array] = {}
    chunk = rows.chunk()
    for feature, domain in enumerate(setting.domains):
        if domain.levels is not None:
            codes[feature] = chunk.places(domain.levels)[0].astype(np.float64)
        elif domain.span is not None:
            codes[feature] = chunk.numbers(domain.feature.columns[0])
    return {feature: values for feature, values in codes.items() if len(np.unique(values)) > 1}


def _one_to_one(codes: Mapping[int, Array], *, n_rows: int) -> list[tuple[int, int]]:
    """Features whose values correspond one to one with those of an earlier feature."""
    pairs = []
    known: dict[bytes, int] = {}
    for feature, values in codes.items():
        levels, first, position = np.unique(values, return_index=True, return_inverse=True)
        if 2 < len(levels) <= min(_MOST_VALUES, n_rows // 2):
            # Values numbered as they come are the same numbers for features that are one-to-one.
            order_of_appearance = np.argsort(np.argsort(first))
            partner = known.setdefault(order_of_appearance[position].tobytes(), feature)
            if partner != feature:
                pairs.append((feature, partner))
    return pairs


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


# ---------------------------------------------------------------------- whether the headline holds


# Fewest rows that are divided into neighbourhoods.
FEWEST_DIVIDED_ROWS = 100
# Share of the neighbourhoods, those that lose most, without which a loss is still one of most of
# them.
TRIMMED = 0.1
# Neighbourhoods at the rim of the rows lose something without any clusters, more where less is
# explained: independent rows with R² from .58 to .95 up to .08. Of clusters whose headline was too
# high by .05 or more most lost .11 or more; a few .06 to .08. So a loss worth telling is larger by
# this share of what is unexplained, but never above the second figure.
LOSS_AT_THE_RIM = 0.3
LARGEST_LOSS_AT_THE_RIM = 0.09
# Rows whose spread within neighbourhoods is below this share of that of normal rows crowd together:
# clusters of spread .4 around centres of spread 1 had .33 to .73, rows of any marginals without
# clusters .84 to 1.09, a thin spiral .7. Of crowded rows a loss from the second figure is told.
CROWDED = 0.75
LEAST_LOSS_OF_CROWDED = 0.02
# Rows are looked at for crowding where they lose this much. Those that crowd are divided into fewer
# neighbourhoods too, and what loses more counts: where clusters are few, parts of one are held out
# while others are fitted on. Of 270 clustered tables 26 were silently too high by .05, not 42.
_LOSS_TO_LOOK_AT = 0.01
NEIGHBOURHOODS_OF_CROWDED = 25
# Rows below which held-out R² says nothing.
TOO_FEW_ROWS = 10
# Rows, or groups of them, below which their number is told whatever R² is.
FEW_ROWS = 100
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
class Neighbourhoods:
    """R² with whole neighbourhoods held out, beside that with single rows held out."""

    codes: Codes  # the neighbourhood of every row
    regression: Regression  # in folds of whole neighbourhoods
    row_wise: Tensor  # R² with single rows held out, per output
    explained: Tensor  # R² with whole neighbourhoods held out, at the same strengths
    scatter: Tensor  # standard error of the difference
    typical_loss: Tensor  # the difference without the neighbourhoods that lose most
    crowded: bool = False  # whether rows crowd together, where a loss makes that worth looking at

    @property
    def clustered(self) -> Tensor:
        """Per output, whether the loss by holding out whole neighbourhoods is worth telling.

        It must also be more than what chance, or a few neighbourhoods, would make.
        """
        loss = self.row_wise - self.explained
        beyond_scatter = loss > STANDARD_ERRORS * self.scatter
        widespread = self.typical_loss > WORTH_TELLING
        at_the_rim = LOSS_AT_THE_RIM * (1 - self.row_wise)
        least = (WORTH_TELLING + at_the_rim).clamp(max=LARGEST_LOSS_AT_THE_RIM)
        return (loss > least) & (beyond_scatter | widespread)

    @property
    def told(self) -> Tensor:
        """Per output, whether both R² are told: `clustered`, or a smaller loss of crowded rows."""
        loss = self.row_wise - self.explained
        is_loss = (loss > LEAST_LOSS_OF_CROWDED) & (loss > STANDARD_ERRORS * self.scatter)
        return self.clustered | is_loss if self.crowded else self.clustered


def hold_out_neighbourhoods(fit: RegressionFit, domains: Sequence[Domain]) -> Neighbourhoods | None:
    """Judges a fit by whole neighbourhoods; None where there are too few rows to tell."""
    if len(fit.sample) < FEWEST_DIVIDED_ROWS or len(np.unique(fit.sample.units())) < 2 * FOLDS:
        return None
    found = _hold_out(fit, domains, most=NEIGHBOURHOODS)
    # Neighbourhoods that are coarser than groups which the caller named would tell on these.
    if found is None or fit.sample.groups is not None:
        return found
    loses = found.row_wise - found.explained > _LOSS_TO_LOOK_AT
    if not bool(loses.any()) or not _is_crowded(fit.sample):
        return found
    coarser = _hold_out(fit, domains, most=NEIGHBOURHOODS_OF_CROWDED)
    if coarser is not None and coarser.explained.nansum() < found.explained.nansum():
        found = coarser
    return replace(found, crowded=True)


def _is_crowded(rows: Sample) -> bool:
    first_of_unit = np.unique(rows.units(), return_index=True)[1]
    return crowding(rows.inputs[torch.from_numpy(first_of_unit)]) < CROWDED


def _hold_out(fit: RegressionFit, domains: Sequence[Domain], *, most: int) -> Neighbourhoods | None:
    """The same with at most so many neighbourhoods; None where there are fewer than folds."""
    generator = np.random.default_rng(0)
    codes = find_neighbourhoods(fit.sample.inputs, generator=generator, most=most)
    if int(codes.max()) + 1 < FOLDS:
        return None

    fold = torch.from_numpy(deal_folds(codes, generator=generator))
    regression = _rows_in_folds(fit, domains, fold)
    strengths = fit.correction.alphas
    alphas = sorted(set(strengths.tolist()))
    best = torch.tensor([alphas.index(strength) for strength in strengths.tolist()])
    residuals = replace(judge(regression, alphas), best=best).chosen()
    losses = _losses(residuals, fit.held_out.chosen(), regression.outputs, codes)
    ordered = losses.sort(0).values
    typical = ordered[: len(losses) - round(TRIMMED * len(losses))]
    return Neighbourhoods(
        codes=codes,
        regression=regression,
        row_wise=fit.explained,
        explained=share_explained(residuals, regression.outputs),
        scatter=losses.std(0, correction=1) * len(losses) ** 0.5,
        typical_loss=typical.sum(0),
    )


def choose_by_neighbourhoods(fit: RegressionFit, neighbourhoods: Neighbourhoods) -> RegressionFit:
    """The fit with strengths chosen by holding out neighbourhoods, where rows are clustered.

    Only outputs whose rows are clustered get new strengths; neighbourhoods are held out whole.

    Rows of a cluster that are fitted on tell the others of it, so that single rows held out choose
    too weak a ridge.
    """
    clustered = neighbourhoods.clustered
    apart = judge(neighbourhoods.regression, fit.alphas)
    best = torch.where(clustered, apart.best, fit.held_out.best)
    row_wise = judge_also(fit.held_out, fit.regression, fit.alphas, best.tolist())
    # Bands are made of what was left of every row, with neighbourhoods drawn whole.
    sample = replace(fit.sample, groups=neighbourhoods.codes)
    refitted = complete_fit(
        fit.pieces,
        [piece.read(fit.sample) for piece in fit.pieces],
        sample=sample,
        regression=fit.regression,
        alphas=fit.alphas,
        held_out=replace(row_wise, best=best),
    )
    # Errors of both have one row per fold: either way there are `FOLDS` of them, as fewer rows are
    # not divided.
    held_out = HeldOut(
        residual=torch.where(clustered, apart.residual, row_wise.residual),
        errors=torch.where(clustered, apart.errors, row_wise.errors),
        negligible=row_wise.negligible,
        best=best,
    )

    return replace(refitted, held_out=held_out)


def _rows_in_folds(fit: RegressionFit, domains: Sequence[Domain], fold: Tensor) -> Regression:
    """The regression of a fit with its rows dealt into other folds."""
    outside, clamped_rows = clamp_outside(fit.sample, domains, fold)
    beyond = fit.sample.take(outside.numpy())
    shifts = []
    for piece in fit.pieces:
        if isinstance(piece, TablePiece):
            shifts.append(piece.read(clamped_rows)[0] - piece.read(beyond)[0])
        else:
            shifts.append(torch.zeros(len(outside), piece.rank, dtype=torch.float64))
    clamped = fit.regression.design[outside] + torch.cat(shifts, 1)
    regression = Regression.of(
        fit.regression.design, fit.regression.outputs, fold=fold, outside=outside, clamped=clamped
    )
    return replace(regression, prior=fit.regression.prior)


def _losses(after: Tensor, before: Tensor, outputs: Tensor, codes: Codes) -> Tensor:
    """What each neighbourhood loses of R², shape (neighbourhoods, outputs).

    The losses add up to the difference.
    """
    more = after.square() - before.square()
    losses = torch.zeros(int(codes.max()) + 1, more.shape[1], dtype=torch.float64)
    losses.index_add_(0, torch.from_numpy(codes), more)
    total = outputs.var(0, correction=0).clamp_min(1e-300) * len(outputs)
    return losses / total


def scatter_of_share(residuals: Tensor, outputs: Tensor, units: Codes) -> Tensor:
    """Standard error of R² over units of rows, by the delta method; NaN for a constant output.

    Rows of one unit (copies, named groups) count together, as they are held out.
    """
    centred = (outputs - outputs.mean(0)).square()
    total = centred.mean(0)
    left = residuals.square().mean(0) / total
    influence = (residuals.square() - left * centred) / total

    by_unit = torch.zeros(int(units.max(initial=0)) + 1, outputs.shape[1], dtype=torch.float64)
    by_unit.index_add_(0, torch.from_numpy(units), influence)
    scatter: Tensor = by_unit.square().sum(0).sqrt() / max(len(outputs), 1)
    return scatter


def cluster_finding(
    neighbourhoods: Neighbourhoods,
    final: Tensor,
    names: Sequence[str],
    *,
    told: Tensor,
    chosen: bool,
    named: bool = False,
) -> Finding:
    """Both R² of the output that loses most; `final` are those at the strengths that are used.

    `told` says which outputs lose enough, `chosen` whether neighbourhoods chose the strengths of
    those that are clustered, and `named` whether the caller named groups of rows.
    """
    losses = neighbourhoods.row_wise - neighbourhoods.explained
    output = int(torch.where(told, losses, -torch.inf).argmax())
    is_clustered = bool(neighbourhoods.clustered[output])
    row_wise = float(neighbourhoods.row_wise[output])
    explained = float(neighbourhoods.explained[output])
    message = (
        f"The rows seem to come in {'other clusters than the groups' if named else 'clusters'}: "
        f"held-out R² is {with_minus(row_wise, '.3f')} with "
        f"{'these groups' if named else 'single rows'} held out, but "
        f"{with_minus(explained, '.3f')} with whole neighbourhoods held out, as rows of new "
        "clusters are."
    )
    if chosen and is_clustered:
        message += (
            " So the ridge was chosen with neighbourhoods held out, which gives "
            f"{with_minus(float(final[output]), '.3f')} on them."
        )
    message += (
        " Groups must hold all rows that belong together: see whether they are in the order of the "
        "rows, and coarse enough."
        if named
        else " Name the clusters with fit(X, groups=...), for example the customer of every row."
    )
    if not is_clustered:
        message += " If rows are independent, as they may be along a curve, the first figure holds."
    is_large = is_clustered or float(losses[output]) > WORTH_TELLING
    subject = names[output] if len(names) > 1 else ""
    return Finding("warning" if is_large else "note", "clusters", subject, message)


def few_rows_findings(
    rows: int, units: int, *, explained: float, grouped: bool, weighted: bool
) -> list[Finding]:
    """What held-out R², `explained`, is worth where it rests on few rows.

    `rows` is the number of different ones (with weights, of ones of equal weight that tell as
    much), and `units` how many different ones of equal weight tell as much.
    """
    weights = " of equal weight" if weighted else ""
    if rows < TOO_FEW_ROWS:
        message = (
            f"{count(rows, 'different row')}{weights} are too few to tell how well the functions "
            f"hold on other rows, so there is no held-out R². Calibrate on {FEW_ROWS} rows or more."
        )
        return [Finding("warning", "few_rows", "", message)]

    optimism = (OPTIMISM_OF_GROUPS if grouped else OPTIMISM_OF_ROWS) * (1 - explained)
    enough = max(FEW_ROWS, optimism / LEAST_OPTIMISM_OF_MANY)
    if units >= enough:
        return []

    # No more than all of it is lost, so far as anyone can tell from so few rows.
    less = min(optimism / max(units, 1), max(explained, 0.0))
    what = count(units, "group" if grouped else "different row")
    rests_on = f"as much as {what}{weights}" if weighted else f"only {what}"
    if not grouped and not weighted and units < rows:
        rests_on = f"as much as {what}, as some of the {rows:,} repeat more than others"
    message = f"Held-out R² was measured on {rests_on}"
    if less >= LEAST_OPTIMISM:
        message += f": expect about {less:.2f} less on new rows, at times three times that"
    message += f". Calibrate on {_rounded_up(enough):,} or more."
    severity = "warning" if less >= WORTH_TELLING else "note"
    return [Finding(severity, "few_rows", "", message)]


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


# --------------------------------------------------------------------- what the functions leave out


# A pair this strong is named where it is not fitted: 1% of the output's variance.
STRONG_PAIR = 0.1
# Standard error of a strength, as such and as a share of it, from which it is told.
_TOLD_ERROR = 0.05
# A curve this far from partial dependence is named, in units of the output's spread.
FAR = 0.1
# Most pairs and curves that one message names.
MOST_NAMED = 5


def distances_from_average(fit: RegressionFit) -> dict[Subset, tuple[float, ...]]:
    """Per feature how far its curve is from partial dependence, in output spreads.

    It is the root mean square over the rows.
    """
    chunk = fit.sample.chunk()
    spread = fit.sample.spread
    distances = {}
    for piece, function in zip(fit.pieces, fit.functions, strict=True):
        if not isinstance(piece, TablePiece) or len(piece.points) != 1:
            continue
        share = occupancy(piece.points[0], chunk)
        correction = piece.prior.new_tensor(function.values) - piece.prior  # type: ignore[union-attr]
        correction = correction - share @ correction
        away: Tensor = (share @ correction.square()).sqrt() / spread
        distances[piece.term] = tuple(away.tolist())
    return distances


def name_pairs_left_out(
    strengths: Mapping[Subset, float],
    fitted: Collection[Subset],
    names: Sequence[str],
    *,
    explained: float,
    limit: str = "",
    scatter: Mapping[Subset, float] | None = None,
) -> list[Finding]:
    """Strong pairs without a term of their own, with their strengths.

    `explained` is the lowest held-out R² of an output, `limit` says what the caller allows, and
    `scatter` are the strengths' standard errors.
    """
    errors = scatter or {}
    # What is smaller than its standard error may be no interaction at all.
    strong = [
        pair
        for pair, strength in strengths.items()
        if strength >= max(STRONG_PAIR, errors.get(pair, 0.0))
    ]
    left_out = [pair for pair in strong if pair not in fitted]
    if not left_out:
        return []
    listed = ", ".join(
        f"{term_name([names[k] for k in pair])} "
        f"{_with_error(strengths[pair], errors.get(pair, 0.0))}"
        for pair in left_out[:MOST_NAMED]
    )
    more = f" and {len(left_out) - MOST_NAMED} more" if len(left_out) > MOST_NAMED else ""
    is_one = len(left_out) == 1
    reason = _why_left_out(explained, strengths[left_out[0]], limit, it="it" if is_one else "them")
    message = (
        f"{'A strong pair was' if is_one else 'Strong pairs were'} not fitted, as {reason}. The "
        f"number is {'its' if is_one else 'their'} strength, as a share of the output's spread. "
        "Fit by name what you want to see, with interactions=[…]."
    )
    if "±" in listed:
        message += " What follows ± is its standard error, as it was measured on few rows."
    return [Finding("note", "pair_left_out", f"{listed}{more}", message)]


def _why_left_out(explained: float, strength: float, limit: str, *, it: str) -> str:
    """Why strong pairs have no term, and where their parts are; `it` stands for the pairs."""
    its = "its part is" if it == "it" else "their parts are"
    elsewhere = f"{its} in the residual, or in the curves of features that depend on each other"
    if limit:
        return f"{limit}: {elsewhere}"
    if not explained >= LOW_SHARE:
        return (
            f"held-out rows were explained no better with {it}, which may be for want of rows: "
            f"{its} in the residual"
        )
    if 1 - explained >= strength**2:  # what is unexplained has room for it
        return f"held-out rows were explained no better with {it}: {elsewhere}"
    return (
        f"single features explain the rows without {it}: {its} in their curves, which differ from "
        "the average effect"
    )


def _with_error(strength: float, error: float) -> str:
    """A strength, with its standard error where that would change how it reads."""
    is_told = error >= max(_TOLD_ERROR, _TOLD_ERROR * strength)
    return f"{strength:.2f} ± {error:.2f}" if is_told else f"{strength:.2f}"


def name_far_curves(
    distances: Mapping[Subset, Sequence[float]], names: Sequence[str]
) -> list[Finding]:
    """Features whose curves are far from partial dependence, farthest first."""
    largest = {term: max(values) for term, values in distances.items() if len(values)}
    far = sorted((term for term in largest if largest[term] >= FAR), key=lambda t: -largest[t])
    if not far:
        return []
    listed = ", ".join(f"{names[term[0]]} {largest[term]:.2f}" for term in far[:MOST_NAMED])
    more = f" and {len(far) - MOST_NAMED} more" if len(far) > MOST_NAMED else ""
    message = (
        "The curve differs from partial dependence (the average effect over all rows), because the "
        "rows support another split of the effect, as they can where features are correlated or "
        "rows are few. The number is how far on average, as a share of the output's spread."
    )
    return [Finding("note", "far_from_average", f"{listed}{more}", message)]


# ------------------------------------------------------------------- features that others determine


# R² on the other features from which a column counts as determined by them.
DETERMINED = 0.995
# The same among its ordinary values, which are between these quantiles: a few rows far out, which
# two columns have in common, determine nothing.
_DETERMINED_IN_THE_MIDDLE = 0.95
_MIDDLE = (0.05, 0.95)
# Spread of a column, as a share of its mean, that is rounding.
_CONSTANT = 1e-12
# R² on the neighbours in the order of one other feature from which a feature counts as a function
# of it: bins have edges, where neighbours differ.
FUNCTION_OF_ONE = 0.99
# Fewest rows that are put in order, most rows, and the share of them that must share a value with
# others.
_FEWEST_ORDERED_ROWS = 50
_MOST_ORDERED_ROWS = 2000
_SHARE_WITH_OTHERS = 0.9
# Fewest rows for every column that is compared, and most columns.
_ROWS_EACH = 10
_MOST_COLUMNS = 200
# A level, or a value that a number repeats, counts where this share of the rows has it, and this
# share has not.
_SHARE_OF_LEVEL = 0.02
# Share of the rows that must not be zero where a number is compared as a factor.
_LEAST_WITH_LOGARITHM = 0.5
# Most features that are looked for one by one as those which determine another.
_MOST_NAMED = 3


@dataclass(frozen=True)
class Determined:
    """A feature that others determine."""

    feature: int
    by: tuple[int, ...]
    share: float  # R² on those
    level: str  # the level or value that is determined; empty where all of the feature is
    # whether it is any function of one feature, or a product or quotient; not a weighted sum
    is_curved: bool = False


@dataclass(frozen=True, eq=False)
class _Column:
    feature: int
    level: str
    values: FloatArray  # NaN where they are not known


def find_determined(domains: Sequence[Domain], sample: Sample) -> list[Determined]:
    """Features that others determine as a sum, each set of features once."""
    return _determined_among(_columns_of(domains, sample), sample)


def find_products(domains: Sequence[Domain], sample: Sample) -> list[Determined]:
    """Numbers that are a product or quotient of others: the logarithms of their sizes are a sum.

    Products of one other alone are functions of it, and are found as such.
    """
    products = _determined_among(_logarithms_of(domains, sample), sample)
    return [replace(product, is_curved=True) for product in products if len(product.by) > 1]


def _determined_among(columns: Sequence[_Column], sample: Sample) -> list[Determined]:
    """Features whose columns are a sum of others' columns."""
    if not 2 <= len(columns) <= min(_MOST_COLUMNS, len(sample) // _ROWS_EACH):
        return []

    table = _ColumnTable.of(columns)
    determined: list[Determined] = []
    named: set[frozenset[int]] = set()
    for position, column in enumerate(columns):
        found = table.find_determining(position, named)
        if found is None:
            continue
        by, share = found
        members = frozenset((column.feature, *by))
        if members not in named:
            named.add(members)
            determined.append(Determined(column.feature, by, share, column.level))
    return determined


@dataclass(frozen=True, eq=False)
class _ColumnTable:
    """Columns side by side, with NaN where a value is not known."""

    values: FloatArray
    owners: NDArray[np.intp]  # the features of the columns
    correlations: dict[bytes, FloatArray]  # by the rows they are of

    @classmethod
    def of(cls, columns: Sequence[_Column]) -> _ColumnTable:
        """The table of some columns."""
        values = np.stack([column.values for column in columns], 1)
        return cls(values, np.array([column.feature for column in columns]), {})

    def find_determining(
        self, position: int, named: Iterable[frozenset[int]]
    ) -> tuple[tuple[int, ...], float] | None:
        """The features that determine a column, and R²; None where none do.

        Where its value is missing nothing can be told, and what a sum is of is missing as well.
        """
        known = np.flatnonzero(np.isfinite(self.values[:, position]))
        if len(known) < len(self.values):
            known = known[:: -(-len(known) // _MOST_ORDERED_ROWS)]
        if len(known) < _ROWS_EACH * len(self.owners):
            return None

        correlation = self._correlations_of(known)
        owner = self.owners[position]
        others = np.flatnonzero(self.owners != owner)
        if _share(correlation, position, others) < DETERMINED:
            return None
        # Of a sum of many, every part follows from the others.
        if any(owner in members for members in named if len(members) > _MOST_NAMED + 1):
            return None

        by, share = _fewest_determining(correlation, position, self.owners)
        middle = known[_is_ordinary(self.values[known, position])]
        if share >= DETERMINED and not self._holds_on(middle, position, by):
            # A few rows far out, or a code such as 999, that two columns have in common.
            by, _ = _fewest_determining(_correlate(self.values[middle]), position, self.owners)
            share = _share_of_features(correlation, position, self.owners, by)
            share = share if self._holds_on(middle, position, by) else 0.0
        return (by, share) if share >= DETERMINED else None

    def _holds_on(self, rows: NDArray[np.intp], position: int, by: tuple[int, ...]) -> bool:
        """Whether some features determine a column on these rows alone, if it varies there."""
        chosen = np.append(position, np.flatnonzero(np.isin(self.owners, by)))
        correlation = _correlate(self.values[np.ix_(rows, chosen)])
        if not correlation[0, 0]:
            return True
        return _share(correlation, 0, np.arange(1, len(correlation))) >= _DETERMINED_IN_THE_MIDDLE

    def _correlations_of(self, rows: NDArray[np.intp]) -> FloatArray:
        """Correlations on these rows, computed once."""
        key = rows.tobytes()
        if key not in self.correlations:
            self.correlations[key] = _correlate(self.values[rows])
        return self.correlations[key]


def _correlate(values: FloatArray) -> FloatArray:
    """Correlations of columns, in which unknown values are as the mean; zero of constant ones."""
    known = np.isfinite(values)
    counts = np.maximum(known.sum(0), 1)
    means = np.where(known, values, 0.0).sum(0) / counts
    centred = np.where(known, values - means, 0.0)
    spread = np.sqrt(np.square(centred).mean(0)) if len(values) else np.zeros(values.shape[1])
    varies = spread > _CONSTANT * np.abs(means)
    standardised = np.where(varies, centred / np.where(varies, spread, 1.0), 0.0)
    correlation: FloatArray = standardised.T @ standardised / max(len(values), 1)
    return correlation


def _is_ordinary(values: FloatArray) -> NDArray[np.bool_]:
    """Rows with the values of the middle, without one that a tenth of the rows have."""
    low, high = np.quantile(values, _MIDDLE)
    ordinary: NDArray[np.bool_] = (values >= low) & (values <= high)
    repeated, counts = np.unique(values, return_counts=True)
    if counts.max() >= 0.1 * len(values):
        ordinary &= values != repeated[counts.argmax()]
    return ordinary


def find_functions_of_one(
    codes: Mapping[int, Array], groups: NDArray[np.intp] | None = None
) -> list[Determined]:
    """Features that are some function of one other.

    For example its square, its bins, or the season of a month.

    A feature is predicted from the rows that are next to each in the order of the other one, or
    that have the same value of it; where that leaves almost nothing, the other one determines it.
    Of rows that belong together, such as visits of a patient, one is looked at.
    """
    features = list(codes)
    if not 2 <= len(features) <= _MOST_COLUMNS:
        return []

    rows = np.stack([_with_missing_lowest(codes[feature]) for feature in features], 1)
    if groups is not None:
        rows = rows[np.unique(groups, return_index=True)[1]]
    step = -(-len(rows) // _MOST_ORDERED_ROWS)
    # A copy of a row would tell everything about it. That makes them sorted, so they are shuffled:
    # the first row of every value would have low values in the columns that follow.
    targets = np.unique(rows[::step], axis=0)
    targets = np.random.default_rng(0).permutation(targets)
    if len(targets) < _FEWEST_ORDERED_ROWS:
        return []
    known = targets.T
    spread = targets.std(0)
    targets = (targets - targets.mean(0)) / np.where(spread > 0, spread, 1.0)

    shares = np.stack([_shares_by_neighbours(source, targets) for source in known])
    follows = (shares >= FUNCTION_OF_ONE) & (spread > 0)
    # Rows in tight clusters tell each column from each other one, and one-to-one columns are found
    # otherwise.
    follows &= ~follows.T

    determined = []
    for target in np.flatnonzero(follows.any(0)).tolist():
        source = int(np.where(follows[:, target], shares[:, target], -np.inf).argmax())
        share = float(shares[source, target])
        follows_from = (features[source],)
        determined.append(Determined(features[target], follows_from, share, "", is_curved=True))
    return determined


def _with_missing_lowest(values: Array) -> Array:
    """Values with those that are missing below all others, as a value of their own."""
    is_known = np.isfinite(values)
    if is_known.all():
        return values.astype(np.float64)
    lowest = float(values[is_known].min()) if is_known.any() else 0.0
    return np.where(is_known, values, lowest - 1.0)


def _shares_by_neighbours(source: Array, targets: Array) -> FloatArray:
    """R² of standardised columns predicted from rows with the same value of a source.

    Where values hardly repeat, from the rows next to each in their order.
    """
    values, first, place, counts = np.unique(
        source, return_index=True, return_inverse=True, return_counts=True
    )
    sums = np.zeros((len(values), targets.shape[1]))
    np.add.at(sums, place, targets)

    def left_by_others(chosen: NDArray[np.bool_]) -> Array:
        """What is left of chosen rows by the mean of the other rows with their value."""
        groups = place[chosen]
        of_others = (sums[groups] - targets[chosen]) / (counts[groups] - 1)[:, None]
        return targets[chosen] - of_others

    if len(values) > _MOST_VALUES:
        # One row per value: rows of the same amount may belong to the same person. But a value that
        # many rows have, such as zero where nothing was paid, tells little of these.
        is_frequent = counts >= max(_SHARE_OF_LEVEL * len(source), 2)
        ordered = targets[first[~is_frequent]]
        left = ordered[1:-1] - (ordered[:-2] + ordered[2:]) / 2
        frequent = is_frequent[place]
        return _share_of_spread(
            np.concatenate([left, left_by_others(frequent)]),
            np.concatenate([ordered[1:-1], targets[frequent]]),
            n_others=int(frequent.sum()),
            share_of_others=float(frequent.mean()),
        )

    has_others = counts[place] > 1
    if has_others.mean() < _SHARE_WITH_OTHERS:
        return np.zeros(targets.shape[1])
    return _share_of_spread(left_by_others(has_others), targets[has_others])


def _share_of_spread(
    left: Array, rows: Array, *, n_others: int = 0, share_of_others: float = 0.0
) -> FloatArray:
    """R² of columns on some rows; zero where a column does not vary among these.

    The few large values of a skewed column may be in none of them. The last `n_others` rows have
    `share_of_others` of the weight.
    """
    n_first = len(rows) - n_others
    weights = np.full(len(rows), (1 - share_of_others) / max(n_first, 1))
    weights[n_first:] = share_of_others / max(n_others, 1)
    variance = weights @ np.square(rows - weights @ rows)
    varies = variance > _ROUNDING
    share = 1 - weights @ np.square(left) / np.where(varies, variance, 1.0)
    return np.where(varies, share, 0.0)


def _columns_of(domains: Sequence[Domain], sample: Sample) -> list[_Column]:
    """Numbers, the values that they repeat, and levels, as columns."""
    chunk = sample.chunk()
    columns: list[_Column] = []

    def add_level(feature: int, level: str, has_it: NDArray[np.bool_]) -> None:
        if _SHARE_OF_LEVEL <= has_it.mean() <= 1 - _SHARE_OF_LEVEL:
            columns.append(_Column(feature, level, has_it.astype(np.float64)))

    for feature, domain in enumerate(domains):
        if isinstance(domain.levels, LevelAxis):
            places = chunk.places(domain.levels)[0]
            for level_number, label in enumerate(domain.feature.labels[: len(domain.levels)]):
                add_level(feature, str(label), places == level_number)
        elif domain.span is not None:
            values = chunk.numbers(domain.feature.columns[0]).astype(np.float64)
            repeated, counts = np.unique(values[np.isfinite(values)], return_counts=True)
            if len(repeated) > 1:
                columns.append(_Column(feature, "", values))
            if len(repeated) > 2 and counts.max() >= 0.1 * len(values):
                most_frequent = repeated[counts.argmax()]
                add_level(feature, f"{most_frequent:g}", values == most_frequent)
    return columns


def _logarithms_of(domains: Sequence[Domain], sample: Sample) -> list[_Column]:
    """Logarithms of the sizes of numbers, as columns: of zero there is none."""
    chunk = sample.chunk()
    columns: list[_Column] = []
    for feature, domain in enumerate(domains):
        if domain.span is None:
            continue
        sizes = np.abs(chunk.numbers(domain.feature.columns[0]).astype(np.float64))
        has_one = np.isfinite(sizes) & (sizes > 0)
        if has_one.mean() < _LEAST_WITH_LOGARITHM:
            continue
        logarithms = np.log(np.where(has_one, sizes, 1.0))
        if np.ptp(logarithms[has_one]) > 0:
            columns.append(_Column(feature, "", np.where(has_one, logarithms, np.nan)))
    return columns


def _share(correlation: FloatArray, target: int, others: NDArray[np.intp]) -> float:
    """R² of a column on others."""
    if not len(others):
        return 0.0
    cross = correlation[others, target]
    return float(cross @ np.linalg.solve(_system(correlation, others), cross))


def _share_of_features(
    correlation: FloatArray, target: int, owners: NDArray[np.intp], by: tuple[int, ...]
) -> float:
    """R² of a column on all columns of some features."""
    return _share(correlation, target, np.flatnonzero(np.isin(owners, by)))


def _fewest_determining(
    correlation: FloatArray, position: int, owners: NDArray[np.intp]
) -> tuple[tuple[int, ...], float]:
    """Features that determine a column, none of them superfluous; and R²."""
    by, share = _smallest_set(correlation, position, owners)
    if share < DETERMINED:
        by, share = _heaviest_set(correlation, position, owners)
    return _without_superfluous(correlation, position, owners, by, share)


def _system(correlation: FloatArray, others: NDArray[np.intp]) -> FloatArray:
    """Correlations among some columns, which can be solved though some are sums of others."""
    return np.asarray(correlation[np.ix_(others, others)] + 1e-9 * np.eye(len(others)))


def _smallest_set(
    correlation: FloatArray, target: int, owners: NDArray[np.intp]
) -> tuple[tuple[int, ...], float]:
    """The fewest features that determine a column, the one that explains most first; and R²."""
    candidates = [feature for feature in np.unique(owners).tolist() if feature != owners[target]]
    chosen: list[int] = []
    share = 0.0
    while share < DETERMINED and len(chosen) < _MOST_NAMED and candidates:
        shares = [
            _share(correlation, target, np.flatnonzero(np.isin(owners, [*chosen, candidate])))
            for candidate in candidates
        ]
        best = int(np.argmax(shares))
        share = shares[best]
        chosen.append(candidates.pop(best))
    return tuple(chosen), share


def _without_superfluous(
    correlation: FloatArray,
    target: int,
    owners: NDArray[np.intp],
    by: tuple[int, ...],
    share: float,
) -> tuple[tuple[int, ...], float]:
    """The features without those that are not needed, the last ones first; and R²."""
    for feature in reversed(by):
        rest = tuple(other for other in by if other != feature)
        share_of_rest = _share(correlation, target, np.flatnonzero(np.isin(owners, rest)))
        if share_of_rest >= DETERMINED:
            by, share = rest, share_of_rest
    return by, share


def _heaviest_set(
    correlation: FloatArray, target: int, owners: NDArray[np.intp]
) -> tuple[tuple[int, ...], float]:
    """The same where it takes many: features by their weights in the sum of all."""
    others = np.flatnonzero(owners != owners[target])
    weights = np.linalg.solve(_system(correlation, others), correlation[others, target])
    candidates = np.unique(owners[others])
    heaviest = [-np.abs(weights[owners[others] == feature]).max() for feature in candidates]
    ordered = candidates[np.argsort(heaviest, kind="stable")].tolist()

    chosen = ordered[:_MOST_NAMED]
    share = 0.0
    while share < DETERMINED and len(chosen) < len(ordered):
        chosen = ordered[: len(chosen) + 1]
        share = _share(correlation, target, np.flatnonzero(np.isin(owners, chosen)))
    return tuple(chosen), share
