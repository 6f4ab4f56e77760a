"""Who is next to whom: pure graphs of brokers."""
