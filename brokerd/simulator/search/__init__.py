"""Seeded runs: drawing, counting, and shrinking of failures."""
