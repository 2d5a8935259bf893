"""What changed: differences of accounts between groups of rows, between models, or both."""

from nobsp.comparison.comparing import compare
from nobsp.comparison.result import Comparison

__all__ = ["Comparison", "compare"]
