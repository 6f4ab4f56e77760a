"""Experiments of [GD02] on simulated brokers: the liveness of subends and of pubends."""
