"""Whatever is added up over rows, and the engines for it: here, on a group's ranks, or on Ray."""

from nobsp.calibration.distributed import Ranks
from nobsp.calibration.local import Local, Run, State, choose_engine
from nobsp.calibration.ray import RayCluster

__all__ = ["Engine", "Local", "Ranks", "RayCluster", "Run", "State", "choose_engine"]

Engine = Local | Ranks | RayCluster
