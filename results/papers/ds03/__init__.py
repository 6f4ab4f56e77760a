"""Figures of [DS03]."""
