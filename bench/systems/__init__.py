"""External brokers as systems under test, with the load, faults and verdicts of this project.

A *driver* is a module with a `SYSTEM`: functions to start and observe a system's servers
(`boundary.System`), and a client of the system (`boundary.SystemClient`). A *configuration* is a
TOML file with a driver, its settings and a promise (`configuration`). No other module depends on a
system: agents start the servers, load generators use the client and record deliveries as in any
run, and the checkers judge the records.
"""
