"""Any model as one torch module of a matrix, with adapters for other libraries.

These libraries are imported only when they are needed.
"""

from nobsp.models.adapting import adapt

__all__ = ["adapt"]
