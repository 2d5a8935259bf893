"""Differences of accounts, shapes and weak spots, measured."""
