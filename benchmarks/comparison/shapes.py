"""Shapes asked of the model, and weak spots: verdicts on boosted trees, bounds on fresh rows, planted regions.

verdicts     40 models of XGBoost, LightGBM and CatBoost, half of them constrained to rise with a feature: is "holds"
             said of all constrained ones, and of no other that a search of its own finds broken?
bounds       does the share of fresh rows that break a shape stay below the bound, in 200 trials?
weak spots   ten models with a region where a product of waves is planted, ten additive ones
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

import nobsp
from benchmarks import kept
from benchmarks.report import Cell, Column, Report, Table, options, progress, publish
from nobsp.numerics import clopper_pearson

Array = np.ndarray[Any, np.dtype[np.float64]]

LIBRARIES = ("xgboost", "lightgbm", "catboost")
MODELS, TRIALS, PLANTED = 40, 200, 10
# Rows whose lines are followed, and values of the independent search on each.
ROWS, SEARCHED = 100, 400


def make_rows(n_rows: int, seed: int) -> Array:
    return np.random.default_rng(seed).uniform(-2, 2, size=(n_rows, 4))


def target(X: Array, bend: float) -> Array:
    """Rises with x0 but for a wave of some size, which grows with x1."""
    wave = bend * np.sin(4 * X[:, 0]) * (1 + X[:, 1])
    return np.asarray(X[:, 0] + wave + X[:, 1] * X[:, 2] + 0.5 * np.abs(X[:, 3]))


def train(library: str, *, constrained: bool, seed: int) -> Any:
    """A boosted model, constrained to rise with the first feature or free."""
    X = make_rows(1500, seed)
    noise = np.random.default_rng(seed).normal(size=len(X))
    y = target(X, bend=0.2 + 0.1 * (seed % 5)) + 0.2 * noise
    signs = [1, 0, 0, 0] if constrained else [0, 0, 0, 0]
    model: Any
    if library == "xgboost":
        import xgboost

        model = xgboost.XGBRegressor(
            n_estimators=60, max_depth=4, n_jobs=1, monotone_constraints=tuple(signs)
        )
    elif library == "lightgbm":
        import lightgbm

        model = lightgbm.LGBMRegressor(
            n_estimators=60, verbose=-1, n_jobs=1, monotone_constraints=signs
        )
    else:
        import catboost

        model = catboost.CatBoostRegressor(
            iterations=60, depth=4, verbose=False, thread_count=1, monotone_constraints=signs
        )
    return model.fit(X, y)


def largest_fall(predict: Callable[[Array], Array], rows: Array) -> Array:
    """By a search that knows nothing of thresholds: how far each row's line falls on a grid."""
    grid = np.linspace(rows[:, 0].min(), rows[:, 0].max(), SEARCHED)
    lines = np.repeat(rows, SEARCHED, axis=0)
    lines[:, 0] = np.tile(grid, len(rows))
    outcomes = np.asarray(predict(lines), dtype=np.float64).reshape(len(rows), SEARCHED)
    reached = np.maximum.accumulate(outcomes, axis=1)
    return np.asarray((reached - outcomes).max(1))


def verdict(number: int) -> dict[str, Any]:
    """One model: what is said of it, beside the search and the constraint."""
    library = LIBRARIES[number % 3]
    constrained = number % 2 == 0
    model = train(library, constrained=constrained, seed=number)
    X = make_rows(800, 10_000 + number)
    explainer = nobsp.NObSP(model, interactions=0).fit(X)
    rows = make_rows(ROWS, 20_000 + number)
    check = explainer.check_shape("x0", "increasing", rows)
    falls = largest_fall(model.predict, rows)
    fed = 0.0
    if check.counterexamples is not None:
        outcomes = np.asarray(model.predict(np.asarray(check.counterexamples)), dtype=np.float64)
        fed = float((outcomes[0::2] - outcomes[1::2]).min())
    return {
        "library": library,
        "constrained": constrained,
        "exact": check.exact,
        "holds": check.holds,
        "rate": check.rate,
        "searched_rate": float((falls > check.tolerance).mean()),
        "worst": check.worst,
        "searched_worst": float(falls.max()),
        # The smallest fall among the counterexamples, fed to the model as the library takes them.
        "fed": fed,
        "tolerance": check.tolerance,
    }


def bounds(trials: int) -> dict[str, Any]:
    """Bounds from 150 rows at a time, beside the share of 2,000 other rows that break a shape."""
    model = train("xgboost", constrained=False, seed=3)
    explainer = nobsp.NObSP(model, interactions=0).fit(make_rows(800, 1))
    pool = make_rows(4000, 2)
    held = {}
    # Large enough that some rows break it and some do not.
    for tolerance in (0.5, 1.0, 1.5):
        check = explainer.check_shape("x0", "increasing", pool, tolerance=tolerance, most_rows=None)
        breaks = np.zeros(len(pool), dtype=bool)
        breaks[check.broken_rows] = True
        fresh = float(breaks[2000:].mean())
        within = []
        for trial in range(trials):
            drawn = np.random.default_rng(trial).choice(2000, size=150, replace=False)
            _, bound = clopper_pearson(int(breaks[drawn].sum()), 150, check.confidence)
            within.append(fresh <= bound)
        held[str(tolerance)] = {"rate": fresh, "held": float(np.mean(within))}
    return held


def planted(number: int) -> dict[str, Any]:
    """A region of two conditions in which a product of three features is planted: is it the first that is named?

    Together with the two conditions it is an interaction of five, more than calibration fits by itself; with a product
    of two the fitted triples explain the region, and it is no weak spot.
    """
    generator = np.random.default_rng(number)
    first, second, third, fourth, fifth = generator.permutation(6)[:5]
    cuts = generator.uniform(-0.2, 0.5, size=2)

    def inside(X: Array) -> Any:
        return (X[:, first] > cuts[0]) & (X[:, second] < -cuts[1])

    def model(X: Array) -> Array:
        usual = np.sin(2 * X[:, first]) + X[:, second] + 0.5 * X[:, 5] ** 2
        wave = 2 * np.sin(5 * X[:, third]) * np.sign(X[:, fourth] * X[:, fifth])
        return np.asarray(usual + np.where(inside(X), wave, 0.0))

    draw = partial(np.random.default_rng(100 + number).uniform, -1, 1)
    explainer = nobsp.NObSP(model).fit(draw(size=(1500, 6)))
    X = draw(size=(4000, 6))
    spots = explainer.weak_spots(X)
    if not spots:
        return {"found": False, "overlap": 0.0, "share": float(inside(X).mean())}
    named = np.zeros(len(X), dtype=bool)
    named[spots[0].rows] = True
    overlap = float((named & inside(X)).sum() / (named | inside(X)).sum())
    pointed = {f"x{third}", f"x{fourth}", f"x{fifth}"} & set(spots[0].interaction)
    return {
        "found": overlap >= 0.5,
        "overlap": overlap,
        "share": float(inside(X).mean()),
        "explained": spots[0].explained,
        "points": len(pointed) > 0,
        "says_none": not spots[0].interaction,
        "named": spots[0].where,
    }


def pointing(number: int) -> dict[str, Any]:
    """Functions without interactions, and a product of two features beyond a value of a third: is the product named?"""
    generator = np.random.default_rng(900 + number)
    first, second, third = generator.permutation(6)[:3]
    cut = generator.uniform(0.0, 0.5)

    def model(X: Array) -> Array:
        product = 3 * X[:, second] * X[:, third] * (X[:, first] > cut)
        return np.asarray(np.sin(2 * X[:, first]) + X[:, 5] ** 2 + X[:, 0] + product)

    draw = partial(generator.uniform, -1, 1)
    explainer = nobsp.NObSP(model, interactions=0).fit(draw(size=(1000, 6)))
    spots = explainer.weak_spots(draw(size=(4000, 6)))
    wanted = {f"x{second}", f"x{third}"}
    return {"points": bool(spots) and wanted <= set(spots[0].interaction)}


def additive(number: int) -> int:
    """How many weak spots are named in a sum of functions."""
    generator = np.random.default_rng(500 + number)
    waves = generator.uniform(0.5, 3, size=6)
    sizes = generator.normal(size=6)

    def model(X: Array) -> Array:
        return np.asarray((sizes * np.sin(waves * X) + np.abs(X) * sizes[::-1]).sum(1))

    draw = partial(generator.uniform, -1, 1)
    explainer = nobsp.NObSP(model).fit(draw(size=(1000, 6)))
    return len(explainer.weak_spots(draw(size=(3000, 6))))


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="compute cells whose name begins so, for a later run")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    results = kept.Kept(None if chosen.quick else kept.FOLDER / "shapes.jsonl")
    rooms = kept.rooms("tabular/shapes.py", "tabular/weak_spots.py")
    n_models, n_trials, n_planted = (3, 10, 1) if chosen.quick else (MODELS, TRIALS, PLANTED)

    def cell(name: str, compute: partial[Any]) -> Any:
        print_ = kept.fingerprint(
            compute.func, train, target, rooms, *map(kept.package, LIBRARIES[1:])
        )
        if chosen.only is not None and not name.startswith(chosen.only):
            return results.get(name, print_)
        progress(name)
        return results.cell(name, print_, compute)

    verdicts = [cell(f"verdict {k}", partial(verdict, k)) for k in range(n_models)]
    held = cell(f"bounds {n_trials}", partial(bounds, n_trials))
    spots = [cell(f"planted {k}", partial(planted, k)) for k in range(n_planted)]
    pairs = [cell(f"pointing {k}", partial(pointing, k)) for k in range(n_planted)]
    none = [cell(f"additive {k}", partial(additive, k)) for k in range(n_planted)]
    if chosen.only is None:
        publish(report(verdicts, held, spots, none, pairs), chosen)


def report(
    verdicts: list[dict[str, Any]],
    held: dict[str, dict[str, float]],
    spots: list[dict[str, Any]],
    none: list[int],
    pairs: list[dict[str, Any]],
) -> Report:
    rows: list[tuple[Cell, ...]] = []
    for library in LIBRARIES:
        for constrained in (True, False):
            some = [
                said
                for said in verdicts
                if said["library"] == library and said["constrained"] == constrained
            ]
            if not some:
                continue
            false_holds = sum(said["holds"] and said["searched_rate"] > 0 for said in some)
            false_alarms = sum(not said["holds"] and constrained for said in some)
            rows.append(
                (
                    library,
                    "constrained" if constrained else "free",
                    len(some),
                    sum(said["holds"] for said in some),
                    false_holds,
                    false_alarms,
                    float(np.mean([said["rate"] for said in some])),
                    float(np.mean([said["searched_rate"] for said in some])),
                    "met" if not false_holds and not false_alarms else "MISSED",
                )
            )
    broken = [said for said in verdicts if not said["holds"]]
    fed = [said["fed"] > said["tolerance"] - 1e-5 for said in broken]
    n_found = sum(spot["found"] for spot in spots)
    n_pointing = sum(bool(spot.get("points")) for spot in spots)
    n_pairs = sum(pair["points"] for pair in pairs)
    return Report(
        name="shapes",
        title="Shapes asked of the model, and weak spots",
        tables=(
            Table(
                'Boosted trees, asked whether they rise with a feature: 40 models, 100 rows each',
                (
                    Column("library"), Column("model"), Column("number"), Column('"holds"'),
                    Column('false "holds"'), Column("false alarms"), Column("rows that break it", ".3f"),
                    Column("by a search on a grid", ".3f"), Column("none false"),
                ),
                tuple(rows),
                f'A "holds" is false where a search on a grid of {SEARCHED} values, which knows no thresholds, finds a '
                "fall; an alarm is false where the library guarantees that there is none.",
            ),
            Table(
                "Bounds from 150 rows, beside the share among 2,000 others",
                (
                    Column("tolerance"), Column("share that breaks it", ".3f"),
                    Column("bound holds", ".3f"), Column("≥ 0.95"),
                ),
                tuple(
                    (key, said["rate"], said["held"], "met" if said["held"] >= 0.95 else "MISSED")
                    for key, said in held.items()
                ),
                f"{TRIALS} trials each.",
            ),
            Table(
                "Weak spots",
                (Column("models"), Column("number"), Column("outcome"), Column("asked"), Column("")),
                (
                    (
                        "planted region", len(spots), f"{n_found} found", "≥ 9 of 10",
                        "met" if n_found >= 0.9 * len(spots) else "MISSED",
                    ),
                    (
                        "missing pair in a region", len(pairs), f"{n_pairs} name the pair", "",
                        "",
                    ),
                    (
                        "additive", len(none), f"{sum(none)} named", "none",
                        "met" if not sum(none) else "MISSED",
                    ),
                ),
                "Found: the first region named shares at least half of the rows in either with the planted one "
                f"(overlaps {', '.join(format(spot['overlap'], '.2f') for spot in spots)}); {n_pointing} of them point "
                "to an interaction with a planted feature, and "
                f"{sum(spot.get('says_none', False) for spot in spots)} say that none was found: together with its two "
                "conditions the product of three is an interaction of five, which a small tree does not see.",
            ),
        ),
        findings=(
            f"Counterexamples fed to the libraries' own predict fall by more than the tolerance in {sum(fed)} of "
            f"{len(fed)} models that break the shape.",
        ),
        seeds=(0,),
        settings={"models": MODELS, "rows": ROWS, "trials": TRIALS},
    )  # fmt: skip


if __name__ == "__main__":
    main()
