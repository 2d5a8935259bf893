"""Parts are drawn where they stand: blocks down, heads across, direct beside ablated."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest

import nobsp
from nobsp import plots
from tests.parts.streams import Padded, ResNet, Transformer, drawn, rows, texts


def test_the_map_has_a_line_for_each_block_and_a_column_for_each_head_and_the_mlp() -> None:
    x = rows(12, 4, 3)
    ex = nobsp.explain_parts(drawn(Transformer(last_norm=True)), x)

    ax = ex.plot.parts(output=1)

    grid = np.ma.filled(ax.images[0].get_array().astype(float), np.nan)
    assert grid.shape == (3, 4)
    sizes = np.abs(ex.values[..., 1]).mean(0)
    np.testing.assert_allclose(grid[1:, 1:], sizes[1:].reshape(2, 3))
    assert [label.get_text() for label in ax.get_xticklabels()] == [
        "whole",
        "head 0",
        "head 1",
        "MLP",
    ]
    assert grid[0, 0] == pytest.approx(sizes[0])
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "embedding",
        "block 0",
        "block 1",
    ]


def test_what_masks_do_has_a_line_of_its_own() -> None:
    ex = nobsp.explain_parts(drawn(Padded()), texts())

    ax = ex.plot.parts()

    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "embedding",
        "mask",
        "block 0",
        "block 1",
    ]
    grid = np.ma.filled(ax.images[0].get_array().astype(float), np.nan)
    sizes = np.abs(ex.values[..., 0]).mean(0)
    np.testing.assert_allclose(grid[:2, 0], sizes[[0, -1]])


def test_an_ablation_is_drawn_beside_what_is_added_directly() -> None:
    x = rows(12, 4, 3)
    ablation = nobsp.explain_parts(drawn(Transformer(last_norm=True)), x).ablation(x)

    direct, effects = ablation.plot.parts()

    grid = np.ma.filled(effects.images[0].get_array().astype(float), np.nan)
    np.testing.assert_allclose(grid[1:, 1:].ravel(), np.abs(ablation.effects[..., 0]).mean(0)[1:])
    assert direct.figure is effects.figure
    assert direct.images[0].get_clim() == effects.images[0].get_clim()


def test_blocks_of_a_residual_network_are_bars_in_their_order() -> None:
    x = rows(8, 3, 6, 6)
    ex = nobsp.explain_parts(drawn(ResNet()), x)

    ax = plots.parts(ex, max_display=2)

    assert len(ax.patches) == 2
    sizes = np.abs(ex.values[..., 0]).mean(0)
    widths = [patch.get_width() for patch in ax.patches]
    np.testing.assert_allclose(sorted(widths), np.sort(sizes)[-2:])


def test_the_lens_is_drawn_by_depth() -> None:
    x = rows(12, 4, 3)
    lens = nobsp.explain_parts(drawn(Transformer(last_norm=True)), x).lens(x)

    ax = lens.plot.lens()

    order = np.argsort(lens.outputs[:, -1, 0])
    for line, row in zip(ax.lines, order, strict=True):
        np.testing.assert_allclose(line.get_ydata(), lens.outputs[row, :, 0])


@pytest.mark.parametrize("output", ["third", 2, 0.5])
def test_an_output_that_is_not_there_is_refused(output: object) -> None:
    x = rows(12, 4, 3)
    ex = nobsp.explain_parts(drawn(Transformer(last_norm=True)), x)

    with pytest.raises(ValueError, match="output"):
        plots.parts(ex, output=output)  # type: ignore[arg-type]
    assert plt.get_fignums() == []
