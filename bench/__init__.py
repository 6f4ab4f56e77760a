"""Benchmarks: workloads, load generators, runs and comparisons."""
