"""Experiments of [DS03]."""
