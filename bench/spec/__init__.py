"""Workloads: what a file of one says, and what is wrong with it."""
