"""The best-effort baseline: brokers forward matching publications and store none."""
