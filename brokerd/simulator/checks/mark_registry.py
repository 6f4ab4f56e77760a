"""Which marks a protocol has, by its name."""

from brokerd.overlay.tree import PrimaryTree
from brokerd.simulator.checks import delta_tree_marks
from brokerd.simulator.checks.marks import Mark, MarkObserver


def marks_of(protocol: str) -> tuple[Mark, ...]:
    """The marks of a protocol; none where its document names none."""
    return delta_tree_marks.MARKS if protocol == "delta_tree" else ()


def make_observer(protocol: str, tree: PrimaryTree) -> MarkObserver | None:
    """What counts a protocol's marks in one cluster."""
    return delta_tree_marks.DeltaTreeMarks(tree) if protocol == "delta_tree" else None
