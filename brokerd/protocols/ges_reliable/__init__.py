"""[GES], the reliable half: storages with logs, and other brokers that may fail for ever."""
