"""Named bugs of ring_flood."""

from typing import Final

from brokerd.named_bugs import Edit, NamedBug

_CORE: Final = "brokerd/protocols/ring_flood/core.py"

BUGS: Final = (
    NamedBug(
        "ring-forgets-who-was-away",
        (
            Edit(
                _CORE,
                "                client.passed[source] = waiting[0][0] - 1",
                "                client.passed[source] = self._stored[source]",
            ),
        ),
    ),
    NamedBug(
        "ring-lets-go-early",
        (
            Edit(
                _CORE,
                "        free = min(self._stored.get(source, 0), *held, *(",
                "        free = min(self._stored.get(source, 0), max(held), *(",
            ),
        ),
    ),
)
"""What each leaves out: what a client had not acknowledged is given to it again; a publication
stays until both neighbours have it.
"""

MUTANTS: Final = {bug.name: bug for bug in BUGS}
