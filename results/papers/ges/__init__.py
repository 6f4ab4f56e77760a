"""Figures of [GES]."""
