"""The holds of this broker's pubends for subscriptions that have moved.

The new broker of a subscription may have released, before, events that the subscription lacks; and
a release cannot be undone. So the new broker has the pubends hold those events, by name, before
the old broker releases the subscription.

Paper: [DS03] §1 (item 5, reconnect anywhere; the paper gives no method).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from brokerd.model.identity import BrokerNumber, ClientId, StreamId
from brokerd.protocols.durable.messages import Held, Hold
from brokerd.protocols.durable.migration import ALL_HOLDS, Letters
from brokerd.protocols.durable.state import HOLDS
from brokerd.protocols.gryphon import Stream, Streams
from brokerd.protocols.interface import Change, Commit, Instant
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability

LEASE: Final = "lease"

DOUBT_OF_HOLD: Final = "doubt of hold"
"""Purpose of the deadline of the query to a subscription's broker about a doubtful hold."""

_Key = tuple[ClientId, int, BrokerNumber]

_REMOVALS: Final = 64
"""The number of removals against which late requests are compared."""


@dataclass(slots=True, eq=False)
class _Hold:
    """A hold: nothing after these ticks is released."""

    generation: int
    behind: dict[StreamId, int]
    is_on_disk: bool = False


class Holds:
    """The holds at a broker.

    Args:
        lease_ns: the time after the last request at which a hold expires.
        streams: of this broker.
        letters: sends answers.

    Attributes:
        named: the holds by subscription and its broker.
    """

    def __init__(
        self,
        disk: Durability,
        deadlines: DeadlineQueue[tuple[str, Any]],
        lease_ns: Instant,
        streams: Streams,
        letters: Letters,
    ) -> None:
        self._disk = disk
        self._machine = disk.machine
        self._deadlines = deadlines
        self._lease_ns = lease_ns
        self._streams = streams
        self._letters = letters
        self.named: dict[_Key, _Hold] = {}
        self._removed: dict[_Key, tuple[int, int]] = {}
        self._repetition_ns: Instant = 0

    def __len__(self) -> int:
        return len(self.named)

    def recover(
        self,
        recovered: Mapping[str, Mapping[str, Any]],
        repetition_ns: Instant,
        *,
        is_doubtful: bool,
    ) -> None:
        """Restore the holds of an earlier incarnation, with new leases as their age is unknown.

        Args:
            repetition_ns: the interval of questions if a doubtful hold is required.
            is_doubtful: True after an accepted loss here, when a hold may have ended since.
        """
        self._repetition_ns = repetition_ns
        for key, (generation, behind) in recovered.get(HOLDS, {}).items():
            owner, _, at = key.rpartition("/")
            client, _, number = owner.rpartition("/")
            ticks = {StreamId(*stream): tick for stream, tick in behind}
            found = client, int(number), int(at)
            self.named[found] = _Hold(generation, ticks, is_on_disk=True)
            self._extend(found)
            if is_doubtful:
                self._doubt(found)

    def of(self, stream: StreamId) -> dict[tuple[ClientId, int, BrokerNumber, int], int]:
        """Return the held ticks of a stream, by subscription, broker and generation."""
        return {
            (*key, named.generation): named.behind[stream]
            for key, named in self.named.items()
            if stream in named.behind
        }

    def bound(self, stream: StreamId) -> int | None:
        """Return the tick after which nothing of a stream may be released; None without a hold."""
        ticks = [each.behind[stream] for each in self.named.values() if stream in each.behind]
        return min(ticks, default=None)

    def on_hold(self, message: Hold) -> list[Stream]:
        """Set, reduce or remove a hold, and answer once that is durable.

        After an accepted loss a broker does not recall what it had requested. It asks for
        questions about all holds for it instead (`ALL_HOLDS`).

        Returns the streams of which less is held.
        """
        if (message.client, message.number) == ALL_HOLDS:
            for each in self.named:
                if each[2] == message.at:
                    self._doubt(each)
            self._answer(message)
            return []
        key = message.client, message.number, message.at
        known = self.named.get(key)
        if known is not None and known.generation > message.generation:
            return []
        if self._is_late(key, message):
            return []
        self._deadlines.cancel((DOUBT_OF_HOLD, key))
        if not message.behind:
            return self._drop(key, lambda: self._answer(message))
        self._extend(key)
        behind = dict(message.behind)
        is_less = known is not None and known.is_on_disk and _is_behind(behind, known.behind)
        if known is not None and known.behind == behind and known.generation == message.generation:
            self._disk.when_written(lambda: self._answer(message))
            return []
        self.named[key] = named = _Hold(message.generation, behind, is_on_disk=is_less)
        if is_less:
            self._machine.emit(Commit((_row(key, named),), None))
            self._answer(message)
            return self._list({**known.behind, **behind} if known is not None else behind)

        def held() -> None:
            named.is_on_disk = True
            self._answer(message)

        self._disk.commit((_row(key, named),), held)
        return []

    def _is_late(self, key: _Key, message: Hold) -> bool:
        """Return True for a request that a later removal has overtaken on another route.

        No other broker would remove the hold. Of requests of another incarnation the order is
        unknown, and the hold ends with its lease.
        """
        asked_in, stay = message.requested_in, message.stay
        if message.behind:
            removed = self._removed.get(key)
            return removed is not None and removed[0] == asked_in and stay <= removed[1]
        self._removed.pop(key, None)
        self._removed[key] = asked_in, stay
        if len(self._removed) > _REMOVALS:
            del self._removed[next(iter(self._removed))]
        return False

    def drop(self, at: BrokerNumber) -> Iterator[Stream]:
        """Remove the holds for a decommissioned broker; yield streams of which less is held."""
        for key in [key for key in self.named if key[2] == at]:
            yield from self._drop(key, lambda: None)

    def expire(self, key: _Key) -> list[Stream]:
        """Expire a hold without a recent request; return the streams of which less is held."""
        client, number, at = key
        self._machine.record("hold_expired", client=client, subscription=number, at=at)
        return self._drop(key, lambda: None)

    def request(self, key: _Key) -> None:
        """Ask the broker of a subscription for a Hold with what it requires, or with nothing.

        The question is an answer to no incarnation.
        """
        client, number, at = key
        named = self.named[key]
        here = next(iter(named.behind)).broker
        self._letters.send(Held(at, here, client, number, named.generation, (), 0))
        self._doubt(key)

    def _doubt(self, key: _Key) -> None:
        self._deadlines.set((DOUBT_OF_HOLD, key), self._machine.now_ns + self._repetition_ns)

    def _drop(self, key: _Key, then: Callable[[], None]) -> list[Stream]:
        """Remove a hold; call `then` once a restart does not restore it."""
        self._deadlines.cancel((LEASE, key))
        self._deadlines.cancel((DOUBT_OF_HOLD, key))
        named = self.named.pop(key, None)
        if named is None:
            self._disk.when_written(then)
            return []
        self._disk.commit((Change(HOLDS, _row_key(key), None),), then)
        return self._list(named.behind)

    def _extend(self, key: _Key) -> None:
        self._deadlines.set((LEASE, key), self._machine.now_ns + self._lease_ns)

    def _list(self, streams: Mapping[StreamId, int]) -> list[Stream]:
        return [self._streams.get(stream) for stream in streams]

    def _answer(self, message: Hold) -> None:
        last = []
        for stream, _ in message.behind:
            knowledge = self._streams.get(stream).knowledge
            last.append((stream, knowledge.events.last_up_to(knowledge.highest) or 0))
        key = message.client, message.number, message.generation
        question = message.requested_in, message.stay
        self._letters.send(Held(message.at, message.to, *key, tuple(last), *question))


def _is_behind(behind: Mapping[StreamId, int], before: Mapping[StreamId, int]) -> bool:
    """Return True if no more is held than before."""
    return all(stream in before and before[stream] <= tick for stream, tick in behind.items())


def _row_key(key: _Key) -> str:
    client, number, at = key
    return f"{client}/{number}/{at}"


def _row(key: _Key, named: _Hold) -> Change:
    behind = [[list(stream), tick] for stream, tick in named.behind.items()]
    return Change(HOLDS, _row_key(key), [named.generation, behind])
