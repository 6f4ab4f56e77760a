"""Connectors to hosts: the interface, and the connectors `local` and `ssh`."""
