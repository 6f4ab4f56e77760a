"""Simulated brokers, clients, network, disks and clocks."""
