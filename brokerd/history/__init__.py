"""Typed records of a run on disk: written by load generators and clients, read by checkers."""
