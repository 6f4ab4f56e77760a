"""What publishes, receives and judges while it receives."""
