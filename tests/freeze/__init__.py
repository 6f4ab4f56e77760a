"""The freeze: digests of the behaviour of every core, which a rewrite must not change.

    python -m tests.freeze compare            compare this tree with the table
    python -m tests.freeze record             replace the table, after a change of behaviour
    python -m tests.freeze steps swarm gryphon 17    print the steps of one history

A digest covers every event of a core and every effect that the core returns, in order. Messages
count as encoded on the wire, and other records as the values of the fields. So a rename of a class,
field or module changes no digest, and a change of behaviour does.
"""
