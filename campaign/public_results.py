"""What is done with functions, comparisons and parts, and estimators: how each is called rightly, and its arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import nobsp
from campaign.public import ANY_NAMES, Arguments, Target, metric_of, on_index, plot_of
from campaign.subjects import COLUMNS, ROWS, World, make_rows, seeded, world

Call = Callable[[World, Path, Arguments], Any]

EDIT: Arguments = {"feature": COLUMNS[0], "output": 0}


@cache
def _comparison() -> nobsp.Comparison:
    subjects = world()
    return nobsp.compare(subjects.explanation, subjects.explanation[:20], draws=100)


class _Residual(nn.Module):
    """A network with a stream, which has depths to look at."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 6)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)) for _ in range(2)
        )
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        stream = self.first(x)
        for block in self.blocks:
            stream = stream + block(stream)
        outputs: torch.Tensor = self.head(stream)
        return outputs


@cache
def _parts() -> Any:
    with seeded(0):
        network = _Residual().eval()
    return nobsp.explain_parts(network, torch.tensor(world().X).float())


@cache
def _influence() -> nobsp.Influence:
    values = make_rows(columns=4)
    return nobsp.Influence(
        indices=np.tile(np.arange(4), (ROWS, 1)),
        values=values,
        labels=np.tile(np.arange(4) % 3, (ROWS, 1)),
        size=np.abs(values).sum(1),
        logits=values.sum(1),
        target=np.zeros(ROWS, dtype=np.int64),
        loss="cross_entropy",
        weight_decay=0.0,
        gradient=0.0,
    )


def _on_functions(method: str, **usual: Any) -> Call:
    def call(subjects: World, _: Path, spoiled: Arguments) -> Any:
        return getattr(subjects.compiled, method)(**{**usual, **spoiled})

    return call


def _on_rows(method: str, **usual: Any) -> Call:
    """A method of functions that takes rows."""

    def call(subjects: World, _: Path, spoiled: Arguments) -> Any:
        return getattr(subjects.compiled, method)(**{"X": subjects.X, **usual, **spoiled})

    return call


def _edited(method: str, **usual: Any) -> Call:
    """Predictions of edited functions."""

    def call(subjects: World, _: Path, spoiled: Arguments) -> Any:
        arguments = {"X": subjects.X, **usual, **spoiled}
        return getattr(subjects.compiled, method)(**arguments).predict(subjects.X)

    return call


def _half(heights: Any) -> Any:
    return 0.5 * heights


def _fidelity(subjects: World, _: Path, spoiled: Arguments) -> Any:
    arguments = {"X": subjects.X, "model": subjects.network, **spoiled}
    return subjects.compiled.fidelity(**arguments)


def _function(subjects: World, _: Path, spoiled: Arguments) -> Any:
    arguments = {"term": COLUMNS[0], "values": subjects.X[:, 0], **spoiled}
    values = arguments.pop("values")
    return subjects.compiled.function(**arguments)(values)


def _score(subjects: World, _: Path, spoiled: Arguments) -> Any:
    arguments = {"X": subjects.X, "y": subjects.X[:, :3], **spoiled}
    return subjects.compiled.score(**arguments)


def _written(method: str, name: str) -> Call:
    def call(subjects: World, folder: Path, spoiled: Arguments) -> Any:
        return getattr(subjects.compiled, method)(**{"path": folder / name, **spoiled})

    return call


def _undo(subjects: World, _: Path, spoiled: Arguments) -> Any:
    edited = subjects.compiled.cap(COLUMNS[0], subjects.X, most=0.5, output=0)
    return edited.undo(**spoiled).predict(subjects.X)


def _on_comparison(method: str, **usual: Any) -> Call:
    def call(_: World, __: Path, spoiled: Arguments) -> Any:
        return getattr(_comparison(), method)(**{**usual, **spoiled})

    return call


def _compare(subjects: World, _: Path, spoiled: Arguments) -> Any:
    both = {"a": subjects.explanation, "b": subjects.explanation}
    return nobsp.compare(**{**both, "draws": 100, **spoiled}).to_frame()


def _card(subjects: World, folder: Path, spoiled: Arguments) -> Any:
    usual = {"explainer": subjects.explainer, "X": subjects.X, "path": folder / "card.html"}
    return nobsp.card(**{**usual, **spoiled})


def _explain_parts(subjects: World, _: Path, spoiled: Arguments) -> Any:
    usual = {"model": subjects.network, "X": torch.tensor(subjects.X).float()}
    return nobsp.explain_parts(**{**usual, **spoiled}).values


def _prune(subjects: World, _: Path, spoiled: Arguments) -> Any:
    rows = torch.tensor(subjects.X).float()
    usual: Arguments = {"model": subjects.network, "X": rows, "budget": 0.6}
    return nobsp.prune(**{**usual, **spoiled}).model(rows)


@cache
def _pruned() -> Any:
    return nobsp.prune(world().network, torch.tensor(world().X).float(), keep=0.5)


def _export(subjects: World, _: Path, spoiled: Arguments) -> Any:
    rows = torch.tensor(subjects.X).float()
    # It is not run: a linear layer takes rows of several axes, and the program is then one of these.
    program = _pruned().export(**{"X": rows, **spoiled})
    return list(program.state_dict.values())


def _on_parts(method: str) -> Call:
    def call(subjects: World, _: Path, spoiled: Arguments) -> Any:
        rows = torch.tensor(subjects.X).float()
        return getattr(_parts(), method)(**{"X": rows, **spoiled})

    return call


def _on_influence(method: str) -> Call:
    def call(_: World, __: Path, spoiled: Arguments) -> Any:
        return getattr(_influence(), method)(**spoiled)

    return call


def _distil(kind: str) -> Call:
    """Fits a distiller and predicts."""

    def call(subjects: World, _: Path, spoiled: Arguments) -> Any:
        y = subjects.labels if kind == "NObSPClassifier" else subjects.X[:, 0]
        usual: Arguments = {"teacher": _teacher(subjects, kind), "interactions": 0}
        distiller = getattr(nobsp, kind)(**{**usual, **spoiled})
        return distiller.fit(subjects.X, y).predict(subjects.X)

    return call


def _teacher(subjects: World, kind: str) -> Any:
    if kind == "NObSPClassifier":
        return subjects.network
    from sklearn.linear_model import LinearRegression

    return LinearRegression().fit(subjects.X, subjects.X[:, 0])


def _selector(subjects: World, _: Path, spoiled: Arguments) -> Any:
    selector = nobsp.Selector(**{"model": subjects.network, **spoiled})
    return selector.fit(subjects.X).transform(subjects.X)


def _usearch(subjects: World, _: Path, spoiled: Arguments) -> Any:
    index = nobsp.ContributionIndex(subjects.explainer, backend=nobsp.Usearch(**spoiled))
    return index.fit(subjects.X, subjects.labels).query(subjects.X[:3], 2)


def _maps_plot(name: str, **usual: Any) -> Call:
    return plot_of(name, lambda subjects: {"maps": subjects.maps, **usual})


RESULTS: tuple[Target, ...] = (
    Target(
        "card",
        {
            "explainer": "object",
            "X": "rows",
            "path": "path",
            "checks": "object",
            "groups": "any",
            "title": "any",
            "about": "any",
        },
        _card,
    ),
    Target(
        "Functions.edit",
        {"feature": "name", "rule": "object", "X": "rows", "output": "name", "model": "model"},
        _edited("edit", rule=_half, **EDIT),
    ),
    Target(
        "Functions.cap",
        {"feature": "name", "X": "rows", "least": "share", "output": "name", "model": "model"},
        _edited("cap", most=1.0, **EDIT),
        also=("model", "X", "least", "most"),
    ),
    Target(
        "Functions.drop with a model",
        {"X": "rows", "take_over": "any", "model": "model"},
        _edited("drop", feature=COLUMNS[0]),
    ),
    Target(
        "Functions.fidelity", {"X": "rows", "model": "model", "multioutput": "choice"}, _fidelity
    ),
    Target("Functions.score", {"X": "rows", "y": "array", "sample_weight": "weights"}, _score),
    Target("Functions.curves", {"points": "count", "confidence": "share"}, _on_functions("curves")),
    Target("Functions.explain", {"X": "rows", "threads": "count"}, _on_rows("explain")),
    Target(
        "Functions.function",
        {"term": "name", "output": "name", "values": "array"},
        _function,
        also=("model", "X", "term", "age", "feature", "output"),
        may_be_nan=True,
    ),
    Target("Functions.importance", {"kind": "choice"}, _on_functions("importance")),
    Target(
        "Functions.onnx_inputs",
        {"X": "rows", "like": "rows"},
        _on_rows("onnx_inputs"),
        may_be_nan=True,
    ),
    Target(
        "Functions.to_excel",
        {"path": "path", "X": "rows", "lines": "count"},
        _written("to_excel", "f.xlsx"),
    ),
    Target("Functions.to_onnx", {"path": "path", "like": "rows"}, _written("to_onnx", "f.onnx")),
    Target(
        "Functions.to_sql",
        {"table": "name", "dialect": "choice", "keep": "list", "contributions": "any"},
        _on_functions("to_sql", table="people"),
        takes=("an unknown name",),  # the table is in a database
    ),
    Target("Functions.undo", {"steps": "count"}, _undo),
    Target(
        "Functions.with_classes",
        {"classes": "list"},
        _on_functions("with_classes"),
    ),
    Target(
        "Comparison.along",
        {"feature": "name", "output": "name", "bins": "count"},
        _on_comparison("along", feature=COLUMNS[0], output=0),
        may_be_nan=True,
    ),
    Target(
        "Comparison.changed",
        {"rate": "share", "output": "name"},
        _on_comparison("changed", output=0),
    ),
    Target(
        "Comparison.curve",
        {"feature": "name", "x": "array", "side": "count", "output": "name"},
        _on_comparison("curve", feature=COLUMNS[0], x=np.zeros(3), side=0, output=0),
        may_be_nan=True,
    ),
    Target("Comparison.feature_values", {"feature": "name"}, _on_comparison("feature_values")),
    Target("Comparison.find_output", {"output": "name"}, _on_comparison("find_output")),
    Target("Comparison.to_frame", {"output": "name"}, _on_comparison("to_frame"), may_be_nan=True),
    Target(
        "compare with options",
        {
            "sample_weight": "any",
            "groups": "any",
            "crossed": "object",
            "least_change": "share",
            "random_state": "count",
        },
        _compare,
        may_be_nan=True,
    ),
    Target(
        "NObSP.check_shape with options",
        {"within": "any", "scale": "choice"},
        lambda subjects, _, spoiled: subjects.explainer.check_shape(
            **{"shape": "increasing", "X": subjects.X, **EDIT, **spoiled}
        ),
    ),
    Target(
        "NObSP.weak_spots with options",
        {"output": "name"},
        lambda subjects, _, spoiled: subjects.explainer.weak_spots(make_rows(rows=200), **spoiled),
    ),
    Target(
        "explain_parts with options",
        {"target": "labels", "background": "rows", "output_names": "list"},
        _explain_parts,
        takes=ANY_NAMES,
    ),
    Target(
        "prune with options",
        {
            "budget": "share",
            "budget_of": "choice",
            "y": "labels",
            "protect": "list",
            "seed": "count",
        },
        _prune,
        also=("model", "X", "keep", "budget"),
    ),
    Target(
        "PartsExplanation.ablation",
        {"X": "rows", "most": "count"},
        _on_parts("ablation"),
        may_be_nan=True,  # of parts that are not measured
        takes=ANY_NAMES,
    ),
    Target("PartsExplanation.lens", {"X": "rows"}, _on_parts("lens"), takes=ANY_NAMES),
    Target("Pruned.export", {"X": "rows"}, _export, takes=ANY_NAMES),
    Target("Influence.top", {"k": "count"}, _on_influence("top")),
    Target("Influence.to_frame", {"k": "count"}, _on_influence("to_frame")),
    Target(
        "ContributionIndex.representer_shares",
        {"X": "rows", "target": "labels", "k": "count"},
        on_index("representer_shares", X=0),
        also=("model", "X", "head"),
    ),
    Target(
        "NObSPCam.as_published",
        {"model": "model"},
        lambda subjects, _, spoiled: (
            nobsp.NObSPCam.as_published(**spoiled).fit(subjects.images)(subjects.images[:3]).account
        ),
        also=("model", "images", "layer", "head"),
    ),
    Target(
        "NObSPCam.merge",
        {"other": "object"},
        lambda subjects, _, spoiled: (
            nobsp.NObSPCam.as_published(subjects.image_network)
            .fit(subjects.images)
            .merge(**spoiled)
        ),
    ),
    *(
        Target(
            kind,
            {
                "teacher": "model",
                "correct": "any",
                "interactions": "pairs",
                "max_forward_rows": "count",
                "random_state": "count",
            },
            # scikit-learn itself checks rows and labels, in words that its own tests of estimators ask for.
            _distil(kind),
            also=("model", "X", "y", "teacher"),
            takes=("None",),
        )
        for kind in ("NObSPClassifier", "NObSPRegressor")
    ),
    Target(
        "Selector",
        {"model": "model", "share": "share", "max_forward_rows": "count"},
        _selector,
    ),
    Target(
        "Usearch",
        {
            "connectivity": "count",
            "expansion_add": "count",
            "expansion_search": "count",
            "dtype": "choice",
            "candidates": "count",
            "candidates_by_activation": "count",
            "threads": "count",
        },
        _usearch,
    ),
    Target(
        "RayCluster",
        {"memory": "count"},
        lambda _, __, spoiled: nobsp.RayCluster(**spoiled).memory,
    ),
    Target(
        "metrics.region_insertion_auc",
        {
            "model": "model",
            "images": "images",
            "maps": "array",
            "target": "labels",
            "outputs": "choice",
            "patch": "count",
            "steps": "count",
            "baseline": "array",
            "batch_size": "count",
        },
        metric_of(
            "region_insertion_auc",
            lambda subjects: {
                "model": subjects.image_network,
                "images": subjects.images,
                "maps": np.asarray(subjects.images[:, 0]),
            },
        ),
        also=("model", "images", "maps"),
    ),
    Target(
        "plots.along",
        {"comparison": "object", "feature": "name", "output": "name", "bins": "count"},
        plot_of(
            "along", lambda _: {"comparison": _comparison(), "feature": COLUMNS[0], "output": 0}
        ),
    ),
    Target(
        "plots.two_curves",
        {"comparison": "object", "feature": "name", "output": "name"},
        plot_of(
            "two_curves",
            lambda _: {"comparison": _comparison(), "feature": COLUMNS[0], "output": 0},
        ),
    ),
    Target(
        "plots.gaps",
        {"comparison": "object", "output": "name", "max_display": "count"},
        plot_of("gaps", lambda _: {"comparison": _comparison(), "output": 0}),
    ),
    Target(
        "plots.confusions",
        {"found": "object", "max_display": "count", "mean": "array", "std": "array"},
        plot_of("confusions", lambda subjects: {"found": _confusions(subjects)}),
    ),
    Target(
        "plots.parts",
        {"what": "object", "output": "name", "max_display": "count"},
        plot_of("parts", lambda _: {"what": _parts()}),
    ),
    Target(
        "plots.lens",
        {"what": "object", "output": "name"},
        plot_of("lens", lambda _: {"what": _lens()}),
    ),
    Target("plots.signal", {"signals": "images"}, _maps_plot("signal")),
    Target("plots.words", {"tokens": "list"}, _maps_plot("words"), also=("maps", "tokens")),
    Target(
        "plots.words_html", {"tokens": "list"}, _maps_plot("words_html"), also=("maps", "tokens")
    ),
    Target(
        "plots.windows",
        {"ex": "object", "row": "name", "sequence": "name", "output": "name", "channels": "list"},
        plot_of("windows", lambda subjects: {"ex": subjects.explanation, "output": 0}),
    ),
)


@cache
def _lens() -> Any:
    return _parts().lens(torch.tensor(world().X).float())


def _confusions(subjects: World) -> Any:
    return nobsp.confusions(subjects.cam, subjects.images, np.arange(len(subjects.images)) % 3)
