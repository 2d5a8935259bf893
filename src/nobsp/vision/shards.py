"""Puts together what the ranks of one calibration know of their own images: the first ones, and all they came to."""

from __future__ import annotations

from functools import reduce
from itertools import accumulate, pairwise

from torch import Tensor

from nobsp.network.ranks import Ranks
from nobsp.projection import Moments
from nobsp.vision.channels import UNITS, Means
from nobsp.vision.images import Images
from nobsp.vision.keeping import Calibration
from nobsp.vision.search import PROBE_IMAGES
from nobsp.vision.tail import TailCalibration


def common_first(ranks: Ranks, mine: Images | None) -> Tensor:
    """The first images of the first rank that has any, handed to all; one without passes None.

    Raises:
        ValueError: If no rank has images.
    """
    have = ranks.gather(mine is not None)
    if not any(have):
        raise ValueError(f"images is empty on all {ranks.size} ranks.")
    # A copy: what is sent would take all of a larger tensor along.
    own = None if mine is None else mine.first[:PROBE_IMAGES].detach().to("cpu", copy=True)
    first: Tensor = ranks.hand_out(own, source=have.index(True))
    return first


def common_calibration(ranks: Ranks, mine: Calibration) -> Calibration:
    """What all ranks' images come to, the same on each; in the order of the ranks where that matters."""
    if ranks.alone:
        return mine
    if isinstance(mine, TailCalibration):
        # Only what will be kept is sent, one rank's images after another's: all that ranks have may not fit anywhere.
        part = mine.thinned(shares(ranks.gather(mine.rows), mine.room)[ranks.rank])
        whole: TailCalibration = ranks.hand_out(part, source=0)
        for rank in range(1, ranks.size):
            whole = whole.merge(ranks.hand_out(part, source=rank))
        return whole
    if isinstance(mine.state, Moments):
        parts = {UNITS: [mine.state]}
        ranks.all_reduce(parts)
        return mine.with_state(parts[UNITS][0])
    return mine.with_state(reduce(Means.merge, ranks.gather(mine.state)))


def shares(counts: list[int], room: int) -> list[int]:
    """How many images of each rank are kept where there is `room`: all of them, or in proportion to what it has.

    Example:
        >>> shares([5, 0, 3], 10), shares([50, 0, 30], 10), shares([4, 4, 4], 2)
        ([5, 0, 3], [6, 0, 4], [0, 1, 1])
    """
    total = sum(counts)
    if total <= room:
        return counts
    # Differences of rounded sums fill the room exactly; each is at most what the rank has.
    ends = [room * seen // total for seen in accumulate(counts)]
    return [end - start for start, end in pairwise([0, *ends])]
