"""Anything that is added up over rows, and the engines that do it: here, on the ranks of a group, or on Ray."""

from __future__ import annotations

from typing import Any

from nobsp.calibration.distributed import Ranks
from nobsp.calibration.local import Local, Run, initialised, is_ray
from nobsp.calibration.ray import RayCluster
from nobsp.calibration.state import State

__all__ = ["Engine", "Local", "Ranks", "RayCluster", "Run", "State", "choose_engine"]

Engine = Local | Ranks | RayCluster


def choose_engine(engine: Engine | None, X: Any) -> Engine:
    """The engine asked for; else all ranks where there are several, Ray for its own datasets, and this process."""
    if engine is not None and not isinstance(engine, Engine):
        raise TypeError(
            f"engine must be nobsp.Local(), nobsp.Ranks(), nobsp.RayCluster() or None, found {type(engine).__name__}."
        )
    if engine is not None:
        return engine
    dist = initialised()
    if dist is not None and dist.get_world_size() > 1:
        return Ranks()
    return RayCluster() if is_ray(X) else Local()
