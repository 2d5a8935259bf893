"""Neighbours by evidence and by activation: purity, error detection, audits and speed."""
