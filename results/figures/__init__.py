"""Figures of runs, and what all figures share."""
