"""Named bugs of ring_flood."""

from typing import Final

from brokerd.named_bugs import Edit, NamedBug

_CORE: Final = "brokerd/protocols/ring_flood/core.py"

BUGS: Final = (
    NamedBug(
        "ring-forgets-who-was-away",
        "What comes for a client while it is away is kept for it.",
        (
            Edit(
                _CORE,
                "        self._clients.hand_out(entry.run, entry)\n        self._settle(source)",
                "        if any(each.connected for each in self._clients._clients.values()):\n"
                "            self._clients.hand_out(entry.run, entry)\n"
                "        self._settle(source)",
            ),
        ),
    ),
    NamedBug(
        "ring-lets-go-early",
        "A publication stays until both neighbours have it.",
        (
            Edit(
                _CORE,
                "self._log.let_go(source, min(held), self._settle)",
                "self._log.let_go(source, max(held), self._settle)",
            ),
        ),
    ),
)

MUTANTS: Final = {bug.name: bug for bug in BUGS}
