"""Documents: sizes, links, and the paths that they name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "brokerd/GLOSSARY.md"
MANUAL = sorted((ROOT / "pubsubctl/help").glob("*.md"))
LINKING = [
    ROOT / "README.md",
    ROOT / "brokerd/PROTOCOLS.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "brokerd/README.md",
    *MANUAL,
]
PAGE_BYTES = 8192


@pytest.mark.parametrize("page", [ROOT / "README.md", *MANUAL], ids=lambda page: page.name)
def test_a_page_is_short(page: Path) -> None:
    assert page.stat().st_size <= PAGE_BYTES


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_readme_links_every_page_of_the_manual() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert [page.name for page in MANUAL if f"pubsubctl/help/{page.name}" not in text] == []


def test_the_glossary_has_one_entry_per_term_and_names_files_that_exist() -> None:
    rows = [line.split("|")[1:-1] for line in GLOSSARY.read_text("utf-8").splitlines()]
    entries = [[cell.strip() for cell in row] for row in rows if len(row) == 4]
    entries = [entry for entry in entries if entry[0] not in {"term", "---"}]
    terms = [entry[0] for entry in entries]
    assert len(terms) >= 100
    assert sorted(terms) == sorted(set(terms))
    assert [entry[0] for entry in entries if not entry[1].endswith(".")] == []
    places = [(entry[0], place) for entry in entries for place in re.findall("`([^`]+)`", entry[3])]
    assert [place for place in places if not (ROOT / place[1]).exists()] == []
