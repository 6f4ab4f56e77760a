"""Test hosts on this machine: namespaces joined by a bridge, each with a real OpenSSH server."""
