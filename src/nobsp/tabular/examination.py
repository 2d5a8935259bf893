"""What is worth knowing before the functions are believed: findings, and their health as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nobsp.base import Finding, sort_findings
from nobsp.messages import join_names
from nobsp.network.inputs import SAMPLE_ROWS, Subset
from nobsp.tabular.budget import Meter
from nobsp.tabular.dependence import Determined, find_determined
from nobsp.tabular.estimate import terms_with
from nobsp.tabular.health import Health, TermHealth
from nobsp.tabular.indexing import term_name
from nobsp.tabular.lookup import Array
from nobsp.tabular.omissions import distances_from_average, name_far_curves, name_pairs_left_out
from nobsp.tabular.sample import Sample
from nobsp.tabular.setting import Setting
from nobsp.tabular.suggestions import ranks
from nobsp.tabular.terms import Terms
from nobsp.tabular.validity import scatter_of_share

# Share of an output's variance below which held-out R² is a warning.
LOW_SHARE = 0.8
# Two numbers with such a rank correlation cannot be told apart by the rows.
_SAME_RANKS = 0.995
# Rows below which correlations say nothing.
_FEWEST_ROWS = 10
# Most values of features that are compared one to one: of many different values all are one-to-one.
_MOST_VALUES = 64
# A feature whose terms vary by less than this share of the outputs does nothing: the rest is rounding.
_ROUNDING = 1e-9
# Most features or terms that one message names.
_MOST_THRESHOLDS = 8
_MOST_TERMS = 5
# Keeps the inverse of the terms' correlations finite where two of them are the same.
_JITTER = 1e-12
# Keeps a division by a spread of zero finite.
_LEAST = 1e-300


@dataclass(frozen=True, eq=False)
class Validity:
    """What is known of the headline beyond the headline."""

    findings: tuple[Finding, ...]
    worst: Tensor  # per output, the lowest of the held-out R²
    explained: Tensor  # the headline; NaN where rows are too few to tell
    neighbourhoods: Tensor  # R² with whole neighbourhoods held out; empty where not measured
    coarse: tuple[int, ...]  # features whose tables are coarser than their functions


def examine(
    setting: Setting,
    terms: Terms,
    validity: Validity,
    values: Tensor,
    measured: Sample,
    meter: Meter,
) -> Health:
    """The health of functions that were fitted together; `values` are contributions on the `measured` rows."""
    fit = terms.fit
    distances = distances_from_average(fit)
    coarse = [setting.names[feature] for feature in validity.coarse]
    findings = [
        *share_findings(validity.worst, setting.output_names, coarse=coarse),
        *validity.findings,
        *feature_findings(setting, terms.order, values, measured),
        *name_pairs_left_out(terms.strengths, terms.order, setting.names),
        *name_far_curves(distances, setting.names),
        *_notes(setting, terms, meter),
    ]

    costs = {direct.term: direct.cost for direct in terms.direct}
    return Health(
        findings=sort_findings(findings),
        terms=tuple(
            TermHealth(
                tuple(setting.names[feature] for feature in piece.term),
                piece.rank,
                share,
                costs.get(piece.term, 0),
                distances.get(piece.term, ()),
            )
            for piece, share in zip(fit.pieces, _unique_shares(values), strict=True)
        ),
        explained=tuple(validity.explained.tolist()),
        inside=tuple(fit.inside.tolist()),
        scatter=tuple(scatter_of_share(fit.held_out.chosen(), fit.sample.outputs).tolist()),
        neighbourhoods=tuple(validity.neighbourhoods.tolist()),
        variance=tuple(fit.sample.outputs.var(0, correction=0).tolist()),
        outside_rows=len(fit.regression.outside) / len(fit.regression.outputs),
        rows=setting.n_rows,
        columns=fit.regression.terms.shape[1],
        forward_rows=meter.spent,
    )


def _notes(setting: Setting, terms: Terms, meter: Meter) -> list[Finding]:
    """What was done otherwise than a reader may expect."""
    notes: list[Finding] = []

    def note(code: str, message: str, subject: str = "") -> None:
        notes.append(Finding("note", code, subject, message))

    if terms.economy:
        rows = f"{terms.forward_rows:,} forward rows in all"
        note("economy", f"The model is large, or features are many, so tables are coarse: {rows}.")
    if meter.reduced:
        note(
            "budget",
            f"max_forward_rows={meter.limit:,} was too few for full tables, so they are coarser (fewer background "
            f"rows, knots or interactions): {meter.spent:,} forward rows were used.",
        )
    if setting.readout.no_head:
        note(
            "no_head",
            "No linear layer that ends the model was found, so its outputs themselves are taken apart: curves are its "
            "average effects, and rows can only strengthen or weaken them.",
        )
    thinned = _list_thinned(terms.thresholds, setting.names)
    if thinned:
        note(
            "thresholds",
            f"Of the thresholds only the strongest are exact steps ({thinned}); lines cross the others.",
        )
    if setting.summary.rows > SAMPLE_ROWS:
        share = f"{SAMPLE_ROWS:,} of the {setting.summary.rows:,} rows"
        note(
            "sampled",
            f"Functions were fitted on a random sample of {share}; ranges and levels are those of all.",
        )
    if terms.direct:
        cost = sum(direct.cost for direct in terms.direct)
        note(
            "no_table",
            f"No table: each row explained takes {cost:,} more forward rows, and compiling leaves it out.",
            _list_terms([direct.term for direct in terms.direct], setting.names),
        )
    return notes


def _list_thinned(thresholds: Mapping[int, tuple[int, int]], names: Sequence[str]) -> str:
    """Features whose tables have fewer thresholds than the model."""
    thinned = [
        f"{names[feature]} {in_table:,} of {count:,}"
        for feature, (in_table, count) in thresholds.items()
        if in_table < count
    ]
    return ", ".join(thinned[:_MOST_THRESHOLDS])


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
    what: str = "Held-out R²",
    coarse: Sequence[str] = (),
) -> list[Finding]:
    """What a low share explained means, for the worst output."""
    known = [
        (share, name)
        for share, name in zip(explained.tolist(), names, strict=True)
        if not np.isnan(share)
    ]
    if not known or min(known)[0] >= LOW_SHARE:
        return []
    share, name = min(known)
    if share < 0:
        message = f"{what} is {share:.3f}: worse than the mean. Do not use the functions; calibrate on more rows."
        return [Finding("error", "worse_than_mean", name, message)]
    if coarse:
        message = (
            f"{what} is only {share:.3f}: the function of {join_names(coarse, 3)} bends more often than its table has "
            "knots. More rows do not help; the model may be finer than its data."
        )
        return [Finding("warning", "coarse_table", name, message)]
    message = (
        f"{what} is only {share:.3f}: too few rows for so many features, or interactions that are not fitted. "
        "Calibrate on more rows, or name interactions."
    )
    return [Finding("warning", "low_share", name, message)]


def feature_findings(
    setting: Setting, terms: Sequence[Subset], values: Tensor, rows: Sample
) -> list[Finding]:
    """Features that do nothing, and those that the rows cannot tell from another one."""
    return [
        *_idle_findings(setting, terms, values, rows),
        *_dependence_findings(setting, rows),
    ]


def _idle_findings(
    setting: Setting, terms: Sequence[Subset], values: Tensor, rows: Sample
) -> list[Finding]:
    """Features that do nothing."""
    findings = []
    spread = values.std(0, correction=0)
    scale = float(rows.outputs.std(0, correction=0).max()) if len(rows) > 1 else 0.0
    least = _ROUNDING * max(scale, _LEAST)
    for feature, positions in enumerate(terms_with(terms, len(setting.names))):
        name = setting.names[feature]
        if not setting.domains[feature].columns:
            message = "The preprocessing makes nothing of it (dropped or constant), so it contributes nothing."
            findings.append(Finding("note", "unused", name, message))
        elif float(spread[positions].max()) <= least:
            message = "No term that contains it varies: its column is constant, or the network does not use it."
            findings.append(Finding("note", "constant", name, message))
    return findings


def _dependence_findings(setting: Setting, rows: Sample) -> list[Finding]:
    """Features that another one, or several others, determine."""
    findings = []
    partners = _find_partners(setting, rows)
    for feature, partner, evidence in partners:
        message = (
            f"It is tied to {setting.names[partner]!r} ({evidence}): the rows cannot tell which of the two does what. "
            "Group them as one feature (NObSP.suggest_features), or leave one out."
        )
        findings.append(Finding("warning", "dependent", setting.names[feature], message))

    named = {frozenset((feature, partner)) for feature, partner, _ in partners}
    for determined in find_determined(setting.domains, rows):
        if frozenset((determined.feature, *determined.by)) not in named:
            findings.append(_determined_finding(determined, setting.names))
    return findings


def _determined_finding(determined: Determined, names: Sequence[str]) -> Finding:
    subject = names[determined.feature]
    others = join_names([names[feature] for feature in determined.by])
    if determined.level:
        message = (
            f"Whether it is {determined.level!r} follows from {others} (R² {determined.share:.3f}): rows cannot "
            "tell which of them does what there."
        )
        return Finding("note", "determined", subject, message)
    message = (
        f"It follows from {others} (R² {determined.share:.3f}): the rows cannot tell which of them does what. "
        "Group them as one feature, or leave one out."
    )
    return Finding("warning", "determined", subject, message)


def _find_partners(setting: Setting, rows: Sample) -> list[tuple[int, int, str]]:
    """Features that another one determines, with that one and how it was noticed."""
    codes = _varying_codes(setting, rows)
    if len(codes) < 2 or len(rows) < _FEWEST_ROWS:
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
    """Per term the share of its variance that the others cannot reproduce, 1/VIF; of the output that varies most."""
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
