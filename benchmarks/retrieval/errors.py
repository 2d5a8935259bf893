"""Which predictions are wrong? Softmax, purities and joint scores, fitted on half of the queries, then measured."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks import kept
from benchmarks.report import Column, Spread, Table, progress
from benchmarks.retrieval import cases, heads, purity, votes
from benchmarks.retrieval.purity import ACTIVATIONS, OWN, QUERY, K, Looked
from nobsp.neighbors import audit

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Inputs = Mapping[str, Array]

SPLITS, QUICK_SPLITS = 10, 3
SOFTMAX, THREE, FIXED, FITTED, NESTED = (
    "softmax confidence",
    "confidence and two purities, logistic",
    "joint confidence, fixed rule (no labels)",
    "joint confidence, fitted",
    "inputs and settings chosen anew on each half",
)
PURITIES = {
    ACTIVATIONS: "purity, activations",
    OWN: "purity, own class (paper)",
    QUERY: "purity, query's class",
}
# What the nested choice chooses among.
NEIGHBOURS, SHARPNESS, WHITENED = (20, 50, 100), (10.0, 20.0, 30.0), (True, False)
AGREED, CONFIDENCE, VOTE, DISTANCE = "agreed", "confidence", "vote", "distance"
SETS = (
    (AGREED,),
    (CONFIDENCE, VOTE),
    (CONFIDENCE, VOTE, AGREED),
    (CONFIDENCE, VOTE, AGREED, DISTANCE),
)


@dataclass(frozen=True)
class Detection:
    """AUROC of each score for errors, one value a split.

    Attributes:
        name: Of the case.
        errors: How many queries are classified wrongly.
        queries: Of how many.
        auroc: By score.
        chosen: What the nested choice settled on, most frequent first.
    """

    name: str
    errors: int
    queries: int
    auroc: dict[str, tuple[float, ...]]
    chosen: str


def known_detection(looked: Looked, results: kept.Kept, *, quick: bool) -> Detection:
    """All scores of a case, from an earlier run where it has them."""
    cell = f"{looked.case.name}, errors"
    return Detection(
        **results.cell(cell, _FINGERPRINT, lambda: asdict(detection(looked, quick=quick)))
    )


def detection(looked: Looked, *, quick: bool) -> Detection:
    """All scores of a case."""
    case, right = looked.case, looked.case.right
    progress(f"{case.name}: which of its {int((~right).sum())} errors are found")
    found = audit(case.index, case.queries.activations, case.queries.labels, k=K)
    scores = {SOFTMAX: found.confidence, FIXED: found.signals["log-odds of confidence and vote"]}
    scores |= {name: looked.hits[space].purity for space, name in PURITIES.items()}
    three = {"odds": votes.log_odds(np.log(found.confidence))}
    three |= {name: looked.hits[space].purity for space, name in PURITIES.items() if space != OWN}
    settings = dict(varied(looked, quick=quick))
    auroc: dict[str, list[float]] = {}
    choices: Counter[str] = Counter()
    for fit, rest in halves(len(right), QUICK_SPLITS if quick else SPLITS):
        measured = {name: values[rest] for name, values in scores.items()}
        measured[THREE] = logistic(three, right, fit, rest)
        measured[FITTED] = logistic(found.signals, right, fit, rest)
        best = max(settings, key=lambda name: expected(settings[name], right, fit))
        choices[best] += 1
        measured[NESTED] = logistic(settings[best], right, fit, rest)
        for name, values in measured.items():
            auroc.setdefault(name, []).append(float(roc_auc_score(right[rest], values)))
    told = "; ".join(
        f"{name} ({count} of {choices.total()})" for name, count in choices.most_common(2)
    )
    return Detection(
        case.name,
        int((~right).sum()),
        len(right),
        {name: tuple(values) for name, values in auroc.items()},
        told,
    )


def halves(count: int, splits: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Random halves: one to fit on, one to measure on."""
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(count)
        yield order[: count // 2], order[count // 2 :]


def part(inputs: Inputs, rows: NDArray[np.int64]) -> dict[str, Array]:
    return {name: values[rows] for name, values in inputs.items()}


def logistic(
    inputs: Inputs, right: Flags, fit: NDArray[np.int64], rest: NDArray[np.int64]
) -> Array:
    """Log-odds that the predictions of the second half are right, by a regression on the first."""
    table = np.column_stack(list(inputs.values()))
    odds: Array = _regression().fit(table[fit], right[fit]).decision_function(table[rest])
    return odds


def expected(inputs: Inputs, right: Flags, fit: NDArray[np.int64]) -> float:
    """AUROC to be expected of a regression, by cross-validation inside the first half."""
    fewest = int(min(right[fit].sum(), (~right[fit]).sum()))
    folds = StratifiedKFold(min(5, max(2, fewest)), shuffle=True, random_state=0).split(
        fit, right[fit]
    )
    found = [
        roc_auc_score(right[fit[b]], logistic(inputs, right, fit[a], fit[b])) for a, b in folds
    ]
    return float(np.mean(found))


def varied(looked: Looked, *, quick: bool) -> Iterator[tuple[str, dict[str, Array]]]:
    """Inputs of a joint score under every setting there is to choose from."""
    case, rows = looked.case, np.arange(len(looked.case.queries))
    database, queries = case.database, case.queries
    most = max(NEIGHBOURS)
    candidates = case.index._view(space="activations").query(queries.activations, most)
    assert candidates.labels is not None
    logits = case.head.logits(queries.activations).double().numpy()
    standard, asked = (
        votes.standardised(some.activations, database.activations) for some in (database, queries)
    )
    change = votes.whitening(standard)
    fixed = {
        CONFIDENCE: votes.log_odds(log_softmax(logits, axis=1)[rows, case.predicted]),
        DISTANCE: looked.hits[QUERY].distances.mean(1),
    }
    for whitened in WHITENED[: 1 if quick else None]:
        ours, theirs = (asked @ change, standard @ change) if whitened else (asked, standard)
        similar = votes.similarities(votes.unit(ours), votes.unit(theirs), candidates.indices)
        for count, sharpness in itertools.product(
            NEIGHBOURS[1:2] if quick else NEIGHBOURS, SHARPNESS
        ):
            shares = votes.vote(
                similar[:, :count],
                candidates.labels[:, :count],
                classes=case.classes,
                sharpness=sharpness,
            )
            known = fixed | {
                VOTE: np.log(shares[rows, case.predicted] + votes.FLOOR),
                AGREED: votes.log_odds(votes.agreed(logits, shares)[rows, case.predicted]),
            }
            for names in SETS:
                how = f"{'' if whitened else 'not '}whitened, {count} neighbours, sharpness {sharpness:g}"
                yield f"{' + '.join(names)}, {how}", {name: known[name] for name in names}


def _regression() -> Pipeline:
    return make_pipeline(StandardScaler(), LogisticRegression())


# ---------------------------------------------------------------------- tables

# What a prototype of this package measured on a subset of TinyImageNet.
PROTOTYPE = {
    SOFTMAX: "0.82",
    PURITIES[ACTIVATIONS]: "0.82",
    PURITIES[OWN]: "0.52 to 0.69",
    PURITIES[QUERY]: "0.80 to 0.82",
    THREE: "0.855",
    FITTED: "0.86 aimed at",
}


def detection_table(found: list[Detection]) -> Table:
    rows = [
        (score, *(Spread(one.auroc[score]) for one in found), PROTOTYPE.get(score))
        for score in (SOFTMAX, *PURITIES.values(), THREE, FIXED, FITTED, NESTED)
    ]
    named = [
        Column(f"{one.name} ({one.errors:,} errors of {one.queries:,})", ".3f") for one in found
    ]
    return Table(
        "AUROC for misclassified queries",
        (Column("score"), *named, Column("prototype, TinyImageNet")),
        tuple(rows),
        f"Mean ± standard deviation over {len(next(iter(found[0].auroc.values())))} random halves of the queries. What "
        "has anything to fit is fitted on one half; all are measured on the other. The last row's inputs, number of "
        "neighbours, sharpness and whitening are chosen by cross-validation inside the first half, again for each "
        "split. The joint confidence's own inputs and constants were chosen on the queries of TinyImageNet among "
        "several hundred variants, with CIFAR-10 and Imagenette as a check. The last row chooses again among 72 of "
        "them, so it removes part of that advantage; HAM10000, which nothing was chosen on, removes all of it. "
        "Halves of the same queries overlap: the deviations say how much a split matters, not how sure a mean is.",
    )


def detection_findings(found: list[Detection]) -> tuple[str, ...]:
    told = []
    for one in found:
        mean = {name: float(np.mean(values)) for name, values in one.auroc.items()}
        gain = np.subtract(one.auroc[FITTED], one.auroc[SOFTMAX])
        told.append(
            f"{one.name}: softmax confidence finds errors with AUROC {mean[SOFTMAX]:.3f}, the joint confidence with "
            f"{mean[FITTED]:.3f} fitted ({gain.mean():+.3f} ± {gain.std(ddof=1):.3f}) and {mean[FIXED]:.3f} without "
            f"labels; purity by own class, as in the paper, with {mean[PURITIES[OWN]]:.3f}. "
            f"Chosen inside the halves: {one.chosen}."
        )
    return tuple(told)


# Read while it is what runs; everything that decides a score is in these modules and in the package.
_FINGERPRINT = kept.fingerprint(
    sys.modules[__name__], votes, purity, cases, heads, kept.rooms("neighbors")
)
