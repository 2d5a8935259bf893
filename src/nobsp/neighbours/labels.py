"""Labels that come with the batches of a loader, picked up while the rows are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp.neighbours.outcomes import label_array

# Under which names dictionaries of a loader carry their labels.
_KEYS = ("labels", "label", "y", "targets", "target")


class Labelled:
    """Batches handed on as they are, their labels remembered.

    Args:
        batches: A loader, or another iterable of batches.

    Example:
        >>> read = Labelled([(np.zeros((2, 3)), [0, 1]), (np.zeros((1, 3)), [1])])
        >>> [len(rows) for rows, _ in read]
        [2, 1]
        >>> read.labels
        array([0, 1, 1])
    """

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        self._found: list[NDArray[Any]] = []
        self._without = 0

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self._batches):
            labels = _labels_in(batch)
            if labels is None:
                self._without += 1
            else:
                rows = next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]
                self._found.append(label_array(labels, len(rows), argument=f"the labels of batch {number}"))
            yield batch

    @property
    def labels(self) -> NDArray[Any] | None:
        """All of them; None if batches brought none."""
        if not self._found:
            return None
        if self._without:
            raise ValueError(f"{self._without} batches of X have no labels while others have; give all of them labels.")
        return np.concatenate(self._found)


def labelled(X: Any) -> Any:
    """Rows that come in batches as `Labelled`, all others as they are."""
    nested = isinstance(X, list | tuple) and len(X) and isinstance(X[0], list | tuple) and np.isscalar(X[0][0])
    whole = hasattr(X, "shape") or isinstance(X, str | bytes | Mapping) or not hasattr(X, "__iter__")
    # Datasets are iterable too, one row after another; whoever reads them says what to pass instead.
    single = hasattr(X, "__getitem__") and hasattr(X, "__len__") and not isinstance(X, list | tuple)
    return X if nested or whole or single else Labelled(X)


def _labels_in(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return next((batch[key] for key in _KEYS if key in batch), None)
    if isinstance(batch, tuple | list) and len(batch) > 1 and getattr(batch[0], "ndim", 0) > 1:
        return batch[1]
    return None
