"""Brokers that people run today, as systems under test: our load, faults and verdict on them.

A *driver* is one module with a `SYSTEM` in it: how a system's servers are started and asked how
they are (`boundary.System`), and a client of it (`boundary.SystemClient`). A *configuration* is a
TOML file that names a driver, its settings and what is promised (`configuration`). Nothing else
knows any of them: agents start the servers, load generators of ours use the client, write down what
came as of any run, and the checkers judge that.
"""
