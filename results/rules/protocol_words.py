"""What people call a run's protocol, and how it recovers: words of its own, out of the manifest."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

_FORMER = Path(__file__).with_name("former_protocols.toml")


@dataclass(frozen=True, slots=True)
class ProtocolWords:
    """What people are told of a protocol.

    Attributes:
        title: with an article where it has one.
        recovery: how it gets over failures, in whole sentences; "" where nobody says.
        wiring: what its topology said of it, such as "δ = 1"; "" for nothing.
    """

    title: str
    recovery: str = ""
    wiring: str = ""

    @classmethod
    def of_mapping(cls, values: Mapping[str, Any]) -> Self:
        """What a manifest says; raises TypeError where that is no text."""
        found = {name: values[name] for name in ("title", "recovery", "wiring") if name in values}
        if not all(isinstance(text, str) for text in found.values()):
            raise TypeError(f"protocol_words = {dict(values)!r} are no texts")
        return cls(**found)

    @property
    def bare(self) -> str:
        """The title without its article, with ordinary blanks."""
        return self.title.removeprefix("the ").replace("\N{NO-BREAK SPACE}", " ")


def former_words(protocol: str, delta: int | None) -> ProtocolWords:
    """Of a run whose manifest does not say: as it was known when such runs were made."""
    known = _former().get(protocol)
    if known is None:
        return ProtocolWords(protocol or "an unnamed protocol")
    return ProtocolWords.of_mapping({**known, "wiring": known["wiring"].format(delta=delta)})


@cache
def _former() -> Mapping[str, Mapping[str, str]]:
    return tomllib.loads(_FORMER.read_text(encoding="utf-8"))
