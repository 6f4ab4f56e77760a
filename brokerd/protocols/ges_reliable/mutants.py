"""Mistakes that somebody might make in ges_reliable, each with what must see it."""

from typing import Final

from brokerd.named_bugs import NamedBug

MUTANTS: Final[dict[str, NamedBug]] = {}
