"""Words that several kinds of a plan's lines share: instants, brokers, clients, lanes, kinds."""

import json
import re
from dataclasses import dataclass

from brokerd.errors import ConfigError
from brokerd.model.predicate import Scalar
from brokerd.overlay.topology import nearest
from brokerd.protocols.definition import Promises
from brokerd.protocols.registry import definition_of
from brokerd.simulator.world.client_mobility import home_of
from brokerd.units import SECOND_NS


class PlanError(ConfigError):
    """A plan's text that cannot be read; names the line and the valid words; the user's fault."""


@dataclass(slots=True)
class PlanScope:
    """The protocol, the unit of time and the brokers of a plan, which its lines refer to.

    Attributes:
        adversarial: instants are steps, otherwise seconds.
        brokers: names of the overlay's brokers, in the order of their numbers.
        joining: names of the brokers that join, in the order of the lines.
    """

    protocol: str
    adversarial: bool
    brokers: list[str]
    joining: list[str]

    def read_instant(self, word: str) -> int:
        """Return a step, or the nanoseconds of an instant in seconds."""
        return int(word) if self.adversarial else _read_seconds(word)

    def write_instant(self, when: int) -> str:
        """Return the word of a step, or of an instant in nanoseconds."""
        return str(when) if self.adversarial else _write_seconds(when)

    def client(self, name: str) -> str:
        """Return the name of a client, at a broker of the plan."""
        self.broker(home_of(name))
        return name

    def broker(self, name: str) -> str:
        """Return the name of a broker of the plan."""
        if name not in self.brokers and name not in self.joining:
            raise PlanError(f"no broker {name!r}{nearest(name, self.brokers)}")
        return name

    @property
    def promises(self) -> Promises:
        """The promises of the plan's protocol."""
        return definition_of(self.protocol).promises

    def read_lane(self, lane: str) -> str:
        """Return a lane with numbers of brokers in place of names."""
        names = [*self.brokers, *self.joining]
        parts = re.split(r"([:>#])", lane)
        return "".join(str(names.index(part)) if part in names else part for part in parts)

    def write_lane(self, lane: str) -> str:
        """Return a lane with names of brokers in place of numbers."""
        names = [*self.brokers, *self.joining]
        return re.sub(r"(?<![^:>])\d+(?![^:>#])", lambda found: names[int(found[0])], lane)


def read_kind(word: str) -> Scalar:
    """Return the kind of a publication: plain letters, otherwise JSON."""
    if word.isalpha() and word not in ("true", "false"):
        return word
    kind: Scalar = json.loads(word)
    return kind


def write_kind(kind: Scalar) -> str:
    """Return the word of a kind, as `read_kind` reads the word."""
    plain = isinstance(kind, str) and kind.isalpha() and kind not in ("true", "false")
    return str(kind) if plain else json.dumps(kind)


def _write_seconds(ns: int) -> str:
    text = f"{ns / SECOND_NS:.9f}".rstrip("0")
    return text + "0" if text.endswith(".") else text


def _read_seconds(word: str) -> int:
    found = re.fullmatch(r"(\d+)(?:\.(\d{1,9}))?", word)
    if not found:
        raise PlanError(f"{word!r} is no instant; write seconds such as 0.25")
    return int(found[1]) * SECOND_NS + int((found[2] or "").ljust(9, "0"))
