"""Checks of the fitness of hosts for a plan."""
