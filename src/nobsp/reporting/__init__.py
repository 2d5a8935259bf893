"""The report: one HTML file that shows, and lets people try, what a network has learned."""

from nobsp.reporting.build import report

__all__ = ["report"]
