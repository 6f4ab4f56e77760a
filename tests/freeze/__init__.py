"""The freeze: digests of what every core does, which a rewrite must not change.

    python -m tests.freeze compare            compare this tree with the table
    python -m tests.freeze record             replace the table, after a change of behaviour
    python -m tests.freeze steps swarm gryphon 17    print the steps of one history

A digest covers each event that a core handles and each effect that it returns, in order. Messages
count as their encoding on the wire, and other records as the values of their fields. So a rename
of a class, field or module changes no digest, and a change of behaviour changes one.
"""
