"""Thousands of things that go wrong, tried on purpose, one numbered case at a time; see docs/reliability.md."""
