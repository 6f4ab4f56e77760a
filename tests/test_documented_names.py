"""Tests of documented names: docstrings and comments mention only names that exist."""

from pathlib import Path

from tests.helpers.documented_names import read_names

ROOT = Path(__file__).parents[1]
TOPS = ("brokerd", "bench", "fault_injection", "pubsubctl", "results")

PERMITTED = ("Class", "client_linger", "ttest_ind", "verify_")
"""An example, a parameter by the name that users write, another library's, and a prefix."""

SAMPLE = '''
"""A module with `NewName`, `OldName` and `Base.kept`."""

NewName = int
"""Replaces `OlderName`."""


class Base:
    """A base.

    Attributes:
        kept, dropped: as said
            in two lines: of one entry.
        computed (bytes): of a property.
    """

    def __init__(self, first: int, *rest: int) -> None:
        """Begin.

        Args:
            first: is a parameter.
            rest, last: one is.

        Raises:
            ValueError: is no parameter.
        """
        self.kept = first

    @property
    def computed(self) -> int:
        # Before: `old_call()`, now `kept`.
        return 1


@dataclass
class Leaf(Base):
    """A leaf.

    Args:
        field: is a parameter.

    Attributes:
        kept: of the base.
        gone: of none.
    """

    field: int
'''


def test_docstrings_and_comments_mention_only_names_that_exist() -> None:
    names = read_names(ROOT, TOPS)
    names.code.update(path.stem for path in (ROOT / "tests").rglob("*.py"))
    assert len(names.quoted) > 500
    assert names.find_stale(PERMITTED) == []


def test_each_kind_of_stale_name_is_found_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    (tmp_path / "top/sample.py").write_text(SAMPLE)
    assert read_names(tmp_path, ["top"]).find_stale() == [
        "top/sample.py:17: last",
        "top/sample.py:2: `OldName`",
        "top/sample.py:5: `OlderName`",
        "top/sample.py:31: `old_call`",
        "top/sample.py:8: dropped",
        "top/sample.py:36: gone",
    ]
