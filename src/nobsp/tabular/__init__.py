"""Explaining networks on tables."""

from nobsp.tabular.explainer import NObSP
from nobsp.tabular.explanation import Explanation
from nobsp.tabular.health import Finding, Health, TermHealth

__all__ = ["Explanation", "Finding", "Health", "NObSP", "TermHealth"]
