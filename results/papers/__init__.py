"""Measures of papers' experiments."""
