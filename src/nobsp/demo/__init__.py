"""Three small networks on data that is included: trained, explained, audited, and shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from nobsp import __version__
from nobsp.metrics import function_reproduction
from nobsp.neighbors import ContributionIndex, audit
from nobsp.network.guest import use_threads
from nobsp.reporting import report
from nobsp.reporting.build import fill_template
from nobsp.reporting.pictures import image_url
from nobsp.tabular import Explanation, NObSP
from nobsp.vision import ActivationMaps, NObSPCam

__all__ = ["PAGES", "run"]

PAGES = ("index.html", "known-functions.html", "breast-cancer.html", "digits.html")
Array = NDArray[np.float64]


def run(
    folder: Path, *, say: Callable[[str], None] = lambda _: None
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Trains three networks, explains and audits them, and writes a page for each.

    One more page links to them.

    Returns five sentences, every number in them measured, and the same numbers by name.
    """
    with use_threads(1):  # these networks are too small for a second thread to pay its way
        say("1 of 3: training a network on known functions, and taking it apart")
        functions, curves = explain_functions(folder / PAGES[1], epochs=300)
        say("2 of 3: breast cancer cells")
        cells = explain_cells(folder / PAGES[2], epochs=40)
        say("3 of 3: handwritten digits")
        digits, examples, suspects = explain_digits(folder / PAGES[3], epochs=12)

    largest = max(cells["strongest"].values())
    index = fill_template(
        resources.files("nobsp.demo") / "index.html.j2",
        version=__version__,
        pages=PAGES,
        functions=functions,
        curves=_draw_curves(curves, functions["functions_r2"]),
        cells=cells,
        bars=[
            {"name": name, "size": size, "share": size / largest}
            for name, size in cells["strongest"].items()
        ],
        images=digits,
        examples=[
            {"digit": d, "image": image_url(i), "overlay": image_url(o)} for d, i, o in examples
        ],
        suspects=[{"given": g, "suggested": s, "image": image_url(i)} for g, s, i in suspects],
    )
    (folder / PAGES[0]).write_text(index, encoding="utf-8")
    numbers = {"known functions": functions, "breast cancer": cells, "digits": digits}
    return _describe(functions, cells, digits), numbers


def _draw_curves(
    curves: Mapping[str, tuple[Array, Array, Array]], recovered: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Draws every function beside what was learned of it.

    Functions that play no part are drawn to the scale of the others.
    """
    all_recovered = [curve for name in recovered for curve in curves[name][1:]]
    drawn = []
    for name, (grid, learned, true) in curves.items():
        scale = [learned, true] if name in recovered else all_recovered
        drawn.append(
            {
                "learned": draw_path(grid, learned, scale),
                "true": draw_path(grid, true, scale),
                "formula": FORMULAS[name],
                "r2": recovered.get(name),
            }
        )
    return drawn


def _describe(
    functions: Mapping[str, Any], cells: Mapping[str, Any], digits: Mapping[str, Any]
) -> tuple[str, ...]:
    in_words = {0: "no interaction", 1: "one interaction"}
    interactions = in_words.get(cells["pairs"], f"{cells['pairs']} interactions")
    return (
        f"Known functions: the network's own R² on fresh rows is {functions['network_r2']:.4f}; "
        "taken apart, it gives back the four functions it was trained on with a mean R² of "
        f"{functions['mean_r2']:.4f} (held-out R² of the account: {functions['held_out_r2']:.4f}).",
        f"The column that plays no part gets {functions['idle_share']:.2%} of the output's spread.",
        f"Breast cancer: {cells['accuracy']:.1%} of {cells['fresh']} fresh cells are right; "
        f"functions and {interactions} explain its log-odds with a held-out R² of "
        f"{cells['held_out_r2']:.3f}, on the fresh cells {cells['fresh_r2']:.3f}. Strongest: "
        f"{', '.join([*cells['strongest']][:3])}.",
        f"Digits: {digits['accuracy']:.1%} of {digits['fresh']} fresh ones are right; every map "
        f"and its residual add up to the logit, to {digits['gap']:.0e}.",
        f"Audit: of {digits['planted']} labels that were made wrong on purpose, {digits['caught']} "
        f"are among the {digits['suspected']} it suspects.",
    )


def draw_path(x: Array, y: Array, scale: Sequence[Array]) -> str:
    """An SVG path through points, in a drawing of 120 × 84.

    The drawing holds all curves of `scale`, with some room above and below.
    """
    low = min(float(curve.min()) for curve in scale)
    high = max(float(curve.max()) for curve in scale)
    room = 0.1 * (high - low)
    across = (x - x[0]) / (x[-1] - x[0]) * 120.0
    down = (high + room - y) / (high - low + 2 * room) * 84.0
    return "M" + " L".join(f"{a:.1f} {b:.1f}" for a, b in zip(across, down, strict=True))


def train(
    network: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss: Any,
    *,
    epochs: int,
    rate: float,
    decay: float,
) -> None:
    """Trains a network in place.

    The learning rate rises and then falls to zero, so that the end does not depend on the last
    batch.
    """
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=decay, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=epochs * -(-len(inputs) // 64)
    )
    network.train()
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(inputs)), 64):
            optimizer.zero_grad()
            loss(network(inputs[batch]), targets[batch]).backward()
            optimizer.step()
            schedule.step()
    network.eval()


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "x1": np.abs,
    "x2": lambda x: x**3,
    "x3": np.exp,
    "x4": lambda x: np.sin(2 * x),
    "x5": lambda x: 0.0 * x,
}
FORMULAS = {"x1": "|x₁|", "x2": "x₂³", "x3": "exp x₃", "x4": "sin 2x₄", "x5": "nothing"}
# Samples, and those of them that the network is trained on; the others are explained.
SAMPLES = 1000
TRAINING = 800
NOISE = 0.01
# Rows to calibrate on, which the network has never seen: what it does on rows that it knows by
# heart would be taken for what it does on all. They need no targets.
CALIBRATION = 800
# Digits labelled wrong on purpose, and those shown.
PLANTED = 24
_SHOWN = 60


@torch.random.fork_rng(devices=[])
def explain_functions(
    page: Path, *, epochs: int
) -> tuple[dict[str, Any], dict[str, tuple[Array, Array, Array]]]:
    """Trains, explains, scores against the truth, and writes the page.

    Returns numbers, and per function a curve: where, what was learned there, and what is true.
    """
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    x = rng.uniform(-2.0, 2.0, size=(SAMPLES, len(FUNCTIONS)))
    true = np.column_stack([function(x[:, k]) for k, function in enumerate(FUNCTIONS.values())])
    y = true.sum(1) + NOISE * rng.normal(size=SAMPLES)
    calibration = rng.uniform(-2.0, 2.0, size=(CALIBRATION, len(FUNCTIONS)))

    network = _train_on_functions(x[:TRAINING], y[:TRAINING], epochs=epochs)
    explainer = NObSP(network, features=list(FUNCTIONS), output_names=["y"]).fit(calibration)

    fresh = x[TRAINING:]
    truth = y[TRAINING:]
    explanation = explainer(fresh)
    report(
        explanation,
        page,
        title="Known functions, recovered from a network",
        about=f"A network with two hidden layers saw {TRAINING} samples of y = |x1| + x2³ + "
        "exp x3 + sin 2x4 + noise, "
        f"and a fifth column that plays no part. Calibrated on {CALIBRATION} samples that it "
        "was not trained on, "
        "explained on others. Dashed lines are the functions that made the data; the network "
        "was never told them.",
        labels=truth,
        truth=FUNCTIONS,
    )

    numbers = _score_functions(explanation, true[TRAINING:], truth)
    numbers["held_out_r2"] = float(explainer.explained_[0])
    return numbers, _curves_beside_truth(explainer, fresh)


def _score_functions(explanation: Explanation, true: Array, truth: Array) -> dict[str, Any]:
    """How well the network and its functions give back what the data were made of."""
    outputs = explanation.predictions[:, 0]
    single = explanation.values[:, : len(FUNCTIONS), 0]
    scores = function_reproduction(single, true, outputs=outputs)
    by_name = zip(FUNCTIONS, scores.r2, strict=True)
    return {
        "network_r2": 1.0 - float(np.mean((outputs - truth) ** 2) / np.var(truth)),
        "functions_r2": {name: float(r2) for name, r2 in by_name if np.isfinite(r2)},
        "mean_r2": scores.mean_r2,
        "idle_share": scores.mean_null_attribution / float(outputs.std()),
        "fresh_r2": float(explanation.explained()[0]),
    }


def _train_on_functions(x: Array, y: Array, *, epochs: int) -> nn.Sequential:
    """A network with two hidden layers."""
    network = nn.Sequential(
        nn.Linear(5, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)
    )
    train(
        network,
        torch.tensor(x, dtype=torch.float32),
        torch.tensor(y, dtype=torch.float32)[:, None],
        nn.functional.mse_loss,
        epochs=epochs,
        rate=3e-3,
        decay=1e-4,
    )
    return network


def _curves_beside_truth(explainer: NObSP, rows: Array) -> dict[str, tuple[Array, Array, Array]]:
    """Per function, the points where it is drawn, what was learned there and what is true.

    Both curves have mean zero over the rows.
    """
    grid = np.linspace(-2.0, 2.0, 81)
    curves = {}
    for k, (name, true_function) in enumerate(FUNCTIONS.items()):
        learned_function = explainer.function(name)
        learned = learned_function(grid) - learned_function(rows[:, k]).mean()
        true = true_function(grid) - true_function(rows[:, k]).mean()
        curves[name] = (grid, learned, true)
    return curves


@torch.random.fork_rng(devices=[])
def explain_cells(page: Path, *, epochs: int) -> dict[str, Any]:
    """Trains, explains fresh cells, finds their neighbours, and writes the page."""
    torch.manual_seed(0)
    data = load_breast_cancer(as_frame=False)
    names = [str(name) for name in data.feature_names]
    malignant = (data.target == 0).astype(np.int64)
    x, others, y, labels = train_test_split(
        data.data, malignant, train_size=0.5, random_state=0, stratify=malignant
    )
    # Calibrated on cells that the network was not trained on, and explained on others still.
    unseen, fresh, unseen_labels, truth = train_test_split(
        others, labels, train_size=0.6, random_state=0, stratify=labels
    )

    network = _train_on_cells(x, y, epochs=epochs)
    explainer = NObSP(network, features=names, output_names=["malignant"]).fit(unseen)
    explanation = explainer(fresh)
    index = ContributionIndex(explainer, task="classification").fit(unseen, unseen_labels)
    report(
        explanation,
        page,
        title="What makes a cell look malignant",
        about=f"A network with two hidden layers, trained on {len(x)} cells of the Wisconsin "
        "breast cancer data, "
        f"calibrated on {len(unseen)} that it was not trained on, and explained on the other "
        f"{len(fresh)}. Positive "
        "contributions speak for malignant. What is explained is the network, not the disease.",
        labels=truth,
        class_names=["benign", "malignant"],
        hits=index.query(fresh, k=8),
    )

    # The same numbers as on the page.
    strongest = explainer.importance()
    return {
        "accuracy": float(((explanation.predictions[:, 0] > 0) == (truth == 1)).mean()),
        "fresh": len(fresh),
        "held_out_r2": float(explainer.explained_[0]),
        "fresh_r2": float(explanation.explained()[0]),
        "pairs": sum(len(term) > 1 for term in explainer.terms_),
        "strongest": {
            str(name): float(size)
            for name, size in zip(
                strongest["feature"][:6], strongest["importance"][:6], strict=True
            )
        },
    }


def _train_on_cells(x: Array, y: NDArray[np.int64], *, epochs: int) -> nn.Sequential:
    """A network with two hidden layers that scales its columns, which come in their own units."""
    scaled = nn.BatchNorm1d(30, 1e-12, None, affine=False)
    network = nn.Sequential(
        scaled, nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1)
    )
    train(
        network,
        torch.tensor(x, dtype=torch.float32),
        torch.tensor(y, dtype=torch.float32)[:, None],
        nn.functional.binary_cross_entropy_with_logits,
        epochs=epochs,
        rate=2e-3,
        decay=1.0,
    )
    return network


@torch.random.fork_rng(devices=[])
def explain_digits(page: Path, *, epochs: int) -> tuple[dict[str, Any], list[Any], list[Any]]:
    """Trains, makes maps, audits labels of which some were planted wrong, and writes the page.

    Returns numbers; digits with their image and the map laid over it; and labels that were planted
    and found, with the one that the neighbours have and the image.
    """
    torch.manual_seed(0)
    x, fresh, y, labels = _split_digits()
    network = _train_on_digits(x, y, epochs=epochs)
    cam = NObSPCam(network, output_names=[str(digit) for digit in range(10)]).fit(x)
    index = ContributionIndex(cam).fit(x, y)
    maps = cam(fresh)
    truth = labels.numpy()
    right = maps.logits.argmax(1) == truth

    planted = _plant_wrong_labels(truth)
    audited = audit(index, fresh, planted.labels)
    assert audited.mislabels is not None  # labels were given
    suspected = np.flatnonzero(audited.mislabels)
    caught = suspected[np.isin(suspected, planted.rows)]

    of_digit = [np.flatnonzero(right & (truth == digit)) for digit in range(10)]
    shown = _rows_to_show(np.flatnonzero(~right), of_digit)
    likeliest = np.argsort(-maps.logits[shown], axis=1)[:, :3]
    _report_digits(page, cam, index, fresh[shown], truth[shown], likeliest=likeliest, gallery=x)

    numbers = {
        "accuracy": float(right.mean()),
        "fresh": len(fresh),
        "gap": _largest_gap(maps),
        "planted": PLANTED,
        "suspected": len(suspected),
        "caught": len(caught),
    }
    pictures = np.repeat(fresh.numpy().transpose(0, 2, 3, 1), 3, axis=3)
    suspects = [
        (int(planted.labels[row]), int(audited.suggested[row]), pictures[row])
        for row in caught[:12]
    ]
    return numbers, _surest_examples(maps, fresh, pictures, of_digit), suspects


def _split_digits() -> list[Tensor]:
    """Images to train on and others, and the labels of both."""
    data = load_digits()
    images = (data.images / 16.0).astype(np.float32)[:, None]
    split = train_test_split(
        images, data.target, test_size=1 / 3, random_state=0, stratify=data.target
    )
    return [torch.from_numpy(part) for part in split]


def _report_digits(
    page: Path,
    cam: NObSPCam,
    index: ContributionIndex,
    images: Tensor,
    labels: NDArray[np.int64],
    *,
    likeliest: NDArray[np.intp],
    gallery: Tensor,
) -> None:
    """Writes the page of some digits, each with maps of its likeliest classes."""
    report(
        cam(images, likeliest),
        page,
        title="Where a network reads digits",
        about=f"A small convolutional network, trained on {len(gallery):,} of scikit-learn's "
        "handwritten digits and "
        "explained on digits it has not seen. Those it gets wrong come first.",
        explainer=cam,
        images=images,
        labels=labels,
        hits=index.query(images, k=8),
        gallery=gallery,
    )


def _largest_gap(maps: ActivationMaps) -> float:
    """The largest distance of a map and its residual from the class's centred logit."""
    centred = maps.logits[np.arange(len(maps)), maps.target] - maps.base_values[maps.target]
    return float(np.abs(maps.account.mean((1, 2)) - centred).max())


def _surest_examples(
    maps: ActivationMaps, images: Tensor, pictures: Array, of_digit: Sequence[NDArray[np.intp]]
) -> list[Any]:
    """For every digit, the image the network is surest of, plain and with the map laid over it."""
    overlays = maps.overlay(images, opacity=0.85)
    examples = []
    for digit, rows in enumerate(of_digit):
        if len(rows):
            surest = max(rows, key=maps.confidence.__getitem__)
            examples.append((digit, pictures[surest], overlays[surest]))
    return examples


def _train_on_digits(x: Tensor, y: Tensor, *, epochs: int) -> nn.Sequential:
    """A small convolutional network."""
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    network = nn.Sequential(
        nn.Sequential(*layers), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    )
    train(network, x, y, nn.functional.cross_entropy, epochs=epochs, rate=5e-3, decay=1e-2)
    return network


class _Planted(NamedTuple):
    """Labels of which some were made wrong on purpose."""

    labels: NDArray[np.int64]
    rows: NDArray[np.int64]  # the wrong ones


def _plant_wrong_labels(truth: NDArray[np.int64]) -> _Planted:
    """Gives some rows another label, any of the nine."""
    rng = np.random.default_rng(0)
    rows = rng.choice(len(truth), PLANTED, replace=False)
    labels = truth.copy()
    labels[rows] = (labels[rows] + rng.integers(1, 10, PLANTED)) % 10
    return _Planted(labels, rows)


def _rows_to_show(wrong: NDArray[np.intp], of_digit: Sequence[NDArray[np.intp]]) -> list[int]:
    """What the network gets wrong, and then some of every digit."""
    in_turns = [rows[turn] for turn in range(_SHOWN) for rows in of_digit if turn < len(rows)]
    return [int(row) for row in [*wrong, *in_turns]][:_SHOWN]
