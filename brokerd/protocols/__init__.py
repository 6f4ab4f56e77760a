"""Delivery protocols: sans-I/O cores behind one interface."""
