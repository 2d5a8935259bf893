"""Neighbours by evidence and by activation: purity, error detection, mislabels and speed."""
