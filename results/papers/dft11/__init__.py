"""Measures of the experiments of [DFT11]."""
