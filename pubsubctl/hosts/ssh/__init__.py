"""Hosts over SSH: who answers is who the inventory says, and commands arrive word for word."""
