"""Runs: measured, judged, published."""
