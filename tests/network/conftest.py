"""Frames of both kinds for the tests that take either."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(params=["pandas", "polars"])
def frame_of(request: pytest.FixtureRequest) -> Callable[[dict[str, Any]], Any]:
    """A function from columns to a frame, once for every kind of frame."""
    library = pytest.importorskip(request.param)

    def make(columns: dict[str, Any]) -> Any:
        return library.DataFrame(columns)

    return make
