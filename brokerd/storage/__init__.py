"""Durable state: data that survives a restart."""
