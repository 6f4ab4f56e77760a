"""Words for a run's protocol and its recovery, from the manifest."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

_FORMER = Path(__file__).with_name("former_protocols.toml")


@dataclass(frozen=True, slots=True)
class ProtocolWords:
    """The words for a protocol in reports.

    Attributes:
        title: title, with an article if any.
        recovery: the recovery from failures, in whole sentences; "" if unknown.
        wiring: parameters of the topology, such as "δ = 1"; "" for none.
    """

    title: str
    recovery: str = ""
    wiring: str = ""

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Return the words in a manifest; raise TypeError for a value that is no text."""
        found = {name: values[name] for name in ("title", "recovery", "wiring") if name in values}
        if not all(isinstance(text, str) for text in found.values()):
            raise TypeError(f"protocol_words = {dict(values)!r} are no texts")
        return cls(**found)

    @property
    def bare(self) -> str:
        """The title without its article, with ordinary blanks."""
        return self.title.removeprefix("the ").replace("\N{NO-BREAK SPACE}", " ")


def former_words(protocol: str, delta: int | None) -> ProtocolWords:
    """Return words for a run without words in its manifest, as used at the time of the run."""
    known = _former().get(protocol)
    if known is None:
        return ProtocolWords(protocol or "an unnamed protocol")
    return ProtocolWords.from_mapping({**known, "wiring": known["wiring"].format(delta=delta)})


@cache
def _former() -> Mapping[str, Mapping[str, str]]:
    return tomllib.loads(_FORMER.read_text(encoding="utf-8"))
