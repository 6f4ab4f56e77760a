"""Faults that need no root: a broker applies them to its own traffic and its own disk.

absorb: all messages are received, and nothing but heartbeats is sent; after the release the broker
resumes in order; absorbed messages are lost when their session ends. send-omission: all messages
are received, handled and written to disk, and nothing but heartbeats is sent; output is released or
lost like absorbed messages. receive-omission: nothing that arrives is handled, and output
continues. blackhole: nothing passes and no peer is notified, not even of a close.
cut: connections are closed and new connections refused. partition: a blackhole or a cut towards
several brokers at once. delay and bandwidth: limits per direction. disk-full: writes beyond a quota
are refused as by a full disk. slow-fsync: durable writes are reported late.

Paper: [GD02] §4.1 (stalls before failures).
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar, cast

from brokerd.errors import ControlError
from brokerd.model.fault_verbs import (
    BROKER_VERBS,
    HOLDING_VERBS,
    LINK_VERBS,
    MODES,
    SET_VERBS,
    VERB_TABLE,
)
from brokerd.model.identity import Peer
from brokerd.units import MILLISECOND_NS

Direction = Literal["both", "out", "in"]

DIRECTIONS: Final[tuple[Direction, ...]] = ("both", "out", "in")
_OPPOSITE: Final[dict[str, str]] = {"out": "in", "in": "out"}
ABSORB_LIMIT_BYTES: Final = 256 << 20
"""Bytes of messages held by all absorbing links of a broker.

At this limit the links stop reading.
"""

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
class LinkTreatment:
    """The effect of all faults on the traffic of one direction of a link.

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
        """Return True if traffic arrives, but later than without the fault."""
        return bool(self.delay_ns or self.bytes_per_second)


CLEAR: Final = LinkTreatment()


@dataclass(slots=True)
class LinkFault:
    """One fault.

    Attributes:
        peers: peers of the affected links; None for all links of this broker, clients included.
        value: delay in ns, bytes per second or free bytes, for the verbs that have one.
        ends_ns: time at which the fault heals by itself; None for never.
        mode: of a partition, an entry of MODES.
        counters: effects of the fault so far.
    """

    fault_id: str
    verb: str
    peers: frozenset[Peer] | None
    direction: Direction
    value: int
    ends_ns: int | None
    mode: str = ""
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTERS, 0))

    @property
    def effect(self) -> str:
        """The effect of the fault on a link that it concerns."""
        return self.mode or self.verb

    @property
    def definition(self) -> tuple[object, ...]:
        """The fields that distinguish this fault from others."""
        return (self.verb, self.peers, self.direction, self.value, self.mode)

    def concerns(self, peer: Peer, direction: Direction) -> bool:
        """Return True if the fault acts on this direction of the link with `peer`.

        With `both`: on any direction.
        """
        if VERB_TABLE[self.verb].acts_on in ("disk", _OPPOSITE.get(direction)):
            return False
        # A connection cannot be half closed and still carry a session.
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
    """Return the fault that a command requests; `others` are the far side of a partition.

    Raises:
        ControlError: `user`: no such verb, direction or parameter, or a value out of range.
    """
    for word, known, noun in ((verb, BROKER_VERBS, "verb"), (direction, DIRECTIONS, "direction")):
        if word not in known:
            raise ControlError("user", f"{noun} {word[:40]!r}; one of {', '.join(known)}")
    number = VERB_TABLE[verb].number
    name = "mode" if verb in SET_VERBS else "" if number is None else number.name
    for key in parameters:
        if key != name:
            wanted = f"takes {name}" if name else "takes no parameters"
            raise ControlError("user", f"{verb} {wanted}, not {key[:40]!r}")
    mode = ""
    value = parameters.get(name, 0)
    if verb in SET_VERBS:
        mode, value = parameters.get("mode", MODES[0]), 0
        if mode not in MODES:
            raise ControlError("user", f"mode {str(mode)[:40]!r}; one of {', '.join(MODES)}")
        if not others:
            raise ControlError("user", "a partition needs the peers that it is from")
    elif number is not None and (
        type(value) is not int or not number.lowest <= value <= number.highest
    ):
        text = f"{verb}: {name} is a whole number from {number.lowest} to {number.highest}"
        raise ControlError("user", text)
    if verb not in (*LINK_VERBS, *SET_VERBS) and (peer is not None or direction != "both"):
        raise ControlError("user", f"{verb} is for a broker, not for its links")
    if name == "delay_ms":
        value *= MILLISECOND_NS
    peers = frozenset(others) if others else None if peer is None else frozenset({peer})
    return LinkFault(fault_id, verb, peers, cast(Direction, direction), value, ends_ns, mode)


class LinkFaults:
    """The active faults of one broker, including faults of its disk."""

    def __init__(self) -> None:
        self._faults: dict[str, LinkFault] = {}

    def __iter__(self) -> Iterator[LinkFault]:
        return iter(self._faults.values())

    def __len__(self) -> int:
        return len(self._faults)

    def __contains__(self, fault_id: str) -> bool:
        return fault_id in self._faults

    def apply(self, fault: LinkFault) -> None:
        """Activate a fault; a repeated fault changes only its end.

        Raises:
            ControlError: `user`: another fault has this id.
        """
        known = self._faults.get(fault.fault_id)
        if known is None:
            self._faults[fault.fault_id] = fault
            return
        if known.definition != fault.definition:
            raise ControlError(
                "user",
                f"fault {fault.fault_id!r} exists already, as {known.verb!r} with other parameters",
            )
        known.ends_ns = fault.ends_ns

    def heal(self, fault_id: str) -> LinkFault | None:
        """End a fault and return it, or None if no fault has this id."""
        return self._faults.pop(fault_id, None)

    def renew(self, fault_id: str, ends_ns: int | None) -> bool:
        """Move the end of a fault; return False if no fault has this id."""
        fault = self._faults.get(fault_id)
        if fault is not None:
            fault.ends_ns = ends_ns
        return fault is not None

    def list_expired(self, now_ns: int) -> list[str]:
        """Return the ids of faults with an expired lease."""
        return [
            fault.fault_id
            for fault in self._faults.values()
            if fault.ends_ns is not None and fault.ends_ns <= now_ns
        ]

    def treatment(self, peer: Peer, direction: Direction) -> LinkTreatment:
        """Return the joint effect of all faults on a direction of the link with `peer`."""
        acting = [fault for fault in self._faults.values() if fault.concerns(peer, direction)]
        if not acting:
            return CLEAR
        rates = [fault.value for fault in acting if fault.verb == "bandwidth"]
        effects = [fault.effect for fault in acting]
        return LinkTreatment(
            any(effect in HOLDING_VERBS for effect in effects),
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
        """Return True if `size_bytes` may still be written; both results are counted."""
        quotas = [fault for fault in self._faults.values() if fault.verb == "disk-full"]
        for fault in quotas:
            if fault.counters["written_bytes"] + size_bytes > fault.value:
                fault.counters["refused_writes"] += 1
                return False
        for fault in quotas:
            fault.counters["written_bytes"] += size_bytes
        return True

    def write_delay_ns(self) -> int:
        """Return the time by which the report of a durable write is delayed, in nanoseconds."""
        slow = (fault.value for fault in self._faults.values() if fault.verb == "slow-fsync")
        return sum(slow)

    def count_slowed_write(self) -> None:
        """Count a write that was reported durable late."""
        for fault in self._faults.values():
            fault.counters["slowed_writes"] += fault.verb == "slow-fsync"


Owner = TypeVar("Owner")
Item = TypeVar("Item")


class AbsorbedMessages(Generic[Owner, Item]):
    """Messages that were received and not passed on, in order of arrival over all links.

    Attributes:
        held_bytes: size of all held messages.
    """

    def __init__(self, limit_bytes: int = ABSORB_LIMIT_BYTES) -> None:
        self.held_bytes = 0
        self._limit_bytes = limit_bytes
        self._held: deque[tuple[Owner, Item, int]] = deque()

    @property
    def is_full(self) -> bool:
        """Return True if absorbing links must stop reading."""
        return self.held_bytes >= self._limit_bytes

    def hold(self, owner: Owner, item: Item, size_bytes: int) -> None:
        """Add a message."""
        self.held_bytes += size_bytes
        self._held.append((owner, item, size_bytes))

    def take(self, matches: Callable[[Owner], bool]) -> list[tuple[Owner, Item]]:
        """Remove and return, in order, the messages of all owners for which `matches` is true."""
        taken: list[tuple[Owner, Item]] = []
        kept: deque[tuple[Owner, Item, int]] = deque()
        for owner, item, size_bytes in self._held:
            if matches(owner):
                taken.append((owner, item))
                self.held_bytes -= size_bytes
            else:
                kept.append((owner, item, size_bytes))
        self._held = kept
        return taken
