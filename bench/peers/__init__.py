"""Brokers that people run today, under our load beside ours: `make peers` prints the table.

A system is a definition (`systems`): how its servers are started, and a client that turns
publications into bytes and bytes into what came. Servers, load, measuring and the table know
none of them by name.
"""
