"""Named bugs of best_effort: what a mistake in one of its rules looks like."""

from typing import Final

from brokerd.named_bugs import Edit, NamedBug

_ROUTES: Final = "brokerd/protocols/best_effort/routes.py"

BUGS: Final = (
    NamedBug(
        "route-started-at-first-answer",
        "A subscription has started when all neighbours have answered.",
        (
            Edit(
                _ROUTES,
                "            del route.awaited[peer]\n",
                "            route.awaited.clear()\n",
            ),
        ),
    ),
    NamedBug(
        "route-started-before-its-sides",
        "A broker answers when all its other neighbours have.",
        (Edit(_ROUTES, "            if route.awaited:\n                continue\n", ""),),
    ),
)
"""Each as its name, the sentence that it leaves out, and where."""

MUTANTS: Final = {bug.name: bug for bug in BUGS}
