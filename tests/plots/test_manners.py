"""What all plots promise: axes in and out, nothing shown, nobody's settings changed, any name drawn as text."""

import functools
import inspect
import os
from dataclasses import replace

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from sklearn.exceptions import NotFittedError
from torch import nn

from nobsp import NObSP, NObSPCam, explain_parts, plots
from tests.parts.streams import Transformer, drawn, rows
from tests.plots import pictures
from tests.plots.subjects import account
from tests.processes import run_python

# Names that would be formulas, orders, or nothing at all.
AWKWARD = ("cost in $ or $x^2$", "_hidden", "מחיר $", "two\nlines & <b>more</b> \\frac{1}{2}")

ON_ONE_AXES = {
    "curves": lambda ax: plots.curves(pictures.explainer(), "age", ax=ax),
    "importance": lambda ax: plots.importance(account(), ax=ax),
    "waterfall": lambda ax: plots.waterfall(account(), ax=ax),
    "beeswarm": lambda ax: plots.beeswarm(account(), ax=ax),
    "ledger": lambda ax: plots.ledger(account(), ax=ax),
    "windows": lambda ax: plots.windows(pictures.series(interactions=0), ax=ax),
    "interaction": lambda ax: plots.interaction(pictures.explainer(), ("age", "income"), ax=ax),
    "interaction_matrix": lambda ax: plots.interaction_matrix(
        pictures.explainer(interactions=1), ax=ax
    ),
    "health": lambda ax: plots.health(pictures.explainer(), ax=ax),
    "parts": lambda ax: plots.parts(dissected()[0], ax=ax),
    "lens": lambda ax: plots.lens(dissected()[1], ax=ax),
    "gaps": lambda ax: plots.gaps(pictures.comparison(), ax=ax),
    "along": lambda ax: plots.along(pictures.comparison(), "age", ax=ax),
    "two_curves": lambda ax: plots.two_curves(pictures.comparison(), "age", ax=ax),
}


@functools.cache
def dissected():
    """A small transformer's parts, its outputs by depth, and its ablation."""
    model = drawn(Transformer(last_norm=True))
    x = rows(20, 4, 3)
    ex = explain_parts(model, x)
    return ex, ex.lens(x), ex.ablation(x)


def awkward():
    """An account whose features have awkward names."""
    ex = account()
    told = dict(zip(ex.feature_names, AWKWARD, strict=True))
    return replace(
        ex,
        feature_names=AWKWARD,
        terms=tuple(tuple(told[name] for name in term) for term in ex.terms),
        output_names=("out $1$ or $2$",),
        data=ex.data.rename(columns=told),
    )


def test_the_public_names_are_the_plots():
    assert set(plots.__all__) == {
        *ON_ONE_AXES,
        "cam_grid",
        "confusions",
        "retrieval_panel",
        "signal",
        "words",
        "words_html",
    }
    for name in set(plots.__all__) - {"words_html"}:
        assert "ax" in inspect.signature(getattr(plots, name)).parameters


@pytest.mark.parametrize("name", ON_ONE_AXES)
def test_the_callers_axes_are_drawn_on_and_come_back(name):
    figure, (given, other) = plt.subplots(1, 2)
    before = plt.get_fignums()
    returned = ON_ONE_AXES[name](given)
    assert returned is given
    assert plt.get_fignums() == before
    assert len(other.get_children()) == len(plt.figure().add_subplot().get_children())
    assert given.get_xlabel() or given.get_yticklabels()
    figure.canvas.draw()


@pytest.mark.parametrize("name", ON_ONE_AXES)
def test_axes_of_a_figure_without_pyplot_will_do(name):
    figure = mpl.figure.Figure()
    ON_ONE_AXES[name](figure.add_subplot())
    assert plt.get_fignums() == []
    figure.canvas.draw()


@pytest.mark.parametrize("plot", pictures.PLOTS, ids=lambda plot: plot.__name__)
def test_a_plot_makes_one_figure_shows_nothing_and_changes_no_setting(plot, monkeypatch):
    monkeypatch.setattr(plt, "show", lambda *_, **__: pytest.fail("show was called"))
    before = dict(mpl.rcParams)
    drawn = plot()
    assert dict(mpl.rcParams) == before
    assert len(plt.get_fignums()) == 1
    assert all(isinstance(ax, Axes) for ax in np.ravel(drawn))


@pytest.mark.parametrize("ax", ["axes", 3, object()])
def test_something_else_than_axes_is_an_error(ax):
    with pytest.raises(TypeError, match="ax must be matplotlib axes, found"):
        plots.importance(account(), ax=ax)


def test_more_axes_than_needed_are_an_error():
    _, given = plt.subplots(1, 2)
    with pytest.raises(ValueError, match="ax has 2 axes but this plot has 1 panel"):
        plots.importance(account(), ax=given)


@pytest.mark.parametrize(
    "plot",
    [plots.importance, plots.beeswarm, plots.waterfall, plots.ledger, plots.interaction_matrix],
)
def test_awkward_names_are_drawn_as_they_are(plot):
    ax = plot(awkward())
    ax.figure.canvas.draw()  # a formula that makes no sense would be an error here
    for text in ax.findobj(mpl.text.Text):
        assert text._preprocess_math(text.get_text())[1] is False


def test_awkward_names_of_features_levels_and_outputs_are_drawn_as_they_are():
    draw = np.random.default_rng(0)
    X = np.column_stack([draw.normal(size=(200, 2)), np.eye(2)[draw.integers(0, 2, 200)]])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    features = {AWKWARD[0]: 0, AWKWARD[1]: 1, AWKWARD[2]: [2, 3]}
    options = {"interactions": [(AWKWARD[0], AWKWARD[2])], "output_names": ["_a", "$b$ or $c$"]}
    explainer = NObSP(model, features=features, **options).fit(X)
    axes = plots.curves(explainer)
    [legend] = axes[0].figure.legends
    assert [text.get_text().strip() for text in legend.get_texts()][:2] == ["_a", r"\$b\$ or \$c\$"]
    plots.interaction(explainer, (AWKWARD[0], AWKWARD[2]), output=1).figure.canvas.draw()
    plots.health(explainer).figure.canvas.draw()
    axes[0].figure.canvas.draw()


@pytest.mark.parametrize(
    "name", ["importance", "curves", "interaction", "interaction_matrix", "health"]
)
def test_an_explainer_that_is_not_calibrated_is_an_error(name):
    arguments = [("age", "income")] if name == "interaction" else []
    with pytest.raises(NotFittedError, match="call fit"):
        getattr(plots, name)(NObSP(nn.Linear(2, 1)), *arguments)


@pytest.mark.parametrize("plot", [plots.waterfall, plots.beeswarm, plots.ledger])
def test_plots_of_rows_ask_for_an_explanation(plot, known):
    with pytest.raises(TypeError, match=r"found NObSP; pass explainer\(X\)"):
        plot(known)
    with pytest.raises(TypeError, match="found list"):
        plot([1, 2])
    with pytest.raises(ValueError, match="has no rows"):
        plot(account()[:0])


def test_plots_of_functions_ask_for_the_explainer(ex):
    with pytest.raises(TypeError, match="pass the explainer itself"):
        plots.curves(ex)
    with pytest.raises(TypeError, match="pass the explainer itself"):
        plots.interaction(ex, ("age", "income"))
    with pytest.raises(TypeError, match="found list"):
        plots.importance([1, 2])


@pytest.mark.parametrize("max_display", [0, -1, 2.5, True, "all"])
def test_max_display_is_a_number_of_things(ex, max_display):
    with pytest.raises(ValueError, match="max_display must be a whole number of at least 1"):
        plots.importance(ex, max_display=max_display)


def run(program, **environment):
    here = {
        name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ
    }  # the code under test
    return run_python(program, flags=["-W", "error"], env=here | environment).stdout


def test_importing_the_plots_loads_neither_matplotlib_nor_torch():
    assert (
        run("import nobsp.plots, sys; print({'matplotlib', 'torch'} & {*sys.modules})") == "set()\n"
    )


def test_a_compiled_explainer_is_drawn_without_torch(known, tmp_path):
    known.compile().save(tmp_path / "small.nobsp")
    program = f"""
import sys
from nobsp import Functions, plots
compiled = Functions.load({str(tmp_path / "small.nobsp")!r})
plots.curves(compiled)
plots.interaction(compiled, ("age", "income"))
plots.importance(compiled)
plots.health(compiled)
print("torch" in sys.modules)
"""
    assert run(program) == "False\n"


def test_without_matplotlib_the_extra_is_named():
    program = """
import sys
sys.modules["matplotlib"] = sys.modules["matplotlib.pyplot"] = None
from nobsp.plots._axes import new_figure
try:
    new_figure((1, 1))
except ImportError as missing:
    print(missing)
"""
    assert run(program) == "plots need matplotlib: pip install 'nobsp[plot]'.\n"


def test_plots_are_drawn_without_a_display():
    program = """
from tests.plots.subjects import account
from nobsp import plots
plots.waterfall(account()).figure.savefig("/dev/null", format="png")
print("drawn")
"""
    assert run(program, PYTHONPATH="src:.") == "drawn\n"


@pytest.mark.parametrize("tokens", ["not good", [["not", "good"]]])
def test_words_of_one_text_are_asked_for(tokens):
    torch.manual_seed(0)
    reader = nn.Sequential(
        nn.Conv1d(4, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(8, 2),
    )
    maps = NObSPCam(reader).fit(torch.rand(20, 4, 6))(torch.rand(2, 4, 6))
    with pytest.raises(ValueError, match="tokens"):
        plots.words(maps, tokens)
