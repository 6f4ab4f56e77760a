"""Experiments of [DFT11]."""
