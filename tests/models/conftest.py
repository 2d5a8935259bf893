"""Frames of both kinds, as the tests of the room below have them."""

from tests.network.conftest import frame_of

__all__ = ["frame_of"]
