"""What changed: differences of accounts, between groups of rows, between models, and between both."""

from nobsp.comparison.comparing import compare
from nobsp.comparison.result import Comparison

__all__ = ["Comparison", "compare"]
