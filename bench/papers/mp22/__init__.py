"""Experiments on [MP22]: topics behind proxies."""
