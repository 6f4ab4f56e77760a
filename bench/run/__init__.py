"""Runs of experiments, and their records."""
