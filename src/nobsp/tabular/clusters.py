"""Whether rows come in clusters that nobody named, which makes held-out rows too easy.

Each of such rows has neighbours among the rows fitted on. Holding out whole neighbourhoods takes
these away; independent rows lose little by it. Where rows are clustered, the ridge is chosen again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._typing import FloatArray
from nobsp.arguments import with_minus
from nobsp.findings import Finding
from nobsp.numerics import evenly_spaced
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
from nobsp.tabular.features import FEW_VALUES, Domain
from nobsp.tabular.health import STANDARD_ERRORS, WORTH_TELLING
from nobsp.tabular.setting import (
    FOLDS,
    NEIGHBOURHOODS,
    Codes,
    Sample,
    deal_folds,
    find_neighbourhoods,
    number_rows,
    standardise_inputs,
)
from nobsp.tabular.tables import TablePiece

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
# Where there are more neighbourhoods than clusters, parts of one are held out while others are
# fitted on, and nothing is lost. So neighbourhoods of crowded rows are joined where the squared
# distance of their middles is up to so many times the mean one of rows from these. Of 160 tables of
# 12 to 150 clusters 4 were silently too high by .05, not 29; 1 and 4 times were worse.
JOINED_UP_TO = 2.5
# Neighbourhoods of fewer rows look narrow, as their middles are near each of these: of 90 tables of
# 5 to 25 clusters with 110 to 350 rows 13 were silently too high by .05, not 1.
FEWEST_ROWS_JOINED = 15
# Fewest that choose the ridge. Fewer, but one for every fold, are only told of, and not where one
# of them has more than this share of the rows: a crowd and its stragglers.
FEWEST_JOINED = 2 * FOLDS
LARGEST_OF_FEW = 0.4
# How much too high R² is where neighbourhoods chose the ridge, as it is measured on the same ones:
# this, divided by their number, times what is left unexplained. It was .02 too high in the middle
# of 58 tables of 5 to 50 clusters and is .00 with this taken off. And what is too little to tell.
OPTIMISM_OF_CLUSTERS = 5
LEAST_OPTIMISM_OF_CLUSTERS = 0.01
# A row whose k-th neighbour is this much nearer than the next one is one of k + 1 near copies, such
# as a record that was entered twice with other rounding. Of independent rows one in ten is where
# only one number tells rows apart (0.12 at most among tables of any kind), and none where two do.
NEAR_COPY = 0.1
NEAR_COPIES = 0.2
_MOST_COPIES = 6
_COMPARED_WITH_ALL = 256
# Rows are only looked at for near copies where neighbourhoods lose this much.
_LOSS_TO_LOOK_AT = 0.01
NEIGHBOURHOODS_OF_CROWDED = 25
# Most rows that are looked at, and fewest for every number: fewer tell no covariance.
_MOST_COMPARED_ROWS = 4096
_ROWS_EACH = 10
_FEWEST_NUMBERS = 2
# Added to covariances, so that numbers that are exactly correlated do no harm.
_RIDGE = 1e-6


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
        beyond_scatter = loss > self._n_errors * self.scatter
        widespread = self.typical_loss > WORTH_TELLING
        at_the_rim = LOSS_AT_THE_RIM * (1 - self.row_wise)
        least = (WORTH_TELLING + at_the_rim).clamp(max=LARGEST_LOSS_AT_THE_RIM)
        return (loss > least) & (beyond_scatter | widespread)

    @property
    def n_units(self) -> float:
        """How many neighbourhoods of equal size tell as much."""
        shares = np.bincount(self.codes) / len(self.codes)
        return float(1 / np.square(shares).sum())

    @property
    def few(self) -> bool:
        """Whether the clusters are too few to choose a ridge by."""
        return int(self.codes.max()) + 1 < FEWEST_JOINED

    @property
    def _n_errors(self) -> float:
        """Standard errors that a loss must exceed: that of few clusters is uncertain.

        That rows crowd is evidence as well, with which one is enough.
        """
        return 1.0 if self.crowded else STANDARD_ERRORS

    @property
    def told(self) -> Tensor:
        """Per output, whether both R² are told: `clustered`, or a smaller loss of crowded rows."""
        loss = self.row_wise - self.explained
        is_loss = (loss > LEAST_LOSS_OF_CROWDED) & (loss > self._n_errors * self.scatter)
        return self.clustered | is_loss if self.crowded else self.clustered


def hold_out_neighbourhoods(fit: RegressionFit, domains: Sequence[Domain]) -> Neighbourhoods | None:
    """Judges a fit by whole neighbourhoods; None where there are too few rows to tell."""
    # Of few groups each may still have many rows, and be something else than the clusters: years.
    n_different = int(number_rows(fit.sample.inputs).max(initial=-1)) + 1
    if len(fit.sample) < FEWEST_DIVIDED_ROWS or n_different < 2 * FOLDS:
        return None
    generator = np.random.default_rng(0)
    codes = find_neighbourhoods(fit.sample.inputs, generator=generator)
    neighbourhoods = _hold_out(fit, domains, codes, generator=generator)
    # Neighbourhoods that are coarser than groups which the caller named would tell on these.
    if neighbourhoods is None or fit.sample.keeps_groups_whole:
        return neighbourhoods
    if is_crowded(fit.sample):
        wide_enough = len(fit.sample) // FEWEST_ROWS_JOINED
        if wide_enough < NEIGHBOURHOODS:
            codes = find_neighbourhoods(
                fit.sample.inputs, generator=np.random.default_rng(0), most=wide_enough
            )
        codes = join_parts(fit.sample.inputs, codes)
    elif _has_lost_by_near_copies(neighbourhoods, fit.sample):
        codes = find_neighbourhoods(
            fit.sample.inputs,
            generator=np.random.default_rng(0),
            most=NEIGHBOURHOODS_OF_CROWDED,
        )
    else:
        return neighbourhoods

    of_clusters = _hold_out(fit, domains, codes, generator=generator)
    if (
        of_clusters is not None
        and of_clusters.explained.nansum() < neighbourhoods.explained.nansum()
    ):
        neighbourhoods = of_clusters
    return replace(neighbourhoods, crowded=True)


def is_crowded(rows: Sample) -> bool:
    """Whether rows, of which copies count once, crowd together as those of clusters do."""
    return crowding(_different_rows(rows)) < CROWDED


def has_near_copies(rows: Sample) -> bool:
    """Whether many rows have a near copy: of clusters so small, neighbourhoods show nothing."""
    return share_of_near_copies(_different_rows(rows)) > NEAR_COPIES


def _has_lost_by_near_copies(neighbourhoods: Neighbourhoods, rows: Sample) -> bool:
    loss = neighbourhoods.row_wise - neighbourhoods.explained
    return bool((loss > _LOSS_TO_LOOK_AT).any()) and has_near_copies(rows)


def _different_rows(rows: Sample) -> Tensor:
    first_of_unit = np.unique(rows.units(), return_index=True)[1]
    return rows.inputs[torch.from_numpy(first_of_unit)]


def join_parts(inputs: Tensor, codes: Codes) -> Codes:
    """Neighbourhoods of rows that crowd together, made whole clusters as far as these can be told.

    Those that are nearer to each other than they are wide are parts of one cluster.
    """
    from scipy.sparse.csgraph import connected_components

    rows = standardise_inputs(inputs).numpy()
    middles, sizes = _middles(rows, codes)
    squares = np.square(rows - middles[codes]).sum(1)
    width = np.bincount(codes, squares) / np.maximum(sizes - 1, 1)
    distance = np.square(middles[:, None] - middles).sum(2)
    is_near = distance <= JOINED_UP_TO * (width[:, None] + width) / 2
    n_joined, joined = connected_components(is_near, directed=False)
    largest = np.bincount(joined, sizes).max() / len(codes)
    if n_joined < FOLDS or (n_joined < FEWEST_JOINED and largest > LARGEST_OF_FEW):
        generator = np.random.default_rng(0)
        return find_neighbourhoods(inputs, generator=generator, most=NEIGHBOURHOODS_OF_CROWDED)
    return np.asarray(joined[codes], dtype=np.intp)


def _hold_out(
    fit: RegressionFit,
    domains: Sequence[Domain],
    codes: Codes,
    *,
    generator: np.random.Generator,
) -> Neighbourhoods | None:
    """Judges a fit with these neighbourhoods held out; None where there are fewer than folds."""
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


def cluster_finding(
    neighbourhoods: Neighbourhoods,
    final: Tensor,
    names: Sequence[str],
    *,
    told: Tensor,
    chosen: bool,
    named: bool = False,
    could_name: bool = True,
) -> Finding:
    """Both R² of the output that loses most; `final` are those at the strengths that are used.

    `told` says which outputs lose enough, `chosen` whether neighbourhoods chose the strengths of
    those that are clustered, `named` whether groups that the caller named were held out together,
    and `could_name` whether it helps to name some.
    """
    losses = neighbourhoods.row_wise - neighbourhoods.explained
    output = int(torch.where(told, losses, -torch.inf).argmax())
    is_clustered = bool(neighbourhoods.clustered[output])
    row_wise = float(neighbourhoods.row_wise[output])
    explained = float(neighbourhoods.explained[output])
    message = (
        f"The rows seem to come in {'other clusters than the groups' if named else 'clusters'}: "
    )
    expected = with_minus(float(final[output]), ".3f")
    is_other_ridge = chosen and is_clustered and expected != with_minus(explained, ".3f")
    if is_other_ridge:
        message += (
            f"for rows of new clusters, expect an R² of {expected}, "
            "as with whole neighbourhoods held out, which chose the ridge. (A ridge chosen with "
            f"single rows held out has {with_minus(row_wise, '.3f')} on those and "
            f"{with_minus(explained, '.3f')} on neighbourhoods.)"
        )
    else:
        message += (
            f"held-out R² is {with_minus(row_wise, '.3f')} with "
            f"{'these groups' if named else 'single rows'} held out, but "
            f"{with_minus(explained, '.3f')} with whole neighbourhoods held out, as rows of new "
            "clusters are."
        )
    if chosen and is_clustered:
        units = neighbourhoods.n_units
        less = OPTIMISM_OF_CLUSTERS * (1 - float(final[output])) / units
        if less >= LEAST_OPTIMISM_OF_CLUSTERS:
            message += (
                f" New clusters may have about {less:.2f} less than {expected}, at times three "
                f"times that: no more than {units:.0f} neighbourhoods chose the ridge."
            )
    if named:
        message += (
            " Groups must hold all rows that belong together: see whether they are in the order of "
            "the rows, and coarse enough."
        )
    elif could_name:
        message += (
            " Name the clusters with fit(X, groups=...), for example the customer of every row."
        )
    if not is_clustered:
        message += " If rows are independent, as they may be along a curve, the first figure holds."
    elif neighbourhoods.few:
        message += " On new rows of the same clusters, the first figure holds."
    is_large = is_clustered or float(losses[output]) > WORTH_TELLING
    subject = names[output] if len(names) > 1 else ""
    return Finding("warning" if is_large else "note", "clusters", subject, message)


def crowding(inputs: Tensor) -> float:
    """Spread within neighbourhoods, as a share of that of normal rows with the same correlations.

    Normal rows repeat values as often, such as the zero of amounts.

    About one for rows without clusters, however long their tails are, and where there are too few
    rows or numbers to tell. Numbers count by their ranks, and those of few values not at all.
    """
    rows = inputs.double().nan_to_num().numpy()
    rows = rows[evenly_spaced(len(rows), _MOST_COMPARED_ROWS)]
    numbers = [column for column in rows.T if len(np.unique(column)) > FEW_VALUES]
    if len(numbers) < _FEWEST_NUMBERS or len(rows) < _ROWS_EACH * len(numbers):
        return 1.0

    scores = np.stack([_normal_scores(column) for column in numbers], 1)
    normal = np.random.default_rng(0).normal(size=scores.shape)
    alike = _with_covariance(normal, _covariance(scores))
    for k, column in enumerate(numbers):
        if len(np.unique(column)) < len(column):
            alike[:, k] = np.sort(scores[:, k])[alike[:, k].argsort().argsort()]
    return _spread_within(scores) / _spread_within(alike)


def share_of_near_copies(inputs: Tensor) -> float:
    """Share of the rows, which must differ, that have few neighbours far nearer than all others."""
    rows = inputs.double().nan_to_num()
    rows = rows[torch.from_numpy(evenly_spaced(len(rows), _MOST_COMPARED_ROWS))]
    rows = rows[:, (rows != rows[:1]).any(0)]
    if len(rows) < 2 * _MOST_COPIES or not rows.shape[1]:
        return 0.0

    standardised = (rows - rows.mean(0)) / rows.std(0, correction=0)
    some = standardised[torch.from_numpy(evenly_spaced(len(rows), _COMPARED_WITH_ALL))]
    # Not by products: these would lose the small distances.
    distances = torch.cdist(some, standardised, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = distances.topk(_MOST_COPIES + 1, largest=False).values[:, 1:]  # the first is itself
    is_near = nearest[:, :-1] < NEAR_COPY * nearest[:, 1:]
    return float(is_near.any(1).double().mean())


def _normal_scores(column: FloatArray) -> FloatArray:
    """Where a normal variable would have the same ranks, standardised."""
    _, position, counts = np.unique(column, return_inverse=True, return_counts=True)
    middle_of_ties = np.cumsum(counts) - counts / 2
    shares = torch.from_numpy(middle_of_ties / len(column))
    scores = torch.special.ndtri(shares).numpy()[position]
    return np.asarray((scores - scores.mean()) / scores.std())


def _covariance(rows: FloatArray) -> FloatArray:
    covariance = np.cov(rows, rowvar=False, bias=True)
    return np.asarray(covariance + _RIDGE * np.eye(rows.shape[1]))


def _with_covariance(rows: FloatArray, covariance: FloatArray) -> FloatArray:
    """Rows turned and stretched until they have this covariance."""
    own = np.linalg.cholesky(_covariance(rows))
    wanted = np.linalg.cholesky(covariance)
    white = np.linalg.solve(own, (rows - rows.mean(0)).T)
    return np.asarray((wanted @ white).T)


def _spread_within(rows: FloatArray) -> float:
    """Mean squared distance from the middle of the own neighbourhood."""
    codes = find_neighbourhoods(torch.from_numpy(rows), generator=np.random.default_rng(0))
    middles, _ = _middles(rows, codes)
    return float(np.square(rows - middles[codes]).sum(1).mean())


def _middles(rows: FloatArray, codes: Codes) -> tuple[FloatArray, NDArray[np.intp]]:
    """The mean row of every neighbourhood, and how many rows it has."""
    sizes = np.bincount(codes)
    sums = np.zeros((len(sizes), rows.shape[1]))
    np.add.at(sums, codes, rows)
    return sums / sizes[:, None], sizes
