"""The tests hold on other processors too: a selection of them, run with torch's kernels for any processor."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from tests.processes import LONGEST_RUN, run_process

ROOT = Path(__file__).parents[1]
# Where results that were computed along two paths are compared: algebra, resumed work, files, tables, maps.
SELECTION = (
    "tests/projection",
    "tests/tabular/test_checkpoint.py",
    "tests/tabular/test_files.py",
    "tests/tabular/test_lookup.py",
    "tests/tabular/test_fit_together.py",
    "tests/vision/test_cam.py",
)
# These take long for what does not depend on the processor: killed processes, memory, many points, files changed.
LEFT_OUT = "not killed and not memory and not million and not at_many_points and not places and not refused"


def test_the_setting_that_was_asked_for_is_in_force() -> None:
    """Torch ignores a name it does not know."""
    asked = os.environ.get("ATEN_CPU_CAPABILITY")
    assert asked is None or torch.backends.cpu.get_cpu_capability() == asked.upper()
    assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"])


@pytest.mark.parametrize("path", SELECTION)
def test_what_is_selected_exists(path: str) -> None:
    assert (ROOT / path).exists(), f"{path} is gone; say in SELECTION where its tests are now"


@pytest.mark.skipif(
    "ATEN_CPU_CAPABILITY" in os.environ, reason="the whole suite runs with other kernels"
)
def test_results_agree_to_rounding_with_the_kernels_of_any_processor() -> None:
    options = [
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--hypothesis-profile=brief",
        "-k",
        LEFT_OUT,
    ]
    run_process(
        [sys.executable, "-m", "pytest", *options, *SELECTION],
        timeout=2 * LONGEST_RUN,
        cwd=ROOT,
        env=os.environ | {"ATEN_CPU_CAPABILITY": "default"},
    )
