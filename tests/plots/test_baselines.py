"""Every plot against the image of it that was looked at and kept.

After a change that is meant, look at the new images and keep them:

    NOBSP_KEEP_IMAGES=1 python -m pytest tests/plots/test_baselines.py

They are compared by the root mean square of their differences, from 0 to 255. Letters look a little different from one
version of matplotlib to the next, so the comparison is left out with any other than the one that drew them.
"""

import os
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.testing.compare import compare_images

from tests.plots.pictures import PLOTS

BASELINE = Path(__file__).parent / "baseline"
DRAWN_WITH = "3.11."
TOLERANCE = 1.5

pytestmark = pytest.mark.skipif(
    not mpl.__version__.startswith(DRAWN_WITH),
    reason=f"the images were drawn with matplotlib {DRAWN_WITH}x",
)


def drawn(plot, path, *, without=""):
    """Saves a plot, with some parts of it hidden."""
    axes = np.ravel(plot())
    hidden = [part for ax in axes for part in ax.findobj() if without and part.get_gid() == without]
    assert hidden or not without
    for part in hidden:
        part.set_visible(False)
    axes[0].figure.savefig(path, dpi=60, metadata={"Software": None})
    return path


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.__name__)
def test_it_looks_as_it_did(plot, tmp_path):
    kept = BASELINE / f"{plot.__name__}.png"
    if os.environ.get("NOBSP_KEEP_IMAGES"):
        drawn(plot, kept)
    difference = compare_images(kept, drawn(plot, tmp_path / kept.name), TOLERANCE)
    assert difference is None, difference


@pytest.mark.parametrize(
    ("plot", "part"),
    [(plot, part) for plot, parts in PLOTS.items() for part in parts],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_missing_part_is_noticed(plot, part, tmp_path):
    kept = BASELINE / f"{plot.__name__}.png"
    assert (
        compare_images(kept, drawn(plot, tmp_path / kept.name, without=part), TOLERANCE) is not None
    )


def test_images_are_small():
    assert {path.stem for path in BASELINE.glob("*.png")} == {plot.__name__ for plot in PLOTS}
    assert all(path.stat().st_size < 60_000 for path in BASELINE.glob("*.png"))
