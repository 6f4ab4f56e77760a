"""Deployments: planned, placed, made, changed and removed."""
