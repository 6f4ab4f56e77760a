"""Figures of runs, drawn from pre-aggregated tables."""
