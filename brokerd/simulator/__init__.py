"""A cluster in one thread and virtual time: the same cores and clients, reproducible by a seed."""
