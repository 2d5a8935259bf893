"""Former place of what is now in `messages`, `frames` and `numerics`, until every room imports from there."""

from nobsp.frames import frame_of, is_missing
from nobsp.frames import match_columns as matched
from nobsp.messages import (
    count,
    free_name,
    join_names,
    number_outputs,
    percent,
    require_whole_number,
    suggest,
)
from nobsp.numerics import as_numpy

__all__ = [
    "as_numpy",
    "count",
    "frame_of",
    "free_name",
    "is_missing",
    "join_names",
    "matched",
    "number_outputs",
    "percent",
    "require_whole_number",
    "suggest",
]
