"""Inventories: hosts, who may log in, and where brokers may go."""
