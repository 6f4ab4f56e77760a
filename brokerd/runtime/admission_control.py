"""Limits on connections, publishing rates of clients, and records of refusals; evictions."""

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Final

from brokerd.config import SessionParameters
from brokerd.model.identity import ClientId
from brokerd.units import SECOND_NS

REFUSALS_RECORDED_PER_S: Final = 10
DESCRIPTOR_RESERVE: Final = 256
"""File descriptors reserved for other uses: files, control sockets, dialled brokers.

With few descriptors, half of them are reserved."""


def places_within(descriptors: int) -> int:
    """Return the number of connections that a broker accepts with a limit of descriptors."""
    return max(1, descriptors - min(DESCRIPTOR_RESERVE, descriptors // 2))


def descriptors_for(places: int) -> int:
    """Return the least limit of descriptors with which a broker accepts so many connections."""
    return places + min(DESCRIPTOR_RESERVE, places)


class AdmissionControl:
    """Admission of connections to one broker; every decision takes the same time.

    Attributes:
        open: connections at once.
    """

    def __init__(self, parameters: SessionParameters, descriptors: int | None = None) -> None:
        self.open = 0
        self._parameters = parameters
        self._limit = parameters.connections_limit
        if descriptors is not None:
            self._limit = min(self._limit, places_within(descriptors))
        self._by_address: Counter[str] = Counter()
        self._strangers = 0
        self._strangers_at: defaultdict[str, dict[AdmittedConnection, None]] = defaultdict(dict)
        self._crowds: defaultdict[int, dict[str, None]] = defaultdict(dict)
        """Number of strangers → the addresses that have so many."""
        self._largest_crowd = 0

    def admit(self, address: str, evict: Callable[[], None]) -> "AdmittedConnection | None":
        """Return the admission of a new connection; None if the connection is refused.

        Args:
            address: address of the other end, without the port.
            evict: called if the connection has to make room; must close the connection.
        """
        if self._by_address[address] >= self._parameters.connections_per_address:
            return None
        admitted = AdmittedConnection(self, address, evict)
        self._add(admitted)
        if self._strangers > self._parameters.strangers_limit or self.open >= self._limit:
            out = self._least_welcome()
            self._remove(out)
            if out is admitted:
                return None
            out._evict()
        self.open += 1
        self._by_address[address] += 1
        return admitted

    def can_stay(self, is_broker: bool) -> bool:
        """Return True if there is a place for an identified peer.

        Some places are reserved for brokers.
        """
        reserve = 0 if is_broker else min(self._parameters.broker_reserve, self._limit // 2)
        return self.open - self._strangers <= self._limit - reserve

    def _least_welcome(self) -> "AdmittedConnection":
        address = next(iter(self._crowds[self._largest_crowd]))
        return next(iter(self._strangers_at[address]))

    def _add(self, admitted: "AdmittedConnection") -> None:
        there = self._strangers_at[admitted.address]
        there[admitted] = None
        self._strangers += 1
        self._regroup(admitted.address, len(there) - 1, len(there))

    def _remove(self, admitted: "AdmittedConnection") -> None:
        there = self._strangers_at.get(admitted.address, {})
        if admitted not in there:
            return
        del there[admitted]
        self._strangers -= 1
        self._regroup(admitted.address, len(there) + 1, len(there))
        if not there:
            del self._strangers_at[admitted.address]

    def _regroup(self, address: str, before: int, now: int) -> None:
        self._crowds[before].pop(address, None)
        if now:
            self._crowds[now][address] = None
        if now > self._largest_crowd or not self._crowds[self._largest_crowd]:
            self._largest_crowd = now  # it was the only one of its size, and changes by one
        if not self._crowds[before]:
            del self._crowds[before]


class AdmittedConnection:
    """One admitted connection.

    Attributes:
        address: address of the other end.
    """

    def __init__(
        self, admission: AdmissionControl, address: str, evict: Callable[[], None]
    ) -> None:
        self.address = address
        self._admission = admission
        self._evict = evict

    def on_handshake_end(self) -> None:
        """Record that the handshake has ended, with success or failure.

        The peer is no stranger any more.
        """
        self._admission._remove(self)

    def left(self) -> None:
        """Record that the connection is closed."""
        self.on_handshake_end()
        self._admission.open -= 1
        self._admission._by_address[self.address] -= 1
        if not self._admission._by_address[self.address]:
            del self._admission._by_address[self.address]


class PublishingRate:
    """A limit of publications per second and client; reads from a faster client are delayed.

    Refusals of single publications would leave gaps in a stream that promises none, so the client
    waits. It may be a second's worth ahead, and is identified by name: reconnecting gains nothing.

    Args:
        per_second: limit of each client.
    """

    def __init__(self, per_second: int) -> None:
        assert per_second > 0, f"{per_second} publications a second"
        self._per_second = per_second
        self._used_up_ns: dict[ClientId, int] = {}
        """Client → the time at which all its publications are within its rate."""

    def sent(self, client: ClientId, publications: int, now_ns: int) -> None:
        """Record publications of a client."""
        begin_ns = max(self._used_up_ns.get(client, 0), now_ns)
        self._used_up_ns[client] = begin_ns + publications * SECOND_NS // self._per_second

    def has_to_wait(self, client: ClientId, now_ns: int) -> bool:
        """Return True if reads from a client must wait."""
        return self._used_up_ns.get(client, 0) > now_ns + SECOND_NS

    def clients_within_rate(self, now_ns: int) -> list[ClientId]:
        """Return the clients that need not wait.

        Removes clients that have stayed within the rate.
        """
        within = [name for name in self._used_up_ns if not self.has_to_wait(name, now_ns)]
        for name in within:
            if self._used_up_ns[name] <= now_ns:
                del self._used_up_ns[name]
        return within


class RefusalLog:
    """A limit of recorded refusals: a flood of strangers must not become a flood of log lines."""

    def __init__(self) -> None:
        self._second = 0
        self._recorded = self._unrecorded = 0

    def extend(self, details: dict[str, Any], second: int) -> dict[str, Any] | None:
        """Return the details of a refusal to record, with the number of unrecorded ones before.

        None in a second with as many records as the limit.
        """
        if second != self._second:
            self._second, self._recorded = second, 0
        if self._recorded >= REFUSALS_RECORDED_PER_S:
            self._unrecorded += 1
            return None
        self._recorded += 1
        unrecorded, self._unrecorded = self._unrecorded, 0
        return {**details, "unrecorded_before": unrecorded}
