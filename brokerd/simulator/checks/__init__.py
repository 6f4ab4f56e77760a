"""Checks after every step and at the end of a run."""
