"""The holds of this broker's pubends for subscriptions that have moved.

The new broker of a subscription may have released, before, events that the subscription lacks; and
a release cannot be undone. So the new broker has the pubends hold those events, by name, before
the old broker releases the subscription.

Paper: [DS03] §1 (item 5, reconnect anywhere; the paper gives no method).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from brokerd.model.identity import BrokerNumber, ClientId, StreamId
from brokerd.protocols.durable.messages import Held, Hold, Letter
from brokerd.protocols.gryphon import Stream
from brokerd.protocols.interface import Change, Commit, Instant
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability

HOLDS: Final = "holds"
"""Per subscription and its new broker, the streams that are held, and from which ticks."""

LEASE: Final = "lease"

DOUBT_OF_HOLD: Final = "doubt of hold"
"""Purpose of the deadline at which the broker of a subscription is asked for a doubtful hold."""

ALL_HOLDS: Final = "", 1
"""No client's subscription: a Hold for it makes all holds for its broker doubtful."""

_Key = tuple[ClientId, int, BrokerNumber]


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
        streams: returns the state of a stream here.
        tell: sends answers.
        on_less: called with a stream of which less is held.
    """

    def __init__(
        self,
        disk: Durability,
        deadlines: DeadlineQueue[tuple[str, Any]],
        lease_ns: Instant,
        streams: Callable[[StreamId], Stream],
        tell: Callable[[Letter], None],
        on_less: Callable[[Stream], None],
    ) -> None:
        self._disk = disk
        self._machine = disk.machine
        self._deadlines = deadlines
        self._lease_ns = lease_ns
        self._streams = streams
        self._tell = tell
        self._on_less = on_less
        self._holds: dict[_Key, _Hold] = {}
        self._repetition_ns: Instant = 0

    def __len__(self) -> int:
        """Return the number of holds."""
        return len(self._holds)

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
            self._holds[found] = _Hold(generation, ticks, is_on_disk=True)
            self._extend(found)
            if is_doubtful:
                self._doubt(found)

    def of(self, stream: StreamId) -> dict[tuple[ClientId, int, BrokerNumber, int], int]:
        """Return the held ticks of a stream, by subscription, broker and generation."""
        return {
            (*key, named.generation): named.behind[stream]
            for key, named in self._holds.items()
            if stream in named.behind
        }

    def bound(self, stream: StreamId) -> int | None:
        """Return the tick after which nothing of a stream may be released; None without a hold."""
        ticks = [each.behind[stream] for each in self._holds.values() if stream in each.behind]
        return min(ticks, default=None)

    def on_hold(self, message: Hold) -> None:
        """Set, reduce or remove a hold, and answer once that is durable.

        After an accepted loss a broker does not recall what it had requested. It asks for
        questions about all holds for it instead (`ALL_HOLDS`).
        """
        if (message.client, message.number) == ALL_HOLDS:
            for key in self._holds:
                if key[2] == message.at:
                    self._doubt(key)
            self._answer(message)
            return
        key = message.client, message.number, message.at
        known = self._holds.get(key)
        if known is not None and known.generation > message.generation:
            return
        self._deadlines.cancel((DOUBT_OF_HOLD, key))
        if not message.behind:
            self._drop(key, lambda: self._answer(message))
            return
        self._extend(key)
        behind = dict(message.behind)
        is_less = known is not None and known.is_on_disk and _is_behind(behind, known.behind)
        if known is not None and known.behind == behind and known.generation == message.generation:
            self._disk.when_written(lambda: self._answer(message))
            return
        self._holds[key] = named = _Hold(message.generation, behind, is_on_disk=is_less)
        if is_less:
            self._machine.emit(Commit((_row(key, named),), None))
            self._answer(message)
            self._settle({**known.behind, **behind} if known is not None else behind)
            return

        def held() -> None:
            named.is_on_disk = True
            self._answer(message)

        self._disk.commit((_row(key, named),), held)

    def drop(self, at: BrokerNumber) -> None:
        """Remove the holds for a decommissioned broker."""
        for key in [key for key in self._holds if key[2] == at]:
            self._drop(key, lambda: None)

    def due(self, key: _Key) -> None:
        """Expire a hold without a recent request."""
        client, number, at = key
        self._machine.record("hold_expired", client=client, subscription=number, at=at)
        self._drop(key, lambda: None)

    def ask(self, key: _Key) -> None:
        """Ask the broker of a subscription for a Hold with what it requires, or with nothing.

        The question is an answer to no incarnation.
        """
        client, number, at = key
        named = self._holds[key]
        here = next(iter(named.behind)).broker
        self._tell(Held(at, here, client, number, named.generation, (), 0))
        self._doubt(key)

    def _doubt(self, key: _Key) -> None:
        self._deadlines.set((DOUBT_OF_HOLD, key), self._machine.now_ns + self._repetition_ns)

    def _drop(self, key: _Key, then: Callable[[], None]) -> None:
        """Remove a hold; call `then` once a restart does not restore it."""
        self._deadlines.cancel((LEASE, key))
        self._deadlines.cancel((DOUBT_OF_HOLD, key))
        named = self._holds.pop(key, None)
        if named is None:
            self._disk.when_written(then)
            return
        self._disk.commit((Change(HOLDS, _row_key(key), None),), then)
        self._settle(named.behind)

    def _extend(self, key: _Key) -> None:
        self._deadlines.set((LEASE, key), self._machine.now_ns + self._lease_ns)

    def _settle(self, streams: Mapping[StreamId, int]) -> None:
        for stream in streams:
            self._on_less(self._streams(stream))

    def _answer(self, message: Hold) -> None:
        last = []
        for stream, _ in message.behind:
            knowledge = self._streams(stream).knowledge
            last.append((stream, knowledge.events.last_up_to(knowledge.highest) or 0))
        whose = message.client, message.number, message.generation
        question = message.asked_in, message.stay
        self._tell(Held(message.at, message.to, *whose, tuple(last), *question))


def _is_behind(behind: Mapping[StreamId, int], before: Mapping[StreamId, int]) -> bool:
    """Return True if no more is held than before."""
    return all(stream in before and before[stream] <= tick for stream, tick in behind.items())


def _row_key(key: _Key) -> str:
    client, number, at = key
    return f"{client}/{number}/{at}"


def _row(key: _Key, named: _Hold) -> Change:
    behind = [[list(stream), tick] for stream, tick in named.behind.items()]
    return Change(HOLDS, _row_key(key), [named.generation, behind])
