"""Experiments of [GES]: cost and correctness of routing, on hierarchies of any kind."""
