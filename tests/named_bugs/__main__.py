"""Prints all named bugs, with what must see each: `python -m tests.named_bugs`."""

from brokerd.protocols.delta_tree.checks.ablations import ABLATIONS, NOT_SIMULATED
from brokerd.protocols.delta_tree.mutants import MUTANTS
from tests.named_bugs.test_caught import ROWS


def main() -> None:
    """One line each: name, file, what sees it."""
    for mutant, bug in MUTANTS.items():
        files = ", ".join(dict.fromkeys(edit.file for edit in bug.edits))
        row = ABLATIONS.get(str(mutant))
        why = NOT_SIMULATED.get(mutant) or (row.unseen if row is not None else "")
        print(f"{bug.name} | {files} | {why or f'pubsubctl simulate mutants {bug.name}'}")
    for each in ROWS:
        print(f"{each.name} | {each.file} | {each.story}")


if __name__ == "__main__":
    main()
