"""Any model as one torch module of a matrix: adapters for other libraries, imported only when they are needed."""

from nobsp.models.inputs import adapt

__all__ = ["adapt"]
