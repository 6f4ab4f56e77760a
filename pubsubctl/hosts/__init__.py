"""Connections to hosts, over SSH or on this machine."""
