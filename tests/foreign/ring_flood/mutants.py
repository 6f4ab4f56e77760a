"""Named bugs of ring_flood."""

from typing import Final

from brokerd.named_bugs import Edit, NamedBug

_CORE: Final = "brokerd/protocols/ring_flood/core.py"
_CLIENTS: Final = "brokerd/protocols/ring_flood/clients.py"

BUGS: Final = (
    NamedBug(
        "ring-forgets-who-was-away",
        (
            Edit(
                _CLIENTS,
                "            for name, locals_ in by_client.items():\n"
                "                entry.open += 1",
                "            for name, locals_ in by_client.items():\n"
                "                if not self._clients[name].connected:\n"
                "                    continue\n"
                "                entry.open += 1",
            ),
        ),
    ),
    NamedBug(
        "ring-lets-go-early",
        (
            Edit(
                _CORE,
                "self._log.let_go(source, min(held), self._settle)",
                "self._log.let_go(source, max(held), self._settle)",
            ),
        ),
    ),
)
"""What each leaves out: what comes for a client while it is away is kept for it; a publication
stays until both neighbours have it.
"""

MUTANTS: Final = {bug.name: bug for bug in BUGS}
