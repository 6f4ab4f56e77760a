"""Faults of links that need no root: what the link layer is told to do to its own traffic.

absorb: everything is taken in and nothing but heartbeats let out; released, it goes on in
order; what a session absorbed dies with it. blackhole: nothing passes and nobody is told, not
even of a close. cut: connections are closed and new ones refused. delay and bandwidth: as the
names say, for each direction.

Paper: [GD02] §4.1 (stalls before failures).
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar

from brokerd.config import MILLISECOND_NS
from brokerd.errors import ControlError
from brokerd.model.identity import Peer

Verb = Literal["absorb", "blackhole", "cut", "delay", "bandwidth"]
Direction = Literal["both", "out", "in"]

VERBS: Final[tuple[Verb, ...]] = ("absorb", "blackhole", "cut", "delay", "bandwidth")
DIRECTIONS: Final[tuple[Direction, ...]] = ("both", "out", "in")
ABSORB_LIMIT_BYTES: Final = 256 << 20
"""Of messages taken in by all absorbing links of a broker; at it they stop reading."""

_PARAMETERS: Final[dict[str, tuple[str, int]]] = {
    "delay": ("delay_ms", 60_000),
    "bandwidth": ("bytes_per_second", 1 << 40),
}
_COUNTERS: Final = (
    "absorbed_messages",
    "absorbed_publications",
    "absorbed_bytes",
    "dropped_frames",
    "refused_connections",
    "forwarded_since_applied",
    "sessions_down",
)


@dataclass(frozen=True, slots=True)
class Way:
    """What one direction of a link does to what comes along it.

    Attributes:
        bytes_per_second: 0 for no limit.
    """

    absorbs: bool = False
    blackholed: bool = False
    cut: bool = False
    delay_ns: int = 0
    bytes_per_second: int = 0


CLEAR: Final = Way()


@dataclass(slots=True)
class LinkFault:
    """One fault.

    Attributes:
        peer: whose link it concerns; None for all links of this broker, clients' too.
        value: delay in ns or bytes per second, for the verbs that have one.
        ends_ns: when it heals by itself; None for never.
        counters: what it did so far.
    """

    fault_id: str
    verb: Verb
    peer: Peer | None
    direction: Direction
    value: int
    ends_ns: int | None
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTERS, 0))

    def concerns(self, peer: Peer, direction: Direction) -> bool:
        """Whether it acts on this direction of the link with `peer`, or on any for `both`."""
        # A connection cannot be half closed and still be a session.
        whole = "both" in (self.direction, direction) or self.verb == "cut"
        return self.peer in (None, peer) and (whole or self.direction == direction)


def read_fault(
    fault_id: str,
    verb: str,
    peer: Peer | None,
    direction: str,
    parameters: dict[str, Any],
    ends_ns: int | None,
) -> LinkFault:
    """The fault that a command asks for.

    Raises:
        ControlError: `user`: no such verb, direction or parameter, or a value out of range.
    """
    for word, known, what in ((verb, VERBS, "verb"), (direction, DIRECTIONS, "direction")):
        if word not in known:
            raise ControlError("user", f"{what} {word[:40]!r}; one of {', '.join(known)}")
    name, limit = _PARAMETERS.get(verb, ("", 0))
    for key in parameters:
        if key != name:
            wanted = f"takes {name}" if name else "takes no parameters"
            raise ControlError("user", f"{verb} {wanted}, not {key[:40]!r}")
    value = parameters.get(name, 0)
    if name and (type(value) is not int or not 1 <= value <= limit):
        raise ControlError("user", f"{verb}: {name} is a whole number from 1 to {limit}")
    if verb == "delay":
        value *= MILLISECOND_NS
    return LinkFault(fault_id, verb, peer, direction, value, ends_ns)  # type: ignore[arg-type]


class LinkFaults:
    """The faults of one broker that are in force."""

    def __init__(self) -> None:
        self._faults: dict[str, LinkFault] = {}

    def __iter__(self) -> Iterator[LinkFault]:
        return iter(self._faults.values())

    def __len__(self) -> int:
        return len(self._faults)

    def __contains__(self, fault_id: str) -> bool:
        return fault_id in self._faults

    def apply(self, fault: LinkFault) -> None:
        """Let a fault act from now on; the same one again only changes its end.

        Raises:
            ControlError: `user`: another fault has this id.
        """
        known = self._faults.get(fault.fault_id)
        if known is None:
            self._faults[fault.fault_id] = fault
            return
        described = (known.verb, known.peer, known.direction, known.value)
        if described != (fault.verb, fault.peer, fault.direction, fault.value):
            raise ControlError("user", f"fault {fault.fault_id!r} is already a {known.verb}")
        known.ends_ns = fault.ends_ns

    def heal(self, fault_id: str) -> LinkFault | None:
        """End a fault; returns it, or None when there is none of this id."""
        return self._faults.pop(fault_id, None)

    def renew(self, fault_id: str, ends_ns: int | None) -> bool:
        """Move the end of a fault; whether there is one of this id."""
        fault = self._faults.get(fault_id)
        if fault is not None:
            fault.ends_ns = ends_ns
        return fault is not None

    def expired(self, now_ns: int) -> list[str]:
        """Ids of faults whose lease has run out."""
        return [
            fault.fault_id
            for fault in self._faults.values()
            if fault.ends_ns is not None and fault.ends_ns <= now_ns
        ]

    def way(self, peer: Peer, direction: Direction) -> Way:
        """What all faults together do to one direction of the link with `peer`."""
        acting = [fault for fault in self._faults.values() if fault.concerns(peer, direction)]
        if not acting:
            return CLEAR
        rates = [fault.value for fault in acting if fault.verb == "bandwidth"]
        verbs = [fault.verb for fault in acting]
        return Way(
            "absorb" in verbs,
            "blackhole" in verbs,
            "cut" in verbs,
            sum(fault.value for fault in acting if fault.verb == "delay"),
            min(rates, default=0),
        )

    def count(self, peer: Peer, direction: Direction, **counts: int) -> None:
        """Add to the counters of the faults that act on this direction of the link."""
        for fault in self._faults.values():
            if fault.concerns(peer, direction):
                for name, count in counts.items():
                    fault.counters[name] += count


Owner = TypeVar("Owner")
Item = TypeVar("Item")


class Absorbed(Generic[Owner, Item]):
    """Messages that were taken in and go nowhere, in order of arrival over all links.

    Attributes:
        held_bytes: of all of them.
    """

    def __init__(self, limit_bytes: int = ABSORB_LIMIT_BYTES) -> None:
        self.held_bytes = 0
        self._limit_bytes = limit_bytes
        self._held: deque[tuple[Owner, Item, int]] = deque()

    @property
    def is_full(self) -> bool:
        """Whether absorbing links must stop reading."""
        return self.held_bytes >= self._limit_bytes

    def hold(self, owner: Owner, item: Item, size_bytes: int) -> None:
        """Take one message in."""
        self.held_bytes += size_bytes
        self._held.append((owner, item, size_bytes))

    def take(self, goes: Callable[[Owner], bool]) -> list[tuple[Owner, Item]]:
        """Take out, in order, what belongs to the owners for whom `goes` holds."""
        taken: list[tuple[Owner, Item]] = []
        kept: deque[tuple[Owner, Item, int]] = deque()
        for owner, item, size_bytes in self._held:
            if goes(owner):
                taken.append((owner, item))
                self.held_bytes -= size_bytes
            else:
                kept.append((owner, item, size_bytes))
        self._held = kept
        return taken
