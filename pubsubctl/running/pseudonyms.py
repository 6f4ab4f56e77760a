"""Pseudonyms for all text of the user in an inventory, by kind.

A list of fields would miss the next field. So every string of the file counts: names, addresses and
folders, and each word in the string. Words of our own programs stay: files of a run contain such
words as keys and values, which identify nobody.
"""

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from brokerd.overlay.ranges import expanded
from pubsubctl.errors import UserError
from pubsubctl.inventory.inventory import Inventory
from pubsubctl.inventory.inventory_schema import json_schema

_WORD: Final = re.compile(r"[\w-]+")
_PACKAGES: Final = ("brokerd", "bench", "fault_injection", "pubsubctl", "results")
_SHORTEST: Final = 4
"""The length from which a word counts on its own; shorter words are part of too many others."""
_ORDINARY: Final = frozenset(
    (
        *("bench", "boot", "cluster", "data", "disk", "example", "home", "hosts", "house"),
        *("id_ed25519", "id_rsa", "known_hosts", "local", "localhost", "media", "node", "nodes"),
        *("opt", "performance", "powersave", "python", "python3", "root", "runs", "scratch"),
        *("srv", "ssh", "state", "test", "tmp", "toml", "user", "users", "usr", "var", "work"),
        *("interleave", "fill"),
    )
)
"""Words of which every machine has some, in folders and names."""


def pseudonyms_of_words(
    inventory: Inventory, known: Collection[str], structure: Collection[str]
) -> dict[str, str]:
    """Return a pseudonym for each string of an inventory without a pseudonym, and each word in it.

    Args:
        known: names with a pseudonym.
        structure: words that stay, because a run uses them with another meaning.
    """
    vocabulary = {*_vocabulary(json_schema())}
    found: dict[str, str] = {}

    def add(text: str, kind: str) -> None:
        is_known = text in known or text in found or text in vocabulary or text in structure
        is_said = bool(_WORD.search(text)) and not text.replace(".", "").isdigit()
        if is_said and not is_known and text not in _ORDINARY:
            number = sum(each.startswith(f"{kind}-") for each in found.values()) + 1
            found[text] = f"{kind}-{number}"

    for text in _strings(tomllib.loads(inventory.text), vocabulary):
        for each in (text, *_expanded(text)):
            kind = _kind(each)
            add(each, kind)
            if kind == "folder":
                folder = Path(each).expanduser()
                add(str(folder), kind)
                add(str((inventory.path.parent / folder).absolute()), kind)
            for word in _WORD.findall(each):
                if len(word) >= _SHORTEST and not word.replace("-", "").isdigit():
                    add(word, "word")
    return found


@cache
def words_of_ours() -> frozenset[str]:
    """Return all words in the source of our programs."""
    root = Path(__file__).parents[2]
    found: set[str] = set()
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            found.update(_WORD.findall(path.read_text(encoding="utf-8")))
    return frozenset(found)


def _kind(text: str) -> str:
    if "/" in text or text.startswith("~"):
        return "folder"
    return "address" if "." in text or ":" in text else "name"


def _expanded(text: str) -> Iterable[str]:
    """Return all names of a range; nothing if the text is no range."""
    try:
        return expanded(text) if "[" in text else ()
    except (UserError, ValueError):
        return ()


def _strings(value: Any, vocabulary: Collection[str]) -> Iterator[str]:
    """Yield strings of a TOML document, and keys that are not of the format."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in vocabulary:
                yield key
            yield from _strings(inner, vocabulary)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner, vocabulary)


def _vocabulary(schema: Any) -> Iterator[str]:
    """Yield words of the format: keys, and values of which there are a few."""
    if isinstance(schema, list):
        for each in schema:
            yield from _vocabulary(each)
    if not isinstance(schema, Mapping):
        return
    yield from schema.get("properties", {})
    for values in (schema.get("enum", ()), [schema.get("const")], [schema.get("default")]):
        yield from (each for each in values if isinstance(each, str))
    for each in schema.values():
        yield from _vocabulary(each)
