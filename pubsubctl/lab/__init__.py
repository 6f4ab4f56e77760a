"""Test hosts on this machine: namespaces on a bridge, each with a real OpenSSH server."""
