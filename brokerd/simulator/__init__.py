"""A cluster in one thread and virtual time: the cores and clients of the product, reproducible by a
seed."""
