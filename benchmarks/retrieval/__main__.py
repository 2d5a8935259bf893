"""Neighbours by evidence and by activations: purity, and which errors they show.

The paper's experiment at the scale of the data at hand: activations of a network entering its last layer, the rows of
the training split as database, the held-out rows as queries, eight neighbours. On TinyImageNet the network is a
MobileNetV2 with ImageNet's weights and linear heads trained on its frozen activations (`heads.py`), on HAM10000
likewise; on CIFAR-10 and Imagenette the networks' own heads are used. Activations and heads are kept in a cache folder,
and scores beside those of the other tables, so that a run that was interrupted goes on where it was.
"""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks import kept
from benchmarks.report import Report, options, publish
from benchmarks.retrieval import errors
from benchmarks.retrieval.cases import KINDS, TITLES, Case, cases
from benchmarks.retrieval.errors import detection_findings, detection_table, known_detection
from benchmarks.retrieval.features import SEED, kept_below
from benchmarks.retrieval.heads import STEPS
from benchmarks.retrieval.purity import K, looked_up, purity_findings, purity_table

NOT_RUN = (
    "the paper's own: a ResNet-18 trained on TinyImageNet, 100,000 rows, 10,000 queries "
    "(no weights, fewer images)"
)


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0], threads=True)
    parser.add_argument(
        "--cache", type=Path, help=f"folder of activations and heads; {kept_below(None)} by default"
    )
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads or torch.get_num_threads())
    results = kept.Kept(None if chosen.quick else kept.FOLDER / "purity.jsonl")
    found, detected, shown = [], [], []
    for case in cases(quick=chosen.quick, cache=chosen.cache):
        looked = looked_up(case)
        found.append(looked)
        detected.append(known_detection(looked, results, quick=chosen.quick))
        shown.append(case)
    if not shown:
        return
    publish(
        Report(
            name="purity",
            title="Neighbours by evidence and by activations",
            tables=(*map(purity_table, found), detection_table(detected)),
            findings=(*purity_findings(found), *detection_findings(detected)),
            seeds=(SEED,),
            settings=settings(shown, quick=chosen.quick),
            packages=("scikit-learn", "torchvision"),
        ),
        chosen,
    )


def settings(shown: list[Case], *, quick: bool) -> dict[str, object]:
    """What it takes to run this again."""
    sizes = {
        case.recipe: f"{len(case.database):,} rows, {len(case.queries):,} queries" for case in shown
    }
    used = {f"{TITLES[recipe]}": f"{size} ({recipe.size} pixels)" for recipe, size in sizes.items()}
    return {
        **used,
        "K": K,
        "distance": "Euclidean, after z-scores on the database and scaling to unit length",
        "trained_heads": "softmax regression on standardised activations, L-BFGS from zero, all rows at once",
        "weight_decay": {
            KINDS[decay]: f"{decay} ({steps} steps)" for decay, steps in STEPS.items()
        },
        "halves": errors.QUICK_SPLITS if quick else errors.SPLITS,
        "not_run": [TITLES[recipe] for recipe in TITLES if recipe not in sizes] + [NOT_RUN],
    }


if __name__ == "__main__":
    main()
