"""Options of the command line, each declared once: one module per group.

A group that several verbs share is a dataclass; `with_groups` expands it into single options. An
option of its own is an `Annotated` alias. Both name the panel of the help text.
"""
