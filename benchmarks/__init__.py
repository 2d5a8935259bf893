"""Benchmarks: each module prints a table a person can read and writes a file a machine can compare."""
