"""A cluster in one thread and virtual time, with the real cores, reproducible by a seed."""
