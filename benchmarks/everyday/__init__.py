"""Situations of everyday use, each with the headline an explainer states beside the truth on fresh rows.

A situation is a function that returns an `Outcome`, registered under a name by `@situation(...)`, in any module of this
folder except `registry` and `__main__`; modules are found by themselves.
"""
