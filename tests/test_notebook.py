"""What notebooks show: every result at a glance, names escaped, numbers those of the result."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nobsp
from nobsp import notebook
from nobsp.findings import Finding

NASTY = "<script>alert(1)</script>"


class Balance(HTMLParser):
    """Tags that are open; an error where one is closed that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag != "img":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        """Closes itself."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def is_balanced(shown: str) -> bool:
    parser = Balance()
    parser.feed(shown)
    return not parser.open


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def explainer(rows: np.ndarray) -> nobsp.NObSP:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
    names = [NASTY, "b", "c"]
    return nobsp.NObSP(model, features=names, output_names=["<i>y"], interactions=0).fit(rows)


@pytest.fixture(scope="module")
def cam() -> nobsp.NObSPCam:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )
    return nobsp.NObSPCam(model).fit(torch.rand(40, 3, 10, 10))


def test_every_result_shows_itself(
    explainer: nobsp.NObSP, cam: nobsp.NObSPCam, rows: np.ndarray
) -> None:
    ex = explainer(rows[:20])
    maps = cam(torch.rand(4, 3, 10, 10))
    labels = (explainer(rows).predictions[:, 0] > 0).astype(int)
    found = nobsp.audit(nobsp.ContributionIndex(explainer, task="classification").fit(rows, labels))
    results = [
        nobsp.compare(ex, explainer(rows[20:60])),
        nobsp.NObSP(explainer.model),
        explainer,
        explainer.health(),
        explainer.compile(),
        ex,
        ex[3],
        ex[[]],
        nobsp.NObSPCam(cam.model),
        cam,
        cam.health(),
        maps,
        found,
    ]
    for result in results:
        shown = result._repr_html_()
        assert is_balanced(shown), type(result)
        assert "<script>" not in shown
        assert "<i>y" not in shown
        assert "nan" not in shown


def test_an_index_shows_its_rows(cam: nobsp.NObSPCam) -> None:
    index = nobsp.ContributionIndex(cam)
    assert "No rows yet" in index._repr_mimebundle_()["text/html"]
    shown = index.fit(torch.rand(20, 3, 10, 10))._repr_mimebundle_(include=None)["text/html"]
    assert "20 rows without labels" in shown
    assert is_balanced(shown)


def test_a_smaller_network_shows_what_is_left_of_it(rows: np.ndarray) -> None:
    torch.manual_seed(0)
    hidden = [layer for _ in range(9) for layer in (nn.Linear(12, 12), nn.Tanh())]
    model = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), *hidden, nn.Linear(12, 2))
    pruned = nobsp.prune(model, torch.from_numpy(rows), keep=0.5)
    shown = pruned._repr_html_()
    assert is_balanced(shown)
    assert f"{pruned.parameters.ratio:.0%}" in shown
    assert "and 2 other layers" in shown


def test_parts_of_a_network_show_the_strongest(rows: np.ndarray) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    parts = nobsp.explain_parts(model, torch.from_numpy(rows))
    shown = parts._repr_html_()
    assert is_balanced(shown)
    assert "residual" in shown


@pytest.fixture(scope="module")
def transformer_parts() -> tuple[nobsp.PartsExplanation, torch.Tensor]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 4, 12, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    model = nn.Sequential(encoder, nn.Flatten(), nn.Linear(24, 2))
    x = torch.randn(12, 3, 8)
    return nobsp.explain_parts(model.eval(), x), x


def test_an_ablation_shows_what_is_lost_without_the_strongest(
    transformer_parts: tuple[nobsp.PartsExplanation, torch.Tensor],
) -> None:
    parts, x = transformer_parts
    ablation = parts.ablation(x)
    sizes = np.abs(ablation.effects).mean((0, 2))
    order = np.argsort(-sizes)

    shown = ablation._repr_html_()

    assert is_balanced(shown)
    assert "16 of 16 parts" in shown
    assert "and 6 other parts" in shown
    for part in order[:10]:
        assert ablation.names[part] in shown
        assert notebook.write_number(sizes[part]) in shown
        direct = float(np.abs(ablation.direct[:, part]).mean())
        assert f"{notebook.write_number(direct)} directly" in shown
    assert ablation.names[order[10]] not in shown


def test_an_ablation_of_some_parts_shows_no_others(
    transformer_parts: tuple[nobsp.PartsExplanation, torch.Tensor],
) -> None:
    parts, x = transformer_parts

    ablation = parts.ablation(x, most=2)

    shown = ablation._repr_html_()
    assert is_balanced(shown)
    assert "nan" not in shown
    assert "2 of 16 parts" in shown
    assert shown.count(" directly") == 2
    assert "other part" not in shown


def test_a_lens_shows_how_far_each_depth_is_from_the_outputs(
    transformer_parts: tuple[nobsp.PartsExplanation, torch.Tensor],
) -> None:
    parts, x = transformer_parts
    lens = parts.lens(x)

    shown = lens._repr_html_()

    assert is_balanced(shown)
    assert repr(lens) == (
        "Lens(12 rows, 2 outputs at 4 depths: embedding, block 0, block 1, block 2)"
    )
    missing = np.abs(lens.outputs - lens.outputs[:, -1:]).mean((0, 2))
    for depth, size in zip(lens.depths, missing, strict=True):
        assert depth in shown
        assert notebook.write_number(size) in shown


def test_a_row_shows_its_own_account(explainer: nobsp.NObSP, rows: np.ndarray) -> None:
    ex = explainer(rows[:20])[3]
    shown = ex._repr_html_()
    for number in (*ex.values[0, :, 0], ex.residual[0, 0], ex.base_values[0], ex.predictions[0, 0]):
        assert notebook.write_number(float(number)) in shown


def test_an_explainer_shows_its_headline_and_a_curve_for_every_feature(
    explainer: nobsp.NObSP,
) -> None:
    shown = explainer._repr_html_()
    assert explainer.health().headline in shown
    assert shown.count("<polyline") == 3


def test_an_audit_shows_how_much_is_flagged_and_the_first_reasons(
    explainer: nobsp.NObSP, rows: np.ndarray
) -> None:
    labels = (explainer(rows).predictions[:, 0] > 0).astype(int)
    labels[:5] = 1 - labels[:5]
    found = nobsp.audit(nobsp.ContributionIndex(explainer, task="classification").fit(rows, labels))
    shown = found._repr_html_()
    assert "suspected mislabels" in shown
    assert all(f"row {found.rows[row]}: " in shown for row in found.flagged[:5])


@pytest.mark.parametrize("channels", [3, 4])
def test_pictures_are_png_with_the_pixels_given(channels: int) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).random((5, 7, channels))
    address = re.search(r"base64,([^']+)'", notebook.picture(pixels, "a <b>"))
    assert address is not None
    read = np.asarray(image.open(io.BytesIO(base64.b64decode(address[1]))))
    assert np.array_equal(read, (pixels * 255).astype(np.uint8))


def test_where_a_map_is_zero_the_page_is_seen(cam: nobsp.NObSPCam) -> None:
    image = pytest.importorskip("PIL.Image")
    shown = cam(torch.rand(1, 3, 10, 10))._repr_html_()
    address = re.search(r"base64,([^']+)'", shown)
    assert address is not None
    opacity = np.asarray(image.open(io.BytesIO(base64.b64decode(address[1]))))[..., 3]
    assert opacity.min() < 40
    assert opacity.max() == 255


@pytest.mark.parametrize("shape", [(3, 8), (3, 4, 6, 5)])
def test_maps_of_signals_and_volumes_are_shown_too(
    cam: nobsp.NObSPCam, shape: tuple[int, ...]
) -> None:
    from dataclasses import replace

    values = np.random.default_rng(0).normal(size=shape)
    maps = cam(torch.rand(3, 3, 10, 10))
    kinds = ("positive", "negative", "signed", "account", "contrast")
    shown = replace(maps, **dict.fromkeys(kinds, values))._repr_html_()  # type: ignore[arg-type]
    assert shown.count("<img") == 3
    assert is_balanced(shown)


def test_findings_are_cut_short_and_counted() -> None:
    found = [Finding("note", "code", f"<{number}>", f"said {number}") for number in range(7)]
    shown = notebook.findings(found, most=3)
    assert "and 4 more" in shown
    assert "&lt;2&gt;" in shown
    assert "&lt;3&gt;" not in shown


def test_a_curve_without_points_is_no_curve() -> None:
    assert notebook.small_curve(np.full(3, np.nan), np.zeros(3)) == ""
    assert notebook.small_curve(np.zeros(3), np.zeros(3)) == ""


def test_bars_give_way_on_a_narrow_screen(explainer: nobsp.NObSP) -> None:
    shown = explainer._repr_html_()
    assert "width:140px" not in shown
    assert "width:min(140px,14vw)" in shown


def test_bars_stay_in_view_beside_a_long_name(browser: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(100, 2))
    names = ["a_name_without_any_space_" * 6, "other"]
    explainer = nobsp.NObSP(lambda X: X[:, 0] + X[:, 1], features=names, interactions=0).fit(rows)
    page = browser.new_page(viewport={"width": 400, "height": 800})
    page.set_content(explainer._repr_html_())
    width = page.evaluate("document.documentElement.scrollWidth")
    page.close()
    assert width <= 400


def test_rounding_beside_bars_is_nothing() -> None:
    shown = notebook.bars([notebook.Bar("a", 2.0), notebook.Bar("b", 3e-17)], heading="sizes")
    assert ">0</td>" in shown
    assert "e−17" not in shown
