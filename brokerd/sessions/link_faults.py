"""Faults that need no root: what a broker is told to do to its own traffic and its own disk.

absorb: everything is taken in and nothing but heartbeats let out; released, it goes on in
order; what a session absorbed dies with it. send-omission: everything is taken in, handled and
written to disk, and nothing but heartbeats let out; released or lost as what is absorbed.
blackhole: nothing passes and nobody is told, not even of a close. cut: connections are closed and
new ones refused. partition: one of these two towards several brokers at once. delay and
bandwidth: as the names say, for each direction. disk-full: writes beyond a quota are refused as
by a full disk. slow-fsync: what is durable is called so later.

Paper: [GD02] §4.1 (stalls before failures).
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar

from brokerd.errors import ControlError
from brokerd.model.identity import Peer
from brokerd.units import MILLISECOND_NS

Verb = Literal[
    "absorb",
    "send-omission",
    "blackhole",
    "cut",
    "partition",
    "delay",
    "bandwidth",
    "disk-full",
    "slow-fsync",
]
Direction = Literal["both", "out", "in"]

DISK_VERBS: Final[tuple[Verb, ...]] = ("disk-full", "slow-fsync")
VERBS: Final[tuple[Verb, ...]] = (
    *("absorb", "send-omission", "blackhole", "cut", "partition", "delay", "bandwidth"),
    *DISK_VERBS,
)
MODES: Final = ("blackhole", "cut")
"""What a partition does to the links across it."""
DIRECTIONS: Final[tuple[Direction, ...]] = ("both", "out", "in")
ABSORB_LIMIT_BYTES: Final = 256 << 20
"""Of messages taken in by all absorbing links of a broker; at it they stop reading."""

_NUMBERS: Final[dict[str, tuple[str, int, int]]] = {
    "delay": ("delay_ms", 1, 60_000),
    "bandwidth": ("bytes_per_second", 1, 1 << 40),
    "disk-full": ("free_bytes", 0, 1 << 40),
    "slow-fsync": ("delay_ms", 1, 60_000),
}
_COUNTERS: Final = (
    "absorbed_messages",
    "absorbed_publications",
    "absorbed_bytes",
    "dropped_frames",
    "refused_connections",
    "forwarded_since_applied",
    "sessions_down",
    "limited_messages",
    "written_bytes",
    "refused_writes",
    "slowed_writes",
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

    @property
    def is_limited(self) -> bool:
        """Whether what comes along arrives, but later than it would."""
        return bool(self.delay_ns or self.bytes_per_second)


CLEAR: Final = Way()


@dataclass(slots=True)
class LinkFault:
    """One fault.

    Attributes:
        peers: whose links it concerns; None for all links of this broker, clients' too.
        value: delay in ns, bytes per second or free bytes, for the verbs that have one.
        ends_ns: when it heals by itself; None for never.
        mode: of a partition, one of MODES.
        counters: what it did so far.
    """

    fault_id: str
    verb: Verb
    peers: frozenset[Peer] | None
    direction: Direction
    value: int
    ends_ns: int | None
    mode: str = ""
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTERS, 0))

    @property
    def effect(self) -> str:
        """What it does to a link it concerns."""
        return self.mode or self.verb

    @property
    def definition(self) -> tuple[object, ...]:
        """What makes it this fault and no other."""
        return (self.verb, self.peers, self.direction, self.value, self.mode)

    def concerns(self, peer: Peer, direction: Direction) -> bool:
        """Whether it acts on this direction of the link with `peer`, or on any for `both`."""
        if self.verb in DISK_VERBS or (self.verb == "send-omission" and direction == "in"):
            return False
        # A connection cannot be half closed and still be a session.
        whole = "both" in (self.direction, direction) or self.effect == "cut"
        return (self.peers is None or peer in self.peers) and (whole or self.direction == direction)


def read_fault(
    fault_id: str,
    verb: str,
    peer: Peer | None,
    direction: str,
    parameters: dict[str, Any],
    ends_ns: int | None,
    others: Collection[Peer] = (),
) -> LinkFault:
    """The fault that a command asks for; `others` are whom a partition is from.

    Raises:
        ControlError: `user`: no such verb, direction or parameter, or a value out of range.
    """
    for word, known, what in ((verb, VERBS, "verb"), (direction, DIRECTIONS, "direction")):
        if word not in known:
            raise ControlError("user", f"{what} {word[:40]!r}; one of {', '.join(known)}")
    name, lowest, highest = _NUMBERS.get(verb, ("", 0, 0))
    if verb == "partition":
        name = "mode"
    for key in parameters:
        if key != name:
            wanted = f"takes {name}" if name else "takes no parameters"
            raise ControlError("user", f"{verb} {wanted}, not {key[:40]!r}")
    mode = ""
    value = parameters.get(name, 0)
    if verb == "partition":
        mode, value = parameters.get("mode", MODES[0]), 0
        if mode not in MODES:
            raise ControlError("user", f"mode {str(mode)[:40]!r}; one of {', '.join(MODES)}")
        if not others:
            raise ControlError("user", "a partition needs the peers that it is from")
    elif name and (type(value) is not int or not lowest <= value <= highest):
        text = f"{verb}: {name} is a whole number from {lowest} to {highest}"
        raise ControlError("user", text)
    if verb in (*DISK_VERBS, "send-omission") and (peer is not None or direction != "both"):
        raise ControlError("user", f"{verb} is for a broker, not for its links")
    if name == "delay_ms":
        value *= MILLISECOND_NS
    peers = frozenset(others) if others else None if peer is None else frozenset({peer})
    return LinkFault(fault_id, verb, peers, direction, value, ends_ns, mode)  # type: ignore[arg-type]


class LinkFaults:
    """The faults of one broker that are in force, those of its disk among them."""

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
        if known.definition != fault.definition:
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
        effects = [fault.effect for fault in acting]
        return Way(
            "absorb" in effects or "send-omission" in effects,
            "blackhole" in effects,
            "cut" in effects,
            sum(fault.value for fault in acting if fault.verb == "delay"),
            min(rates, default=0),
        )

    def count(self, peer: Peer, direction: Direction, **counts: int) -> None:
        """Add to the counters of the faults that act on this direction of the link."""
        for fault in self._faults.values():
            if fault.concerns(peer, direction):
                for name, count in counts.items():
                    fault.counters[name] += count

    # ------------------------------------------------------------ the disk

    def take_room(self, size_bytes: int) -> bool:
        """Whether so much may still be written; counted either way."""
        quotas = [fault for fault in self._faults.values() if fault.verb == "disk-full"]
        for fault in quotas:
            if fault.counters["written_bytes"] + size_bytes > fault.value:
                fault.counters["refused_writes"] += 1
                return False
        for fault in quotas:
            fault.counters["written_bytes"] += size_bytes
        return True

    def write_delay_ns(self) -> int:
        """How much later than it is durable a write may be called so."""
        slow = (fault.value for fault in self._faults.values() if fault.verb == "slow-fsync")
        return sum(slow)

    def count_slowed_write(self) -> None:
        """A write has been called durable later than it was."""
        for fault in self._faults.values():
            fault.counters["slowed_writes"] += fault.verb == "slow-fsync"


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
