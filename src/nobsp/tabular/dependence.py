"""Features that others determine: the rows cannot show which of them has an effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nobsp._typing import FloatArray
from nobsp.arguments import join_names
from nobsp.findings import Finding
from nobsp.tabular.features import Domain
from nobsp.tabular.lookup import Array, LevelAxis
from nobsp.tabular.setting import Sample, Setting, number_rows

# Two numbers with such a rank correlation cannot be told apart by the rows.
_SAME_RANKS = 0.995
# Rows below which correlations say nothing.
_FEWEST_COMPARED_ROWS = 10
# Most values of features that are compared one to one: of many different values all are one-to-one.
_MOST_VALUES = 64
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
# Most features that one message names.
MOST_FEATURES_NAMED = 8
# What is left of a variance by rounding.
_ROUNDING = 1e-9


def dependence_findings(setting: Setting, rows: Sample) -> list[Finding]:
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
    others = join_names([names[feature] for feature in determined.by], MOST_FEATURES_NAMED)
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

    for feature, partner in one_to_one(codes, n_rows=len(rows)):
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


def one_to_one(codes: Mapping[int, Array], *, n_rows: int) -> list[tuple[int, int]]:
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
        determining = table.find_determining(position, named)
        if determining is None:
            continue
        by, share = determining
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
    values = _without_overflow(values)
    counts = np.maximum(known.sum(0), 1)
    means = np.where(known, values, 0.0).sum(0) / counts
    centred = np.where(known, values - means, 0.0)
    spread = np.sqrt(np.square(centred).mean(0)) if len(values) else np.zeros(values.shape[1])
    varies = spread > _CONSTANT * np.abs(means)
    standardised = np.where(varies, centred / np.where(varies, spread, 1.0), 0.0)
    correlation: FloatArray = standardised.T @ standardised / max(len(values), 1)
    return correlation


def _without_overflow(values: FloatArray) -> FloatArray:
    """Columns divided by a power of two, which loses no digit, so that squares are finite."""
    sizes = np.abs(np.where(np.isfinite(values), values, 0.0)).max(0, initial=0.0)
    _, exponents = np.frexp(sizes)
    return np.asarray(np.ldexp(values, 1 - exponents))


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
    targets = _without_overflow(targets)
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
    values, first, position, counts = np.unique(
        source, return_index=True, return_inverse=True, return_counts=True
    )
    sums = np.zeros((len(values), targets.shape[1]))
    np.add.at(sums, position, targets)

    def left_by_others(chosen: NDArray[np.bool_]) -> Array:
        """What is left of chosen rows by the mean of the other rows with their value."""
        groups = position[chosen]
        of_others = (sums[groups] - targets[chosen]) / (counts[groups] - 1)[:, None]
        return targets[chosen] - of_others

    if len(values) > _MOST_VALUES:
        # One row per value: rows of the same amount may belong to the same person. But a value that
        # many rows have, such as zero where nothing was paid, tells little of these.
        is_frequent = counts >= max(_SHARE_OF_LEVEL * len(source), 2)
        ordered = targets[first[~is_frequent]]
        left = ordered[1:-1] - (ordered[:-2] + ordered[2:]) / 2
        frequent = is_frequent[position]
        return _share_of_spread(
            np.concatenate([left, left_by_others(frequent)]),
            np.concatenate([ordered[1:-1], targets[frequent]]),
            n_others=int(frequent.sum()),
            share_of_others=float(frequent.mean()),
        )

    has_others = counts[position] > 1
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
            positions = chunk.places(domain.levels)[0]
            for level_number, label in enumerate(domain.feature.labels[: len(domain.levels)]):
                add_level(feature, str(label), positions == level_number)
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
