"""Print all named bugs with the stories that must detect them: `python -m tests.named_bugs`.

A bug that no longer fits the source is marked, and the exit status is 8.
"""

import sys

from brokerd.protocols.registry import DEFINITIONS
from brokerd.simulator.anchors import AnchorLost
from brokerd.simulator.checks.protocol_checks import simulation_of
from brokerd.simulator.named_bugs import NamedBug, bugs_of, mistaken_functions
from tests.helpers.delta_tree_bugs import NOT_SIMULATED
from tests.named_bugs.rows import ROWS


def main() -> int:
    """Print one line for every bug: name, modules and detecting stories."""
    lost = []
    for protocol in DEFINITIONS:
        ablations = simulation_of(protocol).ablations
        for bug in bugs_of(protocol).values():
            row = ablations.get(bug.name)
            command = f"pubsubctl simulate mutants {bug.name}"
            stories = NOT_SIMULATED.get(bug.name, f"tests/protocols/{protocol}")
            seen = stories if row is None else row.unseen or command
            lost += _print(bug, seen)
    for each in ROWS:
        lost += _print(each.bug, each.story)
    for error in lost:
        print(error, file=sys.stderr)
    return AnchorLost.exit_status if lost else 0


def _print(bug: NamedBug, seen: str) -> list[AnchorLost]:
    lost = []
    try:
        mistaken_functions((bug,))
    except AnchorLost as error:
        seen, lost = "ANCHOR LOST", [error]
    modules = ", ".join(dict.fromkeys(edit.module for edit in bug.edits))
    print(f"{bug.name} | {modules} | {seen}")
    return lost


if __name__ == "__main__":
    sys.exit(main())
