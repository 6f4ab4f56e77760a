"""Overlays: pure graphs of brokers and links."""
