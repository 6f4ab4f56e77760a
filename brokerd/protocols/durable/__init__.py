"""Durable subscriptions: what was missed while away comes when its subscriber is back."""
