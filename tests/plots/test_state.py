"""Health as a picture: the least well off first, and every finding in words."""

import numpy as np
import pytest
import torch
from torch import nn

from nobsp import NObSP, NObSPCam, plots
from nobsp.tabular import Finding, Health, TermHealth


def shares_of(ax):
    return [line.get_xdata()[0] for line in ax.lines if line.get_gid() == "share"]


def sick(terms=4, findings=2):
    return Health(
        findings=tuple(Finding("warning", f"feature {k}", f"Worry number {k}. " * 12) for k in range(findings)),
        terms=tuple(TermHealth((f"feature {k}",), 3, 10.0 ** -(k % 4), 10.0, 5.0, 1e-4) for k in range(terms)),
        explained=(0.7, 0.93),
        rows=1234,
        columns=10,
    )


def test_every_term_has_its_own_share_the_least_first(known):
    state = known.health()
    ax = plots.health(known)
    assert shares_of(ax) == pytest.approx(sorted(term.unique_share for term in state.terms))
    assert ax.get_title(loc="left").startswith("400 rows, 4 terms carry at least")


def test_doubtful_terms_are_marked_by_shape_too():
    ax = plots.health(sick())
    markers = {line.get_xdata()[0]: line.get_marker() for line in ax.lines if line.get_gid() == "share"}
    assert [markers[share] for share in sorted(markers)] == ["X", "o", "o", "o"]


def test_all_findings_stand_below_in_words():
    words = plots.health(sick()).get_xlabel()
    assert "! feature 0: Worry number 0." in words
    assert "Worry number 1." in words
    assert max(map(len, words.splitlines())) < 110
    assert "Nothing to worry about." in plots.health(sick(findings=0)).get_xlabel()


def test_more_findings_than_fit_are_counted():
    assert "and 14 other findings" in plots.health(sick(findings=20)).get_xlabel()


def test_of_many_terms_the_least_well_off_are_shown():
    ax = plots.health(sick(terms=40), max_display=5)
    assert len(shares_of(ax)) == 5
    assert max(shares_of(ax)) == pytest.approx(1e-3)
    assert "the least 5 of 40" in ax.get_xlabel()


def test_a_cam_tells_what_its_channels_carry():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    cam = NObSPCam(nn.Sequential(body, nn.Linear(4, 3)), output_names=["a", "b", "c"]).fit(torch.randn(40, 1, 8, 8))
    ax = plots.health(cam)
    assert sorted(label.get_text() for label in ax.get_yticklabels()) == ["a", "b", "c"]
    assert shares_of(ax) == pytest.approx(np.sort(cam.health().explained))
    assert "40 images, 4 channels" in ax.get_title(loc="left")
    assert next(label.get_text() for label in plots.health(cam.health()).get_yticklabels()).startswith("class ")


def test_anything_else_is_an_error(known):
    with pytest.raises(TypeError, match="health draws an explainer"):
        plots.health(3)
    with pytest.raises(Exception, match="not calibrated yet"):
        plots.health(NObSP(known.model))
