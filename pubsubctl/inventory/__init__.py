"""Inventories: hosts, logins, and the places for brokers."""
