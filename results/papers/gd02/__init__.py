"""Figures of [GD02]."""
