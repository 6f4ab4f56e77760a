"""The one content-matching engine: which subscriptions want a publication."""
