"""The content-matching engine: finds the subscriptions that match a publication."""
