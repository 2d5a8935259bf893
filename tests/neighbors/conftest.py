"""Cases that many tests share; none of them changes them."""

from __future__ import annotations

import pytest

from tests.neighbors.cases import Explained, Headed, headed, on_a_table, on_images


@pytest.fixture(scope="session")
def case() -> Headed:
    return headed()


@pytest.fixture(scope="session")
def table() -> Explained:
    return on_a_table()


@pytest.fixture(scope="session")
def pictures() -> Explained:
    return on_images()
