"""Traffic between brokers beside publications."""
