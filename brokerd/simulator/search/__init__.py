"""Runs drawn from seeds, counted, and cut down where they fail."""
