"""Do attributions rank features by what removing them does? Attribution Faithfulness Correlation on nine tables.

Spearman correlation, over the encoded columns, between the mean absolute attribution and the mean absolute change of
the output when the column is set to its training mean. 100 test rows a network; the output is the predicted class's
logit. The paper does not say how many rows it explains, nor how many coalitions KernelSHAP draws: here they are as
many as the shap package draws by default.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.report import RESULTS, Cell, Column, Report, Table, publish
from benchmarks.tabular import problems
from benchmarks.tabular.methods import GRADIENTS, METHODS, OURS, PAIRS, PUBLISHED, SHAP, STRONG
from benchmarks.tabular.walking import (
    NAMES,
    Found,
    Scores,
    asked,
    mean,
    not_run,
    spread,
    stored,
    those,
    told_again,
    walk,
)
from nobsp.metrics import ablation_effects, attribution_faithfulness

ROWS = 100
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    **{method: {"calibration": None} for method in OURS},
    GRADIENTS: {"steps": 25},
    SHAP: {"background": 50, "samples": "auto"},
}
LONG = ", 40 epochs"
LONGER: Mapping[str, Mapping[str, Any]] = {
    f"{method}{LONG}": {**SETTINGS[method], "stopped": False} for method in (PUBLISHED, GRADIENTS)
}
# Table tab:tabular_faithfulness of the paper, means over three seeds: NObSP, Integrated Gradients, KernelSHAP.
PAPER = {
    "iris": (1.000, 1.000, 1.000),
    "breast_cancer": (0.946, 0.981, 0.922),
    "wine": (0.916, 0.991, 0.980),
    "adult": (0.861, 0.986, 0.819),
    "german_credit": (0.764, 0.962, 0.756),
    "bank_marketing": (0.847, 0.978, 0.836),
    "covertype": (0.853, 0.954, 0.871),
    "diabetes": (0.912, 0.987, 0.956),
    "california_housing": (0.878, 0.991, 0.934),
}


def scored(
    table: str, seed: int, method: str, *, rows: int, stopped: bool = True, **settings: Any
) -> Scores:
    """Faithfulness of one method on one network."""
    here = problems.problem(table, seed, rows=rows, stopped=stopped)
    start = time.perf_counter()
    attributions = METHODS[method.removesuffix(LONG)].run(here, **settings)
    seconds = time.perf_counter() - start
    effects = ablation_effects(
        here.network, here.rows, baseline=here.data.X_train.mean(axis=0), target=here.target
    )
    found = attribution_faithfulness(attributions, effects)
    return {"correlation": found.correlation, "seconds": seconds, "accuracy": here.accuracy()}


def main() -> None:
    chosen = asked((__doc__ or "").splitlines()[0])
    found = walk(chosen, "faithfulness", scored, SETTINGS, rows=ROWS)
    longer = walk(chosen, "faithfulness", scored, LONGER, rows=ROWS)
    told: tuple[str, ...] = ()
    if chosen.ours:
        earlier = stored(
            "faithfulness", "Faithfulness", "correlation", facts={"network": "accuracy"}
        )
        told = (same_networks(found, earlier, chosen.tables),)
        found = earlier | found
        longer = stored_longer()
    publish(
        Report(
            name="faithfulness",
            title="Do attributions rank features by what removing them does?",
            tables=(
                comparison(found, chosen.tables),
                beside_the_paper(found, longer, chosen.tables),
            ),
            findings=(*findings(found, longer, chosen.tables), *told),
            seeds=chosen.seeds,
            settings={
                "test_rows": ROWS,
                "gradient_steps": SETTINGS[GRADIENTS]["steps"],
                "SHAP_background": SETTINGS[SHAP]["background"],
                "SHAP_coalitions": "2 x columns + 2048",
                "ridge_one_by_one": f"relative {STRONG}",
                **problems.described(),
            },
            packages=("captum", "shap"),
        ),
        chosen,
    )


def stored_longer() -> Found:
    """Means of networks that are not stopped early, from an earlier run."""
    results = json.loads((RESULTS / "faithfulness.json").read_text(encoding="utf-8"))
    columns = {"40 epochs": PUBLISHED + LONG, "IG, 40 epochs": GRADIENTS + LONG}
    keys = {told: key for key, told in NAMES.items()}
    return {
        (keys[row["table"]], method): [{"correlation": row[column]}]
        for row in results["tables"]["Beside the paper"]
        for column, method in columns.items()
    }


def same_networks(found: Found, earlier: Found, tables: Sequence[str]) -> str:
    """What was measured again, and whether the networks are those of the earlier run."""
    apart = {
        table: abs(ours - theirs)
        for table in tables
        if (ours := mean(found, table, PAIRS, "accuracy")) is not None
        and (theirs := mean(earlier, table, GRADIENTS, "accuracy")) is not None
    }
    furthest = max(apart, key=lambda table: apart[table])
    return (
        f"{told_again(found, tables)} Networks were trained again with the same seeds: their accuracy, or R², on "
        f"the test split differs by {apart[furthest]:.4f} at most ({NAMES[furthest]})."
    )


def comparison(found: Found, tables: Sequence[str]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            NAMES[table],
            *(spread(found, table, method, "correlation") for method in SETTINGS),
            mean(found, table, GRADIENTS, "accuracy"),
        )
        for table in tables
    ]
    return Table(
        "Faithfulness correlation on test rows",
        (
            Column("table"),
            *(Column(method, ".3f") for method in SETTINGS),
            Column("network", ".3f"),
        ),
        tuple(rows),
        "Mean ± standard deviation over seeds, each with its own split and network; higher is better. 'NObSP, "
        "default' sums all terms a feature takes part in, with the pairs that held-out rows paid for. 'NObSP, one by "
        f"one' is Algorithm 1 with a relative ridge of {STRONG}, chosen on training rows. 'NObSP, removal effects' is "
        "what we recommend for questions about removal, also chosen on training rows: the output less its mean over "
        "the values of the feature, which is nearly the question that this score asks. 'network' is its accuracy, or "
        "R², on the test split.",
    )


def beside_the_paper(found: Found, longer: Found, tables: Sequence[str]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for table in tables:
        ours, gradients, kernel = PAPER[table]
        rows.append(
            (
                NAMES[table],
                ours,
                mean(found, table, PUBLISHED, "correlation"),
                mean(longer, table, PUBLISHED + LONG, "correlation"),
                gradients,
                mean(found, table, GRADIENTS, "correlation"),
                mean(longer, table, GRADIENTS + LONG, "correlation"),
                kernel,
                mean(found, table, SHAP, "correlation"),
            )
        )
    names = (
        *("paper: NObSP", "as published", "40 epochs"),
        *("paper: IG", "IG", "IG, 40 epochs"),
        *("paper: KernelSHAP", "KernelSHAP"),
    )
    return Table(
        "Beside the paper",
        (Column("table"), *(Column(name, ".3f") for name in names)),
        tuple(rows),
        "'40 epochs': networks of the same recipe that are not stopped early. The paper stops early and does not say "
        "by what; Adult has 108 encoded columns here and 124 in the paper.",
    )


def findings(found: Found, longer: Found, tables: Sequence[str]) -> tuple[str, ...]:
    def lead(table: str, method: str, other: str) -> float | None:
        ours, theirs = (mean(found, table, name, "correlation") for name in (method, other))
        return None if ours is None or theirs is None else ours - theirs

    def least(table: str, method: str, other: str, margin: float) -> bool | None:
        gap = lead(table, method, other)
        return None if gap is None else gap >= -margin

    def spanned(table: str) -> bool | None:
        short = mean(found, table, PUBLISHED, "correlation")
        long = mean(longer, table, PUBLISHED + LONG, "correlation")
        if short is None or long is None:
            return None
        return min(short, long) - 0.02 <= PAPER[table][0] <= max(short, long) + 0.02

    def near(table: str) -> bool | None:
        short = mean(found, table, PUBLISHED, "correlation")
        return None if short is None else abs(short - PAPER[table][0]) <= 0.02

    told = [
        f"{method}: at least KernelSHAP's on {those(tables, lambda t, m=method: least(t, m, SHAP, 1e-9))}; within 0.03 "
        f"of Integrated Gradients on {those(tables, lambda t, m=method: least(t, m, GRADIENTS, 0.03))}."
        for method in OURS
        if any((table, method) in found for table in tables)
    ]
    shifts = {
        table: abs(short - long)
        for table in tables
        if (short := mean(found, table, PUBLISHED, "correlation")) is not None
        and (long := mean(longer, table, PUBLISHED + LONG, "correlation")) is not None
    }
    most = max(shifts, key=lambda table: shifts[table], default=None)
    moved = f" Training on moves it by up to {shifts[most]:.3f} ({NAMES[most]})." if most else ""
    return (
        *told,
        f"As published, the paper's figure is met within 0.02 on {those(tables, near)}. It lies between what networks "
        f"stopped early and networks trained for all 40 epochs give, or within 0.02 of that span, on "
        f"{those(tables, spanned)}.{moved}",
        *not_run(found, tables, SETTINGS),
        *not_run(longer, tables, LONGER),
    )


if __name__ == "__main__":
    main()
