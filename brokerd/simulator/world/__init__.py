"""Brokers, clients, network, disks and clocks that are simulated."""
