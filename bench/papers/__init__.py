"""Experiments of papers' figures."""
