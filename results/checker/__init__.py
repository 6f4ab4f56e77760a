"""Verdicts and measures of a run, in Spark."""
