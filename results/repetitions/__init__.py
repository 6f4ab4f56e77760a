"""Repetitions of a run: spread, the typical run, and differences from other runs."""
