"""External brokers under the same load as the project's brokers: `make peers` prints the table.

A system is a definition (`system`): the start of its servers, and a client that converts between
publications and bytes. Servers, load, measurement and table depend on no system. Programs and
configurations of servers come from the drivers of `bench.systems`. The clients speak plain sockets
instead: in the drivers, the client libraries limit the rate, and here the brokers must.
"""
