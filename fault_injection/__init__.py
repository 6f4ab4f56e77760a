"""Faults: when they happen, to whom, and how they are applied, observed and healed."""
