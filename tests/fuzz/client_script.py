"""The state of one fuzzed client, and its next message: legal messages in any order.

Some client might send each of the messages at some time, but the order is random. A broker must
reply, or refuse a message with RemoteProtocolError.
"""

from collections import deque
from random import Random
from typing import Any, Final

from brokerd.model.client_messages import (
    Acknowledge,
    CommitConsumed,
    Connect,
    Connected,
    Consume,
    ConsumedCommitted,
    Consuming,
    Deliveries,
    Detach,
    Gap,
    Notice,
    Publish,
    Silence,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from brokerd.model.identity import SourceId, StreamId
from brokerd.model.predicate import EVERYTHING, NOTHING, Predicate
from brokerd.model.predicate_text import parse_predicate
from brokerd.model.publication import OriginRun, PublicationRun
from brokerd.wire.attributes import encode_attributes

BLOBS: Final = tuple(encode_attributes({"kind": kind}) for kind in (True, 1, "1", "a"))
PREDICATES: Final[tuple[Predicate, ...]] = (
    EVERYTHING,
    NOTHING,
    *map(parse_predicate, ("kind = true", "kind = 1", "kind in ('1', 'a')", "honest exists")),
)
_LARGE: Final = (1 << 31, (1 << 53) + 1, (1 << 63) - 1)


class ClientScript:
    """The state of one client over all of its sessions, and its next message.

    Args:
        consumes: true if the brokers of the protocol store the commits of clients.
        patience: the chance that the client waits for a reply that it needs.
    """

    def __init__(
        self, random: Random, *, publishes: bool, consumes: bool, patience: float = 0.995
    ) -> None:
        self._random = random
        self._publishes = publishes
        self._consumes = consumes
        self._patience = patience
        self._source: SourceId | None = None
        self._next = 1
        self._positions: dict[StreamId, int] = {}
        self._begun: dict[StreamId, int] = {}
        self._delivered: deque[tuple[StreamId, int, int]] = deque(maxlen=30)
        self._request = 0
        self._said_connect = self._is_connected = self._is_leaving = False

    def begin(self) -> None:
        """Start a session."""
        self._said_connect = self._is_connected = self._is_leaving = False

    def heard(self, message: Any) -> None:
        """Record a message of the broker."""
        match message:
            case Connected(source):
                self._is_connected = True
                self._source = source or self._source
            case Deliveries(run):
                self._delivered.append((run.source, run.first, run.last))
            case Silence(_, stream, first, last) | Gap(_, stream, first, last):
                self._delivered.append((stream, first, last))
            case Notice(_, source, ranges):
                self._delivered.extend((source, first, last) for first, last in ranges)
            case Subscribed(_, _, begins_after):
                self._begun.update(begins_after)
            case Consuming(_, _, _, given):
                self._positions.update(given)
            case ConsumedCommitted(_, request):
                self._request = max(self._request, request)

    def connect(self) -> Connect:
        """Return a Connect: the only place of this file that creates one."""
        random = self._random
        resume = tuple(
            (number, tuple(self._positions.items())) for number in range(1, random.randrange(1, 4))
        )
        continues = self._source is not None and random.random() < 0.8
        if not continues and random.random() < 0.9:
            self._next = 1
        return Connect(
            publishes=self._publishes != (random.random() < 0.1),
            incarnation=random.choice((1, 1, 1, 1, 1, 1, 2, 3)),
            next_sequence=random.choice((*(self._next,) * 8, 1, self._number())),
            highest_sequence=random.choice((*(self._next - 1,) * 8, self._number())),
            resume=resume,
            source=self._source if continues else None,
            exact_incarnation=random.random() < 0.05,
            instance=random.choice((b"", b"1", b"2", random.randbytes(8))),
        )

    def message(self) -> Any:
        """Return the next message; None while the client waits for a reply."""
        random = self._random
        is_patient = random.random() < self._patience
        if is_patient and not self._said_connect:
            self._said_connect = True
            return self.connect()
        if is_patient and not self._is_connected:
            return None
        if is_patient and self._is_leaving:
            return self._acknowledge() if random.random() < 0.3 else None
        draw = random.random()
        if draw < 0.20:
            return Subscribe(random.randrange(1, 5), random.choice(PREDICATES))
        if draw < 0.30 and (self._consumes or not is_patient):
            return self._commit() if draw < 0.25 else self._consume()
        if draw < 0.35:
            return Unsubscribe(random.randrange(1, 5) if is_patient else 0)
        if draw < 0.38:
            self._is_leaving = True
            done = self._next - 1 if is_patient else self._number()
            drain, done = random.random() < 0.6, random.choice((0, done))
            return Detach(drain, done, self._through() if drain or not is_patient else ())
        if draw < 0.65 and (self._source is not None or not is_patient):
            return Publish(self.run(is_patient))
        return self._acknowledge(is_patient)

    def run(self, is_patient: bool = True) -> PublicationRun:
        """Return publications: mostly the next publications of the client's source."""
        random = self._random
        count = random.randrange(1, 6)
        first = self._next
        if random.random() < 0.1:
            first = random.choice((1, max(1, self._next - 2), self._next, self._next + 3))
        if not is_patient:
            first = self._number()
        sequences: range | tuple[int, ...] = range(first, first + count)
        if random.random() < 0.1:
            sequences = tuple(sorted({first + random.randrange(12) for _ in range(count)}))
            count = len(sequences)
        if self._next <= sequences[-1] < self._next + 100:
            self._next = sequences[-1] + 1
        table = (random.choice(BLOBS), *((b"\xff",) if not is_patient else ()))
        source = self._source or SourceId(0, 0, 1)
        if not is_patient and random.random() < 0.5:
            source = SourceId(random.randrange(3), random.randrange(3), random.randrange(3))
        origins = (OriginRun(source, sequences),) if random.random() < 0.003 else ()
        index = bytes(random.randrange(len(table)) for _ in range(count))
        return PublicationRun(source, sequences, table, index, 1, (b"x" * count,), origins)

    def _consume(self) -> Consume:
        random = self._random
        wanted = random.choice(PREDICATES)
        return Consume(random.randrange(1, 5), wanted, random.choice((1, 2, 50)))

    def _acknowledge(self, is_patient: bool = True) -> Acknowledge | None:
        random = self._random
        if is_patient and not self._delivered:
            return None
        if is_patient:
            stream, first, last = random.choice(self._delivered)
            if random.random() < 0.5:
                first = random.randrange(first, last + 1)
            last += random.choice((0, 0, 0, 1, 5))
            self._positions[stream] = max(last, self._positions.get(stream, 0))
            return Acknowledge(stream, first, last)
        stream = SourceId(random.randrange(3), random.randrange(3), random.randrange(3))
        return Acknowledge(stream, self._number(), self._number())

    def _through(self) -> tuple[tuple[StreamId, int], ...]:
        """Return where the next broker begins: at, before or beyond the delivered positions.

        Some streams belong to other clients, and some do not exist.
        """
        random = self._random
        if random.random() < 0.2:
            return ()
        known = {**self._positions, **self._begun}
        known.update((stream, last) for stream, _, last in self._delivered)
        through = {
            stream: random.choice(
                (
                    last,
                    last,
                    random.randrange(last + 1),
                    last + random.choice((1, 1, 5, 1 << 20)),
                    self._number(),
                )
            )
            for stream, last in known.items()
            if random.random() < 0.8
        }
        if random.random() < 0.3:
            other = SourceId(random.randrange(4), random.randrange(4), random.randrange(3))
            through[other] = self._number()
        return tuple(through.items())

    def _commit(self) -> CommitConsumed:
        positions = tuple(self._positions.items())
        if self._delivered and self._random.random() < 0.7:
            stream, _, last = self._random.choice(self._delivered)
            positions = ((stream, last),)
        self._request += self._random.choice((0, 1, 1))
        return CommitConsumed(self._random.randrange(1, 5), self._request, positions)

    def _number(self) -> int:
        random = self._random
        return random.choice(_LARGE) if random.random() < 0.1 else random.randrange(20)
