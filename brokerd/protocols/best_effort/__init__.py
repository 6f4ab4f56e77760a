"""The best-effort baseline: forward what matches, remember nothing."""
