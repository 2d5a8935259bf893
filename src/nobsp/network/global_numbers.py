"""The global random numbers of numpy and Python, put back where a model drew from them."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class GlobalNumbers:
    """Both states at one moment; nothing outside the main thread, where rewinding would repeat others' numbers."""

    numpy_state: Any
    python_state: Any

    @classmethod
    def now(cls) -> GlobalNumbers | None:
        """The states; None in a thread other than the main one."""
        if threading.current_thread() is not threading.main_thread():
            return None
        return cls(np.random.get_state(), random.getstate())  # noqa: NPY002 - the global one is meant

    def move_on(self) -> None:
        """Draw one number from each, so that the next ones are others."""
        np.random.random_sample()  # noqa: NPY002
        random.random()

    def rewind(self) -> bool:
        """Put back what has changed since, and say whether anything had."""
        rewound = False
        if not _is_same(self.numpy_state, np.random.get_state()):  # noqa: NPY002
            np.random.set_state(self.numpy_state)  # noqa: NPY002
            rewound = True
        if self.python_state != random.getstate():
            random.setstate(self.python_state)
            rewound = True
        return rewound


def _is_same(before: Any, after: Any) -> bool:
    """Whether two states of numpy's generator are equal: position first, then the words."""
    name, words, *others = before
    other_name, other_words, *other_others = after
    return name == other_name and others == other_others and np.array_equal(words, other_words)
