"""Faults on a deployment."""
