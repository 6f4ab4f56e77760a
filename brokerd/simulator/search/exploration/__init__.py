"""Exhaustive search over all interleavings of small worlds.

`small_world` has the bounds and the enabled actions, `processes` the processes of an action,
`snapshots` returns to a state, `fingerprint` recognises a state, `reduction` leaves out actions,
`exploration` searches breadth first, and `history_file` writes a violation.

An attribute of a core that only counts or caches belongs into `SKIPPED` or `STATIC` of
`fingerprint`. Otherwise equal states look different, and worlds grow. A class of the language with
contents that no reader returns fails an assertion; add the class to `_Reader.read`.
"""
