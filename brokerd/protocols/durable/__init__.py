"""Durable subscriptions: events missed by a disconnected client arrive after its return."""
