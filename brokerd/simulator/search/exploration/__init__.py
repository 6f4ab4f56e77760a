"""Exhaustive search over all interleavings of small worlds."""
