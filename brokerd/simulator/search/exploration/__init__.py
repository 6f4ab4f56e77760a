"""Exhaustive search over all interleavings of small worlds.

`small_world` has the bounds and the enabled actions, `snapshots` returns to a state, `fingerprint`
recognises a state, `reduction` leaves out actions, `exploration` searches breadth first, and
`history_file` writes a violation.

An attribute of a core that only counts or caches belongs into `SKIPPED` or `STATIC` of
`fingerprint`. Otherwise equal states look different, and worlds grow.
"""
