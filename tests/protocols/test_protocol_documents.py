"""The document of a protocol names all implementing files, and only existing files."""

import re
from pathlib import Path

import pytest

import brokerd
from brokerd.protocols.registry import DEFINITIONS

PROTOCOLS = Path(brokerd.__path__[0]) / "protocols"
UNNAMED = {"definition.py"}


@pytest.mark.parametrize("protocol", [*DEFINITIONS])
def test_a_document_names_every_file_of_its_protocol(protocol: str) -> None:
    folder = PROTOCOLS / protocol
    text = (folder / "PROTOCOL.md").read_text("utf-8")
    table = [line for line in text.splitlines() if line.startswith("| `") and ".py`" in line]
    named = {name for line in table for name in re.findall(r"`([a-z_/]+\.py)`", line)}
    own = {name for name in named if not name.startswith("parts/")}
    found = [path for path in folder.rglob("*.py") if path.name != "__init__.py"]
    there = {str(path.relative_to(folder)) for path in found}
    there = {name for name in there if not name.startswith("checks/")} - UNNAMED
    assert own - UNNAMED == there


def test_the_list_of_protocols_is_whole() -> None:
    text = (PROTOCOLS.parent / "PROTOCOLS.md").read_text("utf-8")
    assert re.findall(r"\(protocols/(\w+)/PROTOCOL\.md\)", text) == [*DEFINITIONS]
