"""Writes the short table of measured results into README.md and the documents, from benchmarks/results.

python docs/_figures.py

A test compares: a figure that is measured anew and not written anew is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MARKED = re.compile(r"(<!-- measured, by docs/_figures.py -->\n).*?(<!-- end -->)", re.DOTALL)

Row = Mapping[str, Any]


def rows_of(name: str, table: str, *, ends: str = "") -> list[Row]:
    """A table of a benchmark, by how its title begins and ends."""
    tables = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["tables"]
    [title] = [title for title in tables if title.startswith(table) and title.endswith(ends)]
    return list(tables[title])


def find(rows: Sequence[Row], /, **wanted: object) -> Row:
    """The only row with these entries; spaces of their names are written as underscores."""
    named = {name.replace("_", " "): value for name, value in wanted.items()}
    [row] = [row for row in rows if all(row[name] == value for name, value in named.items())]
    return row


def number(value: Any, digits: int = 3) -> str:
    """A measured number, or the mean of several."""
    mean = value["mean"] if isinstance(value, Mapping) else value
    return f"{mean:.{digits}f}".replace("-", "−")


def of_networks() -> list[str]:
    rows = rows_of("unseen", "Beside an EBM")
    tables = {"Adult": 2000, "Bank Marketing": 2000, "German Credit": 400, "Covertype": 2000}
    tables["California Housing"] = 2000
    chosen = [
        find(rows, table=table, rows=n_rows, network="128-64 ReLU")
        for table, n_rows in tables.items()
    ]
    return [
        "share of a network's variance that its functions explain on unseen rows: "
        "Adult, Bank, German, Covertype (two of its seven classes), California",
        ", ".join(number(row["NObSP"]) for row in chosen),
        "distilled EBM " + ", ".join(number(row["EBM"]) for row in chosen),
        "unseen",
    ]


def of_trees() -> list[str]:
    rows = rows_of("trees", "Share of the margin's variance")
    boosters = ("XGBoost", "LightGBM", "CatBoost")
    chosen = [find(rows, table="california_housing", model=model) for model in boosters]
    return [
        "the same of boosted trees on California: XGBoost, LightGBM, CatBoost",
        ", ".join(number(row["NObSP"]) for row in chosen),
        "distilled EBM "
        + ", ".join(number(row["distilled EBM"]) for row in chosen)
        + f"; TreeHFD {number(chosen[0]['TreeHFD'])} (XGBoost only)",
        "trees",
    ]


def of_known_functions() -> list[str]:
    rows = rows_of("recovery", "NObSP against each")
    rivals = ("ALE", "KernelSHAP", "PDP", "distilled EBM, purified")
    means = [f"{name} {number(find(rows, method=name)['its mean R²'])}" for name in rivals]
    again = [row["now"] for row in rows_of("reruns", "Ours") if row["table"] == "recovery"]
    return [
        f"known functions recovered in {len(again)} designs, mean R² (others as first measured, in `recovery`)",
        number(sum(again) / len(again)),
        ", ".join(means),
        "reruns",
    ]


def _mean_over_tables(rows: Sequence[Row], method: str) -> str:
    means = [row[method]["mean"] for row in rows]
    return number(sum(means) / len(means))


def of_removal() -> list[str]:
    rows = rows_of("faithfulness", "Faithfulness correlation")
    ours = {"removal effects": "NObSP, removal effects", "sums of terms": "NObSP, default"}
    rivals = ("Integrated Gradients", "KernelSHAP")
    return [
        f"features ranked as removing them does, {len(rows)} tables, mean rank correlation",
        ", ".join(f"{told} {_mean_over_tables(rows, name)}" for told, name in ours.items()),
        ", ".join(f"{name} {_mean_over_tables(rows, name)}" for name in rivals),
        "faithfulness",
    ]


def of_agreement() -> list[str]:
    rows = rows_of("agreement", "Pearson correlation of the deltas (higher")
    ours = {"removal effects": "NObSP, removal effects", "sums of terms": "NObSP, default"}
    rivals = ("Integrated Gradients", "KernelSHAP")
    return [
        f"changes between rows that differ in one feature, {len(rows)} tables, mean correlation",
        ", ".join(f"{told} {_mean_over_tables(rows, name)}" for told, name in ours.items()),
        ", ".join(f"{name} {_mean_over_tables(rows, name)}" for name in rivals),
        "agreement",
    ]


def of_bands() -> list[str]:
    coverage = sorted(row["coverage"] for row in rows_of("bands", "One row a curve"))
    median = coverage[len(coverage) // 2]
    return [
        f"coverage of nominal 90% bands, {len(coverage)} curves: median, lowest, highest",
        ", ".join(number(value, 2) for value in (median, coverage[0], coverage[-1])),
        "–",
        "bands",
    ]


def of_halves() -> list[str]:
    rows = rows_of("accounts", "MobileNetV2, ImageNet: evidence")
    return [
        "share of a map's evidence on the right one of two images side by side",
        number(find(rows, map="default picture")["share"]),
        f"GradCAM {number(find(rows, map='GradCAM')['share'])}",
        "accounts",
    ]


def of_deletion() -> list[str]:
    row = find(rows_of("statistics", "Account against GradCAM"), images_of="all of them")
    difference = row["less GradCAM's"]
    sign = "+" if difference > 0 else ""
    return [
        f"region deletion, {row['images']:,} images of seven networks, less GradCAM's",
        f"{sign}{number(difference, 4)} {row['95% interval'].replace('-', '−')}",
        "GradCAM 0: level",
        "statistics",
    ]


def of_labels() -> list[str]:
    rows = rows_of("audit", "Flipped labels")
    about = {"rows": "CIFAR-10 test, ResNet-20", "flipped_to": "any other class"}
    ours = find(rows, method="nobsp.audit", **about)
    theirs = find(rows, method="cleanlab", **about)
    return [
        "5% of CIFAR-10's test labels flipped: precision, recall",
        f"{number(ours['precision'], 2)}, {number(ours['recall'], 2)}",
        f"cleanlab {number(theirs['precision'], 2)}, {number(theirs['recall'], 2)}",
        "audit",
    ]


def of_values() -> list[str]:
    rows = rows_of("audit-values", "Wrong values")
    about = {"changed_to": "off by 1 to 3 deviations"}
    ours = find(rows, method="nobsp.audit", **about)
    theirs = find(rows, method="cleanlab, gradient boosting", **about)
    return [
        "wrong values of a regression, average precision",
        number(ours["average precision"], 2),
        f"cleanlab with a model of its own {number(theirs['average precision'], 2)}",
        "audit-values",
    ]


def of_speed() -> list[str]:
    rows = rows_of("speed", "Ratios")
    chosen = [row for row in rows if row["what"] == "one row, all features, compiled"]
    [gradients] = [row for row in chosen if row["against"].startswith("Integrated Gradients")]
    [kernel] = [row for row in chosen if row["against"].startswith("Kernel SHAP")]
    times = [row["against"].rpartition(": ")[2] for row in (gradients, kernel)]
    return [
        "time to explain a row of 8 features",
        f"{gradients['ours']} (compiled)",
        f"Integrated Gradients {times[0]}, KernelSHAP {times[1]}",
        "speed",
    ]


def of_published() -> list[str]:
    rows = rows_of("speed-published", "Seconds")
    fastest: dict[str, str] = {}
    for way in dict.fromkeys(row["way"] for row in rows):
        of_way = [row["fastest"] for row in rows if row["way"] == way]
        fastest[way] = ", ".join(number(value, 2) for value in of_way)
    return [
        "seconds of Algorithm 1 as published, 4,000 rows × 54 columns: one thread, two threads",
        fastest["as_published(network).fit(X)"],
        f"a plain script of twenty lines, float32 {fastest['plain script, single precision']}, "
        f"float64 {fastest['plain script, double precision']}",
        "speed-published",
    ]


def of_pruned() -> list[str]:
    networks = ("ResNet-20", "ResNet-18", "MobileNetV2")
    rivals = (
        "L1, BN set anew",
        "Taylor, BN set anew",
        "Torch-Pruning, BN set anew",
        "Taylor + take over",
    )
    ours = []
    best = []
    for network in networks:
        row = find(rows_of("prune", network, ends=": accuracy"), removed="50%")
        ours.append(number(row["unique + take over"]))
        best.append(max(number(row[rival]) for rival in rivals))
    return [
        f"accuracy with half of the channels removed, without retraining: {', '.join(networks)}",
        ", ".join(ours),
        f"best of L1, Taylor, Torch-Pruning and Taylor where the rest takes over {', '.join(best)}",
        "prune",
    ]


# What a newcomer asks first, those that others win among them; the rest is on the page of the documents.
SHORT = (
    of_networks,
    of_known_functions,
    of_removal,
    of_bands,
    of_halves,
    of_labels,
    of_values,
    of_pruned,
    of_speed,
)
LONG = (
    of_networks,
    of_trees,
    of_known_functions,
    of_removal,
    of_agreement,
    of_bands,
    of_halves,
    of_deletion,
    of_labels,
    of_values,
    of_pruned,
    of_speed,
    of_published,
)
PAGES = {"README.md": SHORT, "docs/how-it-works/measured.md": LONG}


def table(page: str) -> str:
    """The table of a page, in Markdown."""
    lines = ["| measured | NObSP | others | table |", "|---|---|---|---|"]
    for measure in PAGES[page]:
        question, ours, others, name = measure()
        lines.append(f"| {question} | {ours} | {others} | `{name}` |")
    return "\n".join(lines) + "\n"


def written_anew(page: str) -> str:
    """A page with the table as the results have it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return MARKED.sub(lambda match: f"{match[1]}{table(page)}{match[2]}", text)


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(written_anew(page), encoding="utf-8")
