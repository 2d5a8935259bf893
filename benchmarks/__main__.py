"""Runs a benchmark by the name of its table: `python -m benchmarks TABLE [--quick] …`; without a name, lists them."""

from __future__ import annotations

import argparse
import difflib
import os
import runpy
import sys

# Before torch is loaded: where a second thread decides what is measured, a table has `--threads`.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Name of the table, the module that makes it, and what it says; in the order of the paper.
TABLES: dict[str, tuple[str, str]] = {
    "synthetic": (
        "benchmarks.synthetic",
        "known functions recovered from a network (Function Reproduction Score)",
    ),
    "faithfulness": (
        "benchmarks.tabular.faithfulness",
        "nine tables: do attributions rank features as removal does?",
    ),
    "agreement": (
        "benchmarks.tabular.agreement",
        "nine tables: pairs of rows that differ in one feature (LCPDA)",
    ),
    "choosing": (
        "benchmarks.tabular.choosing",
        "nine tables, training rows: how the attribution for removal was chosen",
    ),
    "varying": (
        "benchmarks.tabular.varying",
        "nine tables: what the paper leaves open, and what it does to faithfulness",
    ),
    "unseen": (
        "benchmarks.tabular.unseen",
        "real tables: how much of a network its functions carry on unseen rows, beside a distilled EBM",
    ),
    "trees": (
        "benchmarks.trees",
        "tree models: share explained on unseen rows, known functions, beside TreeHFD and SHAP",
    ),
    "headline": (
        "benchmarks.tabular.headline",
        "is the share an explainer states of itself true on fresh rows?",
    ),
    "everyday": (
        "benchmarks.everyday",
        "repeated rows, clusters, training rows, drift and others: headline beside truth",
    ),
    "triples": (
        "benchmarks.triples",
        "boosted trees of California: pairs and triples, beside TreeHFD in the same run",
    ),
    "differences": (
        "benchmarks.differences",
        "the same cases of several tables with an earlier copy of the package: differences",
    ),
    "reruns": (
        "benchmarks.reruns",
        "six tables measured again, ours only, beside the results of an earlier version",
    ),
    "swapped": (
        "benchmarks.swapped",
        "was the model trained on the calibration rows? A guess by swapping columns",
    ),
    "compare": (
        "benchmarks.comparison",
        "what changed: parts of gaps beside SHAP and statsmodels, coverage, pairs of models",
    ),
    "compare-errors": (
        "benchmarks.comparison.errors",
        "parts of gaps of networks that learnt known functions: error beside SHAP's, and where it comes from",
    ),
    "shapes": (
        "benchmarks.comparison.shapes",
        "shapes asked of constrained and free trees, bounds on fresh rows, planted weak spots",
    ),
    "bands": ("benchmarks.tabular.bands", "coverage of the bands around curves"),
    "halves": (
        "benchmarks.tabular.halves",
        "California Housing: do curves from two halves of the rows agree?",
    ),
    "deletion": (
        "benchmarks.vision.deletion",
        "images: Region Deletion AUC beside gradient-based maps",
    ),
    "accounts": (
        "benchmarks.vision.accounts",
        "images: do accounts add up, and do they tell two images apart?",
    ),
    "thorough": (
        "benchmarks.vision.thorough",
        "images: account and removal of regions together, beside GradCAM",
    ),
    "class-token": (
        "benchmarks.vision.class_token",
        "digits and CIFAR-10: accounts of class-token transformers beside attention maps",
    ),
    "texts": (
        "benchmarks.vision.texts",
        "sentiment networks: scores of words beside a lexicon of valence",
    ),
    "sights": (
        "benchmarks.vision.sights",
        "sequences, decoders, CLIP, costs, duplicates, inputs from elsewhere: asked and measured",
    ),
    "sparseness": (
        "benchmarks.vision.sparseness",
        "images: how concentrated maps are, by two formulas",
    ),
    "pixel-faithfulness": (
        "benchmarks.vision.pixel_faithfulness",
        "images: faithfulness correlation pixel by pixel",
    ),
    "calibration-time": (
        "benchmarks.calibration_time",
        "seconds to calibrate, by width of the representation",
    ),
    "purity": ("benchmarks.retrieval", "images: neighbours by evidence and by activation"),
    "statistics": (
        "benchmarks.vision.statistics",
        "images: bootstrap intervals and sign-flip tests of the deletion AUC",
    ),
    "recovery": (
        "benchmarks.recovery",
        "known functions over sizes, correlations and activations, with interactions",
    ),
    "deploy": (
        "benchmarks.deploy",
        "functions as a model: parity of exports, speed, labels, edits, the fewest features",
    ),
    "models": (
        "benchmarks.models",
        "any model as it comes: share explained on unseen rows, exactness, time beside SHAP",
    ),
    "native": (
        "benchmarks.native",
        "boosted trees with native categories: seconds to calibrate on Adult, and a limit of forward rows",
    ),
    "audit-values": (
        "benchmarks.retrieval.values",
        "wrong values and several classes at once, California and CIFAR-10",
    ),
    "select": ("benchmarks.retrieval.choosing", "images: accuracy on rows chosen to be labelled"),
    "influence": (
        "benchmarks.retrieval.influence",
        "linear heads: does influence rank training rows as retraining without them does?",
    ),
    "audit": ("benchmarks.retrieval.audits", "images: wrong labels, and inputs from elsewhere"),
    "speed-neighbours": (
        "benchmarks.retrieval.speed",
        "finding neighbours: exact, usearch, Milvus, faiss",
    ),
    "parts": (
        "benchmarks.parts.circuits",
        "parts of transformers: sums, residuals, and circuits that are known",
    ),
    "prune": (
        "benchmarks.parts.pruning",
        "networks made smaller without retraining, beside L1, Taylor and Torch-Pruning",
    ),
    "house": (
        "benchmarks.house",
        "how densely the code is written, files that a call enters, and import times",
    ),
    "speed-published": (
        "benchmarks.speed.script",
        "Algorithm 1 as published beside a plain script of twenty lines, one thread and two",
    ),
    "speed": ("benchmarks.speed", "every claim about speed as a ratio, measured in one run"),
}


def listing() -> str:
    width = max(map(len, TABLES))
    return "\n".join(f"  {name.ljust(width)}  {says}" for name, (_, says) in TABLES.items())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Runs one table of the benchmarks; its options follow its name (TABLE --help shows them).",
        epilog="tables:\n" + listing(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "table", nargs="?", metavar="TABLE", help="which one; without, all are listed"
    )
    parser.add_argument("--list", action="store_true", help="list the tables")
    asked, rest = _parted(sys.argv[1:] if arguments is None else arguments)
    chosen = parser.parse_args(asked)
    if chosen.table is None:
        print(listing())
        return
    if chosen.table not in TABLES:
        close = difflib.get_close_matches(chosen.table, TABLES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(TABLES)}."
        parser.error(f"no table {chosen.table!r}; {hint}")
    module, _ = TABLES[chosen.table]
    before = sys.argv
    sys.argv = [f"{parser.prog} {chosen.table}", *rest]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=False)
    finally:
        sys.argv = before


def _parted(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What is ours, up to the name of the table, and what is the table's, after it."""
    for place, argument in enumerate(arguments):
        if not argument.startswith("-"):
            return arguments[: place + 1], arguments[place + 1 :]
    return arguments, []


if __name__ == "__main__":
    main()
