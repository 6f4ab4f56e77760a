"""Figures of runs, and common parts of all figures."""
