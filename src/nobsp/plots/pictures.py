"""Images of any kind as pictures to draw."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def picture_of(item: Any, argument: str) -> NDArray[np.float64]:
    """One image, shape (height, width, 3), from 0 to 1."""
    given = item[0] if isinstance(item, tuple | list) and len(item) else item
    if hasattr(given, "detach"):
        given = given.detach().cpu()
        given = given.double() if given.is_floating_point() else given  # numpy has no bfloat16
    given = np.asarray(given)
    whole = given.dtype.kind in "iu"
    array = np.asarray(given, dtype=np.float64)
    if array.ndim == 2:
        array = array[:, :, None]
    elif array.ndim == 3 and array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3):
        array = np.moveaxis(array, 0, 2)
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or array.size == 0:
        raise ValueError(f"{argument} has an image of shape {array.shape}; expected (channels, height, width).")
    array = array[:, :, :3] / (255.0 if whole else 1.0)
    low, high = float(array.min()), float(array.max())
    if low < 0 or high > 1:
        array = (array - low) / ((high - low) or 1.0)
    return np.asarray(np.broadcast_to(array, (*array.shape[:2], 3)))
