"""Every public function and method, how it is called rightly, and what kind each of its arguments is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nobsp
from campaign.subjects import CLASSES, COLUMNS, IMAGES, ROWS, World, make_images, make_network

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """Something public to be called."""

    name: str
    arguments: dict[str, str]  # the arguments that are spoiled, and of what kind they are
    # what is called: (world, an empty folder, the spoiled arguments by name) -> the result
    call: Callable[[World, Path, Arguments], Any]
    # other names under which an error may speak of what is wrong
    also: tuple[str, ...] = ("model", "X")
    # whether NaN is an answer: of a gap in what was asked, of a score not asked for
    may_be_nan: bool = False
    # bad values that have a meaning here, though they have none elsewhere
    takes: tuple[str, ...] = ()


def _explain_with(world: World, *, model: Any = None, rows: Any = None, **options: Any) -> Any:
    settings = {"features": list(COLUMNS), "background": 4, "interactions": 0, **options}
    X = world.X if rows is None else rows
    explainer = nobsp.NObSP(world.network if model is None else model, **settings)
    return explainer.fit(X)(world.X[:4])


def _construct(world: World, _: Path, spoiled: Arguments) -> Any:
    if "model" in spoiled:
        model = spoiled["model"]
        options = {name: value for name, value in spoiled.items() if name != "model"}
        settings = {"background": 4, "interactions": 0, **options}
        return nobsp.NObSP(model, **settings).fit(world.X)(world.X[:4])
    return _explain_with(world, **spoiled)


def _published(world: World, _: Path, spoiled: Arguments) -> Any:
    explainer = nobsp.NObSP.as_published(world.network, features=list(COLUMNS))
    X = spoiled.get("X", world.X)
    return explainer.fit(X)(world.X[:4])


def _fit(world: World, _: Path, spoiled: Arguments) -> Any:
    options = {"X": world.X, **spoiled}
    explainer = nobsp.NObSP(
        world.network, features=list(COLUMNS), background=4, interactions=0
    ).fit(**options)
    return explainer(world.X[:4])


def _fit_auto(world: World, _: Path, spoiled: Arguments) -> Any:
    explainer = nobsp.NObSP(world.network, background=4).fit(spoiled["X"])
    return explainer.health() and explainer.importance()


def _on_explainer(method: str, **usual: Any) -> Callable[[World, Path, Arguments], Any]:
    def call(world: World, _: Path, spoiled: Arguments) -> Any:
        return getattr(world.explainer, method)(**{**usual, **spoiled})

    return call


def _explain(world: World, _: Path, spoiled: Arguments) -> Any:
    return world.explainer(**{"X": world.X, **spoiled})


def _explain_compiled(world: World, _: Path, spoiled: Arguments) -> Any:
    return world.compiled(**{"X": world.X, **spoiled})


def _function(world: World, _: Path, spoiled: Arguments) -> Any:
    options = {"term": "age", "values": world.X[:, 0], **spoiled}
    values = options.pop("values")
    return world.explainer.function(**options)(values)


def _merge(world: World, _: Path, spoiled: Arguments) -> Any:
    first = nobsp.NObSP.as_published(world.network).fit(world.X)
    return first.merge(spoiled["other"])


def _load(loader: Callable[[World], Callable[..., Any]]) -> Callable[[World, Path, Arguments], Any]:
    def call(world: World, folder: Path, spoiled: Arguments) -> Any:
        return loader(world)(**{"path": folder / "nothing", **spoiled})

    return call


def _save(subject: str) -> Callable[[World, Path, Arguments], Any]:
    def call(world: World, folder: Path, spoiled: Arguments) -> Any:
        return getattr(world, subject).save(**{"path": folder / "file", **spoiled})

    return call


def _cam(world: World, _: Path, spoiled: Arguments) -> Any:
    options = {"model": world.image_network, **spoiled}
    return nobsp.NObSPCam(**options).fit(world.images)(world.images[:3])


def _cam_fit(world: World, _: Path, spoiled: Arguments) -> Any:
    cam = nobsp.NObSPCam(world.image_network, coefficients="calibrated")
    return cam.fit(**{"images": world.images, **spoiled})(world.images[:3])


def _on_cam(method: str) -> Callable[[World, Path, Arguments], Any]:
    def call(world: World, _: Path, spoiled: Arguments) -> Any:
        return getattr(world.cam, method)(**{"images": world.images, **spoiled})

    return call


def _index(world: World, _: Path, spoiled: Arguments) -> Any:
    options = {"explainer": world.explainer, **spoiled}
    index = nobsp.ContributionIndex(**options).fit(world.X, world.labels)
    return index.query(world.X[:3], 2)


def _index_fit(world: World, _: Path, spoiled: Arguments) -> Any:
    index = nobsp.ContributionIndex(world.explainer)
    return index.fit(**{"X": world.X, "y": world.labels, **spoiled}).query(world.X[:3], 2)


def _index_add(world: World, _: Path, spoiled: Arguments) -> Any:
    index = nobsp.ContributionIndex(world.explainer).fit(world.X, world.labels)
    return index.add(**{"X": world.X, "y": world.labels, **spoiled}).query(world.X[:3], 2)


def on_index(method: str, **usual: Any) -> Callable[[World, Path, Arguments], Any]:
    """A method of the index."""

    def call(world: World, _: Path, spoiled: Arguments) -> Any:
        options = dict(usual)
        if "X" in usual:
            options["X"] = world.X
        return getattr(world.index, method)(**{**options, **spoiled})

    return call


def _audit(world: World, _: Path, spoiled: Arguments) -> Any:
    return nobsp.audit(
        **{"index": world.index, "X": world.X, "labels": world.labels, "k": 3, **spoiled}
    )


def _select(world: World, _: Path, spoiled: Arguments) -> Any:
    return nobsp.select(**{"index": world.index, "n": 3, **spoiled})


def _report(world: World, folder: Path, spoiled: Arguments) -> Any:
    options = {"subject": world.explanation, "path": folder / "page.html", **spoiled}
    return nobsp.report(**options)


def _report_images(world: World, folder: Path, spoiled: Arguments) -> Any:
    usual = {"subject": world.maps, "path": folder / "page.html", "images": world.images}
    return nobsp.report(**{**usual, **spoiled})


def _report_hits(world: World, folder: Path, spoiled: Arguments) -> Any:
    return nobsp.report(**{"subject": world.hits, "path": folder / "page.html", **spoiled})


def _report_audit(world: World, folder: Path, spoiled: Arguments) -> Any:
    return nobsp.report(**{"subject": world.audit, "path": folder / "page.html", **spoiled})


def _on(subject: str, method: str, **usual: Any) -> Callable[[World, Path, Arguments], Any]:
    def call(world: World, _: Path, spoiled: Arguments) -> Any:
        return getattr(getattr(world, subject), method)(**{**usual, **spoiled})

    return call


def metric_of(name: str, usual: Callable[[World], Arguments]) -> Callable[..., Any]:
    """A metric with its usual arguments."""

    def call(world: World, _: Path, spoiled: Arguments) -> Any:
        return getattr(nobsp.metrics, name)(**{**usual(world), **spoiled})

    return call


def plot_of(name: str, usual: Callable[[World], Arguments]) -> Callable[..., Any]:
    """A plot with its usual arguments, drawn on nothing."""

    def call(world: World, _: Path, spoiled: Arguments) -> Any:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt

        try:
            getattr(nobsp.plots, name)(**{**usual(world), **spoiled})
        finally:
            plt.close("all")

    return call


def _attributions(world: World) -> np.ndarray:
    values: np.ndarray = world.explanation.values[:, :3, 0]
    return values


def _pairs(world: World) -> Any:
    return nobsp.metrics.find_pairs(world.X)


@cache
def _exported() -> Any:
    """A small program of torch.export."""
    return torch.export.export(make_network(), (torch.zeros(4, 3),))


def _of_target(world: World, _: Path, spoiled: Arguments) -> Any:
    several = world.cam(world.images, np.zeros((len(world.images), 2), dtype=int))
    return several.of_target(**spoiled)


def _overlay(world: World, _: Path, spoiled: Arguments) -> Any:
    return world.maps.overlay(**{"images": world.images, **spoiled})


def _prune(world: World, _: Path, spoiled: Arguments) -> Any:
    rows = torch.tensor(world.X)
    pruned = nobsp.prune(**{"model": world.network, "X": rows.float(), "keep": 0.5, **spoiled})
    precision = next(pruned.model.parameters()).dtype
    return pruned.model(rows.to(precision))


REPORT_OPTIONS = {
    "title": "any",
    "about": "any",
    "labels": "labels",
    "class_names": "list",
    "names": "list",
    "hits": "object",
    "influence": "object",
    "audit": "object",
    "explainer": "object",
    "truth": "any",
}

# Tables that are read alone, and need not be those that a model knows.
ANY_WIDTH = ("a column less", "a column more", "a frame with another column")
# Where names of columns are not looked at.
ANY_NAMES = ("a frame with equal names",)
# One of several pictures is drawn, in colour where it has any.
ONE_PICTURE = ("one NaN", "one infinity", "three channels")
# Columns that stay alone where columns are put together by their ranks.
NO_NUMBERS = (
    "texts",
    "dates",
    "durations",
    "complex numbers",
    "complex tensor",
    "a frame with complex numbers",
    "a frame with lists",
)

TARGETS: tuple[Target, ...] = (
    Target(
        "NObSP",
        {
            "model": "model",
            "features": "list",
            "background": "count",
            "baseline": "name",
            "reference": "choice",
            "interactions": "pairs",
            "ridge": "share",
            "ridge_scale": "choice",
            "head": "name",
            "output_names": "list",
            "device": "choice",
            "batch_size": "count",
        },
        _construct,
    ),
    Target("NObSP.as_published", {"X": "rows"}, _published),
    Target(
        "NObSP.fit",
        {
            "X": "rows",
            "sample_weight": "weights",
            "engine": "object",
            "progress": "any",
            "like": "object",
        },
        _fit,
        also=("model", "X", "background"),
    ),
    Target("NObSP.fit with auto", {"X": "rows"}, _fit_auto),
    Target("NObSP.__call__", {"X": "rows", "progress": "any"}, _explain),
    Target("Functions.__call__", {"X": "rows", "threads": "count"}, _explain_compiled),
    Target("Functions predictions", {"predictions": "array"}, _explain_compiled),
    Target("NObSP.curves", {"points": "count", "confidence": "share"}, _on_explainer("curves")),
    Target("NObSP.health", {"X": "rows"}, _on_explainer("health")),
    Target("NObSP.importance", {"kind": "choice"}, _on_explainer("importance")),
    Target(
        "NObSP.function",
        {"term": "name", "output": "name", "values": "array"},
        _function,
        also=("model", "X", "term", "age", "feature", "output"),
        may_be_nan=True,
    ),
    Target("NObSP.merge", {"other": "object"}, _merge),
    Target(
        "NObSP.removal_effects",
        {"X": "rows", "values": "count", "background": "rows"},
        lambda world, _, spoiled: world.explainer.removal_effects(**{"X": world.X, **spoiled}),
    ),
    Target("NObSP.save", {"path": "path"}, _save("explainer")),
    Target(
        "NObSP.load",
        {"path": "path"},
        _load(lambda w: lambda path: nobsp.NObSP.load(path, w.network)),
    ),
    Target(
        "NObSP.suggest_features",
        {"X": "rows", "correlation": "share"},
        lambda world, _, spoiled: nobsp.NObSP.suggest_features(**{"X": world.X, **spoiled}),
        takes=(*ANY_WIDTH, *NO_NUMBERS),
    ),
    Target(
        "NObSP.score",
        {"X": "rows", "multioutput": "choice"},
        lambda world, _, spoiled: world.explainer.score(**{"X": world.X, **spoiled}),
        may_be_nan=True,
    ),
    Target(
        "NObSP.check_shape",
        {
            "feature": "name",
            "shape": "choice",
            "X": "rows",
            "tolerance": "share",
            "output": "name",
            "most_rows": "count",
            "confidence": "share",
        },
        lambda world, _, spoiled: world.explainer.check_shape(
            **{
                "feature": COLUMNS[0],
                "shape": "increasing",
                "X": world.X,
                "output": 0,
                **spoiled,
            }
        ),
    ),
    Target(
        "NObSP.fewest_features",
        {"share": "share", "X": "rows"},
        lambda world, _, spoiled: world.explainer.fewest_features(**{"X": world.X, **spoiled}),
    ),
    Target(
        "NObSP.weak_spots",
        {"X": "rows", "below": "share", "least_share": "share", "most_conditions": "count"},
        lambda world, _, spoiled: world.explainer.weak_spots(**{"X": world.X, **spoiled}),
    ),
    Target(
        "Functions.predict",
        {"X": "rows"},
        lambda world, _, spoiled: world.compiled.predict(**spoiled),
    ),
    Target(
        "Functions.drop",
        {"feature": "name", "X": "rows"},
        lambda world, _, spoiled: world.compiled.drop(
            **{"feature": COLUMNS[0], "X": world.X, **spoiled}
        ).predict(world.X),
    ),
    Target(
        "compare",
        {"a": "object", "b": "object", "names": "list", "confidence": "share", "draws": "count"},
        lambda world, _, spoiled: nobsp.compare(
            **{"a": world.explanation, "b": world.explanation, "draws": 100, **spoiled}
        ).to_frame(),
        may_be_nan=True,
    ),
    Target(
        "explain_parts",
        {"model": "model", "X": "rows", "parts": "choice", "batch_size": "count"},
        lambda world, _, spoiled: (
            nobsp.explain_parts(
                **{"model": world.network, "X": torch.tensor(world.X).float(), **spoiled}
            ).values
        ),
        takes=ANY_NAMES,
    ),
    Target(
        "prune",
        {
            "model": "model",
            "X": "rows",
            "keep": "share",
            "held_out": "share",
            "batch_size": "count",
        },
        _prune,
        also=("model", "X", "keep", "budget"),
        takes=ANY_NAMES,
    ),
    Target("Functions.save", {"path": "path"}, _save("compiled")),
    Target("Functions.load", {"path": "path"}, _load(lambda _: nobsp.Functions.load)),
    Target(
        "Explanation.contrast", {"a": "name", "b": "name"}, _on("explanation", "contrast", a=0, b=1)
    ),
    Target("Explanation.order", {"size": "count"}, _on("explanation", "order", size=1)),
    Target("Explanation.top", {"k": "count"}, _on("explanation", "top", k=2)),
    Target("Explanation.to_frame", {"output": "name"}, _on("explanation", "to_frame")),
    Target("Explanation.to_probability", {"link": "choice"}, _on("explanation", "to_probability")),
    Target("Explanation.to_shap", {"output": "name"}, _on("explanation", "to_shap")),
    Target(
        "NObSPCam",
        {
            "model": "model",
            "layer": "name",
            "head": "name",
            "coefficients": "choice",
            "kind": "choice",
            "link": "choice",
            "ridge": "share",
            "ridge_scale": "choice",
            "points": "count",
            "output_names": "list",
            "device": "choice",
            "batch_size": "count",
        },
        _cam,
        also=("model", "images", "layer", "head"),
    ),
    Target("NObSPCam.fit", {"images": "images", "engine": "object"}, _cam_fit),
    Target(
        "NObSPCam.__call__",
        {"images": "images", "target": "labels", "against": "name", "scale": "choice"},
        _on_cam("explain"),
        also=("model", "images", "target", "class"),
    ),
    Target("NObSPCam.removal", {"images": "images", "target": "labels"}, _on_cam("removal")),
    Target(
        "NObSPCam.thorough",
        {"images": "images", "target": "labels", "regions": "count", "most": "count"},
        _on_cam("thorough"),
    ),
    Target("NObSPCam.save", {"path": "path"}, _save("cam")),
    Target(
        "NObSPCam.load",
        {"path": "path"},
        _load(lambda w: lambda path: nobsp.NObSPCam.load(path, w.image_network)),
    ),
    Target("ActivationMaps.resize", {"size": "count"}, _on("maps", "resize", size=4)),
    Target(
        "ActivationMaps.of_target", {"position": "count"}, _of_target, also=("position", "target")
    ),
    Target("ActivationMaps.caption", {"kind": "choice"}, _on("maps", "caption")),
    Target(
        "ActivationMaps.overlay",
        {"images": "images", "kind": "choice", "opacity": "share", "mean": "array", "std": "array"},
        _overlay,
    ),
    Target(
        "explain_images",
        {"model": "model", "images": "images", "target": "labels"},
        lambda world, _, spoiled: nobsp.explain_images(
            **{"model": world.image_network, "images": world.images, **spoiled}
        ),
        also=("model", "images", "layer"),
    ),
    Target(
        "confusions",
        {
            "cam": "object",
            "images": "images",
            "labels": "labels",
            "pairs": "count",
            "examples": "count",
        },
        lambda world, _, spoiled: nobsp.confusions(
            **{
                "cam": world.cam,
                "images": world.images,
                "labels": np.arange(IMAGES) % len(CLASSES),
                **spoiled,
            }
        ),
        also=("labels", "images", "model"),
    ),
    Target(
        "ContributionIndex",
        {
            "explainer": "object",
            "space": "choice",
            "target": "choice",
            "metric": "choice",
            "backend": "choice",
            "task": "choice",
            "output": "name",
            "classes": "list",
            "device": "choice",
            "memory_limit": "count",
        },
        _index,
    ),
    Target(
        "ContributionIndex.fit",
        {"X": "rows", "y": "labels", "labels": "labels"},
        _index_fit,
        also=("labels", "X", "y", "model"),
    ),
    Target(
        "ContributionIndex.add",
        {"X": "rows", "y": "labels", "labels": "labels"},
        _index_add,
        also=("labels", "X", "y", "model"),
    ),
    Target(
        "ContributionIndex.query",
        {"X": "rows", "k": "count", "exclude": "labels"},
        on_index("query", X=0, k=3),
    ),
    Target(
        "ContributionIndex.kneighbors",
        {"X": "rows", "n_neighbors": "count"},
        on_index("kneighbors", X=0, n_neighbors=3),
        also=("X", "k", "model"),
    ),
    Target(
        "ContributionIndex.duplicates",
        {"threshold": "share", "k": "count", "X": "rows"},
        on_index("duplicates"),
    ),
    Target(
        "ContributionIndex.influence",
        {"X": "rows", "target": "labels", "k": "count"},
        on_index("influence", X=0),
        also=("model", "X", "head"),
    ),
    Target("ContributionIndex.prototypes", {"per_class": "count"}, on_index("prototypes")),
    Target("ContributionIndex.save", {"path": "path"}, _save("index")),
    Target(
        "ContributionIndex.load",
        {"path": "path"},
        _load(lambda w: lambda path: nobsp.ContributionIndex.load(path, w.explainer)),
    ),
    Target(
        "audit",
        {
            "index": "object",
            "X": "rows",
            "labels": "labels",
            "k": "count",
            "exclude": "labels",
            "joint": "object",
            "budget": "count",
            "precision": "share",
            "outliers": "share",
        },
        _audit,
        also=("labels", "X", "model"),
    ),
    Target(
        "select", {"index": "object", "n": "count", "by": "choice", "labelled": "labels"}, _select
    ),
    Target("Neighbors.nearest", {"k": "count"}, _on("hits", "nearest", k=2)),
    Target(
        "Neighbors.purity_towards",
        {"labels": "labels"},
        _on("hits", "purity_towards", labels=np.arange(ROWS) % 3),
    ),
    Target("report", {"subject": "object", "path": "path", **REPORT_OPTIONS}, _report),
    Target(
        "report of images",
        # Neighbours alone show pictures of the gallery.
        {**REPORT_OPTIONS, "images": "images"},
        _report_images,
    ),
    Target(
        "report of neighbours",
        {**REPORT_OPTIONS, "images": "images", "gallery": "images"},
        _report_hits,
    ),
    Target("report of an audit", REPORT_OPTIONS, _report_audit),
    Target(
        "as_module",
        {"model": "object", "example": "rows"},
        lambda _, __, spoiled: nobsp.as_module(
            **{"model": _exported(), "example": (torch.zeros(4, 3),), **spoiled}
        ),
        also=("model", "example", "path"),
        # Whatever the program itself takes.
        takes=("complex tensor",),
    ),
    Target(
        "Local",
        {"checkpoint": "path", "every": "share", "memory": "count"},
        lambda world, _, spoiled: _fit(world, _, {"engine": nobsp.Local(**spoiled)}),
        also=("checkpoint", "path", "every", "memory"),
        takes=("None",),  # no checkpoint
    ),
    Target(
        "metrics.attribution_faithfulness",
        {"attributions": "array", "effects": "array", "groups": "any"},
        metric_of(
            "attribution_faithfulness",
            lambda w: {"attributions": _attributions(w), "effects": _attributions(w)},
        ),
        also=("attributions", "effects"),
    ),
    Target(
        "metrics.delta_agreement",
        {"attributions": "array", "outputs": "array", "pairs": "object"},
        metric_of(
            "delta_agreement",
            lambda w: {"attributions": w.X, "outputs": w.X.sum(1), "pairs": _pairs(w)},
        ),
        also=("attributions", "outputs", "pairs"),
    ),
    Target(
        "metrics.find_pairs",
        {
            "X": "rows",
            "classes": "labels",
            "groups": "any",
            "max_pairs": "count",
            "distance_percentile": "share",
            "max_rows": "count",
            "seed": "count",
        },
        metric_of("find_pairs", lambda w: {"X": w.X}),
        takes=(*ANY_WIDTH, *ANY_NAMES),
    ),
    Target(
        "metrics.function_reproduction",
        {"contributions": "array", "truth": "array", "outputs": "array"},
        metric_of("function_reproduction", lambda w: {"contributions": w.X, "truth": w.X}),
        also=("contributions", "truth", "outputs"),
        may_be_nan=True,
    ),
    Target(
        "metrics.gini_sparseness",
        {"attributions": "array"},
        metric_of("gini_sparseness", lambda _: {}),
    ),
    Target("metrics.sparseness", {"attributions": "array"}, metric_of("sparseness", lambda _: {})),
    Target(
        "metrics.at_target",
        {"values": "array", "target": "labels"},
        metric_of("at_target", lambda w: {"values": w.X, "target": w.labels}),
        also=("values", "target"),
    ),
    Target(
        "metrics.ablation_effects",
        {
            "model": "model",
            "X": "rows",
            "baseline": "array",
            "groups": "any",
            "target": "labels",
            "batch_size": "count",
        },
        metric_of(
            "ablation_effects", lambda w: {"model": w.network, "X": w.X, "baseline": np.zeros(3)}
        ),
        takes=ANY_NAMES,
    ),
    Target(
        "metrics.region_deletion_auc",
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
            "region_deletion_auc",
            lambda w: {
                "model": w.image_network,
                "images": w.images,
                "maps": np.asarray(w.images[:, 0]),
            },
        ),
        also=("model", "images", "maps"),
    ),
    Target(
        "plots.waterfall",
        {"ex": "object", "row": "name", "output": "name", "max_display": "count"},
        plot_of("waterfall", lambda w: {"ex": w.explanation, "output": 0}),
    ),
    Target(
        "plots.beeswarm",
        {"ex": "object", "output": "name", "max_display": "count"},
        plot_of("beeswarm", lambda w: {"ex": w.explanation, "output": 0}),
    ),
    Target(
        "plots.ledger",
        {"ex": "object", "output": "name", "max_display": "count"},
        plot_of("ledger", lambda w: {"ex": w.explanation, "output": 0}),
    ),
    Target(
        "plots.curves",
        {
            "explainer": "object",
            "features": "name",
            "output": "name",
            "data": "rows",
            "points": "count",
            "confidence": "share",
            "max_display": "count",
            "truth": "any",
        },
        plot_of("curves", lambda w: {"explainer": w.explainer, "output": 0}),
    ),
    Target(
        "plots.health",
        {"what": "object", "max_display": "count"},
        plot_of("health", lambda w: {"what": w.explainer}),
    ),
    Target(
        "plots.importance",
        {"what": "object", "output": "name", "max_display": "count"},
        plot_of("importance", lambda w: {"what": w.explainer}),
    ),
    Target(
        "plots.interaction",
        {"explainer": "object", "pair": "name", "output": "name", "points": "count"},
        plot_of(
            "interaction",
            lambda w: {"explainer": w.explainer, "pair": ("age", "income"), "output": 0},
        ),
    ),
    Target(
        "plots.interaction_matrix",
        {"what": "object", "output": "name", "max_display": "count"},
        plot_of("interaction_matrix", lambda w: {"what": w.explanation}),
    ),
    Target(
        "plots.cam_grid",
        {
            "maps": "object",
            "images": "images",
            "kinds": "choice",
            "labels": "labels",
            "opacity": "share",
            "max_display": "count",
        },
        plot_of("cam_grid", lambda w: {"maps": w.maps, "images": w.images}),
    ),
    Target(
        "plots.retrieval_panel",
        {
            "query": "images",
            "hits_contributions": "object",
            "database": "images",
            "row": "name",
            "max_display": "count",
        },
        plot_of(
            "retrieval_panel",
            lambda w: {
                "query": make_images(images=ROWS),
                "hits_contributions": w.hits,
                "database": make_images(images=ROWS),
            },
        ),
        takes=ONE_PICTURE,
    ),
)
