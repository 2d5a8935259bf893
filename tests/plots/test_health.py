"""Health as a picture: held-out R² of the outputs, own shares of the terms, and every finding in words."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from nobsp import NObSP, NObSPCam, plots
from nobsp.findings import Finding
from nobsp.tabular import Health, TermHealth


def shares_of(ax):
    return [line.get_xdata()[0] for line in ax.lines if line.get_gid() == "share"]


def names_of(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


def sick(terms=4, findings=2):
    severities = ("note", "warning", "error")
    return Health(
        findings=tuple(
            Finding(severities[k % 3], "worry", f"feature {k}", f"Worry number {k}. " * 12)
            for k in range(findings)
        ),
        terms=tuple(TermHealth((f"feature {k}",), 3, 10.0 ** -(k % 4)) for k in range(terms)),
        explained=(0.93, 0.7),
        inside=(0.93, 0.9),
        outside_rows=0.01,
        rows=1234,
        columns=10,
    )


def test_outputs_come_first_then_terms_each_the_least_well_off_first(two_outputs):
    state = two_outputs.health()
    ax = plots.health(two_outputs)
    own = sorted(term.unique_share for term in state.terms)
    assert shares_of(ax) == pytest.approx([*sorted(state.explained), *own])
    assert set(names_of(ax)[:2]) == {"price", "risk"}
    assert state.headline in ax.get_title(loc="left")


def test_rows_outside_the_range_are_told_apart():
    ax = plots.health(sick())
    [ring] = [line for line in ax.lines if line.get_gid() == "inside"]
    assert ring.get_xdata()[0] == 0.9
    assert any("0.700" in text.get_text() and "0.900" in text.get_text() for text in ax.texts)


def test_what_is_doubtful_is_marked_by_shape_too():
    ax = plots.health(sick())
    markers = [line.get_marker() for line in ax.lines if line.get_gid() == "share"]
    assert markers == ["X", "o", "X", "o", "o", "o"]


def test_a_negative_share_is_drawn_at_zero_and_told():
    ax = plots.health(replace(sick(), explained=(-0.44, 0.9), inside=(-0.44, 0.9)))
    assert shares_of(ax)[0] == 0
    assert "−0.440" in [text.get_text() for text in ax.texts]


def test_findings_stand_below_errors_first():
    words = plots.health(sick(findings=3)).get_xlabel()
    places = [
        words.index(word) for word in ("error: feature 2", "warning: feature 1", "note: feature 0")
    ]
    assert places == sorted(places)
    assert max(map(len, words.splitlines())) < 110


def test_more_findings_than_fit_are_counted():
    assert "and 14 other findings" in plots.health(sick(findings=20)).get_xlabel()


def test_of_many_terms_the_least_well_off_are_shown():
    ax = plots.health(sick(terms=40), max_display=5)
    assert len(shares_of(ax)) == 2 + 5
    assert max(shares_of(ax)[2:]) == pytest.approx(1e-3)
    assert "35 more terms" in ax.get_xlabel()


def test_a_cam_tells_what_its_channels_carry():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    cam = NObSPCam(nn.Sequential(body, nn.Linear(4, 3)), output_names=["a", "b", "c"]).fit(
        torch.randn(40, 1, 8, 8)
    )
    ax = plots.health(cam)
    assert sorted(names_of(ax)) == ["a", "b", "c"]
    assert shares_of(ax) == pytest.approx(np.sort(cam.health().explained))
    assert "40 images, 4 channels" in ax.get_title(loc="left")
    assert names_of(plots.health(cam.health()))[0].startswith("output ")


def test_anything_else_is_an_error(known):
    with pytest.raises(TypeError, match="health draws an explainer"):
        plots.health(3)
    with pytest.raises(Exception, match="not calibrated yet"):
        plots.health(NObSP(known.model))
