"""Tests of import circles: no files import each other."""

from pathlib import Path

from tests.architecture.layers import OURS
from tests.architecture.small_trees import ROOT, complain, plant
from tests.helpers.architecture import (
    find_import_circles,
    read_modules,
)


def test_no_files_import_each_other() -> None:
    complain(find_import_circles(read_modules(ROOT, OURS)))


def test_an_import_circle_is_found(tmp_path: Path) -> None:
    root = plant(
        tmp_path,
        {
            "brokerd.one": "from brokerd.two import x",
            "brokerd.two": "def late():\n    import brokerd.three",
            "brokerd.three": "if TYPE_CHECKING:\n    import brokerd.one",
            "brokerd.four": "import brokerd.one",
        },
    )
    (found,) = find_import_circles(read_modules(root, ("brokerd",)))
    assert found.what == "brokerd.one and brokerd.three and brokerd.two import each other"
