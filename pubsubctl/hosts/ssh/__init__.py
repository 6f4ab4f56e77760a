"""Hosts over SSH, with verified host keys and commands that arrive word for word."""
