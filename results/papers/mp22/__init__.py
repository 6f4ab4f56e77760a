"""Figures of [MP22]."""
